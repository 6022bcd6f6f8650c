//! Keys as a procedure writes them: one value per column, checked against the columns' types at compile time.

use crate::{
    result_writer::ResultWriter,
    scratch::Scratch,
    types::{Bytes, Decimal, SmallText, TextRef, Timestamp, Uuid},
    value::canonical,
};

/// A receiver of the bytes of keys.
pub trait KeyOut {
    /// Bytes whose number the caller's code knows.
    fn push(&mut self, bytes: &[u8]);
    /// Bytes of which there are mostly few.
    fn push_text(&mut self, bytes: &[u8]);
}

impl KeyOut for Scratch {
    #[inline(always)]
    fn push(&mut self, bytes: &[u8]) {
        Scratch::push(self, bytes);
    }
    #[inline(always)]
    fn push_text(&mut self, bytes: &[u8]) {
        Scratch::push_text(self, bytes);
    }
}

impl KeyOut for ResultWriter<'_> {
    #[inline(always)]
    fn push(&mut self, bytes: &[u8]) {
        self.put_all(bytes);
    }
    #[inline(always)]
    fn push_text(&mut self, bytes: &[u8]) {
        self.put_all(bytes);
    }
}

/// A value that can stand for column type `C` in a key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be used as a key of a column of type `{C}`",
    note = "integers need the column's own width; text columns take `&str`"
)]
pub trait KeyArg<C> {
    /// Bytes of every such value in a key, or 0 if they differ.
    const BYTES: usize = 0;
    /// Appends the memcomparable form (`reprise_abi::key`).
    fn push_key(&self, out: &mut impl KeyOut);
}

macro_rules! unsigned_key {
    ($($ty:ty)*) => {$(
        impl KeyArg<$ty> for $ty {
            const BYTES: usize = size_of::<$ty>();
            #[inline(always)]
            fn push_key(&self, out: &mut impl KeyOut) {
                out.push(&self.to_be_bytes());
            }
        }
    )*};
}
unsigned_key! { u8 u16 u32 u64 }

macro_rules! signed_key {
    ($($ty:ty)*) => {$(
        impl KeyArg<$ty> for $ty {
            const BYTES: usize = size_of::<$ty>();
            #[inline(always)]
            fn push_key(&self, out: &mut impl KeyOut) {
                out.push(&(*self ^ <$ty>::MIN).to_be_bytes());
            }
        }
    )*};
}
signed_key! { i8 i16 i32 i64 i128 }

impl KeyArg<bool> for bool {
    const BYTES: usize = 1;
    fn push_key(&self, out: &mut impl KeyOut) {
        out.push(&[*self as u8]);
    }
}

impl KeyArg<f64> for f64 {
    const BYTES: usize = 8;
    fn push_key(&self, out: &mut impl KeyOut) {
        let bits = canonical(*self).to_bits();
        let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        out.push(&ordered.to_be_bytes());
    }
}

impl<const S: u8> KeyArg<Decimal<S>> for Decimal<S> {
    const BYTES: usize = 16;
    fn push_key(&self, out: &mut impl KeyOut) {
        KeyArg::<i128>::push_key(&self.units, out);
    }
}

impl KeyArg<Timestamp> for Timestamp {
    const BYTES: usize = 8;
    fn push_key(&self, out: &mut impl KeyOut) {
        KeyArg::<i64>::push_key(&self.0, out);
    }
}

impl KeyArg<Uuid> for Uuid {
    const BYTES: usize = 16;
    fn push_key(&self, out: &mut impl KeyOut) {
        out.push(&self.0);
    }
}

/// `00` is escaped as `00 ff`; `00 00` ends the text.
#[inline]
fn push_escaped(mut bytes: &[u8], out: &mut impl KeyOut) {
    while let Some(zero) = bytes.iter().position(|byte| *byte == 0) {
        out.push_text(bytes.get(..zero).unwrap_or(&[]));
        out.push(&[0, 0xff]);
        bytes = bytes.get(zero + 1..).unwrap_or(&[]);
    }
    out.push_text(bytes);
    out.push(&[0, 0]);
}

macro_rules! escaped_key {
    ($([$($generic:tt)*] $arg:ty => $column:ty, $as_bytes:ident;)*) => {$(
        impl<$($generic)*> KeyArg<$column> for $arg {
            #[inline]
            fn push_key(&self, out: &mut impl KeyOut) {
                push_escaped(self.$as_bytes(), out);
            }
        }
    )*};
}
escaped_key! {
    [] &str => String, as_bytes;
    [] &String => String, as_bytes;
    [const N: usize] SmallText<N> => String, as_bytes;
    [const N: usize] TextRef<'_, N> => String, as_bytes;
    [const N: usize] &str => SmallText<N>, as_bytes;
    [const N: usize] &String => SmallText<N>, as_bytes;
    [const N: usize] SmallText<N> => SmallText<N>, as_bytes;
    [const N: usize] TextRef<'_, N> => SmallText<N>, as_bytes;
    [] &[u8] => Bytes, as_ref;
    [] &Bytes => Bytes, as_ref;
    [] &[u8] => Vec<u8>, as_ref;
    [] &Vec<u8> => Vec<u8>, as_slice;
}

impl<C, K: KeyArg<C>> KeyArg<Option<C>> for Option<K> {
    fn push_key(&self, out: &mut impl KeyOut) {
        out.push(&[self.is_some() as u8]);
        if let Some(key) = self {
            key.push_key(out);
        }
    }
}

/// A key of all columns of an index whose column types are the tuple `Columns`: a tuple, or the bare value for one column.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a whole key of an index over `{Columns}`",
    note = "a key of several columns is a tuple in the order of the index: `(a, b)`; of one column the bare value: `a`, not `(a,)`"
)]
pub trait WholeKey<Columns> {
    /// Bytes of every such key, or 0 if they differ.
    const BYTES: usize = 0;
    /// Appends the key as it is stored.
    fn push_whole(&self, out: &mut impl KeyOut);
}

/// A key of the leading columns of an index: a tuple, or the bare value for an index of one column.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of the leading columns of an index over `{Columns}`",
    note = "for an index of one column, or for the last column after a prefix, give the bare value. For several columns give the leading ones as a \
    tuple: `(a,)` or `(a, b)`"
)]
pub trait KeyPrefix<Columns> {
    /// The columns behind those of the key.
    type Rest;
    /// Appends the leading columns as they are stored.
    fn push_prefix(&self, out: &mut impl KeyOut);
}

impl<C, K: KeyArg<C>> WholeKey<(C,)> for K {
    const BYTES: usize = K::BYTES;
    #[inline(always)]
    fn push_whole(&self, out: &mut impl KeyOut) {
        self.push_key(out);
    }
}

impl<C, K: KeyArg<C>> KeyPrefix<(C,)> for K {
    type Rest = ();
    #[inline(always)]
    fn push_prefix(&self, out: &mut impl KeyOut) {
        self.push_key(out);
    }
}

/// Returns the sum, or 0 if one of them is 0.
const fn sum_of_all<const N: usize>(bytes: [usize; N]) -> usize {
    let (mut sum, mut at) = (0, 0);
    while at < N {
        if bytes[at] == 0 {
            return 0;
        }
        sum += bytes[at];
        at += 1;
    }
    sum
}

macro_rules! prefix {
    ([$($column:ident)*] $($key:ident $of:ident),* => $($rest:ident)*) => {
        impl<$($column,)* $($key: KeyArg<$of>),*> KeyPrefix<($($column,)*)> for ($($key,)*) {
            type Rest = ($($rest,)*);
            #[inline(always)]
            #[allow(non_snake_case)]
            fn push_prefix(&self, out: &mut impl KeyOut) {
                let ($($key,)*) = self;
                $($key.push_key(out);)*
            }
        }
    };
}
macro_rules! whole {
    ($($key:ident $of:ident),*) => {
        impl<$($of,)* $($key: KeyArg<$of>),*> WholeKey<($($of,)*)> for ($($key,)*) {
            const BYTES: usize = sum_of_all([$($key::BYTES),*]);
            #[inline(always)]
            #[allow(non_snake_case)]
            fn push_whole(&self, out: &mut impl KeyOut) {
                let ($($key,)*) = self;
                $($key.push_key(out);)*
            }
        }
    };
}
whole! { K0 A, K1 B }
whole! { K0 A, K1 B, K2 C }
whole! { K0 A, K1 B, K2 C, K3 D }
whole! { K0 A, K1 B, K2 C, K3 D, K4 E }
whole! { K0 A, K1 B, K2 C, K3 D, K4 E, K5 F }
prefix! { [A B] K0 A => B }
prefix! { [A B] K0 A, K1 B => }
prefix! { [A B C] K0 A => B C }
prefix! { [A B C] K0 A, K1 B => C }
prefix! { [A B C] K0 A, K1 B, K2 C => }
prefix! { [A B C D] K0 A => B C D }
prefix! { [A B C D] K0 A, K1 B => C D }
prefix! { [A B C D] K0 A, K1 B, K2 C => D }
prefix! { [A B C D] K0 A, K1 B, K2 C, K3 D => }
prefix! { [A B C D E] K0 A => B C D E }
prefix! { [A B C D E] K0 A, K1 B => C D E }
prefix! { [A B C D E] K0 A, K1 B, K2 C => D E }
prefix! { [A B C D E] K0 A, K1 B, K2 C, K3 D => E }
prefix! { [A B C D E] K0 A, K1 B, K2 C, K3 D, K4 E => }
prefix! { [A B C D E F] K0 A => B C D E F }
prefix! { [A B C D E F] K0 A, K1 B => C D E F }
prefix! { [A B C D E F] K0 A, K1 B, K2 C => D E F }
prefix! { [A B C D E F] K0 A, K1 B, K2 C, K3 D => E F }
prefix! { [A B C D E F] K0 A, K1 B, K2 C, K3 D, K4 E => F }
prefix! { [A B C D E F] K0 A, K1 B, K2 C, K3 D, K4 E, K5 F => }
