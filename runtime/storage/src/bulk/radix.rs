//! Sorts index entries by their keys. A radix sort orders them over the first bits in which the keys differ, and comparisons order keys
//! that are still alike.

use reprise_pages::Pages;

/// Bits of a digit: the places that one pass writes to stay in the second-level cache.
const DIGIT_BITS: usize = 10;
/// Number of entries up to which comparing is faster.
const COMPARED_MAX: usize = 1 << 10;
/// Bits of a digit beyond those that would separate this many random keys. The spare bits leave few keys to compare.
const SPARE_BITS: usize = 4;

/// Entries of `W` words: the key's, the most significant first, and the record id.
pub(crate) type RadixEntries<const W: usize> = Pages<[u64; W]>;

/// Part of a digit: bits of one word.
struct DigitPart {
    word: usize,
    shift: u32,
    mask: u64,
    left: u32,
}

/// Returns the entries in the order of their keys. True if they already were in order.
pub(crate) fn sort<const W: usize>(mut entries: RadixEntries<W>) -> (RadixEntries<W>, bool) {
    let (varying, is_sorted) = scan_bits(&entries);
    if is_sorted {
        return (entries, true);
    }
    if entries.len() <= COMPARED_MAX {
        entries.sort_unstable();
        return (entries, false);
    }
    let mut other = Pages::zeroed(entries.len());
    other.advise_huge();
    let mut bits = bits_of(&varying);
    let enough = entries.len().ilog2() as usize + SPARE_BITS;
    let beyond = bits.split_off(enough.min(bits.len()));
    for digit in digits(bits) {
        pass(&entries, &mut other, &digit);
        std::mem::swap(&mut entries, &mut other);
    }
    if !beyond.is_empty() {
        sort_alike(&mut entries, &beyond);
    }
    (entries, false)
}

/// Sorts entries that differ in the last bits alone.
fn sort_alike<const W: usize>(entries: &mut [[u64; W]], beyond: &[(usize, u32)]) {
    let mut mask = [u64::MAX; W];
    mask[W - 1] = 0;
    for (word, bit) in beyond {
        mask[*word] &= !(1 << bit);
    }
    let is_alike = |a: &[u64; W], b: &[u64; W]| (0..W).all(|word| (a[word] ^ b[word]) & mask[word] == 0);
    for alike in entries.chunk_by_mut(is_alike) {
        if alike.len() > 1 {
            alike.sort_unstable();
        }
    }
}

/// Returns the bits in which keys differ, and whether the keys are in order.
fn scan_bits<const W: usize>(entries: &[[u64; W]]) -> ([u64; W], bool) {
    let mut varying = [0; W];
    let mut is_sorted = true;
    let Some(mut before) = entries.first() else {
        return (varying, true);
    };
    for entry in entries {
        for word in 0..W - 1 {
            varying[word] |= entry[word] ^ before[word];
        }
        is_sorted &= before[..W - 1] <= entry[..W - 1];
        before = entry;
    }
    (varying, is_sorted)
}

/// Returns the bits that vary, as words and places in them, the most significant first.
fn bits_of<const W: usize>(varying: &[u64; W]) -> Vec<(usize, u32)> {
    let all = (0..W - 1).flat_map(|word| (0..64).rev().map(move |bit| (word, bit)));
    all.filter(|(word, bit)| varying[*word] >> bit & 1 == 1).collect()
}

/// Divides these bits into digits, the least significant first.
fn digits(mut bits: Vec<(usize, u32)>) -> Vec<Vec<DigitPart>> {
    bits.reverse();
    let passes = bits.len().div_ceil(DIGIT_BITS).max(1);
    let chunks = bits.chunks(bits.len().div_ceil(passes).max(1));
    chunks.map(pieces).collect()
}

/// Joins neighbouring bits, which move together.
fn pieces(bits: &[(usize, u32)]) -> Vec<DigitPart> {
    let mut pieces: Vec<DigitPart> = Vec::new();
    for (left, (word, bit)) in bits.iter().enumerate() {
        match pieces.last_mut() {
            Some(last) if last.word == *word && last.shift + last.mask.count_ones() == *bit => {
                last.mask = last.mask << 1 | 1;
            }
            _ => pieces.push(DigitPart {
                word: *word,
                shift: *bit,
                mask: 1,
                left: left as u32,
            }),
        }
    }
    pieces
}

fn pass<const W: usize>(from: &[[u64; W]], to: &mut [[u64; W]], digit: &[DigitPart]) {
    match digit {
        [piece] => {
            let (word, shift, mask) = (piece.word, piece.shift, piece.mask);
            pass_by(from, to, |entry| (entry[word] >> shift & mask) as usize);
        }
        pieces => pass_by(from, to, |entry| {
            let bits = |piece: &DigitPart| (entry[piece.word] >> piece.shift & piece.mask) << piece.left;
            pieces.iter().fold(0, |digit, piece| digit | bits(piece)) as usize
        }),
    }
}

#[inline(always)]
fn pass_by<const W: usize>(from: &[[u64; W]], to: &mut [[u64; W]], digit_of: impl Fn(&[u64; W]) -> usize) {
    let mut places = [0usize; 1 << DIGIT_BITS];
    for entry in from {
        places[digit_of(entry)] += 1;
    }
    let mut sum = 0;
    for place in &mut places {
        sum += std::mem::replace(place, sum);
    }
    for entry in from {
        let place = &mut places[digit_of(entry)];
        to[*place] = *entry;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(keys: &[[u64; 2]]) {
        let mut entries = Pages::with_capacity(keys.len().max(1));
        for (rid, [high, low]) in keys.iter().enumerate() {
            entries.push([*high, *low, rid as u64]);
        }
        let mut expected = entries.to_vec();
        let was_sorted = expected.is_sorted_by_key(|entry| (entry[0], entry[1]));
        expected.sort_by_key(|entry| (entry[0], entry[1]));
        let (sorted, is_sorted) = sort(entries);
        assert_eq!(is_sorted, was_sorted);
        let key = |entry: &[u64; 3]| (entry[0], entry[1]);
        assert!(sorted.iter().map(key).eq(expected.iter().map(key)));
        let mut rids: Vec<u64> = sorted.iter().map(|entry| entry[2]).collect();
        rids.sort_unstable();
        assert!(rids.into_iter().eq(0..keys.len() as u64));
        assert!(
            sorted
                .iter()
                .all(|[high, low, rid]| keys[*rid as usize] == [*high, *low])
        );
    }

    #[test]
    fn entries_come_out_in_order_whatever_bits_vary() {
        check(&[]);
        check(&[[1, 2]]);
        let spread = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        check(
            &(0..5000)
                .map(|n| [spread(n) & 0xf00f << 20, spread(n + 7)])
                .collect::<Vec<_>>(),
        );
        check(
            &(0..5000)
                .map(|n| [7, spread(n) & 0x8000_0000_0000_0001])
                .collect::<Vec<_>>(),
        );
        check(&(0..5000).map(|n| [n, 5000 - n]).collect::<Vec<_>>());
        check(&(0..5000).map(|_| [3, 4]).collect::<Vec<_>>());
        // Many keys differ only in bits that the radix sort leaves to comparing.
        check(&(0..5000).map(|n| [spread(n % 7), spread(n)]).collect::<Vec<_>>());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
        #[test]
        fn any_keys(keys in prop::collection::vec(any::<[u64; 2]>(), 0..3000), masks in any::<[u64; 2]>()) {
            check(&keys.iter().map(|[h, l]| [h & masks[0], l & masks[1]]).collect::<Vec<_>>());
        }
    }
}
