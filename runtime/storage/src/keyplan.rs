//! The plan by which an index makes its keys from rows: the columns, their widths, and the fast paths to encode and compare them.

use reprise_abi::{RowLayout, ScalarType, key::KEY_BYTES_MAX, row::ColumnSlot};

use crate::intkey::{IntKey, KeyLoad};

/// `RowLayout`'s mark for the first variable column of a row.
pub(crate) const NO_PREVIOUS: u32 = u32::MAX;
/// Widest key that is encoded without a heap buffer, in bytes.
pub(crate) const FIXED_BYTES_MAX: usize = 32;

/// A row and its number. The number ends the keys of a table without a primary key.
#[derive(Clone, Copy)]
pub(crate) struct StoredRow<'a> {
    pub row: &'a [u8],
    pub number: u64,
}

/// The encoded key of a row: the index's own columns first.
pub(crate) struct EncodedKey<'s> {
    pub bytes: &'s [u8],
    own_bytes: usize,
}

impl EncodedKey<'_> {
    pub fn is_too_long(&self) -> bool {
        self.own_bytes > KEY_BYTES_MAX
    }
}

/// Buffers for encoded keys, which calls reuse.
#[derive(Default)]
pub(crate) struct KeyScratch {
    fixed: [u8; FIXED_BYTES_MAX],
    heap: Vec<u8>,
}

/// The columns of an index's entries. A non-unique index appends the columns of the primary key that it lacks. So entries with equal keys
/// are in primary key order on every machine.
pub(crate) struct KeyPlan {
    columns: Vec<u16>,
    own_count: usize,
    /// True if the hidden row number ends the key.
    has_number: bool,
    slots: Vec<ColumnSlot>,
    /// The plan of a key of integers, which has a fixed form.
    ints: Option<IntKey>,
    /// See the function of this name.
    has_words: bool,
    data_offset: usize,
    form: KeyForm,
}

enum KeyForm {
    /// All keys have `bytes` bytes.
    Fixed {
        own_bytes: usize,
        bytes: usize,
    },
    /// No key is longer than this.
    Bounded(usize),
    Unbounded,
}

impl KeyPlan {
    pub fn new(layout: &RowLayout, own: &[u16], rest: &[u16], has_number: bool) -> Self {
        let mut columns = own.to_vec();
        columns.extend(rest.iter().filter(|column| !own.contains(column)));
        let slots: Vec<ColumnSlot> = columns.iter().map(|c| layout.columns[*c as usize]).collect();
        let width = |slots: &[ColumnSlot]| -> usize {
            slots.iter().map(|s| s.ty.slot_bytes() + s.is_nullable() as usize).sum()
        };
        let bytes = width(&slots) + 8 * has_number as usize;
        let form = if slots.iter().any(|slot| slot.ty.is_variable()) {
            KeyForm::Unbounded
        } else if bytes > FIXED_BYTES_MAX || slots.iter().any(ColumnSlot::is_nullable) {
            KeyForm::Bounded(bytes)
        } else {
            let own_bytes = if own.is_empty() {
                bytes
            } else {
                width(&slots[..own.len()])
            };
            KeyForm::Fixed { own_bytes, bytes }
        };
        let ints = match form {
            KeyForm::Fixed { .. } => IntKey::new(layout, &slots, has_number),
            KeyForm::Bounded(_) | KeyForm::Unbounded => None,
        };
        let is_long = ints.as_ref().is_some_and(|ints| !ints.is_short());
        Self {
            own_count: own.len(),
            columns,
            has_number,
            has_words: is_long && matches!(form, KeyForm::Fixed { bytes: ..=16, .. }),
            ints,
            slots,
            data_offset: layout.fixed_bytes(),
            form,
        }
    }

    /// Returns the length that no entry's key exceeds.
    pub fn bytes_max(&self) -> Option<usize> {
        match self.form {
            KeyForm::Fixed { bytes, .. } | KeyForm::Bounded(bytes) => Some(bytes),
            KeyForm::Unbounded => None,
        }
    }

    /// Returns the length of every whole key, if all have the same.
    pub fn own_bytes(&self) -> Option<usize> {
        match self.form {
            KeyForm::Fixed { own_bytes, .. } => Some(own_bytes),
            KeyForm::Bounded(_) | KeyForm::Unbounded => None,
        }
    }

    pub fn holds(&self, column: u16) -> bool {
        self.columns.contains(&column)
    }

    #[inline]
    pub fn encode<'s>(&self, layout: &RowLayout, row: StoredRow<'_>, scratch: &'s mut KeyScratch) -> EncodedKey<'s> {
        if let KeyForm::Fixed { own_bytes, .. } = self.form {
            let len = self.encode_fixed(row, &mut scratch.fixed);
            return EncodedKey {
                bytes: &scratch.fixed[..len],
                own_bytes,
            };
        }
        let out = &mut scratch.heap;
        out.clear();
        layout.push_key(row.row, &self.columns[..self.own_count], out);
        let own_bytes = out.len();
        layout.push_key(row.row, &self.columns[self.own_count..], out);
        if self.has_number {
            out.extend_from_slice(&row.number.to_be_bytes());
        }
        EncodedKey { bytes: out, own_bytes }
    }

    #[inline]
    fn encode_fixed(&self, row: StoredRow<'_>, out: &mut [u8; FIXED_BYTES_MAX]) -> usize {
        if let (Some(ints), KeyForm::Fixed { bytes, .. }) = (&self.ints, &self.form) {
            let words = ints.words::<{ FIXED_BYTES_MAX / 8 }>(row);
            for (word, out) in words.iter().zip(out.as_chunks_mut::<8>().0) {
                *out = word.to_be_bytes();
            }
            return *bytes;
        }
        let mut end = 0;
        for slot in &self.slots {
            end += encode_slot(row.row, slot, &mut out[end..]);
        }
        if self.has_number {
            out[end..end + 8].copy_from_slice(&row.number.to_be_bytes());
            end += 8;
        }
        end
    }

    /// Returns the entry key as two words, for integers of at most 16 bytes.
    #[inline(always)]
    pub fn int_words(&self, row: StoredRow<'_>) -> Option<[u64; 2]> {
        match (&self.ints, self.has_words) {
            (Some(ints), true) => Some(ints.words(row)),
            _ => None,
        }
    }

    /// True if `int_words` has them. The rule is frozen, because the digest folds words or bytes by it.
    #[inline]
    pub fn has_words(&self) -> bool {
        self.has_words
    }

    /// Returns the plan that builds the whole entry key from a row, if it consists of integers alone.
    #[inline]
    pub fn ints(&self) -> Option<&IntKey> {
        self.ints.as_ref()
    }

    /// Returns the loads of a whole key's bytes, if it has integer columns alone.
    pub fn load(&self) -> Option<KeyLoad> {
        self.ints.as_ref()?;
        KeyLoad::new(&self.slots[..self.own_count])
    }

    /// True if both rows have the same entry key, by their column bytes.
    #[inline]
    pub fn is_same(&self, a: &[u8], b: &[u8]) -> bool {
        if let Some(ints) = &self.ints {
            return ints.is_same(a, b);
        }
        self.slots.iter().all(|slot| {
            if slot.ty.is_variable() {
                return slot.is_null(a) == slot.is_null(b) && self.data(a, slot) == self.data(b, slot);
            }
            let at = slot.offset as usize;
            let width = slot.ty.slot_bytes();
            a[at..at + width] == b[at..at + width] && (!slot.is_nullable() || slot.is_null(a) == slot.is_null(b))
        })
    }

    /// True if the row's own key is exactly `key`.
    #[inline]
    pub fn matches(&self, row: StoredRow<'_>, key: &[u8]) -> bool {
        if let KeyForm::Fixed { own_bytes, .. } = self.form {
            let mut buffer = [0; FIXED_BYTES_MAX];
            self.encode_fixed(row, &mut buffer);
            return buffer[..own_bytes] == *key;
        }
        let mut rest = key;
        for slot in &self.slots[..self.own_count] {
            match self.strip_column(row.row, slot, rest) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
    }

    /// Returns the rest of `key` after the row's column, if `key` begins with it.
    fn strip_column<'k>(&self, row: &[u8], slot: &ColumnSlot, key: &'k [u8]) -> Option<&'k [u8]> {
        let mut rest = key;
        if slot.is_nullable() {
            let is_null = slot.is_null(row);
            rest = rest.strip_prefix(&[!is_null as u8])?;
            if is_null {
                return Some(rest);
            }
        }
        if !slot.ty.is_variable() {
            let mut buffer = [0; 16];
            let width = encode_slot(row, slot, &mut buffer);
            return rest.strip_prefix(&buffer[..width]);
        }
        for &byte in self.data(row, slot) {
            rest = rest.strip_prefix(&[byte])?;
            if byte == 0 {
                rest = rest.strip_prefix(&[0xff])?;
            }
        }
        rest.strip_prefix(&[0, 0])
    }

    /// True if `key` has the form of a whole key of this index, with no part missing and none added.
    #[inline]
    pub fn is_whole(&self, key: &[u8]) -> bool {
        if let KeyForm::Fixed { own_bytes, .. } = self.form {
            return key.len() == own_bytes;
        }
        let mut rest = key;
        for slot in &self.slots[..self.own_count] {
            match skip_column(slot, rest) {
                Some(after) => rest = after,
                None => return false,
            }
        }
        rest.is_empty()
    }

    fn data<'a>(&self, row: &'a [u8], slot: &ColumnSlot) -> &'a [u8] {
        let read = |at: u32| {
            let at = at as usize;
            u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes")) as usize
        };
        let start = match slot.previous {
            NO_PREVIOUS => 0,
            previous => read(previous),
        };
        &row[self.data_offset + start..self.data_offset + read(slot.offset)]
    }
}

fn skip_column<'k>(slot: &ColumnSlot, key: &'k [u8]) -> Option<&'k [u8]> {
    let mut rest = key;
    if slot.is_nullable() {
        let (tag, after) = rest.split_first()?;
        rest = after;
        match tag {
            0 => return Some(rest),
            1 => {}
            _ => return None,
        }
    }
    if !slot.ty.is_variable() {
        return rest.get(slot.ty.slot_bytes()..);
    }
    loop {
        let zero = rest.iter().position(|byte| *byte == 0)?;
        match rest.get(zero + 1)? {
            0 => return Some(&rest[zero + 2..]),
            0xff => rest = &rest[zero + 2..],
            _ => return None,
        }
    }
}

/// Writes the key form (`reprise_abi::key`) of a present column of fixed width. Returns its width.
#[inline]
fn encode_slot(row: &[u8], slot: &ColumnSlot, out: &mut [u8]) -> usize {
    macro_rules! encode {
        ($type:ty, $value:ident => $ordered:expr) => {{
            const WIDTH: usize = size_of::<$type>();
            let at = slot.offset as usize;
            let $value = <$type>::from_le_bytes(row[at..at + WIDTH].try_into().expect("slot"));
            out[..WIDTH].copy_from_slice(&($ordered).to_be_bytes());
            WIDTH
        }};
    }
    match slot.ty {
        ScalarType::Bool | ScalarType::U8 => encode!(u8, v => v),
        ScalarType::U16 => encode!(u16, v => v),
        ScalarType::U32 => encode!(u32, v => v),
        ScalarType::U64 => encode!(u64, v => v),
        ScalarType::I8 => encode!(u8, v => v ^ 1 << 7),
        ScalarType::I16 => encode!(u16, v => v ^ 1 << 15),
        ScalarType::I32 => encode!(u32, v => v ^ 1 << 31),
        ScalarType::I64 | ScalarType::Timestamp => encode!(u64, v => v ^ 1 << 63),
        ScalarType::Decimal { .. } => encode!(u128, v => v ^ 1 << 127),
        ScalarType::F64 => encode!(u64, v => if v >> 63 == 1 { !v } else { v | 1 << 63 }),
        ScalarType::Uuid => {
            let at = slot.offset as usize;
            out[..16].copy_from_slice(&row[at..at + 16]);
            16
        }
        ScalarType::Text | ScalarType::Bytes => unreachable!("columns of fixed width only"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarType::*;
    use reprise_abi::Field;

    fn check(types: &[(ScalarType, bool)], fields: &[Field<'_>]) {
        let layout = RowLayout::from_types(types.iter().copied());
        let row = layout.build(fields);
        let columns: Vec<u16> = (0..types.len() as u16).rev().collect();
        let plan = KeyPlan::new(&layout, &columns, &[], false);
        let mut expected = Vec::new();
        layout.push_key(&row, &columns, &mut expected);
        let mut scratch = KeyScratch::default();
        let row = StoredRow { row: &row, number: 0 };
        assert_eq!(plan.encode(&layout, row, &mut scratch).bytes, expected);
        assert!(plan.matches(row, &expected) && plan.is_whole(&expected));
        let is_short = expected.len() <= 16;
        assert_eq!(plan.load().is_some(), plan.ints().is_some() && is_short);
        if let Some(load) = plan.load() {
            let mut padded = [0; 16];
            padded[..expected.len()].copy_from_slice(&expected);
            assert_eq!(load.load(&expected), u128::from_be_bytes(padded));
        }
        for cut in 0..expected.len() {
            assert!(
                !plan.matches(row, &expected[..cut]) && !plan.is_whole(&expected[..cut]),
                "{cut}"
            );
        }
        expected.push(0);
        assert!(!plan.matches(row, &expected) && !plan.is_whole(&expected));
    }

    #[test]
    fn columns_may_cross_words_and_rows_may_be_tiny() {
        check(&[(U8, false)], &[Field::Uint(200)]);
        check(&[(I16, false), (Bool, false)], &[Field::Int(-2), Field::Bool(true)]);
        check(&[(I64, false), (I32, false)], &[Field::Int(-2), Field::Int(7)]);
        check(
            &[(U8, false), (Decimal { scale: 0 }, false), (I64, false), (I16, false)],
            &[
                Field::Uint(9),
                Field::Decimal(-(1 << 100) + 77),
                Field::Int(i64::MIN),
                Field::Int(-1),
            ],
        );
    }

    /// The rows here have their columns in reverse order.
    #[test]
    fn keys_of_the_commonest_shapes_are_those_of_any_other() {
        let widths = [
            (I16, -5),
            (U16, 9),
            (I32, -70_000),
            (U32, 70_001),
            (I64, i64::MIN + 3),
            (U64, 5),
        ];
        let field = |(ty, value): (ScalarType, i64)| match ty {
            U16 | U32 | U64 => Field::Uint(value as u64),
            _ => Field::Int(value),
        };
        for first in widths {
            check(&[(first.0, false), (F64, false)], &[field(first), Field::F64(0.5)]);
            for second in widths {
                check(&[(second.0, false), (first.0, false)], &[field(second), field(first)]);
            }
        }
        check(&[(I64, false)], &[Field::Int(-4)]);
        check(
            &[(U32, false), (I32, false), (I64, false)],
            &[Field::Uint(1), Field::Int(-2), Field::Int(3)],
        );
    }

    #[test]
    fn plans_agree_with_the_row_layout() {
        check(
            &[
                (I8, false),
                (I16, false),
                (I32, false),
                (I64, false),
                (Timestamp, false),
            ],
            &[
                Field::Int(-3),
                Field::Int(300),
                Field::Int(-70_000),
                Field::Int(9),
                Field::Int(-1),
            ],
        );
        check(
            &[(U8, false), (U16, false), (U32, false), (U64, false), (Bool, false)],
            &[
                Field::Uint(3),
                Field::Uint(300),
                Field::Uint(70_000),
                Field::Uint(9),
                Field::Bool(true),
            ],
        );
        check(
            &[(F64, false), (Uuid, false)],
            &[Field::F64(-1.5), Field::Uuid([7; 16])],
        );
        check(
            &[(Decimal { scale: 2 }, false), (F64, true)],
            &[Field::Decimal(-5), Field::Null],
        );
        check(
            &[(Text, true), (I32, true), (Bytes, false)],
            &[Field::Text("a\0b"), Field::Int(5), Field::Bytes(b"\0\0\xff")],
        );
        check(&[(Text, true), (Bytes, false)], &[Field::Null, Field::Bytes(b"")]);
    }
}
