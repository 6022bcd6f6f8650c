//! The server's status.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CheckpointFailure, RestartEstimate, U64};

/// Kind and progress of the server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `primary`, or `read-only` where the server was opened for reads alone.
    pub role: String,
    /// Epoch of new records: each opening that writes raises it by one. Null without a log.
    pub epoch: Option<u32>,
    /// Phase of the server.
    pub phase: Phase,
    /// Form in which the log holds procedures that declare none: `command`, `physiological`, `auto`, `both` or `none`.
    pub log: String,
    /// Device that a commit waits for: `file`, the log's files, or `nvram`, rings before them; null without a log.
    pub device: Option<String>,
    /// The rings before the log's files; null where there are none.
    pub nvram: Option<NvramStatus>,
    /// `sync`: durable before the answer; `async`: soon after it.
    pub commit: String,
    /// Number of partitions.
    pub partitions: u16,
    /// Engine threads.
    pub sites: u16,
    /// No committed transaction has a greater LSN: as `Reprise-Min-Lsn` it asks for all that is committed by now.
    pub committed_lsn: U64,
    /// Everything below is safe on the device.
    pub durable_lsn: U64,
    /// Position of the newest checkpoint: a restart replays the log from here on. Null without any.
    pub checkpointed_lsn: Option<U64>,
    /// Seconds that a restart would take now; null until the speeds for it were measured, and without a log.
    pub restart_seconds: Option<f64>,
    /// Basis of the estimate; null without a log.
    pub restart: Option<RestartEstimate>,
    /// The last checkpoint of this run that failed, scheduled or requested; null if none did.
    pub checkpoint_failure: Option<CheckpointFailure>,
    /// Checkpoints and log in the archive; null without an archive.
    pub archive: Option<ArchiveInfo>,
    /// Why the log can't be written; null while it can.
    pub log_error: Option<String>,
    /// When the server started (RFC 3339).
    pub started_at: String,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Version of the program.
    pub version: String,
    /// In hexadecimal.
    pub database_id: String,
    /// Hash of every setting that a replay depends on, in hexadecimal.
    pub settings_hash: String,
    /// Idempotency keys remembered.
    pub idempotency_keys: u64,
    /// Bytes of keys and their outcomes. The server refuses calls with new keys that would exceed the maximum.
    pub idempotency_bytes: u64,
    /// Bytes that keys and outcomes may take.
    pub idempotency_bytes_max: u64,
    /// How long an outcome is kept, counted by the times of transactions.
    pub idempotency_keep_s: u64,
    /// When the transaction of the oldest one was (RFC 3339); null while there is none.
    pub idempotency_oldest_at: Option<String>,
    /// Calls accepted and not yet run.
    pub waiting: u64,
    /// Deployment that calls wait for while it holds all partitions; null if none does.
    pub deployment: Option<DeploymentStatus>,
    /// Memory by kind.
    pub memory: MemoryStatus,
}

/// How far a deployment is that holds all partitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeploymentStatus {
    /// The module's name.
    pub module: String,
    /// Rows copied until now.
    pub rows: u64,
    /// Partitions on which `on_deploy` has run.
    pub partitions: u32,
    /// Seconds that it has held the partitions.
    pub seconds: f64,
    /// Seconds that it may hold them (`--deploy-time-max-s`); 0: no limit.
    pub seconds_max: u32,
}

/// NVRAM before the log's files (`--device nvram`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NvramStatus {
    /// Path of the region.
    pub path: String,
    /// Bytes of it.
    pub bytes: u64,
    /// How a commit becomes persistent: `fence` (cache lines of persistent memory), `msync` (an ordinary file), `assumed` (an ordinary
    /// file, taken for persistent memory).
    pub persistence: String,
    /// Data that a power failure loses; null if there is none.
    pub warning: Option<String>,
    /// Time at which a transaction's changes go to the region: `commit`, all of them at its end; `insert`, each when it is made, and
    /// the commit waits for all; `insert-fence`, each when it is made, and the transaction waits for it.
    pub flush: String,
    /// Entries, in all rings, from which on they are copied to the log's files.
    pub copy_at_entries: u64,
    /// Records that the log's files do not have yet.
    pub records_waiting: u64,
    /// One for each site.
    pub rings: Vec<NvramRing>,
}

/// How full a ring is with what waits to be copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NvramRing {
    /// Entries in use: each has the records of one batch.
    pub entries: u64,
    /// Entries that the ring has.
    pub entries_max: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Bytes that the ring has.
    pub bytes_max: u64,
}

/// The archive of checkpoints and log (`--archive`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArchiveInfo {
    /// Its directory.
    pub directory: String,
    /// Files in it.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// The database can be restored to any point from here on; null while nothing was put there.
    pub oldest_checkpoint_lsn: Option<U64>,
    /// Bytes in the data directory that wait for the archive to take them.
    #[serde(default)]
    pub held_bytes: u64,
    /// Bytes that may wait (`--archive-hold-max`): with more the server gives the archive up.
    #[serde(default)]
    pub held_bytes_max: u64,
    /// End of the archive if it was given up in this run; null while it takes files.
    #[serde(default)]
    pub ends_at_lsn: Option<U64>,
    /// Attempts of this run that failed. What was to go stays in the data directory until one goes well.
    pub failures: u64,
    /// Why the last attempt failed, and when (RFC 3339); null where it went well.
    pub error: Option<String>,
    /// When the last attempt failed (RFC 3339); null where it went well.
    pub failed_at: Option<String>,
}

/// Counted memory by kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryStatus {
    /// The limit (`--memory-max`); null where there is none.
    pub max_bytes: Option<u64>,
    /// Bytes of it that are reserved for deletes, undo and recovery: the data stops growing before.
    pub kept_back_bytes: u64,
    /// Bytes that are counted now.
    pub used_bytes: u64,
    /// The most since the start.
    pub peak_bytes: u64,
    /// Kind by kind.
    pub kinds: Vec<MemoryUse>,
}

/// One kind of what holds memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// `rows`, `indexes`, `undo`, `snapshots`, `views`, `idempotency`, `requests`, `answers`, `guests`, `modules` or `ready`.
    pub kind: String,
    /// Bytes that it holds.
    pub bytes: u64,
}

/// Step of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryStep {
    /// Rows are loaded and indexes built.
    Checkpoint,
    /// The log behind the checkpoint is replayed.
    Log,
}

/// How far the server has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Phase {
    /// Loading a checkpoint, then replaying the log behind it.
    Recovering {
        /// The current step.
        step: RecoveryStep,
        /// Percent of this step.
        percent: f64,
        /// Transactions.
        replayed: u64,
        /// Bytes done: of rows while the checkpoint is loaded, of the log while it is replayed.
        bytes_done: u64,
        /// Bytes of this step.
        bytes_total: u64,
    },
    /// Calls are answered.
    Ready,
    /// Recovery stopped; `report` says why and what to do.
    Failed {
        /// Why, and what to do.
        report: String,
    },
    /// The server ends its work in order.
    Stopping,
}

/// Answer of `/healthz`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
}

/// Answer of `/readyz`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// Whether calls are answered.
    pub ready: bool,
    /// How far the server has come.
    pub phase: Phase,
}

/// Data of a server-sent event `metrics`: what happened since the event before.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MetricsEvent {
    /// RFC 3339.
    pub time: String,
    /// Milliseconds since the event before.
    pub interval_ms: u64,
    /// Calls that committed, a second.
    pub committed_per_s: f64,
    /// Calls that their procedures rolled back, a second.
    pub aborted_per_s: f64,
    /// Calls that trapped, or reached a limit, a second.
    pub failed_per_s: f64,
    /// Calls that were refused unrun, a second.
    pub refused_per_s: f64,
    /// Bytes that the log grew by, a second.
    pub log_bytes_per_s: f64,
    /// From the acceptance of a call to its answer.
    pub latency_us: LatencyUs,
    /// Group commit: from the start of a write to the log until it is durable.
    pub commit_wait_us: LatencyUs,
    /// Calls accepted and not yet run.
    pub waiting: u64,
    /// No committed transaction has a greater LSN.
    pub committed_lsn: U64,
    /// Everything before it is on the device.
    pub durable_lsn: U64,
}

/// Data of a server-sent event `control`: a client did something to the database other than calling procedures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ControlEvent {
    /// When it ended: RFC 3339.
    pub time: String,
    /// Name of the client's token; `anonymous` on a server without tokens.
    pub principal: String,
    /// `deploy-module`, `remove-module`, `drop-table`, `take-checkpoint`, `create-backup`, `remove-backup`, `read-backup` or `cancel-call`.
    pub operation: String,
    /// To what: the module's name, the table's, the backup's id, the call's; at most 100 characters of it. Empty where there is none.
    pub subject: String,
    /// `done`, or the slug of the problem that it ended with.
    pub outcome: String,
    /// Milliseconds, with its wait for partitions and the log.
    pub took_ms: f64,
}

/// Percentiles of times, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyUs {
    /// Median.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}
