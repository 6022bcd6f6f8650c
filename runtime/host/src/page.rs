//! Writes one page of guest memory in full. For this size the general `memset` and `memcpy` choose string instructions. Their start-up
//! costs as much as the page itself, and they evict a set of several pages from the first-level cache.

use crate::memory::PAGE_BYTES;

/// Fills a page with zeros.
///
/// # Safety
/// `page` is valid for writing `PAGE_BYTES` bytes, and aligned to them.
#[inline]
pub(crate) unsafe fn zero(page: *mut u8) {
    // Processors with the second feature do such wide writes without slowing down.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512vbmi2") {
        // SAFETY: passed on; the processor has the instructions.
        return unsafe { wide::zero_wider(page) };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: passed on; the processor has the instructions.
        return unsafe { wide::zero(page) };
    }
    // SAFETY: passed on.
    unsafe { std::ptr::write_bytes(page, 0, PAGE_BYTES) };
}

/// Copies a page. `source` needs no alignment.
///
/// # Safety
/// The contract of `zero` holds; `source` is valid for reading as many bytes, and does not overlap `page`.
#[inline]
pub(crate) unsafe fn copy(source: *const u8, page: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: passed on; the processor has the instructions.
        return unsafe { wide::copy(source, page) };
    }
    // SAFETY: passed on.
    unsafe { std::ptr::copy_nonoverlapping(source, page, PAGE_BYTES) };
}

/// Written in assembler, because the compiler turns a loop of stores back into a call of `memset`.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use std::arch::asm;

    use crate::memory::PAGE_BYTES;

    const STEP_BYTES: usize = 128;
    const _: () = assert!(PAGE_BYTES.is_multiple_of(2 * STEP_BYTES));

    /// # Safety
    /// The contract of the outer `zero` holds; the processor has AVX.
    #[target_feature(enable = "avx")]
    pub unsafe fn zero(page: *mut u8) {
        // SAFETY: the loop writes the page and nothing else.
        unsafe {
            asm!(
                "vpxor xmm0, xmm0, xmm0",
                "2:",
                "vmovdqa ymmword ptr [{at}], ymm0",
                "vmovdqa ymmword ptr [{at} + 32], ymm0",
                "vmovdqa ymmword ptr [{at} + 64], ymm0",
                "vmovdqa ymmword ptr [{at} + 96], ymm0",
                "add {at}, 128",
                "cmp {at}, {end}",
                "jne 2b",
                "vzeroupper",
                at = inout(reg) page => _,
                end = in(reg) page.add(PAGE_BYTES),
                out("ymm0") _,
                options(nostack),
            );
        }
    }

    /// The `zero` variant with half as many writes. The writes of `zero` overflow the processor's store buffer, and later writes wait for
    /// it.
    ///
    /// # Safety
    /// The contract of the outer `zero` holds; the processor has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn zero_wider(page: *mut u8) {
        // SAFETY: the loop writes the page and nothing else.
        unsafe {
            asm!(
                "vpxor xmm0, xmm0, xmm0",
                "2:",
                "vmovdqa64 zmmword ptr [{at}], zmm0",
                "vmovdqa64 zmmword ptr [{at} + 64], zmm0",
                "vmovdqa64 zmmword ptr [{at} + 128], zmm0",
                "vmovdqa64 zmmword ptr [{at} + 192], zmm0",
                "add {at}, 256",
                "cmp {at}, {end}",
                "jne 2b",
                "vzeroupper",
                at = inout(reg) page => _,
                end = in(reg) page.add(PAGE_BYTES),
                out("zmm0") _,
                options(nostack),
            );
        }
    }

    /// # Safety
    /// The contract of the outer `copy` holds; the processor has AVX.
    #[target_feature(enable = "avx")]
    pub unsafe fn copy(source: *const u8, page: *mut u8) {
        // SAFETY: the loop reads `source`, writes the page, and nothing else.
        unsafe {
            asm!(
                "2:",
                "vmovdqu {a}, ymmword ptr [{from}]",
                "vmovdqu {b}, ymmword ptr [{from} + 32]",
                "vmovdqu {c}, ymmword ptr [{from} + 64]",
                "vmovdqu {d}, ymmword ptr [{from} + 96]",
                "vmovdqa ymmword ptr [{at}], {a}",
                "vmovdqa ymmword ptr [{at} + 32], {b}",
                "vmovdqa ymmword ptr [{at} + 64], {c}",
                "vmovdqa ymmword ptr [{at} + 96], {d}",
                "add {from}, 128",
                "add {at}, 128",
                "cmp {at}, {end}",
                "jne 2b",
                "vzeroupper",
                a = out(ymm_reg) _,
                b = out(ymm_reg) _,
                c = out(ymm_reg) _,
                d = out(ymm_reg) _,
                from = inout(reg) source => _,
                at = inout(reg) page => _,
                end = in(reg) page.add(PAGE_BYTES),
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(4096))]
    struct Pages([u8; 3 * PAGE_BYTES]);

    /// Runs `write` on the middle one of three pages. In some places all of them differ from the expected bytes.
    fn check_write(expected: &[u8], write: impl Fn(*mut u8)) {
        let stains: [&[usize]; 4] = [&[], &[0], &[PAGE_BYTES - 1], &[63, 64, 127, 128, 2047, 4032]];
        for stained in stains {
            let mut pages = Box::new(Pages([0xaa; 3 * PAGE_BYTES]));
            pages.0[PAGE_BYTES..2 * PAGE_BYTES].copy_from_slice(expected);
            for at in stained {
                pages.0[PAGE_BYTES + at] ^= 0x55;
            }
            write(pages.0[PAGE_BYTES..].as_mut_ptr());
            assert!(pages.0[PAGE_BYTES..][..PAGE_BYTES] == *expected, "{stained:?}");
            for neighbour in [0, 2] {
                let bytes = &pages.0[neighbour * PAGE_BYTES..][..PAGE_BYTES];
                assert!(bytes.iter().all(|byte| *byte == 0xaa), "{stained:?}");
            }
        }
    }

    #[test]
    fn one_page_is_written_and_its_neighbours_are_not() {
        let source: Vec<u8> = (0..PAGE_BYTES + 1).map(|at| (at * 31 >> 3) as u8).collect();
        let zeros = [0; PAGE_BYTES];
        // SAFETY: here and below, the middle one of three pages, aligned by the type; the source is another allocation.
        check_write(&source[1..], |page| unsafe { copy(source[1..].as_ptr(), page) });
        // SAFETY: as above.
        check_write(&zeros, |page| unsafe { zero(page) });
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if std::arch::is_x86_feature_detected!("avx") {
            // SAFETY: as above.
            check_write(&zeros, |page| unsafe { wide::zero(page) });
        }
    }
}
