//! The way out: a frame is put into the registered memory once, and written into the peer's ring from there.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use reprise_env::{FrameSender, NetError};

use crate::{
    layout::{Outgoing, PIECE_HEAD_BYTES, PieceHead, RING_AT, piece_bytes_max},
    shared::Shared,
    verbs::{Memory, Write},
};

/// Between two looks for room.
const LOOK_MIN: Duration = Duration::from_micros(20);
const LOOK_MAX: Duration = Duration::from_millis(1);
/// What was sent before the end has so much time to arrive.
const LAST_TIME: Duration = Duration::from_millis(500);

pub(crate) struct RdmaSender {
    shared: Arc<Shared>,
    ring: Outgoing,
    ring_bytes: usize,
    sent_bytes_max: usize,
    send_time: Duration,
}

/// The rest of a frame that lies in several parts.
struct Rest<'a> {
    parts: &'a [&'a [u8]],
    /// Of the first part.
    offset: usize,
}

impl Rest<'_> {
    /// At most `max` bytes, as one slice; empty: there are no more.
    fn take(&mut self, max: usize) -> &[u8] {
        while let [first, others @ ..] = self.parts {
            let left = &first[self.offset..];
            if !left.is_empty() {
                let taken = &left[..left.len().min(max)];
                self.offset += taken.len();
                return taken;
            }
            (self.parts, self.offset) = (others, 0);
        }
        &[]
    }
}

impl RdmaSender {
    pub fn new(shared: Arc<Shared>, ring: Outgoing, ring_bytes: usize, limits: (usize, Duration)) -> Self {
        let (sent_bytes_max, send_time) = limits;
        Self {
            shared,
            ring,
            ring_bytes,
            sent_bytes_max,
            send_time,
        }
    }

    fn note_taken(&mut self) -> Result<(), NetError> {
        let taken = self.shared.pair.word(0);
        self.ring.note_taken(taken).map_err(|lie| self.shared.fail(lie))
    }

    /// Until the peer's ring has room for a piece: it is ready to receive.
    fn wait_for_room(&mut self, payload: usize, until: &mut Option<Instant>) -> Result<(), NetError> {
        let mut look = LOOK_MIN;
        loop {
            self.note_taken()?;
            if self.ring.has_room(payload) {
                return Ok(());
            }
            self.pause(&mut look, until)?;
        }
    }

    fn pause(&self, look: &mut Duration, until: &mut Option<Instant>) -> Result<(), NetError> {
        self.shared.poll_sent()?;
        self.shared.check()?;
        let now = Instant::now();
        if now > *until.get_or_insert(now + self.send_time) {
            return Err(self.shared.end(NetError::TimedOut));
        }
        thread::sleep(*look);
        *look = (*look * 2).min(LOOK_MAX);
        Ok(())
    }

    /// Puts bytes into the memory that is sent from, at an offset of the ring; behind its end they go on at its start.
    fn put(&self, at: usize, bytes: &[u8]) {
        let (before, behind) = bytes.split_at(bytes.len().min(self.ring_bytes - at));
        self.shared.pair.put(RING_AT + at, before);
        self.shared.pair.put(RING_AT, behind);
    }

    fn send_piece(
        &mut self,
        rest: &mut Rest<'_>,
        piece: &PieceHead,
        until: &mut Option<Instant>,
    ) -> Result<(), NetError> {
        self.wait_for_room(piece.payload, until)?;
        let (sequence, at) = self.ring.push(piece.payload);
        let head = PieceHead { sequence, ..*piece };
        self.put(at, &head.encode());
        let mut filled = 0;
        while filled < piece.payload {
            let part = rest.take(piece.payload - filled);
            self.put((at + PIECE_HEAD_BYTES + filled) % self.ring_bytes, part);
            filled += part.len();
        }
        let mut look = LOOK_MIN;
        let (writes, count) = self.writes(at, PIECE_HEAD_BYTES + piece.payload, piece.payload as u32);
        while !self.shared.post(&writes[..count], piece.is_end)? {
            self.pause(&mut look, until)?;
        }
        Ok(())
    }

    /// One write, or two where the ring wraps: the last one carries the immediate value.
    fn writes(&self, at: usize, bytes: usize, immediate: u32) -> ([Write; 2], usize) {
        let write = |at: usize, bytes: usize, immediate: Option<u32>| Write {
            number: 0,
            from: RING_AT + at,
            bytes,
            to: Memory {
                address: self.shared.peer.address + (RING_AT + at) as u64,
                key: self.shared.peer.key,
            },
            immediate,
            is_signalled: false,
        };
        match self.ring_bytes - at {
            before if before < bytes => ([write(at, before, None), write(0, bytes - before, Some(immediate))], 2),
            _ => ([write(at, bytes, Some(immediate)), write(0, 0, None)], 1),
        }
    }

    /// Says that nothing follows, and waits for what is on its way.
    fn finish(&mut self) -> Result<(), NetError> {
        let deadline = Instant::now() + LAST_TIME;
        self.shared.check()?;
        let end = PieceHead {
            sequence: 0,
            payload: 0,
            is_more: false,
            is_end: true,
        };
        let mut nothing = Rest { parts: &[], offset: 0 };
        self.send_piece(&mut nothing, &end, &mut Some(deadline))?;
        while !self.shared.poll_sent()? && Instant::now() < deadline {
            thread::sleep(LOOK_MAX);
        }
        Ok(())
    }
}

impl FrameSender for RdmaSender {
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), NetError> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > self.sent_bytes_max {
            let max = self.sent_bytes_max;
            return Err(NetError::TooLarge { bytes, max });
        }
        self.shared.check()?;
        self.shared.poll_sent()?;
        let mut rest = Rest { parts, offset: 0 };
        let (mut left, mut until) = (bytes, None);
        loop {
            let payload = left.min(piece_bytes_max(self.ring_bytes));
            left -= payload;
            let piece = PieceHead {
                sequence: 0,
                payload,
                is_more: left > 0,
                is_end: false,
            };
            self.send_piece(&mut rest, &piece, &mut until)?;
            if left == 0 {
                return Ok(());
            }
        }
    }
}

impl Drop for RdmaSender {
    fn drop(&mut self) {
        // A peer that is gone, or takes nothing, has had its time.
        let _ = self.finish();
        self.shared.sender_is_gone();
    }
}
