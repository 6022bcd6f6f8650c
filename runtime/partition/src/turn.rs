//! The calls of one turn, each from its arguments to its outcome and its record.

use std::{ops::Range, sync::Arc};

use reprise_abi::{ProcedureSchema, ScalarType, Type};
use reprise_base::{Lsn, TxnId, limits::BATCH_RECORDS_BYTES_MAX};
use reprise_observe::{Notice, NoticeKind, Recorder};
use reprise_txn::{Commit, Failure, Module, Outcome, TxnInput, TxnScratch, run_single};
use reprise_wire::{ChangesRef, CommandRef, KeyedRef, PartitionSet, RecordBatch, STAND_IN_HEAD_BYTES_MAX, TwoForms};

use crate::{
    batch::{CallBatch, CallSlot},
    batch_ahead::BatchAhead,
    caller::Caller,
    calls::{Deadline, Ticket, Track, deadline_of, ended_before},
    failure_notices,
    log_costs::{Choice, CostSample},
    log_form::LogForm,
    outcome::ReplyOutcome,
    paused_batch::Pause,
    shared::Shared,
    sink::LogRefusal,
    site::{ExecContext, Partition},
};

/// A call while it runs.
pub(crate) struct CallContext<'a> {
    pub module: &'a Arc<Module>,
    pub procedure: u16,
    pub txn_id: TxnId,
    pub args: &'a [u8],
    /// The idempotency key, and the fingerprint of the call that came with it.
    pub key: Option<(&'a [u8], u128)>,
    pub caller: Option<&'a Caller>,
}

impl<'a> CallContext<'a> {
    /// Makes the running call. `args` and `caller` are those of the call's batch.
    #[inline(always)]
    pub fn of(module: &'a Arc<Module>, call: &CallSlot, args: &'a [u8], caller: Option<&'a Caller>) -> Self {
        let (args, key) = call.args_and_key(args);
        Self {
            module,
            procedure: call.procedure,
            txn_id: call.txn_id,
            args,
            key,
            caller,
        }
    }

    /// Appends the record or records of a committed call, whose changes and result are in the frame. False, with nothing appended: the call does not
    /// fit into one record, or not behind the records of its batch.
    #[inline(always)]
    pub fn encode(
        &self,
        partitions: PartitionSet<'_>,
        commit: &Commit,
        kind: LogForm,
        frame: &TxnScratch,
        (records, turn): (&mut RecordBatch, &TurnStart),
    ) -> bool {
        let has_command = match kind {
            LogForm::Nothing => return true,
            LogForm::Command => {
                self.encode_command(partitions, commit.digest, records);
                return true;
            }
            LogForm::Apart(forms) => {
                return self.encode_apart(partitions, commit, forms, frame, (records, turn));
            }
            LogForm::Changes => false,
            LogForm::Both => true,
        };
        let changes = self.changes(partitions, commit.digest, frame);
        // Both forms of one call lie in one append.
        let command = if has_command {
            self.command_bytes_max(partitions)
        } else {
            0
        };
        let bytes = records.bytes().len() + command + changes.record_bytes();
        if changes.changes.len() > turn.part_bytes || bytes > turn.batch_bytes_max() {
            return false;
        }
        if has_command {
            self.encode_command(partitions, commit.digest, records);
        }
        records.push_placed(&changes, frame.placed());
        true
    }

    /// The `encode` variant for standbys that get the other form.
    fn encode_apart(
        &self,
        partitions: PartitionSet<'_>,
        commit: &Commit,
        forms: TwoForms,
        frame: &TxnScratch,
        (records, turn): (&mut RecordBatch, &TurnStart),
    ) -> bool {
        let changes = self.changes(partitions, commit.digest, frame);
        let bytes = self.apart_bytes_max(partitions, &changes);
        if changes.changes.len() > turn.part_bytes || records.bytes_max() + bytes > turn.batch_bytes_max() {
            return false;
        }
        records.push_forms(Some(&self.command(partitions, commit.digest)), &changes, Some(forms));
        true
    }

    /// Returns the bytes of the longer record, if one log has the command and the other has the changes.
    #[inline]
    pub fn apart_bytes_max(&self, partitions: PartitionSet<'_>, changes: &ChangesRef<'_>) -> usize {
        STAND_IN_HEAD_BYTES_MAX + self.command_bytes_max(partitions).max(changes.record_bytes())
    }

    /// Returns the call's changes, in the form of one record.
    #[inline(always)]
    pub fn changes<'c>(&'c self, partitions: PartitionSet<'c>, digest: u64, frame: &'c TxnScratch) -> ChangesRef<'c> {
        ChangesRef {
            txn_id: self.txn_id,
            partitions,
            module_id: self.module.id.0,
            procedure: self.procedure,
            digest,
            principal: self.principal(),
            parts: 0,
            keyed: self.key_ref().map(|call| KeyedRef {
                call,
                args_hash: self.call_hash(),
                result: frame.result(),
            }),
            changes: frame.changes(),
        }
    }

    /// Returns the bytes of its command's record at most.
    #[inline]
    pub fn command_bytes_max(&self, partitions: PartitionSet<'_>) -> usize {
        let scope = self.caller.map_or(0, |caller| caller.scope.len());
        let key = self.key.map_or(0, |(key, _)| key.len() + scope);
        let partitions = match partitions {
            PartitionSet::Several(list) => 2 * list.len(),
            PartitionSet::One(_) | PartitionSet::All => 0,
        };
        COMMAND_HEAD_BYTES_MAX + self.args.len() + key + partitions
    }

    #[inline]
    fn encode_command(&self, partitions: PartitionSet<'_>, digest: u64, records: &mut RecordBatch) {
        records.push_command(&self.command(partitions, digest));
    }

    #[inline(always)]
    pub fn command<'c>(&'c self, partitions: PartitionSet<'c>, digest: u64) -> CommandRef<'c> {
        CommandRef {
            txn_id: self.txn_id,
            partitions,
            module_id: self.module.id.0,
            procedure: self.procedure,
            digest,
            principal: self.principal(),
            keyed: self.key_ref(),
            args: self.args,
        }
    }

    /// Records the end of the call: the lines that it logged, and that it was slow.
    #[inline]
    pub fn record_end(&self, shared: &Shared, frame: &mut TxnScratch) {
        if frame.has_lines() {
            self.record_lines(shared, frame);
        }
        if let Some(ran_ns) = frame.watch.ran_ns() {
            self.record_slow(shared, ran_ns / 1_000_000);
        }
    }

    #[cold]
    fn record_slow(&self, shared: &Shared, ran_ms: u64) {
        let slow_ms = u64::from(shared.notices.slow_call_ms());
        if slow_ms > 0 && ran_ms >= slow_ms {
            shared.notices.publish(NoticeKind::SlowCall, || Notice::SlowCall {
                txn_id: self.txn_id,
                procedure: self.name(),
                ran_ms,
            });
        }
    }

    /// Records why the call left nothing behind.
    #[cold]
    pub fn record_failure(&self, shared: &Shared, recorder: &Recorder, call: &mut CallSlot, failure: Failure) {
        let is_abort = matches!(failure, Failure::Aborted { .. });
        recorder.failed(is_abort);
        failure_notices::report_failure(&shared.notices, self.txn_id, || self.name(), &failure);
        call.outcome = ReplyOutcome::Failed(Box::new(failure));
    }

    /// Returns `MODULE.PROCEDURE`.
    fn name(&self) -> String {
        let procedure = &self.module.schema.procedures[self.procedure as usize];
        format!("{}.{}", self.module.name, procedure.name)
    }

    #[cold]
    fn record_lines(&self, shared: &Shared, frame: &mut TxnScratch) {
        let procedure = &self.module.schema.procedures[self.procedure as usize].name;
        let lines = frame.take_lines().map(|line| (line.level as u8, line.text));
        shared.lines.push(self.txn_id, &self.module.name, procedure, lines);
    }
}

/// The state that all calls of a turn share.
pub(crate) struct TurnStart {
    pub now_us: i64,
    /// Why the log takes no writes, if there is a reason.
    pub refusal: Option<LogRefusal>,
    pub results_max: usize,
    /// Bytes of records that the log takes at once.
    pub records_max: usize,
    /// Bytes of a transaction's changes beyond which they are logged in parts.
    pub part_bytes: usize,
}

/// Why a call does not begin.
enum Unready {
    /// The calls before it in its batch go to the log first.
    Full,
    Refused(ReplyOutcome),
}

/// Bytes of a command's record, beside its arguments, its key and its partitions.
const COMMAND_HEAD_BYTES_MAX: usize = 80;

impl TurnStart {
    pub fn new(tools: &ExecContext, batch: &CallBatch) -> Self {
        let records_max = tools.sink.records_max();
        Self {
            now_us: tools.shared.clock.now_us(),
            refusal: tools.refusal(),
            results_max: batch.results_max(),
            records_max,
            // The record behind a part needs room, too.
            part_bytes: tools.shared.logging.part_bytes.min(records_max / 2),
        }
    }

    /// Returns the bytes of records at which a batch's records go to the log before the batch makes more.
    #[inline]
    pub fn batch_bytes_max(&self) -> usize {
        self.records_max.min(BATCH_RECORDS_BYTES_MAX)
    }

    /// Admits the call at a position, behind the records and the bytes of results of its batch. Err: it does not begin. Either its outcome
    /// says why, or the calls before it go to the log first.
    #[inline(always)]
    pub fn begin(
        &self,
        (at, call): (usize, &mut CallSlot),
        procedure: &ProcedureSchema,
        (watched, scope, partitions): (&BatchWatch<'_>, &[u8], u16),
        (records, results_bytes): (&RecordBatch, usize),
        (shared, frame, recorder): (&Shared, &mut TxnScratch, &Recorder),
    ) -> Result<(), Option<Pause>> {
        let checked = match results_bytes < self.results_max || has_small_result(procedure) {
            true => self.check_record(procedure, call, (scope, partitions), records),
            false => Err(Unready::Refused(ReplyOutcome::ANSWERS_FULL)),
        };
        let begun = checked.and_then(|()| {
            let begun = watched.begin(at, procedure, self.refusal.as_ref(), (shared, frame));
            begun.map_err(Unready::Refused)
        });
        match begun {
            Ok(()) => Ok(()),
            Err(Unready::Full) => Err(Some(Pause::Full)),
            Err(Unready::Refused(outcome)) => {
                record_refusal(recorder, call, outcome);
                Err(None)
            }
        }
    }

    /// Checks that the log takes a call's command behind `records` of its batch, if the command is logged.
    #[inline]
    fn check_record(
        &self,
        procedure: &ProcedureSchema,
        call: &CallSlot,
        (scope, partitions): (&[u8], u16),
        records: &RecordBatch,
    ) -> Result<(), Unready> {
        let named = call.args.len() + call.key_bytes() + scope.len();
        let bytes = COMMAND_HEAD_BYTES_MAX + named + 2 * usize::from(partitions);
        match bytes <= self.records_max.saturating_sub(records.bytes().len()) || procedure.read_only {
            true => Ok(()),
            false => Err(self.unready(bytes)),
        }
    }

    #[cold]
    fn unready(&self, bytes: usize) -> Unready {
        match bytes <= self.records_max {
            true => Unready::Full,
            false => Unready::Refused(self.refuse_record("arguments", bytes)),
        }
    }

    /// Returns the outcome of a call whose record is longer than the log takes because of its `what`.
    #[cold]
    pub fn refuse_record(&self, what: &str, bytes: usize) -> ReplyOutcome {
        let max = self.records_max;
        ReplyOutcome::Failed(Box::new(Failure::Limit {
            limit: "log-record-bytes".into(),
            max: max as u64,
            message: format!(
                "the call's {what} need a log record of up to {bytes} bytes. The NVRAM takes at most {max} bytes at once (a quarter of a site's \
                 ring: --nvram-size)"
            ),
        }))
    }
}

/// Runs the first of these calls and those behind it that are of its module. The module is thus looked up once for all of them. Returns the
/// slot of the first call that did not run. It also returns why it stopped there, if the calls before that slot go to the log first.
pub(crate) fn run_alike(
    partition: &mut Partition,
    tools: &mut ExecContext,
    batch: &mut CallBatch,
    Range { start: first, end }: Range<usize>,
    turn: &TurnStart,
) -> (usize, Option<Pause>) {
    let watched = BatchWatch::of(batch.ticket.as_ref(), &batch.deadlines);
    let (calls, args, results) = (&mut batch.calls[..end], &batch.args, &mut batch.results);
    let (caller, id, mut slot) = (batch.caller.as_ref(), calls[first].module, first);
    let batch_scope = caller.map_or(&[][..], |caller| caller.scope.as_bytes());
    let ExecContext {
        shared,
        executors,
        frame,
        recorder,
        records,
        in_service,
        choices,
        ..
    } = tools;
    let Some(module) = in_service.get(id.0 as usize).and_then(Option::as_ref) else {
        let call = &mut calls[first];
        (call.lsn, call.outcome) = (Lsn(records.count().into()), ReplyOutcome::Superseded);
        return (first + 1, None);
    };
    let mut executor = executors.get(module);
    let choices = &mut choices[id.0 as usize];
    let mut ahead = BatchAhead::begin(module, &partition.store, calls, first, args);
    while calls.get(slot).is_some_and(|call| call.module == id) {
        ahead.step(&partition.store, calls, slot, args);
        let call = &mut calls[slot];
        (slot, call.lsn) = (slot + 1, Lsn(records.count().into()));
        let procedure = &module.schema.procedures[call.procedure as usize];
        let (behind, around) = ((&*records, results.len()), (&**shared, &mut *frame, &*recorder));
        let (at, placed) = ((slot - 1, &mut *call), (&watched, batch_scope, 1));
        match turn.begin(at, procedure, placed, behind, around) {
            Ok(()) => {}
            Err(None) => continue,
            Err(full) => return (slot - 1, full),
        }
        call.txn_id = partition.clock.next(turn.now_us, partition.id.0);
        watched.record_begun(slot - 1, call.txn_id);
        let running = CallContext::of(module, call, args, caller);
        let (choice, place) = (&mut choices[call.procedure as usize], PartitionSet::One(partition.id));
        let (kind, sample) = begin_capture(choice, shared, frame);
        let (store, input) = (&mut partition.store, input_of(shared, &running));
        let outcome = match &mut executor {
            Ok(executor) => run_single(store, partition.id, &input, &mut **executor, frame),
            Err(failure) => Outcome::Fail(failure.clone()),
        };
        // Read in place: a move of a value that was just written in pieces would wait for the store buffer.
        match outcome {
            Outcome::Commit(ref commit) => {
                if !procedure.read_only {
                    let is_encoded = running.encode(place, commit, kind, frame, (records, turn));
                    let here = |id| (id == partition.id).then_some(&partition.store);
                    running.record_sample(choice, sample, place, shared, frame, &here);
                    if !is_encoded {
                        return (slot, Some(Pause::of(commit, kind)));
                    }
                }
                record_commit(recorder, frame, call, results);
            }
            Outcome::Fail(failure) => running.record_failure(shared, recorder, call, failure),
        }
        running.record_end(shared, frame);
    }
    (slot, None)
}

/// Longest encoded result that counts as small: it fits, however little room there is for results.
const SMALL_RESULT_BYTES_MAX: usize = 512;

/// Returns whether the result's type bounds it to some hundred bytes.
pub fn has_small_result(procedure: &ProcedureSchema) -> bool {
    bytes_max(&procedure.returns).is_some_and(|bytes| bytes <= SMALL_RESULT_BYTES_MAX)
}

/// Returns the longest encoding of a value. None if its type has no bound.
fn bytes_max(ty: &Type) -> Option<usize> {
    match ty {
        Type::Unit => Some(0),
        Type::Scalar(ScalarType::Text | ScalarType::Bytes) | Type::List(_) => None,
        Type::Scalar(scalar) => Some(scalar.slot_bytes()),
        Type::Option(inner) => Some(1 + bytes_max(inner)?),
        Type::Struct(of) => of.fields.iter().map(|field| bytes_max(&field.ty)).sum(),
        Type::Enum(_) => Some(5),
    }
}

/// The events that may end the calls of a batch.
pub(crate) struct BatchWatch<'b> {
    pub track: Option<&'b Track>,
    pub deadlines: &'b [(u32, Arc<Deadline>)],
}

impl<'b> BatchWatch<'b> {
    #[inline]
    pub fn of(ticket: Option<&'b Ticket>, deadlines: &'b [(u32, Arc<Deadline>)]) -> Self {
        let track = ticket.map(|ticket| &*ticket.track);
        Self { track, deadlines }
    }

    /// Arms the events that may end a call while it runs. Err: the call must not begin, because the log takes no writes or the call was
    /// ended.
    #[inline]
    pub fn begin(
        &self,
        at: usize,
        procedure: &ProcedureSchema,
        refusal: Option<&LogRefusal>,
        (shared, frame): (&Shared, &mut TxnScratch),
    ) -> Result<(), ReplyOutcome> {
        if let (Some(reason), false) = (refusal, procedure.read_only) {
            return Err(reason.into());
        }
        let time_max_ms = procedure.time_max_ms.unwrap_or_else(|| shared.calls.time_max_ms());
        self.begin_within(at, time_max_ms, (shared, frame))
    }

    /// The `begin` variant for a call with a time limit; 0: no limit.
    #[inline]
    pub fn begin_within(
        &self,
        at: usize,
        time_max_ms: u32,
        (shared, frame): (&Shared, &mut TxnScratch),
    ) -> Result<(), ReplyOutcome> {
        let (at, mut deadline_ns) = (at as u32, 0);
        if let Some(track) = self.track {
            let now_ns = || shared.clock.monotonic_ns();
            let deadline = deadline_of(self.deadlines, at);
            if let Some(ended) = ended_before(&track.ends, at, deadline, now_ns) {
                return Err(ReplyOutcome::Failed(Box::new(Failure::Ended(ended))));
            }
            deadline_ns = deadline.map_or(0, Deadline::ns);
        }
        frame.watch.begin_call(at, time_max_ms, deadline_ns);
        Ok(())
    }

    #[inline]
    pub fn record_begun(&self, at: usize, txn_id: TxnId) {
        if let Some(track) = self.track {
            track.begin(at as u32, txn_id);
        }
    }
}

/// Begins a batch whose calls run for the first time.
#[inline]
pub(crate) fn begin_batch(batch: &CallBatch, shared: &Shared, frame: &mut TxnScratch) {
    frame.begin_running();
    let ends = batch.ticket.as_ref().map(|ticket| &ticket.track.ends);
    frame.watch.begin_batch(&shared.clock, ends);
}

/// Returns the form in which the beginning call is logged, and the sample if it is measured. It has the call's changes kept if that form
/// needs them.
#[inline]
pub(crate) fn begin_capture(
    choice: &mut Choice,
    shared: &Shared,
    frame: &mut TxnScratch,
) -> (LogForm, Option<CostSample>) {
    let kind = choice.kind().shipped_as(shared.logging.shipped());
    let sample = choice.sample(&*shared.clock);
    let is_wanted = kind.has_changes() || sample.as_ref().is_some_and(|sample| sample.makes_changes);
    frame.set_capture(is_wanted.then_some(shared.logging.images));
    // A log in NVRAM holds these changes. Standbys get no other form then.
    if matches!(kind, LogForm::Changes | LogForm::Both) {
        frame.insert_changes();
    }
    (kind, sample)
}

/// Records that a call was committed.
#[inline]
pub(crate) fn record_commit(recorder: &Recorder, frame: &TxnScratch, call: &mut CallSlot, results: &mut Vec<u8>) {
    let start = results.len() as u32;
    results.extend_from_slice(frame.result());
    call.result = start..results.len() as u32;
    call.outcome = ReplyOutcome::Committed;
    recorder.committed();
}

/// Records why a call did not begin.
#[cold]
pub(crate) fn record_refusal(recorder: &Recorder, call: &mut CallSlot, outcome: ReplyOutcome) {
    if matches!(outcome, ReplyOutcome::Failed(_)) {
        recorder.failed(false);
    }
    call.outcome = outcome;
}

pub(crate) fn input_of<'a>(shared: &Shared, running: &CallContext<'a>) -> TxnInput<'a> {
    TxnInput {
        txn_id: running.txn_id,
        secret: shared.secret,
        partitions_count: shared.partitions_count,
        module: running.module,
        procedure: running.procedure as usize,
        args: running.args,
        caller: running.caller.map(|caller| &*caller.name),
    }
}
