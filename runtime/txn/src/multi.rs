//! A transaction over several partitions, all held by one thread.
//!
//! Rows placed by a column lie on the partition that its value names, and a read whose keys hold that value looks there
//! alone; a replicated table is written on all and read from the first; of a partition-local table reads see all rows, and
//! inserts go to the first touched partition. Keys, handles and scans that lie on one partition in a row are passed to its
//! store together, as a transaction on one partition does.

use std::{borrow::Cow, ops::Range};

use reprise_abi::{
    ColumnPlan, ColumnSet, FixedSlots, Handles, HostOps, OpError, OutBuffer, Placement, ReadSpan, RowHandle,
    ScalarType, ScanBatch, ScanRequest, Target,
    calls::{EqualKeys, HANDLE_NONE, Packed, fill_slots, look_up_rows, scan_rows},
};
use reprise_base::PartitionId;
use reprise_storage::{Rid, ScanPosition, Store, TableId, WriteError};

use crate::{
    held::{Copies, LookUp, MOVED, may_move, shared},
    kept::{Written, keep_before, run_kept},
    keyplace::partition_between,
    module::TableBinding,
    ops::{binding, guest, index_of, limited, may_write, ops_of_any_transaction, patch_row, write_error},
    reach::{Look, elsewhere, outdated, unplaced},
    route::partition_of_field,
    rowmap::row_key,
    run::TxnInput,
    scan::{Cursor, Merge, OwnedRange, count_rows, range_of, read_columns, run_on_one, show},
    scratch::{AT_ONCE_MAX, Handle, TxnScratch},
};

pub(crate) struct MultiTxn<'a, 's> {
    /// Ascending by partition.
    stores: &'a mut [(PartitionId, &'s mut Store)],
    input: &'a TxnInput<'a>,
    frame: &'a mut TxnScratch,
    is_read_only: bool,
    /// Bytes that were written on all stores together.
    written: usize,
}

impl<'a, 's> MultiTxn<'a, 's> {
    pub fn new(
        stores: &'a mut [(PartitionId, &'s mut Store)],
        input: &'a TxnInput<'a>,
        frame: &'a mut TxnScratch,
    ) -> Self {
        Self {
            stores,
            input,
            frame,
            is_read_only: input.module.schema.procedures[input.procedure].read_only,
            written: 0,
        }
    }

    /// Open cursors of the table keep what they have still to show.
    fn keep_before(&mut self, table: TableId, store: usize, rid: Option<Rid>) -> Result<(), OpError> {
        if self.frame.open == 0 {
            return Ok(());
        }
        let store = store as u16;
        keep_before(
            self.frame,
            &shared(&self.stores[..]),
            Written { table, store, rid },
            self.written,
        )
    }

    fn check_current(&self, table: u16, row: u64, handle: RowHandle) -> Result<(), OpError> {
        match self.frame.changed.is_current(row, handle) {
            true => Ok(()),
            false => Err(outdated(self.input, table)),
        }
    }

    fn note_change(&mut self, row: u64, writer: Option<RowHandle>) {
        self.frame.changed.note(row, self.frame.handles.len(), writer);
    }

    /// Makes a change on one store, to a row that there is or of a new one, and judges how much was written since the
    /// transaction began.
    fn write<T>(
        &mut self,
        binding: &TableBinding,
        (store, rid): (usize, Option<Rid>),
        change: impl FnOnce(&mut Store) -> Result<T, WriteError>,
    ) -> Result<T, OpError> {
        self.keep_before(binding.table, store, rid)?;
        let (at, store) = (store, &mut *self.stores[store].1);
        let before = store.write_set_bytes();
        let changed = change(store).map_err(|error| write_error(error, binding))?;
        self.written += store.write_set_bytes() - before;
        self.frame.insert_objects(at, store);
        self.frame.check_written(self.written)?;
        Ok(changed)
    }

    /// The held stores that a read between two keys of an index looks at: of a replicated table the first knows all, and where
    /// the keys hold the partition column, one store knows all. Err: there may be rows on partitions that are not held.
    fn readable(
        &self,
        target: Target,
        binding: &TableBinding,
        look: Look,
        keys: (&[u8], &[u8]),
    ) -> Result<Range<usize>, OpError> {
        let all = 0..self.stores.len();
        let column = match binding.placement {
            Placement::Replicated => return Ok(0..1),
            Placement::Local => return Ok(all),
            Placement::By(column) => column,
        };
        let (schema, index) = (self.stores[0].1.schema(binding.table), index_of(binding, target.index)?);
        match partition_between(schema, index, column, keys, self.input.partitions_count) {
            Some(home) => match self.held(home) {
                Some(at) => Ok(at..at + 1),
                None => Err(elsewhere(self.input, target.table, home, self.partitions())),
            },
            None if look == Look::Local || self.holds_all() => Ok(all),
            None => Err(unplaced(self.input, (target.table, binding), look, self.partitions())),
        }
    }

    fn partitions(&self) -> impl Iterator<Item = PartitionId> {
        self.stores.iter().map(|(id, _)| *id)
    }

    fn holds_all(&self) -> bool {
        self.stores.len() == self.input.partitions_count as usize
    }

    /// Where a partition lies among those held.
    fn held(&self, partition: PartitionId) -> Option<usize> {
        if self.holds_all() {
            return Some(partition.index());
        }
        self.stores.binary_search_by_key(&partition, |(id, _)| *id).ok()
    }

    fn writable(&self, table: u16) -> Result<&'a TableBinding, OpError> {
        let binding = binding(self.input, table)?;
        may_write(self.is_read_only)?;
        if binding.placement == Placement::Replicated && !self.holds_all() {
            return Err(guest(
                "a replicated table is written by procedures that touch all partitions",
            ));
        }
        Ok(binding)
    }

    fn stored_row(&self, store: usize, table: TableId, rid: Rid) -> Result<&[u8], OpError> {
        let row = self.stores[store].1.row(table, rid);
        row.ok_or_else(|| guest("the row was deleted"))
    }

    /// The row as the module knows it.
    fn seen_row(&mut self, binding: &TableBinding, store: usize, rid: Rid) -> Result<&[u8], OpError> {
        if let Some(projection) = &binding.projection {
            self.frame.row = projection.narrow(self.stored_row(store, binding.table, rid)?);
            return Ok(&self.frame.row);
        }
        self.stored_row(store, binding.table, rid)
    }

    /// The held store on which a stored row belongs.
    fn home(&self, table: u16, binding: &TableBinding, row: &[u8]) -> Result<usize, OpError> {
        let Placement::By(column) = binding.placement else {
            return Ok(0);
        };
        let (layout, schema) = (
            self.stores[0].1.layout(binding.table),
            self.stores[0].1.schema(binding.table),
        );
        // A value of fixed width can be read of any row that is long enough; the store judges the rest of it.
        let is_variable = matches!(schema.columns[column as usize].ty, ScalarType::Text | ScalarType::Bytes);
        if is_variable || row.len() < layout.fixed_bytes() {
            layout.validate(row).map_err(|error| guest(error.to_string()))?;
        }
        let home = partition_of_field(&layout.field(row, column), self.input.partitions_count);
        self.held(home)
            .ok_or_else(|| elsewhere(self.input, table, home, self.partitions()))
    }

    /// The row as it is to be stored.
    fn widened<'r>(&self, binding: &TableBinding, row: &'r [u8], old: Option<&[u8]>) -> Result<Cow<'r, [u8]>, OpError> {
        let Some(projection) = &binding.projection else {
            return Ok(Cow::Borrowed(row));
        };
        let widened = match old {
            None => projection.widen_insert(row),
            Some(old) => projection.widen_update(row, old),
        };
        let widened = widened.map_err(|error| guest(error.to_string()))?;
        Ok(Cow::Owned(widened))
    }

    /// The stores that a change of this row has to be made on, with the row's place in each.
    fn copies(&self, binding: &TableBinding, store: usize, rid: Rid) -> Result<Copies, OpError> {
        if binding.placement != Placement::Replicated {
            return Ok(Copies::One((store, rid)));
        }
        let row = self.stored_row(store, binding.table, rid)?;
        let first = &self.stores[0].1;
        let mut key = Vec::new();
        first
            .layout(binding.table)
            .push_key(row, &first.schema(binding.table).primary_key, &mut key);
        let found = self.stores.iter().enumerate().map(|(at, (id, store))| {
            let rid = store.get(binding.table, 0, &key);
            let missing = || guest(format!("partition {id} lacks a row of a replicated table"));
            rid.map(|rid| (at, rid)).ok_or_else(missing)
        });
        Ok(Copies::All(found.collect::<Result<_, _>>()?))
    }

    /// The held store on which a key's row lies, and the row's place there.
    fn find(&self, target: Target, key: &[u8]) -> Result<Option<(usize, Rid)>, OpError> {
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        let find_on = |at: usize| self.stores[at].1.find(binding.table, index, key);
        let mut readable = self.readable(target, binding, Look::Key, (key, key))?;
        Ok(readable.find_map(|at| Some((at, find_on(at)?))))
    }

    /// Adds to a column of a row that lies on a held store.
    fn add_at(
        &mut self,
        table: u16,
        ((store, rid), handle): ((usize, Rid), Option<RowHandle>),
        column: u16,
        delta: i64,
    ) -> Result<i64, OpError> {
        let binding = self.writable(table)?;
        let row = row_key(store as u16, binding.table, rid);
        let writer = handle.filter(|handle| self.frame.changed.is_current(row, *handle));
        let mut value = 0;
        for &(at, rid) in self.copies(binding, store, rid)?.places() {
            value = self.write(binding, (at, Some(rid)), |store| {
                store.add(binding.table, rid, column, delta)
            })?;
        }
        self.note_change(row, writer);
        // What was added to may have been the column that says where the row belongs.
        if binding.placement == Placement::By(column)
            && self.home(table, binding, self.stored_row(store, binding.table, rid)?)? != store
        {
            return Err(guest(MOVED));
        }
        Ok(value)
    }

    /// Looks up many keys, each run of keys that lie on the same stores at once.
    fn look_up<'k>(
        &mut self,
        what: &LookUp<'_>,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        visit: &mut dyn FnMut(RowHandle, &[u8]),
    ) -> Result<(), OpError> {
        let (mut rest, mut run, mut count, mut held) = (keys.clone(), keys, 0, 0..0);
        loop {
            let from = rest.clone();
            let readable = |key| self.readable(what.target, what.binding, Look::Key, (key, key));
            let next = rest.next().map(readable).transpose()?;
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
        visit: &mut dyn FnMut(RowHandle, &[u8]),
    ) -> Result<(), OpError> {
        let (stores, frame, binding) = (&*self.stores, &mut *self.frame, what.binding);
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
            let store = &stores[at].1;
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
            let row_on = |at: usize| stores[at].1.get_row(binding.table, what.index, key);
            let found = held.clone().find_map(|at| Some((at, row_on(at)?)));
            match found {
                Some((at, found)) => on_found(at, Some(found))?,
                None => on_found(0, None)?,
            }
        }
        Ok(())
    }

    /// An open scan of a range on the stores that it may lie on.
    fn cursor(&self, request: &ScanRequest<'_>) -> Result<Cursor, OpError> {
        range_of(request)?;
        let binding = binding(self.input, request.target.table)?;
        let index = index_of(binding, request.target.index)?;
        let (look, keys) = (Look::of(request.flags), (request.lower, request.upper));
        let readable = self.readable(request.target, binding, look, keys)?;
        Ok(Cursor {
            table: request.target.table,
            stored: binding.table,
            index,
            request: OwnedRange::new(request),
            left: (request.limit > 0).then_some(request.limit),
            first_store: readable.start as u16,
            positions: vec![ScanPosition::default(); readable.len()],
            opened: 0,
            kept: None,
            pages: None,
        })
    }

    fn run_cursor(
        &mut self,
        mut cursor: Cursor,
        visit: &mut dyn FnMut(RowHandle, &[u8]) -> bool,
    ) -> Result<ScanBatch, OpError> {
        let binding = binding(self.input, cursor.table)?;
        let first = cursor.first_store as usize;
        if cursor.kept.is_some() {
            return run_kept(&shared(&self.stores[..]), binding, self.frame, cursor, visit);
        }
        if cursor.positions.len() == 1 {
            let store = &*self.stores[first].1;
            return run_on_one(store, binding, self.frame, cursor, visit);
        }
        let positions = std::mem::take(&mut cursor.positions);
        let scanned = first..first + positions.len();
        let mut merge = {
            let stores = shared(&self.stores[scanned.clone()]);
            let range = cursor.request.range();
            Merge::new(&stores, cursor.stored, cursor.index, range, positions)?
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
                cursor.positions = merge.into_positions(&shared(&self.stores[scanned]))?;
                let cursor = self.frame.push_cursor(cursor)?;
                return Ok(ScanBatch { cursor, rows });
            }
            rows += 1;
            if let Some(left) = &mut cursor.left {
                *left -= 1;
            }
            merge.advance(at, self.stores[store].1)?;
        }
        Ok(ScanBatch { cursor: 0, rows })
    }
}

impl HostOps for MultiTxn<'_, '_> {
    ops_of_any_transaction!();

    fn get(&mut self, target: Target, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        let mut readable = self.readable(target, binding, Look::Key, (key, key))?;
        let found = readable.find_map(|at| Some((at, self.stores[at].1.get_row(binding.table, index, key)?)));
        let Some((store, (rid, row))) = found else {
            return Ok(None);
        };
        let handle = self.frame.push_handle(Handle {
            table: target.table,
            store: store as u16,
            rid,
        })?;
        if let Some(projection) = &binding.projection {
            self.frame.row = projection.narrow(row);
            return Ok(Some((handle, &self.frame.row)));
        }
        Ok(Some((handle, row)))
    }

    fn exists(&mut self, target: Target, key: &[u8]) -> Result<bool, OpError> {
        self.frame.count_op()?;
        Ok(self.find(target, key)?.is_some())
    }

    fn multi_get(
        &mut self,
        target: Target,
        keys: Packed<'_>,
        visit: &mut dyn FnMut(RowHandle, &[u8]),
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
        target: Target,
        keys: Packed<'_>,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<usize, OpError> {
        let binding = binding(self.input, target.table)?;
        if binding.projection.is_some() {
            return look_up_rows(self, target, keys, plan, out);
        }
        let what = LookUp {
            target,
            binding,
            index: index_of(binding, target.index)?,
            prefetch: plan.prefetch(),
        };
        let mut room = OutBuffer::new(plan, out);
        self.look_up(&what, keys, &mut |handle, row| room.push(handle, row))?;
        Ok(room.filled())
    }

    fn multi_get_slots(
        &mut self,
        target: Target,
        keys: EqualKeys<'_>,
        mut slots: FixedSlots<'_>,
    ) -> Result<usize, OpError> {
        let binding = binding(self.input, target.table)?;
        if binding.projection.is_some() {
            return fill_slots(self, target, keys, slots);
        }
        let what = LookUp {
            target,
            binding,
            index: index_of(binding, target.index)?,
            prefetch: slots.plan().prefetch(),
        };
        self.look_up(&what, keys.iter(), &mut |handle, row| slots.put(handle, row))?;
        Ok(slots.misfits())
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        let binding = binding(self.input, table)?;
        self.frame
            .changed
            .read_again(row_key(store, binding.table, rid), handle);
        self.seen_row(binding, store as usize, rid)
    }

    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        self.frame.count_op()?;
        let binding = self.writable(table)?;
        let row = self.widened(binding, row, None)?;
        let home = self.home(table, binding, &row)?;
        let targets = match binding.placement {
            Placement::Replicated => 0..self.stores.len(),
            Placement::By(_) | Placement::Local => home..home + 1,
        };
        let mut first = None;
        for at in targets {
            let rid = self.write(binding, (at, None), |store| store.insert(binding.table, &row))?;
            first.get_or_insert((at, rid));
        }
        let (store, rid) = first.expect("a row goes to at least one store");
        self.frame.push_handle(Handle {
            table,
            store: store as u16,
            rid,
        })
    }

    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        let binding = self.writable(table)?;
        let key = row_key(store, binding.table, rid);
        self.check_current(table, key, handle)?;
        let store = store as usize;
        let old = self.stored_row(store, binding.table, rid)?;
        let row = self.widened(binding, row, Some(old))?;
        if matches!(binding.placement, Placement::By(_)) && self.home(table, binding, &row)? != store {
            return Err(guest(MOVED));
        }
        for &(at, rid) in self.copies(binding, store, rid)?.places() {
            self.write(binding, (at, Some(rid)), |store| store.update(binding.table, rid, &row))?;
        }
        self.note_change(key, Some(handle));
        Ok(())
    }

    fn patch(&mut self, table: u16, handle: RowHandle, columns: ColumnSet, values: &[u8]) -> Result<(), OpError> {
        let Handle { store, rid, .. } = self.frame.handle_in(table, handle)?;
        let binding = self.writable(table)?;
        if may_move(binding, columns) || binding.projection.is_some() {
            self.frame.count_op()?;
            let mut row = Vec::new();
            patch_row(
                binding,
                self.seen_row(binding, store as usize, rid)?,
                columns,
                values,
                &mut row,
            )?;
            return self.update(handle, &row);
        }
        self.frame.count_op()?;
        let key = row_key(store, binding.table, rid);
        self.check_current(table, key, handle)?;
        for &(at, rid) in self.copies(binding, store as usize, rid)?.places() {
            self.write(binding, (at, Some(rid)), |store| {
                store.patch(binding.table, rid, columns, values)
            })?;
        }
        self.note_change(key, Some(handle));
        Ok(())
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
        let is_in_place = binding.projection.is_none() && !may_move(binding, columns) && self.frame.open == 0;
        let given = self.frame.handles.len();
        let values = |at: usize| &values[at * bytes_each..(at + 1) * bytes_each];
        let mut at = 0;
        while at < handles.len() {
            let store = self.frame.handle_in(table, handles.at(at))?.store;
            let before = self.stores[store as usize].1.write_set_bytes();
            let patcher = match is_in_place && binding.placement != Placement::Replicated {
                true => self.stores[store as usize].1.patcher(binding.table, columns),
                false => None,
            };
            let Some(mut patcher) = patcher else {
                self.patch(table, handles.at(at), columns, values(at))?;
                at += 1;
                continue;
            };
            while at < handles.len() {
                let handle = self.frame.handle_in(table, handles.at(at))?;
                if handle.store != store {
                    break;
                }
                self.frame.count_op()?;
                let row = row_key(store, binding.table, handle.rid);
                if !self.frame.changed.is_current(row, handles.at(at)) {
                    return Err(outdated(self.input, table));
                }
                self.frame.changed.note(row, given, Some(handles.at(at)));
                let patched = patcher.patch(handle.rid, values(at));
                patched.map_err(|error| write_error(error, binding))?;
                at += 1;
            }
            let patched = &*self.stores[store as usize].1;
            self.written += patched.write_set_bytes() - before;
            self.frame.insert_objects(store as usize, patched);
            self.frame.check_written(self.written)?;
        }
        Ok(())
    }

    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        let binding = self.writable(table)?;
        for &(at, rid) in self.copies(binding, store as usize, rid)?.places() {
            self.write(binding, (at, Some(rid)), |store| store.delete(binding.table, rid))?;
        }
        Ok(())
    }

    fn add(&mut self, handle: RowHandle, column: u16, delta: i64) -> Result<i64, OpError> {
        self.frame.count_op()?;
        let Handle { table, store, rid } = self.frame.handle(handle)?;
        self.add_at(table, ((store as usize, rid), Some(handle)), column, delta)
    }

    fn add_by_key(&mut self, target: Target, key: &[u8], column: u16, delta: i64) -> Result<Option<i64>, OpError> {
        self.frame.count_op()?;
        let Some(place) = self.find(target, key)? else {
            return Ok(None);
        };
        self.frame.count_op()?;
        self.add_at(target.table, (place, None), column, delta).map(Some)
    }

    fn scan(
        &mut self,
        request: &ScanRequest<'_>,
        visit: &mut dyn FnMut(RowHandle, &[u8]) -> bool,
    ) -> Result<ScanBatch, OpError> {
        self.frame.count_op()?;
        let cursor = self.cursor(request)?;
        let at = match (cursor.positions.len(), request.limit) {
            (0, _) => return Ok(ScanBatch { cursor: 0, rows: 0 }),
            (1, 1) => cursor.first_store,
            _ => return self.run_cursor(cursor, visit),
        };
        // The commonest scan by far ("the last one").
        let binding = binding(self.input, cursor.table)?;
        let (store, range) = (&*self.stores[at as usize].1, range_of(request)?);
        let first = store.first(cursor.stored, cursor.index, &range);
        let Some(rid) = first.map_err(|error| guest(error.to_string()))? else {
            return Ok(ScanBatch { cursor: 0, rows: 0 });
        };
        let row = store.row(cursor.stored, rid).expect("an index names live rows");
        let (table, store) = (cursor.table, at);
        match show(self.frame, binding, Handle { table, store, rid }, row, visit)? {
            true => Ok(ScanBatch { cursor: 0, rows: 1 }),
            false => self.run_cursor(cursor, visit),
        }
    }

    fn scan_columns(
        &mut self,
        request: &ScanRequest<'_>,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<(ScanBatch, usize), OpError> {
        let cursor = self.cursor(request)?;
        let is_projected = binding(self.input, cursor.table)?.projection.is_some();
        if is_projected || !plan.is_fixed() || cursor.positions.len() != 1 {
            return scan_rows(plan, out, |visit| self.scan(request, visit));
        }
        self.frame.count_op()?;
        let store = &*self.stores[cursor.first_store as usize].1;
        read_columns(store, self.frame, cursor, plan, out)
    }

    fn scan_next_columns(
        &mut self,
        cursor: u32,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<(ScanBatch, usize), OpError> {
        let is_projected = |table| Ok(binding(self.input, table)?.projection.is_some());
        let table = self.frame.table_of_cursor(cursor);
        if !plan.is_fixed() || table.map_or(Ok(true), is_projected)? || self.frame.stores_of_cursor(cursor) != 1 {
            return scan_rows(plan, out, |visit| self.scan_next(cursor, visit));
        }
        self.frame.count_op()?;
        let cursor = self.frame.take_cursor(cursor)?;
        let store = &*self.stores[cursor.first_store as usize].1;
        read_columns(store, self.frame, cursor, plan, out)
    }

    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError> {
        self.frame.count_op()?;
        let range = range_of(request)?;
        let binding = binding(self.input, request.target.table)?;
        let index = index_of(binding, request.target.index)?;
        let mut count = 0;
        let (look, keys) = (Look::of(request.flags), (request.lower, request.upper));
        let readable = self.readable(request.target, binding, look, keys)?;
        for (_, store) in &self.stores[readable] {
            count += count_rows(store, self.frame, (binding.table, index), &range)?;
        }
        Ok(limited(count, request.limit))
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        self.frame.count_op()?;
        let savepoints = self.stores.iter().map(|(_, store)| store.savepoint());
        self.frame.push_savepoint(savepoints.collect())
    }

    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        self.frame.count_op()?;
        let savepoints = self.frame.savepoint(savepoint)?.to_vec();
        let given = self.frame.handles.len();
        for (at, savepoint) in savepoints.iter().enumerate() {
            let written: Vec<_> = self.stores[at].1.written_since(savepoint).collect();
            for (table, rid, is_new) in written {
                self.keep_before(table, at, Some(rid))?;
                if !is_new {
                    self.frame.changed.note(row_key(at as u16, table, rid), given, None);
                }
            }
        }
        for (at, ((_, store), savepoint)) in self.stores.iter_mut().zip(savepoints).enumerate() {
            store.rollback_to(savepoint);
            self.frame.insert_objects(at, store);
        }
        self.written = self.stores.iter().map(|(_, store)| store.write_set_bytes()).sum();
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), OpError> {
        let writes = self.stores.iter().map(|(_, store)| store.undo_count());
        self.frame.watch.ask_after(writes.sum())
    }
}
