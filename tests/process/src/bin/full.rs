//! `full`: fills the memory of a control group with votes. `cargo xtask full` builds and runs it.

use std::process::ExitCode;

use reprise_test_process::run_full;

/// Memory of the group, unless another number is given.
const GROUP_MIB: u64 = 700;

fn main() -> ExitCode {
    let mib = match std::env::args().nth(1).map(|mib| mib.parse()) {
        None => GROUP_MIB,
        Some(Ok(mib)) => mib,
        Some(Err(_)) => {
            eprintln!("usage: full [MIB]");
            return ExitCode::from(2);
        }
    };
    let done = tempfile::tempdir()
        .map_err(Into::into)
        .and_then(|dir| run_full(mib << 20, dir.path()));
    match done {
        Ok(Some(report)) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Ok(None) => {
            eprintln!("error: a control group can't be made here");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
