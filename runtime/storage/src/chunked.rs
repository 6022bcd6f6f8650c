//! A growing array in pieces: elements never move once the first piece is full, and no more than one piece is slack.

use std::ops::{Index, IndexMut};

/// `2^SHIFT` elements a piece. The first piece grows by doubling, so that a tiny table stays tiny.
pub(crate) struct Chunked<T, const SHIFT: u32> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

impl<T, const SHIFT: u32> Default for Chunked<T, SHIFT> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<T, const SHIFT: u32> Chunked<T, SHIFT> {
    const CHUNK: usize = 1 << SHIFT;

    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends; the element's position is the length before.
    pub fn push(&mut self, value: T) {
        if self.len.is_multiple_of(Self::CHUNK) {
            self.chunks.push(if self.len == 0 {
                Vec::new()
            } else {
                Vec::with_capacity(Self::CHUNK)
            });
        }
        self.chunks[self.len >> SHIFT].push(value);
        self.len += 1;
    }

    pub fn memory_bytes(&self) -> usize {
        let elements: usize = self.chunks.iter().map(Vec::capacity).sum();
        elements * size_of::<T>() + self.chunks.capacity() * size_of::<Vec<T>>()
    }
}

impl<T, const SHIFT: u32> Index<u32> for Chunked<T, SHIFT> {
    type Output = T;
    #[inline]
    fn index(&self, at: u32) -> &T {
        let at = at as usize;
        &self.chunks[at >> SHIFT][at & (Self::CHUNK - 1)]
    }
}

impl<T, const SHIFT: u32> IndexMut<u32> for Chunked<T, SHIFT> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        let at = at as usize;
        &mut self.chunks[at >> SHIFT][at & (Self::CHUNK - 1)]
    }
}
