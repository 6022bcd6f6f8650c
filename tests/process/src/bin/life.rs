//! `life`: ordinary life at speed for some time. `cargo xtask life` builds and runs it.

use std::{env, process::ExitCode, time::Duration};

use reprise_test_process::run_life;

fn main() -> ExitCode {
    let seconds = env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(3_600);
    let mut tell = |line: String| println!("{line}");
    let lived = tempfile::tempdir()
        .map_err(Into::into)
        .and_then(|dir| run_life(Duration::from_secs(seconds), dir.path(), &mut tell));
    match lived {
        Ok(report) => {
            print!("{report}");
            match report.is_flat() && report.unexpected.is_empty() {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
