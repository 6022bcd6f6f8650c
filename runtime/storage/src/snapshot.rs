//! Copies all tables as they were at one moment, while transactions run (paper A, section II-C: asynchronous, copy on write). Rows are
//! copied a slice at a time. A row that is about to change is copied first.

use std::sync::Arc;

use reprise_base::{Budget, Grant, MemoryKind};
use reprise_wire::push_checkpoint_row;

use crate::{
    compare::{Digests, TableDigest},
    indirection::Rid,
    keyplan::StoredRow,
    rows::RowHeap,
    store::{Store, TableId},
    watchers::Watchers,
};

/// Number of bytes of rows at which a page is handed out.
const PAGE_BYTES: usize = 256 << 10;
/// Record ids that one slice reads, so that a table of deleted rows does not make a slice long.
const SLICE_RIDS_MAX: u32 = 8_192;

/// Copied rows of one table, in no particular order, as in a checkpoint's block of rows.
#[derive(Debug, Default)]
pub struct SnapshotPage {
    /// The table's number.
    pub table: u16,
    /// Number of the rows.
    pub rows: u32,
    /// Rows in the form of `reprise_wire::CheckpointRows`.
    pub bytes: Vec<u8>,
    /// Its memory, which is counted while the page exists.
    grant: Option<Grant>,
}

/// A table at the moment of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTable {
    /// Number of its rows.
    pub rows: u64,
    /// The number that the next row would have got.
    pub next_number: u64,
}

/// Work that reads the tables of one moment while they keep changing.
#[derive(Default)]
pub(crate) struct Snapshot {
    copies: Option<Copies>,
    digests: Option<Digests>,
}

/// Copies of all rows.
#[derive(Default)]
struct Copies {
    tables: Vec<TableCopy>,
    ready: Vec<SnapshotPage>,
    budget: Option<Arc<Budget>>,
    /// Memory of the marks of copied rows.
    _done: Option<Grant>,
}

/// Progress through the rows of a table.
#[derive(Default)]
pub(crate) struct ScanProgress {
    /// Record ids from here on were given out later.
    limit: u32,
    /// Record ids before it are done.
    cursor: u32,
    /// Bits of record ids that are done although the cursor has not passed them.
    done: Vec<u64>,
}

impl ScanProgress {
    /// Makes the progress with none of the present rows taken.
    pub fn none_of(rows: &RowHeap) -> Self {
        let limit = rows.rids_end();
        Self {
            limit,
            cursor: 0,
            done: vec![0; (limit as usize).div_ceil(64)],
        }
    }

    /// Returns the bytes that mark the rows already copied.
    pub fn done_bytes(&self) -> u64 {
        self.done.len() as u64 * 8
    }

    fn is_done(&self, rid: u32) -> bool {
        self.done[rid as usize / 64] & 1 << (rid % 64) != 0
    }

    /// True if a row that is about to change must still be taken. The caller takes it now.
    fn take_early(&mut self, rid: Rid) -> bool {
        let rid = rid.0;
        if rid < self.cursor || rid >= self.limit || self.is_done(rid) {
            return false;
        }
        self.done[rid as usize / 64] |= 1 << (rid % 64);
        true
    }

    /// Takes rows from the cursor on until `bytes` are used up. True if no row is left.
    pub fn take<'r>(&mut self, rows: &'r RowHeap, bytes: &mut usize, mut take: impl FnMut(StoredRow<'r>)) -> bool {
        let mut looked_at = 0;
        while self.cursor < self.limit {
            if *bytes == 0 || looked_at >= SLICE_RIDS_MAX {
                return false;
            }
            let rid = self.cursor;
            self.cursor += 1;
            looked_at += 1;
            if !self.is_done(rid)
                && let Some(row) = rows.live(Rid(rid))
            {
                *bytes = bytes.saturating_sub(row.row.len() + 16);
                take(row);
            }
        }
        self.done = Vec::new();
        true
    }
}

#[derive(Default)]
struct TableCopy {
    taken: ScanProgress,
    page: SnapshotPage,
}

impl SnapshotPage {
    fn push(&mut self, row: StoredRow<'_>, ready: &mut Vec<SnapshotPage>, budget: Option<&Arc<Budget>>) {
        let added = row.row.len() + 16;
        if self.bytes.is_empty() {
            self.bytes.reserve(PAGE_BYTES.max(added));
            self.grant = budget.map(|budget| budget.take(self.bytes.capacity() as u64));
        }
        push_checkpoint_row(&mut self.bytes, row.row, row.number);
        self.rows += 1;
        if self.bytes.len() + added > PAGE_BYTES {
            self.hand_out(ready);
        }
    }

    fn hand_out(&mut self, ready: &mut Vec<SnapshotPage>) {
        if self.rows > 0 {
            let table = self.table;
            let next = SnapshotPage {
                table,
                ..SnapshotPage::default()
            };
            ready.push(std::mem::replace(self, next));
        }
    }
}

impl TableCopy {
    /// Copies rows from the cursor on until `bytes` are used up. True if no row is left.
    fn copy(
        &mut self,
        rows: &RowHeap,
        bytes: &mut usize,
        ready: &mut Vec<SnapshotPage>,
        budget: Option<&Arc<Budget>>,
    ) -> bool {
        let Self { taken, page } = self;
        let is_over = taken.take(rows, bytes, |row| page.push(row, ready, budget));
        if is_over {
            page.hand_out(ready);
        }
        is_over
    }
}

impl Snapshot {
    /// Takes the state of a row at the moment of the snapshot. The caller does so before the row changes, or after its id was given out.
    pub fn before_change(&mut self, table: TableId, rid: Rid, rows: &RowHeap, is_new: bool) {
        if let Some(Copies {
            tables, ready, budget, ..
        }) = &mut self.copies
            && let Some(copy) = tables.get_mut(table.0 as usize) // else a table of later
            && copy.taken.take_early(rid)
            && let Some(row) = rows.live(rid).filter(|_| !is_new)
        {
            copy.page.push(row, ready, budget.as_ref());
        }
        if let Some(digests) = &mut self.digests
            && let Some(table) = digests.table_mut(table)
            && table.taken.take_early(rid)
            && let Some(row) = rows.live(rid).filter(|_| !is_new)
        {
            table.add(row);
        }
    }
}

/// Returns the snapshot in progress.
fn copied(watchers: &mut Option<Box<Watchers>>) -> Option<&mut Snapshot> {
    watchers.as_deref_mut()?.snapshot.as_mut()
}

impl Store {
    /// Begins a snapshot of the present moment, between two transactions. There can be one at a time.
    pub fn begin_snapshot(&mut self) -> Vec<SnapshotTable> {
        assert!(!self.in_txn(), "a snapshot is taken between transactions");
        self.build_notes();
        let budget = self.snapshot_budget();
        let mut copies = Copies {
            budget,
            ..Copies::default()
        };
        for (number, table) in self.tables.iter().enumerate() {
            copies.tables.push(TableCopy {
                taken: ScanProgress::none_of(&table.rows),
                page: SnapshotPage {
                    table: number as u16,
                    ..SnapshotPage::default()
                },
            });
        }
        let done_bytes: u64 = copies.tables.iter().map(|copy| copy.taken.done_bytes()).sum();
        copies._done = copies.budget.as_ref().map(|budget| budget.take(done_bytes));
        let snapshot = self.watch().snapshot.get_or_insert_default();
        assert!(snapshot.copies.is_none(), "one snapshot at a time");
        snapshot.copies = Some(copies);
        let tables = self.tables.iter().map(|table| SnapshotTable {
            rows: table.rows.count(),
            next_number: table.next_number(),
        });
        tables.collect()
    }

    fn snapshot_budget(&self) -> Option<Arc<Budget>> {
        let memory = self.memory.as_ref();
        memory.map(|memory| Arc::clone(memory.kind(MemoryKind::Snapshots)))
    }

    /// Copies about this many more bytes of rows, between transactions. True if all rows are copied.
    pub fn copy_snapshot(&mut self, mut bytes: usize) -> bool {
        assert!(!self.in_txn(), "rows are copied between transactions");
        let copies = copied(&mut self.watchers).and_then(|snapshot| snapshot.copies.as_mut());
        let Some(Copies {
            tables, ready, budget, ..
        }) = copies
        else {
            return true;
        };
        for (copy, table) in tables.iter_mut().zip(&self.tables) {
            if !copy.copy(&table.rows, &mut bytes, ready, budget.as_ref()) {
                return false;
            }
        }
        true
    }

    /// Returns the pages that are full, or the last of their tables.
    pub fn take_snapshot_pages(&mut self) -> Vec<SnapshotPage> {
        let copies = copied(&mut self.watchers).and_then(|snapshot| snapshot.copies.as_mut());
        copies.map_or_else(Vec::new, |copies| std::mem::take(&mut copies.ready))
    }

    /// Ends the snapshot, whether or not it is complete.
    pub fn end_snapshot(&mut self) {
        self.end_part(|snapshot| drop(snapshot.copies.take()));
    }

    /// Ends one part. Without both, changes pay nothing for them.
    fn end_part(&mut self, end: impl FnOnce(&mut Snapshot)) {
        let Some(watchers) = &mut self.watchers else {
            return;
        };
        if let Some(snapshot) = &mut watchers.snapshot {
            end(snapshot);
        }
        let is_over = |snapshot: &mut Snapshot| snapshot.copies.is_none() && snapshot.digests.is_none();
        watchers.snapshot.take_if(is_over);
        self.forget_idle_watchers();
    }

    /// Begins digests of the present moment, between two transactions. There can be one at a time.
    pub fn begin_digest(&mut self) {
        assert!(!self.in_txn(), "digests are of a moment between transactions");
        self.build_notes();
        let mut digests = Digests::new(&self.tables);
        digests.count_in(self.snapshot_budget().as_ref());
        let snapshot = self.watch().snapshot.get_or_insert_default();
        assert!(snapshot.digests.is_none(), "digests of one moment at a time");
        snapshot.digests = Some(digests);
    }

    /// True while digests are being made.
    pub fn is_digesting(&self) -> bool {
        let snapshot = self.watchers.as_ref().and_then(|watchers| watchers.snapshot.as_ref());
        snapshot.is_some_and(|snapshot| snapshot.digests.is_some())
    }

    /// Reads about this many more bytes of rows for the digests that were begun, between transactions. Once it has read all rows, it ends
    /// the digests and returns them, by table number and without dropped tables.
    pub fn go_on_digest(&mut self, mut bytes: usize) -> Option<Vec<TableDigest>> {
        assert!(!self.in_txn(), "rows are gone over between transactions");
        let digests = copied(&mut self.watchers)?.digests.as_mut()?;
        if !digests.go_on(&self.tables, &mut bytes) {
            return None;
        }
        let mut found = None;
        self.end_part(|snapshot| found = snapshot.digests.take());
        found.map(Digests::into_found)
    }

    /// Ends the digests, whether or not all rows were read.
    pub fn end_digest(&mut self) {
        self.end_part(|snapshot| drop(snapshot.digests.take()));
    }

    /// Takes all rows of a table that is about to be rebuilt, because their ids will name other rows.
    pub(crate) fn finish_snapshot_of(&mut self, id: TableId) {
        let Some(snapshot) = copied(&mut self.watchers) else {
            return;
        };
        let rows = &self.tables[id.0 as usize].rows;
        let mut all = usize::MAX;
        if let Some(Copies {
            tables, ready, budget, ..
        }) = &mut snapshot.copies
            && let Some(copy) = tables.get_mut(id.0 as usize)
        {
            while !copy.copy(rows, &mut all, ready, budget.as_ref()) {}
        }
        if let Some(table) = snapshot.digests.as_mut().and_then(|digests| digests.table_mut(id)) {
            while !table.go_on(rows, &mut all) {}
        }
    }
}
