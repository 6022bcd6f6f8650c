//! Keys of integer columns, built from a row's bytes without the bytes of a key in between.

use reprise_abi::{RowLayout, ScalarType, calls::EqualKeys, row::ColumnSlot};

use crate::keyplan::StoredRow;

/// Bytes of one load. A row has at least as many.
const LOAD_BYTES: u32 = 8;

/// The places of a key's columns. The key's bytes are the words' bytes, the most significant first, padded with zeros.
pub(crate) struct IntKey {
    shape: KeyShape,
    /// The places of the columns and their sign bits, for the most frequent shapes.
    at: [u32; SHAPE_COLUMNS_MAX],
    flip: [u64; SHAPE_COLUMNS_MAX],
    /// The parts. None if rows are shorter than one load.
    parts: Box<[KeyPart]>,
    /// All bits if the row's number is the key; otherwise none.
    number_mask: u64,
}

/// A column, or its part in one word: eight bytes loaded at `at`, shifted right, masked, flipped, shifted left.
struct KeyPart {
    at: u32,
    right: u8,
    left: u8,
    word: u8,
    mask: u64,
    flip: u64,
}

impl IntKey {
    /// Makes the key. None if it has columns other than integers, or if rows are shorter than one load and the key has no frequent shape.
    pub fn new(layout: &RowLayout, slots: &[ColumnSlot], has_number: bool) -> Option<Self> {
        let shape = KeyShape::of(slots.iter().map(|slot| slot.ty.slot_bytes()));
        let at_max = (layout.fixed_bytes() as u32).checked_sub(LOAD_BYTES);
        if has_number && !slots.is_empty() || at_max.is_none() && !has_number && shape == KeyShape::Other {
            return None;
        }
        let (mut parts, mut to) = (Vec::new(), 0);
        for slot in slots {
            push_parts(slot, to, at_max.unwrap_or(0), &mut parts)?;
            to += slot.ty.slot_bytes() as u32;
        }
        if at_max.is_none() {
            parts.clear();
        }
        let column = |at: usize| {
            let (slot, bits) = (slots.get(at)?, 8 * slots[at].ty.slot_bytes() as u32);
            let flip = if is_signed(slot.ty)? {
                1 << (bits.min(64) - 1)
            } else {
                0
            };
            Some((slot.offset, flip))
        };
        let columns: [_; SHAPE_COLUMNS_MAX] = std::array::from_fn(|at| column(at).unwrap_or_default());
        Some(Self {
            shape,
            at: columns.map(|(at, _)| at),
            flip: columns.map(|(_, flip)| flip),
            parts: parts.into(),
            number_mask: if has_number { u64::MAX } else { 0 },
        })
    }

    /// Returns the first `N` words of the row's key, which has no more bytes than these.
    #[inline(always)]
    pub fn words<const N: usize>(&self, row: StoredRow<'_>) -> [u64; N] {
        let mut words = [0; N];
        // Each column has a load of its own width. A wider one would also wait for its neighbour, if the row was just written.
        let row_bytes = row.row;
        let one = |column: usize| one_of(row_bytes, self.at[column]) ^ self.flip[column];
        let two = |column: usize| two_of(row_bytes, self.at[column]) ^ self.flip[column];
        let four = |column: usize| four_of(row_bytes, self.at[column]) ^ self.flip[column];
        let eight = |column: usize| eight_of(row_bytes, self.at[column]) ^ self.flip[column];
        match self.shape {
            KeyShape::Four => words[0] = four(0) << 32,
            KeyShape::Eight => words[0] = eight(0),
            KeyShape::FourFour => words[0] = four(0) << 32 | four(1),
            KeyShape::TwoFour => words[0] = two(0) << 48 | four(1) << 16,
            KeyShape::TwoOneFour => words[0] = two(0) << 48 | one(1) << 40 | four(2) << 8,
            KeyShape::TwoOneFourOne => {
                words[0] = two(0) << 48 | one(1) << 40 | four(2) << 8 | one(3);
            }
            KeyShape::EightFour if N > 1 => {
                words[0] = eight(0);
                words[1] = four(1) << 32;
            }
            _ => self.collect(row, &mut words),
        }
        words
    }

    #[inline(always)]
    fn collect(&self, row: StoredRow<'_>, words: &mut [u64]) {
        // A key that is the row's number has no other part.
        words[0] = row.number & self.number_mask;
        for part in &self.parts {
            let value = part.load(row.row) ^ part.flip;
            words[part.word as usize] |= value << part.left;
        }
    }

    /// True if rows are shorter than one load. The key then has a frequent shape, and one word.
    pub fn is_short(&self) -> bool {
        self.parts.is_empty() && self.shape != KeyShape::Other
    }

    /// True if two rows of one number have the same key.
    #[inline]
    pub fn is_same(&self, a: &[u8], b: &[u8]) -> bool {
        if self.is_short() {
            let key = |row| self.words::<1>(StoredRow { row, number: 0 });
            return key(a) == key(b);
        }
        let differs = |part: &KeyPart| part.load(a) ^ part.load(b);
        self.parts.iter().fold(0, |bits, part| bits | differs(part)) == 0
    }
}

/// The loads of a whole integer key's bytes: column by column, as the key was written. One load over two columns would wait until both have
/// left the processor's store buffer, with everything written before them.
pub(crate) struct KeyLoad {
    shape: KeyShape,
    parts: [LoadPart; LOAD_PARTS_MAX],
    count: usize,
}

/// The most frequent keys, which are loaded without a loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyShape {
    Four,
    Eight,
    FourFour,
    TwoFour,
    TwoOneFour,
    TwoOneFourOne,
    EightFour,
    Other,
}

/// Number of columns of the longest such key.
const SHAPE_COLUMNS_MAX: usize = 4;

impl KeyShape {
    fn of(widths: impl Iterator<Item = usize>) -> Self {
        match widths.collect::<Vec<_>>()[..] {
            [4] => Self::Four,
            [8] => Self::Eight,
            [4, 4] => Self::FourFour,
            [2, 4] => Self::TwoFour,
            [2, 1, 4] => Self::TwoOneFour,
            [2, 1, 4, 1] => Self::TwoOneFourOne,
            [8, 4] => Self::EightFour,
            _ => Self::Other,
        }
    }
}

const LOAD_PARTS_MAX: usize = 8;

/// A part of eight bytes at most: a column of a key, or half of one, from `at`. Its bytes are shifted left in the number.
#[derive(Clone, Copy, Default)]
struct LoadPart {
    at: u8,
    width: u8,
    left: u8,
}

impl KeyLoad {
    /// Makes the loads. None if the columns have more bytes than a `u128`, or are not all integers.
    pub fn new(slots: &[ColumnSlot]) -> Option<Self> {
        let mut load = Self {
            shape: KeyShape::Other,
            parts: Default::default(),
            count: 0,
        };
        let mut at = 0;
        for slot in slots {
            let (bytes, halves) = match slot.ty.slot_bytes() {
                16 => (8, 2),
                bytes @ (1 | 2 | 4 | 8) => (bytes, 1),
                _ => return None,
            };
            for _ in 0..halves {
                let left = 128_usize.checked_sub(8 * (at + bytes))?;
                *load.parts.get_mut(load.count)? = LoadPart {
                    at: at as u8,
                    width: bytes as u8,
                    left: left as u8,
                };
                load.count += 1;
                at += bytes;
            }
        }
        load.shape = KeyShape::of(load.parts[..load.count].iter().map(|part| part.width as usize));
        (load.count > 0).then_some(load)
    }

    /// Returns the beginning of a column from the plan. A constant would make the compiler merge the loads of two neighbours.
    #[inline(always)]
    fn begin_of(&self, part: usize) -> usize {
        self.parts[part].at as usize
    }

    /// Returns the key's bytes as the first bytes of a number, the most significant first. `key` is as long as all columns.
    #[inline(always)]
    pub fn load(&self, key: &[u8]) -> u128 {
        let (second, third, fourth) = (self.begin_of(1), self.begin_of(2), self.begin_of(3));
        match (self.shape, key.len()) {
            (KeyShape::Four, 4) => (four(key, 0) as u128) << 96,
            (KeyShape::Eight, 8) => (eight(key) as u128) << 64,
            (KeyShape::FourFour, 8) => ((four(key, 0) << 32 | four(key, second)) as u128) << 64,
            (KeyShape::TwoFour, 6) => ((two(key) << 32 | four(key, second)) as u128) << 80,
            (KeyShape::TwoOneFour, 7) => {
                let high = two(key) << 8 | key[second] as u64;
                ((high << 32 | four(key, third)) as u128) << 72
            }
            (KeyShape::TwoOneFourOne, 8) => {
                let high = two(key) << 8 | key[second] as u64;
                ((high << 40 | four(key, third) << 8 | key[fourth] as u64) as u128) << 64
            }
            (KeyShape::EightFour, 12) => (eight(key) as u128) << 64 | (four(key, second) as u128) << 32,
            _ => self.load_parts(key),
        }
    }

    /// The `load` variant for a key of at most 8 bytes, which returns its number.
    #[inline(always)]
    pub fn load_short(&self, key: &[u8]) -> u64 {
        let (second, third) = (self.begin_of(1), self.begin_of(2));
        match (self.shape, key.len()) {
            (KeyShape::Four, 4) => four(key, 0),
            (KeyShape::Eight, 8) => eight(key),
            (KeyShape::FourFour, 8) => four(key, 0) << 32 | four(key, second),
            (KeyShape::TwoFour, 6) => two(key) << 32 | four(key, second),
            (KeyShape::TwoOneFour, 7) => (two(key) << 8 | key[second] as u64) << 32 | four(key, third),
            (_, bytes) => (self.load_parts(key) >> (128 - 8 * bytes as u32)) as u64,
        }
    }

    /// The `load_short` variant for several keys of at most 8 bytes, as many as `numbers` has room for.
    #[inline(always)]
    pub fn load_short_each(&self, keys: &EqualKeys<'_>, numbers: &mut [u64]) {
        let (second, third) = (self.begin_of(1), self.begin_of(2));
        match (self.shape, keys.each()) {
            (KeyShape::Four, 4) => load_each::<4>(keys, numbers, |key| four(key, 0)),
            (KeyShape::Eight, 8) => load_each::<8>(keys, numbers, |key| eight(key)),
            (KeyShape::FourFour, 8) => load_each::<8>(keys, numbers, |key| four(key, 0) << 32 | four(key, second)),
            (KeyShape::TwoFour, 6) => load_each::<6>(keys, numbers, |key| two(key) << 32 | four(key, second)),
            (KeyShape::TwoOneFour, 7) => load_each::<7>(keys, numbers, |key| {
                (two(key) << 8 | key[second] as u64) << 32 | four(key, third)
            }),
            _ => numbers
                .iter_mut()
                .zip(keys.iter())
                .for_each(|(number, key)| *number = self.load_short(key)),
        }
    }

    fn load_parts(&self, key: &[u8]) -> u128 {
        let mut bits = 0;
        for part in &self.parts[..self.count] {
            let from = &key[part.at as usize..];
            let column = match part.width {
                8 => u64::from_be_bytes(*from.first_chunk().expect("a whole key")),
                4 => u32::from_be_bytes(*from.first_chunk().expect("a whole key")) as u64,
                2 => u16::from_be_bytes(*from.first_chunk().expect("a whole key")) as u64,
                _ => from[0] as u64,
            };
            bits |= (column as u128) << part.left;
        }
        bits
    }
}

/// Loads keys of `N` bytes.
#[inline(always)]
fn load_each<const N: usize>(keys: &EqualKeys<'_>, numbers: &mut [u64], load: impl Fn(&[u8; N]) -> u64) {
    let (keys, _) = keys.bytes().as_chunks::<N>();
    for (number, key) in numbers.iter_mut().zip(keys) {
        *number = load(key);
    }
}

/// Returns the key's first eight bytes.
#[inline(always)]
fn eight(key: &[u8]) -> u64 {
    u64::from_be_bytes(*key.first_chunk().expect("a whole key"))
}

/// Returns the key's first two bytes.
#[inline(always)]
fn two(key: &[u8]) -> u64 {
    u16::from_be_bytes(*key.first_chunk().expect("a whole key")) as u64
}

#[inline(always)]
fn four(key: &[u8], at: usize) -> u64 {
    u32::from_be_bytes(*key[at..].first_chunk().expect("a whole key")) as u64
}

/// Returns a column's value as it is in memory.
#[inline(always)]
fn eight_of(row: &[u8], at: u32) -> u64 {
    u64::from_le_bytes(*row[at as usize..].first_chunk().expect("a row has all its columns"))
}

#[inline(always)]
fn four_of(row: &[u8], at: u32) -> u64 {
    u32::from_le_bytes(*row[at as usize..].first_chunk().expect("a row has all its columns")) as u64
}

#[inline(always)]
fn two_of(row: &[u8], at: u32) -> u64 {
    u16::from_le_bytes(*row[at as usize..].first_chunk().expect("a row has all its columns")) as u64
}

#[inline(always)]
fn one_of(row: &[u8], at: u32) -> u64 {
    row[at as usize] as u64
}

impl KeyPart {
    #[inline(always)]
    fn load(&self, row: &[u8]) -> u64 {
        let at = self.at as usize;
        let loaded = u64::from_le_bytes(row[at..at + 8].try_into().expect("8 bytes"));
        (loaded >> self.right) & self.mask
    }
}

/// Returns whether the type has a sign. None if it is no integer.
fn is_signed(ty: ScalarType) -> Option<bool> {
    match ty {
        ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64 => Some(true),
        ScalarType::Timestamp | ScalarType::Decimal { .. } => Some(true),
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => Some(false),
        ScalarType::Bool => Some(false),
        ScalarType::F64 | ScalarType::Uuid | ScalarType::Text | ScalarType::Bytes => None,
    }
}

/// Adds the parts of one column whose key bytes begin at `to`. Loads begin at `at_max` or before.
fn push_parts(slot: &ColumnSlot, to: u32, at_max: u32, parts: &mut Vec<KeyPart>) -> Option<()> {
    let is_signed = is_signed(slot.ty)?;
    let width = slot.ty.slot_bytes() as u32;
    let mut from = 0;
    while from < width {
        // Bytes `from..end` of the column, counted from its most significant one, lie in one word of the key.
        let in_word = (to + from) % 8;
        let end = width.min(from + 8 - in_word);
        let bits = 8 * (end - from);
        let lies = slot.offset + width - end;
        let at = lies.min(at_max);
        parts.push(KeyPart {
            at,
            right: (8 * (lies - at)) as u8,
            left: (64 - 8 * in_word - bits) as u8,
            word: ((to + from) / 8) as u8,
            mask: u64::MAX >> (64 - bits),
            flip: if is_signed && from == 0 { 1 << (bits - 1) } else { 0 },
        });
        from = end;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(types: &[ScalarType]) -> Vec<ColumnSlot> {
        let columns = types.iter().map(|ty| (*ty, false));
        let layout = RowLayout::from_types(columns);
        layout.columns
    }

    #[test]
    fn a_key_is_the_number_of_its_bytes_whatever_its_shape() {
        use ScalarType::{I8, I16, I32, I64, Uuid};
        let keys: [&[ScalarType]; 12] = [
            &[I32],
            &[I64],
            &[I32, I32],
            &[I64, I32],
            &[I32, I64],
            &[I16, I32],
            &[I16, I8, I32],
            &[I16, I8, I32, I8],
            &[I16, I8, I32, I16],
            &[I16, I32, I64],
            &[Uuid],
            &[I32, I32, I32, I32],
        ];
        let bytes: Vec<u8> = (1..=16).map(|byte| byte * 15).collect();
        for types in keys {
            let length = types.iter().map(|ty| ty.slot_bytes()).sum::<usize>();
            let load = KeyLoad::new(&slots(types)).expect("integers");
            let mut whole = [0; 16];
            whole[..length].copy_from_slice(&bytes[..length]);
            let number = u128::from_be_bytes(whole);
            assert_eq!(load.load(&bytes[..length]), number, "{types:?}");
            assert_eq!(load.load_parts(&bytes[..length]), number, "{types:?}");
            if length <= 8 {
                let short = (number >> (128 - 8 * length)) as u64;
                assert_eq!(load.load_short(&bytes[..length]), short, "{types:?}");
            }
        }
    }

    #[test]
    fn a_row_has_the_words_of_its_key_whatever_the_shape_and_however_short() {
        use ScalarType::{Bool, I8, I16, I32, I64, U16, U32};
        let keys: [&[ScalarType]; 8] = [
            &[I32],
            &[U16, I32],
            &[I16, I8, U32],
            &[I16, I8, I32],
            &[I16, Bool, I32, I8],
            &[I32, I32],
            &[I64],
            &[I64, I32],
        ];
        for types in keys {
            for after in [&[][..], &[I64]] {
                let columns = types.iter().chain(after).map(|ty| (*ty, false));
                let layout = RowLayout::from_types(columns);
                let (width, count) = (layout.fixed_bytes(), types.len());
                let ints = IntKey::new(&layout, &layout.columns[..count], false).expect("integers");
                assert_eq!(ints.is_short(), width < 8, "{types:?}");
                let (mut before, mut random) = (vec![0; width], 7_u64);
                for _ in 0..50 {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    let bytes = random.to_be_bytes().into_iter().chain((!random).to_be_bytes());
                    let mut row: Vec<u8> = bytes.cycle().take(width).collect();
                    let bools = layout.columns.iter().filter(|slot| slot.ty == Bool);
                    bools.for_each(|slot| row[slot.offset as usize] &= 1);
                    let (mut key, mut expected) = (Vec::new(), [0; 16]);
                    layout.push_key(&row, &[0, 1, 2, 3][..count], &mut key);
                    expected[..key.len()].copy_from_slice(&key);
                    let [high, low] = ints.words(StoredRow { row: &row, number: 0 });
                    let words = (high as u128) << 64 | low as u128;
                    assert_eq!(words, u128::from_be_bytes(expected), "{types:?}");
                    assert!(ints.is_same(&row, &row));
                    assert_eq!(ints.is_same(&row, &before), row[..key.len()] == before[..key.len()]);
                    before = row;
                }
            }
        }
    }
}
