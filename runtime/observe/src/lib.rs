//! Counters and measurements of the node, and the newest lines that procedures logged.
//! Owns: counters per engine thread, latency histograms, sums by procedure, recent lines of each procedure, notices for the operator.
//! Does not: know HTTP, format anything, write files, slow down its callers.
//! Invariants: counting takes no lock and no allocation; an engine thread's counter has one writer; memory is bounded.
//! Called by: `log`, `partition` (count), `txn` (where a module's calls are counted), `upkeep`, `database`, `router`, `http`, `node` (read snapshots).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod counter;
mod histogram;
mod lines;
mod notices;
mod procedures;
mod refusals;
mod registry;

pub use counter::Counter;
pub use histogram::{LatencyHistogram, LatencySummary};
pub use lines::{LineFilter, RecentLine, RecentLines};
pub use notices::{Notice, NoticeKind, Notices, TakenNotices};
pub use procedures::{
    CallEnd, CallStage, CallSums, METERS_MAX, ModuleMeters, OTHER, ProcedureMeter, ProcedureMeters, ProcedureSums,
};
pub use refusals::{RefusalReason, Refusals};
pub use registry::{FlushStats, MetricsSnapshot, Recorder, Registry, Totals};
