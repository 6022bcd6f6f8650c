//! Known bugs, armed to see them caught: at least one against each promise that can be kept or broken in one process.

use std::{collections::BTreeMap, sync::LazyLock};

use reprise_base::TxnId;
use reprise_router::{CallReply, Failure, ReplyOutcome};

use crate::{
    damage::{CheckpointForgery, LogForgery},
    op::Op,
};

/// A known bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    // Mutants of durability: an acknowledged write survives a crash.
    /// The product's own weaker mode, while the checkers hold it to the stronger one.
    AcknowledgesBeforeSync,
    /// A disk that promises syncs and does none.
    LyingDisk,
    /// A record is left out at replay.
    DroppedRecord,
    /// The log ends some records too early.
    DroppedTail,
    /// A standby never gets a group, and the next ones follow as if there had been none.
    LostGroup,

    // Mutants of outcomes: a refused or aborted call leaves nothing, and answers are true.
    /// An abort is reported, and the writes stay.
    KeptAbort,
    /// A commit is reported as an abort.
    CommitToldAborted,
    /// An abort is reported as a commit.
    AbortToldCommitted,
    /// A call is never answered.
    LostAnswer,
    /// A call that is sent again runs again.
    ForgottenKey,
    /// A checkpoint lacks the idempotency keys.
    DroppedKeys,
    /// A record is replayed twice.
    RepeatedRecord,

    // Transactions are as one after the other.
    /// Two records are replayed in the other order.
    SwappedRecords,
    /// A read answers the value before.
    StaleRead,
    /// An answer names another transaction.
    OtherTransaction,
    /// A call that writes several rows writes the first one alone.
    TornWrite,
    /// A row's change is lost.
    LostUpdate,

    // A replay makes the same tables, or says that it does not.
    /// Procedures whose state survives a call.
    SmuggledState,
    /// A program whose repeat does something else than the first run.
    DriftingCode,
    /// A command's arguments are changed under a checksum that holds.
    ForgedArguments,
    /// A command's digest is another one.
    ForgedDigest,
    /// A changed row in the log is another one.
    ForgedChange,

    // Damage is detected. These changes are under valid checksums, as if no check read them.
    /// A checkpoint's row is changed.
    ForgedCheckpoint,
    /// Rows of a checkpoint are left out.
    DroppedRows,

    // Mutants of checks: a call that passed the checks can't fail afterwards.
    /// A call traps that has no reason to.
    TrappingCall,
}

impl Mutant {
    pub const ALL: [Self; 25] = [
        Self::AcknowledgesBeforeSync,
        Self::LyingDisk,
        Self::DroppedRecord,
        Self::DroppedTail,
        Self::LostGroup,
        Self::KeptAbort,
        Self::CommitToldAborted,
        Self::AbortToldCommitted,
        Self::LostAnswer,
        Self::ForgottenKey,
        Self::DroppedKeys,
        Self::RepeatedRecord,
        Self::SwappedRecords,
        Self::StaleRead,
        Self::OtherTransaction,
        Self::TornWrite,
        Self::LostUpdate,
        Self::SmuggledState,
        Self::DriftingCode,
        Self::ForgedArguments,
        Self::ForgedDigest,
        Self::ForgedChange,
        Self::ForgedCheckpoint,
        Self::DroppedRows,
        Self::TrappingCall,
    ];

    /// Returns the forgery to apply to the log between two lives.
    pub fn log_forgery(self) -> Option<LogForgery> {
        match self {
            Self::DroppedRecord => Some(LogForgery::Copies(0)),
            Self::RepeatedRecord => Some(LogForgery::Copies(2)),
            Self::DroppedTail => Some(LogForgery::EndsBefore),
            Self::SwappedRecords => Some(LogForgery::Swaps),
            Self::ForgedArguments => Some(LogForgery::Arguments),
            Self::ForgedDigest => Some(LogForgery::Digest),
            Self::ForgedChange => Some(LogForgery::Change),
            _ => None,
        }
    }

    /// Returns the forgery to apply to the newest checkpoint between two lives.
    pub fn checkpoint_forgery(self) -> Option<CheckpointForgery> {
        match self {
            Self::ForgedCheckpoint => Some(CheckpointForgery::Row),
            Self::DroppedRows => Some(CheckpointForgery::WithoutRows),
            Self::DroppedKeys => Some(CheckpointForgery::WithoutKeys),
            _ => None,
        }
    }
}

static NEGATIVE: LazyLock<ReplyOutcome> = LazyLock::new(|| aborted("negative"));
static ASKED_TO: LazyLock<ReplyOutcome> = LazyLock::new(|| aborted("asked_to"));

fn aborted(code: &str) -> ReplyOutcome {
    let (code, message) = (code.into(), "an answer that was changed".into());
    ReplyOutcome::Failed(Box::new(Failure::Aborted { code, message }))
}

/// Answers, changed on their way.
#[derive(Default)]
pub struct Tampering {
    answers: u64,
    /// The last answers to reads of these items.
    reads: BTreeMap<Vec<i64>, Vec<u8>>,
    stale: Vec<u8>,
}

impl Tampering {
    /// False: the answer is lost.
    pub fn tamper<'a>(&'a mut self, mutant: Mutant, op: &Op, reply: &mut CallReply<'a>) -> bool {
        self.answers += 1;
        let is_committed = *reply.outcome == ReplyOutcome::Committed;
        let is_write = is_committed && !op.is_read();
        let is_abort = matches!(reply.outcome.failure(), Some(Failure::Aborted { .. }));
        match mutant {
            Mutant::CommitToldAborted if is_write && self.answers.is_multiple_of(7) => reply.outcome = &NEGATIVE,
            Mutant::KeptAbort if is_write && matches!(op, Op::Put { abort: true, .. }) => reply.outcome = &ASKED_TO,
            Mutant::AbortToldCommitted if is_abort => {
                reply.outcome = &ReplyOutcome::Committed;
                reply.result = match op {
                    Op::Add { .. } | Op::Draw { .. } => &[0; 8],
                    Op::Announce { .. } => &[],
                    _ => &[0],
                };
            }
            Mutant::OtherTransaction if is_write && self.answers.is_multiple_of(7) => {
                reply.txn_id = TxnId(reply.txn_id.0 ^ 1 << 12);
            }
            Mutant::LostAnswer => return !self.answers.is_multiple_of(20),
            Mutant::StaleRead if is_committed => self.make_stale(op, reply),
            _ => {}
        }
        true
    }

    fn make_stale<'a>(&'a mut self, op: &Op, reply: &mut CallReply<'a>) {
        let Op::Read { ids } = op else { return };
        let before = self.reads.insert(ids.clone(), reply.result.to_vec());
        if let Some(before) = before {
            self.stale = before;
            reply.result = &self.stale;
        }
    }
}
