//! Checkpoints.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

/// State of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    /// The server copies and writes rows, while transactions run.
    Running,
    /// The checkpoint is durable, and the next start loads it.
    Published,
    /// The checkpoint failed, and the server kept nothing of it. `error` has the reason.
    Failed,
}

/// A checkpoint, in progress, published or failed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Id of the checkpoint: its LSN.
    pub id: String,
    /// LSN up to which it has everything in the log, exclusive.
    pub lsn: U64,
    /// State of the work.
    pub state: CheckpointState,
    /// Time (RFC 3339).
    pub began_at: String,
    /// Seconds from its begin to its end, or until now. Null if it began before the server's last start.
    pub seconds: Option<f64>,
    /// Rows written until now.
    pub rows: u64,
    /// Number of rows when the checkpoint began.
    pub rows_total: u64,
    /// Bytes of rows written until now, before compression.
    pub row_bytes: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Name of the file in the folder `checkpoints` of the data directory.
    pub file: String,
    /// Reason of the failure. Null if it did not fail.
    pub error: Option<String>,
}

/// Checkpoints, and the time that a restart would take with them.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckpointList {
    /// List, newest first. Failures since the server's start come last.
    pub checkpoints: Vec<Checkpoint>,
    /// Seconds that a restart would take now. Null without a log, and until the server has measured the speeds.
    pub restart_seconds: Option<f64>,
    /// Parts of the restart time. Null without a log.
    pub restart: Option<RestartEstimate>,
    /// The last checkpoint that failed since the server's start. Null if none failed.
    pub last_failure: Option<CheckpointFailure>,
}

/// The time that a restart would take now, in parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RestartEstimate {
    /// Bytes of rows in the newest checkpoint.
    pub load_bytes: u64,
    /// Seconds to load these rows and build their indexes. Null until a start has loaded about as much.
    pub load_seconds: Option<f64>,
    /// Bytes of log after that checkpoint.
    pub replay_bytes: u64,
    /// Seconds to replay that log. On a standby null until a start has replayed about as much.
    pub replay_seconds: Option<f64>,
    /// Bytes of the whole log, which a start checks.
    pub check_bytes: u64,
    /// Seconds to check the log. Null until a start has checked about as much; the total then counts 0.
    pub check_seconds: Option<f64>,
    /// Seconds that the last start took for files, threads and modules. Null until that start has ended.
    pub other_seconds: Option<f64>,
    /// Target in seconds. If a restart would take longer, the server takes a checkpoint. Null without a target.
    pub target_seconds: Option<f64>,
}

/// A failed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckpointFailure {
    /// Time (RFC 3339).
    pub at: String,
    /// Reason of the failure.
    pub error: String,
}
