//! Host calls that move some columns of a row.

use reprise_abi::{
    ColumnPlan, ColumnSet, RowLayout, Target,
    calls::{HANDLE_NONE, Packed},
};

use crate::state::{
    Answer, HostState, Output, ROW_HEADER_BYTES, Refusal, narrow, or_duplicate, run_past_end,
    transaction_of,
};

/// Some columns of one of the module's tables.
struct Chosen<'a> {
    layout: &'a RowLayout,
    table: u16,
    set: ColumnSet,
    plan: ColumnPlan,
}

impl<'a> Chosen<'a> {
    #[inline]
    fn new(layouts: &'a [RowLayout], table: u32, columns: u64) -> Answer<Self> {
        let (table, set) = (narrow(table, "table")?, ColumnSet(columns));
        match layouts.get(table as usize) {
            Some(layout) if set.fits(layout) => Ok(Self {
                layout,
                table,
                set,
                plan: ColumnPlan::new(layout, set),
            }),
            _ => Err(Refusal::Guest(format!(
                "table {table} has no columns {columns:#x}"
            ))),
        }
    }

    #[inline]
    fn bytes(&self, row: &[u8]) -> usize {
        self.plan.bytes(self.layout, row)
    }

    #[inline]
    fn read(&self, row: &[u8], out: &mut [u8]) {
        self.plan.read(self.layout, row, out);
    }

    /// The table that the guest named is the one that the host gave out the handle or the cursor for.
    #[inline]
    fn check_table(&self, found: Option<u16>, what: &str) -> Answer<()> {
        if found == Some(self.table) {
            return Ok(());
        }
        Err(Refusal::Guest(format!(
            "{what} is not of table {}",
            self.table
        )))
    }
}

impl Output {
    /// Appends the columns of a row when they fit; their bytes either way.
    #[inline]
    fn push_columns(&mut self, chosen: &Chosen<'_>, row: &[u8]) -> usize {
        let bytes = chosen.bytes(row);
        if let Some(room) = self.room(bytes) {
            chosen.read(row, room);
        }
        bytes
    }

    fn try_push_columns(&mut self, handle: u32, chosen: &Chosen<'_>, row: &[u8]) -> bool {
        let bytes = chosen.bytes(row);
        let Some(room) = self.room(ROW_HEADER_BYTES + bytes) else {
            return false;
        };
        let (header, values) = room.split_at_mut(ROW_HEADER_BYTES);
        header.copy_from_slice(&(u64::from(handle) | (bytes as u64) << 32).to_le_bytes());
        chosen.read(row, values);
        true
    }
}

impl HostState {
    pub fn get_columns(&mut self, target: u32, key: u64, columns: u64, out: u64) -> Answer<i64> {
        let key = self.memory.read(key)?;
        let mut out = Output::new(self.memory, out)?;
        let target = Target::unpack(target);
        let chosen = Chosen::new(&self.layouts, target.table as u32, columns)?;
        let ops = transaction_of(&mut self.ops)?;
        let Some((handle, row)) = ops.get(target, key)? else {
            return Ok(-1);
        };
        let bytes = out.push_columns(&chosen, row);
        self.charge(bytes)?;
        Ok((u64::from(handle) << 32 | bytes as u64) as i64)
    }

    pub fn multi_get_columns(
        &mut self,
        target: u32,
        keys: u64,
        columns: u64,
        out: u64,
    ) -> Answer<i64> {
        let bytes = self.memory.read(keys)?;
        let mut out = Output::new(self.memory, out)?;
        let target = Target::unpack(target);
        let chosen = Chosen::new(&self.layouts, target.table as u32, columns)?;
        // The rows are written to guest memory while the keys are still read, so these can't be borrowed from there.
        self.keys.clear();
        self.keys.extend_from_slice(bytes);
        let items = Packed::to_end(&self.keys);
        let items = items.ok_or_else(|| run_past_end(self.memory, keys, "keys"))?;
        let (mut needed, mut fits) = (0, true);
        let visit = &mut |handle: u32, row: &[u8]| {
            let bytes = match handle {
                HANDLE_NONE => 0,
                _ => chosen.bytes(row),
            };
            needed += ROW_HEADER_BYTES + bytes;
            fits = fits
                && match handle {
                    HANDLE_NONE => out.try_push_row(handle, &[]),
                    _ => out.try_push_columns(handle, &chosen, row),
                };
        };
        transaction_of(&mut self.ops)?.multi_get(target, items, visit)?;
        self.charge(needed)?;
        Ok(if fits {
            needed as i64
        } else {
            -(needed as i64)
        })
    }

    pub fn row_read_columns(
        &mut self,
        handle: u32,
        table: u32,
        columns: u64,
        out: u64,
    ) -> Answer<i32> {
        let mut out = Output::new(self.memory, out)?;
        let chosen = Chosen::new(&self.layouts, table, columns)?;
        let ops = transaction_of(&mut self.ops)?;
        chosen.check_table(ops.table_of_handle(handle), "the row")?;
        let row = ops.row(handle)?;
        let bytes = out.push_columns(&chosen, row);
        self.charge(bytes)?;
        Ok(bytes as i32)
    }

    pub fn scan_columns(&mut self, request: u32, columns: u64, out: u64) -> Answer<i64> {
        let mut out = Output::new(self.memory, out)?;
        let table = Target::unpack(self.memory.read_u32(request)?).table;
        let layouts = self.layouts.clone();
        let chosen = Chosen::new(&layouts, table as u32, columns)?;
        self.with_request(request, |ops, request| {
            let visit = &mut |handle, row: &[u8]| out.try_push_columns(handle, &chosen, row);
            let batch = ops.scan(request, visit)?;
            Ok((batch.cursor, out.filled()))
        })
        .and_then(|(cursor, filled)| self.scanned(cursor, filled))
    }

    pub fn scan_next_columns(
        &mut self,
        cursor: u32,
        table: u32,
        columns: u64,
        out: u64,
    ) -> Answer<i64> {
        let mut out = Output::new(self.memory, out)?;
        let chosen = Chosen::new(&self.layouts, table, columns)?;
        let ops = transaction_of(&mut self.ops)?;
        chosen.check_table(ops.table_of_cursor(cursor), "the cursor")?;
        let visit = &mut |handle, row: &[u8]| out.try_push_columns(handle, &chosen, row);
        let batch = ops.scan_next(cursor, visit)?;
        self.scanned(batch.cursor, out.filled())
    }

    /// Writes the same columns of several rows, each with its own values.
    pub fn patch(&mut self, table: u32, handles: u64, columns: u64, values: u64) -> Answer<i64> {
        let (handles, mut values) = (self.memory.read(handles)?, self.memory.read(values)?);
        self.charge(values.len())?;
        let chosen = Chosen::new(&self.layouts, table, columns)?;
        let malformed = || Refusal::Guest("the values do not fit the columns".to_owned());
        let (handles, rest) = handles.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Refusal::Guest("a handle has four bytes".to_owned()));
        }
        for handle in handles {
            let bytes = chosen
                .layout
                .columns_len(chosen.set, values)
                .map_err(|_| malformed())?;
            let (own, after) = values.split_at(bytes);
            values = after;
            let handle = u32::from_le_bytes(*handle);
            let patched =
                transaction_of(&mut self.ops)?.patch(chosen.table, handle, chosen.set, own);
            match or_duplicate(patched.map(|()| 0))? {
                0 => {}
                duplicate => return Ok(duplicate),
            }
        }
        if values.is_empty() {
            Ok(0)
        } else {
            Err(malformed())
        }
    }
}
