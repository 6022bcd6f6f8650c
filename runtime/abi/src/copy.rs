//! Copies of a few bytes, without a call.

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
    let (first, last) = (from.first_chunk::<N>(), from.last_chunk::<N>());
    let (first, last) = (*first.expect("N bytes"), *last.expect("N bytes"));
    *to.first_chunk_mut().expect("N bytes") = first;
    *to.last_chunk_mut().expect("N bytes") = last;
}

/// Copies the first `N` bytes: the compiler makes no call of it.
#[inline(always)]
pub fn copy_first<const N: usize>(from: &[u8], to: &mut [u8]) {
    *to.first_chunk_mut().expect("N bytes") = *from.first_chunk::<N>().expect("N bytes");
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use super::*;

    #[test]
    fn so_many_bytes_are_copied_and_no_others() {
        let source: Vec<u8> = (1..=255).collect();
        for (bytes, at) in (0..200).flat_map(|bytes| [0, 1, 7, 50].map(|at| (bytes, at))) {
            let from = &source[at..at + bytes];
            let (mut found, mut expected) = (vec![0; at + bytes + 1], vec![0; at + bytes + 1]);
            copy_short(from, &mut found[at..at + bytes]);
            expected[at..at + bytes].copy_from_slice(from);
            assert_eq!(found, expected, "{bytes} bytes at {at}");
        }
    }
}
