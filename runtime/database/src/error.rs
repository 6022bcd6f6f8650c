//! Why a database, or the region before its log, is not opened.

use std::path::PathBuf;

use reprise_base::{Epoch, Lsn, Safety};
use reprise_checkpoint::CheckpointError;
use reprise_env::DiskError;
use reprise_log::LogError;
use reprise_nvram::{PmemError, RegionError};
use reprise_recovery::RecoveryError;
use reprise_router::DeployError;

use crate::{memory::MemoryError, node_file::NODE_NAME};

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
        "this directory is a standby's, and another server may lead. Start it with --standby-of. If no other server of this database leads, run \
         `reprise node lead DIR --accept-loss`, then start it again"
    )]
    IsStandby,
    #[error(
        "this directory is a standby's, and a recovery would add records to its log that its primary does not have. Nothing was changed. \
         `reprise standby reset DIR` has the standby fetch everything anew from its primary. If no other server of this database leads, \
         `reprise node lead DIR --accept-loss` makes this directory the primary's, and you can then recover it"
    )]
    RecoverStandby,
    #[error(
        "{name} at {url} {part} in epoch {epoch}, which is not this directory's: start this server with --standby-of {primary}. If this server is to \
         lead in its place, stop that primary, run `reprise node lead DIR --accept-loss`, then start this one again"
    )]
    AnotherLeads {
        name: String,
        url: String,
        part: &'static str,
        epoch: Epoch,
        primary: String,
    },
    #[error(
        "the safety level of this cluster is {cluster}, and {asked} was asked for. Start with --safety {cluster}, or give the cluster the other level \
         with --safety {asked} --change-safety"
    )]
    OtherSafety { cluster: Safety, asked: Safety },
    #[error(
        "the tables of this directory, a standby's, were not as its primary's: {what}. `reprise serve --read-only` shows what is here. \
         `reprise standby reset DIR` has the standby begin again from its primary; `reprise node health DIR --clear` opens the directory all the same"
    )]
    Differs { what: String },
    #[error(
        "this directory can only be a standby's that begins again: {why}. Start it with --standby-of, and it fetches its first files from the primary"
    )]
    MustBootstrap { why: String },
    #[error(
        "{} can't be read, so the part of this directory in its cluster is not known: {reason}. Nothing was changed. `reprise serve --read-only` shows \
         what is here. `reprise standby reset DIR` has it begin again as a standby. If no other server has this database, \
         `reprise node lead DIR --accept-loss` makes it the primary's",
        NODE_NAME
    )]
    NodeUnknown { reason: String },
    #[error("the log begins at LSN {lsn} with a record of kind {kind}, not with its genesis")]
    NoGenesis { lsn: Lsn, kind: &'static str },
    #[error(
        "the log begins at LSN {start}, and no checkpoint from there on can be loaded ({}). Nothing was changed. Restore the \
         folder from a copy", if reasons.is_empty() { "there is none".into() } else { reasons.join("; ") }
    )]
    NoCheckpoint { start: Lsn, reasons: Vec<String> },
    #[error(
        "checkpoints/{name} was taken at LSN {lsn}, and the log ends at LSN {end}: its last part is missing, or it is an older copy. Put the whole \
         log back. Or remove that checkpoint. A standby then gets the rest from its primary; a primary loses everything behind LSN {end}. \
         `reprise serve --read-only` shows what is left"
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

/// Why a region can't be used with this database. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(transparent)]
    Memory(#[from] PmemError),
    #[error("{}: {error}", .path.display())]
    Region { path: PathBuf, error: RegionError },
    #[error(
        "the data directory says that {} may hold records which its log does not have, and they can't be read: {reason}. Nothing was \
         changed. Bring the region back to this path. Without it every call is lost that was answered since the log was last copied: \
         whoever accepts that removes {note}", .path.display()
    )]
    Lost {
        path: PathBuf,
        reason: String,
        note: String,
    },
    #[error(
        "{} belongs to another database ({found}). Nothing was changed. Name another path, or remove the file if nobody needs it",
        .path.display()
    )]
    OtherDatabase { path: PathBuf, found: String },
    #[error(
        "{} holds {records} records that this database's log does not have, and the data directory does not name it. It may be the \
         region of another copy of this database. Nothing was changed. Name another path, or remove the file if nobody needs it", .path.display()
    )]
    NotOurs { path: PathBuf, records: u64 },
    #[error(
        "the log ends at LSN {end}, and {} says that everything before LSN {copied} was in it: part of the log is gone. Restore the folder \
         from a copy", .path.display()
    )]
    LogLost { path: PathBuf, copied: Lsn, end: Lsn },
    #[error(
        "{} holds records of {what} {found}, and this program reads {expected} alone. Nothing was changed", .path.display()
    )]
    Foreign {
        path: PathBuf,
        what: &'static str,
        found: u32,
        expected: u32,
    },
}
