//! `/v1/log`: the log's records, decoded. `/v1/procedure-log`: what procedures wrote with `log`.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use axum::{Json, extract::State};
use reprise_abi::{
    ColumnSchema, Parameter, RowLayout, ScalarType, TableSchema,
    key::KeyReader,
    value::{ValueError, ValueReader, push_bytes},
};
use reprise_api::{
    Json as RawJson, LogPage, LogRecord, Problem, ProcedureLog, ProcedureLogLine, RecordKind, RowChange, U64,
};
use reprise_base::{Lsn, TxnId};
use reprise_codec::{
    count_prefix, encode_prefix, hex, raw_json, read_scalar, rfc3339, row_json, write_arguments, write_column,
};
use reprise_observe::LineFilter;
use reprise_router::{ChangedRow, LogBody, LogEntry, LogMatch, LogProcedure, LogQuery, NumberedRow, Router, RowsError};
use serde::{
    Deserialize,
    de::{IntoDeserializer, value::StrDeserializer},
};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::{
    front::{Name, Params, parse_digits},
    limits::{LOG_LIMIT_MAX, LOG_PAGE_TEXT_BYTES_MAX, PROCEDURE_LOG_LIMIT_MAX},
    places::Operation,
    plan,
    refusal::Refusal,
    state::AppState,
};

const LIMIT_DEFAULT: usize = 100;

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogOrder {
    /// From `from`, or the beginning, forwards.
    #[default]
    Oldest,
    /// Backwards from before `from`, or from the end.
    Newest,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogParams {
    /// LSN to begin at; `next` of the page before.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,19}$")]
    from: Option<String>,
    /// Records at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only records that touch this partition.
    #[param(maximum = 65535)]
    partition: Option<u16>,
    /// Only records of this kind.
    #[param(value_type = Option<RecordKind>)]
    kind: Option<String>,
    /// Only this transaction's records.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,19}$")]
    transaction: Option<String>,
    /// Only calls of this module, and its deployments.
    module: Option<String>,
    /// Only calls of procedures of this name.
    procedure: Option<String>,
    /// Only records with this idempotency key, and those that changed a row with this primary key, its values separated by commas: the row
    /// that has it now, or got it in a record before on the page. Other changes of rows that are gone name them by their numbers alone.
    key: Option<String>,
    /// Only calls with an argument of this value: `name:value`. A record of changed rows has no arguments.
    #[param(pattern = "^[^:]*:")]
    argument: Option<String>,
    /// `oldest` unless given.
    order: Option<LogOrder>,
}

/// Lists the log's records
///
/// Durable records, decoded. A filter that little passes may give an empty page with a `next`.
#[utoipa::path(
    get,
    path = "/v1/log",
    tag = "Log",
    params(LogParams),
    responses(
        (status = 200, description = "A page", body = LogPage),
        (status = 400, description = "malformed-request", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "not-found: the server keeps no log", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "log-released: `from` lies before the oldest record that is kept", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn list_log(
    State(state): State<AppState>,
    Params(params): Params<LogParams>,
) -> Result<Json<LogPage>, Refusal> {
    let limit = limit(params.limit, LOG_LIMIT_MAX)?;
    let query = LogQuery {
        from: params.from.as_deref().map(position).transpose()?,
        newest: params.order.unwrap_or_default() == LogOrder::Newest,
        limit,
        partition: params.partition,
        kind: params.kind,
        transaction: params.transaction.as_deref().map(transaction).transpose()?,
        module: params.module,
        procedure: params.procedure,
        matching: None,
    };
    let (newest, key) = (query.newest, params.key);
    let argument = argument(params.argument.as_deref())?;
    let page = state
        .blocking(Operation::ReadLog, move |parts| {
            let key = key.map(|key| KeyMatch::new(&parts.router, key)).transpose()?;
            let matching = matching(key, argument);
            Ok::<_, Refusal>(parts.router.log_records(LogQuery { matching, ..query })?)
        })
        .await??;
    let mut next = page.next.map(|lsn| U64(lsn.0));
    let mut records: Vec<LogRecord> = Vec::new();
    let mut bytes = 0;
    for entry in page.records {
        if bytes >= LOG_PAGE_TEXT_BYTES_MAX {
            // Newest first, `from` is where a page ends; else where it begins.
            let place = records.last().map(|record| record.lsn);
            next = if newest { place } else { Some(U64(entry.lsn.0)) };
            break;
        }
        let record = answer(entry)?;
        bytes += text_bytes(&record);
        records.push(record);
    }
    let (oldest, end) = (U64(page.oldest.0), U64(page.end.0));
    Ok(Json(LogPage {
        records,
        next,
        oldest,
        end,
    }))
}

fn transaction(text: &str) -> Result<TxnId, Refusal> {
    let id = parse_digits(text).map(TxnId);
    id.ok_or_else(|| Refusal::malformed("transaction is a transaction's id: 1 to 19 digits"))
}

/// The argument that is asked for, and its value.
fn argument(text: Option<&str>) -> Result<Option<(String, String)>, Refusal> {
    match text.map(|text| text.split_once(':')) {
        None => Ok(None),
        Some(Some((name, value))) => Ok(Some((name.to_owned(), value.to_owned()))),
        Some(None) => Err(Refusal::malformed("argument is written as name:value")),
    }
}

/// What is judged of a decoded record.
fn matching(key: Option<KeyMatch>, argument: Option<(String, String)>) -> Option<LogMatch> {
    if key.is_none() && argument.is_none() {
        return None;
    }
    let judge = move |entry: &LogEntry| {
        key.as_ref().is_none_or(|key| key.is_in(entry))
            && argument
                .as_ref()
                .is_none_or(|(name, value)| has_argument(entry, name, value))
    };
    Some(LogMatch(Arc::new(judge)))
}

/// Rows that one insertion after the other gave the key, at most: what is kept for a page.
const ROWS_MET_MAX: usize = 1_024;

/// A key that records are looked for by: an idempotency key, or a primary key in any table whose columns take its values.
struct KeyMatch {
    text: String,
    /// Rows that have the key now, and those that got it in a record that was judged before.
    rows: Mutex<BTreeSet<NumberedRow>>,
}

impl KeyMatch {
    fn new(router: &Router, text: String) -> Result<Self, RowsError> {
        let deployed = router.deployed();
        let keys = deployed.tables().filter_map(|(id, table)| {
            let columns: Vec<_> = table
                .primary_key
                .iter()
                .map(|at| &table.columns[*at as usize])
                .collect();
            let is_whole = !columns.is_empty() && count_prefix(&text) == columns.len();
            let key = is_whole.then(|| encode_prefix(&columns, &text).ok())??;
            Some((id, table.clone(), key))
        });
        let rows = Mutex::new(router.numbered_rows(keys.collect())?);
        Ok(Self { text, rows })
    }

    fn is_in(&self, entry: &LogEntry) -> bool {
        let key = Some(self.text.as_str());
        // Each row is looked at: it may tell a number that a later record has.
        let changed = entry.rows.iter().filter(|row| self.is_of(row));
        changed.count() > 0 || entry.idempotency_key.as_deref() == key
    }

    fn is_of(&self, row: &ChangedRow) -> bool {
        let numbered = NumberedRow::of(row);
        let mut rows = self.rows.lock().expect("held for a look");
        if row_key_text(row).is_some_and(|found| found == self.text) {
            if rows.len() < ROWS_MET_MAX {
                rows.extend(numbered);
            }
            return true;
        }
        numbered.is_some_and(|row| rows.contains(&row))
    }
}

/// The primary key that a record tells of a row, its values separated by commas.
fn row_key_text(row: &ChangedRow) -> Option<String> {
    let table = row.table.as_ref().filter(|table| !table.primary_key.is_empty())?;
    let json = match (&row.key, &row.row) {
        (Some(key), _) => key_json(table, key),
        (None, Some(bytes)) => row_json(table, &RowLayout::of_table(table), bytes),
        (None, None) => None,
    };
    let members = serde_json::from_str::<serde_json::Map<String, Value>>(json?.get()).ok()?;
    let names = table.primary_key.iter().map(|at| &table.columns[*at as usize].name);
    let values = names.map(|name| members.get(name).map_or(String::new(), plain));
    Some(values.collect::<Vec<_>>().join(","))
}

fn has_argument(entry: &LogEntry, name: &str, value: &str) -> bool {
    let schema = entry.procedure.as_ref().and_then(LogProcedure::schema);
    let (LogBody::Command { args, .. }, Some(schema)) = (&entry.body, schema) else {
        return false;
    };
    if !schema.params.iter().any(|param| param.name == name) {
        return false;
    }
    let mut out = Vec::with_capacity(args.len() * 2);
    let is_written = write_arguments(&schema.params, args, &mut out).is_ok();
    let members = serde_json::from_slice::<serde_json::Map<String, Value>>(&out);
    is_written && members.is_ok_and(|members| members.get(name).is_some_and(|found| plain(found) == value))
}

/// A value as one types it: a text without its quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// About what a record takes as text.
fn text_bytes(record: &LogRecord) -> usize {
    let json = |json: &Option<RawJson>| json.as_ref().map_or(0, |json| json.get().len());
    let rows = record.rows.iter().flatten();
    512 + json(&record.args) + rows.map(|row| 128 + row_bytes(row)).sum::<usize>()
}

fn row_bytes(row: &RowChange) -> usize {
    let json = |json: &Option<RawJson>| json.as_ref().map_or(0, |json| json.get().len());
    json(&row.columns) + json(&row.primary_key) + row.key.as_ref().map_or(0, String::len)
}

fn position(text: &str) -> Result<Lsn, Refusal> {
    let position = parse_digits(text).map(Lsn);
    position.ok_or_else(|| Refusal::malformed("from is an LSN: 1 to 19 digits"))
}

fn limit(asked: Option<usize>, max: usize) -> Result<usize, Refusal> {
    match asked.unwrap_or(LIMIT_DEFAULT) {
        limit if (1..=max).contains(&limit) => Ok(limit),
        _ => Err(Refusal::malformed(format!("limit is a number from 1 to {max}"))),
    }
}

/// Shows a record
#[utoipa::path(
    get,
    path = "/v1/log/{lsn}",
    tag = "Log",
    params(("lsn" = String, Path, description = "Where the record begins")),
    responses(
        (status = 200, description = "The record", body = LogRecord),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "log-released: it lies before the oldest record that is kept", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn show_record(State(state): State<AppState>, Name(lsn): Name) -> Result<Json<LogRecord>, Refusal> {
    let none = || Refusal::not_found(format!("no durable record begins at LSN {lsn}; GET /v1/log lists them"));
    let position = parse_digits(&lsn).ok_or_else(none)?;
    let entry = state
        .blocking(Operation::ReadLog, move |parts| parts.router.log_record(Lsn(position)))
        .await??;
    answer(entry.ok_or_else(none)?).map(Json)
}

fn answer(entry: LogEntry) -> Result<LogRecord, Refusal> {
    let lsn = entry.lsn;
    log_record(entry).map_err(|error| Refusal::internal(&format!("decode record at {lsn}: {error}")))
}

/// A record in the API's words. Err: its arguments are none of the procedure that it names.
pub fn log_record(entry: LogEntry) -> Result<LogRecord, ValueError> {
    let mut record = LogRecord {
        lsn: U64(entry.lsn.0),
        kind: kind_of(entry.kind),
        bytes: entry.bytes,
        segment: entry.segment,
        offset: entry.offset,
        durable: entry.durable,
        txn_id: entry.txn_id.map(|txn_id| U64(txn_id.0)),
        time: entry.time_us.map(rfc3339),
        partitions: entry.partitions,
        idempotency_key: entry.idempotency_key,
        idempotency_scope: entry.idempotency_scope,
        principal: entry.principal.as_deref().map(str::to_owned),
        ..LogRecord::default()
    };
    let schema = entry.procedure.as_ref().and_then(LogProcedure::schema);
    if let Some(module) = entry.procedure.as_ref().and_then(|named| named.module.as_ref()) {
        record.module = Some(module.name.clone());
        record.version = Some(module.version);
        record.procedure = schema.map(|schema| schema.name.clone());
    }
    let params = schema.map(|schema| &schema.params[..]);
    show_body(&mut record, entry.body, &entry.rows, params)?;
    Ok(record)
}

/// Shows what records of one kind alone have. `params`: those of the procedure that the record names.
fn show_body(
    record: &mut LogRecord,
    body: LogBody,
    rows: &[ChangedRow],
    params: Option<&[Parameter]>,
) -> Result<(), ValueError> {
    match body {
        LogBody::Nothing => {}
        LogBody::Genesis {
            database_id,
            partitions,
        } => {
            record.database_id = Some(hex(&database_id));
            record.partition_count = Some(partitions);
        }
        LogBody::Deploy {
            name,
            version,
            hash,
            wasm_bytes,
            migration,
            destroyed,
        } => {
            record.destroyed = destroyed.iter().map(plan::destroyed).collect();
            if let Some(found) = migration {
                record.migration = (!found.name.is_empty()).then_some(found.name);
                record.plan = Some(found.plan);
                record.digests = Some(found.digests.iter().map(|digest| format!("{digest:016x}")).collect());
            }
            record.module = Some(name);
            record.version = Some(version);
            record.hash = Some(hex(&hash));
            record.wasm_bytes = Some(wasm_bytes);
        }
        LogBody::Remove { name, destroyed } => {
            record.module = Some(name);
            record.destroyed = destroyed.iter().map(plan::destroyed).collect();
        }
        LogBody::Command { args, digest } => {
            record.digest = Some(format!("{digest:016x}"));
            if record.module.is_some() {
                let params = params.ok_or(ValueError { offset: 0 })?;
                let mut out = Vec::with_capacity(args.len() * 2);
                write_arguments(params, &args, &mut out)?;
                record.args = raw_json(out);
            }
        }
        LogBody::Changes { digest, parts } => {
            record.digest = Some(format!("{digest:016x}"));
            record.parts = (parts > 0).then_some(parts);
            show_rows(record, rows);
        }
        LogBody::Part { number } => {
            record.part = Some(number);
            show_rows(record, rows);
        }
        LogBody::DropTable { table } => record.table = Some(table),
        LogBody::Quarantine { diverged, what } => {
            record.diverged = Some(U64(diverged.0));
            record.reason = Some(what);
        }
    }
    Ok(())
}

/// The API's kind of this name: it has the same names as the log.
fn kind_of(name: &'static str) -> RecordKind {
    let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    RecordKind::deserialize(name).expect("the API names each kind")
}

/// Shows the changed rows, as many as fit into a page.
fn show_rows(record: &mut LogRecord, changed: &[ChangedRow]) {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for row in changed {
        if bytes >= LOG_PAGE_TEXT_BYTES_MAX {
            break;
        }
        let row = row_change(row);
        bytes += 128 + row_bytes(&row);
        rows.push(row);
    }
    let left = changed.len() - rows.len();
    record.rows_left = (left > 0).then_some(U64(left as u64));
    record.rows = Some(rows);
}

fn row_change(row: &ChangedRow) -> RowChange {
    let table_and_key = row.table.as_ref().zip(row.key.as_ref());
    let primary_key = table_and_key.and_then(|(table, key)| key_json(table, key));
    let columns = row.table.as_ref().and_then(|table| match &row.row {
        Some(bytes) => row_json(table, &RowLayout::of_table(table), bytes),
        None if row.columns.is_empty() => None,
        None => columns_json(&table.columns, &row.columns),
    });
    RowChange {
        partition: row.partition,
        table: match &row.table {
            Some(table) => table.full_name(),
            None => row.table_id.to_string(),
        },
        schema_unknown: row.table.is_none(),
        change: row.change.to_owned(),
        key: row.key.as_deref().map(hex),
        primary_key,
        number: U64(row.number),
        columns,
    }
}

/// An encoded primary key as an object by column; None where it is no key of the table.
fn key_json(table: &TableSchema, key: &[u8]) -> Option<RawJson> {
    let mut reader = KeyReader::new(key);
    let positions = table.primary_key.iter();
    let columns = positions.map(|at| {
        let column = &table.columns[*at as usize];
        Some((*at, reader.next_column(column.ty, column.nullable)?))
    });
    let columns: Vec<_> = columns.collect::<Option<_>>()?;
    reader.is_at_end().then(|| columns_json(&table.columns, &columns))?
}

/// Changed columns as an object by name; None where they are no columns of the table.
fn columns_json(columns: &[ColumnSchema], changed: &[(u16, Option<Vec<u8>>)]) -> Option<RawJson> {
    let mut out = vec![b'{'];
    for (at, (column, value)) in changed.iter().enumerate() {
        let column = columns.get(*column as usize)?;
        if at > 0 {
            out.push(b',');
        }
        // Names are made of letters, digits and underscores.
        out.extend_from_slice(format!("\"{}\":", column.name).as_bytes());
        let Some(value) = value else {
            out.extend_from_slice(b"null");
            continue;
        };
        let mut encoded = Vec::with_capacity(value.len() + 5);
        match column.ty {
            ScalarType::Text | ScalarType::Bytes => push_bytes(&mut encoded, value),
            _ => encoded.extend_from_slice(value),
        }
        let mut reader = ValueReader::new(&encoded);
        write_column(column, &read_scalar(column.ty, &mut reader).ok()?, &mut out);
        reader.finish().ok()?;
    }
    out.push(b'}');
    raw_json(out)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ProcedureLogParams {
    /// Lines at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only lines of this module's procedures.
    module: Option<String>,
    /// Only lines of procedures of this name.
    procedure: Option<String>,
    /// Only lines of this level and above it.
    level: Option<LineLevel>,
    /// Only this transaction's lines.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,19}$")]
    transaction: Option<String>,
    /// Only lines with this number or a later one.
    #[param(value_type = Option<i64>, minimum = 0)]
    since: Option<u64>,
}

/// From the least to the most serious.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LineLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// Lists what procedures logged
///
/// The newest lines that procedures wrote with `log`, newest first. Kept in memory, within bounds of bytes for each procedure and each
/// call, so that none drives out another's; not in the log.
#[utoipa::path(
    get,
    path = "/v1/procedure-log",
    tag = "Log",
    params(ProcedureLogParams),
    responses(
        (status = 200, description = "Newest first", body = ProcedureLog),
        (status = 400, description = "malformed-request", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn procedure_log(
    State(state): State<AppState>,
    Params(params): Params<ProcedureLogParams>,
) -> Result<Json<ProcedureLog>, Refusal> {
    let limit = limit(params.limit, PROCEDURE_LOG_LIMIT_MAX)?;
    if params.since.is_some_and(|since| i64::try_from(since).is_err()) {
        return Err(Refusal::malformed(
            "since is the number of a line, at most 9223372036854775807",
        ));
    }
    let filter = LineFilter {
        module: params.module,
        procedure: params.procedure,
        level_min: params.level.map_or(0, |level| level as u8),
        txn_id: params.transaction.as_deref().map(transaction).transpose()?,
        since: params.since,
    };
    let lines = state
        .router
        .procedure_log(&filter, limit)
        .into_iter()
        .map(|line| ProcedureLogLine {
            number: line.number,
            txn_id: U64(line.txn_id.0),
            time: rfc3339(line.txn_id.time_us()),
            module: line.module,
            procedure: line.procedure,
            level: ["debug", "info", "warn", "error"][line.level.min(3) as usize].into(),
            text: line.text,
        });
    Ok(Json(ProcedureLog { lines: lines.collect() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_has_each_record_kind_by_its_name() {
        for kind in reprise_wire::RecordKind::ALL {
            let shown = serde_json::to_value(kind_of(kind.name())).expect("a name");
            assert_eq!(shown, kind.name());
        }
    }
}
