//! Keys of the B+tree: memcomparable bytes, as integers if they always fit, otherwise on the heap with their first bytes in the node.
//!
//! Encoded keys are prefix-free, so padding with zero bytes to one width keeps their order and keeps them distinct.

use std::{cmp::Ordering, hint::select_unpredictable};

use crate::{intkey::IntKey, keyplan::StoredRow};

/// A place between keys. With `after == false` it is before the first key that is at least `bytes`. With `after == true` it is behind the
/// last key that begins with `bytes` or is less. A key that is shorter than `bytes` compares as if zero bytes followed it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge<'a> {
    pub bytes: &'a [u8],
    pub after: bool,
}

impl Edge<'_> {
    /// True if the key, in bytes, is before it.
    pub fn is_behind(&self, key: &[u8]) -> bool {
        let common = key.len().min(self.bytes.len());
        let is_longer = self.bytes[common..].iter().any(|byte| *byte != 0);
        match key[..common].cmp(&self.bytes[..common]) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => is_longer || self.after,
        }
    }
}

pub(crate) trait TreeKey: Clone + Default + Ord {
    /// An `Edge` that is prepared for many comparisons.
    type Probe<'a>;
    /// True if a key is cheap to copy.
    const IS_COPIED: bool;

    fn from_bytes(bytes: &[u8]) -> Self;
    /// Returns the entry key of a row, for keys of integers that fit this type.
    fn from_ints(ints: &IntKey, row: StoredRow<'_>) -> Self;
    /// Returns the key whose bytes are those of the words, the most significant first. For keys of fixed width.
    fn from_words(words: &[u64]) -> Self;
    /// Returns the edge right before this key.
    fn as_probe(&self) -> Self::Probe<'_>;
    fn probe(edge: Edge<'_>) -> Self::Probe<'_>;
    /// True if the key is before the edge.
    fn is_before(&self, probe: &Self::Probe<'_>) -> bool;
    /// True if a whole-key probe (`after == false`) was made from this key.
    fn is_at(&self, probe: &Self::Probe<'_>) -> bool;
    /// Appends bytes from which `probe` makes an edge right before or right behind this key.
    fn push_to(&self, out: &mut Vec<u8>);
    /// Returns the bytes on the heap, the allocator's overhead included.
    fn heap_bytes(&self) -> usize;
    /// Returns the key of unused places in a node.
    fn vacant() -> Self;
    /// Returns the number of keys before the edge. The first `len` keys are used and the others vacant.
    fn rank_before<const CAP: usize>(keys: &[Self; CAP], len: usize, probe: &Self::Probe<'_>) -> usize;
    /// True if the key, a fence, is at or before the edge.
    fn is_up_to(&self, probe: &Self::Probe<'_>) -> bool;
    /// Returns the number of fences at or before the edge.
    fn rank_fences<const CAP: usize>(fences: &[Self; CAP], len: usize, probe: &Self::Probe<'_>) -> usize;
    /// Returns the number of keys less than `key`.
    fn rank_less<const CAP: usize>(keys: &[Self; CAP], len: usize, key: &Self) -> usize;
    /// Returns the number of fences less than `key` or equal to it.
    fn rank_up_to<const CAP: usize>(fences: &[Self; CAP], len: usize, key: &Self) -> usize;
    /// Moves the keys from `at` one to the right. The last one is overwritten.
    fn open_gap(keys: &mut [Self], at: usize);
    /// Moves the keys behind `at` one to the left, over it. The last place becomes vacant.
    fn close_gap(keys: &mut [Self], at: usize);
}

pub(crate) struct FixedProbe<K> {
    key: K,
    /// True if it is behind every possible key.
    is_end: bool,
}

trait FixedKey: Copy + Ord {
    const WIDTH: usize;
    const GREATEST: Self;
    /// Returns whether it is less, without a branch.
    fn is_less(self, other: Self) -> bool;
    /// Returns the first `WIDTH` bytes or fewer, padded with zero bytes.
    fn load(bytes: &[u8]) -> Self;
    /// Returns ones in every byte from `from` on.
    fn tail_ones(from: usize) -> Self;
    fn or(self, other: Self) -> Self;
    fn successor(self) -> Option<Self>;
    fn store(self, out: &mut Vec<u8>);
    fn of_ints(ints: &IntKey, row: StoredRow<'_>) -> Self;
    fn of_words(words: &[u64]) -> Self;
}

fn load_padded<const WIDTH: usize>(bytes: &[u8]) -> [u8; WIDTH] {
    let mut padded = [0; WIDTH];
    padded[..bytes.len()].copy_from_slice(bytes);
    padded
}

impl FixedKey for u64 {
    const WIDTH: usize = 8;
    const GREATEST: Self = u64::MAX;
    #[inline]
    fn is_less(self, other: Self) -> bool {
        self < other
    }
    #[inline]
    fn load(bytes: &[u8]) -> Self {
        match bytes.len() {
            8 => u64::from_be_bytes(bytes.try_into().expect("8 bytes")),
            4..8 => {
                // The two loads overlap, and the bits in both are the same.
                let (first, last) = (&bytes[..4], &bytes[bytes.len() - 4..]);
                let word = |half: &[u8]| u32::from_be_bytes(half.try_into().expect("4 bytes"));
                (word(first) as u64) << 32 | (word(last) as u64) << (64 - 8 * bytes.len())
            }
            _ => u64::from_be_bytes(load_padded(bytes)),
        }
    }
    #[inline]
    fn tail_ones(from: usize) -> Self {
        u64::MAX.checked_shr(8 * from as u32).unwrap_or(0)
    }
    #[inline]
    fn or(self, other: Self) -> Self {
        self | other
    }
    #[inline]
    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }
    fn store(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
    #[inline]
    fn of_ints(ints: &IntKey, row: StoredRow<'_>) -> Self {
        let [word] = ints.words(row);
        word
    }
    #[inline]
    fn of_words(words: &[u64]) -> Self {
        words[0]
    }
}

impl FixedKey for u128 {
    const WIDTH: usize = 16;
    const GREATEST: Self = u128::MAX;
    #[inline]
    fn is_less(self, other: Self) -> bool {
        self < other
    }
    #[inline]
    fn load(bytes: &[u8]) -> Self {
        if bytes.len() <= 8 {
            return (u64::load(bytes) as u128) << 64;
        }
        // The two loads overlap, and the bits in both are the same.
        let (first, last) = (&bytes[..8], &bytes[bytes.len() - 8..]);
        (u64::load(first) as u128) << 64 | (u64::load(last) as u128) << (128 - 8 * bytes.len())
    }
    #[inline]
    fn tail_ones(from: usize) -> Self {
        u128::MAX.checked_shr(8 * from as u32).unwrap_or(0)
    }
    #[inline]
    fn or(self, other: Self) -> Self {
        self | other
    }
    #[inline]
    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }
    fn store(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
    #[inline]
    fn of_ints(ints: &IntKey, row: StoredRow<'_>) -> Self {
        let [high, low] = ints.words(row);
        (high as u128) << 64 | low as u128
    }
    #[inline]
    fn of_words(words: &[u64]) -> Self {
        (words[0] as u128) << 64 | words[1] as u128
    }
}

/// A key of `8 * N` bytes, the most significant word first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Wide<const N: usize>([u64; N]);

impl<const N: usize> Default for Wide<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> FixedKey for Wide<N> {
    const WIDTH: usize = 8 * N;
    const GREATEST: Self = Self([u64::MAX; N]);
    #[inline]
    fn is_less(self, other: Self) -> bool {
        // The borrow of a subtraction, from the least significant word up.
        let mut borrow = false;
        for (a, b) in self.0.iter().zip(&other.0).rev() {
            borrow = (a < b) | ((a == b) & borrow);
        }
        borrow
    }
    #[inline]
    fn load(bytes: &[u8]) -> Self {
        let mut words = [0; N];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
            *word = u64::load(chunk);
        }
        Self(words)
    }
    fn tail_ones(from: usize) -> Self {
        Self(std::array::from_fn(|word| {
            u64::tail_ones(from.saturating_sub(8 * word).min(8))
        }))
    }
    fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
    fn successor(self) -> Option<Self> {
        let mut words = self.0;
        for word in words.iter_mut().rev() {
            let (sum, carry) = word.overflowing_add(1);
            *word = sum;
            if !carry {
                return Some(Self(words));
            }
        }
        None
    }
    fn store(self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|word| word.store(out));
    }
    #[inline]
    fn of_ints(ints: &IntKey, row: StoredRow<'_>) -> Self {
        Self(ints.words(row))
    }
    #[inline]
    fn of_words(words: &[u64]) -> Self {
        Self(std::array::from_fn(|at| words[at]))
    }
}

#[inline]
fn fixed_probe<K: FixedKey>(edge: Edge<'_>) -> FixedProbe<K> {
    let mut after = edge.after;
    let mut bytes = edge.bytes;
    if bytes.len() > K::WIDTH {
        let beyond;
        (bytes, beyond) = bytes.split_at(K::WIDTH);
        after |= beyond.iter().any(|byte| *byte != 0);
    }
    let key = K::load(bytes);
    if !after {
        return FixedProbe { key, is_end: false };
    }
    match key.or(K::tail_ones(bytes.len())).successor() {
        Some(key) => FixedProbe { key, is_end: false },
        None => FixedProbe { key, is_end: true },
    }
}

/// Number of keys that are compared side by side: first the last one of each block, then those of one block.
const BLOCK: usize = 8;

/// Returns the number of keys for which `is_left` holds; it must hold for the first ones only. It counts instead of searching: no branch
/// depends on a key, and the loads of a step do not wait for each other. So a node outside the caches costs two waits. Vacant places are
/// the greatest key: if `is_left` holds for them, it holds for all. It is never inlined, because inside a loop the compiler turns the
/// choices into branches, and each is mispredicted every other time.
#[inline(never)]
fn rank_of<K, const N: usize>(keys: &[K; N], len: usize, is_left: impl Fn(&K) -> bool) -> usize {
    let (blocks, rest) = keys.as_chunks::<BLOCK>();
    debug_assert!(rest.is_empty() && len <= keys.len());
    let mut start = 0;
    for (at, block) in blocks.iter().enumerate() {
        start = select_unpredictable(is_left(&block[BLOCK - 1]), at + 1, start);
    }
    let start = start.min(blocks.len() - 1);
    let mut inside = 0;
    for (at, key) in blocks[start].iter().enumerate() {
        inside = select_unpredictable(is_left(key), at + 1, inside);
    }
    (start * BLOCK + inside).min(len)
}

macro_rules! fixed_tree_key {
    ($([$($generics:tt)*] $key:ty;)*) => {$(
        impl<$($generics)*> TreeKey for $key {
            type Probe<'a> = FixedProbe<Self>;
            const IS_COPIED: bool = true;

            #[inline]
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::load(bytes)
            }
            #[inline]
            fn from_ints(ints: &IntKey, row: StoredRow<'_>) -> Self {
                Self::of_ints(ints, row)
            }
            #[inline]
            fn from_words(words: &[u64]) -> Self {
                Self::of_words(words)
            }
            #[inline]
            fn as_probe(&self) -> FixedProbe<Self> {
                FixedProbe { key: *self, is_end: false }
            }
            #[inline]
            fn probe(edge: Edge<'_>) -> FixedProbe<Self> {
                fixed_probe(edge)
            }
            #[inline]
            fn is_before(&self, probe: &FixedProbe<Self>) -> bool {
                self.is_less(probe.key) | probe.is_end
            }
            #[inline]
            fn is_at(&self, probe: &FixedProbe<Self>) -> bool {
                *self == probe.key
            }
            #[inline]
            fn is_up_to(&self, probe: &FixedProbe<Self>) -> bool {
                !probe.key.is_less(*self) | probe.is_end
            }
            fn push_to(&self, out: &mut Vec<u8>) {
                self.store(out);
            }
            fn heap_bytes(&self) -> usize {
                0
            }
            #[inline]
            fn vacant() -> Self {
                Self::GREATEST
            }
            #[inline]
            fn rank_before<const CAP: usize>(keys: &[Self; CAP], len: usize, probe: &FixedProbe<Self>) -> usize {
                let key = probe.key;
                if probe.is_end { len } else { rank_of(keys, len, move |k| k.is_less(key)) }
            }
            #[inline]
            fn rank_fences<const CAP: usize>(fences: &[Self; CAP], len: usize, probe: &FixedProbe<Self>) -> usize {
                let key = probe.key;
                if probe.is_end { len } else { rank_of(fences, len, move |k| !key.is_less(*k)) }
            }
            #[inline]
            fn rank_less<const CAP: usize>(keys: &[Self; CAP], len: usize, key: &Self) -> usize {
                let key = *key;
                rank_of(keys, len, move |k| k.is_less(key))
            }
            #[inline]
            fn rank_up_to<const CAP: usize>(fences: &[Self; CAP], len: usize, key: &Self) -> usize {
                let key = *key;
                rank_of(fences, len, move |k| !key.is_less(*k))
            }
            #[inline]
            fn open_gap(keys: &mut [Self], at: usize) {
                let last = keys.len() - 1;
                keys.copy_within(at..last, at + 1);
            }
            #[inline]
            fn close_gap(keys: &mut [Self], at: usize) {
                keys.copy_within(at + 1.., at);
                if let Some(last) = keys.last_mut() {
                    *last = Self::GREATEST;
                }
            }
        }
    )*};
}
fixed_tree_key! {
    [] u64;
    [] u128;
    [const N: usize] Wide<N>;
}

/// Compares `key` with `bytes` in the sense of [`Edge`]: only the first `bytes.len()` bytes of the key count.
fn compare_prefix(key: &[u8], bytes: &[u8]) -> std::cmp::Ordering {
    let shared = key.len().min(bytes.len());
    let tail_is_zero = || bytes[shared..].iter().all(|byte| *byte == 0);
    key[..shared].cmp(&bytes[..shared]).then_with(|| {
        if tail_is_zero() {
            std::cmp::Ordering::Equal
        } else {
            std::cmp::Ordering::Less
        }
    })
}

/// Bytes of a long key that are in the node. A last name behind a warehouse and a district fits 32 bytes and not 16. With 16, each look-up
/// by name waits for the heap. A Payment then takes 1.05 to 1.07 of the time, though it has 4 % fewer instructions. Command:
/// `cargo run --release -p reprise-bench-cost -- payment 20000`, beside a build that has 16 here.
const HEAD_BYTES: usize = 32;

/// The first bytes of a long key, padded with zeros, as a number in two words, the more significant one first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct KeyHead(u128, u128);

impl KeyHead {
    const GREATEST: Self = Self(u128::MAX, u128::MAX);

    fn of(bytes: &[u8]) -> Self {
        let (first, second) = bytes.split_at(bytes.len().min(16));
        Self(u128::load(first), u128::load(&second[..second.len().min(16)]))
    }

    /// Returns whether it is less, without a branch.
    #[inline(always)]
    fn is_less(&self, other: &Self) -> bool {
        (self.0 < other.0) | ((self.0 == other.0) & (self.1 < other.1))
    }

    /// Returns it with ones in every byte from `from` on.
    fn with_tail_ones(self, from: usize) -> Self {
        let tail = |from: usize| u128::tail_ones(from.min(16));
        Self(self.0 | tail(from), self.1 | tail(from.saturating_sub(16)))
    }
}

/// A key of any width. Its first bytes are in the node, so that most comparisons end there. The heap has all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Long {
    // The order of fields matters to the derived comparison: keys are prefix-free, so different heads have the order of their keys.
    head: KeyHead,
    bytes: Box<[u8]>,
}

/// An edge between long keys.
pub(crate) struct LongProbe<'a> {
    edge: Edge<'a>,
    /// The least and the greatest head of a key that begins with the edge's bytes, or with as many of them as a head has.
    least: KeyHead,
    greatest: KeyHead,
}

impl LongProbe<'_> {
    /// Compares the key with the edge, like `compare_prefix` of all bytes.
    #[inline]
    fn compare(&self, key: &Long) -> std::cmp::Ordering {
        if key.head < self.least {
            return std::cmp::Ordering::Less;
        }
        if key.head > self.greatest {
            return std::cmp::Ordering::Greater;
        }
        match self.is_in_head() {
            true => std::cmp::Ordering::Equal,
            false => compare_prefix(&key.bytes, self.edge.bytes),
        }
    }

    #[inline]
    fn is_in_head(&self) -> bool {
        self.edge.bytes.len() <= HEAD_BYTES
    }
}

/// Returns the partition point of `is_left` among the first `len` keys. It must hold for every key whose head is below `least` and for none
/// whose head is above `greatest`. So it is called for the heads between them alone.
fn rank_long<const N: usize>(
    keys: &[Long; N],
    len: usize,
    (least, greatest): (KeyHead, KeyHead),
    is_left: impl Fn(&Long) -> bool,
) -> usize {
    let start = rank_of(keys, len, move |key| key.head.is_less(&least));
    match keys[..len].get(start) {
        Some(next) if !greatest.is_less(&next.head) => {}
        _ => return start,
    }
    let end = rank_of(keys, len, move |key| !greatest.is_less(&key.head));
    start + keys[start..end].partition_point(is_left)
}

impl TreeKey for Long {
    type Probe<'a> = LongProbe<'a>;
    const IS_COPIED: bool = false;

    fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            head: KeyHead::of(bytes),
            bytes: bytes.into(),
        }
    }
    fn from_ints(_: &IntKey, _: StoredRow<'_>) -> Self {
        unreachable!("keys of integers alone are of fixed width")
    }
    fn from_words(_: &[u64]) -> Self {
        unreachable!("keys of this type are of any width")
    }
    fn as_probe(&self) -> LongProbe<'_> {
        Self::probe(Edge {
            bytes: &self.bytes,
            after: false,
        })
    }
    fn probe(edge: Edge<'_>) -> LongProbe<'_> {
        let least = KeyHead::of(edge.bytes);
        LongProbe {
            least,
            greatest: least.with_tail_ones(edge.bytes.len()),
            edge,
        }
    }
    #[inline]
    fn is_before(&self, probe: &LongProbe<'_>) -> bool {
        let order = probe.compare(self);
        order.is_lt() || probe.edge.after && order.is_eq()
    }
    #[inline]
    fn is_at(&self, probe: &LongProbe<'_>) -> bool {
        self.head == probe.least && *self.bytes == *probe.edge.bytes
    }
    #[inline]
    fn is_up_to(&self, probe: &LongProbe<'_>) -> bool {
        // A fence that only begins with the edge's bytes may be behind it, because there are keys between them.
        self.is_before(probe) || self.is_at(probe)
    }
    fn push_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
    }
    fn heap_bytes(&self) -> usize {
        (self.bytes.len() + 8).next_multiple_of(16)
    }
    fn vacant() -> Self {
        Self {
            head: KeyHead::GREATEST,
            bytes: Box::default(),
        }
    }
    fn rank_before<const CAP: usize>(keys: &[Self; CAP], len: usize, probe: &LongProbe<'_>) -> usize {
        let (least, greatest) = (probe.least, probe.greatest);
        match (probe.is_in_head(), probe.edge.after) {
            (true, false) => rank_of(keys, len, move |key| key.head.is_less(&least)),
            (true, true) => rank_of(keys, len, move |key| !greatest.is_less(&key.head)),
            (false, _) => rank_long(keys, len, (least, greatest), |key| key.is_before(probe)),
        }
    }
    fn rank_fences<const CAP: usize>(fences: &[Self; CAP], len: usize, probe: &LongProbe<'_>) -> usize {
        let before = Self::rank_before(fences, len, probe);
        // All fences are different.
        let is_next = fences[..len].get(before).is_some_and(|fence| fence.is_at(probe));
        before + is_next as usize
    }
    fn rank_less<const CAP: usize>(keys: &[Self; CAP], len: usize, key: &Self) -> usize {
        rank_long(keys, len, (key.head, key.head), |k| k < key)
    }
    fn rank_up_to<const CAP: usize>(fences: &[Self; CAP], len: usize, key: &Self) -> usize {
        rank_long(fences, len, (key.head, key.head), |fence| fence <= key)
    }
    fn open_gap(keys: &mut [Self], at: usize) {
        keys[at..].rotate_right(1);
    }
    fn close_gap(keys: &mut [Self], at: usize) {
        keys[at..].rotate_left(1);
        if let Some(last) = keys.last_mut() {
            *last = Self::vacant();
        }
    }
}
