//! Length of values as text: one byte may become many, because of the names in its type.

use crate::types::{ScalarType, Type};

/// A bound: a value of `bytes` bytes takes at most `fixed + per_byte * bytes` bytes of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBound {
    /// Whatever the value's length.
    pub fixed: u64,
    /// Bytes of text for each of its bytes.
    pub per_byte: u64,
    /// The least that a value takes, encoded.
    bytes_min: u64,
}

impl TextBound {
    /// The bound of a type's values.
    pub fn of(ty: &Type) -> Self {
        match ty {
            Type::Unit => Self::new(4, 0, 0),
            Type::Scalar(scalar) => of_scalar(*scalar),
            Type::Option(inner) => {
                let inner = Self::of(inner);
                Self::new(inner.fixed, inner.per_byte.max(4), 1)
            }
            Type::List(item) => {
                let item = Self::of(item);
                // Items of no bytes could be as many as they like.
                let each = match item.bytes_min {
                    0 => u64::MAX,
                    bytes => (item.fixed + 1).div_ceil(bytes),
                };
                Self::new(0, item.per_byte.saturating_add(each).max(2), 1)
            }
            Type::Struct(of) => Self::of_members(of.fields.iter().map(|field| (&*field.name, &field.ty))),
            Type::Enum(variants) => {
                let longest = variants.iter().map(|name| escaped_bytes(name)).max();
                Self::new(0, 2 + longest.unwrap_or(0), 1)
            }
        }
    }

    /// The bound of named values together: a struct, or a procedure's parameters.
    pub fn of_members<'t>(members: impl Iterator<Item = (&'t str, &'t Type)>) -> Self {
        members.fold(Self::new(2, 0, 0), |sum, (name, ty)| {
            let member = Self::of(ty);
            Self {
                fixed: sum
                    .fixed
                    .saturating_add(member.fixed)
                    .saturating_add(name.len() as u64 + 4),
                per_byte: sum.per_byte.max(member.per_byte),
                bytes_min: sum.bytes_min.saturating_add(member.bytes_min),
            }
        })
    }

    /// Bytes of text for a value of `bytes` bytes, at most.
    pub fn bytes_max(self, bytes: usize) -> u64 {
        self.per_byte.saturating_mul(bytes as u64).saturating_add(self.fixed)
    }

    const fn new(fixed: u64, per_byte: u64, bytes_min: u64) -> Self {
        Self {
            fixed,
            per_byte,
            bytes_min,
        }
    }
}

/// A variant may have any name.
fn escaped_bytes(name: &str) -> u64 {
    let bytes = |byte: u8| match byte {
        b'"' | b'\\' | 0..0x20 => 6,
        _ => 1,
    };
    name.bytes().map(bytes).sum()
}

fn of_scalar(scalar: ScalarType) -> TextBound {
    let (per_byte, bytes_min) = match scalar {
        ScalarType::Bool => (5, 1),
        ScalarType::I8 | ScalarType::U8 => (4, 1),
        ScalarType::I16 | ScalarType::U16 => (3, 2),
        ScalarType::I32 | ScalarType::U32 => (3, 4),
        ScalarType::I64 | ScalarType::U64 => (3, 8),
        // Seventeen digits, a sign, a point, an exponent.
        ScalarType::F64 => (4, 8),
        ScalarType::Decimal { .. } => (3, 16),
        // A control character takes six; the length's byte pays for the quotes.
        ScalarType::Text | ScalarType::Bytes => (6, 1),
        ScalarType::Timestamp => (5, 8),
        ScalarType::Uuid => (3, 16),
    };
    TextBound::new(0, per_byte, bytes_min)
}

#[cfg(test)]
mod tests {
    use alloc::{boxed::Box, format, vec, vec::Vec};

    use super::*;
    use crate::types::StructField;

    #[test]
    fn names_beside_little_are_what_makes_texts_long() {
        let field = |name: &str, ty| StructField { name: name.into(), ty };
        let units = (0..254).map(|at| field(&format!("a_long_name_of_nothing_{at}"), Type::Unit));
        let flag = field("flag", Type::Scalar(ScalarType::Bool));
        let list = |fields: Vec<_>| Type::List(Box::new(Type::Struct(fields.into())));
        let forged = TextBound::of(&list(units.chain([flag.clone()]).collect()));
        assert!(forged.per_byte > 8_000, "{forged:?}");
        let id = field("id", Type::Scalar(ScalarType::I64));
        let usual = TextBound::of(&list(vec![id, flag]));
        assert!(usual.per_byte < 16, "{usual:?}");
        assert_eq!(TextBound::of(&Type::List(Box::new(Type::Unit))).per_byte, u64::MAX);
        assert_eq!(TextBound::of(&Type::Scalar(ScalarType::Text)).bytes_max(10), 60);
    }
}
