//! The engine's side of a checkpoint: the moment that is copied.

use std::sync::{Arc, atomic::Ordering};

use crossbeam_channel::Sender;
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_partition::{CallBatch, CopyMessage, ExclusivePartitions, LogRefusal, ModuleBytes, NewRecords, Partition};
use reprise_storage::SnapshotTable;
use reprise_txn::Deployed;
use reprise_wire::{CheckpointMark, RecordBatch, RecordRef};

use crate::router::{Router, Unavailable};

/// The moment that a checkpoint holds: one point in the order of all partitions.
pub struct CopyStart {
    /// LSN of the moment: the checkpoint has everything before it, and nothing from it on.
    pub lsn: Lsn,
    pub txn_id: TxnId,
    pub deployed: Arc<Deployed>,
    /// The bytes of each module version, by `ModuleId`.
    pub binaries: Vec<ModuleBytes>,
    pub multi_tick: u64,
    /// Names of callers, number 1 first.
    pub principals: Vec<Arc<str>>,
    /// Reading of the clock by which idempotency keys age.
    pub key_clock_us: u64,
    /// All partitions, ascending.
    pub partitions: Vec<PartitionStart>,
}

/// One partition at that moment.
pub struct PartitionStart {
    pub id: PartitionId,
    pub last_tick: u64,
    pub last_end: Lsn,
    /// The tables by `TableId`.
    pub tables: Vec<SnapshotTable>,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the engine still copies for the checkpoint before")]
    Busy,
    #[error(transparent)]
    Log(#[from] LogRefusal),
    #[error("{0}")]
    Unavailable(Arc<str>),
}

impl From<Unavailable> for CopyError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable.0)
    }
}

impl Router {
    /// Marks a moment in the log and on all partitions. The engine threads then send the contents of the tables at that moment, and run
    /// other work meanwhile. `on_answered` runs when every earlier call has been answered, or never will be. On a standby the moment is a cut, and
    /// no mark is logged.
    pub fn begin_copy(
        &self,
        to: Sender<CopyMessage>,
        on_answered: Box<dyn FnOnce() + Send + Sync>,
    ) -> Result<CopyStart, CopyError> {
        match self.is_standby() {
            true => self.run_at_cut(move |held, cut| begin_copy_at(held, cut, &to, on_answered))?,
            false => self.run_on_all(move |held| begin_copy(held, &to, on_answered))?,
        }
    }
}

fn begin_copy(
    held: &mut ExclusivePartitions<'_>,
    to: &Sender<CopyMessage>,
    on_answered: Box<dyn FnOnce() + Send + Sync>,
) -> Result<CopyStart, CopyError> {
    check_copy(held)?;
    if let Some(reason) = held.tools.sink.refusal() {
        return Err(reason.into());
    }
    let txn_id = held.tools.next_multi_id(held.partitions);
    let record = RecordBatch::of(&RecordRef::Checkpoint(CheckpointMark {
        txn_id,
        key_clock_us: held.tools.shared.key_clock.now_us(),
    }));
    let mut waiting = Box::new(CallBatch::new(None));
    waiting.done = Some(Box::new(move |_| on_answered()));
    let mut partitions: Vec<&mut Partition> = held.partitions.iter_mut().map(|part| &mut **part).collect();
    let published = held
        .tools
        .sink
        .publish(NewRecords::Whole(&record), &mut partitions, waiting);
    published.map_err(|(reason, _)| CopyError::from(reason))?;
    // The mark is the last record of every partition.
    let lsn = partitions[0].last_end;
    Ok(copy_start(held, lsn, txn_id, to))
}

/// Begins a copy at a cut. The replayed records are durable, and no call before the cut waits for an answer.
fn begin_copy_at(
    held: &mut ExclusivePartitions<'_>,
    cut: Lsn,
    to: &Sender<CopyMessage>,
    on_answered: Box<dyn FnOnce() + Send + Sync>,
) -> Result<CopyStart, CopyError> {
    check_copy(held)?;
    if held.tools.shared.replay_failed.load(Ordering::Acquire) {
        return Err(CopyError::Unavailable(
            "a record of the primary's log could not be replayed".into(),
        ));
    }
    on_answered();
    let txn_id = held.tools.next_multi_id(held.partitions);
    Ok(copy_start(held, cut, txn_id, to))
}

fn check_copy(held: &ExclusivePartitions<'_>) -> Result<(), CopyError> {
    match held.partitions.iter().any(|partition| partition.is_copying()) {
        true => Err(CopyError::Busy),
        false => Ok(()),
    }
}

fn copy_start(held: &mut ExclusivePartitions<'_>, lsn: Lsn, txn_id: TxnId, to: &Sender<CopyMessage>) -> CopyStart {
    let shared = held.tools.shared.clone();
    let partitions = held.partitions.iter_mut().map(|partition| PartitionStart {
        id: partition.id,
        last_tick: partition.clock.last_tick(),
        // A transaction in parts may have begun before a standby's cut, and its first record lies behind.
        last_end: partition.last_end.min(lsn),
        tables: partition.begin_copy(&shared, to.clone()),
    });
    let partitions = partitions.collect();
    let binaries = shared.binaries.lock().expect("held for a short time").clone();
    CopyStart {
        lsn,
        txn_id,
        deployed: held.tools.deployed().clone(),
        binaries,
        multi_tick: txn_id.tick(),
        principals: shared.principals.all(),
        key_clock_us: shared.key_clock.now_us(),
        partitions,
    }
}
