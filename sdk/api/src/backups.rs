//! Backups.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

/// State of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackupState {
    /// The server takes a checkpoint, then copies it and the log after it, while transactions run.
    Running,
    /// The backup is complete and durable.
    Published,
    /// The backup failed and is not usable. `error` has the reason.
    Failed,
}

/// A file of a backup, by its path in the backup's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupFile {
    /// Path of the file in the backup. Its last part is the name of the download.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Value in hexadecimal digits.
    pub sha256: String,
}

/// A backup, in progress or done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Backup {
    /// Id of the backup, for `/v1/backups/{id}`.
    pub id: String,
    /// State of the work.
    pub state: BackupState,
    /// Time (RFC 3339).
    pub began_at: String,
    /// Seconds from its begin to its end, or until now. Null if it began before the server's last start.
    pub seconds: Option<f64>,
    /// Bytes copied so far, or in all.
    pub bytes: u64,
    /// LSN of its checkpoint. Null until the server has chosen one.
    pub checkpoint_lsn: Option<U64>,
    /// LSN up to which it has everything in the log, exclusive.
    pub end_lsn: Option<U64>,
    /// Directory on the server.
    pub directory: String,
    /// Files of the backup, the manifest first. Empty until the backup is published.
    pub files: Vec<BackupFile>,
    /// Reason of the failure. Null if it did not fail.
    pub error: Option<String>,
}

/// Backups, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BackupList {
    /// List, newest first. Failures since the server's start come last.
    pub backups: Vec<Backup>,
}
