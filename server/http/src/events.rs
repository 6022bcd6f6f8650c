//! `/v1/events`: server-sent events for live views.

use std::convert::Infallible;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    response::Response,
};
use bytes::Bytes;
use reprise_api::{LatencyUs, MetricsEvent, Problem, ProblemKind, U64};
use reprise_base::Lsn;
use reprise_codec::rfc3339;
use reprise_observe::{LatencySummary, MetricsSnapshot};
use reprise_upkeep::{CheckpointInfo, CheckpointPhase};
use serde::Serialize;
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior},
};

use crate::{
    auth::CallerSession,
    checkpoints::{answer, list_of},
    event_places::EventPlace,
    limits::{EVENT_INTERVAL, EVENT_STREAMS_MAX},
    refusal::Refusal,
    replication,
    roles::TokenRole,
    state::AppState,
    status::{last_before, now_us, status_of},
};

const PATH: &str = "/v1/events";
/// Header by which nginx and others pass each piece on at once.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Streams events
///
/// Sends server-sent events. `metrics` comes twice a second: a MetricsEvent about the time since the one before. `status` (a Status)
/// comes first, and then at each change that is not only of positions and times. `checkpoint` (a Checkpoint) comes when one begins
/// and when it ends. `replication` (a Replication) comes twice a second from a server that has standbys or is one. `control` (a
/// ControlEvent) comes at the end of each control operation, to clients whose role allows such operations. They first get the newest
/// known ones. At most 64 streams are open at a time. One more of a token with few streams ends the oldest one of the token with the most.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "Server",
    responses(
        (status = 200, description = "Data of a `metrics` event. The data of `status` is a Status, of `checkpoint` a Checkpoint, of `replication` a Replication, and of `control` a ControlEvent", body = MetricsEvent, content_type = "text/event-stream"),
    )
)]
pub async fn events(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, Refusal> {
    let caller = CallerSession::of(&state.auth(), &headers)?;
    let place = state.event_places.take(caller.principal.name()).ok_or_else(|| {
        let detail = format!("{EVENT_STREAMS_MAX} event streams are open; close one, or poll GET /v1/status");
        let mut problem = Problem::new(ProblemKind::Overloaded, detail);
        problem.retry_after_ms = Some(5_000);
        Refusal::from(problem)
    })?;
    let live = EventStream::new(state, place, caller);
    let stream = futures_util::stream::unfold(live, async |mut live| {
        let events = live.next().await?;
        Some((Ok::<_, Infallible>(events), live))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // A proxy that gathers events delivers them late. No proxy compresses an answer that names its coding.
    own.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-store, no-transform"),
    );
    own.insert(header::CONTENT_ENCODING, HeaderValue::from_static("identity"));
    own.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    Ok(response)
}

/// One reader's stream.
struct EventStream {
    state: AppState,
    interval: Interval,
    draining: watch::Receiver<bool>,
    /// The last `status` event, without positions and times.
    last_status: String,
    last: (Instant, MetricsSnapshot),
    /// Checkpoints as the last events had them, or as they were at first.
    sent: Vec<(Lsn, CheckpointPhase)>,
    /// Number of the next control operation.
    next_control: u64,
    caller: CallerSession,
    place: EventPlace,
}

impl EventStream {
    fn new(state: AppState, place: EventPlace, caller: CallerSession) -> Self {
        let mut interval = tokio::time::interval(EVENT_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            interval,
            draining: state.draining.subscribe(),
            last_status: String::new(),
            last: (Instant::now(), state.router.metrics()),
            sent: stands(&list_of(&state)),
            state,
            next_control: 0,
            caller,
            place,
        }
    }

    /// The next events; None once the server stops, the reader's token is withdrawn, or another token got the place.
    async fn next(&mut self) -> Option<Bytes> {
        tokio::select! {
            _ = self.draining.wait_for(|draining| *draining) => return None,
            () = self.place.until_lost() => return None,
            _ = self.interval.tick() => {}
        }
        let is_shut_out = self.caller.check_again(&self.state.auth()).is_err()
            || self.caller.principal.require_path(&Method::GET, PATH).is_err();
        if is_shut_out {
            return None;
        }
        let mut out = Vec::with_capacity(1024);
        self.push_status(&mut out);
        self.push_checkpoints(&mut out);
        self.push_replication(&mut out);
        self.push_controls(&mut out);
        if self.last.0.elapsed() >= EVENT_INTERVAL / 2 {
            self.push_metrics(&mut out);
        }
        Some(out.into())
    }

    fn push_status(&mut self, out: &mut Vec<u8>) {
        let status = status_of(&self.state);
        let lasting = format!(
            "{:?} {:?} {} {:?}",
            status.phase, status.log_error, status.role, status.epoch
        );
        if lasting != self.last_status {
            push_event("status", &status, out);
            self.last_status = lasting;
        }
    }

    /// Pushes the replication state, each time: freshness and lag change all the time.
    fn push_replication(&self, out: &mut Vec<u8>) {
        let Some(service) = self.state.router.replication() else {
            return;
        };
        let info = service.info();
        if !info.standbys.is_empty() {
            push_event("replication", &replication::answer(info, &self.state.router), out);
        }
    }

    fn push_checkpoints(&mut self, out: &mut Vec<u8>) {
        let all = list_of(&self.state);
        let sent_before = std::mem::replace(&mut self.sent, stands(&all));
        for checkpoint in all.into_iter().rev() {
            if !sent_before.contains(&(checkpoint.lsn, checkpoint.state)) {
                push_event("checkpoint", &answer(checkpoint), out);
            }
        }
    }

    /// Names of tokens are for those who give them out.
    fn push_controls(&mut self, out: &mut Vec<u8>) {
        if !self.caller.principal.may(TokenRole::Admin) {
            return;
        }
        let (records, next) = self.state.controls.since(self.next_control);
        self.next_control = next;
        records.iter().for_each(|record| push_event("control", record, out));
    }

    fn push_metrics(&mut self, out: &mut Vec<u8>) {
        let (now, snapshot) = (Instant::now(), self.state.router.metrics());
        let (then, before) = std::mem::replace(&mut self.last, (now, snapshot));
        let after = &self.last.1;
        let seconds = (now - then).as_secs_f64().max(1e-3);
        let per_s = |after: u64, before: u64| (after.saturating_sub(before) as f64 / seconds * 10.0).round() / 10.0;
        let status = self.state.router.status();
        let event = MetricsEvent {
            time: rfc3339(now_us()),
            interval_ms: (seconds * 1000.0) as u64,
            committed_per_s: per_s(after.totals.committed, before.totals.committed),
            aborted_per_s: per_s(after.totals.aborted, before.totals.aborted),
            failed_per_s: per_s(after.totals.trapped, before.totals.trapped),
            refused_per_s: per_s(after.totals.rejected, before.totals.rejected),
            log_bytes_per_s: per_s(after.totals.flushed_bytes, before.totals.flushed_bytes),
            latency_us: {
                let mut since = after.answered.clone();
                // The later snapshot contains the counts of the earlier one.
                let _ = since.subtract(&before.answered);
                latency_us(&LatencySummary::of(&since))
            },
            commit_wait_us: {
                let mut since = after.flush.clone();
                let _ = since.subtract(&before.flush);
                latency_us(&LatencySummary::of(&since))
            },
            waiting: status.waiting,
            committed_lsn: last_before(status.committed_lsn),
            durable_lsn: U64(status.durable_lsn.0),
        };
        push_event("metrics", &event, out);
    }
}

/// Returns the checkpoints and their phases.
fn stands(all: &[CheckpointInfo]) -> Vec<(Lsn, CheckpointPhase)> {
    all.iter()
        .map(|checkpoint| (checkpoint.lsn, checkpoint.state))
        .collect()
}

fn latency_us(summary: &LatencySummary) -> LatencyUs {
    LatencyUs {
        p50: summary.p50_ns / 1000,
        p95: summary.p95_ns / 1000,
        p99: summary.p99_ns / 1000,
        max: summary.max_ns / 1000,
    }
}

fn push_event(name: &str, data: &impl Serialize, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("event: {name}\ndata: ").as_bytes());
    serde_json::to_writer(&mut *out, data).expect("memory takes every event");
    out.extend_from_slice(b"\n\n");
}
