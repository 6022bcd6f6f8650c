//! The type system of columns, parameters and results.

use alloc::{boxed::Box, string::String, vec::Vec};

/// A type that fits in a column. Decimal carries its scale: the stored `i128` is `value * 10^scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarType {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F64,
    Decimal {
        scale: u8,
    },
    Text,
    Bytes,
    /// Microseconds since 1970-01-01T00:00:00Z, as an `i64`.
    Timestamp,
    /// 16 bytes in network order.
    Uuid,
}

/// Largest scale of a decimal: 10^38 is the largest power of ten in an `i128`.
pub const DECIMAL_SCALE_MAX: u8 = 38;

impl ScalarType {
    /// Bytes in the fixed part of a row: the value, or for `Text` and `Bytes` their end offset.
    pub const fn slot_bytes(self) -> usize {
        match self {
            Self::Bool | Self::I8 | Self::U8 => 1,
            Self::I16 | Self::U16 => 2,
            Self::I32 | Self::U32 | Self::Text | Self::Bytes => 4,
            Self::I64 | Self::U64 | Self::F64 | Self::Timestamp => 8,
            Self::Decimal { .. } | Self::Uuid => 16,
        }
    }

    /// True for `Text` and `Bytes`, whose data lies in the row's variable part.
    pub const fn is_variable(self) -> bool {
        matches!(self, Self::Text | Self::Bytes)
    }

    /// True for the integers to which `HostOps::add` applies.
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8 | Self::I16 | Self::I32 | Self::I64 | Self::U8 | Self::U16 | Self::U32 | Self::U64
        )
    }
}

/// The type of a parameter or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    Unit,
    Scalar(ScalarType),
    Option(Box<Type>),
    List(Box<Type>),
    Struct(Vec<StructField>),
    /// One of the named variants, without data; a string in JSON.
    Enum(Vec<String>),
}

impl Type {
    /// True for scalars and lists of scalars: each names a partition.
    pub fn can_name_partitions(&self) -> bool {
        match self {
            Self::Scalar(_) => true,
            Self::List(item) => matches!(**item, Self::Scalar(_)),
            Self::Unit | Self::Option(_) | Self::Struct(_) | Self::Enum(_) => false,
        }
    }
}

/// A named member of a [`Type::Struct`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructField {
    pub name: String,
    pub ty: Type,
}

/// Nesting depth above which a type is refused.
pub const TYPE_DEPTH_MAX: usize = 8;
