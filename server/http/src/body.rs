//! Bodies, read within their limits.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use reprise_api::{Problem, ProblemKind};
use reprise_base::{Budget, Grant};
use serde::de::DeserializeOwned;

use crate::{
    auth::Judgement,
    limits::{
        BODY_BYTES_PER_S_MIN, BYTES_COUNTED, DISCARD_BYTES_MAX, DISCARD_WAIT_MAX, JOIN_BODY_BYTES_MAX,
        REQUEST_BYTES_SURE,
    },
    refusal::Refusal,
    state::AppState,
};

/// The next piece of a body; None at its end.
pub async fn next_data(body: &mut Body, wait_max: Duration) -> Result<Option<Bytes>, Refusal> {
    loop {
        // A frame that has arrived needs no timer.
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None => match tokio::time::timeout(wait_max, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return Err(timed_out(wait_max)),
            },
        };
        match frame {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err(Refusal::malformed(format!("the body broke off: {error}")));
            }
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
        }
    }
}

pub fn timed_out(wait_max: Duration) -> Refusal {
    let detail = format!(
        "the body came too slowly (the server waited {:.1} s for its next part); send it faster",
        wait_max.as_secs_f64()
    );
    Refusal::new(ProblemKind::RequestTimeout, detail)
}

/// How long the next piece of a body may take, after `received` bytes since `begun`.
fn wait_for_next(wait_max: Duration, begun: Instant, received: u64) -> Duration {
    let earned = wait_max + Duration::from_millis(received * 1000 / BODY_BYTES_PER_S_MIN);
    wait_max.min(earned.saturating_sub(begun.elapsed()))
}

/// The limits of a body. `what` names it in the refusal of one with more than `bytes_max`. No piece may take longer than `wait_max`, nor
/// all of them much longer than their bytes are worth.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub what: &'static str,
    pub bytes_max: usize,
    pub wait_max: Duration,
}

/// A body, counted among all requests on their way as long as it lives.
pub struct Whole {
    pub bytes: Bytes,
    _grant: Option<Grant>,
}

/// Number of copies of a body in memory: as it arrived, and in its decoded form.
const COPIES: u64 = 2;

/// Reads the small JSON body of a question between servers, which `what` names.
pub async fn read_question<T: DeserializeOwned>(
    state: &AppState,
    request: Request,
    what: &'static str,
) -> Result<T, Refusal> {
    let (head, body) = request.into_parts();
    let bounds = Bounds {
        what,
        bytes_max: JOIN_BODY_BYTES_MAX,
        wait_max: state.limits.body_wait,
    };
    let body = read_all(state, &head, body, bounds).await?;
    serde_json::from_slice(&body.bytes).map_err(|error| Refusal::malformed(format!("the body is not {what}: {error}")))
}

/// Reads the whole body of a request, and checks its sender again if the tokens changed meanwhile. A body without room among the requests is
/// refused, before it is read if its length is declared.
pub async fn read_all(state: &AppState, head: &Parts, body: Body, bounds: Bounds) -> Result<Whole, Refusal> {
    let whole = read_within(&head.headers, body, bounds, state.requests()).await?;
    Judgement::check_again(&state.auth(), head)?;
    Ok(whole)
}

async fn read_within(
    headers: &HeaderMap,
    body: Body,
    bounds: Bounds,
    requests: &Arc<Budget>,
) -> Result<Whole, Refusal> {
    let Bounds {
        what,
        bytes_max,
        wait_max,
    } = bounds;
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > bytes_max as u64) {
        // A client that asked first has sent nothing yet.
        if !headers.contains_key(header::EXPECT) {
            discard(body).await;
        }
        return Err(Refusal::too_large(what, bytes_max));
    }
    let counted = announced.filter(|length| *length > REQUEST_BYTES_SURE);
    if counted.is_some_and(|length| !requests.has_room(length * COPIES)) {
        return Err(requests_full());
    }
    let mut body = body;
    let Some(first) = next_data(&mut body, wait_max).await? else {
        return Ok(Whole {
            bytes: Bytes::new(),
            _grant: None,
        });
    };
    if announced == Some(first.len() as u64) && counted.is_none() {
        return Ok(Whole {
            _grant: count_short(first.len(), requests),
            bytes: first,
        });
    }
    let mut grant = None;
    let mut all = BytesMut::new();
    all.extend_from_slice(&first);
    let begun = Instant::now();
    loop {
        let wait = wait_for_next(wait_max, begun, all.len() as u64);
        let Some(data) = next_data(&mut body, wait).await? else {
            break;
        };
        if all.len() + data.len() > bytes_max {
            discard(body).await;
            return Err(Refusal::too_large(what, bytes_max));
        }
        all.extend_from_slice(&data);
        if !count(&all, &mut grant, requests) {
            drop(all);
            discard(body).await;
            return Err(requests_full());
        }
    }
    if all.len() > bytes_max {
        return Err(Refusal::too_large(what, bytes_max));
    }
    Ok(Whole {
        _grant: grant.or_else(|| count_short(all.len(), requests)),
        bytes: all.freeze(),
    })
}

/// A body for which there is room in any case.
fn count_short(bytes: usize, requests: &Arc<Budget>) -> Option<Grant> {
    (bytes as u64 > BYTES_COUNTED).then(|| requests.take(bytes as u64 * COPIES))
}

/// Counts the bytes that have arrived, so that a client holds no room for bytes that it has not sent. False: there is no room.
fn count(all: &BytesMut, grant: &mut Option<Grant>, requests: &Arc<Budget>) -> bool {
    let bytes = all.capacity() as u64 * COPIES;
    match grant {
        _ if all.len() as u64 <= REQUEST_BYTES_SURE => true,
        None => {
            *grant = requests.try_take(bytes);
            grant.is_some()
        }
        Some(grant) => grant.try_grow(bytes.saturating_sub(grant.bytes())),
    }
}

/// Requests that are read or run hold all the memory that there is for them.
pub fn requests_full() -> Refusal {
    let detail =
        "the requests in progress fill the memory for requests; try again after the given time, or send less at once";
    let mut problem = Problem::new(ProblemKind::Overloaded, detail);
    problem.retry_after_ms = Some(200);
    problem.into()
}

/// Takes the rest of a refused body: a client that is still writing when its connection closes may never see why.
async fn discard(body: Body) {
    let mut body = pin!(body);
    let drain = async {
        let mut dropped = 0;
        while let Some(Ok(frame)) = body.frame().await {
            dropped += frame.data_ref().map_or(0, |data| data.len() as u64);
            if dropped > DISCARD_BYTES_MAX {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_WAIT_MAX, drain).await; // after a timeout the connection closes as well
}
