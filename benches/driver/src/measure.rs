//! Counts and latencies of a run.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::{BenchError, options::Options, workload::Workload};

/// Longest latency that the histogram separates from longer ones, in nanoseconds.
const LATENCY_NS_MAX: u64 = 600_000_000_000;
const DIGITS: u8 = 3;
/// Number of parts of the window, each with its own throughput. The first and the last third are compared.
pub(crate) const PARTS: usize = 12;
/// The thirds of a steady run differ by less.
pub(crate) const DRIFT_PERCENT_MAX: f64 = 10.0;
/// Number of steps in which the meter records a gap in the open loop's schedule.
const UNSENT_STEPS: u64 = 1_000;

/// The outcome of a call.
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

    /// Calls that ran.
    pub(crate) fn answered(&self) -> u64 {
        self.committed + self.aborted + self.failed
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

/// Collects answers; answers inside the window make the report. In the open loop, latencies are those of the calls that were due inside it, whenever
/// the answers came. Otherwise nothing would show the calls that an overload leaves waiting.
pub(crate) struct Meter {
    is_open: bool,
    committed_by_part: [u64; PARTS],
    /// Calls that were due and never sent, as the generator's connections were all busy.
    pub unsent: u64,
    /// By how much a call of the open loop was sent later than it was due, at most.
    pub late: Duration,
    /// Calls that ran while a batch in this process waited, at most.
    pub waited_for: u64,
    pub whole: Tally,
    pub window: Tally,
    first_failure: Option<String>,
    latency_ns: Histogram<u64>,
    pub begun: Instant,
    pub opens: Instant,
    pub closes: Instant,
}

impl Meter {
    /// A run in which calls failed reports nothing.
    pub(crate) fn refuse_failures(&self) -> Result<(), BenchError> {
        match &self.first_failure {
            None => Ok(()),
            Some(reason) => Err(BenchError::Checks(format!(
                "{} calls failed, the first: {reason}",
                self.whole.failed
            ))),
        }
    }

    pub(crate) fn new<W: Workload>(options: &Options) -> Self {
        let begun = Instant::now();
        let opens = begun + Duration::from_secs_f64(options.warmup_s);
        let tally = Tally::new(W::PROCEDURES.len(), W::OUTCOMES.len());
        Self {
            is_open: options.rate.is_some(),
            committed_by_part: [0; PARTS],
            unsent: 0,
            late: Duration::ZERO,
            waited_for: 0,
            whole: tally.clone(),
            window: tally,
            first_failure: None,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("bounds in order"),
            begun,
            opens,
            closes: opens + Duration::from_secs_f64(options.seconds),
        }
    }

    fn is_in_window(&self, at: Instant) -> bool {
        self.opens <= at && at < self.closes
    }

    /// The part of the window that `ended` lies in.
    pub(crate) fn part(&self, ended: Instant) -> Option<usize> {
        if !self.is_in_window(ended) {
            return None;
        }
        let whole = (self.closes - self.opens).as_secs_f64();
        let part = (ended - self.opens).as_secs_f64() / whole * PARTS as f64;
        Some((part as usize).min(PARTS - 1))
    }

    /// Committed calls a second, by part of the window.
    pub(crate) fn rates(&self) -> Vec<f64> {
        let seconds = (self.closes - self.opens).as_secs_f64() / PARTS as f64;
        let rate = |count: &u64| (*count as f64 / seconds).round();
        self.committed_by_part.iter().map(rate).collect()
    }

    /// By how many percent the last third of the window was faster than the first.
    pub(crate) fn drift_percent(&self) -> f64 {
        const THIRD: usize = PARTS / 3;
        let sum = |parts: &[u64]| parts.iter().sum::<u64>() as f64;
        let first = sum(&self.committed_by_part[..THIRD]);
        let last = sum(&self.committed_by_part[PARTS - THIRD..]);
        if first == 0.0 {
            return if last == 0.0 { 0.0 } else { 100.0 };
        }
        ((last / first - 1.0) * 1_000.0).round() / 10.0
    }

    /// Counts a call whose answer came in this part of the window, or outside of it.
    #[inline]
    pub(crate) fn add(&mut self, procedure: usize, verdict: &Verdict, part: Option<usize>) {
        self.whole.add(procedure, verdict);
        if let Some(part) = part {
            self.window.add(procedure, verdict);
            self.committed_by_part[part] += matches!(verdict, Verdict::Committed(_)) as u64;
        }
        if let Verdict::Failed(reason) = verdict
            && self.first_failure.is_none()
        {
            self.first_failure = Some(reason.clone());
        }
    }

    /// Records calls that were due (closed loop: sent) at one moment and answered at another.
    #[inline]
    pub(crate) fn latency(&mut self, due: Instant, ended: Instant, calls: u64) {
        let counted_at = if self.is_open { due } else { ended };
        if self.is_in_window(counted_at) {
            self.record(ended.saturating_duration_since(due), calls);
        }
    }

    /// Records calls that the generator did not send. The first was due at `due`, the others each `spacing` later, and none is sent by `now`.
    pub(crate) fn add_unsent(&mut self, due: Instant, spacing: Duration, calls: u64, now: Instant) {
        self.unsent += calls;
        let step = calls.div_ceil(UNSENT_STEPS).max(1);
        let mut at = 0;
        while at < calls {
            let of_step = step.min(calls - at);
            let due = due + spacing.mul_f64(at as f64);
            self.latency(due, now, of_step);
            at += of_step;
        }
    }

    #[inline]
    fn record(&mut self, elapsed: Duration, calls: u64) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::voter::Voter;

    fn meter(rate: Option<f64>) -> Meter {
        let options = Options {
            rate,
            seconds: 12.0,
            ..Options::in_process("voter")
        };
        Meter::new::<Voter>(&options)
    }

    /// Commits `counts` calls in the parts of a window; the drift.
    fn check_drift(counts: [u64; PARTS]) -> f64 {
        let mut meter = meter(None);
        for (part, count) in counts.into_iter().enumerate() {
            let ended = meter.opens + Duration::from_millis(part as u64 * 1_000 + 500);
            for _ in 0..count {
                meter.add(0, &Verdict::Committed(0), meter.part(ended));
            }
        }
        assert_eq!(meter.rates(), counts.map(|count| count as f64));
        assert_eq!(meter.window.committed, counts.iter().sum::<u64>());
        meter.drift_percent()
    }

    #[test]
    fn a_run_that_slows_down_shows() {
        assert_eq!(check_drift([10; PARTS]), 0.0);
        assert_eq!(check_drift([10, 10, 10, 10, 9, 9, 9, 9, 8, 8, 8, 8]), -20.0);
        assert_eq!(check_drift([0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]), 100.0);
    }

    #[test]
    fn the_open_loop_counts_what_was_due_whenever_it_came_or_not() {
        let mut meter = meter(Some(1_000.0));
        let due = meter.opens + Duration::from_secs(11);
        let late = meter.closes + Duration::from_secs(9);
        assert_eq!(meter.part(late), None);
        meter.latency(due, late, 1);
        assert!((meter.max_us() / 10_000_000.0 - 1.0).abs() < 0.002);
        meter.latency(meter.closes, late, 1);
        assert_eq!(meter.latency_ns.len(), 1, "due after the window");
        meter.add_unsent(due, Duration::from_millis(1), 5_000, late);
        assert_eq!(meter.latency_ns.len(), 1_001, "those due inside");
        assert_eq!(meter.unsent, 5_000);
    }

    #[test]
    fn the_closed_loop_counts_what_came() {
        let mut meter = meter(None);
        let begun = meter.opens - Duration::from_millis(1);
        meter.latency(begun, meter.opens, 3);
        meter.latency(meter.opens, meter.closes, 3);
        assert_eq!(meter.latency_ns.len(), 3);
    }
}
