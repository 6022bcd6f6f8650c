//! `/v1/checkpoints`: the tables as of one moment, on disk, so that a restart need not replay the whole log.

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use reprise_api::{Checkpoint, CheckpointFailure, CheckpointList, CheckpointState, Problem, RestartEstimate, U64};
use reprise_codec::rfc3339;
use reprise_router::CopyError;
use reprise_upkeep::{CheckpointInfo, CheckpointPhase as OwnPhase, LogMissing, TakeError};
use serde::Serialize;

use crate::{
    control::ControlOp,
    front::PathName,
    principal::Principal,
    refusal::Refusal,
    state::{AppState, Parts},
};

/// Takes a checkpoint
///
/// Begins the checkpoint and returns at once with its id, which leads to the progress. If a checkpoint is in progress, the server
/// returns that one. Transactions run meanwhile. After it, the server releases the log before the oldest checkpoint that it keeps.
#[utoipa::path(
    post,
    path = "/v1/checkpoints",
    tag = "Log",
    responses(
        (status = 202, description = "The work has begun", body = Checkpoint,
         headers(("Location" = String, description = "URL with its progress"))),
        (status = 404, description = "not-found: the server keeps no log", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn take_checkpoint(State(state): State<AppState>, principal: Principal) -> Result<Response, Refusal> {
    let begun = state
        .control(ControlOp::TakeCheckpoint, principal, |parts| {
            Ok(parts.database.checkpointer()?.take()?)
        })
        .await?;
    let checkpoint = answer(begun);
    Ok(accepted(format!("/v1/checkpoints/{}", checkpoint.id), checkpoint))
}

/// Returns the answer for work that has begun, with the location of its progress.
pub fn accepted(location: String, body: impl Serialize) -> Response {
    let mut response = (StatusCode::ACCEPTED, Json(body)).into_response();
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Lists checkpoints
#[utoipa::path(
    get,
    path = "/v1/checkpoints",
    tag = "Log",
    responses((status = 200, description = "List, newest first", body = CheckpointList))
)]
pub async fn list_checkpoints(State(state): State<AppState>) -> Json<CheckpointList> {
    let checkpointer = state.database.checkpointer().ok();
    let estimate = checkpointer.map(|checkpointer| checkpointer.restart());
    Json(CheckpointList {
        checkpoints: list_of(&state).into_iter().map(answer).collect(),
        restart_seconds: estimate.and_then(|estimate| estimate.seconds()),
        restart: estimate.map(restart),
        last_failure: checkpointer
            .and_then(|checkpointer| checkpointer.last_failure())
            .map(failure),
    })
}

/// The checkpoints that there are; none without a log.
pub fn list_of(parts: &Parts) -> Vec<CheckpointInfo> {
    let checkpointer = parts.database.checkpointer();
    checkpointer.map_or_else(|_| Vec::new(), |checkpointer| checkpointer.list())
}

pub fn restart(estimate: reprise_upkeep::RestartCost) -> RestartEstimate {
    RestartEstimate {
        load_bytes: estimate.load_bytes,
        load_seconds: estimate.load_seconds,
        replay_bytes: estimate.replay_bytes,
        replay_seconds: estimate.replay_seconds,
        check_bytes: estimate.check_bytes,
        check_seconds: estimate.check_seconds,
        other_seconds: estimate.other_seconds,
        target_seconds: estimate.target_seconds,
    }
}

pub fn failure(failure: reprise_upkeep::FailedCheckpoint) -> CheckpointFailure {
    CheckpointFailure {
        at: rfc3339(failure.at_unix_us),
        error: failure.error,
    }
}

/// Shows a checkpoint, or its progress
#[utoipa::path(
    get,
    path = "/v1/checkpoints/{id}",
    tag = "Log",
    params(("id" = String, Path, description = "Id from the answer that began it, or from the list")),
    responses(
        (status = 200, description = "The checkpoint", body = Checkpoint),
    )
)]
pub async fn show_checkpoint(
    State(state): State<AppState>,
    PathName(id): PathName,
) -> Result<Json<Checkpoint>, Refusal> {
    let all = list_of(&state).into_iter();
    let found = all.map(answer).find(|checkpoint| checkpoint.id == id);
    found
        .map(Json)
        .ok_or_else(|| Refusal::not_found(format!("no checkpoint has the id {id}; GET /v1/checkpoints lists them")))
}

pub fn answer(info: CheckpointInfo) -> Checkpoint {
    Checkpoint {
        id: info.lsn.to_string(),
        lsn: U64(info.lsn.0),
        state: match info.state {
            OwnPhase::Running => CheckpointState::Running,
            OwnPhase::Published => CheckpointState::Published,
            OwnPhase::Failed => CheckpointState::Failed,
        },
        began_at: rfc3339(info.began_unix_us),
        seconds: info.seconds,
        rows: info.rows,
        rows_total: info.rows_total,
        row_bytes: info.row_bytes,
        file_bytes: info.file_bytes,
        file: info.file,
        error: info.error,
    }
}

impl From<LogMissing> for Refusal {
    fn from(error: LogMissing) -> Self {
        Self::not_found(error.to_string())
    }
}

impl From<TakeError> for Refusal {
    fn from(error: TakeError) -> Self {
        match error {
            TakeError::Begin(CopyError::Log(reason)) => reason.into(),
            TakeError::Begin(CopyError::Busy) | TakeError::Failed(_) => Self::unavailable(&error.to_string()),
            TakeError::Begin(CopyError::Unavailable(reason)) => Self::unavailable(&reason),
        }
    }
}
