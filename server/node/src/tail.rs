//! `reprise log tail`: the newest records, and new ones as they come.

use std::{process, thread, time::Duration};

use anyhow::Context;
use reprise_api::{LogPage, LogRecord, U64};
use reprise_client::{Client, LogQuery};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

use crate::{
    cli::Output,
    output::{VerbFailure, VerbResult, print_json, print_json_line, print_line, print_note},
    records,
    remote::failure,
};

/// Time between two polls for new records.
pub const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Number of new records in a page.
const FOLLOWED_AT_ONCE: u32 = 1_000;

/// Prints records, the newest last, like a log. JSON is one document, or one document a record if it follows.
pub fn run(client: &Client, query: LogQuery, follow: bool, output: Output) -> VerbResult {
    let page = newest_records(client, query.clone())?;
    if output == Output::Json && !follow {
        print_json(&page)?;
        return check_whole(page.unsearched, !page.records.is_empty(), &query);
    }
    page.records
        .iter()
        .rev()
        .try_for_each(|record| print_record(record, output))?;
    let has_found = !page.records.is_empty();
    check_whole(page.unsearched, has_found, &query)?;
    if !follow {
        return Ok(());
    }
    end_when_interrupted()?;
    let coming = LogQuery {
        from: Some(page.end.0),
        newest: false,
        limit: Some(FOLLOWED_AT_ONCE),
        ..query
    };
    let progress = FollowProgress {
        has_found,
        has_noted_gap: page.unsearched.is_some(),
    };
    go_on(client, coming, progress, output)
}

/// The state of a follower: what it has printed.
struct FollowProgress {
    has_found: bool,
    /// True once a note said that the search leaves out transactions. A note at each poll would hide the records.
    has_noted_gap: bool,
}

/// Pages until the limit is reached: a filter that little passes may give empty ones.
fn newest_records(client: &Client, mut query: LogQuery) -> Result<LogPage, VerbFailure> {
    let limit = query.limit.unwrap_or(u32::MAX);
    let mut all = client.log(&query).map_err(failure)?;
    while let Some(before) = all.next.filter(|_| (all.records.len() as u32) < limit) {
        query.from = Some(before.0);
        query.limit = Some(limit - all.records.len() as u32);
        let page = client.log(&query).map_err(failure)?;
        all.next = page.next;
        let unsearched = [all.unsearched, page.unsearched].into_iter().flatten();
        all.unsearched = unsearched.map(|count| count.0).reduce(|a, b| a + b).map(U64);
        all.records.extend(page.records);
    }
    Ok(all)
}

/// Says what could not be searched. That is an error where nothing was found: "no record" would not be known.
fn check_whole(unsearched: Option<U64>, has_found: bool, query: &LogQuery) -> VerbResult {
    let Some(count) = unsearched else {
        return Ok(());
    };
    let what = match &query.key {
        Some(key) => format!(
            "the search for the row key {key} could not include {count} transactions, because the log has their calls and not their \
             changed rows. Find a call by --procedure and --argument. A server with --log both also logs changed rows from then on. \
             --since leaves out earlier transactions"
        ),
        None => format!(
            "the search for arguments could not include {count} transactions, because the log has their changed rows and not their \
             calls. Find a row by --key. A server with --log both also logs calls from then on. --since leaves out earlier transactions"
        ),
    };
    match has_found {
        true => {
            print_note(&format!("note: {what}"));
            Ok(())
        }
        false => Err(anyhow::anyhow!(what).into()),
    }
}

/// Prints records as they become durable, until the server is gone or refuses, or until the search can't tell whether a record is wanted
/// and none was found. A follower that stayed silent would look like one that waits.
fn go_on(client: &Client, mut query: LogQuery, mut progress: FollowProgress, output: Output) -> VerbResult {
    loop {
        let page = client.log(&query).map_err(failure)?;
        page.records
            .iter()
            .try_for_each(|record| print_record(record, output))?;
        progress.has_found |= !page.records.is_empty();
        if !progress.has_noted_gap {
            check_whole(page.unsearched, progress.has_found, &query)?;
            progress.has_noted_gap = page.unsearched.is_some();
        }
        let next = page.next.unwrap_or(page.end).0;
        query.from = Some(next);
        if next >= page.end.0 {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

fn print_record(record: &LogRecord, output: Output) -> VerbResult {
    match output {
        Output::Json => print_json_line(record)?,
        Output::Text => print_line(&records::line(record))?,
    }
    Ok(())
}

/// Makes Ctrl-C end the process with status 0, after the last whole line.
pub fn end_when_interrupted() -> VerbResult {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start the listener for Ctrl-C")?;
    let mut interrupt = runtime
        .block_on(async { signal(SignalKind::interrupt()) })
        .context("listen for Ctrl-C")?;
    thread::spawn(move || {
        runtime.block_on(interrupt.recv());
        process::exit(0);
    });
    Ok(())
}
