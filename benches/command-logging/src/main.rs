//! Draws figures of "Rethinking Main Memory OLTP Recovery" with what the product does here: none, command and physiological log.
//! Owns: the runs of each figure, their order, the flags.
//! Does not: make calls or check them (`reprise-driver` does); claim a figure: a machine does, which each file names.
//! Invariants: the three logs run the same calls in turn; a run whose check fails draws nothing.
//! Called by: `cargo xtask figures command-logging`.
#![forbid(unsafe_code)]

mod figures;
mod runs;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Parser;
use figures::{FIGURES, Settings};
use reprise_bench_figures::program::{FigureArgs, cores, in_folder};

/// Draws the command-logging paper's figures with measurements of this machine
#[derive(Parser)]
#[command(name = "reprise-bench-command-logging", version)]
struct Args {
    /// Which: 3 and 4 (Voter by offered load: throughput, latency), 5 (its replay), 6, 7, 8 (the same of TPC-C), 9 and 11 (transactions between
    /// partitions: throughput, the better log), bytes (of each transaction), cut (records of at most 100 bytes) [default: all]
    #[arg(long = "figure")]
    figures: Vec<String>,
    /// Place of the logs; a folder in it is made, and removed at the end [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Seconds of each run, after a tenth as long to warm up
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Runs of each point; the figure shows the median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    #[command(flatten)]
    figure: FigureArgs,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let is_known = |asked: &&String| FIGURES.iter().any(|figure| figure.names.contains(&asked.as_str()));
    let unknown = args.figures.iter().find(|asked| !is_known(asked));
    ensure!(
        unknown.is_none(),
        "there is no figure {} here: 3 to 9, 11, bytes and cut are",
        unknown.map_or("", String::as_str)
    );
    let place = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    in_folder(&place, |folder| draw(&args, &settings(&args, folder)))
}

fn settings(args: &Args, dir: &Path) -> Settings {
    let (seconds, runs) = args.figure.length(args.seconds, args.runs);
    Settings {
        is_short: args.figure.short,
        seconds,
        runs,
        cores: cores(),
        modules: args.figure.modules.clone(),
        conditions: args.figure.conditions(&format!("seeds 1 to {runs}"), seconds, runs),
        dir: dir.to_owned(),
    }
}

/// Draws each group of figures that has one that was asked for: a group shares its runs.
fn draw(args: &Args, settings: &Settings) -> Result<()> {
    let is_asked = |name: &str| args.figures.is_empty() || args.figures.iter().any(|asked| asked == name);
    for figure in FIGURES {
        if !figure.names.iter().any(|name| is_asked(name)) {
            continue;
        }
        let charts = (figure.measure)(settings)?;
        for (name, chart) in figure.names.iter().zip(charts) {
            if is_asked(name) {
                chart.write(&args.figure.out)?;
            }
        }
    }
    Ok(())
}
