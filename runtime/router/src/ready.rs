//! Answers to calls that do not run: refusals, and outcomes of earlier calls with the same key.

use std::sync::Arc;

use reprise_base::{Lsn, TxnId};
use reprise_partition::{Caller, ReplyOutcome};
use reprise_txn::Module;

use crate::{
    builder::{CallReply, CallTerms},
    key_entry::CommittedOutcome,
    router::Router,
};

static COMMITTED: ReplyOutcome = ReplyOutcome::Committed;
static SUPERSEDED: ReplyOutcome = ReplyOutcome::Superseded;

/// An answer that comes from no slot of this batch.
pub(crate) enum Ready {
    Refused(ReplyOutcome),
    Remembered(EarlierOutcome),
    /// A kept outcome that the server may not tell yet.
    Unconfirmed(EarlierOutcome, ReplyOutcome),
    /// The answer of the first call with a key.
    Awaited(AwaitedOutcome),
}

/// The kept outcome of an earlier call, with the version that ran it.
pub(crate) struct EarlierOutcome {
    module: Arc<Module>,
    outcome: CommittedOutcome,
}

pub(crate) struct AwaitedOutcome {
    pub caller: Option<Caller>,
    pub key: Box<str>,
    pub deadline_ns: Option<u64>,
    /// Why the first call left no outcome. None until it has ended.
    pub failed: Option<ReplyOutcome>,
}

impl Ready {
    /// Returns a kept outcome, if the server may tell it.
    pub fn of(router: &Router, remembered: CommittedOutcome) -> Self {
        let Some(module) = router.deployed().module(remembered.module).cloned() else {
            // A standby is loading its first files, or rewinds its log, so its former deployment is being replaced.
            let reason = "the server loads the module version that ran under this key";
            return Self::Refused(ReplyOutcome::Unavailable(reason.into()));
        };
        let outcome = remembered;
        if !router.is_unconfirmed(outcome.lsn) {
            return Self::Remembered(EarlierOutcome { module, outcome });
        }
        let reason = "the call with this key committed on this server; its standbys have not confirmed it yet";
        Self::Unconfirmed(
            EarlierOutcome { module, outcome },
            ReplyOutcome::Unconfirmed(reason.into()),
        )
    }

    pub fn outcome(&self) -> &ReplyOutcome {
        match self {
            Self::Refused(outcome) | Self::Unconfirmed(_, outcome) => outcome,
            Self::Remembered(_) => &COMMITTED,
            Self::Awaited(awaited) => awaited.failed.as_ref().unwrap_or(&SUPERSEDED),
        }
    }

    fn replayed(&self) -> Option<&EarlierOutcome> {
        match self {
            Self::Remembered(replayed) | Self::Unconfirmed(replayed, _) => Some(replayed),
            Self::Awaited(_) | Self::Refused(_) => None,
        }
    }

    pub fn reply(&self) -> CallReply<'_> {
        let remembered = self.replayed().map(|replayed| &replayed.outcome);
        CallReply {
            outcome: self.outcome(),
            result: remembered.map_or(&[], |r| &r.result),
            recorded_by: self.replayed().map(|replayed| &replayed.module),
            txn_id: remembered.map_or(TxnId(0), |r| r.txn_id),
            lsn: remembered.map_or(Lsn(0), |r| r.lsn),
            partition: remembered.and_then(|r| r.partition),
            replayed: remembered.is_some(),
        }
    }

    pub fn terms(&self) -> CallTerms<'_> {
        match self {
            Self::Awaited(awaited) => CallTerms {
                key: Some(&awaited.key),
                caller: awaited.caller.as_ref(),
                deadline_ns: awaited.deadline_ns,
            },
            Self::Refused(_) | Self::Remembered(_) | Self::Unconfirmed(..) => CallTerms {
                key: None,
                caller: None,
                deadline_ns: None,
            },
        }
    }
}
