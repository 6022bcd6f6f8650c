//! `GET /v1/idempotency/{key}`: the outcome that is kept under a key.

use std::time::Duration;

use axum::{extract::State, response::Response};
use reprise_abi::{text::TextBound, value::ValueReader};
use reprise_api::{KeptOutcome, Problem, ProblemKind, U64};
use reprise_codec::{raw_json, rfc3339, write_value};
use reprise_router::{CommittedOutcome, Lookup, Module, ScopedKey};

use crate::{
    calls::{bad_key, is_valid_key},
    front::{PathName, document},
    principal::Principal,
    refusal::Refusal,
    state::AppState,
    status::now_us,
};

const NO_OUTCOME: &str =
    "no call with this key has committed in the scope of this token, or the server no longer keeps its outcome";

/// Shows the outcome of an idempotency key
///
/// Returns the first committed outcome of a call with this key in the scope of this token. A repeat of the call gets this outcome
/// while the server keeps it. Read-only calls leave no outcome.
#[utoipa::path(
    get,
    path = "/v1/idempotency/{key}",
    tag = "Calls",
    params(("key" = String, Path)),
    responses(
        (status = 200, description = "Outcome of the call", body = KeptOutcome),
        (status = 404, description = "not-found: no call with this key has committed, or the server no longer keeps its outcome", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn show_outcome(
    State(state): State<AppState>,
    PathName(key): PathName,
    principal: Principal,
) -> Result<Response, Refusal> {
    if !is_valid_key(&key) {
        return Err(bad_key());
    }
    state.router.check_ready()?;
    let scope = principal.scope().map_or("", |name| &**name);
    let found = state.router.idempotency().look_up(ScopedKey { scope, key: &key });
    if let Lookup::Kept(outcome, _) = &found
        && let Some(module) = state.router.deployed().module(outcome.module)
        && let Some(procedure) = module.schema.procedures.get(outcome.procedure)
        && principal.require_grant(&module.name, &procedure.name).is_err()
    {
        // Another answer would tell that the call was made.
        return Err(Refusal::not_found(NO_OUTCOME));
    }
    match found {
        Lookup::Kept(outcome, _) if state.router.is_unconfirmed(outcome.lsn) => {
            let reason = "the call with this key committed on this server, but its standbys have not confirmed it";
            Err(Refusal::unconfirmed(reason, outcome.txn_id, outcome.lsn))
        }
        Lookup::Kept(outcome, left) => {
            let deployed = state.router.deployed();
            let module = deployed.module(outcome.module);
            let module = module
                .ok_or_else(|| Refusal::unavailable("the server loads the module version that ran under this key"))?;
            let returns = &module.schema.procedures[outcome.procedure].returns;
            let bytes_max = TextBound::of(returns).bytes_max(outcome.result.len());
            let strange = || Refusal::internal("the stored result is not of the procedure's type");
            let make = || outcome_of(key, module, &outcome, left).ok_or_else(strange);
            document(&state, bytes_max, make).await
        }
        Lookup::Running => Err(Refusal::not_found("a call with this key runs now; try again")),
        Lookup::Unknown => match state.router.status().log_error {
            // A call that was under way when the log failed may have been kept.
            Some(reason) => Err(Refusal::new(
                ProblemKind::OutcomeUnknown,
                format!(
                    "the server has no outcome for this key, and its log failed: {reason}; try again after a restart"
                ),
            )),
            None => Err(Refusal::not_found(NO_OUTCOME)),
        },
    }
}

/// `left`: for how much longer it is kept, while a primary runs.
fn outcome_of(key: String, module: &Module, outcome: &CommittedOutcome, left: Duration) -> Option<KeptOutcome> {
    let procedure = &module.schema.procedures[outcome.procedure];
    let (mut reader, mut result) = (ValueReader::new(&outcome.result), Vec::new());
    write_value(&procedure.returns, &mut reader, &mut result).ok()?;
    reader.finish().ok()?;
    let expires_us = i64::try_from(left.as_micros())
        .unwrap_or(i64::MAX)
        .saturating_add(now_us());
    Some(KeptOutcome {
        key,
        module: module.name.clone(),
        version: module.version,
        procedure: procedure.name.clone(),
        result: raw_json(result)?,
        txn_id: U64(outcome.txn_id.0),
        lsn: U64(outcome.lsn.0),
        partition: outcome.partition.map(|partition| partition.0),
        time: rfc3339(outcome.txn_id.time_us()),
        expires_at: rfc3339(expires_us),
    })
}
