//! Calls that only read, while standbys are missing: they see the rows as they are acknowledged. So a read never waits for a standby that may not come
//! back.

use std::{ops::Range, sync::atomic::Ordering};

use reprise_abi::OpError;
use reprise_base::{Lsn, PartitionId};
use reprise_storage::{Store, StoreAtView};
use reprise_txn::ViewStores;
use reprise_wire::RecordBatch;

use crate::{
    batch::{CallBatch, CallSlot},
    gate::ReadLimit,
    outcome::ReplyOutcome,
    reader::{EndingStores, ReadTerms, run_call},
    sink::{LogRefusal, NewRecords},
    site::{ExclusivePartitions, ExecContext, Partition, REPLAY_FAILED},
    turn::TurnStart,
};

/// Name of the limit that a call reaches: the undo of writes that wait is not kept.
const WAITING_WRITES: &str = "waiting_writes";

/// Returns up to where reads of these partitions show them. None: no standbys are missing, and reads wait for the writes that they show.
#[cold]
pub(crate) fn read_limit(tools: &ExecContext, partitions: &[&mut Partition]) -> Option<ReadLimit> {
    let end = partitions.iter().map(|partition| partition.last_end).max();
    tools.shared.gate.read_limit(end?.min(tools.sink.durable_lsn()?))
}

/// Runs the calls of a batch over the partitions that it touches, if none of them writes or each that would is refused. None: none ran, and its reads
/// wait for the writes that they show.
#[cold]
pub(crate) fn run(
    tools: &mut ExecContext,
    partitions: &mut [&mut Partition],
    batch: &mut CallBatch,
    turn: &TurnStart,
) -> Option<ReadLimit> {
    let limit = read_limit(tools, partitions)?;
    let is_read = |slot: &CallSlot| {
        let module = tools.in_service(slot.module);
        module.is_none_or(|module| module.schema.procedures[slot.procedure as usize].read_only)
    };
    if turn.refusal.is_none() && !batch.calls.iter().all(is_read) {
        return None;
    }
    let deployed = tools.deployed().clone();
    let refusal = turn.refusal.as_ref().unwrap_or(&limit.reason);
    let terms = ReadTerms {
        on_write: refusal.into(),
        time_max_ms: tools.shared.calls.time_max_ms(),
    };
    let parts = partitions.iter_mut().map(|part| (part.id, &mut part.store));
    let mut stores = HeldStores::new(parts, Some(limit.clone()));
    let all = stores.held.clone();
    for slot in 0..batch.calls.len() {
        stores.held = match batch.partition_of(slot) {
            None => all.clone(),
            Some(id) => {
                let at = stores.ids.binary_search(&id);
                let at = at.expect("a call is of a partition that its batch touches");
                at..at + 1
            }
        };
        run_call(tools, &deployed, batch, slot, &mut stores, &terms);
        batch.calls[slot].lsn = Lsn(0); // the call waits for no record of the batch
    }
    Some(limit)
}

impl ExclusivePartitions<'_> {
    /// Calls `then` once everything that these partitions show is durable, at once if no write waits. Calls it with the reason if that will never be.
    pub fn when_durable(&mut self, then: impl FnOnce(Result<(), ReplyOutcome>) + Send + Sync + 'static) {
        if self.tools.shared.replay_failed.load(Ordering::Acquire) {
            return then(Err(ReplyOutcome::LogUnavailable(REPLAY_FAILED.into())));
        }
        let mut waiting = CallBatch::waiting(then);
        if let Some(limit) = self.limit.take() {
            return self.tools.shared.gate.complete(limit.end, Ok(()), waiting);
        }
        waiting.is_table_read = true;
        let (empty, mut partitions) = (RecordBatch::default(), borrow(self.partitions));
        let published = self
            .tools
            .sink
            .publish(NewRecords::Whole(&empty), &mut partitions, waiting);
        if let Err((reason, mut waiting)) = published {
            waiting.refuse(&reason);
            waiting.finish();
        }
    }

    /// Makes a read show acknowledged rows alone while standbys are missing, and returns their limit. None: the read waits for the writes that it
    /// shows.
    pub fn limit_read(&mut self) -> Option<ReadLimit> {
        if self.tools.shared.gate.is_short() {
            self.limit = read_limit(self.tools, &borrow(self.partitions));
        }
        self.limit.clone()
    }
}

/// Borrows all of these.
pub(crate) fn borrow(partitions: &mut [Box<Partition>]) -> Vec<&mut Partition> {
    partitions.iter_mut().map(|part| &mut **part).collect()
}

/// Stores that the caller holds. A read happens at once: at the current rows, or at the acknowledged rows.
pub struct HeldStores<'a> {
    ids: Vec<PartitionId>,
    stores: Vec<&'a mut Store>,
    /// The stores of the call that runs.
    held: Range<usize>,
    limit: Option<ReadLimit>,
    is_refused: bool,
}

impl<'a> HeldStores<'a> {
    /// Stores of partitions, ascending. With a limit, a read shows the rows before the limit, or is refused.
    pub fn new(parts: impl Iterator<Item = (PartitionId, &'a mut Store)>, limit: Option<ReadLimit>) -> Self {
        let (ids, stores): (Vec<_>, Vec<_>) = parts.unzip();
        Self {
            held: 0..ids.len(),
            ids,
            stores,
            limit,
            is_refused: false,
        }
    }

    /// Takes the reason why the last read was refused, if it was.
    pub fn take_refusal(&mut self) -> Option<LogRefusal> {
        let is_refused = std::mem::take(&mut self.is_refused);
        let limit = self.limit.as_ref().filter(|_| is_refused)?;
        Some(limit.reason.clone())
    }
}

impl EndingStores for HeldStores<'_> {
    fn take_end(&mut self) -> Option<ReplyOutcome> {
        self.take_refusal().as_ref().map(ReplyOutcome::from)
    }
}

impl ViewStores for HeldStores<'_> {
    fn partitions(&self) -> &[PartitionId] {
        &self.ids[self.held.clone()]
    }

    fn with_store(&mut self, at: usize, read: &mut dyn FnMut(StoreAtView<'_>)) -> Result<(), OpError> {
        let store = &mut *self.stores[self.held.start + at];
        let Some(limit) = &self.limit else {
            read(store.as_it_is());
            return Ok(());
        };
        match store.as_acknowledged(limit.end.0) {
            Some(tables) => {
                read(tables);
                Ok(())
            }
            None => {
                self.is_refused = true;
                Err(OpError::Limit {
                    limit: WAITING_WRITES,
                    max: limit.end.0,
                })
            }
        }
    }

    fn go_on(&mut self) -> Result<(), OpError> {
        Ok(())
    }
}
