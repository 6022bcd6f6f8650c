//! `/v1/audit`: who did what beside calls, from the log.

use std::sync::Arc;

use axum::{Json, extract::State};
use reprise_api::{AuditPage, AuditRecord, Problem, U64};
use reprise_router::{LogMatch, LogSearch};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    front::Params,
    limits::LOG_LIMIT_MAX,
    log::{decoded, limit, position},
    permits::Operation,
    refusal::Refusal,
    state::AppState,
};

/// Kind of the records that are read.
const KIND: &str = "control";

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditParams {
    /// LSN to begin at; `next` of the page before. The oldest record in the log unless given.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,19}$")]
    from: Option<String>,
    /// Records at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only operations of the token of this name.
    principal: Option<String>,
}

/// Lists control operations
///
/// Returns operations other than calls, done or refused: deployments, backups, promotions, and requests that their token does not allow.
/// The records are from the log, so they outlive restarts, and a standby has them too. A page may be empty and still have a `next`
/// before `end`.
#[utoipa::path(
    get,
    path = "/v1/audit",
    tag = "Log",
    params(AuditParams),
    responses(
        (status = 200, description = "A page", body = AuditPage),
        (status = 404, description = "not-found: the server keeps no log", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "log-released: `from` is before the oldest record in the log", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn list_audit(
    State(state): State<AppState>,
    Params(params): Params<AuditParams>,
) -> Result<Json<AuditPage>, Refusal> {
    let matching = params
        .principal
        .map(|wanted| LogMatch(Arc::new(move |entry| entry.principal.as_deref() == Some(&*wanted))));
    let query = LogSearch {
        from: params.from.as_deref().map(position).transpose()?,
        limit: limit(params.limit, LOG_LIMIT_MAX)?,
        kind: Some(KIND.to_owned()),
        matching,
        ..LogSearch::default()
    };
    let page = state
        .blocking(Operation::ReadLog, move |parts| parts.router.log_records(query))
        .await??;
    let records = page.records.into_iter().map(|entry| {
        let record = decoded(entry)?;
        Ok(AuditRecord {
            lsn: record.lsn,
            time: record.time.unwrap_or_default(),
            principal: record.principal.unwrap_or_default(),
            control: record
                .control
                .ok_or_else(|| Refusal::internal("a record of another kind"))?,
        })
    });
    Ok(Json(AuditPage {
        records: records.collect::<Result<_, Refusal>>()?,
        next: page.next.map_or(U64(page.end.0), |lsn| U64(lsn.0)),
        oldest: U64(page.oldest.0),
        end: U64(page.end.0),
    }))
}
