//! Runs one procedure call over one partition's tables, or over several held at once.
//! Owns: the transaction seen by a guest (`StoreTxn`, on a standby `ViewTxn`), its handles, cursors, limits and outcome.
//! Does not: queue, log, choose partitions or give out ids; its caller does all of these.
//! Invariants: an outcome other than `Commit` left nothing in the tables; a guest sees no storage address.
//! Called by: `partition` (running), `replay` (the same path again), `recovery`, `router`, `upkeep`, `database`, `catalog` (modules and
//! tables).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod changed_rows;
mod executors;
mod former;
mod install;
mod kept_rows;
mod keyplace;
mod module;
mod next_calls;
mod nvram_inserts;
mod ops;
mod pages;
mod patches;
mod prefetch;
mod reach;
mod route;
mod row_placement;
mod rowmap;
mod run;
mod scan;
mod scratch;
mod shape;
mod store_ops;
mod store_set;
mod store_txn;
mod table_past;
mod view;
mod wasm;
mod watch;
mod weight;

pub use executors::Executors;
pub use install::{
    AppliedPlan, Candidate, Consent, ConsentKind, DeploymentRules, DestroyedItem, HeldCounts, Lineage, Origin,
    OrphanedTable, Outline, Plan, PlanSummary, ProcedureChange, RenameGuess, RestoredModule, RollbackPlan,
    StoredCounts, TableChangePlan, TableCount, TableOrigins, TableSources, apply, apply_drop, check_drop, outline,
    outline_removal, prepare, remove, restore,
};
pub use keyplace::{KeyPlace, partition_between};
pub use module::{BindError, Code, Deployed, Executor, Module, ModuleId, Quarantine, TableBinding};
pub use next_calls::{LookAhead, NextCalls};
pub use pages::{NextRow, ReadAheadPages};
pub use prefetch::PrefetchRow;
pub use reprise_abi::EndReason;
pub use reprise_host::StartTime;
pub use route::{CallPartitions, RouteError, partition_of_field};
pub use run::{Commit, Failure, Outcome, TxnInput, call_hash, failure_text, run_migration, run_multi, run_single};
pub use scratch::{LoggedLine, TxnScratch};
pub use table_past::TablePast;
pub use view::{ViewStores, run_at_view};
pub use wasm::Compiler;
pub use watch::{CallEnds, Watch};
