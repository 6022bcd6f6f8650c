//! The server's status.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{CheckpointFailure, ControlEnd, RestartEstimate, U64};

/// State of the server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// `primary`, `standby`, or `read-only` if the operator started the server with `--read-only`.
    pub role: String,
    /// Count of the current epoch. It grows at each start that writes. Null without a log.
    pub epoch: Option<u32>,
    /// Writer of that epoch: a part of the identity of the node that was its primary. Two primaries of one epoch differ in it. A
    /// server without replication draws another one at each start. Null without a log.
    #[serde(default)]
    pub epoch_writer: Option<u16>,
    /// Phase of the server.
    pub phase: Phase,
    /// Form in which the log records procedures without a declaration: `command`, `physiological`, `auto`, `both` or `none`.
    pub log: String,
    /// Device on which a commit becomes durable: `file`, the log's files, or `nvram`, a buffer in front of them. Null without a log.
    pub device: Option<String>,
    /// NVRAM buffer in front of the log's files. Null without one.
    pub nvram: Option<NvramStatus>,
    /// `sync`: a write is durable before the answer. `async`: soon after it.
    pub commit: String,
    /// Number of partitions.
    pub partitions: u16,
    /// Number of engine threads.
    pub sites: u16,
    /// Largest LSN of a committed transaction. As `Reprise-Min-Lsn` it makes a read include everything committed by now.
    pub committed_lsn: U64,
    /// LSN up to which everything is durable on the device.
    pub durable_lsn: U64,
    /// LSN of the newest checkpoint, from which a restart replays the log. Null without a checkpoint.
    pub checkpointed_lsn: Option<U64>,
    /// Seconds that a restart would take now. Null without a log, and until the server has measured the speeds.
    pub restart_seconds: Option<f64>,
    /// Parts of the restart time. Null without a log.
    pub restart: Option<RestartEstimate>,
    /// The last checkpoint that failed since the server's start. Null if none failed.
    pub checkpoint_failure: Option<CheckpointFailure>,
    /// Archive of old checkpoints and log (`--archive`). Null without an archive.
    pub archive: Option<ArchiveInfo>,
    /// Reason why the server can't write its log. Null while it can.
    pub log_error: Option<String>,
    /// Time of the server's start (RFC 3339).
    pub started_at: String,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// Version of the program.
    pub version: String,
    /// Id in hexadecimal digits.
    pub database_id: String,
    /// Hash of every setting that a replay depends on, in hexadecimal.
    pub settings_hash: String,
    /// Number of idempotency keys that the server keeps.
    pub idempotency_keys: u64,
    /// Bytes of the keys and their outcomes. At the maximum, the server refuses calls with new keys.
    pub idempotency_bytes: u64,
    /// Largest number of bytes of keys and outcomes.
    pub idempotency_bytes_max: u64,
    /// Seconds for which the server keeps an outcome, measured by the times of transactions.
    pub idempotency_keep_s: u64,
    /// Time of the oldest kept outcome (RFC 3339). Null without one.
    pub idempotency_oldest_at: Option<String>,
    /// Number of accepted calls that have not run yet.
    pub waiting: u64,
    /// The deployment that holds all partitions. Null if none does.
    pub deployment: Option<DeploymentStatus>,
    /// Use of memory.
    pub memory: MemoryStatus,
}

/// Progress of a deployment that holds all partitions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeploymentStatus {
    /// Name of the module.
    pub module: String,
    /// Rows copied until now.
    pub rows: u64,
    /// Partitions on which `on_deploy` has run.
    pub partitions: u32,
    /// Seconds for which it has held the partitions.
    pub seconds: f64,
    /// Seconds for which it may hold them (`--deploy-time-max-s`); 0: no limit.
    pub seconds_max: u32,
}

/// NVRAM buffer in front of the log's files (`--device nvram`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NvramStatus {
    /// Path of the region.
    pub path: String,
    /// Size of the region in bytes.
    pub bytes: u64,
    /// How a commit becomes persistent: `fence` (cache lines of persistent memory), `msync` (an ordinary file), `assumed` (an ordinary
    /// file, treated as persistent memory).
    pub persistence: String,
    /// Records that a power failure would lose. Null if it would lose nothing.
    pub warning: Option<String>,
    /// When a transaction writes its changes to the region. `commit`: all at its end. `insert`: each at once, and the commit waits for
    /// all. `insert-fence`: each at once, and the transaction waits for each.
    pub flush: String,
    /// Number of entries in all rings at which the server begins to copy them to the log's files.
    pub copy_at_entries: u64,
    /// Number of records that the log's files do not have yet.
    pub records_waiting: u64,
    /// Rings, one for each site.
    pub rings: Vec<NvramRing>,
}

/// Fill level of a ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NvramRing {
    /// Number of used entries. Each has the records of one batch.
    pub entries: u64,
    /// Number of entries of the ring.
    pub entries_max: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Size of the ring in bytes.
    pub bytes_max: u64,
}

/// Archive of old checkpoints and log (`--archive`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ArchiveInfo {
    /// Directory of the archive.
    pub directory: String,
    /// Number of files.
    pub files: u64,
    /// Size of the files in bytes.
    pub bytes: u64,
    /// LSN from which you can restore the database to any point. Null while the archive is empty.
    pub oldest_checkpoint_lsn: Option<U64>,
    /// Bytes in the data directory that wait for the archive to take them.
    #[serde(default)]
    pub held_bytes: u64,
    /// Largest number of waiting bytes (`--archive-hold-max`). Beyond it the server gives the archive up.
    #[serde(default)]
    pub held_bytes_max: u64,
    /// LSN at which the archive ends, if the server gave it up since its start. Null otherwise.
    #[serde(default)]
    pub ends_at_lsn: Option<U64>,
    /// Number of failed attempts since the server's start. The data directory keeps the files until an attempt succeeds.
    pub failures: u64,
    /// Reason and time (RFC 3339) of the failure of the last attempt. Null if it succeeded.
    pub error: Option<String>,
    /// Time at which the last attempt failed (RFC 3339). Null if it succeeded.
    pub failed_at: Option<String>,
}

/// Use of the counted memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryStatus {
    /// Limit in bytes (`--memory-max`). Null without a limit.
    pub max_bytes: Option<u64>,
    /// Part of the limit that the server keeps for deletes, undo and recovery. The data can't grow into it.
    pub kept_back_bytes: u64,
    /// Bytes in use now.
    pub used_bytes: u64,
    /// Largest number of bytes in use since the start.
    pub peak_bytes: u64,
    /// Use by kind.
    pub kinds: Vec<MemoryUse>,
}

/// Memory of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// `rows`, `indexes`, `undo`, `snapshots`, `views`, `idempotency`, `requests`, `answers`, `connections`, `guests`, `modules` or `ready`.
    pub kind: String,
    /// Bytes of this kind.
    pub bytes: u64,
}

/// Step of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryStep {
    /// The server loads rows and builds indexes.
    Checkpoint,
    /// The server replays the log after the checkpoint.
    Log,
}

/// Phase of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Phase {
    /// The server loads a checkpoint, then replays the log after it.
    Recovering {
        /// Current step.
        step: RecoveryStep,
        /// Progress of this step in percent.
        percent: f64,
        /// Number of replayed transactions.
        replayed: u64,
        /// Bytes done: of rows while the server loads the checkpoint, of the log while it replays.
        bytes_done: u64,
        /// Bytes of this step.
        bytes_total: u64,
    },
    /// The server answers calls.
    Ready,
    /// The recovery failed. `report` has the reason and the remedy.
    Failed {
        /// Reason and remedy.
        report: String,
    },
    /// The server ends its calls and stops.
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
    /// Whether the server answers calls.
    pub ready: bool,
    /// Phase of the server.
    pub phase: Phase,
}

/// Data of a server-sent event `metrics`, about the time since the event before.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MetricsEvent {
    /// Time (RFC 3339).
    pub time: String,
    /// Milliseconds since the event before.
    pub interval_ms: u64,
    /// Committed calls per second.
    pub committed_per_s: f64,
    /// Calls per second that their procedures aborted.
    pub aborted_per_s: f64,
    /// Calls per second that trapped or reached a limit.
    pub failed_per_s: f64,
    /// Calls per second that the server refused before they ran.
    pub refused_per_s: f64,
    /// Growth of the log in bytes per second.
    pub log_bytes_per_s: f64,
    /// Time from the acceptance of a call to its answer.
    pub latency_us: LatencyUs,
    /// Time from the start of a group commit's write until it is durable.
    pub commit_wait_us: LatencyUs,
    /// Number of accepted calls that have not run yet.
    pub waiting: u64,
    /// Largest LSN of a committed transaction.
    pub committed_lsn: U64,
    /// LSN up to which everything is durable on the device.
    pub durable_lsn: U64,
}

/// Data of a server-sent event `control`: a client changed the database other than by a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ControlEvent {
    /// Time of its end (RFC 3339).
    pub time: String,
    /// Name of the client's token; `anonymous` on a server without tokens.
    pub principal: String,
    /// The operation, its object, and how it ended.
    #[serde(flatten)]
    pub control: ControlEnd,
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
    /// Maximum.
    pub max: u64,
}
