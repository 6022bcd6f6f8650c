//! The calls of one turn, each from its arguments to its outcome and its record.

use std::{ops::Range, sync::Arc};

use reprise_abi::{ProcedureSchema, ScalarType, Type};
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_env::Clock;
use reprise_observe::{Notice, NoticeKind, Recorder};
use reprise_txn::{Commit, Failure, Module, Outcome, TxnInput, TxnScratch, call_hash, run_single};
use reprise_wire::{ChangesRef, CommandRef, KeyedRef, PartitionSet, PlainCommand, RecordBatch};

use crate::{
    ahead::BatchAhead,
    batch::{CallBatch, CallSlot, ReplyOutcome},
    calls::{Deadline, Ticket, Track, deadline_of, ended_before},
    logging::{Choice, LogForm, Sample},
    shared::Shared,
    sink::Unlogged,
    site::{ExecContext, Partition},
};

/// Records of one batch, in bytes, from which on commands alone are logged: all of a batch is one append, and a write set may
/// be longer than the arguments that made it.
const CHANGES_BYTES_MAX: usize = 8 << 20;

/// A call while it runs.
pub(crate) struct Running<'a> {
    pub module: &'a Arc<Module>,
    pub procedure: u16,
    pub txn_id: TxnId,
    pub args: &'a [u8],
    pub idempotency_key: Option<&'a [u8]>,
    /// Within which the key counts; empty without one.
    pub scope: &'a [u8],
}

impl<'a> Running<'a> {
    /// `args` and `scope`: of the call's batch.
    #[inline(always)]
    pub fn of(module: &'a Arc<Module>, call: &CallSlot, args: &'a [u8], scope: &'a [u8]) -> Self {
        let (args, idempotency_key) = call.args_and_key(args);
        Self {
            module,
            procedure: call.procedure,
            txn_id: call.txn_id,
            args,
            idempotency_key,
            scope: if idempotency_key.is_some() { scope } else { &[] },
        }
    }

    /// Appends what the log holds of a committed call; its changes and its result are in the frame.
    #[inline(always)]
    pub fn encode(
        &self,
        partitions: PartitionSet<'_>,
        commit: &Commit,
        kind: LogForm,
        frame: &TxnScratch,
        (records, records_max): (&mut RecordBatch, usize),
    ) {
        match kind {
            LogForm::Nothing => return,
            LogForm::Command => return self.encode_command(partitions, commit.digest, records),
            LogForm::Changes | LogForm::Both => {}
        }
        let changes = ChangesRef {
            txn_id: self.txn_id,
            partitions,
            module_id: self.module.id.0,
            procedure: self.procedure,
            digest: commit.digest,
            keyed: self.idempotency_key.map(|key| KeyedRef {
                scope: self.scope,
                key,
                fingerprint: self.call_hash(),
                result: frame.result(),
            }),
            changes: frame.changes(),
        };
        let behind = records.bytes().len();
        // Both kinds of one call lie in one append.
        let bytes = self.command_bytes_max(partitions) + changes.record_bytes();
        let fits = behind < CHANGES_BYTES_MAX && changes.fits() && bytes <= records_max.saturating_sub(behind);
        if kind == LogForm::Both || !fits {
            self.encode_command(partitions, commit.digest, records);
        }
        if fits {
            records.push_placed(&changes, frame.placed());
        }
    }

    /// As `encode`, of a call that ran on the partition that its id names; a command without a key in a quick way, for nearly
    /// all are such.
    #[inline(always)]
    fn encode_on_one(
        &self,
        partition: PartitionId,
        commit: &Commit,
        kind: LogForm,
        frame: &TxnScratch,
        (records, records_max): (&mut RecordBatch, usize),
    ) {
        if kind != LogForm::Command || self.idempotency_key.is_some() {
            return self.encode(
                PartitionSet::One(partition),
                commit,
                kind,
                frame,
                (records, records_max),
            );
        }
        records.push_plain(&PlainCommand {
            txn_id: self.txn_id,
            module_id: self.module.id.0,
            procedure: self.procedure,
            digest: commit.digest,
            args: self.args,
        });
    }

    /// Of its command's record.
    #[inline]
    fn command_bytes_max(&self, partitions: PartitionSet<'_>) -> usize {
        let key = self.idempotency_key.map_or(0, <[u8]>::len);
        let partitions = match partitions {
            PartitionSet::Several(list) => 2 * list.len(),
            PartitionSet::One(_) | PartitionSet::All => 0,
        };
        COMMAND_HEAD_BYTES_MAX + self.args.len() + key + self.scope.len() + partitions
    }

    fn call_hash(&self) -> u128 {
        let procedure = &self.module.schema.procedures[self.procedure as usize];
        call_hash(&self.module.name, &procedure.name, self.args)
    }

    #[inline]
    fn encode_command(&self, partitions: PartitionSet<'_>, digest: u64, records: &mut RecordBatch) {
        records.push_command(&CommandRef {
            txn_id: self.txn_id,
            partitions,
            module_id: self.module.id.0,
            procedure: self.procedure,
            digest,
            idempotency_key: self.idempotency_key,
            idempotency_scope: self.scope,
            args: self.args,
        });
    }

    /// Behind the call's end: what it wrote down, and that it took long.
    #[inline]
    pub fn note_end(&self, shared: &Shared, frame: &mut TxnScratch) {
        if frame.has_lines() {
            self.note_all_lines(shared, frame);
        }
        if let Some(ran_ns) = frame.watch.ran_ns() {
            self.note_slow(shared, ran_ns / 1_000_000);
        }
    }

    #[cold]
    fn note_slow(&self, shared: &Shared, ran_ms: u64) {
        let slow_ms = u64::from(shared.notices.slow_call_ms());
        if slow_ms > 0 && ran_ms >= slow_ms {
            shared.notices.tell(NoticeKind::SlowCall, || Notice::SlowCall {
                txn_id: self.txn_id,
                procedure: self.name(),
                ran_ms,
            });
        }
    }

    /// Notes why the call left nothing behind.
    #[cold]
    pub fn settle_failure(&self, shared: &Shared, recorder: &Recorder, call: &mut CallSlot, failure: Failure) {
        let is_abort = matches!(failure, Failure::Aborted { .. });
        recorder.failed(is_abort);
        if let Failure::Trapped { message, .. } = &failure {
            shared.notices.tell(NoticeKind::Trap, || Notice::Trapped {
                txn_id: self.txn_id,
                procedure: self.name(),
                message: message.clone(),
            });
        }
        call.outcome = ReplyOutcome::Failed(Box::new(failure));
    }

    /// `MODULE.PROCEDURE`.
    fn name(&self) -> String {
        let procedure = &self.module.schema.procedures[self.procedure as usize];
        format!("{}.{}", self.module.name, procedure.name)
    }

    #[cold]
    fn note_all_lines(&self, shared: &Shared, frame: &mut TxnScratch) {
        let procedure = &self.module.schema.procedures[self.procedure as usize].name;
        let lines = frame.take_lines().map(|line| (line.level as u8, line.text));
        shared.lines.push(self.txn_id, &self.module.name, procedure, lines);
    }
}

/// What all calls of a turn have in common.
pub(crate) struct TurnStart {
    pub now_us: i64,
    /// Why writes can't be taken, if so.
    pub refusal: Option<Unlogged>,
    pub results_max: usize,
    /// Bytes of records that the log takes at once.
    pub records_max: usize,
}

/// Of a command's record, beside its arguments, its key and its partitions.
const COMMAND_HEAD_BYTES_MAX: usize = 64;

impl TurnStart {
    /// Before a call begins, behind `records` of its batch: whether the log takes its command. A call that is logged by its changes
    /// is logged by its command where they are too long.
    #[inline]
    pub fn judge_record(
        &self,
        procedure: &ProcedureSchema,
        call: &CallSlot,
        (scope, partitions): (&[u8], u16),
        records: &RecordBatch,
    ) -> Result<(), ReplyOutcome> {
        let named = call.args.len() + call.key_bytes() + scope.len();
        let bytes = COMMAND_HEAD_BYTES_MAX + named + 2 * usize::from(partitions);
        match bytes <= self.records_max.saturating_sub(records.bytes().len()) || procedure.read_only {
            true => Ok(()),
            false => Err(self.refuse_record(bytes)),
        }
    }

    #[cold]
    fn refuse_record(&self, bytes: usize) -> ReplyOutcome {
        let max = self.records_max;
        if bytes <= max {
            let reason = format!(
                "the calls of this batch before it fill what the NVRAM takes at once ({max} bytes): send fewer calls in a batch"
            );
            return ReplyOutcome::LogUnavailable(reason.into());
        }
        ReplyOutcome::Failed(Box::new(Failure::Limit {
            limit: "log-record-bytes".into(),
            max: max as u64,
            message: format!(
                "the call's arguments make a log record of up to {bytes} bytes, and the NVRAM takes {max} at once (a quarter of a site's \
                 ring: --nvram-size)"
            ),
        }))
    }
}

/// Runs the first of these calls and those behind it that are of its module: what hangs on the module is looked up once for all of
/// them. Returns the slot of the first call that was not run.
pub(crate) fn run_alike(
    partition: &mut Partition,
    tools: &mut ExecContext,
    batch: &mut CallBatch,
    Range { start: first, end }: Range<usize>,
    turn: &TurnStart,
) -> usize {
    let watched = Watched::of(batch.ticket.as_ref(), &batch.deadlines);
    let (calls, args, results) = (&mut batch.calls[..end], &batch.args, &mut batch.results);
    let batch_scope = batch.scope.as_deref().unwrap_or("").as_bytes();
    let (id, mut slot) = (calls[first].module, first);
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
        calls[first].lsn = Lsn(records.count().into());
        calls[first].outcome = ReplyOutcome::Superseded;
        return first + 1;
    };
    let mut executor = executors.get(module);
    let choices = &mut choices[id.0 as usize];
    let mut ahead = BatchAhead::begin(module, &partition.store, calls, first, args);
    while calls.get(slot).is_some_and(|call| call.module == id) {
        ahead.step(&partition.store, calls, slot, args);
        let call = &mut calls[slot];
        slot += 1;
        call.lsn = Lsn(records.count().into());
        let procedure = &module.schema.procedures[call.procedure as usize];
        let begun = match results.len() < turn.results_max || has_small_result(procedure) {
            true => turn.judge_record(procedure, call, (batch_scope, 1), records),
            false => Err(ReplyOutcome::ANSWERS_FULL),
        };
        let around = (&**shared, &mut *frame);
        let begun = begun.and_then(|()| watched.begin(slot - 1, procedure, turn.refusal.as_ref(), around));
        if let Err(outcome) = begun {
            settle_refusal(recorder, call, outcome);
            continue;
        }
        call.txn_id = partition.clock.next(turn.now_us, partition.id.0);
        watched.note_begun(slot - 1, call.txn_id);
        let running = Running::of(module, call, args, batch_scope);
        let choice = &mut choices[call.procedure as usize];
        let (kind, sample) = begin_capture(choice, shared, frame);
        let (store, input) = (&mut partition.store, input_of(shared, &running));
        let outcome = match &mut executor {
            Ok(executor) => run_single(store, partition.id, &input, &mut **executor, frame),
            Err(failure) => Outcome::Fail(failure.clone()),
        };
        // Looked at where it is: what was written in pieces and is moved as a whole waits for the store buffer.
        match outcome {
            Outcome::Commit(ref commit) => {
                if !procedure.read_only {
                    running.encode_on_one(partition.id, commit, kind, frame, (records, turn.records_max));
                    note_sample(choice, sample, &running, frame, &*shared.clock);
                }
                settle_commit(recorder, frame, call, results);
            }
            Outcome::Fail(failure) => running.settle_failure(shared, recorder, call, failure),
        }
        running.note_end(shared, frame);
    }
    slot
}

/// Longest encoded result that counts as small: it is no burden, however little room there is for results.
const SMALL_RESULT_BYTES_MAX: usize = 512;

/// True where the result's type bounds it to some hundred bytes.
pub fn has_small_result(procedure: &ProcedureSchema) -> bool {
    bytes_max(&procedure.returns).is_some_and(|bytes| bytes <= SMALL_RESULT_BYTES_MAX)
}

/// The longest encoding of a value; None where its type knows none.
fn bytes_max(ty: &Type) -> Option<usize> {
    match ty {
        Type::Unit => Some(0),
        Type::Scalar(ScalarType::Text | ScalarType::Bytes) | Type::List(_) => None,
        Type::Scalar(scalar) => Some(scalar.slot_bytes()),
        Type::Option(inner) => Some(1 + bytes_max(inner)?),
        Type::Struct(fields) => fields.iter().map(|field| bytes_max(&field.ty)).sum(),
        Type::Enum(_) => Some(5),
    }
}

/// What may end the calls of a batch.
pub(crate) struct Watched<'b> {
    pub track: Option<&'b Track>,
    pub deadlines: &'b [(u32, Arc<Deadline>)],
}

impl<'b> Watched<'b> {
    #[inline]
    pub fn of(ticket: Option<&'b Ticket>, deadlines: &'b [(u32, Arc<Deadline>)]) -> Self {
        let track = ticket.map(|ticket| &*ticket.track);
        Self { track, deadlines }
    }

    /// Before a call begins: tells what may end it while it runs. Err: it is not to begin, as the log takes no writes, or it was
    /// ended.
    #[inline]
    pub fn begin(
        &self,
        at: usize,
        procedure: &ProcedureSchema,
        refusal: Option<&Unlogged>,
        (shared, frame): (&Shared, &mut TxnScratch),
    ) -> Result<(), ReplyOutcome> {
        if let (Some(reason), false) = (refusal, procedure.read_only) {
            return Err(reason.into());
        }
        let time_max_ms = procedure.time_max_ms.unwrap_or_else(|| shared.calls.time_max_ms());
        self.begin_within(at, time_max_ms, (shared, frame))
    }

    /// As `begin`, of a call that may take so long; 0: no limit.
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
    pub fn note_begun(&self, at: usize, txn_id: TxnId) {
        if let Some(track) = self.track {
            track.begin(at as u32, txn_id);
        }
    }
}

/// The calls that follow are of this batch, and run for the first time.
#[inline]
pub(crate) fn begin_batch(batch: &CallBatch, shared: &Shared, frame: &mut TxnScratch) {
    frame.begin_running();
    let ends = batch.ticket.as_ref().map(|ticket| &ticket.track.ends);
    frame.watch.begin_batch(&shared.clock, ends);
}

/// What is logged of the call that begins, and whether it is measured; lets its changes be kept where they are wanted.
#[inline]
pub(crate) fn begin_capture(choice: &mut Choice, shared: &Shared, frame: &mut TxnScratch) -> (LogForm, Option<Sample>) {
    let (kind, sample) = (choice.kind(), choice.sample(&*shared.clock));
    let is_wanted = matches!(kind, LogForm::Changes | LogForm::Both) || sample.is_some();
    frame.set_capture(is_wanted.then_some(shared.logging.images));
    if matches!(kind, LogForm::Changes | LogForm::Both) {
        frame.insert_changes();
    }
    (kind, sample)
}

/// Takes a measured call into the weighing of its procedure's log.
#[inline]
pub(crate) fn note_sample(
    choice: &Choice,
    sample: Option<Sample>,
    running: &Running<'_>,
    frame: &TxnScratch,
    clock: &dyn Clock,
) {
    if let Some(sample) = sample {
        let (now_ns, args) = (clock.monotonic_ns(), running.args.len());
        choice.note(&sample, now_ns, args, frame.changes().len(), frame.changed_rows());
    }
}

/// Notes that a call was committed.
#[inline]
pub(crate) fn settle_commit(recorder: &Recorder, frame: &TxnScratch, call: &mut CallSlot, results: &mut Vec<u8>) {
    let start = results.len() as u32;
    match frame.result() {
        // The commonest result of all, without a call for it.
        [byte] => results.push(*byte),
        result => results.extend_from_slice(result),
    }
    call.result = start..results.len() as u32;
    call.outcome = ReplyOutcome::Committed;
    recorder.committed();
}

/// Notes why a call did not begin.
#[cold]
pub(crate) fn settle_refusal(recorder: &Recorder, call: &mut CallSlot, outcome: ReplyOutcome) {
    if matches!(outcome, ReplyOutcome::Failed(_)) {
        recorder.failed(false);
    }
    call.outcome = outcome;
}

pub(crate) fn input_of<'a>(shared: &Shared, running: &Running<'a>) -> TxnInput<'a> {
    TxnInput {
        txn_id: running.txn_id,
        secret: shared.secret,
        partitions_count: shared.partitions_count,
        module: running.module,
        procedure: running.procedure as usize,
        args: running.args,
    }
}
