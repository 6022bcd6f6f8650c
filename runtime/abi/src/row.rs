//! The row: null bitmap, fixed slots, variable data. One valid form per value, checked before a row is stored.
//!
//! `[ceil(nullable / 8) bytes: bit i set = the i-th nullable column is null]` `[a slot per column, in order]` `[data]`. The slot of a
//! `Text` or `Bytes` column is the end of its data, a `u32` counted from the start of the data area. The data begins where the previous
//! variable column ends. A null column's slot is zero, or the previous end.

use alloc::vec::Vec;

use crate::{
    key,
    schema::{ColumnSchema, TableSchema},
    types::ScalarType,
};

/// Longest row, in bytes.
pub const ROW_BYTES_MAX: usize = 1 << 20;
/// Columns at most in one table.
pub const COLUMNS_MAX: usize = 256;

/// A column's place in the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnSlot {
    /// Type of the values.
    pub ty: ScalarType,
    /// Byte offset of the slot in the row.
    pub offset: u32,
    /// Bit in the null bitmap, or `NOT_NULL`.
    pub null_bit: u16,
    /// Offset of the previous variable column's slot, or `NO_PREVIOUS`. For variable columns only.
    pub previous: u32,
}

const NOT_NULL: u16 = u16::MAX;
const NO_PREVIOUS: u32 = u32::MAX;

/// The places of a table's columns, computed once per schema version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// The slots in the table's order.
    pub columns: Vec<ColumnSlot>,
    nullable_count: u16,
    bitmap_bytes: u32,
    /// Offset of the data area: also the size of a row without variable data.
    data_offset: u32,
    /// Offset of the last variable column's slot, or `NO_PREVIOUS`.
    last_variable: u32,
    /// Columns of which not every bit pattern is a value.
    checked: Vec<ColumnCheck>,
    /// Checks without a loop, for simple layouts.
    quick: Option<QuickCheck>,
}

/// Checks of layouts with at most one text that is never null, one nullable column of fixed width, and one bool that is never null.
/// Nearly all layouts need no more. `NO_PREVIOUS` marks an absent column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QuickCheck {
    text: u32,
    nullable: u32,
    nullable_bytes: u8,
    bool_at: u32,
}

/// The check of one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColumnCheck {
    column: u16,
    /// Bit in the null bitmap, as in `ColumnSlot`.
    null_bit: u16,
    offset: u32,
    kind: CheckKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckKind {
    Text,
    Bytes,
    Bool,
    /// This many bytes, zero if null.
    Fixed(u8),
}

/// Why bytes are not a row of this layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum RowError {
    Length { expected: usize, found: usize },
    NullBitmap,
    NullSlot { column: u16 },
    Bool { column: u16 },
    Offset { column: u16 },
    Utf8 { column: u16 },
}

impl core::fmt::Display for RowError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length { expected, found } => {
                write!(f, "row of {found} bytes where {expected} are expected")
            }
            Self::NullBitmap => write!(f, "row with unused bits set in its null bitmap"),
            Self::NullSlot { column } => write!(f, "row whose null column {column} is not zero"),
            Self::Bool { column } => write!(f, "row whose bool column {column} is neither 0 nor 1"),
            Self::Offset { column } => write!(f, "row whose column {column} ends out of order"),
            Self::Utf8 { column } => write!(f, "row whose text column {column} is not UTF-8"),
        }
    }
}

/// One column's value, borrowed from a row. Integers are widened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// The null of any type.
    Null,
    /// `Bool`.
    Bool(bool),
    /// `I8` to `I64` and `Timestamp`.
    Int(i64),
    /// `U8` to `U64`.
    Uint(u64),
    /// `F64`.
    F64(f64),
    /// The units of a decimal, without its scale.
    Decimal(i128),
    /// `Text`.
    Text(&'a str),
    /// `Bytes`.
    Bytes(&'a [u8]),
    /// The bytes in network order.
    Uuid([u8; 16]),
}

impl RowLayout {
    /// The layout of a table with these columns.
    pub fn new(columns: &[ColumnSchema]) -> Self {
        Self::from_types(columns.iter().map(|c| (c.ty, c.nullable)))
    }

    /// The layout of a table's rows.
    pub fn of_table(table: &TableSchema) -> Self {
        Self::new(&table.columns)
    }

    /// The layout of columns by type and nullability.
    pub fn from_types(columns: impl Iterator<Item = (ScalarType, bool)> + Clone) -> Self {
        let nullable_count = columns.clone().filter(|(_, nullable)| *nullable).count();
        let bitmap_bytes = nullable_count.div_ceil(8) as u32;
        let (mut offset, mut null_bit, mut previous) = (bitmap_bytes, 0, NO_PREVIOUS);
        let (mut slots, mut checked) = (Vec::new(), Vec::new());
        for (ty, nullable) in columns {
            let kind = match ty {
                ScalarType::Text => Some(CheckKind::Text),
                ScalarType::Bytes => Some(CheckKind::Bytes),
                ScalarType::Bool => Some(CheckKind::Bool),
                _ => nullable.then_some(CheckKind::Fixed(ty.slot_bytes() as u8)),
            };
            checked.extend(kind.map(|kind| ColumnCheck {
                column: slots.len() as u16,
                null_bit: if nullable { null_bit } else { NOT_NULL },
                offset,
                kind,
            }));
            slots.push(ColumnSlot {
                ty,
                offset,
                null_bit: if nullable { null_bit } else { NOT_NULL },
                previous,
            });
            null_bit += nullable as u16;
            if ty.is_variable() {
                previous = offset;
            }
            offset += ty.slot_bytes() as u32;
        }
        Self {
            columns: slots,
            nullable_count: nullable_count as u16,
            bitmap_bytes,
            data_offset: offset,
            last_variable: previous,
            quick: QuickCheck::of(&checked),
            checked,
        }
    }

    /// Size in bytes of the part before the variable data.
    #[inline]
    pub fn fixed_bytes(&self) -> usize {
        self.data_offset as usize
    }

    /// True when every row has exactly `fixed_bytes` bytes.
    pub fn is_fixed(&self) -> bool {
        self.last_variable == NO_PREVIOUS
    }

    /// Checks that `row` is a row of this layout in its one valid form.
    #[inline]
    pub fn validate(&self, row: &[u8]) -> Result<(), RowError> {
        if self.checked.is_empty() && row.len() == self.fixed_bytes() {
            return Ok(());
        }
        if let (Some(quick), Some((slots, data))) = (&self.quick, row.split_at_checked(self.fixed_bytes()))
            && quick.is_valid(slots, data)
        {
            return Ok(());
        }
        self.validate_checked(row)
    }

    fn validate_checked(&self, row: &[u8]) -> Result<(), RowError> {
        let fixed = self.fixed_bytes();
        let too_short = RowError::Length {
            expected: fixed,
            found: row.len(),
        };
        if row.len() < fixed {
            return Err(too_short);
        }
        let data_bytes = match self.last_variable {
            NO_PREVIOUS => 0,
            slot => read_u32(row, slot) as usize,
        };
        if row.len() != fixed + data_bytes {
            return Err(RowError::Length {
                expected: fixed + data_bytes,
                found: row.len(),
            });
        }
        self.validate_bitmap(row)?;
        let (slots, data) = row.split_at(fixed);
        let mut start = 0;
        for check in &self.checked {
            let is_null =
                check.null_bit != NOT_NULL && slots[check.null_bit as usize / 8] >> (check.null_bit % 8) & 1 == 1;
            match check.kind {
                // The commonest ones first, without a result to be checked.
                CheckKind::Fixed(_) if !is_null => {}
                CheckKind::Fixed(8) if read_u64(slots, check.offset) == 0 => {}
                CheckKind::Fixed(1) if slots[check.offset as usize] == 0 => {}
                _ => start = check.validate(is_null, slots, data, start)?,
            }
        }
        Ok(())
    }

    fn validate_bitmap(&self, row: &[u8]) -> Result<(), RowError> {
        let used_in_last = self.nullable_count % 8;
        if used_in_last != 0 && row[self.bitmap_bytes as usize - 1] >> used_in_last != 0 {
            return Err(RowError::NullBitmap);
        }
        Ok(())
    }

    /// A column of a valid row. Panics on bytes that `validate` would refuse, or on a column that does not exist.
    #[inline]
    pub fn field<'a>(&self, row: &'a [u8], column: u16) -> Field<'a> {
        let slot = &self.columns[column as usize];
        if slot.is_null(row) {
            return Field::Null;
        }
        let at = slot.offset as usize;
        match slot.ty {
            ScalarType::Bool => Field::Bool(row[at] != 0),
            ScalarType::I8 => Field::Int(row[at] as i8 as i64),
            ScalarType::I16 => Field::Int(i16::from_le_bytes(array(row, at)) as i64),
            ScalarType::I32 => Field::Int(i32::from_le_bytes(array(row, at)) as i64),
            ScalarType::I64 | ScalarType::Timestamp => Field::Int(i64::from_le_bytes(array(row, at))),
            ScalarType::U8 => Field::Uint(row[at] as u64),
            ScalarType::U16 => Field::Uint(u16::from_le_bytes(array(row, at)) as u64),
            ScalarType::U32 => Field::Uint(u32::from_le_bytes(array(row, at)) as u64),
            ScalarType::U64 => Field::Uint(u64::from_le_bytes(array(row, at))),
            ScalarType::F64 => Field::F64(f64::from_le_bytes(array(row, at))),
            ScalarType::Decimal { .. } => Field::Decimal(i128::from_le_bytes(array(row, at))),
            ScalarType::Uuid => Field::Uuid(array(row, at)),
            ScalarType::Bytes => Field::Bytes(self.data_of(row, slot)),
            ScalarType::Text => {
                Field::Text(core::str::from_utf8(self.data_of(row, slot)).expect("a stored row is validated"))
            }
        }
    }

    /// The data of a `Text` or `Bytes` column of a valid row.
    #[inline]
    pub(crate) fn data_of<'a>(&self, row: &'a [u8], slot: &ColumnSlot) -> &'a [u8] {
        let (start, end) = (slot.data_start(row), read_u32(row, slot.offset));
        &row[self.fixed_bytes() + start as usize..self.fixed_bytes() + end as usize]
    }

    /// Appends the key encoding (`key` module) of `columns` of a valid row.
    #[inline]
    pub fn push_key(&self, row: &[u8], columns: &[u16], out: &mut Vec<u8>) {
        for &column in columns {
            self.push_key_column(row, column, out);
        }
    }

    fn push_key_column(&self, row: &[u8], column: u16, out: &mut Vec<u8>) {
        let slot = &self.columns[column as usize];
        if slot.null_bit != NOT_NULL {
            if slot.is_null(row) {
                return key::push_null(out);
            }
            key::push_present(out);
        }
        let at = slot.offset as usize;
        match slot.ty {
            ScalarType::Bool | ScalarType::U8 => key::push_u8(out, row[at]),
            ScalarType::I8 => key::push_i8(out, row[at] as i8),
            ScalarType::I16 => key::push_i16(out, i16::from_le_bytes(array(row, at))),
            ScalarType::I32 => key::push_i32(out, i32::from_le_bytes(array(row, at))),
            ScalarType::I64 | ScalarType::Timestamp => key::push_i64(out, i64::from_le_bytes(array(row, at))),
            ScalarType::U16 => key::push_u16(out, u16::from_le_bytes(array(row, at))),
            ScalarType::U32 => key::push_u32(out, u32::from_le_bytes(array(row, at))),
            ScalarType::U64 => key::push_u64(out, u64::from_le_bytes(array(row, at))),
            ScalarType::F64 => key::push_f64(out, f64::from_le_bytes(array(row, at))),
            ScalarType::Decimal { .. } => key::push_i128(out, i128::from_le_bytes(array(row, at))),
            ScalarType::Uuid => out.extend_from_slice(&row[at..at + 16]),
            ScalarType::Text | ScalarType::Bytes => key::push_bytes(out, self.data_of(row, slot)),
        }
    }

    /// Builds a row from one field per column. Panics when the fields do not fit the columns: callers check types first.
    pub fn build(&self, fields: &[Field<'_>]) -> Vec<u8> {
        assert_eq!(fields.len(), self.columns.len(), "one field per column");
        let mut row = alloc::vec![0; self.fixed_bytes()];
        let mut end = 0u32;
        for (slot, field) in self.columns.iter().zip(fields) {
            if *field == Field::Null {
                assert!(slot.null_bit != NOT_NULL, "null in a column that is not nullable");
                row[slot.null_bit as usize / 8] |= 1 << (slot.null_bit % 8);
            }
            match field {
                Field::Text(text) => row.extend_from_slice(text.as_bytes()),
                Field::Bytes(bytes) => row.extend_from_slice(bytes),
                Field::Null => {}
                _ => write_fixed(&mut row, slot, field),
            }
            if slot.ty.is_variable() {
                end = (row.len() - self.fixed_bytes()) as u32;
                row[slot.offset as usize..slot.offset as usize + 4].copy_from_slice(&end.to_le_bytes());
            }
        }
        debug_assert!(row.len() == self.fixed_bytes() + end as usize);
        row
    }
}

fn write_fixed(row: &mut [u8], slot: &ColumnSlot, field: &Field<'_>) {
    let at = slot.offset as usize;
    let width = slot.ty.slot_bytes();
    match field {
        Field::Bool(value) => row[at] = *value as u8,
        Field::Int(value) => row[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]),
        Field::Uint(value) => row[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]),
        Field::F64(value) => row[at..at + 8].copy_from_slice(&value.to_le_bytes()),
        Field::Decimal(value) => row[at..at + 16].copy_from_slice(&value.to_le_bytes()),
        Field::Uuid(value) => row[at..at + 16].copy_from_slice(value),
        Field::Null | Field::Text(_) | Field::Bytes(_) => unreachable!("handled by build"),
    }
}

impl ColumnSlot {
    /// Whether a valid row has null there.
    #[inline]
    pub fn is_null(&self, row: &[u8]) -> bool {
        self.null_bit != NOT_NULL && row[self.null_bit as usize / 8] >> (self.null_bit % 8) & 1 == 1
    }

    /// The slot of the variable column before this one. Of a variable column.
    pub(crate) fn previous(&self) -> Option<u32> {
        (self.previous != NO_PREVIOUS).then_some(self.previous)
    }

    /// Whether it may be null.
    pub fn is_nullable(&self) -> bool {
        self.null_bit != NOT_NULL
    }

    #[inline]
    fn data_start(&self, row: &[u8]) -> u32 {
        match self.previous {
            NO_PREVIOUS => 0,
            slot => read_u32(row, slot),
        }
    }
}

impl QuickCheck {
    fn of(checked: &[ColumnCheck]) -> Option<Self> {
        let mut quick = Self {
            text: NO_PREVIOUS,
            nullable: NO_PREVIOUS,
            nullable_bytes: 0,
            bool_at: NO_PREVIOUS,
        };
        for check in checked {
            let place = match (check.kind, check.null_bit) {
                (CheckKind::Text, NOT_NULL) => &mut quick.text,
                (CheckKind::Bool, NOT_NULL) => &mut quick.bool_at,
                (CheckKind::Fixed(bytes), _) => {
                    quick.nullable_bytes = bytes;
                    &mut quick.nullable
                }
                _ => return None,
            };
            if core::mem::replace(place, check.offset) != NO_PREVIOUS {
                return None;
            }
        }
        Some(quick)
    }

    /// A row in two parts, of the slots' length at least.
    #[inline(always)]
    fn is_valid(&self, slots: &[u8], data: &[u8]) -> bool {
        let is_text = match self.text {
            NO_PREVIOUS => data.is_empty(),
            at => read_u32(slots, at) as usize == data.len() && is_utf8(data),
        };
        is_text
            && (self.bool_at == NO_PREVIOUS || slots[self.bool_at as usize] <= 1)
            && (self.nullable == NO_PREVIOUS || self.is_null_fit(slots))
    }

    /// The only column that may be null is there, or its slot is zero.
    #[inline(always)]
    fn is_null_fit(&self, slots: &[u8]) -> bool {
        let is_zero = || match self.nullable_bytes {
            8 => read_u64(slots, self.nullable) == 0,
            bytes => slots[self.nullable as usize..][..bytes as usize]
                .iter()
                .all(|byte| *byte == 0),
        };
        slots[0] == 0 || slots[0] == 1 && is_zero()
    }
}

impl ColumnCheck {
    /// Validates the column in a row of two parts. The data of earlier columns end at `start`. Returns the end of its own.
    #[inline(always)]
    fn validate(&self, is_null: bool, slots: &[u8], data: &[u8], start: usize) -> Result<usize, RowError> {
        let column = self.column;
        let at = self.offset as usize;
        match self.kind {
            CheckKind::Text | CheckKind::Bytes => {
                let end = read_u32(slots, self.offset) as usize;
                let Some(bytes) = data.get(start..end) else {
                    return Err(RowError::Offset { column });
                };
                if is_null && !bytes.is_empty() {
                    return Err(RowError::NullSlot { column });
                }
                match self.kind == CheckKind::Text && !is_utf8(bytes) {
                    true => Err(RowError::Utf8 { column }),
                    false => Ok(end),
                }
            }
            CheckKind::Bool if slots[at] > !is_null as u8 => match is_null {
                true => Err(RowError::NullSlot { column }),
                false => Err(RowError::Bool { column }),
            },
            CheckKind::Fixed(width) if is_null && slots[at..at + width as usize].iter().any(|byte| *byte != 0) => {
                Err(RowError::NullSlot { column })
            }
            CheckKind::Bool | CheckKind::Fixed(_) => Ok(start),
        }
    }
}

/// Short texts are nearly always ASCII.
#[inline]
fn is_utf8(data: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    if let (Some(first), Some(last), ..=32) = (data.first_chunk(), data.last_chunk(), data.len()) {
        let bits = u128::from_ne_bytes(*first) | u128::from_ne_bytes(*last);
        return (bits as u64 | (bits >> 64) as u64) & HIGH == 0 || core::str::from_utf8(data).is_ok();
    }
    if let (Some(first), Some(last), ..=8) = (data.first_chunk(), data.last_chunk(), data.len()) {
        let bits = u32::from_ne_bytes(*first) | u32::from_ne_bytes(*last);
        return bits & HIGH as u32 == 0 || core::str::from_utf8(data).is_ok();
    }
    if let (Some(first), Some(last), ..=3) = (data.first(), data.last(), data.len()) {
        return (first | data[data.len() / 2] | last) < 0x80 || core::str::from_utf8(data).is_ok();
    }
    let (words, rest) = data.as_chunks::<8>();
    let bits = words.iter().fold(0, |bits, word| bits | u64::from_ne_bytes(*word));
    let rest = rest.iter().fold(0, |bits, byte| bits | byte);
    bits & HIGH == 0 && rest < 0x80 || core::str::from_utf8(data).is_ok()
}

#[inline]
fn read_u64(row: &[u8], at: u32) -> u64 {
    u64::from_le_bytes(array(row, at as usize))
}

#[inline]
fn read_u32(row: &[u8], at: u32) -> u32 {
    u32::from_le_bytes(array(row, at as usize))
}

#[inline]
fn array<const N: usize>(row: &[u8], at: usize) -> [u8; N] {
    row[at..at + N].try_into().expect("N bytes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarType::{Bool, I32, Text};

    fn layout() -> RowLayout {
        RowLayout::from_types([(I32, false), (Text, true), (Bool, false), (Text, false)].into_iter())
    }

    #[test]
    fn row_check_gives_one_result_with_and_without_a_loop() {
        use ScalarType::{I8, I64, Uuid};
        let layouts: [&[(ScalarType, bool)]; 8] = [
            &[(I32, false)],
            &[(Text, false), (I32, false)],
            &[(I32, false), (I64, true), (Text, false)],
            &[(I8, true), (Bool, false)],
            &[(Uuid, true), (Text, false), (Bool, false)],
            &[(Bool, true), (Text, false)],
            &[(Text, true), (Bool, false)],
            &[(I64, true), (I64, true), (Text, false), (Text, false)],
        ];
        let texts = ["", "ab", "some text", "größer, and of more bytes than thirty-two"];
        let mut valid = 0;
        for (at, types) in layouts.into_iter().enumerate() {
            let layout = RowLayout::from_types(types.iter().copied());
            assert_eq!(layout.quick.is_some(), at < 5);
            for which in 0..32 {
                let field = |(ty, nullable): &(ScalarType, bool)| match ty {
                    _ if *nullable && which % 2 == 0 => Field::Null,
                    Text => Field::Text(texts[which / 2 % 4]),
                    Bool => Field::Bool(which & 8 == 0),
                    Uuid => Field::Uuid([which as u8; 16]),
                    _ => Field::Int(which as i64 - 7),
                };
                let row = layout.build(&types.iter().map(field).collect::<Vec<_>>());
                assert_eq!(layout.validate(&row), Ok(()));
                for (byte, value) in (0..row.len()).flat_map(|at| [0, 1, 2, 0x80, 0xff].map(|value| (at, value))) {
                    let mut odd = row.clone();
                    odd[byte] = value;
                    assert_eq!(layout.validate(&odd), layout.validate_checked(&odd), "{types:?}");
                    valid += layout.validate(&odd).is_ok() as usize;
                }
                for len in 0..row.len() {
                    assert!(layout.validate(&row[..len]).is_err());
                }
                assert!(layout.validate(&[&row[..], &[0]].concat()).is_err());
            }
        }
        assert!(valid > 1_000);
    }

    #[test]
    fn build_validate_and_read_back() {
        let layout = layout();
        let fields = [Field::Int(-5), Field::Null, Field::Bool(true), Field::Text("ab")];
        let row = layout.build(&fields);
        assert_eq!(layout.validate(&row), Ok(()));
        let read: Vec<_> = (0..4).map(|c| layout.field(&row, c)).collect();
        assert_eq!(read, fields);
    }

    #[test]
    fn row_with_invalid_text_alone_is_refused_like_any_other() {
        let layout = RowLayout::from_types([(I32, false), (Text, false), (I32, false)].into_iter());
        for length in 0..40 {
            let text = "x".repeat(length);
            let good = layout.build(&[Field::Int(1), Field::Text(&text), Field::Int(2)]);
            assert_eq!(layout.validate(&good), Ok(()));
            for at in 0..length {
                let mut bad = good.clone();
                bad[layout.fixed_bytes() + at] = 0xff;
                assert_eq!(
                    layout.validate(&bad),
                    Err(RowError::Utf8 { column: 1 }),
                    "{at} of {length}"
                );
            }
            let mut long = good.clone();
            long.push(b'x');
            for (row, found) in [(&long[..], length + 13), (&good[..length + 11], length + 11)] {
                let refused = layout.validate(row);
                assert!(matches!(refused, Err(RowError::Length { found: bytes, .. }) if bytes == found));
            }
        }
        let accents = layout.build(&[Field::Int(1), Field::Text("é"), Field::Int(2)]);
        assert_eq!(layout.validate(&accents), Ok(()));
    }

    #[test]
    fn forged_rows_are_refused() {
        let layout = layout();
        let good = layout.build(&[Field::Int(7), Field::Text("x"), Field::Bool(false), Field::Text("yz")]);
        let forge = |at: usize, value: u8| {
            let mut row = good.clone();
            row[at] = value;
            layout.validate(&row)
        };
        assert_eq!(forge(0, 2), Err(RowError::NullBitmap));
        assert_eq!(forge(0, 1), Err(RowError::NullSlot { column: 1 }));
        assert_eq!(forge(9, 2), Err(RowError::Bool { column: 2 }));
        assert_eq!(forge(5, 200), Err(RowError::Offset { column: 1 }));
        assert!(matches!(forge(10, 200), Err(RowError::Length { .. })));
        assert_eq!(forge(good.len() - 1, 0xff), Err(RowError::Utf8 { column: 3 }));
        assert!(matches!(layout.validate(&good[..6]), Err(RowError::Length { .. })));
    }
}
