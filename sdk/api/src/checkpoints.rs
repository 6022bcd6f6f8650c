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
    /// Rows written until now.
    pub rows: u64,
    /// Rows that there were when it began.
    pub rows_total: u64,
    /// Bytes of rows written until now, before compression.
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
    /// All checkpoints, the newest first; those that failed in this run last.
    pub checkpoints: Vec<Checkpoint>,
    /// Seconds that a restart would take now; null until the speeds for it were measured, and without a log.
    pub restart_seconds: Option<f64>,
    /// Basis of the estimate; null without a log.
    pub restart: Option<RestartEstimate>,
    /// The last checkpoint of this run that failed, scheduled or requested.
    pub last_failure: Option<CheckpointFailure>,
}

/// Estimate of a restart at this moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RestartEstimate {
    /// Bytes of rows in the newest checkpoint.
    pub load_bytes: u64,
    /// Seconds for loading them and building their indexes; null until an opening has loaded about as much.
    pub load_seconds: Option<f64>,
    /// Bytes of log behind that checkpoint.
    pub replay_bytes: u64,
    /// Seconds for replaying them; null on a standby until an opening has replayed about as much.
    pub replay_seconds: Option<f64>,
    /// Bytes of log that are kept, all of which is checked.
    pub check_bytes: u64,
    /// Seconds for checking them; null until an opening has checked about as much, and counted as 0 then.
    pub check_seconds: Option<f64>,
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
