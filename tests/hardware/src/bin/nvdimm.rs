//! `nvdimm`: power failures of a server on an emulated NVDIMM. `cargo xtask nvdimm` builds and runs it.

use std::{process::ExitCode, time::SystemTime};

use anyhow::Context;
use clap::{Parser, Subcommand};
use reprise_test_hardware::{NvdimmConfig, NvdimmGuestConfig, is_available, run_nvdimm, run_nvdimm_guest};

/// Cut the power of a loaded server on an emulated NVDIMM again and again, and look for lost calls
#[derive(Parser)]
#[command(name = "nvdimm", version, after_help = "Example:\n  nvdimm --kills 50")]
struct Args {
    #[command(subcommand)]
    half: Option<Half>,
    /// Power failures
    #[arg(long, default_value_t = 10)]
    kills: u64,
    /// Repeat the choices of this seed
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Subcommand)]
enum Half {
    /// The half that runs in the virtual machine
    #[command(hide = true)]
    Guest {
        log: String,
        flush: String,
        region: String,
        what: String,
        answered: Vec<u64>,
    },
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.half {
        Some(Half::Guest {
            log,
            flush,
            region,
            what,
            answered,
        }) => run_nvdimm_guest(&NvdimmGuestConfig {
            log,
            flush,
            region,
            loads: what == "load",
            answered,
        }),
        None => kill(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn kill(args: &Args) -> anyhow::Result<()> {
    is_available().map_err(anyhow::Error::msg)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = args
        .seed
        .unwrap_or_else(|| since.map_or(0, |since| since.as_micros() as u64));
    eprintln!("seed {seed}");
    let program = std::env::current_exe().context("find this program")?;
    let kills = args.kills;
    println!("{}", run_nvdimm(&program, &NvdimmConfig { kills, seed })?);
    Ok(())
}
