//! Backups.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

/// How far a backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackupState {
    /// A checkpoint is taken, then it and the log behind it are copied, while transactions go on.
    Running,
    /// Whole and durable.
    Published,
    /// Nothing of it is to be used; `error` says why.
    Failed,
}

/// A file of a backup, by its path in the backup's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupFile {
    /// Path in the backup; its last part is the name of the download.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// In hexadecimal digits.
    pub sha256: String,
}

/// A backup, under way or done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Backup {
    /// Names it in `/v1/backups/{id}`.
    pub id: String,
    /// How far it is.
    pub state: BackupState,
    /// RFC 3339.
    pub began_at: String,
    /// Until it was published or given up, or until now; null for one of an earlier run.
    pub seconds: Option<f64>,
    /// Bytes copied until now, or in all.
    pub bytes: u64,
    /// Position of its checkpoint; null until one is chosen.
    pub checkpoint_lsn: Option<U64>,
    /// It holds what the log holds before this position.
    pub end_lsn: Option<U64>,
    /// On the server.
    pub directory: String,
    /// The manifest first; empty until it is published.
    pub files: Vec<BackupFile>,
    /// Why it failed; null where it did not.
    pub error: Option<String>,
}

/// Backups, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BackupList {
    /// All backups, the newest first; those that failed in this run last.
    pub backups: Vec<Backup>,
}
