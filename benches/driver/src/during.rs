//! A checkpoint in the middle of a run, and what the calls had of it: throughput and latency before, during and after.

use std::{
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use reprise_database::Database;
use reprise_upkeep::{CheckpointInfo, CheckpointPhase, Checkpointer};
use serde::Serialize;

use crate::{BenchError, failed};

const POLL_INTERVAL: Duration = Duration::from_millis(1);
const LATENCY_NS_MAX: u64 = 600_000_000_000;
const DIGITS: u8 = 3;

/// The effect of a checkpoint on the run around it.
#[derive(Clone, Debug, Serialize)]
pub struct DuringCheckpoint {
    /// From its beginning until it was published.
    pub seconds: f64,
    pub rows: u64,
    /// Bytes of rows, before compression.
    pub row_bytes: u64,
    pub file_bytes: u64,
    pub before: PhaseFigures,
    pub during: PhaseFigures,
    /// Null where the window closed first.
    pub after: Option<PhaseFigures>,
    /// How much slower calls went than on the straight line through before and after: a run whose tables grow slows by itself.
    pub throughput_cost_percent: f64,
    /// Ratio of the latency during it to that before.
    pub p99_ratio: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct PhaseFigures {
    pub seconds: f64,
    pub txn_per_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

pub(crate) fn checkpointer(database: &Database) -> Result<&Arc<Checkpointer>, BenchError> {
    database
        .checkpointer()
        .map_err(|error| failed("take a checkpoint", error))
}

/// Takes a checkpoint and waits until it is published.
pub(crate) fn take(checkpointer: &Checkpointer) -> Result<CheckpointInfo, BenchError> {
    let begun = checkpointer.take();
    let begun = begun.map_err(|error| failed("take a checkpoint", error))?;
    loop {
        let all = checkpointer.list();
        let found = all.into_iter().find(|info| info.lsn == begun.lsn);
        match found {
            Some(info) if info.state == CheckpointPhase::Running => thread::sleep(POLL_INTERVAL),
            Some(info) if info.state == CheckpointPhase::Published => return Ok(info),
            Some(info) => {
                let reason = info.error.unwrap_or_default();
                return Err(failed("take a checkpoint", reason));
            }
            None => return Err(failed("take a checkpoint", "it is not in the list")),
        }
    }
}

/// When the checkpoint was under way; told by the thread that waits for it.
#[derive(Default)]
struct Watch {
    begun: OnceLock<Instant>,
    ended: OnceLock<Instant>,
    outcome: OnceLock<Result<CheckpointInfo, String>>,
}

struct Phase {
    committed: u64,
    latency_ns: Histogram<u64>,
}

/// Tells the answers of a window apart.
pub(crate) struct During {
    checkpointer: Arc<Checkpointer>,
    opens: Instant,
    closes: Instant,
    watch: Arc<Watch>,
    is_asked: bool,
    /// Before, during, after.
    phases: [Phase; 3],
}

impl During {
    pub fn new(checkpointer: &Arc<Checkpointer>, opens: Instant, closes: Instant) -> Self {
        let phase = |_| Phase {
            committed: 0,
            latency_ns: Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS).expect("bounds in order"),
        };
        Self {
            checkpointer: checkpointer.clone(),
            opens,
            closes,
            watch: Arc::default(),
            is_asked: false,
            phases: [0, 1, 2].map(phase),
        }
    }

    /// Begins the checkpoint once a third of the window is over.
    pub fn begin_if_due(&mut self, now: Instant) {
        if self.is_asked || now < self.opens + (self.closes - self.opens) / 3 {
            return;
        }
        self.is_asked = true;
        let (checkpointer, watch) = (self.checkpointer.clone(), self.watch.clone());
        thread::spawn(move || {
            let _ = watch.begun.set(Instant::now());
            let taken = take(&checkpointer).map_err(|error| error.to_string());
            let _ = watch.ended.set(Instant::now());
            let _ = watch.outcome.set(taken);
        });
    }

    /// Counts calls that ended together, and those of them that committed.
    pub fn add(&mut self, due: Instant, ended: Instant, committed: u64) {
        if ended < self.opens || ended >= self.closes {
            return;
        }
        let is_past = |moment: &OnceLock<Instant>| moment.get().is_some_and(|at| *at <= ended);
        let phase = is_past(&self.watch.begun) as usize + is_past(&self.watch.ended) as usize;
        let phase = &mut self.phases[phase];
        phase.committed += committed;
        let elapsed = ended.saturating_duration_since(due).as_nanos();
        let ns = elapsed.clamp(1, LATENCY_NS_MAX as u128) as u64;
        phase.latency_ns.saturating_record_n(ns, committed);
    }

    /// The figures, once the run is over. Waits for a checkpoint that outlasts it.
    pub fn finish(self) -> Result<DuringCheckpoint, BenchError> {
        if !self.is_asked {
            return Err(failed("take a checkpoint", "the window was too short for one"));
        }
        let taken = loop {
            match self.watch.outcome.get() {
                Some(Ok(info)) => break info,
                Some(Err(reason)) => return Err(BenchError::Failed(reason.clone())),
                None => thread::sleep(POLL_INTERVAL),
            }
        };
        let at = |moment: &OnceLock<Instant>| *moment.get().expect("set before the outcome");
        let (begun, ended) = (at(&self.watch.begun), at(&self.watch.ended).min(self.closes));
        let [before, during, after] = &self.phases;
        let before = before.figures(begun - self.opens);
        let during = during.figures(ended - begun);
        let after = (ended < self.closes).then(|| after.figures(self.closes - ended));
        let around = after.map_or(before.txn_per_s, |after| line_at(&before, &during, &after));
        Ok(DuringCheckpoint {
            seconds: taken.seconds.unwrap_or(0.0),
            rows: taken.rows,
            row_bytes: taken.row_bytes,
            file_bytes: taken.file_bytes,
            before,
            during,
            after,
            throughput_cost_percent: tenth((1.0 - during.txn_per_s / around) * 100.0),
            p99_ratio: (during.p99_us / before.p99_us * 100.0).round() / 100.0,
        })
    }
}

/// Throughput in the middle of `during`, had it gone on the straight line through the middles of `before` and `after`.
fn line_at(before: &PhaseFigures, during: &PhaseFigures, after: &PhaseFigures) -> f64 {
    let to_middle = (before.seconds + during.seconds) / 2.0;
    let to_end = to_middle + (during.seconds + after.seconds) / 2.0;
    before.txn_per_s + (after.txn_per_s - before.txn_per_s) * to_middle / to_end
}

impl Phase {
    fn figures(&self, length: Duration) -> PhaseFigures {
        let seconds = length.as_secs_f64();
        let us = |ns: u64| tenth(ns as f64 / 1e3);
        PhaseFigures {
            seconds: (seconds * 1e3).round() / 1e3,
            txn_per_s: (self.committed as f64 / seconds).round(),
            p50_us: us(self.latency_ns.value_at_quantile(0.50)),
            p99_us: us(self.latency_ns.value_at_quantile(0.99)),
            max_us: us(self.latency_ns.max()),
        }
    }
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_that_slows_by_itself_is_no_cost() {
        let phase = |seconds: f64, txn_per_s: f64| PhaseFigures {
            seconds,
            txn_per_s,
            p50_us: 0.0,
            p99_us: 0.0,
            max_us: 0.0,
        };
        // One less each second: the phases' means are those of their middles, at 2, 7 and 10.5 seconds.
        let (before, during, after) = (phase(4.0, 98.0), phase(6.0, 93.0), phase(1.0, 89.5));
        assert!((line_at(&before, &during, &after) - 93.0).abs() < 1e-9);
        let steady = phase(1.0, 98.0);
        assert!((line_at(&before, &during, &steady) - 98.0).abs() < 1e-9);
    }
}
