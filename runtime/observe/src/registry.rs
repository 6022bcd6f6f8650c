//! Counters of each engine thread, and their sum.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use hdrhistogram::Histogram;

use crate::{
    Counter, LatencyHistogram, ProcedureMeters, Refusals,
    histogram::{empty, nanoseconds},
};

/// The counters of one engine thread, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ThreadCounters {
    committed: Counter,
    aborted: Counter,
    trapped: Counter,
    fuel: Counter,
    batches: Counter,
    log_bytes: Counter,
    /// Time of engine threads for calls that left records.
    write_ns: Counter,
    /// Time from the start of a batch to its hand-over to the log.
    run: LatencyHistogram,
}

/// An engine thread's hand on its counters. Not cloned: each counter has one writer.
#[derive(Debug)]
pub struct Recorder(Arc<ThreadCounters>);

impl Recorder {
    /// A transaction committed.
    #[inline]
    pub fn committed(&self) {
        self.0.committed.add(1);
    }

    /// A transaction left nothing: by its own abort, or by a trap or limit.
    #[inline]
    pub fn failed(&self, aborted: bool) {
        if aborted {
            self.0.aborted.add(1);
        } else {
            self.0.trapped.add(1);
        }
    }

    /// Counts a record of `bytes` bytes that went to the log.
    #[inline]
    pub fn logged(&self, bytes: u64) {
        self.0.log_bytes.add(bytes);
    }

    /// Counts the time of engine threads that the replay of calls with records takes.
    #[inline]
    pub fn wrote(&self, elapsed: Duration) {
        self.0.write_ns.add(nanoseconds(elapsed));
    }

    /// A batch of `calls` ran in `elapsed`, each counting with its share, and burned `fuel`.
    #[inline]
    pub fn ran(&self, calls: u64, elapsed: Duration, fuel: u64) {
        self.0.fuel.add(fuel);
        self.0.batches.add(1);
        let share = nanoseconds(elapsed) / calls.max(1);
        self.0.run.record(share, calls);
    }
}

/// Counters of the log's flusher.
#[derive(Debug, Default)]
pub struct FlushStats {
    /// Writes.
    pub flushes: Counter,
    /// Bytes written, headers and padding included.
    pub bytes: Counter,
    /// That were written.
    pub records: Counter,
    /// Time from the start of a write until it is durable.
    pub write: LatencyHistogram,
    /// Sums over short and long writes. Their difference is what a byte costs.
    short: WriteSums,
    long: WriteSums,
}

#[derive(Debug, Default)]
struct WriteSums {
    writes: Counter,
    bytes: Counter,
    ns: Counter,
}

impl WriteSums {
    /// Returns the mean bytes and nanoseconds of a write.
    fn means(&self) -> Option<[f64; 2]> {
        let writes = self.writes.get();
        (writes > 0).then(|| [&self.bytes, &self.ns].map(|sum| sum.get() as f64 / writes as f64))
    }
}

/// Bytes from which on a write is long.
const LONG_WRITE_BYTES: u64 = 32 << 10;

impl FlushStats {
    /// Counts a write of these bytes and records, which took `ns`.
    pub fn wrote(&self, bytes: u64, records: u64, ns: u64) {
        self.write.record(ns, 1);
        self.flushes.add(1);
        self.bytes.add(bytes);
        self.records.add(records);
        let sums = if bytes < LONG_WRITE_BYTES {
            &self.short
        } else {
            &self.long
        };
        sums.writes.add(1);
        sums.bytes.add(bytes);
        sums.ns.add(ns);
    }

    /// Returns the nanoseconds in which the device takes one more byte. None: there were no short or no long writes yet.
    pub fn byte_ns(&self) -> Option<f64> {
        let [few, short_ns] = self.short.means()?;
        let [many, long_ns] = self.long.means()?;
        Some((long_ns - short_ns) / (many - few))
    }
}

/// Knows every recorder.
#[derive(Debug, Default)]
pub struct Registry {
    threads: Mutex<Vec<Arc<ThreadCounters>>>,
    flush: Mutex<Option<Arc<FlushStats>>>,
    /// Time from the acceptance of a call to its answer; several threads write.
    answered: LatencyHistogram,
    /// Outcomes of calls, by procedure.
    pub procedures: ProcedureMeters,
    /// Counts of calls that did not run, by reason.
    pub refusals: Refusals,
}

/// Sums over all engine threads since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Transactions that committed.
    pub committed: u64,
    /// Calls that aborted themselves.
    pub aborted: u64,
    /// Calls that a trap or a limit ended.
    pub trapped: u64,
    /// Calls and requests that did not run, whatever the reason.
    pub rejected: u64,
    /// Burned by all calls.
    pub fuel: u64,
    /// That ran.
    pub batches: u64,
    /// Bytes of records, without headers and padding.
    pub log_bytes: u64,
    /// Writes of the log.
    pub flushes: u64,
    /// Headers and padding included.
    pub flushed_bytes: u64,
    /// That were written.
    pub flushed_records: u64,
}

/// The state at one moment. Histograms are cumulative: subtract an earlier one for an interval.
#[derive(Clone, Debug)]
pub struct MetricsSnapshot {
    /// Sums over all engine threads and the flusher.
    pub totals: Totals,
    /// Per engine thread, in the order of registration.
    pub threads: Vec<Totals>,
    /// Nanoseconds from the acceptance of a call to its answer.
    pub answered: Histogram<u64>,
    /// Nanoseconds that a call ran: its share of its batch.
    pub run: Histogram<u64>,
    /// Nanoseconds of a write of the log until it is durable.
    pub flush: Histogram<u64>,
}

impl Registry {
    /// A registry without threads.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counters for one more engine thread.
    pub fn recorder(&self) -> Recorder {
        let counters = Arc::new(ThreadCounters::default());
        let mut threads = self.threads.lock().expect("nothing panics in here");
        threads.push(Arc::clone(&counters));
        Recorder(counters)
    }

    /// Includes the counts of the log's flusher.
    pub fn attach_flush(&self, stats: Arc<FlushStats>) {
        *self.flush.lock().expect("nothing panics in here") = Some(stats);
    }

    /// `calls` were answered together, `elapsed` after they came in. From any thread.
    #[inline]
    pub fn answered(&self, calls: u64, elapsed: Duration) {
        self.answered.record_shared(nanoseconds(elapsed), calls);
    }

    /// Nanoseconds of engine threads that calls with records took. Replay takes the same to run them again.
    pub fn write_ns(&self) -> u64 {
        let threads = self.threads.lock().expect("nothing panics in here");
        threads.iter().map(|thread| thread.write_ns.get()).sum()
    }

    /// The counts until now.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let mut snapshot = MetricsSnapshot {
            totals: Totals::default(),
            threads: Vec::new(),
            answered: self.answered.histogram(),
            run: empty(),
            flush: empty(),
        };
        for thread in self.threads.lock().expect("nothing panics in here").iter() {
            let totals = thread.totals();
            snapshot.totals.add(&totals);
            snapshot.threads.push(totals);
            thread.run.add_to(&mut snapshot.run);
        }
        snapshot.totals.rejected = self.refusals.all().iter().sum();
        if let Some(flush) = &*self.flush.lock().expect("nothing panics in here") {
            snapshot.totals.flushes = flush.flushes.get();
            snapshot.totals.flushed_bytes = flush.bytes.get();
            snapshot.totals.flushed_records = flush.records.get();
            flush.write.add_to(&mut snapshot.flush);
        }
        snapshot
    }
}

impl ThreadCounters {
    fn totals(&self) -> Totals {
        Totals {
            committed: self.committed.get(),
            aborted: self.aborted.get(),
            trapped: self.trapped.get(),
            fuel: self.fuel.get(),
            batches: self.batches.get(),
            log_bytes: self.log_bytes.get(),
            ..Totals::default()
        }
    }
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.trapped += other.trapped;
        self.fuel += other.fuel;
        self.batches += other.batches;
        self.log_bytes += other.log_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_sums_the_threads() {
        let registry = Registry::new();
        let recorders = [registry.recorder(), registry.recorder()];
        let flush = Arc::new(FlushStats::default());
        registry.attach_flush(Arc::clone(&flush));
        for recorder in &recorders {
            recorder.committed();
            recorder.failed(true);
            recorder.failed(false);
            recorder.logged(40);
            recorder.wrote(Duration::from_nanos(7));
            recorder.ran(2, Duration::from_micros(10), 5);
        }
        assert_eq!(flush.byte_ns(), None);
        flush.wrote(1_000, 2, 100_000);
        flush.wrote(2_000, 0, 102_000);
        flush.wrote(101_500, 1, 301_000);
        assert_eq!(flush.byte_ns(), Some(2.0));
        registry.answered(5, Duration::from_millis(2));
        let snapshot = registry.snapshot();
        let expected = Totals {
            committed: 2,
            aborted: 2,
            trapped: 2,
            log_bytes: 80,
            fuel: 10,
            batches: 2,
            flushes: 3,
            flushed_bytes: 104_500,
            flushed_records: 3,
            ..Totals::default()
        };
        assert_eq!((snapshot.totals, registry.write_ns()), (expected, 14));
        assert_eq!((snapshot.threads.len(), snapshot.run.len()), (2, 4));
        assert_eq!(snapshot.answered.len(), 5);
    }
}
