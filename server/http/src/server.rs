//! Connections: accepted, served, drained.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{Router, body::Body};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use crate::{
    docs, front, lane,
    limits::{DRAIN_WAIT_MAX, HEADER_BYTES_MAX, HEADERS_MAX, READ_BUFFER_BYTES_MAX},
    stall::StallGuard,
    state::AppState,
};

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("accept connections: {0}")]
    Accept(io::Error),
}

/// Pause after a failed accept: out of file descriptors, most likely, and trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` ends, then finishes the requests under way, for at most ten seconds.
pub async fn serve(
    listener: TcpListener,
    state: AppState,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let router = docs::routes(state.clone());
    let connections_max = state.limits.connections_max;
    let places = Arc::new(Semaphore::new(connections_max as usize));
    let mut shutdown = pin!(shutdown);
    loop {
        let place = places.clone().acquire_owned();
        let next = async {
            let place = place.await.expect("never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            () = &mut shutdown => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(serve_connection(
                    stream,
                    state.clone(),
                    router.clone(),
                    place,
                ));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if is_passing(&error) => {
                tracing::warn!(%error, "accept connection");
                sleep(ACCEPT_PAUSE).await;
            }
            Err(error) => return Err(ServeError::Accept(error)),
        }
    }
    drop(listener);
    state.draining.send_replace(true);
    // Every place free again: every connection has ended.
    if timeout(DRAIN_WAIT_MAX, places.acquire_many(connections_max))
        .await
        .is_err()
    {
        let open = connections_max as usize - places.available_permits();
        tracing::warn!(
            open,
            "connections still open at the end of the drain are cut off"
        );
    }
    Ok(())
}

/// The peer went away between its arrival and our accept.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// Out of file descriptors or memory: passes once connections end.
fn is_passing(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const ENOBUFS: i32 = 105;
    const ENOMEM: i32 = 12;
    matches!(
        error.raw_os_error(),
        Some(ENFILE | EMFILE | ENOBUFS | ENOMEM)
    ) || error.kind() == io::ErrorKind::Interrupted
}

async fn serve_connection(
    stream: TcpStream,
    state: AppState,
    router: Router,
    _place: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true); // a closed socket fails at its first read as well
    state.counts.connections.fetch_add(1, Ordering::Relaxed);
    state
        .counts
        .connections_open
        .fetch_add(1, Ordering::Relaxed);
    let stream = StallGuard::new(stream, state.limits.write_wait);
    // Spans begin with a request: those are hyper's from the first.
    let stream = match state.tracer {
        None => lane::serve(stream, &state).await,
        Some(_) => Some(stream),
    };
    if let Some(stream) = stream {
        serve_requests(stream, &state, router).await;
    }
    state
        .counts
        .connections_open
        .fetch_sub(1, Ordering::Relaxed);
}

/// Whatever the requests are, one after the other.
async fn serve_requests(stream: StallGuard, state: &AppState, router: Router) {
    let limits = state.limits;
    let mut draining = state.draining.subscribe();
    let service = {
        let state = state.clone();
        service_fn(move |request: Request<Incoming>| {
            let (state, router) = (state.clone(), router.clone());
            async move { front::answer(&state, &router, request.map(Body::new)).await }
        })
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_wait)
        .max_buf_size(READ_BUFFER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        // Not `pipeline_flush`: while unread input is buffered it writes nothing, so an answer before the end of a body
        // would be lost when the connection closes, and a batch's answers would pile up without bound.
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
