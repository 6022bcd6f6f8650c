//! Arguments and results: how a type is described, written and read (`reprise_abi::value` is the format).

use std::marker::PhantomData;

use reprise_abi::{
    ScalarType, Type,
    value::{ValueError, ValueReader},
};

use crate::{
    ops::OutBuffer,
    result_writer::ResultWriter,
    scratch::{INLINE_BYTES, Scratch},
    txn::Txn,
    types::{Bytes, Decimal, SmallText, TextRef, Timestamp, Uuid},
};

/// A type that a description can name.
pub trait ValueType {
    /// How the type is described to the host.
    fn value_type() -> Type;
}

/// Estimate for texts and lists without a bound.
const TEXT_BYTES: usize = 32;
const LIST_ITEMS: usize = 16;

/// A value that a procedure returns.
pub trait Encode: ValueType {
    /// About how long a usual value is.
    const USUAL_BYTES: usize;

    /// Appends the value.
    fn encode(&self, out: &mut ResultWriter<'_>);

    /// Hands the value to the host as the procedure's result.
    #[inline(always)]
    fn hand_over(&self, tx: &Txn<'_>) {
        tx.ops.put_result(room_for::<Self>(), |room| write(self, room));
    }
}

/// Room for a result from the start, at most.
const RESULT_ROOM_BYTES_MAX: usize = 2048;

/// Room that is probably enough for a value.
fn room_for<T: Encode + ?Sized>() -> usize {
    match T::USUAL_BYTES > INLINE_BYTES {
        true => (2 * T::USUAL_BYTES).min(RESULT_ROOM_BYTES_MAX),
        false => T::USUAL_BYTES,
    }
}

/// The bytes written, or else needed.
#[inline(always)]
pub(crate) fn write<T: Encode + ?Sized>(value: &T, room: &mut [u8]) -> Result<usize, usize> {
    let mut writer = ResultWriter::new(room);
    value.encode(&mut writer);
    writer.finish()
}

/// A result that is written already, for a value that borrows from memory that ends with the procedure, such as texts of rows.
///
/// The procedure's signature says `'static` for borrowed parts. The lifetimes of a reply mean nothing. The compiler may take it for one of
/// a longer lifetime, as it does for a function that takes a `T`.
pub struct Reply<T> {
    room: OutBuffer,
    length: usize,
    of: PhantomData<fn(T)>,
}

impl<T: Encode> Reply<T> {
    /// A reply that holds this value.
    #[inline(always)]
    pub fn of(value: &T) -> Self {
        let mut room = OutBuffer::for_result(room_for::<T>());
        let length = loop {
            match write(value, &mut room) {
                Ok(length) => break length,
                Err(needed) => room.grow(needed),
            }
        };
        Self {
            room,
            length,
            of: PhantomData,
        }
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.room.get(..self.length).unwrap_or(&[])
    }
}

impl<T: ValueType> ValueType for Reply<T> {
    fn value_type() -> Type {
        T::value_type()
    }
}

impl<T: Encode> Encode for Reply<T> {
    const USUAL_BYTES: usize = T::USUAL_BYTES;

    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put_all(self.bytes());
    }

    #[inline(always)]
    fn hand_over(&self, tx: &Txn<'_>) {
        if self.length > 0 {
            tx.ops.set_result(self.bytes());
        }
    }
}

/// A value that a procedure takes; text and bytes may be borrowed from the arguments.
pub trait Decode<'a>: ValueType + Sized {
    /// Reads the next value. Err: the bytes are none of this type.
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError>;
}

macro_rules! scalar {
    ($($ty:ty => $scalar:expr;)*) => {$(
        impl ValueType for $ty {
            fn value_type() -> Type {
                Type::Scalar($scalar)
            }
        }
    )*};
}
scalar! {
    bool => ScalarType::Bool;
    String => ScalarType::Text;
    &str => ScalarType::Text;
    Bytes => ScalarType::Bytes;
    &[u8] => ScalarType::Bytes;
    Timestamp => ScalarType::Timestamp;
    Uuid => ScalarType::Uuid;
}

macro_rules! number {
    ($($ty:ty => $scalar:ident;)*) => {$(
        scalar! { $ty => ScalarType::$scalar; }
        impl Encode for $ty {
            const USUAL_BYTES: usize = size_of::<$ty>();
            #[inline(always)]
            fn encode(&self, out: &mut ResultWriter<'_>) {
                out.put(self.to_le_bytes());
            }
        }
        impl<'a> Decode<'a> for $ty {
            #[inline(always)]
            fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
                Ok(Self::from_le_bytes(reader.array()?))
            }
        }
        impl InPlace for $ty {
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                bytes.first_chunk().copied().map_or_else(Self::default, Self::from_le_bytes)
            }
        }
    )*};
}
number! {
    i8 => I8; i16 => I16; i32 => I32; i64 => I64;
    u8 => U8; u16 => U16; u32 => U32; u64 => U64;
}

/// Processors disagree about the bits of values that are no number; these bits are used everywhere.
#[inline(always)]
pub(crate) fn canonical(value: f64) -> f64 {
    match value.is_nan() {
        true => f64::NAN,
        false => value,
    }
}

scalar! { f64 => ScalarType::F64; }
impl Encode for f64 {
    const USUAL_BYTES: usize = 8;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put(canonical(*self).to_le_bytes());
    }
}
impl<'a> Decode<'a> for f64 {
    #[inline(always)]
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        Ok(canonical(Self::from_le_bytes(reader.array()?)))
    }
}
impl InPlace for f64 {
    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        canonical(bytes.first_chunk().copied().map_or(0.0, Self::from_le_bytes))
    }
}

impl Encode for bool {
    const USUAL_BYTES: usize = 1;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put([*self as u8]);
    }
}
impl<'a> Decode<'a> for bool {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        reader.flag()
    }
}

impl<const SCALE: u8> ValueType for Decimal<SCALE> {
    fn value_type() -> Type {
        Type::Scalar(ScalarType::Decimal { scale: SCALE })
    }
}
impl<const SCALE: u8> Encode for Decimal<SCALE> {
    const USUAL_BYTES: usize = 16;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put(self.units.to_le_bytes());
    }
}
impl<'a, const SCALE: u8> Decode<'a> for Decimal<SCALE> {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        Ok(Self::from_units(i128::from_le_bytes(reader.array()?)))
    }
}

impl Encode for Timestamp {
    const USUAL_BYTES: usize = 8;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        self.0.encode(out);
    }
}
impl<'a> Decode<'a> for Timestamp {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        i64::decode(reader).map(Self)
    }
}

impl Encode for Uuid {
    const USUAL_BYTES: usize = 16;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put(self.0);
    }
}
impl<'a> Decode<'a> for Uuid {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        reader.array().map(Self)
    }
}

macro_rules! text_or_bytes {
    ($($ty:ty, $read:ident, $as_bytes:ident, $from:expr;)*) => {$(
        impl Encode for $ty {
            const USUAL_BYTES: usize = TEXT_BYTES;
            #[inline(always)]
            fn encode(&self, out: &mut ResultWriter<'_>) {
                out.put_counted(self.$as_bytes());
            }
        }
        impl<'a> Decode<'a> for $ty {
            fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
                reader.$read().map($from)
            }
        }
    )*};
}
text_or_bytes! {
    String, text, as_bytes, String::from;
    Bytes, bytes, as_ref, |bytes| Bytes(bytes.to_vec());
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Encode for &str {
    const USUAL_BYTES: usize = TEXT_BYTES;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put_counted(self.as_bytes());
    }
}
impl<'a> Decode<'a> for &'a str {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        reader.text()
    }
}
impl Encode for &[u8] {
    const USUAL_BYTES: usize = TEXT_BYTES;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put_counted(self);
    }
}
impl<'a> Decode<'a> for &'a [u8] {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        reader.bytes()
    }
}

impl<const N: usize> ValueType for SmallText<N> {
    fn value_type() -> Type {
        Type::Scalar(ScalarType::Text)
    }
}
impl<const N: usize> Encode for SmallText<N> {
    const USUAL_BYTES: usize = 1 + N / 2;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put_text(Some(self.in_place()), self.as_bytes());
    }
}

impl<const N: usize> ValueType for TextRef<'_, N> {
    fn value_type() -> Type {
        Type::Scalar(ScalarType::Text)
    }
}
impl<const N: usize> Encode for TextRef<'_, N> {
    const USUAL_BYTES: usize = 1 + N / 2;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put_text(self.in_place(), self.as_bytes());
    }
}
// No `Decode`: text of any length is a valid argument, so a procedure takes `&str` and converts where it can answer.

impl ValueType for () {
    fn value_type() -> Type {
        Type::Unit
    }
}
impl Encode for () {
    const USUAL_BYTES: usize = 0;
    #[inline(always)]
    fn encode(&self, _: &mut ResultWriter<'_>) {}
}
impl<'a> Decode<'a> for () {
    fn decode(_: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        Ok(())
    }
}

impl<T: ValueType> ValueType for Option<T> {
    fn value_type() -> Type {
        Type::Option(Box::new(T::value_type()))
    }
}
impl<T: Encode> Encode for Option<T> {
    const USUAL_BYTES: usize = 1 + T::USUAL_BYTES;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put([self.is_some() as u8]);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}
impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        if reader.flag()? {
            T::decode(reader).map(Some)
        } else {
            Ok(None)
        }
    }
}

impl<T: ValueType> ValueType for Vec<T> {
    fn value_type() -> Type {
        Type::List(Box::new(T::value_type()))
    }
}
impl<T: Encode> Encode for Vec<T> {
    const USUAL_BYTES: usize = 1 + LIST_ITEMS * T::USUAL_BYTES;
    #[inline(always)]
    fn encode(&self, out: &mut ResultWriter<'_>) {
        out.put_varint(self.len() as u32);
        self.iter().for_each(|item| item.encode(out));
    }
}
impl<'a, T: Decode<'a>> Decode<'a> for Vec<T> {
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        let count = reader.list_len()?;
        // The count is bounded by the bytes that remain, the items' size in memory is not.
        let mut items = Vec::with_capacity(count.min(ITEMS_AT_ONCE) as usize);
        for _ in 0..count {
            items.push(T::decode(reader)?);
        }
        Ok(items)
    }
}

/// A list of numbers that stays in the arguments. Each number is read when it is asked for.
#[derive(Clone, Copy)]
pub struct ListRef<'a, T> {
    bytes: &'a [u8],
    of: PhantomData<fn() -> T>,
}

/// A number as it lies in an argument.
pub trait InPlace: ValueType + Sized {
    /// Reads a value from as many bytes as it has in memory.
    fn from_bytes(bytes: &[u8]) -> Self;
}

impl<'a, T: InPlace> ListRef<'a, T> {
    /// Items in the list.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<T>()
    }

    /// Whether there is none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The item at this position, from 0; none behind the last.
    #[inline(always)]
    pub fn get(&self, position: usize) -> Option<T> {
        self.iter().nth(position)
    }

    /// The items in their order.
    #[inline(always)]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + Clone + use<'a, T> {
        self.bytes.chunks_exact(size_of::<T>()).map(T::from_bytes)
    }
}

impl<T: ValueType> ValueType for ListRef<'_, T> {
    fn value_type() -> Type {
        Type::List(Box::new(T::value_type()))
    }
}

impl<'a, T: InPlace> Decode<'a> for ListRef<'a, T> {
    #[inline(always)]
    fn decode(reader: &mut ValueReader<'a>) -> Result<Self, ValueError> {
        // Lists are usually short, so that one byte holds the count.
        let mut ahead = reader.clone();
        let count = match ahead.byte() {
            Ok(count @ 0..0x80) => {
                *reader = ahead;
                count as usize
            }
            _ => reader.list_len()? as usize,
        };
        Ok(Self {
            bytes: reader.take(count.saturating_mul(size_of::<T>()))?,
            of: PhantomData,
        })
    }
}

/// Items of a list for which there is room from the start.
const ITEMS_AT_ONCE: u32 = 16;

/// The arguments of a call as a tuple, for callers in Rust (tests, native benchmarks).
pub trait Args {
    /// Appends the arguments in the order of the parameters.
    fn encode_args(&self, out: &mut Scratch);
}

macro_rules! args {
    ($($name:ident)*) => {
        impl<$($name: Encode),*> Args for ($($name,)*) {
            #[allow(non_snake_case, unused_variables)]
            fn encode_args(&self, out: &mut Scratch) {
                let ($($name,)*) = self;
                $(out.push_value($name);)*
            }
        }
    };
}
args! {}
args! { A }
args! { A B }
args! { A B C }
args! { A B C D }
args! { A B C D E }
args! { A B C D E F }
args! { A B C D E F G }
args! { A B C D E F G H }
args! { A B C D E F G H I }
args! { A B C D E F G H I J }
