//! A database in this process: the engine's parts, put together over one directory.
//! Owns: the order of opening and closing, the engine threads, the choice of log kind and commit mode.
//! Does not: know HTTP or flags; hold any state of its own beyond the parts.
//! Invariants: no call is taken before the log is replayed; after `close`, every acknowledged write is durable and sealed.
//! Called by: `http`, `node`, the benchmarks' driver.
#![forbid(unsafe_code)]

mod compare_scheduler;
mod config;
mod cutting;
mod database;
mod device;
mod doubt;
mod environment;
mod error;
mod follower;
mod gate_commits;
mod hand_over;
mod inspect;
mod lease_rules;
mod lease_store;
mod leasing;
mod link_failure;
mod membership;
mod memory;
mod node_file;
mod opened_log;
mod primary_connection;
mod promising;
mod promotion;
mod quarantine;
mod reachable;
mod readers;
mod recover;
mod report;
mod shown_limit;
mod simlease;
mod small_file;
mod standby;
mod standby_comparer;
mod standby_service;
mod stored_partitions;
mod sync_status;
mod table_difference;

pub use config::{
    BatchLimits, COPY_AT_ENTRIES_DEFAULT, CommitMode, DatabaseConfig, DeviceConfig, NvramConfig, RedoConfig,
};
pub use cutting::{ClosedDirectory, CutBack, CutError, CutInfo, cut_back, list_cuts};
pub use database::Database;
pub use device::RegionNote;
pub use environment::{Environment, Folders};
pub use error::{DeviceError, OpenError};
pub use inspect::{CheckpointFate, FoundCheckpoint, Inspection, inspect};
pub use lease_store::{Holder, LeaseContents, LeaseStore, StoreError, SyncRecord};
pub use leasing::{LeaseConfig, LeaseError};
pub use membership::{MemberAddress, MemberAnswer};
pub use memory::{MemoryBound, MemoryError, check_memory, keep_memory_ready, memory_max_default};
pub use node_file::{DirHealth, NODE_NAME, NodeDocument, NodeFile};
pub use opened_log::{bring_home, bring_home_in};
pub use primary_connection::{AskStepDown, AskTicket, FollowPrimary, TicketError};
pub use promising::{AskPeers, PeerAnswer, PromisedPrimary};
pub use readers::ReadersConfig;
pub use report::{LoadedCheckpoint, QuarantinedProcedure, ReadOnly, RecoveryReport};
pub use reprise_nvram::FlushPolicy;
pub use shown_limit::{NAME as VIEW_NAME, keep_committed};
pub use simlease::SimLeases;
pub use standby::StandbyPositions;
pub use standby_service::{ServeStandbys, ServeStandbysError};
pub use stored_partitions::stored_partitions;
pub use sync_status::forget_earlier_log;

pub use reprise_log::{AppendError, AppendOutcome, Group, GroupSink, Position};
pub use reprise_partition::LogPolicy;
pub use reprise_partition::{SampleRate, ShipForm};
pub use reprise_recovery::RecoveryError;
pub use reprise_replay::RecoverFrom;
pub use reprise_replay::{Divergence, ReplayError};
pub use reprise_storage::{AfterImage, set_hash_secret};
pub use reprise_upkeep::CheckpointConfig;
