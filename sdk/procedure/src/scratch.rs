//! A growing run of bytes whose first part lies on the stack: keys and results rarely need the heap.

/// Bytes that are held in place.
pub const INLINE_BYTES: usize = 64;
const FIRST_HEAP_BYTES: usize = 512;

/// Bytes being put together: up to 64 in place, more on the heap; or on the heap from the start.
#[derive(Clone)]
pub struct Scratch {
    inline: [u8; INLINE_BYTES],
    length: usize,
    /// Holds everything once `inline` was too small; empty until then.
    heap: Vec<u8>,
}

impl Default for Scratch {
    #[inline(always)]
    fn default() -> Self {
        Self::new()
    }
}

impl Scratch {
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            inline: [0; INLINE_BYTES],
            length: 0,
            heap: Vec::new(),
        }
    }

    /// For bytes that are probably more than fit in place.
    #[inline]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            heap: Vec::with_capacity(bytes),
            ..Self::new()
        }
    }

    #[inline(always)]
    fn is_in_place(&self) -> bool {
        self.heap.capacity() == 0
    }

    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Runs `push` and puts the length of what it appended, a `u32`, before it.
    #[inline]
    pub(crate) fn push_with_length(&mut self, push: impl FnOnce(&mut Self)) {
        let start = self.len();
        self.push(&[0; 4]);
        push(self);
        let length = (self.len() - start - 4) as u32;
        let bytes = match self.is_in_place() {
            true => &mut self.inline[..],
            false => &mut self.heap[..],
        };
        if let Some(room) = bytes.get_mut(start..start + 4) {
            room.copy_from_slice(&length.to_le_bytes());
        }
    }

    #[inline(always)]
    pub fn push(&mut self, bytes: &[u8]) {
        let end = self.length.wrapping_add(bytes.len());
        if self.is_in_place() && end <= INLINE_BYTES {
            // The slice exists: `length <= end <= INLINE_BYTES`, unless `wrapping_add` wrapped, which no slice is long enough for.
            if let Some(target) = self.inline.get_mut(self.length..end) {
                target.copy_from_slice(bytes);
                self.length = end;
            }
        } else if self.heap.capacity() - self.heap.len() >= bytes.len() {
            self.heap.extend_from_slice(bytes);
        } else {
            self.grow(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: &[u8]) {
        if self.is_in_place() {
            let inline = self.inline.get(..self.length).unwrap_or(&[]);
            // What outgrows the stack mostly goes on growing.
            self.heap
                .reserve(FIRST_HEAP_BYTES.max(inline.len() + bytes.len()));
            self.heap.extend_from_slice(inline);
        }
        self.heap.extend_from_slice(bytes);
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
    pub fn push_counted(&mut self, bytes: &[u8]) {
        self.push_varint(bytes.len() as u32);
        self.push(bytes);
    }

    #[inline(always)]
    pub fn as_slice(&self) -> &[u8] {
        if self.is_in_place() {
            self.inline.get(..self.length).unwrap_or(&[])
        } else {
            &self.heap
        }
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
