//! `reprise recover`: predicts an opening, or carries it out without serving.

use std::{
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::Args;
use reprise_api::U64;
use reprise_base::limits::SEGMENT_BYTES;
use reprise_codec::{hex, rfc3339};
use reprise_database::{
    BatchLimits, CheckpointConfig, CheckpointFate, CommitMode, Database, DatabaseConfig, DeviceConfig, Inspection,
    LogPolicy, QuarantinedProcedure, RecoverFrom, RedoConfig, inspect, stored_partitions,
};
use serde::Serialize;

use crate::{
    cli::Output,
    config::{self, place::sites_or_default},
    divergence,
    output::{VerbFailure, VerbResult, bytes, grouped, print_json, print_pairs},
};

pub const EXAMPLE: &str = "Examples:
  reprise recover --dry-run --data-dir ./reprise-data
  reprise recover --data-dir ./reprise-data
  reprise recover --data-dir ./reprise-data --recover-from physiological
  reprise recover --data-dir ./reprise-data --quarantine bank.transfer

Without --dry-run, the command replays the log and takes a checkpoint. The next start of the server loads that checkpoint.
It removes no older checkpoint and no log, because the archive or a standby may need them. The server removes them by its settings.
It refuses the directory of a standby, and changes nothing there.
Exit status 1 if the database can't be opened.";
const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Args)]
pub struct RecoverArgs {
    /// The data directory
    #[arg(long, env = "REPRISE_DATA_DIR", value_name = "DIR", default_value = "./reprise-data")]
    pub data_dir: PathBuf,
    /// Print what a recovery would do, and change nothing
    #[arg(long, conflicts_with_all = ["recover_from", "quarantine", "sites"])]
    pub dry_run: bool,
    /// How to replay a transaction that the log holds in both forms: run its command again (command), or write its changed rows
    /// (physiological) [default: command]
    #[arg(long, value_name = "KIND")]
    pub recover_from: Option<RecoverFrom>,
    /// If the replay of this procedure diverges, write its changed rows from the log instead. The server then refuses its calls
    #[arg(long, value_name = "MODULE.PROCEDURE", value_parser = procedure_name)]
    pub quarantine: Vec<String>,
    /// Number of engine threads [default: number of cores, at most one for each partition]
    #[arg(long, value_name = "N", value_parser = config::place::sites)]
    pub sites: Option<u16>,
}

fn procedure_name(text: &str) -> Result<String, String> {
    match text.split_once('.') {
        Some((module, procedure)) if !module.is_empty() && !procedure.is_empty() => Ok(text.to_owned()),
        _ => Err("a procedure is named MODULE.PROCEDURE".into()),
    }
}

#[derive(Serialize)]
struct DryRun {
    /// False if the opening would be refused.
    opens: bool,
    refused: Vec<String>,
    database_id: Option<String>,
    partitions: Option<u16>,
    log_start: U64,
    log_end: U64,
    closed: bool,
    /// Remains of a write that a crash interrupted. An opening would erase them.
    torn: Option<Torn>,
    /// The checkpoints, the newest first.
    checkpoints: Vec<CheckpointReport>,
    replay: Replay,
    other_settings_hash: Option<String>,
    /// Estimate at modest speeds. None was measured.
    estimated_seconds: f64,
}

#[derive(Serialize)]
struct Torn {
    file: String,
    offset: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct CheckpointReport {
    lsn: U64,
    file: String,
    /// `taken`, `passed over` or `kept`.
    verdict: &'static str,
    reason: Option<String>,
    rows: u64,
    row_bytes: u64,
    file_bytes: u64,
}

#[derive(Serialize)]
struct Replay {
    from_lsn: U64,
    to_lsn: U64,
    bytes: u64,
    transactions: u64,
    records: std::collections::BTreeMap<&'static str, u64>,
    last_txn_id: Option<U64>,
    last_time: Option<String>,
}

impl DryRun {
    fn of(found: Inspection) -> Self {
        let checkpoints = found.checkpoints.iter().map(|checkpoint| {
            let (verdict, reason) = match &checkpoint.verdict {
                CheckpointFate::Taken => ("taken", None),
                CheckpointFate::Kept => ("kept", None),
                CheckpointFate::PassedOver(reason) => ("passed over", Some(reason.clone())),
            };
            CheckpointReport {
                lsn: U64(checkpoint.lsn.0),
                file: checkpoint.file.clone(),
                verdict,
                reason,
                rows: checkpoint.rows,
                row_bytes: checkpoint.row_bytes,
                file_bytes: checkpoint.file_bytes,
            }
        });
        let records = found.records.iter().copied();
        Self {
            opens: found.refused.is_empty(),
            database_id: found.database_id.map(|id| hex(&id)),
            partitions: found.partitions,
            log_start: U64(found.log.start.0),
            log_end: U64(found.log.end.0),
            closed: found.log.last_block == Some(reprise_wire::BlockKind::Close),
            torn: found.log.torn.as_ref().map(|torn| Torn {
                file: torn.file.clone(),
                offset: torn.offset,
                bytes: torn.bytes,
            }),
            checkpoints: checkpoints.collect(),
            replay: Replay {
                from_lsn: U64(found.replay_from.0),
                to_lsn: U64(found.log.end.0),
                bytes: found.replay_bytes,
                transactions: found.transactions,
                records: records.collect(),
                last_txn_id: found.last_txn.map(|id| U64(id.0)),
                last_time: found.last_txn.map(|id| rfc3339(id.time_us())),
            },
            other_settings_hash: found.other_settings_hash.map(|hash| format!("{hash:016x}")),
            estimated_seconds: found.seconds,
            refused: found.refused,
        }
    }
}

pub fn run(args: &RecoverArgs, output: Output) -> VerbResult {
    match args.dry_run {
        true => dry_run(&args.data_dir, output),
        false => recover(args, output),
    }
}

#[derive(Serialize)]
struct RecoverySummary {
    transactions: u64,
    log_bytes: u64,
    /// LSN of the checkpoint with which it began.
    loaded_checkpoint_lsn: Option<U64>,
    checkpoints_passed_over: Vec<String>,
    torn_bytes: u64,
    seconds: f64,
    /// Digest of all tables.
    digest: String,
    quarantined: Vec<QuarantinedProcedure>,
    /// LSN of the checkpoint with which the next start begins.
    checkpoint_lsn: U64,
}

fn recover(args: &RecoverArgs, output: Output) -> VerbResult {
    let dir = &args.data_dir;
    let partitions = stored_partitions(dir).with_context(|| format!("read {}", dir.display()))?;
    let partitions = partitions.ok_or_else(|| anyhow!("there is no database in {}", dir.display()))?;
    let database = Database::open_to_recover(DatabaseConfig {
        dir: Some(dir.clone()),
        partitions,
        sites: sites_or_default(args.sites, partitions)?,
        log: LogPolicy::Command,
        redo: RedoConfig {
            from: args.recover_from.unwrap_or_default(),
            ..RedoConfig::default()
        },
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        batch_limits: BatchLimits::default(),
        segment_bytes: SEGMENT_BYTES,
        checkpoints: CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    });
    let database = database.with_context(|| format!("open the database in {}", dir.display()))?;
    let recovered = database.recover_with_quarantine(&args.quarantine);
    if let Some(found) = recovered.as_ref().err().and_then(divergence::of) {
        divergence::report(&database, dir, found);
    }
    let (report, taken) = recovered.context("recover the database")?;
    // This comes before the checkpoint, which would hide the divergence.
    database.keep_quarantine().context("record the quarantine")?;
    let checkpoint_lsn = take_checkpoint(&database)?;
    let digest = database.router().digest().map_err(|error| anyhow!("{error:?}"))?;
    database.close().context("close the log")?;
    let recovered = RecoverySummary {
        transactions: report.commands,
        log_bytes: report.log_bytes,
        loaded_checkpoint_lsn: report.checkpoint.map(|loaded| U64(loaded.lsn.0)),
        checkpoints_passed_over: report.passed_over,
        torn_bytes: report.torn_bytes,
        seconds: report.seconds,
        digest: format!("{digest:016x}"),
        quarantined: taken,
        checkpoint_lsn,
    };
    match output {
        Output::Json => print_json(&recovered)?,
        Output::Text => print_recovered(&recovered)?,
    }
    Ok(())
}

fn take_checkpoint(database: &Database) -> Result<U64, VerbFailure> {
    let checkpointer = database.checkpointer().context("take a checkpoint")?;
    let begun = checkpointer.take().context("take a checkpoint")?;
    let is_published = || checkpointer.is_published(begun.lsn);
    while !is_published().map_err(|reason| anyhow!("take a checkpoint: {reason}"))? {
        thread::sleep(POLL_INTERVAL);
    }
    Ok(U64(begun.lsn.0))
}

fn print_recovered(summary: &RecoverySummary) -> std::io::Result<()> {
    let begins = summary
        .loaded_checkpoint_lsn
        .map_or("the log's beginning".to_owned(), |lsn| format!("checkpoint {lsn}"));
    let mut pairs = vec![
        (
            "recovered",
            format!(
                "{} transactions ({} of log) after {begins}, in {:.3} s",
                grouped(summary.transactions),
                bytes(summary.log_bytes),
                summary.seconds
            ),
        ),
        ("digest", summary.digest.clone()),
        (
            "checkpoint",
            format!("{}: the next start loads it", summary.checkpoint_lsn),
        ),
    ];
    for reason in &summary.checkpoints_passed_over {
        pairs.push(("skipped", reason.clone()));
    }
    for found in &summary.quarantined {
        let what = format!("{} version {}: {}", found.name(), found.version, found.what);
        pairs.push(("quarantined", what));
    }
    print_pairs(&pairs)
}

fn dry_run(dir: &Path, output: Output) -> VerbResult {
    let found = inspect(dir).with_context(|| format!("read {}", dir.display()))?;
    let dry_run = DryRun::of(found);
    match output {
        Output::Json => print_json(&dry_run)?,
        Output::Text => print_dry_run(&dry_run)?,
    }
    match dry_run.opens {
        true => Ok(()),
        false => Err(VerbFailure::No),
    }
}

fn print_dry_run(dry_run: &DryRun) -> std::io::Result<()> {
    let mut pairs = Vec::new();
    let verdict = if dry_run.opens { "would succeed" } else { "would fail" };
    pairs.push(("opening", verdict.to_owned()));
    pairs.extend(dry_run.refused.iter().map(|reason| ("because", reason.clone())));
    if let (Some(id), Some(partitions)) = (&dry_run.database_id, dry_run.partitions) {
        pairs.push(("database", format!("{id}, {partitions} partitions")));
    }
    let ending = if dry_run.closed {
        "closed normally"
    } else {
        "not closed"
    };
    pairs.push((
        "log",
        format!("LSN {} to {}, {ending}", dry_run.log_start, dry_run.log_end),
    ));
    if let Some(torn) = &dry_run.torn {
        let what = format!(
            "would erase {} of {}, from byte {} on, which a crash cut off",
            bytes(torn.bytes),
            torn.file,
            torn.offset
        );
        pairs.push(("torn tail", what));
    }
    for found in &dry_run.checkpoints {
        let verdict = match &found.reason {
            Some(reason) => format!("{}: {reason}", found.verdict),
            None => format!(
                "{}, {} rows, {}",
                found.verdict,
                grouped(found.rows),
                bytes(found.file_bytes)
            ),
        };
        pairs.push(("checkpoint", format!("{} {verdict}", found.lsn)));
    }
    pairs.push(("replay", replay_text(&dry_run.replay)));
    if let (Some(txn_id), Some(time)) = (&dry_run.replay.last_txn_id, &dry_run.replay.last_time) {
        pairs.push(("last transaction", format!("{txn_id} of {time}")));
    }
    if let Some(hash) = &dry_run.other_settings_hash {
        pairs.push((
            "settings",
            format!("{hash}, and not this program's: the replay would compare every outcome"),
        ));
    }
    pairs.push(("time", format!("about {:.1} s", dry_run.estimated_seconds)));
    print_pairs(&pairs)
}

fn replay_text(replay: &Replay) -> String {
    let kinds = replay.records.iter();
    let kinds: Vec<_> = kinds
        .map(|(kind, count)| format!("{} {kind}", grouped(*count)))
        .collect();
    let kinds = match kinds.is_empty() {
        true => "no records".to_owned(),
        false => kinds.join(", "),
    };
    format!(
        "LSN {} to {}, {}: {} transactions ({kinds})",
        replay.from_lsn,
        replay.to_lsn,
        bytes(replay.bytes),
        grouped(replay.transactions),
    )
}
