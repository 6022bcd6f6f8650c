//! The log's records.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Destroyed, Json, U64};

/// A page of the log's records.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// In the order that was asked for.
    pub records: Vec<LogRecord>,
    /// The LSN to ask from for the next page, now or, where it is `end`, once more is there. Null where the newest come first and the
    /// log's beginning was reached.
    pub next: Option<U64>,
    /// The oldest LSN that is kept: a request from before it gets `log-released`.
    pub oldest: U64,
    /// Everything before it is durable and can be read.
    pub end: U64,
    /// Number of transactions in this part of the log that a filter could not search: with `key`, because the log holds their calls
    /// and not their rows; with `argument`, because it holds their rows and not their calls. Missing if all were searched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsearched: Option<U64>,
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// The log's first record: what the database was made with.
    #[default]
    Genesis,
    /// A module was installed.
    Deploy,
    /// A module was taken out of service.
    Remove,
    /// A transaction: procedure and arguments.
    Command,
    /// A transaction: the rows that it changed.
    Changes,
    /// A checkpoint that began here holds everything before.
    Checkpoint,
    /// A table was dropped, with its rows.
    DropTable,
    /// A number whose record was lost in a crash before any client got its outcome.
    Void,
    /// A procedure was taken out of service, since its replay diverged.
    Quarantine,
    /// Some of the rows that a transaction changed; the record of kind `changes` that ends its parts makes them count.
    Part,
    /// A caller's name was put into the log, before the first record of a call by it.
    Principal,
}

/// One changed row.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RowChange {
    /// The partition that the row lies on.
    pub partition: u16,
    /// The table's name when the record was written, or its number where `schema_unknown` is true.
    pub table: String,
    /// True if the table's schema at this LSN is no longer known: it may have changed since, and the records or the checkpoint that
    /// describe it were released. The row's columns are not shown then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub schema_unknown: bool,
    /// `insert`, `update` or `delete`.
    pub change: String,
    /// The primary key, encoded, in hexadecimal: as the record has it, else as the row has it now. Not for inserts: their row holds it; nor where the
    /// record has the row's number alone, and the row is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Primary key by column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub primary_key: Option<Json>,
    /// The row's number, by which the log names it on its partition.
    pub number: U64,
    /// New values of the columns, by name: all of an inserted row, the changed ones of an updated row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub columns: Option<Json>,
}

/// One record. Which of the optional members are there depends on `kind`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LogRecord {
    /// Its position.
    pub lsn: U64,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Bytes of the record in the log.
    pub bytes: u32,
    /// Name of the segment file.
    pub segment: String,
    /// Byte offset in the segment.
    pub offset: u64,
    /// Safe on the device. Only records that are so are listed.
    pub durable: bool,
    /// The transaction that wrote it; not of genesis and checkpoint records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<U64>,
    /// The transaction's time, or the database's creation (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// command, changes, part: the partitions that the transaction touches; `[]` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<Vec<u16>>,
    /// Name of the module that was installed, removed or called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Version of the module.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// deploy: SHA-256 of the wasm binary, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// deploy: length of the wasm binary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wasm_bytes: Option<u64>,
    /// deploy: what became of the stored tables, a line each, where the module ran something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// deploy: name of the migration that the module ran, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<String>,
    /// deploy, remove: what was destroyed, with consent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destroyed: Vec<Destroyed>,
    /// deploy: digests of what the module wrote when it was deployed, by partition, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<Vec<String>>,
    /// command, changes, part, quarantine: name of the procedure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procedure: Option<String>,
    /// drop_table: the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// quarantine: the record whose replay diverged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged: Option<U64>,
    /// quarantine: what the replay did otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// command: the arguments by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub args: Option<Json>,
    /// part: its number within the transaction, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// changes: records of parts before it, which have the transaction's rows before these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    /// changes, part: the rows, in the order in which they are applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<RowChange>>,
    /// changes, part: further rows, that are not shown because all of them would be too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_left: Option<U64>,
    /// command, changes: digest of the write set and the result, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// command, changes: the key that the call carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Scope within which the key counts: the name of a token, unless the token names another scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_scope: Option<String>,
    /// command, changes: name of the token that called, none on a server without tokens. principal: the name that the log has by a number
    /// from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// genesis: the database's id, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_id: Option<String>,
    /// genesis: number of partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_count: Option<u16>,
}

/// Lines that procedures logged, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProcedureLog {
    /// The lines.
    pub lines: Vec<ProcedureLogLine>,
}

/// A line that a procedure logged.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProcedureLogLine {
    /// Counts all lines since the server started, from 0.
    pub number: u64,
    /// The transaction that logged it.
    pub txn_id: U64,
    /// The transaction's time (RFC 3339).
    pub time: String,
    /// Name of the module.
    pub module: String,
    /// Name of the procedure.
    pub procedure: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// Text that was logged.
    pub text: String,
}
