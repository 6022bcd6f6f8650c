//! A read-only call over the tables of a standby, at one view, while the log is replayed beneath. Each read of a table is short: it copies
//! a row or a page, and the guest sees the copy.

use std::{ops::Range, sync::Arc};

use reprise_abi::{
    ColumnSet, Handles, HostOps, IndexTarget, OpError, RowHandle, RowTaker, RowVisitor, ScanBatch, ScanRequest,
    TablePlacement, TableSchema,
    calls::{HANDLE_NONE, PackedItems},
};
use reprise_base::PartitionId;
use reprise_storage::{Rid, ScanPosition, ShownRow, StoreAtView, TableId, Visit, result_digest};

use crate::{
    keyplace::partition_between,
    module::{Executor, TableBinding},
    ops::{binding, guest, index_of, limited, may_write, ops_of_any_transaction},
    pages::{ENTRIES_AT_ONCE, ReadAheadPages},
    reach::{ReachKind, elsewhere, unplaced},
    run::{Commit, Outcome, TxnInput, call_failure},
    scan::{Cursor, range_of, scan_error, show},
    scratch::{Handle, TxnScratch},
    store_txn::cursor_of,
};

/// The partitions of a call, at one view.
pub trait ViewStores {
    /// Returns the partitions, ascending.
    fn partitions(&self) -> &[PartitionId];

    /// Runs `read` on one of them, by position, for a short time. Err: the view has ended, and the call with it.
    fn with_store(&mut self, at: usize, read: &mut dyn FnMut(StoreAtView<'_>)) -> Result<(), OpError>;

    /// Checks that the view still exists.
    fn go_on(&mut self) -> Result<(), OpError>;
}

/// Runs a read-only call at a view. `tables` are the stored ones of the view, by their ids.
pub fn run_at_view(
    stores: &mut dyn ViewStores,
    tables: &[Arc<TableSchema>],
    input: &TxnInput<'_>,
    executor: &mut dyn Executor,
    frame: &mut TxnScratch,
) -> Outcome {
    frame.clear();
    let ended = {
        let mut txn = ViewTxn {
            stores,
            tables,
            input,
            frame,
        };
        executor.call(input.procedure, &mut txn)
    };
    frame.end_call();
    frame.record_fuel(ended.fuel_used);
    match call_failure(input.check_result(ended.kind, frame), frame) {
        None => Outcome::Commit(Commit {
            digest: result_digest(frame.result()),
            rows_written: 0,
            bytes_written: 0,
        }),
        Some(failure) => Outcome::Fail(failure),
    }
}

struct ViewTxn<'a> {
    stores: &'a mut dyn ViewStores,
    tables: &'a [Arc<TableSchema>],
    input: &'a TxnInput<'a>,
    frame: &'a mut TxnScratch,
}

impl<'a> ViewTxn<'a> {
    /// Returns the stores that a read between two keys searches, like a transaction over several partitions.
    fn readable(
        &self,
        target: IndexTarget,
        binding: &TableBinding,
        kind: ReachKind,
        keys: (&[u8], &[u8]),
    ) -> Result<Range<usize>, OpError> {
        let partitions = self.stores.partitions();
        let all = 0..partitions.len();
        let column = match binding.placement {
            TablePlacement::Replicated => return Ok(0..1),
            TablePlacement::Local => return Ok(all),
            TablePlacement::By(column) => column,
        };
        let (schema, index) = (self.schema(binding), index_of(binding, target.index)?);
        let count = self.input.partitions_count;
        let held = || partitions.iter().copied();
        match partition_between(schema, index, column, keys, count) {
            Some(home) => match partitions.binary_search(&home) {
                Ok(at) => Ok(at..at + 1),
                Err(_) => Err(elsewhere(self.input, target.table, home, held())),
            },
            None if kind == ReachKind::Local || partitions.len() == count as usize => Ok(all),
            None => Err(unplaced(self.input, (target.table, binding), kind, held())),
        }
    }

    fn schema(&self, binding: &TableBinding) -> &'a TableSchema {
        &self.tables[binding.table.0 as usize]
    }

    /// Returns the store of a key's row, and copies the row to the frame.
    fn find(
        &mut self,
        (table, index): (TableId, u16),
        readable: Range<usize>,
        key: &[u8],
    ) -> Result<Option<(u16, Rid)>, OpError> {
        for at in readable {
            let (buffer, mut found) = (&mut self.frame.row, None);
            self.stores.with_store(at, &mut |mut store| {
                if let Some((rid, row)) = store.get_row(table, index, key) {
                    buffer.clear();
                    buffer.extend_from_slice(row);
                    found = Some(rid);
                }
            })?;
            if let Some(rid) = found {
                return Ok(Some((at as u16, rid)));
            }
        }
        Ok(None)
    }

    /// Returns the frame's row as the module knows it.
    fn narrowed(&mut self, binding: &TableBinding) -> &[u8] {
        if let Some(projection) = &binding.projection {
            self.frame.row = projection.narrow(&self.frame.row);
        }
        &self.frame.row
    }

    /// Returns the refusal of a write through a handle.
    fn refuse(&mut self, handle: RowHandle) -> Result<(), OpError> {
        self.frame.count_op()?;
        let Handle { table, .. } = self.frame.handle(handle)?;
        self.refuse_write(table)
    }

    fn refuse_write(&self, table: u16) -> Result<(), OpError> {
        binding(self.input, table)?;
        may_write(true)
    }

    fn cursor(&self, request: &ScanRequest<'_>) -> Result<Cursor, OpError> {
        range_of(request)?;
        let binding = binding(self.input, request.target.table)?;
        let index = index_of(binding, request.target.index)?;
        let (kind, keys) = (ReachKind::of(request.flags), (request.lower, request.upper));
        let readable = self.readable(request.target, binding, kind, keys)?;
        let mut cursor = cursor_of(request, binding, index, readable);
        let positions = std::mem::take(&mut cursor.positions);
        let pages = ReadAheadPages::new(self.schema(binding), (binding.table, index), positions);
        cursor.pages = Some(Box::new(pages));
        Ok(cursor)
    }

    /// Shows the next row of a scan. None: there is none; false: the visitor did not take it.
    fn show_next(&mut self, cursor: &mut Cursor, visit: &mut RowTaker<'_>) -> Result<Option<bool>, OpError> {
        let binding = binding(self.input, cursor.table)?;
        let mut pages = cursor.pages.take().expect("a scan at a view reads in pages");
        let filled = pages.fill(self.stores, cursor.first_store as usize, &cursor.request.range());
        let shown = filled.and_then(|()| {
            let Some(next) = pages.next() else { return Ok(None) };
            let at = next.at;
            let handle = Handle {
                table: cursor.table,
                store: cursor.first_store + at as u16,
                rid: next.rid,
            };
            let is_taken = show(self.frame, binding, handle, next.row, visit)?;
            if is_taken {
                pages.take(at);
            }
            Ok(Some(is_taken))
        });
        cursor.pages = Some(pages);
        shown
    }

    fn run_cursor(&mut self, mut cursor: Cursor, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        let mut rows = 0;
        while cursor.left != Some(0) {
            match self.show_next(&mut cursor, visit)? {
                None => break,
                Some(false) => {
                    let cursor = self.frame.push_cursor(cursor)?;
                    return Ok(ScanBatch { cursor, rows });
                }
                Some(true) => rows += 1,
            }
            if let Some(left) = &mut cursor.left {
                *left -= 1;
            }
        }
        Ok(ScanBatch { cursor: 0, rows })
    }
}

impl HostOps for ViewTxn<'_> {
    ops_of_any_transaction!();

    fn get(&mut self, target: IndexTarget, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        let readable = self.readable(target, binding, ReachKind::Key, (key, key))?;
        let Some((store, rid)) = self.find((binding.table, index), readable, key)? else {
            return Ok(None);
        };
        let table = target.table;
        let handle = self.frame.push_handle(Handle { table, store, rid })?;
        Ok(Some((handle, self.narrowed(binding))))
    }

    fn exists(&mut self, target: IndexTarget, key: &[u8]) -> Result<bool, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        let readable = self.readable(target, binding, ReachKind::Key, (key, key))?;
        Ok(self.find((binding.table, index), readable, key)?.is_some())
    }

    fn multi_get(
        &mut self,
        target: IndexTarget,
        keys: PackedItems<'_>,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), OpError> {
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        for key in keys {
            let readable = self.readable(target, binding, ReachKind::Key, (key, key))?;
            self.frame.count_op()?;
            match self.find((binding.table, index), readable, key)? {
                None => visit(HANDLE_NONE, &[]),
                Some((store, rid)) => {
                    let table = target.table;
                    let handle = self.frame.push_handle(Handle { table, store, rid })?;
                    visit(handle, self.narrowed(binding));
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        let binding = binding(self.input, table)?;
        let (buffer, mut is_there) = (&mut self.frame.row, false);
        self.stores.with_store(store as usize, &mut |mut store| {
            if let Some(row) = store.row(binding.table, rid) {
                buffer.clear();
                buffer.extend_from_slice(row);
                is_there = true;
            }
        })?;
        match is_there {
            true => Ok(self.narrowed(binding)),
            false => Err(guest(format!("row {handle} was deleted"))),
        }
    }

    fn insert(&mut self, table: u16, _: &[u8]) -> Result<RowHandle, OpError> {
        self.frame.count_op()?;
        self.refuse_write(table)?;
        Ok(HANDLE_NONE)
    }

    fn update(&mut self, handle: RowHandle, _: &[u8]) -> Result<(), OpError> {
        self.refuse(handle)
    }

    fn patch(&mut self, table: u16, handle: RowHandle, _: ColumnSet, _: &[u8]) -> Result<(), OpError> {
        self.frame.handle_in(table, handle)?;
        self.refuse_write(table)
    }

    fn multi_patch(&mut self, table: u16, _: Handles<'_>, _: ColumnSet, _: usize, _: &[u8]) -> Result<(), OpError> {
        self.refuse_write(table)
    }

    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        self.refuse(handle)
    }

    fn add(&mut self, handle: RowHandle, _: u16, _: i64) -> Result<i64, OpError> {
        self.refuse(handle)?;
        Ok(0)
    }

    fn scan(&mut self, request: &ScanRequest<'_>, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        self.frame.count_op()?;
        let mut cursor = self.cursor(request)?;
        let stores = cursor.pages.as_ref().map_or(0, |pages| pages.stores());
        // Ordinary transactions also read one row without a cursor.
        if (stores, request.limit) == (1, 1) {
            match self.show_next(&mut cursor, visit)? {
                None => return Ok(ScanBatch { cursor: 0, rows: 0 }),
                Some(true) => return Ok(ScanBatch { cursor: 0, rows: 1 }),
                Some(false) => {}
            }
        }
        self.run_cursor(cursor, visit)
    }

    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError> {
        self.frame.count_op()?;
        let range = range_of(request)?;
        let binding = binding(self.input, request.target.table)?;
        let index = index_of(binding, request.target.index)?;
        let (kind, keys) = (ReachKind::of(request.flags), (request.lower, request.upper));
        let mut count = 0;
        for at in self.readable(request.target, binding, kind, keys)? {
            let mut position = ScanPosition::default();
            while !position.is_end() {
                let (mut rows, mut scanned) = (0, Ok(()));
                self.stores.with_store(at, &mut |mut store| {
                    let on_row = |_: ShownRow<'_>| {
                        rows += 1;
                        Visit::Next
                    };
                    let upto = (&mut position, ENTRIES_AT_ONCE);
                    scanned = store.scan(binding.table, index, &range, upto, on_row);
                })?;
                scanned.map_err(scan_error)?;
                self.frame.count_walked(rows)?;
                count += rows;
            }
        }
        Ok(limited(count, request.limit))
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        self.frame.count_op()?;
        self.frame.push_savepoint(Vec::new())
    }

    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        self.frame.count_op()?;
        self.frame.savepoint(savepoint).map(|_| ())
    }

    fn go_on(&mut self) -> Result<(), OpError> {
        self.stores.go_on()?;
        self.frame.watch.ask_after(0)
    }
}
