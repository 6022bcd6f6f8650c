//! Who is asked for a backup of the running database.

use std::{
    fs::File,
    sync::{Arc, Weak},
};

use reprise_backup::BackupFile;
use reprise_base::Lsn;

use crate::router::Router;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupState {
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
    pub state: BackupState,
    pub began_unix_us: i64,
    /// Until it was published or given up, or until now. None for one of an earlier run.
    pub seconds: Option<f64>,
    /// Copied so far, or in all.
    pub bytes: u64,
    pub checkpoint_lsn: Option<Lsn>,
    /// It holds what the log holds before this position.
    pub end_lsn: Option<Lsn>,
    /// On the server.
    pub directory: String,
    /// Empty until it is published.
    pub files: Vec<BackupFile>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum BackupError {
    #[error("this node keeps no log, and so no backups: start it with a log")]
    NoLog,
    #[error("there is no such backup, or no such file in it; GET /v1/backups lists them")]
    NotFound,
    #[error("there is no room for another backup: {0}; remove one, or raise the limit")]
    Full(Arc<str>),
    #[error("{0}")]
    Unavailable(Arc<str>),
}

/// Whoever makes backups.
pub trait BackupService: Send + Sync {
    /// Begins a backup and returns at once; where one is under way, that one. `with_earlier`: it holds the older checkpoints, too, and all
    /// log from the oldest of them on, so it can be restored to points before it was made.
    fn create(&self, with_earlier: bool) -> Result<BackupInfo, BackupError>;
    /// The newest first; those that failed in this run last.
    fn list(&self) -> Vec<BackupInfo>;
    fn find(&self, id: &str) -> Option<BackupInfo>;
    /// A file of a published backup, by the last part of its path, and its length.
    fn open_file(&self, id: &str, name: &str) -> Result<(File, u64), BackupError>;
    fn remove(&self, id: &str) -> Result<(), BackupError>;
}

impl Router {
    /// Wires the service that makes backups. Once. It lives with the database.
    pub fn set_backups(&self, service: Weak<dyn BackupService>) {
        let is_first = self.0.backups.set(service).is_ok();
        assert!(is_first, "one service makes backups");
    }

    pub fn backups(&self) -> Result<Arc<dyn BackupService>, BackupError> {
        let service = self.0.backups.get().and_then(Weak::upgrade);
        service.ok_or(BackupError::NoLog)
    }
}
