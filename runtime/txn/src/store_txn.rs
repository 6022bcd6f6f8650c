//! A transaction over the stores that one thread holds: of one partition, which is the hot path, or of several.
//!
//! Rows that a column places lie on the partition that its value names. A read whose keys hold that value searches there alone. A write of
//! a replicated table goes to all partitions, and a read to the first one. A read of a partition-local table sees all rows, and an insert
//! goes to the first touched partition. Consecutive keys, handles and scans of one partition go to its store together.

use std::{borrow::Cow, ops::Range};

use reprise_abi::{
    IndexTarget, OpError, ReadSpan, RowHandle, RowTaker, RowVisitor, ScanBatch, ScanRequest, TablePlacement,
    calls::HANDLE_NONE,
};
use reprise_storage::{Rid, ScanPosition, Store, TableId, WriteError};

use crate::{
    kept_rows::{WriteTarget, keep_before, run_kept},
    module::TableBinding,
    ops::{binding, check_write, guest, index_of, undo_of_migration, write_error},
    reach::outdated,
    rowmap::row_key,
    run::TxnInput,
    scan::{Cursor, OwnedRange, ScanMerge, run_on_one},
    scratch::{AT_ONCE_MAX, Handle, TxnScratch},
    store_set::StoreSet,
};

pub(crate) struct StoreTxn<'a, S> {
    pub stores: S,
    pub input: &'a TxnInput<'a>,
    pub frame: &'a mut TxnScratch,
    /// True if all partitions are held.
    pub holds_all: bool,
    /// True if writes must be checked: in a read-only call, and in a migration. A migration also writes its partition's rows of replicated
    /// tables, and no tables of other modules.
    checks_writes: bool,
    /// Value of a partition column that belongs to the only partition. Most calls read rows of one value.
    pub home: Option<u64>,
}

/// The index in which many keys are looked up.
pub(crate) struct LookUp<'b> {
    pub target: IndexTarget,
    pub binding: &'b TableBinding,
    pub index: u16,
    /// Bytes of a row that are read.
    pub prefetch: ReadSpan<'b>,
}

impl<'a, S: StoreSet> StoreTxn<'a, S> {
    pub fn new(stores: S, input: &'a TxnInput<'a>, frame: &'a mut TxnScratch) -> Self {
        Self {
            holds_all: stores.count() == input.partitions_count as usize,
            checks_writes: input.is_read_only() || input.is_migration(),
            stores,
            input,
            frame,
            home: None,
        }
    }

    /// Returns the binding of a table that this transaction may write.
    #[inline(always)]
    pub fn writable(&self, table: u16) -> Result<&'a TableBinding, OpError> {
        let binding = binding(self.input, table)?;
        self.check_writable(binding)?;
        Ok(binding)
    }

    #[inline(always)]
    pub fn check_writable(&self, binding: &TableBinding) -> Result<(), OpError> {
        let is_elsewhere = binding.placement == TablePlacement::Replicated && !self.holds_all;
        match self.checks_writes || is_elsewhere {
            false => Ok(()),
            true => check_write(self.input, binding),
        }
    }

    /// Lets open cursors of the table keep the rows that they have still to show.
    #[inline(always)]
    pub fn keep_before(&mut self, table: TableId, store: usize, rid: Option<Rid>) -> Result<(), OpError> {
        match self.frame.open {
            0 => Ok(()),
            _ => {
                let (bytes, store) = (self.bytes_of_write_set(), store as u16);
                let written = WriteTarget { table, store, rid };
                keep_before(self.frame, &self.stores.all(), written, bytes)
            }
        }
    }

    /// Returns the bytes that count in the limit of the write set: all that was written, or the undo that a migration needs.
    #[cold]
    fn bytes_of_write_set(&mut self) -> usize {
        match self.input.is_migration() {
            // A migration runs on one partition at a time.
            true => undo_of_migration(self.stores.store_mut(0), self.frame),
            false => self.stores.written_bytes(),
        }
    }

    /// Checks that the copy behind a handle is current, so that the row may be written back from it.
    #[inline(always)]
    pub fn check_current(&self, table: u16, row: u64, handle: RowHandle) -> Result<(), OpError> {
        match self.frame.changed.is_current(row, handle) {
            true => Ok(()),
            false => Err(outdated(self.input, table)),
        }
    }

    #[inline(always)]
    pub fn record_change(&mut self, row: u64, writer: Option<RowHandle>) {
        self.frame.changed.record(row, self.frame.handles.len(), writer);
    }

    /// Makes a change on one store, to an existing row or a new one. It checks how much the transaction has written.
    #[inline(always)]
    pub fn write<T>(
        &mut self,
        binding: &TableBinding,
        at: usize,
        rid: Option<Rid>,
        change: impl FnOnce(&mut Store) -> Result<T, WriteError>,
    ) -> Result<T, OpError> {
        self.keep_before(binding.table, at, rid)?;
        let changed = self.stores.change(at, change);
        let changed = changed.map_err(|error| write_error(error, binding))?;
        self.check_written(at)?;
        Ok(changed)
    }

    /// The `write` variant for a row on its store, or on all stores if its table is replicated.
    #[inline(always)]
    pub fn write_copies<T>(
        &mut self,
        binding: &TableBinding,
        at: usize,
        rid: Rid,
        change: impl Fn(&mut Store, Rid) -> Result<T, WriteError>,
    ) -> Result<T, OpError> {
        if !S::IS_ONE && binding.placement == TablePlacement::Replicated {
            for (other, copy) in self.other_copies(binding, at, rid)? {
                self.write(binding, other, Some(copy), |store| change(store, copy))?;
            }
        }
        self.write(binding, at, Some(rid), |store| change(store, rid))
    }

    /// Returns the places of a replicated table's row on all stores but one.
    fn other_copies(&self, binding: &TableBinding, at: usize, rid: Rid) -> Result<Vec<(usize, Rid)>, OpError> {
        let (store, mut key) = (self.stores.store(at), Vec::new());
        let row = self.stored_row(at, binding.table, rid)?;
        let columns = &store.schema(binding.table).primary_key;
        store.layout(binding.table).push_key(row, columns, &mut key);
        let others = (0..self.stores.count()).filter(|other| *other != at);
        let copies = others.map(|other| {
            let copy = self.stores.store(other).get(binding.table, 0, &key);
            let missing = || {
                let id = self.stores.partition(other);
                guest(format!("partition {id} lacks a row of a replicated table"))
            };
            copy.map(|copy| (other, copy)).ok_or_else(missing)
        });
        copies.collect()
    }

    #[inline(always)]
    pub fn check_written(&mut self, at: usize) -> Result<(), OpError> {
        self.frame.insert_objects(at, self.stores.store(at));
        let bytes = self.stores.written_bytes();
        match self.frame.is_much_written(bytes) {
            false => Ok(()),
            true => self.check_written_slow(),
        }
    }

    #[cold]
    fn check_written_slow(&mut self) -> Result<(), OpError> {
        let bytes = self.bytes_of_write_set();
        self.frame.check_written(bytes)
    }

    pub fn stored_row(&self, at: usize, table: TableId, rid: Rid) -> Result<&[u8], OpError> {
        let row = self.stores.store(at).row(table, rid);
        row.ok_or_else(|| guest("the row was deleted"))
    }

    /// Returns the row as the module knows it.
    pub fn seen_row(&mut self, binding: &TableBinding, at: usize, rid: Rid) -> Result<&[u8], OpError> {
        if let Some(projection) = &binding.projection {
            self.frame.row = projection.narrow(self.stored_row(at, binding.table, rid)?);
            return Ok(&self.frame.row);
        }
        self.stored_row(at, binding.table, rid)
    }

    /// Returns a new row in its stored form.
    #[inline(always)]
    pub fn widened<'r>(&self, binding: &TableBinding, row: &'r [u8]) -> Result<Cow<'r, [u8]>, OpError> {
        let Some(projection) = &binding.projection else {
            return Ok(Cow::Borrowed(row));
        };
        let widened = projection.widen_insert(row);
        widened.map(Cow::Owned).map_err(|error| guest(error.to_string()))
    }

    /// Returns the stored form of a row that replaces an old one.
    #[inline(always)]
    pub fn widened_over<'r>(
        &self,
        binding: &TableBinding,
        row: &'r [u8],
        at: usize,
        rid: Rid,
    ) -> Result<Cow<'r, [u8]>, OpError> {
        let Some(projection) = &binding.projection else {
            return Ok(Cow::Borrowed(row));
        };
        let widened = projection.widen_update(row, self.stored_row(at, binding.table, rid)?);
        widened.map(Cow::Owned).map_err(|error| guest(error.to_string()))
    }

    /// Returns the held store of a key's row, and the row's place there.
    #[inline(always)]
    pub fn find(
        &mut self,
        target: IndexTarget,
        binding: &TableBinding,
        key: &[u8],
    ) -> Result<Option<(usize, Rid)>, OpError> {
        let index = index_of(binding, target.index)?;
        let held = self.readable(target, binding, key)?;
        Ok(first_found(held, |at| {
            self.stores.store(at).find(binding.table, index, key)
        }))
    }

    /// Adds to a column of a row on a held store. `writer`: the handle of a current copy of it.
    #[inline(always)]
    pub fn add_at(
        &mut self,
        binding: &TableBinding,
        handle: Handle,
        writer: Option<RowHandle>,
        column: u16,
        delta: i64,
    ) -> Result<i64, OpError> {
        let Handle { table, store, rid } = handle;
        let row = row_key(store, binding.table, rid);
        let value = self.write_copies(binding, store.into(), rid, |store, rid| {
            store.add(binding.table, rid, column, delta)
        })?;
        self.record_change(row, writer);
        match binding.placement == TablePlacement::By(column) {
            false => Ok(value),
            true => self.check_stays(table, binding, store.into(), rid).map(|()| value),
        }
    }

    /// Looks up many keys. Each run of keys on the same stores is looked up at once.
    pub fn look_up<'k>(
        &mut self,
        what: &LookUp<'_>,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), OpError> {
        let (mut rest, mut run, mut count, mut held) = (keys.clone(), keys, 0, 0..0);
        loop {
            let from = rest.clone();
            let next = match rest.next() {
                None => None,
                Some(key) => Some(self.readable(what.target, what.binding, key)?),
            };
            if count > 0 && next.as_ref() != Some(&held) {
                self.look_up_run(what, held, run.take(count), visit)?;
                (run, count) = (from, 0);
            }
            let Some(next) = next else {
                return Ok(());
            };
            (held, count) = (next, count + 1);
        }
    }

    /// Looks up keys that all lie on the same stores.
    fn look_up_run<'k>(
        &mut self,
        what: &LookUp<'_>,
        held: Range<usize>,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), OpError> {
        let (stores, frame, binding) = (&self.stores, &mut *self.frame, what.binding);
        let mut on_found = |store: usize, found: Option<(Rid, &[u8])>| {
            frame.count_op()?;
            let Some((rid, row)) = found else {
                visit(HANDLE_NONE, &[]);
                return Ok(());
            };
            let (table, store) = (what.target.table, store as u16);
            let handle = frame.push_handle(Handle { table, store, rid })?;
            match &binding.projection {
                None => visit(handle, row),
                Some(projection) => visit(handle, &projection.narrow(row)),
            }
            Ok(())
        };
        if held.len() == 1 {
            let (at, prefetch, mut result, mut rest) = (held.start, what.prefetch, Ok(()), keys);
            let store = stores.store(at);
            while result.is_ok() && rest.clone().next().is_some() {
                let some = rest.clone().take(AT_ONCE_MAX);
                store.multi_get(binding.table, what.index, some, prefetch, |found| {
                    if result.is_ok() {
                        result = on_found(at, found);
                    }
                });
                rest.nth(AT_ONCE_MAX - 1);
            }
            return result;
        }
        for key in keys {
            let found = first_found(held.clone(), |at| {
                stores.store(at).get_row(binding.table, what.index, key)
            });
            match found {
                Some((at, found)) => on_found(at, Some(found))?,
                None => on_found(0, None)?,
            }
        }
        Ok(())
    }

    pub fn run_cursor(&mut self, mut cursor: Cursor, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        let binding = binding(self.input, cursor.table)?;
        let first = cursor.first_store as usize;
        if cursor.kept.is_some() {
            return run_kept(&self.stores.all(), binding, self.frame, cursor, visit);
        }
        if cursor.positions.len() == 1 {
            return run_on_one(self.stores.store(first), binding, self.frame, cursor, visit);
        }
        let positions = std::mem::take(&mut cursor.positions);
        let scanned = first..first + positions.len();
        let mut merge = {
            let stores = &self.stores.all()[scanned.clone()];
            let range = cursor.request.range();
            ScanMerge::new(stores, cursor.stored, cursor.index, range, positions)?
        };
        let mut rows = 0;
        while cursor.left != Some(0) {
            let Some((at, rid)) = merge.peek() else {
                return Ok(ScanBatch { cursor: 0, rows });
            };
            let store = first + at;
            self.frame.count_op()?;
            let handle = self.frame.push_handle(Handle {
                table: cursor.table,
                store: store as u16,
                rid,
            })?;
            if !visit(handle, self.seen_row(binding, store, rid)?) {
                self.frame.handles.pop();
                cursor.positions = merge.into_positions(&self.stores.all()[scanned])?;
                let cursor = self.frame.push_cursor(cursor)?;
                return Ok(ScanBatch { cursor, rows });
            }
            rows += 1;
            if let Some(left) = &mut cursor.left {
                *left -= 1;
            }
            merge.advance(at, self.stores.store(store))?;
        }
        Ok(ScanBatch { cursor: 0, rows })
    }
}

/// Returns the first held store on which `find` finds something, and its result.
#[inline(always)]
pub(crate) fn first_found<T>(held: Range<usize>, find: impl Fn(usize) -> Option<T>) -> Option<(usize, T)> {
    let mut at = held.start;
    while at < held.end {
        if let Some(found) = find(at) {
            return Some((at, found));
        }
        at += 1;
    }
    None
}

/// Makes a cursor for a range, which begins on these of the held stores.
pub(crate) fn cursor_of(request: &ScanRequest<'_>, binding: &TableBinding, index: u16, held: Range<usize>) -> Cursor {
    Cursor {
        table: request.target.table,
        stored: binding.table,
        index,
        request: OwnedRange::new(request),
        left: (request.limit > 0).then_some(request.limit),
        first_store: held.start as u16,
        positions: vec![ScanPosition::default(); held.len()],
        opened: 0,
        kept: None,
        pages: None,
    }
}
