//! `/metrics`: OpenTelemetry instruments, read as Prometheus text.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use axum::{
    body::Body,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use hdrhistogram::Histogram;
use opentelemetry::{
    KeyValue,
    metrics::{Meter, MeterProvider},
};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use prometheus::{Encoder, TextEncoder};
use reprise_base::MemoryKind;
use reprise_observe::{MetricsSnapshot, Totals};
use reprise_router::{CallEnd, CallStage, IdempotencyStats, NvramBufferStatus, ProcedureSums};
use reprise_upkeep::ArchiveStatus;

use crate::{
    permits::Operation,
    process_metrics,
    refusal::Refusal,
    standby_metrics::{self, SharedStandbys},
    state::{AppState, Parts},
};

/// One scrape's numbers: every instrument reports from the same moment.
#[derive(Clone, Default)]
struct Sample {
    totals: Totals,
    barriers: u64,
    committed_lsn: u64,
    durable_lsn: u64,
    partitions: u64,
    waiting: u64,
    is_ready: bool,
    log_failed: bool,
    modules: u64,
    tables: u64,
    idempotency: IdempotencyStats,
    clock_jumps: u64,
    checkpoints: u64,
    checkpoint_failures: u64,
    checkpointed_lsn: u64,
    restart_seconds: f64,
    archive: ArchiveStatus,
    rings: Rings,
    connections: u64,
    connections_open: u64,
    batch_calls: u64,
    control_refusals_left_out: u64,
    procedures: Vec<ProcedureSums>,
    answers: [u64; 6],
    memory: [u64; MemoryKind::ALL.len()],
    memory_peak: u64,
    lease_left_us: u64,
    /// Seconds since 1970; 0 without a certificate.
    certificate_until_s: i64,
    /// 0: there is no limit.
    memory_max: u64,
}

/// The log in NVRAM: zeros without it.
#[derive(Clone, Copy, Default)]
struct Rings {
    records_waiting: u64,
    /// Figures of the fullest ring, each by itself.
    entries: u64,
    bytes: u64,
    entries_max: u64,
    bytes_max: u64,
}

impl Rings {
    fn of(front: &NvramBufferStatus) -> Self {
        let mut found = Self {
            records_waiting: front.records_waiting,
            ..Self::default()
        };
        for ring in &front.rings {
            found.entries = found.entries.max(ring.entries);
            found.bytes = found.bytes.max(ring.bytes);
            found.entries_max = found.entries_max.max(ring.entries_max);
            found.bytes_max = found.bytes_max.max(ring.bytes_max);
        }
        found
    }
}

type SharedSample = Arc<Mutex<Sample>>;

/// The instruments and their sources.
pub struct Metrics {
    sample: SharedSample,
    standbys: SharedStandbys,
    registry: prometheus::Registry,
    /// Held because the instruments end with it.
    _provider: Option<SdkMeterProvider>,
}

impl Metrics {
    pub fn new() -> Self {
        let registry = prometheus::Registry::new();
        let (sample, standbys) = (SharedSample::default(), SharedStandbys::default());
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build();
        let provider = match exporter {
            Ok(exporter) => {
                let provider = SdkMeterProvider::builder().with_reader(exporter).build();
                register(&provider.meter("reprise"), &sample);
                standby_metrics::register(&provider.meter("reprise"), &standbys);
                Some(provider)
            }
            Err(error) => {
                tracing::error!(%error, "build metrics exporter");
                None
            }
        };
        Self {
            sample,
            standbys,
            registry,
            _provider: provider,
        }
    }

    fn render(&self, parts: &Parts) -> Result<Vec<u8>, prometheus::Error> {
        let snapshot = parts.router.metrics();
        *self.sample.lock().expect("held for a store or a read") = take_sample(parts, &snapshot);
        *self.standbys.lock().expect("held for a store or a read") = standby_metrics::take_sample(parts);
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        for (name, description, read) in HISTOGRAMS {
            push_histogram(name, description, read(&snapshot), &mut out);
        }
        process_metrics::push(parts, &mut out);
        Ok(out)
    }
}

fn take_sample(parts: &Parts, snapshot: &MetricsSnapshot) -> Sample {
    let status = parts.router.status();
    let checkpointer = parts.database.checkpointer().ok();
    let (published, failed) = checkpointer.map_or((0, 0), |own| own.counts());
    let (deployed, memory) = (parts.router.deployed(), parts.router.memory());
    let lease = parts.router.replication().and_then(|service| service.info().lease);
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Sample {
        totals: snapshot.totals,
        barriers: parts.router.rendezvous().barriers,
        committed_lsn: status.committed_lsn.0,
        durable_lsn: status.durable_lsn.0,
        partitions: status.partitions as u64,
        waiting: status.waiting,
        is_ready: status.phase == reprise_router::NodePhase::Ready,
        log_failed: status.log_error.is_some(),
        modules: deployed.current.len() as u64,
        tables: deployed.tables.len() as u64,
        idempotency: status.idempotency,
        clock_jumps: parts.router.clock_jumps(),
        checkpoints: published,
        checkpoint_failures: failed,
        checkpointed_lsn: checkpointer.and_then(|own| own.newest()).map_or(0, |lsn| lsn.0),
        restart_seconds: checkpointer.map_or(0.0, |own| own.restart().known_seconds()),
        archive: checkpointer.and_then(|own| own.archive()).unwrap_or_default(),
        procedures: parts.router.procedures().sums(),
        rings: status
            .nvram
            .as_ref()
            .map(|(_, front)| Rings::of(front))
            .unwrap_or_default(),
        connections: count(&parts.counts.connections),
        connections_open: count(&parts.counts.connections_open),
        batch_calls: count(&parts.counts.batch_calls),
        control_refusals_left_out: parts.controls.left_out(),
        answers: std::array::from_fn(|class| count(&parts.counts.answers[class])),
        memory: MemoryKind::ALL.map(|kind| memory.kind(kind).used()),
        memory_peak: memory.peak(),
        lease_left_us: lease.map_or(0, |lease| lease.left_us),
        certificate_until_s: certificate_until_s(parts),
        memory_max: Some(memory.max_bytes()).filter(|max| *max < u64::MAX).unwrap_or(0),
    }
}

fn certificate_until_s(parts: &Parts) -> i64 {
    let validity = parts.tls.as_ref().and_then(|own| own.validity());
    validity.map_or(0, |validity| validity.until_s)
}

/// Calls by procedure and end, and the seconds that they were at each stage.
fn register_procedures(meter: &Meter, sample: &SharedSample) {
    let labels = |own: &ProcedureSums, name: &'static str, value: &'static str| {
        [
            KeyValue::new("module", own.module.clone()),
            KeyValue::new("procedure", own.procedure.clone()),
            KeyValue::new(name, value),
        ]
    };
    let calls = sample.clone();
    meter
        .u64_observable_counter("reprise.procedure.calls")
        .with_description(PROCEDURE_CALLS)
        .with_callback(move |observer| {
            for own in &lock(&calls).procedures {
                for end in CallEnd::ALL {
                    observer.observe(own.sums.calls(end), &labels(own, "outcome", end.name()));
                }
            }
        })
        .build();
    let seconds = sample.clone();
    meter
        .f64_observable_counter("reprise.procedure.seconds")
        .with_description(PROCEDURE_SECONDS)
        .with_callback(move |observer| {
            for own in &lock(&seconds).procedures {
                for stage in CallStage::ALL {
                    let time = own.sums.time(stage);
                    observer.observe(time.as_secs_f64(), &labels(own, "stage", stage.name()));
                }
            }
        })
        .build();
}

fn oldest_key_s(stats: &IdempotencyStats) -> u64 {
    stats.oldest_age.map_or(0, |age| age.as_secs())
}

/// Name, description, and nanoseconds since the start: alerts take the difference of two scrapes.
type LatencyInstrument = (&'static str, &'static str, fn(&MetricsSnapshot) -> &Histogram<u64>);

#[rustfmt::skip]
const HISTOGRAMS: [LatencyInstrument; 3] = [
    ("reprise_transaction_latency_seconds", "From a call's acceptance to its answer", |s| &s.answered),
    ("reprise_call_run_seconds", "Time for which calls ran and held their partitions", |s| &s.run),
    ("reprise_log_write_latency_seconds", "From the start of a log write until it is durable", |s| &s.flush),
];

/// Upper bounds of buckets: nanoseconds, and as they are written in seconds.
#[rustfmt::skip]
const BUCKETS: [(u64, &str); 17] = [
    (10_000, "0.00001"), (25_000, "0.000025"), (50_000, "0.00005"), (100_000, "0.0001"), (250_000, "0.00025"), (500_000, "0.0005"),
    (1_000_000, "0.001"), (2_500_000, "0.0025"), (5_000_000, "0.005"), (10_000_000, "0.01"), (25_000_000, "0.025"),
    (50_000_000, "0.05"), (100_000_000, "0.1"), (250_000_000, "0.25"), (1_000_000_000, "1"), (5_000_000_000, "5"),
    (30_000_000_000, "30"),
];

/// Writes a histogram in the text format of Prometheus.
fn push_histogram(name: &str, description: &str, measured: &Histogram<u64>, out: &mut Vec<u8>) {
    let mut counts = [0; BUCKETS.len()];
    let mut sum_ns = 0.0;
    for value in measured.iter_recorded() {
        let (ns, count) = (value.value_iterated_to(), value.count_since_last_iteration());
        sum_ns += ns as f64 * count as f64;
        let first = BUCKETS.partition_point(|(bound, _)| *bound < ns);
        counts[first..].iter_mut().for_each(|bucket| *bucket += count);
    }
    let mut text = format!("# HELP {name} {description}\n# TYPE {name} histogram\n");
    for ((_, bound), count) in BUCKETS.iter().zip(counts) {
        text.push_str(&format!("{name}_bucket{{le=\"{bound}\"}} {count}\n"));
    }
    let count = measured.len();
    text.push_str(&format!(
        "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {}\n{name}_count {count}\n",
        sum_ns / 1e9
    ));
    out.extend_from_slice(text.as_bytes());
}

/// Name, description, value.
type Instrument = (&'static str, &'static str, fn(&Sample) -> u64);

#[rustfmt::skip]
const COUNTERS: [Instrument; 16] = [
    ("reprise.barriers", "Pauses of all partitions together: for deployments, removals and marks of checkpoints", |s| s.barriers),
    ("reprise.transactions.committed", "Transactions committed", |s| s.totals.committed),
    ("reprise.transactions.aborted", "Transactions that their procedure rolled back", |s| s.totals.aborted),
    ("reprise.transactions.failed", "Transactions ended by a trap or a limit", |s| s.totals.trapped),
    ("reprise.fuel", "Fuel burned by procedures", |s| s.totals.fuel),
    ("reprise.log.flushes", "Writes to the log", |s| s.totals.flushes),
    ("reprise.log.flushed.bytes", "Bytes written to the log", |s| s.totals.flushed_bytes),
    ("reprise.log.flushed.records", "Records written to the log", |s| s.totals.flushed_records),
    ("reprise.checkpoints.published", "Checkpoints published", |s| s.checkpoints),
    ("reprise.checkpoints.failed", "Checkpoints that failed", |s| s.checkpoint_failures),
    ("reprise.archive.failures", "Failed attempts to copy files into the archive", |s| s.archive.failures),
    ("reprise.idempotency.refused", "Calls refused because their idempotency keys found no room", |s| s.idempotency.refused),
    ("reprise.clock.jumps", "Jumps of the wall clock by more than an hour", |s| s.clock_jumps),
    ("reprise.http.connections", "Connections accepted", |s| s.connections),
    ("reprise.http.batch.calls", "Calls that came in batches", |s| s.batch_calls),
    ("reprise.control.refusals.left.out", "Refused control operations that were not recorded, because their minute had too many", |s| s.control_refusals_left_out),
];

#[rustfmt::skip]
const GAUGES: [Instrument; 26] = [
    ("reprise.ready", "1 while the server takes calls", |s| s.is_ready as u64),
    ("reprise.log.failed", "1 while the server can't write its log", |s| s.log_failed as u64),
    ("reprise.log.committed.lsn", "End of the log", |s| s.committed_lsn),
    ("reprise.log.durable.lsn", "LSN up to which everything is durable", |s| s.durable_lsn),
    ("reprise.log.checkpointed.lsn", "Position of the newest checkpoint", |s| s.checkpointed_lsn),
    ("reprise.partitions", "Partitions", |s| s.partitions),
    ("reprise.calls.waiting", "Calls accepted and not yet run", |s| s.waiting),
    ("reprise.memory.ready.bytes", "Memory that the server keeps ready for growing tables", |_| reprise_pages::ready_bytes() as u64),
    ("reprise.memory.max.bytes", "Limit of the memory of all kinds together; 0 without a limit", |s| s.memory_max),
    ("reprise.memory.peak.bytes", "Largest memory of all kinds together since the start", |s| s.memory_peak),
    ("reprise.modules", "Modules in service", |s| s.modules),
    ("reprise.tables", "Tables", |s| s.tables),
    ("reprise.idempotency.keys", "Idempotency keys that the server keeps", |s| s.idempotency.keys),
    ("reprise.idempotency.bytes", "Bytes of idempotency keys and their outcomes", |s| s.idempotency.bytes),
    ("reprise.idempotency.bytes.max", "Bytes of idempotency keys and outcomes at which the server refuses new keys", |s| s.idempotency.bytes_max),
    ("reprise.idempotency.oldest.seconds", "Age of the oldest idempotency key, in seconds in which a primary ran", |s| oldest_key_s(&s.idempotency)),
    ("reprise.archive.failing", "1 if the last attempt to copy files into the archive failed", |s| s.archive.failure.is_some() as u64),
    ("reprise.archive.bytes", "Bytes in the archive; 0 without one", |s| s.archive.bytes),
    ("reprise.archive.held.bytes", "Bytes in the data directory that wait for the archive", |s| s.archive.held_bytes),
    ("reprise.nvram.records.waiting", "Records in NVRAM that the log's files do not have yet; 0 without NVRAM", |s| s.rings.records_waiting),
    ("reprise.nvram.ring.entries", "Entries in the fullest ring of NVRAM", |s| s.rings.entries),
    ("reprise.nvram.ring.entries.max", "Largest number of entries of a ring; 0 without NVRAM", |s| s.rings.entries_max),
    ("reprise.nvram.ring.bytes", "Bytes of records in the fullest ring of NVRAM", |s| s.rings.bytes),
    ("reprise.nvram.ring.bytes.max", "Largest number of bytes of records in a ring; 0 without NVRAM", |s| s.rings.bytes_max),
    ("reprise.lease.held", "1 while this server holds the lease and may acknowledge alone; 0 without a lease", |s| (s.lease_left_us > 0) as u64),
    ("reprise.http.connections.open", "Connections open", |s| s.connections_open),
];

/// Gauges of times, in seconds.
const TIMES: [(&str, &str, fn(&Sample) -> f64); 3] = [
    (
        "reprise.lease.left.seconds",
        "Time for which this server may acknowledge alone by its lease; 0 without a lease",
        |s| s.lease_left_us as f64 / 1e6,
    ),
    (
        "reprise.restart.seconds",
        "Seconds that a restart would take now, without parts that the server has not measured yet",
        |s| s.restart_seconds,
    ),
    (
        "reprise.tls.certificate.expires.seconds",
        "End of this server's certificate or its chain, in seconds since 1970; 0 without a certificate",
        |s| s.certificate_until_s as f64,
    ),
];

const ANSWERS: &str = "Answers by class of status, as the label `status`";
const PROCEDURE_CALLS: &str =
    "Calls by `module`, `procedure` and `outcome`; beyond 255 procedures all others are `other`";
const PROCEDURE_SECONDS: &str =
    "Seconds that calls were `queued`, `running` and `logging`, as the label `stage`, by `module` and `procedure`";
const MEMORY: &str = "Counted memory by its use, as the label `kind`";

/// Name, kind and meaning of each, by name: for the documentation.
#[cfg(test)]
pub fn described() -> Vec<(String, &'static str, &'static str)> {
    let plain = |name: &str| name.replace('.', "_");
    let counters = COUNTERS
        .iter()
        .map(|(name, what, _)| (format!("{}_total", plain(name)), "counter", *what));
    let gauges = GAUGES.iter().map(|(name, what, _)| (plain(name), "gauge", *what));
    let times = TIMES.iter().map(|(name, what, _)| (plain(name), "gauge", *what));
    let histograms = HISTOGRAMS
        .iter()
        .map(|(name, what, _)| ((*name).to_owned(), "histogram", *what));
    let others = [
        ("reprise_http_answers_total".to_owned(), "counter", ANSWERS),
        ("reprise_memory_bytes".to_owned(), "gauge", MEMORY),
        ("reprise_procedure_calls_total".to_owned(), "counter", PROCEDURE_CALLS),
        (
            "reprise_procedure_seconds_total".to_owned(),
            "counter",
            PROCEDURE_SECONDS,
        ),
    ];
    let others = others.into_iter().chain(process_metrics::described());
    let standbys = standby_metrics::described();
    let all = counters
        .chain(gauges)
        .chain(times)
        .chain(histograms)
        .chain(others)
        .chain(standbys);
    let mut all: Vec<_> = all.collect();
    all.sort_unstable();
    all
}

fn register(meter: &Meter, sample: &SharedSample) {
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
    for (name, description, read) in TIMES {
        let sample = sample.clone();
        meter
            .f64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |observer| observer.observe(read(&lock(&sample)), &[]))
            .build();
    }
    register_answers(meter, sample);
    register_memory(meter, sample.clone());
    register_procedures(meter, sample);
}

fn register_answers(meter: &Meter, sample: &SharedSample) {
    let sample = sample.clone();
    meter
        .u64_observable_counter("reprise.http.answers")
        .with_description(ANSWERS)
        .with_callback(move |observer| {
            let answers = lock(&sample).answers;
            for (class, count) in answers.into_iter().enumerate().skip(2) {
                observer.observe(count, &[KeyValue::new("status", format!("{class}xx"))]);
            }
        })
        .build();
}

/// Registers the gauge of memory by kind.
fn register_memory(meter: &Meter, sample: SharedSample) {
    meter
        .u64_observable_gauge("reprise.memory.bytes")
        .with_description(MEMORY)
        .with_callback(move |observer| {
            let used = lock(&sample).memory;
            for (kind, bytes) in MemoryKind::ALL.into_iter().zip(used) {
                observer.observe(bytes, &[KeyValue::new("kind", kind.name())]);
            }
        })
        .build();
}

fn lock(sample: &SharedSample) -> std::sync::MutexGuard<'_, Sample> {
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
        .blocking(Operation::ReadStats, |parts| parts.metrics.render(parts))
        .await?
        .map_err(|error| Refusal::internal(&format!("encode metrics: {error}")))?;
    let body = Body::from(state.texts.hold(text, None));
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_what_lies_at_or_below_each_bound() {
        let mut measured = Histogram::new(3).expect("a histogram");
        for ns in [1_000, 9_000, 60_000, 2_000_000, 90_000_000_000] {
            measured.record(ns).expect("in range");
        }
        let mut out = Vec::new();
        push_histogram("x_seconds", "What.", &measured, &mut out);
        let text = String::from_utf8(out).expect("UTF-8");
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{le=\"0.00001\"} 2",
            "x_seconds_bucket{le=\"0.0001\"} 3",
            "x_seconds_bucket{le=\"0.0025\"} 4",
            "x_seconds_bucket{le=\"30\"} 4",
            "x_seconds_bucket{le=\"+Inf\"} 5",
            "x_seconds_count 5",
        ] {
            assert!(text.lines().any(|own| own == line), "{line}: {text}");
        }
    }

    /// The rules of `promtool check metrics`.
    #[test]
    fn names_and_kinds_are_as_prometheus_has_them() {
        for (name, kind, what) in described() {
            let is_ours = name.starts_with("reprise_") || name.starts_with("process_");
            assert!(!what.is_empty() && is_ours, "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            let units = [
                "s",
                "ms",
                "us",
                "ns",
                "sec",
                "b",
                "kb",
                "mb",
                "kib",
                "mib",
                "milliseconds",
                "min",
            ];
            let is_short = name.split('_').any(|part| units.contains(&part));
            assert!(!is_short, "{name}: seconds and bytes are the units");
            assert!(
                !["_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)),
                "{name}"
            );
        }
    }
}
