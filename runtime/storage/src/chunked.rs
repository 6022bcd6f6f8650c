//! A growing array in pieces of whole pages. Elements never move, and at most one piece is slack.

use std::{
    ops::{Index, IndexMut},
    sync::Arc,
};

use reprise_base::Budget;
use reprise_pages::{HUGE_BYTES, PAGE_BYTES, Pages, Zeroed};

use crate::charge::Charge;

/// Number of pieces after which an array is no longer small. From then on it uses huge pages, and fills most of them.
pub(crate) const SMALL_CHUNKS_MAX: usize = 2;

/// The pieces of one array. The first piece is stored apart. Most tables have no other, and its address is known before the place in it, so
/// a read of an element waits for nothing else.
///
/// Memory is counted before it is used: of the first pieces in steps, of later ones by pieces.
pub(crate) struct Pieces<T> {
    first: Pages<T>,
    rest: Vec<Pages<T>>,
    /// Bytes that may be used, over all pieces in their order.
    room: usize,
    charge: Charge,
}

/// Returns the bytes to count for a piece, all of which may be used.
fn charged_of(piece: usize, piece_bytes: usize) -> usize {
    if piece < SMALL_CHUNKS_MAX {
        piece_bytes
    } else {
        HUGE_BYTES
    }
}

/// Bytes of a step at most.
const STEP_BYTES_MAX: usize = 256 << 10;

/// Whether growth may be refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrowthRule {
    /// Growth is refused beyond the limit of memory, or if the system has none.
    Judged,
    /// Growth is never refused, because the operation has begun and must complete.
    Forced,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self {
            first: Pages::none(),
            rest: Vec::new(),
            room: 0,
            charge: Charge::default(),
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

    /// Returns the last piece, if there is one.
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

    /// The `at` variant for callers that may ask for any piece next: a branch on the first piece would be mispredicted.
    #[inline(always)]
    pub fn any(&self, piece: usize) -> &Pages<T> {
        let first = std::slice::from_ref(&self.first);
        let list = std::hint::select_unpredictable(piece == 0, first, &self.rest[..]);
        &list[piece.saturating_sub(1)]
    }

    /// The mutable form of `any`.
    #[inline(always)]
    pub fn any_mut(&mut self, piece: usize) -> &mut Pages<T> {
        let first = std::slice::from_mut(&mut self.first);
        let list = std::hint::select_unpredictable(piece == 0, first, &mut self.rest[..]);
        &mut list[piece.saturating_sub(1)]
    }

    /// Returns two different pieces.
    fn two_mut(&mut self, a: usize, b: usize) -> [&mut Pages<T>; 2] {
        let Self { first, rest, .. } = self;
        match (a, b) {
            (0, _) => [first, &mut rest[b - 1]],
            (_, 0) => [&mut rest[a - 1], first],
            _ => rest.get_disjoint_mut([a - 1, b - 1]).expect("two pieces"),
        }
    }

    /// Adds a piece. The first pieces use ordinary pages, so that a tiny table stays tiny.
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

    /// Returns the bytes that may be used, over all pieces in their order.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.room
    }

    /// Makes room for at least `least` more bytes, in the last piece or in a new one of `piece_bytes`. False, with nothing changed, if that
    /// is refused.
    pub fn extend(&mut self, piece_bytes: usize, least: usize, growth: GrowthRule) -> bool {
        let count = self.count();
        let is_new = self.room == count * piece_bytes;
        let left = if is_new {
            piece_bytes
        } else {
            count * piece_bytes - self.room
        };
        let is_large = is_new && count >= SMALL_CHUNKS_MAX;
        let step = match is_large {
            true => piece_bytes,
            false => self.room.clamp(PAGE_BYTES, STEP_BYTES_MAX).max(least).min(left),
        };
        let charged = if is_large { HUGE_BYTES } else { step };
        match growth {
            GrowthRule::Forced => self.charge.grow(charged),
            GrowthRule::Judged if !self.charge.try_grow(charged) => return false,
            GrowthRule::Judged => {}
        }
        if is_new {
            match self.make(piece_bytes, growth) {
                Some(piece) => self.push(piece),
                None => {
                    self.charge.resize(self.charge.bytes() - charged);
                    return false;
                }
            }
        }
        self.room += step;
        true
    }

    /// Returns the next piece. A large array takes a piece that was made ready ahead, if there is one.
    fn make(&self, bytes: usize, growth: GrowthRule) -> Option<Pages<T>> {
        let elements = bytes / size_of::<T>();
        match (self.count() > SMALL_CHUNKS_MAX, growth) {
            (true, GrowthRule::Judged) => Pages::try_ready(elements),
            (false, GrowthRule::Judged) => Pages::try_with_capacity(elements),
            (true, GrowthRule::Forced) => Some(Pages::ready(elements)),
            (false, GrowthRule::Forced) => Some(Pages::with_capacity(elements)),
        }
    }

    /// Releases the memory of a piece with all its contents. It must not be the first, and must lie within `room`.
    /// Its place stays.
    pub fn release(&mut self, piece: usize, piece_bytes: usize) {
        assert!(piece > 0 && self.at(piece).mapped_bytes() > 0 && self.room >= (piece + 1) * piece_bytes);
        *self.at_mut(piece) = Pages::none();
        self.charge.resize(self.charge.bytes() - charged_of(piece, piece_bytes));
    }

    /// Takes memory again for a piece that was released. False if that is refused. The piece is empty.
    pub fn refill(&mut self, piece: usize, piece_bytes: usize, growth: GrowthRule) -> bool {
        assert!(self.at(piece).mapped_bytes() == 0, "a piece that was released");
        let charged = charged_of(piece, piece_bytes);
        match growth {
            GrowthRule::Forced => self.charge.grow(charged),
            GrowthRule::Judged if !self.charge.try_grow(charged) => return false,
            GrowthRule::Judged => {}
        }
        let Some(pages) = self.make(piece_bytes, growth) else {
            self.charge.resize(self.charge.bytes() - charged);
            return false;
        };
        if self.count() > SMALL_CHUNKS_MAX {
            pages.advise_huge();
        }
        *self.at_mut(piece) = pages;
        true
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.charge.count_in(budget);
    }

    /// Returns the bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.rest.capacity() * size_of::<Pages<T>>() + self.charge.bytes()
    }
}

/// An array in pieces of one huge page, or of the next power of two of elements that fits into it.
pub(crate) struct ChunkedArray<T> {
    pieces: Pieces<T>,
    len: usize,
    /// Number of elements for which there is memory.
    room: usize,
}

impl<T> Default for ChunkedArray<T> {
    fn default() -> Self {
        Self {
            pieces: Pieces::default(),
            len: 0,
            room: 0,
        }
    }
}

impl<T> ChunkedArray<T> {
    pub const SHIFT: u32 = (HUGE_BYTES / size_of::<T>()).ilog2();
    pub const CHUNK: usize = 1 << Self::SHIFT;
    const PIECE_BYTES: usize = Self::CHUNK * size_of::<T>();

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends an element. Its position is the length before.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        if self.len == self.room {
            self.grow();
        }
        self.pieces.at_mut(self.len >> Self::SHIFT).push(value);
        self.len += 1;
    }

    /// Appends elements.
    #[inline]
    pub fn extend(&mut self, values: impl ExactSizeIterator<Item = T>) {
        let (used, count) = (self.len & (Self::CHUNK - 1), values.len());
        if used + count > Self::CHUNK || self.len + count > self.room {
            return values.for_each(|value| self.push(value));
        }
        self.pieces.at_mut(self.len >> Self::SHIFT).extend(values.take(count));
        self.len += count;
    }

    /// Returns two different elements.
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

    /// Prefetches the memory of elements that will follow.
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
        if self.len == self.room {
            self.grow();
        }
        self.pieces.at_mut(self.len >> Self::SHIFT).push_zeroed();
        self.len += 1;
    }

    /// Returns the number of elements that can be added without more memory.
    #[inline(always)]
    pub fn spare(&self) -> usize {
        self.room - self.len
    }

    #[cold]
    fn grow(&mut self) {
        self.extend_room(GrowthRule::Forced);
    }

    /// Makes room for some more elements. False if memory is refused.
    #[cold]
    pub fn try_grow(&mut self) -> bool {
        self.extend_room(GrowthRule::Judged)
    }

    fn extend_room(&mut self, growth: GrowthRule) -> bool {
        let has_grown = self.pieces.extend(Self::PIECE_BYTES, size_of::<T>(), growth);
        let (whole, part) = (
            self.pieces.room() / Self::PIECE_BYTES,
            self.pieces.room() % Self::PIECE_BYTES,
        );
        self.room = whole * Self::CHUNK + part / size_of::<T>();
        has_grown
    }

    /// Releases a piece, as `Pieces::release` does.
    pub fn release(&mut self, piece: usize) {
        self.pieces.release(piece, Self::PIECE_BYTES);
    }

    /// Takes memory again for a released piece, and has `fill` fill it. False if the memory is refused.
    pub fn refill(&mut self, piece: usize, growth: GrowthRule, fill: impl FnOnce(&mut Pages<T>)) -> bool {
        if !self.pieces.refill(piece, Self::PIECE_BYTES, growth) {
            return false;
        }
        let pages = self.pieces.at_mut(piece);
        fill(pages);
        assert!(pages.len() == Self::CHUNK, "a piece that comes again is full");
        true
    }

    /// Returns an element, unless its piece was released.
    #[inline(always)]
    pub fn find(&self, at: u32) -> Option<&T> {
        let (piece, at) = (at as usize >> Self::SHIFT, at as usize & (Self::CHUNK - 1));
        let pages = match piece {
            0 => &self.pieces.first,
            _ => self.pieces.rest.get(piece - 1)?,
        };
        pages.get(at)
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.pieces.count_in(budget);
    }

    pub fn memory_bytes(&self) -> usize {
        self.pieces.memory_bytes()
    }
}

impl<T> Index<u32> for ChunkedArray<T> {
    type Output = T;
    #[inline(always)]
    fn index(&self, at: u32) -> &T {
        let at = at as usize;
        &self.pieces.at(at >> Self::SHIFT)[at & (Self::CHUNK - 1)]
    }
}

impl<T> IndexMut<u32> for ChunkedArray<T> {
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
        // The array has pieces of four elements each, and the test touches only the first bytes of each.
        let mut array = ChunkedArray::<[u8; HUGE_BYTES / 4]>::default();
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
