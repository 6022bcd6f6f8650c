//! The 64-bit fold behind write digests, store digests and the hash index.
//!
//! Frozen: write digests are in the log, and replay must find the same ones. A step multiplies two words to 128 bits and
//! xors both halves and both operands (the protected form of wyhash's mix: a zero product does not wipe the state).

const K: [u64; 5] = [
    0x2d35_8dcc_aa6c_78a5,
    0x8bb8_4b93_962e_acc9,
    0x4b33_a62e_d433_d4a3,
    0x4d5a_2da5_1de1_aa47,
    0xa076_1d64_78bd_642f,
];

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    a ^ b ^ product as u64 ^ (product >> 64) as u64
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Folds one tagged run of bytes into `state`; order, tag, length and every byte count.
#[inline]
pub(crate) fn fold(state: u64, tag: u64, bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let mut state = mix(state ^ K[0] ^ (len as u64).wrapping_mul(K[4]), tag ^ K[1]);
    let mut rest = bytes;
    if len >= 64 {
        (state, rest) = fold_lanes(state, rest);
    }
    while rest.len() >= 16 {
        state = mix(word(rest, 0) ^ K[2], word(rest, 8) ^ state);
        rest = &rest[16..];
    }
    let (low, high) = match rest.len() {
        8.. => (word(rest, 0), word(rest, rest.len() - 8)),
        4..8 => {
            let at = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("4 bytes"));
            (at(0) as u64, at(rest.len() - 4) as u64)
        }
        1..4 => (
            rest[0] as u64 | (rest[rest.len() / 2] as u64) << 8,
            rest[rest.len() - 1] as u64,
        ),
        0 => (0, 0),
    };
    mix(low ^ K[3], high ^ state)
}

/// As `fold`, of the two words of a key of integers.
#[inline(always)]
pub(crate) fn fold_ints(state: u64, tag: u64, key: [u64; 2]) -> u64 {
    let state = mix(state ^ K[0], tag ^ K[1]);
    mix(key[0] ^ K[2], key[1] ^ state)
}

/// Folds one word into `state`.
#[inline(always)]
pub(crate) fn fold_word(state: u64, word: u64) -> u64 {
    mix(state ^ K[3], word ^ K[4])
}

/// 32 bits for the hash index, of an integer key. Not frozen: nothing observable depends on it.
#[inline]
pub(crate) fn hash_words(high: u64, low: u64) -> u32 {
    (mix(mix(high ^ K[0], low ^ K[1]), K[2]) >> 32) as u32
}

/// Four independent chains, so that long rows are not bound by the latency of the multiplication.
fn fold_lanes(state: u64, mut rest: &[u8]) -> (u64, &[u8]) {
    let mut lanes = [state ^ K[1], state ^ K[2], state ^ K[3], state ^ K[4]];
    while rest.len() >= 64 {
        for (lane, chunk) in lanes.iter_mut().zip(rest.chunks_exact(16)) {
            *lane = mix(word(chunk, 0) ^ K[2], word(chunk, 8) ^ *lane);
        }
        rest = &rest[64..];
    }
    let low = mix(lanes[0] ^ K[3], lanes[1]);
    let high = mix(lanes[2] ^ K[4], lanes[3]);
    (mix(low, high.rotate_left(32)), rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_fold_is_frozen() {
        let bytes: Vec<u8> = (0..=255).collect();
        let found: Vec<String> = [0, 1, 3, 4, 7, 8, 15, 16, 22, 63, 64, 200]
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
        // Of each bit three places and a word; without it one of each, tag 1 and tag 2. Bit 1 adds nothing to tag 2.
        assert_eq!(seen.len(), 64 * 4 - 1 + 3);
        assert_ne!(fold_word(fold_word(7, 1), 2), fold_word(fold_word(7, 2), 1));
    }

    #[test]
    fn every_byte_the_length_the_tag_and_the_order_count() {
        let mut seen = BTreeSet::new();
        for len in 0..150 {
            let mut bytes = vec![0u8; len];
            assert!(seen.insert(fold(1, 1, &bytes)));
            for at in 0..len {
                bytes[at] = 1;
                assert!(seen.insert(fold(1, 1, &bytes)), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
        assert_ne!(fold(1, 2, b"a"), fold(1, 1, b"a"));
        assert_ne!(
            fold(fold(0, 1, b"a"), 1, b"b"),
            fold(fold(0, 1, b"b"), 1, b"a")
        );
    }
}
