//! The log's records as lines.

use reprise_api::{LogRecord, RecordKind, RowChange};

use crate::{output::bytes, plan};

fn row(row: &RowChange) -> String {
    let name = match (&row.primary_key, &row.key) {
        (Some(key), _) => format!(" {}", key.get()),
        (None, Some(key)) => format!(" key {key}"),
        (None, None) => format!(" number {}", row.number.0),
    };
    if row.schema_unknown {
        let table = &row.table;
        return format!(
            "{} table number {table}{name} (the schema at that time is no longer known)",
            row.change
        );
    }
    let columns = row.columns.as_ref().map_or("", |columns| columns.get());
    format!("{} {}{name} {columns}", row.change, row.table)
        .trim_end()
        .to_owned()
}

fn destroyed(record: &LogRecord) -> String {
    let lines: Vec<_> = record.destroyed.iter().map(plan::destroyed_line).collect();
    match lines.is_empty() {
        true => String::new(),
        false => format!("; destroyed with consent: {}", lines.join(", ")),
    }
}

fn control(record: &LogRecord, caller: &str) -> String {
    let Some(end) = &record.control else {
        return "control (a token with the role admin sees what it was)".to_owned();
    };
    let subject = match end.subject.as_str() {
        "" => String::new(),
        subject => format!(" {subject:?}"),
    };
    let (operation, outcome, took_ms) = (&end.operation, &end.outcome, end.took_ms);
    format!("control: {operation}{subject}{caller}: {outcome} in {took_ms:.1} ms")
}

/// One line for people.
pub fn line(record: &LogRecord) -> String {
    let time = record.time.as_deref().unwrap_or("-");
    let module = record.module.as_deref().unwrap_or("?");
    let version = record
        .version
        .map_or_else(String::new, |version| format!(" version {version}"));
    let caller = record
        .principal
        .as_deref()
        .map_or_else(String::new, |name| format!(" by {name}"));
    let what = match record.kind {
        RecordKind::Genesis => format!("genesis of {} partitions", record.partition_count.unwrap_or(0)),
        RecordKind::Deploy => {
            let size = bytes(record.wasm_bytes.unwrap_or(0));
            let ran = match &record.digests {
                Some(digests) => {
                    let migration = record
                        .migration
                        .as_ref()
                        .map_or(String::new(), |name| format!(" {name}"));
                    format!(", ran{migration} on {} partitions", digests.len())
                }
                None => String::new(),
            };
            format!("deploy {module}{version}, {size}{ran}{}", destroyed(record))
        }
        RecordKind::Remove => format!("remove {module}{}", destroyed(record)),
        RecordKind::Command => {
            let procedure = record.procedure.as_deref().unwrap_or("?");
            let args = record.args.as_ref().map_or("(unknown module)", |args| args.get());
            format!("{module}.{procedure} {args}{caller}")
        }
        RecordKind::Changes | RecordKind::Part => {
            let procedure = record.procedure.as_deref().unwrap_or("?");
            let rows = record.rows.as_deref().unwrap_or_default();
            let rows: Vec<_> = rows.iter().map(row).collect();
            let whole = match (record.parts, record.part) {
                (Some(parts), _) => format!(" (ends the {parts} parts before it)"),
                (None, Some(part)) => format!(" (part {part})"),
                (None, None) => String::new(),
            };
            format!("{module}.{procedure}{whole} -> {}{caller}", rows.join("; "))
        }
        RecordKind::Checkpoint => "checkpoint begins".to_owned(),
        RecordKind::DropTable => format!("drop table {}", record.table.as_deref().unwrap_or("?")),
        RecordKind::Quarantine => {
            let procedure = record.procedure.as_deref().unwrap_or("?");
            let diverged = record.diverged.map_or_else(String::new, |lsn| lsn.0.to_string());
            let reason = record.reason.as_deref().unwrap_or_default();
            format!("quarantine {module}.{procedure}{version}, because its replay diverged at LSN {diverged}: {reason}")
        }
        RecordKind::Principal => format!("principal {}", record.principal.as_deref().unwrap_or("?")),
        RecordKind::Control => control(record, &caller),
        RecordKind::Void => "void: lost in a crash, and never acknowledged".to_owned(),
    };
    let partitions = match record.partitions.as_deref() {
        Some([]) => "all".to_owned(),
        Some(list) => list.iter().map(u16::to_string).collect::<Vec<_>>().join(","),
        None => "-".to_owned(),
    };
    format!("{:>12}  {time}  {partitions:>4}  {what}", record.lsn.0)
}
