//! The clock by which idempotency keys age. It counts the time in which a primary ran, whatever the wall clock says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reprise_env::Clock;

/// Time in which a primary of this database ran, over restarts and failovers.
///
/// Each mark of the log and each checkpoint has it, so the clock continues from the newest of these. After a crash, time behind the last
/// mark does not count, and keys are kept longer by that time. A jump of the wall clock does not change it.
pub struct KeyClock {
    clock: Arc<dyn Clock>,
    state: Mutex<KeyClockState>,
}

#[derive(Clone, Copy, Default)]
struct KeyClockState {
    counted_us: u64,
    /// Time of the node's monotonic clock since which this server is the primary.
    runs_since_ns: Option<u64>,
}

impl KeyClock {
    /// A clock that stands at 0.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = Mutex::default();
        Self { clock, state }
    }

    fn lock(&self) -> MutexGuard<'_, KeyClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, state: KeyClockState) -> u64 {
        let ran_ns = state
            .runs_since_ns
            .map_or(0, |since_ns| self.clock.monotonic_ns().saturating_sub(since_ns));
        state.counted_us.saturating_add(ran_ns / 1_000)
    }

    /// Returns the counted time in microseconds. It never falls while a database is open.
    pub fn now_us(&self) -> u64 {
        let state = *self.lock();
        self.read(state)
    }

    /// Continues from the time of a mark or a checkpoint, if that is later.
    pub fn raise(&self, counted_us: u64) {
        let mut state = self.lock();
        let missing_us = counted_us.saturating_sub(self.read(*state));
        state.counted_us += missing_us;
    }

    /// Lets the clock run: this server is the primary now.
    pub fn run(&self) {
        let mut state = self.lock();
        let now_ns = self.clock.monotonic_ns();
        state.runs_since_ns.get_or_insert(now_ns);
    }

    /// Stops the clock: this server is no primary now.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.counted_us = self.read(*state);
        state.runs_since_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Seconds(AtomicU64);

    impl Clock for Seconds {
        fn now_us(&self) -> i64 {
            0
        }
        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed) * 1_000_000_000
        }
    }

    #[test]
    fn time_is_counted_while_a_primary_runs() {
        let clock = Arc::new(Seconds(AtomicU64::new(50)));
        let keys = KeyClock::new(clock.clone());
        let pass = |seconds| clock.0.fetch_add(seconds, Ordering::Relaxed);
        pass(10);
        assert_eq!(keys.now_us(), 0);
        keys.raise(7_000_000);
        keys.run();
        pass(3);
        keys.run();
        keys.raise(8_000_000);
        assert_eq!(keys.now_us(), 10_000_000);
        keys.stop();
        pass(5);
        assert_eq!(keys.now_us(), 10_000_000);
        keys.raise(12_000_000);
        keys.run();
        pass(1);
        assert_eq!(keys.now_us(), 13_000_000);
    }
}
