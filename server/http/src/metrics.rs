//! `/metrics`: OpenTelemetry instruments, read as Prometheus text.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use opentelemetry::{
    KeyValue,
    metrics::{Meter, MeterProvider},
};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Encoder, TextEncoder};
use reprise_base::MemoryKind;
use reprise_observe::{LatencySummary, Totals};
use reprise_router::IdempotencyStats;

use crate::{
    refusal::Refusal,
    state::{AppState, Parts},
    status::now_us,
};

/// One scrape's numbers: every instrument reports from the same moment.
#[derive(Clone, Default)]
struct Sample {
    totals: Totals,
    answered: LatencySummary,
    flush: LatencySummary,
    committed_lsn: u64,
    durable_lsn: u64,
    partitions: u64,
    waiting: u64,
    is_ready: bool,
    log_failed: bool,
    modules: u64,
    tables: u64,
    idempotency: IdempotencyStats,
    checkpoints: u64,
    checkpoint_failures: u64,
    checkpointed_lsn: u64,
    restart_ms: u64,
    connections: u64,
    connections_open: u64,
    batch_calls: u64,
    answers: [u64; 6],
    memory: [u64; MemoryKind::ALL.len()],
    memory_peak: u64,
    /// 0: there is no limit.
    memory_max: u64,
}

type Shared = Arc<Mutex<Sample>>;

/// The instruments and what they read from.
pub struct Metrics {
    sample: Shared,
    registry: prometheus::Registry,
    /// Held because the instruments end with it.
    _provider: Option<SdkMeterProvider>,
}

impl Metrics {
    pub fn new() -> Self {
        let registry = prometheus::Registry::new();
        let sample = Shared::default();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build();
        let provider = match exporter {
            Ok(exporter) => {
                let provider = SdkMeterProvider::builder().with_reader(exporter).build();
                register(&provider.meter("reprise"), &sample);
                Some(provider)
            }
            Err(error) => {
                tracing::error!(%error, "build metrics exporter");
                None
            }
        };
        Self {
            sample,
            registry,
            _provider: provider,
        }
    }

    fn render(&self, parts: &Parts) -> Result<Vec<u8>, prometheus::Error> {
        *self.sample.lock().expect("held for a store or a read") = take_sample(parts);
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(out)
    }
}

fn take_sample(parts: &Parts) -> Sample {
    let (snapshot, status) = (parts.router.metrics(), parts.router.status());
    let (deployed, memory) = (parts.router.deployed(), parts.router.memory());
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Sample {
        totals: snapshot.totals,
        answered: snapshot.answered_summary(),
        flush: snapshot.flush_summary(),
        committed_lsn: status.committed_lsn.0,
        durable_lsn: status.durable_lsn.0,
        partitions: status.partitions as u64,
        waiting: status.waiting,
        is_ready: status.phase == reprise_router::Phase::Ready,
        log_failed: status.log_error.is_some(),
        modules: deployed.current.len() as u64,
        tables: deployed.tables.len() as u64,
        idempotency: status.idempotency,
        checkpoints: status.checkpoints.0,
        checkpoint_failures: status.checkpoints.1,
        checkpointed_lsn: status.checkpointed_lsn.map_or(0, |lsn| lsn.0),
        restart_ms: restart_ms(&status),
        connections: count(&parts.counts.connections),
        connections_open: count(&parts.counts.connections_open),
        batch_calls: count(&parts.counts.batch_calls),
        answers: std::array::from_fn(|class| count(&parts.counts.answers[class])),
        memory: MemoryKind::ALL.map(|kind| memory.kind(kind).used()),
        memory_peak: memory.peak(),
        memory_max: Some(memory.max_bytes()).filter(|max| *max < u64::MAX).unwrap_or(0),
    }
}

/// 0 until it can be told.
fn restart_ms(status: &reprise_router::Status) -> u64 {
    let seconds = status.restart.and_then(|restart| restart.seconds());
    seconds.map_or(0, |seconds| (seconds * 1e3).round() as u64)
}

fn oldest_key_s(stats: &IdempotencyStats) -> u64 {
    let age_us = stats.oldest_unix_us.map_or(0, |oldest_us| now_us() - oldest_us);
    age_us.max(0) as u64 / 1_000_000
}

/// Name, description, value.
type Instrument = (&'static str, &'static str, fn(&Sample) -> u64);

#[rustfmt::skip]
const COUNTERS: [Instrument; 13] = [
    ("reprise.transactions.committed", "Transactions committed", |s| s.totals.committed),
    ("reprise.transactions.aborted", "Transactions that their procedure rolled back", |s| s.totals.aborted),
    ("reprise.transactions.failed", "Transactions ended by a trap or a limit", |s| s.totals.trapped),
    ("reprise.calls.refused", "Calls that did not run", |s| s.totals.rejected),
    ("reprise.fuel", "Fuel burned by procedures", |s| s.totals.fuel),
    ("reprise.log.flushes", "Writes to the log", |s| s.totals.flushes),
    ("reprise.log.flushed.bytes", "Bytes written to the log", |s| s.totals.flushed_bytes),
    ("reprise.log.flushed.records", "Records written to the log", |s| s.totals.flushed_records),
    ("reprise.checkpoints.published", "Checkpoints published", |s| s.checkpoints),
    ("reprise.checkpoints.failed", "Checkpoints that failed", |s| s.checkpoint_failures),
    ("reprise.idempotency.refused", "Calls refused because there was no room for their keys", |s| s.idempotency.refused),
    ("reprise.http.connections", "Connections accepted", |s| s.connections),
    ("reprise.http.batch.calls", "Calls that came in batches", |s| s.batch_calls),
];

#[rustfmt::skip]
const GAUGES: [Instrument; 18] = [
    ("reprise.ready", "1 while calls are taken", |s| s.is_ready as u64),
    ("reprise.log.failed", "1 once the log can't be written", |s| s.log_failed as u64),
    ("reprise.log.committed.lsn", "End of the log", |s| s.committed_lsn),
    ("reprise.log.durable.lsn", "Everything below is durable", |s| s.durable_lsn),
    ("reprise.log.checkpointed.lsn", "Position of the newest checkpoint", |s| s.checkpointed_lsn),
    ("reprise.restart.ms", "Milliseconds that a restart would take now; 0 until that was measured", |s| s.restart_ms),
    ("reprise.partitions", "Partitions", |s| s.partitions),
    ("reprise.calls.waiting", "Calls accepted and not yet run", |s| s.waiting),
    ("reprise.memory.ready.bytes", "Memory that is ready for tables to grow into", |_| reprise_pages::ready_bytes() as u64),
    ("reprise.memory.max.bytes", "Memory that there may be of all kinds together; 0 without a limit", |s| s.memory_max),
    ("reprise.memory.peak.bytes", "The most memory of all kinds together since the start", |s| s.memory_peak),
    ("reprise.modules", "Modules in service", |s| s.modules),
    ("reprise.tables", "Tables", |s| s.tables),
    ("reprise.idempotency.keys", "Idempotency keys remembered", |s| s.idempotency.keys),
    ("reprise.idempotency.bytes", "Bytes of them and their outcomes", |s| s.idempotency.bytes),
    ("reprise.idempotency.bytes.max", "Bytes of them at which new keys are refused", |s| s.idempotency.bytes_max),
    ("reprise.idempotency.oldest.s", "Age of the oldest one in seconds", |s| oldest_key_s(&s.idempotency)),
    ("reprise.http.connections.open", "Connections open", |s| s.connections_open),
];

fn register(meter: &Meter, sample: &Shared) {
    for (name, description, read) in COUNTERS {
        let sample = sample.clone();
        meter
            .u64_observable_counter(name)
            .with_description(description)
            .with_callback(move |observer| observer.observe(read(&lock(&sample)), &[]))
            .build();
    }
    for (name, description, read) in GAUGES {
        let sample = sample.clone();
        meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |observer| observer.observe(read(&lock(&sample)), &[]))
            .build();
    }
    register_labelled(meter, sample);
    register_memory(meter, sample.clone());
}

fn register_labelled(meter: &Meter, sample: &Shared) {
    let quantiles =
        |name: &'static str, what: &'static str, read: fn(&Sample) -> LatencySummary| {
            let sample = sample.clone();
            let builder = meter
                .f64_observable_gauge(name)
                .with_description(what)
                .with_unit("s");
            let observe = move |observer: &dyn opentelemetry::metrics::AsyncInstrument<f64>| {
                let summary = read(&lock(&sample));
                let points = [
                    ("0.5", summary.p50_ns),
                    ("0.95", summary.p95_ns),
                    ("0.99", summary.p99_ns),
                    ("0.999", summary.p999_ns),
                    ("1", summary.max_ns),
                ];
                for (quantile, ns) in points {
                    observer.observe(ns as f64 / 1e9, &[KeyValue::new("quantile", quantile)]);
                }
            };
            builder.with_callback(observe).build();
        };
    quantiles(
        "reprise.transaction.latency",
        "From a call's acceptance to its answer, since the start",
        |s| s.answered,
    );
    quantiles(
        "reprise.log.write.latency",
        "From the start of a log write until it is durable, since the start",
        |s| s.flush,
    );

    let sample = sample.clone();
    meter
        .u64_observable_counter("reprise.http.answers")
        .with_description("Answers by class of status")
        .with_callback(move |observer| {
            let answers = lock(&sample).answers;
            for (class, count) in answers.into_iter().enumerate().skip(2) {
                observer.observe(count, &[KeyValue::new("status", format!("{class}xx"))]);
            }
        })
        .build();
}

/// What holds memory, by kind.
fn register_memory(meter: &Meter, sample: Shared) {
    meter
        .u64_observable_gauge("reprise.memory.bytes")
        .with_description("Counted memory by what holds it")
        .with_callback(move |observer| {
            let used = lock(&sample).memory;
            for (kind, bytes) in MemoryKind::ALL.into_iter().zip(used) {
                observer.observe(bytes, &[KeyValue::new("kind", kind.name())]);
            }
        })
        .build();
}

fn lock(sample: &Shared) -> std::sync::MutexGuard<'_, Sample> {
    sample.lock().expect("held for a store or a read")
}

/// Metrics for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "Server",
    responses((status = 200, description = "Prometheus text format", body = String, content_type = "text/plain"))
)]
pub async fn metrics(State(state): State<AppState>) -> Result<Response, Refusal> {
    let text = state
        .metrics
        .render(&state)
        .map_err(|error| Refusal::internal(&format!("encode metrics: {error}")))?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}
