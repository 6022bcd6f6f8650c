//! Records of the log in the words of the API.

use reprise_abi::{
    ColumnSchema, Parameter, RowLayout, ScalarType, TableSchema,
    key::KeyReader,
    value::{ValueError, ValueReader, push_bytes},
};
use reprise_api::{ControlEnd, Json as RawJson, LogRecord, RecordKind, RowChange, U64};
use reprise_codec::{hex, raw_json, read_scalar, rfc3339, row_json, write_arguments, write_column};
use reprise_router::{ChangedRow, LogBody, LogControl, LogEntry, LogMigration, LogProcedure};
use serde::{
    Deserialize,
    de::{IntoDeserializer, value::StrDeserializer},
};

use crate::{limits::LOG_PAGE_TEXT_BYTES_MAX, plan};

/// Estimates the text length of a record.
pub fn text_bytes(record: &LogRecord) -> usize {
    let json = |json: &Option<RawJson>| json.as_ref().map_or(0, |json| json.get().len());
    let rows = record.rows.iter().flatten();
    512 + json(&record.args) + rows.map(|row| 128 + row_bytes(row)).sum::<usize>()
}

fn row_bytes(row: &RowChange) -> usize {
    let json = |json: &Option<RawJson>| json.as_ref().map_or(0, |json| json.get().len());
    json(&row.columns) + json(&row.primary_key) + row.key.as_ref().map_or(0, String::len)
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
                show_migration(record, found);
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
        LogBody::Control(control) => show_control(record, control),
        LogBody::Quarantine { diverged, what } => {
            record.diverged = Some(U64(diverged.0));
            record.reason = Some(what);
        }
    }
    Ok(())
}

fn show_migration(record: &mut LogRecord, found: LogMigration) {
    record.migration = (!found.name.is_empty()).then_some(found.name);
    record.plan = Some(found.plan);
    record.digests = Some(found.digests.iter().map(|digest| format!("{digest:016x}")).collect());
}

fn show_control(record: &mut LogRecord, control: LogControl) {
    let LogControl {
        operation,
        subject,
        outcome,
        took_us,
    } = control;
    record.control = Some(ControlEnd {
        operation,
        subject,
        outcome,
        took_ms: f64::from(took_us) / 1e3,
    });
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

/// Returns an encoded primary key as an object by column. None if it is no key of the table.
pub fn key_json(table: &TableSchema, key: &[u8]) -> Option<RawJson> {
    let mut reader = KeyReader::new(key);
    let positions = table.primary_key.iter();
    let columns = positions.map(|at| {
        let column = &table.columns[*at as usize];
        Some((*at, reader.next_column(column.ty, column.nullable)?))
    });
    let columns: Vec<_> = columns.collect::<Option<_>>()?;
    reader.is_at_end().then(|| columns_json(&table.columns, &columns))?
}

/// Returns changed columns as an object by name. None if they are no columns of the table.
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
