//! Whether a group waits for those who were just told: a client that keeps a number of commits on their way appends each of
//! them again within microseconds of its end. Without a wait the first to come back is written alone, and all others wait
//! for that write and for their own.

/// The longest wait, in parts of the write before it, and at most.
const WRITE_PARTS: (u64, u64) = (3, 8);
const WAIT_NS_MAX: u64 = 50_000;
/// After the n-th wait in a row that was not worth it, 2^(n-1) groups are written without one; n counts to here. Where calls
/// come at a rate of their own, or slowly from many threads, nearly none is held up.
const MISSES_MAX: u32 = 8;

#[derive(Debug, Default)]
pub(crate) struct Returns {
    /// Whoever was told by the last write, and whoever waited already: as many are worth a wait. 0: nobody.
    expected: usize,
    write_ns: u64,
    misses: u32,
    skips: u32,
}

/// A group waits until so many wait for it, or for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub until_count: usize,
    pub ns_max: u64,
}

impl Returns {
    /// So many are told now that a write of `write_ns` is over; so many others wait already.
    pub fn note_told(&mut self, told: usize, waiting: usize, write_ns: u64) {
        self.expected = if told == 0 { 0 } else { told + waiting };
        self.write_ns = write_ns;
    }

    /// What a group in which so many wait had better wait for. Its outcome is told by `note_wait`.
    ///
    /// A wait holds up all of the group, and spares those that it waits for a write: it is worth half of what it spares.
    pub fn begin_wait(&mut self, count: usize) -> Option<Wait> {
        let until_count = std::mem::take(&mut self.expected);
        if count >= until_count {
            return None;
        }
        let missing = (until_count - count) as u64;
        let worth_ns = self.write_ns.saturating_mul(missing) / (2 * until_count as u64);
        let part_ns = self.write_ns / WRITE_PARTS.1 * WRITE_PARTS.0;
        let ns_max = worth_ns.min(part_ns).min(WAIT_NS_MAX);
        if ns_max == 0 {
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        Some(Wait { until_count, ns_max })
    }

    /// A wait is over after `waited_ns`, with so many in the group.
    pub fn note_wait(&mut self, wait: Wait, count: usize, waited_ns: u64) {
        let is_worth = count >= wait.until_count && waited_ns <= wait.ns_max;
        self.misses = match is_worth {
            true => 0,
            false => (self.misses + 1).min(MISSES_MAX),
        };
        self.skips = (1 << self.misses) / 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE_NS: u64 = 130_000;

    fn after(told: usize, waiting: usize) -> Returns {
        let mut returns = Returns::default();
        returns.note_told(told, waiting, WRITE_NS);
        returns
    }

    #[test]
    fn a_group_waits_for_all_who_were_told_and_all_who_waited() {
        let wait = |until_count, ns_max| Some(Wait { until_count, ns_max });
        assert_eq!(after(64, 0).begin_wait(1), wait(64, 48_750));
        // Those who waited meanwhile go with them, or two groups would take turns for ever.
        assert_eq!(after(63, 1).begin_wait(2), wait(64, 48_750));
        // Few are missing: little is spared.
        assert_eq!(after(64, 0).begin_wait(60), wait(64, 4_062));
        let mut slow = Returns::default();
        slow.note_told(64, 0, 40_000_000);
        assert_eq!(slow.begin_wait(1).expect("a wait").ns_max, WAIT_NS_MAX);
    }

    #[test]
    fn who_is_alone_or_in_company_already_waits_for_nobody() {
        assert_eq!(after(1, 0).begin_wait(1), None);
        assert_eq!(after(5, 0).begin_wait(5), None);
        assert_eq!(Returns::default().begin_wait(1), None);
        // Nobody waits for what was told: an asynchronous log.
        assert_eq!(after(0, 3).begin_wait(1), None);
        let mut once = after(8, 0);
        assert!(once.begin_wait(1).is_some() && once.begin_wait(1).is_none());
    }

    /// Groups that wait, out of so many of which each ends with `count` of 15 after `waited_ns`.
    fn waits(returns: &mut Returns, groups: u32, count: usize, waited_ns: u64) -> u32 {
        let mut waits = 0;
        for _ in 0..groups {
            returns.note_told(8, 7, WRITE_NS);
            if let Some(wait) = returns.begin_wait(7) {
                returns.note_wait(wait, count, waited_ns);
                waits += 1;
            }
        }
        waits
    }

    #[test]
    fn calls_at_a_rate_of_their_own_are_hardly_ever_held_up() {
        let mut returns = Returns::default();
        let held_up = waits(&mut returns, 10_000, 9, 34_000);
        assert!((50..120).contains(&held_up), "{held_up} of 10,000 groups");
        // Once all come back at once, they are waited for again.
        assert!(waits(&mut returns, 1_000, 15, 9_000) > 800);
        // A straggler now and then costs one wait.
        waits(&mut returns, 1, 14, 34_000);
        assert_eq!(waits(&mut returns, 100, 15, 9_000), 99);
        // All of them, but too late to be worth the wait: threads that each have to wake up.
        assert!(waits(&mut returns, 10_000, 15, 60_000) < 120);
    }
}
