//! Tags of keys in hash indexes: 32 bits of a keyed hash. The key keeps an attacker from choosing keys that all fall on one walk.
//!
//! The process draws the secret once, and it is not part of stored data. Each opening builds indexes anew, and nothing that a procedure
//! sees depends on their order. Words are mixed as in `digest`. Both operands stay in the result, so that a product of zero still leaves
//! something.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use crate::digest::{K, mix, short, words};

static SECRET: [AtomicU64; 3] = [AtomicU64::new(K[0]), AtomicU64::new(K[1]), AtomicU64::new(K[2])];
static IS_SET: OnceLock<()> = OnceLock::new();

/// Sets the secret of this process's hash indexes. Only the first call, before any index has a key, does so. Later calls change nothing,
/// because existing indexes are placed by the secret. Without a call the secret is a constant, for tests and the simulation.
pub fn set_hash_secret(secret: [u64; 3]) {
    IS_SET.get_or_init(|| {
        for (word, value) in SECRET.iter().zip(secret) {
            word.store(value, Ordering::Relaxed);
        }
    });
}

#[inline(always)]
fn both(a: u64, b: u64) -> u64 {
    a ^ b ^ mix(a, b)
}

#[inline(always)]
fn secret(at: usize) -> u64 {
    SECRET[at].load(Ordering::Relaxed)
}

/// Returns the tag of an integer key in the form of a number of 16 bytes.
#[inline]
pub(crate) fn tag_of(key: u128) -> u32 {
    let (high, low) = ((key >> 64) as u64, key as u64);
    (both(both(high ^ secret(0), low ^ secret(1)), secret(2)) >> 32) as u32
}

/// Returns the tag of a key of bytes. Each operand of a multiplication has a secret word.
pub(crate) fn tag_of_bytes(key: &[u8]) -> u32 {
    let mut state = secret(2) ^ (key.len() as u64).wrapping_mul(K[3]);
    let Some(last) = key.last_chunk::<16>() else {
        let (low, high) = short(key);
        return (both(low ^ secret(0), high ^ state) >> 32) as u32;
    };
    // The last 16 bytes follow at the end, even if some of them were mixed here.
    let (chunks, _) = key[..key.len() - 1].as_chunks::<16>();
    for chunk in chunks {
        let (low, high) = words(chunk);
        state = mix(low ^ secret(1), high ^ state);
    }
    let (low, high) = words(last);
    (both(low ^ secret(0), high ^ state) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_spread_and_differ_by_length() {
        let tags: std::collections::BTreeSet<u32> = (0..100_000).map(tag_of).collect();
        assert!(tags.len() > 99_900, "{} of 100,000 differ", tags.len());
        assert_ne!(tag_of_bytes(b"a"), tag_of_bytes(b"a\0"));
    }
}
