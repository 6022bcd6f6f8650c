//! The limits of a transaction's memory: row handles, changed rows, written bytes, and the bytes that cursors keep.

use reprise_abi::OpError;
use reprise_base::limits::{HANDLES_MAX, MEMORY_MAX_LIMIT, MIGRATION_HANDLES_MAX, WRITE_SET_BYTES_MAX};

use super::{AT_ONCE_MAX, Handle, LimitScope, OPS_SLICE, TxnScratch, limit};

/// Rows that a transaction may see or change between two checks whether it may continue.
const ROWS_BETWEEN_CHECKS: usize = AT_ONCE_MAX + OPS_SLICE as usize;
/// Bytes of handles and changed rows that an engine thread may hold without a count, also between two transactions.
const UNCOUNTED_BYTES_MAX: usize = 1 << 20;

impl TxnScratch {
    /// Releases the memory of many handles. The list of changed rows is empty before.
    #[cold]
    pub(super) fn release_row_memory(&mut self) {
        self.handles = Vec::new();
        self.row_memory.release();
    }

    /// Counts the memory that handles and changed rows may take until the next check. They come with counted operations, so they grow little
    /// between two checks.
    pub(super) fn count_row_memory(&mut self) -> Result<(), OpError> {
        let (count, capacity) = (self.handles.len(), self.handles.capacity());
        let handles = match count + ROWS_BETWEEN_CHECKS <= capacity {
            true => capacity,
            false => 2 * capacity,
        };
        let bytes = handles * size_of::<Handle>() + self.changed.memory_bytes_after(ROWS_BETWEEN_CHECKS);
        if bytes <= UNCOUNTED_BYTES_MAX {
            return Ok(());
        }
        let is_limited = !self.is_replay();
        self.row_memory
            .raise(bytes, is_limited)
            .map_err(|max| limit(MEMORY_MAX_LIMIT, max))
    }

    /// Checks the limit of handles before the next one.
    #[cold]
    pub(super) fn check_handles(&self) -> Result<(), OpError> {
        match self.may_have_handles(1) {
            true => Ok(()),
            false => Err(limit("row_handles", self.handles_max() as u64)),
        }
    }

    /// True if `more` handles are within the limit.
    #[cold]
    pub(super) fn may_have_handles(&self, more: usize) -> bool {
        (self.handles.len() + more) as u64 <= self.allowed(self.handles_max() as u64)
    }

    /// Returns the limit of handles by its name in errors. A replay has a multiple of it.
    fn handles_max(&self) -> usize {
        match self.limits {
            LimitScope::Migration => MIGRATION_HANDLES_MAX,
            LimitScope::Call | LimitScope::Replay => HANDLES_MAX,
        }
    }

    /// Checks the bytes that a transaction has written: new rows, undo, and rows that open cursors keep.
    #[inline]
    pub(crate) fn check_written(&self, bytes: usize) -> Result<(), OpError> {
        self.check_write_set(bytes, self.kept.bytes())
    }

    /// Checks written bytes and the bytes that cursors keep. Memory alone limits the bytes that a migration's cursors keep.
    #[inline]
    fn check_write_set(&self, written: usize, kept: usize) -> Result<(), OpError> {
        match written + kept > WRITE_SET_BYTES_MAX {
            false => Ok(()),
            true => self.check_write_set_slow(written, kept),
        }
    }

    #[cold]
    fn check_write_set_slow(&self, written: usize, kept: usize) -> Result<(), OpError> {
        let bytes = match self.limits {
            LimitScope::Migration => written,
            LimitScope::Call | LimitScope::Replay => written + kept,
        };
        match bytes as u64 > self.allowed(WRITE_SET_BYTES_MAX as u64) {
            false => Ok(()),
            true => Err(limit("write_set", WRITE_SET_BYTES_MAX as u64)),
        }
    }

    /// Checks the bytes that a cursor is about to keep, and counts the rows that it passed for them.
    pub(crate) fn check_kept(&mut self, written: usize, kept: usize, rows: usize) -> Result<(), OpError> {
        self.count_walked(rows as u64)?;
        self.count_kept(kept)?;
        self.check_write_set(written, self.kept.bytes() + kept)
    }

    /// Counts the bytes that open cursors keep in the memory's ledger, and `more` bytes that will follow.
    pub(crate) fn count_kept(&mut self, more: usize) -> Result<(), OpError> {
        let is_limited = !self.is_replay();
        self.kept
            .count(more, is_limited)
            .map_err(|max| limit(MEMORY_MAX_LIMIT, max))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use reprise_base::{MemoryKind, MemoryLedger};
    use reprise_storage::{Rid, TableId};

    use super::*;
    use crate::rowmap::row_key;

    /// A scratch in a migration, under a limit of memory that holds.
    fn migrating(memory: &Arc<MemoryLedger>) -> TxnScratch {
        memory.enforce();
        let mut frame = TxnScratch::counted_in(memory);
        frame.begin_migration();
        frame.clear();
        frame
    }

    fn see(frame: &mut TxnScratch, rows: u32) -> Result<(), OpError> {
        (0..rows).try_for_each(|row| {
            frame.count_op()?;
            let (table, store, rid) = (0, 0, Rid(row));
            frame.push_handle(Handle { table, store, rid }).map(drop)
        })
    }

    fn change(frame: &mut TxnScratch, rows: u32) -> Result<(), OpError> {
        (0..rows).try_for_each(|row| {
            frame.count_op()?;
            frame.changed.record(row_key(0, TableId(0), Rid(row)), 0, None);
            Ok(())
        })
    }

    #[test]
    fn handles_and_changed_rows_count_in_the_ledger_until_the_call_ends() {
        let memory = MemoryLedger::new(256 << 20);
        let undo = memory.kind(MemoryKind::Undo);
        let mut frame = migrating(&memory);
        see(&mut frame, 2_000).expect("there is room");
        assert_eq!(undo.used(), 0, "a few handles are not counted");
        see(&mut frame, 1 << 20).expect("there is room");
        let handles_bytes = undo.used();
        assert!(handles_bytes >= 8 << 20, "{handles_bytes}");
        change(&mut frame, 1 << 20).expect("there is room");
        assert!(undo.used() >= handles_bytes + (24 << 20), "{}", undo.used());
        frame.end_call();
        assert_eq!((undo.used(), frame.handles.capacity()), (0, 0));
    }

    #[test]
    fn handles_and_changed_rows_end_a_migration_without_memory_and_no_replay() {
        let max = 4 << 20;
        for fill in [see, change] {
            let memory = MemoryLedger::new(max);
            let mut frame = migrating(&memory);
            assert_eq!(fill(&mut frame, 1 << 20), Err(limit(MEMORY_MAX_LIMIT, max)));
            assert!(memory.used() <= max);
            assert!(frame.handles.capacity() * size_of::<Handle>() <= max as usize);
            frame.end_call();
            assert_eq!(memory.used(), 0);
            frame.begin_replay();
            frame.clear();
            assert_eq!(fill(&mut frame, 1 << 20), Ok(()));
            assert!(memory.is_over());
        }
    }

    #[test]
    fn rows_that_cursors_of_a_migration_keep_are_no_part_of_its_write_set() {
        let mut frame = TxnScratch::default();
        let (kept, refusal) = (WRITE_SET_BYTES_MAX + 1, limit("write_set", WRITE_SET_BYTES_MAX as u64));
        assert_eq!(frame.check_kept(0, kept, 1), Err(refusal.clone()));
        frame.begin_migration();
        assert_eq!(frame.check_kept(0, kept, 1), Ok(()));
        assert_eq!(frame.check_kept(kept, 0, 1), Err(refusal), "undo for a savepoint");
    }
}
