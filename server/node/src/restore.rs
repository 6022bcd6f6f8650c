//! `reprise restore`: makes a new data directory with a database as it was at a point.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use reprise_api::U64;
use reprise_backup::{Point, RestoreReport, restore, restore_archived};
use reprise_base::{Lsn, TxnId};
use reprise_codec::{parse_timestamp, rfc3339};
use serde::Serialize;

use crate::{
    cli::Output,
    output::{VerbFailure, VerbResult, bytes, grouped, print_json, print_pairs, print_text},
    region,
};

pub const EXAMPLE: &str = "Examples:
  reprise restore --data-dir ./reprise-data --to ./yesterday --time 2026-03-01T18:00:00Z
  reprise restore --data-dir ./reprise-data --to ./before --lsn 48213
  reprise restore --data-dir ./backup --to ./new
  reprise restore --data-dir ./reprise-data --archive /mnt/archive --to ./tuesday --time 2026-03-03T09:00:00Z
  reprise restore --archive /mnt/archive --to ./tuesday              if the data directory is lost

The restored database includes the record at the point. With --time it includes every record before the first one whose
transaction is later. The command only reads the source, and a server may run on it. With --archive you can restore any point since
the archive's oldest checkpoint. Without the data directory, the last point is the newest one in the archive.";

#[derive(Args)]
pub struct RestoreArgs {
    /// Data directory or backup to restore from [default: ./reprise-data; with --archive alone, the archive]
    #[arg(long, env = "REPRISE_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Archive of the data directory (`serve --archive`). Without --data-dir, the restore ends at the newest point in the archive
    #[arg(long, env = "REPRISE_ARCHIVE", value_name = "DIR")]
    pub archive: Option<PathBuf>,
    /// New data directory. It must be empty, or not exist yet
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
    #[command(flatten)]
    pub point: PointArgs,
}

/// The point to restore. Without one, the whole log is restored.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub struct PointArgs {
    /// Restore up to the record at this LSN
    #[arg(long, value_name = "N")]
    pub lsn: Option<u64>,
    /// Restore up to this transaction
    #[arg(long, value_name = "ID")]
    pub txn: Option<u64>,
    /// Restore up to this time, for example 2026-03-01T18:00:00Z
    #[arg(long, value_name = "RFC3339", value_parser = time)]
    pub time: Option<i64>,
}

fn time(text: &str) -> Result<i64, String> {
    let parsed = parse_timestamp(text);
    parsed.ok_or_else(|| "write the time as 2026-03-01T18:00:00Z or 2026-03-01T18:00:00.5+01:00".into())
}

impl PointArgs {
    pub fn point(&self) -> Point {
        match (self.lsn, self.txn, self.time) {
            (Some(lsn), ..) => Point::Lsn(Lsn(lsn)),
            (_, Some(txn), _) => Point::Txn(TxnId(txn)),
            (_, _, Some(time_us)) => Point::Time(time_us),
            _ => Point::End,
        }
    }
}

#[derive(Serialize)]
struct RestoreSummary {
    data_dir: PathBuf,
    /// LSN of the checkpoint. Null if the log is replayed from its beginning.
    checkpoint_lsn: Option<U64>,
    /// LSN at which the first left-out record would begin.
    end_lsn: U64,
    last_lsn: Option<U64>,
    last_txn_id: Option<U64>,
    last_time: Option<String>,
    /// Records behind the checkpoint, replayed at the first start.
    records: u64,
    /// Records behind the point.
    left_out: u64,
    bytes: u64,
    checkpoints_passed_over: Vec<String>,
    /// Damage of the source behind the point.
    damage: Option<String>,
}

impl RestoreSummary {
    fn of(to: &Path, report: RestoreReport) -> Self {
        let last = report.last;
        Self {
            data_dir: to.to_owned(),
            checkpoint_lsn: report.checkpoint.map(|lsn| U64(lsn.0)),
            end_lsn: U64(report.cut.0),
            last_lsn: last.map(|(lsn, _)| U64(lsn.0)),
            last_txn_id: last.map(|(_, txn_id)| U64(txn_id.0)),
            last_time: last.map(|(_, txn_id)| rfc3339(txn_id.time_us())),
            records: report.records,
            left_out: report.left_out,
            bytes: report.checkpoint_bytes + report.log.bytes,
            checkpoints_passed_over: report.passed_over,
            damage: report.damage,
        }
    }
}

pub fn run(args: &RestoreArgs, output: Output) -> VerbResult {
    let (from, archive) = match (&args.data_dir, &args.archive) {
        (Some(data_dir), archive) => (data_dir.as_path(), archive.as_deref()),
        (None, Some(archive)) => (archive.as_path(), None),
        (None, None) => (Path::new("./reprise-data"), None),
    };
    region::check_region(from)?;
    restore_from(from, archive, &args.to, &args.point, output)
}

pub fn restore_from(from: &Path, archive: Option<&Path>, to: &Path, point: &PointArgs, output: Output) -> VerbResult {
    let report = match archive {
        None => restore(from, to, point.point()),
        Some(archive) => restore_archived(from, archive, to, point.point()),
    };
    let report = report.with_context(|| format!("restore {}", from.display()))?;
    let restored = RestoreSummary::of(to, report);
    match output {
        Output::Json => print_json(&restored)?,
        Output::Text => print_summary(&restored)?,
    }
    Ok(())
}

fn print_summary(restored: &RestoreSummary) -> Result<(), VerbFailure> {
    let to = restored.data_dir.display();
    let begins = match restored.checkpoint_lsn {
        Some(lsn) => format!("checkpoint {lsn}"),
        None => "the log's beginning".to_owned(),
    };
    let last = match (&restored.last_txn_id, &restored.last_time, restored.last_lsn) {
        (Some(txn_id), Some(time), Some(lsn)) => format!("{txn_id} of {time}, at LSN {lsn}"),
        _ => "none after the checkpoint".to_owned(),
    };
    let mut pairs = vec![
        ("restored", to.to_string()),
        (
            "from",
            format!("{begins} and {} records after it", grouped(restored.records)),
        ),
        ("last transaction", last),
        ("left out", format!("{} later records", grouped(restored.left_out))),
        ("size", bytes(restored.bytes)),
    ];
    for reason in &restored.checkpoints_passed_over {
        pairs.push(("skipped", reason.clone()));
    }
    if let Some(damage) = &restored.damage {
        pairs.push(("damage after it", damage.clone()));
    }
    print_pairs(&pairs)?;
    Ok(print_text(&format!("start it with: reprise serve --data-dir {to}"))?)
}
