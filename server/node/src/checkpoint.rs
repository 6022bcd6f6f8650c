//! `reprise checkpoint`: take one, list them.

use std::{thread, time::Duration};

use reprise_api::{Checkpoint, CheckpointState};

use crate::{
    cli::{CheckpointCommand, Output},
    inspect,
    output::{ProgressLine, VerbFailure, VerbResult, bytes, grouped, print_json, print_table, print_text, table},
    remote::{connect, failure},
    status::describe_restart,
};

const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn run(command: &CheckpointCommand, output: Output) -> VerbResult {
    match command {
        CheckpointCommand::Take { no_wait, server } => {
            let client = connect(server)?;
            let mut taken = client.take_checkpoint().map_err(failure)?;
            let progress = ProgressLine::new();
            while !no_wait && taken.state == CheckpointState::Running {
                progress.show(format!(
                    "checkpoint: {} of {} rows, {}",
                    grouped(taken.rows),
                    grouped(taken.rows_total),
                    bytes(taken.file_bytes)
                ));
                thread::sleep(POLL_INTERVAL);
                taken = client.checkpoint(&taken.id).map_err(failure)?;
            }
            progress.clear();
            print_checkpoint(&taken, output)
        }
        CheckpointCommand::Show(args) => inspect::show(args, output),
        CheckpointCommand::List { server } => {
            let list = connect(server)?.checkpoints().map_err(failure)?;
            if output == Output::Json {
                return Ok(print_json(&list)?);
            }
            let mut table = table(&["lsn", "began", "state", "rows", "size", "seconds"]);
            for checkpoint in list.checkpoints {
                table.add_row([
                    checkpoint.id,
                    checkpoint.began_at,
                    match checkpoint.error {
                        Some(error) => format!("{}: {error}", state_name(checkpoint.state)),
                        None => state_name(checkpoint.state).to_owned(),
                    },
                    grouped(checkpoint.rows),
                    bytes(checkpoint.file_bytes),
                    checkpoint.seconds.map_or("-".into(), |seconds| format!("{seconds:.3}")),
                ]);
            }
            print_table(&table)?;
            if let Some(restart) = &list.restart {
                print_text(&format!("a restart {}", describe_restart(restart)))?;
            }
            if let Some(failure) = &list.last_failure {
                print_text(&format!("last failure at {}: {}", failure.at, failure.error))?;
            }
            Ok(())
        }
    }
}

fn state_name(state: CheckpointState) -> &'static str {
    match state {
        CheckpointState::Running => "running",
        CheckpointState::Published => "published",
        CheckpointState::Failed => "failed",
    }
}

fn print_checkpoint(taken: &Checkpoint, output: Output) -> VerbResult {
    match output {
        Output::Json => print_json(taken)?,
        Output::Text => {
            let what = match (&taken.error, taken.state) {
                (Some(error), _) => format!("{}: {error}", state_name(taken.state)),
                (None, state) => state_name(state).to_owned(),
            };
            print_text(&format!(
                "checkpoint {} {what}: {} rows, {} in memory, {} on disk, {:.3} s",
                taken.id,
                grouped(taken.rows),
                bytes(taken.row_bytes),
                bytes(taken.file_bytes),
                taken.seconds.unwrap_or_default()
            ))?;
        }
    }
    match taken.state {
        CheckpointState::Failed => Err(VerbFailure::No),
        CheckpointState::Running | CheckpointState::Published => Ok(()),
    }
}
