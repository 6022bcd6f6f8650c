//! `/v1/status`, `/healthz`, `/readyz`.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use reprise_api::{
    ArchiveInfo, DeploymentStatus, Health, MemoryStatus, MemoryUse, NvramRing, NvramStatus, Phase, Readiness,
    RecoveryStep, Status, U64,
};
use reprise_base::{Epoch, Lsn, MemoryKind, MemoryLedger, memory::memory_kept_back};
use reprise_codec::{hex, rfc3339};
use reprise_router::{
    DeployProgress, NodePhase as RouterPhase, NvramBufferStatus, NvramDevice, RecoveryStage as RouterStep,
};
use reprise_upkeep::ArchiveStatus;

use crate::{
    checkpoints::{failure, restart},
    state::{AppState, Parts},
};

/// Shows the server's state
#[utoipa::path(
    get,
    path = "/v1/status",
    tag = "Server",
    responses((status = 200, description = "Role, phase, LSNs and settings of the server", body = Status))
)]
pub async fn status(State(state): State<AppState>) -> Json<Status> {
    Json(status_of(&state))
}

pub fn status_of(parts: &Parts) -> Status {
    let status = parts.router.status();
    let checkpointer = parts.database.checkpointer().ok();
    let estimate = checkpointer.map(|checkpointer| checkpointer.restart());
    Status {
        role: status.role.name().into(),
        epoch: status.epoch.map(Epoch::count),
        epoch_writer: status.epoch.map(Epoch::writer),
        phase: phase(status.phase),
        log: status.log.into(),
        device: status.device.map(str::to_owned),
        nvram: status.nvram.map(|(device, front)| nvram(device, &front)),
        commit: status.commit.into(),
        partitions: status.partitions,
        sites: status.sites,
        committed_lsn: last_before(status.committed_lsn),
        durable_lsn: U64(status.durable_lsn.0),
        checkpointed_lsn: checkpointer.and_then(|own| own.newest()).map(|lsn| U64(lsn.0)),
        restart_seconds: estimate.and_then(|estimate| estimate.seconds()),
        restart: estimate.map(restart),
        checkpoint_failure: checkpointer.and_then(|own| own.last_failure()).map(failure),
        archive: checkpointer.and_then(|own| own.archive()).map(archive),
        log_error: status.log_error.map(|error| error.to_string()),
        started_at: rfc3339(status.started_unix_us),
        uptime_s: ((now_us() - status.started_unix_us).max(0) / 1_000_000) as u64,
        version: env!("CARGO_PKG_VERSION").into(),
        database_id: hex(&status.database_id),
        settings_hash: format!("{:016x}", status.settings_hash),
        idempotency_keys: status.idempotency.keys,
        idempotency_bytes: status.idempotency.bytes,
        idempotency_bytes_max: status.idempotency.bytes_max,
        idempotency_keep_s: status.idempotency.keep.as_secs(),
        idempotency_oldest_at: status.idempotency.oldest_unix_us.map(rfc3339),
        waiting: status.waiting,
        deployment: status.deployment.map(deployment),
        memory: memory_of(parts.router.memory()),
    }
}

fn deployment(progress: DeployProgress) -> DeploymentStatus {
    DeploymentStatus {
        module: progress.module,
        rows: progress.rows,
        partitions: progress.partitions,
        seconds: progress.held.as_secs_f64(),
        seconds_max: progress.max_s,
    }
}

fn nvram(device: NvramDevice, front: &NvramBufferStatus) -> NvramStatus {
    let rings = front.rings.iter().map(|ring| NvramRing {
        entries: ring.entries,
        entries_max: ring.entries_max,
        bytes: ring.bytes,
        bytes_max: ring.bytes_max,
    });
    NvramStatus {
        path: device.path.display().to_string(),
        bytes: device.bytes,
        persistence: device.persistence.to_owned(),
        warning: device.warning.map(str::to_owned),
        flush: device.flush.to_owned(),
        copy_at_entries: device.copy_at_entries,
        records_waiting: front.records_waiting,
        rings: rings.collect(),
    }
}

fn archive(status: ArchiveStatus) -> ArchiveInfo {
    let (failed_us, error) = status.failure.unzip();
    ArchiveInfo {
        directory: status.directory,
        files: status.files,
        bytes: status.bytes,
        oldest_checkpoint_lsn: status.oldest_checkpoint.map(|lsn| U64(lsn.0)),
        held_bytes: status.held_bytes,
        held_bytes_max: status.held_bytes_max,
        ends_at_lsn: status.ends_at.map(|lsn| U64(lsn.0)),
        failures: status.failures,
        error,
        failed_at: failed_us.map(rfc3339),
    }
}

fn memory_of(memory: &MemoryLedger) -> MemoryStatus {
    let kind = |kind: MemoryKind| MemoryUse {
        kind: kind.name().to_owned(),
        bytes: memory.kind(kind).used(),
    };
    let max = memory.max_bytes();
    MemoryStatus {
        max_bytes: (max < u64::MAX).then_some(max),
        kept_back_bytes: memory_kept_back(max),
        used_bytes: memory.used(),
        peak_bytes: memory.peak(),
        kinds: MemoryKind::ALL.map(kind).to_vec(),
    }
}

pub fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

/// Returns a percentage with one digit after the point.
fn percent(done: u64, total: u64) -> f64 {
    match total {
        0 => 0.0,
        total => (done as f64 / total as f64 * 1_000.0).floor() / 10.0,
    }
}

pub fn phase(phase: RouterPhase) -> Phase {
    match phase {
        RouterPhase::Recovering {
            step,
            replayed,
            bytes_done,
            bytes_total,
        } => Phase::Recovering {
            step: match step {
                RouterStep::Checkpoint => RecoveryStep::Checkpoint,
                RouterStep::Log => RecoveryStep::Log,
            },
            percent: percent(bytes_done, bytes_total),
            replayed,
            bytes_done,
            bytes_total,
        },
        RouterPhase::Ready => Phase::Ready,
        RouterPhase::Failed { report } => Phase::Failed { report },
        RouterPhase::Stopping => Phase::Stopping,
    }
}

/// Answers while the process lives
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "Server",
    responses((status = 200, description = "Alive", body = Health)),
    security(())
)]
pub async fn healthz() -> Json<Health> {
    Json(Health { status: "ok".into() })
}

/// Shows whether the server takes calls
///
/// Answers 503 while the server replays its log, with the progress; after a failed recovery, with the report; and while the server
/// stops.
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "Server",
    responses(
        (status = 200, description = "The server takes calls", body = Readiness),
        (status = 503, description = "The server takes no calls yet, or no more", body = Readiness),
    ),
    security(())
)]
pub async fn readyz(State(state): State<AppState>) -> Response {
    let phase = phase(state.router.phase());
    let ready = phase == Phase::Ready;
    let mut response = Json(Readiness { ready, phase }).into_response();
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let own = response.headers_mut();
        own.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

/// Returns the last LSN before an end, which a record may have. With the end itself, `Reprise-Min-Lsn` would ask for a record that does not
/// exist.
pub fn last_before(end: Lsn) -> U64 {
    U64(end.0.saturating_sub(1))
}
