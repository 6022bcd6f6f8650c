//! The figures of a run, as the command line prints them.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    during::DuringCheckpoint,
    measure::{DRIFT_PERCENT_MAX, Meter},
    options::Options,
    replay::ReplayReport,
    workload::Workload,
};

/// Fields and their order are the command line's contract; further ones come after them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub workload: String,
    /// `process`, `single` or `batch`.
    pub via: String,
    pub log: String,
    pub commit: String,
    pub native: bool,
    pub partitions: u16,
    pub sites: u16,
    /// Length of the measured window.
    pub seconds: f64,
    /// Inside the window; so are all counts below.
    pub committed: u64,
    pub aborted: u64,
    pub txn_per_s: f64,
    pub latency_us: LatencyUs,
    /// Calls by procedure.
    pub mix: BTreeMap<String, u64>,
    pub log_bytes: u64,
    /// `passed`: a run whose checks fail makes no report.
    pub checks: &'static str,
    /// Calls by what they came to.
    pub outcomes: BTreeMap<String, u64>,
    /// Calls turned away because too many waited.
    pub refused: u64,
    /// Transactions per second asked for in the open loop; null in the closed one.
    pub rate: Option<f64>,
    /// Calls of one batch, and batches (or connections) on their way.
    pub batch: usize,
    pub in_flight: usize,
    /// Requests that a connection sends before it reads the first answer.
    pub pipeline: usize,
    /// Calls were made before they were timed, and each batch's end sent the next.
    pub prepared: bool,
    /// Calls that were due in the open loop and never sent: latencies count them by how late they already were.
    pub unsent: u64,
    /// By how much the generator sent a call of the open loop later than it was due, at most. Latencies contain it.
    pub late_us: f64,
    /// Calls that ran between a batch's submission in this process and its end, at most; 0 where that is not counted.
    pub waited_for_calls_max: u64,
    /// Committed calls a second in equal parts of the window.
    pub txn_per_s_by_part: Vec<f64>,
    /// By how many percent the last third of the window was faster than the first; beyond ten the run was not steady.
    pub drift_percent: f64,
    pub is_steady: bool,
    /// The workload's own.
    pub figures: BTreeMap<String, f64>,
    pub warmup_s: f64,
    pub seed: u64,
    /// The findings of the checks, in words.
    pub checked: Vec<String>,
    /// Differences of the workload from the description that it is named after (`docs/BENCHMARKS.md`).
    pub liberties: Vec<String>,
    /// Processor time of the engine's threads by call, of the whole run, in nanoseconds; null where it is not known.
    pub engine_ns_per_call: Option<u64>,
    /// The device that a commit waits for: `file` or `nvram`; null without a log.
    pub device: Option<String>,
    /// When changes go to the NVRAM region (`--nvram-flush`); null on other devices.
    pub flush: Option<String>,
    /// Extra nanoseconds for each line of the cache that is written to NVRAM (`--nvram-delay-ns`).
    pub nvram_delay_ns: u64,
    /// With `--checkpoint-during`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<DuringCheckpoint>,
    /// With `--restart`: the opening of what the run left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart: Option<ReplayReport>,
}

/// The findings about a database without a run.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    pub workload: String,
    /// `passed`: a check that fails makes no report.
    pub checks: &'static str,
    /// In words.
    pub checked: Vec<String>,
}

/// From the call's submission, in the open loop from when it was due.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencyUs {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
    pub mean: f64,
    pub p999: f64,
}

/// The database under test.
pub(crate) struct Subject {
    pub via: &'static str,
    pub log: String,
    pub commit: String,
    pub native: bool,
    pub partitions: u16,
    pub sites: u16,
    pub log_bytes: u64,
    pub batch: usize,
    pub in_flight: usize,
    pub pipeline: usize,
    pub prepared: bool,
    pub device: Option<String>,
    pub flush: Option<String>,
    pub nvram_delay_ns: u64,
}

impl Report {
    pub(crate) fn new<W: Workload>(
        subject: Subject,
        options: &Options,
        workload: &W,
        meter: &Meter,
        checked: Vec<String>,
    ) -> Self {
        let window = &meter.window;
        let named = |names: &[&str], counts: &[u64]| {
            let pairs = names.iter().zip(counts).filter(|(_, count)| **count > 0);
            pairs.map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        Self {
            workload: W::NAME.into(),
            via: subject.via.into(),
            log: subject.log,
            commit: subject.commit,
            native: subject.native,
            partitions: subject.partitions,
            sites: subject.sites,
            seconds: options.seconds,
            committed: window.committed,
            aborted: window.aborted,
            txn_per_s: (window.committed as f64 / options.seconds).round(),
            latency_us: LatencyUs {
                p50: meter.quantile_us(0.50),
                p95: meter.quantile_us(0.95),
                p99: meter.quantile_us(0.99),
                max: meter.max_us(),
                mean: meter.mean_us(),
                p999: meter.quantile_us(0.999),
            },
            mix: named(W::PROCEDURES, &window.procedures),
            log_bytes: subject.log_bytes,
            checks: "passed",
            outcomes: named(W::OUTCOMES, &window.outcomes),
            refused: window.refused,
            rate: options.rate,
            batch: subject.batch,
            in_flight: subject.in_flight,
            pipeline: subject.pipeline,
            prepared: subject.prepared,
            unsent: meter.unsent,
            late_us: meter.late.as_micros() as f64,
            waited_for_calls_max: meter.waited_for,
            txn_per_s_by_part: meter.rates(),
            drift_percent: meter.drift_percent(),
            is_steady: meter.drift_percent().abs() <= DRIFT_PERCENT_MAX,
            figures: workload.figures(window, options.seconds),
            warmup_s: options.warmup_s,
            seed: options.seed,
            checked,
            liberties: workload.liberties(),
            engine_ns_per_call: None,
            device: subject.device,
            flush: subject.flush,
            nvram_delay_ns: subject.nvram_delay_ns,
            checkpoint: None,
            restart: None,
        }
    }
}
