//! `reprise log output`: what procedures wrote with `log`.

use std::thread;

use reprise_api::{ProcedureLog, ProcedureLogLine};
use reprise_client::{Client, LinesQuery};

use crate::{
    cli::Output,
    output::{VerbResult, print_json, print_json_line, print_line},
    remote::failure,
    tail::{POLL_INTERVAL, end_when_interrupted},
};

/// Prints lines, the newest last, like a log. JSON is one document, or one document a line if it follows.
pub fn run(client: &Client, mut query: LinesQuery, follow: bool, output: Output) -> VerbResult {
    if follow {
        end_when_interrupted()?;
    }
    loop {
        let found = client.procedure_log(&query).map_err(failure)?;
        if output == Output::Json && !follow {
            return Ok(print_json(&found)?);
        }
        print_lines(&found, output)?;
        if !follow {
            return Ok(());
        }
        query.since = found.lines.first().map(|line| line.number + 1).or(query.since);
        thread::sleep(POLL_INTERVAL);
    }
}

fn print_lines(found: &ProcedureLog, output: Output) -> VerbResult {
    for line in found.lines.iter().rev() {
        match output {
            Output::Json => print_json_line(line)?,
            Output::Text => print_line(&text(line))?,
        }
    }
    Ok(())
}

fn text(line: &ProcedureLogLine) -> String {
    let ProcedureLogLine {
        time,
        level,
        module,
        procedure,
        text,
        ..
    } = line;
    format!(
        "{time}  {level:<5}  {module}.{procedure}  {}  {}",
        line.txn_id,
        text.trim_end()
    )
}
