//! `nvdimm`: power failures of a server on an emulated NVDIMM. `cargo xtask nvdimm` builds and runs it.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use reprise_test_crash::{exit_code, told_seed};
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
    exit_code(done)
}

fn kill(args: &Args) -> anyhow::Result<()> {
    is_available().map_err(anyhow::Error::msg)?;
    let seed = told_seed(args.seed);
    let program = std::env::current_exe().context("find this program")?;
    let kills = args.kills;
    println!("{}", run_nvdimm(&program, &NvdimmConfig { kills, seed })?);
    Ok(())
}
