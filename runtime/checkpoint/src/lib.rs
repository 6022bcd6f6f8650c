//! Checkpoint files: written beside the running engine, published whole or not at all, read back in parallel.
//! Owns: the checkpoints' folder, compression, the way from a temporary name to a published file.
//! Does not: know tables or engine threads, choose the rows, decide when one is taken or how many are kept.
//! Invariants: a file was durable and readable before it got a checkpoint's name; every byte read is under a checksum.
//! Called by: `upkeep` (taking, retention), `recovery`, `database` (loading), `backup`, `node` (listing).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod reader;
mod writer;

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::{Disk, DiskErrorKind};
use reprise_wire::CheckpointHeader;

pub use error::CheckpointError;
pub use reader::{Blocks, CheckpointReader, StoredModule};
pub use writer::{CheckpointSize, CheckpointWriter};

/// A checkpoint on its way; no such file is ever read.
const TEMPORARY_NAME: &str = "checkpoint.tmp";
const PREFIX: &str = "checkpoint-";
const SUFFIX: &str = ".ckpt";

/// The file of the checkpoint at a position.
pub fn checkpoint_name(lsn: Lsn) -> String {
    format!("{PREFIX}{:016x}{SUFFIX}", lsn.0)
}

/// The position that a file name tells, if it is a checkpoint's.
pub fn parse_checkpoint_name(name: &str) -> Option<Lsn> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let lsn = Lsn(u64::from_str_radix(digits, 16).ok()?);
    (checkpoint_name(lsn) == name).then_some(lsn)
}

/// The folder of checkpoints.
#[derive(Clone)]
pub struct Checkpoints {
    disk: Arc<dyn Disk>,
}

impl Checkpoints {
    /// Opens the folder, and changes nothing in it.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk }
    }

    /// Removes the remains of an interrupted checkpoint. Only the process that holds the database may do so.
    pub fn clean(&self) -> Result<(), CheckpointError> {
        match self.disk.remove(TEMPORARY_NAME) {
            Err(error) if error.kind != DiskErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Positions of the published checkpoints, oldest first.
    pub fn list(&self) -> Result<Vec<Lsn>, CheckpointError> {
        let names = self.disk.list()?;
        // Sixteen hexadecimal digits: the order of names is that of positions.
        Ok(names.iter().filter_map(|name| parse_checkpoint_name(name)).collect())
    }

    /// Begins a checkpoint. One at a time.
    pub fn begin(&self, header: CheckpointHeader) -> Result<CheckpointWriter, CheckpointError> {
        self.clean()?;
        CheckpointWriter::create(Arc::clone(&self.disk), header)
    }

    /// Opens a checkpoint: header, trailer and index are checked, and all that is not rows or keys is read.
    pub fn open(&self, lsn: Lsn) -> Result<CheckpointReader, CheckpointError> {
        CheckpointReader::open(&*self.disk, &checkpoint_name(lsn), lsn)
    }

    /// Bytes of a checkpoint's file.
    pub fn bytes(&self, lsn: Lsn) -> Result<u64, CheckpointError> {
        Ok(self.disk.open_read(&checkpoint_name(lsn))?.len()?)
    }

    /// Removes a checkpoint for good.
    pub fn remove(&self, lsn: Lsn) -> Result<(), CheckpointError> {
        self.disk.remove(&checkpoint_name(lsn))?;
        Ok(self.disk.sync_dir()?)
    }
}
