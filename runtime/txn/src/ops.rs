//! Checks that the transactions on one and on several partitions share.

use reprise_abi::{ColumnSet, OpError};
use reprise_base::limits::MEMORY_MAX_LIMIT;
use reprise_storage::{Store, WriteError};

use crate::{
    module::TableBinding,
    run::TxnInput,
    scratch::{TxnScratch, limit},
};

pub(crate) fn guest(message: impl Into<String>) -> OpError {
    OpError::Guest(message.into())
}

#[inline]
pub(crate) fn binding<'a>(input: &TxnInput<'a>, table: u16) -> Result<&'a TableBinding, OpError> {
    input
        .module
        .tables
        .get(table as usize)
        .ok_or_else(|| unbound(input, table))
}

#[cold]
fn unbound(input: &TxnInput<'_>, table: u16) -> OpError {
    let schema = &input.module.schema;
    match (table as usize).checked_sub(schema.tables.len()) {
        Some(at) if at < schema.retiring.len() => {
            guest("a retiring table is seen by what runs at a deployment, and by nothing else")
        }
        _ => guest(format!("table {table} is not declared")),
    }
}

#[inline]
pub(crate) fn index_of(binding: &TableBinding, index: u16) -> Result<u16, OpError> {
    binding
        .indexes
        .get(index as usize)
        .copied()
        .ok_or_else(|| guest(format!("index {index} is not declared")))
}

pub(crate) fn may_write(is_read_only: bool) -> Result<(), OpError> {
    match is_read_only {
        false => Ok(()),
        true => Err(guest("a read-only procedure writes nothing")),
    }
}

/// Checks whether a transaction may write a table that not every transaction may write.
#[cold]
pub(crate) fn check_write(input: &TxnInput<'_>, binding: &TableBinding) -> Result<(), OpError> {
    may_write(input.is_read_only())?;
    match (input.is_migration(), binding.is_own) {
        (true, true) => Ok(()),
        (true, false) => Err(guest(
            "what runs at a deployment writes the module's own tables, and none that is retiring",
        )),
        (false, _) => Err(guest(
            "a replicated table is written by procedures that touch all partitions",
        )),
    }
}

/// Drops the undo that a migration does not need, and returns the bytes of the rest. The tables are dropped whole if the migration fails, so
/// only a savepoint needs undo.
pub(crate) fn undo_of_migration(store: &mut Store, frame: &TxnScratch) -> usize {
    if !frame.has_savepoints() {
        store.forgo_undo();
    }
    store.undo_bytes()
}

/// Turns a storage error into the guest's error. The guest may handle a duplicate; any other error ends the transaction.
pub(crate) fn write_error(error: WriteError, binding: &TableBinding) -> OpError {
    match error {
        WriteError::Duplicate { index } => {
            let declared = binding.indexes.iter().position(|stored| *stored == index);
            match declared {
                Some(index) => OpError::DuplicateKey { index: index as u16 },
                None => guest("the key exists in a unique index that this module does not know"),
            }
        }
        WriteError::KeyTooLong { index } => OpError::KeyTooLong {
            key: match binding.keys.get(index as usize) {
                Some(key) => key.clone(),
                None => "a key".into(),
            },
        },
        WriteError::NoMemory { max } => limit(MEMORY_MAX_LIMIT, max),
        other => guest(other.to_string()),
    }
}

/// Appends a row of the module's table to `out`, with some columns replaced.
pub(crate) fn patch_row(
    binding: &TableBinding,
    row: &[u8],
    columns: ColumnSet,
    values: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), OpError> {
    let patched = binding.layout.patch_row(columns, row, values, out);
    patched.map_err(|_| guest("the values do not fit the columns"))
}

/// Returns `count`, or the request's limit if it is less (0: no limit).
pub(crate) fn limited(count: u64, limit: u32) -> u64 {
    match limit {
        0 => count,
        limit => count.min(limit as u64),
    }
}

/// The methods of `HostOps` that need no tables, for a transaction with an `input`, a `frame` and a `run_cursor`.
macro_rules! ops_of_any_transaction {
    () => {
        fn args(&self) -> &[u8] {
            self.input.args
        }

        fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError> {
            self.frame.set_result(bytes)
        }

        fn table_of_handle(&self, handle: RowHandle) -> Option<u16> {
            self.frame.table_of_handle(handle)
        }

        fn table_of_cursor(&self, cursor: u32) -> Option<u16> {
            self.frame.table_of_cursor(cursor)
        }

        fn scan_next(&mut self, cursor: u32, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError> {
            self.frame.count_op()?;
            let cursor = self.frame.take_cursor(cursor)?;
            self.run_cursor(cursor, visit)
        }

        fn scan_close(&mut self, cursor: u32) -> Result<(), OpError> {
            self.frame.count_op()?;
            let cursor = self.frame.take_cursor(cursor)?;
            self.frame.drop_cursor(&cursor);
            Ok(())
        }

        fn limits_times(&self) -> u64 {
            self.frame.limits_times()
        }

        fn fuel_max(&self) -> Option<u64> {
            self.input.fuel_max().or(self.frame.view_fuel_max)
        }

        fn now_us(&self) -> i64 {
            self.input.txn_id.time_us()
        }

        fn txn_id(&self) -> u64 {
            self.input.txn_id.0
        }

        fn caller(&self) -> Option<&str> {
            self.input.caller
        }

        fn random_u64(&mut self) -> u64 {
            self.frame.random_u64(self.input.secret, self.input.txn_id.0)
        }

        fn log(&mut self, level: reprise_abi::LogLevel, text: &str) -> Result<(), OpError> {
            self.frame.log(level, text)
        }

        fn abort(&mut self, code: &str, message: &str) {
            self.frame.abort(code, message);
        }
    };
}
pub(crate) use ops_of_any_transaction;
