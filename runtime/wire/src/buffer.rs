//! Changes of a running transaction, written as they are made: what the physiological log costs it. The usual forms go straight
//! into room that is there already, by moves of fixed width. The bytes are those of [`Change::encode`].

use reprise_abi::plan::copy_short;

use crate::changes::{Change, DELETE, INSERT, NUMBERED, PATCH};

const SHORT_KEY_BYTES_MAX: usize = 16;
/// Numbers below take a byte as a varint, and two bytes.
const ONE_BYTE: usize = 1 << 7;
const TWO_BYTES: usize = 1 << 14;
/// Room that is made at least.
const ROOM_BYTES: usize = 512;
/// Room that is kept for the next transaction.
const KEPT_BYTES: usize = 1 << 20;
/// What comes before a row: kind, table, number, length.
const ROW_HEAD_BYTES: usize = 1 + 1 + 8 + 2;
/// Rows of so many bytes are copied without a call.
const SHORT_ROW_BYTES: usize = 64;
/// Kind, table, length of the key, key, number of columns.
const NAME_BYTES: usize = 1 + 1 + 1 + SHORT_KEY_BYTES_MAX + 1;
/// Position, length, value.
const COLUMN_BYTES: usize = 1 + 1 + 16;

/// A row's name that is moved as a whole, whatever its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortName {
    /// The encoded primary key is the first `bytes` of it, at most all.
    Key {
        padded: [u8; SHORT_KEY_BYTES_MAX],
        bytes: u8,
    },
    /// The hidden number.
    Number(u64),
}

/// Changes, as `Changes` walks them. Used again from transaction to transaction.
#[derive(Debug, Default)]
pub struct ChangesBuffer {
    /// What was written, and room behind it that holds anything.
    bytes: Vec<u8>,
    end: usize,
}

impl ChangesBuffer {
    #[inline]
    pub fn clear(&mut self) {
        self.end = 0;
        if self.bytes.len() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.end == 0
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.end
    }

    /// Takes back what was written behind the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(len);
    }

    /// True where changes of the table's rows can be written by the quick ways, which are all others but `insert` and `other`.
    #[inline(always)]
    pub fn takes_table(table: u16) -> bool {
        (table as usize) < ONE_BYTE
    }

    /// Lets changes of any form be appended.
    pub fn other<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.bytes.truncate(self.end);
        let appended = append(&mut self.bytes);
        self.end = self.bytes.len();
        appended
    }

    /// `number` in a table without a primary key.
    #[inline]
    pub fn insert(&mut self, table: u16, number: Option<u64>, row: &[u8]) {
        if !Self::takes_table(table) || row.len() >= TWO_BYTES {
            return self.other(|out| Change::Insert { table, number, row }.encode(out));
        }
        let room = self.room::<{ ROW_HEAD_BYTES + SHORT_ROW_BYTES }>();
        let mut at = 2;
        [room[0], room[1]] = [INSERT, table as u8];
        if let Some(number) = number {
            room[0] |= NUMBERED;
            room[2..10].copy_from_slice(&number.to_le_bytes());
            at = 10;
        }
        room[at] = row.len() as u8;
        if row.len() >= ONE_BYTE {
            room[at] |= 0x80;
            at += 1;
            room[at] = (row.len() >> 7) as u8;
        }
        at += 1;
        if row.len() <= SHORT_ROW_BYTES {
            copy_short(row, &mut room[at..at + row.len()]);
            self.end += at + row.len();
        } else {
            self.end += at;
            self.make_room(row.len());
            self.bytes[self.end..self.end + row.len()].copy_from_slice(row);
            self.end += row.len();
        }
    }

    #[inline]
    pub fn delete(&mut self, table: u16, name: ShortName) {
        let (_, bytes) = self.name(DELETE, table, name);
        self.end += bytes;
    }

    /// A patch, of which so many columns are still to come, 127 at most.
    #[inline]
    pub fn begin_patch(&mut self, table: u16, name: ShortName, columns: u8) {
        assert!(columns > 0 && (columns as usize) < ONE_BYTE);
        let (room, bytes) = self.name(PATCH, table, name);
        room[bytes] = columns;
        self.end += bytes + 1;
    }

    /// Kind, table and name at the front of the room; how many bytes.
    #[inline(always)]
    fn name(&mut self, kind: u8, table: u16, name: ShortName) -> (&mut [u8; NAME_BYTES], usize) {
        assert!(Self::takes_table(table));
        let room = self.room::<NAME_BYTES>();
        let bytes = match name {
            ShortName::Key { padded, bytes } => {
                [room[0], room[1], room[2]] = [kind, table as u8, bytes];
                room[3..3 + SHORT_KEY_BYTES_MAX].copy_from_slice(&padded);
                assert!(bytes as usize <= SHORT_KEY_BYTES_MAX);
                3 + bytes as usize
            }
            ShortName::Number(number) => {
                [room[0], room[1]] = [kind | NUMBERED, table as u8];
                room[2..10].copy_from_slice(&number.to_le_bytes());
                10
            }
        };
        (room, bytes)
    }

    /// The next column of a patch, of so many bytes (16 at most) that lie at `at` in the row. Positions grow, below 128.
    #[inline(always)]
    pub fn column(&mut self, position: u8, row: &[u8], at: usize, width: u8) {
        debug_assert!((position as usize) < ONE_BYTE);
        let from = &row[at..];
        let room = self.room::<COLUMN_BYTES>();
        [room[0], room[1]] = [position, width + 1];
        if let (Some(word), true) = (from.first_chunk::<8>(), width <= 8) {
            // What lies behind the column is overwritten by what comes next.
            let word = u64::from_le_bytes(*word);
            room[2..10].copy_from_slice(&word.to_le_bytes());
        } else {
            copy_short(&from[..width as usize], &mut room[2..2 + width as usize]);
        }
        self.end += 2 + width as usize;
    }

    /// The next column of a patch, which is null.
    #[inline]
    pub fn null_column(&mut self, position: u8) {
        debug_assert!((position as usize) < ONE_BYTE);
        let room = self.room::<COLUMN_BYTES>();
        [room[0], room[1]] = [position, 0];
        self.end += 2;
    }

    #[inline(always)]
    fn room<const N: usize>(&mut self) -> &mut [u8; N] {
        self.make_room(N);
        self.bytes[self.end..]
            .first_chunk_mut()
            .expect("room was made")
    }

    #[inline(always)]
    fn make_room(&mut self, bytes: usize) {
        if self.bytes.len() - self.end < bytes {
            self.grow(bytes);
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: usize) {
        // By more and more, so that a transaction of many changes asks seldom.
        let more = bytes.max(ROOM_BYTES).max(self.end);
        self.bytes.resize(self.end + more, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PatchWriter, RowName};

    const WIDTHS: [(u8, u8); 6] = [(0, 1), (1, 2), (63, 4), (64, 8), (100, 16), (126, 3)];

    /// A deletion, a patch and a change of another form.
    fn check_named(table: u16, short: ShortName, name: RowName<'_>, row: &[u8]) {
        let (mut buffer, mut expected) = (ChangesBuffer::default(), Vec::new());
        for from_end in [true, false] {
            buffer.delete(table, short);
            Change::Delete { table, name }.encode(&mut expected);
            buffer.begin_patch(table, short, 7);
            let mut patch = PatchWriter::begin(&mut expected, table, name, 7);
            for (position, width) in WIDTHS {
                let at = if from_end {
                    row.len() - width as usize
                } else {
                    3
                };
                buffer.column(position, row, at, width);
                patch.column(position as u16, Some(&row[at..at + width as usize]));
            }
            buffer.null_column(127);
            patch.column(127, None);
            patch.finish();
            let other = Change::Replace { table, name, row };
            buffer.other(|out| other.encode(out));
            other.encode(&mut expected);
        }
        assert!(buffer.as_bytes() == expected, "{short:?}");
    }

    #[test]
    fn bytes_are_those_of_the_other_encoder() {
        let row: Vec<u8> = (0..20_000).map(|at| at as u8).collect();
        let (mut buffer, mut expected) = (ChangesBuffer::default(), Vec::new());
        for table in [0, 1, 127, 128, 999] {
            for bytes in (0..140).chain([255, 256, 16_383, 16_384, 20_000]) {
                for number in [None, Some(7), Some(u64::MAX)] {
                    let row = &row[..bytes];
                    buffer.insert(table, number, row);
                    Change::Insert { table, number, row }.encode(&mut expected);
                }
            }
        }
        assert!(buffer.as_bytes() == expected);
        for (bytes, table) in (0..=16).zip([0, 5, 127].into_iter().cycle()) {
            let padded = std::array::from_fn(|at| at as u8 + 100);
            let short = ShortName::Key { padded, bytes };
            check_named(
                table,
                short,
                RowName::Key(&padded[..bytes as usize]),
                &row[..40],
            );
            let number = u64::MAX >> bytes;
            check_named(
                table,
                ShortName::Number(number),
                RowName::Number(number),
                &row[..40],
            );
        }
    }

    #[test]
    fn what_is_taken_back_or_cleared_leaves_nothing() {
        let mut buffer = ChangesBuffer::default();
        buffer.insert(1, None, b"first");
        let (len, first) = (buffer.len(), buffer.as_bytes().to_vec());
        buffer.insert(2, Some(5), &[7; 3000]);
        buffer.truncate(len);
        buffer.truncate(buffer.len() + 100);
        assert_eq!(buffer.as_bytes(), first);
        buffer.other(|out| out.extend_from_slice(b"more"));
        assert_eq!(buffer.as_bytes(), [&first, &b"more"[..]].concat());
        buffer.clear();
        assert!(buffer.is_empty() && buffer.as_bytes().is_empty());
        buffer.insert(1, None, b"first");
        assert_eq!(buffer.as_bytes(), first);
    }
}
