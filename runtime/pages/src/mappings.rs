//! How many mappings the arrays have: the kernel gives a process so many (`vm.max_map_count`), and then no memory at all any more.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// What Linux allows where it does not say.
const COUNT_MAX_DEFAULT: usize = 65_530;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static COUNT_MAX: OnceLock<usize> = OnceLock::new();

/// Arrays may have three quarters: the rest is for guests' memories and their pages, threads and the allocator.
fn count_max() -> usize {
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let allowed = text.ok().and_then(|text| text.trim().parse().ok());
        allowed.unwrap_or(COUNT_MAX_DEFAULT) / 4 * 3
    };
    *COUNT_MAX.get_or_init(read)
}

pub(crate) fn note_made() {
    COUNT.fetch_add(1, Relaxed);
}

pub(crate) fn note_gone() {
    COUNT.fetch_sub(1, Relaxed);
}

/// Mappings that arrays may still have.
pub fn left() -> usize {
    count_max().saturating_sub(COUNT.load(Relaxed))
}

/// True where arrays may have so many mappings more.
pub fn has_room(mappings: usize) -> bool {
    mappings <= left()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HUGE_BYTES, Pages};

    #[test]
    fn no_array_is_made_of_more_than_the_system_gives() {
        assert!(Pages::<u8>::try_with_capacity(usize::MAX).is_none());
        assert!(Pages::<u8>::try_with_capacity(1 << 60).is_none());
        let before = left();
        assert!(before > 0 && has_room(1) && !has_room(usize::MAX));
        let array = Pages::<u8>::try_with_capacity(HUGE_BYTES).expect("there is room");
        assert!(left() <= count_max());
        drop(array);
    }
}
