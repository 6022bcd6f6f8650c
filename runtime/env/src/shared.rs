//! Frames that lie once in memory from which a transport sends them to several peers.

use std::{
    any::Any,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::NetError;

/// Frames that lie in one buffer at most.
pub const SHARED_FRAMES_MAX: usize = 4096;
/// Each frame begins at a multiple of it: a cache line.
const ALIGN_BYTES: usize = 64;

/// Memory that a transport sends from.
pub trait FrameMemory: Any + Send + Sync {
    /// How many there are.
    fn bytes(&self) -> usize;

    /// Puts bytes. It panics if they do not fit.
    fn put(&self, at: usize, bytes: &[u8]);
}

/// A ring of frames, each contiguous. The room of a frame is free once it, and all before it, were released.
pub struct FrameBuffer {
    memory: Arc<dyn FrameMemory>,
    /// How many hold the frame of a slot.
    holders: Box<[AtomicU32]>,
    counters: Mutex<RingCounters>,
}

/// Counted from the start, without an end: of bytes, and of frames.
struct RingCounters {
    head: u64,
    tail: u64,
    next: u64,
    oldest: u64,
    /// Behind each frame that is held, by its number.
    ends: Box<[u64]>,
}

/// A frame in a buffer. It stays while any of its clones does.
pub struct SharedFrame {
    buffer: Arc<FrameBuffer>,
    slot: usize,
    at: usize,
    bytes: usize,
}

/// Sends frames of a buffer on one connection, beside its `FrameSender`, and waits for nothing.
pub trait FramePoster: Send + Sync {
    /// Sends the frame if it can at once. False: the peer has no room now, another thread is sending, or the frame is too long;
    /// nothing was sent.
    fn try_post(&self, frame: &SharedFrame) -> Result<bool, NetError>;
}

impl FrameBuffer {
    /// Over all of this memory, with nothing in it.
    pub fn new(memory: Arc<dyn FrameMemory>) -> Self {
        Self {
            memory,
            holders: (0..SHARED_FRAMES_MAX).map(|_| AtomicU32::new(0)).collect(),
            counters: Mutex::new(RingCounters {
                head: 0,
                tail: 0,
                next: 0,
                oldest: 0,
                ends: vec![0; SHARED_FRAMES_MAX].into(),
            }),
        }
    }

    /// The memory that holds the frames.
    pub fn memory(&self) -> &Arc<dyn FrameMemory> {
        &self.memory
    }

    /// Copies `parts` into the ring as one frame, without an allocation. None: there is no room until older frames are released.
    pub fn lay(self: &Arc<Self>, parts: &[&[u8]]) -> Option<SharedFrame> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let mut counters = self.counters.lock().expect("nothing panics under this lock");
        counters.reclaim(&self.holders);
        let at = counters.place(bytes, self.memory.bytes())?;
        let slot = (counters.next % SHARED_FRAMES_MAX as u64) as usize;
        counters.ends[slot] = counters.head;
        counters.next += 1;
        self.holders[slot].store(1, Ordering::Relaxed);
        drop(counters);
        let mut filled = at;
        for part in parts {
            self.memory.put(filled, part);
            filled += part.len();
        }
        let buffer = Arc::clone(self);
        Some(SharedFrame {
            buffer,
            slot,
            at,
            bytes,
        })
    }
}

impl RingCounters {
    /// Frees the room of the oldest frames without a holder; an empty ring begins anew.
    fn reclaim(&mut self, holders: &[AtomicU32]) {
        while self.oldest < self.next {
            let slot = (self.oldest % SHARED_FRAMES_MAX as u64) as usize;
            if holders[slot].load(Ordering::Acquire) > 0 {
                return;
            }
            self.tail = self.ends[slot];
            self.oldest += 1;
        }
        (self.head, self.tail) = (0, 0);
    }

    /// Takes room in one piece. The rest before the ring's end may be too little for it.
    fn place(&mut self, bytes: usize, capacity: usize) -> Option<usize> {
        let (span, capacity) = (bytes.next_multiple_of(ALIGN_BYTES) as u64, capacity as u64);
        let at = self.head % capacity;
        let begin = match at + span > capacity {
            true => self.head + (capacity - at),
            false => self.head,
        };
        let is_full = self.next - self.oldest == SHARED_FRAMES_MAX as u64;
        if is_full || begin + span - self.tail > capacity {
            return None;
        }
        self.head = begin + span;
        Some((begin % capacity) as usize)
    }
}

impl SharedFrame {
    /// The ring that holds the frame.
    pub fn buffer(&self) -> &Arc<FrameBuffer> {
        &self.buffer
    }

    /// Offset in the buffer's memory.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The frame's length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if another clone of the frame exists.
    pub fn is_held_by_others(&self) -> bool {
        self.buffer.holders[self.slot].load(Ordering::Acquire) > 1
    }
}

impl Clone for SharedFrame {
    fn clone(&self) -> Self {
        self.buffer.holders[self.slot].fetch_add(1, Ordering::Relaxed);
        Self {
            buffer: Arc::clone(&self.buffer),
            ..*self
        }
    }
}

impl Drop for SharedFrame {
    fn drop(&mut self) {
        self.buffer.holders[self.slot].fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PlainMemory(Mutex<Vec<u8>>);

    impl FrameMemory for PlainMemory {
        fn bytes(&self) -> usize {
            self.0.lock().expect("test").len()
        }

        fn put(&self, at: usize, bytes: &[u8]) {
            self.0.lock().expect("test")[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn buffer(bytes: usize) -> (Arc<PlainMemory>, Arc<FrameBuffer>) {
        let memory = Arc::new(PlainMemory(Mutex::new(vec![0; bytes])));
        (memory.clone(), Arc::new(FrameBuffer::new(memory)))
    }

    #[test]
    fn frame_stays_while_it_has_a_holder() {
        let (memory, buffer) = buffer(256);
        let first = buffer.lay(&[b"fi", b"", b"rst"]).expect("room");
        assert_eq!(&memory.0.lock().expect("test")[..5], b"first");
        let second = buffer.lay(&[&[2; 100]]).expect("room");
        assert_eq!((second.at(), second.bytes()), (64, 100));
        assert!(buffer.lay(&[&[3; 65]]).is_none(), "64 bytes are left");
        let held = first.clone();
        assert!(first.is_held_by_others());
        drop(first);
        assert!(!held.is_held_by_others());
        drop(second);
        assert!(buffer.lay(&[&[3; 65]]).is_none(), "the oldest is held");
        drop(held);
        let third = buffer.lay(&[&[3; 200]]).expect("all is free");
        assert_eq!(third.at(), 0, "in one piece");
        drop(third);
        assert!(buffer.lay(&[&[4; 256]]).is_some(), "all of it");
        assert!(buffer.lay(&[&[4; 257]]).is_none(), "never");
    }

    #[test]
    fn frames_are_bounded_in_number() {
        let (_, buffer) = buffer(1 << 20);
        let mut held: Vec<SharedFrame> = (0..SHARED_FRAMES_MAX)
            .map(|_| buffer.lay(&[b"x"]).expect("room"))
            .collect();
        assert!(buffer.lay(&[b"x"]).is_none());
        held.remove(0);
        assert!(buffer.lay(&[b"x"]).is_some());
    }
}
