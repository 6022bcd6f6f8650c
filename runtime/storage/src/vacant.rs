//! Elements of an array that hold nothing, to be used again; the memory of a piece in which there are no others goes back.

use std::marker::PhantomData;

use reprise_pages::Pages;

use crate::chunked::{Chunked, Growth};

/// The elements of one array that hold nothing.
pub(crate) struct Vacant<T> {
    /// Vacant places whose memory is there.
    places: Vec<u32>,
    /// By piece: how many of them.
    counts: Vec<u32>,
    /// Pieces in which there are no others, as far as was seen; never the first one.
    whole: Vec<u32>,
    /// Pieces that went back.
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
        self.places.len() + self.gone.len() * Chunked::<T>::CHUNK
    }

    /// One of them, the last first. Those of a piece that went back come again before the array grows, as `fill` makes them.
    #[inline]
    pub fn take(&mut self, array: &mut Chunked<T>, fill: impl FnOnce(&mut Pages<T>)) -> Option<u32> {
        if self.places.is_empty() && !self.gone.is_empty() && array.spare() == 0 {
            self.refill(array, Growth::Forced, fill);
        }
        let place = self.places.pop()?;
        self.counts[place as usize >> Chunked::<T>::SHIFT] -= 1;
        Some(place)
    }

    /// Adds one.
    pub fn push(&mut self, place: u32) {
        self.places.push(place);
        let piece = place as usize >> Chunked::<T>::SHIFT;
        if piece >= self.counts.len() {
            self.counts.resize(piece + 1, 0);
        }
        self.counts[piece] += 1;
        if self.counts[piece] as usize == Chunked::<T>::CHUNK && piece > 0 {
            self.note_whole(piece as u32);
        }
    }

    #[cold]
    fn note_whole(&mut self, piece: u32) {
        if !self.whole.contains(&piece) {
            self.whole.push(piece);
        }
    }

    /// True where `give_back` may find something.
    #[inline]
    pub fn has_whole(&self) -> bool {
        !self.whole.is_empty()
    }

    /// Lets others have the memory of each piece in which there is nothing else, but for the first and the last one. What is vacant there is
    /// not to be looked at any more.
    #[cold]
    pub fn give_back(&mut self, array: &mut Chunked<T>) {
        for piece in std::mem::take(&mut self.whole) {
            let at = piece as usize;
            if self.counts[at] as usize != Chunked::<T>::CHUNK {
                continue; // some were taken again
            }
            if (at + 1) << Chunked::<T>::SHIFT > array.len() {
                self.whole.push(piece); // the last one, for now
                continue;
            }
            self.places.retain(|place| *place as usize >> Chunked::<T>::SHIFT != at);
            self.counts[at] = 0;
            array.release(at);
            self.gone.push(piece);
        }
    }

    /// Makes room for some elements more: a piece that went back comes again, filled by `fill`, or the array grows. False where memory is
    /// refused.
    #[cold]
    pub fn try_grow(&mut self, array: &mut Chunked<T>, fill: impl FnOnce(&mut Pages<T>)) -> bool {
        match self.gone.is_empty() {
            true => array.try_grow(),
            false => self.refill(array, Growth::Judged, fill),
        }
    }

    #[cold]
    fn refill(&mut self, array: &mut Chunked<T>, growth: Growth, fill: impl FnOnce(&mut Pages<T>)) -> bool {
        let Some(piece) = self.gone.last() else {
            return false;
        };
        let piece = *piece as usize;
        if !array.refill(piece, growth, fill) {
            return false;
        }
        self.gone.pop();
        let first = (piece << Chunked::<T>::SHIFT) as u32;
        let end = first + Chunked::<T>::CHUNK as u32;
        self.places.extend((first..end).rev());
        self.counts[piece] = Chunked::<T>::CHUNK as u32;
        true
    }

    pub fn memory_bytes(&self) -> usize {
        (self.places.capacity() + self.counts.capacity() + self.whole.capacity() + self.gone.capacity())
            * size_of::<u32>()
    }
}
