//! The engine thread. It takes calls from its inbox, runs them one at a time on the partition that they name, and appends their records. It hands the
//! outcomes on when they are durable.
//! Owns: the tables of its partitions while they are at home, not away at a rendezvous; each partition's transaction ids; the list of calls
//! on their way.
//! Does not: choose partitions, parse requests, write files, decide what happens at recovery.
//! Invariants: per partition, transaction ids grow in the order of execution and of the log; no call is acknowledged before the sink allows
//! it; exactly one thread holds a partition at any time.
//! Called by: `router` (calls, jobs), `recovery`, `replay`, `upkeep`, `database`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod acknowledged_reads;
mod batch;
mod batch_ahead;
mod caller;
mod calls;
mod checkout;
mod coordinator;
mod copy;
mod digest;
mod failure_notices;
mod gate;
mod handoff;
mod install;
mod key_clock;
mod log_costs;
mod log_form;
mod logging;
mod outcome;
mod partial_append;
mod partition_table;
mod paused_batch;
mod principals;
mod published_stats;
mod reader;
mod rendezvous;
mod shared;
mod sink;
mod site;
mod turn;
mod underway;

pub use acknowledged_reads::HeldStores;
pub use batch::{BATCH_ARGS_BYTES_MAX, BatchDone, CallBatch, CallSlot, CallTimes};
pub use caller::{CallKey, Caller};
pub use calls::{CallInfo, CallStep, Calls, Deadline};
pub use checkout::StoreCheckout;
pub use coordinator::{Coordinator, RendezvousStats};
pub use copy::CopyMessage;
pub use digest::PartitionDigest;
pub use gate::{CommitGate, DeposedAge, LeaseClock, ReadLimit, Shortage};
pub use install::{
    InstallBounds, InstallError, InstallRules, Installation, MigrationDigests, check_consents, install, put_in_service,
    record_position,
};
pub use key_clock::KeyClock;
pub use log_costs::{CallCosts, MeasuredCosts, SampleRate};
pub use log_form::{LogForm, LogPolicy, ShipForm};
pub use logging::LogSettings;
pub use outcome::ReplyOutcome;
pub use principals::Principals;
pub use published_stats::{PublishedStats, Question};
pub use reader::{OpenViews, OpenedView, ReadQueue, ReadTask, ReadWork, Reader, TableReadJob, ViewLimits};
pub use rendezvous::{Job, MultiPartitionTxn, Rendezvous, Stream, TxnPartitions};
pub use shared::{ModuleBytes, Shared};
pub use sink::{AsyncSink, LogRefusal, NewRecords, NoLog, NvramSink, Sink, SyncSink, complete};
pub use site::{ExclusivePartitions, ExecContext, Partition, Site, SiteMessage};
pub use turn::has_small_result;
pub use underway::{DeployProgress, Underway, UnderwayGuard};
