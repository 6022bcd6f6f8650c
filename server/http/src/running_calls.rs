//! `/v1/calls`: what runs and waits now, and the end of one of it.

use axum::{Json, extract::State};
use reprise_abi::schema::NAME_BYTES_MAX;
use reprise_api::{CallList, CallPhase, Problem, RunningCall, U64};
use reprise_router::{CallInfo, CallStep as RouterPhase, Deployed};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    control::ControlOp,
    front::{Params, PathName, parse_digits},
    limits::TEXT_BYTES_SURE,
    principal::Principal,
    refusal::Refusal,
    state::{AppState, Parts},
};

/// The path of the list.
pub const PATH: &str = "/v1/calls";

/// Calls that a page lists unless it is asked for more, and at most.
const CALLS_LISTED: usize = 100;
const CALLS_LISTED_MAX: usize = 1_000;
/// Bytes of a listed call at most: two names, and some numbers and words.
const CALL_BYTES_MAX: usize = 2 * NAME_BYTES_MAX + 300;

// An operator gets the usual list whatever else clients ask for.
const _: () = assert!((CALLS_LISTED + 1) * CALL_BYTES_MAX <= TEXT_BYTES_SURE as usize);

/// True for a query whose list may be no short answer, because it may ask for more calls than are listed by default.
pub fn asks_for_many(query: Option<&str>) -> bool {
    let is_few = |part: &str| {
        let limit = part.strip_prefix("limit=").and_then(parse_digits);
        limit.is_some_and(|limit| limit <= CALLS_LISTED as u64)
    };
    let query = query.unwrap_or_default();
    !query.is_empty() && (query.contains('&') || !is_few(query))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CallsParams {
    /// Calls at most, 1 to 1000; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Lists calls that run or wait
///
/// Returns the oldest call first. The request does not wait for calls, and calls do not wait for it.
#[utoipa::path(
    get,
    path = "/v1/calls",
    tag = "Calls",
    params(CallsParams),
    responses(
        (status = 200, description = "The calls", body = CallList),
    )
)]
pub async fn list_calls(
    State(state): State<AppState>,
    Params(params): Params<CallsParams>,
) -> Result<Json<CallList>, Refusal> {
    let limit = params.limit.unwrap_or(CALLS_LISTED);
    if !(1..=CALLS_LISTED_MAX).contains(&limit) {
        return Err(Refusal::malformed(format!(
            "limit must be from 1 to {CALLS_LISTED_MAX}"
        )));
    }
    let (calls, total) = state.router.calls(limit);
    let deployed = state.router.deployed();
    Ok(Json(CallList {
        calls: calls.iter().map(|call| answer(&deployed, call)).collect(),
        total,
    }))
}

/// Cancels a call
///
/// Takes the `call_id`, or the id of the transaction. A waiting call does not begin, and a running call ends within moments. Its
/// client gets `cancelled`, and the server keeps nothing of it. A call that has run can't be cancelled. The answer shows how far the
/// call was. Only the call's own answer says how it ended, because it may end by itself meanwhile.
#[utoipa::path(
    delete,
    path = "/v1/calls/{call_id}",
    tag = "Calls",
    params(("call_id" = String, Path, description = "`call_id` of the call, or the id of its transaction")),
    responses(
        (status = 200, description = "The server ends the call", body = RunningCall),
        (status = 404, description = "not-found: no such call runs or waits, or it has ended", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn cancel_call(
    State(state): State<AppState>,
    PathName(id): PathName,
    principal: Principal,
) -> Result<Json<RunningCall>, Refusal> {
    let op = ControlOp::CancelCall(id.clone());
    state
        .control(op, principal, move |parts| cancel(parts, &id))
        .await
        .map(Json)
}

fn cancel(parts: &Parts, id: &str) -> Result<RunningCall, Refusal> {
    let number = id.parse::<u64>().ok().filter(|number| *number != 0);
    let found = number.and_then(|number| parts.router.cancel(number));
    match found {
        Some(call) if call.phase != RouterPhase::Committing => Ok(answer(&parts.router.deployed(), &call)),
        Some(_) => Err(Refusal::not_found(format!(
            "call {id} has run and commits now, so you can't cancel it"
        ))),
        None => Err(Refusal::not_found(format!(
            "no call {id} runs or waits; GET /v1/calls lists the calls that do"
        ))),
    }
}

fn answer(deployed: &Deployed, call: &CallInfo) -> RunningCall {
    let module = deployed.module(call.module);
    let procedure = module.and_then(|module| module.schema.procedures.get(call.procedure as usize));
    RunningCall {
        call_id: U64(call.call_id),
        txn_id: call.txn_id.map(|id| U64(id.0)),
        module: module.map_or_else(String::new, |module| module.name.clone()),
        procedure: procedure.map_or_else(String::new, |procedure| procedure.name.clone()),
        partition: call.partition.map(|partition| partition.0),
        age_ms: call.age_ns as f64 / 1e6,
        phase: match call.phase {
            RouterPhase::Queued => CallPhase::Queued,
            RouterPhase::Running => CallPhase::Running,
            RouterPhase::Committing => CallPhase::Committing,
        },
    }
}
