//! Load on a database: the workloads behind `reprise-bench`, in process or over HTTP, and what they measured.
//! Owns: the generators, the closed and the open loop, the histograms, each workload's own checks, the report.
//! Does not: read flags, print, start a server.
//! Invariants: the same seed makes the same calls; a report exists only when every check passed; in the open loop a
//!   latency counts from when the call was due, not from when it could be sent.
//! Called by: the binary `reprise-bench`, `benches/nvram`, `benches/query-fresh`, `benches/cost`, `benches/looking-glass`,
//!   `benches/command-logging`, `benches/peers`.
#![forbid(unsafe_code)]

mod around;
mod bank;
mod client;
mod control;
mod during;
mod engine;
mod handover;
mod http1;
mod kernel;
mod local;
mod measure;
mod native;
mod options;
mod prepared;
mod process;
mod random;
mod remote;
mod replay;
mod report;
mod slow;
mod tatp;
mod tpcb;
mod tpcc;
mod voter;
mod workload;

use std::time::Duration;

pub use self::{
    bank::AMOUNT_MAX as BANK_AMOUNT_MAX,
    tpcb::{DELTA_MAX as TPCB_DELTA_MAX, REMOTE_PERCENT as TPCB_REMOTE_PERCENT},
    voter::{CONTESTANTS, NUMBERS_PER_AREA, REPEATED_PHONES, VOTES_PER_PHONE_MAX},
};
pub use around::Around;
pub use during::{DuringCheckpoint, PhaseFigures};
pub use engine::{is_engine_thread, ran_ns as engine_ran_ns};
pub use native::NativeCode;
pub use options::{Options, ProcessOptions, RemoteOptions, Target, Via};
pub use random::Random;
pub use replay::{ReplayOptions, ReplayReport, replay};
pub use report::{CheckReport, LatencyUs, Report};
pub use slow::{SlowRegions, spin_for_lines};
pub use tpcc::{
    Customer as TpccCustomer, Input as TpccInput, LINES_MAX as TPCC_LINES_MAX, OrderInput as TpccOrder,
    PaymentInput as TpccPayment, REMOTE_LINES as TPCC_REMOTE_LINES, ROLLED_BACK_PERCENT as TPCC_ROLLED_BACK,
    Reads as TpccReads, TypedTpcc, encode as encode_tpcc,
};

/// The workloads, by name.
pub const WORKLOADS: [&str; 5] = [voter::NAME, bank::NAME, tpcc::NAME, tpcb::NAME, tatp::NAME];

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The options do not fit together.
    #[error("{0}")]
    Usage(String),
    /// The run could not be made.
    #[error("{0}")]
    Failed(String),
    /// The run was made, and what it left is wrong: its figures mean nothing.
    #[error("the checks failed: {0}")]
    Checks(String),
}

/// The present step of a run, for a progress line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Progress {
    Preparing(&'static str),
    Loading {
        done: u64,
        total: u64,
    },
    Running {
        elapsed: Duration,
        total: Duration,
        committed: u64,
    },
    Checking,
}

/// Told several times a second.
pub type OnProgress<'a> = &'a dyn Fn(Progress);

/// Runs `options.workload` to its end and checks what it left.
pub fn run(options: &Options, on_progress: OnProgress<'_>) -> Result<Report, BenchError> {
    run_around(options, &around::Nothing, on_progress)
}

/// Does the same as `run`, in this process and with `around` around it. For systems that are compared with the product and no part of it.
pub fn run_in(options: &Options, around: &dyn Around, on_progress: OnProgress<'_>) -> Result<Report, BenchError> {
    run_around(options, around, on_progress)
}

fn run_around(options: &Options, around: &dyn Around, on_progress: OnProgress<'_>) -> Result<Report, BenchError> {
    options.check()?;
    match options.workload.as_str() {
        voter::NAME => run_as::<voter::Voter>(options, around, on_progress),
        bank::NAME => run_as::<bank::Bank>(options, around, on_progress),
        tpcc::NAME => run_as::<tpcc::Tpcc>(options, around, on_progress),
        tpcb::NAME => run_as::<tpcb::Tpcb>(options, around, on_progress),
        tatp::NAME => run_as::<tatp::Tatp>(options, around, on_progress),
        other => Err(BenchError::Usage(format!(
            "there is no workload {other:?}; there are {}",
            WORKLOADS.join(", ")
        ))),
    }
}

/// Calls a second of the workload's typed kernel (see `kernel`) with the seed, warm-up and seconds of `options`; None where
/// it has none.
pub fn run_kernel(options: &Options) -> Result<Option<f64>, BenchError> {
    options.check()?;
    match options.workload.as_str() {
        voter::NAME => run_kernel_as::<voter::Voter>(options),
        tpcb::NAME => run_kernel_as::<tpcb::Tpcb>(options),
        tpcc::NAME => run_kernel_as::<tpcc::Tpcc>(options),
        _ => Ok(None),
    }
}

/// Checks what holds of any database that `options.workload` filled, and runs nothing.
pub fn check(options: &Options) -> Result<CheckReport, BenchError> {
    options.check()?;
    match options.workload.as_str() {
        voter::NAME => check_as::<voter::Voter>(options),
        bank::NAME => check_as::<bank::Bank>(options),
        tpcc::NAME => check_as::<tpcc::Tpcc>(options),
        tpcb::NAME => check_as::<tpcb::Tpcb>(options),
        _ => check_as::<tatp::Tatp>(options),
    }
}

fn check_as<W: workload::Workload>(options: &Options) -> Result<CheckReport, BenchError> {
    let workload = W::new(options)?;
    let checked = match &options.target {
        Target::Process(process) => process::check(&workload, process)?,
        Target::Remote(remote) => remote::check(&workload, remote)?,
    };
    Ok(CheckReport {
        workload: W::NAME.into(),
        checks: "passed",
        checked,
    })
}

fn run_kernel_as<W: workload::Workload>(options: &Options) -> Result<Option<f64>, BenchError> {
    let partitions = match &options.target {
        Target::Process(process) => process.partitions,
        Target::Remote(_) => return Ok(None),
    };
    let mut workload = W::new(options)?;
    let Some(mut kernel) = workload.kernel(partitions)? else {
        return Ok(None);
    };
    let times = [options.warmup_s, options.seconds];
    let rate = kernel::measure(&workload, kernel.as_mut(), options.seed, times);
    Ok(Some(rate))
}

fn run_as<W: workload::Workload>(
    options: &Options,
    around: &dyn Around,
    on_progress: OnProgress<'_>,
) -> Result<Report, BenchError> {
    let workload = W::new(options)?;
    match &options.target {
        Target::Process(process) => process::run(workload, options, (process, around), on_progress),
        Target::Remote(remote) => remote::run(workload, options, remote, on_progress),
    }
}

pub(crate) fn failed(what: &str, error: impl std::fmt::Display) -> BenchError {
    BenchError::Failed(format!("{what}: {error}"))
}
