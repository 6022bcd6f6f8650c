//! Checkpoints.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

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

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Its LSN.
    pub id: String,
    /// It holds what the log holds before this position.
    pub lsn: U64,
    pub state: CheckpointState,
    /// RFC 3339.
    pub began_at: String,
    /// Until it was published or given up, or until now; null for one of an earlier run.
    pub seconds: Option<f64>,
    /// Rows written so far.
    pub rows: u64,
    pub rows_total: u64,
    /// Bytes of rows written so far, before compression.
    pub row_bytes: u64,
    pub file_bytes: u64,
    /// Name in the data directory's folder `checkpoints`.
    pub file: String,
    pub error: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckpointList {
    /// The newest first; those that failed in this run last.
    pub checkpoints: Vec<Checkpoint>,
    /// Seconds that a restart would take now, by the measured speeds of loading and replay.
    pub restart_seconds: Option<f64>,
}
