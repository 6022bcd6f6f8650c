//! A growable buffer whose data begins at an address that direct I/O takes.

use std::ops::{Deref, DerefMut};

/// Address alignment that every device and file system takes for direct I/O.
pub const DIRECT_ALIGN_BYTES: usize = 4096;

/// Bytes at an aligned address. Fresh memory is zero and not resident until touched.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    storage: Vec<u8>,
    offset: usize,
    len: usize,
}

impl AlignedBuf {
    /// An empty buffer with room for this many bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        // Over-allocated by one alignment: the zeroed allocation of the system leaves pages untouched, an aligned one does not.
        let storage = vec![0; capacity + DIRECT_ALIGN_BYTES];
        let offset = storage.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        assert!(offset < DIRECT_ALIGN_BYTES, "align buffer");
        Self {
            storage,
            offset,
            len: 0,
        }
    }

    /// Bytes that fit before it grows.
    pub fn capacity(&self) -> usize {
        self.storage.len().saturating_sub(DIRECT_ALIGN_BYTES)
    }

    /// Empties it, and keeps its memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Copies `bytes` to the end, growing where needed.
    #[inline]
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if end > self.capacity() {
            self.grow(end);
        }
        let at = self.offset + self.len;
        self.storage[at..at + bytes.len()].copy_from_slice(bytes);
        self.len = end;
    }

    /// Sets the length; bytes gained are zero.
    pub fn resize(&mut self, len: usize) {
        if len > self.capacity() {
            self.grow(len);
        }
        if len > self.len {
            let at = self.offset;
            self.storage[at + self.len..at + len].fill(0);
        }
        self.len = len;
    }

    #[cold]
    fn grow(&mut self, needed: usize) {
        let mut grown = Self::with_capacity(needed.next_power_of_two());
        let at = grown.offset;
        grown.storage[at..at + self.len].copy_from_slice(self);
        grown.len = self.len;
        *self = grown;
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.storage[self.offset..self.offset + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.offset..self.offset + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_aligned_and_keeps_its_bytes_while_it_grows() {
        let mut buffer = AlignedBuf::with_capacity(100);
        for round in 0..500u32 {
            buffer.extend_from_slice(&round.to_le_bytes());
            assert_eq!(buffer.as_ptr().align_offset(DIRECT_ALIGN_BYTES), 0);
        }
        assert_eq!(buffer.len(), 2000);
        assert_eq!(buffer[1996..], 499u32.to_le_bytes());
        buffer.resize(4);
        buffer.resize(8);
        assert_eq!(buffer[..], [0; 8]);
    }
}
