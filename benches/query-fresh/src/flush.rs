//! Runs in which libpmem flushes cache lines by a given instruction. It chooses the instruction when it is loaded, by its environment, so each run is a
//! process of its own.

use std::{env, process::Command};

use anyhow::{Context, Result, ensure};

/// A way to flush cache lines (Query Fresh, section 4.9).
#[derive(Clone, Copy)]
pub struct Flush {
    pub series: &'static str,
    /// Variables of libpmem's environment that leave it this way alone.
    variables: &'static [&'static str],
}

pub const FLUSHES: [Flush; 2] = [
    Flush {
        series: "nvram-clwb",
        variables: &["PMEM_NO_MOVNT"],
    },
    Flush {
        series: "nvram-clflush",
        variables: &["PMEM_NO_MOVNT", "PMEM_NO_CLWB", "PMEM_NO_CLFLUSHOPT"],
    },
];

/// Runs this program with `--nvram-standbys` beside its own flags, and returns the primary's transactions a second.
pub fn measure_apart(flush: Flush, standbys: usize, round: u32) -> Result<f64> {
    let mut command = Command::new(env::current_exe().context("find this program")?);
    command.args(env::args_os().skip(1));
    command.args([
        "--nvram-standbys",
        &standbys.to_string(),
        "--nvram-seed",
        &(1 + round).to_string(),
    ]);
    command.envs(flush.variables.iter().map(|name| (name, "1")));
    let output = command.output().context("start this program again")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} with {standbys} standbys: {errors}",
        flush.series
    );
    let rate = String::from_utf8_lossy(&output.stdout);
    rate.trim()
        .parse()
        .with_context(|| format!("{} with {standbys} standbys: {rate}", flush.series))
}
