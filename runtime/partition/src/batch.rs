//! The unit that crosses from a client to an engine thread and back: calls of one partition, with their arguments and,
//! on the way back, their outcomes.

use std::ops::Range;

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_txn::{Failure, ModuleId};

/// What became of one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SlotOutcome {
    /// Not run yet.
    #[default]
    Waiting,
    Committed,
    Failed(Box<Failure>),
    /// The module version that the call was prepared for is no longer in service: prepare it again.
    Superseded,
    /// Nothing of it was kept: the log can't take writes. The reason is the log's.
    LogUnavailable(std::sync::Arc<str>),
    /// Too many calls wait for the partition; this one was not queued.
    Overloaded,
    /// The node takes no calls now: it recovers, or stops.
    Unavailable(std::sync::Arc<str>),
}

/// One call of a batch.
#[derive(Clone, Debug)]
pub struct CallSlot {
    pub module: ModuleId,
    pub procedure: u16,
    /// In [`CallBatch::args`].
    pub args: Range<u32>,
    pub idempotency_key: Option<Box<str>>,
    pub outcome: SlotOutcome,
    /// In [`CallBatch::results`]; meaningful once committed.
    pub result: Range<u32>,
    pub txn_id: TxnId,
    /// The transaction's record, or for a read the position that it saw. Until the batch is published: its offset in the
    /// batch's records.
    pub lsn: Lsn,
}

/// Called once, off the engine thread where the log is synchronous, with every outcome set.
pub type BatchDone = Box<dyn FnOnce(Box<CallBatch>) + Send>;

/// Calls of one partition, run in order, acknowledged together once the last is durable.
pub struct CallBatch {
    /// None for a multi-partition call, which travels alone in its batch.
    pub partition: Option<PartitionId>,
    pub calls: Vec<CallSlot>,
    pub args: Vec<u8>,
    pub results: Vec<u8>,
    pub done: Option<BatchDone>,
    /// Bytes of the batch's records in the log, all appended at once.
    pub record_bytes: u32,
}

/// Argument bytes that one batch carries at most, but for its first call.
pub const BATCH_ARGS_BYTES_MAX: usize = 2 << 20;

/// What a small result takes.
const RESULT_BYTES_USUAL: usize = 8;

impl CallBatch {
    pub fn new(partition: Option<PartitionId>) -> Self {
        Self {
            partition,
            calls: Vec::new(),
            args: Vec::new(),
            results: Vec::new(),
            done: None,
            record_bytes: 0,
        }
    }

    pub fn is_full(&self) -> bool {
        self.calls.len() >= reprise_base::limits::BATCH_CALLS_MAX
            || self.args.len() >= BATCH_ARGS_BYTES_MAX
    }

    /// Adds a call whose encoded arguments are the bytes of `args` from `args_start` on.
    pub fn push(
        &mut self,
        module: ModuleId,
        procedure: u16,
        args: &[u8],
        idempotency_key: Option<Box<str>>,
    ) {
        let start = self.args.len() as u32;
        self.args.extend_from_slice(args);
        self.calls.push(CallSlot {
            module,
            procedure,
            args: start..self.args.len() as u32,
            idempotency_key,
            outcome: SlotOutcome::Waiting,
            result: 0..0,
            txn_id: TxnId::default(),
            lsn: Lsn::default(),
        });
    }

    /// For small results of all calls, so that they do not grow one by one.
    pub(crate) fn make_room_for_results(&mut self) {
        self.results.reserve(RESULT_BYTES_USUAL * self.calls.len());
    }

    pub fn result(&self, slot: usize) -> &[u8] {
        let range = &self.calls[slot].result;
        &self.results[range.start as usize..range.end as usize]
    }

    pub fn args(&self, slot: usize) -> &[u8] {
        let range = &self.calls[slot].args;
        &self.args[range.start as usize..range.end as usize]
    }

    /// Hands the batch back to whoever waits for it.
    pub fn finish(mut self: Box<Self>) {
        if let Some(done) = self.done.take() {
            done(self);
        }
    }

    /// Answers every call with `outcome`, none having run.
    pub fn turn_away(mut self: Box<Self>, outcome: &SlotOutcome) {
        for slot in &mut self.calls {
            slot.outcome = outcome.clone();
        }
        self.finish();
    }

    /// Turns every call that ran into a refusal: its record did not become durable, or what it saw did not. An abort, too, may
    /// have been decided upon rows that are taken back.
    pub fn refuse(&mut self, reason: &std::sync::Arc<str>) {
        use SlotOutcome::{Committed, Failed, Waiting};
        for slot in &mut self.calls {
            if matches!(slot.outcome, Committed | Waiting | Failed(_)) {
                slot.outcome = SlotOutcome::LogUnavailable(reason.clone());
            }
        }
    }
}
