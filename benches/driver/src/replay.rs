//! Replay of what a run left: recovery, timed, and the digest of what came out.

use std::{path::PathBuf, time::Instant};

use reprise_base::limits::SEGMENT_BYTES;
use reprise_database::{CommitMode, Database, DatabaseConfig, LogMode, RedoConfig};
use serde::Serialize;

use crate::{BenchError, failed};

#[derive(Clone, Debug)]
pub struct ReplayOptions {
    pub data_dir: PathBuf,
    /// The number that the log was made with.
    pub partitions: u16,
    pub sites: u16,
    pub redo: RedoConfig,
}

#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Transactions.
    pub replayed: u64,
    pub txn_per_s: f64,
    /// Null where there is no checkpoint.
    pub checkpoint_load_s: Option<f64>,
    /// Of all rows of all tables, in hexadecimal: the same for the same log, whatever the number of sites.
    pub digest: String,
    pub seconds: f64,
    pub partitions: u16,
    pub sites: u16,
    pub log_bytes: u64,
    /// Rows of the checkpoint that was loaded, their bytes, and MB of these a second.
    pub checkpoint_rows: Option<u64>,
    pub checkpoint_row_bytes: Option<u64>,
    pub checkpoint_mb_per_s: Option<f64>,
}

/// Opens the database under `options.data_dir`, which replays its log, and closes it again.
pub fn replay(options: &ReplayOptions) -> Result<ReplayReport, BenchError> {
    let config = DatabaseConfig {
        dir: Some(options.data_dir.clone()),
        partitions: options.partitions,
        sites: options.sites,
        log: LogMode::Command,
        redo: options.redo,
        commit: CommitMode::Sync,
        group_commit_us: 0,
        segment_bytes: SEGMENT_BYTES,
        checkpoints: reprise_database::CheckpointConfig::BY_HAND,
    };
    let database = Database::open(config).map_err(|error| failed("open the database", error))?;
    let begun = Instant::now();
    let recovered = database
        .recover()
        .map_err(|error| failed("replay the log", error))?;
    let seconds = begun.elapsed().as_secs_f64();
    let loaded_s = recovered.checkpoint.map_or(0.0, |loaded| loaded.seconds);
    let digest = database
        .router()
        .digest()
        .map_err(|error| failed("digest the tables", error))?;
    let report = ReplayReport {
        replayed: recovered.commands,
        txn_per_s: (recovered.commands as f64 / (seconds - loaded_s)).round(),
        checkpoint_load_s: recovered.checkpoint.map(|loaded| loaded.seconds),
        digest: format!("{digest:016x}"),
        seconds: (seconds * 1e4).round() / 1e4,
        partitions: options.partitions,
        sites: options.sites,
        log_bytes: recovered.log_bytes,
        checkpoint_rows: recovered.checkpoint.map(|loaded| loaded.rows),
        checkpoint_row_bytes: recovered.checkpoint.map(|loaded| loaded.row_bytes),
        checkpoint_mb_per_s: recovered
            .checkpoint
            .map(|loaded| (loaded.row_bytes as f64 / 1e6 / loaded.seconds).round()),
    };
    database
        .close()
        .map_err(|error| failed("close the database", error))?;
    Ok(report)
}
