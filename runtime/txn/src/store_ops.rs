//! Host calls of a guest over the held stores.

use reprise_abi::{
    ColumnPlan, ColumnSet, FixedSlots, Handles, HostOps, IndexTarget, OpError, OutBuffer, ReadSpan, RowHandle,
    RowTaker, RowVisitor, ScanBatch, ScanRequest, TablePlacement,
    calls::{EqualKeys, HANDLE_NONE, PackedItems, fill_slots, look_up_rows, scan_rows},
};
use reprise_storage::{Rid, ScanPosition};

use crate::{
    ops::{binding, guest, index_of, limited, ops_of_any_transaction, patch_row, write_error},
    patches::Patches,
    row_placement::{MOVED, may_move},
    rowmap::row_key,
    scan::{Leg, count_rows, range_of, read_columns, read_on_one, scan_error, show},
    scratch::Handle,
    store_set::StoreSet,
    store_txn::{LookUp, StoreTxn, cursor_of, first_found},
};

impl<S: StoreSet> HostOps for StoreTxn<'_, S> {
    ops_of_any_transaction!();

    fn get(&mut self, target: IndexTarget, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        let held = self.readable(target, binding, key)?;
        let found = first_found(held, |at| self.stores.store(at).get_row(binding.table, index, key));
        let Some((store, (rid, row))) = found else {
            return Ok(None);
        };
        let (table, store) = (target.table, store as u16);
        let handle = self.frame.push_handle(Handle { table, store, rid })?;
        if let Some(projection) = &binding.projection {
            self.frame.row = projection.narrow(row);
            return Ok(Some((handle, &self.frame.row)));
        }
        Ok(Some((handle, row)))
    }

    fn exists(&mut self, target: IndexTarget, key: &[u8]) -> Result<bool, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        Ok(self.find(target, binding, key)?.is_some())
    }

    fn multi_get(
        &mut self,
        target: IndexTarget,
        keys: PackedItems<'_>,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), OpError> {
        let binding = binding(self.input, target.table)?;
        let what = LookUp {
            target,
            binding,
            index: index_of(binding, target.index)?,
            prefetch: ReadSpan::ALL,
        };
        self.look_up(&what, keys, visit)
    }

    fn multi_get_columns(
        &mut self,
        target: IndexTarget,
        mut keys: PackedItems<'_>,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<usize, OpError> {
        let binding = binding(self.input, target.table)?;
        if binding.projection.is_some() {
            return look_up_rows(self, target, keys, plan, out);
        }
        let index = index_of(binding, target.index)?;
        let (prefetch, table) = (plan.prefetch(), target.table);
        if !S::IS_ONE || !self.frame.count_many(keys.len()) {
            let what = LookUp {
                target,
                binding,
                index,
                prefetch,
            };
            let mut room = OutBuffer::new(plan, out);
            self.look_up(&what, keys, &mut |handle, row| room.push(handle, row))?;
            return Ok(room.filled());
        }
        // The limits were checked once before, so that no single row can fail.
        if self.places_matter(binding) {
            let rest = keys;
            keys.try_for_each(|key| self.readable(target, binding, key).map(drop))?;
            keys = rest;
        }
        let frame = &mut *self.frame;
        let mut room = OutBuffer::new(plan, out);
        let handle = |rid| Handle { table, store: 0, rid };
        let store = self.stores.store(0);
        store.multi_get_rows(binding.table, index, keys, prefetch, |found, rows| {
            if found.iter().all(Option::is_some) {
                let rids = found.iter().map(|found| found.map_or(Rid(0), |(rid, _)| rid));
                return room.push_all(frame.push_all(rids.map(handle)), rows);
            }
            for (found, row) in found.iter().zip(rows) {
                match found {
                    Some((rid, _)) => room.push(frame.push_counted(handle(*rid)), row),
                    None => room.push(HANDLE_NONE, &[]),
                }
            }
        });
        Ok(room.filled())
    }

    fn multi_get_slots(
        &mut self,
        target: IndexTarget,
        keys: EqualKeys<'_>,
        mut slots: FixedSlots<'_>,
    ) -> Result<usize, OpError> {
        let binding = binding(self.input, target.table)?;
        if binding.projection.is_some() {
            return fill_slots(self, target, keys, slots);
        }
        let index = index_of(binding, target.index)?;
        let (prefetch, table) = (slots.plan().prefetch(), target.table);
        if !S::IS_ONE || !self.frame.count_many(keys.count()) {
            let what = LookUp {
                target,
                binding,
                index,
                prefetch,
            };
            self.look_up(&what, keys.iter(), &mut |handle, row| slots.put(handle, row))?;
            return Ok(slots.misfits());
        }
        // See `multi_get_columns` for the reason.
        if self.places_matter(binding) {
            keys.iter()
                .try_for_each(|key| self.readable(target, binding, key).map(drop))?;
        }
        let frame = &mut *self.frame;
        let visit = |found: Option<(Rid, &[u8])>| match found {
            None => slots.put(HANDLE_NONE, &[]),
            Some((rid, row)) => {
                let handle = frame.push_counted(Handle { table, store: 0, rid });
                slots.put(handle, row);
            }
        };
        let store = self.stores.store(0);
        store.multi_get_equal(binding.table, index, keys, prefetch, visit);
        Ok(slots.misfits())
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        let binding = binding(self.input, table)?;
        let row = row_key(store, binding.table, rid);
        self.frame.changed.read_again(row, handle);
        self.seen_row(binding, store.into(), rid)
    }

    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        self.frame.count_op()?;
        let binding = self.writable(table)?;
        let row = self.widened(binding, row)?;
        let store = self.home(table, binding, &row)?;
        let rid = self.write(binding, store, None, |store| store.insert(binding.table, &row))?;
        if !S::IS_ONE && binding.placement == TablePlacement::Replicated {
            for at in 1..self.stores.count() {
                self.write(binding, at, None, |store| store.insert(binding.table, &row))?;
            }
        }
        self.check_place(table, binding, rid)?;
        let store = store as u16;
        self.frame.push_handle(Handle { table, store, rid })
    }

    fn multi_insert(&mut self, table: u16, rows: PackedItems<'_>) -> Result<RowHandle, OpError> {
        let (count, mut first) = (rows.len(), HANDLE_NONE);
        let binding = match count {
            0 => return Ok(first),
            _ => self.writable(table)?,
        };
        let is_slow = !S::IS_ONE || binding.projection.is_some() || self.frame.open > 0;
        if is_slow || !self.frame.count_many(count) {
            for row in rows {
                first = first.min(self.insert(table, row)?);
            }
            return Ok(first);
        }
        let (frame, store) = (&mut *self.frame, self.stores.store_mut(0));
        let before = frame.handles.len();
        let inserted = store.multi_insert(binding.table, rows, |rid| {
            frame.push_counted(Handle { table, store: 0, rid });
        });
        let taken = frame.handles.len() - before;
        if taken > 0 {
            first = before as RowHandle;
        }
        if self.places_matter(binding) {
            for at in before..before + taken {
                self.check_place(table, binding, self.frame.handles[at].rid)?;
            }
        }
        self.check_written(0)?;
        if let Err(error) = inserted {
            self.frame.uncount(count - taken - 1);
            return Err(write_error(error, binding));
        }
        Ok(first)
    }

    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        let binding = self.writable(table)?;
        let key = row_key(store, binding.table, rid);
        self.check_current(table, key, handle)?;
        let store = store.into();
        let row = self.widened_over(binding, row, store, rid)?;
        if !S::IS_ONE && matches!(binding.placement, TablePlacement::By(_)) && self.home(table, binding, &row)? != store
        {
            return Err(guest(MOVED));
        }
        self.write_copies(binding, store, rid, |store, rid| store.update(binding.table, rid, &row))?;
        self.record_change(key, Some(handle));
        self.check_place(table, binding, rid)
    }

    fn patch(&mut self, table: u16, handle: RowHandle, columns: ColumnSet, values: &[u8]) -> Result<(), OpError> {
        let Handle { store, rid, .. } = self.frame.handle_in(table, handle)?;
        let binding = self.writable(table)?;
        self.frame.count_op()?;
        if binding.projection.is_some() || !S::IS_ONE && may_move(binding, columns) {
            let mut row = Vec::new();
            patch_row(
                binding,
                self.seen_row(binding, store.into(), rid)?,
                columns,
                values,
                &mut row,
            )?;
            return self.update(handle, &row);
        }
        let key = row_key(store, binding.table, rid);
        self.check_current(table, key, handle)?;
        self.write_copies(binding, store.into(), rid, |store, rid| {
            store.patch(binding.table, rid, columns, values)
        })?;
        self.record_change(key, Some(handle));
        self.check_place(table, binding, rid)
    }

    fn multi_patch(
        &mut self,
        table: u16,
        handles: Handles<'_>,
        columns: ColumnSet,
        bytes_each: usize,
        values: &[u8],
    ) -> Result<(), OpError> {
        let binding = self.writable(table)?;
        let patches = Patches {
            table,
            handles,
            columns,
            bytes_each,
            values,
        };
        let has_copies = !S::IS_ONE && binding.placement == TablePlacement::Replicated;
        let is_slow = may_move(binding, columns) || binding.projection.is_some() || self.frame.open > 0;
        match (is_slow || has_copies, S::IS_ONE) {
            (true, _) => self.patch_each(&patches),
            (false, true) => self.patch_here(&patches, binding),
            (false, false) => self.patch_among(&patches, binding),
        }
    }

    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        let binding = self.writable(table)?;
        self.write_copies(binding, store.into(), rid, |store, rid| {
            store.delete(binding.table, rid)
        })
    }

    fn add(&mut self, handle: RowHandle, column: u16, delta: i64) -> Result<i64, OpError> {
        self.frame.count_op()?;
        let found = self.frame.handle(handle)?;
        let binding = self.writable(found.table)?;
        let row = row_key(found.store, binding.table, found.rid);
        let writer = self.frame.changed.is_current(row, handle).then_some(handle);
        self.add_at(binding, found, writer, column, delta)
    }

    fn add_by_key(&mut self, target: IndexTarget, key: &[u8], column: u16, delta: i64) -> Result<Option<i64>, OpError> {
        self.frame.count_op()?;
        let (binding, table) = (binding(self.input, target.table)?, target.table);
        let Some((store, rid)) = self.find(target, binding, key)? else {
            return Ok(None);
        };
        self.frame.count_op()?;
        self.check_writable(binding)?;
        let store = store as u16;
        self.add_at(binding, Handle { table, store, rid }, None, column, delta)
            .map(Some)
    }

    fn scan(&mut self, request: &ScanRequest<'_>, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        self.frame.count_op()?;
        let range = range_of(request)?;
        let table = request.target.table;
        let binding = binding(self.input, table)?;
        let index = index_of(binding, request.target.index)?;
        let held = self.readable_range(request, binding)?;
        if request.limit == 1 && held.len() == 1 {
            // The most frequent scan by far ("the last one") needs no cursor and no allocation.
            let store = self.stores.store(held.start);
            let first = store.first(binding.table, index, &range);
            let Some(rid) = first.map_err(scan_error)? else {
                return Ok(ScanBatch { cursor: 0, rows: 0 });
            };
            let row = store.row(binding.table, rid).expect("an index names live rows");
            let store = held.start as u16;
            if show(self.frame, binding, Handle { table, store, rid }, row, visit)? {
                return Ok(ScanBatch { cursor: 0, rows: 1 });
            }
        }
        self.run_cursor(cursor_of(request, binding, index, held), visit)
    }

    fn scan_columns(
        &mut self,
        request: &ScanRequest<'_>,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<(ScanBatch, usize), OpError> {
        let (table, range) = (request.target.table, range_of(request)?);
        let binding = binding(self.input, table)?;
        if binding.projection.is_some() || !plan.is_fixed() {
            return scan_rows(plan, out, |visit| self.scan(request, visit));
        }
        let index = index_of(binding, request.target.index)?;
        let held = self.readable_range(request, binding)?;
        if held.len() != 1 {
            return scan_rows(plan, out, |visit| self.scan(request, visit));
        }
        self.frame.count_op()?;
        let mut leg = Leg {
            table,
            store: held.start as u16,
            stored: binding.table,
            index,
            range,
            position: ScanPosition::default(),
            left: (request.limit > 0).then_some(request.limit),
        };
        let (rows, filled) = read_on_one(self.stores.store(held.start), self.frame, &mut leg, plan, out)?;
        if leg.is_end() {
            return Ok((ScanBatch { cursor: 0, rows }, filled));
        }
        let mut cursor = cursor_of(request, binding, index, held);
        (cursor.left, cursor.positions[0]) = (leg.left, leg.position);
        let cursor = self.frame.push_cursor(cursor)?;
        Ok((ScanBatch { cursor, rows }, filled))
    }

    fn scan_next_columns(
        &mut self,
        cursor: u32,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<(ScanBatch, usize), OpError> {
        let table = self.frame.table_of_cursor(cursor);
        let is_projected = |table| Ok(binding(self.input, table)?.projection.is_some());
        let is_walking = self.frame.stores_of_cursor(cursor) == 1;
        if !plan.is_fixed() || !is_walking || table.map_or(Ok(true), is_projected)? {
            return scan_rows(plan, out, |visit| self.scan_next(cursor, visit));
        }
        self.frame.count_op()?;
        let cursor = self.frame.take_cursor(cursor)?;
        let store = self.stores.store(cursor.first_store.into());
        read_columns(store, self.frame, cursor, plan, out)
    }

    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError> {
        self.frame.count_op()?;
        let range = range_of(request)?;
        let binding = binding(self.input, request.target.table)?;
        let index = index_of(binding, request.target.index)?;
        let mut count = 0;
        for at in self.readable_range(request, binding)? {
            count += count_rows(self.stores.store(at), self.frame, (binding.table, index), &range)?;
        }
        Ok(limited(count, request.limit))
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        self.frame.count_op()?;
        let savepoints = (0..self.stores.count()).map(|at| self.stores.store(at).savepoint());
        self.frame.push_savepoint(savepoints.collect())
    }

    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        self.frame.count_op()?;
        let savepoints = self.frame.savepoint(savepoint)?.to_vec();
        let given = self.frame.handles.len();
        for (at, savepoint) in savepoints.iter().enumerate() {
            let written: Vec<_> = self.stores.store(at).written_since(savepoint).collect();
            for (table, rid, is_new) in written {
                self.keep_before(table, at, Some(rid))?;
                if !is_new {
                    self.frame.changed.record(row_key(at as u16, table, rid), given, None);
                }
            }
        }
        for (at, savepoint) in savepoints.into_iter().enumerate() {
            self.stores.store_mut(at).rollback_to(savepoint);
            self.frame.insert_objects(at, self.stores.store(at));
        }
        self.stores.count_written();
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), OpError> {
        let writes = (0..self.stores.count()).map(|at| self.stores.store(at).undo_count());
        self.frame.watch.ask_after(writes.sum())
    }
}
