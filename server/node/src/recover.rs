//! `reprise recover`: what an opening would do.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use reprise_api::U64;
use reprise_database::{Inspection, Verdict, inspect};
use reprise_http::rfc3339;
use serde::Serialize;

use crate::{
    cli::Output,
    output::{Failure, Outcome, bytes, grouped, print_json, print_pairs},
    records::hex,
};

pub const EXAMPLE: &str = "Example:
  reprise recover --dry-run --data-dir ./reprise-data

Exit status 1 where the opening would be refused.";

#[derive(Args)]
pub struct RecoverArgs {
    /// The data directory
    #[arg(
        long,
        env = "REPRISE_DATA_DIR",
        value_name = "DIR",
        default_value = "./reprise-data"
    )]
    pub data_dir: PathBuf,
    /// Say what an opening would do, and change nothing
    #[arg(long, required = true)]
    pub dry_run: bool,
}

#[derive(Serialize)]
struct DryRun {
    /// False where the opening would be refused.
    opens: bool,
    refused: Vec<String>,
    database_id: Option<String>,
    partitions: Option<u16>,
    log_start: U64,
    log_end: U64,
    closed: bool,
    /// Remains of a write that a crash cut off: they would be erased.
    torn: Option<Torn>,
    /// The newest first.
    checkpoints: Vec<Checkpoint>,
    replay: Replay,
    other_settings_hash: Option<String>,
    /// At modest speeds: none was measured.
    estimated_seconds: f64,
}

#[derive(Serialize)]
struct Torn {
    file: String,
    offset: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Checkpoint {
    lsn: U64,
    file: String,
    /// taken, passed over, or kept.
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
                Verdict::Taken => ("taken", None),
                Verdict::Kept => ("kept", None),
                Verdict::PassedOver(reason) => ("passed over", Some(reason.clone())),
            };
            Checkpoint {
                lsn: U64(checkpoint.lsn.0),
                file: checkpoint.file.clone(),
                verdict,
                reason,
                rows: checkpoint.rows,
                row_bytes: checkpoint.row_bytes,
                file_bytes: checkpoint.file_bytes,
            }
        });
        let records = found
            .records
            .iter()
            .map(|(kind, count)| (kind.name(), *count));
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

pub fn run(args: &RecoverArgs, output: Output) -> Outcome {
    dry_run(&args.data_dir, output)
}

fn dry_run(dir: &Path, output: Output) -> Outcome {
    let found = inspect(dir).with_context(|| format!("look at {}", dir.display()))?;
    let told = DryRun::of(found);
    match output {
        Output::Json => print_json(&told)?,
        Output::Text => tell(&told)?,
    }
    match told.opens {
        true => Ok(()),
        false => Err(Failure::No),
    }
}

fn tell(told: &DryRun) -> std::io::Result<()> {
    let mut pairs = Vec::new();
    let verdict = if told.opens {
        "would go through"
    } else {
        "would be refused"
    };
    pairs.push(("opening", verdict.to_owned()));
    pairs.extend(
        told.refused
            .iter()
            .map(|reason| ("because", reason.clone())),
    );
    if let (Some(id), Some(partitions)) = (&told.database_id, told.partitions) {
        pairs.push(("database", format!("{id}, {partitions} partitions")));
    }
    let ending = if told.closed {
        "closed in order"
    } else {
        "not closed"
    };
    pairs.push((
        "log",
        format!("LSN {} to {}, {ending}", told.log_start, told.log_end),
    ));
    if let Some(torn) = &told.torn {
        let what = format!(
            "{} of {} from byte {} on, which a crash cut off, would be erased",
            bytes(torn.bytes),
            torn.file,
            torn.offset
        );
        pairs.push(("torn tail", what));
    }
    for found in &told.checkpoints {
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
    pairs.push(("replay", replay_text(&told.replay)));
    if let (Some(txn_id), Some(time)) = (&told.replay.last_txn_id, &told.replay.last_time) {
        pairs.push(("last transaction", format!("{txn_id} of {time}")));
    }
    if let Some(hash) = &told.other_settings_hash {
        pairs.push((
            "settings",
            format!("{hash}, not this program's: every outcome is compared"),
        ));
    }
    pairs.push(("time", format!("about {:.1} s", told.estimated_seconds)));
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
