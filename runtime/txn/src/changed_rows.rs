//! The rows that a transaction has changed, and whether a guest's copy of a row is older than the change.
//!
//! The host gives out handles when it reads rows, numbered in that order. So a handle from after a row's last change has a current copy
//! without any record. This type records the other current copies.

use std::collections::BTreeMap;

use reprise_abi::RowHandle;

use crate::rowmap::RowMap;

/// Bytes that an entry of `ChangedRows::read` takes: an estimate.
const READ_BYTES: usize = 16;

/// The last change of a row.
#[derive(Clone, Copy, Default)]
struct LastChange {
    /// Number of handles at the time of the change.
    given: u32,
    /// The handle whose current copy made the change, plus 1.
    writer: u32,
    number: u32,
}

#[derive(Default)]
pub(crate) struct ChangedRows {
    rows: RowMap<LastChange>,
    changes: u32,
    /// Handles whose copies are newer or older than the handle. The value is the number of their row's last change at that time; 0 before
    /// any.
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

    /// Estimates the memory of the changes once `more` rows were changed.
    pub fn memory_bytes_after(&self, more: usize) -> usize {
        self.rows.memory_bytes_after(more) + self.read.len() * READ_BYTES
    }

    /// True if the copy behind a handle is the row as the table holds it.
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

    /// Records a change of the row. `writer` is the handle of a current copy that made it, and that copy stays current.
    #[inline]
    pub fn record(&mut self, row: u64, given: usize, writer: Option<RowHandle>) {
        self.changes += 1;
        *self.rows.entry(row) = LastChange {
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

    /// Records that the row was read again under a handle that it had.
    pub fn read_again(&mut self, row: u64, handle: RowHandle) {
        if !self.is_current(row, handle)
            && let Some(change) = self.rows.get(row)
        {
            self.read.insert(handle, change.number);
        }
    }

    /// Records that a scan showed the row as it was before a change.
    pub fn show_old(&mut self, handle: RowHandle) {
        self.read.insert(handle, 0);
    }
}
