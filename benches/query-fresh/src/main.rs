//! The comparisons of Query Fresh, as modes of our own standbys: its table 1, its figures 6 to 12 and its bootstrap time, drawn anew.
//! Owns: replay arrays, synchronous replay, standbys that replay nothing or acknowledge at once; the measurements.
//! Does not: belong to the server, whose standbys have none of these; claim a figure: a machine does, which each file names.
//! Invariants: every way runs the same workload, its checks included; a standby with tables ends with its primary's rows, or there is no figure.
//! Called by: `cargo xtask figures query-fresh`.
#![forbid(unsafe_code)]

mod arrays;
mod bootstrap;
mod commands;
mod figures;
mod flush;
mod quota;
mod rdma;
mod readers;
mod replay;
mod standby;
mod taker;
mod threads;
mod ways;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use figures::{NAMES, Settings};
use reprise_bench_figures::{
    Chart,
    program::{FigureArgs, growing_sites, in_folder},
};

/// Draws Query Fresh's figures with measurements of this machine
#[derive(Parser)]
#[command(name = "reprise-bench-query-fresh", version)]
struct Args {
    /// Which: table-1, 6 (ways), 7 (freshness), 8 and 9 (replay policy, threads), 10 (replay arrays), 11 (latency), 12 (standby's log), bootstrap,
    /// processor (time of either side), replay (one log, two ways), command-logging-10 (another paper's: commands against changes) [default: all]
    #[arg(long = "figure")]
    figures: Vec<String>,
    /// Folder for the files of primary and standbys; a folder in it is made, and removed at the end
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    dir: PathBuf,
    /// A folder on a disk, for the standby's log of figure 12 [default: the system's for temporary files]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Seconds of each run, after a tenth as long to warm up
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Runs a point; the median is drawn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Standbys of a point, beside none
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    standbys: Vec<usize>,
    /// Engine threads, and threads that replay in figures 9 and 11 [default: 1, 2, 4 and so on up to the processors]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    sites: Vec<u16>,
    /// Transactions a second in figure 7 [default: as many as the engine takes]
    #[arg(long)]
    rate: Option<f64>,
    /// Cores of the primary and of each standby in figure 7, by a quota with a period of 5 ms. Needs root and Linux's control groups [default: all
    /// share all]
    #[arg(long, value_name = "P,S", value_parser = quota::parse)]
    quotas: Option<quota::Quotas>,
    #[command(flatten)]
    figure: FigureArgs,
    /// Run once with this number of standbys, whose logs are in NVRAM, print the transactions a second and stop. Figure 12 does so with other variables
    /// of libpmem
    #[arg(long, value_name = "N")]
    nvram_standbys: Option<usize>,
    /// Seed of --nvram-standbys
    #[arg(long, default_value_t = 1)]
    nvram_seed: u64,
    /// Draw figures 6 and 11 over TCP and RDMA from the measurements in this file, and stop
    #[arg(long, value_name = "FILE")]
    rdma: Option<PathBuf>,
    /// Make a log of tpcc or voter in this new folder and stop, for --replay-log under an instruction counter
    #[arg(long, value_name = "DIR")]
    make_log: Option<PathBuf>,
    /// Replay the log in this folder both ways and stop
    #[arg(long, value_name = "DIR")]
    replay_log: Option<PathBuf>,
    /// Workload of --make-log and --replay-log: tpcc or voter
    #[arg(long, default_value = "tpcc", value_parser = ["tpcc", "voter"])]
    workload: String,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(dir) = &args.replay_log {
        return replay_log(&args.workload, dir);
    }
    if let Some(file) = &args.rdma {
        return draw_rdma(&args, file);
    }
    if args.standbys.iter().any(|count| !(1..=16).contains(count)) {
        bail!("--standbys takes numbers from 1 to 16");
    }
    let drawn = chosen(&args)?;
    let disk = args.disk.clone().unwrap_or_else(std::env::temp_dir);
    in_folder(&args.dir, |dir| {
        in_folder(&disk, |disk| {
            let settings = settings(&args, dir, disk);
            match (&args.make_log, args.nvram_standbys) {
                (Some(dir), _) => settings.make_log(&args.workload, dir),
                (None, Some(standbys)) => {
                    let measured = settings.with_nvram(standbys, args.nvram_seed)?;
                    println!("{}", measured.report.txn_per_s);
                    Ok(())
                }
                (None, None) => draw(&args, &settings, &drawn),
            }
        })
    })
}

/// The figures, each with the function that draws it, in their order.
type Figure = (&'static str, fn(&Settings) -> Result<Vec<Chart>>);

const FIGURES: [Figure; 12] = [
    ("table-1", Settings::table_1),
    ("6", Settings::figure_6),
    ("7", Settings::figure_7),
    ("8", Settings::figure_8),
    ("9", Settings::figure_9),
    ("10", Settings::figure_10),
    ("11", Settings::figure_11),
    ("12", Settings::figure_12),
    ("bootstrap", Settings::bootstrap),
    ("processor", Settings::processor),
    ("replay", Settings::replay),
    ("command-logging-10", Settings::command_logging_10),
];

fn chosen(args: &Args) -> Result<Vec<Figure>> {
    let known = |asked: &String| FIGURES.iter().any(|(name, _)| name == asked);
    if let Some(other) = args.figures.iter().find(|asked| !known(asked)) {
        bail!("there is no figure {other} here: {NAMES} are");
    }
    let asked = |name: &str| args.figures.is_empty() || args.figures.iter().any(|asked| asked == name);
    Ok(FIGURES.into_iter().filter(|(name, _)| asked(name)).collect())
}

fn settings(args: &Args, dir: &Path, disk: &Path) -> Settings {
    let sites = growing_sites(&args.sites);
    let mut standbys = args.standbys.clone();
    standbys.sort_unstable();
    let (seconds, runs) = args.figure.length(args.seconds, args.runs);
    Settings {
        modules: args.figure.modules.clone(),
        seconds,
        runs,
        is_short: args.figure.short,
        standbys,
        warehouses: args.figure.short.then(|| sites.last().copied().unwrap_or(1).into()),
        sites,
        rate: args.rate,
        quotas: args.quotas,
        conditions: args
            .figure
            .conditions(&format!("files on {}", args.dir.display()), seconds, runs),
        dir: dir.to_owned(),
        disk: disk.to_owned(),
    }
}

fn draw(args: &Args, settings: &Settings, figures: &[Figure]) -> Result<()> {
    for (_, measure) in figures {
        for chart in measure(settings)? {
            chart.write(&args.figure.out)?;
        }
    }
    Ok(())
}

fn draw_rdma(args: &Args, file: &Path) -> Result<()> {
    let output = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let conditions = args.figure.conditions("in a virtual machine", args.seconds, 1);
    rdma::charts(&output, &conditions)?
        .iter()
        .try_for_each(|chart| chart.write(&args.figure.out))
}

fn replay_log(workload: &str, dir: &Path) -> Result<()> {
    let found = replay::measure(workload, dir)?;
    println!("{found:#?}");
    Ok(())
}
