//! The type system of columns, parameters and results.

use alloc::{boxed::Box, string::String, vec::Vec};

/// A type that fits in a column. Decimal carries its scale: the stored `i128` is `value * 10^scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScalarType {
    /// One byte, 0 or 1.
    Bool,
    /// An integer of 8 bits.
    I8,
    /// An integer of 16 bits.
    I16,
    /// An integer of 32 bits.
    I32,
    /// An integer of 64 bits.
    I64,
    /// An integer without a sign of 8 bits.
    U8,
    /// An integer without a sign of 16 bits.
    U16,
    /// An integer without a sign of 32 bits.
    U32,
    /// An integer without a sign of 64 bits.
    U64,
    /// IEEE 754, 64 bits.
    F64,
    /// An `i128`.
    Decimal {
        /// Digits behind the point.
        scale: u8,
    },
    /// UTF-8.
    Text,
    /// Any bytes.
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
    /// Nothing.
    Unit,
    /// A type that fits in a column.
    Scalar(ScalarType),
    /// A value or none.
    Option(Box<Type>),
    /// Any number of values of one type.
    List(Box<Type>),
    /// Named members.
    Struct(StructType),
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

/// An object of named members.
///
/// Two are equal if values of one are values of the other: the name is for people and for generators of clients.
#[derive(Clone, Debug, Eq)]
pub struct StructType {
    /// Name in the module's source; none: it has no name there.
    pub name: Option<String>,
    /// The fields, in this order.
    pub fields: Vec<StructField>,
}

impl PartialEq for StructType {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields
    }
}

/// A struct without a name.
impl From<Vec<StructField>> for StructType {
    fn from(fields: Vec<StructField>) -> Self {
        Self { name: None, fields }
    }
}

/// A named member of a [`StructType`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructField {
    /// Within its struct.
    pub name: String,
    /// Type of the values.
    pub ty: Type,
}

/// Nesting depth above which a type is refused.
pub const TYPE_DEPTH_MAX: usize = 8;
