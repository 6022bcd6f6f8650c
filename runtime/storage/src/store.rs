//! The store: all tables of one partition and the transaction that is running on them.

use std::{collections::BTreeMap, sync::Arc};

use reprise_abi::{ColumnSet, RowLayout, TableSchema};
use reprise_base::{MemoryKind, MemoryLedger};

use crate::{
    charge::Charge,
    convert::{ConvertError, GoOn, PreparedTable},
    digest::fold,
    evolve::TableChange,
    index::{NotOrdered, Range, ScanPosition, Visit},
    indirection::Rid,
    journal::{Journal, StoreSavepoint, Undo, UndoKind, WriteSummary},
    retained_turns::{RetainedTurns, Turn},
    schema::{self, Conflict, ConflictPlace},
    table::{StoredTable, TableStats, WriteError},
    views::Touch,
    waiting_turns::WaitingTurns,
    watchers::Watchers,
};

/// A table's position in the store, in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

/// The table that a deployment replaced.
pub struct ReplacedTable {
    table: TableId,
    /// The table before. None: there was no such place.
    before: Option<StoredTable>,
}

/// Bytes of undo that the ledger may be off by.
const UNDO_STEP_BYTES: usize = 256 << 10;

/// One partition's tables. Methods that take a `TableId` or an index number panic if there is none such. Callers get them from the store,
/// and check the numbers that a guest names first.
#[derive(Default)]
pub struct Store {
    pub(crate) tables: Vec<StoredTable>,
    by_name: BTreeMap<String, TableId>,
    pub(crate) journal: Journal,
    pub(crate) retained: RetainedTurns,
    pub(crate) waiting: WaitingTurns,
    /// The readers that see rows as they were. None while there is no such reader.
    pub(crate) watchers: Option<Box<Watchers>>,
    /// The ledger that counts memory by kind.
    pub(crate) memory: Option<Arc<MemoryLedger>>,
    /// Memory of undo.
    undo: Charge,
    /// True once tables have freed memory that they give back when no row may come back.
    has_freed: bool,
}

impl Store {
    /// Makes a store that no ledger counts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a store that the ledger counts. Once no memory is left, it refuses writes that grow the data (`WriteError::NoMemory`).
    pub fn counted_in(memory: &Arc<MemoryLedger>) -> Self {
        let mut undo = Charge::default();
        undo.count_in(memory.kind(MemoryKind::Undo));
        Self {
            memory: Some(Arc::clone(memory)),
            undo,
            ..Self::default()
        }
    }

    /// Adjusts the counted undo memory roughly to its real size.
    #[inline]
    pub(crate) fn count_undo(&mut self) {
        let bytes = self.journal.memory_bytes() + self.retained.memory_bytes() + self.waiting.memory_bytes();
        if bytes.abs_diff(self.undo.bytes()) >= UNDO_STEP_BYTES {
            self.undo.resize(bytes);
        }
    }

    #[inline(always)]
    pub(crate) fn table(&self, id: TableId) -> &StoredTable {
        &self.tables[id.0 as usize]
    }

    /// Returns a table whose rows are read without a view.
    #[inline(always)]
    fn built_table(&self, id: TableId) -> &StoredTable {
        debug_assert!(self.notes() == 0, "notes of rows are not in place");
        self.table(id)
    }

    #[inline]
    pub(crate) fn writable(&mut self, id: TableId) -> (&mut StoredTable, &mut Journal) {
        assert!(self.journal.is_active, "writes need a transaction");
        (&mut self.tables[id.0 as usize], &mut self.journal)
    }

    // Transactions.

    /// Begins a transaction. Panics while one is running.
    #[inline]
    pub fn begin(&mut self) {
        if self.watchers.is_some() {
            self.build_notes();
        }
        self.journal.begin();
    }

    /// True while a transaction runs.
    pub fn in_txn(&self) -> bool {
        self.journal.is_active
    }

    /// Returns a summary of the transaction's writes.
    pub fn written(&self) -> WriteSummary {
        self.journal.written
    }

    /// Returns the present point of the running transaction.
    #[inline]
    pub fn savepoint(&self) -> StoreSavepoint {
        assert!(self.journal.is_active, "a savepoint needs a transaction");
        StoreSavepoint {
            undo_len: self.journal.ops.len(),
            written: self.journal.written,
            captured: self.journal.changes.mark(),
            txn: self.journal.txn,
        }
    }

    /// Rolls back the writes since the savepoint, which stays usable; later ones do not. It panics on a savepoint of another transaction,
    /// or on one that an earlier rollback passed.
    pub fn rollback_to(&mut self, savepoint: StoreSavepoint) {
        let journal = &self.journal;
        assert!(
            journal.is_active && savepoint.txn == journal.txn,
            "savepoint of another transaction"
        );
        assert!(
            savepoint.undo_len <= journal.ops.len(),
            "savepoint that was rolled back itself"
        );
        self.undo_to(savepoint.undo_len);
        self.journal.written = savepoint.written;
        self.journal.changes.take_back(savepoint.captured);
    }

    /// Returns the rows whose writes `rollback_to` would undo, and whether each write was an insertion. A row may occur several times.
    pub fn written_since(&self, savepoint: &StoreSavepoint) -> impl Iterator<Item = (TableId, Rid, bool)> {
        let undo = self.journal.ops.iter().skip(savepoint.undo_len);
        undo.map(|undo| (TableId(undo.table), undo.rid, undo.kind == UndoKind::Insert))
    }

    fn undo_to(&mut self, len: usize) {
        while self.journal.ops.len() > len {
            let undo = self.journal.pop().expect("longer than `len`");
            self.tables[undo.table as usize].undo(undo, &mut self.journal);
        }
    }

    /// Returns the number of the transaction's writes, each of which a rollback undoes.
    pub fn undo_count(&self) -> usize {
        self.journal.ops.len() - self.journal.txn_start
    }

    /// Ends the transaction without its changes.
    pub fn rollback(&mut self) {
        assert!(self.journal.is_active, "no transaction to roll back");
        self.undo_to(self.journal.txn_start);
        self.release_buried();
        self.journal.end();
    }

    /// Ends the transaction with its changes.
    #[inline]
    pub fn commit(&mut self) -> WriteSummary {
        assert!(self.journal.is_active, "no transaction to commit");
        if !self.journal.garbage.is_empty() && !self.journal.retains {
            self.has_freed |= free_garbage(&mut self.tables, &self.journal.garbage);
            self.give_back();
        }
        self.release_buried();
        self.journal.end();
        self.journal.written
    }

    // Undo outlives the commit: a committed transaction is durable only when the log says so. Until then the store must be able to roll it
    // back. Otherwise readers would see a transaction that the log refused.

    /// Keeps the undo of commits until `release_undo` from now on.
    pub fn retain_undo(&mut self) {
        assert!(!self.journal.is_active, "retention begins between transactions");
        self.journal.retains = true;
    }

    /// Declares that all commits since the last call become durable when the log has reached `end`.
    pub fn seal(&mut self, end: u64) {
        assert!(!self.journal.is_active, "a turn is sealed between transactions");
        self.retained.seal(&mut self.journal, end);
        self.count_undo();
    }

    /// The `seal` variant for all but the last transaction, which another `seal` covers.
    pub fn seal_before_last(&mut self, end: u64) {
        assert!(!self.journal.is_active, "a turn is sealed between transactions");
        self.retained.seal_before_last(&mut self.journal, end);
        self.count_undo();
    }

    /// Forgets the undo of everything that is before `durable` and acknowledged.
    pub fn release_undo(&mut self, durable: u64) {
        while let Some(turn) = self.retained.take_durable(durable) {
            self.waiting.push(turn);
        }
        while let Some(turn) = self.waiting.take_done() {
            self.recycle(turn);
        }
        let has_garbage = |store: &Self| store.retained.has_garbage() || store.waiting.has_garbage();
        if self.has_freed && self.journal.garbage.is_empty() && !has_garbage(self) {
            self.give_back();
        }
        self.count_undo();
    }

    pub(crate) fn recycle(&mut self, turn: Turn) {
        self.has_freed |= free_garbage(&mut self.tables, &turn.garbage);
        self.retained.recycle(turn);
    }

    /// Releases memory in which nothing is left. No removed row may come back.
    #[cold]
    fn give_back(&mut self) {
        if std::mem::take(&mut self.has_freed) {
            self.tables.iter_mut().for_each(StoredTable::give_back);
        }
    }

    /// Drops the undo of the running transaction's writes up to here. They are in tables that are dropped whole if it fails. No savepoint
    /// of it may be used after this.
    pub fn forgo_undo(&mut self) {
        let journal = &mut self.journal;
        for undo in journal.garbage.drain(..) {
            self.tables[undo.table as usize].rows.free(undo.place());
            if undo.kind == UndoKind::Delete {
                journal.buried.push((undo.table, undo.rid));
            }
        }
        journal.ops.truncate(journal.txn_start);
        journal.bytes.truncate(journal.txn_bytes_start);
    }

    /// Drops the undo of the commits since the last `seal`, like `forgo_undo` for the running transaction.
    pub fn forget_unsealed(&mut self) {
        assert!(!self.journal.is_active, "undo is forgotten between transactions");
        self.has_freed |= free_garbage(&mut self.tables, &self.journal.garbage);
        self.journal.forget();
    }

    /// Returns the bytes of the running transaction's undo.
    pub fn undo_bytes(&self) -> usize {
        let (ops, bytes) = (self.journal.ops.len(), self.journal.bytes.len());
        (ops - self.journal.txn_start) * size_of::<Undo>() + bytes - self.journal.txn_bytes_start
    }

    /// Rolls back the commits since the last `seal`.
    pub fn unwind_unsealed(&mut self) {
        assert!(!self.journal.is_active && self.journal.retains);
        self.undo_to(0);
        self.release_buried();
        self.journal.forget();
    }

    /// Rolls back all commits that are not settled.
    pub fn unwind(&mut self) {
        self.waiting.forget_shown();
        self.unwind_unsealed();
        while let Some(turn) = self.retained.take_newest() {
            self.journal.restore(turn);
            self.unwind_unsealed();
        }
    }

    #[inline]
    fn release_buried(&mut self) {
        if !self.journal.buried.is_empty() {
            self.release_all_buried();
        }
    }

    #[cold]
    fn release_all_buried(&mut self) {
        for (table, rid) in &self.journal.buried {
            self.tables[*table as usize].rows.release(*rid);
        }
        let tables_of = self.journal.buried.iter().map(|(table, _)| *table as usize);
        tables_of.for_each(|table| self.tables[table].release_if_emptied());
    }

    // Reads.

    /// Returns the row of a whole key. If there are several (a non-unique index), it returns the first in primary key order.
    #[inline]
    pub fn get(&self, table: TableId, index: u16, key: &[u8]) -> Option<Rid> {
        let table = self.table(table);
        Some(table.indexes[index as usize].get(&table.rows, key)?.0)
    }

    /// The `get` variant that does not read the row, if the index allows it.
    #[inline(always)]
    pub fn find(&self, table: TableId, index: u16, key: &[u8]) -> Option<Rid> {
        let table = self.table(table);
        table.indexes[index as usize].find(&table.rows, key)
    }

    /// The `get` variant that also returns the row's bytes.
    #[inline]
    pub fn get_row(&self, table: TableId, index: u16, key: &[u8]) -> Option<(Rid, &[u8])> {
        let table = self.built_table(table);
        let (rid, row) = table.indexes[index as usize].get(&table.rows, key)?;
        Some((rid, row.row))
    }

    /// Returns a row's bytes. None if it is not live.
    #[inline]
    pub fn row(&self, table: TableId, rid: Rid) -> Option<&[u8]> {
        self.built_table(table).rows.get(rid)
    }

    /// Returns the number of a live row, on this partition.
    pub fn row_number(&self, table: TableId, rid: Rid) -> u64 {
        self.table(table).rows.at(rid).number
    }

    /// Returns the live row with a number, on this partition. Changes that replay noted may be missing in it; none of them concerns a key.
    pub fn numbered_row(&self, id: TableId, number: u64) -> Option<&[u8]> {
        let table = self.table(id);
        match table.has_number() {
            true => Some(table.indexes[0].get(&table.rows, &number.to_be_bytes())?.1.row),
            false => table.rows.get(table.rows.by_number(number)?),
        }
    }

    /// Returns the first row of a range in its direction.
    #[inline]
    pub fn first(&self, table: TableId, index: u16, range: &Range<'_>) -> Result<Option<Rid>, NotOrdered> {
        self.table(table).indexes[index as usize].first(range)
    }

    /// Visits the rows of a range from `position` on. It leaves in `position` the place to continue at.
    #[inline]
    pub fn scan(
        &self,
        table: TableId,
        index: u16,
        range: &Range<'_>,
        position: &mut ScanPosition,
        mut visit: impl FnMut(Rid, &[u8]) -> Visit,
    ) -> Result<(), NotOrdered> {
        let table = self.built_table(table);
        let on_entry = |rid| visit(rid, table.rows.at(rid).row);
        table.indexes[index as usize].scan(range, position, on_entry)
    }

    /// Fills `rids` with the next rows of a range and returns their number. `position` is then at the row behind them, or at the end.
    #[inline]
    pub fn scan_page(
        &self,
        table: TableId,
        index: u16,
        range: &Range<'_>,
        position: &mut ScanPosition,
        rids: &mut [Rid],
    ) -> Result<usize, NotOrdered> {
        self.table(table).indexes[index as usize].scan_page(range, position, rids)
    }

    /// Returns the number of rows in a range.
    pub fn count(&self, table: TableId, index: u16, range: &Range<'_>) -> Result<u64, NotOrdered> {
        self.count_while(table, index, range, |_| true)
    }

    /// The `count` variant that `go_on` may end. It gets the number of rows passed since its last call.
    pub fn count_while(
        &self,
        table: TableId,
        index: u16,
        range: &Range<'_>,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> Result<u64, NotOrdered> {
        self.table(table).indexes[index as usize].count(range, &mut go_on)
    }

    /// Returns the bytes of the running transaction's writes and of their undo.
    #[inline]
    pub fn write_set_bytes(&self) -> usize {
        self.journal.write_set_bytes()
    }

    /// Returns all live rows in primary key order, whatever the kind of the key. It sorts, so transactions do not use it.
    pub fn sorted_rids(&self, table: TableId) -> Vec<Rid> {
        self.table(table).sorted_rids()
    }

    /// Returns the live rows from record id `first` on, in the order of their ids, for searches in a table without an order. The ids are
    /// this store's own and mean nothing elsewhere.
    pub fn rids_from(&self, table: TableId, first: Rid) -> impl Iterator<Item = Rid> + '_ {
        self.table(table).rows.rids_from(first)
    }

    // Writes. Each happens completely or not at all.

    /// Inserts a row that is valid by the table's layout.
    #[inline]
    pub fn insert(&mut self, table: TableId, row: &[u8]) -> Result<Rid, WriteError> {
        let (found, journal) = self.writable(table);
        let rid = found.insert(table.0, row, journal)?;
        self.pass_over(table, rid);
        Ok(rid)
    }

    /// Replaces the whole row.
    #[inline]
    pub fn update(&mut self, table: TableId, rid: Rid, row: &[u8]) -> Result<(), WriteError> {
        self.keep_before(table, rid, Touch::Any);
        let (found, journal) = self.writable(table);
        found.update(table.0, rid, row, journal)
    }

    /// Deletes the row.
    #[inline]
    pub fn delete(&mut self, table: TableId, rid: Rid) -> Result<(), WriteError> {
        self.keep_before(table, rid, Touch::Any);
        let (found, journal) = self.writable(table);
        found.delete(table.0, rid, journal)
    }

    /// Adds to an integer column that is in no key or index. Returns the new value (of a `u64`: its bits).
    #[inline]
    pub fn add(&mut self, table: TableId, rid: Rid, column: u16, delta: i64) -> Result<i64, WriteError> {
        self.keep_before(table, rid, Touch::Plain);
        let (found, journal) = self.writable(table);
        found.add(table.0, rid, column, delta, journal)
    }

    /// Writes some columns of a row (`reprise_abi::columns`); they fit the stored layout.
    #[inline]
    pub fn patch(&mut self, table: TableId, rid: Rid, columns: ColumnSet, values: &[u8]) -> Result<(), WriteError> {
        self.keep_before(table, rid, Touch::Any);
        let (found, journal) = self.writable(table);
        found.patch(table.0, rid, columns, values, journal)
    }

    // Tables.

    /// Returns the number of tables, places of dropped ones included.
    pub fn table_count(&self) -> usize {
        self.tables.len()
    }

    /// Returns the ids of all tables, dropped ones included.
    pub fn table_ids(&self) -> impl Iterator<Item = TableId> + use<> {
        (0..self.tables.len() as u16).map(TableId)
    }

    /// Returns the table with this stored name.
    pub fn table_id(&self, name: &str) -> Option<TableId> {
        self.by_name.get(name).copied()
    }

    /// Returns the table's schema in its stored form.
    pub fn schema(&self, table: TableId) -> &TableSchema {
        &self.table(table).schema
    }

    /// Returns the layout of the stored rows.
    pub fn layout(&self, table: TableId) -> &RowLayout {
        &self.table(table).layout
    }

    /// Returns the number of indexes of the table, the primary key (or the hidden order) included.
    pub fn index_count(&self, table: TableId) -> usize {
        self.table(table).indexes.len()
    }

    /// False for a hash index, which can't be scanned.
    pub fn is_ordered(&self, table: TableId, index: u16) -> bool {
        self.table(table).indexes[index as usize].is_ordered()
    }

    /// Returns the present sizes of a table.
    pub fn stats(&self, table: TableId) -> TableStats {
        self.table(table).stats()
    }

    /// Returns the bytes from the allocator, slack included.
    pub fn memory_bytes(&self) -> usize {
        self.tables.iter().map(StoredTable::memory_bytes).sum::<usize>()
            + self.journal.memory_bytes()
            + self.retained.memory_bytes()
            + self.waiting.memory_bytes()
    }

    /// Returns the number of rows of a table, without reading them.
    pub fn rows_count(&self, table: TableId) -> u64 {
        self.table(table).rows.count()
    }

    /// Returns a digest of a table's rows, whatever their order. It reads all of them.
    pub fn rows_digest(&self, table: TableId) -> u64 {
        self.built_table(table).rows_digest()
    }

    /// Returns a digest of everything that callers can observe: names, columns, keys, rows. It reads all rows.
    pub fn digest(&self) -> u64 {
        self.by_name.values().fold(0, |digest, id| {
            let table = self.built_table(*id);
            fold(
                fold(digest, schema::digest(&table.schema), &[]),
                table.rows_digest(),
                &[],
            )
        })
    }

    // Schema changes, between transactions.

    /// Adds an empty table, under the lowest number that is free.
    pub fn create_table(&mut self, schema: TableSchema) -> Result<TableId, Vec<Conflict>> {
        self.check_new(&schema)?;
        Ok(self.put_table(schema))
    }

    /// Adds an empty table of a checkpoint, or the place of a dropped table, behind all others.
    pub fn push_table(&mut self, schema: TableSchema) -> Result<TableId, Vec<Conflict>> {
        if !schema.is_dropped() {
            self.check_new(&schema)?;
        }
        Ok(self.put_at(self.tables.len(), schema))
    }

    fn check_new(&self, schema: &TableSchema) -> Result<(), Vec<Conflict>> {
        let mut conflicts = schema::check_table(schema);
        let full = &schema.full_name();
        if self.by_name.contains_key(full) {
            let at = ConflictPlace {
                table: full,
                item: "",
                what: "table",
            };
            conflicts.push(at.conflict("exists", "created again", "use another name"));
        }
        match conflicts.is_empty() {
            true => Ok(()),
            false => Err(conflicts),
        }
    }

    /// The `create_table` variant for a table that was checked.
    pub fn put_table(&mut self, schema: TableSchema) -> TableId {
        let free = self.tables.iter().position(|table| table.schema.is_dropped());
        self.put_at(free.unwrap_or(self.tables.len()), schema)
    }

    fn put_at(&mut self, at: usize, schema: TableSchema) -> TableId {
        assert!(!self.journal.is_active, "the schema changes between transactions");
        let id = TableId(u16::try_from(at).expect("fewer tables than numbers"));
        let mut table = StoredTable::new(schema);
        self.count_table(&mut table);
        match self.tables.get_mut(at) {
            Some(free) => *free = table,
            None => self.tables.push(table),
        }
        self.name_tables();
        id
    }

    /// Drops a table and its rows. Its number is free.
    pub fn drop_table(&mut self, table: TableId) {
        self.check_no_undo();
        self.finish_snapshot_of(table);
        self.give_views_up();
        self.tables[table.0 as usize] = StoredTable::new(TableSchema::dropped());
        self.name_tables();
    }

    /// The `put_table` variant for a deployment that the caller may take back.
    pub fn place_table(&mut self, schema: TableSchema) -> ReplacedTable {
        let count = self.tables.len();
        let table = self.put_table(schema);
        let is_free = (table.0 as usize) < count;
        ReplacedTable {
            table,
            before: is_free.then(|| StoredTable::new(TableSchema::dropped())),
        }
    }

    /// Makes the changed table beside the stored one. Err: why it can't be made. No part of it is kept.
    pub fn prepare(&self, table: TableId, change: TableChange, go_on: GoOn<'_>) -> Result<PreparedTable, ConvertError> {
        PreparedTable::new(table, self.built_table(table), change, go_on)
    }

    /// Puts a changed table in its place, with the rows of its preparation. Returns the table before, unless rows or indexes of it are in
    /// the changed one.
    pub fn install(&mut self, prepared: PreparedTable) -> Option<ReplacedTable> {
        self.check_no_undo();
        self.give_views_up();
        let table = prepared.table;
        if prepared.rewrites_rows() {
            self.finish_snapshot_of(table);
        }
        let place = &mut self.tables[table.0 as usize];
        let stored = std::mem::replace(place, StoredTable::new(TableSchema::dropped()));
        let (mut changed, before) = prepared.finish(stored);
        self.count_table(&mut changed);
        self.tables[table.0 as usize] = changed;
        self.name_tables();
        before.map(|before| ReplacedTable {
            table,
            before: Some(before),
        })
    }

    /// Puts a whole copy of a table behind all others while a migration runs. Returns its place, and the way to remove it.
    pub fn place_copy(&mut self, prepared: PreparedTable) -> (TableId, ReplacedTable) {
        let mut copy = prepared.into_copy();
        self.count_table(&mut copy);
        let table = TableId(self.tables.len() as u16);
        self.tables.push(copy);
        (table, ReplacedTable { table, before: None })
    }

    /// Restores the former contents of places, the last changed one first.
    pub fn put_back(&mut self, replaced: Vec<ReplacedTable>) {
        assert!(!self.journal.is_active, "the schema changes between transactions");
        for ReplacedTable { table, before } in replaced.into_iter().rev() {
            match before {
                Some(before) => self.tables[table.0 as usize] = before,
                None => self.tables.truncate(table.0 as usize),
            }
        }
        self.name_tables();
    }

    fn count_table(&self, table: &mut StoredTable) {
        if let Some(memory) = &self.memory {
            table.count_in(memory);
        }
    }

    fn check_no_undo(&self) {
        assert!(!self.journal.is_active, "the schema changes between transactions");
        assert!(
            self.journal.ops.is_empty() && self.retained.is_empty(),
            "rows move when the schema changes: their undo must be settled before"
        );
    }

    fn name_tables(&mut self) {
        let tables = self.tables.iter().enumerate();
        let live = tables.filter(|(_, table)| !table.schema.is_dropped());
        self.by_name = live
            .map(|(at, table)| (table.schema.full_name(), TableId(at as u16)))
            .collect();
    }
}

/// Frees the garbage of deletes and moves. If a table's last row was deleted, it frees all of the table's memory. True if rows were freed.
fn free_garbage(tables: &mut [StoredTable], garbage: &[Undo]) -> bool {
    let (mut has_deleted, mut has_emptied) = (false, false);
    for undo in garbage {
        let rows = &mut tables[undo.table as usize].rows;
        match undo.kind {
            UndoKind::Delete => {
                rows.free(undo.place());
                rows.release(undo.rid);
                has_deleted = true;
                has_emptied |= rows.is_unused();
            }
            UndoKind::Move => rows.free(undo.place()),
            UndoKind::Insert | UndoKind::Patch | UndoKind::Columns | UndoKind::Add => {}
        }
    }
    if has_emptied {
        let tables_of = garbage.iter().map(|undo| undo.table as usize);
        tables_of.for_each(|table| tables[table].release_if_emptied());
    }
    has_deleted
}
