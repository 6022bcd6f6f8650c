//! `POST /v1/batch`: calls, one a line, answered line by line in their order.
//!
//! One task reads and submits, the response's stream waits and writes; between them lies a bounded queue of chunks. A
//! chunk is what one piece of the body held, so no call waits for the next one to arrive.

mod answer;
mod line;
mod read;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use reprise_api::{BatchAnswer, BatchCall, NDJSON_MEDIA_TYPE, Problem};
use reprise_base::limits::BATCH_CALLS_MAX;
use reprise_router::BatchReply;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{
    auth::Role,
    limits::{BATCH_BYTES_IN_FLIGHT_MAX, BATCH_CHUNKS_IN_FLIGHT_MAX},
    refusal::Refusal,
    state::AppState,
};
use line::Chunk;

/// Runs many calls
///
/// The body is newline-delimited JSON, one call a line. Each call is a transaction of its own; the answer has a line for
/// each, in the order of the calls: the members of a single call's answer, or `problem`. Answers are sent while calls are
/// still read, so a client with more than some thousand calls must read while it writes.
#[utoipa::path(
    post,
    path = "/v1/batch",
    tag = "Calls",
    request_body(content = BatchCall, content_type = "application/x-ndjson", description = "A call a line"),
    responses(
        (status = 200, description = "An answer a line", body = BatchAnswer, content_type = "application/x-ndjson"),
        (status = 401, description = "unauthorized", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn batch(State(state): State<AppState>, request: Request) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let may_write = state.auth.require(&head.headers, Role::Write).is_ok();
    let (sender, receiver) = mpsc::channel(BATCH_CHUNKS_IN_FLIGHT_MAX);
    let pace = Arc::new(Pace::default());
    let reader = read::Reader::new(state.clone(), may_write, sender, pace.clone());
    // Should the client go, the queue closes and the reader ends; what it submitted is answered all the same.
    tokio::spawn(reader.run(body));
    let writer = Writer {
        state,
        may_write,
        receiver,
        pace,
    };
    let stream = futures_util::stream::unfold(writer, async |mut writer| {
        let answers = writer.next().await?;
        Some((Ok::<_, Infallible>(answers), writer))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let media_type = HeaderValue::from_static(NDJSON_MEDIA_TYPE);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, media_type);
    Ok(response)
}

/// A chunk on its way through the engine.
struct Pending {
    chunk: Chunk,
    /// None when no line of the chunk is a call.
    reply: Option<oneshot::Receiver<BatchReply>>,
    _bytes: OwnedSemaphorePermit,
}

/// How much one batch has on its way: few calls at first, and few where the results are large.
struct Pace {
    calls_max: AtomicUsize,
    bytes: Arc<Semaphore>,
}

/// Calls of a batch's first chunks, before the size of its results is known.
const FIRST_CALLS: usize = 16;
/// Result bytes that one chunk may be expected to bring.
const CHUNK_RESULT_BYTES: usize = 256 << 10;

impl Default for Pace {
    fn default() -> Self {
        Self {
            calls_max: AtomicUsize::new(FIRST_CALLS),
            bytes: Arc::new(Semaphore::new(BATCH_BYTES_IN_FLIGHT_MAX)),
        }
    }
}

impl Pace {
    fn calls_max(&self) -> usize {
        self.calls_max.load(Ordering::Relaxed)
    }

    fn learn(&self, calls: usize, answer_bytes: usize) {
        let bytes_per_call = answer_bytes / calls.max(1) + 1;
        let calls_max = (CHUNK_RESULT_BYTES / bytes_per_call).clamp(1, BATCH_CALLS_MAX);
        self.calls_max.store(calls_max, Ordering::Relaxed);
    }
}

struct Writer {
    state: AppState,
    may_write: bool,
    receiver: mpsc::Receiver<Pending>,
    pace: Arc<Pace>,
}

impl Writer {
    async fn next(&mut self) -> Option<Bytes> {
        let Pending {
            mut chunk,
            reply,
            _bytes,
        } = self.receiver.recv().await?;
        if let Some(reply) = reply {
            match reply.await {
                Ok(reply) => chunk.replies.push(reply),
                Err(_) => chunk.engine_gone(),
            }
            chunk.repeat_superseded(&self.state, self.may_write).await;
        }
        let answers = chunk.write_answers();
        self.pace.learn(chunk.slots.len(), answers.len());
        Some(answers.into())
    }
}
