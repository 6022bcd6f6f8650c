//! The initiator: accepts calls, chooses their partitions, orders those of several partitions, and gathers the answers.
//! Owns: the inboxes, the order of multi-partition jobs, admission, idempotency keys, the role and phase of the node.
//! Does not: run procedures, write the log, know HTTP.
//! Invariants: two multi-partition jobs enter every inbox that they share in the same order; a key has one committed outcome.
//! Called by: `upkeep`, `database`, `http`, `node`, the benchmarks' driver.
#![forbid(unsafe_code)]

mod admin;
mod answered_batch;
mod audit;
mod builder;
mod checkpoint;
mod clock_watch;
mod compare;
mod dangers;
mod idempotency;
mod key_entry;
mod key_table;
mod log_entry;
mod logs;
mod numbered_row;
mod pace;
mod page;
mod plans;
mod query;
mod ready;
mod replication;
mod router;
mod scoped_key;
mod standby;
mod views;

pub use admin::{DeployError, Deployment, PlannedModule, Removal};
pub use audit::EndedControl;
pub use builder::{BatchBuilder, BatchReply, CallReply, CallTerms, OnReply};
pub use checkpoint::{CopyError, CopyStart, PartitionStart};
pub use compare::digests_at_mark;
pub use idempotency::{ExportedKey, Idempotency, IdempotencyStats, Lookup};
pub use key_entry::{CallDigests, CommittedOutcome};
pub use log_entry::{ChangedRow, LogBody, LogControl, LogEntry, LogMigration, LogProcedure, decode_entry};
pub use logs::{LogEntryPage, LogMatch, LogReadError, LogSearch};
pub use numbered_row::NumberedRow;
pub use query::{RowFilter, RowsError, RowsRequest, StoredPage, TableTotals};
pub use replication::{
    ComparedInfo, CutRecords, FreshnessSeries, HandOverPoint, LaggingStandby, LeaseInfo, LeaseStatus, LossCause,
    LostRecords, PeerMember, PeerStatus, PrimaryBeside, PromiseAnswer, PromiseQuestion, PromoteOptions,
    PromotionResult, ReplicationError, ReplicationInfo, ReplicationService, StandbyInfo, StandbyPhase, StandbyTicket,
    ViewAge,
};
pub use router::{
    MetricsSnapshot, NodePhase, NodeStatus, NvramDevice, RecoveryStage, Router, RouterConfig, Unavailable,
};
pub use scoped_key::ScopedKey;
pub use standby::NotPrimary;
pub use views::ReadPath;

pub use reprise_log::NvramBufferStatus;
pub use reprise_observe::{CallEnd, CallStage, CallSums, ProcedureSums};
pub use reprise_partition::{
    CallInfo, CallKey, CallStep, CallTimes, Caller, Deadline, DeployProgress, InstallError, LogRefusal, MeasuredCosts,
    Principals, RendezvousStats, ReplyOutcome, Stream, has_small_result,
};
pub use reprise_ship::{FreshnessPoint, FreshnessSummary, SafetyHook};
pub use reprise_storage::{ChangeAction, ChangeStep, Conflict, TableId};
pub use reprise_txn::{
    CallPartitions, Consent, ConsentKind, Deployed, DestroyedItem, EndReason, Failure, Module, ModuleId, OrphanedTable,
    PlanSummary, ProcedureChange, RenameGuess, RollbackPlan, TableChangePlan, call_hash,
};
