//! The host calls over the paged engine: the very same procedures run on it as on ours.

use reprise_abi::{
    ColumnSet, Field, FixedSlots, HostOps, IndexTarget, LogLevel, OpError, RowHandle, RowTaker, ScanBatch, ScanFlags,
    ScanRequest,
    calls::{EqualKeys, HANDLE_NONE},
    key::KEY_BYTES_MAX,
    random::TxnRandom,
    value::RESULT_BYTES_MAX,
};
use reprise_base::TxnId;

use crate::{
    engine::{Index, Table},
    lock::{LockId, Mode},
    tree::Rid,
    txn::{Cursor, Handle, SECRET, Worker},
};

fn guest(message: impl Into<String>) -> OpError {
    OpError::Guest(message.into())
}

impl<'e, const P: u32> Worker<'e, P> {
    fn table(&mut self, table: u16) -> Result<&'e Table, OpError> {
        self.find_in_directory(table, 0)?;
        let found = self.engine.tables.get(table as usize);
        found.ok_or_else(|| guest(format!("table {table} is not declared")))
    }

    fn index(&mut self, target: IndexTarget) -> Result<(&'e Table, &'e Index), OpError> {
        self.find_in_directory(target.table, target.index)?;
        let table = self.engine.tables.get(target.table as usize);
        let index = table.and_then(|table| Some((table, table.indexes.get(target.index as usize)?.as_ref()?)));
        index.ok_or_else(|| {
            guest(format!(
                "index {} of table {} is not declared",
                target.index, target.table
            ))
        })
    }

    fn behind(&self, handle: RowHandle) -> Result<Handle, OpError> {
        let found = self.handles.get(handle as usize).copied();
        found.ok_or_else(|| guest(format!("row handle {handle} was never given out")))
    }

    /// Locks the page and the row of a table that is locked already.
    #[inline(always)]
    fn lock_row(&mut self, table: u16, rid: Rid, mode: Mode) -> Result<(), OpError> {
        let above = match mode {
            Mode::Shared => Mode::IntentShared,
            _ => Mode::IntentExclusive,
        };
        self.lock(|| LockId::page(table, rid.page), above)?;
        self.lock(|| LockId::row(table, rid.pack()), mode)
    }

    /// Finds a key in a B-tree, which it locks.
    #[inline(never)]
    fn look_up(&mut self, target: IndexTarget, key: &[u8]) -> Result<Option<Rid>, OpError> {
        let (_, index) = self.index(target)?;
        self.lock(|| LockId::table(target.table), Mode::IntentShared)?;
        self.lock(|| LockId::key(index.tree.number, key), Mode::Shared)?;
        if index.is_unique {
            return Ok(index.tree.find(&self.engine.pool, key));
        }
        let mut found = None;
        index.tree.scan(&self.engine.pool, key, &mut |entry, rid| {
            found = entry.starts_with(key).then_some(rid);
            false
        });
        Ok(found)
    }

    /// Locks a row, pins its page, and copies the row out.
    #[inline(never)]
    fn pin_row(&mut self, table: u16, rid: Rid) -> Result<(), OpError> {
        self.lock_row(table, rid, Mode::Shared)?;
        self.copy_row(table, rid)
    }

    fn copy_row(&mut self, table: u16, rid: Rid) -> Result<(), OpError> {
        let (engine, copy) = (self.engine, &mut self.row);
        let seen = engine.tables[table as usize].heap.see(&engine.pool, rid, |row| {
            copy.clear();
            copy.extend_from_slice(row);
        });
        seen.ok_or_else(|| guest("the row was deleted"))
    }

    /// Writes a row of which no key changes, from the copy in `row`.
    #[inline(never)]
    fn update_row(&mut self, table: u16, rid: Rid) -> Result<(), OpError> {
        let engine = self.engine;
        let fits = engine.tables[table as usize]
            .heap
            .write(&engine.pool, &mut self.chain, rid, &self.row);
        match fits {
            true => Ok(()),
            false => Err(guest("a row is longer than a page")),
        }
    }

    /// Creates the record of a row.
    #[inline(never)]
    fn create_record(&mut self, table: u16, row: &[u8]) -> Result<Rid, OpError> {
        let engine = self.engine;
        let rid = engine.tables[table as usize]
            .heap
            .insert(&engine.pool, &mut self.chain, row);
        let rid = rid.ok_or_else(|| guest("a row is longer than a page"))?;
        self.lock_row(table, rid, Mode::Exclusive)?;
        Ok(rid)
    }

    /// Puts a row's key into an index. False where it is there.
    #[inline(never)]
    fn insert_key(&mut self, at: &Table, index: &Index, row: &[u8], rid: Rid) -> Result<bool, OpError> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        index.push_key(&at.layout, row, rid, &mut key);
        let inserted = match key.len() <= KEY_BYTES_MAX {
            false => Err(OpError::KeyTooLong {
                key: format!("a key of {}", at.name),
            }),
            true => self
                .lock(|| LockId::key(index.tree.number, &key), Mode::Exclusive)
                .map(|()| index.tree.insert(&self.engine.pool, &mut self.chain, &key, rid)),
        };
        self.key = key;
        inserted
    }

    fn remove_key(&mut self, at: &Table, index: &Index, row: &[u8], rid: Rid) -> Result<(), OpError> {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        index.push_key(&at.layout, row, rid, &mut key);
        let locked = self.lock(|| LockId::key(index.tree.number, &key), Mode::Exclusive);
        if locked.is_ok() {
            index.tree.remove(&self.engine.pool, &mut self.chain, &key);
        }
        self.key = key;
        locked
    }

    /// Writes the copy in `row`, and its keys where they are others.
    fn write_row(&mut self, table: u16, rid: Rid) -> Result<(), OpError> {
        let at = &self.engine.tables[table as usize];
        let new = std::mem::take(&mut self.row);
        at.layout.validate(&new).map_err(|error| guest(error.to_string()))?;
        self.copy_row(table, rid)?;
        let old = std::mem::replace(&mut self.row, new);
        let (mut changed, mut keys) = (Vec::new(), (Vec::new(), Vec::new()));
        for (number, index) in at.indexes.iter().enumerate() {
            let Some(index) = index else { continue };
            keys.0.clear();
            keys.1.clear();
            index.push_key(&at.layout, &old, rid, &mut keys.0);
            index.push_key(&at.layout, &self.row, rid, &mut keys.1);
            if keys.0 != keys.1 {
                changed.push((number as u16, index));
            }
        }
        let new = std::mem::take(&mut self.row);
        for (done, (number, index)) in changed.iter().enumerate() {
            if !self.insert_key(at, index, &new, rid)? {
                for (_, index) in &changed[..done] {
                    self.remove_key(at, index, &new, rid)?;
                }
                return Err(OpError::DuplicateKey { index: *number });
            }
        }
        for (_, index) in &changed {
            self.remove_key(at, index, &old, rid)?;
        }
        self.row = new;
        self.update_row(table, rid)
    }

    fn lock_for_write(&mut self, handle: Handle) -> Result<(), OpError> {
        self.lock(|| LockId::table(handle.table), Mode::IntentExclusive)?;
        self.lock_row(handle.table, handle.rid, Mode::Exclusive)
    }

    /// The rows of a range, in its order, as they are.
    fn rows_of(&mut self, request: &ScanRequest<'_>) -> Result<Vec<(Rid, Vec<u8>)>, OpError> {
        if !request.flags.is_known() {
            return Err(guest("unknown scan flags"));
        }
        let (_, index) = self.index(request.target)?;
        self.lock(|| LockId::table(request.target.table), Mode::Shared)?;
        let is_reverse = request.flags.has(ScanFlags::REVERSE);
        let most = match (request.limit, is_reverse) {
            (0, _) | (_, true) => usize::MAX,
            (limit, false) => limit as usize,
        };
        let (mut places, flags, upper) = (Vec::new(), request.flags, request.upper);
        index.tree.scan(&self.engine.pool, request.lower, &mut |key, rid| {
            if flags.has(ScanFlags::LOWER_EXCLUSIVE) && key.starts_with(request.lower) {
                return true;
            }
            let is_below = match key[..key.len().min(upper.len())].cmp(upper) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => !flags.has(ScanFlags::UPPER_EXCLUSIVE),
                std::cmp::Ordering::Greater => false,
            };
            if is_below {
                places.push(rid);
            }
            is_below && places.len() < most
        });
        if is_reverse {
            places.reverse();
        }
        if request.limit > 0 {
            places.truncate(request.limit as usize);
        }
        let table = request.target.table;
        let mut rows = Vec::with_capacity(places.len());
        for rid in places {
            self.copy_row(table, rid)?;
            rows.push((rid, self.row.clone()));
        }
        Ok(rows)
    }

    fn run_cursor(&mut self, mut cursor: Cursor, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        let mut rows = 0;
        while let Some((rid, row)) = cursor.next.take().or_else(|| cursor.rows.next()) {
            if !visit(self.handles.len() as RowHandle, &row) {
                cursor.next = Some((rid, row));
                self.cursors.push(Some(cursor));
                let cursor = self.cursors.len() as u32;
                return Ok(ScanBatch { cursor, rows });
            }
            self.push_handle(cursor.table, rid);
            rows += 1;
        }
        Ok(ScanBatch { cursor: 0, rows })
    }

    fn take_cursor(&mut self, cursor: u32) -> Result<Cursor, OpError> {
        let slot = (cursor as usize).checked_sub(1);
        let found = slot.and_then(|slot| self.cursors.get_mut(slot)).and_then(Option::take);
        found.ok_or_else(|| guest("the cursor is not open"))
    }
}

impl<const P: u32> HostOps for Worker<'_, P> {
    fn args(&self) -> &[u8] {
        &self.args
    }

    fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        if bytes.len() > RESULT_BYTES_MAX {
            return Err(OpError::Limit {
                limit: "result_bytes",
                max: RESULT_BYTES_MAX as u64,
            });
        }
        self.result.clear();
        self.result.extend_from_slice(bytes);
        Ok(())
    }

    fn get(&mut self, target: IndexTarget, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        self.count_call();
        let Some(rid) = self.look_up(target, key)? else {
            return Ok(None);
        };
        self.pin_row(target.table, rid)?;
        let handle = self.push_handle(target.table, rid);
        Ok(Some((handle, &self.row[..])))
    }

    fn multi_get_slots(
        &mut self,
        target: IndexTarget,
        keys: EqualKeys<'_>,
        mut slots: FixedSlots<'_>,
    ) -> Result<usize, OpError> {
        for key in keys.iter() {
            self.count_call();
            let Some(rid) = self.look_up(target, key)? else {
                slots.put(HANDLE_NONE, &[]);
                continue;
            };
            self.pin_row(target.table, rid)?;
            let handle = self.push_handle(target.table, rid);
            slots.put(handle, &self.row);
        }
        Ok(slots.misfits())
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        self.count_call();
        let Handle { table, rid } = self.behind(handle)?;
        self.pin_row(table, rid)?;
        Ok(&self.row)
    }

    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        self.count_call();
        let at = self.table(table)?;
        at.layout.validate(row).map_err(|error| guest(error.to_string()))?;
        self.lock(|| LockId::table(table), Mode::IntentExclusive)?;
        let rid = self.create_record(table, row)?;
        for (number, index) in at.indexes.iter().enumerate() {
            let Some(index) = index else { continue };
            if self.insert_key(at, index, row, rid)? {
                continue;
            }
            for index in at.indexes[..number].iter().flatten() {
                self.remove_key(at, index, row, rid)?;
            }
            at.heap.set_hidden(&self.engine.pool, &mut self.chain, rid, true);
            return Err(OpError::DuplicateKey { index: number as u16 });
        }
        Ok(self.push_handle(table, rid))
    }

    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError> {
        self.count_call();
        let behind = self.behind(handle)?;
        self.lock_for_write(behind)?;
        self.row.clear();
        self.row.extend_from_slice(row);
        self.write_row(behind.table, behind.rid)
    }

    fn table_of_handle(&self, handle: RowHandle) -> Option<u16> {
        self.handles.get(handle as usize).map(|handle| handle.table)
    }

    fn table_of_cursor(&self, cursor: u32) -> Option<u16> {
        let at = (cursor as usize).checked_sub(1)?;
        Some(self.cursors.get(at)?.as_ref()?.table)
    }

    fn patch(&mut self, table: u16, handle: RowHandle, columns: ColumnSet, values: &[u8]) -> Result<(), OpError> {
        self.count_call();
        let behind = self.behind(handle)?;
        if behind.table != table {
            return Err(guest(format!("row handle {handle} is not of table {table}")));
        }
        self.lock_for_write(behind)?;
        self.copy_row(table, behind.rid)?;
        let at = &self.engine.tables[table as usize];
        let plan = self.plans[table as usize].of(&at.layout, columns);
        if plan.is_fixed() {
            plan.check(values)
                .map_err(|_| guest("the values do not fit the columns"))?;
            plan.write(&mut self.row, values);
        } else {
            let old = std::mem::take(&mut self.row);
            let patched = at.layout.patch_row(columns, &old, values, &mut self.row);
            patched.map_err(|_| guest("the values do not fit the columns"))?;
        }
        let is_key = |column: &u16| *column < 64 && columns.0 >> column & 1 == 1;
        let mut indexes = at.indexes.iter().flatten();
        match indexes.any(|index| index.columns.iter().any(is_key)) {
            true => self.write_row(table, behind.rid),
            false => self.update_row(table, behind.rid),
        }
    }

    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        self.count_call();
        let behind = self.behind(handle)?;
        self.lock_for_write(behind)?;
        self.copy_row(behind.table, behind.rid)?;
        let (at, row) = (
            &self.engine.tables[behind.table as usize],
            std::mem::take(&mut self.row),
        );
        for index in at.indexes.iter().flatten() {
            self.remove_key(at, index, &row, behind.rid)?;
        }
        self.row = row;
        at.heap.set_hidden(&self.engine.pool, &mut self.chain, behind.rid, true);
        Ok(())
    }

    fn add(&mut self, handle: RowHandle, column: u16, delta: i64) -> Result<i64, OpError> {
        self.count_call();
        let behind = self.behind(handle)?;
        self.lock_for_write(behind)?;
        self.copy_row(behind.table, behind.rid)?;
        let layout = &self.engine.tables[behind.table as usize].layout;
        let slot = layout.columns.get(column as usize).copied();
        let slot = slot.filter(|slot| slot.ty.is_integer());
        let slot = slot.ok_or_else(|| guest("add is for integer columns"))?;
        let value = |row: &[u8]| match layout.field(row, column) {
            Field::Int(value) => Some(value as i128),
            Field::Uint(value) => Some(value as i128),
            _ => None,
        };
        let sum = value(&self.row).ok_or_else(|| guest("add to a null"))? + delta as i128;
        let (at, bytes) = (slot.offset as usize, slot.ty.slot_bytes());
        self.row[at..at + bytes].copy_from_slice(&sum.to_le_bytes()[..bytes]);
        if value(&self.row) != Some(sum) {
            return Err(guest("overflow in add"));
        }
        self.write_row(behind.table, behind.rid)?;
        Ok(sum as i64)
    }

    fn scan(&mut self, request: &ScanRequest<'_>, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        self.count_call();
        let cursor = Cursor {
            table: request.target.table,
            rows: self.rows_of(request)?.into_iter(),
            next: None,
        };
        self.run_cursor(cursor, visit)
    }

    fn scan_next(&mut self, cursor: u32, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
        self.count_call();
        let cursor = self.take_cursor(cursor)?;
        self.run_cursor(cursor, visit)
    }

    fn scan_close(&mut self, cursor: u32) -> Result<(), OpError> {
        self.take_cursor(cursor).map(drop)
    }

    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError> {
        self.count_call();
        Ok(self.rows_of(request)?.len() as u64)
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        self.count_call();
        self.savepoints.push(self.chain.last);
        Ok(self.savepoints.len() as u32 - 1)
    }

    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        self.count_call();
        let mark = self.savepoints.get(savepoint as usize).copied();
        let mark = mark.ok_or_else(|| guest("the savepoint does not stand"))?;
        self.savepoints.truncate(savepoint as usize + 1);
        self.undo_to(mark).map_err(guest)
    }

    fn now_us(&self) -> i64 {
        TxnId(self.txn_id).time_us()
    }

    fn txn_id(&self) -> u64 {
        self.txn_id
    }

    fn random_u64(&mut self) -> u64 {
        let txn_id = self.txn_id;
        self.random
            .get_or_insert_with(|| TxnRandom::new(SECRET, txn_id))
            .next_u64()
    }

    fn log(&mut self, _: LogLevel, _: &str) -> Result<(), OpError> {
        Ok(())
    }

    fn abort(&mut self, code: &str, _: &str) {
        self.abort = code.to_owned();
    }
}
