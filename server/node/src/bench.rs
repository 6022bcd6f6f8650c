//! `reprise bench`: flags to the driver, its report to the terminal.

mod compare;

use std::{
    collections::BTreeMap,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use reprise_database::{COPY_AT_ENTRIES_DEFAULT, CommitMode, DeviceConfig, LogPolicy, NvramConfig, RedoConfig};
use reprise_driver::{
    BenchError, DuringCheckpoint, Options, PhaseFigures, ProcessOptions, Progress, RemoteOptions, ReplayOptions,
    ReplayReport, Report, Target, Via,
};

use crate::{
    cli::{BenchArgs, Output, ViaArg},
    config::{
        device::{DeviceKind, absolute},
        place::cores,
    },
    logfile,
    output::{Failure, Outcome, ProgressLine, bytes, grouped, print_json, print_pairs, usage},
};

const SINGLE_CONNECTIONS: usize = 64;
const BATCH_CONNECTIONS: usize = 4;
const HTTP_BATCH: usize = 256;
/// Of a region that is made for a run.
const NVRAM_BYTES: u64 = 256 << 20;

pub fn run(args: &BenchArgs, output: Output) -> Outcome {
    if args.workload == "replay" {
        return replay(args, output);
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
        return check(&options, output);
    }
    if let Some(rounds) = args.compare {
        return compare::run(&options, rounds, output);
    }
    let mut report = run_once(&options)?;
    if let Some(factor) = args.overload {
        let options = Options {
            rate: Some(report.txn_per_s.max(1.0) * factor),
            ..options
        };
        report = run_once(&options)?;
    }
    match output {
        Output::Json => print_json(&report)?,
        Output::Text => print_report(&report)?,
    }
    Ok(())
}

fn check(options: &Options, output: Output) -> Outcome {
    let line = ProgressLine::new();
    line.show(describe_progress(Progress::Checking));
    let report = reprise_driver::check(options);
    line.clear();
    let report = report.map_err(failure)?;
    match output {
        Output::Json => print_json(&report)?,
        Output::Text => print_pairs(&[
            ("workload", report.workload),
            ("checks", format!("passed: {}", report.checked.join("; "))),
        ])?,
    }
    Ok(())
}

fn run_once(options: &Options) -> Result<Report, Failure> {
    let line = ProgressLine::new();
    let report = reprise_driver::run(options, &|progress| line.show(describe_progress(progress)));
    line.clear();
    report.map_err(failure)
}

/// The report names it, so that the run can be made again.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| since.as_micros() as u64)
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Usage(text) => usage(text),
        other => Failure::Other(other.into()),
    }
}

fn remote_options(args: &BenchArgs, url: &str) -> RemoteOptions {
    let (via, connections) = match args.via.unwrap_or(ViaArg::Single) {
        ViaArg::Single => (Via::Single, SINGLE_CONNECTIONS),
        ViaArg::Batch => (Via::Batch, BATCH_CONNECTIONS),
    };
    RemoteOptions {
        url: url.to_owned(),
        token: args.token.clone(),
        via,
        connections: args.connections.unwrap_or(connections),
        batch: args.batch.unwrap_or(HTTP_BATCH),
        pipeline: args.pipeline.unwrap_or(1),
    }
}

fn device(args: &BenchArgs) -> Result<DeviceConfig, Failure> {
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
        path: absolute(path)?,
        bytes: Some(args.nvram_size.unwrap_or(NVRAM_BYTES)),
        copy_at_entries: COPY_AT_ENTRIES_DEFAULT,
        flush: args.nvram_flush.unwrap_or_default(),
        assume_persistent: args.nvram_assume_persistent,
    }))
}

fn process_options(args: &BenchArgs) -> Result<ProcessOptions, Failure> {
    let stored = args
        .data_dir
        .as_deref()
        .map(logfile::stored_partitions)
        .transpose()?
        .flatten();
    let partitions = match (args.partitions, stored) {
        (Some(asked), Some(stored)) if asked != stored => {
            return Err(other_partitions(asked, stored));
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
        group_commit_us: args.group_commit_us.unwrap_or(0),
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

fn redo(args: &BenchArgs) -> RedoConfig {
    RedoConfig {
        images: args.log_differential.unwrap_or_default(),
        from: args.recover_from.unwrap_or_default(),
    }
}

/// As many as there are cores, where none were asked for.
pub fn sites(asked: Option<u16>, partitions: u16) -> Result<u16, Failure> {
    match asked {
        Some(asked) if asked > partitions => Err(usage(format!(
            "{asked} sites have no work with {partitions} partitions: take at most {partitions}"
        ))),
        Some(asked) => Ok(asked),
        None => Ok(cores().min(partitions)),
    }
}

pub fn other_partitions(asked: u16, stored: u16) -> Failure {
    usage(format!(
        "the database was made with {stored} partitions, and that number is fixed: leave --partitions {asked} out, or take another data directory"
    ))
}

fn replay(args: &BenchArgs, output: Output) -> Outcome {
    let Some(dir) = args.data_dir.as_deref() else {
        return Err(usage(
            "bench replay needs --data-dir DIR: the directory that a run left",
        ));
    };
    let sizes = args.remote.is_some() || args.scale.is_some() || args.warehouses.is_some();
    if args.native || args.url.is_some() || args.rate.is_some() || sizes {
        return Err(usage("bench replay takes --data-dir and --sites alone"));
    }
    let report = run_replay(dir, args.sites, redo(args))?;
    match output {
        Output::Json => print_json(&report)?,
        Output::Text => print_pairs(&[
            ("replayed", grouped(report.replayed)),
            ("checkpoint", describe_loaded(&report)),
            ("log", bytes(report.log_bytes)),
            ("seconds", format!("{:.3}", report.seconds)),
            ("txn/s", describe_speed(&report)),
            ("partitions", report.partitions.to_string()),
            ("sites", report.sites.to_string()),
            ("digest", report.digest),
        ])?,
    }
    Ok(())
}

fn run_replay(dir: &Path, asked_sites: Option<u16>, redo: RedoConfig) -> Result<ReplayReport, Failure> {
    let Some(partitions) = logfile::stored_partitions(dir)? else {
        return Err(Failure::Other(anyhow::anyhow!(
            "there is no log under {}",
            dir.display()
        )));
    };
    let options = ReplayOptions {
        data_dir: dir.to_owned(),
        partitions,
        sites: sites(asked_sites, partitions)?,
        redo,
    };
    let line = ProgressLine::new();
    line.show("replaying".into());
    let report = reprise_driver::replay(&options);
    line.clear();
    report.map_err(failure)
}

fn describe_speed(report: &ReplayReport) -> String {
    let speed = grouped(report.txn_per_s as u64);
    match (report.times_run, report.run_txn_per_s) {
        (Some(times), Some(run)) => {
            format!("{speed}, {times:.2} times the run's {}", grouped(run as u64))
        }
        _ => speed,
    }
}

fn describe_loaded(report: &ReplayReport) -> String {
    match (
        report.checkpoint_load_s,
        report.checkpoint_rows,
        report.checkpoint_row_bytes,
        report.checkpoint_mb_per_s,
    ) {
        (Some(seconds), Some(rows), Some(row_bytes), Some(speed)) => format!(
            "{} rows, {} loaded in {seconds:.3} s ({speed} MB/s)",
            grouped(rows),
            bytes(row_bytes)
        ),
        _ => "none".into(),
    }
}

fn describe_progress(progress: Progress) -> String {
    match progress {
        Progress::Preparing(what) => what.to_owned(),
        Progress::Loading { done, total } => {
            format!("loading {} of {}", grouped(done), grouped(total))
        }
        Progress::Running {
            elapsed,
            total,
            committed,
        } => format!(
            "running {:.0} of {:.0} s, {} committed",
            elapsed.as_secs_f64(),
            total.as_secs_f64(),
            grouped(committed)
        ),
        Progress::Checking => "checking what is there".into(),
    }
}

fn print_report(report: &Report) -> std::io::Result<()> {
    let code = if report.native { "native" } else { "wasm" };
    let mut pairs = vec![
        ("workload", format!("{} ({code})", report.workload)),
        ("way", describe_way(report)),
        ("database", describe_database(report)),
        (
            "measured",
            format!(
                "{} s after {} s of warm-up, seed {}",
                report.seconds, report.warmup_s, report.seed
            ),
        ),
        (
            "committed",
            format!(
                "{}  ({} a second)",
                grouped(report.committed),
                grouped(report.txn_per_s as u64)
            ),
        ),
        ("steady", describe_steadiness(report)),
        ("aborted", grouped(report.aborted)),
        ("refused", describe_refused(report)),
        ("latency us", describe_latency(report)),
        ("mix", describe_counts(&report.mix)),
        ("outcomes", describe_counts(&report.outcomes)),
        ("figures", describe_figures(&report.figures)),
        ("log", describe_log(report)),
        ("checks", format!("passed: {}", report.checked.join("; "))),
    ];
    if !report.liberties.is_empty() {
        pairs.push(("liberties", report.liberties.join("; ")));
    }
    pairs.extend(describe_engine(report).map(|engine| ("engine", engine)));
    if let Some(checkpoint) = &report.checkpoint {
        pairs.extend(describe_during(checkpoint));
    }
    if let Some(restart) = &report.restart {
        let replayed = format!(
            "{:.3} s to ready{}: {} transactions replayed from {} of log, {} a second; digest as before",
            restart.seconds,
            restart
                .estimated_s
                .map_or_else(String::new, |seconds| format!(" ({seconds:.3} s were estimated)")),
            grouped(restart.replayed),
            bytes(restart.log_bytes),
            describe_speed(restart)
        );
        pairs.extend([("restart", replayed), ("loaded", describe_loaded(restart))]);
    }
    print_pairs(&pairs)
}

fn describe_during(checkpoint: &DuringCheckpoint) -> Vec<(&'static str, String)> {
    let phase = |figures: &PhaseFigures| {
        format!(
            "{} a second for {:.3} s, latency us p50 {}  p99 {}  max {}",
            grouped(figures.txn_per_s as u64),
            figures.seconds,
            figures.p50_us,
            figures.p99_us,
            figures.max_us
        )
    };
    let after = checkpoint.after.as_ref();
    vec![
        (
            "checkpoint",
            format!(
                "{} rows, {}, {} on disk, in {:.3} s; throughput {:.1} % less meanwhile, p99 {} times that before",
                grouped(checkpoint.rows),
                bytes(checkpoint.row_bytes),
                bytes(checkpoint.file_bytes),
                checkpoint.seconds,
                checkpoint.throughput_cost_percent,
                checkpoint.p99_ratio
            ),
        ),
        ("before", phase(&checkpoint.before)),
        ("during", phase(&checkpoint.during)),
        ("after", after.map_or("the window was over".into(), phase)),
    ]
}

fn describe_way(report: &Report) -> String {
    let offered = match report.rate {
        Some(rate) => format!("open loop, {} a second offered", grouped(rate as u64)),
        None => "closed loop".into(),
    };
    let (in_flight, batch) = (report.in_flight, report.batch);
    match report.via.as_str() {
        "process" if report.prepared => {
            format!("in process, {in_flight} batches of {batch}, prepared; {offered}")
        }
        "process" => format!("in process, {in_flight} batches of {batch}; {offered}"),
        via => {
            let ahead = match report.pipeline {
                1 => String::new(),
                pipeline => format!(", {pipeline} requests at once"),
            };
            format!("HTTP {via}, {in_flight} connections, {batch} calls a request{ahead}; {offered}")
        }
    }
}

fn describe_database(report: &Report) -> String {
    let device = match (report.device.as_deref(), report.flush.as_deref()) {
        (Some(device), Some(flush)) => format!(" on {device}, flush {flush}"),
        (Some(device), None) => format!(" on {device}"),
        (None, _) => String::new(),
    };
    format!(
        "{} partitions, {} sites, log {}{device}, commit {}",
        report.partitions, report.sites, report.log, report.commit
    )
}

fn describe_latency(report: &Report) -> String {
    let latency = &report.latency_us;
    format!(
        "p50 {}  p95 {}  p99 {}  p99.9 {}  max {}",
        latency.p50, latency.p95, latency.p99, latency.p999, latency.max
    )
}

fn describe_engine(report: &Report) -> Option<String> {
    let ns = report.engine_ns_per_call?;
    Some(format!("{} ns of processor time a call", grouped(ns)))
}

fn describe_counts(counts: &BTreeMap<String, u64>) -> String {
    let parts: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{name} {}", grouped(*count)))
        .collect();
    parts.join(", ")
}

fn describe_figures(figures: &BTreeMap<String, f64>) -> String {
    let parts: Vec<_> = figures.iter().map(|(name, value)| format!("{name} {value}")).collect();
    parts.join(", ")
}

fn describe_refused(report: &Report) -> String {
    match report.unsent {
        0 => grouped(report.refused),
        unsent => format!(
            "{}, and {} due and never sent",
            grouped(report.refused),
            grouped(unsent)
        ),
    }
}

fn describe_steadiness(report: &Report) -> String {
    let rates = &report.txn_per_s_by_part;
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    let verdict = match report.is_steady {
        true => "yes",
        false => "NO, the figures depend on the run's length",
    };
    format!(
        "{verdict}: last third {:+.1} % against the first; {} to {} a second in {} parts",
        report.drift_percent,
        grouped(least as u64),
        grouped(most as u64),
        rates.len()
    )
}

fn describe_log(report: &Report) -> String {
    let each = report.log_bytes as f64 / report.committed.max(1) as f64;
    format!("{}, {each:.1} bytes a committed call", bytes(report.log_bytes))
}
