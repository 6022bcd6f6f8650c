//! A standby, as its primary keeps it.

use std::sync::Arc;

use reprise_base::{Lsn, NodeProcess, Safety};
use reprise_log::ReplicationSlot;
use reprise_wire::Progress;

use crate::{
    freshness::{Freshness, Lag},
    safety::{SafetyMember, SyncState},
};

/// How long a standby keeps its name after its last frame, before another server may have it.
const NAME_HELD_NS: u64 = 10_000_000_000;
/// A connection that was silent for this time gives way to a later process of the same standby.
const SUPERSEDED_NS: u64 = 1_000_000_000;
/// The `from` of a standby for which the primary keeps no log. No log reaches this LSN.
pub const NO_LOG: Lsn = Lsn(u64::MAX);

/// The stage of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyStage {
    /// It gets a checkpoint.
    Joining,
    /// It gets log that was written before.
    CatchingUp,
    /// It gets each group as it is sealed.
    Streaming,
    /// There is no connection.
    Lost,
}

/// A standby, as its primary sees it.
#[derive(Clone, Debug)]
pub struct StandbyStatus {
    pub name: Arc<str>,
    pub state: StandbyStage,
    /// Everything before it was sent.
    pub shipped: Lsn,
    /// The standby's last report; none of these is more than `shipped`.
    pub persisted: Lsn,
    pub replayed: Lsn,
    pub view: Lsn,
    /// It has everything that was answered under a level that waits for standbys, and knows that: it may be promoted.
    pub is_in_sync: bool,
    /// From 0 to 1; None: not measured.
    pub freshness: Option<f64>,
    /// Age of the oldest record of the primary that readers there do not see; 0: they see all.
    pub lag: Lag,
    pub lag_bytes: u64,
    pub lag_records: u64,
    /// The log is kept for it from this LSN on. None: no log is kept for it.
    pub held_from: Option<Lsn>,
    /// The last comparison of its tables with this server's, by the standby's report.
    pub compared: Option<ComparedStatus>,
    /// The reason why the last connection ended, or the present fault.
    pub error: Option<Arc<str>>,
}

/// A comparison of all tables at one LSN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedStatus {
    /// Everything before it was compared.
    pub lsn: Lsn,
    /// Time at which the standby reported that, in microseconds since 1970.
    pub at_us: i64,
    /// The difference; none: all tables are equal.
    pub difference: Option<Arc<str>>,
}

/// A standby that a primary knows of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: Arc<str>,
    /// The LSN from which on the primary keeps its log for the standby; `NO_LOG`: it keeps none.
    pub from: Lsn,
    /// The standby has everything before this of this server's log; 0: that is not known.
    pub persisted: Lsn,
    pub is_in_sync: bool,
    /// It was in sync once: quorum and very-safe count on it.
    pub is_counted: bool,
    /// URL at which other servers reach it, as it told when it connected last.
    pub url: Option<Arc<str>>,
    /// Identity of the directory that had the name last.
    pub node: Option<u64>,
}

impl Member {
    /// Checks whether both describe one server in one state of the sync set.
    fn is_alike(&self, other: &Self) -> bool {
        (&self.name, self.is_in_sync, self.is_counted, &self.url, self.node)
            == (&other.name, other.is_in_sync, other.is_counted, &other.url, other.node)
    }
}

/// Whether two lists have the same sync status.
pub(crate) fn are_alike(a: &[Member], b: &[Member]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_alike(b))
}

pub(crate) struct StandbyEntry {
    pub state: StandbyStage,
    /// Number of the connection that speaks for the standby; 0: none.
    pub connection: u64,
    /// The process that has the name.
    pub process: Option<NodeProcess>,
    /// URL at which other servers reach it.
    pub url: Option<Arc<str>>,
    /// Identity of the directory that had the name last, also before this server's start.
    pub node: Option<u64>,
    /// When its last frame came; 0: none came since this server started.
    pub heard_ns: u64,
    /// When its last report of this primary's epoch came; 0: none came. A standby that follows another primary by now greets, and reports nothing.
    pub followed_ns: u64,
    /// It is connected, and was not heard for a while.
    pub is_silent: bool,
    /// The standby has not come back since this server's start, and still has time for that.
    pub is_awaited: bool,
    pub shipped: Lsn,
    pub progress: Progress,
    /// The end of the records that it persisted, also while it is away.
    pub persisted: Lsn,
    pub sync: SyncState,
    /// True once it is saved that the standby is in sync. Before that the primary does not report it so.
    pub is_kept_in: bool,
    /// Number of the first sync status that reports it in sync.
    pub reported_in: u64,
    /// While the standby is out of sync: it has everything before this, and may lack records that were answered later.
    pub lacks_from: Lsn,
    /// Number of the newest sync status that it saved, by its word on this connection.
    pub saved_status: u64,
    /// The standby is removed as soon as it is saved that it left.
    pub is_forgotten: bool,
    pub is_counted: bool,
    /// Number of the first sync status that says that the standby joins the set of `quorum`.
    pub joins: Option<u64>,
    /// Enough standbys know that it joins. It counts once that is saved.
    pub is_confirmed: bool,
    /// The time until which commits wait for the standby while it is in sync and away.
    pub awaited_until_ns: u64,
    pub hold: Option<(Arc<ReplicationSlot>, Lsn)>,
    pub freshness: Freshness,
    pub compared: Option<ComparedStatus>,
    pub error: Option<Arc<str>>,
}

impl StandbyEntry {
    pub fn new(connection: u64) -> Self {
        Self {
            state: StandbyStage::Joining,
            connection,
            process: None,
            url: None,
            node: None,
            heard_ns: 0,
            followed_ns: 0,
            is_silent: false,
            is_awaited: false,
            shipped: Lsn(0),
            progress: Progress::default(),
            persisted: Lsn(0),
            sync: SyncState::Out,
            is_kept_in: false,
            reported_in: 0,
            lacks_from: Lsn(0),
            saved_status: 0,
            is_forgotten: false,
            is_counted: false,
            joins: None,
            is_confirmed: false,
            awaited_until_ns: 0,
            hold: None,
            freshness: Freshness::default(),
            compared: None,
            error: None,
        }
    }

    pub fn member(&self) -> SafetyMember {
        SafetyMember {
            persisted: self.counted_to(),
            sync: self.sync,
            is_connected: self.connection != 0,
            is_counted: self.is_counted,
            is_missing: self.heard_ns != 0 && (self.connection == 0 || self.is_silent),
            is_awaited: self.is_awaited,
        }
    }

    /// True if the last comparison of its tables found a difference: it can't be promoted, so no write may count on it.
    pub fn has_difference(&self) -> bool {
        let compared = self.compared.as_ref();
        compared.is_some_and(|compared| compared.difference.is_some())
    }

    /// Returns the end of the records for which a level may count on it. A standby with a difference still receives the log, but it counts as
    /// one that was lost when the difference was found.
    pub fn counted_to(&self) -> Lsn {
        match self.has_difference() {
            true => self.persisted.min(self.lacks_from),
            false => self.persisted,
        }
    }

    pub fn is_streaming(&self) -> bool {
        self.connection != 0 && self.state == StandbyStage::Streaming
    }

    /// True if the standby is in sync, and that is saved.
    pub fn is_reported_in_sync(&self) -> bool {
        self.sync == SyncState::In && self.is_kept_in
    }

    /// True if the standby, too, knows that.
    pub fn knows_in(&self) -> bool {
        self.is_reported_in_sync() && self.saved_status >= self.reported_in
    }

    /// Returns why another process may not have its name now.
    pub fn refuses(&self, process: NodeProcess, now_ns: u64) -> Option<String> {
        let own = self.process.filter(|own| own.nonce != process.nonce)?;
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        let is_held = self.connection != 0 || silent_ns < NAME_HELD_NS;
        match own.node == process.node {
            // The standby's process was started again, as it seems.
            true if process.starts > own.starts => (self.connection != 0 && silent_ns < SUPERSEDED_NS)
                .then(|| "an earlier process of this standby is still connected".to_owned()),
            true => is_held.then(|| {
                "another server with a copy of this data directory is connected, or was a moment ago".to_owned()
            }),
            false => is_held.then(|| {
                format!(
                    "another server (identity {:016x}) has this name, and was heard less than {} s ago: give each server its own --name",
                    own.node,
                    NAME_HELD_NS / 1_000_000_000
                )
            }),
        }
    }

    /// True if the standby is not connected, and still expected.
    pub fn is_lost(&self) -> bool {
        self.connection == 0 && !self.is_forgotten
    }

    /// True if the standby gets log. The primary then also reports to it which standbys are out of sync.
    pub fn gets_status(&self) -> bool {
        self.connection != 0 && matches!(self.state, StandbyStage::CatchingUp | StandbyStage::Streaming)
    }

    /// Whether the standby has the records that were answered before commits waited for it.
    pub fn is_there(&self) -> bool {
        matches!(self.sync, SyncState::Entering(end) if self.persisted >= end)
    }

    /// Takes the standby into the sync set if it has all of that. At quorum a standby that does not count yet joins the set first.
    pub fn enter_if_there(&mut self, level: Safety) {
        if self.is_there() && (self.is_counted || level != Safety::Quorum) {
            (self.sync, self.is_counted) = (SyncState::In, true);
        }
    }

    /// Records that the standby does not become in sync.
    pub fn stay_out(&mut self) {
        self.sync = SyncState::Out;
        if !self.is_confirmed {
            self.joins = None;
        }
    }

    /// Moves its slot to `lsn`, because it needs no earlier log. Returns the slot if it has to move.
    pub fn release_before(&mut self, lsn: Lsn) -> Option<Arc<ReplicationSlot>> {
        let (hold, from) = self.hold.as_mut().filter(|(_, from)| *from < lsn)?;
        *from = lsn;
        Some(Arc::clone(hold))
    }

    /// Forgets what the standby has. True: it was in sync, and leaves.
    pub fn begin_again(&mut self) -> bool {
        (self.persisted, self.lacks_from) = (Lsn(0), Lsn(0));
        (self.shipped, self.progress) = (Lsn(0), Progress::default());
        self.compared = None;
        self.freshness.begin_anew();
        match self.sync {
            SyncState::In | SyncState::Leaving => {
                self.leave();
                true
            }
            SyncState::Entering(_) | SyncState::Out => {
                self.stay_out();
                false
            }
        }
    }

    /// Takes the result of a comparison. True: the standby was in sync, and leaves because its tables differ.
    pub fn record_comparison(&mut self, compared: ComparedStatus) -> bool {
        let is_new = compared.difference.is_some() && !self.has_difference();
        self.compared = Some(compared);
        if !is_new {
            return false;
        }
        let was_in = self.sync == SyncState::In;
        match self.sync {
            SyncState::In => self.leave(),
            SyncState::Leaving => {}
            SyncState::Entering(_) | SyncState::Out => self.stay_out(),
        }
        // It has everything before this. Later records do not count (`counted_to`).
        self.lacks_from = self.persisted;
        was_in
    }

    /// Records that the standby may lack what the primary answers from now on.
    pub fn leave(&mut self) {
        self.stay_out();
        (self.sync, self.lacks_from) = (SyncState::Leaving, self.persisted);
        self.is_kept_in = false;
    }
}
