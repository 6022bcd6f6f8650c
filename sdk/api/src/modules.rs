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
    /// Of a rollback: the version whose bytes these are.
    #[serde(default)]
    pub rolled_back_to: Option<u32>,
    /// Position of its installation in the log.
    pub lsn: U64,
}

/// Answer to an upload or a rollback with `dry_run=true`: nothing was installed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModulePlanned {
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
    /// What an installation would do.
    pub plan: DeployPlan,
    /// Of a rollback: the version whose bytes would be installed.
    #[serde(default)]
    pub rolled_back_to: Option<u32>,
}

/// What an upload would do to the stored tables, or why it would be refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeployPlan {
    /// Tables that it would create or change.
    pub tables: Vec<TablePlan>,
    /// Empty: it would be installed.
    pub conflicts: Vec<SchemaConflict>,
    /// True where the module would run something on its tables, which are copied for that.
    #[serde(default)]
    pub migrates: bool,
    /// Stored tables that this would read as they are now, and nothing afterwards.
    #[serde(default)]
    pub retiring: Vec<RetiringTable>,
    /// How long all partitions would stand still for it, without what the module would run.
    pub estimated_ms: u64,
}

/// What would become of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TablePlan {
    /// Name of the table.
    pub table: String,
    /// What would be done to it.
    pub steps: Vec<PlanStep>,
    /// Rows that it holds.
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
    /// What it was, or will be.
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
    /// What its module says of it; may be empty.
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
    /// The whole on one line, for people.
    pub signature: String,
    /// What its calls leave in the log.
    pub log: LogChoice,
    /// What became of its calls since the server started, whichever version they ran.
    pub calls: ProcedureCalls,
}

/// Calls of one procedure since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcedureCalls {
    /// Those that committed.
    pub committed: u64,
    /// Those that the procedure rolled back.
    pub aborted: u64,
    /// Those that trapped.
    pub trapped: u64,
    /// Those that reached a limit of one transaction.
    pub limit: u64,
    /// Those that their time, their client or the memory limit ended.
    pub ended: u64,
    /// Those that did not run, or of which nothing could be kept.
    pub refused: u64,
    /// How long one that ran waited for its partition, on average, in microseconds.
    pub mean_queued_us: u64,
    /// How long one ran, on average, in microseconds.
    pub mean_running_us: u64,
    /// How long one that ran waited for the log, on average, in microseconds.
    pub mean_logging_us: u64,
}

/// What a procedure's calls leave in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogChoice {
    /// `command` (the call), `physiological` (the changed rows), `auto` (what costs less, by measurement), `both` or `none`.
    pub kind: String,
    /// What the module declares; null where the server's setting counts.
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
