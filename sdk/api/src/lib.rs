//! The REST API's types: what crosses HTTP, as JSON.
//! Owns: the shape of every request, answer and problem, and the golden description `openapi.json`.
//! Does not: do I/O, know how an answer comes to be.
//! Invariants: 64-bit integers are strings on the way out, strings or exact integers on the way in; `openapi.json` is what
//!   the server serves (a test of `server/http` keeps it).
//! Called by: `codec`, `http` (fill them), `client`, `node` (read them).
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod backups;
mod calls;
mod checkpoints;
mod log;
mod modules;
mod numbers;
mod problem;
mod replication;
mod running;
mod status;
mod tables;
mod types;

pub use backups::{Backup, BackupFile, BackupList, BackupState};
pub use calls::{BatchAnswer, BatchCall, CallAnswer, KeptOutcome};
pub use checkpoints::{Checkpoint, CheckpointFailure, CheckpointList, CheckpointState, RestartEstimate};
pub use log::{
    AuditPage, AuditRecord, ControlEnd, LogPage, LogRecord, ProcedureLog, ProcedureLogLine, RecordKind, RowChange,
};
pub use modules::{
    AbandonedTable, AbortInfo, DeployPlan, Destroyed, LikelyRename, LogChoice, LogCosts, MeasuredCalls, ModuleDetail,
    ModuleInstalled, ModuleList, ModulePlanned, ModuleSummary, ModuleUploaded, ModuleVersion, ParameterInfo,
    PartitioningInfo, PlanStep, ProcedureCalls, ProcedureInfo, ProcedurePlan, RetiringTable, TablePlan, WayBack,
};
pub use numbers::{U64, integers_are_numbers, with_integers};
pub use problem::{ArgumentError, Problem, ProblemKind, SchemaConflict};
pub use replication::{
    Comparison, Cut, EpochPromise, FreshnessHistory, FreshnessStep, GivenPromise, JoinRequest, JoinTicket, Lease,
    LeaseState, LostRange, OtherPrimary, OutOfSync, PromiseMember, PromiseRequest, PromiseStatus, Promotion,
    Replication, Standby, StandbyFreshness, StandbyProcess, StandbyState, StepDownRequest, SteppedDown,
};
pub use running::{CallList, CallPhase, RunningCall};
pub use status::{
    ArchiveInfo, ControlEvent, DeploymentStatus, Health, LatencyUs, MemoryStatus, MemoryUse, MetricsEvent, NvramRing,
    NvramStatus, Phase, Readiness, RecoveryStep, Status,
};
pub use tables::{ColumnInfo, GroupsPage, IndexInfo, Placement, RowGroup, RowsPage, RowsQuery, TableInfo, TableList};
pub use types::{FieldInfo, TypeInfo};

/// JSON that is passed on as it is: arguments, results, rows. Members keep the order of their declaration.
pub type Json = Box<serde_json::value::RawValue>;

/// Media type of a [`Problem`].
pub const PROBLEM_MEDIA_TYPE: &str = "application/problem+json";
/// Media type of a batch, both ways.
pub const NDJSON_MEDIA_TYPE: &str = "application/x-ndjson";

/// Media type of rows as comma-separated values.
pub const CSV_MEDIA_TYPE: &str = "text/csv";

/// Media types of calls and answers in CBOR, one and many.
pub const CBOR_MEDIA_TYPE: &str = "application/cbor";
/// Media type of CBOR items one after the other (RFC 8742).
pub const CBOR_SEQUENCE_MEDIA_TYPE: &str = "application/cbor-seq";

/// Names of the headers that are the API's own.
pub mod headers {
    /// Id of the transaction that a response is of.
    pub const TXN_ID: &str = "reprise-txn-id";
    /// Position in the log of what a response holds.
    pub const LSN: &str = "reprise-lsn";
    /// `number` or `string`: how integers of 64 bits are written.
    pub const INTEGERS: &str = "reprise-integers";
    /// Cursor of the next page, in an answer with rows as lines or CSV.
    pub const NEXT_CURSOR: &str = "reprise-next-cursor";
    /// Safety level. In a call: the write has at least this level, or is refused. In an answer: the level that the write has.
    pub const SAFETY: &str = "reprise-safety";
    /// A read waits until it sees this position.
    pub const MIN_LSN: &str = "reprise-min-lsn";
    /// Milliseconds after which a call is ended.
    pub const TIMEOUT_MS: &str = "reprise-timeout-ms";
    /// Milliseconds that a read waits for `Reprise-Min-Lsn`.
    pub const MAX_WAIT_MS: &str = "reprise-max-wait-ms";
    /// A repeat of a call with the same key answers the first outcome.
    pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
    /// `true` where a response is such an outcome.
    pub const IDEMPOTENT_REPLAYED: &str = "idempotent-replayed";
    /// View of a standby, in its answers: it shows every record before this position.
    pub const VIEW_LSN: &str = "reprise-view-lsn";
    /// Lag of a standby in milliseconds, in its answers: at most so old are primary records that it does not show yet.
    pub const LAG_MS: &str = "reprise-lag-ms";
    /// `false` where that is so much at least: a standby does not know it before it shows what its primary had when it heard that first.
    pub const LAG_KNOWN: &str = "reprise-lag-known";
    /// Freshness of a standby, in its answers: share of the primary's last 10 s that it shows, from 0 to 1.
    pub const FRESHNESS: &str = "reprise-freshness";
    /// A read on a standby that is further behind is refused.
    pub const MAX_LAG_MS: &str = "reprise-max-lag-ms";
    /// The span that a request belongs to (W3C Trace Context).
    pub const TRACEPARENT: &str = "traceparent";
}
