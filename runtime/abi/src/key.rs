//! Keys whose byte order is the order of their values (memcomparable), and prefix-free per column.
//!
//! Integers big-endian with the sign bit flipped; `f64` by total order; text and bytes with `00` escaped as `00 ff` and
//! ended by `00 00`; a nullable column begins with `00` for null and `01` otherwise, so nulls sort first.

use alloc::vec::Vec;

/// Longest encoded key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;

pub fn push_null(out: &mut Vec<u8>) {
    out.push(0);
}
pub fn push_present(out: &mut Vec<u8>) {
    out.push(1);
}
pub fn push_bool(out: &mut Vec<u8>, value: bool) {
    out.push(value as u8);
}

macro_rules! push_int {
    ($($unsigned:ident $signed:ident $u:ty, $i:ty;)*) => {$(
        #[inline]
        pub fn $unsigned(out: &mut Vec<u8>, value: $u) {
            out.extend_from_slice(&value.to_be_bytes());
        }
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
    let ordered = if bits >> 63 == 1 {
        !bits
    } else {
        bits | 1 << 63
    };
    push_u64(out, ordered);
}

pub fn push_bytes(out: &mut Vec<u8>, value: &[u8]) {
    for &byte in value {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let floats = [
            f64::NEG_INFINITY,
            -1.5,
            -0.0,
            0.0,
            1e-300,
            2.0,
            f64::INFINITY,
        ];
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
