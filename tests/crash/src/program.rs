//! Common parts of the programs that repeat a test for long.

use std::{process::ExitCode, time::SystemTime};

use anyhow::Result;

/// The seed that was asked for, or another one each time. It is printed.
pub fn told_seed(asked: Option<u64>) -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = asked.unwrap_or_else(|| since.map_or(0, |since| since.as_micros() as u64));
    eprintln!("seed {seed}");
    seed
}

/// The exit status of a program, whose error is printed.
pub fn exit_code(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
