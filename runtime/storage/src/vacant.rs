//! Vacant elements of an array, which will be used again. The memory of a piece with vacant elements alone is released.

use std::marker::PhantomData;

use reprise_pages::Pages;

use crate::chunked::{ChunkedArray, GrowthRule};

/// The vacant elements of one array.
pub(crate) struct Vacant<T> {
    /// Vacant places whose memory exists.
    places: Vec<u32>,
    /// Number of vacant places in each piece.
    counts: Vec<u32>,
    /// Pieces that were seen with vacant elements alone. The first piece is never among them.
    whole: Vec<u32>,
    /// Pieces that were released.
    gone: Vec<u32>,
    _array: PhantomData<fn() -> T>,
}

impl<T> Default for Vacant<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            counts: Vec::new(),
            whole: Vec::new(),
            gone: Vec::new(),
            _array: PhantomData,
        }
    }
}

impl<T> Vacant<T> {
    /// Returns the number of vacant places whose memory is there.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the number of vacant places, including those whose memory went back.
    pub fn len_with_gone(&self) -> usize {
        self.places.len() + self.gone.len() * ChunkedArray::<T>::CHUNK
    }

    /// Returns a vacant place, the last one first. Places of released pieces come again before the array grows, filled by `fill`.
    #[inline]
    pub fn take(&mut self, array: &mut ChunkedArray<T>, fill: impl FnOnce(&mut Pages<T>)) -> Option<u32> {
        if self.places.is_empty() && !self.gone.is_empty() && array.spare() == 0 {
            self.refill(array, GrowthRule::Forced, fill);
        }
        let place = self.places.pop()?;
        self.counts[place as usize >> ChunkedArray::<T>::SHIFT] -= 1;
        Some(place)
    }

    /// Adds a vacant place.
    pub fn push(&mut self, place: u32) {
        self.places.push(place);
        let piece = place as usize >> ChunkedArray::<T>::SHIFT;
        if piece >= self.counts.len() {
            self.counts.resize(piece + 1, 0);
        }
        self.counts[piece] += 1;
        if self.counts[piece] as usize == ChunkedArray::<T>::CHUNK && piece > 0 {
            self.record_whole(piece as u32);
        }
    }

    #[cold]
    fn record_whole(&mut self, piece: u32) {
        if !self.whole.contains(&piece) {
            self.whole.push(piece);
        }
    }

    /// True if `give_back` may find memory to release.
    #[inline]
    pub fn has_whole(&self) -> bool {
        !self.whole.is_empty()
    }

    /// Releases the memory of each piece with vacant elements alone, except the first and the last piece. No caller may read its elements
    /// from then on.
    #[cold]
    pub fn give_back(&mut self, array: &mut ChunkedArray<T>) {
        for piece in std::mem::take(&mut self.whole) {
            let at = piece as usize;
            if self.counts[at] as usize != ChunkedArray::<T>::CHUNK {
                continue; // the array uses some elements again
            }
            if (at + 1) << ChunkedArray::<T>::SHIFT > array.len() {
                self.whole.push(piece); // the piece is the last one for now
                continue;
            }
            self.places
                .retain(|place| *place as usize >> ChunkedArray::<T>::SHIFT != at);
            self.counts[at] = 0;
            array.release(at);
            self.gone.push(piece);
        }
    }

    /// Makes room for some more elements: a released piece is filled by `fill`, or the array grows. False if memory is refused.
    #[cold]
    pub fn try_grow(&mut self, array: &mut ChunkedArray<T>, fill: impl FnOnce(&mut Pages<T>)) -> bool {
        match self.gone.is_empty() {
            true => array.try_grow(),
            false => self.refill(array, GrowthRule::Judged, fill),
        }
    }

    #[cold]
    fn refill(&mut self, array: &mut ChunkedArray<T>, growth: GrowthRule, fill: impl FnOnce(&mut Pages<T>)) -> bool {
        let Some(piece) = self.gone.last() else {
            return false;
        };
        let piece = *piece as usize;
        if !array.refill(piece, growth, fill) {
            return false;
        }
        self.gone.pop();
        let first = (piece << ChunkedArray::<T>::SHIFT) as u32;
        let end = first + ChunkedArray::<T>::CHUNK as u32;
        self.places.extend((first..end).rev());
        self.counts[piece] = ChunkedArray::<T>::CHUNK as u32;
        true
    }

    pub fn memory_bytes(&self) -> usize {
        (self.places.capacity() + self.counts.capacity() + self.whole.capacity() + self.gone.capacity())
            * size_of::<u32>()
    }
}
