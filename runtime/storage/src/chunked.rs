//! A growing array in pieces of whole pages: elements never move, and no more than one piece is slack.

use std::ops::{Index, IndexMut};

use reprise_pages::{HUGE_BYTES, PAGE_BYTES, Pages, Zeroed};

/// Pieces after which an array is no longer small: from then on it lies in huge pages, of which it fills most.
pub(crate) const SMALL_CHUNKS_MAX: usize = 2;

/// Pieces of one huge page, or of the next power of two of elements that fits into it.
pub(crate) struct Chunked<T> {
    chunks: Vec<Pages<T>>,
    len: usize,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

/// Adds a piece; the first ones lie in ordinary pages, so that a tiny table stays tiny.
pub(crate) fn add_chunk<T>(chunks: &mut Vec<Pages<T>>, chunk: Pages<T>) {
    chunks.push(chunk);
    match chunks.len() {
        ..=SMALL_CHUNKS_MAX => {}
        len if len == SMALL_CHUNKS_MAX + 1 => chunks.iter().for_each(Pages::advise_huge),
        _ => chunks.last().into_iter().for_each(Pages::advise_huge),
    }
}

/// The next piece: of a large array one that was made ready ahead, where there is one.
pub(crate) fn new_chunk<T>(chunks: &[Pages<T>], elements: usize) -> Pages<T> {
    match chunks.len() > SMALL_CHUNKS_MAX {
        true => Pages::ready(elements),
        false => Pages::with_capacity(elements),
    }
}

/// Bytes of memory behind pieces of which the first `used` bytes were written.
pub(crate) fn touched_bytes<T>(chunks: &[Pages<T>], used: usize) -> usize {
    let list = std::mem::size_of_val(chunks);
    if chunks.len() <= SMALL_CHUNKS_MAX {
        return list + used.next_multiple_of(PAGE_BYTES);
    }
    list + chunks.iter().map(Pages::mapped_bytes).sum::<usize>()
}

impl<T> Chunked<T> {
    const SHIFT: u32 = (HUGE_BYTES / size_of::<T>()).ilog2();
    const CHUNK: usize = 1 << Self::SHIFT;

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends; the element's position is the length before.
    #[inline]
    pub fn push(&mut self, value: T) {
        if self.len & (Self::CHUNK - 1) == 0 {
            self.grow();
        }
        self.chunks[self.len >> Self::SHIFT].push(value);
        self.len += 1;
    }

    /// Asks for memory that elements to come will be written to.
    #[inline]
    pub fn touch_end(&self) {
        if let Some(chunk) = self.chunks.last() {
            chunk.fetch_end();
        }
    }

    /// Appends an element of zero bits.
    pub fn push_zeroed(&mut self)
    where
        T: Zeroed,
    {
        if self.len & (Self::CHUNK - 1) == 0 {
            self.grow();
        }
        self.chunks[self.len >> Self::SHIFT].push_zeroed();
        self.len += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let chunk = new_chunk(&self.chunks, Self::CHUNK);
        add_chunk(&mut self.chunks, chunk);
    }

    pub fn memory_bytes(&self) -> usize {
        touched_bytes(&self.chunks, self.len * size_of::<T>())
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;
    #[inline(always)]
    fn index(&self, at: u32) -> &T {
        let at = at as usize;
        &self.chunks[at >> Self::SHIFT][at & (Self::CHUNK - 1)]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    #[inline(always)]
    fn index_mut(&mut self, at: u32) -> &mut T {
        let at = at as usize;
        &mut self.chunks[at >> Self::SHIFT][at & (Self::CHUNK - 1)]
    }
}
