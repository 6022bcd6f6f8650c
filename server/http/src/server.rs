//! Connections: accepted, served, drained.

use std::{
    convert::Infallible,
    future::Future,
    io,
    pin::pin,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use reprise_api::{Problem, ProblemKind};
use reprise_base::MemoryKind;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use crate::{
    connections::{ConnectionSlot, ConnectionSlots},
    docs, front,
    heads::WatchedStream,
    limits::{
        CONNECTION_BYTES, CONNECTION_TLS_BYTES, DRAIN_WAIT_MAX, HEADER_BYTES_MAX, HEADERS_MAX, PROBE_WAIT_MAX,
        READ_BUFFER_BYTES_MAX,
    },
    pipeline::{self, answer::last_answer},
    refusal::Refusal,
    stall::StallGuard,
    state::AppState,
    tls,
};

/// Why the server ends.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener fails.
    #[error("accept connections: {0}")]
    Accept(io::Error),
}

/// Pause after a failed accept: out of file descriptors, most likely, and trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two reports of it.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Serves until `shutdown` ends, then finishes the requests under way, for at most ten seconds.
pub async fn serve(
    listener: TcpListener,
    state: AppState,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let router = docs::routes(state.clone());
    let limits = state.limits;
    let places = ConnectionSlots::new(limits.connections_max, limits.connections_per_peer_max);
    let mut shutdown = pin!(shutdown);
    let mut logged_at = None;
    loop {
        let next = async {
            places.until_free().await;
            listener.accept().await
        };
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, peer)) => match places.take(peer.ip()).await {
                Some(place) => {
                    tokio::spawn(serve_connection(stream, state.clone(), router.clone(), place));
                }
                // A refusal by TLS would make the listener wait, so the peer sees the end only.
                None if state.tls.is_some() => drop(stream),
                None => turn_away(&stream),
            },
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if is_passing(&error) => {
                if logged_at.is_none_or(|logged_at: Instant| logged_at.elapsed() >= ACCEPT_LOG_INTERVAL) {
                    tracing::warn!(%error, "accept connection");
                    logged_at = Some(Instant::now());
                }
                sleep(ACCEPT_PAUSE).await;
            }
            Err(error) => return Err(ServeError::Accept(error)),
        }
    }
    drop(listener);
    state.draining.send_replace(true);
    // Every place free again: every connection has ended.
    if timeout(DRAIN_WAIT_MAX, places.until_all_free()).await.is_err() {
        let open = places.taken();
        tracing::warn!(open, "connections still open at the end of the drain are cut off");
    }
    Ok(())
}

/// Sends the reason to the peer's buffer, and closes the connection. It does not wait for a connection beyond the bound.
fn turn_away(stream: &TcpStream) {
    let refusal = full(
        "this address has too many open connections; reuse them, or ask the operator for a larger connections_per_peer_max",
    );
    let _ = stream.try_write(&last_answer(&refusal)); // the peer sees at least the end of the connection
}

fn full(detail: &str) -> Refusal {
    let mut problem = Problem::new(ProblemKind::Overloaded, detail);
    problem.retry_after_ms = Some(5_000);
    problem.into()
}

/// Answers a connection on a place for probes and control: it can read the server's state, and end calls.
async fn answer_probe(state: &AppState, router: &Router, request: Request<Incoming>) -> Result<Response, Infallible> {
    let path = request.uri().path();
    let is_taken = matches!(path, "/healthz" | "/readyz" | "/metrics" | "/v1/status" | "/v1/calls")
        || path.starts_with("/v1/calls/");
    if is_taken {
        return front::answer(state, router, request.map(Body::new)).await;
    }
    let refusal =
        full("the server has its largest number of connections, and keeps the rest for probes and control; try again");
    state.count_refusal(&refusal);
    Ok(refusal.into_response())
}

/// The peer went away between its arrival and our accept.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Out of file descriptors or memory: passes once connections end.
fn is_passing(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    const ENOMEM: i32 = 12;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE | ENOBUFS | ENOMEM))
        || error.kind() == io::ErrorKind::Interrupted
}

async fn serve_connection(stream: TcpStream, state: AppState, router: Router, place: ConnectionSlot) {
    let _ = stream.set_nodelay(true); // a closed socket fails at its first read anyway
    state.counts.connections.fetch_add(1, Ordering::Relaxed);
    state.counts.connections_open.fetch_add(1, Ordering::Relaxed);
    let bytes = CONNECTION_BYTES + if state.tls.is_some() { CONNECTION_TLS_BYTES } else { 0 };
    let _buffers = state.router.memory().kind(MemoryKind::Connections).take(bytes);
    tokio::select! {
        () = serve_socket(stream, &state, router, &place) => {}
        () = place.until_asked_to_leave() => {}
    }
    state.counts.connections_open.fetch_sub(1, Ordering::Relaxed);
}

async fn serve_socket(stream: TcpStream, state: &AppState, router: Router, place: &ConnectionSlot) {
    let header_wait = header_wait(state, place.is_probe());
    let Some(socket) = tls::greet(stream, state.tls.as_ref(), header_wait).await else {
        return;
    };
    let stream = StallGuard::new(socket, state.limits.write_wait);
    let stream = match place.is_probe() {
        false => pipeline::serve(stream, state).await,
        true => Some(stream),
    };
    if let Some(stream) = stream {
        serve_requests(stream, state, router, place, header_wait).await;
    }
}

/// How long a client may take for its greeting, and for the head of a request.
fn header_wait(state: &AppState, is_probe: bool) -> Duration {
    let wait = state.limits.header_wait;
    match is_probe {
        false => wait,
        true => wait.min(PROBE_WAIT_MAX),
    }
}

/// Whatever the requests are, one after the other.
async fn serve_requests(
    stream: StallGuard,
    state: &AppState,
    router: Router,
    place: &ConnectionSlot,
    header_wait: Duration,
) {
    let is_probe = place.is_probe();
    let mut draining = state.draining.subscribe();
    let (stream, check) = WatchedStream::new(stream, state.clone());
    let service = {
        let state = state.clone();
        service_fn(move |request: Request<Incoming>| {
            let (state, router) = (state.clone(), router.clone());
            let checked = check.next();
            place.begin_answer();
            async move {
                if let Err(refusal) = checked {
                    state.count_refusal(&refusal);
                    let mut answer = refusal.into_response();
                    answer
                        .headers_mut()
                        .insert(header::CONNECTION, HeaderValue::from_static("close"));
                    return Ok(answer);
                }
                match is_probe {
                    false => front::answer(&state, &router, request.map(Body::new)).await,
                    true => answer_probe(&state, &router, request).await,
                }
            }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_wait)
        .keep_alive(!is_probe)
        .max_buf_size(READ_BUFFER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        // A client that has sent everything and closed its side still reads the answer.
        .half_close(true)
        // `pipeline_flush` is off, because it writes nothing while unread input is buffered. An answer before the end of a body would be
        // lost when the connection closes, and a batch's answers would pile up without bound.
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let drain = async {
        let _ = draining.wait_for(|draining| *draining).await; // the sender lives as long as the state
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}
