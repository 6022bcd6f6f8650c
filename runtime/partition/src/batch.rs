//! The unit that crosses from a client to an engine thread and back: calls of one partition. It carries their arguments and, on the way back, their
//! outcomes.

use std::{ops::Range, sync::Arc, time::Duration};

use reprise_base::{Budget, Grant, Lsn, PartitionId, TxnId};
use reprise_txn::ModuleId;

use crate::{
    caller::{CallKey, Caller},
    calls::{Calls, Deadline, Ticket},
    outcome::ReplyOutcome,
    partial_append::PartialAppend,
    rendezvous::Stream,
    sink::LogRefusal,
};

/// One call of a batch.
#[derive(Clone, Debug)]
pub struct CallSlot {
    /// The version that runs it.
    pub module: ModuleId,
    /// Its number in the module.
    pub procedure: u16,
    /// Length of its idempotency key, which follows its arguments, and is followed by a fingerprint; 0 for none.
    key_bytes: u8,
    /// The range of its arguments in [`CallBatch::args`].
    pub args: Range<u32>,
    /// The call's outcome.
    pub outcome: ReplyOutcome,
    /// The range of its result in [`CallBatch::results`]; meaningful once committed.
    pub result: Range<u32>,
    /// 0 until it has begun.
    pub txn_id: TxnId,
    /// The transaction's record, or for a read the position that it saw. Until the batch is published: its offset in the
    /// batch's records.
    pub lsn: Lsn,
}

// One line of the cache: the engine reads and writes every slot that other threads made.
const _: () = assert!(size_of::<CallSlot>() <= 64);

impl CallSlot {
    const EMPTY: Self = Self {
        module: ModuleId(0),
        procedure: 0,
        key_bytes: 0,
        args: 0..0,
        outcome: ReplyOutcome::Waiting,
        result: 0..0,
        txn_id: TxnId(0),
        lsn: Lsn(0),
    };

    /// Returns the length of its idempotency key; 0 without one.
    #[inline]
    pub(crate) fn key_bytes(&self) -> usize {
        self.key_bytes.into()
    }

    /// The call's arguments in those of its batch, and its idempotency key with the fingerprint.
    #[inline]
    pub(crate) fn args_and_key<'a>(&self, args: &'a [u8]) -> (&'a [u8], Option<(&'a [u8], u128)>) {
        let (start, end) = (self.args.start as usize, self.args.end as usize);
        let key = (self.key_bytes > 0).then(|| {
            let (key, rest) = args[end..].split_at(self.key_bytes());
            let fingerprint = rest.first_chunk().expect("a fingerprint follows a key");
            (key, u128::from_le_bytes(*fingerprint))
        });
        (&args[start..end], key)
    }
}

/// When a batch passed a point, in nanoseconds of the node's monotonic clock; 0: it has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// The router took it.
    pub accepted_ns: u64,
    /// Its first call began.
    pub begun_ns: u64,
    /// Its last call had run; its records, if there are any, were appended.
    pub appended_ns: u64,
    /// Its records were durable, as were the rows that its calls had read.
    pub durable_ns: u64,
}

impl CallTimes {
    /// Records when the calls ran. Returns for how long.
    pub(crate) fn ran(&mut self, begun_ns: u64, appended_ns: u64) -> Duration {
        (self.begun_ns, self.appended_ns) = (begun_ns, appended_ns);
        Duration::from_nanos(appended_ns.saturating_sub(begun_ns))
    }

    /// Returns the time for which it waited to be run.
    pub fn queued(&self) -> Duration {
        Self::between(self.accepted_ns, self.begun_ns)
    }

    /// Returns the time for which it ran, with the other calls of the batch.
    pub fn running(&self) -> Duration {
        Self::between(self.begun_ns, self.appended_ns)
    }

    /// Returns the time for which it waited for the log.
    pub fn logging(&self) -> Duration {
        Self::between(self.appended_ns, self.durable_ns)
    }

    /// Returns zero if one of the points was not passed.
    fn between(from_ns: u64, until_ns: u64) -> Duration {
        match from_ns {
            0 => Duration::ZERO,
            from_ns => Duration::from_nanos(until_ns.saturating_sub(from_ns)),
        }
    }
}

/// Called once, with every outcome set. If the log is synchronous, it is called off the engine thread.
pub type BatchDone = Box<dyn FnOnce(Box<CallBatch>) + Send + Sync>;

/// Calls of one partition, or over the same partitions. They run in order, and are acknowledged together once the last is durable.
pub struct CallBatch {
    /// None for calls of several partitions.
    pub partition: Option<PartitionId>,
    /// In a batch of several partitions, by position: the partition of each call that needs one alone.
    singles: Vec<Option<PartitionId>>,
    /// The stream whose calls of several partitions this batch must not overtake. None: it may overtake all.
    pub stream: Option<Stream>,
    /// The calls in the order in which they run.
    pub calls: Vec<CallSlot>,
    /// The caller of all its calls; none without tokens.
    pub caller: Option<Caller>,
    /// Calls with an idempotency key.
    keyed: u32,
    /// Each call's arguments, and its idempotency key.
    pub args: Vec<u8>,
    /// The result of each committed call, encoded.
    pub results: Vec<u8>,
    /// The budget of results, over all batches. None: there is no limit.
    pub answers: Option<Arc<Budget>>,
    /// The part of that budget that this batch takes, until the batch is dropped.
    pub(crate) grant: Option<Grant>,
    /// Gets the batch back once it is answered.
    pub done: Option<BatchDone>,
    /// Number of the batch's records in the log, all appended at once. Calls that went to the log before are not among them.
    pub records: u32,
    /// The records that went to the log before the rest of the batch ran, and the number of their calls.
    pub(crate) heads: Option<Arc<PartialAppend>>,
    pub(crate) headed: usize,
    /// Grants for the results of heads that came back.
    pub(crate) head_grants: Vec<Grant>,
    /// Times at which clients wait no longer, by position, of the calls that have such a deadline.
    pub(crate) deadlines: Vec<(u32, Arc<Deadline>)>,
    /// Its place among the calls on their way, until it is answered.
    pub(crate) ticket: Option<Ticket>,
    /// The batch waits for the writes that a read of tables showed.
    pub(crate) is_table_read: bool,
    /// Time for which its engine thread is busy behind it, with calls that wait already.
    pub busy: Duration,
    /// When it was accepted, begun, appended and durable.
    pub times: CallTimes,
}

/// Limit of the argument bytes that a batch carries, apart from those of its first call.
pub const BATCH_ARGS_BYTES_MAX: usize = 2 << 20;

/// Results of a batch that take less are not counted.
const RESULT_BYTES_COUNTED: usize = 16 << 10;

/// Room that is made for a result before it exists: for a small one, and the limit.
const RESULT_BYTES_USUAL: usize = 8;
const RESULT_BYTES_USUAL_MAX: usize = 1024;

impl CallBatch {
    /// Returns the time of all engine threads that the replay of this batch takes, which ran in `ran`. Only calls with records are replayed.
    /// A call of several partitions then holds `sites` threads. Each call knows the offset of its own records among all `records`.
    pub(crate) fn site_time_of_writes(&self, ran: Duration, records: u32, sites: u32) -> Duration {
        let starts = self.calls.iter().map(|call| call.lsn.0);
        let ends = starts.clone().skip(1).chain([records.into()]);
        let writes = starts.zip(ends).enumerate().filter(|(_, (start, end))| start < end);
        let held = writes.map(|(slot, _)| self.partition_of(slot).map_or(sites, |_| 1));
        ran * held.sum::<u32>() / self.calls.len().max(1) as u32
    }

    /// Makes a batch without calls.
    pub fn new(partition: Option<PartitionId>) -> Self {
        Self {
            partition,
            singles: Vec::new(),
            stream: None,
            calls: Vec::new(),
            caller: None,
            keyed: 0,
            args: Vec::new(),
            results: Vec::new(),
            answers: None,
            grant: None,
            done: None,
            records: 0,
            heads: None,
            headed: 0,
            head_grants: Vec::new(),
            deadlines: Vec::new(),
            ticket: None,
            is_table_read: false,
            busy: Duration::ZERO,
            times: CallTimes::default(),
        }
    }

    /// Returns a batch without calls, for a caller that waits as calls do. It waits until the rows that it saw are durable, or learns why they never
    /// will be.
    pub(crate) fn waiting(then: impl FnOnce(Result<(), ReplyOutcome>) + Send + Sync + 'static) -> Box<Self> {
        let mut batch = Box::new(Self::new(None));
        batch.calls.push(CallSlot::EMPTY);
        batch.done = Some(Box::new(move |batch: Box<Self>| {
            then(match &batch.calls[0].outcome {
                ReplyOutcome::Waiting => Ok(()),
                other => Err(other.clone()),
            });
        }));
        batch
    }

    /// True if no further call may be added.
    pub fn is_full(&self) -> bool {
        self.calls.len() >= reprise_base::limits::BATCH_CALLS_MAX || self.args.len() >= BATCH_ARGS_BYTES_MAX
    }

    /// Adds a call with these encoded arguments.
    pub fn push(&mut self, module: ModuleId, procedure: u16, args: &[u8], key: Option<CallKey<'_>>) {
        let start = self.args.len() as u32;
        self.args.extend_from_slice(args);
        let end = self.args.len() as u32;
        // Filled in its place: put together elsewhere and moved, it would wait for its own parts to reach the cache.
        let slot = self.calls.push_mut(CallSlot::EMPTY);
        slot.module = module;
        slot.procedure = procedure;
        slot.args = start..end;
        if let Some(CallKey { key, fingerprint }) = key {
            slot.key_bytes = u8::try_from(key.len()).expect("a key has 255 bytes at most");
            self.args.extend_from_slice(key.as_bytes());
            self.args.extend_from_slice(&fingerprint.to_le_bytes());
            self.keyed += 1;
        }
    }

    /// Adds a call to a batch of several partitions, as `push` does. `single`: the call's partition, if it needs one alone.
    pub fn push_among(
        &mut self,
        single: Option<PartitionId>,
        (module, procedure): (ModuleId, u16),
        args: &[u8],
        key: Option<CallKey<'_>>,
    ) {
        self.singles.push(single);
        self.push(module, procedure, args, key);
    }

    /// Returns the partition of a call; None if the call needs several.
    pub fn partition_of(&self, slot: usize) -> Option<PartitionId> {
        self.partition.or_else(|| self.singles.get(slot).copied().flatten())
    }

    /// Returns the number of calls that run on a partition that the batch touches.
    pub fn count_on(&self, id: PartitionId) -> usize {
        let others = self.singles.iter().flatten().filter(|single| **single != id);
        self.calls.len() - others.count()
    }

    /// Returns the position behind the calls from `slot` on that need the same one partition.
    pub(crate) fn end_of_singles(&self, slot: usize) -> usize {
        let alike = self.singles[slot..]
            .iter()
            .take_while(|single| **single == self.singles[slot]);
        slot + alike.count()
    }

    /// Sets the time until which the client of the last added call waits.
    pub fn set_deadline(&mut self, deadline: Arc<Deadline>) {
        let last = self.calls.len().checked_sub(1).expect("a call was added");
        self.deadlines.push((last as u32, deadline));
    }

    /// Lists its calls as waiting; from now on they can be ended.
    pub fn enter(&mut self, calls: &Arc<Calls>, now_ns: u64) {
        self.ticket = Some(calls.enter(self.partition, &self.calls, now_ns));
    }

    pub(crate) fn record_ran(&self) {
        if let Some(ticket) = &self.ticket {
            ticket.track.record_ran(&self.calls);
        }
    }

    /// Reserves room for results of `bytes_each` bytes, so that the buffer does not grow result by result.
    pub(crate) fn make_room_for_results(&mut self, bytes_each: usize) {
        self.results.reserve(bytes_each * self.calls.len());
    }

    /// Returns the room to make for each result of the next batch.
    pub(crate) fn usual_result_bytes(&self) -> usize {
        let mean = self.results.len() / self.calls.len().max(1);
        (mean + mean / 4).clamp(RESULT_BYTES_USUAL, RESULT_BYTES_USUAL_MAX)
    }

    /// Returns the bytes of results after which no further call of this batch runs: other batches hold the rest.
    pub(crate) fn results_max(&self) -> usize {
        self.answers
            .as_ref()
            .map_or(usize::MAX, |answers| answers.room() as usize)
    }

    /// Counts the results in the budget. Short ones are not worth it.
    pub(crate) fn count_results(&mut self) {
        let answers = self
            .answers
            .as_ref()
            .filter(|_| self.results.len() >= RESULT_BYTES_COUNTED);
        self.grant = answers.map(|answers| answers.take(self.results.capacity() as u64));
    }

    /// Returns the result of a committed call, encoded.
    pub fn result(&self, slot: usize) -> &[u8] {
        let range = &self.calls[slot].result;
        &self.results[range.start as usize..range.end as usize]
    }

    /// Returns the arguments of a call, encoded.
    pub fn args(&self, slot: usize) -> &[u8] {
        self.calls[slot].args_and_key(&self.args).0
    }

    /// Returns the idempotency key of a call.
    pub fn key(&self, slot: usize) -> Option<&str> {
        let (key, _) = self.calls[slot].args_and_key(&self.args).1?;
        Some(str::from_utf8(key).expect("a key is text"))
    }

    /// Returns when a call's client waits no longer, by the node's clock.
    pub fn deadline_ns(&self, slot: usize) -> Option<u64> {
        let mut deadlines = self.deadlines.iter();
        Some(deadlines.find(|(at, _)| *at as usize == slot)?.1.ns())
    }

    /// Returns the scope within which its idempotency keys count.
    pub fn scope(&self) -> &str {
        self.caller.as_ref().map_or("", |caller| &*caller.scope)
    }

    /// Returns the calls with an idempotency key, by position, with their keys.
    pub fn keys(&self) -> impl Iterator<Item = (usize, &str)> {
        let calls = match self.keyed {
            0 => &[][..],
            _ => &self.calls[..],
        };
        (0..calls.len()).filter_map(|at| Some((at, self.key(at)?)))
    }

    /// Hands the batch back to the owner that waits for it.
    pub fn finish(mut self: Box<Self>) {
        self.ticket = None;
        if let Some(heads) = self.heads.take() {
            return heads.close(self);
        }
        if let Some(done) = self.done.take() {
            done(self);
        }
    }

    /// Answers every call with `outcome`, none having run.
    pub fn turn_away(mut self: Box<Self>, outcome: &ReplyOutcome) {
        for slot in &mut self.calls {
            slot.outcome = outcome.clone();
        }
        self.finish();
    }

    /// Answers every call that ran as if it had not run. No client learns what the call saw.
    #[cold]
    pub(crate) fn withdraw(mut self: Box<Self>, reason: &str) {
        use ReplyOutcome::{Committed, Failed, Waiting};
        let ran = self.calls.iter_mut();
        for slot in ran.filter(|slot| matches!(slot.outcome, Committed | Waiting | Failed(_))) {
            slot.outcome = ReplyOutcome::Unavailable(reason.into());
            (slot.txn_id, slot.lsn) = (TxnId(0), Lsn(0));
        }
        self.finish();
    }

    /// Whether the batch is a mark of this server in the log, without a call.
    pub(crate) fn is_mark(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether the batch has only read, so that it can read again. An aborted call may be one that writes.
    pub(crate) fn may_read_again(&self) -> bool {
        let is_read = |slot: &CallSlot| !matches!(slot.outcome, ReplyOutcome::Waiting | ReplyOutcome::Failed(_));
        self.is_table_read || self.records == 0 && self.heads.is_none() && self.calls.iter().all(is_read)
    }

    /// Ends a batch that only read. Its calls run again; a read of tables is refused.
    #[cold]
    pub(crate) fn read_again(mut self: Box<Self>, reason: &Arc<str>) {
        for slot in &mut self.calls {
            match (&slot.outcome, self.is_table_read) {
                (_, true) => slot.outcome = ReplyOutcome::StandbyUnavailable(reason.clone()),
                (ReplyOutcome::Committed, false) => slot.outcome = ReplyOutcome::Superseded,
                _ => {}
            }
            (slot.txn_id, slot.lsn) = (TxnId(0), Lsn(0));
        }
        self.finish();
    }

    /// True if a client of it waits no longer.
    pub(crate) fn is_overdue(&self, now_ns: u64) -> bool {
        self.deadlines.iter().any(|(_, deadline)| deadline.ns() <= now_ns)
    }

    /// Leaves open whether the calls with a record have the server's safety level. The other calls show nothing, unless the rows that they saw are
    /// committed. The caller runs this before it places the slots.
    #[cold]
    pub(crate) fn leave_open(&mut self, reason: &Arc<str>, is_seen_committed: bool) {
        use ReplyOutcome::{Committed, Failed, Unavailable, Unconfirmed, Waiting};
        let mut end = self.records.into();
        for slot in self.calls.iter_mut().rev() {
            let has_record = slot.lsn.0 < end;
            end = slot.lsn.0;
            match &slot.outcome {
                Committed if has_record => slot.outcome = Unconfirmed(reason.clone()),
                Committed | Failed(_) | Waiting if !is_seen_committed => {
                    slot.outcome = Unavailable(reason.clone());
                    slot.txn_id = TxnId(0);
                }
                _ => {}
            }
        }
    }

    /// Turns every call that ran into a refusal, because its record, or a row that it saw, did not become durable. An abort may also rest on rows
    /// that are taken back. The caller runs this before it places the slots. If the log does not know what it kept, only the calls with a record are
    /// in doubt. The other calls left nothing to keep.
    pub fn refuse(&mut self, reason: &LogRefusal) {
        use ReplyOutcome::{Committed, Failed, Waiting};
        let mut end = self.records.into();
        for slot in self.calls.iter_mut().rev() {
            let has_record = slot.lsn.0 < end;
            end = slot.lsn.0;
            if matches!(slot.outcome, Committed | Waiting | Failed(_)) {
                slot.outcome = match reason {
                    LogRefusal::Unknown(reason) if !has_record => ReplyOutcome::LogUnavailable(reason.clone()),
                    reason => reason.into(),
                };
                if !matches!(slot.outcome, ReplyOutcome::OutcomeUnknown(_)) {
                    slot.txn_id = TxnId(0); // no transaction has this ID
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_never_ran_took_no_time() {
        let mut times = CallTimes {
            accepted_ns: 100,
            durable_ns: 5_000,
            ..CallTimes::default()
        };
        assert_eq!((times.queued(), times.running(), times.logging()), Default::default());
        assert_eq!(times.ran(1_100, 4_100), Duration::from_nanos(3_000));
        assert_eq!(
            (times.queued(), times.logging()),
            (Duration::from_nanos(1_000), Duration::from_nanos(900))
        );
    }

    #[test]
    fn a_call_of_several_partitions_counts_for_each_thread_that_it_holds() {
        let procedure = (ModuleId(0), 0);
        let mut batch = CallBatch::new(None);
        for single in [Some(PartitionId(1)), None, Some(PartitionId(1)), None] {
            batch.push_among(single, procedure, b"", None);
        }
        // The calls wrote one record, one, none and one.
        (0..)
            .zip([0, 1, 2, 2])
            .for_each(|(slot, first): (usize, u64)| batch.calls[slot].lsn = Lsn(first));
        let ran = Duration::from_millis(4);
        assert_eq!(batch.site_time_of_writes(ran, 3, 2), Duration::from_millis(5));
        assert_eq!(batch.site_time_of_writes(ran, 3, 1), Duration::from_millis(3));
    }

    #[test]
    fn keys_lie_behind_their_arguments() {
        let mut batch = CallBatch::new(None);
        let long = "k".repeat(255);
        for (args, key) in [
            (&b"ab"[..], None),
            (b"", Some("one")),
            (b"c", None),
            (b"def", Some(long.as_str())),
        ] {
            let fingerprint = u128::MAX / 3;
            batch.push(ModuleId(0), 0, args, key.map(|key| CallKey { key, fingerprint }));
        }
        let args: Vec<_> = (0..4).map(|slot| batch.args(slot)).collect();
        assert_eq!(args, [&b"ab"[..], b"", b"c", b"def"]);
        assert_eq!(batch.keys().collect::<Vec<_>>(), [(1, "one"), (3, long.as_str())]);
        let (_, keyed) = batch.calls[3].args_and_key(&batch.args);
        assert_eq!(keyed, Some((long.as_bytes(), u128::MAX / 3)));
    }

    #[test]
    fn room_is_made_for_what_results_took() {
        let mut batch = CallBatch::new(None);
        assert_eq!(batch.usual_result_bytes(), RESULT_BYTES_USUAL);
        (0..4).for_each(|_| batch.push(ModuleId(0), 0, &[], None));
        batch.results.resize(400, 0);
        assert_eq!(batch.usual_result_bytes(), 125);
        batch.results.resize(1 << 20, 0);
        assert_eq!(batch.usual_result_bytes(), RESULT_BYTES_USUAL_MAX);
    }
}
