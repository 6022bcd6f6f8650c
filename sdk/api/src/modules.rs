//! Modules and their procedures.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{U64, problem::SchemaConflict, types::TypeInfo};

/// Answer to an upload.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleInstalled {
    /// Name of the module.
    pub module: String,
    /// Its version, from 1.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// The version that was in service before, if another one was.
    pub replaced: Option<u32>,
    /// True when the same bytes were in service already: nothing was done.
    pub unchanged: bool,
    /// Version whose bytes a rollback installed.
    #[serde(default)]
    pub rolled_back_to: Option<u32>,
    /// Data that was destroyed, with consent.
    #[serde(default)]
    pub destroyed: Vec<Destroyed>,
    /// Position of its installation in the log; if nothing was done, of the last committed record: the installation lies there or before.
    pub lsn: U64,
}

/// Answer to an upload or a rollback with `dry_run=true`: nothing was installed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModulePlanned {
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// Plan of the installation.
    pub plan: DeployPlan,
    /// Version whose bytes a rollback would install.
    #[serde(default)]
    pub rolled_back_to: Option<u32>,
}

/// Everything that a deployment would change, or why it would be refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeployPlan {
    /// Tables that it would create or change.
    pub tables: Vec<TablePlan>,
    /// Procedures that it would add, drop or change.
    #[serde(default)]
    pub procedures: Vec<ProcedurePlan>,
    /// Tables that the version in service declares and no module in service would declare any more. They stay stored.
    #[serde(default)]
    pub abandoned: Vec<AbandonedTable>,
    /// Data that the plan destroys: it needs consent (`allow`).
    #[serde(default)]
    pub destroyed: Vec<Destroyed>,
    /// Consents that this request lacks, as values of `allow`.
    #[serde(default)]
    pub missing: Vec<String>,
    /// Columns that may have been renamed: one would be dropped, and one of its type added.
    #[serde(default)]
    pub likely_renames: Vec<LikelyRename>,
    /// Empty: it would be installed, with the consents that are missing.
    pub conflicts: Vec<SchemaConflict>,
    /// True where the module would run something on its tables, which are copied for that.
    #[serde(default)]
    pub migrates: bool,
    /// Name of what the module runs when it is deployed, if it has one; where it would not migrate, the tables have had that.
    #[serde(default)]
    pub migration: Option<String>,
    /// Stored tables that this would read as they are before the deployment.
    #[serde(default)]
    pub retiring: Vec<RetiringTable>,
    /// Obstacles of a rollback to the version in service; null if none is in service.
    #[serde(default)]
    pub way_back: Option<WayBack>,
    /// How long all partitions would stand still for it, about, without what the module would run.
    pub estimated_ms: u64,
}

/// Change of one procedure.
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
    /// Rows that it holds.
    pub rows: u64,
}

/// One thing that a deployment destroys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Destroyed {
    /// The consent to it: `drop-column:MODULE.TABLE.COLUMN`, `drop-procedure:MODULE.PROCEDURE` or `abandon-table:MODULE.TABLE`.
    pub allow: String,
    /// Values of a column that are not null, or rows of a table; 0 for a procedure.
    pub count: u64,
    /// False if the number is an upper bound. A plan reads no rows, and counts the values of a nullable column as if no row had null.
    pub is_exact: bool,
}

/// A column that would be dropped, and one of its type that would be added. If it was renamed, the declaration says so with `was`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LikelyRename {
    /// Name of the table.
    pub table: String,
    /// The stored column.
    pub from: String,
    /// The declared one.
    pub to: String,
}

/// Obstacles of a rollback after the deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WayBack {
    /// The version in service, to which it would lead.
    pub version: u32,
    /// False: the conflicts say why the tables can't go back.
    pub is_open: bool,
    /// Why they can't.
    pub conflicts: Vec<SchemaConflict>,
    /// Conditions that all rows must meet after the deployment; rows written meanwhile may break them.
    pub needs: Vec<String>,
    /// Columns whose values it would drop, by full name.
    pub drops: Vec<String>,
}

/// Change of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TablePlan {
    /// Name of the table.
    pub table: String,
    /// Steps of the change.
    pub steps: Vec<PlanStep>,
    /// Rows that it holds; those of a replicated table count once.
    pub rows: u64,
    /// True where all of them are read; else the table's description alone changes.
    pub reads_rows: bool,
}

/// A stored table as what runs at the deployment reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetiringTable {
    /// Name of the table.
    pub table: String,
    /// Names of the columns that it reads.
    pub columns: Vec<String>,
}

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanStep {
    /// `create`, `add`, `drop`, `convert` or `rename`.
    pub action: String,
    /// `table`, `column`, `index` or `primary key`.
    pub what: String,
    /// The column or index; empty where it is the table itself.
    pub item: String,
    /// Description of the step.
    pub detail: String,
}

/// Answer to an upload or a rollback: which of them depends on `dry_run`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ModuleUploaded {
    /// The module is in service.
    Installed(ModuleInstalled),
    /// Nothing was installed: what would be done.
    Planned(ModulePlanned),
}

/// The modules in service.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleList {
    /// By name.
    pub modules: Vec<ModuleSummary>,
    /// Cursor of the next page; null on the last one. Opaque.
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
    /// Size of its wasm binary.
    pub wasm_bytes: u64,
    /// When the version was installed (RFC 3339).
    pub installed_at: String,
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
}

/// A module with everything that is known of it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleDetail {
    /// Name of the module.
    pub module: String,
    /// The version in service.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    /// Size of its wasm binary.
    pub wasm_bytes: u64,
    /// When the version was installed (RFC 3339).
    pub installed_at: String,
    /// Every version that the log knows, oldest first.
    pub versions: Vec<ModuleVersion>,
    /// In the order of their declaration.
    pub procedures: Vec<ProcedureInfo>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// Names of the migrations that its tables have had.
    #[serde(default)]
    pub migrations: Vec<String>,
}

/// A version of a module.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleVersion {
    /// From 1.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    /// Size of its wasm binary.
    pub wasm_bytes: u64,
    /// When it was installed (RFC 3339).
    pub installed_at: String,
    /// The transaction that installed it.
    pub txn_id: U64,
    /// Whether calls run it.
    pub in_service: bool,
    /// Whether the server keeps its wasm binary, so that a rollback finds it.
    pub kept: bool,
}

/// A procedure as its module describes it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProcedureInfo {
    /// Its name.
    pub name: String,
    /// Documentation from its module; may be empty.
    #[serde(default)]
    pub docs: String,
    /// In the order of their declaration.
    pub parameters: Vec<ParameterInfo>,
    /// Type of what it answers.
    pub result: TypeInfo,
    /// Whether it writes nothing.
    pub read_only: bool,
    /// Which partitions a call takes.
    pub partitioning: PartitioningInfo,
    /// Codes with which it aborts, as its module declares them; it may know more.
    #[serde(default)]
    pub aborts: Vec<AbortInfo>,
    /// Fuel that a call may burn; null where the limit of every transaction counts.
    #[serde(default)]
    pub fuel_max: Option<u64>,
    /// The whole on one line, for people.
    pub signature: String,
    /// Form of its calls in the log.
    pub log: LogChoice,
    /// Outcomes of its calls since the server started, over all versions.
    pub calls: ProcedureCalls,
}

/// A code with which a procedure aborts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AbortInfo {
    /// `code` of the problem `procedure-aborted`.
    pub code: String,
    /// When the procedure aborts so; may be empty.
    #[serde(default)]
    pub docs: String,
}

/// Calls of one procedure since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcedureCalls {
    /// Calls that committed.
    pub committed: u64,
    /// Calls that the procedure rolled back.
    pub aborted: u64,
    /// Calls that trapped.
    pub trapped: u64,
    /// Calls that reached a limit of one transaction.
    pub limit: u64,
    /// Calls that their time limit, their client or the memory limit ended.
    pub ended: u64,
    /// Calls that did not run, or whose changes could not be kept.
    pub refused: u64,
    /// How long one that ran waited for its partition, on average, in microseconds.
    pub mean_queued_us: u64,
    /// How long one ran, on average, in microseconds.
    pub mean_running_us: u64,
    /// How long one that ran waited for the log, on average, in microseconds.
    pub mean_logging_us: u64,
}

/// Form in which the log holds a procedure's calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogChoice {
    /// `command` (the call), `physiological` (the changed rows), `auto` (what costs less, by measurement), `both` or `none`.
    pub kind: String,
    /// Choice that the module declares; null if the server's setting applies.
    pub declared: Option<String>,
    /// With `auto`: what is logged now, and the measured numbers that decided it.
    pub reason: Option<String>,
}

/// A parameter of a procedure.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ParameterInfo {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: TypeInfo,
    /// False for an option, which may be left out.
    pub required: bool,
}

/// Which partitions a call touches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PartitioningInfo {
    /// The partitions that these parameters name; of a list, every item names one.
    By {
        /// Names of the parameters.
        parameters: Vec<String>,
    },
    /// All partitions.
    All,
    /// Any one partition.
    Any,
}
