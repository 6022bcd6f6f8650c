//! Errors of checkpoints.

use reprise_env::DiskError;
use reprise_wire::WireError;

/// Why a checkpoint was not written, or not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Its bytes are not as they were written.
    #[error("checkpoint {file} is damaged at byte {offset}: {what}: expected {expected}, found {found}")]
    Corrupt {
        /// The checkpoint's.
        file: String,
        /// Offset of the byte in the file.
        offset: u64,
        /// Which field or block.
        what: String,
        /// The value that an intact file holds.
        expected: String,
        /// The value that the file holds.
        found: String,
    },
    /// A program with other numbers wrote it.
    #[error("checkpoint {file} has {what} {found}, and this program reads {expected} alone. Nothing was changed")]
    Foreign {
        /// The checkpoint's.
        file: String,
        /// Which number.
        what: &'static str,
        /// This program's.
        expected: String,
        /// The file's.
        found: String,
    },
    /// The compressor failed.
    #[error("compress a block of a checkpoint: {0}")]
    Compress(String),
    /// The checkpoint was not written to its end. The text says why.
    #[error("the checkpoint was given up: {0}")]
    GivenUp(String),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl CheckpointError {
    pub(crate) fn at(file: &str, offset: u64) -> impl FnOnce(WireError) -> Self + '_ {
        move |error| match error.is_foreign() {
            true => Self::Foreign {
                file: file.to_owned(),
                what: error.what,
                expected: error.expected,
                found: error.found,
            },
            false => Self::Corrupt {
                file: file.to_owned(),
                offset,
                what: error.what.to_owned(),
                expected: error.expected,
                found: error.found,
            },
        }
    }

    /// True if another checkpoint may be whole.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }

    /// True if another program wrote it. No opening passes over it.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Foreign { .. })
    }
}
