//! Appends values to a result. The writer is small enough to live in registers, since a result has many short parts.

use crate::types::copy_text;

/// Room for values, and what of it is still free.
pub struct ResultWriter<'b> {
    /// Empty once a part did not fit, so that nothing is written behind a gap.
    free: &'b mut [u8],
    room_bytes: usize,
    /// Bytes that did not fit.
    missing: usize,
}

impl<'b> ResultWriter<'b> {
    /// Writes into `room`, from its beginning.
    #[inline(always)]
    pub fn new(room: &'b mut [u8]) -> Self {
        Self {
            room_bytes: room.len(),
            free: room,
            missing: 0,
        }
    }

    /// Returns the bytes written. Err: the bytes needed, if the room is too small for them.
    #[inline(always)]
    pub fn finish(self) -> Result<usize, usize> {
        match self.missing {
            0 => Ok(self.room_bytes - self.free.len()),
            missing => Err(self.room_bytes + missing),
        }
    }

    /// Appends bytes of a fixed length.
    #[inline(always)]
    pub fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        let free = std::mem::take(&mut self.free);
        let missing = N.saturating_sub(free.len());
        match free.split_first_chunk_mut() {
            Some((place, free)) => {
                *place = bytes;
                self.free = free;
            }
            None => self.missing += missing,
        }
    }

    /// Appends a text's length and its bytes. `longest` is the text's whole field, if it can be read. One move of fixed width then copies
    /// all N bytes, and the next part overwrites the bytes behind the text.
    #[inline(always)]
    pub fn put_text<const N: usize>(&mut self, longest: Option<&[u8; N]>, text: &[u8]) {
        let (length, free) = (text.len(), std::mem::take(&mut self.free));
        if let Some(longest) = longest
            && N < 0x80
            && length <= N
            && free.len() > N
        {
            if let Some((head, rest)) = free.split_first_mut() {
                *head = length as u8;
                if let Some(place) = rest.first_chunk_mut() {
                    *place = *longest;
                }
                self.free = rest.get_mut(length..).unwrap_or_default();
            }
            return;
        }
        self.free = free;
        self.put_counted(text);
    }

    /// Appends the length of `bytes` and the bytes.
    #[inline(always)]
    pub fn put_counted(&mut self, bytes: &[u8]) {
        let free = std::mem::take(&mut self.free);
        let needed = counted_bytes(bytes.len());
        if needed <= free.len() {
            copy_counted(bytes, free);
            self.free = free.get_mut(needed..).unwrap_or_default();
        } else {
            self.missing += needed - free.len();
        }
    }

    /// Bytes as they are.
    #[inline(always)]
    pub fn put_all(&mut self, bytes: &[u8]) {
        let free = std::mem::take(&mut self.free);
        let missing = bytes.len().saturating_sub(free.len());
        match free.split_at_mut_checked(bytes.len()) {
            Some((place, free)) => {
                place.copy_from_slice(bytes);
                self.free = free;
            }
            None => self.missing += missing,
        }
    }

    /// Appends a length: seven bits a byte, the lowest first.
    #[inline(always)]
    pub fn put_varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.put([value as u8 | 0x80]);
            value >>= 7;
        }
        self.put([value as u8]);
    }
}

/// Returns the bytes of a varint length and of the data that it counts.
#[inline(always)]
fn counted_bytes(length: usize) -> usize {
    match length {
        0..0x80 => 1 + length,
        _ => (length as u32).ilog2() as usize / 7 + 1 + length,
    }
}

/// Writes a length and the bytes to room that is large enough. By itself, so that the pen's state need not lie in memory.
#[inline(never)]
fn copy_counted(bytes: &[u8], free: &mut [u8]) {
    if let ([head, rest @ ..], 0..0x80) = (&mut *free, bytes.len()) {
        *head = bytes.len() as u8;
        if let Some(place) = rest.get_mut(..bytes.len()) {
            copy_text(bytes, place);
        }
        return;
    }
    let mut writer = ResultWriter::new(free);
    writer.put_varint(bytes.len() as u32);
    writer.put_all(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes some parts of each kind.
    fn write(writer: &mut ResultWriter<'_>) {
        writer.put([1, 2, 3]);
        writer.put_text(Some(b"abcdefgh"), b"abc");
        writer.put_text::<8>(None, b"xyz");
        writer.put_counted(&[7; 200]);
        writer.put_all(&[8; 5]);
        writer.put_varint(300);
        writer.put_text(Some(b"ij"), b"");
    }

    fn expected() -> Vec<u8> {
        let mut expected = b"\x01\x02\x03\x03abc\x03xyz\xc8\x01".to_vec();
        expected.extend([7; 200]);
        expected.extend([8; 5]);
        expected.extend([0xac, 2, 0]);
        expected
    }

    #[test]
    fn parts_follow_each_other() {
        let mut room = [0xee; 300];
        let mut writer = ResultWriter::new(&mut room);
        write(&mut writer);
        let length = writer.finish().expect("there is room");
        assert_eq!(room[..length], expected());
    }

    #[test]
    fn too_little_room_is_told_with_what_is_needed() {
        let expected = expected();
        for bytes in 0..expected.len() {
            let mut room = vec![0; bytes];
            let mut writer = ResultWriter::new(&mut room);
            write(&mut writer);
            assert_eq!(writer.finish(), Err(expected.len()), "{bytes} bytes of room");
        }
        let mut room = vec![0; expected.len()];
        let mut writer = ResultWriter::new(&mut room);
        write(&mut writer);
        assert_eq!(writer.finish(), Ok(expected.len()));
        assert_eq!(room, expected);
    }
}
