//! Changes of a running transaction, written as they are made: the cost of the physiological log. The usual forms go straight into existing
//! room, by moves of fixed width. The bytes are those of [`Change::encode`].

use reprise_abi::copy::copy_short;

use crate::changes::{Change, DELETE, INSERT, PATCH, number_bytes, numbered};

/// Numbers below take a byte as a varint, and two bytes.
const ONE_BYTE: usize = 1 << 7;
const TWO_BYTES: usize = 1 << 14;
/// Room that is made at least.
const ROOM_BYTES: usize = 512;
/// Room that is kept for the next transaction.
const KEPT_BYTES: usize = 1 << 20;
/// Bytes before a row: kind, table, number, length.
const ROW_HEAD_BYTES: usize = 1 + 1 + 8 + 2;
/// Bytes of a row up to which it is copied without a call.
const SHORT_ROW_BYTES: usize = 64;
/// Kind, table, number, number of columns.
const NAME_BYTES: usize = 1 + 1 + 8 + 1;
/// Position, length, value.
const COLUMN_BYTES: usize = 1 + 1 + 16;

/// Changes, as `Changes` walks them. Used again from transaction to transaction.
#[derive(Debug, Default)]
pub struct ChangesBuffer {
    /// The written bytes, and room behind them with any contents.
    bytes: Vec<u8>,
    end: usize,
    /// Changes of other forms, on their way into `bytes`.
    apart: Vec<u8>,
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

    /// Drops the bytes behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.end = self.end.min(len);
    }

    /// True if `patch` can write changes of the table's rows.
    #[inline(always)]
    pub fn takes_table(table: u16) -> bool {
        (table as usize) < ONE_BYTE
    }

    /// Lets changes of any form be appended.
    pub fn other<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        // Apart: room that is there already need not be made again behind them.
        let mut apart = std::mem::take(&mut self.apart);
        apart.clear();
        let appended = append(&mut apart);
        self.make_room(apart.len());
        self.bytes[self.end..self.end + apart.len()].copy_from_slice(&apart);
        self.end += apart.len();
        if apart.len() <= KEPT_BYTES {
            self.apart = apart;
        }
        appended
    }

    #[inline]
    pub fn insert(&mut self, table: u16, number: u64, row: &[u8]) {
        if !Self::takes_table(table) || row.len() >= TWO_BYTES {
            return self.other(|out| Change::Insert { table, number, row }.encode(out));
        }
        let room = self.room::<{ ROW_HEAD_BYTES + SHORT_ROW_BYTES }>();
        let mut at = put_number(room, INSERT, table, number);
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
    pub fn delete(&mut self, table: u16, number: u64) {
        if !Self::takes_table(table) {
            return self.other(|out| Change::Delete { table, number }.encode(out));
        }
        let room = self.room::<NAME_BYTES>();
        self.end += put_number(room, DELETE, table, number);
    }

    /// Adds a patch of `columns` columns, at most 127, which `write` adds.
    #[inline(always)]
    pub fn patch(&mut self, table: u16, number: u64, columns: u8, write: impl FnOnce(&mut PatchRoom<'_>)) {
        assert!(columns > 0 && (columns as usize) < ONE_BYTE && Self::takes_table(table));
        self.make_room(NAME_BYTES + columns as usize * COLUMN_BYTES);
        let mut patch = PatchRoom {
            room: &mut self.bytes[self.end..],
            at: 0,
            left: columns,
        };
        let head: &mut [u8; NAME_BYTES] = patch.room.first_chunk_mut().expect("room was made");
        let bytes = put_number(head, PATCH, table, number);
        head[bytes] = columns;
        patch.at = bytes + 1;
        write(&mut patch);
        assert!(patch.left == 0, "columns of a patch");
        self.end += patch.at;
    }

    #[inline(always)]
    fn room<const N: usize>(&mut self) -> &mut [u8; N] {
        self.make_room(N);
        self.bytes[self.end..].first_chunk_mut().expect("room was made")
    }

    #[inline(always)]
    fn make_room(&mut self, bytes: usize) {
        if self.bytes.len() - self.end < bytes {
            self.grow(bytes);
        }
    }

    #[inline(never)]
    fn grow(&mut self, bytes: usize) {
        // The buffer grows by more and more, so that a transaction of many changes asks seldom.
        let more = bytes.max(ROOM_BYTES).max(self.end);
        self.bytes.resize(self.end + more, 0);
    }
}

/// The room for the columns of a patch.
pub struct PatchRoom<'b> {
    room: &'b mut [u8],
    at: usize,
    left: u8,
}

impl PatchRoom<'_> {
    /// Adds the next column, of `width` bytes (at most 16) at `at` in the row. Positions grow, below 128.
    #[inline(always)]
    pub fn column(&mut self, position: u8, row: &[u8], at: usize, width: u8) {
        let from = &row[at..];
        let room = self.next(position, width + 1);
        if let (Some(word), true) = (from.first_chunk::<8>(), width <= 8) {
            // The next write overwrites the bytes behind the column.
            let word = u64::from_le_bytes(*word);
            room[2..10].copy_from_slice(&word.to_le_bytes());
        } else {
            copy_short(&from[..width as usize], &mut room[2..2 + width as usize]);
        }
        self.at += 2 + width as usize;
    }

    /// The next column, which is null.
    #[inline(always)]
    pub fn null_column(&mut self, position: u8) {
        self.next(position, 0);
        self.at += 2;
    }

    #[inline(always)]
    fn next(&mut self, position: u8, length: u8) -> &mut [u8; COLUMN_BYTES] {
        debug_assert!((position as usize) < ONE_BYTE);
        self.left = self.left.wrapping_sub(1);
        let room = self.room[self.at..].first_chunk_mut();
        let room: &mut [u8; COLUMN_BYTES] = room.expect("room for all columns was made");
        [room[0], room[1]] = [position, length];
        room
    }
}

/// Kind, table and number; how many bytes.
#[inline(always)]
fn put_number<const N: usize>(room: &mut [u8; N], kind: u8, table: u16, number: u64) -> usize {
    let bytes = number_bytes(number);
    [room[0], room[1]] = [numbered(kind, bytes), table as u8];
    // The next write overwrites the bytes behind the number.
    room[2..10].copy_from_slice(&number.to_le_bytes());
    2 + bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PatchWriter;

    const WIDTHS: [(u8, u8); 6] = [(0, 1), (1, 2), (63, 4), (64, 8), (100, 16), (126, 3)];

    /// A deletion, a patch and a change of another form.
    fn check_named(table: u16, number: u64, row: &[u8]) {
        let (mut buffer, mut expected) = (ChangesBuffer::default(), Vec::new());
        for from_end in [true, false] {
            buffer.delete(table, number);
            Change::Delete { table, number }.encode(&mut expected);
            let mut patch = PatchWriter::begin(&mut expected, table, number, 7);
            let place = |width: u8| {
                if from_end { row.len() - width as usize } else { 3 }
            };
            buffer.patch(table, number, 7, |room| {
                for (position, width) in WIDTHS {
                    room.column(position, row, place(width), width);
                }
                room.null_column(127);
            });
            for (position, width) in WIDTHS {
                let value = &row[place(width)..][..width as usize];
                patch.column(position as u16, Some(value));
            }
            patch.column(127, None);
            patch.finish();
            let other = Change::Replace { table, number, row };
            buffer.other(|out| other.encode(out));
            other.encode(&mut expected);
        }
        assert!(buffer.as_bytes() == expected, "{number}");
    }

    #[test]
    fn bytes_are_those_of_the_other_encoder() {
        let row: Vec<u8> = (0..20_000).map(|at| at as u8).collect();
        let (mut buffer, mut expected) = (ChangesBuffer::default(), Vec::new());
        for table in [0, 1, 127, 128, 999] {
            for bytes in (0..140).chain([255, 256, 16_383, 16_384, 20_000]) {
                for number in [0, 7, 255, 256, 1 << 24, u64::MAX] {
                    let row = &row[..bytes];
                    buffer.insert(table, number, row);
                    Change::Insert { table, number, row }.encode(&mut expected);
                }
            }
        }
        assert!(buffer.as_bytes() == expected);
        for (bits, table) in (0..64).zip([0, 5, 127].into_iter().cycle()) {
            check_named(table, u64::MAX >> bits, &row[..40]);
        }
        let (mut buffer, mut expected) = (ChangesBuffer::default(), Vec::new());
        for table in [127, 128, 4000] {
            buffer.delete(table, 300);
            Change::Delete { table, number: 300 }.encode(&mut expected);
        }
        assert!(buffer.as_bytes() == expected);
    }

    #[test]
    fn rolled_back_or_cleared_records_leave_nothing() {
        let mut buffer = ChangesBuffer::default();
        buffer.insert(1, 3, b"first");
        let (len, first) = (buffer.len(), buffer.as_bytes().to_vec());
        buffer.insert(2, 5, &[7; 3000]);
        buffer.truncate(len);
        buffer.truncate(buffer.len() + 100);
        assert_eq!(buffer.as_bytes(), first);
        buffer.other(|out| out.extend_from_slice(b"more"));
        assert_eq!(buffer.as_bytes(), [&first, &b"more"[..]].concat());
        buffer.clear();
        assert!(buffer.is_empty() && buffer.as_bytes().is_empty());
        buffer.insert(1, 3, b"first");
        assert_eq!(buffer.as_bytes(), first);
    }
}
