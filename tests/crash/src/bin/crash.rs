//! `crash`: kills the server under load again and again. `cargo xtask crash` builds and runs it.

use std::process::ExitCode;

use clap::Parser;
use reprise_test_crash::{
    Config, MIXED, SCHEMAS, WORKLOADS, WorkloadConfig, exit_code, run, run_schemas, run_workload, told_seed,
};

/// Kill the server under load again and again and look for lost, half or repeated transactions
#[derive(Parser)]
#[command(
    name = "crash",
    version,
    after_help = "Examples:\n  crash --cycles 1000 --seed 7\n  crash --workload tpcc --cycles 20"
)]
struct Args {
    /// kill -9 and restart this many times
    #[arg(long, default_value_t = 1_000)]
    cycles: u32,
    /// Repeat the plan of this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Client threads
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=8))]
    clients: u16,
    /// Cycles after which a new database is begun
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    cycles_per_database: u32,
    /// Form of the servers' log: command, physiological, auto, both, or another at each start
    #[arg(long, value_name = "KIND", default_value = MIXED)]
    log: String,
    /// Device that a commit waits for: file, nvram (a region in a file), or (mixed) either at each start
    #[arg(long, value_parser = ["file", "nvram", MIXED], default_value = "file", conflicts_with = "workload")]
    device: String,
    /// In place of bank and voter together: another benchmark, or tables that change (schemas)
    #[arg(long, value_parser = [&WORKLOADS[..], &[SCHEMAS]].concat())]
    workload: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = told_seed(args.seed);
    if let Some(workload) = args.workload {
        let config = WorkloadConfig {
            workload,
            cycles: args.cycles,
            seed,
            log: (args.log != MIXED).then_some(args.log),
            server_args: Vec::new(),
            keeps: true,
        };
        return match config.workload.as_str() {
            SCHEMAS => tell(run_schemas(&config)),
            _ => tell(run_workload(&config)),
        };
    }
    let config = Config {
        clients: args.clients.into(),
        cycles_per_database: args.cycles_per_database,
        tell_every: 25,
        log: args.log,
        device: args.device,
        ..Config::new(args.cycles, seed)
    };
    tell(run(&config))
}

fn tell<T: std::fmt::Display>(outcome: anyhow::Result<T>) -> ExitCode {
    exit_code(outcome.map(|report| println!("{report}")))
}
