//! Room for a result, as the guest has it in linear memory.

use std::ops::{Deref, DerefMut};

/// Bytes on the heap.
#[derive(Default)]
pub struct OutBuffer(Vec<u8>);

impl OutBuffer {
    #[inline(always)]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    #[inline(always)]
    pub fn zeroed(bytes: usize) -> Self {
        Self(vec![0; bytes])
    }

    /// Returns a buffer in which a result is put together.
    #[inline(always)]
    pub fn for_result(bytes: usize) -> Self {
        Self::zeroed(bytes)
    }

    /// Makes it longer.
    #[cold]
    pub fn grow(&mut self, bytes: usize) {
        self.0.resize(bytes, 0);
    }
}

impl Deref for OutBuffer {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for OutBuffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
