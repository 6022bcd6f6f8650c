//! `POST /v1/batch`: calls, one a line (JSON) or one an item (CBOR), answered in their order.
//!
//! The response's stream does everything: it reads the body, hands chunks of calls to the engine, and gives out answers.
//! One batch therefore lives in one task, the connection's. A client that takes no answers sends no calls either, because a stream that is
//! not polled does not read. A chunk holds the calls that have arrived, so no call waits for the next one.

mod answer;
mod input;
mod line;

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, HttpBody},
    extract::{Request, State},
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use reprise_api::{BatchAnswer, BatchCall, CBOR_SEQUENCE_MEDIA_TYPE, NDJSON_MEDIA_TYPE, Problem, headers};
use reprise_codec::Format;
use reprise_router::BatchBuilder;
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, TryAcquireError},
    time::{Sleep, sleep},
};

use crate::{
    auth::CallerSession,
    body::{requests_full, timed_out},
    calls::{client_timeout, define_caller},
    front,
    limits::{BATCH_ANSWER_BYTES, BATCH_BYTES_IN_FLIGHT_MAX, BATCH_CALLS_EACH_MAX, BATCH_CHUNKS_IN_FLIGHT_MAX},
    media::{format_of_answer, format_of_body},
    refusal::Refusal,
    reply::BatchResources,
    safety::{self, AskedSafety},
    state::AppState,
    texts::WaitForRoom,
    trace::RequestSpan,
};
use input::{BodyPiece, CallsAhead, Input};
pub(crate) use line::{Chunk, LineParser};

pub const PATH: &str = "/v1/batch";

/// Runs many calls
///
/// Takes newline-delimited JSON with one call on each line, or a CBOR sequence with one call in each item. Each call is its own
/// transaction. The answer has one line (or item) for each call, in the order of the calls: the members of a single call's answer, or
/// `problem`. The server sends answers while it still reads calls. So a client with more than some thousand calls must read while it
/// writes. Each call may have an idempotency key, the member `idempotency_key` of its line. The server refuses the header
/// `Idempotency-Key` on a batch.
#[utoipa::path(
    post,
    path = "/v1/batch",
    tag = "Calls",
    params(
        ("Reprise-Timeout-Ms" = Option<u64>, Header, description = "Time limit in milliseconds. If a call has not begun or ended by then, the server ends it as deadline-exceeded and keeps nothing of it"),
        ("Reprise-Safety" = Option<String>, Header, description = "Smallest safety level of writes. If the server can't reach it, it refuses them before they run, or answers outcome-unknown"),
        ("Reprise-Min-Lsn" = Option<String>, Header, pattern = "^[0-9]{1,19}$", description = "LSN that reads must include. The server begins once its data includes it"),
        ("Reprise-Max-Lag-Ms" = Option<u64>, Header, description = "On a standby: largest lag in milliseconds. The server waits until its lag is at most this"),
        ("Reprise-Max-Wait-Ms" = Option<u64>, Header, description = "Longest wait in milliseconds. Default: 1000"),
    ),
    request_body(content(
        (BatchCall = "application/x-ndjson"),
        (BatchCall = "application/cbor-seq"),
    ), description = "One call on each line, or in each CBOR item"),
    responses(
        (status = 200, description = "One answer on each line, or in each CBOR item, in the order of the calls", content(
            (BatchAnswer = "application/x-ndjson"),
            (BatchAnswer = "application/cbor-seq"),
        )),
        (status = 504, description = "deadline-exceeded: the data was not as fresh as asked within the client's time", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn batch(State(state): State<AppState>, request: Request) -> Result<Response, Refusal> {
    answer(&state, request).await
}

/// Answers a batch as `batch` does, but not through axum's tables.
pub async fn answer(state: &AppState, request: Request) -> Result<Response, Refusal> {
    let (mut head, body) = request.into_parts();
    if head.headers.contains_key(headers::IDEMPOTENCY_KEY) {
        let detail = "a batch has no idempotency key, because each of its calls commits alone: give each call a key, as the member idempotency_key of \
                      its line";
        return Err(Refusal::malformed(detail));
    }
    front::check_no_query(&head.uri)?;
    let format = format_of_body(&head.headers)?;
    let timeout = client_timeout(&head.headers)?;
    let deadline_ns = timeout.map(|timeout| state.router.deadline_in(timeout));
    let overdue = timeout.map(|timeout| Box::pin(sleep(timeout)));
    let safety = AskedSafety::of(state, safety::asked(&head.headers)?, timeout)?;
    let answers = format_of_answer(&head.headers, format);
    let span = head.extensions.remove::<RequestSpan>();
    let caller = CallerSession::of(&state.auth(), &head.headers)?;
    let named = define_caller(state, &caller.principal).await;
    let conversation = Conversation {
        state: state.clone(),
        answers,
        body: Some(body),
        idle: None,
        input: Input::new(format, state.router.new_stream(), named, deadline_ns),
        caller,
        safety,
        is_shut_out: false,
        calls_max: FIRST_CALLS,
        permit: None,
        overdue,
        pending: VecDeque::new(),
        pending_bytes: 0,
        pending_calls: 0,
        room: None,
        span,
        answered: 0,
        failed: 0,
    };
    let stream = futures_util::stream::unfold(conversation, async |mut conversation| {
        let answers = std::future::poll_fn(|cx| conversation.poll_answers(cx)).await?;
        Some((Ok::<_, Infallible>(answers), conversation))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let media_type = HeaderValue::from_static(match answers {
        Format::Json => NDJSON_MEDIA_TYPE,
        Format::Cbor => CBOR_SEQUENCE_MEDIA_TYPE,
    });
    response.headers_mut().insert(header::CONTENT_TYPE, media_type);
    Ok(response)
}

/// Bytes that a call of a batch holds beside its line and its arguments, until it is answered.
const CALL_BYTES_HELD: usize = 256;
/// Calls of a batch's first chunks, before the size of its results is known.
const FIRST_CALLS: usize = 16;
/// Result bytes that one chunk may be expected to bring.
const CHUNK_RESULT_BYTES: usize = 256 << 10;

/// One request, from its first line to its last answer.
struct Conversation {
    state: AppState,
    caller: CallerSession,
    /// The safety level that the batch asks for all of its writes.
    safety: Option<AskedSafety>,
    /// Its token was withdrawn.
    is_shut_out: bool,
    answers: Format,
    /// None once nothing more is to be read.
    body: Option<Body>,
    /// Runs until the next call has come.
    idle: Option<Pin<Box<Sleep>>>,
    input: Input,
    /// Number of calls of a chunk if their results may be large.
    calls_max: usize,
    permit: Option<WaitForPermit>,
    /// Ready once the batch's deadline has passed.
    overdue: Option<Pin<Box<Sleep>>>,
    /// Pending chunks, in the order of their calls.
    pending: VecDeque<Chunk>,
    pending_bytes: usize,
    pending_calls: usize,
    /// The first chunk's answers are long, and wait for their room.
    room: Option<WaitForRoom>,
    span: Option<RequestSpan>,
    answered: usize,
    failed: usize,
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(span) = &self.span {
            span.batch_ended(self.answered, self.failed);
        }
    }
}

type WaitForPermit = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

/// A chunk and its calls, ready to be submitted.
struct ChunkBatch {
    chunk: Chunk,
    batch: BatchBuilder,
}

impl Conversation {
    /// The next answers; None after the last.
    fn poll_answers(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let blocked = self.poll_submit(cx);
            let answers = self.take_answers(cx);
            if !answers.is_empty() {
                return Poll::Ready(Some(answers));
            }
            if blocked {
                // Woken by the permit or by the first pending answer.
                return Poll::Pending;
            }
            if self.body.is_none() && self.pending.is_empty() {
                return Poll::Ready(None);
            }
            ready!(self.poll_body(cx));
        }
    }

    /// Submits the calls that were read. True: calls are left that have no place yet. A key counts as running from the cut on, and calls of other
    /// batches wait for it in their places. So a chunk gets its places before the cut, and is submitted at once.
    fn poll_submit(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            self.check_caller();
            let Some(ahead) = self.input.ahead() else {
                return false;
            };
            if self.is_full(&ahead) {
                return true;
            }
            let requests = self.state.requests();
            let mut grant = requests.try_take(held_bytes(ahead.bytes, ahead.calls));
            if grant.is_none() && !self.pending.is_empty() {
                return true; // the calls in progress make room
            }
            let Poll::Ready(places) = self.poll_places(cx, ahead.calls as u32) else {
                return true;
            };
            let cut = self.input.cut(&self.state, &self.caller.principal, self.calls_max);
            let Some(ChunkBatch { mut chunk, batch }) = cut else {
                continue;
            };
            // Pieces of a call do not end the wait for it. A byte now and then would hold the batch open for ever.
            self.idle = None;
            let (held, calls) = (chunk.held_bytes(), batch.len());
            match &mut grant {
                Some(grant) => grant.resize(held),
                None => grant = self.state.requests().try_take(held),
            }
            self.pending_bytes += chunk.line_bytes;
            self.pending_calls += chunk.calls.slots().len();
            match places {
                _ if calls == 0 => {}
                // Nothing of this batch is on its way that would give memory back.
                _ if grant.is_none() => chunk.calls.refuse_all(requests_full),
                None => chunk.calls.refuse_all(Refusal::deadline_exceeded),
                Some(mut places) => {
                    let own = places.split(calls).expect("a chunk has no more calls than were ahead");
                    let counter = &self.state.counts.batch_calls;
                    counter.fetch_add(calls as u64, Ordering::Relaxed);
                    chunk.calls.ask_safety(self.safety);
                    let resources = BatchResources::new(own, grant.take());
                    chunk.calls.submit(&self.state, batch, resources);
                }
            }
            chunk.refused_grant = grant;
            self.pending.push_back(chunk);
        }
    }

    /// Whether the calls in progress leave no room for those ahead. How long results are is not known before the first are there.
    fn is_full(&self, ahead: &CallsAhead) -> bool {
        let Some(last) = self.pending.back() else {
            return false;
        };
        let is_first = self.answered == 0 && !last.calls.has_small_results();
        is_first
            || self.pending.len() >= BATCH_CHUNKS_IN_FLIGHT_MAX
            || self.pending_calls + ahead.calls > BATCH_CALLS_EACH_MAX
            || self.pending_bytes + ahead.bytes > BATCH_BYTES_IN_FLIGHT_MAX
    }

    /// Waits for the places of `calls` calls. None: the batch's deadline has passed.
    fn poll_places(&mut self, cx: &mut Context<'_>, calls: u32) -> Poll<Option<OwnedSemaphorePermit>> {
        if let Poll::Ready(places) = self.poll_permit(cx, calls) {
            return Poll::Ready(Some(places));
        }
        let Some(overdue) = &mut self.overdue else {
            return Poll::Pending;
        };
        ready!(overdue.as_mut().poll(cx));
        self.permit = None;
        Poll::Ready(None)
    }

    /// Ends the batch if its token was withdrawn. Calls that are not submitted yet do not run.
    fn check_caller(&mut self) {
        // Told once: each refusal is an answer.
        if self.is_shut_out {
            return;
        }
        if let Err(refusal) = self.caller.check_again(&self.state.auth()) {
            self.is_shut_out = true;
            self.input.refuse_rest(refusal);
            // The refusal needs no place.
            (self.body, self.permit) = (None, None);
        }
    }

    /// Waits for a permit to give `calls` calls to the engine. A task that waits keeps its turn.
    fn poll_permit(&mut self, cx: &mut Context<'_>, calls: u32) -> Poll<OwnedSemaphorePermit> {
        let wait = match &mut self.permit {
            Some(wait) => wait,
            None => match self.state.batch_calls.clone().try_acquire_many_owned(calls) {
                Ok(permit) => return Poll::Ready(permit),
                Err(TryAcquireError::Closed) => unreachable!("never closed"),
                Err(TryAcquireError::NoPermits) => {
                    let permits = self.state.batch_calls.clone();
                    self.permit.insert(Box::pin(permits.acquire_many_owned(calls)))
                }
            },
        };
        let permit = ready!(wait.as_mut().poll(cx)).expect("never closed");
        self.permit = None;
        Poll::Ready(permit)
    }

    /// Answers to the first chunks, as many as are there.
    fn take_answers(&mut self, cx: &mut Context<'_>) -> Bytes {
        let (mut out, mut held) = (Vec::new(), None);
        while out.len() < BATCH_ANSWER_BYTES
            && let Some(first) = self.pending.front_mut()
        {
            if first.calls.poll(cx, &self.state, &first.text).is_pending() {
                break;
            }
            let bytes_max = first.text_bytes_max();
            if let Some(asked) = self.state.texts.asked(bytes_max) {
                let room = self.room.get_or_insert_with(|| Box::pin(asked));
                // Existing output goes first: a batch that holds room never waits.
                let room = match out.is_empty() {
                    true => room.as_mut().poll(cx),
                    false => Poll::Pending,
                };
                let Poll::Ready(room) = room else {
                    break;
                };
                self.room = None;
                held = Some(room);
            }
            let (before, calls) = (out.len(), first.calls.slots().len());
            self.failed += first.write_answers(self.answers, &mut out);
            self.answered += calls;
            self.pending_bytes -= first.line_bytes;
            self.pending_calls -= calls;
            self.pending.pop_front();
            let bytes_per_call = (out.len() - before) / calls.max(1) + 1;
            self.calls_max = (CHUNK_RESULT_BYTES / bytes_per_call).max(1);
        }
        self.state.texts.hold(out, held)
    }

    /// Reads on. Ready: there is something new to cut, or the end was reached.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(body) = &mut self.body else {
            return Poll::Pending; // the first pending answer wakes this task
        };
        let piece = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(None) => BodyPiece::End,
            Poll::Ready(Some(Ok(frame))) => BodyPiece::Data(frame.into_data().unwrap_or_default()),
            Poll::Ready(Some(Err(error))) => {
                BodyPiece::Broken(Refusal::malformed(format!("the body broke off: {error}")))
            }
            Poll::Pending => {
                let idle_max = self.state.limits.batch_idle;
                let idle = self.idle.get_or_insert_with(|| Box::pin(sleep(idle_max)));
                ready!(idle.as_mut().poll(cx));
                BodyPiece::Broken(timed_out(idle_max))
            }
        };
        if self.input.take(piece, self.state.requests()) {
            self.body = None;
        }
        Poll::Ready(())
    }
}

/// Bytes of arguments, places in a batch and outcomes of so many calls. Their lines count by themselves.
fn held_bytes(line_bytes: usize, calls: usize) -> u64 {
    (line_bytes + calls * CALL_BYTES_HELD) as u64
}

impl Chunk {
    /// Returns the bytes that it holds until it is answered beside its text: arguments, places in a batch and outcomes.
    fn held_bytes(&self) -> u64 {
        held_bytes(self.line_bytes, self.calls.slots().len()) + self.calls.refused_bytes() as u64
    }
}
