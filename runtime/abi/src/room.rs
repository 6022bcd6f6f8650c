//! Buffers that rows' columns are written to, `[handle u32][len u32][columns]` each: one behind the other, or each at its own place.

use crate::{
    calls::{HANDLE_NONE, RowHandle},
    copy::copy_first,
    plan::ColumnPlan,
};

/// Bytes before each row's columns.
pub const HEADER_BYTES: usize = 8;

/// See the module's header.
pub struct OutBuffer<'a> {
    plan: &'a ColumnPlan,
    /// Free bytes.
    rest: &'a mut [u8],
    filled: usize,
}

impl<'a> OutBuffer<'a> {
    /// Makes room for columns of many rows, as the plan reads them.
    #[inline]
    pub fn new(plan: &'a ColumnPlan, out: &'a mut [u8]) -> Self {
        Self {
            plan,
            rest: out,
            filled: 0,
        }
    }

    /// Returns the bytes appended, including bytes that were only counted.
    #[inline]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Rows that still fit, of columns of fixed width.
    #[inline]
    pub fn rows_left(&self) -> usize {
        self.rest.len() / (HEADER_BYTES + self.plan.fixed_bytes())
    }

    /// Appends the columns of a valid row. False if they do not fit.
    #[inline(always)]
    pub fn try_push(&mut self, handle: RowHandle, row: &[u8]) -> bool {
        let bytes = self.plan.bytes(row);
        let is_pushed = self.write(handle, bytes, row);
        self.filled += if is_pushed { HEADER_BYTES + bytes } else { 0 };
        is_pushed
    }

    /// Appends the columns of a valid row, or (`HANDLE_NONE`) the word that there is none. What does not fit is counted.
    #[inline(always)]
    pub fn push(&mut self, handle: RowHandle, row: &[u8]) {
        if handle == HANDLE_NONE {
            return self.push_none();
        }
        let bytes = self.plan.bytes(row);
        self.write(handle, bytes, row);
        self.filled += HEADER_BYTES + bytes;
    }

    /// Appends rows like `push`; their handles follow each other.
    #[inline]
    pub fn push_all(&mut self, first: RowHandle, rows: &[&[u8]]) {
        match self.plan.number() {
            Some((from, 2)) => self.push_numbers::<2>(first, rows, from),
            Some((from, 4)) => self.push_numbers::<4>(first, rows, from),
            Some((from, 8)) => self.push_numbers::<8>(first, rows, from),
            _ => self.push_each(first, rows),
        }
    }

    #[inline(always)]
    fn push_each(&mut self, first: RowHandle, rows: &[&[u8]]) {
        for (row, handle) in rows.iter().zip(first..) {
            self.push(handle, row);
        }
    }

    /// Appends one number of `N` bytes per row.
    #[inline]
    fn push_numbers<const N: usize>(&mut self, first: RowHandle, rows: &[&[u8]], from: usize) {
        let stride = HEADER_BYTES + N;
        let Some(room) = self.take(rows.len() * stride) else {
            return self.push_each(first, rows);
        };
        for ((room, row), handle) in room.chunks_exact_mut(stride).zip(rows).zip(first..) {
            let (header, value) = room.split_at_mut(HEADER_BYTES);
            copy_first::<8>(&(u64::from(handle) | (N as u64) << 32).to_le_bytes(), header);
            copy_first::<N>(&row[from..], value);
        }
        self.filled += rows.len() * stride;
    }

    #[cold]
    fn push_none(&mut self) {
        if let Some(room) = self.take(HEADER_BYTES) {
            room.copy_from_slice(&u64::from(HANDLE_NONE).to_le_bytes());
        }
        self.filled += HEADER_BYTES;
    }

    /// Splits `bytes` bytes off the front.
    #[inline(always)]
    fn take(&mut self, bytes: usize) -> Option<&'a mut [u8]> {
        let rest = core::mem::take(&mut self.rest);
        if rest.len() < bytes {
            self.rest = rest;
            return None;
        }
        let (room, rest) = rest.split_at_mut(bytes);
        self.rest = rest;
        Some(room)
    }

    #[inline(always)]
    fn write(&mut self, handle: RowHandle, bytes: usize, row: &[u8]) -> bool {
        let Some(room) = self.take(HEADER_BYTES + bytes) else {
            return false;
        };
        let (header, values) = room.split_at_mut(HEADER_BYTES);
        copy_first::<8>(&(u64::from(handle) | (bytes as u64) << 32).to_le_bytes(), header);
        self.plan.read(row, values);
        true
    }
}

/// Slots of one length, each for the columns of one row: the reader computes each offset.
pub struct FixedSlots<'a> {
    plan: &'a ColumnPlan,
    slots: core::slice::ChunksExactMut<'a, u8>,
    misfits: usize,
}

impl<'a> FixedSlots<'a> {
    /// Makes the slots. None if `out` is not `count` slots of one length, or if they are too short for any row's columns.
    #[inline]
    pub fn new(plan: &'a ColumnPlan, out: &'a mut [u8], count: usize) -> Option<Self> {
        let each = out.len().checked_div(count)?;
        let fits = each >= HEADER_BYTES + plan.fixed_bytes() && each * count == out.len();
        fits.then(|| Self {
            plan,
            slots: out.chunks_exact_mut(each),
            misfits: 0,
        })
    }

    /// Returns the plan by which they are read.
    #[inline]
    pub fn plan(&self) -> &'a ColumnPlan {
        self.plan
    }

    /// Rows whose columns did not fit.
    #[inline]
    pub fn misfits(&self) -> usize {
        self.misfits
    }

    /// Fills the next slot with the columns of a valid row, or (`HANDLE_NONE`) with the word that there is none. Nothing happens
    /// behind the last one.
    #[inline(always)]
    pub fn put(&mut self, handle: RowHandle, row: &[u8]) {
        let Some(slot) = self.slots.next() else {
            return;
        };
        let (header, room) = slot.split_at_mut(HEADER_BYTES);
        let bytes = match handle {
            HANDLE_NONE => 0,
            _ => self.plan.read_within(row, room),
        };
        self.misfits += usize::from(bytes > room.len());
        copy_first::<8>(&(u64::from(handle) | (bytes as u64) << 32).to_le_bytes(), header);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::{ColumnSet, Field, RowLayout, ScalarType};

    #[test]
    fn rows_are_appended_while_they_fit_and_counted_beyond() {
        let types = [(ScalarType::I32, false), (ScalarType::Text, false)];
        let layout = RowLayout::from_types(types.into_iter());
        let row = layout.build(&[Field::Int(5), Field::Text("four")]);
        let plan = ColumnPlan::new(&layout, ColumnSet(0b10));
        let mut out = vec![0; 40];
        let mut room = OutBuffer::new(&plan, &mut out);
        assert!(room.try_push(9, &row) && room.try_push(10, &row));
        assert!(!room.try_push(11, &row));
        assert_eq!(room.filled(), 32);
        room.push(HANDLE_NONE, &[]);
        room.push(12, &row);
        assert_eq!(room.filled(), 56);
        let expected = b"\x09\0\0\0\x08\0\0\0\x04\0\0\0four";
        assert_eq!(out[..16], expected[..]);
        assert_eq!(out[32..], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        let plan = ColumnPlan::new(&layout, ColumnSet(0b01));
        assert_eq!(OutBuffer::new(&plan, &mut out).rows_left(), 3);
    }

    /// A layout, and three rows of it whose texts differ in length.
    fn rows_of_all_widths() -> (RowLayout, alloc::vec::Vec<alloc::vec::Vec<u8>>) {
        let types = [
            (ScalarType::I8, false),
            (ScalarType::I16, false),
            (ScalarType::I32, false),
            (ScalarType::I64, false),
            (ScalarType::Text, false),
            (ScalarType::Text, false),
            (ScalarType::Bytes, false),
        ];
        let layout = RowLayout::from_types(types.into_iter());
        let texts = ["", "one", "a longer one"].into_iter().zip(-1..);
        let rows = texts.map(|(text, n)| {
            let ints = [
                Field::Int(n),
                Field::Int(n * 300),
                Field::Int(n << 20),
                Field::Int(n << 40),
            ];
            let (long, bytes) = (text.repeat(6), [n as u8; 50]);
            let texts = [
                Field::Text(text),
                Field::Text(&long),
                Field::Bytes(&bytes[..9 * text.len() / 2 % 50]),
            ];
            layout.build(&[&ints[..], &texts].concat())
        });
        let rows = rows.collect();
        (layout, rows)
    }

    #[test]
    fn slots_hold_what_fits_and_say_what_does_not() {
        let (layout, rows) = rows_of_all_widths();
        let rows: alloc::vec::Vec<_> = rows.iter().map(|row| &row[..]).collect();
        for (set, more) in (1..128).flat_map(|set| [0, 5, 20, 70, 150].map(|more| (set, more))) {
            let plan = ColumnPlan::new(&layout, ColumnSet(set));
            let each = HEADER_BYTES + plan.fixed_bytes() + more;
            let mut one = vec![7; 4 * each];
            let mut slots = FixedSlots::new(&plan, &mut one, 4).expect("slots");
            rows.iter().zip(5..).for_each(|(row, handle)| slots.put(handle, row));
            slots.put(HANDLE_NONE, &[]);
            let misfits = slots.misfits();
            slots.put(9, rows[0]);
            assert_eq!(slots.misfits(), misfits, "nothing happens behind the last slot");
            let mut too_long = 0;
            for ((slot, row), handle) in one.chunks(each).zip(&rows).zip(5_u64..) {
                let bytes = plan.bytes(row);
                let mut columns = vec![0; bytes];
                plan.read(row, &mut columns);
                assert_eq!(slot[..8], (handle | (bytes as u64) << 32).to_le_bytes());
                match slot[8..].split_at_checked(bytes) {
                    Some((found, behind)) => {
                        assert_eq!(found, columns);
                        assert!(behind.iter().all(|byte| *byte == 7), "what is behind the columns stays");
                    }
                    None => too_long += 1,
                }
            }
            assert_eq!(misfits, too_long);
            assert_eq!(one[3 * each..][..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
        }
        let plan = ColumnPlan::new(&layout, ColumnSet(0b11));
        for (bytes, count) in [(0, 0), (22, 0), (23, 2), (20, 2), (0, 1), (22, usize::MAX)] {
            assert!(
                FixedSlots::new(&plan, &mut vec![0; bytes], count).is_none(),
                "{bytes} {count}"
            );
        }
    }

    #[test]
    fn many_rows_are_appended_as_each_of_them() {
        let (layout, rows) = rows_of_all_widths();
        let rows: alloc::vec::Vec<_> = rows.iter().map(|row| &row[..]).collect();
        for (set, room_bytes) in (1..128).flat_map(|set| [0, 37, 200].map(|bytes| (set, bytes))) {
            let plan = ColumnPlan::new(&layout, ColumnSet(set));
            let (mut all, mut each) = (vec![0; room_bytes], vec![0; room_bytes]);
            let mut room = OutBuffer::new(&plan, &mut all);
            room.push_all(7, &rows);
            let filled = room.filled();
            let mut room = OutBuffer::new(&plan, &mut each);
            rows.iter().zip(7..).for_each(|(row, handle)| room.push(handle, row));
            assert_eq!((filled, &all), (room.filled(), &each), "{set:b}");
        }
    }
}
