//! Columns: the place of each in a row (computed at compile time), and the reading and writing of its values.

use reprise_abi::ScalarType;

use crate::{
    scratch::Scratch,
    types::{Bytes, Decimal, SmallText, TextRef, Timestamp, Uuid, copy_text},
    value::canonical,
};

const NONE: u32 = u32::MAX;

/// A column's place in the row, as `reprise_abi::row` lays it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Byte offset of the slot.
    pub offset: u32,
    /// Bit in the null bitmap, or `u32::MAX` for a column that is never null.
    pub null_bit: u32,
    /// Offset of the previous variable column's slot, or `u32::MAX`.
    pub previous: u32,
    /// Offset of the data area.
    pub fixed_bytes: u32,
}

/// The places of `N` columns and the size of a row without variable data.
#[derive(Clone, Copy, Debug)]
pub struct Layout<const N: usize> {
    /// Offset of each column in the bytes that are read.
    pub places: [Place; N],
    /// Bytes of a row without variable data.
    pub fixed_bytes: usize,
}

impl<const N: usize> Layout<N> {
    /// The layout of columns given as (type, nullable); the same as `reprise_abi::RowLayout`, held to it by a test.
    pub const fn new(columns: [(ScalarType, bool); N]) -> Self {
        let (mut nullable, mut i) = (0, 0);
        while i < N {
            nullable += columns[i].1 as u32;
            i += 1;
        }
        let mut places = [Place {
            offset: 0,
            null_bit: NONE,
            previous: NONE,
            fixed_bytes: 0,
        }; N];
        let (mut offset, mut null_bit, mut previous) = (nullable.div_ceil(8), 0, NONE);
        i = 0;
        while i < N {
            let (ty, is_nullable) = columns[i];
            places[i].offset = offset;
            places[i].previous = previous;
            if is_nullable {
                places[i].null_bit = null_bit;
                null_bit += 1;
            }
            if ty.is_variable() {
                previous = offset;
            }
            offset += ty.slot_bytes() as u32;
            i += 1;
        }
        i = 0;
        while i < N {
            places[i].fixed_bytes = offset;
            i += 1;
        }
        Self {
            places,
            fixed_bytes: offset as usize,
        }
    }
}

/// Some columns of a table, as `#[columns]` names them.
#[derive(Clone, Copy)]
pub struct Columns {
    /// The table's position in the module.
    pub table: u16,
    /// Bit `i` is column `i`.
    pub set: u64,
    /// How they are moved. In wasm the host knows it.
    #[cfg(not(target_arch = "wasm32"))]
    pub plan: fn() -> &'static reprise_abi::ColumnPlan,
}

impl Columns {
    /// The set of these positions, which the table's order must follow.
    pub const fn set_of(positions: &[u16]) -> u64 {
        let (mut set, mut i) = (0_u64, 0);
        while i < positions.len() {
            assert!(positions[i] < 64, "only the first 64 columns of a table can be chosen");
            assert!(
                set >> positions[i] == 0,
                "columns are listed in the table's order, each once"
            );
            set |= 1 << positions[i];
            i += 1;
        }
        set
    }
}

/// Whether a field has the very type of its column.
pub const fn is_same_type(a: (ScalarType, bool), b: (ScalarType, bool)) -> bool {
    let is_same = match (a.0, b.0) {
        (ScalarType::Decimal { scale }, ScalarType::Decimal { scale: other }) => scale == other,
        (ScalarType::Decimal { .. }, _) | (_, ScalarType::Decimal { .. }) => false,
        (a, b) => number_of(a) == number_of(b),
    };
    is_same && a.1 == b.1
}

/// Whether two lists of columns have the same types, one by one.
pub const fn has_same_shape(a: &[(ScalarType, bool)], b: &[(ScalarType, bool)]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && is_same_type(a[at], b[at]) {
        at += 1;
    }
    at == a.len() && at == b.len()
}

const fn number_of(ty: ScalarType) -> u8 {
    match ty {
        ScalarType::Bool => 0,
        ScalarType::I8 => 1,
        ScalarType::I16 => 2,
        ScalarType::I32 => 3,
        ScalarType::I64 => 4,
        ScalarType::U8 => 5,
        ScalarType::U16 => 6,
        ScalarType::U32 => 7,
        ScalarType::U64 => 8,
        ScalarType::F64 => 9,
        ScalarType::Decimal { .. } => 10,
        ScalarType::Text => 11,
        ScalarType::Bytes => 12,
        ScalarType::Timestamp => 13,
        ScalarType::Uuid => 14,
    }
}

/// Room for `count` variable bytes in a table's stack buffer, at most.
pub const INLINE_DATA_BYTES: usize = 48;

/// A type that a column can have. `Option` makes it nullable.
pub trait Column: Sized {
    /// How the column is stored.
    const TYPE: ScalarType;
    /// Whether it may hold null.
    const NULLABLE: bool = false;
    /// Names of the values, of an enum.
    const VARIANTS: &'static [&'static str] = &[];
    /// Variable data that the table's stack buffer makes room for; longer rows go over the heap.
    const INLINE_BYTES: usize = 0;

    /// Bytes of variable data of this value.
    #[inline(always)]
    fn data_bytes(&self) -> usize {
        0
    }
    /// Writes the value at its place in a zeroed row. `end` is the end of the row's variable data until now.
    fn write(&self, row: &mut [u8], place: Place, end: &mut u32);
    /// Appends the value as a default in the module's description; false when it is null.
    fn push_default(&self, out: &mut Scratch) -> bool;
}

/// How a value is read of a row that lives for `'r`.
pub trait ReadColumn<'r>: Column {
    /// The value of a row that the host handed out; None when the bytes are no such value.
    fn read(row: &'r [u8], place: Place) -> Option<Self>;
}

/// Writes the number of an enum's variant to its place. For `#[derive(ColumnEnum)]`.
#[doc(hidden)]
#[inline(always)]
pub fn put_variant(row: &mut [u8], place: Place, number: u8) {
    put(row, place.offset, [number]);
}

/// The number of the variant at a place.
#[doc(hidden)]
#[inline(always)]
pub fn take_variant(row: &[u8], place: Place) -> Option<u8> {
    take(row, place.offset).map(|[number]| number)
}

#[inline(always)]
fn put<const N: usize>(row: &mut [u8], at: u32, bytes: [u8; N]) {
    row[at as usize..at as usize + N].copy_from_slice(&bytes);
}

#[inline(always)]
fn take<const N: usize>(row: &[u8], at: u32) -> Option<[u8; N]> {
    row.get(at as usize..)?.first_chunk().copied()
}

macro_rules! fixed {
    ($([$($generic:tt)*] $ty:ty => $scalar:expr, |$value:ident| $to:expr, $from:expr;)*) => {$(
        impl<$($generic)*> Column for $ty {
            const TYPE: ScalarType = $scalar;
            #[inline(always)]
            fn write(&self, row: &mut [u8], place: Place, _: &mut u32) {
                let $value = self;
                put(row, place.offset, $to);
            }
            fn push_default(&self, out: &mut Scratch) -> bool {
                out.push_value(self);
                true
            }
        }
        impl<'r, $($generic)*> ReadColumn<'r> for $ty {
            #[inline(always)]
            fn read(row: &'r [u8], place: Place) -> Option<Self> {
                take(row, place.offset).map($from)
            }
        }
    )*};
}
fixed! {
    [] bool => ScalarType::Bool, |v| [*v as u8], |b: [u8; 1]| b[0] != 0;
    [] i8 => ScalarType::I8, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] i16 => ScalarType::I16, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] i32 => ScalarType::I32, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] i64 => ScalarType::I64, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] u8 => ScalarType::U8, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] u16 => ScalarType::U16, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] u32 => ScalarType::U32, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] u64 => ScalarType::U64, |v| v.to_le_bytes(), Self::from_le_bytes;
    [] f64 => ScalarType::F64, |v| canonical(*v).to_le_bytes(), Self::from_le_bytes;
    [] Timestamp => ScalarType::Timestamp, |v| v.0.to_le_bytes(), |b| Self(i64::from_le_bytes(b));
    [] Uuid => ScalarType::Uuid, |v| v.0, Self;
    [const S: u8] Decimal<S> => ScalarType::Decimal { scale: S }, |v| v.units.to_le_bytes(),
        |b| Self::from_units(i128::from_le_bytes(b));
}

#[inline(always)]
fn put_data(row: &mut [u8], place: Place, end: &mut u32, data: &[u8]) {
    let start = (place.fixed_bytes + *end) as usize;
    copy_text(data, &mut row[start..start + data.len()]);
    *end += data.len() as u32;
    put(row, place.offset, end.to_le_bytes());
}

/// The column's data with everything behind them, and their length.
#[inline(always)]
fn find_data(row: &[u8], place: Place) -> Option<(&[u8], usize)> {
    let start = match place.previous {
        NONE => 0,
        previous => u32::from_le_bytes(take(row, previous)?),
    };
    let end = u32::from_le_bytes(take(row, place.offset)?);
    let data = row.get(place.fixed_bytes as usize..)?.get(start as usize..)?;
    Some((data, end.checked_sub(start)? as usize))
}

#[inline(always)]
fn take_data(row: &[u8], place: Place) -> Option<&[u8]> {
    let (data, length) = find_data(row, place)?;
    data.get(..length)
}

macro_rules! variable {
    ($([$($generic:tt)*] $ty:ty => $scalar:expr, $inline:expr, |$value:ident| $bytes:expr, $from:expr;)*) => {$(
        impl<$($generic)*> Column for $ty {
            const TYPE: ScalarType = $scalar;
            const INLINE_BYTES: usize = $inline;
            #[inline(always)]
            fn data_bytes(&self) -> usize {
                let $value = self;
                $bytes.len()
            }
            #[inline(always)]
            fn write(&self, row: &mut [u8], place: Place, end: &mut u32) {
                let $value = self;
                put_data(row, place, end, $bytes);
            }
            fn push_default(&self, out: &mut Scratch) -> bool {
                let $value = self;
                out.push_counted($bytes);
                true
            }
        }
        impl<'r, $($generic)*> ReadColumn<'r> for $ty {
            #[inline(always)]
            fn read(row: &'r [u8], place: Place) -> Option<Self> {
                take_data(row, place).and_then($from)
            }
        }
    )*};
}
variable! {
    [] String => ScalarType::Text, INLINE_DATA_BYTES, |v| v.as_bytes(),
        |bytes| std::str::from_utf8(bytes).ok().map(String::from);
    [] Vec<u8> => ScalarType::Bytes, INLINE_DATA_BYTES, |v| v.as_slice(), |bytes| Some(bytes.to_vec());
    [] Bytes => ScalarType::Bytes, INLINE_DATA_BYTES, |v| v.0.as_slice(), |bytes| Some(Self(bytes.to_vec()));
    [const N: usize] SmallText<N> => ScalarType::Text, N, |v| v.as_bytes(),
        Self::from_stored;
}

impl<const N: usize> Column for TextRef<'_, N> {
    const TYPE: ScalarType = ScalarType::Text;
    const INLINE_BYTES: usize = N;

    #[inline(always)]
    fn data_bytes(&self) -> usize {
        self.as_bytes().len()
    }

    #[inline(always)]
    fn write(&self, row: &mut [u8], place: Place, end: &mut u32) {
        match self.in_place() {
            // Copies texts of one length as a fixed number of bytes.
            Some(bytes) if self.as_bytes().len() == N => {
                put(row, place.fixed_bytes + *end, *bytes);
                *end += N as u32;
                put(row, place.offset, end.to_le_bytes());
            }
            _ => put_data(row, place, end, self.as_bytes()),
        }
    }

    fn push_default(&self, out: &mut Scratch) -> bool {
        out.push_counted(self.as_bytes());
        true
    }
}

impl<'r, const N: usize> ReadColumn<'r> for TextRef<'r, N> {
    #[inline(always)]
    fn read(row: &'r [u8], place: Place) -> Option<Self> {
        find_data(row, place).and_then(|(data, length)| TextRef::from_stored(data, length))
    }
}

impl<C: Column> Column for Option<C> {
    const TYPE: ScalarType = C::TYPE;
    const NULLABLE: bool = true;
    const VARIANTS: &'static [&'static str] = C::VARIANTS;
    const INLINE_BYTES: usize = C::INLINE_BYTES;

    #[inline(always)]
    fn data_bytes(&self) -> usize {
        self.as_ref().map_or(0, C::data_bytes)
    }

    #[inline(always)]
    fn write(&self, row: &mut [u8], place: Place, end: &mut u32) {
        match self {
            Some(value) => value.write(row, place, end),
            None => {
                row[place.null_bit as usize / 8] |= 1 << (place.null_bit % 8);
                if C::TYPE.is_variable() {
                    put(row, place.offset, end.to_le_bytes());
                }
            }
        }
    }

    fn push_default(&self, out: &mut Scratch) -> bool {
        self.as_ref().is_some_and(|value| value.push_default(out))
    }
}

impl<'r, C: ReadColumn<'r>> ReadColumn<'r> for Option<C> {
    #[inline(always)]
    fn read(row: &'r [u8], place: Place) -> Option<Self> {
        if row.get(place.null_bit as usize / 8)? >> (place.null_bit % 8) & 1 == 1 {
            return Some(None);
        }
        C::read(row, place).map(Some)
    }
}
