//! Random numbers for generators: a multiplication a number, the same for the same seed.

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The step of `wyrand` (Wang Yi): a Weyl sequence, folded.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let wide = self.0 as u128 * (self.0 ^ 0xe703_7ed1_a0b4_28db) as u128;
        (wide >> 64) as u64 ^ wide as u64
    }
}

/// 32 random bits -> a number below `bound`.
#[inline]
pub(crate) fn below(bits: u32, bound: u32) -> u32 {
    ((bits as u64 * bound as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_the_numbers_and_they_spread() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..1000)
                .map(|_| below(random.next_u64() as u32, 10))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let fives = draw(7).iter().filter(|n| **n == 5).count();
        assert!((60..150).contains(&fives), "{fives} of 1000");
    }
}
