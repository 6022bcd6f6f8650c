//! Column and argument types that the language has none for.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
    str::FromStr,
};

use reprise_abi::copy::copy_short;

use crate::find::{holds, holds_anywhere};

pub use crate::{
    decimal::{Decimal, NotADecimal, Rounding},
    time::{Duration, NotATime, Timestamp},
};

/// 16 bytes in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    /// `018f4f0c-2d3a-7000-8000-000000000000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            let dash = if matches!(position, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// The text is no UUID: 32 hexadecimal digits, with dashes as it is written or with none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAUuid;

impl fmt::Display for NotAUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no UUID such as 018f4f0c-2d3a-7000-8000-000000000000")
    }
}

impl std::error::Error for NotAUuid {}

impl FromStr for Uuid {
    type Err = NotAUuid;

    fn from_str(text: &str) -> Result<Self, NotAUuid> {
        let bytes = text.as_bytes();
        let is_dash = |at: usize| bytes.get(at) == Some(&b'-');
        let digits: Vec<u8> = match bytes.len() {
            32 => bytes.to_vec(),
            36 if [8, 13, 18, 23].into_iter().all(is_dash) => {
                bytes.iter().copied().filter(|byte| *byte != b'-').collect()
            }
            _ => return Err(NotAUuid),
        };
        let mut uuid = [0; 16];
        let pairs = digits.as_chunks::<2>().0;
        if pairs.len() != uuid.len() {
            return Err(NotAUuid);
        }
        for (byte, [high, low]) in uuid.iter_mut().zip(pairs) {
            let digit = |digit: u8| (digit as char).to_digit(16).ok_or(NotAUuid);
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Ok(Self(uuid))
    }
}

/// Bytes as a value; a `Vec<u8>` argument would be a list of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

/// Text of at most `N` bytes (`N` <= 255) kept in place: rows that hold it are read and written without the heap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SmallText<const N: usize> {
    // Order matters to the derived comparison: unused bytes are zero, so shorter text sorts before its extensions.
    bytes: [u8; N],
    length: u8,
}

impl<const N: usize> SmallText<N> {
    const FITS: () = assert!(N <= u8::MAX as usize, "SmallText holds at most 255 bytes");

    /// None when `text` is longer than `N` bytes.
    pub fn new(text: &str) -> Option<Self> {
        let () = Self::FITS;
        let mut bytes = [0; N];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self {
            bytes,
            length: text.len() as u8,
        })
    }

    /// A stored text: the host checks the rows that it takes, so it is valid. None when it is longer than `N` bytes.
    #[inline(always)]
    pub(crate) fn from_stored(text: &[u8]) -> Option<Self> {
        let () = Self::FITS;
        if text.len() > N {
            return None;
        }
        let mut bytes = [0; N];
        copy_text(text, bytes.get_mut(..text.len())?);
        Some(Self {
            bytes,
            length: text.len() as u8,
        })
    }

    /// The text, and behind it zeros.
    #[inline(always)]
    pub(crate) fn in_place(&self) -> &[u8; N] {
        &self.bytes
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Built from a `&str` or a stored text, so the check can't fail; a lossy empty text is better than a trap.
        std::str::from_utf8(self.as_bytes()).unwrap_or("")
    }

    /// Its bytes, in UTF-8.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length as usize).unwrap_or(&[])
    }
}

/// Text of a row that was read, at the place to which the host wrote it. Nothing is copied. It mostly has at most `N` bytes, for which rows
/// that hold it have room.
#[derive(Clone, Copy, Default)]
pub struct TextRef<'r, const N: usize> {
    /// The text, and the other bytes of the row's place behind it.
    place: &'r [u8],
    length: usize,
}

impl<'r, const N: usize> TextRef<'r, N> {
    /// Makes a text from a stored one. The host checks the rows that it takes, so it is valid. None: the place ends before the text does.
    #[inline(always)]
    pub(crate) fn from_stored(place: &'r [u8], length: usize) -> Option<Self> {
        (length <= place.len()).then_some(Self { place, length })
    }

    /// Its bytes, in UTF-8.
    #[inline(always)]
    pub fn as_bytes(&self) -> &'r [u8] {
        self.place.get(..self.length).unwrap_or(&[])
    }

    /// The text and the bytes behind it, `N` bytes in all, so that reading them takes no branch on the text's length. None if the text
    /// is longer, or if there are fewer bytes.
    #[inline(always)]
    pub fn in_place(&self) -> Option<&'r [u8; N]> {
        self.place.first_chunk().filter(|_| self.length <= N)
    }

    /// Whether `word` lies in the text.
    #[inline(always)]
    pub fn contains(&self, word: &str) -> bool {
        // A text with its room around it is checked as a whole, whatever its length.
        match self.in_place() {
            Some(place) => holds(place, self.length, word.as_bytes()),
            None => holds_anywhere(self.as_bytes(), word.as_bytes()),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &'r str {
        // The text, as in a `SmallText`.
        std::str::from_utf8(self.as_bytes()).unwrap_or("")
    }
}

impl<'r, const N: usize> From<&'r str> for TextRef<'r, N> {
    #[inline(always)]
    fn from(text: &'r str) -> Self {
        Self {
            place: text.as_bytes(),
            length: text.len(),
        }
    }
}

impl<const N: usize> PartialEq for TextRef<'_, N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> Eq for TextRef<'_, N> {}

impl<const N: usize> PartialOrd for TextRef<'_, N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const N: usize> Ord for TextRef<'_, N> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl<const N: usize> Hash for TextRef<'_, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl<const N: usize> PartialEq<&str> for TextRef<'_, N> {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> fmt::Display for TextRef<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for TextRef<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Copies bytes without a call out of the module, which a copy of a length that is known only now would be.
#[inline(never)]
pub(crate) fn copy_text(from: &[u8], to: &mut [u8]) {
    copy_short(from, to);
}

impl<const N: usize> Default for SmallText<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }
}

impl<const N: usize> Deref for SmallText<N> {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl<const N: usize> PartialEq<&str> for SmallText<N> {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> TryFrom<&str> for SmallText<N> {
    type Error = TextTooLong;
    fn try_from(text: &str) -> Result<Self, TextTooLong> {
        Self::new(text).ok_or(TextTooLong { bytes_max: N })
    }
}

/// The text does not fit a [`SmallText`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextTooLong {
    /// Bytes that there is room for.
    pub bytes_max: usize,
}

impl fmt::Display for TextTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text of more than {} bytes", self.bytes_max)
    }
}

impl<const N: usize> fmt::Display for SmallText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for SmallText<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
