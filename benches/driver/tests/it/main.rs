//! The integration tests of `reprise-bench`, in one binary.

mod devices;
mod overload;
mod prepared;

use std::process::Command;

/// The load driver with these arguments.
fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise-bench"));
    command.args(args);
    command
}
