//! A copy of all tables as they were at one moment, made while transactions go on (paper A, section II-C: asynchronous,
//! copy on write): rows are copied a slice at a time, and one that is about to change is copied first.

use std::sync::Arc;

use reprise_base::{Budget, Grant, MemoryKind};
use reprise_wire::push_checkpoint_row;

use crate::{
    indirection::Rid,
    rows::Rows,
    store::{Store, TableId},
};

/// Bytes of rows after which a page is handed out.
const PAGE_BYTES: usize = 256 << 10;
/// Record ids looked at in one slice, so that a table of deleted rows does not make a slice long.
const SLICE_RIDS_MAX: u32 = 8_192;

/// Copied rows of one table, in no order that means anything: as in a checkpoint's block of rows.
#[derive(Debug, Default)]
pub struct SnapshotPage {
    pub table: u16,
    pub rows: u32,
    pub bytes: Vec<u8>,
    /// Its memory, counted as long as the page is there.
    grant: Option<Grant>,
}

/// A table at the moment of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTable {
    pub rows: u64,
    /// The number that the next row would have got.
    pub next_number: u64,
}

#[derive(Default)]
pub(crate) struct Snapshot {
    tables: Vec<TableCopy>,
    ready: Vec<SnapshotPage>,
    budget: Option<Arc<Budget>>,
    /// What tells which rows are done.
    _done: Option<Grant>,
}

#[derive(Default)]
struct TableCopy {
    /// Record ids from here on were given out later.
    limit: u32,
    /// Record ids before it are done.
    cursor: u32,
    /// Bits of record ids that are done although the cursor has not passed them.
    done: Vec<u64>,
    page: SnapshotPage,
}

impl TableCopy {
    fn is_done(&self, rid: u32) -> bool {
        self.done[rid as usize / 64] & 1 << (rid % 64) != 0
    }

    fn push(&mut self, rows: &Rows, rid: Rid, ready: &mut Vec<SnapshotPage>, budget: Option<&Arc<Budget>>) {
        let row = rows.at(rid);
        let added = row.row.len() + 16;
        if self.page.bytes.is_empty() {
            self.page.bytes.reserve(PAGE_BYTES.max(added));
            self.page.grant = budget.map(|budget| budget.take(self.page.bytes.capacity() as u64));
        }
        push_checkpoint_row(&mut self.page.bytes, row.row, Some(row.number));
        self.page.rows += 1;
        if self.page.bytes.len() + added > PAGE_BYTES {
            self.hand_out(ready);
        }
    }

    fn hand_out(&mut self, ready: &mut Vec<SnapshotPage>) {
        if self.page.rows > 0 {
            let table = self.page.table;
            let next = SnapshotPage {
                table,
                ..SnapshotPage::default()
            };
            ready.push(std::mem::replace(&mut self.page, next));
        }
    }

    /// Copies rows from the cursor on until so many bytes are copied. True when none is left.
    fn copy(
        &mut self,
        rows: &Rows,
        bytes: &mut usize,
        ready: &mut Vec<SnapshotPage>,
        budget: Option<&Arc<Budget>>,
    ) -> bool {
        let mut looked_at = 0;
        while self.cursor < self.limit {
            if *bytes == 0 || looked_at >= SLICE_RIDS_MAX {
                return false;
            }
            let rid = self.cursor;
            self.cursor += 1;
            looked_at += 1;
            if !self.is_done(rid) && rows.place(Rid(rid)).is_some() {
                *bytes = bytes.saturating_sub(rows.at(Rid(rid)).row.len() + 16);
                self.push(rows, Rid(rid), ready, budget);
            }
        }
        self.hand_out(ready);
        self.done = Vec::new();
        true
    }
}

impl Snapshot {
    /// The row is about to change, or its id has just been given out: what it was at the moment is copied now.
    pub fn before_change(&mut self, table: TableId, rid: Rid, rows: &Rows, is_new: bool) {
        let Some(copy) = self.tables.get_mut(table.0 as usize) else {
            return; // a table of later
        };
        if rid.0 < copy.cursor || rid.0 >= copy.limit || copy.is_done(rid.0) {
            return;
        }
        if !is_new && rows.place(rid).is_some() {
            copy.push(rows, rid, &mut self.ready, self.budget.as_ref());
        }
        copy.done[rid.0 as usize / 64] |= 1 << (rid.0 % 64);
    }
}

impl Store {
    /// Takes this moment, between two transactions, as the one that is copied. One snapshot at a time.
    pub fn begin_snapshot(&mut self) -> Vec<SnapshotTable> {
        assert!(!self.in_txn(), "a snapshot is taken between transactions");
        let mut snapshot = Snapshot::default();
        for (number, table) in self.tables.iter().enumerate() {
            let limit = table.rows.rids_end();
            snapshot.tables.push(TableCopy {
                limit,
                cursor: 0,
                done: vec![0; (limit as usize).div_ceil(64)],
                page: SnapshotPage {
                    table: number as u16,
                    ..SnapshotPage::default()
                },
            });
        }
        assert!(self.snapshot().is_none(), "one snapshot at a time");
        let done_words: usize = snapshot.tables.iter().map(|copy| copy.done.len()).sum();
        snapshot.budget = self
            .memory
            .as_ref()
            .map(|memory| Arc::clone(memory.kind(MemoryKind::Snapshots)));
        snapshot._done = snapshot
            .budget
            .as_ref()
            .map(|budget| budget.take(done_words as u64 * 8));
        self.watch().snapshot = Some(snapshot);
        let tables = self.tables.iter().map(|table| SnapshotTable {
            rows: table.rows.count(),
            next_number: table.next_number(),
        });
        tables.collect()
    }

    /// Copies about so many bytes of rows more. True when all are copied. Between transactions.
    pub fn copy_snapshot(&mut self, mut bytes: usize) -> bool {
        assert!(!self.in_txn(), "rows are copied between transactions");
        let watchers = self.watchers.as_deref_mut();
        let Some(snapshot) = watchers.and_then(|watchers| watchers.snapshot.as_mut()) else {
            return true;
        };
        let Snapshot {
            tables, ready, budget, ..
        } = snapshot;
        for (copy, table) in tables.iter_mut().zip(&self.tables) {
            if !copy.copy(&table.rows, &mut bytes, ready, budget.as_ref()) {
                return false;
            }
        }
        true
    }

    /// Takes the pages that are full, or the last of their tables.
    pub fn take_snapshot_pages(&mut self) -> Vec<SnapshotPage> {
        let watchers = self.watchers.as_deref_mut();
        let snapshot = watchers.and_then(|watchers| watchers.snapshot.as_mut());
        snapshot.map_or_else(Vec::new, |snapshot| std::mem::take(&mut snapshot.ready))
    }

    /// Ends the snapshot, whether or not it was copied.
    pub fn end_snapshot(&mut self) {
        if let Some(watchers) = &mut self.watchers {
            watchers.snapshot = None;
        }
        self.forget_idle_watchers();
    }

    fn snapshot(&self) -> Option<&Snapshot> {
        self.watchers.as_ref()?.snapshot.as_ref()
    }

    /// All rows of a table that is about to be rebuilt are copied at once: their ids will name others.
    pub(crate) fn finish_snapshot_of(&mut self, id: TableId) {
        let watchers = self.watchers.as_deref_mut();
        let Some(snapshot) = watchers.and_then(|watchers| watchers.snapshot.as_mut()) else {
            return;
        };
        let Snapshot {
            tables, ready, budget, ..
        } = snapshot;
        if let Some(copy) = tables.get_mut(id.0 as usize) {
            let rows = &self.tables[id.0 as usize].rows;
            let mut all = usize::MAX;
            while !copy.copy(rows, &mut all, ready, budget.as_ref()) {}
        }
    }
}
