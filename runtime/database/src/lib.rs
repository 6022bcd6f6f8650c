//! A database in this process: the engine's parts, put together over one directory.
//! Owns: the order of opening and closing, the engine threads, the choice of log kind and commit mode.
//! Does not: know HTTP or flags; hold any state of its own beyond the parts.
//! Invariants: no call is taken before the log is replayed; after `close`, every acknowledged write is durable and sealed.
//! Called by: `http`, `node`, the benchmarks' driver.
#![forbid(unsafe_code)]

mod committing;
mod compare_scheduler;
mod comparing;
mod config;
mod cutting;
mod database;
mod device;
mod differing;
mod doubt;
mod environment;
mod error;
mod following;
mod inspect;
mod lease_rules;
mod lease_store;
mod leasing;
mod link_failure;
mod linking;
mod membership;
mod memory;
mod node_file;
mod opening;
mod promising;
mod promotion;
mod quarantine;
mod reachable;
mod reading;
mod recover;
mod report;
mod shipping;
mod shown;
mod simlease;
mod small_file;
mod standby;
mod stepping;
mod stored;
mod sync_status;

pub use config::{COPY_AT_ENTRIES_DEFAULT, CommitMode, DatabaseConfig, DeviceConfig, NvramConfig, RedoConfig};
pub use cutting::{ClosedDirectory, CutBack, CutError, CutInfo, cut_back, list_cuts};
pub use database::Database;
pub use device::RegionNote;
pub use environment::{Environment, Folders};
pub use error::{DeviceError, OpenError};
pub use inspect::{CheckpointFate, FoundCheckpoint, Inspection, inspect};
pub use lease_store::{Holder, LeaseContents, LeaseStore, StoreError, SyncRecord};
pub use leasing::{LeaseConfig, LeaseError};
pub use linking::{AskStepDown, AskTicket, FollowPrimary, TicketError};
pub use membership::{MemberAddress, MemberAnswer};
pub use memory::{MemoryBound, MemoryError, judge_memory, keep_memory_ready, memory_max_default};
pub use node_file::{DirHealth, NODE_NAME, NodeDocument, NodeFile};
pub use opening::{bring_home, bring_home_in};
pub use promising::{AskPeers, PeerAnswer};
pub use reading::ReadersConfig;
pub use report::{LoadedCheckpoint, QuarantinedProcedure, ReadOnly, RecoveryReport};
pub use reprise_nvram::FlushPolicy;
pub use shipping::{ServeStandbys, ServeStandbysError};
pub use shown::{NAME as VIEW_NAME, keep_committed};
pub use simlease::SimLeases;
pub use standby::StandbyPositions;
pub use stored::stored_partitions;
pub use sync_status::forget_earlier_log;

pub use reprise_log::{AppendError, AppendOutcome, Group, GroupSink, Position};
pub use reprise_partition::LogPolicy;
pub use reprise_partition::{SampleRate, ShipForm};
pub use reprise_recovery::RecoveryError;
pub use reprise_replay::RecoverFrom;
pub use reprise_replay::{Divergence, ReplayError};
pub use reprise_storage::{AfterImage, set_hash_secret};
pub use reprise_upkeep::CheckpointConfig;
