//! `plans`: measures calls beside plans of a deployment. `cargo xtask plans` builds and runs it.

use std::process::ExitCode;

use reprise_test_process::{PlansConfig, run_plans};

const CONFIG: PlansConfig = PlansConfig {
    rows: 3_000_000,
    rounds: 3,
    seconds: 8,
};

fn main() -> ExitCode {
    let measured = tempfile::tempdir()
        .map_err(Into::into)
        .and_then(|dir| run_plans(CONFIG, dir.path()));
    match measured {
        Ok(report) if report.barriers == 0 => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Ok(report) => {
            eprintln!("{report}error: a plan sent barriers");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
