//! Draws Reprise beside PostgreSQL, Redis, Valkey and SQLite: the same calls, as many clients, the same durability, in one run.
//! Owns: the workloads' calls, the clients, each peer's procedures, the start and the end of their servers.
//! Does not: install a peer. One that is missing is named, with the command that installs it, and has no rows.
//! Invariants: peers run in turn, round by round; a run whose check fails draws nothing.
//! Called by: `cargo xtask figures peers`.
#![deny(unsafe_code)]

mod calls;
mod embedded;
mod embedded_order;
mod http;
mod load;
mod orders;
mod peer;
mod pg;
#[allow(unsafe_code)]
mod postgres;
mod redis;
mod reprise;
mod resp;
mod runs;
#[allow(unsafe_code)]
mod server;
#[allow(unsafe_code)]
mod sqlite;

use std::{fs::Permissions, os::unix::fs::PermissionsExt, path::PathBuf};

use anyhow::{Context, Result, ensure};
use calls::{Sizes, WORKLOADS};
use clap::Parser;
use peer::{Durability, Installed, Missing};
use reprise_bench_figures::{
    processor,
    program::{FigureArgs, cores},
};
use runs::Settings;

/// Draws Reprise beside other databases, with the same calls, clients and durability
#[derive(Parser)]
#[command(name = "reprise-bench-peers", version)]
struct Args {
    /// Which: voter, transfer (between accounts chosen evenly), zipf (few accounts take part in most), tpcb, new-order [default: all]
    #[arg(long = "figure")]
    figures: Vec<String>,
    /// Place of the peers' files; a folder in it is made, and removed at the end [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seconds of each run, after a tenth as long to warm up
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds; the figure shows the median, the least and the most
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Connections to each server
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Threads that serve the connections
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    threads: u16,
    /// Like --short, with few rows and durability at each commit alone: the size of a test
    #[arg(long)]
    tiny: bool,
    #[command(flatten)]
    figure: FigureArgs,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let names: Vec<_> = WORKLOADS.iter().map(|(name, _)| *name).collect();
    let unknown = args.figures.iter().find(|asked| !names.contains(&asked.as_str()));
    ensure!(
        unknown.is_none(),
        "there is no figure {} here: {} are",
        unknown.map_or("", String::as_str),
        names.join(", ")
    );
    ensure!(
        args.seconds > 0.0 && args.seconds <= 3_600.0,
        "--seconds takes a number above 0 and up to 3600"
    );
    let (peers, missing) = find_peers(&args);
    for missing in &missing {
        println!("{} is not installed and has no rows: {}", missing.name, missing.install);
    }
    ensure!(!peers.is_empty(), "no peer is installed");
    let place = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new()
        .prefix("reprise-peers-")
        // PostgreSQL's server runs as another user where we are root.
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(&place)
        .with_context(|| format!("make a folder in {}", place.display()))?;
    let settings = Settings {
        dir: folder.path(),
        peers: &peers,
        missing: &missing,
        ..settings(&args)
    };
    for (name, workload) in WORKLOADS {
        if args.figures.is_empty() || args.figures.iter().any(|asked| asked == name) {
            settings.measure(name, workload)?.write(&args.figure.out)?;
        }
    }
    folder.close().context("remove the peers' files")
}

/// The peers of this machine, and those that it lacks.
fn find_peers(args: &Args) -> (Vec<Box<dyn Installed>>, Vec<Missing>) {
    let (mut peers, mut missing) = (Vec::new(), Vec::new());
    for found in [
        reprise::reprise(args.figure.modules.as_deref()),
        postgres::postgres(),
        redis::redis(),
        redis::valkey(),
        embedded::sqlite(),
    ] {
        match found {
            Ok(peer) => peers.push(peer),
            Err(lacking) => missing.push(lacking),
        }
    }
    (peers, missing)
}

/// The settings of a run, without its peers and its place.
fn settings(args: &Args) -> Settings<'static> {
    let is_short = args.figure.short || args.tiny;
    let (seconds, runs) = match (args.tiny, args.figure.short) {
        (true, _) => (0.05, 1),
        (false, true) => (0.3, 1),
        (false, false) => (args.seconds, args.runs),
    };
    let what = if is_short { "a short run: no figure" } else { "median" };
    Settings {
        dir: std::path::Path::new(""),
        peers: &[],
        missing: &[],
        durabilities: if args.tiny {
            &[Durability::Commit]
        } else {
            &Durability::ALL
        },
        connections: if args.tiny { 4 } else { args.connections.into() },
        threads: args.threads.into(),
        seconds,
        runs,
        sizes: Sizes {
            accounts: if args.tiny { 1_000 } else { 100_000 },
            branches: if is_short { 1 } else { 10 },
            warehouses: if is_short { 1 } else { 2 },
            items: if args.tiny { 1_000 } else { 100_000 },
        },
        conditions: format!(
            "{} with {} processors; {}; seeds 1 to {}; {runs} rounds of {seconds} s, {what}",
            processor(),
            cores(),
            args.figure.build,
            runs * 10
        ),
    }
}
