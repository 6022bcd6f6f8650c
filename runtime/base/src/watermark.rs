//! A number that only grows, published by one writer.

use std::sync::atomic::{AtomicU64, Ordering};

/// A growing position. Alone on its cache line: readers poll it while the writer works.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Watermark(AtomicU64);

impl Watermark {
    pub fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Raises the mark. Panics when it would fall: whoever waits for it has already been told more.
    pub fn advance(&self, value: u64) {
        let before = self.0.swap(value, Ordering::AcqRel);
        assert!(before <= value, "watermark falls from {before} to {value}");
    }
}
