//! Replay of what a run left: recovery, timed, and the digest of what came out.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use reprise_base::limits::SEGMENT_BYTES;
use reprise_database::{BatchLimits, CommitMode, Database, DatabaseConfig, DeviceConfig, LogPolicy, RedoConfig};
use serde::{Deserialize, Serialize};

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
    /// Digest of all rows of all tables, in hexadecimal: the same for the same log, whatever the number of sites.
    pub digest: String,
    pub seconds: f64,
    /// The server's last estimate of this time before it ended; null if there was none.
    pub estimated_s: Option<f64>,
    pub partitions: u16,
    pub sites: u16,
    pub log_bytes: u64,
    /// Rows of the checkpoint that was loaded, their bytes, and MB of these a second, the compiling of its modules not counted.
    pub checkpoint_rows: Option<u64>,
    pub checkpoint_row_bytes: Option<u64>,
    pub checkpoint_mb_per_s: Option<f64>,
    /// How fast the run was that made the log, where it is known, and how many times that the replay was.
    pub run_txn_per_s: Option<f64>,
    pub times_run: Option<f64>,
}

/// Left beside the data by a run: how fast it was. Nothing else reads it.
const RUN_FILE: &str = "bench.json";

#[derive(Serialize, Deserialize)]
struct RunLeft {
    workload: String,
    txn_per_s: f64,
}

/// Notes a run's speed where its data lies.
pub(crate) fn write_run_speed(dir: &Path, workload: &str, txn_per_s: f64) -> Result<(), BenchError> {
    let left = RunLeft {
        workload: workload.to_owned(),
        txn_per_s,
    };
    let path = dir.join(RUN_FILE);
    let text = serde_json::to_string(&left).map_err(|error| failed("note the run", error))?;
    fs::write(&path, text).map_err(|error| failed(&format!("write {}", path.display()), error))
}

/// The speed of the run that made what lies in `dir`; none where it left no note that can be read.
fn run_speed(dir: &Path) -> Option<f64> {
    let text = fs::read_to_string(dir.join(RUN_FILE)).ok()?;
    let left: RunLeft = serde_json::from_str(&text).ok()?;
    (left.txn_per_s > 0.0).then_some(left.txn_per_s)
}

/// Opens the database under `options.data_dir`, which replays its log, and closes it again.
pub fn replay(options: &ReplayOptions) -> Result<ReplayReport, BenchError> {
    let config = DatabaseConfig {
        dir: Some(options.data_dir.clone()),
        partitions: options.partitions,
        sites: options.sites,
        log: LogPolicy::Command,
        redo: options.redo,
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        batch_limits: BatchLimits::default(),
        segment_bytes: SEGMENT_BYTES,
        checkpoints: reprise_database::CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    };
    let database = Database::open_any(config).map_err(|error| failed("open the database", error))?;
    let begun = Instant::now();
    let recovered = database.recover().map_err(|error| failed("replay the log", error))?;
    let seconds = begun.elapsed().as_secs_f64();
    let loaded_s = recovered.checkpoint.map_or(0.0, |loaded| loaded.seconds);
    let digest = database
        .router()
        .digest()
        .map_err(|error| failed("digest the tables", error))?;
    let txn_per_s = (recovered.commands as f64 / (seconds - loaded_s)).round();
    let run_txn_per_s = run_speed(&options.data_dir);
    let report = ReplayReport {
        replayed: recovered.commands,
        txn_per_s,
        run_txn_per_s,
        times_run: run_txn_per_s.map(|run| (txn_per_s / run * 100.0).round() / 100.0),
        checkpoint_load_s: recovered.checkpoint.map(|loaded| loaded.seconds),
        digest: format!("{digest:016x}"),
        seconds: (seconds * 1e4).round() / 1e4,
        estimated_s: None,
        partitions: options.partitions,
        sites: options.sites,
        log_bytes: recovered.log_bytes,
        checkpoint_rows: recovered.checkpoint.map(|loaded| loaded.rows),
        checkpoint_row_bytes: recovered.checkpoint.map(|loaded| loaded.row_bytes),
        checkpoint_mb_per_s: recovered
            .checkpoint
            .map(|loaded| (loaded.row_bytes as f64 / 1e6 / (loaded.seconds - loaded.compile_seconds)).round()),
    };
    database.close().map_err(|error| failed("close the database", error))?;
    Ok(report)
}
