//! Checkpoints.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

/// How far a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    /// Rows are copied and written, while transactions go on.
    Running,
    /// Durable: the next start begins with it.
    Published,
    /// Nothing of it was kept; `error` says why.
    Failed,
}

/// A checkpoint, under way, published or failed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Its LSN.
    pub id: String,
    /// It holds what the log holds before this position.
    pub lsn: U64,
    /// How far it is.
    pub state: CheckpointState,
    /// RFC 3339.
    pub began_at: String,
    /// Until it was published or given up, or until now; null for one of an earlier run.
    pub seconds: Option<f64>,
    /// Rows written so far.
    pub rows: u64,
    /// Rows that there were when it began.
    pub rows_total: u64,
    /// Bytes of rows written so far, before compression.
    pub row_bytes: u64,
    /// Size of its file.
    pub file_bytes: u64,
    /// Name in the data directory's folder `checkpoints`.
    pub file: String,
    /// Why it failed; null where it did not.
    pub error: Option<String>,
}

/// Checkpoints, and what a restart would take with them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckpointList {
    /// The newest first; those that failed in this run last.
    pub checkpoints: Vec<Checkpoint>,
    /// Seconds that a restart would take now; null until the speeds for it were measured, and without a log.
    pub restart_seconds: Option<f64>,
    /// Where that comes from; null without a log.
    pub restart: Option<RestartEstimate>,
    /// The last checkpoint of this run that failed, whoever asked for it.
    pub last_failure: Option<CheckpointFailure>,
}

/// Where a speed was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SpeedSource {
    /// At this run's opening.
    Opening,
    /// On some rows of a checkpoint of this run, or some of the log, read for the sake of it.
    Sample,
    /// On the engine threads, as they ran what the log holds.
    Running,
}

/// A measured speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Speed {
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Where the figure comes from.
    pub measured: SpeedSource,
}

/// What a restart would take now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RestartEstimate {
    /// Bytes of rows in the newest checkpoint.
    pub load_bytes: u64,
    /// Of loading them and building their indexes; null until it was measured.
    pub load_speed: Option<Speed>,
    /// Seconds for loading the checkpoint; null while no speed is known.
    pub load_seconds: Option<f64>,
    /// Bytes of log behind that checkpoint; 0 where no call left anything there.
    pub replay_bytes: u64,
    /// Null until it was measured.
    pub replay_speed: Option<Speed>,
    /// Seconds for replaying the log behind it; null while no speed is known.
    pub replay_seconds: Option<f64>,
    /// Bytes of log that are kept, all of which is checked.
    pub check_bytes: u64,
    /// Null until it was measured: then there is little of it.
    pub check_speed: Option<Speed>,
    /// Seconds for checking it; 0 while no speed is known.
    pub check_seconds: f64,
    /// Seconds that this run's opening took beside these: its files, threads and modules; null until it was over.
    pub other_seconds: Option<f64>,
    /// A checkpoint is begun when a restart would take longer; null where no target is set.
    pub target_seconds: Option<f64>,
}

/// A checkpoint that was not published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointFailure {
    /// RFC 3339.
    pub at: String,
    /// Why.
    pub error: String,
}
