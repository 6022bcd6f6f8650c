//! `rdma-failover`: failovers of three servers over soft-RoCE, in a virtual machine. `cargo xtask failover --rdma` builds and runs it.

use std::{process::ExitCode, time::SystemTime};

use anyhow::Context;
use clap::Parser;
use reprise_test_crash::exit_code;
use reprise_test_hardware::{RdmaFailovers, is_available, run_rdma_failovers, run_rdma_failovers_guest};

/// Lose the primary of three servers again and again, whose log travels over RDMA in a virtual machine
#[derive(Parser)]
#[command(
    name = "rdma-failover",
    version,
    after_help = "Example:\n  rdma-failover --by-hand 10 --by-lease 10"
)]
struct Args {
    /// Failovers, each by a promotion that somebody asks for
    #[arg(long, value_name = "N", default_value_t = 0)]
    by_hand: u32,
    /// Failovers by a lease in etcd, behind those
    #[arg(long, value_name = "N", default_value_t = 0)]
    by_lease: u32,
    /// Safety level of writes
    #[arg(long, value_parser = ["2-safe", "quorum"], default_value = "2-safe")]
    safety: String,
    /// Device that a commit waits for: files, NVRAM (regions in ordinary files), or either at each start
    #[arg(long, value_parser = ["file", "nvram", "mixed"], default_value = "file")]
    device: String,
    /// Repeat the plan of this seed
    #[arg(long)]
    seed: Option<u64>,
    /// The half that runs in the virtual machine
    #[arg(long, hide = true)]
    guest: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = args
        .seed
        .unwrap_or_else(|| since.map_or(0, |since| since.as_micros() as u64));
    let failovers = RdmaFailovers {
        by_hand: args.by_hand,
        by_lease: args.by_lease,
        safety: args.safety,
        device: args.device,
        seed,
    };
    let done = match args.guest {
        true => run_rdma_failovers_guest(&failovers),
        false => boot(&failovers),
    };
    exit_code(done)
}

fn boot(failovers: &RdmaFailovers) -> anyhow::Result<()> {
    is_available().map_err(anyhow::Error::msg)?;
    eprintln!("seed {}", failovers.seed);
    let program = std::env::current_exe().context("find this program")?;
    run_rdma_failovers(&program, failovers)
}
