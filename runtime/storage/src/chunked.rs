//! A growing array in pieces of whole pages: elements never move, and no more than one piece is slack.

use std::ops::{Index, IndexMut};

use reprise_pages::{HUGE_BYTES, PAGE_BYTES, Pages, Zeroed};

/// Pieces after which an array is no longer small: from then on it lies in huge pages, of which it fills most.
pub(crate) const SMALL_CHUNKS_MAX: usize = 2;

/// The pieces of one array. The first lies apart: most tables have no other, and where it lies is known before the place in it
/// is, so a look at an element waits for nothing else.
pub(crate) struct Pieces<T> {
    first: Pages<T>,
    rest: Vec<Pages<T>>,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self {
            first: Pages::none(),
            rest: Vec::new(),
        }
    }
}

impl<T> Pieces<T> {
    pub fn count(&self) -> usize {
        match self.first.mapped_bytes() {
            0 => 0,
            _ => 1 + self.rest.len(),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Pages<T>> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The last one, if there is any.
    #[inline]
    pub fn last(&self) -> Option<&Pages<T>> {
        match self.rest.last() {
            None => (self.count() > 0).then_some(&self.first),
            last => last,
        }
    }

    #[inline(always)]
    pub fn at(&self, piece: usize) -> &Pages<T> {
        match piece {
            0 => &self.first,
            _ => &self.rest[piece - 1],
        }
    }

    #[inline(always)]
    pub fn at_mut(&mut self, piece: usize) -> &mut Pages<T> {
        match piece {
            0 => &mut self.first,
            _ => &mut self.rest[piece - 1],
        }
    }

    /// As `at`, where any of them may come next: a branch on which one it is would be guessed wrongly.
    #[inline(always)]
    pub fn any(&self, piece: usize) -> &Pages<T> {
        let first = std::slice::from_ref(&self.first);
        let list = std::hint::select_unpredictable(piece == 0, first, &self.rest[..]);
        &list[piece.saturating_sub(1)]
    }

    /// As `any`.
    #[inline(always)]
    pub fn any_mut(&mut self, piece: usize) -> &mut Pages<T> {
        let first = std::slice::from_mut(&mut self.first);
        let list = std::hint::select_unpredictable(piece == 0, first, &mut self.rest[..]);
        &mut list[piece.saturating_sub(1)]
    }

    /// Two different ones.
    fn two_mut(&mut self, a: usize, b: usize) -> [&mut Pages<T>; 2] {
        let Self { first, rest } = self;
        match (a, b) {
            (0, _) => [first, &mut rest[b - 1]],
            (_, 0) => [&mut rest[a - 1], first],
            _ => rest.get_disjoint_mut([a - 1, b - 1]).expect("two pieces"),
        }
    }

    /// Adds a piece; the first ones lie in ordinary pages, so that a tiny table stays tiny.
    pub fn push(&mut self, piece: Pages<T>) {
        match self.count() {
            0 => self.first = piece,
            _ => self.rest.push(piece),
        }
        match self.count() {
            ..=SMALL_CHUNKS_MAX => {}
            count if count == SMALL_CHUNKS_MAX + 1 => self.all().for_each(Pages::advise_huge),
            _ => self.last().into_iter().for_each(Pages::advise_huge),
        }
    }

    /// The next piece: of a large array one that was made ready ahead, where there is one.
    pub fn make(&self, elements: usize) -> Pages<T> {
        match self.count() > SMALL_CHUNKS_MAX {
            true => Pages::ready(elements),
            false => Pages::with_capacity(elements),
        }
    }

    /// Bytes of memory behind pieces of which the first `used` bytes were written.
    pub fn touched_bytes(&self, used: usize) -> usize {
        let list = self.count() * size_of::<Pages<T>>();
        if self.count() <= SMALL_CHUNKS_MAX {
            return list + used.next_multiple_of(PAGE_BYTES);
        }
        list + self.all().map(Pages::mapped_bytes).sum::<usize>()
    }
}

/// Pieces of one huge page, or of the next power of two of elements that fits into it.
pub(crate) struct Chunked<T> {
    pieces: Pieces<T>,
    len: usize,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Self {
            pieces: Pieces::default(),
            len: 0,
        }
    }
}

impl<T> Chunked<T> {
    const SHIFT: u32 = (HUGE_BYTES / size_of::<T>()).ilog2();
    const CHUNK: usize = 1 << Self::SHIFT;

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends; the element's position is the length before.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        if self.len & (Self::CHUNK - 1) == 0 {
            self.grow();
        }
        self.pieces.at_mut(self.len >> Self::SHIFT).push(value);
        self.len += 1;
    }

    /// Appends elements.
    #[inline]
    pub fn extend(&mut self, values: impl ExactSizeIterator<Item = T>) {
        let (used, count) = (self.len & (Self::CHUNK - 1), values.len());
        if used == 0 || used + count > Self::CHUNK {
            return values.for_each(|value| self.push(value));
        }
        self.pieces.at_mut(self.len >> Self::SHIFT).extend(values.take(count));
        self.len += count;
    }

    /// Two different elements.
    pub fn two_mut(&mut self, a: u32, b: u32) -> [&mut T; 2] {
        let places = [a, b].map(|at| (at as usize >> Self::SHIFT, at as usize & (Self::CHUNK - 1)));
        let [(a_piece, a), (b_piece, b)] = places;
        if a_piece == b_piece {
            let elements = self.pieces.at_mut(a_piece).get_disjoint_mut([a, b]);
            return elements.expect("two elements");
        }
        let [a_piece, b_piece] = self.pieces.two_mut(a_piece, b_piece);
        [&mut a_piece[a], &mut b_piece[b]]
    }

    /// Asks for memory that elements to come will be written to.
    #[inline]
    pub fn touch_end(&self) {
        if let Some(piece) = self.pieces.last() {
            piece.fetch_end();
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
        self.pieces.at_mut(self.len >> Self::SHIFT).push_zeroed();
        self.len += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let piece = self.pieces.make(Self::CHUNK);
        self.pieces.push(piece);
    }

    pub fn memory_bytes(&self) -> usize {
        self.pieces.touched_bytes(self.len * size_of::<T>())
    }
}

impl<T> Index<u32> for Chunked<T> {
    type Output = T;
    #[inline(always)]
    fn index(&self, at: u32) -> &T {
        let at = at as usize;
        &self.pieces.at(at >> Self::SHIFT)[at & (Self::CHUNK - 1)]
    }
}

impl<T> IndexMut<u32> for Chunked<T> {
    #[inline(always)]
    fn index_mut(&mut self, at: u32) -> &mut T {
        let at = at as usize;
        &mut self.pieces.at_mut(at >> Self::SHIFT)[at & (Self::CHUNK - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_elements_are_told_apart_wherever_they_lie() {
        // Pieces of four elements each, of which none is touched but the first bytes.
        let mut array = Chunked::<[u8; HUGE_BYTES / 4]>::default();
        (0..13).for_each(|_| array.push_zeroed());
        for a in 0..13 {
            array[a][0] = a as u8;
        }
        for a in 0..13 {
            for b in (0..13).filter(|b| *b != a) {
                let [first, second] = array.two_mut(a, b);
                assert_eq!((first[0], second[0]), (a as u8, b as u8));
            }
        }
    }
}
