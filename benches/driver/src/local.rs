//! The way to a database in this process that is not measured.

use std::{
    convert::Infallible,
    sync::{Arc, mpsc},
    time::Duration,
};

use reprise_abi::{
    Field, RowLayout, ScalarType, TableSchema, Type,
    value::{ValueError, ValueReader},
};
use reprise_router::{BatchBuilder, BatchReply, Deployed, Failure, Module, ReplyOutcome, Router, RowsRequest};
use serde_json::{Map, Value};

use crate::{
    BenchError,
    control::{Control, ManyCalls, NamedArg, RowVisitor, encode},
    failed,
};

/// Number of calls that travel together while they fill the tables.
const LOAD_BATCH: u64 = 64;
/// Batches of them on their way: the engine works while the next are made.
const LOAD_BATCHES: u64 = 8;
const PAGE_ROWS: u32 = 5_000;
/// Longest wait for sizes. The run is over, so the engine threads answer at once.
const STATS_WAIT_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Local<'a> {
    pub router: &'a Router,
    pub module: &'static str,
}

impl Local<'_> {
    /// The module, and the procedure's position in it.
    fn procedure(&self, name: &str) -> Result<Procedure, BenchError> {
        let deployed = self.router.deployed();
        let module = deployed.current.get(self.module).cloned();
        let module = module.ok_or_else(|| BenchError::Failed(format!("no module {} in service", self.module)))?;
        let found = module.procedure(name).map(|(at, _)| at);
        let at = found.ok_or_else(|| BenchError::Failed(format!("{} has no procedure {name}", self.module)))?;
        Ok(Procedure { deployed, module, at })
    }

    fn submit(
        &self,
        procedure: &Procedure,
        calls: impl Iterator<Item = Vec<NamedArg>>,
        replies: &mpsc::Sender<BatchReply>,
    ) {
        let mut builder = BatchBuilder::new(procedure.deployed.clone(), self.router);
        for args in calls {
            let pushed = builder.push(&procedure.module, procedure.at, None, |out| {
                encode(&args, out);
                Ok::<(), Infallible>(())
            });
            let Ok(_) = pushed;
        }
        let replies = replies.clone();
        self.router.submit(
            builder,
            Box::new(move |reply| {
                let _ = replies.send(reply); // the receiver waits, or has met an error
            }),
        );
    }

    /// Visits the rows of a table as they are stored.
    fn visit_stored(
        &self,
        table: u16,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let mut cursor = None;
        loop {
            let request = RowsRequest {
                table,
                index: 0,
                limit: PAGE_ROWS,
                cursor,
                prefix: Vec::new(),
                ..RowsRequest::default()
            };
            let page = self
                .router
                .table_rows(request)
                .map_err(|error| failed("read rows", error))?;
            page.rows.iter().try_for_each(|row| visit(row))?;
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(());
            }
        }
    }

    fn table(&self, name: &str) -> Result<(u16, Arc<TableSchema>), BenchError> {
        let deployed = self.router.deployed();
        let found = deployed.table(name);
        let (id, schema) = found.ok_or_else(|| BenchError::Failed(format!("there is no table {name}")))?;
        Ok((id.0, schema.clone()))
    }
}

struct Procedure {
    deployed: Arc<Deployed>,
    module: Arc<Module>,
    at: usize,
}

fn stopped() -> BenchError {
    BenchError::Failed("the engine has stopped".into())
}

impl Control for Local<'_> {
    fn call(&mut self, procedure: &str, args: &[NamedArg]) -> Result<Value, BenchError> {
        let found = self.procedure(procedure)?;
        let (replies, arrived) = mpsc::channel();
        self.submit(&found, std::iter::once(args.to_vec()), &replies);
        let reply = arrived.recv().map_err(|_| stopped())?;
        let answer = reply.get(0);
        let returns = &found.module.schema.procedures[found.at].returns;
        match answer.outcome {
            ReplyOutcome::Committed => {
                to_value(returns, &mut ValueReader::new(answer.result)).map_err(|error| failed("read a result", error))
            }
            other => Err(BenchError::Failed(format!("{procedure}: {}", describe(other)))),
        }
    }

    fn call_many(&mut self, calls: &ManyCalls<'_>) -> Result<(), BenchError> {
        let found = self.procedure(calls.procedure)?;
        let (replies, arrived) = mpsc::channel();
        let (mut sent, mut done) = (0, 0);
        while done < calls.count {
            while sent < calls.count && sent - done < LOAD_BATCH * LOAD_BATCHES {
                let end = calls.count.min(sent + LOAD_BATCH);
                self.submit(&found, (sent..end).map(calls.args), &replies);
                sent = end;
            }
            let reply = arrived.recv().map_err(|_| stopped())?;
            for at in 0..reply.len() {
                match reply.get(at).outcome {
                    ReplyOutcome::Committed => {}
                    ReplyOutcome::Failed(failure) if matches!(&**failure, Failure::Aborted { code, .. } if code == calls.tolerated) =>
                        {}
                    other => {
                        return Err(BenchError::Failed(format!("{}: {}", calls.procedure, describe(other))));
                    }
                }
            }
            done += reply.len() as u64;
            (calls.on_done)(done);
        }
        Ok(())
    }

    fn visit_rows(&mut self, table: &str, visit: &mut dyn FnMut(&Value)) -> Result<(), BenchError> {
        let (id, schema) = self.table(table)?;
        let layout = RowLayout::of_table(&schema);
        self.visit_stored(id, &mut |row| {
            visit(&row_value(&schema, &layout, row));
            Ok(())
        })
    }

    fn visit_integers(&mut self, table: &str, columns: &[&str], visit: &mut RowVisitor<'_>) -> Result<(), BenchError> {
        let (id, schema) = self.table(table)?;
        let layout = RowLayout::of_table(&schema);
        let position = |name: &&str| schema.columns.iter().position(|column| column.name == **name);
        let positions: Option<Vec<usize>> = columns.iter().map(position).collect();
        let positions =
            positions.ok_or_else(|| BenchError::Failed(format!("{table} lacks a column of {columns:?}")))?;
        let mut values = vec![0; columns.len()];
        self.visit_stored(id, &mut |row| {
            for (value, at) in values.iter_mut().zip(&positions) {
                *value = match layout.field(row, *at as u16) {
                    Field::Int(value) => value,
                    other => {
                        let text = format!("{table} has {other:?} where an integer was asked for");
                        return Err(BenchError::Failed(text));
                    }
                };
            }
            visit(&values);
            Ok(())
        })
    }

    fn published_rows(&mut self, table: &str) -> Result<u64, BenchError> {
        let (id, _) = self.table(table)?;
        let stats = self
            .router
            .table_stats(STATS_WAIT_MAX)
            .map_err(|error| failed("count rows", error))?;
        Ok(stats.get(id as usize).map_or(0, |stats| stats.rows))
    }

    fn partitions(&self) -> u16 {
        self.router.status().partitions
    }
}

/// An outcome in words.
pub(crate) fn describe(outcome: &ReplyOutcome) -> String {
    match outcome {
        ReplyOutcome::Committed => "committed".into(),
        ReplyOutcome::Waiting => "not run".into(),
        ReplyOutcome::Failed(failure) => match &**failure {
            Failure::Aborted { code, message } => format!("aborted with {code}: {message}"),
            Failure::Limit { message, .. } => message.clone(),
            Failure::Trapped {
                trap,
                message,
                backtrace,
            } => format!("trapped ({trap}): {message} {}", backtrace.join(" < ")),
            Failure::Ended(ended) => format!("ended ({ended:?})"),
        },
        ReplyOutcome::Superseded => "the module was replaced while the load ran".into(),
        ReplyOutcome::Overloaded { .. } => "too many transactions wait".into(),
        ReplyOutcome::IdempotencyConflict => "the idempotency key was used before".into(),
        ReplyOutcome::IdempotencyFull => "there is no room for another idempotency key".into(),
        ReplyOutcome::LogUnavailable(reason) => format!("the log can't be written: {reason}"),
        ReplyOutcome::NotPrimary(_) => "this is a standby".into(),
        ReplyOutcome::Unavailable(reason)
        | ReplyOutcome::StandbyUnavailable(reason)
        | ReplyOutcome::LeaseLost(reason)
        | ReplyOutcome::TooStale(reason)
        | ReplyOutcome::OutcomeUnknown(reason)
        | ReplyOutcome::Unconfirmed(reason)
        | ReplyOutcome::ReadOnly(reason)
        | ReplyOutcome::Quarantined(reason) => reason.to_string(),
    }
}

/// Scalars that no workload uses read as null.
fn to_value(ty: &Type, reader: &mut ValueReader<'_>) -> Result<Value, ValueError> {
    Ok(match ty {
        Type::Unit => Value::Null,
        Type::Scalar(ScalarType::Bool) => reader.flag()?.into(),
        Type::Scalar(ScalarType::I32) => i32::from_le_bytes(reader.array()?).into(),
        Type::Scalar(ScalarType::I64) => i64::from_le_bytes(reader.array()?).into(),
        Type::Scalar(ScalarType::Text) => reader.text()?.into(),
        Type::Scalar(_) => {
            reader.skip(ty)?;
            Value::Null
        }
        Type::Option(inner) => match reader.flag()? {
            true => to_value(inner, reader)?,
            false => Value::Null,
        },
        Type::List(item) => {
            let count = reader.list_len()?;
            let items: Result<Vec<_>, _> = (0..count).map(|_| to_value(item, reader)).collect();
            items?.into()
        }
        Type::Struct(of) => {
            let mut members = Map::new();
            for field in &of.fields {
                members.insert(field.name.clone(), to_value(&field.ty, reader)?);
            }
            members.into()
        }
        Type::Enum(variants) => {
            let offset = reader.offset();
            let name = variants.get(reader.varint()? as usize);
            name.ok_or(ValueError { offset })?.as_str().into()
        }
    })
}

fn row_value(schema: &TableSchema, layout: &RowLayout, row: &[u8]) -> Value {
    let members = schema.columns.iter().enumerate().map(|(at, column)| {
        let value = match layout.field(row, at as u16) {
            Field::Bool(value) => value.into(),
            Field::Int(value) => value.into(),
            Field::Uint(value) => value.into(),
            Field::Text(text) => text.into(),
            _ => Value::Null,
        };
        (column.name.clone(), value)
    });
    Value::Object(members.collect())
}
