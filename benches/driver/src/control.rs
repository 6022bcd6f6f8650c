//! Calls that are not measured: filling and checking, the same on both ways in.

use std::{
    thread,
    time::{Duration, Instant},
};

use reprise_abi::value::{push_bytes, push_varint};
use serde_json::Value;

use crate::BenchError;

/// Rows of a table are asked for so often at most, at such distances.
const COUNTS_MAX: u32 = 25;
const COUNT_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Time for which an unexpected count must stay: a partition may stand still for longer than two answers. The second constant is the longest
/// wait for it.
const COUNT_SETTLED_AFTER: Duration = Duration::from_secs(3);
const COUNT_WAIT_MAX: Duration = Duration::from_secs(60);

/// An argument with its name.
pub(crate) type NamedArg = (&'static str, Arg);

#[derive(Clone, Debug)]
pub(crate) enum Arg {
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    Texts(Vec<&'static str>),
}

/// Takes the integers of each row.
pub(crate) type RowVisitor<'v> = dyn FnMut(&[i64]) + 'v;

/// Calls of one procedure.
pub(crate) struct ManyCalls<'a> {
    pub procedure: &'a str,
    pub count: u64,
    /// The arguments of each call, by its number.
    pub args: &'a dyn Fn(u64) -> Vec<NamedArg>,
    /// The code of an abort that is no failure.
    pub tolerated: &'a str,
    /// Takes the number of calls that are done.
    pub on_done: &'a dyn Fn(u64),
}

impl<'a> ManyCalls<'a> {
    /// Calls that all commit.
    pub(crate) fn new(procedure: &'a str, count: u64, args: &'a dyn Fn(u64) -> Vec<NamedArg>) -> Self {
        Self {
            procedure,
            count,
            args,
            tolerated: "",
            on_done: &|_| {},
        }
    }
}

/// A way to the database under test.
pub(crate) trait Control {
    /// Runs one call of the workload's module; its result as JSON. Err: it did not commit.
    fn call(&mut self, procedure: &str, args: &[NamedArg]) -> Result<Value, BenchError>;

    /// Runs these calls, many at a time.
    fn call_many(&mut self, calls: &ManyCalls<'_>) -> Result<(), BenchError>;

    /// Visits the rows of a table as objects by column.
    fn visit_rows(&mut self, table: &str, visit: &mut dyn FnMut(&Value)) -> Result<(), BenchError>;

    /// Visits the integers of these columns of all rows of a table.
    fn visit_integers(&mut self, table: &str, columns: &[&str], visit: &mut RowVisitor<'_>) -> Result<(), BenchError>;

    /// Rows of a table over all partitions, as these published last.
    fn published_rows(&mut self, table: &str) -> Result<u64, BenchError>;

    /// Rows of a table over all partitions, once two answers in a row are equal. The driver does not wait for a partition that is busy, or with
    /// another site for a transaction.
    fn row_count(&mut self, table: &str) -> Result<u64, BenchError> {
        let mut before = None;
        for _ in 0..COUNTS_MAX {
            let rows = self.published_rows(table)?;
            if before == Some(rows) {
                break;
            }
            before = Some(rows);
            thread::sleep(COUNT_AGAIN_AFTER);
        }
        Ok(before.unwrap_or_default())
    }

    /// The `row_count` variant for a check. An unexpected count must stay for some seconds, because partitions on a busy machine may publish late.
    fn checked_row_count(&mut self, table: &str, is_expected: &dyn Fn(u64) -> bool) -> Result<u64, BenchError> {
        let begun = Instant::now();
        let (mut before, mut since) = (None, begun);
        loop {
            let rows = self.row_count(table)?;
            if before != Some(rows) {
                (before, since) = (Some(rows), Instant::now());
            }
            let is_settled = since.elapsed() >= COUNT_SETTLED_AFTER || begun.elapsed() >= COUNT_WAIT_MAX;
            if is_expected(rows) || is_settled {
                return Ok(rows);
            }
        }
    }

    fn partitions(&self) -> u16;
}

pub(crate) fn encode(args: &[NamedArg], out: &mut Vec<u8>) {
    for (_, arg) in args {
        match arg {
            Arg::I8(value) => out.push(*value as u8),
            Arg::I16(value) => out.extend_from_slice(&value.to_le_bytes()),
            Arg::I32(value) => out.extend_from_slice(&value.to_le_bytes()),
            Arg::I64(value) => out.extend_from_slice(&value.to_le_bytes()),
            Arg::Texts(texts) => {
                push_varint(out, texts.len() as u32);
                texts.iter().for_each(|text| push_bytes(out, text.as_bytes()));
            }
        }
    }
}

pub(crate) fn to_json(args: &[NamedArg]) -> Value {
    let members = args.iter().map(|(name, arg)| {
        let value = match arg {
            Arg::I8(value) => Value::from(*value),
            Arg::I16(value) => Value::from(*value),
            Arg::I32(value) => Value::from(*value),
            Arg::I64(value) => Value::from(*value),
            Arg::Texts(texts) => texts.iter().copied().collect(),
        };
        ((*name).to_owned(), value)
    });
    Value::Object(members.collect())
}

/// A member that is an integer, as a number or as a string.
pub(crate) fn integer(object: &Value, member: &str) -> Result<i64, BenchError> {
    let value = &object[member];
    value
        .as_i64()
        .or_else(|| value.as_str().and_then(|text| text.parse().ok()))
        .ok_or_else(|| BenchError::Failed(format!("no integer {member:?} in {object}")))
}
