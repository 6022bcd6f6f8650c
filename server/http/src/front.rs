//! The way of a request: trace, authority, route; and the extractors whose failures are problems.

use std::{convert::Infallible, future::Future};

use axum::{
    Router,
    body::{Body, HttpBody},
    extract::{FromRequestParts, Path, Query, Request},
    http::{HeaderMap, Method, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use reprise_api::{ProblemKind, headers};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;
use tower::ServiceExt;
use tracing::Instrument;

use crate::{
    auth::Judgement,
    batch,
    calls::{self, FreshWait, wait_for_min_lsn},
    integers,
    limits::{OPERATION_PLACE_WAIT_MAX, PAGE_BYTES_MAX, TEXT_BYTES_SURE},
    media::{check_codings, format_of_body},
    pages,
    permits::Operation,
    refusal::{ProblemSlug, Refusal},
    replication::{Staleness, wait_for_max_lag},
    running_calls,
    state::AppState,
    texts::Room,
    trace::{RequestSpan, TraceContext},
};

/// Answers one request.
pub async fn answer(state: &AppState, router: &Router, request: Request) -> Result<Response, Infallible> {
    let context = request
        .headers()
        .get(headers::TRACEPARENT)
        .and_then(TraceContext::continue_from);
    let is_post = *request.method() == Method::POST;
    let tracer = state.tracer.as_ref().filter(|_| is_post);
    if let Some(span) = RequestSpan::start(tracer, request.uri().path(), context.as_ref()) {
        return Ok(traced(state, router, request, span).await);
    }
    let response = match context {
        None => route(state, router, request).await,
        Some(context) => {
            let span = tracing::info_span!(
                "request",
                method = %request.method(),
                path = request.uri().path(),
                trace_id = context.trace_id,
                parent_id = context.parent_id,
                span_id = context.span_id,
            );
            let mut response = route(state, router, request).instrument(span).await;
            response.headers_mut().insert(headers::TRACEPARENT, context.header());
            response
        }
    };
    count_answer(state, &response);
    Ok(response)
}

/// Handles a call whose span is collected. A batch keeps its span until its last answer.
async fn traced(state: &AppState, router: &Router, mut request: Request, span: RequestSpan) -> Response {
    let header = span.header();
    let is_batch = request.uri().path() == batch::PATH;
    request.extensions_mut().insert(span.clone());
    let mut response = route(state, router, request).await;
    if !is_batch {
        span.answered(&response);
    }
    drop(span);
    response.headers_mut().insert(headers::TRACEPARENT, header);
    count_answer(state, &response);
    response
}

fn count_answer(state: &AppState, response: &Response) {
    let refusal = response.extensions().get::<ProblemSlug>();
    let refusal = refusal.filter(|refusal| !refusal.is_counted);
    state.count_answer(response.status().as_u16(), refusal.map(|refusal| &*refusal.slug));
}

async fn route(state: &AppState, router: &Router, request: Request) -> Response {
    let auth = state.auth().clone();
    if let Some(answer) = pages::preflight(auth.origins(), request.method(), request.headers()) {
        return answer;
    }
    let origin = auth.origins().named(request.headers()).cloned();
    let shows_data = shows_data(request.uri().path());
    let mut staleness = Staleness::of(&state.router).filter(|_| shows_data);
    let min_lsn = calls::number(request.headers(), headers::MIN_LSN).ok().flatten();
    let mut response = match integers::asked(request.headers()) {
        Ok(false) => route_checked(state, router, request, &mut staleness).await,
        Ok(true) => integers::as_numbers(route_checked(state, router, request, &mut staleness)).await,
        Err(refusal) => refusal.into_response(),
    };
    // The server may have been promoted meanwhile, or deposed.
    let staleness = staleness.or_else(|| Staleness::of(&state.router).filter(|_| shows_data));
    let answered = staleness.and_then(|staleness| {
        let is_read = response.status().is_success();
        let shown = calls::number(response.headers(), headers::LSN).ok().flatten();
        staleness.answered(&state.router, min_lsn.filter(|_| is_read), shown.filter(|_| is_read))
    });
    if let Some(answered) = answered {
        answered.write_headers(response.headers_mut());
    }
    if let Some(origin) = origin {
        pages::allow(origin, response.headers_mut());
    }
    response
}

/// True for paths whose answers may be stale on a standby.
pub fn shows_data(path: &str) -> bool {
    path == batch::PATH || path.starts_with(calls::PATH_PREFIX) || path.starts_with("/v1/tables")
}

/// Routes a request that was checked. `staleness` goes into the answer of a standby.
async fn route_checked(
    state: &AppState,
    router: &Router,
    mut request: Request,
    staleness: &mut Option<Staleness>,
) -> Response {
    let (method, path) = (request.method(), request.uri().path());
    let auth = state.auth().clone();
    let principal = match auth.check(request.version(), method, path, request.headers()) {
        Ok(principal) => principal,
        Err(refusal) => {
            state.record_forbidden(request.headers(), method, path, &refusal);
            return refusal.into_response();
        }
    };
    if !is_answered_while_recovering(path)
        && let Err(refusal) = state.check_open()
    {
        return refusal.into_response();
    }
    if !method.is_safe()
        && let Err(refusal) = check_codings(request.headers())
    {
        return refusal.into_response();
    }
    if *method == Method::POST
        && let Err(refusal) = format_of_body(request.headers())
    {
        return refusal.into_response();
    }
    if shows_data(path) {
        let is_page = path.starts_with("/v1/tables");
        if let Err(refusal) = wait_until_fresh(state, request.headers_mut(), is_page, staleness).await {
            return refusal.into_response();
        }
    }
    let (method, path) = (request.method(), request.uri().path());
    if *method == Method::POST && path.starts_with(calls::PATH_PREFIX) {
        request.extensions_mut().insert(Judgement {
            auth,
            principal: principal.clone(),
        });
        return calls::answer(state, &principal, request).await;
    }
    if *method == Method::POST && path == batch::PATH {
        return batch::answer(state, request)
            .await
            .unwrap_or_else(IntoResponse::into_response);
    }
    let has_door = passes_door(path, request.uri().query());
    let (is_read, is_api) = (method.is_safe(), path.starts_with("/v1/"));
    request.extensions_mut().insert(Judgement { auth, principal });
    let answer = async {
        match router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    };
    let response = match has_door {
        false if is_api => hold_room(state, answer.await, None).await,
        false => answer.await,
        true => make_answer(state, is_read, answer)
            .await
            .unwrap_or_else(IntoResponse::into_response),
    };
    if response.status() == StatusCode::METHOD_NOT_ALLOWED {
        return name_allowed_methods(response);
    }
    response
}

/// Waits until the data is as fresh as the headers ask. The wait holds neither room nor a place, so the reads that wait keep no other one
/// from them. The headers then say what is left of the client's time.
async fn wait_until_fresh(
    state: &AppState,
    headers: &mut HeaderMap,
    is_page: bool,
    staleness: &mut Option<Staleness>,
) -> Result<(), Refusal> {
    let has_max_lag = headers.contains_key(headers::MAX_LAG_MS);
    if !has_max_lag && !headers.contains_key(headers::MIN_LSN) {
        return Ok(());
    }
    let wait = FreshWait::of(headers, is_page)?;
    // The lag comes last: it grows while the server waits for the record.
    wait_for_min_lsn(state, headers, &wait).await?;
    let waited = wait_for_max_lag(state, headers, &wait).await;
    if has_max_lag {
        // The staleness counts from the end of the wait.
        *staleness = staleness.and_then(|_| Staleness::of(&state.router));
    }
    waited?;
    if let Some(left) = wait.left() {
        headers.insert(headers::TIMEOUT_MS, (left.as_millis() as u64).max(1).into());
    }
    Ok(())
}

/// Returns true for every path of the API whose answers may be long. Calls and streams of events have bounds of their own. Short answers wait
/// neither for room nor for a place: an operator gets them whatever else clients ask for, and however slowly they read.
fn passes_door(path: &str, query: Option<&str>) -> bool {
    const OTHERS: [&str; 2] = [batch::PATH, "/v1/events"];
    let is_other = OTHERS.contains(&path) || path.starts_with(calls::PATH_PREFIX);
    path.starts_with("/v1/") && !is_other && answer_bytes_max(path, query) > TEXT_BYTES_SURE
}

/// Returns how long the answers of a path of the API are at most: a page of stored data, unless something else bounds them. That is a number
/// of standbys, of calls that run (unless the query asks for many), or nothing that there are many of.
fn answer_bytes_max(path: &str, query: Option<&str>) -> u64 {
    const SHORT: [&str; 6] = [
        "/v1/status",
        "/v1/replication",
        "/v1/replication/promote",
        "/v1/replication/step-down",
        "/v1/replication/join",
        "/v1/replication/promise",
    ];
    // The outcome of a key and a record hold room as their lengths are.
    const SHORT_UNDER: [&str; 4] = [
        "/v1/calls/",
        "/v1/idempotency/",
        "/v1/log/",
        "/v1/replication/standbys/",
    ];
    let is_short = match path {
        running_calls::PATH => !running_calls::asks_for_many(query),
        _ => SHORT.contains(&path) || SHORT_UNDER.iter().any(|folder| path.starts_with(folder)),
    };
    if is_short { TEXT_BYTES_SURE } else { PAGE_BYTES_MAX }
}

/// Makes an answer whose length follows from the stored data. A read first waits for room for its text. A request that changes something does
/// not wait, because slow readers would hold it up. Each step has a place and a thread that serves no connection.
async fn make_answer(
    state: &AppState,
    is_read: bool,
    answer: impl Future<Output = Response>,
) -> Result<Response, Refusal> {
    let room = wait_for_room(state, if is_read { PAGE_BYTES_MAX } else { 0 }).await?;
    let response = state.places.answer(answer).await?;
    Ok(hold_room(state, response, room).await)
}

async fn wait_for_room(state: &AppState, bytes_max: u64) -> Result<Option<Room>, Refusal> {
    let Some(room) = state.texts.asked(bytes_max) else {
        return Ok(None);
    };
    timeout(OPERATION_PLACE_WAIT_MAX, room).await.map(Some).map_err(|_| {
        let why = "found no room: answers that their clients do not take hold all that there is";
        Operation::Answer.too_busy(why)
    })
}

/// Marks an answer that holds its room by itself.
#[derive(Clone, Copy)]
struct HoldsRoom;

/// Answers with one document of at most this many bytes, which may be more than a page has. Its largest part lies in memory twice while the
/// document is written.
pub async fn document<T: Serialize>(
    state: &AppState,
    bytes_max: u64,
    make: impl FnOnce() -> Result<T, Refusal>,
) -> Result<Response, Refusal> {
    let room = wait_for_room(state, bytes_max.saturating_mul(2)).await?;
    let write = async { serde_json::to_vec(&make()?).map_err(|error| Refusal::internal(&error.to_string())) };
    let text = state.places.answer(write).await??;
    let media_type = [(header::CONTENT_TYPE, "application/json")];
    let mut response = (media_type, Body::from(state.texts.hold(text, room))).into_response();
    response.extensions_mut().insert(HoldsRoom);
    Ok(response)
}

/// The answer with its room, until the client has taken it.
async fn hold_room(state: &AppState, mut response: Response, room: Option<Room>) -> Response {
    if response.extensions_mut().remove::<HoldsRoom>().is_some() {
        return response;
    }
    let (head, body) = response.into_parts();
    let body = match body.size_hint().exact() {
        Some(_) => body
            .collect()
            .await
            .map(|all| state.texts.hold(all.to_bytes(), room).into()),
        None => return Response::from_parts(head, body), // the body does not lie in memory
    };
    Response::from_parts(head, body.expect("what lies in memory does not break off"))
}

/// True for paths that report on the opening, and for those outside the database. A standby that shows nothing reports this, gives promises,
/// and may be made the primary. A node that can't be one yet refuses that itself.
pub fn is_answered_while_recovering(path: &str) -> bool {
    const ANSWERED: [&str; 6] = [
        "/v1/status",
        "/v1/events",
        "/v1/replication",
        "/v1/replication/freshness",
        "/v1/replication/promise",
        "/v1/replication/promote",
    ];
    !path.starts_with("/v1/") || ANSWERED.contains(&path)
}

pub async fn unknown_path(uri: Uri) -> Refusal {
    Refusal::not_found(format!(
        "the server has no resource at {}; /openapi.json describes all",
        uri.path()
    ))
}

pub async fn unknown_method(method: Method, uri: Uri) -> Refusal {
    let detail = format!(
        "{} does not take {method}; the header Allow lists its methods",
        uri.path()
    );
    Refusal::new(ProblemKind::MethodNotAllowed, detail)
}

/// A 405 without `Allow` would leave the caller guessing; axum adds it, also to our own answer.
fn name_allowed_methods(mut response: Response) -> Response {
    if !response.headers().contains_key(header::ALLOW) {
        let get = header::HeaderValue::from_static("GET,HEAD");
        response.headers_mut().insert(header::ALLOW, get);
    }
    response
}

/// Refuses a query of a path that has no parameters there. A client may put its arguments there, and the call would run without them.
pub fn check_no_query(uri: &Uri) -> Result<(), Refusal> {
    match uri.query() {
        None | Some("") => Ok(()),
        Some(_) => Err(Refusal::malformed(format!(
            "{} takes no parameters in the query; send arguments in the body, and options as headers",
            uri.path()
        ))),
    }
}

/// Parses a number of the API's own, such as an LSN: digits alone, with enough digits for any of them.
pub fn parse_digits(text: &str) -> Option<u64> {
    let is_number = matches!(text.len(), 1..=19) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// The path's one variable part.
pub struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(name) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|error| Refusal::malformed(format!("the server can't read the path: {error}")))?;
        Ok(Self(name))
    }
}

/// The query's parameters; an unknown one is refused, because a misspelled filter would be no filter.
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Query(params) = Query::<T>::from_request_parts(parts, state)
            .await
            .map_err(|error| Refusal::malformed(format!("the server can't read the query: {}", error.body_text())))?;
        Ok(Self(params))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::docs;

    /// A new path passes the door by default.
    #[test]
    fn every_path_of_the_api_passes_the_door_but_for_short_answers_and_those_with_own_bounds() {
        let openapi = docs::openapi();
        let paths = openapi.paths.paths.keys().filter(|path| path.starts_with("/v1/"));
        let (through, beside): (Vec<_>, Vec<_>) = paths.partition(|path| passes_door(path, None));
        assert_eq!(
            beside,
            [
                "/v1/batch",
                "/v1/call/{module}/{procedure}",
                "/v1/calls",
                "/v1/calls/{call_id}",
                "/v1/events",
                "/v1/idempotency/{key}",
                "/v1/log/{lsn}",
                "/v1/replication",
                "/v1/replication/join",
                "/v1/replication/promise",
                "/v1/replication/promote",
                "/v1/replication/standbys/{name}",
                "/v1/replication/step-down",
                "/v1/status",
            ]
        );
        assert!(through.len() > 15, "{through:?}");
        // A server that replays its log promises, so that another one can lead.
        let answered = ["promise", "promote", "step-down"].map(|last| format!("/v1/replication/{last}"));
        assert_eq!(
            answered.map(|path| is_answered_while_recovering(&path)),
            [true, true, false]
        );
        for public in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/console/", "/"] {
            assert!(!passes_door(public, None), "{public}");
        }
        for query in ["", "limit=1", "limit=100"] {
            assert!(!passes_door("/v1/calls", Some(query)), "{query}");
        }
        for query in ["limit=101", "limit=1000", "limit=%31000", "limit=1&limit=1000", "x"] {
            assert!(passes_door("/v1/calls", Some(query)), "{query}");
        }
    }
}
