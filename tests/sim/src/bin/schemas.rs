//! Chains of changes of tables, as many as asked for.
#![forbid(unsafe_code)]

use std::{process::ExitCode, time::Instant};

use clap::Parser;
use reprise_test_sim::{ChainStats, run_chain};

/// Runs chains of deployments that change tables; the first that finds something is printed, and ends it with status 1.
#[derive(Parser)]
#[command(name = "schemas")]
struct Cli {
    /// How many chains
    #[arg(long, default_value_t = 1_000)]
    chains: u64,
    /// The seed of the first
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Tell what happens
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let begun = Instant::now();
    let mut total = ChainStats::default();
    let mut status = ExitCode::SUCCESS;
    for seed in cli.seed..cli.seed + cli.chains {
        match run_chain(seed, cli.verbose) {
            Ok(stats) => total.add(&stats),
            Err(found) => {
                println!("{found}");
                status = ExitCode::FAILURE;
                break;
            }
        }
    }
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!("{total}; {:.0} chains a minute", total.chains as f64 / minutes);
    status
}
