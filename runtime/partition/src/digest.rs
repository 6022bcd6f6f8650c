//! Makes digests of a partition's tables at one moment. The engine thread reads the rows in small slices, between its turns.

use std::sync::atomic::Ordering;

use crossbeam_channel::Sender;
use reprise_base::PartitionId;
use reprise_storage::TableDigest;

use crate::{
    copy::{BUSY_SHARE, SLICE_BYTES, Slice},
    shared::Shared,
    site::Partition,
};

/// The digests that an engine thread made on one partition.
#[derive(Debug)]
pub struct PartitionDigest {
    /// The partition of the tables.
    pub partition: PartitionId,
    /// The digests by table number, without dropped tables.
    pub tables: Vec<TableDigest>,
}

/// Digests of one partition that are being made. If it is dropped, the receiver gets none.
pub(crate) struct DigestRun {
    to: Sender<PartitionDigest>,
    began_ns: u64,
    spent_ns: u64,
}

impl Partition {
    /// Begins to make digests of the tables as they are now, and sends them when they are complete. The caller holds the partition between
    /// two transactions. False if digests of an earlier moment are still being made: nothing is begun.
    pub fn begin_digest(&mut self, shared: &Shared, to: Sender<PartitionDigest>) -> bool {
        if self.digesting.is_some() {
            return false;
        }
        self.digesting = Some(DigestRun {
            to,
            began_ns: shared.clock.monotonic_ns(),
            spent_ns: 0,
        });
        shared.copying.fetch_add(1, Ordering::Relaxed);
        self.store.begin_digest();
        true
    }

    /// True while digests are being made.
    pub fn is_digesting(&self) -> bool {
        self.digesting.is_some()
    }

    /// Reads a slice of the rows, if digests are being made.
    pub(crate) fn digest_slice(&mut self, shared: &Shared, is_idle: bool) -> Slice {
        if !self.store.is_digesting() {
            self.end_digest(shared); // a rollback changed rows that the digest had read
        }
        let Some(digesting) = &mut self.digesting else {
            return Slice::Over;
        };
        let begun_ns = shared.clock.monotonic_ns();
        if !is_idle && digesting.spent_ns * BUSY_SHARE > begun_ns - digesting.began_ns {
            return Slice::Later;
        }
        let tables = self.store.go_on_digest(SLICE_BYTES);
        digesting.spent_ns += shared.clock.monotonic_ns() - begun_ns;
        let Some(tables) = tables else {
            return Slice::Copied;
        };
        let partition = self.id;
        let _ = digesting.to.send(PartitionDigest { partition, tables }); // the caller may have gone
        self.end_digest(shared);
        Slice::Over
    }

    /// Drops digests that are being made. Their receiver gets none.
    fn end_digest(&mut self, shared: &Shared) {
        if self.digesting.take().is_some() {
            self.store.end_digest();
            shared.copying.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
