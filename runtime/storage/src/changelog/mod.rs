//! Changes of the running transaction, for the body of a physiological record (paper A, section III-A).
//!
//! There are two ways to them, with the same bytes. Changes are captured as they are made, if the record will hold them. Row and columns
//! are at hand then, which takes 2 to 2.5 times fewer instructions (`ops one capture 1000`, an example of this crate). If a row was changed
//! twice, or whole rows are wanted, they are merged at the end from undo and live rows. `ChangeLog` chooses.

mod capture;
mod columns;
mod merge;

use reprise_wire::ChangesBuffer;

use crate::{
    journal::{Journal, Undo},
    store::Store,
    table::StoredTable,
};

use capture::Capture;
use merge::ChangeMerge;

pub(crate) use {
    capture::{CapturedRow, ChangeMark, PatchPlan, PatchPlans},
    columns::column_value,
};

/// The form of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AfterImage {
    /// The columns that changed, if they are shorter than the row.
    #[default]
    Changed,
    /// The whole row.
    Whole,
}

/// The undo of the running transaction: its entries, and the row bytes that they kept.
#[derive(Clone, Copy)]
struct UndoLog<'a> {
    ops: &'a [Undo],
    bytes: &'a [u8],
}

/// See the module's header.
#[derive(Default)]
pub(crate) struct ChangeLog {
    capture: Capture,
    merge: ChangeMerge,
}

impl ChangeLog {
    /// True if changes are captured as they are made.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.capture.is_on
    }

    /// Ends the transaction.
    #[inline]
    pub fn end(&mut self) {
        self.capture.is_on = false;
    }

    #[inline]
    pub fn mark(&self) -> ChangeMark {
        self.capture.mark()
    }

    /// Drops the captured changes behind a mark.
    pub fn take_back(&mut self, to: ChangeMark) {
        self.capture.take_back(to);
    }

    // Callers check `is_on`, and call these after the change.

    #[inline(always)]
    pub fn insert(&mut self, table: u16, number: u64, row: &[u8]) {
        self.capture.insert(table, number, row);
    }

    #[inline(always)]
    pub fn delete(&mut self, table: u16, number: u64) {
        self.capture.delete(table, number);
    }

    /// Captures a write of the plan's columns. `now` is the row after it.
    #[inline(always)]
    pub fn columns(&mut self, changed: &CapturedRow<'_>, plan: &PatchPlan, now: &[u8]) {
        self.capture.columns(changed, plan, now);
    }

    /// Captures an addition to an integer column (its position, place and bytes). `now` is the row after it.
    #[inline(always)]
    pub fn sum(&mut self, changed: &CapturedRow<'_>, column: (u16, u32, usize), now: &[u8]) {
        self.capture.sum(changed, column, now);
    }

    /// Captures a write of the whole row.
    #[inline(always)]
    pub fn update(&mut self, changed: &CapturedRow<'_>, before: &[u8], now: &[u8]) {
        self.capture.update(changed, before, now);
    }
}

impl Store {
    /// Captures the changes of the running transaction, which has made none yet, as they are made. `write_set` and `take_changes` then cost
    /// little. If whole rows are wanted, it does nothing.
    #[inline]
    pub fn capture(&mut self, images: AfterImage) {
        let journal = &mut self.journal;
        assert!(
            journal.is_active && journal.ops.len() == journal.txn_start,
            "capture begins with a transaction"
        );
        if images == AfterImage::Changed {
            journal.changes.capture.begin();
        }
    }

    /// Appends the changes of the running transaction to `out` (`reprise_wire::Changes` reads them). Returns the number of rows changed.
    /// `apply` of them makes a store equal to this one, if that store is as this one was when the transaction began.
    pub fn write_set(&mut self, images: AfterImage, out: &mut Vec<u8>) -> u32 {
        assert!(self.journal.is_active, "only a running transaction has changes");
        if let Some((rows, changes)) = self.journal.captured_whole(images) {
            out.extend_from_slice(changes.as_bytes());
            return rows;
        }
        self.journal.merged(&self.tables, images, out)
    }

    /// The `write_set` variant that replaces the contents of `out`.
    #[inline]
    pub fn take_changes(&mut self, images: AfterImage, out: &mut ChangesBuffer) -> u32 {
        if let Some((rows, changes)) = self.journal.captured_whole(images) {
            std::mem::swap(out, changes);
            self.journal.changes.end();
            return rows;
        }
        out.clear();
        out.other(|out| self.write_set(images, out))
    }

    /// Returns the number of captured changes of the running transaction, and their bytes. Only a rollback to a savepoint reduces them.
    /// They are usable if [`Store::is_captured`] says so at the transaction's end.
    #[inline]
    pub fn captured(&self) -> (u32, &[u8]) {
        self.journal.changes.capture.so_far()
    }

    /// True if the captured changes are the running transaction's write set: no row was changed twice.
    pub fn is_captured(&mut self, images: AfterImage) -> bool {
        self.journal.captured_whole(images).is_some()
    }
}

impl Journal {
    /// Returns the captured changes of the running transaction, if they are usable.
    #[inline]
    fn captured_whole(&mut self, images: AfterImage) -> Option<(u32, &mut ChangesBuffer)> {
        match images {
            AfterImage::Changed => self.changes.capture.whole(&self.ops[self.txn_start..]),
            AfterImage::Whole => None,
        }
    }

    /// Appends the changes of any transaction to `out`. Returns the number of rows changed.
    fn merged(&mut self, tables: &[StoredTable], images: AfterImage, out: &mut Vec<u8>) -> u32 {
        let undo = UndoLog {
            ops: &self.ops[self.txn_start..],
            bytes: &self.bytes[self.txn_bytes_start..],
        };
        self.changes.merge.append(tables, undo, images, out)
    }
}
