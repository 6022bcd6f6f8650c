//! Why a database is not opened.

use std::path::PathBuf;

use reprise_base::Lsn;
use reprise_checkpoint::CheckpointError;
use reprise_env::DiskError;
use reprise_log::LogError;
use reprise_recovery::RecoveryError;
use reprise_router::DeployError;

use crate::{device::DeviceError, memory::MemoryError};

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Config(String),
    #[error("{0}")]
    Disk(#[from] DiskError),
    #[error("{0}")]
    Log(#[from] LogError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("{0}")]
    Recovery(#[from] RecoveryError),
    #[error("the database was made with {stored} partitions, and that number is fixed; {asked} were asked for")]
    Partitions { stored: u16, asked: u16 },
    #[error(
        "{} is a backup, and stays as it is: make a data directory of it with `reprise backup restore {} --to DIR`",
        .0.display(), .0.display()
    )]
    IsBackup(PathBuf),
    #[error(
        "{0} holds no log: a standby's directory is bootstrapped from its primary first, or is a restored backup of it. Nothing was made in it"
    )]
    NotBootstrapped(String),
    #[error(
        "this server stepped down for {successor}, at LSN {lsn}, and is no primary any more: start it with --standby-of {}. Where {successor} \
         did not take over, that start and `reprise replication promote --force --accept-loss` make it the primary again",
        .url.as_deref().unwrap_or("URL")
    )]
    SteppedDown {
        successor: String,
        url: Option<String>,
        lsn: Lsn,
    },
    #[error(
        "the tables of this directory, a standby's, were not as its primary's: {what}. Give the standby an empty directory, or remove log and \
         checkpoints from this one and begin anew. `reprise serve --read-only` shows what is here. To open it all the same, remove {} from it",
        crate::differing::NOTE_NAME
    )]
    Differs { what: String },
    #[error("the log begins at LSN {lsn} with a record of kind {kind}, not with its genesis")]
    NoGenesis { lsn: Lsn, kind: &'static str },
    #[error(
        "the log begins at LSN {start}, and no checkpoint from there on can be loaded ({}). Nothing was changed. Restore the \
         folder from a copy", if reasons.is_empty() { "there is none".into() } else { reasons.join("; ") }
    )]
    NoCheckpoint { start: Lsn, reasons: Vec<String> },
    #[error(
        "checkpoints/{name} was taken at LSN {lsn}, and the log ends at LSN {end}: its last part is missing, or it is an older copy. Put the whole \
         log back. Or remove that checkpoint: a standby gets the rest from its primary; of a primary what came behind LSN {end} is lost, and `reprise serve \
         --read-only` shows what is left"
    )]
    BeyondLog { name: String, lsn: Lsn, end: Lsn },
    #[error("note the quarantine in the log: {0}")]
    Quarantine(#[from] DeployError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the module {name:?} can't be compiled: {reason}")]
    Module { name: String, reason: String },
    #[error("start an engine thread: {0}")]
    Thread(std::io::Error),
    #[error("read the system's source of randomness: {0}")]
    Entropy(std::io::Error),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}
