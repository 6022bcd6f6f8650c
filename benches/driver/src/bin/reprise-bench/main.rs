//! The binary `reprise-bench`: flags to the driver, its report to the terminal.
//! Owns: the printed text, and the exit status.
//! Does not: make calls or measure (the library does), start a server.
//! Invariants: standard output holds results alone; progress goes to a terminal's standard error; the exit status is 0
//!   for done, 1 for an error or a failed check, 2 for bad usage.
//! Called by: people, `cargo xtask bench`, the tests, the training of a package.
#![deny(unsafe_code)]

mod args;
mod compare;
mod print;
mod report;

use std::{
    path::{Path, absolute},
    process::ExitCode,
    thread::available_parallelism,
    time::{SystemTime, UNIX_EPOCH},
};

use args::{BenchArgs, DeviceKind};
use clap::Parser;
use print::{Outcome, ProgressLine, bytes, grouped, print};
use report::{describe_loaded, describe_progress, describe_speed, report_lines};
use reprise_database::{
    BatchLimits, COPY_AT_ENTRIES_DEFAULT, CommitMode, DeviceConfig, LogPolicy, NvramConfig, RedoConfig,
    stored_partitions,
};
use reprise_driver::{
    BenchError, Options, ProcessOptions, Progress, RemoteOptions, ReplayOptions, ReplayReport, Report, Target, Via,
};

const SINGLE_CONNECTIONS: usize = 64;
const BATCH_CONNECTIONS: usize = 4;
const HTTP_BATCH: usize = 256;
/// Size of a region that is made for a run.
const NVRAM_BYTES: u64 = 256 << 20;

fn main() -> ExitCode {
    quiet_library_backtraces();
    let error = match run(&BenchArgs::parse()) {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    eprintln!("error: {error}");
    match error {
        BenchError::Usage(_) => ExitCode::from(2),
        _ => ExitCode::FAILURE,
    }
}

/// With `RUST_BACKTRACE=1` alone every call of a guest that is refused or traps would capture a backtrace of this program,
/// at several microseconds each. A panic keeps its backtrace.
fn quiet_library_backtraces() {
    const NAME: &str = "RUST_LIB_BACKTRACE";
    if std::env::var_os(NAME).is_none() {
        // SAFETY: this is the first thing that `main` does: no other thread exists that could read the environment.
        #[allow(unsafe_code)]
        unsafe {
            std::env::set_var(NAME, "0");
        }
    }
}

fn usage(text: impl Into<String>) -> BenchError {
    BenchError::Usage(text.into())
}

fn failed(what: &str, error: impl std::fmt::Display) -> BenchError {
    BenchError::Failed(format!("{what}: {error}"))
}

fn run(args: &BenchArgs) -> Outcome {
    if args.workload == "replay" {
        return replay(args);
    }
    let options = Options {
        workload: args.workload.clone(),
        seconds: args.seconds,
        warmup_s: args.warmup,
        rate: args.rate,
        seed: args
            .seed
            .unwrap_or_else(|| if args.url.is_some() { new_seed() } else { 1 }),
        remote_percent: args.remote,
        scale: args.scale,
        warehouses: args.warehouses,
        modules: args.modules.clone(),
        target: match &args.url {
            Some(url) => Target::Remote(remote_options(args, url)),
            None => Target::Process(process_options(args)?),
        },
    };
    if args.check_only {
        return check(args, &options);
    }
    if let Some(rounds) = args.compare {
        return compare::run(args.output, &options, rounds);
    }
    let mut report = run_once(&options)?;
    if let Some(factor) = args.overload {
        let options = Options {
            rate: Some(report.txn_per_s.max(1.0) * factor),
            ..options
        };
        report = run_once(&options)?;
    }
    print(args.output, &report, || report_lines(&report))
}

fn check(args: &BenchArgs, options: &Options) -> Outcome {
    let line = ProgressLine::new();
    line.show(describe_progress(Progress::Checking));
    let report = reprise_driver::check(options);
    line.clear();
    let report = report?;
    print(args.output, &report, || {
        vec![
            ("workload", report.workload.clone()),
            ("checks", format!("passed: {}", report.checked.join("; "))),
        ]
    })
}

fn run_once(options: &Options) -> Result<Report, BenchError> {
    let line = ProgressLine::new();
    let report = reprise_driver::run(options, &|progress| line.show(describe_progress(progress)));
    line.clear();
    report
}

/// The report names it, so that the run can be made again.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros() as u64)
}

fn remote_options(args: &BenchArgs, url: &str) -> RemoteOptions {
    let via = args.via.unwrap_or(Via::Single);
    let connections = match via {
        Via::Single => SINGLE_CONNECTIONS,
        Via::Batch => BATCH_CONNECTIONS,
    };
    RemoteOptions {
        url: url.to_owned(),
        token: args.token.clone(),
        via,
        connections: args.connections.unwrap_or(connections),
        batch: args.batch.unwrap_or(HTTP_BATCH),
        pipeline: args.pipeline.unwrap_or(1),
        keyed: args.keyed,
        timeout_ms: args.timeout_ms,
    }
}

fn device(args: &BenchArgs) -> Result<DeviceConfig, BenchError> {
    let Some(path) = args.nvram.as_deref() else {
        return match args.device {
            Some(DeviceKind::Nvram) => Err(usage(
                "device nvram needs --nvram PATH, where the region lies or is made",
            )),
            _ => Ok(DeviceConfig::File),
        };
    };
    if args.device != Some(DeviceKind::Nvram) {
        return Err(usage("nvram goes with device nvram"));
    }
    Ok(DeviceConfig::Nvram(NvramConfig {
        path: absolute(path).map_err(|error| failed("nvram", error))?,
        bytes: Some(args.nvram_size.unwrap_or(NVRAM_BYTES)),
        copy_at_entries: COPY_AT_ENTRIES_DEFAULT,
        flush: args.nvram_flush.unwrap_or_default(),
        assume_persistent: args.nvram_assume_persistent,
    }))
}

fn process_options(args: &BenchArgs) -> Result<ProcessOptions, BenchError> {
    let stored = args.data_dir.as_deref().map(partitions_of).transpose()?.flatten();
    let partitions = match (args.partitions, stored) {
        (Some(asked), Some(stored)) if asked != stored => {
            return Err(usage(format!(
                "the database was made with {stored} partitions, and that number is fixed: leave --partitions {asked} out, or \
                 take another data directory"
            )));
        }
        (asked, stored) => asked.or(stored).unwrap_or(1),
    };
    Ok(ProcessOptions {
        partitions,
        sites: sites(args.sites, partitions)?,
        log: args.log.unwrap_or(LogPolicy::Command),
        redo: redo(args),
        device: device(args)?,
        nvram_delay_ns: args.nvram_delay_ns.unwrap_or(0),
        commit: args.commit.unwrap_or(CommitMode::Sync),
        batch_limits: batch_limits(args),
        data_dir: args.data_dir.clone(),
        native: args.native,
        checkpoint_during: args.checkpoint_during,
        restart: args.restart,
        batch: args.batch,
        in_flight: args.in_flight,
        prepared: args.prepared,
        memory_ready: args.memory_ready.unwrap_or(0),
    })
}

fn batch_limits(args: &BenchArgs) -> BatchLimits {
    let known = BatchLimits::default();
    BatchLimits {
        group_delay_us: args.group_commit_us.unwrap_or(known.group_delay_us),
        group_calls_max: args.group_commit_calls.unwrap_or(known.group_calls_max),
        waiting_max: args.waiting_max.unwrap_or(known.waiting_max),
    }
}

fn redo(args: &BenchArgs) -> RedoConfig {
    RedoConfig {
        images: args.log_differential.unwrap_or_default(),
        from: args.recover_from.unwrap_or_default(),
    }
}

fn partitions_of(dir: &Path) -> Result<Option<u16>, BenchError> {
    stored_partitions(dir).map_err(|error| failed(&format!("look into {}", dir.display()), error))
}

/// The sites that were asked for; without, as many as there are cores, at most one a partition.
fn sites(asked: Option<u16>, partitions: u16) -> Result<u16, BenchError> {
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u16);
    match asked {
        Some(asked) if asked > partitions => Err(usage(format!(
            "{asked} sites have no work with {partitions} partitions: take at most {partitions}"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(cores.min(partitions)),
    }
}

fn replay(args: &BenchArgs) -> Outcome {
    let Some(dir) = args.data_dir.as_deref() else {
        return Err(usage("replay needs --data-dir DIR: the directory that a run left"));
    };
    let sizes = args.remote.is_some() || args.scale.is_some() || args.warehouses.is_some();
    if args.native || args.url.is_some() || args.rate.is_some() || sizes {
        return Err(usage("replay takes --data-dir and --sites alone"));
    }
    let report = run_replay(dir, args)?;
    print(args.output, &report, || {
        vec![
            ("replayed", grouped(report.replayed)),
            ("checkpoint", describe_loaded(&report)),
            ("log", bytes(report.log_bytes)),
            ("seconds", format!("{:.3}", report.seconds)),
            ("txn/s", describe_speed(&report)),
            ("partitions", report.partitions.to_string()),
            ("sites", report.sites.to_string()),
            ("digest", report.digest.clone()),
        ]
    })
}

fn run_replay(dir: &Path, args: &BenchArgs) -> Result<ReplayReport, BenchError> {
    let Some(partitions) = partitions_of(dir)? else {
        return Err(BenchError::Failed(format!("there is no log under {}", dir.display())));
    };
    let options = ReplayOptions {
        data_dir: dir.to_owned(),
        partitions,
        sites: sites(args.sites, partitions)?,
        redo: redo(args),
    };
    let line = ProgressLine::new();
    line.show("replaying".into());
    let report = reprise_driver::replay(&options);
    line.clear();
    report
}
