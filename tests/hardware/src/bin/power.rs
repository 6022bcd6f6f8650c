//! `power`: power failures under load, on a recorded disk. `cargo xtask power` builds and runs it.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use reprise_test_crash::{exit_code, told_seed};
use reprise_test_hardware::{Config, GuestConfig, is_available, run, run_guest};

/// Cut the power of a loaded server at many points and look for lost or half transactions
#[derive(Parser)]
#[command(name = "power", version, after_help = "Example:\n  power --seconds 20 --points 0")]
struct Args {
    #[command(subcommand)]
    half: Option<Half>,
    /// How long the server is loaded, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Disks to open; 0 is behind every flush and mark, and as many between the flushes
    #[arg(long, default_value_t = 100)]
    points: usize,
    /// Repeat the choices of this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Form of the server's log: command, physiological or both; otherwise by the seed
    #[arg(long, value_name = "KIND")]
    log: Option<String>,
}

#[derive(Subcommand)]
enum Half {
    /// The half that runs in the virtual machine
    #[command(hide = true)]
    Guest {
        shared: PathBuf,
        seconds: u64,
        log: String,
        commit: String,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.half {
        Some(Half::Guest {
            shared,
            seconds,
            log,
            commit,
        }) => run_guest(&GuestConfig {
            shared,
            seconds,
            log,
            commit,
        }),
        None => cut(args),
    };
    exit_code(done)
}

fn cut(args: Args) -> anyhow::Result<()> {
    is_available().map_err(anyhow::Error::msg)?;
    let seed = told_seed(args.seed);
    let config = Config {
        seed,
        seconds: args.seconds,
        points: args.points,
        log: args.log,
        commit: "sync".into(),
    };
    println!("{}", run(&config)?);
    Ok(())
}
