//! A growing run of bytes whose first part lies on the stack: keys and results rarely need the heap.

use reprise_abi::copy::copy_short;

use crate::{
    ops::OutBuffer,
    value::{Encode, write},
};

/// Bytes that are held in place. With its length that is eight words: of more zeros the compiler makes a call out of the module.
pub const INLINE_BYTES: usize = 56;
const FIRST_HEAP_BYTES: usize = 512;

/// Bytes being put together: a few in place, more on the heap; or on the heap from the start.
pub struct Scratch {
    inline: [u8; INLINE_BYTES],
    length: usize,
    /// Room for everything once `inline` was too small; empty until then.
    room: OutBuffer,
}

impl Default for Scratch {
    #[inline(always)]
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    /// An empty one; takes nothing from the heap.
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            inline: [0; INLINE_BYTES],
            length: 0,
            room: OutBuffer::new(),
        }
    }

    /// Makes a buffer for bytes that probably don't fit in place.
    #[inline]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            room: OutBuffer::zeroed(bytes),
            ..Self::new()
        }
    }

    /// A buffer for about `bytes` bytes.
    #[inline]
    pub fn for_bytes(bytes: usize) -> Self {
        match bytes > INLINE_BYTES {
            true => Self::with_capacity(bytes),
            false => Self::new(),
        }
    }

    /// Memory of the bytes, and room behind them.
    #[inline(always)]
    fn place(&mut self) -> &mut [u8] {
        match self.room.is_empty() {
            true => &mut self.inline,
            false => &mut self.room,
        }
    }

    /// Bytes in it.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing is in it.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Keeps the first bytes alone.
    #[inline(always)]
    pub fn truncate(&mut self, bytes: usize) {
        self.length = self.length.min(bytes);
    }

    /// Runs `push`, and puts the length of the appended bytes before them as a `u32`.
    #[inline(always)]
    pub(crate) fn push_with_length(&mut self, push: impl FnOnce(&mut Self)) {
        let start = self.length;
        self.push(&[0; 4]);
        push(self);
        let length = (self.length - start - 4) as u32;
        if let Some(room) = self.place().get_mut(start..start + 4) {
            room.copy_from_slice(&length.to_le_bytes());
        }
    }

    /// Appends bytes whose number the caller's code knows; others are for `push_text`.
    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) {
        let (start, end) = (self.length, self.length.wrapping_add(bytes.len()));
        match self.place().get_mut(start..end) {
            Some(target) => {
                target.copy_from_slice(bytes);
                self.length = end;
            }
            None => self.grow(bytes),
        }
    }

    /// Appends bytes of which there are mostly few.
    #[inline(never)]
    pub(crate) fn push_text(&mut self, bytes: &[u8]) {
        let (start, end) = (self.length, self.length.wrapping_add(bytes.len()));
        match self.place().get_mut(start..end) {
            Some(target) => {
                copy_short(bytes, target);
                self.length = end;
            }
            None => self.grow(bytes),
        }
    }

    /// Appends a value as an argument or a result has it.
    pub fn push_value(&mut self, value: &impl Encode) {
        let start = self.length;
        loop {
            let free = self.place().get_mut(start..).unwrap_or_default();
            match write(value, free) {
                Ok(bytes) => return self.length += bytes,
                Err(needed) => self.make_room(start + needed),
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        self.make_room(end);
        if let Some(target) = self.room.get_mut(self.length..end) {
            target.copy_from_slice(bytes);
            self.length = end;
        }
    }

    /// Moves to the heap, or to more of it.
    fn make_room(&mut self, end: usize) {
        // A value that outgrows its room usually continues to grow.
        let room = FIRST_HEAP_BYTES.max(2 * end);
        if self.room.is_empty() {
            self.room = OutBuffer::zeroed(room);
            if let (Some(room), Some(inline)) = (self.room.get_mut(..self.length), self.inline.get(..self.length)) {
                room.copy_from_slice(inline);
            }
        } else {
            self.room.grow(room);
        }
    }

    /// Appends a LEB128 varint.
    #[inline]
    pub fn push_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.push(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.push(&[value as u8]);
    }

    /// Appends a varint length and the bytes.
    #[inline(never)]
    pub fn push_counted(&mut self, bytes: &[u8]) {
        let (start, end) = (self.length, self.length.wrapping_add(bytes.len()).wrapping_add(1));
        match self.place().get_mut(start..end) {
            Some([count, target @ ..]) if bytes.len() < 0x80 => {
                *count = bytes.len() as u8;
                copy_short(bytes, target);
                self.length = end;
            }
            _ => self.push_counted_far(bytes),
        }
    }

    /// Bytes that are many, or that there is no room for yet. Apart, for its needs would cost every short text.
    #[cold]
    #[inline(never)]
    fn push_counted_far(&mut self, bytes: &[u8]) {
        self.push_varint(bytes.len() as u32);
        self.push_text(bytes);
    }

    /// The contents.
    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        let bytes = match self.room.is_empty() {
            true => self.inline.get(..self.length),
            false => self.room.get(..self.length),
        };
        bytes.unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spilling_keeps_every_byte_in_order() {
        let mut scratch = Scratch::new();
        let mut expected = Vec::new();
        for i in 0..40u8 {
            let piece = vec![i; i as usize % 7];
            scratch.push(&piece);
            expected.extend_from_slice(&piece);
            assert_eq!(scratch.as_slice(), expected);
        }
        assert!(expected.len() > INLINE_BYTES);
    }

    #[test]
    fn lengths_are_put_before_what_they_count() {
        for mut scratch in [Scratch::new(), Scratch::with_capacity(3)] {
            for bytes in [&[7; 30][..], &[], &[8; 50]] {
                scratch.push_with_length(|out| out.push(bytes));
            }
            let expected = [&[30, 0, 0, 0][..], &[7; 30], &[0; 4], &[50, 0, 0, 0], &[8; 50]].concat();
            assert_eq!((scratch.as_slice(), scratch.len()), (&expected[..], expected.len()));
        }
    }

    #[test]
    fn varints_are_those_of_the_abi() {
        for value in [0, 127, 128, 300, u32::MAX] {
            let mut ours = Scratch::new();
            ours.push_varint(value);
            let mut theirs = Vec::new();
            reprise_abi::value::push_varint(&mut theirs, value);
            assert_eq!(ours.as_slice(), theirs);
        }
    }
}
