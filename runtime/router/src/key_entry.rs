//! Entries of idempotency keys: the call that runs under a key, or its committed outcome.

use std::sync::Arc;

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_partition::ReplyOutcome;
use reprise_txn::ModuleId;

/// Digests of a call. A repeat asks for the same call if one of the two is equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallDigests {
    /// Digest of module, procedure and arguments as the client sent them.
    pub fingerprint: u128,
    /// Digest of module, procedure and arguments as the running version encodes them (`reprise_txn::call_hash`). Two spellings of one call
    /// have the same digest.
    pub args_hash: u128,
}

impl CallDigests {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint || self.args_hash == other.args_hash
    }
}

/// A committed outcome, kept for repeats.
#[derive(Clone)]
pub struct CommittedOutcome {
    /// Number of the version that ran. The deployment keeps the version's description ([`reprise_txn::Deployed::module`]). If an outcome
    /// held the version itself, it would keep its code and its tables alive.
    pub module: ModuleId,
    pub procedure: usize,
    pub result: Arc<[u8]>,
    pub txn_id: TxnId,
    pub lsn: Lsn,
    pub partition: Option<PartitionId>,
}

/// The callback that gives repeats of a running key the outcome of its first call.
pub(crate) type Waiter = Box<dyn FnOnce(Result<CommittedOutcome, ReplyOutcome>) + Send>;

pub(crate) enum KeyEntry {
    Running {
        digests: CallDigests,
        module: ModuleId,
        procedure: usize,
        waiters: Vec<Waiter>,
    },
    Done {
        digests: CallDigests,
        kept_us: u64,
        outcome: CommittedOutcome,
    },
}

impl KeyEntry {
    pub fn digests(&self) -> &CallDigests {
        match self {
            Self::Running { digests, .. } | Self::Done { digests, .. } => digests,
        }
    }

    /// Returns the answer to a repeat.
    pub fn answer(&self) -> Begin {
        match self {
            Self::Running { .. } => Begin::Running,
            Self::Done { outcome, .. } => Begin::Done(outcome.clone()),
        }
    }
}

/// The action for a call that carries a key.
pub(crate) enum Begin {
    /// The key is new: run the call, then `finish` or `release` it.
    Run,
    /// Another call with this key runs: ask again with `wait`.
    Running,
    Done(CommittedOutcome),
    Conflict,
    /// There is no room for another key.
    Full,
}
