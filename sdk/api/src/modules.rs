//! Modules and their procedures.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{U64, problem::SchemaConflict, types::TypeInfo};

/// Answer to an upload.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleInstalled {
    /// Name of the module.
    pub module: String,
    /// Version of the module, from 1.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// Version that was in service before. Null if there was none.
    pub replaced: Option<u32>,
    /// True if the same bytes were in service already. The server then changed nothing.
    pub unchanged: bool,
    /// For a rollback: the version whose bytes the server deployed.
    #[serde(default)]
    pub rolled_back_to: Option<u32>,
    /// Values and definitions that the deployment destroyed, with consent.
    #[serde(default)]
    pub destroyed: Vec<Destroyed>,
    /// LSN of the installation. If nothing changed, the LSN of the last committed record, which is the same or later.
    pub lsn: U64,
}

/// Answer to an upload or a rollback with `dry_run=true`. The server installed nothing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModulePlanned {
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// Plan of the installation.
    pub plan: DeployPlan,
    /// For a rollback: the version whose bytes the server would deploy.
    #[serde(default)]
    pub rolled_back_to: Option<u32>,
}

/// Everything that a deployment would change, or the reasons why the server would refuse it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeployPlan {
    /// Tables that it would create or change.
    pub tables: Vec<TablePlan>,
    /// Procedures that it would add, drop or change.
    #[serde(default)]
    pub procedures: Vec<ProcedurePlan>,
    /// Tables that no module in service would declare after the deployment. They stay stored.
    #[serde(default)]
    pub abandoned: Vec<AbandonedTable>,
    /// Changes that destroy something, and so need consent (`allow`).
    #[serde(default)]
    pub destroyed: Vec<Destroyed>,
    /// Consents that this request lacks, as values of `allow`.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Columns that you may have renamed: the deployment drops one and adds one of the same type.
    #[serde(default)]
    pub likely_renames: Vec<LikelyRename>,
    /// Reasons for a refusal. Empty if the server would install the module, given the missing consents.
    pub conflicts: Vec<SchemaConflict>,
    /// True if a migration would run. It works on copies of the module's tables.
    #[serde(default)]
    pub migrates: bool,
    /// Name of the module's migration, if it has one. If `migrates` is false, the tables have had this migration.
    #[serde(default)]
    pub migration: Option<String>,
    /// Stored tables that the migration would read as before the deployment.
    #[serde(default)]
    pub retiring: Vec<RetiringTable>,
    /// Whether you could roll back to the version in service. Null if none is in service.
    #[serde(default)]
    pub way_back: Option<WayBack>,
    /// Estimated pause of all partitions in milliseconds, without the time of the migration.
    pub estimated_ms: u64,
}

/// Planned change of one procedure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcedurePlan {
    /// Name of the procedure.
    pub procedure: String,
    /// `add`, `drop` or `convert`.
    pub action: String,
    /// Description of the change.
    pub detail: String,
}

/// A table that would lose its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AbandonedTable {
    /// Name of the table.
    pub table: String,
    /// Number of rows.
    pub rows: u64,
}

/// One thing that a deployment destroys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destroyed {
    /// Consent that it needs: `drop-column:MODULE.TABLE.COLUMN`, `drop-procedure:MODULE.PROCEDURE` or `abandon-table:MODULE.TABLE`.
    pub allow: String,
    /// Number of values of a column that are not null, or of rows of a table. 0 for a procedure.
    pub count: u64,
    /// If false, `count` is an upper limit. A plan reads no rows, so it counts a nullable column as if no row had null.
    pub is_exact: bool,
}

/// A dropped column and an added one of the same type. If you renamed the column, declare the old name with `was`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LikelyRename {
    /// Name of the table.
    pub table: String,
    /// Name of the stored column.
    pub from: String,
    /// Name of the declared column.
    pub to: String,
}

/// Possible rollback after the deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WayBack {
    /// Version in service, which is the target of the rollback.
    pub version: u32,
    /// Whether a rollback would be possible. If false, `conflicts` has the reasons.
    pub is_open: bool,
    /// Reasons why the tables can't go back.
    pub conflicts: Vec<SchemaConflict>,
    /// Conditions that all rows must meet at the time of the rollback. Later writes may break them.
    pub needs: Vec<String>,
    /// Full names of columns whose values the rollback would drop.
    pub drops: Vec<String>,
}

/// Planned change of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TablePlan {
    /// Name of the table.
    pub table: String,
    /// Steps of the change.
    pub steps: Vec<PlanStep>,
    /// Number of rows. Rows of a replicated table count once.
    pub rows: u64,
    /// True if the change reads all rows. If false, only the table's description changes.
    pub reads_rows: bool,
}

/// A stored table that the migration reads as before the deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetiringTable {
    /// Name of the table.
    pub table: String,
    /// Names of the columns that the migration reads.
    pub columns: Vec<String>,
}

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanStep {
    /// `create`, `add`, `drop`, `convert` or `rename`.
    pub action: String,
    /// `table`, `column`, `index` or `primary key`.
    pub what: String,
    /// Name of the column or index. Empty for the table itself.
    pub item: String,
    /// Earlier or new definition.
    pub detail: String,
}

/// Answer to an upload or a rollback, depending on `dry_run`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ModuleUploaded {
    /// The module is in service.
    Installed(ModuleInstalled),
    /// The server installed nothing. The answer has the plan.
    Planned(ModulePlanned),
}

/// The modules in service.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleList {
    /// Modules in the order of their names.
    pub modules: Vec<ModuleSummary>,
    /// Opaque cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
}

/// A module in service.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleSummary {
    /// Name of the module.
    pub module: String,
    /// The version in service.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    /// Size of the wasm binary in bytes.
    pub wasm_bytes: u64,
    /// Time of the version's installation (RFC 3339).
    pub installed_at: String,
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
}

/// A module with its versions, procedures and tables.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleDetail {
    /// Name of the module.
    pub module: String,
    /// The version in service.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    /// Size of the wasm binary in bytes.
    pub wasm_bytes: u64,
    /// Time of the version's installation (RFC 3339).
    pub installed_at: String,
    /// Every version in the log, oldest first.
    pub versions: Vec<ModuleVersion>,
    /// List in the order of declaration.
    pub procedures: Vec<ProcedureInfo>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// Names of the migrations that the module's tables have had.
    #[serde(default)]
    pub migrations: Vec<String>,
}

/// A version of a module.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleVersion {
    /// Number of the version, from 1.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    /// Size of the wasm binary in bytes.
    pub wasm_bytes: u64,
    /// Time of the installation (RFC 3339).
    pub installed_at: String,
    /// Id of the transaction that installed the version.
    pub txn_id: U64,
    /// Whether calls run this version.
    pub in_service: bool,
    /// Whether the server keeps the wasm binary for a rollback.
    pub kept: bool,
}

/// A procedure as its module describes it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProcedureInfo {
    /// Name in the declaration.
    pub name: String,
    /// Documentation from the module. May be empty.
    #[serde(default)]
    pub docs: String,
    /// List in the order of declaration.
    pub parameters: Vec<ParameterInfo>,
    /// Type of the result.
    pub result: TypeInfo,
    /// Whether the procedure only reads.
    pub read_only: bool,
    /// Partitions on which a call runs.
    pub partitioning: PartitioningInfo,
    /// Abort codes that the module declares. The procedure may use further ones.
    #[serde(default)]
    pub aborts: Vec<AbortInfo>,
    /// Largest fuel of a call. Null if the server's limit applies.
    #[serde(default)]
    pub fuel_max: Option<u64>,
    /// Signature on one line, for people.
    pub signature: String,
    /// Form in which the log records its calls.
    pub log: LogChoice,
    /// Outcomes of its calls since the server's start, over all versions.
    pub calls: ProcedureCalls,
}

/// A code with which a procedure aborts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AbortInfo {
    /// `code` of the problem `procedure-aborted`.
    pub code: String,
    /// Situation in which the procedure uses the code. May be empty.
    #[serde(default)]
    pub docs: String,
}

/// Calls of one procedure since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcedureCalls {
    /// Number of calls that committed.
    pub committed: u64,
    /// Number of calls that the procedure aborted.
    pub aborted: u64,
    /// Number of calls that trapped.
    pub trapped: u64,
    /// Number of calls that reached a limit of a transaction.
    pub limit: u64,
    /// Number of calls that a time limit, a cancellation or the memory limit ended.
    pub ended: u64,
    /// Number of calls that did not run, or of which the server could keep nothing.
    pub refused: u64,
    /// Average wait of a call for its partition, in microseconds.
    pub mean_queued_us: u64,
    /// Average run time of a call, in microseconds.
    pub mean_running_us: u64,
    /// Average wait of a call for the log, in microseconds.
    pub mean_logging_us: u64,
}

/// Form in which the log records the calls of a procedure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogChoice {
    /// `command` (the call), `physiological` (the changed rows), `auto` (the cheaper form by measurement), `both` or `none`.
    pub kind: String,
    /// Form that the module declares. Null if the server's setting applies.
    pub declared: Option<String>,
    /// With `auto`: the current form, and the measured numbers that decided it.
    pub reason: Option<String>,
    /// Costs of a call in either form, by measurement. Null until enough calls were measured.
    #[serde(default)]
    pub costs: Option<LogCosts>,
    /// Calls measured since the last costs. Null if the procedure writes nothing, or the server's setting leaves no choice.
    #[serde(default)]
    pub measured_calls: Option<MeasuredCalls>,
}

/// Measured calls of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MeasuredCalls {
    /// Number of calls that were measured with their changes.
    pub measured: u32,
    /// Number from which on the costs are known.
    pub window: u32,
}

/// Costs of a procedure's calls in either form of the log. Times are medians and sizes are means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LogCosts {
    /// Number of measured calls.
    pub calls: u32,
    /// Time for which a call runs, in microseconds.
    pub run_us: f64,
    /// Rows that a call changes.
    pub rows: f64,
    /// Bytes of the log by commands.
    pub command_bytes: f64,
    /// Bytes of the log by changes.
    pub changes_bytes: f64,
    /// Time in which the changes of a call are made, in microseconds.
    pub make_us: f64,
    /// Time in which its changed rows are found again, in microseconds.
    pub redo_us: f64,
    /// Time in which the log's device takes one more byte, in nanoseconds.
    pub byte_ns: f64,
    /// Cost by commands, in microseconds: a second run at recovery, and the bytes.
    pub command_us: f64,
    /// Cost by changes, in microseconds: to make them, to find their rows at recovery, and the bytes.
    pub changes_us: f64,
    /// Form that costs less: `command` or `physiological`.
    pub better: String,
}

/// A parameter of a procedure.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ParameterInfo {
    /// Name in the declaration.
    pub name: String,
    /// Type of the values.
    #[serde(rename = "type")]
    pub ty: TypeInfo,
    /// Whether a call must have it. You may leave out an option.
    pub required: bool,
}

/// Partitions that a call touches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PartitioningInfo {
    /// Partitions that these parameters name. Each item of a list names one.
    By {
        /// Names of the parameters.
        parameters: Vec<String>,
    },
    /// All partitions.
    All,
    /// Any one partition.
    Any,
}
