//! What can be wrong with a checkpoint.

use reprise_env::DiskError;
use reprise_wire::WireError;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error("checkpoint {file} is damaged at byte {offset}: {what}: expected {expected}, found {found}")]
    Corrupt {
        file: String,
        offset: u64,
        what: String,
        expected: String,
        found: String,
    },
    #[error("compress a block of a checkpoint: {0}")]
    Compress(String),
    #[error("the checkpoint was given up: {0}")]
    GivenUp(String),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl CheckpointError {
    pub(crate) fn at(file: &str, offset: u64) -> impl FnOnce(WireError) -> Self + '_ {
        move |error| Self::Corrupt {
            file: file.to_owned(),
            offset,
            what: error.what.to_owned(),
            expected: error.expected,
            found: error.found,
        }
    }

    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }
}
