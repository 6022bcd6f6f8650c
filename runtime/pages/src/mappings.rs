//! The process's kernel mappings. The kernel gives a process a limited number of them (`vm.max_map_count`). Beyond it, threads and the
//! allocator get no memory at all. One count has the mappings of all that take many: arrays, and guests with their pages.

use std::sync::{
    OnceLock,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The limit of Linux if the system does not state it.
const COUNT_MAX_DEFAULT: usize = 65_530;

/// The number of taken mappings, and the number that the kernel gives.
struct MappingBudget {
    count: AtomicUsize,
    max: OnceLock<usize>,
}

static PROCESS: MappingBudget = MappingBudget {
    count: AtomicUsize::new(0),
    max: OnceLock::new(),
};

impl MappingBudget {
    fn max(&self) -> usize {
        let read = || {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
            let allowed = text.ok().and_then(|text| text.trim().parse().ok());
            allowed.unwrap_or(COUNT_MAX_DEFAULT)
        };
        *self.max.get_or_init(read)
    }

    /// Returns nine tenths: the rest is for threads, the allocator and files.
    fn limit(&self) -> usize {
        self.max() / 10 * 9
    }

    fn add(&self, mappings: usize) {
        self.count.fetch_add(mappings, Relaxed);
    }

    fn give_back(&self, mappings: usize) {
        self.count.fetch_sub(mappings, Relaxed);
    }

    fn try_add(&self, mappings: usize, limit: usize) -> bool {
        let add = |count: usize| count.checked_add(mappings).filter(|sum| *sum <= limit);
        self.count.try_update(Relaxed, Relaxed, add).is_ok()
    }

    /// Takes mappings that their owner can do without: up to half of all. Async-signal-safe: the caller holds mappings, so the limit is
    /// known.
    fn try_add_spare(&self, mappings: usize) -> bool {
        let max = self.max.get().copied().unwrap_or(COUNT_MAX_DEFAULT);
        self.try_add(mappings, max / 2)
    }
}

pub(crate) fn count_made() {
    PROCESS.add(1);
}

pub(crate) fn count_gone() {
    PROCESS.give_back(1);
}

/// Returns the number of mappings that the kernel gives to this process.
pub fn mappings_max() -> usize {
    PROCESS.max()
}

/// True if the process may have this many more mappings.
pub fn has_room(mappings: usize) -> bool {
    let left = PROCESS.limit().saturating_sub(PROCESS.count.load(Relaxed));
    mappings <= left
}

/// Mappings that were taken from the process's limit. Their drop releases them.
#[derive(Debug)]
pub struct Mappings {
    taken: AtomicUsize,
}

impl Mappings {
    /// Takes mappings whatever the limit is, for work that can't be refused, such as a replay.
    pub fn take(mappings: usize) -> Self {
        PROCESS.max();
        PROCESS.add(mappings);
        Self {
            taken: AtomicUsize::new(mappings),
        }
    }

    /// The `take` variant that may fail. None: the process has nearly as many mappings as it may have.
    pub fn try_take(mappings: usize) -> Option<Self> {
        PROCESS.try_add(mappings, PROCESS.limit()).then(|| Self {
            taken: AtomicUsize::new(mappings),
        })
    }

    /// Takes more mappings that their owner can do without. False, with none taken, if half of all are taken. Async-signal-safe.
    pub fn try_add_spare(&self, mappings: usize) -> bool {
        let is_taken = PROCESS.try_add_spare(mappings);
        if is_taken {
            self.taken.fetch_add(mappings, Relaxed);
        }
        is_taken
    }

    /// Releases all now. Async-signal-safe.
    pub fn give_back(&self) {
        PROCESS.give_back(self.taken.swap(0, Relaxed));
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HUGE_BYTES, Pages};

    #[test]
    fn no_array_is_made_of_more_than_the_system_gives() {
        assert!(Pages::<u8>::try_with_capacity(usize::MAX).is_none());
        assert!(Pages::<u8>::try_with_capacity(1 << 60).is_none());
        assert!(has_room(1) && !has_room(usize::MAX) && mappings_max() > 0);
        drop(Pages::<u8>::try_with_capacity(HUGE_BYTES).expect("there is room"));
    }

    #[test]
    fn spare_mappings_end_at_half_and_all_others_at_nine_tenths() {
        let budget = MappingBudget {
            count: AtomicUsize::new(0),
            max: OnceLock::from(100),
        };
        assert!(budget.try_add_spare(50) && !budget.try_add_spare(1));
        assert!(budget.try_add(40, budget.limit()) && !budget.try_add(1, budget.limit()));
        budget.add(30);
        budget.give_back(71);
        assert!(budget.try_add_spare(1) && !budget.try_add_spare(1));
    }

    #[test]
    fn mappings_are_given_back_once() {
        let (kept, other) = (Mappings::take(3), Mappings::try_take(4).expect("there is room"));
        assert!(kept.try_add_spare(2));
        assert_eq!(kept.taken.load(Relaxed), 5);
        kept.give_back();
        assert_eq!(kept.taken.load(Relaxed), 0);
        drop((kept, other));
        assert!(
            PROCESS.count.load(Relaxed) < PROCESS.limit(),
            "no count fell below nothing"
        );
    }
}
