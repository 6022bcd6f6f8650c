//! The interface to replication: the progress of each standby, the primary that a standby follows, and promotion.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use reprise_base::{Epoch, Joiner, Lsn, Role, Safety};
use reprise_log::Log;
use reprise_ship::{FreshnessPoint, FreshnessSummary, SafetyHook};

use crate::router::Router;

/// The phase of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyPhase {
    /// It gets a checkpoint and the log behind it.
    Joining,
    /// It gets log that was written before.
    CatchingUp,
    /// It gets each group as it is sealed.
    Streaming,
    /// There is no connection.
    Lost,
}

/// A standby, as its primary sees it; on a standby, itself.
#[derive(Clone, Debug)]
pub struct StandbyInfo {
    pub name: String,
    pub state: StandbyPhase,
    /// `tcp` or `rdma`.
    pub transport: &'static str,
    /// The path of this server's newest connection: card, port, GID, MTU and link layer, for people. None: the system chooses.
    pub path: Option<String>,
    /// By TLS.
    pub is_encrypted: bool,
    /// Everything before it was sent to it, or got there.
    pub shipped: Lsn,
    /// Everything before it is durable there.
    pub persisted: Lsn,
    /// Everything before it is in its tables.
    pub replayed: Lsn,
    /// Readers there see everything before it.
    pub view: Lsn,
    /// It has everything that was answered under a level that waits for standbys; on a standby, by its primary's last word. None: the standby does
    /// not know. Its primary sent no word, or may have continued without it by now.
    pub in_sync: Option<bool>,
    /// From 0 to 1 (Query Fresh, section 4; counted from the primary's view 10 s ago). None: not measured yet.
    pub freshness: Option<f64>,
    /// Age of the oldest record of the primary that readers there do not see; 0: they see all.
    pub lag_us: u64,
    /// False on a standby before it shows what its primary had when it heard it first on this connection, and on a primary of one that was not
    /// measured: it lags so much at least.
    pub is_lag_known: bool,
    /// Bytes of log that readers there do not see.
    pub lag_bytes: u64,
    /// Records that readers there do not see.
    pub lag_records: u64,
    /// The last comparison of all tables with the primary's. None: there was none since this server started.
    pub compared: Option<ComparedInfo>,
    /// Why the last connection ended, or why there is none.
    pub error: Option<Arc<str>>,
}

/// How old what a standby shows is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViewAge {
    /// It shows everything before this.
    pub view: Lsn,
    /// The longest time, in microseconds, for which the primary may have had something that this does not show.
    pub lag_us: u64,
    /// False: it is so much at least.
    pub is_lag_known: bool,
    /// The standby's own freshness, as in `StandbyInfo`.
    pub freshness: Option<f64>,
}

/// A comparison of a standby's tables with its primary's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedInfo {
    /// Everything before it was compared.
    pub lsn: Lsn,
    /// When, in microseconds since 1970.
    pub at_us: i64,
    /// The difference; none: all tables are equal.
    pub difference: Option<Arc<str>>,
}

/// A server that leads the database of this primary, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrimaryBeside {
    pub name: String,
    pub url: String,
    pub epoch: Epoch,
}

/// A node's part in replication.
#[derive(Clone, Debug)]
pub struct ReplicationInfo {
    pub role: Role,
    /// In which a primary writes; elsewhere that of the last record.
    pub epoch: Epoch,
    /// The configured safety level: `LocalSync` or `LocalAsync` if none was asked for.
    pub safety: Safety,
    /// The safety of an acknowledged write now. It is less than `safety` while a primary continues alone because the level allows it.
    pub reached: Safety,
    /// URL of the primary. A primary has it only if its own URL was configured.
    pub primary: Option<Arc<str>>,
    /// The address that standbys connect to; none if they can't.
    pub ship_address: Option<String>,
    /// The form of a transaction that standbys get, or will get once this is the primary: `as-logged`, `changes` or `command`.
    pub ship: &'static str,
    pub durable: Lsn,
    /// Everything before it is durable on as many standbys as the safety level asks for.
    pub acked: Lsn,
    /// The least of `durable` and `acked`.
    pub committed: Lsn,
    pub standbys: Vec<StandbyInfo>,
    /// On a standby: the others that are out of sync, as its primary told last.
    pub out_of_sync: Vec<LaggingStandby>,
    /// The records cut off this node's log, the oldest first.
    pub cuts: Vec<CutRecords>,
    /// None: the operator decides which server is the primary.
    pub lease: Option<LeaseInfo>,
}

/// The node's knowledge of the lease that makes one node the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// This server has it.
    Held,
    /// It had it, and answers nothing alone. As far as it knows, no other server has it.
    Over,
    /// Another server has it.
    Elsewhere,
    /// No server has it.
    Free,
    /// The store does not tell.
    Unknown,
}

/// A lease, as a node knows it.
#[derive(Clone, Debug)]
pub struct LeaseInfo {
    /// The kind of the store.
    pub kind: &'static str,
    pub state: LeaseStatus,
    /// The holder when the store was asked last.
    pub holder: Option<String>,
    pub holder_url: Option<String>,
    /// Standbys that may take it over.
    pub in_sync: Vec<String>,
    pub ttl_us: u64,
    /// For how long this server may answer alone.
    pub left_us: u64,
    /// Why the store did not tell, or do, what it was asked last.
    pub error: Option<Arc<str>>,
}

/// A standby that may lack what was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaggingStandby {
    pub name: String,
    /// It has everything before this.
    pub from: Lsn,
}

/// Records that may have been answered as committed, and that a new primary does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRecords {
    /// Epoch of the primary that may have acknowledged them; 0: unknown.
    pub epoch: Epoch,
    /// The first one.
    pub from: Lsn,
    /// The old primary is known to have had everything before this; it may have had more. None: nothing is known of it.
    pub known_to: Option<Lsn>,
    /// Why they may be.
    pub cause: LossCause,
}

impl LostRecords {
    /// Returns the rest of the range, once everything before `end` was found.
    pub fn behind(self, end: Lsn) -> Self {
        Self {
            from: end,
            known_to: self.known_to.map(|known_to| known_to.max(end)),
            ..self
        }
    }

    /// Whether a server is known to have records that are not here.
    pub fn is_proven(&self) -> bool {
        self.known_to.is_some_and(|known_to| known_to > self.from) || matches!(self.cause, LossCause::AnotherHasMore(_))
    }
}

/// Why a server that is promoted may lack what was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LossCause {
    NeverTold,
    OutOfSync,
    /// The standby can't keep the primary's status.
    NotKept,
    /// The primary was silent for this time, in microseconds. None: since this standby started.
    Unheard(Option<u64>),
    /// Level of the primary.
    PrimaryAlone(Safety),
    /// These standbys gave no promise. They may have more, or lead.
    TooFewAnswers(Arc<str>),
    /// These servers were promised a later epoch by a standby, and gave no promise. They may lead.
    Rival(Arc<str>),
    /// These standbys were reached and have more.
    AnotherHasMore(Arc<str>),
    /// By what the store of the lease says.
    NotRecorded,
    SteppedDown,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverTold => f.write_str("no primary has told it whether it is in sync"),
            Self::OutOfSync => f.write_str("its primary told it that it is out of sync"),
            Self::NotKept => f.write_str("it can't keep what its primary told it last"),
            Self::Unheard(None) => f.write_str(
                "it has not heard its primary since it was started, and that one may have answered without it meanwhile",
            ),
            Self::Unheard(Some(us)) => write!(
                f,
                "its primary heard it {:.1} s ago for the last time, and may have answered without it since",
                *us as f64 / 1e6
            ),
            Self::PrimaryAlone(level) => write!(f, "at {level} the primary alone answers"),
            Self::TooFewAnswers(names) => write!(
                f,
                "too few standbys can be asked: {names} gave no answer, and may have more, or lead by now"
            ),
            Self::Rival(names) => write!(
                f,
                "a standby promised a later epoch to {names}, which can't be asked and may lead by now"
            ),
            Self::AnotherHasMore(names) => write!(f, "another standby has more: {names}"),
            Self::NotRecorded => f.write_str("the store of the lease does not name it as in sync"),
            Self::SteppedDown => f.write_str("the server for which it stepped down may have taken over"),
        }
    }
}

/// Records that a primary did not have: they were cut off, and are kept in a directory of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutRecords {
    /// Name of the directory.
    pub name: String,
    /// Epoch of the last record.
    pub epoch: Epoch,
    /// LSN of the first record.
    pub from: Lsn,
    /// Behind the last one.
    pub to: Lsn,
    /// Some of them may have been answered as committed.
    pub may_be_acknowledged: bool,
    /// When, in microseconds since 1970.
    pub cut_us: i64,
}

/// The ticket that a standby shows when it connects. It is valid once, for a minute.
#[derive(Clone, Debug)]
pub struct StandbyTicket {
    pub ticket: [u8; 16],
    pub ship_address: String,
    /// The transport that carries the log there.
    pub transport: &'static str,
    /// SHA-256 of the certificate that is shown there; none: it is not encrypted.
    pub certificate: Option<[u8; 32]>,
    pub database_id: [u8; 16],
    pub partitions: u16,
}

/// A node that became the primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionResult {
    pub epoch: Epoch,
    /// The first one of the new epoch.
    pub lsn: Lsn,
    /// The old primary gave its place away: nothing that it answered is lost.
    pub has_stepped_down: bool,
    /// It was out of sync: what may be lost.
    pub may_be_lost: Option<LostRecords>,
}

/// How a standby is to become the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteOptions {
    /// The old primary is not asked to step down: the operator has stopped it.
    pub is_forced: bool,
    /// Also where this server is out of sync.
    pub accepts_loss: bool,
}

/// A primary that gave its place away: everything before the LSN is durable on its successor, and it writes nothing behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandOverPoint {
    pub epoch: Epoch,
    pub lsn: Lsn,
}

/// The question of a server that is to lead: follow no primary before this epoch any more, and tell how far you are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromiseQuestion {
    pub epoch: Epoch,
    /// Name of the server that asks.
    pub name: String,
    /// URL of that server.
    pub url: Option<Arc<str>>,
    /// It does not lead in that epoch after all.
    pub is_withdrawn: bool,
}

/// A standby of the set that a primary's writes wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerMember {
    pub name: String,
    pub url: String,
    /// End of what it has for certain.
    pub from: Lsn,
    pub is_in_sync: bool,
    /// It is in the set that `quorum` counts on.
    pub is_counted: bool,
    /// It is in the set to which a change is under way.
    pub is_counted_next: bool,
}

/// A primary's word on its standbys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    pub epoch: Epoch,
    /// Grows within an epoch.
    pub number: u64,
    /// All standbys, the one that tells it included.
    pub members: Vec<PeerMember>,
}

/// The answer: from now on the server follows no primary before the epoch that it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromiseAnswer {
    pub name: String,
    /// Epoch of the primary whose history the log has.
    pub epoch: Epoch,
    /// End of the log.
    pub end: Lsn,
    /// A primary told this server to be in sync since its log began. Before that, the server does not stand for a member that had its name.
    pub has_been_in_sync: bool,
    pub status: Option<PeerStatus>,
    /// Epochs that the server promised, with the servers that may lead in them, the lowest one first.
    pub promises: Vec<(Epoch, String)>,
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum ReplicationError {
    #[error("this server is the primary already, in epoch {0}")]
    IsPrimary(Epoch),
    #[error("this server is no primary, so no standby can follow it{}", .0.as_deref().map(|url| format!("; its primary is {url}")).unwrap_or_default())]
    NotPrimary(Option<Arc<str>>),
    #[error("this server takes no standbys: start it with --ship-listen ADDR")]
    NotServed,
    #[error("{0}")]
    Name(Arc<str>),
    /// Two servers could answer as the primary.
    #[error("{0}")]
    PrimaryNotStopped(Arc<str>),
    /// Promotion may lose acknowledged writes.
    #[error(
        "this server may lack what was answered from LSN {} on: {} ({}). Promote the one that has most, or accept the loss (--accept-loss)",
        .0.from, .0.cause, known(.0.known_to)
    )]
    OutOfSync(LostRecords),
    #[error("{0}")]
    Unavailable(Arc<str>),
}

fn known(known_to: Option<Lsn>) -> String {
    match known_to {
        Some(known_to) => format!("the old primary is known to have had everything before LSN {known_to}"),
        None => "how far the old primary was is not known".into(),
    }
}

/// How fresh a standby was.
#[derive(Clone, Debug, Default)]
pub struct FreshnessSeries {
    /// One a second for the last hour, the oldest first.
    pub points: Vec<FreshnessPoint>,
    /// A summary of the last minute's samples; none if there are none.
    pub last_minute: Option<FreshnessSummary>,
}

/// The service that ships the log, or follows a primary.
pub trait ReplicationService: Send + Sync {
    fn info(&self) -> ReplicationInfo;
    /// On a standby: how far it is itself; none on a primary. It waits for nothing.
    fn own(&self) -> Option<StandbyInfo>;
    /// On a standby: how old, now, what it shows is where that is everything before `view`; none on a primary. It waits for nothing.
    fn view_age(&self, view: Lsn) -> Option<ViewAge>;
    /// How fresh the standby of this name was: one of this primary's, or this standby itself. None: there is none of that name.
    fn freshness(&self, name: &str) -> Option<FreshnessSeries>;
    /// Lets a standby connect.
    fn join(&self, joiner: &Joiner) -> Result<StandbyTicket, ReplicationError>;
    /// Whether writes of this level can be had now. Err: why not.
    fn check_safety(&self, level: Safety) -> Result<(), Arc<str>>;
    /// Runs `hook` once the records before `end`, which are durable here, have this level, or with the reason why that can't be waited for
    /// any longer: at once, or on a thread for which it must only hand over. It comes by itself within some seconds.
    fn when_safe(&self, level: Safety, end: Lsn, hook: SafetyHook);
    /// A lost standby is not expected any more, and no log is held for it.
    fn forget(&self, name: &str) -> Result<(), ReplicationError>;
    /// Makes this standby the primary: the old one is asked to step down, and what was received is replayed first. Blocks until writes
    /// are taken.
    fn promote(&self, options: PromoteOptions) -> Result<PromotionResult, ReplicationError>;
    /// Gives this primary's place to the standby of a name, whose URL for clients may be known. The primary writes nothing more, and its successor
    /// has everything. A repeated request gets the same answer. Err: it remains the primary.
    fn step_down(&self, name: &str, url: Option<Arc<str>>) -> Result<HandOverPoint, ReplicationError>;

    /// Promises an epoch to a server that is to lead, or takes that back.
    fn promise(&self, asked: &PromiseQuestion) -> Result<PromiseAnswer, ReplicationError>;
}

impl Router {
    /// The server's level, and what an answered write has for certain.
    pub fn safety(&self) -> (Safety, Safety) {
        let (config, gate) = (&self.0.config, &self.0.config.shared.gate);
        let local = match config.log.is_some() && config.commit == "sync" {
            true => Safety::LocalSync,
            false => Safety::LocalAsync,
        };
        (gate.level().unwrap_or(local), gate.reached().unwrap_or(local))
    }

    /// Everything before it is durable here; 0 without a log.
    pub fn durable(&self) -> Lsn {
        self.0.config.log.as_deref().map_or(Lsn(0), Log::durable)
    }

    /// True where the record at `lsn` is durable here, and not yet on the standbys that the server's safety level asks for.
    pub fn is_unconfirmed(&self, lsn: Lsn) -> bool {
        self.0.config.shared.gate.is_beyond(lsn)
    }

    /// Wires the service that ships the log or follows a primary. Once. It lives with the database.
    pub fn set_replication(&self, service: Weak<dyn ReplicationService>) {
        let is_first = self.0.replication.set(service).is_ok();
        assert!(is_first, "one service replicates");
    }

    /// None where this node neither takes standbys nor is one.
    pub fn replication(&self) -> Option<Arc<dyn ReplicationService>> {
        self.0.replication.get().and_then(Weak::upgrade)
    }
}
