//! The log in NVRAM beside what it is compared with, and the figures of NV-Logging (sections 4.1, 6.2 and 6.3) drawn anew.
//! Owns: the comparators (NV-Disk, NV-Disk with decentralised buffers, distributed logging), the measurements, CSV and SVG.
//! Does not: belong to the server, whose log has none of these; claim a figure: a machine does, which each file names.
//! Invariants: every scheme runs the same workload, checks included, with one call on its way for each site.
//! Called by: `cargo xtask figures nvram`.
#![forbid(unsafe_code)]

mod disk;
mod distributed;
mod figures;
mod files;
mod insertion;
mod prices;
mod schemes;
mod timed;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Parser;
use figures::Settings;
use prices::Prices;
use reprise_bench_figures::Drawing;
use reprise_bench_figures::program::{FigureArgs, growing_sites, in_folder};

/// Draws NV-Logging's figures with measurements of this machine
#[derive(Parser)]
#[command(name = "reprise-bench-nvram", version)]
struct Args {
    /// Which: 9 (write paths), 11 (insertions), 12 (TPC-C), 13 (13-tatp, 13-tpcb), 15 (where time goes), 16 (throughput per dollar)
    /// [default: all]
    #[arg(long = "figure")]
    figures: Vec<String>,
    /// The NVRAM's file system; a folder in it is made, and removed at the end
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    nvram: PathBuf,
    /// Seconds of each run, after a tenth as long to warm up
    #[arg(long, default_value_t = 30.0)]
    seconds: f64,
    /// Runs a point; the median is drawn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Engine threads [default: 1, 2, 4 and so on up to the processors]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=256))]
    sites: Vec<u16>,
    /// Nanoseconds that a line takes longer to be written: 60 is as long again as DRAM
    #[arg(long, value_delimiter = ',', default_value = "0,60,120,240,480")]
    delays_ns: Vec<u64>,
    #[command(flatten)]
    prices: Prices,
    #[command(flatten)]
    figure: FigureArgs,
}

fn main() -> Result<()> {
    let args = Args::parse();
    in_folder(&args.nvram, |folder| draw(&args, settings(&args, folder)))
}

fn settings(args: &Args, nvram: &Path) -> Settings {
    let sites = growing_sites(&args.sites);
    let (seconds, runs) = args.figure.length(args.seconds, args.runs);
    Settings {
        modules: args.figure.modules.clone(),
        seconds,
        warmup_s: seconds / 10.0,
        runs,
        delays_ns: if args.figure.short {
            vec![0]
        } else {
            args.delays_ns.clone()
        },
        // Two on each partition, the fewest between which a call can go.
        branches: args
            .figure
            .short
            .then(|| 2 * sites.iter().copied().max().map_or(1, u32::from)),
        conditions: args
            .figure
            .conditions(&format!("NVRAM on {}", args.nvram.display()), seconds, runs),
        sites,
        nvram: nvram.to_owned(),
        prices: args.prices,
    }
}

/// The name of each figure, or of a part of one, and what measures it.
type Figure = (&'static str, fn(&Settings) -> Result<Vec<Drawing>>);

const FIGURES: [Figure; 7] = [
    ("9", Settings::figure_9),
    ("11", Settings::figure_11),
    ("12", Settings::figure_12),
    ("13-tatp", Settings::figure_13_tatp),
    ("13-tpcb", Settings::figure_13_tpcb),
    ("15", Settings::figure_15),
    ("16", Settings::figure_16),
];

/// `13` asks for both parts of the figure.
fn is_asked(asked: &str, name: &str) -> bool {
    let rest = name.strip_prefix(asked);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn draw(args: &Args, settings: Settings) -> Result<()> {
    let is_known = |asked: &&String| FIGURES.iter().any(|(name, _)| is_asked(asked, name));
    if let Some(other) = args.figures.iter().find(|asked| !is_known(asked)) {
        anyhow::bail!("there is no figure {other} here: 9, 11, 12, 13, 15 and 16 are");
    }
    for (name, measure) in FIGURES {
        if args.figures.is_empty() || args.figures.iter().any(|asked| is_asked(asked, name)) {
            for drawing in measure(&settings)? {
                drawing.write(&args.figure.out)?;
            }
        }
    }
    Ok(())
}
