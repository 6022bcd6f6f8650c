//! A backup as it is shown, and why there is none.

use std::sync::Arc;

use reprise_backup::ManifestFile;
use reprise_base::Lsn;

/// How far a backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupPhase {
    /// A checkpoint is taken, then it and the log behind it are copied.
    Running,
    /// Whole, durable, with its manifest.
    Published,
    /// Nothing of it is used.
    Failed,
}

/// A backup, or one on its way.
#[derive(Clone, Debug)]
pub struct BackupInfo {
    /// When it began, in microseconds since 1970.
    pub id: String,
    /// How far it is.
    pub state: BackupPhase,
    /// When it was begun.
    pub began_unix_us: i64,
    /// Seconds until it was published or given up, or until now. None for a backup of an earlier run.
    pub seconds: Option<f64>,
    /// Bytes copied until now, or in all.
    pub bytes: u64,
    /// Position of its newest checkpoint.
    pub checkpoint_lsn: Option<Lsn>,
    /// LSN of its end: it has everything that the log has before it.
    pub end_lsn: Option<Lsn>,
    /// On the server.
    pub directory: String,
    /// Empty until it is published.
    pub files: Vec<ManifestFile>,
    /// Why it failed, or why it can't be read.
    pub error: Option<String>,
}

/// Why a backup is not made, found or removed.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum BackupError {
    #[error("the server has no such backup, or the backup has no such file; GET /v1/backups lists them")]
    NotFound,
    #[error("there is no room for another backup: {0}; remove one, or raise the limit")]
    Full(Arc<str>),
    #[error("{0}")]
    Unavailable(Arc<str>),
}
