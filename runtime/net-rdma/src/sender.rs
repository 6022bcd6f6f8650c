//! The sending side: a frame is copied into the send memory, or is in the shared memory already, and is written into the peer's ring.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use reprise_env::{FrameBuffer, FramePoster, FrameSender, NetError, SharedFrame};

use crate::{
    layout::{PIECE_HEAD_BYTES, PeerRing, PieceHead, RING_AT, piece_bytes_max},
    shared::SharedPair,
    verbs::{MemorySpan, RemoteMemory, Write},
};

/// Time between two checks for room.
const POLL_MIN: Duration = Duration::from_micros(20);
const POLL_MAX: Duration = Duration::from_millis(1);

/// The sending half of a connection, which shared frames are also posted to.
pub(crate) struct RdmaSender(Arc<SendPath>);

struct SendPath(Mutex<SendState>);

struct SendState {
    shared: Arc<SharedPair>,
    ring: PeerRing,
    ring_bytes: usize,
    sent_bytes_max: usize,
    send_time: Duration,
    /// Its memory is registered.
    buffer: Option<Arc<FrameBuffer>>,
}

/// The part of a frame that was not sent yet.
enum Rest<'a> {
    Copied {
        parts: &'a [&'a [u8]],
        /// Offset in the first part.
        offset: usize,
    },
    Shared {
        frame: &'a SharedFrame,
        offset: usize,
    },
}

/// Takes at most `max` bytes of a frame in parts, as one slice. Empty: there are no more.
fn take<'a>(parts: &mut &'a [&'a [u8]], offset: &mut usize, max: usize) -> &'a [u8] {
    while let [first, others @ ..] = *parts {
        let left = &first[*offset..];
        if !left.is_empty() {
            let taken = &left[..left.len().min(max)];
            *offset += taken.len();
            return taken;
        }
        (*parts, *offset) = (others, 0);
    }
    &[]
}

impl RdmaSender {
    pub fn new(shared: Arc<SharedPair>, ring: PeerRing, ring_bytes: usize, limits: (usize, Duration)) -> Self {
        let (sent_bytes_max, send_time) = limits;
        Self(Arc::new(SendPath(Mutex::new(SendState {
            shared,
            ring,
            ring_bytes,
            sent_bytes_max,
            send_time,
            buffer: None,
        }))))
    }

    fn lock(&self) -> MutexGuard<'_, SendState> {
        self.0.0.lock().expect("nothing panics under this lock")
    }
}

impl SendState {
    fn now_ns(&self) -> u64 {
        self.shared.around.clock.monotonic_ns()
    }

    fn record_taken(&mut self) -> Result<(), NetError> {
        let taken = self.shared.pair.word(0);
        self.ring.record_taken(taken).map_err(|lie| self.shared.fail(lie))
    }

    /// Waits until the peer's ring has room for a piece: it is ready to receive.
    fn wait_for_room(&mut self, payload: usize, until: &mut Option<u64>) -> Result<(), NetError> {
        let mut interval = POLL_MIN;
        loop {
            self.record_taken()?;
            if self.ring.has_room(payload) {
                return Ok(());
            }
            self.pause(&mut interval, until)?;
        }
    }

    /// `until`: by the connection's clock, in nanoseconds; it begins with the first pause.
    fn pause(&self, interval: &mut Duration, until: &mut Option<u64>) -> Result<(), NetError> {
        self.shared.poll_sent()?;
        self.shared.check()?;
        let now_ns = self.now_ns();
        if now_ns >= *until.get_or_insert(now_ns + self.send_time.as_nanos() as u64) {
            return Err(self.shared.end(NetError::TimedOut));
        }
        self.shared.around.threads.sleep(*interval);
        *interval = (*interval * 2).min(POLL_MAX);
        Ok(())
    }

    /// Puts bytes into the memory that is sent from, at an offset of the ring. Behind the ring's end they continue at its start.
    fn put(&self, at: usize, bytes: &[u8]) {
        let (before, behind) = bytes.split_at(bytes.len().min(self.ring_bytes - at));
        self.shared.pair.put(RING_AT + at, before);
        self.shared.pair.put(RING_AT, behind);
    }

    fn send_piece(&mut self, rest: &mut Rest<'_>, piece: &PieceHead, until: &mut Option<u64>) -> Result<(), NetError> {
        self.wait_for_room(piece.payload, until)?;
        let mut interval = POLL_MIN;
        let (writes, count) = self.prepare(rest, piece);
        let frame = match rest {
            Rest::Shared { frame, .. } => Some(*frame),
            Rest::Copied { .. } => None,
        };
        while !self.shared.post(&writes[..count], piece.is_end, frame)? {
            self.pause(&mut interval, until)?;
        }
        self.ring.push(piece.payload);
        Ok(())
    }

    /// Puts the next piece into the send memory, unless it is in the shared one. Returns the writes that send it, and their number. There
    /// must be room for it.
    fn prepare(&self, rest: &mut Rest<'_>, piece: &PieceHead) -> ([Write; 2], usize) {
        let (sequence, at) = self.ring.next();
        let (head, payload) = (PieceHead { sequence, ..*piece }, piece.payload);
        self.put(at, &head.encode());
        match rest {
            Rest::Copied { parts, offset } => {
                let mut filled = 0;
                while filled < payload {
                    let part = take(parts, offset, payload - filled);
                    self.put((at + PIECE_HEAD_BYTES + filled) % self.ring_bytes, part);
                    filled += part.len();
                }
                self.writes(at, PIECE_HEAD_BYTES + payload, MemorySpan::default(), payload as u32)
            }
            Rest::Shared { frame, offset } => {
                let shared = MemorySpan {
                    at: frame.at() + *offset,
                    bytes: payload,
                };
                *offset += payload;
                self.writes(at, PIECE_HEAD_BYTES, shared, payload as u32)
            }
        }
    }

    /// Returns one write, or two if the ring wraps; the last one carries the immediate value. The first `own` bytes come from the same
    /// place in the send memory, the others from the shared memory.
    fn writes(&self, at: usize, own: usize, shared: MemorySpan, immediate: u32) -> ([Write; 2], usize) {
        let write = |at: usize, own: usize, shared: MemorySpan, immediate: Option<u32>| Write {
            number: 0,
            own: MemorySpan {
                at: RING_AT + at,
                bytes: own,
            },
            shared,
            to: RemoteMemory {
                address: self.shared.peer.address + (RING_AT + at) as u64,
                key: self.shared.peer.key,
            },
            immediate,
            is_signalled: false,
        };
        let before = self.ring_bytes - at;
        if own + shared.bytes <= before {
            let whole = write(at, own, shared, Some(immediate));
            return ([whole, write(0, 0, MemorySpan::default(), None)], 1);
        }
        let own_before = own.min(before);
        let (first, second) = split(shared, before - own_before);
        let begin = write(at, own_before, first, None);
        ([begin, write(0, own - own_before, second, Some(immediate))], 2)
    }

    /// Reports to the peer that nothing follows, and waits for the writes in flight.
    fn finish(&mut self) -> Result<(), NetError> {
        let deadline = self.now_ns() + self.shared.around.last_time.as_nanos() as u64;
        self.shared.check()?;
        let end = PieceHead {
            sequence: 0,
            payload: 0,
            is_more: false,
            is_end: true,
        };
        let mut nothing = Rest::Copied { parts: &[], offset: 0 };
        self.send_piece(&mut nothing, &end, &mut Some(deadline))?;
        while !self.shared.poll_sent()? && self.now_ns() < deadline {
            self.shared.around.threads.sleep(POLL_MAX);
        }
        Ok(())
    }

    fn send(&mut self, mut rest: Rest<'_>, bytes: usize) -> Result<(), NetError> {
        if bytes > self.sent_bytes_max {
            let max = self.sent_bytes_max;
            return Err(NetError::TooLarge { bytes, max });
        }
        self.shared.poll_sent()?;
        self.shared.check()?;
        let (mut left, mut until) = (bytes, None);
        loop {
            let piece = self.piece(left);
            left -= piece.payload;
            self.send_piece(&mut rest, &piece, &mut until)?;
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Returns the next piece of a frame with this many bytes left.
    fn piece(&self, left: usize) -> PieceHead {
        let payload = left.min(piece_bytes_max(self.ring_bytes));
        PieceHead {
            sequence: 0,
            payload,
            is_more: payload < left,
            is_end: false,
        }
    }

    fn try_post(&mut self, frame: &SharedFrame) -> Result<bool, NetError> {
        self.check_shared(frame)?;
        self.shared.poll_sent()?;
        self.shared.check()?;
        self.record_taken()?;
        let (bytes, piece) = (frame.bytes(), self.piece(frame.bytes()));
        if piece.is_more || bytes > self.sent_bytes_max || !self.ring.has_room(bytes) {
            return Ok(false);
        }
        let (writes, count) = self.prepare(&mut Rest::Shared { frame, offset: 0 }, &piece);
        let is_posted = self.shared.post(&writes[..count], false, Some(frame))?;
        if is_posted {
            self.ring.push(bytes);
        }
        Ok(is_posted)
    }

    /// Only of memory that this pair knows may anything be sent.
    fn check_shared(&self, frame: &SharedFrame) -> Result<(), NetError> {
        match &self.buffer {
            Some(buffer) if Arc::ptr_eq(buffer, frame.buffer()) => Ok(()),
            _ => Err(self.shared.fail("a frame lies in a buffer that is not shared")),
        }
    }
}

/// Splits a span into its first `before` bytes and the rest.
fn split(span: MemorySpan, before: usize) -> (MemorySpan, MemorySpan) {
    let before = before.min(span.bytes);
    let first = MemorySpan { bytes: before, ..span };
    let second = MemorySpan {
        at: span.at + before,
        bytes: span.bytes - before,
    };
    (first, second)
}

impl FrameSender for RdmaSender {
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), NetError> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.lock().send(Rest::Copied { parts, offset: 0 }, bytes)
    }

    fn share(&mut self, buffer: &Arc<FrameBuffer>) -> Result<Arc<dyn FramePoster>, NetError> {
        let mut out = self.lock();
        if out.buffer.is_none() {
            let attached = out.shared.pair.attach(buffer.memory());
            attached.map_err(|error| out.shared.fail(error))?;
            out.buffer = Some(buffer.clone());
        }
        drop(out);
        Ok(self.0.clone())
    }

    fn send_shared(&mut self, frame: &SharedFrame) -> Result<(), NetError> {
        let mut out = self.lock();
        out.check_shared(frame)?;
        out.send(Rest::Shared { frame, offset: 0 }, frame.bytes())
    }
}

impl FramePoster for SendPath {
    fn try_post(&self, frame: &SharedFrame) -> Result<bool, NetError> {
        match self.0.try_lock() {
            Ok(mut out) => out.try_post(frame),
            Err(_) => Ok(false),
        }
    }
}

impl Drop for RdmaSender {
    fn drop(&mut self) {
        let mut out = self.lock();
        // A peer that is gone, or takes nothing, has had its time.
        let _ = out.finish();
        out.shared.sender_is_gone();
        // A thread that posts at the same time finds that the connection is over.
        out.sent_bytes_max = 0;
    }
}
