//! A standby, as its primary keeps it.

use std::sync::Arc;

use reprise_base::{Lsn, NodeProcess, Safety};
use reprise_log::ReplicationSlot;
use reprise_wire::Progress;

use crate::{
    freshness::{Freshness, Lag},
    safety::{Member, SyncState},
};

/// How long a standby keeps its name after its last frame, before another server may have it.
const NAME_HELD_NS: u64 = 10_000_000_000;
/// A connection that was silent for this time gives way to a later process of the same standby.
const SUPERSEDED_NS: u64 = 1_000_000_000;

/// The stage of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyState {
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
    pub state: StandbyState,
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
    /// The log is kept for it from here on. None: it is not, or not any more.
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
pub struct Expected {
    pub name: Arc<str>,
    /// From where on it needs the log.
    pub from: Lsn,
    /// The standby has everything before this of this server's log; 0: that is not known.
    pub persisted: Lsn,
    pub is_in_sync: bool,
    /// It was in sync once: quorum and very-safe count on it.
    pub is_counted: bool,
}

impl Expected {
    /// Whether the other one says the same of who is in sync.
    fn is_alike(&self, other: &Self) -> bool {
        (&self.name, self.is_in_sync, self.is_counted) == (&other.name, other.is_in_sync, other.is_counted)
    }
}

/// Whether two lists say the same of who is in sync.
pub(crate) fn are_alike(a: &[Expected], b: &[Expected]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_alike(b))
}

pub(crate) struct Standby {
    pub state: StandbyState,
    /// Number of the connection that speaks for the standby; 0: none.
    pub connection: u64,
    /// The process that has the name.
    pub process: Option<NodeProcess>,
    /// URL at which other servers reach it.
    pub url: Option<Arc<str>>,
    /// When its last frame came; 0: none came since this server started.
    pub heard_ns: u64,
    /// It is connected, and was not heard for a while.
    pub is_silent: bool,
    /// It did not come back since this server's start, and has time for that.
    pub is_awaited: bool,
    pub shipped: Lsn,
    pub progress: Progress,
    /// Also while it is away.
    pub persisted: Lsn,
    pub sync: SyncState,
    /// That it is in sync is kept: before that it is not told so.
    pub is_kept_in: bool,
    /// Number of the first standing that tells it so.
    pub told_in: u64,
    /// While it is out of sync: it has everything before this, and may lack what was answered behind it.
    pub lacks_from: Lsn,
    /// Number of the newest standing that it keeps, as far as it said so on this connection.
    pub noted: u64,
    /// It goes as soon as it is kept that it left.
    pub is_forgotten: bool,
    pub is_counted: bool,
    /// At quorum it is to count, and the standing of this number tells so first.
    pub joins: Option<u64>,
    /// Enough standbys know that it is to count: it does once that is saved.
    pub is_confirmed: bool,
    /// In sync and away: until then it is waited for.
    pub awaited_until_ns: u64,
    pub hold: Option<(Arc<ReplicationSlot>, Lsn)>,
    pub freshness: Freshness,
    pub compared: Option<ComparedStatus>,
    pub error: Option<Arc<str>>,
}

impl Standby {
    pub fn new(connection: u64) -> Self {
        Self {
            state: StandbyState::Joining,
            connection,
            process: None,
            url: None,
            heard_ns: 0,
            is_silent: false,
            is_awaited: false,
            shipped: Lsn(0),
            progress: Progress::default(),
            persisted: Lsn(0),
            sync: SyncState::Out,
            is_kept_in: false,
            told_in: 0,
            lacks_from: Lsn(0),
            noted: 0,
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

    pub fn member(&self) -> Member {
        Member {
            persisted: self.persisted,
            sync: self.sync,
            is_connected: self.connection != 0,
            is_counted: self.is_counted,
            is_missing: self.heard_ns != 0 && (self.connection == 0 || self.is_silent),
            is_awaited: self.is_awaited,
        }
    }

    pub fn is_streaming(&self) -> bool {
        self.connection != 0 && self.state == StandbyState::Streaming
    }

    /// It is in sync, and that is kept.
    pub fn is_told_in(&self) -> bool {
        self.sync == SyncState::In && self.is_kept_in
    }

    /// It knows, too, that it is.
    pub fn knows_in(&self) -> bool {
        self.is_told_in() && self.noted >= self.told_in
    }

    /// Returns why another process may not have its name now.
    pub fn refuses(&self, process: NodeProcess, now_ns: u64) -> Option<String> {
        let own = self.process.filter(|own| own.nonce != process.nonce)?;
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        let is_held = self.connection != 0 || silent_ns < NAME_HELD_NS;
        match own.node == process.node {
            // It was started again, as it seems.
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

    /// It is not connected, and still expected.
    pub fn is_lost(&self) -> bool {
        self.connection == 0 && !self.is_forgotten
    }

    /// True if the standby gets log. The primary then also tells it which standbys are out of sync.
    pub fn is_told(&self) -> bool {
        self.connection != 0 && matches!(self.state, StandbyState::CatchingUp | StandbyState::Streaming)
    }

    /// Whether it has what was answered before commits waited for it.
    pub fn is_there(&self) -> bool {
        matches!(self.sync, SyncState::Entering(end) if self.persisted >= end)
    }

    /// Perhaps it is in sync by now. At quorum a standby that does not count yet joins the set first.
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

    /// The log before it needs not be held; by which hold it was.
    pub fn let_go_before(&mut self, lsn: Lsn) -> Option<Arc<ReplicationSlot>> {
        let (hold, from) = self.hold.as_mut().filter(|(_, from)| *from < lsn)?;
        *from = lsn;
        Some(Arc::clone(hold))
    }

    /// Nothing is known of what it has. True: it was in sync, and leaves.
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

    /// Records that the standby may lack what the primary answers from now on.
    pub fn leave(&mut self) {
        self.stay_out();
        (self.sync, self.lacks_from) = (SyncState::Leaving, self.persisted);
        self.is_kept_in = false;
    }
}
