//! The receiving side: it copies the bytes that the peer wrote into this end's ring, checks them, and hands them on as frames.

use std::{sync::Arc, time::Duration};

use crossbeam_channel::{Sender, TrySendError};
use reprise_env::{NetError, Step, Work};

use crate::{
    layout::{PIECE_HEAD_BYTES, PIECES_MAX, PieceHead, RING_AT, piece_bytes_max, span},
    shared::SharedPair,
    verbs::{Completion, CompletionQueue, MemorySpan, RemoteMemory, Write},
};

/// Interval at which the reader checks whether the connection has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for arriving data after the last write. A peer that was silent for this time is gone.
const LINGER: Duration = Duration::from_secs(3);
/// Time for completions that the card has not reported yet when the peer is gone.
const LAST_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Pieces after which the reader reports that it took them, while more arrive.
const REPORT_EVERY: u64 = PIECES_MAX as u64 / 4;

pub(crate) struct FrameReceiver {
    shared: Arc<SharedPair>,
    frames: Sender<Vec<u8>>,
    ring_bytes: usize,
    frame_bytes_max: usize,
    /// Behind the last piece, counted from the connection's start.
    at: u64,
    taken: u64,
    reported: u64,
    reported_at: u64,
    /// The beginning of a frame of several pieces.
    begun: Vec<u8>,
    is_ended: bool,
    /// True if it is stepped, so that it never waits.
    is_stepped: bool,
    /// A stepped reader's whole frame, for which the receiver has no room yet.
    whole: Option<Vec<u8>>,
    /// When something came last, by the connection's clock.
    heard_ns: u64,
}

impl Work for FrameReceiver {
    fn run(mut self: Box<Self>) {
        if let Err(error) = self.read() {
            self.shared.end(error);
        }
    }

    fn step(&mut self) -> Step {
        self.is_stepped = true;
        let stepped = self.turn();
        stepped.unwrap_or_else(|error| {
            self.shared.end(error);
            Step::Over
        })
    }
}

impl FrameReceiver {
    pub fn new(
        shared: Arc<SharedPair>,
        frames: Sender<Vec<u8>>,
        (ring_bytes, frame_bytes_max): (usize, usize),
    ) -> Self {
        Self {
            heard_ns: shared.around.clock.monotonic_ns(),
            shared,
            frames,
            ring_bytes,
            frame_bytes_max,
            at: 0,
            taken: 0,
            reported: 0,
            reported_at: 0,
            begun: Vec::new(),
            is_ended: false,
            is_stepped: false,
            whole: None,
        }
    }

    /// Reads until the connection ends or breaks, or its receiver is gone.
    fn read(&mut self) -> Result<(), NetError> {
        while !self.is_ended {
            if self.take_all()? {
                self.record_heard();
                continue;
            }
            self.poll_peer()?;
            if self.wait(POLL_INTERVAL)? || self.take_all()? {
                self.record_heard();
            } else if !self.shared.is_peer_there() {
                let _ = self.wait(LAST_POLL_INTERVAL)? || self.take_all()?;
                return if self.is_ended { Ok(()) } else { Err(NetError::Closed) };
            }
        }
        self.report_taken()
    }

    /// One turn of a stepped one.
    fn turn(&mut self) -> Result<Step, NetError> {
        if let Some(whole) = self.whole.take() {
            self.hand_on(whole)?;
            return Ok(if self.whole.is_some() { Step::Idle } else { Step::Done });
        }
        if self.is_ended {
            return self.report_taken().map(|()| Step::Over);
        }
        let is_peer_there = self.shared.is_peer_there();
        if self.take_all()? {
            self.record_heard();
            return Ok(Step::Done);
        }
        self.poll_peer()?;
        match is_peer_there {
            true => Ok(Step::Idle),
            false => Err(NetError::Closed),
        }
    }

    fn record_heard(&mut self) {
        self.heard_ns = self.shared.around.clock.monotonic_ns();
    }

    /// Does the reader's other work while no piece arrives.
    fn poll_peer(&mut self) -> Result<(), NetError> {
        self.report_taken()?;
        self.shared.check()?;
        self.shared.poll_sent()?;
        self.check_time(self.heard_ns)
    }

    /// Checks the time after the last write. Err: the time since then, or since `begun_ns`, is over.
    fn check_time(&self, begun_ns: u64) -> Result<(), NetError> {
        let Some(gone_ns) = self.shared.sender_gone_ns() else {
            return Ok(());
        };
        let now_ns = self.shared.around.clock.monotonic_ns();
        match u128::from(now_ns.saturating_sub(begun_ns.min(gone_ns))) > LINGER.as_nanos() {
            true => Err(NetError::Closed),
            false => Ok(()),
        }
    }

    /// Waits until something has arrived, or the time is over. True: it was taken. False: the queue may have a completion.
    fn wait(&mut self, time: Duration) -> Result<bool, NetError> {
        let pair = &self.shared.pair;
        pair.arm().map_err(|error| self.shared.fail(error))?;
        if self.take_all()? {
            return Ok(true);
        }
        let waited = self.shared.pair.wait(time);
        waited.map_err(|error| self.shared.fail(error)).map(|()| false)
    }

    /// False: nothing has come.
    fn take_all(&mut self) -> Result<bool, NetError> {
        let mut is_any = false;
        let mut completions = [Completion::default(); 16];
        // A stepped reader may have to keep the next piece waiting for the one before.
        let completions = &mut completions[..if self.is_stepped { 1 } else { 16 }];
        while !self.is_ended && self.whole.is_none() {
            let found = self.shared.pair.poll(CompletionQueue::Received, completions);
            let found = found.map_err(|error| self.shared.fail(error))?;
            for completion in &completions[..found] {
                self.take(completion)?;
            }
            is_any |= found > 0;
            if found < completions.len() {
                break;
            }
        }
        Ok(is_any)
    }

    fn take(&mut self, completion: &Completion) -> Result<(), NetError> {
        if let Some(failure) = completion.failure {
            // A broken queue pair reports its reason with an own write, if at all.
            self.shared.poll_sent()?;
            return Err(self.shared.fail(format_args!("the connection broke: {failure}")));
        }
        if self.is_ended {
            return Ok(());
        }
        self.check_time(u64::MAX)?;
        let head = self.head(completion.immediate)?;
        self.copy(head.payload);
        self.at += span(head.payload) as u64;
        self.taken += 1;
        self.shared
            .pair
            .post_receive()
            .map_err(|error| self.shared.fail(error))?;
        self.is_ended = head.is_end;
        if self.taken - self.reported >= REPORT_EVERY || self.at - self.reported_at >= self.ring_bytes as u64 / 4 {
            self.report_taken()?;
        }
        match head.is_more || head.is_end {
            true => Ok(()),
            false => {
                let frame = std::mem::take(&mut self.begun);
                self.hand_on(frame)
            }
        }
    }

    /// Reads the head of the next piece. It must agree with the completion.
    fn head(&self, immediate: Option<u32>) -> Result<PieceHead, NetError> {
        let mut bytes = [0; PIECE_HEAD_BYTES];
        self.get(0, &mut bytes);
        let head = PieceHead::decode(bytes);
        let expected = self.taken as u32;
        if head.sequence != expected {
            let found = head.sequence;
            return Err(self.shared.fail(format_args!(
                "piece {expected} is not where it belongs, {found} is: a completion was lost, or came out of order"
            )));
        }
        if immediate != Some(head.payload as u32) || head.payload > piece_bytes_max(self.ring_bytes) {
            return Err(self.shared.fail(format_args!(
                "piece {expected} says {} bytes, its write {immediate:?}",
                head.payload
            )));
        }
        // Else a frame need never end.
        if head.is_more && head.payload < piece_bytes_max(self.ring_bytes) {
            let payload = head.payload;
            return Err(self.shared.fail(format_args!(
                "piece {expected} of {payload} bytes is not full, and says that more follows"
            )));
        }
        let bytes = self.begun.len() + head.payload;
        if bytes > self.frame_bytes_max {
            let max = self.frame_bytes_max;
            return Err(NetError::TooLarge { bytes, max });
        }
        Ok(head)
    }

    fn copy(&mut self, payload: usize) {
        let from = self.begun.len();
        self.begun.resize(from + payload, 0);
        let mut begun = std::mem::take(&mut self.begun);
        self.get(PIECE_HEAD_BYTES, &mut begun[from..]);
        self.begun = begun;
    }

    /// Reads the ring from `offset` of the next piece on. Behind its end it continues at its start.
    fn get(&self, offset: usize, bytes: &mut [u8]) {
        let at = (self.at as usize + offset) % self.ring_bytes;
        let before = bytes.len().min(self.ring_bytes - at);
        let (before, behind) = bytes.split_at_mut(before);
        self.shared.pair.get(RING_AT + at, before);
        self.shared.pair.get(RING_AT, behind);
    }

    fn hand_on(&mut self, frame: Vec<u8>) -> Result<(), NetError> {
        let refused = match self.frames.try_send(frame) {
            Ok(()) => false,
            Err(TrySendError::Disconnected(_)) => true,
            Err(TrySendError::Full(frame)) if self.is_stepped => {
                self.whole = Some(frame);
                false
            }
            Err(TrySendError::Full(frame)) => {
                // The peer may reuse the room of taken pieces, however long this call waits.
                self.report_taken()?;
                self.frames.send(frame).is_err()
            }
        };
        match refused {
            true => Err(NetError::Closed),
            false => Ok(()),
        }
    }

    /// Writes the count of taken pieces into the peer's memory, if the peer does not have it: ReadyToReceive (Query Fresh, section 3.2).
    fn report_taken(&mut self) -> Result<(), NetError> {
        if self.taken == self.reported {
            return Ok(());
        }
        self.shared.pair.put(0, &self.taken.to_le_bytes());
        let peer = self.shared.peer;
        let write = Write {
            number: 0,
            own: MemorySpan { at: 0, bytes: 8 },
            shared: MemorySpan::default(),
            to: RemoteMemory { ..peer },
            immediate: None,
            is_signalled: false,
        };
        if self.shared.post(&[write], false, None)? {
            (self.reported, self.reported_at) = (self.taken, self.at);
        }
        Ok(())
    }
}
