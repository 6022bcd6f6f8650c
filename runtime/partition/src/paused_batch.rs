//! A batch whose calls go to the log before the rest of it runs. Their records fill an append, or a call's changes are logged in parts.
//!
//! Nothing can take appended records back. The engine thread therefore first appends and seals the calls before a call in parts, and that
//! call is an append of its own. If the log refuses the append in the middle, only that call is rolled back. Its parts in the log have no
//! effect.

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_txn::{Commit, TxnScratch};
use reprise_wire::{ChangesRun, PartitionList, PartitionSet};

use crate::{
    batch::CallBatch,
    log_form::LogForm,
    outcome::ReplyOutcome,
    sink::{LogRefusal, NewRecords},
    site::{ExecContext, Partition},
    turn::{CallContext, TurnStart, record_commit, record_refusal},
};

/// Why a batch stops before a call.
pub(crate) enum Pause {
    /// The log has no room for the call's record.
    Full,
    /// The call before it has committed, and its record is not made yet. The record is in parts, or there was no room for it.
    Unlogged { commit: Commit, form: LogForm },
}

impl Pause {
    #[cold]
    pub fn of(commit: &Commit, form: LogForm) -> Self {
        Self::Unlogged { commit: *commit, form }
    }
}

/// A batch that stops, with the partitions that it touches.
pub(crate) struct PausedBatch<'a, 'p> {
    pub tools: &'a mut ExecContext,
    pub partitions: &'a mut [&'p mut Partition],
    pub turn: &'a mut TurnStart,
}

impl PausedBatch<'_, '_> {
    /// Sends the calls before `slot` to the log. The last of them ran on the partition `single`, or, without it, on all of these
    /// partitions.
    pub fn pause(&mut self, batch: &mut CallBatch, slot: usize, single: Option<PartitionId>, why: &Pause) {
        match why {
            // Refused calls have their outcome, and no further call begins.
            Pause::Full => _ = self.publish_records(batch, slot, None),
            Pause::Unlogged { commit, form } => self.log(batch, slot - 1, single, (commit, *form)),
        }
    }

    /// Logs the last call that ran: on the partition `single`, or on all.
    fn log(
        &mut self,
        batch: &mut CallBatch,
        at: usize,
        single: Option<PartitionId>,
        (commit, form): (&Commit, LogForm),
    ) {
        if at > batch.headed
            && let Err(reason) = self.publish_records(batch, at, Some(UnsealedTxn { single }))
        {
            return self.refuse(batch, at, (&reason).into());
        }
        let (args, mut frame) = (std::mem::take(&mut batch.args), std::mem::take(&mut self.tools.frame));
        let ids: Vec<_> = self.partitions.iter().map(|partition| partition.id).collect();
        let set = match single {
            Some(id) => PartitionSet::One(id),
            None if ids.len() == self.tools.shared.partitions_count as usize => PartitionSet::All,
            None => PartitionSet::Several(PartitionList::new(&ids)),
        };
        let call = &mut batch.calls[at];
        // The call is the first one of the next append.
        call.lsn = Lsn(0);
        let module = self.tools.in_service(call.module).expect("it ran");
        let caller = batch.caller.clone();
        let running = CallContext::of(&module, call, &args, caller.as_ref());
        running.record_end(&self.tools.shared, &mut frame);
        let changes = running.changes(set, commit.digest, &frame);
        let command = (form != LogForm::Changes).then(|| running.command(set, commit.digest));
        let forms = match form {
            LogForm::Apart(forms) => Some(forms),
            LogForm::Command | LogForm::Changes | LogForm::Both | LogForm::Nothing => None,
        };
        let alone = match forms {
            Some(_) => running.apart_bytes_max(set, &changes),
            None => changes.record_bytes() + command.map_or(0, |_| running.command_bytes_max(set)),
        };
        if changes.changes.len() <= self.turn.part_bytes && alone <= self.turn.batch_bytes_max() {
            // The bound leaves out the part of it in NVRAM: that is free again once the records before it are copied.
            self.tools.records.push_forms(command.as_ref(), &changes, forms);
            self.record_outcome(batch, at, &frame);
        } else {
            let run = ChangesRun::new(changes, command, forms, self.turn.part_bytes);
            let needed = run.append_bytes_max().saturating_add(2 * run.records() as usize);
            match needed <= self.turn.records_max {
                true => {
                    // The LSN of its command, or of the record that ends its parts.
                    batch.calls[at].lsn = Lsn(run.parts().into());
                    self.record_outcome(batch, at, &frame);
                    self.publish_run(batch, at, &run);
                }
                false => {
                    self.unwind();
                    self.refuse(batch, at, self.turn.refuse_record("changes and its result", needed));
                }
            }
        }
        self.tools.frame = frame;
        batch.args = args;
    }

    fn record_outcome(&self, batch: &mut CallBatch, at: usize, frame: &TxnScratch) {
        let (call, results) = (&mut batch.calls[at], &mut batch.results);
        record_commit(&self.tools.recorder, frame, call, results);
    }

    /// Refuses a call that had committed and was rolled back.
    fn refuse(&self, batch: &mut CallBatch, at: usize, outcome: ReplyOutcome) {
        let call = &mut batch.calls[at];
        call.txn_id = TxnId(0);
        record_refusal(&self.tools.recorder, call, outcome);
    }

    /// Appends the records of the calls before `until` that are in no head. Err: the log refuses them, so the calls behind them are
    /// refused, too.
    fn publish_records(
        &mut self,
        batch: &mut CallBatch,
        until: usize,
        unsealed: Option<UnsealedTxn>,
    ) -> Result<(), LogRefusal> {
        let records = std::mem::take(&mut self.tools.records);
        let head = batch.take_head(until);
        self.turn.results_max = batch.results_max();
        self.tools.recorder.logged(records.bytes().len() as u64);
        let published = self
            .tools
            .sink
            .publish(NewRecords::Whole(&records), self.partitions, head);
        self.tools.records = records;
        self.tools.records.clear();
        self.seal(published, unsealed)
    }

    fn publish_run(&mut self, batch: &mut CallBatch, at: usize, run: &ChangesRun<'_>) {
        let head = batch.take_head(at + 1);
        self.turn.results_max = batch.results_max();
        self.tools.recorder.logged(run.bytes() as u64);
        let published = self.tools.sink.publish(NewRecords::InParts(run), self.partitions, head);
        let _ = self.seal(published, None); // the callers have their answers
    }

    /// Seals the batch up to here. Appended writes stay undoable until they are durable. The others are undone now, and no further write of
    /// the batch begins.
    fn seal(
        &mut self,
        published: Result<(), (LogRefusal, Box<CallBatch>)>,
        unsealed: Option<UnsealedTxn>,
    ) -> Result<(), LogRefusal> {
        let retains = self.tools.sink.durable_lsn().is_some();
        match published {
            Ok(()) => {
                for partition in self.partitions.iter_mut().filter(|_| retains) {
                    let end = partition.last_end.0;
                    match unsealed.as_ref().is_some_and(|unsealed| unsealed.is_on(partition.id)) {
                        true => partition.store.seal_before_last(end),
                        false => partition.store.seal(end),
                    }
                }
                Ok(())
            }
            Err((reason, mut head)) => {
                self.unwind();
                head.refuse(&reason);
                head.finish();
                self.turn.refusal = Some(reason.clone());
                Err(reason)
            }
        }
    }

    fn unwind(&mut self) {
        if self.tools.sink.durable_lsn().is_some() {
            let partitions = self.partitions.iter_mut();
            partitions.for_each(|partition| partition.store.unwind_unsealed());
        }
    }
}

/// Marks that the last transaction is not in the sealed batch.
struct UnsealedTxn {
    /// Its partition. None: it ran on all partitions that are held.
    single: Option<PartitionId>,
}

impl UnsealedTxn {
    fn is_on(&self, id: PartitionId) -> bool {
        self.single.is_none_or(|single| single == id)
    }
}
