//! `/v1/backups`: independent copies of the database, made beside the running engine. The server writes them to the place that its operator
//! set. A client can't choose the place; it downloads a backup file by file.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use axum::{
    Json,
    body::Body,
    extract::{Path, State},
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use bytes::Bytes;
use reprise_api::{Backup, BackupFile, BackupList, BackupState, Problem, ProblemKind, U64};
use reprise_codec::rfc3339;
use reprise_upkeep::{BackupError, BackupInfo, BackupPhase as OwnPhase};
use serde::Deserialize;
use tokio::{sync::OwnedSemaphorePermit, time::timeout};
use utoipa::IntoParams;

use crate::{
    checkpoints::accepted,
    control::ControlOp,
    front::{Params, PathName},
    limits::{BACKUP_WAIT_MAX, DOWNLOAD_PIECE_BYTES, DOWNLOADS_MAX},
    permits::Operation,
    principal::Principal,
    refusal::Refusal,
    state::AppState,
};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct BackupParams {
    /// Take the older checkpoint and the log from it on, too: the backup can then be restored to points before it was made.
    earlier: Option<bool>,
}

/// Creates a backup
///
/// Begins the backup and returns at once with its id, which leads to the progress. If a backup is in progress, the server returns
/// that one. The server first takes a checkpoint, unless nothing changed since the last one. It then copies the checkpoint and the
/// log after it, while transactions run. The backup stays in the directory that the configuration names (`backup_dir`) until you
/// remove it.
#[utoipa::path(
    post,
    path = "/v1/backups",
    tag = "Backups",
    params(BackupParams),
    responses(
        (status = 202, description = "The work has begun", body = Backup,
         headers(("Location" = String, description = "URL with its progress"))),
        (status = 404, description = "not-found: the server keeps no log", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "limit-exceeded: the server has its largest number of backups", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn create_backup(
    State(state): State<AppState>,
    Params(params): Params<BackupParams>,
    principal: Principal,
) -> Result<Response, Refusal> {
    let with_earlier = params.earlier.unwrap_or(false);
    let begun = state
        .control(ControlOp::CreateBackup, principal, move |parts| {
            Ok(parts.database.backups()?.create(with_earlier)?)
        })
        .await?;
    let backup = answer(begun);
    Ok(accepted(format!("/v1/backups/{}", backup.id), backup))
}

/// Lists backups
///
/// Returns the backups in the server's backup directory.
#[utoipa::path(
    get,
    path = "/v1/backups",
    tag = "Backups",
    responses(
        (status = 200, description = "List, newest first", body = BackupList),
        (status = 404, description = "not-found: the server keeps no log", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn list_backups(State(state): State<AppState>) -> Result<Json<BackupList>, Refusal> {
    let listed = state
        .blocking(Operation::Backup, |parts| {
            parts.database.backups().map(|backups| backups.list())
        })
        .await?;
    let backups = listed?.into_iter().map(answer).collect();
    Ok(Json(BackupList { backups }))
}

/// Shows a backup, or its progress
#[utoipa::path(
    get,
    path = "/v1/backups/{id}",
    tag = "Backups",
    params(("id" = String, Path, description = "Id from the answer that began it, or from the list")),
    responses(
        (status = 200, description = "The backup", body = Backup),
    )
)]
pub async fn show_backup(State(state): State<AppState>, PathName(id): PathName) -> Result<Json<Backup>, Refusal> {
    let find = move |parts: &crate::state::Parts| -> Result<_, Refusal> {
        Ok(parts.database.backups()?.find(&id).ok_or(BackupError::NotFound)?)
    };
    Ok(Json(answer(state.blocking(Operation::Backup, find).await??)))
}

/// Removes a backup
///
/// Removes the backup from the server's disk. You can't remove a backup that is in progress.
#[utoipa::path(
    delete,
    path = "/v1/backups/{id}",
    tag = "Backups",
    params(("id" = String, Path, description = "Id from the answer that began it, or from the list")),
    responses(
        (status = 204, description = "Removed"),
    )
)]
pub async fn delete_backup(
    State(state): State<AppState>,
    PathName(id): PathName,
    principal: Principal,
) -> Result<StatusCode, Refusal> {
    state
        .control(ControlOp::RemoveBackup(id.clone()), principal, move |parts| {
            Ok(parts.database.backups()?.remove(&id)?)
        })
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Downloads a file of a backup
///
/// Returns one file that the backup's `files` list, by the last part of its path. `manifest.json` is one of them. The files at their
/// paths are the whole backup.
#[utoipa::path(
    get,
    path = "/v1/backups/{id}/files/{name}",
    tag = "Backups",
    params(
        ("id" = String, Path, description = "Id from the answer that began it, or from the list"),
        ("name" = String, Path, description = "Last part of the file's path"),
    ),
    responses(
        (status = 200, description = "Its bytes", body = [u8], content_type = "application/octet-stream"),
    )
)]
pub async fn download_file(
    State(state): State<AppState>,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
    principal: Principal,
) -> Result<Response, Refusal> {
    let Path((id, name)) = path.map_err(|error| Refusal::malformed(error.body_text()))?;
    let permit = state.downloads.clone().try_acquire_owned().map_err(|_| {
        let detail = format!("{DOWNLOADS_MAX} downloads run already; wait until one ends");
        let mut problem = Problem::new(ProblemKind::Overloaded, detail);
        problem.retry_after_ms = Some(5_000);
        Refusal::from(problem)
    })?;
    let op = ControlOp::ReadBackup(format!("{id}/{name}"));
    let open = move |parts: &crate::state::Parts| Ok(parts.database.backups()?.open_file(&id, &name)?);
    let (file, bytes) = state.control(op, principal, open).await?;
    let pieces = FilePieces {
        file: Arc::new(file),
        at: 0,
        end: bytes,
        permit: Arc::new(permit),
    };
    let stream = futures_util::stream::unfold(pieces, async |mut pieces| {
        let piece = pieces.next().await?;
        Some((piece, pieces))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let own = response.headers_mut();
    own.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    own.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    Ok(response)
}

/// A file on its way out, a piece at a time.
struct FilePieces {
    file: Arc<File>,
    at: u64,
    end: u64,
    /// Free once no thread reads for it: the disk may hang after the client has gone.
    permit: Arc<OwnedSemaphorePermit>,
}

impl FilePieces {
    /// Reads the next piece. The answer breaks off if the disk does not answer in time.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.at >= self.end {
            return None;
        }
        let (file, at, permit) = (self.file.clone(), self.at, self.permit.clone());
        let count = (self.end - at).min(DOWNLOAD_PIECE_BYTES) as usize;
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let mut piece = vec![0; count];
            // Shorter than it was: the answer breaks off, and the client sees that.
            file.read_exact_at(&mut piece, at)?;
            Ok(Bytes::from(piece))
        });
        self.at += count as u64;
        Some(match timeout(BACKUP_WAIT_MAX, read).await {
            Ok(read) => read.unwrap_or_else(|error| Err(io::Error::other(error))),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        })
    }
}

fn answer(info: BackupInfo) -> Backup {
    Backup {
        id: info.id,
        state: match info.state {
            OwnPhase::Running => BackupState::Running,
            OwnPhase::Published => BackupState::Published,
            OwnPhase::Failed => BackupState::Failed,
        },
        began_at: rfc3339(info.began_unix_us),
        seconds: info.seconds,
        bytes: info.bytes,
        checkpoint_lsn: info.checkpoint_lsn.map(|lsn| U64(lsn.0)),
        end_lsn: info.end_lsn.map(|lsn| U64(lsn.0)),
        directory: info.directory,
        files: info
            .files
            .into_iter()
            .map(|file| BackupFile {
                path: file.path,
                bytes: file.bytes,
                sha256: file.sha256,
            })
            .collect(),
        error: info.error,
    }
}

impl From<BackupError> for Refusal {
    fn from(error: BackupError) -> Self {
        match error {
            BackupError::NotFound => Self::not_found(error.to_string()),
            BackupError::Full(_) => Self::limit("backups", error.to_string()),
            BackupError::Unavailable(reason) => Self::unavailable(&reason),
        }
    }
}
