//! `reprise calls`: what runs and waits, and the end of one of it.

use clap::Subcommand;
use reprise_api::{CallPhase, RunningCall};

use crate::{
    cli::{Output, ServerArgs},
    output::{VerbResult, grouped, print_json, print_table, print_text, table},
    remote::{connect, failure},
};

#[derive(Subcommand)]
pub enum CallsCommand {
    /// List the calls that run or wait, oldest first
    #[command(after_help = "Example:\n  reprise calls list")]
    List {
        /// Largest number of calls to print
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Cancel a call that runs or waits. Its client gets the error `cancelled`, and the server undoes its changes
    #[command(after_help = "Example:\n  reprise calls cancel 4711")]
    Cancel {
        /// Id of the call, or of its transaction
        id: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

pub fn run(command: &CallsCommand, output: Output) -> VerbResult {
    match command {
        CallsCommand::List { limit, server } => {
            let list = connect(server)?.calls((*limit).into()).map_err(failure)?;
            if output == Output::Json {
                return Ok(print_json(&list)?);
            }
            let mut table = table(&["call", "transaction", "procedure", "partition", "ms", "phase"]);
            for call in &list.calls {
                table.add_row([
                    call.call_id.0.to_string(),
                    call.txn_id.map_or("-".into(), |id| id.0.to_string()),
                    name(call),
                    call.partition
                        .map_or("several".into(), |partition| partition.to_string()),
                    format!("{:.1}", call.age_ms),
                    phase(call).into(),
                ]);
            }
            print_table(&table)?;
            let hidden = list.total.saturating_sub(list.calls.len() as u64);
            if hidden > 0 {
                print_text(&format!("and {} more", grouped(hidden)))?;
            }
            Ok(())
        }
        CallsCommand::Cancel { id, server } => {
            let call = connect(server)?.cancel_call(id).map_err(failure)?;
            match output {
                Output::Json => print_json(&call)?,
                Output::Text => print_text(&format!(
                    "call {} of {} was {}",
                    call.call_id.0,
                    name(&call),
                    phase(&call)
                ))?,
            }
            Ok(())
        }
    }
}

fn name(call: &RunningCall) -> String {
    format!("{}.{}", call.module, call.procedure)
}

fn phase(call: &RunningCall) -> &'static str {
    match call.phase {
        CallPhase::Queued => "queued",
        CallPhase::Running => "running",
        CallPhase::Committing => "committing",
    }
}
