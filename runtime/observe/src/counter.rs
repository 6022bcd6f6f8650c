//! A counter with one writer.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts up. Only one thread may add: it is a plain load and store, without a locked instruction.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter, from the one thread that writes it.
    #[inline]
    pub fn add(&self, count: u64) {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(count), Ordering::Relaxed);
    }

    /// Adds to a counter that several threads write.
    #[inline]
    pub fn add_shared(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// The count, from any thread.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
