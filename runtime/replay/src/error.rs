//! Why the log can't be replayed.

use reprise_base::Lsn;
use reprise_wire::WireError;

use crate::command::Divergence;

/// Why a record could not be replayed. No partition is to be served then.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum ReplayError {
    #[error(transparent)]
    Diverged(#[from] Box<Divergence>),
    #[error("the module {name:?} deployed at LSN {lsn} can't be installed again: {reason}")]
    Module { lsn: Lsn, name: String, reason: String },
    #[error("the log was made for {found} partitions; the record at LSN {lsn} names partition {partition}")]
    Partition { lsn: Lsn, partition: u16, found: u16 },
    #[error(
        "the record at LSN {lsn} can't be read, although its block is whole: {error}. Was it written by a newer program? \
         `reprise log verify` tells more"
    )]
    Malformed { lsn: Lsn, error: WireError },
    #[error(
        "the record at LSN {lsn} drops table {table:?}, which there is not; `reprise restore --lsn {lsn}` goes on from before it"
    )]
    DropTable { lsn: Lsn, table: String },
    #[error("the record at LSN {lsn} keeps {what} from running, which there is not")]
    Quarantine { lsn: Lsn, what: String },
    #[error(
        "the data needs more than {} MiB of memory, which is what --memory-max leaves. Nothing was changed: start with more",
        .max / (1 << 20)
    )]
    Memory { max: u64 },
    #[error("the engine has stopped")]
    Stopped,
}

impl ReplayError {
    /// Returns the LSN of the record that could not be replayed; 0 if no record is the cause.
    pub(crate) fn lsn(&self) -> Lsn {
        match self {
            Self::Diverged(divergence) => divergence.lsn,
            Self::Module { lsn, .. }
            | Self::Partition { lsn, .. }
            | Self::Malformed { lsn, .. }
            | Self::DropTable { lsn, .. }
            | Self::Quarantine { lsn, .. } => *lsn,
            Self::Memory { .. } | Self::Stopped => Lsn(0),
        }
    }
}
