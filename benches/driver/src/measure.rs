//! Counts and latencies of a run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Longest latency that is told apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
const DIGITS: u8 = 3;

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Position in the workload's outcomes.
    Committed(usize),
    Aborted(usize),
    /// The server was too busy; nothing ran.
    Refused,
    /// Anything else: a trap, a limit, an abort that is not the workload's.
    Failed(String),
}

/// Calls by what they came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub committed: u64,
    pub aborted: u64,
    pub refused: u64,
    pub failed: u64,
    /// Committed and aborted calls, by position in the workload's procedures and outcomes.
    pub procedures: Vec<u64>,
    pub outcomes: Vec<u64>,
}

impl Tally {
    fn new(procedures: usize, outcomes: usize) -> Self {
        Self {
            procedures: vec![0; procedures],
            outcomes: vec![0; outcomes],
            ..Self::default()
        }
    }

    #[inline]
    fn add(&mut self, procedure: usize, verdict: &Verdict) {
        match verdict {
            Verdict::Committed(outcome) => {
                self.committed += 1;
                self.procedures[procedure] += 1;
                self.outcomes[*outcome] += 1;
            }
            Verdict::Aborted(outcome) => {
                self.aborted += 1;
                self.procedures[procedure] += 1;
                self.outcomes[*outcome] += 1;
            }
            Verdict::Refused => self.refused += 1,
            Verdict::Failed(_) => self.failed += 1,
        }
    }
}

/// Collects answers; those that come inside the window make the report.
pub(crate) struct Meter {
    pub whole: Tally,
    pub window: Tally,
    pub first_failure: Option<String>,
    latency_ns: Histogram<u64>,
    pub begun: Instant,
    pub opens: Instant,
    pub closes: Instant,
}

impl Meter {
    pub(crate) fn new(procedures: usize, outcomes: usize, warmup_s: f64, seconds: f64) -> Self {
        let begun = Instant::now();
        let opens = begun + Duration::from_secs_f64(warmup_s);
        Self {
            whole: Tally::new(procedures, outcomes),
            window: Tally::new(procedures, outcomes),
            first_failure: None,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS)
                .expect("bounds in order"),
            begun,
            opens,
            closes: opens + Duration::from_secs_f64(seconds),
        }
    }

    pub(crate) fn is_in_window(&self, at: Instant) -> bool {
        self.opens <= at && at < self.closes
    }

    /// Counts a call whose answer came while the window was open, or not.
    #[inline]
    pub(crate) fn add(&mut self, procedure: usize, verdict: &Verdict, in_window: bool) {
        self.whole.add(procedure, verdict);
        if in_window {
            self.window.add(procedure, verdict);
        }
        if let Verdict::Failed(reason) = verdict
            && self.first_failure.is_none()
        {
            self.first_failure = Some(reason.clone());
        }
    }

    #[inline]
    pub(crate) fn latency(&mut self, elapsed: Duration, calls: u64) {
        let ns = elapsed.as_nanos().clamp(1, LATENCY_NS_MAX as u128) as u64;
        self.latency_ns.saturating_record_n(ns, calls);
    }

    /// Microseconds below which this part of the window's calls was answered.
    pub(crate) fn quantile_us(&self, part: f64) -> f64 {
        microseconds(self.latency_ns.value_at_quantile(part))
    }

    pub(crate) fn max_us(&self) -> f64 {
        microseconds(self.latency_ns.max())
    }

    pub(crate) fn mean_us(&self) -> f64 {
        (self.latency_ns.mean() / 100.0).round() / 10.0
    }
}

/// With one digit after the point.
fn microseconds(ns: u64) -> f64 {
    (ns as f64 / 100.0).round() / 10.0
}
