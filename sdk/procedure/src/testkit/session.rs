//! One transaction of the test kit: the host's calls over its store.

use std::ops::Bound;

use reprise_abi::{
    ColumnSet, Field, HostOps, LogLevel, OpError, Placement, RowHandle, ScalarType, ScanBatch,
    ScanRequest, Target, Type,
    random::TxnRandom,
    value::{RESULT_BYTES_MAX, ValueReader},
};

use super::{
    LogLine,
    store::{KeyRange, Store, guest},
};
use crate::module::Abort;

/// What a call may write.
pub enum CallScope {
    /// Rows with one of these values in their partition column.
    By {
        values: Vec<PlaceValue>,
        read_only: bool,
    },
    All {
        read_only: bool,
    },
}

/// A value that chooses a partition, comparable over integer widths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceValue {
    Number(i128),
    Bytes(Vec<u8>),
}

impl PlaceValue {
    pub fn of_argument(ty: &Type, encoded: &[u8]) -> Self {
        let Type::Scalar(scalar) = ty else {
            return Self::Bytes(encoded.to_vec());
        };
        if scalar.is_variable() {
            let data = ValueReader::new(encoded).bytes().unwrap_or(encoded);
            return Self::Bytes(data.to_vec());
        }
        let is_signed = matches!(
            scalar,
            ScalarType::I8
                | ScalarType::I16
                | ScalarType::I32
                | ScalarType::I64
                | ScalarType::Timestamp
        );
        if !is_signed && !scalar.is_integer() && *scalar != ScalarType::Bool {
            return Self::Bytes(encoded.to_vec());
        }
        let negative = is_signed && encoded.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if negative { 0xff } else { 0 }; 16];
        wide[..encoded.len()].copy_from_slice(encoded);
        Self::Number(i128::from_le_bytes(wide))
    }

    fn of_field(field: &Field<'_>) -> Self {
        match field {
            Field::Bool(value) => Self::Number(*value as i128),
            Field::Int(value) => Self::Number(*value as i128),
            Field::Uint(value) => Self::Number(*value as i128),
            Field::F64(value) => Self::Bytes(value.to_le_bytes().to_vec()),
            Field::Decimal(value) => Self::Bytes(value.to_le_bytes().to_vec()),
            Field::Uuid(value) => Self::Bytes(value.to_vec()),
            Field::Text(text) => Self::Bytes(text.as_bytes().to_vec()),
            Field::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
            Field::Null => Self::Bytes(Vec::new()),
        }
    }
}

/// When and as what a transaction runs.
pub struct Moment {
    pub now_us: i64,
    pub txn_id: u64,
    pub seed: u64,
}

struct Cursor {
    target: Target,
    range: KeyRange,
    left: Option<u32>,
}

pub struct Session<'a> {
    store: &'a mut Store,
    log: &'a mut Vec<LogLine>,
    args: &'a [u8],
    scope: CallScope,
    moment: Moment,
    random: TxnRandom,
    /// Table and row number behind each handle.
    handles: Vec<(usize, usize)>,
    cursors: Vec<Option<Cursor>>,
    savepoints: Vec<usize>,
    result: Vec<u8>,
    abort: Option<Abort>,
}

impl<'a> Session<'a> {
    pub fn new(
        store: &'a mut Store,
        log: &'a mut Vec<LogLine>,
        args: &'a [u8],
        scope: CallScope,
        moment: Moment,
    ) -> Self {
        let random = TxnRandom::new([moment.seed, 0], moment.txn_id);
        Self {
            store,
            log,
            args,
            scope,
            moment,
            random,
            handles: Vec::new(),
            cursors: Vec::new(),
            savepoints: Vec::new(),
            result: Vec::new(),
            abort: None,
        }
    }

    pub fn take_abort(&mut self) -> Option<Abort> {
        self.abort.take()
    }

    pub fn take_result(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.result)
    }

    /// Keeps or takes back what was written.
    pub fn end(self, commit: bool) {
        if !commit {
            self.store.undo_to(0);
        }
        self.store.forget_undo();
    }

    fn new_handle(&mut self, table: usize, number: usize) -> RowHandle {
        self.handles.push((table, number));
        (self.handles.len() - 1) as RowHandle
    }

    fn behind(&self, handle: RowHandle) -> Result<(usize, usize), OpError> {
        let row = self.handles.get(handle as usize).copied();
        row.ok_or_else(|| guest(format!("row handle {handle} was never given out")))
    }

    /// Checks that this call may write this row of the table.
    fn check_write(&self, table: usize, row: &[u8]) -> Result<(), OpError> {
        let (CallScope::By { read_only, .. } | CallScope::All { read_only }) = &self.scope;
        if *read_only {
            return Err(guest("a read-only procedure writes nothing"));
        }
        let CallScope::By { values, .. } = &self.scope else {
            return Ok(());
        };
        let table = self.store.table(table)?;
        match table.schema.placement {
            Placement::Local => Ok(()),
            Placement::Replicated => Err(guest(
                "a replicated table is written by procedures that touch all partitions",
            )),
            Placement::By(column) => {
                table
                    .layout
                    .validate(row)
                    .map_err(|error| guest(error.to_string()))?;
                let value = PlaceValue::of_field(&table.layout.field(row, column));
                if values.contains(&value) {
                    return Ok(());
                }
                let (name, column) = (
                    &table.schema.name,
                    &table.schema.columns[column as usize].name,
                );
                Err(guest(format!(
                    "the call's partition parameters do not name this row of {name} by its {column}"
                )))
            }
        }
    }

    fn check_handle_write(&self, table: usize, number: usize) -> Result<(), OpError> {
        self.check_write(table, self.store.row(table, number)?)
    }

    fn run_cursor(
        &mut self,
        mut cursor: Cursor,
        visit: &mut dyn FnMut(RowHandle, &[u8]) -> bool,
    ) -> Result<ScanBatch, OpError> {
        let table = cursor.target.table as usize;
        let (mut rows, mut stopped_at) = (0, None);
        for (key, number) in self
            .store
            .entries(table, cursor.target.index, &cursor.range)?
        {
            if cursor.left == Some(rows) {
                break;
            }
            // A handle only for a row that is taken: numbers must not depend on the size of the guest's buffer.
            if !visit(
                self.handles.len() as RowHandle,
                self.store.row(table, number)?,
            ) {
                stopped_at = Some(key.to_vec());
                break;
            }
            self.handles.push((table, number));
            rows += 1;
        }
        let Some(key) = stopped_at else {
            return Ok(ScanBatch { cursor: 0, rows });
        };
        match cursor.range.reverse {
            false => cursor.range.lower = Bound::Included(key),
            true => cursor.range.upper = Bound::Included(key),
        }
        cursor.left = cursor.left.map(|left| left - rows);
        self.cursors.push(Some(cursor));
        Ok(ScanBatch {
            cursor: self.cursors.len() as u32,
            rows,
        })
    }
}

impl HostOps for Session<'_> {
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

    fn get(&mut self, target: Target, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError> {
        let table = target.table as usize;
        let Some(number) = self.store.find(table, target.index, key)? else {
            return Ok(None);
        };
        let handle = self.new_handle(table, number);
        Ok(Some((handle, self.store.row(table, number)?)))
    }

    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError> {
        let (table, number) = self.behind(handle)?;
        self.store.row(table, number)
    }

    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError> {
        self.check_write(table as usize, row)?;
        let number = self.store.insert(table as usize, row)?;
        Ok(self.new_handle(table as usize, number))
    }

    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError> {
        let (table, number) = self.behind(handle)?;
        self.check_handle_write(table, number)?;
        self.check_write(table, row)?;
        self.store.write(table, number, Some(row))
    }

    fn table_of_handle(&self, handle: RowHandle) -> Option<u16> {
        self.handles
            .get(handle as usize)
            .map(|(table, _)| *table as u16)
    }

    fn table_of_cursor(&self, cursor: u32) -> Option<u16> {
        let at = (cursor as usize).checked_sub(1)?;
        Some(self.cursors.get(at)?.as_ref()?.target.table)
    }

    fn patch(
        &mut self,
        table: u16,
        handle: RowHandle,
        columns: ColumnSet,
        values: &[u8],
    ) -> Result<(), OpError> {
        let (own, number) = self.behind(handle)?;
        if own != table as usize {
            return Err(guest(format!(
                "row handle {handle} is not of table {table}"
            )));
        }
        let old = self.store.row(own, number)?.to_vec();
        let layout = &self.store.table(own)?.layout;
        let mut row = Vec::new();
        let patched = layout.patch_row(columns, &old, values, &mut row);
        patched.map_err(|_| guest("the values do not fit the columns"))?;
        self.update(handle, &row)
    }

    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError> {
        let (table, number) = self.behind(handle)?;
        self.check_handle_write(table, number)?;
        self.store.write(table, number, None)
    }

    fn add(&mut self, handle: RowHandle, column: u16, delta: i64) -> Result<i64, OpError> {
        let (table, number) = self.behind(handle)?;
        self.check_handle_write(table, number)?;
        let target = self.store.table(table)?;
        let slot = target.layout.columns.get(column as usize).copied();
        let slot = slot.ok_or_else(|| guest(format!("column {column} does not exist")))?;
        if !slot.ty.is_integer() || target.is_indexed(column) {
            return Err(guest(
                "add is for integer columns outside of keys and indexes",
            ));
        }
        let mut row = self.store.row(table, number)?.to_vec();
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
        self.store.write(table, number, Some(&row))?;
        Ok(sum as i64)
    }

    fn scan(
        &mut self,
        request: &ScanRequest<'_>,
        visit: &mut dyn FnMut(RowHandle, &[u8]) -> bool,
    ) -> Result<ScanBatch, OpError> {
        let left = (request.limit > 0).then_some(request.limit);
        self.run_cursor(
            Cursor {
                target: request.target,
                range: KeyRange::of(request)?,
                left,
            },
            visit,
        )
    }

    fn scan_next(
        &mut self,
        cursor: u32,
        visit: &mut dyn FnMut(RowHandle, &[u8]) -> bool,
    ) -> Result<ScanBatch, OpError> {
        let slot = (cursor as usize)
            .checked_sub(1)
            .and_then(|slot| self.cursors.get_mut(slot));
        let cursor = slot.and_then(Option::take);
        self.run_cursor(
            cursor.ok_or_else(|| guest("the cursor is not open"))?,
            visit,
        )
    }

    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError> {
        let range = KeyRange::of(request)?;
        let entries =
            self.store
                .entries(request.target.table as usize, request.target.index, &range)?;
        let limit = if request.limit == 0 {
            usize::MAX
        } else {
            request.limit as usize
        };
        Ok(entries.take(limit).count() as u64)
    }

    fn savepoint(&mut self) -> Result<u32, OpError> {
        self.savepoints.push(self.store.undo_len());
        Ok((self.savepoints.len() - 1) as u32)
    }

    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError> {
        let len = self.savepoints.get(savepoint as usize).copied();
        self.store
            .undo_to(len.ok_or_else(|| guest("the savepoint does not stand"))?);
        self.savepoints.truncate(savepoint as usize + 1);
        Ok(())
    }

    fn now_us(&self) -> i64 {
        self.moment.now_us
    }

    fn txn_id(&self) -> u64 {
        self.moment.txn_id
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
