//! The builds that are compared, in the paper's order of removal and in the order of adding.

use crate::parts::{ALL, DIRECTORY, DISK_LOG, LATCHES, LOCKS, LSNS, MAIN_LOG, POOL, SESSIONS, SMALL_PAGES, TREE_KEYS};

/// A step from one build to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The name in the paper's figure 7.
    pub name: &'static str,
    /// The component of figures 1, 5, 6 and 8 that it belongs to.
    pub component: &'static str,
    /// The parts that it removes or adds; 0 for a step without a counterpart.
    pub parts: u32,
    /// Why there is no counterpart.
    pub reason: &'static str,
}

const fn step(name: &'static str, component: &'static str, parts: u32) -> Step {
    Step {
        name,
        component,
        parts,
        reason: "",
    }
}

/// The components of figures 1, 5, 6 and 8, as the paper removes them.
pub const COMPONENTS: [&str; 6] = [
    "B-tree keys",
    "logging",
    "locking",
    "latching",
    "buffer manager",
    "remaining",
];

/// The paper's order of removal (figure 7), the minimal kernel left out.
pub const REMOVAL: [Step; 11] = [
    step("B-tree keys", "B-tree keys", TREE_KEYS),
    step("directory look-up", "buffer manager", DIRECTORY),
    step("small page", "buffer manager", SMALL_PAGES),
    step("sessions", "buffer manager", SESSIONS),
    step("disk log", "logging", DISK_LOG),
    step("main log", "logging", MAIN_LOG),
    step("LSN", "logging", LSNS),
    step("locking", "locking", LOCKS),
    step("latching", "latching", LATCHES),
    step("buffer manager", "buffer manager", POOL),
    Step {
        name: "page access",
        component: "buffer manager",
        parts: 0,
        reason: "a page without the pool is found by its number: one step with the buffer manager",
    },
];

/// The order of adding: from nothing to everything.
pub const ADDING: [Step; 10] = [
    step("LSN", "logging", LSNS),
    step("main log", "logging", MAIN_LOG),
    step("disk log", "logging", DISK_LOG),
    step("locking", "locking", LOCKS),
    step("latching", "latching", LATCHES),
    step("buffer manager", "buffer manager", POOL),
    step("sessions", "buffer manager", SESSIONS),
    step("small page", "buffer manager", SMALL_PAGES),
    step("directory look-up", "buffer manager", DIRECTORY),
    step("B-tree keys", "B-tree keys", TREE_KEYS),
];

/// The builds of an order, from its first to its last: one more than it has steps with parts.
pub fn builds(order: &[Step]) -> Vec<u32> {
    let is_removal = order[0].parts == TREE_KEYS;
    let mut parts = if is_removal { ALL } else { 0 };
    let mut builds = vec![parts];
    for step in order.iter().filter(|step| step.parts != 0) {
        parts ^= step.parts;
        builds.push(parts);
    }
    builds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::is_whole;

    #[test]
    fn both_orders_lead_from_one_end_to_the_other_by_builds_that_work() {
        let (removal, adding) = (builds(&REMOVAL), builds(&ADDING));
        assert_eq!((removal[0], removal.last()), (ALL, Some(&0)));
        assert_eq!((adding[0], adding.last()), (0, Some(&ALL)));
        for parts in removal.iter().chain(&adding) {
            assert!(is_whole(*parts), "{parts:b}");
            assert!(crate::run::has_build(*parts), "{parts} is not compiled in");
        }
    }
}
