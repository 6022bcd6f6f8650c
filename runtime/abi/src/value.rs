//! Arguments and results: values one after the other, without names or tags, in the order of their type.
//!
//! Scalars: as in a row's slot (little-endian), text and bytes as `varint length` and data. Option: `0`, or `1` and the
//! value. List: `varint count` and the items. Struct: its fields. Enum: the variant as a varint. Varints are LEB128, `u32`.

use alloc::vec::Vec;

use crate::types::{ScalarType, Type};

/// Longest encoded arguments of one call, in bytes.
pub const ARGS_BYTES_MAX: usize = 1 << 20;
/// Longest encoded result of one call, in bytes.
pub const RESULT_BYTES_MAX: usize = 4 << 20;

/// Bytes that are not a value of the expected type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueError {
    /// Byte offset at which decoding stopped.
    pub offset: usize,
}

impl core::fmt::Display for ValueError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "value malformed at byte {}", self.offset)
    }
}

/// 7 bits a byte, the least significant ones first; the last byte's top bit is clear.
#[inline]
pub fn push_varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Their number as a varint, then they.
#[inline]
pub fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push_varint(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

/// Reads values from bytes; every read checks its bounds.
#[derive(Clone, Debug)]
pub struct ValueReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> ValueReader<'a> {
    /// Reads values from their beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Bytes read until now.
    pub fn offset(&self) -> usize {
        self.offset
    }

    fn error(&self) -> ValueError {
        ValueError { offset: self.offset }
    }

    /// The next bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], ValueError> {
        let rest = &self.bytes[self.offset..];
        if rest.len() < count {
            return Err(self.error());
        }
        self.offset += count;
        Ok(&rest[..count])
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ValueError> {
        Ok(self.take(N)?.try_into().expect("N bytes"))
    }

    /// The next byte.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, ValueError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a number of `push_varint`, in its shortest form.
    #[inline]
    pub fn varint(&mut self) -> Result<u32, ValueError> {
        let mut value = 0u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            let bits = (byte & 0x7f) as u32;
            if shift == 28 && bits > 0x0f || shift > 0 && byte == 0 {
                return Err(self.error());
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error())
    }

    /// Reads bytes of `push_bytes`.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], ValueError> {
        let length = self.varint()? as usize;
        self.take(length)
    }

    /// Reads like `bytes`, and requires UTF-8.
    #[inline]
    pub fn text(&mut self) -> Result<&'a str, ValueError> {
        let bytes = self.bytes()?;
        core::str::from_utf8(bytes).map_err(|_| self.error())
    }

    /// A 0 or 1, for booleans and option tags.
    #[inline]
    pub fn flag(&mut self) -> Result<bool, ValueError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.error()),
        }
    }

    /// The start of a list; refuses counts that the remaining bytes could not hold (unit items are not allowed in lists).
    pub fn list_len(&mut self) -> Result<u32, ValueError> {
        let count = self.varint()?;
        if count as usize > self.bytes.len() - self.offset {
            return Err(self.error());
        }
        Ok(count)
    }

    /// Nothing may be left.
    pub fn finish(&self) -> Result<(), ValueError> {
        if self.offset == self.bytes.len() {
            Ok(())
        } else {
            Err(self.error())
        }
    }

    /// Moves past one value of type `ty`, checking it.
    pub fn skip(&mut self, ty: &Type) -> Result<(), ValueError> {
        match ty {
            Type::Unit => Ok(()),
            Type::Scalar(scalar) => self.skip_scalar(*scalar),
            Type::Option(inner) => {
                if self.flag()? {
                    self.skip(inner)?;
                }
                Ok(())
            }
            Type::List(item) => {
                for _ in 0..self.list_len()? {
                    self.skip(item)?;
                }
                Ok(())
            }
            Type::Struct(of) => of.fields.iter().try_for_each(|field| self.skip(&field.ty)),
            Type::Enum(variants) => {
                if self.varint()? as usize >= variants.len() {
                    return Err(self.error());
                }
                Ok(())
            }
        }
    }

    fn skip_scalar(&mut self, ty: ScalarType) -> Result<(), ValueError> {
        match ty {
            ScalarType::Bool => self.flag().map(drop),
            ScalarType::Text => self.text().map(drop),
            ScalarType::Bytes => self.bytes().map(drop),
            fixed => self.take(fixed.slot_bytes()).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_have_one_form() {
        for value in [0, 1, 127, 128, 300, 16_384, u32::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            let mut reader = ValueReader::new(&bytes);
            assert_eq!(reader.varint(), Ok(value));
            assert_eq!(reader.finish(), Ok(()));
        }
        for forged in [&[0x80, 0x00][..], &[0xff, 0xff, 0xff, 0xff, 0x1f], &[0x80]] {
            assert!(ValueReader::new(forged).varint().is_err());
        }
    }

    #[test]
    fn a_huge_list_count_is_refused_before_it_is_believed() {
        assert!(ValueReader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f]).list_len().is_err());
    }
}
