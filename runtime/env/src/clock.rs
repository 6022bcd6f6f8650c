//! Time, in the forms that code below the router may use.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The time of a node.
pub trait Clock: Send + Sync + 'static {
    /// Microseconds since 1970. May stand still or go back: a caller that needs growing numbers makes them itself.
    fn now_us(&self) -> i64;
    /// Nanoseconds since some fixed moment. Never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Nanoseconds since some fixed moment, with the time in which the machine was suspended. Never goes back. For ages that this process tells to
    /// others. A clock that is never suspended has one count for both.
    fn boot_ns(&self) -> u64 {
        self.monotonic_ns()
    }
    /// Nanoseconds for which this thread had a processor since it began. A clock that knows no threads counts all of the time.
    fn thread_processor_ns(&self) -> u64 {
        self.monotonic_ns()
    }
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// Counts its nanoseconds from here on.
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now_us(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_micros() as i64,
            Err(before) => -(before.duration().as_micros() as i64),
        }
    }

    fn monotonic_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn boot_ns(&self) -> u64 {
        clock_ns(libc::CLOCK_BOOTTIME).unwrap_or_else(|| self.monotonic_ns())
    }

    fn thread_processor_ns(&self) -> u64 {
        clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_else(|| self.monotonic_ns())
    }
}

/// None: a system without that clock.
#[allow(unsafe_code)]
fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the length of the call.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        _ => None,
    }
}
