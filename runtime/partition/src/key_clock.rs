//! The clock by which idempotency keys age. It counts the time in which a primary ran, whatever the wall clock says.

use std::{
    collections::BTreeMap,
    mem::take,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use reprise_env::Clock;

/// Time in which a primary of this database ran, over restarts and failovers.
///
/// Each mark of the log and each checkpoint has it, so the clock continues from the newest of these. After a crash, time behind the last
/// mark does not count, and keys are kept longer by that time. A jump of the wall clock does not change it.
///
/// While the server replays a log, the clock stands still between two marks. A call that ran just before a mark is replayed at the
/// reading of the mark before it. A key that aged from that reading would expire too early by up to the interval of marks. A repeat of
/// the call would then run twice. Replayed keys therefore age from the first mark behind them, or from the last mark if none follows.
///
/// A mark re-dates no entries, because there may be millions, and a checkpoint may be paging through them in the order of readings.
/// Instead, the clock keeps the date that each mark gave to the reading before it. A replayed mark raises the clock when all partitions
/// are held at its place in the log. Keys before the mark therefore have the earlier reading, and keys behind it the later one.
pub struct KeyClock {
    clock: Arc<dyn Clock>,
    state: Mutex<KeyClockState>,
}

#[derive(Default)]
struct KeyClockState {
    counted_us: u64,
    /// Time of the node's monotonic clock since which this server is the primary.
    runs_since_ns: Option<u64>,
    /// True if keys may have the present reading and get their date from the next mark.
    has_undated: bool,
    /// Dates of the readings at which the clock stood while keys were replayed: for each, the reading of the next mark. Both ascend.
    dates: BTreeMap<u64, u64>,
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

    fn read(&self, state: &KeyClockState) -> u64 {
        let ran_ns = state
            .runs_since_ns
            .map_or(0, |since_ns| self.clock.monotonic_ns().saturating_sub(since_ns));
        state.counted_us.saturating_add(ran_ns / 1_000)
    }

    /// Returns the counted time in microseconds. It never falls while a database is open.
    pub fn now_us(&self) -> u64 {
        let state = self.lock();
        self.read(&state)
    }

    /// Returns the reading at which replay keeps an outcome. The next mark dates it.
    pub fn replay_reading_us(&self) -> u64 {
        let mut state = self.lock();
        state.has_undated = true;
        self.read(&state)
    }

    /// Continues from the time of a checkpoint, if that is later. A standby's checkpoint may have keys that the next mark dates.
    pub fn raise(&self, counted_us: u64) {
        let mut state = self.lock();
        let missing_us = counted_us.saturating_sub(self.read(&state));
        state.counted_us += missing_us;
        state.has_undated = true;
    }

    /// Continues from the time of a replayed mark, if that is later. Keys with the reading before it age from the mark. The caller holds
    /// all partitions at the mark's place in the log.
    pub fn raise_at_mark(&self, counted_us: u64) {
        let mut state = self.lock();
        let former_us = self.read(&state);
        if counted_us <= former_us {
            return; // keys of this interval get their date from a later mark
        }
        state.counted_us += counted_us - former_us;
        if take(&mut state.has_undated) {
            state.dates.insert(former_us, counted_us);
        }
    }

    /// Returns the time from which an outcome with this reading ages. It never falls while the outcome is kept.
    pub fn date_of(&self, reading_us: u64) -> u64 {
        self.lock().dates.get(&reading_us).copied().unwrap_or(reading_us)
    }

    /// Returns the reading that a mark gave this date, or the date if there is none.
    pub fn reading_dated(&self, date_us: u64) -> u64 {
        let state = self.lock();
        let last = state.dates.range(..date_us).next_back();
        last.filter(|(_, dated_us)| **dated_us == date_us)
            .map_or(date_us, |(reading_us, _)| *reading_us)
    }

    /// Returns the reading before which outcomes are older than `keep_us`. It also drops dates that only such outcomes have.
    ///
    /// If a mark dated a reading and that date has not expired, no reading from there on has expired. Between the two there is no reading
    /// of a replayed key, so one bound serves keys in the order of their readings.
    pub fn expired_before(&self, keep_us: u64) -> u64 {
        let mut state = self.lock();
        let before_us = self.read(&state).saturating_sub(keep_us);
        while state
            .dates
            .first_key_value()
            .is_some_and(|(_, dated_us)| *dated_us < before_us)
        {
            state.dates.pop_first();
        }
        let oldest = state.dates.first_key_value();
        oldest.map_or(before_us, |(reading_us, _)| before_us.min(*reading_us))
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
        let counted_us = self.read(&state);
        state.counted_us = counted_us;
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

    #[test]
    fn replayed_reading_ages_from_the_next_mark() {
        let keys = KeyClock::new(Arc::new(Seconds(AtomicU64::new(50))));
        let first = keys.replay_reading_us();
        assert_eq!((first, keys.date_of(first)), (0, 0));
        keys.raise_at_mark(60);
        let second = keys.replay_reading_us();
        assert_eq!((second, keys.date_of(first), keys.date_of(second)), (60, 60, 60));
        assert_eq!(keys.expired_before(30), 0, "the first key's age is 0");
        // A mark that does not raise the clock dates nothing.
        keys.raise_at_mark(50);
        keys.raise_at_mark(100);
        assert_eq!((keys.date_of(first), keys.date_of(second)), (60, 100));
        assert_eq!((keys.reading_dated(60), keys.reading_dated(100)), (first, second));
        assert_eq!((keys.reading_dated(59), keys.reading_dated(101)), (59, 101));
        assert_eq!(keys.expired_before(40), first);
        assert_eq!(keys.expired_before(39), second, "the first key has expired");
        // No key was replayed at 100.
        keys.raise_at_mark(200);
        assert_eq!(keys.expired_before(100), second);
        assert_eq!(keys.expired_before(99), 101);
        assert!(keys.lock().dates.is_empty());
    }

    #[test]
    fn reading_of_a_loaded_checkpoint_ages_from_the_next_mark() {
        let keys = KeyClock::new(Arc::new(Seconds(AtomicU64::new(50))));
        keys.raise(40);
        keys.raise_at_mark(100);
        assert_eq!((keys.date_of(39), keys.date_of(40)), (39, 100));
        assert_eq!(
            keys.expired_before(61),
            39,
            "readings before the checkpoint's age as they are"
        );
        assert_eq!(keys.expired_before(10), 40);
    }
}
