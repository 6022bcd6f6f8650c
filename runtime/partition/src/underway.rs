//! The deployment that holds all partitions, as other threads see it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use reprise_env::Clock;

/// The progress of a deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeployProgress {
    /// The module's name.
    pub module: String,
    /// Rows copied, over all partitions.
    pub rows: u64,
    /// Partitions on which the module's migration has run.
    pub partitions: u32,
    /// Time for which it has held the partitions.
    pub held: Duration,
    /// Seconds that it may hold them; 0: no limit.
    pub max_s: u32,
}

/// The progress of the one deployment that holds all partitions. No thread waits for it.
#[derive(Default)]
pub struct Underway(Mutex<Option<Arc<InstallCounts>>>);

struct InstallCounts {
    module: String,
    begun_ns: u64,
    max_s: u32,
    rows: AtomicU64,
    partitions: AtomicU32,
}

/// Marks a deployment as under way until it is dropped.
pub struct UnderwayGuard<'u>(&'u Underway);

impl Drop for UnderwayGuard<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

impl Underway {
    /// Records that a deployment of this module begins to hold the partitions, for `max_s` seconds at most (0: no limit).
    pub fn begin(&self, module: &str, max_s: u32, clock: &dyn Clock) -> UnderwayGuard<'_> {
        self.set(Some(Arc::new(InstallCounts {
            module: module.to_owned(),
            begun_ns: clock.monotonic_ns(),
            max_s,
            rows: AtomicU64::new(0),
            partitions: AtomicU32::new(0),
        })));
        UnderwayGuard(self)
    }

    /// Returns the progress. None while no deployment holds the partitions.
    pub fn progress(&self, clock: &dyn Clock) -> Option<DeployProgress> {
        let counts = self.current()?;
        Some(DeployProgress {
            module: counts.module.clone(),
            rows: counts.rows.load(Relaxed),
            partitions: counts.partitions.load(Relaxed),
            held: Duration::from_nanos(clock.monotonic_ns().saturating_sub(counts.begun_ns)),
            max_s: counts.max_s,
        })
    }

    pub(crate) fn record_rows(&self, rows: u64) {
        if let Some(counts) = self.current() {
            counts.rows.fetch_add(rows, Relaxed);
        }
    }

    pub(crate) fn record_partition(&self) {
        if let Some(counts) = self.current() {
            counts.partitions.fetch_add(1, Relaxed);
        }
    }

    fn current(&self) -> Option<Arc<InstallCounts>> {
        self.0.lock().expect("held for a short time").clone()
    }

    fn set(&self, counts: Option<Arc<InstallCounts>>) {
        *self.0.lock().expect("held for a short time") = counts;
    }
}
