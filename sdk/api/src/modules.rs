//! Modules and their procedures.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{U64, problem::SchemaConflict, types::TypeInfo};

/// Answer to an upload.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleInstalled {
    pub module: String,
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
    pub lsn: U64,
}

/// Answer to an upload with `dry_run=true`: nothing was installed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModulePlanned {
    /// Names of the procedures.
    pub procedures: Vec<String>,
    /// Names of the tables.
    pub tables: Vec<String>,
    pub plan: DeployPlan,
}

/// What an upload would do to the stored tables, or why it would be refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeployPlan {
    /// Tables that it would create or change.
    pub tables: Vec<TablePlan>,
    /// Empty: it would be installed.
    pub conflicts: Vec<SchemaConflict>,
    /// How long all partitions would stand still for it.
    pub estimated_ms: u64,
}

/// What would become of one table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TablePlan {
    pub table: String,
    pub steps: Vec<PlanStep>,
    /// Rows that it holds.
    pub rows: u64,
    /// True where all of them are read; else the table's description alone changes.
    pub reads_rows: bool,
}

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

/// Answer to an upload: which of them depends on `dry_run`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum ModuleUploaded {
    Installed(ModuleInstalled),
    Planned(ModulePlanned),
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleList {
    pub modules: Vec<ModuleSummary>,
}

/// A module in service.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleSummary {
    pub module: String,
    /// The version in service.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
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
    pub module: String,
    /// The version in service.
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    pub wasm_bytes: u64,
    /// When the version was installed (RFC 3339).
    pub installed_at: String,
    /// Every version that the log knows, oldest first.
    pub versions: Vec<ModuleVersion>,
    pub procedures: Vec<ProcedureInfo>,
    /// Names of the tables.
    pub tables: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ModuleVersion {
    pub version: u32,
    /// SHA-256 of the wasm binary, in hexadecimal.
    pub hash: String,
    pub wasm_bytes: u64,
    /// When it was installed (RFC 3339).
    pub installed_at: String,
    pub txn_id: U64,
    pub in_service: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProcedureInfo {
    pub name: String,
    /// What its module says of it; may be empty.
    #[serde(default)]
    pub docs: String,
    pub parameters: Vec<ParameterInfo>,
    pub result: TypeInfo,
    pub read_only: bool,
    pub partitioning: PartitioningInfo,
    /// The whole on one line, for people.
    pub signature: String,
    /// What its calls leave in the log.
    pub log: LogChoice,
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

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ParameterInfo {
    pub name: String,
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
    By { parameters: Vec<String> },
    /// All partitions.
    All,
    /// Any one partition.
    Any,
}
