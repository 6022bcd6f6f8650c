//! The engine's side of a checkpoint: the moment that is copied, and who is asked for one.

use std::sync::{Arc, Weak, atomic::Ordering};

use crossbeam_channel::Sender;
use reprise_backup::ArchiveStatus;
use reprise_base::{
    Lsn, PartitionId, TxnId,
    limits::{FORMER_BYTES_MAX, VERSIONS_KEPT_MAX},
};
use reprise_partition::{CallBatch, Copied, ExclusivePartitions, ModuleBytes, NewRecords, Partition, Unlogged};
use reprise_storage::SnapshotTable;
use reprise_txn::{Deployed, Module};
use reprise_wire::{CheckpointMark, RecordBatch, RecordRef};

use crate::router::{Router, Unavailable};

/// The moment that a checkpoint holds: one point in the order of all partitions.
pub struct CopyStart {
    /// Everything before it is in the checkpoint, nothing from it on.
    pub lsn: Lsn,
    pub txn_id: TxnId,
    pub deployed: Arc<Deployed>,
    /// By `ModuleId`.
    pub binaries: Vec<ModuleBytes>,
    pub multi_tick: u64,
    /// Names of callers, number 1 first.
    pub principals: Vec<Arc<str>>,
    /// Idempotency keys age by it.
    pub key_clock_us: u64,
    /// Ascending, all of them.
    pub partitions: Vec<PartitionStart>,
}

/// One partition at that moment.
pub struct PartitionStart {
    pub id: PartitionId,
    pub last_tick: u64,
    pub last_end: Lsn,
    /// By `TableId`.
    pub tables: Vec<SnapshotTable>,
}

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("the engine still copies for the checkpoint before")]
    Busy,
    #[error(transparent)]
    Log(#[from] Unlogged),
    #[error("{0}")]
    Unavailable(Arc<str>),
}

impl From<Unavailable> for CopyError {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable.0)
    }
}

impl Router {
    /// Marks a moment in the log and on all partitions; the engine threads then send what the tables held, while they go on.
    /// `told` runs once every earlier call has been answered, or never will be. On a standby the moment is a cut, and nothing is marked.
    pub fn begin_copy(
        &self,
        to: Sender<Copied>,
        told: Box<dyn FnOnce() + Send + Sync>,
    ) -> Result<CopyStart, CopyError> {
        match self.is_standby() {
            true => self.run_at_cut(move |held, cut| begin_copy_at(held, cut, &to, told))?,
            false => self.run_on_all(move |held| begin_copy(held, &to, told))?,
        }
    }
}

fn begin_copy(
    held: &mut ExclusivePartitions<'_>,
    to: &Sender<Copied>,
    told: Box<dyn FnOnce() + Send + Sync>,
) -> Result<CopyStart, CopyError> {
    judge_copy(held)?;
    if let Some(reason) = held.tools.sink.refusal() {
        return Err(reason.into());
    }
    let txn_id = held.tools.next_multi_id(held.partitions);
    let record = RecordBatch::of(&RecordRef::Checkpoint(CheckpointMark {
        txn_id,
        key_clock_us: held.tools.shared.key_clock.now_us(),
    }));
    let mut waiting = Box::new(CallBatch::new(None));
    waiting.done = Some(Box::new(move |_| told()));
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

/// What was replayed is durable, and no call before it waits for an answer.
fn begin_copy_at(
    held: &mut ExclusivePartitions<'_>,
    cut: Lsn,
    to: &Sender<Copied>,
    told: Box<dyn FnOnce() + Send + Sync>,
) -> Result<CopyStart, CopyError> {
    judge_copy(held)?;
    if held.tools.shared.replay_failed.load(Ordering::Acquire) {
        return Err(CopyError::Unavailable(
            "a record of the primary's log could not be replayed".into(),
        ));
    }
    told();
    let txn_id = held.tools.next_multi_id(held.partitions);
    Ok(copy_start(held, cut, txn_id, to))
}

fn judge_copy(held: &ExclusivePartitions<'_>) -> Result<(), CopyError> {
    match held.partitions.iter().any(|partition| partition.is_copying()) {
        true => Err(CopyError::Busy),
        false => Ok(()),
    }
}

fn copy_start(held: &mut ExclusivePartitions<'_>, lsn: Lsn, txn_id: TxnId, to: &Sender<Copied>) -> CopyStart {
    let shared = held.tools.shared.clone();
    let partitions = held.partitions.iter_mut().map(|partition| PartitionStart {
        id: partition.id,
        last_tick: partition.clock.last_tick(),
        last_end: partition.last_end,
        tables: partition.begin_copy(&shared, to.clone()),
    });
    let partitions = partitions.collect();
    let binaries = shared.binaries.lock().expect("held for a look").clone();
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointState {
    /// Rows are copied and written.
    Running,
    /// Durable, and used by the next start.
    Published,
    /// Nothing of it was kept.
    Failed,
}

/// A checkpoint, or one on its way.
#[derive(Clone, Debug)]
pub struct CheckpointInfo {
    /// It holds what the log holds before this position; its id.
    pub lsn: Lsn,
    pub state: CheckpointState,
    pub began_unix_us: i64,
    /// From its beginning until it was published or given up, or until now. None for one of an earlier run.
    pub seconds: Option<f64>,
    /// Written so far.
    pub rows: u64,
    pub rows_total: u64,
    /// Of rows, before compression.
    pub row_bytes: u64,
    pub file_bytes: u64,
    pub file: String,
    /// Why it failed, or why it can't be read.
    pub error: Option<String>,
}

/// Time that a restart would take now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RestartEstimate {
    /// Of rows in the newest checkpoint.
    pub load_bytes: u64,
    /// None until an opening has loaded about as much.
    pub load_seconds: Option<f64>,
    /// Of log behind the newest checkpoint.
    pub replay_bytes: u64,
    /// None on a standby until an opening has replayed about as much.
    pub replay_seconds: Option<f64>,
    /// Of log that is kept, all of which is checked.
    pub check_bytes: u64,
    /// None until an opening has checked about as much. It is little then, and counts as nothing.
    pub check_seconds: Option<f64>,
    /// The rest of this run's opening: files, threads, modules. None until the opening is over.
    pub other_seconds: Option<f64>,
    /// A checkpoint is begun when a restart would take longer.
    pub target_seconds: Option<f64>,
}

impl RestartEstimate {
    /// Returns the time of all parts, and `None` while loading, replay or the rest is not known.
    pub fn seconds(&self) -> Option<f64> {
        let parts = [self.load_seconds, self.replay_seconds, self.other_seconds];
        parts.iter().all(Option::is_some).then(|| self.known_seconds())
    }

    /// Returns the time of the parts that are known.
    pub fn known_seconds(&self) -> f64 {
        let parts = [
            self.load_seconds,
            self.replay_seconds,
            self.check_seconds,
            self.other_seconds,
        ];
        parts.into_iter().flatten().sum()
    }
}

/// A checkpoint that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFailure {
    pub at_unix_us: i64,
    pub error: String,
}

#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error("this node keeps no log, and so no checkpoints")]
    NoLog,
    #[error(transparent)]
    Begin(#[from] CopyError),
    #[error("{0}")]
    Failed(String),
}

/// Why the bytes of a module version are not at hand.
#[derive(Debug, thiserror::Error)]
pub enum BytesError {
    #[error("this node keeps no log, and so no bytes of former versions")]
    NoLog,
    /// The version is too old.
    #[error(
        "they are not kept: of each module the last {versions} versions with different bytes are, and of those out of service \
         {mib} MiB in all",
        versions = VERSIONS_KEPT_MAX,
        mib = FORMER_BYTES_MAX >> 20
    )]
    NotKept,
    #[error("they can't be read: {0}")]
    Unreadable(String),
}

/// Whoever takes checkpoints.
pub trait CheckpointService: Send + Sync {
    /// Begins a checkpoint and returns at once; where one is under way, that one.
    fn take(&self) -> Result<CheckpointInfo, TakeError>;
    /// The newest first: the one under way, those published, then those that failed in this run.
    fn list(&self) -> Vec<CheckpointInfo>;
    /// Position of the newest published one.
    fn newest(&self) -> Option<Lsn>;
    /// What a restart would take now.
    fn restart(&self) -> RestartEstimate;
    /// How the last one that failed did so, whoever asked for it.
    fn last_failure(&self) -> Option<CheckpointFailure>;
    /// Published and failed in this run.
    fn counts(&self) -> (u64, u64);
    /// None without an archive.
    fn archive(&self) -> Option<ArchiveStatus>;
    /// Reads the bytes of a module version from where they are kept.
    fn module_bytes(&self, module: &Module) -> Result<Vec<u8>, BytesError>;
}

impl Router {
    /// Wires the service that takes checkpoints. Once. It lives with the database.
    pub fn set_checkpoints(&self, service: Weak<dyn CheckpointService>) {
        let is_first = self.0.checkpoints.set(service).is_ok();
        assert!(is_first, "one service takes checkpoints");
    }

    pub fn take_checkpoint(&self) -> Result<CheckpointInfo, TakeError> {
        let service = self.0.checkpoints.get().and_then(Weak::upgrade);
        service.ok_or(TakeError::NoLog)?.take()
    }

    /// Reads the bytes of a module version, in service or not, from the log or a checkpoint.
    pub fn module_bytes(&self, module: &Module) -> Result<Vec<u8>, BytesError> {
        let service = self.0.checkpoints.get().and_then(Weak::upgrade);
        service.ok_or(BytesError::NoLog)?.module_bytes(module)
    }

    pub fn checkpoints(&self) -> Vec<CheckpointInfo> {
        let service = self.0.checkpoints.get().and_then(Weak::upgrade);
        service.map_or_else(Vec::new, |service| service.list())
    }
}
