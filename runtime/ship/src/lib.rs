//! A primary's log on its way to its standbys: which standby may connect, what the primary sends to each, and how far each is. Also a standby's end
//! of it.
//! Owns: the groups that wait to be sent, the tickets, the replication slots of the log, the table of standbys with their freshness.
//! Does not: place groups, replay, decide which server is primary, hold callers back, know HTTP. It tells the gate what standbys have.
//! Invariants: the primary sends without a gap from the position that the standby reported; no frame is used before its checksum is checked; `view`,
//! `replayed` and `persisted` <= `received` <= `shipped` of each standby; `acked` only grows.
//! Called by: `router` (reads of freshness), `upkeep` (a checkpoint for a new standby), `database`, `node` (a standby's first files).
#![forbid(unsafe_code)]

mod comparisons;
mod connection;
mod files;
mod fork;
mod freshness;
mod join_check;
mod link;
mod member;
mod name_check;
mod own_freshness;
mod primary_report;
mod quorum;
mod receive;
mod ring;
mod safety;
mod sent_status;
mod session;
mod shipper;
mod source;
mod standby_log;
mod stream;
mod table;
mod tickets;
mod views;

pub use comparisons::Comparisons;
pub use connection::{SEND_TIME, SHIP_LIMITS, SILENCE_MAX, STANDBY_LIMITS};
pub use fork::{AskingFork, ForkAnswer};
pub use freshness::{FreshnessPoint, FreshnessSummary, Lag};
pub use link::{
    ComparedOwn, Compares, Link, LinkConfig, LinkError, LogReceiver, PersistedHook, StandbyFiles, StandbyProgress,
    Taker,
};
pub use member::{ComparedStatus, Member, NO_LOG, StandbyStage, StandbyStatus};
pub use own_freshness::OwnFreshness;
pub use primary_report::{BeatSeen, ReportedMember, SyncReport, WelcomeSeen};
pub use receive::{BootstrapReceiver, BootstrapSummary};
pub use safety::{Commits, IN_SYNC_NS, SafetyHook, SafetyStatus, committed_by, waits_for_each};
pub use shipper::{Keep, ShipError, ShipEvent, Shipper, ShipperConfig};
pub use source::{CheckpointSource, ChosenCheckpoint, ShippedLog};
pub use standby_log::{KeepCommitted, LogBeside, OnTheWay};
