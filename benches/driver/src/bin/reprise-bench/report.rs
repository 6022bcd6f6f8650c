//! A report in words.

use std::collections::BTreeMap;

use reprise_driver::{DuringCheckpoint, PhaseFigures, Progress, ReplayReport, Report};

use crate::print::{Line, bytes, grouped};

pub fn describe_speed(report: &ReplayReport) -> String {
    let speed = grouped(report.txn_per_s as u64);
    match (report.times_run, report.run_txn_per_s) {
        (Some(times), Some(run)) => {
            format!("{speed}, {times:.2} times the run's {}", grouped(run as u64))
        }
        _ => speed,
    }
}

pub fn describe_loaded(report: &ReplayReport) -> String {
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

pub fn describe_progress(progress: Progress) -> String {
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

pub fn report_lines(report: &Report) -> Vec<Line> {
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
    pairs
}

fn describe_during(checkpoint: &DuringCheckpoint) -> Vec<Line> {
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
