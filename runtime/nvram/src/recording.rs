//! Simulated persistent memory: it records writes and drains, and shows the possible states after a crash.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

use crate::{Memory, Persistence};

/// A call at the boundary.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are the parameters of the call")]
pub enum Event {
    /// `Memory::write`: from where on, and how many bytes.
    Write { at: usize, bytes: usize },
    /// `Memory::store`: where, and what.
    Store { at: usize, word: u64 },
    /// `Memory::drain`.
    Drain,
}

/// Memory for tests: what each thread wrote since it last drained may be lost in a crash, by pieces of 8 bytes.
pub struct RecordingMemory {
    state: Mutex<RecordedState>,
}

#[derive(Clone)]
struct RecordedState {
    /// Bytes that a reader sees.
    now: Vec<u8>,
    /// Bytes that are certainly persistent.
    safe: Vec<u8>,
    /// Words that may be persistent and need not be: (place, bytes), in the order in which they were written.
    loose: HashMap<ThreadId, Vec<(usize, [u8; 8])>>,
    events: Vec<Event>,
    /// The state before each drain, from which crash images are made.
    drain_points: Vec<DrainPoint>,
    keeps_drain_points: bool,
}

/// The region before a drain.
#[derive(Clone)]
struct DrainPoint {
    safe: Vec<u8>,
    loose: Vec<(usize, [u8; 8])>,
}

impl RecordingMemory {
    /// Zeros, `bytes` of them.
    pub fn new(bytes: usize) -> Self {
        Self::from_image(vec![0; bytes])
    }

    /// A region as a crash left it.
    pub fn from_image(image: Vec<u8>) -> Self {
        Self {
            state: Mutex::new(RecordedState {
                safe: image.clone(),
                now: image,
                loose: HashMap::new(),
                events: Vec::new(),
                drain_points: Vec::new(),
                keeps_drain_points: false,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, RecordedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls since this was last called.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.state().events)
    }

    /// An image that a crash at this moment may leave: `is_there` decides for each word that is not certainly persistent.
    pub fn image(&self, mut is_there: impl FnMut() -> bool) -> Vec<u8> {
        let state = self.state();
        let mut image = state.safe.clone();
        for (at, word) in state.loose.values().flatten() {
            if is_there() {
                image[*at..*at + 8].copy_from_slice(word);
            }
        }
        image
    }

    /// Keeps the state before each later drain, for [`RecordingMemory::image_before_drain`].
    pub fn keep_drain_points(&self) {
        self.state().keeps_drain_points = true;
    }

    /// An image that a crash before the `n`th drain may leave, by `is_there`; None behind the last drain.
    pub fn image_before_drain(&self, n: usize, mut is_there: impl FnMut() -> bool) -> Option<Vec<u8>> {
        let state = self.state();
        let cut = state.drain_points.get(n)?;
        let mut image = cut.safe.clone();
        for (at, word) in &cut.loose {
            if is_there() {
                image[*at..*at + 8].copy_from_slice(word);
            }
        }
        Some(image)
    }

    /// Flips a bit, persistently.
    pub fn flip(&self, at: usize, bit: u8) {
        let mut state = self.state();
        state.now[at] ^= 1 << bit;
        state.safe[at] ^= 1 << bit;
    }
}

impl RecordedState {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.now[at..at + bytes.len()].copy_from_slice(bytes);
        let first = at / 8 * 8;
        let end = (at + bytes.len()).next_multiple_of(8).min(self.now.len());
        let now = &self.now;
        let words = (first..end).step_by(8).map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&now[at..at + 8]);
            (at, word)
        });
        self.loose.entry(thread::current().id()).or_default().extend(words);
    }
}

impl Memory for RecordingMemory {
    fn bytes(&self) -> usize {
        self.state().now.len()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let mut state = self.state();
        state.put(at, bytes);
        state.events.push(Event::Write { at, bytes: bytes.len() });
    }

    fn store(&self, at: usize, word: u64) {
        assert!(at.is_multiple_of(8), "a word lies at a multiple of 8 bytes");
        let mut state = self.state();
        state.put(at, &word.to_le_bytes());
        state.events.push(Event::Store { at, word });
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            self.store(at + n * 8, *word);
        }
    }

    fn load(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8), "a word lies at a multiple of 8 bytes");
        u64::from_le_bytes(self.state().now[at..at + 8].try_into().expect("8 bytes"))
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.state().now[at..at + into.len()]);
    }

    fn drain(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.keeps_drain_points {
            state.drain_points.push(DrainPoint {
                safe: state.safe.clone(),
                loose: state.loose.values().flatten().copied().collect(),
            });
        }
        for (at, word) in state.loose.remove(&thread::current().id()).unwrap_or_default() {
            state.safe[at..at + 8].copy_from_slice(&word);
        }
        state.events.push(Event::Drain);
    }

    fn persistence(&self) -> Persistence {
        Persistence::Fence
    }
}
