//! `POST /v1/call/{module}/{procedure}`: one transaction.

use std::{borrow::Cow, future::poll_fn, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;
use reprise_api::{CBOR_MEDIA_TYPE, CallAnswer, Problem, ProblemKind, headers};
use reprise_base::{Lsn, Safety, limits::IDEMPOTENCY_KEY_BYTES_MAX};
use reprise_codec::{Format, Packer};
use reprise_router::{CallReply, CallTerms, Caller, Deployed, ScopedKey};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    body::{self, Bounds},
    call_text::CallText,
    front::{self, parse_digits},
    limits::{CALL_BODY_BYTES_MAX, READ_WAIT_DEFAULT, READ_WAIT_MAX},
    media::{format_of_answer, format_of_body},
    permits::Operation,
    principal::Principal,
    refusal::{Refusal, problem_of_reply},
    reply::BatchResources,
    roles::TokenRole,
    safety::{self, AskedSafety},
    state::{AppState, Parts},
    submission::Submission,
    target::Target,
    texts::Room,
    trace::{CallTrace, RequestSpan},
};

pub const PATH_PREFIX: &str = "/v1/call/";

/// Calls a procedure
///
/// Runs one transaction. The body is an object of named arguments, as JSON or, by `Content-Type`, CBOR. An empty body means `{}`. The
/// answer has the format that `Accept` names, else the format of the body. In CBOR, 64-bit integers are integers and bytes are byte
/// strings. An answer with status 200 means that the transaction is durable at the configured level. After any other answer except
/// `outcome-unknown`, the transaction left nothing in the tables.
#[utoipa::path(
    post,
    path = "/v1/call/{module}/{procedure}",
    tag = "Calls",
    params(
        ("module" = String, Path, description = "Name of the module"),
        ("procedure" = String, Path, description = "Name of the procedure"),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 255, pattern = "^[ -~]+$", description = "Key of the call, at most 255 visible characters. If a call with this key has committed in the same scope, the server returns its outcome while it keeps it. Read-only calls always run again"),
        ("Reprise-Timeout-Ms" = Option<u64>, Header, description = "Time limit in milliseconds. If the call has not begun or ended by then, the server ends it as deadline-exceeded and keeps nothing of it"),
        ("Reprise-Min-Lsn" = Option<String>, Header, pattern = "^[0-9]{1,19}$", description = "For reads: LSN that the read must include. The server waits until its data includes it"),
        ("Reprise-Max-Lag-Ms" = Option<u64>, Header, description = "On a standby: largest lag in milliseconds. The server waits until its lag is at most this"),
        ("Reprise-Max-Wait-Ms" = Option<u64>, Header, description = "Longest wait in milliseconds. Default: 1000"),
        ("Reprise-Safety" = Option<String>, Header, description = "Smallest safety level of a write: 1-safe, 2-safe, quorum, very-safe, local-sync or local-async. If the server can't reach it, it refuses the write before it runs, or answers outcome-unknown"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context. The answer continues the trace"),
    ),
    request_body(content((Object = "application/json"), (Object = "application/cbor")), description = "Arguments by name"),
    responses(
        (status = 200, description = "Committed", content((CallAnswer = "application/json"), (CallAnswer = "application/cbor")), headers(
            ("Reprise-Txn-Id" = String), ("Reprise-Lsn" = String),
            ("Reprise-Safety" = String, description = "Safety level that the write reached, if the server has a level (--safety) or the call asked for one"),
            ("Idempotent-Replayed" = String, description = "`true` if the answer is the stored outcome of an earlier call with this key"),
        )),
        (status = 400, description = "invalid-arguments, malformed-request", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "idempotency-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary: send the request to `primary`", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "procedure-aborted, limit-exceeded, cancelled", body = Problem, content_type = "application/problem+json"),
        (status = 500, description = "procedure-trapped", body = Problem, content_type = "application/problem+json"),
        (status = 504, description = "deadline-exceeded", body = Problem, content_type = "application/problem+json"),
        (status = 507, description = "memory-exhausted", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn call(State(state): State<AppState>, principal: Principal, request: Request) -> Response {
    answer(&state, &principal, request).await
}

/// Answers a call as `call` does, but not through axum's tables.
pub async fn answer(state: &AppState, principal: &Principal, request: Request) -> Response {
    run(state, principal, request)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

/// A call as its head describes it.
#[derive(Clone)]
pub struct Call {
    pub target: Target,
    pub terms: Terms,
    /// The caller may call procedures that write.
    pub may_write: bool,
    /// Format of the arguments.
    pub format: Format,
}

/// How a call is made and answered.
#[derive(Clone)]
pub struct Terms {
    pub key: Option<Box<str>>,
    /// None without tokens.
    pub caller: Option<Caller>,
    /// Time for which the client waits.
    pub timeout: Option<Duration>,
    /// Level that its writes have at least.
    pub safety: Option<Safety>,
    /// Format of the answer.
    pub answer: Format,
    /// The trace, if the call is traced.
    pub trace: Option<Box<CallTrace>>,
}

impl Call {
    /// True if the log must get the caller's name before the call can leave a record.
    pub fn waits_for_name(&self, state: &AppState) -> bool {
        let has_no_number = self.terms.caller.as_ref().is_some_and(|caller| caller.number == 0);
        has_no_number && !self.target.schema().read_only && state.router.role() == reprise_base::Role::Primary
    }

    /// Checks a head before the body is read. A caller without the right to call need not send the body.
    pub fn of(
        state: &AppState,
        principal: &Principal,
        deployed: &Deployed,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Self, Refusal> {
        state.check_open()?;
        let (module, procedure) = path
            .strip_prefix(PATH_PREFIX)
            .and_then(|rest| rest.split_once('/'))
            .ok_or_else(|| Refusal::not_found("the path is /v1/call/{module}/{procedure}"))?;
        let (module, procedure) = (segment(module)?, segment(procedure)?);
        principal.require_grant(&module, &procedure)?;
        let (key, caller) = (idempotency_key(headers)?, principal.caller(&state.router));
        let scope = caller.as_ref().map_or("", |caller| &*caller.scope);
        let scoped = key.map(|key| ScopedKey { scope, key });
        let target = Target::for_call(&state.router, deployed, &module, &procedure, scoped)?;
        if !target.schema().read_only {
            principal.require(TokenRole::Write)?;
        }
        let format = format_of_body(headers)?;
        Ok(Self {
            target,
            terms: Terms {
                key: key.map(Into::into),
                caller,
                timeout: client_timeout(headers)?,
                safety: safety::asked(headers)?,
                answer: format_of_answer(headers, format),
                trace: None,
            },
            may_write: principal.may(TokenRole::Write),
            format,
        })
    }
}

async fn run(state: &AppState, principal: &Principal, request: Request) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    front::check_no_query(&head.uri)?;
    state.check_open()?;
    let deadline_ns = client_timeout(&head.headers)?.map(|timeout| state.router.deadline_in(timeout));
    let deployed = state.router.deployed();
    let mut asked = Call::of(state, principal, &deployed, path, &head.headers)?;
    if asked.waits_for_name(state) {
        asked.terms.caller = define_caller(state, principal).await;
    }
    let terms = CallTerms {
        key: asked.terms.key.as_deref(),
        caller: asked.terms.caller.as_ref(),
        deadline_ns,
    };
    let (what, wait_max) = ("a call's body", state.limits.body_wait);
    let bounds = Bounds {
        what,
        bytes_max: CALL_BODY_BYTES_MAX,
        wait_max,
    };
    let body = body::read_all(state, &head, body, bounds).await?;
    let text = CallText {
        args: 0..body.bytes.len() as u32,
        format: asked.format,
        may_write: asked.may_write,
    };
    let mut call = Submission::default();
    call.ask_safety(AskedSafety::of(state, asked.terms.safety, asked.terms.timeout)?);
    let target = call.number_of(&asked.target);
    call.add(target, 0, text, ());
    let mut batch = call.batch(state, deployed);
    call.encode_all(&mut batch, &body.bytes, |()| terms);
    call.submit(state, batch, BatchResources::default());
    poll_fn(|cx| call.poll(cx, state, &body.bytes)).await;
    let slot = &call.slots()[0];
    if let (Some(span), Some(times)) = (head.extensions.get::<RequestSpan>(), call.times(slot)) {
        span.ran(times);
    }
    let room = match state.texts.asked(call.text_bytes_max(slot)) {
        None => None,
        Some(room) => Some(room.await),
    };
    let (target, reply) = call.answer(slot).map_err(Refusal::clone)?;
    let mut response = respond(state, target, &reply, asked.terms.answer, room)?;
    if !target.schema().read_only {
        let (name, value) = safety::header(call.reached(state));
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}

/// A part of a path in plain characters, as the other paths have theirs.
fn segment(part: &str) -> Result<Cow<'_, str>, Refusal> {
    percent_decode_str(part)
        .decode_utf8()
        .map_err(|_| Refusal::malformed("the server can't read the path: its escapes are not UTF-8"))
}

/// Has the log define a caller's name, if it takes records and does not have the name. A caller without a defined name can't write: the
/// calls say why.
pub async fn define_caller(state: &AppState, principal: &Principal) -> Option<Caller> {
    let caller = principal.caller(&state.router)?;
    if caller.number > 0 || state.router.role() != reprise_base::Role::Primary {
        return Some(caller);
    }
    let name = caller.name.clone();
    let define = move |parts: &Parts| parts.router.define_principal(&name);
    let defined = state.blocking(Operation::Other, define).await;
    if let Ok(Err(error)) = defined {
        tracing::warn!(%error, "put the name of a token into the log");
    }
    principal.caller(&state.router)
}

/// Appends the body of a committed call's answer.
pub fn write_body(target: &Target, reply: &CallReply<'_>, format: Format, out: &mut Vec<u8>) -> Result<(), Refusal> {
    let txn = (reply.txn_id.0 != 0).then_some((reply.txn_id, reply.lsn));
    if let Some(problem) = problem_of_reply(reply) {
        return Err(Refusal {
            problem: Box::new(problem),
            txn,
            is_counted: true,
        });
    }
    let is_written = match format {
        Format::Json => {
            out.push(b'{');
            let is_written = target.write_answer(reply, out);
            out.push(b'}');
            is_written
        }
        Format::Cbor => {
            Packer::new(out).map(4);
            target.pack_answer(reply, out)
        }
    };
    if !is_written {
        let strange = Refusal::internal("the stored result is not of the procedure's type");
        return Err(Refusal { txn, ..strange });
    }
    Ok(())
}

pub fn media_type(format: Format) -> &'static str {
    match format {
        Format::Json => "application/json",
        Format::Cbor => CBOR_MEDIA_TYPE,
    }
}

fn respond(
    state: &AppState,
    target: &Target,
    reply: &CallReply<'_>,
    format: Format,
    room: Option<Room>,
) -> Result<Response, Refusal> {
    let mut out = Vec::with_capacity(reply.result.len() * 2 + 128);
    write_body(target, reply, format, &mut out)?;
    out.shrink_to_fit();
    let mut response = Response::new(Body::from(state.texts.hold(out, room)));
    let own = response.headers_mut();
    let media_type = HeaderValue::from_static(media_type(format));
    own.insert(header::CONTENT_TYPE, media_type);
    own.insert(HeaderName::from_static(headers::TXN_ID), reply.txn_id.0.into());
    own.insert(HeaderName::from_static(headers::LSN), reply.lsn.0.into());
    if reply.replayed {
        let name = HeaderName::from_static(headers::IDEMPOTENT_REPLAYED);
        own.insert(name, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Returns the time for which the client waits. None: no limit.
pub fn client_timeout(headers: &HeaderMap) -> Result<Option<Duration>, Refusal> {
    Ok(number(headers, headers::TIMEOUT_MS)?.map(Duration::from_millis))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = single(headers, headers::IDEMPOTENCY_KEY)? else {
        return Ok(None);
    };
    match value.to_str() {
        Ok(key) if is_valid_key(key) => Ok(Some(key)),
        _ => Err(bad_key()),
    }
}

/// One rule for a header, a line of a batch and a path.
pub fn is_valid_key(key: &str) -> bool {
    matches!(key.len(), 1..=IDEMPOTENCY_KEY_BYTES_MAX) && key.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

pub fn bad_key() -> Refusal {
    Refusal::malformed(format!(
        "an idempotency key must have 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters"
    ))
}

/// Time between two checks whether an answer may be given.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The wait of a request until the data is as fresh as it asks.
pub struct FreshWait {
    begun: Instant,
    wait_max: Duration,
    /// Time for which the client waits for the whole answer.
    timeout: Option<Duration>,
}

impl FreshWait {
    /// A page has no limit to its whole time.
    pub fn of(headers: &HeaderMap, is_page: bool) -> Result<Self, Refusal> {
        let wait_max = number(headers, headers::MAX_WAIT_MS)?.map(Duration::from_millis);
        Ok(Self {
            begun: Instant::now(),
            wait_max: wait_max.unwrap_or(READ_WAIT_DEFAULT).min(READ_WAIT_MAX),
            timeout: if is_page { None } else { client_timeout(headers)? },
        })
    }

    /// Returns the end of the wait.
    pub fn until(&self) -> Instant {
        let timeout = self.timeout.unwrap_or(self.wait_max);
        self.begun + timeout.min(self.wait_max)
    }

    /// Returns the refusal of a request whose wait has ended.
    pub fn refusal(&self, detail: String) -> Refusal {
        match self.timeout {
            Some(timeout) if timeout <= self.wait_max => Refusal::deadline_exceeded(),
            _ => Refusal::new(ProblemKind::TooStale, detail),
        }
    }

    /// Returns what is left of the client's time.
    pub fn left(&self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.begun.elapsed()))
    }
}

/// Read your writes: waits until the read view holds the record at the asked LSN.
pub async fn wait_for_min_lsn(state: &AppState, headers: &HeaderMap, wait: &FreshWait) -> Result<(), Refusal> {
    let Some(min_lsn) = number(headers, headers::MIN_LSN)? else {
        return Ok(());
    };
    let router = &state.router;
    if router.is_in_view(Lsn(min_lsn)) {
        return Ok(());
    }
    if !router.has_log() {
        let detail = "this server keeps no log (--log none), so it reaches no LSN but 0";
        return Err(Refusal::new(ProblemKind::TooStale, detail));
    }
    let seen = async {
        let (sender, reached) = oneshot::channel();
        let hook = Box::new(move || _ = sender.send(())); // the request may be over
        if let Some(_waiter) = router.when_in_view(Lsn(min_lsn), hook) {
            let _ = reached.await;
        }
        // The standbys of a primary have to have it, too.
        while !router.is_in_view(Lsn(min_lsn)) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match timeout_at(wait.until(), seen).await {
        Ok(()) => Ok(()),
        Err(_) => Err(wait.refusal(format!(
            "the server shows every record before LSN {}, and you asked for {min_lsn}; wait longer (Reprise-Max-Wait-Ms), or read from the primary",
            router.view()
        ))),
    }
}

/// True if the headers ask for no wait. False also if their values are invalid.
pub fn is_in_view(state: &AppState, headers: &HeaderMap) -> bool {
    if headers.contains_key(headers::MAX_LAG_MS) {
        return false;
    }
    match number(headers, headers::MIN_LSN) {
        Ok(min_lsn) => min_lsn.is_none_or(|min_lsn| state.router.is_in_view(Lsn(min_lsn))),
        Err(_) => false,
    }
}

/// A header that stands once, if it does.
pub fn single<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).into_iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Refusal::malformed(format!(
            "the request has the header {name} more than once"
        ))),
    }
}

/// The number in a header; none without it.
pub fn number(headers: &HeaderMap, name: &'static str) -> Result<Option<u64>, Refusal> {
    let Some(value) = single(headers, name)? else {
        return Ok(None);
    };
    match value.to_str().ok().and_then(|text| parse_digits(text.trim())) {
        Some(number) => Ok(Some(number)),
        None => Err(Refusal::malformed(format!(
            "the header {name} must be a number of 1 to 19 digits"
        ))),
    }
}
