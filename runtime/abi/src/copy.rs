//! Copies of a few bytes, without a call.
//!
//! A copy of this kind is told apart by its length, by branches. Where lengths follow no pattern (names, streets, the data of an
//! item) the processor guesses these wrongly, and each time does nothing useful for as long as ten such copies take. `VarCopy` has
//! no branch that hangs on the length, where the processor has masks.

/// Copies bytes of which there are mostly few, and mostly as many as the last time. Both have one length.
#[inline(always)]
pub fn copy_short(from: &[u8], to: &mut [u8]) {
    let bytes = from.len();
    assert!(bytes == to.len());
    match bytes {
        0 => {}
        1..4 => {
            to[0] = from[0];
            to[bytes / 2] = from[bytes / 2];
            to[bytes - 1] = from[bytes - 1];
        }
        4..8 => copy_ends::<4>(from, to),
        8..16 => copy_ends::<8>(from, to),
        16..32 => copy_ends::<16>(from, to),
        32..=64 => copy_ends::<32>(from, to),
        _ => to.copy_from_slice(from),
    }
}

/// Copies at most `2 * N` and at least `N` bytes: the first `N` and the last `N`, which may overlap.
#[inline(always)]
fn copy_ends<const N: usize>(from: &[u8], to: &mut [u8]) {
    let last = from.len() - N;
    let (first_bytes, last_bytes): ([u8; N], [u8; N]) = (
        from[..N].try_into().expect("N bytes"),
        from[last..].try_into().expect("N bytes"),
    );
    to[..N].copy_from_slice(&first_bytes);
    to[last..].copy_from_slice(&last_bytes);
}

/// Copies bytes whose number changes from one copy to the next. What it writes should not be read at once: a load waits for a
/// masked store to reach the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VarCopy {
    /// Only where the processor has them.
    has_masks: bool,
}

impl VarCopy {
    /// Of this processor.
    pub fn new() -> Self {
        Self {
            has_masks: masks::are_there(),
        }
    }

    /// Both have one length.
    #[inline(always)]
    pub fn copy(self, from: &[u8], to: &mut [u8]) {
        assert!(from.len() == to.len());
        match self.has_masks {
            true if from.len() <= masks::BYTES => masks::copy(from, to),
            true if from.len() < 2 * masks::BYTES => masks::copy_two(from, to),
            _ => copy_short(from, to),
        }
    }

    /// Copies to the front of a room, whose length tells, alike for many copies, how long these may be.
    #[inline(always)]
    pub fn copy_to_front(self, from: &[u8], room: &mut [u8]) {
        let room_bytes = room.len();
        let to = &mut room[..from.len()];
        match self.has_masks {
            true if room_bytes <= masks::BYTES => masks::copy(from, to),
            true if room_bytes < 2 * masks::BYTES => masks::copy_two(from, to),
            _ => self.copy(from, to),
        }
    }
}

impl Default for VarCopy {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(unsafe_code)]
mod masks {
    extern crate std;

    use core::arch::asm;

    /// What one masked load takes.
    pub const BYTES: usize = 64;

    pub fn are_there() -> bool {
        std::is_x86_feature_detected!("avx512f")
            && std::is_x86_feature_detected!("avx512bw")
            && std::is_x86_feature_detected!("bmi2")
    }

    /// At most `BYTES`, as many as there is room for. Only where masks are there.
    #[inline(always)]
    pub fn copy(from: &[u8], to: &mut [u8]) {
        debug_assert!(from.len() <= BYTES && from.len() == to.len());
        // SAFETY: both are valid for so many bytes, and whoever calls has looked for the instructions.
        unsafe { copy_masked(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    }

    /// Fewer than twice `BYTES`.
    #[inline(always)]
    pub fn copy_two(from: &[u8], to: &mut [u8]) {
        let bytes = from.len();
        debug_assert!(bytes < 2 * BYTES && bytes == to.len());
        let (from, to, first) = (from.as_ptr(), to.as_mut_ptr(), bytes.min(BYTES));
        // SAFETY: as in `copy`; the second begins where the first ends, or is of no bytes.
        unsafe {
            copy_masked(from, to, first);
            copy_masked(from.add(bytes & BYTES), to.add(bytes & BYTES), bytes - first);
        }
    }

    /// In assembler, for it has to come without a call to where the compiler knows nothing of masks. The upper sixteen registers
    /// leave nothing behind that slows down older instructions.
    ///
    /// # Safety
    /// `from` and `to` are valid for `bytes` bytes, at most 64, and don't overlap; the processor has AVX-512BW and BMI2.
    #[inline(always)]
    unsafe fn copy_masked(from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: what the mask leaves out is neither read nor written.
        unsafe {
            asm!(
                "mov {mask}, -1",
                "bzhi {mask}, {mask}, {bytes}",
                "kmovq k1, {mask}",
                "vmovdqu8 zmm16 {{k1}} {{z}}, zmmword ptr [{from}]",
                "vmovdqu8 zmmword ptr [{to}] {{k1}}, zmm16",
                mask = out(reg) _,
                bytes = in(reg) bytes,
                from = in(reg) from,
                to = in(reg) to,
                out("xmm16") _,
                out("k1") _,
                options(nostack),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod masks {
    pub const BYTES: usize = 64;

    pub fn are_there() -> bool {
        false
    }

    pub fn copy(from: &[u8], to: &mut [u8]) {
        super::copy_short(from, to);
    }

    pub fn copy_two(from: &[u8], to: &mut [u8]) {
        super::copy_short(from, to);
    }
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use super::*;

    #[test]
    fn so_many_bytes_are_copied_and_no_others_by_any_mover() {
        let source: Vec<u8> = (1..=255).collect();
        let plain = VarCopy { has_masks: false };
        for mover in [plain, VarCopy::new()] {
            for (bytes, at) in (0..200).flat_map(|bytes| [0, 1, 7, 50].map(|at| (bytes, at))) {
                let from = &source[at..at + bytes];
                for more in [0, 1, 40, 100] {
                    let mut found = vec![0; at + bytes + more + 1];
                    mover.copy_to_front(from, &mut found[at..at + bytes + more]);
                    let mut exact = vec![0; found.len()];
                    mover.copy(from, &mut exact[at..at + bytes]);
                    let mut expected = vec![0; found.len()];
                    expected[at..at + bytes].copy_from_slice(from);
                    assert_eq!(
                        (&found, &exact),
                        (&expected, &expected),
                        "{mover:?} {bytes} {at} {more}"
                    );
                }
            }
        }
    }
}
