//! The 64-bit fold behind write digests, result digests and store digests.
//!
//! It is frozen: digests are in the log, and replay must find the same ones. A step multiplies two words, one of the data and one of the
//! state, to 128 bits and xors both halves (the mix of wyhash). It detects a replay that differs by accident. It does not protect against
//! an attacker, who can make two runs have one digest.

pub(crate) const K: [u64; 5] = [
    0x2d35_8dcc_aa6c_78a5,
    0x8bb8_4b93_962e_acc9,
    0x4b33_a62e_d433_d4a3,
    0x4d5a_2da5_1de1_aa47,
    0xa076_1d64_78bd_642f,
];
/// Number of bytes from which on a run is folded in four chains.
const LANES_FROM: usize = 128;
/// The tag of a result. The tags of changes are in the lower byte.
const RESULT_TAG: u64 = 0xff;

#[inline(always)]
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
pub(crate) fn words(chunk: &[u8; 16]) -> (u64, u64) {
    let both = u128::from_le_bytes(*chunk);
    (both as u64, (both >> 64) as u64)
}

/// Spreads every bit of tag and length, to be added to a word. The result is not zero even if both are; otherwise the state would be lost.
#[inline(always)]
fn spread(tag: u64, len: usize) -> u64 {
    tag.wrapping_mul(K[4]) ^ (len as u64).wrapping_mul(K[0]) ^ K[3]
}

/// Folds one tagged run of bytes into `state`. Order, tag, length and every byte count.
#[inline(always)]
pub(crate) fn fold(state: u64, tag: u64, bytes: &[u8]) -> u64 {
    // Short rows are folded without a call or a loop.
    if let (Some(first), Some(last), 17..=32) = (bytes.first_chunk(), bytes.last_chunk(), bytes.len()) {
        let ((low, high), (last_low, last_high)) = (words(first), words(last));
        let state = mix(low ^ K[2], high ^ state ^ K[1]);
        return mix(last_low ^ spread(tag, bytes.len()), last_high ^ state);
    }
    fold_any(state, tag, bytes)
}

#[inline(never)]
fn fold_any(state: u64, tag: u64, bytes: &[u8]) -> u64 {
    let spread = spread(tag, bytes.len());
    let Some(last) = bytes.last_chunk::<16>() else {
        let (low, high) = short(bytes);
        return mix(low ^ spread, high ^ state ^ K[1]);
    };
    let (mut state, mut rest) = (state ^ K[1], bytes);
    if bytes.len() >= LANES_FROM {
        (state, rest) = fold_lanes(state, bytes);
    }
    // The last 16 bytes follow at the end, even if some of them were folded here.
    let (chunks, _) = rest[..rest.len() - 1].as_chunks::<16>();
    for chunk in chunks {
        let (low, high) = words(chunk);
        state = mix(low ^ K[2], high ^ state);
    }
    let (low, high) = words(last);
    mix(low ^ spread, high ^ state)
}

/// Returns fewer than 16 bytes as two words.
#[inline(always)]
pub(crate) fn short(bytes: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        return (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return (u32::from_le_bytes(*first) as u64, u32::from_le_bytes(*last) as u64);
    }
    match bytes {
        [] => (0, 0),
        [first, .., last] => (*first as u64 | (bytes[bytes.len() / 2] as u64) << 8, *last as u64),
        [only] => short_of_one(*only),
    }
}

#[inline(always)]
fn short_of_one(byte: u8) -> (u64, u64) {
    (byte as u64 | (byte as u64) << 8, byte as u64)
}

/// The `fold` variant for the two words of a key of integers.
#[inline(always)]
pub(crate) fn fold_ints(state: u64, tag: u64, key: [u64; 2]) -> u64 {
    mix(key[0] ^ spread(tag, 0), key[1] ^ state ^ K[2])
}

/// Folds one word into `state`.
#[inline(always)]
pub(crate) fn fold_word(state: u64, word: u64) -> u64 {
    mix(state ^ K[3], word ^ K[4])
}

/// Returns the digest of a transaction's result, into which those of its write sets are folded.
#[inline]
pub fn result_digest(result: &[u8]) -> u64 {
    if let [only] = result {
        // This is the most frequent result.
        let (low, high) = short_of_one(*only);
        return mix(low ^ spread(RESULT_TAG, 1), high ^ K[1]);
    }
    fold(0, RESULT_TAG, result)
}

/// Folds pieces of 64 bytes in four independent chains, so that long runs are not bound by the latency of the multiplication. It leaves at
/// least one byte.
#[inline(never)]
fn fold_lanes(state: u64, bytes: &[u8]) -> (u64, &[u8]) {
    let mut lanes = [state, state ^ K[2], state ^ K[3], state ^ K[4]];
    let (pieces, _) = bytes[..bytes.len() - 1].as_chunks::<64>();
    for piece in pieces {
        let (chunks, _) = piece.as_chunks::<16>();
        for (lane, chunk) in lanes.iter_mut().zip(chunks) {
            let (low, high) = words(chunk);
            *lane = mix(low ^ K[2], high ^ *lane);
        }
    }
    let low = mix(lanes[0] ^ K[3], lanes[1]);
    let high = mix(lanes[2] ^ K[4], lanes[3]);
    (mix(low ^ K[0], high), &bytes[64 * pieces.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_fold_is_frozen() {
        let bytes: Vec<u8> = (0..=255).collect();
        for byte in [0, 7, 255] {
            assert_eq!(result_digest(&[byte]), fold(0, RESULT_TAG, &[byte]));
        }
        let found: Vec<String> = [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 32, 60, 64, 127, 128, 129, 192, 255]
            .map(|len| format!("{:016x}", fold(7, 1, &bytes[..len])))
            .to_vec();
        expect_test::expect_file!["../tests/golden/fold.txt"].assert_eq(&(found.join("\n") + "\n"));
    }

    #[test]
    fn words_count_like_bytes() {
        let mut seen = BTreeSet::new();
        for bit in 0..64 {
            for other in [0, 1 << bit] {
                for (high, low, tag) in [(other, 0, 1), (0, other, 1), (0, 0, other | 2)] {
                    seen.insert(fold_ints(7, tag, [high, low]));
                }
                seen.insert(fold_word(7, other));
            }
        }
        // Each bit has three places and a word. Without the word it has one of each, tag 1 and tag 2. Bit 1 adds nothing to tag 2.
        assert_eq!(seen.len(), 64 * 4 - 1 + 3);
        let key = |key: [u64; 2]| fold_ints(7, 1, key);
        assert_ne!(key([1, 2]), key([2, 1]));
        assert_ne!(key([3, 3]), key([4, 4]));
        assert_ne!(fold_word(fold_word(7, 1), 2), fold_word(fold_word(7, 2), 1));
    }

    #[test]
    fn short_runs_are_folded_as_all_others() {
        let bytes: Vec<u8> = (0..200).map(|at| (at * 37 % 251) as u8).collect();
        for len in 0..=bytes.len() {
            assert_eq!(
                fold(9, 0x1_0001, &bytes[..len]),
                fold_any(9, 0x1_0001, &bytes[..len]),
                "{len}"
            );
        }
    }

    #[test]
    fn every_byte_the_length_the_tag_and_the_order_count() {
        let mut seen = BTreeSet::new();
        for len in 0..300 {
            let mut bytes = vec![0u8; len];
            assert!(seen.insert(fold(1, 1, &bytes)));
            for at in 0..len {
                bytes[at] = 1;
                assert!(seen.insert(fold(1, 1, &bytes)), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
        for len in 16..300 {
            // Equal words come in another order.
            let mut bytes: Vec<u8> = (0..len).map(|at| (at / 8) as u8).collect();
            assert!(seen.insert(fold(1, 1, &bytes)));
            bytes.swap(0, len - 1);
            assert!(seen.insert(fold(1, 1, &bytes)), "{len}");
        }
        for bit in 0..64 {
            assert!(seen.insert(fold(1, 1 ^ 1 << bit, b"")), "tag bit {bit}");
            assert!(seen.insert(fold(1 << bit, 1, b"x")), "state bit {bit}");
        }
        // The state counts without a tag and without bytes, too.
        assert_ne!(fold(1, 0, b""), fold(2, 0, b""));
        assert_ne!(fold(1, 2, b"a"), fold(1, 1, b"a"));
        assert_ne!(fold(fold(0, 1, b"a"), 1, b"b"), fold(fold(0, 1, b"b"), 1, b"a"));
    }
}
