//! Keys whose byte order is the order of their values (memcomparable), and prefix-free per column.
//!
//! Integers are big-endian with the sign bit flipped, and `f64` is in total order. Text and bytes have `00` escaped as `00 ff` and end with
//! `00 00`. A nullable column begins with `00` for null and `01` otherwise, so nulls sort first.

use alloc::vec::Vec;

use crate::types::ScalarType;

/// Longest encoded key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

/// A column that is null: before all values.
pub fn push_null(out: &mut Vec<u8>) {
    out.push(0);
}
/// Appends the mark in front of a value of a nullable column.
pub fn push_present(out: &mut Vec<u8>) {
    out.push(1);
}
/// `false` before `true`.
pub fn push_bool(out: &mut Vec<u8>, value: bool) {
    out.push(value as u8);
}

macro_rules! push_int {
    ($($unsigned:ident $signed:ident $u:ty, $i:ty;)*) => {$(
        /// Big-endian: bytes are in the order of the numbers.
        #[inline]
        pub fn $unsigned(out: &mut Vec<u8>, value: $u) {
            out.extend_from_slice(&value.to_be_bytes());
        }
        /// Big-endian with its sign turned: bytes are in the order of the numbers.
        #[inline]
        pub fn $signed(out: &mut Vec<u8>, value: $i) {
            out.extend_from_slice(&((value as $u) ^ (1 << (<$u>::BITS - 1))).to_be_bytes());
        }
    )*};
}
push_int! {
    push_u8 push_i8 u8, i8;
    push_u16 push_i16 u16, i16;
    push_u32 push_i32 u32, i32;
    push_u64 push_i64 u64, i64;
    push_u128 push_i128 u128, i128;
}

/// IEEE 754 total order: negative values with all bits flipped, others with the sign bit flipped.
#[inline]
pub fn push_f64(out: &mut Vec<u8>, value: f64) {
    let bits = value.to_bits();
    let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    push_u64(out, ordered);
}

/// Appends bytes with escaped zeros, and two zeros at the end, so that a prefix comes before longer values.
pub fn push_bytes(out: &mut Vec<u8>, value: &[u8]) {
    for &byte in value {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

/// Reads a key back column by column, for people and tools.
pub struct KeyReader<'a>(&'a [u8]);

impl<'a> KeyReader<'a> {
    /// Reads a key from its beginning.
    pub fn new(key: &'a [u8]) -> Self {
        Self(key)
    }

    /// Nothing is left.
    pub fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next column: `Some(None)` for null, otherwise its value as in a row's slot, or the data of a text or bytes column. None:
    /// the key does not hold such a column.
    pub fn next_column(&mut self, ty: ScalarType, nullable: bool) -> Option<Option<Vec<u8>>> {
        if nullable {
            match self.take(1)? {
                [0] => return Some(None),
                [1] => {}
                _ => return None,
            }
        }
        if ty.is_variable() {
            return self.data().map(Some);
        }
        let mut value = self.take(ty.slot_bytes())?.to_vec();
        if ty == ScalarType::Uuid {
            return Some(Some(value));
        }
        let is_negative = value[0] & 0x80 == 0;
        match ty {
            ScalarType::F64 if is_negative => value.iter_mut().for_each(|byte| *byte = !*byte),
            ScalarType::F64
            | ScalarType::I8
            | ScalarType::I16
            | ScalarType::I32
            | ScalarType::I64
            | ScalarType::Timestamp
            | ScalarType::Decimal { .. } => value[0] ^= 0x80,
            _ => {}
        }
        value.reverse();
        Some(Some(value))
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn data(&mut self) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        loop {
            match self.take(1)? {
                [0] => match self.take(1)? {
                    [0] => return Some(data),
                    [0xff] => data.push(0),
                    _ => return None,
                },
                [byte] => data.push(*byte),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Field, RowLayout};
    use ScalarType::*;

    #[test]
    fn a_key_is_read_back() {
        let types = [
            (I16, false),
            (Text, true),
            (F64, false),
            (Decimal { scale: 1 }, false),
            (U32, true),
            (Uuid, false),
        ];
        let layout = RowLayout::from_types(types.into_iter());
        for sign in [-1, 1] {
            let fields = [
                Field::Int(-5 * sign),
                Field::Text("a\0b"),
                Field::F64(1.5 * sign as f64),
                Field::Decimal(-77 * sign as i128),
                Field::Null,
                Field::Uuid([9; 16]),
            ];
            let mut encoded = Vec::new();
            layout.push_key(&layout.build(&fields), &[0, 1, 2, 3, 4, 5], &mut encoded);
            let mut reader = KeyReader::new(&encoded);
            let mut next = |at: usize| reader.next_column(types[at].0, types[at].1).expect("whole");
            assert_eq!(next(0), Some((-5 * sign as i16).to_le_bytes().to_vec()));
            assert_eq!(next(1), Some(b"a\0b".to_vec()));
            assert_eq!(next(2), Some((1.5 * sign as f64).to_le_bytes().to_vec()));
            assert_eq!(next(3), Some((-77 * sign as i128).to_le_bytes().to_vec()));
            assert_eq!(next(4), None);
            assert_eq!(next(5), Some([9; 16].to_vec()));
            assert!(reader.is_at_end());
            for cut in 0..encoded.len() {
                let mut reader = KeyReader::new(&encoded[..cut]);
                let all = types
                    .iter()
                    .try_for_each(|(ty, nullable)| reader.next_column(*ty, *nullable).map(drop));
                assert!(all.is_none(), "{cut}");
            }
        }
    }

    fn key(f: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        f(&mut out);
        out
    }

    #[test]
    fn byte_order_is_value_order() {
        let ints = [i64::MIN, -2, -1, 0, 1, 2, i64::MAX];
        assert!(
            ints.windows(2)
                .all(|w| key(|o| push_i64(o, w[0])) < key(|o| push_i64(o, w[1])))
        );
        let floats = [f64::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-300, 2.0, f64::INFINITY];
        assert!(
            floats
                .windows(2)
                .all(|w| key(|o| push_f64(o, w[0])) < key(|o| push_f64(o, w[1])))
        );
        let texts: [&[u8]; 6] = [b"", b"\0", b"\0\0", b"\0a", b"a", b"ab"];
        assert!(
            texts
                .windows(2)
                .all(|w| key(|o| push_bytes(o, w[0])) < key(|o| push_bytes(o, w[1])))
        );
    }
}
