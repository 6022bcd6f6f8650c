//! Finds jumps of the wall clock: each reading compares it with the monotonic clock.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

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
        let jump_us = next.wall_us.saturating_sub(expected_us);
        if jump_us.unsigned_abs() <= JUMP_US {
            return None;
        }
        self.jumps.fetch_add(1, Ordering::Relaxed);
        Some(jump_us)
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
        if let Some(by_us) = self.0.clock_watch.take_jump(reading) {
            self.notices()
                .publish(NoticeKind::Clock, || Notice::ClockJumped { by_us });
        }
    }

    /// Jumps of the wall clock by more than an hour since the start.
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
}
