//! Prefetches memory before it is read, so that a reader waits for all of it at once.

/// Bytes that the processor fetches together.
const LINE_BYTES: usize = 64;
/// Number of lines of one value that are prefetched at most. The rest of a long value follows by itself while it is read in order.
const LINES_MAX: usize = 6;

/// Prefetches the lines of `bytes`, or the first few of a long value. It never waits and changes nothing.
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    // The most frequent case by far has no loop.
    if let [first, .., last] = bytes
        && bytes.len() <= LINE_BYTES
    {
        prefetch_line(first);
        return prefetch_line(last);
    }
    let bytes = &bytes[..bytes.len().min(LINES_MAX * LINE_BYTES)];
    for line in bytes.chunks(LINE_BYTES) {
        prefetch_line(&line[0]);
    }
    // A range that does not begin at a line's start ends on one more line.
    if let Some(last) = bytes.last() {
        prefetch_line(last);
    }
}

/// Prefetches the line in which `value` begins.
#[inline(always)]
pub fn prefetch_line<T>(value: &T) {
    fetch_at(std::ptr::from_ref(value));
}

/// Prefetches the line of the address.
#[inline(always)]
pub(crate) fn fetch_at<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program sees and faults on no address; SSE belongs to every x86-64 processor.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_is_taken() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        for len in [0, 1, 63, 64, 65, 384, 385, 1_000] {
            prefetch(&bytes[..len]);
        }
        assert_eq!(bytes[999], 231);
    }
}
