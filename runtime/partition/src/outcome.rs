//! Outcomes of calls.

use std::sync::Arc;

use reprise_txn::Failure;

use crate::sink::LogRefusal;

/// The outcome of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReplyOutcome {
    /// Not run yet.
    #[default]
    Waiting,
    /// The call's writes are kept, and its result is in the batch.
    Committed,
    /// It left nothing behind.
    Failed(Box<Failure>),
    /// The module version that the call was prepared for is no longer in service: prepare it again.
    Superseded,
    /// Nothing of it was kept: the log can't take writes. The reason is the log's.
    LogUnavailable(Arc<str>),
    /// Nothing of it was kept: standbys are missing that the server's safety level asks for.
    StandbyUnavailable(Arc<str>),
    /// Nothing of it was kept: this primary's lease is over.
    LeaseLost(Arc<str>),
    /// The log failed while it wrote the call's record: it may be kept.
    OutcomeUnknown(Arc<str>),
    /// It committed here. Whether the standbys that its safety level asks for have it is not known.
    Unconfirmed(Arc<str>),
    /// Nothing of it was kept: the log is read alone.
    ReadOnly(Arc<str>),
    /// It did not run: this node is a standby. With its primary's URL, if that is known.
    NotPrimary(Option<Arc<str>>),
    /// Too many calls wait for the partition, or answers for their clients; this one was not run.
    Overloaded {
        /// Milliseconds after which to try again.
        retry_after_ms: u32,
    },
    /// The idempotency key was used with another procedure or other arguments.
    IdempotencyConflict,
    /// There is no room to remember an outcome under another key. The call did not run.
    IdempotencyFull,
    /// The procedure is kept from running.
    Quarantined(Arc<str>),
    /// The view at which it read is over: it was held for too long, or the changes kept for it took too much.
    TooStale(Arc<str>),
    /// The node takes no calls now: it recovers, or stops.
    Unavailable(Arc<str>),
}

impl ReplyOutcome {
    /// Returns the reason why a read of tables, or a wait for a record, came to no end.
    pub fn reason(&self) -> Arc<str> {
        match self {
            Self::LogUnavailable(reason)
            | Self::StandbyUnavailable(reason)
            | Self::LeaseLost(reason)
            | Self::ReadOnly(reason)
            | Self::Unavailable(reason) => reason.clone(),
            other => format!("{other:?}").into(),
        }
    }

    /// The outcome of a call that was not run, because answers on their way hold all the memory that there is for them.
    pub(crate) const ANSWERS_FULL: Self = Self::Overloaded { retry_after_ms: 200 };

    /// Returns why the procedure did not finish, if it began.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

impl From<&LogRefusal> for ReplyOutcome {
    fn from(reason: &LogRefusal) -> Self {
        match reason {
            LogRefusal::Unavailable(reason) => Self::LogUnavailable(reason.clone()),
            LogRefusal::StandbyUnavailable(reason) => Self::StandbyUnavailable(reason.clone()),
            LogRefusal::LeaseLost(reason) => Self::LeaseLost(reason.clone()),
            LogRefusal::Paused(reason) => Self::Unavailable(reason.clone()),
            LogRefusal::ReadOnly(reason) => Self::ReadOnly(reason.clone()),
            LogRefusal::Unknown(reason) => Self::OutcomeUnknown(reason.clone()),
        }
    }
}
