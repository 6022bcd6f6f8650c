//! The log's records.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Destroyed, Json, U64};

/// A page of the log's records.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// Records in the requested order.
    pub records: Vec<LogRecord>,
    /// LSN from which to read the next page. If it equals `end`, ask again once there are more records. With the newest first, null at
    /// the beginning of the log.
    pub next: Option<U64>,
    /// Oldest LSN in the log. A request for an earlier one gets `log-released`.
    pub oldest: U64,
    /// LSN at the end of the durable log. You can read every record before it.
    pub end: U64,
    /// Number of transactions that the search could not include. With `key`, the log has their calls and not their changed rows. With
    /// `argument`, it has their changed rows and not their calls. Absent if the search included all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsearched: Option<U64>,
}

/// Kind of a log record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// First record of the log, with the parameters of the database.
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
    /// A checkpoint began here. It has everything before this record.
    Checkpoint,
    /// A table and its rows were dropped.
    DropTable,
    /// An LSN whose record was lost in a crash. The server had not acknowledged it.
    Void,
    /// A procedure was taken out of service, because its replay diverged.
    Quarantine,
    /// Part of the rows that a transaction changed. They count once the record of kind `changes` follows that ends the parts.
    Part,
    /// Name of a caller. It precedes the first record of a call by this caller.
    Principal,
    /// A control operation that was carried out or refused.
    Control,
}

/// One changed row.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RowChange {
    /// Partition of the row.
    pub partition: u16,
    /// Name of the table at the time of the record. If `schema_unknown` is true, its number.
    pub table: String,
    /// True if the server no longer knows the schema of the table at this LSN, because it released the records and checkpoints that had
    /// it. The record then shows no columns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub schema_unknown: bool,
    /// `insert`, `update` or `delete`.
    pub change: String,
    /// Encoded primary key in hexadecimal, from the record or from the current row. Absent for inserts, whose row has it. Absent if the
    /// record has only the row's number and the row no longer exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Primary key by column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub primary_key: Option<Json>,
    /// Number of the row on its partition, by which the log names it.
    pub number: U64,
    /// New values by column: all columns of an inserted row, the changed columns of an updated row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub columns: Option<Json>,
}

/// One record. Its optional members depend on `kind`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LogRecord {
    /// LSN of the record.
    pub lsn: U64,
    /// Kind of the record.
    pub kind: RecordKind,
    /// Bytes of the record in the log.
    pub bytes: u32,
    /// Name of the segment file.
    pub segment: String,
    /// Byte offset in the segment.
    pub offset: u64,
    /// Whether the record is durable. The list has durable records only.
    pub durable: bool,
    /// Id of the transaction that wrote the record. Absent for genesis and checkpoint records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub txn_id: Option<U64>,
    /// Time of the transaction, or of the database's creation (RFC 3339).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// command, changes, part: partitions of the transaction; `[]` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitions: Option<Vec<u16>>,
    /// Name of the installed, removed or called module.
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
    /// deploy: what happened to each stored table, one line each, if the module ran a migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// deploy: name of the migration that the module ran, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<String>,
    /// deploy, remove: what the operation destroyed, with consent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destroyed: Vec<Destroyed>,
    /// deploy: digest of the migration's writes on each partition, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digests: Option<Vec<String>>,
    /// command, changes, part, quarantine: name of the procedure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procedure: Option<String>,
    /// drop_table: name of the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// quarantine: LSN of the record whose replay diverged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverged: Option<U64>,
    /// quarantine: how the replay differed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// command: arguments by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub args: Option<Json>,
    /// part: number of the part in the transaction, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// changes: number of earlier part records, which have the transaction's earlier rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    /// changes, part: changed rows, in the order in which a replay applies them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Vec<RowChange>>,
    /// changes, part: number of further rows that the answer leaves out because of its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_left: Option<U64>,
    /// command, changes: digest of the write set and the result, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// command, changes: idempotency key of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Scope of the key: the name of the token, unless the token names another scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_scope: Option<String>,
    /// command, changes: name of the caller's token; absent on a server without tokens. principal: name to which later records refer by
    /// number. control: who carried it out, or was refused; absent if your token lacks the role `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// control: what was done, to what, and how it ended. Absent if your token lacks the role `admin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<ControlEnd>,
    /// genesis: id of the database, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database_id: Option<String>,
    /// genesis: number of partitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition_count: Option<u16>,
}

/// Operation, object and end of a control operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ControlEnd {
    /// `deploy-module`, `rollback-module`, `remove-module`, `drop-table`, `take-checkpoint`, `create-backup`, `remove-backup`, `read-backup`,
    /// `cancel-call`, `admit-standby` (in events alone), `forget-standby`, `promote`, `step-down` or `promise`. `request`: the token did not allow the request.
    pub operation: String,
    /// Object of the operation: the name of the module, table or server, or the id of the backup or call, at most 100 characters. May be empty.
    pub subject: String,
    /// `done`, or the slug of the problem that ended it.
    pub outcome: String,
    /// Duration in milliseconds, including waits for partitions and the log.
    pub took_ms: f64,
}

/// A page of the audit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// Control operations in the order of the log.
    pub records: Vec<AuditRecord>,
    /// LSN from which to read the next page. If it equals `end`, ask again once there are more records.
    pub next: U64,
    /// Oldest LSN in the log. A request for an earlier one gets `log-released`.
    pub oldest: U64,
    /// LSN at the end of the durable log.
    pub end: U64,
}

/// A control operation, from the log.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditRecord {
    /// LSN of the record.
    pub lsn: U64,
    /// Time of the record (RFC 3339).
    pub time: String,
    /// Name of the token; `anonymous` on a server without tokens.
    pub principal: String,
    /// The operation, its object, and how it ended.
    #[serde(flatten)]
    pub control: ControlEnd,
}

/// Log lines of procedures, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProcedureLog {
    /// The lines.
    pub lines: Vec<ProcedureLogLine>,
}

/// A log line of a procedure.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProcedureLogLine {
    /// Number of the line since the server's start, from 0.
    pub number: u64,
    /// Id of the transaction that wrote the line.
    pub txn_id: U64,
    /// Time of the transaction (RFC 3339).
    pub time: String,
    /// Name of the module.
    pub module: String,
    /// Name of the procedure.
    pub procedure: String,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// Text of the line.
    pub text: String,
}
