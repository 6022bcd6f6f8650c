//! The binary's verbs, with what they printed.

use std::{
    process::Output,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Server, run_verb};
use serde_json::Value;

use crate::openings::PATIENCE;

/// Runs a verb that must succeed, and returns its output with `--output json`.
pub fn json_of(args: &[&str]) -> Result<Value> {
    let (status, output) = status_of(args)?;
    ensure!(
        status == 0,
        "{args:?}: {status}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("what {args:?} printed"))
}

/// A verb's exit status, and all that it printed.
pub fn status_of(args: &[&str]) -> Result<(i32, Output)> {
    let output = run_verb(&[args, &["--output", "json"]].concat())?;
    Ok((output.status.code().context("ended by a signal")?, output))
}

/// Returns the output of `reprise replication status` for this server.
pub fn replication_status(server: &Server) -> Result<String> {
    let shown = run_verb(&["replication", "status", "--url", &format!("http://{}", server.address)])?;
    ensure!(shown.status.success(), "{shown:?}");
    Ok(String::from_utf8_lossy(&shown.stdout).into_owned())
}

/// A verb that says no, with these words on either output.
pub fn refused(args: &[&str], status: i32, words: &str) -> Result<()> {
    let (found, output) = status_of(args)?;
    let errors = [output.stderr, output.stdout].concat();
    let errors = String::from_utf8_lossy(&errors).into_owned();
    ensure!(found == status, "{args:?} ended with {found}: {errors}");
    ensure!(errors.contains(words), "{args:?} does not say {words:?}: {errors}");
    Ok(())
}

/// Runs `reprise replication promote` at a standby, and again while it is not near enough to its primary. On a busy machine it may be
/// disconnected for a moment.
pub fn switch_over(url: &str) -> Result<Output> {
    let until = Instant::now() + PATIENCE;
    loop {
        let promoted = run_verb(&["replication", "promote", "--url", url])?;
        let errors = String::from_utf8_lossy(&promoted.stderr).into_owned();
        let is_late = errors.contains("has not caught up") || errors.contains("is lost");
        if !is_late || Instant::now() >= until {
            return Ok(promoted);
        }
        thread::sleep(Duration::from_millis(50));
    }
}
