//! Some columns of a row: what column-wise reads hand out and column-wise writes take.
//!
//! The bytes are those of a row of a table that has these columns alone, in the table's order: null bitmap, slots, data.

use alloc::vec::Vec;

use crate::{
    copy::copy_short,
    row::{ColumnSlot, RowLayout},
};

/// Columns of one table by position: bit `i` is column `i`. Columns from the 65th on can't be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnSet(pub u64);

impl ColumnSet {
    /// Positions in the table, ascending.
    #[inline]
    pub fn positions(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let at = left.trailing_zeros() as usize;
            left &= left - 1;
            Some(at)
        })
    }

    /// True if there is at least one column, and each is in the table.
    #[inline]
    pub fn fits(self, layout: &RowLayout) -> bool {
        let used = 64 - self.0.leading_zeros() as usize;
        self.0 != 0 && used <= layout.columns.len()
    }
}

/// Why bytes are not the values of these columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnsMalformed;

/// Sizes of the parts of some columns' bytes.
struct ValuesShape {
    nullable_count: usize,
    bitmap_bytes: usize,
    fixed_bytes: usize,
    /// Offset of the last variable column's slot.
    last_variable: Option<usize>,
}

impl ValuesShape {
    #[inline]
    fn new(layout: &RowLayout, set: ColumnSet) -> Self {
        let (mut nullable_count, mut slots, mut last_variable) = (0, 0, None);
        for position in set.positions() {
            let slot = &layout.columns[position];
            nullable_count += slot.is_nullable() as usize;
            if slot.ty.is_variable() {
                last_variable = Some(slots);
            }
            slots += slot.ty.slot_bytes();
        }
        let bitmap_bytes = nullable_count.div_ceil(8);
        Self {
            nullable_count,
            bitmap_bytes,
            fixed_bytes: bitmap_bytes + slots,
            last_variable: last_variable.map(|at| at + bitmap_bytes),
        }
    }
}

impl RowLayout {
    /// Bytes of these columns of a valid row. The set fits the layout.
    #[inline]
    pub fn columns_bytes(&self, set: ColumnSet, row: &[u8]) -> usize {
        let shape = ValuesShape::new(self, set);
        if shape.last_variable.is_none() {
            return shape.fixed_bytes;
        }
        let data = set.positions().map(|at| &self.columns[at]);
        let data = data
            .filter(|slot| slot.ty.is_variable())
            .map(|slot| self.data_of(row, slot).len());
        shape.fixed_bytes + data.sum::<usize>()
    }

    /// Copies these columns of a valid row to `out`, which is `columns_bytes` long.
    #[inline]
    pub fn read_columns(&self, set: ColumnSet, row: &[u8], out: &mut [u8]) {
        let shape = ValuesShape::new(self, set);
        let (mut at, mut end) = (shape.bitmap_bytes, 0);
        out[..at].fill(0);
        let mut nullable = 0;
        for position in set.positions() {
            let slot = &self.columns[position];
            if slot.is_nullable() {
                out[nullable / 8] |= (slot.is_null(row) as u8) << (nullable % 8);
                nullable += 1;
            }
            let width = slot.ty.slot_bytes();
            if slot.ty.is_variable() {
                let data = self.data_of(row, slot);
                let start = shape.fixed_bytes + end;
                out[start..start + data.len()].copy_from_slice(data);
                end += data.len();
                out[at..at + 4].copy_from_slice(&(end as u32).to_le_bytes());
            } else {
                let from = slot.offset as usize;
                copy_short(&row[from..from + width], &mut out[at..at + width]);
            }
            at += width;
        }
    }

    /// Bytes that the values of these columns at the front of `values` take, their data included.
    pub fn columns_len(&self, set: ColumnSet, values: &[u8]) -> Result<usize, ColumnsMalformed> {
        let shape = ValuesShape::new(self, set);
        let data = match shape.last_variable {
            None => 0,
            Some(at) => read_u32(values, at).ok_or(ColumnsMalformed)? as usize,
        };
        let bytes = shape.fixed_bytes + data;
        if bytes > values.len() {
            return Err(ColumnsMalformed);
        }
        Ok(bytes)
    }

    /// Appends `row` with these columns replaced by `values` to `out`. Only bounds are checked here: the owner of the table validates
    /// the new row (`validate`) when it stores it.
    pub fn patch_row(
        &self,
        set: ColumnSet,
        row: &[u8],
        values: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), ColumnsMalformed> {
        let shape = ValuesShape::new(self, set);
        if self.columns_len(set, values)? != values.len() {
            return Err(ColumnsMalformed);
        }
        let base = out.len();
        out.extend_from_slice(&row[..self.fixed_bytes()]);
        let mut source = PatchValues {
            shape: &shape,
            values,
            at: shape.bitmap_bytes,
            nullable: 0,
            data: shape.fixed_bytes,
        };
        for (position, slot) in self.columns.iter().enumerate() {
            let is_set = position < 64 && set.0 >> position & 1 == 1;
            if is_set {
                source.put(slot, base, out)?;
            } else if slot.ty.is_variable() {
                out.extend_from_slice(self.data_of(row, slot));
            }
            if slot.ty.is_variable() {
                let end = (out.len() - base - self.fixed_bytes()) as u32;
                let at = base + slot.offset as usize;
                out[at..at + 4].copy_from_slice(&end.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// Reads the values of a patch column by column.
struct PatchValues<'a> {
    shape: &'a ValuesShape,
    values: &'a [u8],
    at: usize,
    nullable: usize,
    data: usize,
}

impl PatchValues<'_> {
    /// Puts the next value into the row that begins at `base`; the data of a variable column at its end.
    fn put(&mut self, slot: &ColumnSlot, base: usize, out: &mut Vec<u8>) -> Result<(), ColumnsMalformed> {
        if slot.is_nullable() {
            debug_assert!(self.nullable < self.shape.nullable_count);
            let is_null = self.values[self.nullable / 8] >> (self.nullable % 8) & 1 == 1;
            self.nullable += 1;
            let bit = 1 << (slot.null_bit % 8);
            let byte = &mut out[base + slot.null_bit as usize / 8];
            *byte = if is_null { *byte | bit } else { *byte & !bit };
        }
        let width = slot.ty.slot_bytes();
        let value = &self.values[self.at..self.at + width];
        self.at += width;
        if slot.ty.is_variable() {
            let end = self.shape.fixed_bytes + read_u32(value, 0).ok_or(ColumnsMalformed)? as usize;
            let data = self.values.get(self.data..end).ok_or(ColumnsMalformed)?;
            out.extend_from_slice(data);
            self.data = end;
        } else {
            let at = base + slot.offset as usize;
            out[at..at + width].copy_from_slice(value);
        }
        Ok(())
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ColumnPlan, Field, ScalarType};
    use ScalarType::{Bool, I32, I64, Text};

    fn layout() -> RowLayout {
        let columns = [
            (I64, false),
            (Text, true),
            (I32, true),
            (Bool, false),
            (Text, false),
            (I64, true),
        ];
        RowLayout::from_types(columns.into_iter())
    }

    fn of(layout: &RowLayout, set: ColumnSet) -> RowLayout {
        let columns = set
            .positions()
            .map(|at| (layout.columns[at].ty, layout.columns[at].is_nullable()));
        RowLayout::from_types(columns.collect::<Vec<_>>().into_iter())
    }

    #[test]
    fn any_columns_are_read_and_written_as_rows_of_their_own() {
        let layout = layout();
        let rows = [
            [
                Field::Int(1),
                Field::Null,
                Field::Int(-7),
                Field::Bool(true),
                Field::Text("abc"),
                Field::Null,
            ],
            [
                Field::Int(-2),
                Field::Text("xyz and more"),
                Field::Null,
                Field::Bool(false),
                Field::Text(""),
                Field::Int(9),
            ],
        ];
        for bits in 1..64_u64 {
            let set = ColumnSet(bits);
            assert!(set.fits(&layout));
            let own = of(&layout, set);
            for (from, to) in [(0, 1), (1, 0)] {
                let (row, other) = (layout.build(&rows[from]), layout.build(&rows[to]));
                let chosen: Vec<_> = set.positions().map(|at| rows[from][at]).collect();
                let mut out = alloc::vec![9; layout.columns_bytes(set, &row)];
                layout.read_columns(set, &row, &mut out);
                assert_eq!(out, own.build(&chosen), "{bits:b}");
                assert_eq!(layout.columns_len(set, &out), Ok(out.len()));
                check_plan(&layout, set, &row, &other, &out);

                let mut expected = rows[to];
                set.positions().for_each(|at| expected[at] = rows[from][at]);
                let mut patched = Vec::new();
                assert_eq!(layout.patch_row(set, &other, &out, &mut patched), Ok(()));
                assert_eq!(patched, layout.build(&expected), "{bits:b}");
            }
        }
    }

    /// Checks that a plan reads the same, and writes the same if it writes.
    fn check_plan(layout: &RowLayout, set: ColumnSet, row: &[u8], other: &[u8], values: &[u8]) {
        let plan = ColumnPlan::new(layout, set);
        let mut read = alloc::vec![7; plan.bytes(row)];
        plan.read(row, &mut read);
        assert_eq!(read, values);
        assert_eq!(plan.values_len(values), Ok(values.len()));
        for end in 0..values.len() {
            assert_eq!(plan.values_len(&values[..end]), Err(ColumnsMalformed));
        }
        let mut written = Vec::from(other);
        if plan.is_fixed() {
            assert_eq!(plan.check(values), Ok(()));
            plan.write(&mut written, values);
            let mut expected = Vec::new();
            assert_eq!(layout.patch_row(set, other, values, &mut expected), Ok(()));
            assert_eq!(written, expected);
        } else {
            assert!(set.0 & 0b10010 != 0, "only columns of text need more: {set:?}");
            assert_eq!(plan.check(values), Err(ColumnsMalformed));
        }
    }

    #[test]
    fn a_null_that_is_not_zero_is_not_written() {
        let layout = layout();
        let row = layout.build(&[
            Field::Int(1),
            Field::Null,
            Field::Int(3),
            Field::Bool(true),
            Field::Text("abc"),
            Field::Int(4),
        ]);
        let plan = ColumnPlan::new(&layout, ColumnSet(0b100100));
        let mut written = row.clone();
        let null_with_value = [&[0b10][..], &5_i32.to_le_bytes(), &9_i64.to_le_bytes()].concat();
        assert_eq!(plan.check(&null_with_value), Err(ColumnsMalformed));
        let null = [&[0b10][..], &5_i32.to_le_bytes(), &[0; 8]].concat();
        assert_eq!(plan.check(&null), Ok(()));
        assert_eq!(plan.check(&null[1..]), Err(ColumnsMalformed));
        let odd = [&[0b100][..], &[0; 12]].concat();
        assert_eq!(plan.check(&odd), Err(ColumnsMalformed));
        let flag = ColumnPlan::new(&layout, ColumnSet(0b1000));
        assert_eq!(flag.check(&[1]), Ok(()));
        assert_eq!(flag.check(&[2]), Err(ColumnsMalformed));
        plan.write(&mut written, &null);
        assert_eq!(layout.field(&written, 5), Field::Null);
        assert_eq!(layout.field(&written, 2), Field::Int(5));
        assert_eq!(layout.validate(&written), Ok(()));
    }

    #[test]
    fn sets_outside_of_the_table_and_forged_values_are_refused() {
        let layout = layout();
        assert!(!ColumnSet(0).fits(&layout) && !ColumnSet(1 << 6).fits(&layout));
        assert!(!ColumnSet(u64::MAX).fits(&layout));
        let row = layout.build(&[
            Field::Int(1),
            Field::Null,
            Field::Null,
            Field::Bool(true),
            Field::Text("abc"),
            Field::Null,
        ]);
        let set = ColumnSet(0b10010);
        let mut values = alloc::vec![0; layout.columns_bytes(set, &row)];
        layout.read_columns(set, &row, &mut values);
        let mut out = Vec::new();
        for at in 0..values.len() {
            for forged in [0, 1, 5, 0x7f, 0xff] {
                let mut bad = values.clone();
                bad[at] = forged;
                // An error here or in `validate`; never a panic.
                if layout.patch_row(set, &row, &bad, &mut out).is_ok() {
                    let _ = layout.validate(&out);
                }
                out.clear();
            }
            assert_eq!(
                layout.patch_row(set, &row, &values[..at], &mut out),
                Err(ColumnsMalformed)
            );
            out.clear();
        }
    }
}
