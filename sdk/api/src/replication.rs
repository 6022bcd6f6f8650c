//! Replication: who is the primary, which standbys there are, how far each one is.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::U64;

/// State of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StandbyState {
    /// It gets a checkpoint and the log behind it.
    Joining,
    /// It gets log that was written before.
    CatchingUp,
    /// It gets each group of records as it is sealed.
    Streaming,
    /// There is no connection; `error` says why.
    Lost,
}

/// A standby: as its primary sees it, or on the standby itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Standby {
    /// Name that it was started with (`--name`).
    pub name: String,
    /// State of the standby.
    pub state: StandbyState,
    /// `tcp` or `rdma`.
    pub transport: String,
    /// Over RDMA the card, port, GID, MTU and link layer of this server's newest connection; null over TCP.
    #[serde(default)]
    pub path: Option<String>,
    /// Whether the log travels by TLS.
    #[serde(default)]
    pub encrypted: bool,
    /// Every record before it was sent to the standby.
    pub shipped_lsn: U64,
    /// Every record before it is durable on the standby.
    pub persisted_lsn: U64,
    /// Every record before it is in the standby's tables.
    pub replayed_lsn: U64,
    /// Readers on the standby see every record before it, and none behind it.
    pub view_lsn: U64,
    /// True if it has every write that was acknowledged under a level that waits for standbys. With quorum it is one of the standbys
    /// that are asked, and others may have more. On the standby itself: the last state that its primary sent. Null if the standby does
    /// not know: no primary has sent it since the start, or its primary has not heard from it for 2.5 s and may have continued
    /// without it.
    pub in_sync: Option<bool>,
    /// Share of the primary's last 10 s of records that readers on the standby see, from 0 to 1; null where it is not known.
    pub freshness: Option<f64>,
    /// Lag in milliseconds: at most so old are durable records of the primary that readers on the standby do not see. The primary
    /// computes it from the standby's last message, the standby from its own clock. There it is 20 to 40 while nothing is missing, and
    /// it grows while no message arrives.
    pub lag_ms: f64,
    /// False: the lag is `lag_ms` at least. On the primary where the standby was not measured; on the standby before it shows what its primary had
    /// when it heard that first on this connection.
    pub lag_known: bool,
    /// Bytes of log that readers on the standby do not see yet.
    pub lag_bytes: u64,
    /// Records that readers on the standby do not see yet.
    pub lag_txns: u64,
    /// The last comparison of all tables with the primary's (`--compare-every`); null: none was since that server was started.
    #[serde(default)]
    pub compared: Option<Comparison>,
    /// Why there is no connection; null where there is one.
    pub error: Option<String>,
}

/// All tables of a standby, compared with its primary's at one LSN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Comparison {
    /// Every record before it was in the tables.
    pub lsn: U64,
    /// When, by RFC 3339.
    pub at: String,
    /// Whether all tables are equal.
    pub equal: bool,
    /// The first table that differs, and on which partition; null where all are equal.
    pub difference: Option<String>,
}

/// A node's part in replication.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replication {
    /// `primary`, `standby` or `read-only`.
    pub role: String,
    /// Counts the openings of this database as primary, on whichever node; 0 without a log. On a primary the one in which it writes, else
    /// that of the last record here.
    pub epoch: u32,
    /// Writer of that epoch: a part of the identity of the node that was its primary.
    #[serde(default)]
    pub epoch_writer: u16,
    /// Safety level that an acknowledged write has waited for: `local-async`, `local-sync`, `1-safe`, `2-safe`, `very-safe` or
    /// `quorum`.
    pub safety: String,
    /// Safety level that an acknowledged write has now: less than `safety` if standbys are missing.
    pub reached: String,
    /// URL of the primary, for writes; null if it is not known. On a primary its own address, if it is set (`--advertise`).
    pub primary: Option<String>,
    /// Address that standbys connect to; null if this server takes none.
    pub ship_address: Option<String>,
    /// Form of each transaction for standbys: `as-logged`, `changes` or `command` (`--ship`). On a standby: the form once it is the
    /// primary.
    #[serde(default)]
    pub ship: String,
    /// Every record before it is durable here.
    pub durable_lsn: U64,
    /// Every record before it is durable on as many standbys as the safety level asks for.
    pub acked_lsn: U64,
    /// The least of `durable_lsn` and `acked_lsn`.
    pub committed_lsn: U64,
    /// On a primary its standbys, by name; on a standby itself alone.
    pub standbys: Vec<Standby>,
    /// On a standby: what its replay waits for, such as the compilation of a module that was deployed; null if for nothing but its primary.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// On a standby: the others that are out of sync, as its primary told last. Empty on a primary.
    #[serde(default)]
    pub out_of_sync: Vec<OutOfSync>,
    /// Parts that were rewound from this server's log, because its primary did not have them; the oldest first.
    pub cuts: Vec<Cut>,
    /// The lease that makes one of the servers the primary; null where that is decided by hand.
    #[serde(default)]
    pub lease: Option<Lease>,
    /// On a primary without a lease: the server that leads this database, too. Null if none is known.
    #[serde(default)]
    pub other_primary: Option<OtherPrimary>,
}

/// A server that leads the database of this primary, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OtherPrimary {
    /// Name of the server, as far as it is known.
    pub name: String,
    /// URL of the server for clients.
    pub url: String,
    /// Epoch in which the server leads.
    pub epoch: u32,
}

/// Knowledge of a server about the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// This server has it.
    Held,
    /// The lease of this server is over, and it acknowledges nothing alone; no other holder is known.
    Over,
    /// Another server has it.
    Elsewhere,
    /// The lease is free.
    Free,
    /// The store does not tell; `error` says why.
    Unknown,
}

/// A lease in a store that all servers reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// `etcd`.
    pub store: String,
    /// State as this server knows it.
    pub state: LeaseState,
    /// Name of the lease's holder by the store's last answer; null if there was none, or if it is not known.
    pub holder: Option<String>,
    /// URL of the holder for clients, if it is known.
    pub holder_url: Option<String>,
    /// Standbys that may take it over: they have everything that was answered.
    pub in_sync: Vec<String>,
    /// Milliseconds for which it is taken.
    pub ttl_ms: u64,
    /// Milliseconds for which this server may answer alone from now on; 0: it may not.
    pub left_ms: u64,
    /// Why the store did not tell, or do, what it was asked last; null where it did.
    pub error: Option<String>,
}

/// A standby that may lack what was answered under a level that waits for standbys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OutOfSync {
    /// Name that it was started with (`--name`).
    pub name: String,
    /// It has every record before this, and may lack those behind.
    pub from_lsn: U64,
}

/// Records that may have been answered as committed, and that a new primary does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LostRange {
    /// Epoch of the primary that may have acknowledged them; 0 if it is not known.
    pub epoch: u32,
    /// LSN of the first one.
    pub from_lsn: U64,
    /// The old primary is known to have had every record before this. It may have had more. Null: nothing is known of it.
    pub known_to_lsn: Option<U64>,
    /// Another server is known to have had records that the new primary does not have. False: nothing says that one had, or that none had.
    pub proven: bool,
    /// `acknowledged`: the server may have acknowledged them at its safety level. No standby can say more: the primary may have got another one
    /// meanwhile.
    pub class: String,
}

/// Records that the primary did not have. They are kept in the data directory, in `cuts`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Cut {
    /// Name of the directory in `cuts`; `reprise log dump` reads it.
    pub name: String,
    /// Epoch of the last record.
    pub epoch: u32,
    /// LSN of the first record.
    pub from_lsn: U64,
    /// Behind the last one.
    pub to_lsn: U64,
    /// Some of it may have been answered as committed: under 1-safe, by a primary that was alone, or with a standby that may not be the promoted one. False: nothing of it was.
    pub acknowledged: bool,
    /// When it was cut off, RFC 3339.
    pub at: String,
}

/// Request of a standby that wants to follow a primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// Name of the standby: 1 to 64 letters, digits, `-`, `_` or `.`; not `.` or `..`.
    #[schema(min_length = 1, max_length = 64, pattern = "^(?!\\.{1,2}$)[A-Za-z0-9._-]+$")]
    pub name: String,
    /// The process that asks. Without it, the standby takes the place of any other one of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<StandbyProcess>,
    /// URL at which other servers reach the standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// A process on a standby's data directory. It tells two servers of one name apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StandbyProcess {
    /// Identity of the data directory.
    pub node: U64,
    /// Starts on that directory; a later process has more.
    pub starts: U64,
    /// Drawn by the process.
    pub nonce: U64,
}

/// Data that a standby needs to connect. It is valid once, for a minute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JoinTicket {
    /// 16 bytes in hexadecimal digits, to be shown on the connection.
    pub ticket: String,
    /// Address to connect to. If the server listens on all addresses, its host is that of this request.
    pub ship_address: String,
    /// Transport of the log: `tcp` or `rdma`; the standby needs the same.
    #[serde(default = "tcp")]
    pub transport: String,
    /// SHA-256 of the certificate that the server shows there, in hexadecimal digits; null where it speaks no TLS.
    #[serde(default)]
    pub certificate: Option<String>,
    /// In hexadecimal digits.
    pub database_id: String,
    /// Partitions of the database.
    pub partitions: u16,
}

/// Transport of a server that names none.
fn tcp() -> String {
    "tcp".into()
}

/// A node that became the primary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Promotion {
    /// The new one.
    pub epoch: u32,
    /// LSN of the first record of the new epoch.
    pub lsn: U64,
    /// The old primary gave its place away: nothing that it answered is lost. False where it was not asked.
    pub stepped_down: bool,
    /// The standby could not exclude a loss, and it was accepted: what it may be. Null only where nothing can be lost.
    #[serde(default)]
    pub may_be_lost: Option<LostRange>,
}

/// Whom a primary gives its place to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StepDownRequest {
    /// Name of the standby that takes over, as it joined.
    #[schema(min_length = 1, max_length = 64, pattern = "^(?!\\.{1,2}$)[A-Za-z0-9._-]+$")]
    pub name: String,
    /// URL of the new primary for clients; the old primary sends writers there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// The question of a server that is to lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PromiseRequest {
    /// The epoch in which the server is to lead.
    pub epoch: u32,
    /// Writer of that epoch: a part of the identity of the node that was its primary.
    #[serde(default)]
    pub epoch_writer: u16,
    /// Name of the server.
    #[schema(min_length = 1, max_length = 64, pattern = "^(?!\\.{1,2}$)[A-Za-z0-9._-]+$")]
    pub name: String,
    /// URL of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The server that got the promise does not lead in that epoch after all. To that server itself it is the question whether this is so. `false`
    /// unless given.
    #[serde(default)]
    pub withdrawn: bool,
}

/// The answer of a standby: it follows no primary before the epoch any more, unless it knows of a later one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EpochPromise {
    /// Name of the standby that answers.
    pub name: String,
    /// Epoch of the primary whose history its log has.
    pub epoch: u32,
    /// Writer of that epoch: a part of the identity of the node that was its primary.
    #[serde(default)]
    pub epoch_writer: u16,
    /// End of its log.
    pub end_lsn: U64,
    /// A primary told it to be in sync since its log began.
    pub has_been_in_sync: bool,
    /// Epochs that it promised to servers, this promise included.
    pub promises: Vec<GivenPromise>,
    /// The last word of a primary on its standbys; null: it was told none.
    #[serde(default)]
    pub status: Option<PromiseStatus>,
}

/// An epoch that a standby promised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GivenPromise {
    /// The standby follows no primary before it.
    pub epoch: u32,
    /// Writer of that epoch: a part of the identity of the node that was its primary.
    #[serde(default)]
    pub epoch_writer: u16,
    /// Name of the server that may lead in it.
    pub name: String,
}

/// A primary's word on its standbys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromiseStatus {
    /// Epoch of the primary.
    pub epoch: u32,
    /// Writer of that epoch: a part of the identity of the node that was its primary.
    #[serde(default)]
    pub epoch_writer: u16,
    /// Grows within an epoch.
    pub number: U64,
    /// All standbys of that primary.
    pub members: Vec<PromiseMember>,
}

/// A standby, as another one knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PromiseMember {
    /// Its name.
    pub name: String,
    /// URL at which other servers reach it; empty: it is not known.
    pub url: String,
    /// It has everything before this LSN.
    pub from_lsn: U64,
    /// It is in sync.
    pub in_sync: bool,
    /// It is in the set that `quorum` counts on.
    pub counted: bool,
    /// It is in the set to which a change is under way.
    pub counted_next: bool,
}

/// A primary that gave its place away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SteppedDown {
    /// The one that ended.
    pub epoch: u32,
    /// Writer of that epoch: a part of the identity of the node that was its primary.
    #[serde(default)]
    pub epoch_writer: u16,
    /// End of the old primary's log: every record before it is durable on the standby that takes over.
    pub lsn: U64,
}

/// How fresh a standby was in a stretch of time, by samples each 20 ms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FreshnessStep {
    /// Its end, RFC 3339.
    pub at: String,
    /// Samples in it.
    pub samples: u64,
    /// From 0 to 1: the stalest sample.
    pub freshness_min: f64,
    /// Half of the samples are at least as fresh.
    pub freshness_median: f64,
    /// 95 of 100 samples are at least as fresh; in a step of several seconds, in its worst one.
    pub freshness_p95: f64,
    /// 99 of 100 samples are at least as fresh; in a step of several seconds, in its worst one.
    pub freshness_p99: f64,
    /// Half of the samples lag no more.
    pub lag_ms_median: f64,
    /// 95 of 100 samples lag no more; in a step of several seconds, in its worst one.
    pub lag_ms_p95: f64,
    /// 99 of 100 samples lag no more; in a step of several seconds, in its worst one.
    pub lag_ms_p99: f64,
    /// The most that a sample lags.
    pub lag_ms_max: f64,
    /// The most bytes of log that a sample lags.
    pub lag_bytes_max: u64,
}

/// A standby's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StandbyFreshness {
    /// Name of the standby.
    pub name: String,
    /// The oldest first.
    pub steps: Vec<FreshnessStep>,
}

/// How fresh the standbys were; an hour is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FreshnessHistory {
    /// Seconds that a step spans.
    pub step_s: u32,
    /// On a primary its standbys, by name; on a standby itself alone.
    pub standbys: Vec<StandbyFreshness>,
}
