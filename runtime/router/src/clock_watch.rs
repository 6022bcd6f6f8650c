//! Finds jumps of the wall clock: at a start it is compared with the log's newest transaction, later with the monotonic clock.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use reprise_base::TxnId;
use reprise_observe::{Notice, NoticeKind};

use crate::router::Router;

/// Gain or loss of the wall clock between two readings that counts as a jump. Transaction ids, restore points and all displayed times depend
/// on that clock.
const JUMP_US: u64 = 3_600_000_000;

/// The last reading of both clocks, and the number of jumps since the start.
#[derive(Default)]
pub(crate) struct ClockWatch {
    last: Mutex<Option<ClockReading>>,
    jumps: AtomicU64,
}

#[derive(Clone, Copy)]
struct ClockReading {
    wall_us: i64,
    monotonic_ns: u64,
}

impl ClockWatch {
    /// Takes the next reading. Returns by how much the wall clock jumped ahead since the last one, or back, if it did.
    fn take_jump(&self, next: ClockReading) -> Option<i64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(next)?;
        let passed_us = next.monotonic_ns.saturating_sub(before.monotonic_ns) / 1_000;
        let expected_us = before.wall_us.saturating_add_unsigned(passed_us);
        self.count_jump(next.wall_us.saturating_sub(expected_us))
    }

    /// Returns by how much the wall clock is back at a start, if it is behind the newest transaction of the log by a jump.
    fn take_start_jump(&self, wall_us: i64, newest: TxnId) -> Option<i64> {
        // No id has an earlier time than the first id, whatever the clock reads.
        let wall_us = wall_us.max(TxnId::default().time_us());
        let jump_us = wall_us.saturating_sub(newest.time_us());
        // A clock that is ahead may be right: the server was stopped meanwhile.
        if jump_us >= 0 {
            return None;
        }
        self.count_jump(jump_us)
    }

    /// Counts a difference that is a jump. None: it is not.
    fn count_jump(&self, by_us: i64) -> Option<i64> {
        if by_us.unsigned_abs() <= JUMP_US {
            return None;
        }
        self.jumps.fetch_add(1, Ordering::Relaxed);
        Some(by_us)
    }
}

impl Router {
    /// Checks whether the wall clock jumped since the last reading, and reports it.
    pub fn check_clock(&self) {
        let clock = &self.0.config.shared.clock;
        let reading = ClockReading {
            wall_us: clock.now_us(),
            monotonic_ns: clock.monotonic_ns(),
        };
        self.report_jump(self.0.clock_watch.take_jump(reading));
    }

    /// Checks whether the wall clock of a primary is behind the newest transaction of the log that it opens, and reports it. The clock was
    /// then set back between two runs, where `check_clock` has no earlier reading.
    pub fn check_start_clock(&self, newest: TxnId) {
        let wall_us = self.0.config.shared.clock.now_us();
        self.report_jump(self.0.clock_watch.take_start_jump(wall_us, newest));
    }

    fn report_jump(&self, by_us: Option<i64>) {
        if let Some(by_us) = by_us {
            self.notices()
                .publish(NoticeKind::Clock, || Notice::ClockJumped { by_us });
        }
    }

    /// Jumps of the wall clock by more than an hour since the start, with the one that the start found.
    pub fn clock_jumps(&self) -> u64 {
        self.0.clock_watch.jumps.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_by_more_than_an_hour_is_found() {
        let watch = ClockWatch::default();
        let mut monotonic_s = 100;
        let mut read = |wall_s: i64| {
            monotonic_s += 1;
            let jump = watch.take_jump(ClockReading {
                wall_us: wall_s * 1_000_000,
                monotonic_ns: monotonic_s * 1_000_000_000,
            });
            jump.map(|jump_us| jump_us / 1_000_000)
        };
        assert_eq!(read(50_000), None);
        assert_eq!(read(50_001), None);
        assert_eq!(read(53_602), None, "an hour is set right by some clocks at a start");
        assert_eq!(read(53_603 + 172_800), Some(172_800));
        assert_eq!(read(53_604 + 172_800), None);
        assert_eq!(read(53_605), Some(-172_800));
        assert_eq!(watch.jumps.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn clock_jumped_when_a_start_finds_it_an_hour_behind_the_log() {
        let watch = ClockWatch::default();
        let now_us = 1_800_000_000_000_000;
        let hour_us = JUMP_US as i64;
        let start = |ahead_us: i64| {
            let newest = TxnId::new(TxnId::tick_at(now_us + ahead_us), 0);
            watch.take_start_jump(now_us, newest)
        };
        assert_eq!(start(-48 * hour_us), None, "the server was stopped for days");
        assert_eq!(start(hour_us), None);
        assert_eq!(start(48 * hour_us), Some(-48 * hour_us));
        assert_eq!(watch.jumps.load(Ordering::Relaxed), 1);
        // A clock before the first id gives out the ids that follow it.
        assert_eq!(watch.take_start_jump(0, TxnId::new(1_000, 0)), None);
        assert_eq!(watch.take_start_jump(i64::MIN, TxnId::default()), None);
    }
}
