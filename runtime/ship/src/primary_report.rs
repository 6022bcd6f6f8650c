//! The words of a primary, as its standby hears them.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn, Safety};
use reprise_wire::SetPart;

/// A primary's heartbeat, at the standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeatSeen {
    /// Epoch of the primary.
    pub epoch: Epoch,
    /// When this node had sent the newest progress that the primary had before it read `durable`, by the clock that counts suspended time. None:
    /// it had none of this connection.
    pub echo_ns: Option<u64>,
    /// When it came, by this node's monotonic clock.
    pub came_ns: u64,
    /// Everything before it is durable on the primary.
    pub durable: Lsn,
    /// Everything before it may be read there.
    pub committed: Lsn,
    /// Bytes of log between this standby's view and the primary's end.
    pub behind_bytes: u64,
}

/// A primary's report about the standbys in sync, at the standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReport {
    /// Epoch of the primary.
    pub epoch: Epoch,
    /// Level that the primary's writes wait for.
    pub safety: Safety,
    /// Grows within an epoch, as long as the primary runs.
    pub number: u64,
    /// True if this standby is in sync.
    pub in_sync: bool,
    /// The part of this standby in the set that `quorum` counts on.
    pub set: SetPart,
    /// The other standbys.
    pub members: Vec<ReportedMember>,
}

/// A standby, as its primary reports it to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedMember {
    pub name: Arc<str>,
    /// URL at which other servers reach it; empty: it is not known.
    pub url: Arc<str>,
    /// It has everything before this LSN.
    pub from: Lsn,
    pub is_in_sync: bool,
    pub set: SetPart,
}

/// The first words of the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WelcomeSeen {
    pub epoch: Epoch,
    /// The primary's URL for clients; empty if the primary has none.
    pub primary: String,
    /// Level that its writes wait for.
    pub safety: Safety,
}
