//! The engine's side of a comparison with standbys: a mark in the log, and digests of what the tables hold there.

use std::sync::Arc;

use crossbeam_channel::Sender;
use reprise_base::Lsn;
use reprise_log::Log;
use reprise_partition::{CallBatch, ExclusivePartitions, Job, NewRecords, Partition, PartitionDigest};
use reprise_wire::{CheckpointMark, RecordBatch, RecordRef};

use crate::{
    checkpoint::CopyError,
    router::{Router, Unavailable},
};

/// Whoever tells the LSN to standbys.
pub trait NamesLsn: Send + Sync {
    /// The mark is about to be written behind it, and nothing else is meanwhile.
    fn begin(&self, filled: Lsn);
    /// The mark is written: what lies before `lsn` is compared. None: it is not.
    fn end(&self, lsn: Option<Lsn>);
}

impl Router {
    /// Marks an LSN in the log, and has the engine threads send digests of what the tables hold there, while they go on. Each partition
    /// sends one, or drops its sender. Nothing is marked on a standby, or while digests of an earlier LSN are made.
    pub fn begin_comparison(&self, to: Sender<PartitionDigest>, names: Arc<dyn NamesLsn>) -> Result<(), CopyError> {
        let Some(log) = self.0.config.log.clone().filter(|_| !self.is_standby()) else {
            return Err(Unavailable("a comparison begins on a primary with a log".into()).into());
        };
        self.run_on_all(move |held| begin_at(held, &log, &to, &*names))?
    }
}

fn begin_at(
    held: &mut ExclusivePartitions<'_>,
    log: &Log<Box<CallBatch>>,
    to: &Sender<PartitionDigest>,
    names: &dyn NamesLsn,
) -> Result<(), CopyError> {
    if held.partitions.iter().any(|partition| partition.is_digesting()) {
        return Err(CopyError::Busy);
    }
    if let Some(reason) = held.tools.sink.refusal() {
        return Err(reason.into());
    }
    let txn_id = held.tools.next_multi_id(held.partitions);
    let record = RecordBatch::of(&RecordRef::Checkpoint(CheckpointMark { txn_id }));
    let mut partitions: Vec<&mut Partition> = held.partitions.iter_mut().map(|part| &mut **part).collect();
    names.begin(log.filled());
    let published = held.tools.sink.publish(
        NewRecords::Whole(&record),
        &mut partitions,
        Box::new(CallBatch::new(None)),
    );
    if let Err((reason, _)) = published {
        names.end(None);
        return Err(CopyError::from(reason));
    }
    // The mark is the last record of every partition.
    names.end(Some(partitions[0].last_end));
    begin_digests(held, to);
    Ok(())
}

/// Of all partitions, which the caller holds.
fn begin_digests(held: &mut ExclusivePartitions<'_>, to: &Sender<PartitionDigest>) {
    let shared = held.tools.shared.clone();
    for partition in &mut *held.partitions {
        partition.begin_digest(&shared, to.clone());
    }
}

/// The same on a standby, for its replay to run at the LSN. A partition that still makes digests of an earlier one drops its sender.
pub fn digests_at_mark(to: Sender<PartitionDigest>) -> Job {
    Box::new(move |held| begin_digests(held, &to))
}
