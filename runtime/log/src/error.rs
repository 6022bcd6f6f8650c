//! Errors of a log.

use std::sync::Arc;

use reprise_base::Lsn;
use reprise_env::DiskError;
use reprise_wire::WireError;

/// Why the log takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnavailableKind {
    /// No space for another segment; passes when there is space again.
    Full,
    /// A write or sync failed, or the flusher died: final until the log is opened again.
    Failed,
    /// The log failed while these records were being written: only the next opening shows whether they are kept.
    Doubtful,
    /// The disk did not take a block in time.
    Stalled,
    /// The log was closed.
    Closed,
    /// The primary hands over; ends if no standby takes over.
    Paused,
    /// The log takes no writes, on request.
    ReadOnly,
}

/// Why the log refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum LogError {
    #[error("the log takes no writes: {reason}")]
    Unavailable { kind: UnavailableKind, reason: Arc<str> },
    #[error("{0}")]
    Corrupt(Arc<Damage>),
    #[error("{bytes} bytes of records do not fit in one block of the log (at most {max})")]
    TooLong { bytes: usize, max: usize },
    #[error("the log belongs to database {found}, not to {expected}")]
    WrongDatabase { expected: String, found: String },
    #[error("{file} has {what} {found}, and this program reads {expected} alone. Nothing was changed")]
    Foreign {
        file: String,
        what: &'static str,
        expected: String,
        found: String,
    },
    #[error(
        "the data needs {} MiB, --memory-max is {} MiB. Nothing was changed: start with more",
        .needed.div_ceil(1 << 20), .max >> 20
    )]
    MemoryMax { needed: u64, max: u64 },
    #[error("the NVRAM region does not go with the log: {reason}. Nothing was changed")]
    Region { reason: Arc<str> },
    #[error("no log at LSN {lsn}: it holds {start} to {end}")]
    OutOfRange { lsn: Lsn, start: Lsn, end: Lsn },
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl LogError {
    pub(crate) fn unavailable(kind: UnavailableKind, reason: impl Into<Arc<str>>) -> Self {
        Self::Unavailable {
            kind,
            reason: reason.into(),
        }
    }

    /// The error for a segment that another program version wrote.
    pub(crate) fn foreign(file: &str, error: WireError) -> Self {
        let WireError { what, expected, found } = error;
        Self::Foreign {
            file: file.to_owned(),
            what,
            expected,
            found,
        }
    }

    /// Returns the reason in words, without the part that the kind says.
    pub fn into_reason(self) -> Arc<str> {
        match self {
            Self::Unavailable { reason, .. } => reason,
            other => other.to_string().into(),
        }
    }
}

/// Bytes of the log that differ from the written ones, and can't be the remains of a write that a crash cut off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the log is damaged in {file} at byte {offset} (LSN {lsn}): {what}. Everything before that LSN is whole. Nothing was changed. \
     Restore this file from a copy or a standby, or read what is whole with `reprise log dump`"
)]
pub struct Damage {
    /// Its name.
    pub file: String,
    /// Byte in the file.
    pub offset: u64,
    /// LSN of the damaged block; everything before it is intact.
    pub lsn: Lsn,
    /// Description of the damage.
    pub what: String,
}
