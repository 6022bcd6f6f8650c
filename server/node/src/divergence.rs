//! The report of a replay that differs from the log: a file beside the log, and advice to the operator.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use reprise_api::{LogRecord, U64};
use reprise_base::Role;
use reprise_codec::rfc3339;
use reprise_database::{Database, Divergence, NodeFile, OpenError, RecoveryError, ReplayError};
use reprise_env::RealDisk;
use reprise_http::log_record;
use reprise_router::LogSearch;
use serde::Serialize;

use crate::server_output::{self, Line};

const OTHER_PROGRAM: &str = "start the program that wrote the log, on the same directory: compare its version and settings with those in the report";

#[derive(Serialize)]
struct Report {
    lsn: U64,
    txn_id: U64,
    time: String,
    module: String,
    version: u32,
    hash: String,
    procedure: String,
    what: String,
    /// The first row in which they differ, if the log holds the transaction's changes, too.
    first_difference: Option<String>,
    /// The record in the log: arguments, partitions, digest.
    record: Option<LogRecord>,
    /// The logged changes of the transaction, if the log holds them too.
    logged_changes: Option<LogRecord>,
    partitions: u16,
    program_version: &'static str,
    /// Hash of this program's settings.
    settings_hash: String,
    /// Hash of the settings of the program that wrote the newest part of the log, if it differs.
    log_settings_hash: Option<String>,
    ways_on: Vec<String>,
}

/// The divergence that an opening failed with, if it was one.
pub fn of(error: &OpenError) -> Option<&Divergence> {
    match error {
        OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found))) => Some(found),
        _ => None,
    }
}

/// Writes the report into the data directory, and prints its place and the next steps.
pub fn report(database: &Database, dir: &Path, found: &Divergence) {
    let report = report_of(database, found, dir);
    match write(dir, found, &report) {
        Ok(path) => server_output::info(
            "divergence",
            format!("the report of the divergence is in {}", path.display()),
        ),
        Err(error) => server_output::error(
            "divergence",
            format!("can't write the report of the divergence: {error:#}"),
        ),
    }
    let ways = report.ways_on.iter().map(|way| format!("  {way}"));
    server_output::say(Line::info("divergence", "ways to continue:").and_lines(ways));
}

fn report_of(database: &Database, found: &Divergence, dir: &Path) -> Report {
    let router = database.router();
    let query = LogSearch {
        from: Some(found.lsn),
        limit: 2,
        ..LogSearch::default()
    };
    let records = router.log_records(query).map(|page| page.records).unwrap_or_default();
    // A command that does not fit its module is still a record, only without the names of its arguments.
    let mut records = records.into_iter().filter_map(|entry| log_record(entry).ok());
    let record = records.next().filter(|record| record.lsn.0 == found.lsn.0);
    let is_of_it = |next: &LogRecord| next.txn_id.is_some_and(|id| id.0 == found.txn_id.0);
    let logged_changes = records.next().filter(is_of_it);
    let status = router.status();
    Report {
        lsn: U64(found.lsn.0),
        txn_id: U64(found.txn_id.0),
        time: rfc3339(found.txn_id.time_us()),
        module: found.module.clone(),
        version: found.version,
        hash: found.hash.clone(),
        procedure: found.procedure.clone(),
        what: found.what.clone(),
        first_difference: found.difference.clone(),
        ways_on: match is_standby(database, dir) {
            true => ways_of_standby(dir),
            false => ways_on(found, dir, logged_changes.is_some()),
        },
        record,
        logged_changes,
        partitions: status.partitions,
        program_version: env!("CARGO_PKG_VERSION"),
        settings_hash: format!("{:016x}", status.settings_hash),
        log_settings_hash: database.other_settings_hash().map(|hash| format!("{hash:016x}")),
    }
}

/// True if `reprise recover` refuses the directory, because it is a standby's, or because its server handed its place over.
fn is_standby(database: &Database, dir: &Path) -> bool {
    let is_refused = || {
        let root = RealDisk::open(dir).ok()?;
        let document = NodeFile::open_to_read(Arc::new(root)).document();
        let document = serde_json::to_value(document).ok()?;
        Some(document["follows"] == true || document["handed_over"].is_object())
    };
    database.router().role() == Role::Standby || is_refused().unwrap_or(false)
}

fn read_only_way(dir: &Path) -> String {
    format!(
        "reprise serve --data-dir {} --read-only     serves the tables as they were before the divergence, and refuses writes",
        dir.display()
    )
}

/// Advises on the directory of a standby. A recovery there would add records to its log that its primary does not have.
fn ways_of_standby(dir: &Path) -> Vec<String> {
    let shown = dir.display();
    vec![
        format!(
            "reprise standby reset {shown}     removes this log. The next start with --standby-of fetches everything from the primary. To \
             search for the cause later, copy the directory first"
        ),
        read_only_way(dir),
        format!(
            "reprise node lead {shown} --accept-loss     makes this directory the primary's, if no other server of this database leads: you can \
             recover it after that"
        ),
        OTHER_PROGRAM.to_owned(),
    ]
}

fn ways_on(found: &Divergence, dir: &Path, has_changes: bool) -> Vec<String> {
    let mut ways = vec![read_only_way(dir)];
    let (dir, lsn) = (dir.display(), found.lsn);
    ways.push(format!(
        "reprise restore --data-dir {dir} --to DIR --lsn {}     restores the state before the divergence, without later transactions",
        lsn.0.saturating_sub(1)
    ));
    if has_changes {
        ways.insert(0, format!(
            "reprise recover --data-dir {dir} --quarantine {}.{}     writes the procedure's changed rows from the log, and then refuses its calls",
            found.module, found.procedure
        ));
        ways.insert(0, format!(
            "reprise recover --data-dir {dir} --recover-from physiological     writes the changed rows of all transactions from the log"
        ));
    }
    ways.push(OTHER_PROGRAM.to_owned());
    ways
}

fn write(dir: &Path, found: &Divergence, report: &Report) -> anyhow::Result<PathBuf> {
    let path = dir.join(format!("divergence-{}.json", found.lsn));
    let temporary = path.with_extension("tmp");
    let mut text = serde_json::to_vec_pretty(report).context("write the report as JSON")?;
    text.push(b'\n');
    let mut file = private_file(&temporary).with_context(|| format!("create {}", temporary.display()))?;
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("write {}", temporary.display()))?;
    fs::rename(&temporary, &path).with_context(|| format!("name {}", path.display()))?;
    Ok(path)
}

/// Makes a file that only this user can read, because a report shows rows.
fn private_file(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(reprise_env::PRIVATE_FILE_MODE)
        .open(path)
}
