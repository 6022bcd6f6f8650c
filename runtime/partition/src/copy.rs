//! Copies a partition's tables for a checkpoint. The engine thread copies them in small slices, between its turns.

use std::{collections::VecDeque, sync::atomic::Ordering};

use crossbeam_channel::{Sender, TrySendError};
use reprise_base::PartitionId;
use reprise_storage::{SnapshotPage, SnapshotTable};

use crate::{shared::Shared, site::Partition};

/// Bytes of rows that each slice copies: tens of microseconds.
pub(crate) const SLICE_BYTES: usize = 64 << 10;
/// Divisor of the thread's time that copying takes at most while calls wait.
pub(crate) const BUSY_SHARE: u64 = 24;

/// The messages of an engine thread to the writer of a checkpoint.
#[derive(Debug)]
pub enum CopyMessage {
    /// Some rows.
    Page(PartitionId, SnapshotPage),
    /// All rows of the partition were sent.
    Done(PartitionId),
}

/// The copying of one partition.
pub(crate) struct PartitionCopy {
    to: Sender<CopyMessage>,
    /// Copied pages that the writer has not taken yet.
    waiting: VecDeque<CopyMessage>,
    began_ns: u64,
    spent_ns: u64,
    is_copied: bool,
}

/// The result of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// A slice was copied, and there is more.
    Copied,
    /// No slice can be copied now: the writer's queue is full, or calls go first.
    Later,
    /// Nothing is left to copy, or the receiver is gone.
    Over,
}

impl Partition {
    /// Begins to copy the tables as they are now. The caller holds the partition between two transactions.
    pub fn begin_copy(&mut self, shared: &Shared, to: Sender<CopyMessage>) -> Vec<SnapshotTable> {
        assert!(self.copying.is_none(), "one copy at a time");
        self.copying = Some(PartitionCopy {
            to,
            waiting: VecDeque::new(),
            began_ns: shared.clock.monotonic_ns(),
            spent_ns: 0,
            is_copied: false,
        });
        shared.copying.fetch_add(1, Ordering::Relaxed);
        self.store.begin_snapshot()
    }

    /// True while the partition's rows are being copied.
    pub fn is_copying(&self) -> bool {
        self.copying.is_some()
    }

    /// Copies a slice, if one is under way.
    pub(crate) fn copy_slice(&mut self, shared: &Shared, is_idle: bool) -> Slice {
        let Some(copying) = &mut self.copying else {
            return Slice::Over;
        };
        let begun_ns = shared.clock.monotonic_ns();
        if !is_idle && copying.spent_ns * BUSY_SHARE > begun_ns - copying.began_ns {
            return Slice::Later;
        }
        if copying.waiting.is_empty() && !copying.is_copied {
            copying.is_copied = self.store.copy_snapshot(SLICE_BYTES);
            let pages = self.store.take_snapshot_pages().into_iter();
            copying
                .waiting
                .extend(pages.map(|page| CopyMessage::Page(self.id, page)));
            if copying.is_copied {
                copying.waiting.push_back(CopyMessage::Done(self.id));
            }
        }
        // Rows that change while they are copied may grow faster than the writer takes them. The partition then gives up the checkpoint, so
        // that the process does not run out of memory.
        let slice = match shared.memory.is_over() {
            true => Slice::Over,
            false => copying.send(),
        };
        copying.spent_ns += shared.clock.monotonic_ns() - begun_ns;
        if slice == Slice::Over {
            self.copying = None;
            self.store.end_snapshot();
            shared.copying.fetch_sub(1, Ordering::Relaxed);
        }
        slice
    }
}

impl PartitionCopy {
    fn send(&mut self) -> Slice {
        while let Some(copied) = self.waiting.pop_front() {
            let is_last = matches!(copied, CopyMessage::Done(_));
            match self.to.try_send(copied) {
                Ok(()) if is_last => return Slice::Over,
                Ok(()) => {}
                Err(TrySendError::Full(copied)) => {
                    self.waiting.push_front(copied);
                    return Slice::Later;
                }
                Err(TrySendError::Disconnected(_)) => return Slice::Over,
            }
        }
        Slice::Copied
    }
}
