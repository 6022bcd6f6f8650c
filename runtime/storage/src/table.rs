//! One table: rows, indexes, and each change with its undo.

use std::sync::Arc;

use reprise_abi::{
    ColumnSet, IndexKind, Plans, RowError, RowLayout, ScalarType, TableSchema,
    copy::copy_first,
    row::{ColumnSlot, ROW_BYTES_MAX},
};
use reprise_base::{Budget, MemoryKind, MemoryLedger};
use reprise_pages::drop_aside;

use crate::{
    arena::Location,
    changelog::{CapturedRow, PatchPlans},
    compare::digest_of,
    digest::fold,
    index::{Index, KeyRefusal},
    indirection::Rid,
    journal::{DigestChange, Journal, Undo, UndoKind},
    keyplan::{KeyPlan, KeyScratch, StoredRow},
    rows::{RowHeap, split_stored},
};

/// Why a change was refused. The tables are unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum WriteError {
    #[error("another row has this key in index {index}")]
    Duplicate { index: u16 },
    #[error("{0}")]
    Malformed(RowError),
    #[error("the key in index {index} is longer than {max} bytes", max = reprise_abi::key::KEY_BYTES_MAX)]
    KeyTooLong { index: u16 },
    #[error("the row does not exist")]
    NotLive,
    #[error("column {column} {problem}")]
    BadColumn { column: u16, problem: ColumnProblem },
    #[error("the sum does not fit the column")]
    Overflow,
    #[error("the table holds as many rows as it can")]
    Full,
    #[error("the data would pass the limit of memory")]
    NoMemory { max: u64 },
}

/// Why a column can't be added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum ColumnProblem {
    #[error("does not exist")]
    Missing,
    #[error("is no integer")]
    NotInteger,
    #[error("is part of a key or an index")]
    Indexed,
    #[error("is null")]
    Null,
}

/// Sizes of a table: functions of its rows, the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TableStats {
    /// Number of its rows.
    pub rows: u64,
    /// Rows with rounding and their slot of the indirection array.
    pub row_bytes: u64,
    /// Index entries at the usual fill of their nodes.
    pub index_bytes: u64,
}

pub(crate) struct StoredTable {
    pub schema: TableSchema,
    pub layout: RowLayout,
    pub rows: RowHeap,
    /// The indexes, that of the primary key (or the number) first.
    pub indexes: Vec<Index>,
    /// The facts of each column.
    summed: Vec<AddableColumn>,
    /// Columns that `patch` writes in place, because no index and no length depends on them. It is a `ColumnSet`.
    pub plain_columns: u64,
    /// Plans of patched columns.
    pub plans: Plans,
    /// Plans of patches in write sets.
    pub logged_patches: PatchPlans,
    /// The number of the next row.
    next_number: u64,
    /// The ledger that counts the memory.
    memory: Option<Arc<MemoryLedger>>,
}

/// Memory that a table keeps when its last row is deleted. Otherwise a table that is filled and emptied all the time would request it each
/// time.
const EMPTIED_BYTES_MIN: usize = 4 << 20;

/// Facts about a column that an addition to it needs.
#[derive(Clone, Copy)]
struct AddableColumn {
    /// Why nothing can be added to it, whatever its values are.
    problem: Option<ColumnProblem>,
    is_nullable: bool,
    ty: ScalarType,
    width: u8,
    offset: u32,
}

impl AddableColumn {
    fn new(slot: &ColumnSlot, is_indexed: bool) -> Self {
        let problem = match (is_indexed, slot.ty.is_integer()) {
            (true, _) => Some(ColumnProblem::Indexed),
            (false, false) => Some(ColumnProblem::NotInteger),
            (false, true) => None,
        };
        Self {
            problem,
            is_nullable: slot.is_nullable(),
            ty: slot.ty,
            width: slot.ty.slot_bytes() as u8,
            offset: slot.offset,
        }
    }
}

#[cold]
fn too_long(bytes: usize) -> WriteError {
    WriteError::Malformed(RowError::Length {
        expected: ROW_BYTES_MAX,
        found: bytes,
    })
}

/// True if rows are named by their number, because they have no primary key.
#[inline]
pub(crate) fn has_number(schema: &TableSchema) -> bool {
    schema.primary_key.is_empty()
}

/// Makes the empty indexes of a schema: all that its rows need.
pub(crate) fn make_indexes(schema: &TableSchema, layout: &RowLayout) -> Vec<Index> {
    let numbered = has_number(schema);
    let key = &schema.primary_key;
    let kind = if numbered {
        IndexKind::Ordered
    } else {
        schema.primary_kind
    };
    let primary = Index::new(KeyPlan::new(layout, key, &[], numbered), true, kind);
    let secondary = schema.indexes.iter().map(|index| {
        let plan = if index.unique {
            KeyPlan::new(layout, &index.columns, &[], false)
        } else {
            KeyPlan::new(layout, &index.columns, key, numbered)
        };
        Index::new(plan, index.unique, IndexKind::Ordered)
    });
    std::iter::once(primary).chain(secondary).collect()
}

impl StoredTable {
    pub fn new(schema: TableSchema) -> Self {
        let layout = RowLayout::of_table(&schema);
        let indexes = make_indexes(&schema, &layout);
        let rows = RowHeap::new(!has_number(&schema));
        Self::from_parts(schema, layout, rows, indexes, 0)
    }

    pub fn from_parts(
        schema: TableSchema,
        layout: RowLayout,
        rows: RowHeap,
        indexes: Vec<Index>,
        next_number: u64,
    ) -> Self {
        let columns = 0..schema.columns.len() as u16;
        let indexed = columns
            .map(|c| indexes.iter().any(|index| index.plan.holds(c)))
            .collect::<Vec<bool>>();
        let is_plain = |at: usize| {
            let slot = &layout.columns[at];
            !indexed[at] && !slot.ty.is_variable()
        };
        let first = 0..indexed.len().min(64);
        let plain_columns = first.filter(|at| is_plain(*at)).fold(0, |set, at| set | 1 << at);
        let columns = layout.columns.iter().zip(&indexed);
        let summed = columns
            .map(|(slot, indexed)| AddableColumn::new(slot, *indexed))
            .collect();
        Self {
            plain_columns,
            plans: Plans::default(),
            logged_patches: PatchPlans::default(),
            schema,
            layout,
            rows,
            indexes,
            summed,
            next_number,
            memory: None,
        }
    }

    #[inline]
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    #[inline]
    pub fn has_number(&self) -> bool {
        has_number(&self.schema)
    }

    #[inline(always)]
    pub fn validate(&self, row: &[u8]) -> Result<(), WriteError> {
        if row.len() > ROW_BYTES_MAX {
            return Err(too_long(row.len()));
        }
        self.layout.validate(row).map_err(WriteError::Malformed)
    }

    #[inline]
    pub fn insert(&mut self, id: u16, row: &[u8], journal: &mut Journal) -> Result<Rid, WriteError> {
        self.validate(row)?;
        if self.rows.is_full() {
            return Err(WriteError::Full);
        }
        let row = StoredRow {
            row,
            number: self.next_number,
        };
        self.make_memory(row, &mut journal.scratch)?;
        let rid = self.rows.next_rid();
        self.link(rid, row, &mut journal.scratch)?;
        let taken = self.rows.insert(row);
        debug_assert!(taken == rid);
        journal.fold(id, DigestChange::Insert, 0, row.row);
        self.next_number += 1;
        if self.has_number() {
            journal.fold(id, DigestChange::Number, 0, &row.number.to_le_bytes());
        }
        journal.count(row.row.len());
        if journal.changes.is_on() {
            journal.changes.insert(id, row.number, row.row);
        }
        journal.record(id, rid, UndoKind::Insert, Location(0));
        Ok(rid)
    }

    /// Counts its memory in `memory` from now on.
    pub fn count_in(&mut self, memory: &Arc<MemoryLedger>) {
        self.rows.count_in(memory.kind(MemoryKind::Rows));
        for index in &mut self.indexes {
            index.count_in(memory.kind(MemoryKind::Indexes));
        }
        self.memory = Some(Arc::clone(memory));
    }

    /// Releases memory in which nothing of the table is left. No removed row may come back.
    #[inline]
    pub fn give_back(&mut self) {
        if self.rows.has_whole() {
            self.rows.give_back();
        }
        let whole = self.indexes.iter_mut().filter(|index| index.has_whole());
        whole.for_each(Index::give_back);
        if self.rows.is_unused() {
            self.release_if_large();
        }
    }

    /// Releases the memory of a table without rows, if it is much. The count falls at once. The memory itself returns a little later,
    /// because that takes the kernel long. A snapshot in progress has already copied each row that it needs.
    pub fn release_if_emptied(&mut self) {
        if self.rows.is_unused() {
            self.release_if_large();
        }
    }

    #[cold]
    fn release_if_large(&mut self) {
        if self.memory_bytes() >= EMPTIED_BYTES_MIN {
            self.release_memory();
        }
    }

    #[cold]
    fn release_memory(&mut self) {
        let fresh = self.rows.fresh();
        let mut rows = std::mem::replace(&mut self.rows, fresh);
        let mut indexes = std::mem::replace(&mut self.indexes, make_indexes(&self.schema, &self.layout));
        if let Some(memory) = self.memory.take() {
            let nobodys = Budget::new(u64::MAX);
            rows.count_in(&nobodys);
            indexes.iter_mut().for_each(|index| index.count_in(&nobodys));
            self.count_in(&memory);
        }
        drop_aside((rows, indexes));
    }

    #[cold]
    fn no_memory(&self) -> WriteError {
        let max = self.memory.as_ref().map_or(u64::MAX, |memory| memory.max_bytes());
        WriteError::NoMemory { max }
    }

    /// Takes memory for a new row before any part of it is inserted, so that no later step is refused for it.
    #[inline(always)]
    fn make_memory(&mut self, row: StoredRow<'_>, scratch: &mut KeyScratch) -> Result<(), WriteError> {
        let is_there = self.rows.has_memory(row.row.len()) && self.indexes.iter().all(|index| index.has_memory(1));
        match is_there {
            true => Ok(()),
            false => self.find_memory(row, scratch),
        }
    }

    #[cold]
    fn find_memory(&mut self, row: StoredRow<'_>, scratch: &mut KeyScratch) -> Result<(), WriteError> {
        let layout = &self.layout;
        let mut indexes = self.indexes.iter_mut();
        let is_there = self.rows.make_memory(row.row.len())
            && indexes.all(|index| index.has_memory(1) || index.make_memory(layout, row, scratch));
        is_there.then_some(()).ok_or_else(|| self.no_memory())
    }

    /// The `make_memory` variant for a row that changes.
    #[inline(never)]
    fn make_memory_to_relink(&mut self, new: StoredRow<'_>, scratch: &mut KeyScratch) -> Result<(), WriteError> {
        let layout = &self.layout;
        let mut indexes = self.indexes.iter_mut();
        let is_there = indexes.all(|index| index.has_memory(1) || index.make_memory(layout, new, scratch));
        is_there.then_some(()).ok_or_else(|| self.no_memory())
    }

    /// Inserts a row beside all others, without a transaction and without undo.
    pub fn load(&mut self, row: &[u8], number: u64, scratch: &mut KeyScratch) -> Result<(), WriteError> {
        self.validate(row)?;
        if self.rows.is_full() {
            return Err(WriteError::Full);
        }
        let row = StoredRow { row, number };
        let rid = self.rows.next_rid();
        self.link(rid, row, scratch)?;
        let taken = self.rows.insert(row);
        debug_assert!(taken == rid);
        self.record_number(number);
        Ok(())
    }

    /// Records that a row has this number, so that later rows get others.
    #[inline]
    pub fn record_number(&mut self, number: u64) {
        self.next_number = self.next_number.max(number.saturating_add(1));
    }

    /// Raises the next number. False if it would fall.
    pub fn raise_next_number(&mut self, number: u64) -> bool {
        let is_raised = number >= self.next_number;
        self.next_number = self.next_number.max(number);
        is_raised
    }

    /// Puts the row in all indexes, or in none.
    #[inline(always)]
    fn link(&mut self, rid: Rid, row: StoredRow<'_>, scratch: &mut KeyScratch) -> Result<(), WriteError> {
        // Most tables that grow fast have one index, and take one step.
        if let [index] = &mut self.indexes[..]
            && index.has_tags()
        {
            let tag = index.tag_of_row(row);
            let linked = index.insert_tagged(&self.rows, row, rid, tag);
            return linked.map_err(|refused| write_error(refused, 0));
        }
        self.link_all(rid, row, scratch)
    }

    #[inline(never)]
    fn link_all(&mut self, rid: Rid, row: StoredRow<'_>, scratch: &mut KeyScratch) -> Result<(), WriteError> {
        // The entries of later indexes are prefetched while the first is written.
        self.indexes[1..].iter().for_each(|index| index.touch_entry_of(row));
        for at in 0..self.indexes.len() {
            let index = &mut self.indexes[at];
            if let Err(refused) = index.insert(&self.rows, &self.layout, row, rid, scratch) {
                unlink(&mut self.indexes[..at], &self.layout, rid, row, scratch);
                return Err(write_error(refused, at));
            }
        }
        Ok(())
    }

    pub fn delete(&mut self, id: u16, rid: Rid, journal: &mut Journal) -> Result<(), WriteError> {
        let place = self.rows.place(rid).ok_or(WriteError::NotLive)?;
        let row = self.rows.read(place);
        fold_key(&self.indexes, &self.layout, row, (id, DigestChange::Delete, 0), journal);
        if journal.changes.is_on() {
            journal.changes.delete(id, row.number);
        }
        unlink(&mut self.indexes, &self.layout, rid, row, &mut journal.scratch);
        journal.count(0);
        self.rows.bury(rid);
        journal.record(id, rid, UndoKind::Delete, place);
        Ok(())
    }

    #[inline]
    pub fn update(&mut self, id: u16, rid: Rid, row: &[u8], journal: &mut Journal) -> Result<(), WriteError> {
        let place = self.rows.place(rid).ok_or(WriteError::NotLive)?;
        self.validate(row)?;
        let old = self.rows.read(place);
        let new = StoredRow {
            row,
            number: old.number,
        };
        let is_relinked = self.check_relink(old, new, &mut journal.scratch)?;
        if is_relinked {
            self.make_memory_to_relink(new, &mut journal.scratch)?;
        }
        if self.rows.resized(place, row.len()).is_none() && !self.rows.make_memory_to_move(row.len()) {
            return Err(self.no_memory());
        }
        let old = self.rows.read(place);
        if is_relinked {
            if !self.indexes[0].plan.is_same(old.row, row) {
                fold_key(&self.indexes, &self.layout, old, (id, DigestChange::Rekey, 0), journal);
            }
            relink(
                &mut self.indexes,
                &self.layout,
                &self.rows,
                rid,
                old,
                new,
                &mut journal.scratch,
            );
        }
        journal.fold(id, DigestChange::Update, 0, row);
        if self.has_number() {
            journal.fold(id, DigestChange::Number, 0, &new.number.to_le_bytes());
        }
        journal.count(row.len());
        if journal.changes.is_on() {
            let changed = CapturedRow::new(id, &self.layout, old.number);
            journal.changes.update(&changed, old.row, row);
        }
        match self.rows.resized(place, row.len()) {
            Some(to) => {
                journal.bytes.extend_from_slice(self.rows.stored(place));
                journal.record(id, rid, UndoKind::Patch, place);
                self.overwrite(rid, place, to, new);
            }
            None => {
                let to = self.rows.store(new);
                self.rows.redirect(rid, to);
                journal.record(id, rid, UndoKind::Move, place);
            }
        }
        Ok(())
    }

    /// Returns true if an index must follow the change. Err: an index can't follow it.
    pub fn check_relink(
        &self,
        old: StoredRow<'_>,
        new: StoredRow<'_>,
        scratch: &mut KeyScratch,
    ) -> Result<bool, WriteError> {
        let mut is_changed = false;
        for (at, index) in self.indexes.iter().enumerate() {
            if index.plan.is_same(old.row, new.row) {
                continue;
            }
            is_changed = true;
            if index.is_unique {
                match index.has(&self.rows, &self.layout, new, scratch) {
                    Ok(false) => {}
                    Ok(true) => return Err(write_error(KeyRefusal::Taken, at)),
                    Err(refused) => return Err(write_error(refused, at)),
                }
            } else if index.plan.encode(&self.layout, new, scratch).is_too_long() {
                return Err(write_error(KeyRefusal::TooLong, at));
            }
        }
        Ok(is_changed)
    }

    /// Writes the row into its slot. `to` is that slot with the new length.
    #[inline]
    pub fn overwrite(&mut self, rid: Rid, from: Location, to: Location, new: StoredRow<'_>) {
        if from != to {
            self.rows.redirect(rid, to);
        }
        let bytes = self.rows.bytes_mut(to);
        bytes[..new.row.len()].copy_from_slice(new.row);
        bytes[new.row.len()..].copy_from_slice(&new.number.to_be_bytes());
    }

    #[inline]
    pub fn add(
        &mut self,
        id: u16,
        rid: Rid,
        column: u16,
        delta: i64,
        journal: &mut Journal,
    ) -> Result<i64, WriteError> {
        let place = self.rows.place(rid).ok_or(WriteError::NotLive)?;
        let bad = |problem| Err(WriteError::BadColumn { column, problem });
        let Some(summed) = self.summed.get(column as usize) else {
            return bad(ColumnProblem::Missing);
        };
        if let Some(problem) = summed.problem {
            return bad(problem);
        }
        let (offset, width) = (summed.offset, summed.width as usize);
        let stored = self.rows.bytes_mut(place);
        let found = split_stored(stored);
        if summed.is_nullable && self.layout.columns[column as usize].is_null(found.row) {
            return bad(ColumnProblem::Null);
        }
        let before = read_integer(found.row, offset, width);
        let value = sum(summed.ty, before, delta).ok_or(WriteError::Overflow)?;
        fold_key(
            &self.indexes,
            &self.layout,
            found,
            (id, DigestChange::Add, column),
            journal,
        );
        journal.written.fold_word(value);
        journal.count(width);
        write_integer(stored, offset, width, value);
        if journal.changes.is_on() {
            let now = self.rows.read(place);
            let changed = CapturedRow::new(id, &self.layout, now.number);
            journal.changes.sum(&changed, (column, offset, width), now.row);
        }
        journal.record_add((id, rid), (column, offset), width, before);
        Ok(value as i64)
    }

    /// Undoes one change. Changes must be undone in reverse order.
    pub fn undo(&mut self, undo: Undo, journal: &mut Journal) {
        let rid = undo.rid;
        match undo.kind {
            UndoKind::Insert => {
                let row = self.rows.at(rid);
                unlink(&mut self.indexes, &self.layout, rid, row, &mut journal.scratch);
                let place = self.rows.bury(rid);
                self.rows.free(place);
                self.next_number -= 1;
                journal.buried.push((undo.table, rid));
            }
            UndoKind::Delete => {
                self.rows.revive(rid, undo.place());
                self.relink_deleted(rid, undo.place(), &mut journal.scratch);
            }
            UndoKind::Move => self.undo_move(rid, undo.place(), &mut journal.scratch),
            UndoKind::Patch => self.undo_patch(rid, undo.place(), journal),
            UndoKind::Columns => {
                let plan = self.plans.of(&self.layout, ColumnSet(undo.detail));
                let place = self.rows.place(rid).expect("a patched row is live");
                let start = journal.bytes.len() - undo.kept_bytes();
                let written = plan.written();
                let before = &journal.bytes[start..start + written.len()];
                self.rows.bytes_mut(place)[written].copy_from_slice(before);
                journal.bytes.truncate(start);
            }
            UndoKind::Add => {
                let place = self.rows.place(rid).expect("an added-to row is live");
                let before = journal.take_before();
                let row = self.rows.bytes_mut(place);
                write_integer(row, undo.detail as u32, undo.width as usize, before);
            }
        }
    }

    fn undo_move(&mut self, rid: Rid, place: Location, scratch: &mut KeyScratch) {
        let now = self.rows.place(rid).expect("a moved row is live");
        let (from, to) = (self.rows.read(now), self.rows.read(place));
        relink(&mut self.indexes, &self.layout, &self.rows, rid, from, to, scratch);
        self.rows.redirect(rid, place);
        self.rows.free(now);
    }

    fn undo_patch(&mut self, rid: Rid, place: Location, journal: &mut Journal) {
        let start = journal.bytes.len() - place.len();
        let now = self.rows.place(rid).expect("a patched row is live");
        let from = self.rows.read(now);
        let to = StoredRow {
            number: from.number,
            ..split_stored(&journal.bytes[start..])
        };
        relink(
            &mut self.indexes,
            &self.layout,
            &self.rows,
            rid,
            from,
            to,
            &mut journal.scratch,
        );
        self.overwrite(rid, now, place, to);
        journal.bytes.truncate(start);
    }

    fn relink_deleted(&mut self, rid: Rid, place: Location, scratch: &mut KeyScratch) {
        let row = self.rows.read(place);
        for index in &mut self.indexes {
            let linked = index.insert(&self.rows, &self.layout, row, rid, scratch);
            assert!(linked.is_ok(), "undo finds a key taken");
        }
    }

    pub fn stats(&self) -> TableStats {
        TableStats {
            rows: self.rows.count(),
            row_bytes: self.rows.nominal_bytes(),
            index_bytes: self.indexes.iter().map(|index| index.nominal_bytes() as u64).sum(),
        }
    }

    pub fn memory_bytes(&self) -> usize {
        let indexes: usize = self.indexes.iter().map(Index::memory_bytes).sum();
        indexes + self.rows.memory_bytes()
    }

    /// Returns all rows, in no particular order.
    pub fn all_rows(&self) -> impl Iterator<Item = (Rid, StoredRow<'_>)> + '_ {
        self.rows.rids().map(|rid| (rid, self.rows.at(rid)))
    }

    /// Returns the record ids in primary key order. It sorts if the key is a hash.
    pub fn sorted_rids(&self) -> Vec<Rid> {
        let mut scratch = KeyScratch::default();
        let plan = &self.indexes[0].plan;
        let mut keyed: Vec<(Box<[u8]>, Rid)> = self
            .all_rows()
            .map(|(rid, row)| (plan.encode(&self.layout, row, &mut scratch).bytes.into(), rid))
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, rid)| rid).collect()
    }

    /// Returns a digest of the rows: a sum over all of them, so that no order, record id or index is in it.
    pub fn rows_digest(&self) -> u64 {
        let rows = self.all_rows().map(|(_, row)| fold(0, row.number, row.row));
        let sum = rows.fold(0u64, u64::wrapping_add);
        digest_of(sum, self.next_number, self.rows.count())
    }
}

/// Folds the row's primary key (or number) into the digest, tagged with table, change and detail.
#[inline(always)]
pub(crate) fn fold_key(
    indexes: &[Index],
    layout: &RowLayout,
    row: StoredRow<'_>,
    (id, change, detail): (u16, DigestChange, u16),
    journal: &mut Journal,
) {
    let plan = &indexes[0].plan;
    match plan.int_words(row) {
        Some(key) => journal.written.fold_ints(id, change, detail, key),
        None => {
            let key = plan.encode(layout, row, &mut journal.scratch);
            journal.written.fold(id, change, detail, key.bytes);
        }
    }
}

pub(crate) fn unlink(
    indexes: &mut [Index],
    layout: &RowLayout,
    rid: Rid,
    row: StoredRow<'_>,
    scratch: &mut KeyScratch,
) {
    for index in indexes {
        index.remove(layout, row, rid, scratch);
    }
}

pub(crate) fn write_error(refused: KeyRefusal, index: usize) -> WriteError {
    let index = index as u16;
    match refused {
        KeyRefusal::Taken => WriteError::Duplicate { index },
        KeyRefusal::TooLong => WriteError::KeyTooLong { index },
    }
}

/// Moves the row's entries in the indexes whose key differs. The caller has checked that the new keys are free.
pub(crate) fn relink(
    indexes: &mut [Index],
    layout: &RowLayout,
    rows: &RowHeap,
    rid: Rid,
    from: StoredRow<'_>,
    to: StoredRow<'_>,
    scratch: &mut KeyScratch,
) {
    for index in indexes.iter_mut().filter(|index| !index.plan.is_same(from.row, to.row)) {
        index.remove(layout, from, rid, scratch);
        let linked = index.insert(rows, layout, to, rid, scratch);
        assert!(linked.is_ok(), "a key that was free is taken");
    }
}

/// Returns the bytes of an integer's slot, zero-extended.
#[inline]
fn read_integer(row: &[u8], offset: u32, width: usize) -> u64 {
    let at = offset as usize;
    match width {
        8 => u64::from_le_bytes(row[at..at + 8].try_into().expect("8 bytes")),
        4 => u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes")) as u64,
        2 => u16::from_le_bytes(row[at..at + 2].try_into().expect("2 bytes")) as u64,
        _ => row[at] as u64,
    }
}

#[inline]
pub(crate) fn write_integer(row: &mut [u8], offset: u32, width: usize, value: u64) {
    let at = offset as usize;
    let bytes = value.to_le_bytes();
    match width {
        8 => copy_first::<8>(&bytes, &mut row[at..]),
        4 => copy_first::<4>(&bytes, &mut row[at..]),
        2 => copy_first::<2>(&bytes, &mut row[at..]),
        _ => row[at] = bytes[0],
    }
}

/// Returns `value + delta` for a column of type `ty`, whose slot holds `value`, sign-extended. None if it does not fit.
#[inline]
fn sum(ty: ScalarType, value: u64, delta: i64) -> Option<u64> {
    let shift = 64 - 8 * ty.slot_bytes() as u32;
    if matches!(ty, ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64) {
        let sum = value.checked_add_signed(delta)?;
        return (sum << shift >> shift == sum).then_some(sum);
    }
    let sum = ((value << shift) as i64 >> shift).checked_add(delta)?;
    (sum << shift >> shift == sum).then_some(sum as u64)
}
