//! A transaction on one partition: the hot path.

use reprise_abi::{
    ColumnPlan, ColumnSet, FixedSlots, Handles, HostOps, OpError, OutBuffer, Placement, ReadSpan, RowHandle, ScanBatch,
    ScanRequest, Target,
    calls::{EqualKeys, HANDLE_NONE, Packed, fill_slots, look_up_rows, scan_rows},
};
use reprise_base::PartitionId;
use reprise_storage::{Rid, ScanPosition, Store, TableId};

use crate::{
    kept::{Written, keep_before},
    keyplace::partition_between,
    module::TableBinding,
    ops::{
        binding, guest, index_of, judge_write, judge_written, limited, ops_of_any_transaction, patch_row, write_error,
    },
    reach::{Look, elsewhere, outdated, unplaced},
    route::partition_of_field,
    rowmap::row_key,
    run::TxnInput,
    scan::{Cursor, Leg, OwnedRange, count_rows, range_of, read_columns, read_on_one, run_on_one, show},
    scratch::{AT_ONCE_MAX, Handle, TxnScratch},
};

/// Rows whose handles are looked at before they are written.
const PATCHED_AT_ONCE: usize = 16;

pub(crate) struct SingleTxn<'a> {
    store: &'a mut Store,
    partition: PartitionId,
    input: &'a TxnInput<'a>,
    frame: &'a mut TxnScratch,
    /// It is read-only, or runs at a deployment: that writes its partition's rows of replicated tables, too, and none of other
    /// modules' tables.
    judges_writes: bool,
    /// What a partition column held that belongs here: most calls ask for rows of one value.
    home: Option<u64>,
}

impl<'a> SingleTxn<'a> {
    pub fn new(
        store: &'a mut Store,
        partition: PartitionId,
        input: &'a TxnInput<'a>,
        frame: &'a mut TxnScratch,
    ) -> Self {
        Self {
            store,
            partition,
            input,
            frame,
            judges_writes: input.is_read_only() || input.is_migration(),
            home: None,
        }
    }

    /// The binding of a table that this transaction may write.
    #[inline(always)]
    fn writable(&self, table: u16) -> Result<&'a TableBinding, OpError> {
        let binding = binding(self.input, table)?;
        self.check_writable(binding)?;
        Ok(binding)
    }

    #[inline(always)]
    fn check_writable(&self, binding: &TableBinding) -> Result<(), OpError> {
        let is_elsewhere = binding.placement == Placement::Replicated && self.input.partitions_count > 1;
        match self.judges_writes || is_elsewhere {
            false => Ok(()),
            true => judge_write(self.input, binding),
        }
    }

    /// Rows lie where the value of their partition column says, or no one finds them again.
    #[inline(always)]
    fn check_place(&self, table: u16, binding: &TableBinding, rid: Rid) -> Result<(), OpError> {
        match (self.places_matter(binding), &binding.placement) {
            (true, Placement::By(column)) => self.check_home(table, binding, rid, *column),
            _ => Ok(()),
        }
    }

    /// What was added to may have been the column that says where the row belongs.
    #[inline(always)]
    fn check_added(&self, table: u16, binding: &TableBinding, rid: Rid, column: u16) -> Result<(), OpError> {
        match binding.placement {
            Placement::By(placing) if placing == column => self.check_place(table, binding, rid),
            _ => Ok(()),
        }
    }

    /// Rows under the key, by the module's number of an index, lie here or nowhere.
    #[inline(always)]
    fn check_key(&mut self, target: Target, binding: &TableBinding, key: &[u8]) -> Result<(), OpError> {
        match self.places_matter(binding) {
            false => Ok(()),
            true => self.judge_key(target, binding, key),
        }
    }

    /// As `check_key`, of keys one after the other.
    #[inline(always)]
    fn check_keys<'k>(
        &mut self,
        target: Target,
        binding: &TableBinding,
        mut keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<(), OpError> {
        match self.places_matter(binding) {
            false => Ok(()),
            true => keys.try_for_each(|key| self.judge_key(target, binding, key)),
        }
    }

    #[inline]
    fn judge_key(&mut self, target: Target, binding: &TableBinding, key: &[u8]) -> Result<(), OpError> {
        let place = binding.places[target.index as usize];
        let value = place.and_then(|place| place.value(key));
        if value.is_some() && value == self.home {
            return Ok(());
        }
        self.judge_between(target, binding, Look::Key, (key, key))?;
        self.home = value.or(self.home);
        Ok(())
    }

    /// The rows of a range lie here, or it asks for no others.
    #[inline(always)]
    fn check_range(&mut self, request: &ScanRequest<'_>, binding: &TableBinding) -> Result<(), OpError> {
        match self.places_matter(binding) {
            false => Ok(()),
            true => self.judge_range(request, binding),
        }
    }

    fn judge_range(&mut self, request: &ScanRequest<'_>, binding: &TableBinding) -> Result<(), OpError> {
        let (target, keys) = (request.target, (request.lower, request.upper));
        let place = binding.places[target.index as usize];
        let value = place.and_then(|place| place.value_between(keys.0, keys.1));
        if value.is_some() && value == self.home {
            return Ok(());
        }
        self.judge_between(target, binding, Look::of(request.flags), keys)?;
        self.home = value.or(self.home);
        Ok(())
    }

    fn judge_between(
        &self,
        target: Target,
        binding: &TableBinding,
        look: Look,
        keys: (&[u8], &[u8]),
    ) -> Result<(), OpError> {
        let (Placement::By(column), table) = (&binding.placement, target.table) else {
            return Ok(());
        };
        let (schema, index) = (self.store.schema(binding.table), index_of(binding, target.index)?);
        let here = || std::iter::once(self.partition);
        match partition_between(schema, index, *column, keys, self.input.partitions_count) {
            Some(home) if home == self.partition => Ok(()),
            Some(home) => Err(elsewhere(self.input, table, home, here())),
            None if look == Look::Local => Ok(()),
            None => Err(unplaced(self.input, (table, binding), look, here())),
        }
    }

    #[inline(always)]
    fn check_written(&mut self) -> Result<(), OpError> {
        self.frame.insert_objects(0, self.store);
        let bytes = self.store.write_set_bytes();
        match self.frame.is_much_written(bytes) {
            false => Ok(()),
            true => judge_written(self.input, self.store, self.frame),
        }
    }

    /// There are rows that do not belong to this partition.
    #[inline(always)]
    fn places_matter(&self, binding: &TableBinding) -> bool {
        self.input.partitions_count > 1 && matches!(binding.placement, Placement::By(_))
    }

    fn check_home(&self, table: u16, binding: &TableBinding, rid: Rid, column: u16) -> Result<(), OpError> {
        let row = self.store.row(binding.table, rid).expect("a row just written");
        let field = self.store.layout(binding.table).field(row, column);
        let home = partition_of_field(&field, self.input.partitions_count);
        match home == self.partition {
            true => Ok(()),
            false => Err(elsewhere(self.input, table, home, std::iter::once(self.partition))),
        }
    }

    /// Open cursors of the table keep what they have still to show.
    #[inline(always)]
    fn keep_before(&mut self, table: TableId, rid: Option<Rid>) -> Result<(), OpError> {
        match self.frame.open {
            0 => Ok(()),
            _ => {
                let (bytes, store) = (self.store.write_set_bytes(), 0);
                keep_before(self.frame, &[&*self.store], Written { table, store, rid }, bytes)
            }
        }
    }

    /// A row may be written back as it is in the copy behind a handle.
    #[inline(always)]
    fn check_current(&self, table: u16, row: u64, handle: RowHandle) -> Result<(), OpError> {
        match self.frame.changed.is_current(row, handle) {
            true => Ok(()),
            false => Err(outdated(self.input, table)),
        }
    }

    #[inline(always)]
    fn note_change(&mut self, row: u64, writer: Option<RowHandle>) {
        self.frame.changed.note(row, self.frame.handles.len(), writer);
    }

    /// As `note_change`, by a handle of which nothing is known.
    #[inline(always)]
    fn note_change_by(&mut self, row: u64, handle: RowHandle) {
        let is_current = self.frame.changed.is_current(row, handle);
        self.note_change(row, is_current.then_some(handle));
    }

    /// The row behind a handle, as the module knows it.
    fn seen_row(&mut self, binding: &TableBinding, handle: RowHandle, rid: Rid) -> Result<&[u8], OpError> {
        let row = self.store.row(binding.table, rid);
        let row = row.ok_or_else(|| guest(format!("row {handle} was deleted")))?;
        match &binding.projection {
            None => Ok(row),
            Some(projection) => {
                self.frame.row = projection.narrow(row);
                Ok(&self.frame.row)
            }
        }
    }

    fn run_cursor(
        &mut self,
        cursor: Cursor,
        visit: &mut dyn FnMut(RowHandle, &[u8]) -> bool,
    ) -> Result<ScanBatch, OpError> {
        let binding = binding(self.input, cursor.table)?;
        run_on_one(self.store, binding, self.frame, cursor, visit)
    }
}

impl HostOps for SingleTxn<'_> {
    ops_of_any_transaction!();

    fn get(&mut self, target: Target, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        self.check_key(target, binding, key)?;
        let Some((rid, row)) = self.store.get_row(binding.table, index, key) else {
            return Ok(None);
        };
        let handle = self.frame.push_handle(Handle {
            table: target.table,
            store: 0,
            rid,
        })?;
        match &binding.projection {
            None => Ok(Some((handle, row))),
            Some(projection) => {
                self.frame.row = projection.narrow(row);
                Ok(Some((handle, &self.frame.row)))
            }
        }
    }

    fn exists(&mut self, target: Target, key: &[u8]) -> Result<bool, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        self.check_key(target, binding, key)?;
        Ok(self.store.find(binding.table, index, key).is_some())
    }

    fn multi_get(
        &mut self,
        target: Target,
        keys: Packed<'_>,
        visit: &mut dyn FnMut(RowHandle, &[u8]),
    ) -> Result<(), OpError> {
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        self.check_keys(target, binding, keys)?;
        let frame = &mut *self.frame;
        let mut on_found = |found: Option<(Rid, &[u8])>| {
            frame.count_op()?;
            let Some((rid, row)) = found else {
                visit(HANDLE_NONE, &[]);
                return Ok(());
            };
            let handle = frame.push_handle(Handle {
                table: target.table,
                store: 0,
                rid,
            })?;
            match &binding.projection {
                None => visit(handle, row),
                Some(projection) => visit(handle, &projection.narrow(row)),
            }
            Ok(())
        };
        let (mut result, mut rest) = (Ok(()), keys);
        while result.is_ok() && rest.len() > 0 {
            let some = rest.take(AT_ONCE_MAX);
            self.store
                .multi_get(binding.table, index, some, ReadSpan::ALL, |found| {
                    if result.is_ok() {
                        result = on_found(found);
                    }
                });
            rest.nth(AT_ONCE_MAX - 1);
        }
        result
    }

    fn multi_get_columns(
        &mut self,
        target: Target,
        keys: Packed<'_>,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<usize, OpError> {
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        self.check_keys(target, binding, keys)?;
        // Limits are looked at once: nothing may fail for a single row.
        if binding.projection.is_some() || !self.frame.count_many(keys.len()) {
            return look_up_rows(self, target, keys, plan, out);
        }
        let (frame, table) = (&mut *self.frame, target.table);
        let mut room = OutBuffer::new(plan, out);
        let handle = |rid| Handle { table, store: 0, rid };
        self.store
            .multi_get_rows(binding.table, index, keys, plan.prefetch(), |found, rows| {
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
        target: Target,
        keys: EqualKeys<'_>,
        slots: FixedSlots<'_>,
    ) -> Result<usize, OpError> {
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        self.check_keys(target, binding, keys.iter())?;
        // As in `multi_get_columns`.
        if binding.projection.is_some() || !self.frame.count_many(keys.count()) {
            return fill_slots(self, target, keys, slots);
        }
        let (frame, table, mut slots) = (&mut *self.frame, target.table, slots);
        let prefetch = slots.plan().prefetch();
        let visit = |found: Option<(Rid, &[u8])>| match found {
            None => slots.put(HANDLE_NONE, &[]),
            Some((rid, row)) => {
                let handle = frame.push_counted(Handle { table, store: 0, rid });
                slots.put(handle, row);
            }
        };
        self.store.multi_get_equal(binding.table, index, keys, prefetch, visit);
        Ok(slots.misfits())
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        self.frame.count_op()?;
        let Handle { table, rid, .. } = self.frame.handle(handle)?;
        let binding = binding(self.input, table)?;
        self.frame.changed.read_again(row_key(0, binding.table, rid), handle);
        self.seen_row(binding, handle, rid)
    }

    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        self.frame.count_op()?;
        let binding = self.writable(table)?;
        self.keep_before(binding.table, None)?;
        let inserted = match &binding.projection {
            None => self.store.insert(binding.table, row),
            Some(projection) => {
                let wide = projection.widen_insert(row);
                let wide = wide.map_err(|error| guest(error.to_string()))?;
                self.store.insert(binding.table, &wide)
            }
        };
        let rid = inserted.map_err(|error| write_error(error, binding))?;
        self.check_place(table, binding, rid)?;
        self.check_written()?;
        self.frame.push_handle(Handle { table, store: 0, rid })
    }

    fn multi_insert(&mut self, table: u16, rows: Packed<'_>) -> Result<RowHandle, OpError> {
        let (count, mut first) = (rows.len(), HANDLE_NONE);
        let binding = match count {
            0 => return Ok(first),
            _ => self.writable(table)?,
        };
        let is_slow = binding.projection.is_some() || self.frame.open > 0;
        if is_slow || !self.frame.count_many(count) {
            for row in rows {
                first = first.min(self.insert(table, row)?);
            }
            return Ok(first);
        }
        let (frame, store) = (&mut *self.frame, &mut *self.store);
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
        self.check_written()?;
        if let Err(error) = inserted {
            self.frame.uncount(count - taken - 1);
            return Err(write_error(error, binding));
        }
        Ok(first)
    }

    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError> {
        self.frame.count_op()?;
        let Handle { table, rid, .. } = self.frame.handle(handle)?;
        let binding = self.writable(table)?;
        let key = row_key(0, binding.table, rid);
        self.check_current(table, key, handle)?;
        self.keep_before(binding.table, Some(rid))?;
        let updated = match &binding.projection {
            None => self.store.update(binding.table, rid, row),
            Some(projection) => {
                let old = self.store.row(binding.table, rid);
                let old = old.ok_or_else(|| guest(format!("row {handle} was deleted")))?;
                let wide = projection.widen_update(row, old);
                let wide = wide.map_err(|error| guest(error.to_string()))?;
                self.store.update(binding.table, rid, &wide)
            }
        };
        updated.map_err(|error| write_error(error, binding))?;
        self.note_change(key, Some(handle));
        self.check_written()?;
        self.check_place(table, binding, rid)
    }

    fn patch(&mut self, table: u16, handle: RowHandle, columns: ColumnSet, values: &[u8]) -> Result<(), OpError> {
        let rid = self.frame.handle_in(table, handle)?.rid;
        let binding = self.writable(table)?;
        if binding.projection.is_some() {
            self.frame.count_op()?;
            let mut row = Vec::new();
            patch_row(binding, self.seen_row(binding, handle, rid)?, columns, values, &mut row)?;
            return self.update(handle, &row);
        }
        self.frame.count_op()?;
        let key = row_key(0, binding.table, rid);
        self.check_current(table, key, handle)?;
        self.keep_before(binding.table, Some(rid))?;
        let patched = self.store.patch(binding.table, rid, columns, values);
        patched.map_err(|error| write_error(error, binding))?;
        self.note_change(key, Some(handle));
        self.check_written()?;
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
        let moves = matches!(binding.placement, Placement::By(at) if at < 64 && columns.0 >> at & 1 == 1);
        let values_at = |at: usize, count: usize| &values[at * bytes_each..(at + count) * bytes_each];
        let in_place = match moves || binding.projection.is_some() || self.frame.open > 0 {
            true => None,
            // Limits are looked at once: nothing may fail for a single row.
            false if !self.frame.count_ops(handles.len()) => None,
            false => match self.store.patcher(binding.table, columns) {
                Some(patcher) => Some(patcher),
                None => {
                    self.frame.uncount(handles.len());
                    None
                }
            },
        };
        let Some(mut patcher) = in_place else {
            let mut rows = 0..handles.len();
            return rows.try_for_each(|at| self.patch(table, handles.at(at), columns, values_at(at, 1)));
        };
        let (input, given) = (self.input, self.frame.handles.len());
        let frame = &mut *self.frame;
        // Written through a current copy, which then is one still.
        let note = |frame: &mut TxnScratch, at: usize, rid: Rid| {
            let (row, handle) = (row_key(0, binding.table, rid), handles.at(at));
            let is_current = frame.changed.is_current(row, handle);
            frame.changed.note(row, given, Some(handle));
            is_current
        };
        if handles.len() == 1 {
            let rid = frame.handle_in(table, handles.at(0))?.rid;
            if !note(frame, 0, rid) {
                return Err(outdated(input, table));
            }
            patcher
                .patch(rid, values)
                .map_err(|error| write_error(error, binding))?;
            return self.check_written();
        }
        let (mut rids, mut at) = ([Rid(0); PATCHED_AT_ONCE], 0);
        while at < handles.len() {
            let rids = &mut rids[..PATCHED_AT_ONCE.min(handles.len() - at)];
            let known = frame.rids_in(table, &handles, at, rids);
            let mut places = (at..).zip(&rids[..known]);
            if !places.all(|(at, rid)| note(frame, at, *rid)) {
                return Err(outdated(input, table));
            }
            let patched = patcher.patch_run(&rids[..known], values_at(at, known));
            patched.map_err(|error| write_error(error, binding))?;
            if known < rids.len() {
                frame.handle_in(table, handles.at(at + known))?;
            }
            at += known;
        }
        self.check_written()
    }

    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        self.frame.count_op()?;
        let Handle { table, rid, .. } = self.frame.handle(handle)?;
        let binding = self.writable(table)?;
        self.keep_before(binding.table, Some(rid))?;
        let deleted = self.store.delete(binding.table, rid);
        deleted.map_err(|error| write_error(error, binding))?;
        self.check_written()
    }

    fn add(&mut self, handle: RowHandle, column: u16, delta: i64) -> Result<i64, OpError> {
        self.frame.count_op()?;
        let Handle { table, rid, .. } = self.frame.handle(handle)?;
        let binding = self.writable(table)?;
        self.keep_before(binding.table, Some(rid))?;
        let added = self.store.add(binding.table, rid, column, delta);
        let value = added.map_err(|error| write_error(error, binding))?;
        self.note_change_by(row_key(0, binding.table, rid), handle);
        self.check_added(table, binding, rid, column)?;
        self.check_written()?;
        Ok(value)
    }

    fn add_by_key(&mut self, target: Target, key: &[u8], column: u16, delta: i64) -> Result<Option<i64>, OpError> {
        self.frame.count_op()?;
        let binding = binding(self.input, target.table)?;
        let index = index_of(binding, target.index)?;
        self.check_key(target, binding, key)?;
        let Some(rid) = self.store.find(binding.table, index, key) else {
            return Ok(None);
        };
        self.frame.count_op()?;
        self.check_writable(binding)?;
        self.keep_before(binding.table, Some(rid))?;
        let added = self.store.add(binding.table, rid, column, delta);
        let value = added.map_err(|error| write_error(error, binding))?;
        self.note_change(row_key(0, binding.table, rid), None);
        self.check_added(target.table, binding, rid, column)?;
        self.check_written()?;
        Ok(Some(value))
    }

    fn scan(
        &mut self,
        request: &ScanRequest<'_>,
        visit: &mut dyn FnMut(RowHandle, &[u8]) -> bool,
    ) -> Result<ScanBatch, OpError> {
        self.frame.count_op()?;
        let range = range_of(request)?;
        let table = request.target.table;
        let binding = binding(self.input, table)?;
        let index = index_of(binding, request.target.index)?;
        self.check_range(request, binding)?;
        if request.limit == 1 {
            // The commonest scan by far ("the last one"): no cursor, no allocation.
            let first = self.store.first(binding.table, index, &range);
            let Some(rid) = first.map_err(|error| guest(error.to_string()))? else {
                return Ok(ScanBatch { cursor: 0, rows: 0 });
            };
            let row = self.store.row(binding.table, rid).expect("an index names live rows");
            let handle = Handle { table, store: 0, rid };
            if show(self.frame, binding, handle, row, visit)? {
                return Ok(ScanBatch { cursor: 0, rows: 1 });
            }
        }
        self.run_cursor(
            Cursor {
                table,
                stored: binding.table,
                index,
                request: OwnedRange::new(request),
                left: (request.limit > 0).then_some(request.limit),
                first_store: 0,
                positions: vec![ScanPosition::default()],
                opened: 0,
                kept: None,
                pages: None,
            },
            visit,
        )
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
        self.frame.count_op()?;
        let index = index_of(binding, request.target.index)?;
        self.check_range(request, binding)?;
        let mut leg = Leg {
            table,
            store: 0,
            stored: binding.table,
            index,
            range,
            position: ScanPosition::default(),
            left: (request.limit > 0).then_some(request.limit),
        };
        let (rows, filled) = read_on_one(self.store, self.frame, &mut leg, plan, out)?;
        let cursor = match leg.is_end() {
            true => 0,
            false => self.frame.push_cursor(Cursor {
                table,
                stored: leg.stored,
                index: leg.index,
                request: OwnedRange::new(request),
                left: leg.left,
                first_store: 0,
                positions: vec![leg.position],
                opened: 0,
                kept: None,
                pages: None,
            })?,
        };
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
        read_columns(self.store, self.frame, cursor, plan, out)
    }

    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError> {
        self.frame.count_op()?;
        let range = range_of(request)?;
        let binding = binding(self.input, request.target.table)?;
        let index = index_of(binding, request.target.index)?;
        self.check_range(request, binding)?;
        count_rows(self.store, self.frame, (binding.table, index), &range).map(|count| limited(count, request.limit))
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        self.frame.count_op()?;
        let savepoint = self.store.savepoint();
        self.frame.push_savepoint(vec![savepoint])
    }

    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        self.frame.count_op()?;
        let savepoint = self.frame.savepoint(savepoint)?[0];
        if self.frame.open > 0 {
            let written: Vec<_> = self.store.written_since(&savepoint).collect();
            written
                .iter()
                .try_for_each(|(table, rid, _)| self.keep_before(*table, Some(*rid)))?;
        }
        let given = self.frame.handles.len();
        for (table, rid, _) in self.store.written_since(&savepoint).filter(|(_, _, is_new)| !is_new) {
            self.frame.changed.note(row_key(0, table, rid), given, None);
        }
        self.store.rollback_to(savepoint);
        self.frame.insert_objects(0, self.store);
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), OpError> {
        self.frame.watch.ask_after(self.store.undo_count())
    }
}
