//! `reprise-bench WORKLOAD --compare N`: the same load on wasm, on native procedures, with the log, and on plain Rust. They take turns, so that a
//! machine that gets slower does so for all of them.

use reprise_database::LogPolicy;
use reprise_driver::{BenchError, Options, Target};
use serde::Serialize;

use crate::{
    args::Output,
    print::{self, Outcome, grouped},
    run_once, usage,
};

/// Calls of a batch and batches on their way, where the flags say nothing.
const BATCH: usize = 128;
const IN_FLIGHT: usize = (reprise_base::limits::WAITING_TXNS_MAX - 1) / BATCH;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Wasm,
    Native,
    WasmLogged,
    WasmPhysiological,
    Kernel,
}

impl Variant {
    const ALL: [Self; 5] = [
        Self::Wasm,
        Self::Native,
        Self::WasmLogged,
        Self::WasmPhysiological,
        Self::Kernel,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Native => "native",
            Self::WasmLogged => "wasm_command_log",
            Self::WasmPhysiological => "wasm_physiological_log",
            Self::Kernel => "typed_kernel",
        }
    }

    /// Transactions a second of one run; None where the workload has no kernel.
    fn run(self, options: &Options) -> Result<Option<f64>, BenchError> {
        let mut options = options.clone();
        let Target::Process(process) = &mut options.target else {
            return Err(usage("--compare runs in this process: leave --url out"));
        };
        process.native = self == Self::Native;
        // All ways get the same numbers: commits that wait for the device need many on their way, and elsewhere they do no harm.
        process.batch.get_or_insert(BATCH);
        process.in_flight.get_or_insert(IN_FLIGHT);
        process.log = match self {
            Self::WasmLogged => LogPolicy::Command,
            Self::WasmPhysiological => LogPolicy::Physiological,
            _ => LogPolicy::None,
        };
        match self {
            Self::Kernel => reprise_driver::run_kernel(&options),
            _ => run_once(&options).map(|report| Some(report.txn_per_s)),
        }
    }
}

#[derive(Serialize)]
struct Comparison {
    workload: String,
    rounds: usize,
    seconds: f64,
    partitions: u16,
    variants: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    name: &'static str,
    /// The median of `runs`.
    txn_per_s: f64,
    /// The median over the rounds of its speed divided by that of `wasm` in the same round.
    to_wasm: f64,
    runs: Vec<f64>,
}

pub fn run(output: Output, options: &Options, rounds: usize) -> Outcome {
    let mut runs = Variant::ALL.map(|_| Vec::new());
    for _ in 0..rounds {
        for (variant, runs) in Variant::ALL.into_iter().zip(&mut runs) {
            runs.extend(variant.run(options)?);
        }
    }
    let wasm = runs[0].clone();
    let lines = Variant::ALL.into_iter().zip(runs);
    let lines = lines.filter(|(_, runs)| !runs.is_empty());
    let Target::Process(process) = &options.target else {
        return Err(usage("--compare runs in this process: leave --url out"));
    };
    let comparison = Comparison {
        workload: options.workload.clone(),
        rounds,
        seconds: options.seconds,
        partitions: process.partitions,
        variants: lines.map(|(variant, runs)| line(variant, runs, &wasm)).collect(),
    };
    print::print(output, &comparison, || lines_of(&comparison))
}

fn line(variant: Variant, runs: Vec<f64>, wasm: &[f64]) -> Line {
    let ratios = runs.iter().zip(wasm).map(|(run, wasm)| run / wasm.max(1.0));
    Line {
        name: variant.name(),
        txn_per_s: median(runs.clone()),
        to_wasm: (median(ratios.collect()) * 1_000.0).round() / 1_000.0,
        runs,
    }
}

/// The middle value; of an even number the lower of the two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

fn lines_of(comparison: &Comparison) -> Vec<print::Line> {
    let head = format!(
        "{} rounds of {} s each, {} partitions; medians",
        comparison.rounds, comparison.seconds, comparison.partitions
    );
    let mut lines = vec![("workload", comparison.workload.clone()), ("measured", head)];
    for line in &comparison.variants {
        let all = line.runs.iter().map(|run| grouped(*run as u64));
        let all: Vec<_> = all.collect();
        lines.push((
            line.name,
            format!(
                "{} a second, {:.3} of wasm  ({})",
                grouped(line.txn_per_s as u64),
                line.to_wasm,
                all.join(" ")
            ),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_runs_and_ratios_are_within_a_round() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.0);
        // The machine was twice as slow in the second round: the ratios do not show it.
        let native = line(Variant::Native, vec![300.0, 150.0, 330.0], &[200.0, 100.0, 220.0]);
        assert_eq!((native.txn_per_s, native.to_wasm), (300.0, 1.5));
    }
}
