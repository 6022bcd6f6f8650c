//! A checkpoint as it is shown, and why there is none.

use reprise_base::Lsn;
use reprise_router::CopyError;

/// How far a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointPhase {
    /// Rows are copied and written.
    Running,
    /// Durable, and used by the next start.
    Published,
    /// Nothing of it was kept.
    Failed,
}

/// A checkpoint, or one on its way.
#[derive(Clone, Debug)]
pub struct CheckpointInfo {
    /// Its id, an LSN: it has everything that the log has before it.
    pub lsn: Lsn,
    /// How far it is.
    pub state: CheckpointPhase,
    /// When it was begun.
    pub began_unix_us: i64,
    /// Seconds from its beginning until it was published or given up, or until now. None for a checkpoint of an earlier run.
    pub seconds: Option<f64>,
    /// Rows written until now.
    pub rows: u64,
    /// Rows of all tables at its moment.
    pub rows_total: u64,
    /// Bytes of rows, before compression.
    pub row_bytes: u64,
    /// Bytes of the file until now.
    pub file_bytes: u64,
    /// Name of the file.
    pub file: String,
    /// Why it failed, or why it can't be read.
    pub error: Option<String>,
}

/// A checkpoint that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedCheckpoint {
    /// When it failed.
    pub at_unix_us: i64,
    /// Why.
    pub error: String,
}

/// Refusal of everything that needs a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this server keeps no log, so it has no checkpoints, backups or bytes of earlier versions: start it with a log"
)]
pub struct LogMissing;

/// Why no checkpoint was begun.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The engine did not mark it.
    #[error(transparent)]
    Begin(#[from] CopyError),
    /// The node stops, or has no thread for it.
    #[error("{0}")]
    Failed(String),
}
