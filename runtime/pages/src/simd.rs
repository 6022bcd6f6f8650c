//! Compares eight words at once.

/// Returns a mask: bit `i` is set if word `i` is `to`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn equal(words: &[u32; 8], to: u32) -> u32 {
    use std::arch::x86_64::{_mm_castsi128_ps, _mm_cmpeq_epi32, _mm_loadu_si128, _mm_movemask_ps, _mm_set1_epi32};
    let start = words.as_ptr().cast();
    // SAFETY: both loads lie within the eight words and need no alignment; SSE2 belongs to every x86-64 processor.
    unsafe {
        let to = _mm_set1_epi32(to as i32);
        let low = _mm_cmpeq_epi32(_mm_loadu_si128(start), to);
        let high = _mm_cmpeq_epi32(_mm_loadu_si128(start.add(1)), to);
        let (low, high) = (_mm_castsi128_ps(low), _mm_castsi128_ps(high));
        (_mm_movemask_ps(low) | _mm_movemask_ps(high) << 4) as u32
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub fn equal(words: &[u32; 8], to: u32) -> u32 {
    equal_each(words, to)
}

#[cfg(any(test, not(target_arch = "x86_64")))]
fn equal_each(words: &[u32; 8], to: u32) -> u32 {
    let bit = |(at, word): (usize, &u32)| ((*word == to) as u32) << at;
    words.iter().enumerate().map(bit).fold(0, |bits, bit| bits | bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_agree() {
        for bits in 0..=255u32 {
            for (to, other) in [(0, 7), (u32::MAX, 0), (1 << 31, 1)] {
                let words = std::array::from_fn(|at| if bits >> at & 1 == 1 { to } else { other });
                assert_eq!((equal(&words, to), equal_each(&words, to)), (bits, bits));
            }
        }
    }
}
