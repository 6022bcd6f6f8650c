//! The engine's side of a comparison with standbys: a mark in the log, and digests of the tables at that mark.

use std::sync::Arc;

use crossbeam_channel::Sender;
use reprise_log::Log;
use reprise_partition::{CallBatch, ExclusivePartitions, Job, NewRecords, Partition, PartitionDigest};
use reprise_ship::Comparisons;
use reprise_wire::{CheckpointMark, RecordBatch, RecordRef};

use crate::{
    checkpoint::CopyError,
    router::{Router, Unavailable},
};

impl Router {
    /// Marks an LSN in the log and names it to standbys. The engine threads then send digests of the tables at that LSN, and run other work
    /// meanwhile. Each partition sends one, or drops its sender. Returns the number of the comparison. Nothing is marked on a standby, or
    /// while the engine threads make digests of an earlier LSN.
    pub fn begin_comparison(
        &self,
        to: Sender<PartitionDigest>,
        comparisons: Arc<Comparisons>,
    ) -> Result<u64, CopyError> {
        let Some(log) = self.0.config.log.clone().filter(|_| !self.is_standby()) else {
            return Err(Unavailable("a comparison begins on a primary with a log".into()).into());
        };
        self.run_on_all(move |held| begin_at(held, &log, &to, &comparisons))?
    }
}

fn begin_at(
    held: &mut ExclusivePartitions<'_>,
    log: &Log<Box<CallBatch>>,
    to: &Sender<PartitionDigest>,
    comparisons: &Comparisons,
) -> Result<u64, CopyError> {
    if held.partitions.iter().any(|partition| partition.is_digesting()) {
        return Err(CopyError::Busy);
    }
    if let Some(reason) = held.tools.sink.refusal() {
        return Err(reason.into());
    }
    let txn_id = held.tools.next_multi_id(held.partitions);
    let record = RecordBatch::of(&RecordRef::Checkpoint(CheckpointMark {
        txn_id,
        key_clock_us: held.tools.shared.key_clock.now_us(),
    }));
    let mut partitions: Vec<&mut Partition> = held.partitions.iter_mut().map(|part| &mut **part).collect();
    comparisons.begin_naming(log.filled());
    let published = held.tools.sink.publish(
        NewRecords::Whole(&record),
        &mut partitions,
        Box::new(CallBatch::new(None)),
    );
    if let Err((reason, _)) = published {
        comparisons.cancel_naming();
        return Err(CopyError::from(reason));
    }
    // The mark is the last record of every partition.
    let number = comparisons.name(partitions[0].last_end);
    begin_digests(held, to);
    Ok(number)
}

/// Begins digests of all partitions, which the caller holds.
fn begin_digests(held: &mut ExclusivePartitions<'_>, to: &Sender<PartitionDigest>) {
    let shared = held.tools.shared.clone();
    for partition in &mut *held.partitions {
        partition.begin_digest(&shared, to.clone());
    }
}

/// Returns the job that a standby's replay runs at the LSN to begin digests. A partition with digests of an earlier LSN drops their sender.
pub fn digests_at_mark(to: Sender<PartitionDigest>) -> Job {
    Box::new(move |held| begin_digests(held, &to))
}
