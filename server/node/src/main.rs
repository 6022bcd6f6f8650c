//! The binary `reprise`: the server and every command-line verb.
//! Owns: configuration, wiring, signals, the printed text and the exit status.
//! Does not: answer HTTP, run transactions, measure; it wires and asks the crates that do.
//! Invariants: standard output holds results alone; progress goes to a terminal's standard error; the exit status is 0 for done, 1 for no
//! or an error, 2 for bad usage.
//! Called by: people, scripts, process supervisors.
#![deny(unsafe_code)]

mod activity;
mod advise;
mod announce;
mod backup;
mod build;
mod calls;
mod certificate;
mod checkpoint;
mod cli;
mod config;
mod descriptors;
mod directory;
mod divergence;
mod doctor;
mod escape;
mod etcd;
mod files;
mod inspect;
mod lease;
mod lines;
mod logfile;
mod members;
mod new;
mod output;
mod peers;
mod plan;
mod records;
mod recover;
mod region;
mod reload;
mod remote;
mod replication;
mod restore;
mod rows;
mod serve;
mod server_output;
mod spans;
mod standby;
mod status;
mod tail;
mod token;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::{
    cli::{Cli, Command, Output},
    output::VerbResult,
};

fn main() -> ExitCode {
    reprise_env::bound_arenas();
    quiet_library_backtraces();
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let is_json = cli.output == Output::Json;
    output::finish(run(cli, &matches), is_json)
}

fn run(cli: Cli, matches: &clap::ArgMatches) -> VerbResult {
    let output = cli.output;
    match cli.command {
        Command::Serve(args) => {
            let matches = matches.subcommand_matches("serve").expect("the verb was serve");
            serve::run(args, matches)
        }
        Command::Token(command) => token::run(&command, output),
        Command::New(args) => new::run(&args, output),
        Command::Build(args) => build::run(&args, output),
        Command::Module(command) => remote::module(&command, output),
        Command::Call(args) => remote::call(&args, output),
        Command::Idempotency(command) => remote::idempotency(&command, output),
        Command::Table(command) => remote::tables(&command, output),
        Command::Calls(command) => calls::run(&command, output),
        Command::Advise(args) => advise::run(&args, output),
        Command::Checkpoint(command) => checkpoint::run(&command, output),
        Command::Replication(command) => replication::run(&command, output),
        Command::Node(command) => directory::run_node(&command, output),
        Command::Standby(command) => directory::run_standby(&command, output),
        Command::Log(command) => remote::log(&command, output),
        Command::Backup(command) => backup::run(&command, output),
        Command::Restore(args) => restore::run(&args, output),
        Command::Recover(args) => recover::run(&args, output),
        Command::Status(server) => status::status(&server, output),
        Command::Doctor(args) => doctor::run(&args, output),
    }
}

/// Keeps `RUST_BACKTRACE=1` from capturing a backtrace of this program for every refused or trapped call of a guest, which costs several
/// microseconds each. A panic's backtrace stays.
fn quiet_library_backtraces() {
    const NAME: &str = "RUST_LIB_BACKTRACE";
    if std::env::var_os(NAME).is_none() {
        // SAFETY: this is the first thing that `main` does: no other thread exists that could read the environment.
        #[allow(unsafe_code)]
        unsafe {
            std::env::set_var(NAME, "0");
        }
    }
}
