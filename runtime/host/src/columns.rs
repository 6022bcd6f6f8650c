//! Host calls that move some columns of a row.

use reprise_abi::{
    ColumnPlan, ColumnSet, FixedSlots, Handles, IndexTarget, Plans, RowLayout,
    calls::{EqualKeys, PackedItems},
};

use crate::state::{
    Answer, GuestOutput, GuestStop, HostState, narrow, or_duplicate, request_of, run_past_end, transaction_of, unpack,
};

/// Returns the plan that moves some columns of one of the module's tables.
#[inline]
fn plan_of<'a>(layouts: &[RowLayout], plans: &'a mut [Plans], table: u32, columns: u64) -> Answer<&'a ColumnPlan> {
    let set = ColumnSet(columns);
    match (layouts.get(table as usize), plans.get_mut(table as usize)) {
        (Some(layout), Some(plans)) if set.fits(layout) => Ok(plans.of(layout, set)),
        _ => Err(no_columns(table, columns)),
    }
}

#[cold]
fn no_columns(table: u32, columns: u64) -> GuestStop {
    GuestStop::Guest(format!("table {table} has no columns {columns:#x}"))
}

/// Checks that the guest named the table for which the host gave out the handle or the cursor.
#[inline]
fn check_table(found: Option<u16>, table: u32, what: &str) -> Answer<()> {
    if found.is_some_and(|found| u32::from(found) == table) {
        return Ok(());
    }
    Err(GuestStop::Guest(format!("{what} is not of table {table}")))
}

/// True if two slices of guest memory, each within it, have no byte in common.
#[inline]
fn are_apart(a: u64, b: u64) -> bool {
    let ((a, a_bytes), (b, b_bytes)) = (unpack(a), unpack(b));
    a + a_bytes <= b || b + b_bytes <= a
}

#[cold]
fn uneven(what: &str, bytes: usize, count: usize) -> GuestStop {
    GuestStop::Guest(format!("{bytes} bytes are not {count} {what} of one length"))
}

impl GuestOutput {
    /// Appends the columns of a row if they fit. Returns their bytes either way.
    #[inline]
    fn push_columns(&mut self, plan: &ColumnPlan, row: &[u8]) -> usize {
        let bytes = plan.bytes(row);
        if let Some(room) = self.room(bytes) {
            plan.read(row, room);
        }
        bytes
    }
}

impl HostState {
    pub fn get_columns(&mut self, target: u32, key: u64, columns: u64, out: u64) -> Answer<i64> {
        // SAFETY: last used before this call writes to guest memory.
        let key = unsafe { self.memory.read(key) }?;
        self.charge(key.len())?;
        let mut out = GuestOutput::new(self.memory, out)?;
        let target = IndexTarget::unpack(target);
        let plan = plan_of(&self.layouts, &mut self.plans, target.table as u32, columns)?;
        let ops = transaction_of(&mut self.ops)?;
        let Some((handle, row)) = ops.get(target, key)? else {
            return Ok(-1);
        };
        let bytes = out.push_columns(plan, row);
        self.charge(bytes)?;
        Ok((u64::from(handle) << 32 | bytes as u64) as i64)
    }

    pub fn multi_get_columns(&mut self, target: u32, keys: u64, columns: u64, out: u64) -> Answer<i64> {
        // SAFETY: last used before this call writes to guest memory.
        let bytes = unsafe { self.memory.read(keys) }?;
        self.charge(bytes.len())?;
        let mut out = GuestOutput::new(self.memory, out)?;
        let target = IndexTarget::unpack(target);
        let plan = plan_of(&self.layouts, &mut self.plans, target.table as u32, columns)?;
        // The rows are written to guest memory while the keys are still read, so the keys can't be borrowed from there.
        self.keys.clear();
        self.keys.extend_from_slice(bytes);
        let items = PackedItems::to_end(&self.keys);
        let items = items.ok_or_else(|| run_past_end(self.memory, keys, "keys"))?;
        let room = out.room(out.capacity()).unwrap_or_default();
        let capacity = room.len();
        let needed = transaction_of(&mut self.ops)?.multi_get_columns(target, items, plan, room)?;
        self.charge(needed)?;
        Ok(if needed <= capacity {
            needed as i64
        } else {
            -(needed as i64)
        })
    }

    pub fn multi_get_slots(&mut self, request: u64, keys: u64, columns: u64, out: u64) -> Answer<i64> {
        let (target, count) = unpack(request);
        let (target, count) = (IndexTarget::unpack(target), count as usize);
        // SAFETY: last used before this call writes to guest memory.
        let bytes = unsafe { self.memory.read(keys) }?;
        self.charge(bytes.len())?;
        let (mut room, is_apart) = (GuestOutput::new(self.memory, out)?, are_apart(keys, out));
        let plan = plan_of(&self.layouts, &mut self.plans, target.table as u32, columns)?;
        if count == 0 {
            return Ok(0);
        }
        let bytes = match is_apart {
            true => bytes,
            // Rows would be written over keys that must still be read.
            false => {
                self.keys.clear();
                self.keys.extend_from_slice(bytes);
                &self.keys
            }
        };
        let keys = EqualKeys::new(bytes, count).ok_or_else(|| uneven("keys", bytes.len(), count))?;
        let capacity = room.capacity();
        let slots = FixedSlots::new(plan, room.room(capacity).unwrap_or_default(), count);
        let slots = slots.ok_or_else(|| uneven("slots for the columns", capacity, count))?;
        let misfits = transaction_of(&mut self.ops)?.multi_get_slots(target, keys, slots)?;
        self.charge(capacity)?;
        Ok(misfits as i64)
    }

    pub fn row_read_columns(&mut self, handle: u32, table: u32, columns: u64, out: u64) -> Answer<i32> {
        let mut out = GuestOutput::new(self.memory, out)?;
        let plan = plan_of(&self.layouts, &mut self.plans, table, columns)?;
        let ops = transaction_of(&mut self.ops)?;
        check_table(ops.table_of_handle(handle), table, "the row")?;
        let row = ops.row(handle)?;
        let bytes = out.push_columns(plan, row);
        self.charge(bytes)?;
        Ok(bytes as i32)
    }

    pub fn scan_columns(&mut self, request: u32, columns: u64, out: u64) -> Answer<i64> {
        let mut out = GuestOutput::new(self.memory, out)?;
        let request = request_of(self.memory, request, &mut self.lower, &mut self.upper)?;
        let table = request.target.table as u32;
        let plan = plan_of(&self.layouts, &mut self.plans, table, columns)?;
        let room = out.room(out.capacity()).unwrap_or_default();
        let scanned = transaction_of(&mut self.ops)?.scan_columns(&request, plan, room)?;
        self.scanned(scanned.0.cursor, scanned.1)
    }

    pub fn scan_next_columns(&mut self, cursor: u32, table: u32, columns: u64, out: u64) -> Answer<i64> {
        let mut out = GuestOutput::new(self.memory, out)?;
        let plan = plan_of(&self.layouts, &mut self.plans, table, columns)?;
        let ops = transaction_of(&mut self.ops)?;
        check_table(ops.table_of_cursor(cursor), table, "the cursor")?;
        let room = out.room(out.capacity()).unwrap_or_default();
        let (batch, filled) = ops.scan_next_columns(cursor, plan, room)?;
        self.scanned(batch.cursor, filled)
    }

    /// Writes the same columns of several rows, each with its own values.
    pub fn patch(&mut self, table: u32, handles: u64, columns: u64, values: u64) -> Answer<i64> {
        // SAFETY: this call writes nothing to guest memory.
        let (handles, mut values) = unsafe { (self.memory.read(handles)?, self.memory.read(values)?) };
        self.charge(values.len())?;
        let plan = plan_of(&self.layouts, &mut self.plans, table, columns)?;
        let (handles, rest) = handles.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(GuestStop::Guest("a handle has four bytes".to_owned()));
        }
        let ops = transaction_of(&mut self.ops)?;
        let (table, set) = (narrow(table, "table")?, plan.set());
        if plan.is_fixed() {
            let bytes_each = plan.fixed_bytes();
            if values.len() != bytes_each * handles.len() {
                return Err(malformed());
            }
            let patched = ops.multi_patch(table, Handles::Bytes(handles), set, bytes_each, values);
            return or_duplicate(patched.map(|()| 0));
        }
        for handle in handles {
            let bytes = plan.values_len(values).map_err(|_| malformed())?;
            let (own, after) = values.split_at(bytes);
            values = after;
            let patched = ops.patch(table, u32::from_le_bytes(*handle), set, own);
            match or_duplicate(patched.map(|()| 0))? {
                0 => {}
                duplicate => return Ok(duplicate),
            }
        }
        if values.is_empty() { Ok(0) } else { Err(malformed()) }
    }
}

#[cold]
fn malformed() -> GuestStop {
    GuestStop::Guest("the values do not fit the columns".to_owned())
}
