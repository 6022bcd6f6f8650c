//! A clock that stands until it is moved.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Clock;

/// Moves only when told.
#[derive(Debug, Default)]
pub struct SimClock {
    ns: AtomicI64,
    suspended_ns: AtomicI64,
}

impl SimClock {
    /// A clock that stands at `unix_us` microseconds since 1970.
    pub fn at_us(unix_us: i64) -> Self {
        Self {
            ns: AtomicI64::new(unix_us * 1_000),
            suspended_ns: AtomicI64::new(0),
        }
    }

    /// Moves the clock forward. Panics if `us` is negative.
    pub fn advance_us(&self, us: i64) {
        assert!(us >= 0, "the monotonic clock can't go back");
        self.ns.fetch_add(us * 1_000, Ordering::Relaxed);
    }

    /// Suspends the machine for `us` microseconds: the monotonic clock stands still, and the others advance.
    pub fn suspend_us(&self, us: i64) {
        assert!(us >= 0, "time goes on");
        self.suspended_ns.fetch_add(us * 1_000, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now_us(&self) -> i64 {
        self.boot_ns() as i64 / 1_000
    }

    fn monotonic_ns(&self) -> u64 {
        self.ns.load(Ordering::Relaxed) as u64
    }

    fn boot_ns(&self) -> u64 {
        (self.ns.load(Ordering::Relaxed) + self.suspended_ns.load(Ordering::Relaxed)) as u64
    }
}
