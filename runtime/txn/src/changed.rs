//! Which rows a transaction has changed, and whether a copy that a guest has of one is older than that.
//!
//! A handle is given when its row is read, and handles are numbered in their order. So a handle from behind a row's last change
//! is of a current copy without anything being noted; what else is current is noted here.

use std::collections::BTreeMap;

use reprise_abi::RowHandle;

use crate::rowmap::RowMap;

/// The last change of a row.
#[derive(Clone, Copy, Default)]
struct Change {
    /// Handles that there were then.
    given: u32,
    /// The handle through whose current copy it was made, + 1.
    writer: u32,
    number: u32,
}

#[derive(Default)]
pub(crate) struct ChangedRows {
    rows: RowMap<Change>,
    changes: u32,
    /// Handles whose copies are not from when they were given, by the number of their row's last change then; 0 before any.
    read: BTreeMap<RowHandle, u32>,
}

impl ChangedRows {
    #[inline]
    pub fn clear(&mut self) {
        if self.changes > 0 {
            self.rows.clear();
            self.changes = 0;
            if !self.read.is_empty() {
                self.read.clear();
            }
        }
    }

    /// The copy behind a handle of the row is what the table holds.
    #[inline]
    pub fn is_current(&self, row: u64, handle: RowHandle) -> bool {
        let Some(change) = self.rows.get(row) else {
            return true;
        };
        if !self.read.is_empty()
            && let Some(read) = self.read.get(&handle)
        {
            return *read == change.number;
        }
        handle >= change.given || handle + 1 == change.writer
    }

    /// The row was changed: through the handle of a current copy, which then is one still, or by other means.
    #[inline]
    pub fn note(&mut self, row: u64, given: usize, writer: Option<RowHandle>) {
        self.changes += 1;
        *self.rows.entry(row) = Change {
            given: given as u32,
            writer: writer.map_or(0, |writer| writer + 1),
            number: self.changes,
        };
        if let Some(writer) = writer
            && !self.read.is_empty()
        {
            self.read.remove(&writer);
        }
    }

    /// The row was read again under a handle that it had.
    pub fn read_again(&mut self, row: u64, handle: RowHandle) {
        if !self.is_current(row, handle)
            && let Some(change) = self.rows.get(row)
        {
            self.read.insert(handle, change.number);
        }
    }

    /// The row was shown as it was before it was changed.
    pub fn show_old(&mut self, handle: RowHandle) {
        self.read.insert(handle, 0);
    }
}
