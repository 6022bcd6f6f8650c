//! The transaction's random stream: SipHash-2-4 of (database secret, transaction id) seeds xoshiro256++.
//!
//! Frozen: replay must draw the same numbers for ever.

/// xoshiro256++ (Blackman and Vigna).
#[derive(Clone, Debug)]
pub struct TxnRandom {
    state: [u64; 4],
}

impl TxnRandom {
    /// The stream of one transaction. Two ids never share a state: each word is a keyed hash of (id, word number).
    pub fn new(secret: [u64; 2], txn_id: u64) -> Self {
        let mut state = [0; 4];
        for (word, slot) in state.iter_mut().enumerate() {
            *slot = siphash24(secret, [txn_id, word as u64]);
        }
        if state == [0; 4] {
            state[0] = 1; // the generator never leaves the state of all zeros
        }
        Self { state }
    }

    /// The next number.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }
}

/// SipHash-2-4 (Aumasson and Bernstein) of exactly two little-endian words.
pub fn siphash24(key: [u64; 2], words: [u64; 2]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in [words[0], words[1], 16 << 56] {
        v[3] ^= word;
        sip_round(&mut v);
        sip_round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for _ in 0..4 {
        sip_round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_matches_the_reference_vector() {
        // The authors' test vector for the 16-byte input 00 01 .. 0f under the key 00 01 .. 0f.
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash24(key, key), 0x3f2a_cc7f_57c2_9bdb);
    }

    #[test]
    fn the_stream_is_frozen() {
        let mut stream = TxnRandom::new([1, 2], 3);
        let drawn = [stream.next_u64(), stream.next_u64()];
        let again = TxnRandom::new([1, 2], 3).next_u64();
        assert_eq!(drawn[0], again);
        assert_ne!(drawn[0], TxnRandom::new([1, 2], 4).next_u64());
        assert_ne!(drawn[0], drawn[1]);
    }
}
