//! Time that a scheme's log takes: on the engine threads, and on the log's own threads (NV-Logging, section 6.5).

use std::{
    cell::OnceCell,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use reprise_database::{Database, Environment};
use reprise_driver::{Around, BenchError, engine_ran_ns, is_engine_thread};
use reprise_env::{Clock, DiskError, DiskFile, DiskFilter, FilteredDisk, RealClock};
use reprise_nvram::{Memory, OpenMemory, Persistence, PmemError};

use crate::schemes::Scheme;

thread_local! {
    static IS_ENGINE: OnceCell<bool> = const { OnceCell::new() };
}

/// Nanoseconds in calls of the log's memory or disk.
#[derive(Default)]
struct LogTime {
    engine_ns: AtomicU64,
    others_ns: AtomicU64,
    /// Part of `engine_ns` in which the thread slept.
    engine_asleep_ns: AtomicU64,
    clock: RealClock,
}

impl LogTime {
    /// Counts a call that waits for a device.
    fn add_waiting<T>(&self, call: impl FnOnce() -> T) -> T {
        let (began, ran_ns) = (Instant::now(), self.clock.thread_processor_ns());
        let result = self.add(call);
        let ran_ns = self.clock.thread_processor_ns() - ran_ns;
        if is_engine() {
            let asleep_ns = (began.elapsed().as_nanos() as u64).saturating_sub(ran_ns);
            self.engine_asleep_ns.fetch_add(asleep_ns, Ordering::Relaxed);
        }
        result
    }

    fn add<T>(&self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = call();
        let ns = began.elapsed().as_nanos() as u64;
        let sum = if is_engine() { &self.engine_ns } else { &self.others_ns };
        sum.fetch_add(ns, Ordering::Relaxed);
        result
    }
}

fn is_engine() -> bool {
    IS_ENGINE.with(|known| *known.get_or_init(|| thread::current().name().is_some_and(is_engine_thread)))
}

/// A moment of a run.
struct Reading {
    at: Instant,
    engine_ran_ns: u64,
    log_engine_ns: u64,
    log_asleep_ns: u64,
    log_others_ns: u64,
}

/// Shares of the engine threads' time during the load.
#[derive(Clone, Copy, Debug)]
pub struct TimeShares {
    /// Procedures and tables, in percent.
    pub database: f64,
    /// Calls of the log's memory or disk on engine threads, in percent.
    pub log: f64,
    /// Rest: the engine threads wait for the log, or for the next call. In percent.
    pub waiting: f64,
    /// Calls of the log's memory or disk on other threads, in percent of one processor.
    pub log_elsewhere: f64,
}

impl TimeShares {
    fn between(before: &Reading, after: &Reading, sites: u16) -> Self {
        let one_ns = (after.at - before.at).as_nanos() as f64;
        let all_ns = one_ns * f64::from(sites);
        let ran_ns = (after.engine_ran_ns - before.engine_ran_ns) as f64;
        let log_ns = (after.log_engine_ns - before.log_engine_ns) as f64;
        let asleep_ns = (after.log_asleep_ns - before.log_asleep_ns) as f64;
        // The clocks are read one after the other, and a short run ends in between.
        let database_ns = (ran_ns - (log_ns - asleep_ns)).min(all_ns - log_ns).max(0.0);
        let elsewhere_ns = (after.log_others_ns - before.log_others_ns) as f64;
        Self {
            database: database_ns / all_ns * 100.0,
            log: log_ns / all_ns * 100.0,
            waiting: (all_ns - database_ns - log_ns).max(0.0) / all_ns * 100.0,
            log_elsewhere: elsewhere_ns / one_ns * 100.0,
        }
    }
}

/// A scheme whose log is timed.
pub struct TimedScheme {
    scheme: Scheme,
    line: Duration,
    time: Arc<LogTime>,
    readings: Mutex<Vec<Reading>>,
}

impl TimedScheme {
    pub fn new(scheme: Scheme, line: Duration) -> Self {
        Self {
            scheme,
            line,
            time: Arc::default(),
            readings: Mutex::default(),
        }
    }

    fn read(&self) -> Result<(), BenchError> {
        let unknown = || BenchError::Failed("this system does not report the processor time of a thread".into());
        let reading = Reading {
            at: Instant::now(),
            engine_ran_ns: engine_ran_ns().ok_or_else(unknown)?,
            log_engine_ns: self.time.engine_ns.load(Ordering::Relaxed),
            log_asleep_ns: self.time.engine_asleep_ns.load(Ordering::Relaxed),
            log_others_ns: self.time.others_ns.load(Ordering::Relaxed),
        };
        self.readings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(reading);
        Ok(())
    }

    /// Returns the shares of the last run's load. None: no run reached its end.
    pub fn shares(&self, sites: u16) -> Option<TimeShares> {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let [.., before, after] = readings.as_slice() else {
            return None;
        };
        Some(TimeShares::between(before, after, sites))
    }
}

impl Around for TimedScheme {
    fn change(&self, around: &mut Environment) {
        self.scheme.change(around, self.line);
        around.nvram = Arc::new(TimedRegions {
            regions: around.nvram.clone(),
            time: self.time.clone(),
        });
        if let Some(folders) = &mut around.folders {
            let disk = folders.log.clone();
            folders.log = Arc::new(FilteredDisk::new(disk, Arc::new(TimedDisk(self.time.clone()))));
        }
    }

    fn filled(&self, _database: &Arc<Database>) -> Result<(), BenchError> {
        self.read()
    }

    fn ran(&self, _database: &Arc<Database>) -> Result<(), BenchError> {
        self.read()
    }
}

/// A log's folder.
struct TimedDisk(Arc<LogTime>);

impl DiskFilter for TimedDisk {
    fn write_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.0.add_waiting(|| file.write_at(offset, bytes))
    }

    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.0.add_waiting(|| file.write_durable_at(offset, bytes))
    }
}

struct TimedRegions {
    regions: Arc<dyn OpenMemory>,
    time: Arc<LogTime>,
}

struct TimedMemory {
    memory: Arc<dyn Memory>,
    time: Arc<LogTime>,
}

impl OpenMemory for TimedRegions {
    fn open(&self, path: &Path, bytes: Option<u64>) -> Result<Arc<dyn Memory>, PmemError> {
        Ok(Arc::new(TimedMemory {
            memory: self.regions.open(path, bytes)?,
            time: self.time.clone(),
        }))
    }
}

impl Memory for TimedMemory {
    fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.time.add(|| self.memory.write(at, bytes));
    }

    fn store(&self, at: usize, word: u64) {
        self.time.add(|| self.memory.store(at, word));
    }

    fn store_all(&self, at: usize, words: &[u64]) {
        self.time.add(|| self.memory.store_all(at, words));
    }

    fn load(&self, at: usize) -> u64 {
        self.memory.load(at)
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.memory.read(at, into);
    }

    fn drain(&self) {
        self.time.add_waiting(|| self.memory.drain());
    }

    fn persistence(&self) -> Persistence {
        self.memory.persistence()
    }

    fn release(&self) {
        self.memory.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_the_engine_threads_add_up_to_their_time() {
        let reading = |at, [engine_ran_ns, log_engine_ns, log_asleep_ns, log_others_ns]: [u64; 4]| Reading {
            at,
            engine_ran_ns,
            log_engine_ns,
            log_asleep_ns,
            log_others_ns,
        };
        let began = Instant::now();
        let before = reading(began, [1_000, 100, 10, 7]);
        let after = reading(began + Duration::from_nanos(500), [1_570, 200, 40, 257]);
        let shares = TimeShares::between(&before, &after, 2);
        let rounded = [shares.database, shares.log, shares.waiting, shares.log_elsewhere].map(f64::round);
        assert_eq!(rounded, [50.0, 10.0, 40.0, 50.0]);
    }

    #[test]
    fn calls_on_engine_threads_are_counted_apart() {
        let time = Arc::new(LogTime::default());
        for name in ["site-0", "log-writer"] {
            let time = time.clone();
            let work = move || time.add(|| thread::sleep(Duration::from_millis(2)));
            let thread = thread::Builder::new().name(name.into()).spawn(work);
            thread.expect("a thread").join().expect("it ends");
        }
        for sum in [&time.engine_ns, &time.others_ns] {
            assert!(sum.load(Ordering::Relaxed) >= 2_000_000);
        }
    }
}
