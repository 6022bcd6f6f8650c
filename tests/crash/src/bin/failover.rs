//! `failover`: loses the primary of three servers again and again. `cargo xtask failover` builds and runs it.

use std::process::ExitCode;

use clap::Parser;
use reprise_test_crash::{By, FailoverConfig, exit_code, run_failovers, run_forced, told_seed};

/// Lose the primary of three servers under load again and again, and look for lost, half or repeated transactions
#[derive(Parser)]
#[command(
    name = "failover",
    version,
    after_help = "Example:\n  failover --by-hand 100 --safety quorum --seed 7"
)]
struct Args {
    /// Failovers, each by a promotion that somebody asks for
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "by_lease")]
    by_hand: u32,
    /// Failovers by a lease in etcd, instead; needs Debian's etcd-server
    #[arg(long, value_name = "N")]
    by_lease: Option<u32>,
    /// Promotions by force after standbys stood still, instead; a lost write has to be named
    #[arg(long, value_name = "N", conflicts_with_all = ["by_hand", "by_lease"])]
    forced: Option<u32>,
    /// Safety level of writes; 1-safe loses some. very-safe is for --forced alone
    #[arg(long, value_parser = ["1-safe", "2-safe", "quorum", "very-safe"], default_value = "2-safe")]
    safety: String,
    /// Device that a commit waits for: files, NVRAM (regions in ordinary files), or either at each start
    #[arg(long, value_parser = ["file", "nvram", "mixed"], default_value = "file")]
    device: String,
    /// Repeat the plan of this seed
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seed = told_seed(args.seed);
    if let Some(promotions) = args.forced {
        let config = FailoverConfig {
            device: args.device,
            tells: true,
            ..FailoverConfig::forced(promotions, &args.safety, seed)
        };
        return exit_code(run_forced(&config).map(|report| println!("{report}")));
    }
    let by = if args.by_lease.is_some() { By::Lease } else { By::Hand };
    let failovers = args.by_lease.unwrap_or(args.by_hand);
    let config = FailoverConfig {
        safety: args.safety,
        device: args.device,
        tells: true,
        ..FailoverConfig::new(by, failovers, seed)
    };
    exit_code(run_failovers(&config).map(|report| println!("{report}")))
}
