//! One transaction of the test kit: the host's calls over its stores.

use std::collections::BTreeMap;

use reprise_abi::{
    ColumnSet, Field, HostOps, IndexTarget, LogLevel, OpError, RowHandle, RowTaker, ScanBatch, ScanFlags, ScanRequest,
    TablePlacement, random::TxnRandom, value::RESULT_BYTES_MAX,
};

use super::{
    Guest, LogLine, TestError,
    call_scope::{CallScope, Moment},
    placement::{self, KeyBounds, LookupKind},
    store::{KeyRange, RowPosition, TestStore, TestTable, guest},
};
use crate::{
    module::Abort,
    native::{NativeExit, NativeModule},
};

/// A row that was seen, and after how many changes of this transaction.
#[derive(Clone, Copy)]
struct TestHandle {
    place: RowPosition,
    seen: u64,
}

/// The rows of a scan as they were when it began.
struct TestCursor {
    table: u16,
    rows: std::vec::IntoIter<(RowPosition, Vec<u8>)>,
    /// One that did not fit the last time.
    next: Option<(RowPosition, Vec<u8>)>,
    opened: u64,
}

pub struct TestSession<'a> {
    /// Stores by partition.
    stores: &'a mut [TestStore],
    log: &'a mut Vec<LogLine>,
    args: &'a [u8],
    scope: CallScope,
    moment: Moment<'a>,
    random: TxnRandom,
    handles: Vec<TestHandle>,
    cursors: Vec<Option<TestCursor>>,
    /// Writes to each store before a savepoint.
    savepoints: Vec<Vec<usize>>,
    /// Number of changes, and the last one of each changed row.
    changes: u64,
    changed: BTreeMap<RowPosition, u64>,
    result: Vec<u8>,
    abort: Option<Abort>,
    /// Fuel that the call burned.
    pub fuel: u64,
}

const MOVED: &str = "a row can't be moved to another partition: delete it and insert it";

impl<'a> TestSession<'a> {
    pub fn new(
        stores: &'a mut [TestStore],
        log: &'a mut Vec<LogLine>,
        args: &'a [u8],
        scope: CallScope,
        moment: Moment<'a>,
    ) -> Self {
        let random = TxnRandom::new([moment.seed, 0], moment.txn_id);
        Self {
            stores,
            log,
            args,
            scope,
            moment,
            random,
            handles: Vec::new(),
            cursors: Vec::new(),
            savepoints: Vec::new(),
            changes: 0,
            changed: BTreeMap::new(),
            result: Vec::new(),
            abort: None,
            fuel: 0,
        }
    }

    /// Runs one of the module's procedures, or what runs at a deployment, in this transaction: as wasm where a guest is given. Returns its
    /// encoded result.
    pub fn run(
        &mut self,
        module: &NativeModule,
        guest: Option<&mut (dyn Guest + 'static)>,
        index: usize,
    ) -> Result<Vec<u8>, TestError> {
        let exit = match guest {
            None => module.call(index, self)?,
            Some(guest) => {
                let end = guest.call(index, self);
                self.fuel = end.fuel;
                end.exit.map_err(TestError::Fault)?
            }
        };
        match exit {
            NativeExit::Done => Ok(std::mem::take(&mut self.result)),
            NativeExit::Aborted => {
                let abort = self.abort.take();
                let abort = abort.unwrap_or_else(|| Abort::new("", "the procedure aborted without a reason"));
                Err(TestError::Aborted(abort))
            }
        }
    }

    /// Keeps the writes or takes them back.
    pub fn end(self, commit: bool) {
        for store in self.stores {
            if !commit {
                store.undo_to(0);
            }
            store.forget_undo();
        }
    }

    fn new_handle(&mut self, place: RowPosition) -> RowHandle {
        let seen = self.changes;
        self.handles.push(TestHandle { place, seen });
        (self.handles.len() - 1) as RowHandle
    }

    fn behind(&self, handle: RowHandle) -> Result<TestHandle, OpError> {
        let row = self.handles.get(handle as usize).copied();
        row.ok_or_else(|| guest(format!("row handle {handle} was never given out")))
    }

    /// A table's description: the same on all partitions.
    fn table(&self, table: usize) -> Result<&TestTable, OpError> {
        match table < self.scope.tables_seen {
            true => self.stores[0].table(table),
            false => Err(guest(
                "a retiring table is seen by what runs at a deployment, and by nothing else",
            )),
        }
    }

    fn row_at(&self, row: RowPosition) -> Result<&[u8], OpError> {
        self.stores[row.partition].row(row.table, row.number)
    }

    fn holds_all(&self) -> bool {
        self.scope.held.len() == self.stores.len()
    }

    fn elsewhere(&self, table: &TestTable, home: usize) -> OpError {
        guest(format!(
            "the row of {} belongs to partition {home}, the call runs on {}",
            table.schema.name,
            self.scope.runs_on()
        ))
    }

    fn unplaced(&self, table: &TestTable, by: u16, kind: LookupKind) -> OpError {
        let (what, way_on) = match kind {
            LookupKind::Key => ("key", "read it by a key that does"),
            LookupKind::Local | LookupKind::Range => {
                ("range", "scan_local and count_local see the rows that are there")
            }
        };
        guest(format!(
            "the {what} does not hold {}, by which the rows of {} are placed, and the call runs on {}: {way_on}. A procedure over all partitions \
             sees all rows",
            table.schema.columns[by as usize].name,
            table.schema.name,
            self.scope.runs_on()
        ))
    }

    /// The partitions on which a lookup between two keys of an index continues.
    fn readable(&self, target: IndexTarget, kind: LookupKind, keys: KeyBounds<'_>) -> Result<Vec<usize>, OpError> {
        let (table, held) = (self.table(target.table as usize)?, &self.scope.held);
        let by = match table.schema.placement {
            TablePlacement::Replicated => return Ok(vec![held[0]]),
            TablePlacement::Local => return Ok(held.clone()),
            TablePlacement::By(by) => by,
        };
        let columns = table.columns(target.index);
        let columns = columns.ok_or_else(|| guest(format!("index {} is not declared", target.index)))?;
        match placement::of_keys(&table.schema, columns, keys, self.stores.len()) {
            Some(home) if held.contains(&home) => Ok(vec![home]),
            Some(home) => Err(self.elsewhere(table, home)),
            None if kind == LookupKind::Local || self.holds_all() => Ok(held.clone()),
            None => Err(self.unplaced(table, by, kind)),
        }
    }

    /// The partitions that a row of the table is written on, if this call may write it there.
    fn writable(&self, table: usize, row: &[u8]) -> Result<Vec<usize>, OpError> {
        if self.scope.read_only {
            return Err(guest("a read-only procedure writes nothing"));
        }
        let number = table;
        let (table, held) = (self.table(table)?, &self.scope.held);
        if number >= self.scope.tables_written {
            return Err(guest("what runs at a deployment writes no table that is retiring"));
        }
        match table.schema.placement {
            TablePlacement::Local => Ok(vec![held[0]]),
            TablePlacement::Replicated if self.holds_all() || self.scope.writes_replicated => Ok(held.clone()),
            TablePlacement::Replicated => Err(guest(
                "a replicated table is written by procedures that touch all partitions",
            )),
            TablePlacement::By(column) => {
                let valid = table.layout.validate(row);
                valid.map_err(|error| guest(error.to_string()))?;
                let home = placement::of_field(&table.layout.field(row, column), self.stores.len());
                match held.contains(&home) {
                    true => Ok(vec![home]),
                    false => Err(self.elsewhere(table, home)),
                }
            }
        }
    }

    /// Checks that a row stays on its partition, and that this call may write it there.
    fn check_stays(&self, place: RowPosition, row: &[u8]) -> Result<(), OpError> {
        let homes = self.writable(place.table, row)?;
        let is_placed = matches!(self.table(place.table)?.schema.placement, TablePlacement::By(_));
        match is_placed && homes != [place.partition] {
            true => Err(guest(MOVED)),
            false => Ok(()),
        }
    }

    /// The places of a row that is to be changed: one, or of a replicated table one on each partition.
    fn copies(&self, row: RowPosition) -> Result<Vec<RowPosition>, OpError> {
        let table = row.table;
        let writable = self.writable(table, self.row_at(row)?)?;
        Ok(match self.table(table)?.schema.placement {
            TablePlacement::Replicated => {
                let copy = |partition| RowPosition { partition, ..row };
                writable.into_iter().map(copy).collect()
            }
            TablePlacement::Local | TablePlacement::By(_) => vec![row],
        })
    }

    fn is_current(&self, handle: TestHandle) -> bool {
        let changed = self.changed.get(&handle.place);
        changed.is_none_or(|changed| *changed <= handle.seen)
    }

    fn check_current(&self, handle: TestHandle) -> Result<(), OpError> {
        match self.is_current(handle) {
            true => Ok(()),
            false => Err(guest(format!(
                "the row of {} was changed by this call after it was read: read it again, or add to its columns",
                self.table(handle.place.table)?.schema.name
            ))),
        }
    }

    /// Writes a row on all partitions that hold it, through a handle. The handle's copy keeps its age, or stays current if it was current.
    fn write(&mut self, handle: RowHandle, after: Option<&[u8]>) -> Result<(), OpError> {
        let behind = self.behind(handle)?;
        for copy in self.copies(behind.place)? {
            self.stores[copy.partition].write(copy.table, copy.number, after)?;
        }
        let was_current = self.is_current(behind);
        self.changes += 1;
        self.changed.insert(behind.place, self.changes);
        if was_current {
            self.handles[handle as usize].seen = self.changes;
        }
        Ok(())
    }

    /// The rows of a request as they are, in the order of its index.
    fn rows_of(&self, request: &ScanRequest<'_>) -> Result<Vec<(RowPosition, Vec<u8>)>, OpError> {
        let (target, range) = (request.target, KeyRange::of(request)?);
        let kind = match request.flags.has(ScanFlags::LOCAL) {
            true => LookupKind::Local,
            false => LookupKind::Range,
        };
        let (table, number) = (self.table(target.table as usize)?, target.table as usize);
        let most = match request.limit {
            0 => usize::MAX,
            limit => limit as usize,
        };
        let mut rows = Vec::new();
        let readable = self.readable(target, kind, KeyBounds::of(request))?;
        for partition in &readable {
            let store = &self.stores[*partition];
            for row in store.entries(number, target.index, &range)?.take(most) {
                rows.push((
                    RowPosition::of(*partition, number, row),
                    store.row(number, row)?.to_vec(),
                ));
            }
        }
        if readable.len() > 1 {
            let order = table.order(target.index);
            let key = |row: &[u8]| {
                let mut key = Vec::new();
                table.layout.push_key(row, &order, &mut key);
                key
            };
            match range.reverse {
                false => rows.sort_by_cached_key(|(_, row)| key(row)),
                true => rows.sort_by_cached_key(|(_, row)| std::cmp::Reverse(key(row))),
            }
        }
        rows.truncate(most);
        Ok(rows)
    }

    fn run_cursor(&mut self, mut cursor: TestCursor, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        let mut rows = 0;
        while let Some((place, row)) = cursor.next.take().or_else(|| cursor.rows.next()) {
            // A handle only for a row that is taken: numbers must not depend on the size of the guest's buffer.
            if !visit(self.handles.len() as RowHandle, &row) {
                cursor.next = Some((place, row));
                self.cursors.push(Some(cursor));
                let cursor = self.cursors.len() as u32;
                return Ok(ScanBatch { cursor, rows });
            }
            let seen = cursor.opened;
            self.handles.push(TestHandle { place, seen });
            rows += 1;
        }
        Ok(ScanBatch { cursor: 0, rows })
    }

    fn take_cursor(&mut self, cursor: u32) -> Result<TestCursor, OpError> {
        let slot = (cursor as usize)
            .checked_sub(1)
            .and_then(|slot| self.cursors.get_mut(slot));
        let cursor = slot.and_then(Option::take);
        cursor.ok_or_else(|| guest("the cursor is not open"))
    }
}

impl HostOps for TestSession<'_> {
    fn args(&self) -> &[u8] {
        self.args
    }

    fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        if bytes.len() > RESULT_BYTES_MAX {
            return Err(OpError::Limit {
                limit: "result_bytes",
                max: RESULT_BYTES_MAX as u64,
            });
        }
        self.result = bytes.to_vec();
        Ok(())
    }

    fn get(&mut self, target: IndexTarget, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        let table = target.table as usize;
        let keys = KeyBounds { lower: key, upper: key };
        for partition in self.readable(target, LookupKind::Key, keys)? {
            if let Some(number) = self.stores[partition].find(table, target.index, key)? {
                let handle = self.new_handle(RowPosition::of(partition, table, number));
                return Ok(Some((handle, self.stores[partition].row(table, number)?)));
            }
        }
        Ok(None)
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        let place = self.behind(handle)?.place;
        self.handles[handle as usize].seen = self.changes;
        self.row_at(place)
    }

    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        let table = table as usize;
        let mut first = None;
        for partition in self.writable(table, row)? {
            let number = self.stores[partition].insert(table, row)?;
            first.get_or_insert(RowPosition::of(partition, table, number));
        }
        let place = first.ok_or_else(|| guest("a call has at least one partition"))?;
        Ok(self.new_handle(place))
    }

    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError> {
        let behind = self.behind(handle)?;
        self.copies(behind.place)?;
        self.check_current(behind)?;
        self.check_stays(behind.place, row)?;
        self.write(handle, Some(row))
    }

    fn table_of_handle(&self, handle: RowHandle) -> Option<u16> {
        self.handles
            .get(handle as usize)
            .map(|handle| handle.place.table as u16)
    }

    fn table_of_cursor(&self, cursor: u32) -> Option<u16> {
        let at = (cursor as usize).checked_sub(1)?;
        Some(self.cursors.get(at)?.as_ref()?.table)
    }

    fn patch(&mut self, table: u16, handle: RowHandle, columns: ColumnSet, values: &[u8]) -> Result<(), OpError> {
        let place = self.behind(handle)?.place;
        if place.table != table as usize {
            return Err(guest(format!("row handle {handle} is not of table {table}")));
        }
        let (old, layout) = (self.row_at(place)?, &self.table(place.table)?.layout);
        let mut row = Vec::new();
        let patched = layout.patch_row(columns, old, values, &mut row);
        patched.map_err(|_| guest("the values do not fit the columns"))?;
        self.update(handle, &row)
    }

    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        self.write(handle, None)
    }

    fn add(&mut self, handle: RowHandle, column: u16, delta: i64) -> Result<i64, OpError> {
        let place = self.behind(handle)?.place;
        self.copies(place)?;
        let target = self.table(place.table)?;
        let slot = target.layout.columns.get(column as usize).copied();
        let slot = slot.ok_or_else(|| guest(format!("column {column} does not exist")))?;
        if !slot.ty.is_integer() || target.is_indexed(column) {
            return Err(guest("add is for integer columns outside of keys and indexes"));
        }
        let mut row = self.row_at(place)?.to_vec();
        let value: i128 = match target.layout.field(&row, column) {
            Field::Int(value) => value as i128,
            Field::Uint(value) => value as i128,
            _ => return Err(guest("add to a null")),
        };
        let (sum, bytes) = (value + delta as i128, slot.ty.slot_bytes());
        let at = slot.offset as usize;
        row[at..at + bytes].copy_from_slice(&sum.to_le_bytes()[..bytes]);
        // Written and read back: it only is the same number when it fits the column.
        let stored = match target.layout.field(&row, column) {
            Field::Int(value) => value as i128,
            Field::Uint(value) => value as i128,
            _ => value,
        };
        if stored != sum {
            return Err(guest("overflow in add"));
        }
        self.check_stays(place, &row)?;
        self.write(handle, Some(&row))?;
        Ok(sum as i64)
    }

    fn scan(&mut self, request: &ScanRequest<'_>, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        let cursor = TestCursor {
            table: request.target.table,
            rows: self.rows_of(request)?.into_iter(),
            next: None,
            opened: self.changes,
        };
        self.run_cursor(cursor, visit)
    }

    fn scan_next(&mut self, cursor: u32, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        let cursor = self.take_cursor(cursor)?;
        self.run_cursor(cursor, visit)
    }

    fn scan_close(&mut self, cursor: u32) -> Result<(), OpError> {
        self.take_cursor(cursor).map(drop)
    }

    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError> {
        Ok(self.rows_of(request)?.len() as u64)
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        self.savepoints
            .push(self.stores.iter().map(TestStore::undo_len).collect());
        Ok((self.savepoints.len() - 1) as u32)
    }

    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        let lens = self.savepoints.get(savepoint as usize).cloned();
        let lens = lens.ok_or_else(|| guest("the savepoint does not stand"))?;
        self.savepoints.truncate(savepoint as usize + 1);
        self.changes += 1;
        for (partition, (store, len)) in self.stores.iter_mut().zip(lens).enumerate() {
            for (table, number) in store.written_since(len) {
                self.changed
                    .insert(RowPosition::of(partition, table, number), self.changes);
            }
            store.undo_to(len);
        }
        Ok(())
    }

    fn fuel_max(&self) -> Option<u64> {
        self.scope.fuel_max
    }

    fn now_us(&self) -> i64 {
        self.moment.now_us
    }

    fn txn_id(&self) -> u64 {
        self.moment.txn_id
    }

    fn caller(&self) -> Option<&str> {
        self.moment.caller
    }

    fn random_u64(&mut self) -> u64 {
        self.random.next_u64()
    }

    fn log(&mut self, level: LogLevel, text: &str) -> Result<(), OpError> {
        self.log.push(LogLine {
            level,
            text: text.to_owned(),
        });
        Ok(())
    }

    fn abort(&mut self, code: &str, message: &str) {
        self.abort = Some(Abort::new(code.to_owned(), message.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, RowLayout, ScalarType, TableSchema};

    use super::*;

    /// Rows lie on the partition that column 1 names, which is in no key.
    fn placed() -> TableSchema {
        let columns = ["id", "home"].map(|name| ColumnSchema::new(name, ScalarType::I64));
        TableSchema {
            placement: TablePlacement::By(1),
            ..TableSchema::new("placed", columns.into(), &[0])
        }
    }

    #[test]
    fn addition_that_moves_a_row_is_refused_as_an_update_is() {
        let schema = placed();
        let layout = RowLayout::of_table(&schema);
        let row = |home| layout.build(&[Field::Int(1), Field::Int(home)]);
        let mut stores: Vec<_> = (0..2).map(|_| TestStore::new([&schema].into_iter())).collect();
        for (held, reason) in [(vec![0], "belongs to partition 1"), (vec![0, 1], MOVED)] {
            let mut log = Vec::new();
            let scope = CallScope {
                held,
                read_only: false,
                writes_replicated: false,
                tables_seen: 1,
                tables_written: 1,
                fuel_max: None,
            };
            let moment = Moment {
                caller: None,
                now_us: 0,
                txn_id: 1,
                seed: 0,
            };
            let mut session = TestSession::new(&mut stores, &mut log, &[], scope, moment);
            let handle = session.insert(0, &row(0)).expect("a new key");
            assert_eq!(session.add(handle, 1, 2), Ok(2));
            let moved = [session.add(handle, 1, 1).map(drop), session.update(handle, &row(3))];
            for refused in moved {
                match refused {
                    Err(OpError::Guest(message)) => assert!(message.contains(reason), "{message}"),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(session.row(handle), Ok(&row(2)[..]));
            session.end(false);
        }
    }
}
