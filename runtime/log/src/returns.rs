//! Whether a group waits for clients that were just acknowledged. A client that keeps several commits in flight appends each of them
//! again within microseconds of its end. Without a wait the first to return is written alone, and all others wait for that write and
//! for their own.

/// The longest wait, in parts of the write before it, and at most.
const WRITE_PARTS: (u64, u64) = (3, 8);
const WAIT_NS_MAX: u64 = 50_000;
/// After the n-th wait in a row that was not worth it, 2^(n-1) groups are written without one; n counts to here. If calls come at a rate of their
/// own, or slowly from many threads, nearly none is held up.
const MISSES_MAX: u32 = 8;

#[derive(Debug, Default)]
pub(crate) struct ReturnPrediction {
    /// Callers that the last write acknowledged, and callers that waited already: this many are worth a wait. 0: none.
    expected: usize,
    write_ns: u64,
    misses: u32,
    skips: u32,
}

/// A wait until `until_count` callers wait for the group, or for `ns_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReturnsWait {
    pub until_count: usize,
    pub ns_max: u64,
}

impl ReturnPrediction {
    /// Records that `acknowledged` callers are acknowledged after a write of `write_ns`, while `waiting` others wait already.
    pub fn record_acknowledged(&mut self, acknowledged: usize, waiting: usize, write_ns: u64) {
        self.expected = if acknowledged == 0 { 0 } else { acknowledged + waiting };
        self.write_ns = write_ns;
    }

    /// Begins the wait that suits a group of `count` callers. Its caller reports the outcome to `record_wait`.
    ///
    /// A wait delays the whole group, and saves the expected callers a write. It may cost half of its saving.
    pub fn begin_wait(&mut self, count: usize) -> Option<ReturnsWait> {
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
        Some(ReturnsWait { until_count, ns_max })
    }

    /// Records the outcome of a wait of `waited_ns`, with `count` callers in the group.
    pub fn record_wait(&mut self, wait: ReturnsWait, count: usize, waited_ns: u64) {
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

    fn after(acknowledged: usize, waiting: usize) -> ReturnPrediction {
        let mut returns = ReturnPrediction::default();
        returns.record_acknowledged(acknowledged, waiting, WRITE_NS);
        returns
    }

    #[test]
    fn group_waits_for_all_acknowledged_and_all_waiting_clients() {
        let wait = |until_count, ns_max| Some(ReturnsWait { until_count, ns_max });
        assert_eq!(after(64, 0).begin_wait(1), wait(64, 48_750));
        // Callers that waited meanwhile go with them, or two groups would take turns for ever.
        assert_eq!(after(63, 1).begin_wait(2), wait(64, 48_750));
        // Few are missing: little is spared.
        assert_eq!(after(64, 0).begin_wait(60), wait(64, 4_062));
        let mut slow = ReturnPrediction::default();
        slow.record_acknowledged(64, 0, 40_000_000);
        assert_eq!(slow.begin_wait(1).expect("a wait").ns_max, WAIT_NS_MAX);
    }

    #[test]
    fn client_alone_or_with_others_does_not_wait() {
        assert_eq!(after(1, 0).begin_wait(1), None);
        assert_eq!(after(5, 0).begin_wait(5), None);
        assert_eq!(ReturnPrediction::default().begin_wait(1), None);
        // No caller waits for a result: an asynchronous log.
        assert_eq!(after(0, 3).begin_wait(1), None);
        let mut once = after(8, 0);
        assert!(once.begin_wait(1).is_some() && once.begin_wait(1).is_none());
    }

    /// Counts the groups that wait, if each ends with `count` of 15 after `waited_ns`.
    fn waits(returns: &mut ReturnPrediction, groups: u32, count: usize, waited_ns: u64) -> u32 {
        let mut waits = 0;
        for _ in 0..groups {
            returns.record_acknowledged(8, 7, WRITE_NS);
            if let Some(wait) = returns.begin_wait(7) {
                returns.record_wait(wait, count, waited_ns);
                waits += 1;
            }
        }
        waits
    }

    #[test]
    fn calls_at_a_rate_of_their_own_are_hardly_ever_held_up() {
        let mut returns = ReturnPrediction::default();
        let held_up = waits(&mut returns, 10_000, 9, 34_000);
        assert!((50..120).contains(&held_up), "{held_up} of 10,000 groups");
        // After they have all returned at once, groups wait for them again.
        assert!(waits(&mut returns, 1_000, 15, 9_000) > 800);
        // A straggler now and then costs one wait.
        waits(&mut returns, 1, 14, 34_000);
        assert_eq!(waits(&mut returns, 100, 15, 9_000), 99);
        // All of them, but too late to be worth the wait: threads that each have to wake up.
        assert!(waits(&mut returns, 10_000, 15, 60_000) < 120);
    }
}
