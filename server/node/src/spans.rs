//! Spans of calls, sent to an OpenTelemetry collector over OTLP/HTTP in protobuf.
//!
//! A thread of the library gathers and sends them. If it can't keep up or the collector is gone, spans are dropped, and a warning says so.
//! The library's own variables apply: `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_HEADERS`.

use std::time::Duration;

use anyhow::{Context, bail};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SdkTracer, SdkTracerProvider},
};

use crate::server_output;

const PATH: &str = "/v1/traces";
/// Longest wait for the collector, of one delivery and at the end.
const WAIT_MAX: Duration = Duration::from_secs(5);

pub struct Spans(SdkTracerProvider);

impl Spans {
    /// Starts the exporter. Asynchronous code must not call it, because the exporter's client brings a runtime of its own.
    pub fn start(endpoint: &str) -> anyhow::Result<Self> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(WAIT_MAX)
            .build()
            .with_context(|| format!("export spans to {endpoint}"))?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(Resource::builder().with_service_name("reprise").build())
            .build();
        Ok(Self(provider))
    }

    pub fn tracer(&self) -> SdkTracer {
        self.0.tracer("reprise")
    }

    /// Sends the remaining spans.
    pub fn stop(&self) {
        if let Err(error) = self.0.shutdown_with_timeout(WAIT_MAX) {
            server_output::warning("spans_lost", format!("the last spans may be lost: {error}"));
        }
    }
}

/// `http://HOST:PORT`, with the path that OTLP names unless it has one.
pub fn endpoint(text: &str) -> anyhow::Result<String> {
    let Some(rest) = text.strip_prefix("http://") else {
        bail!(
            "{text:?} is not a collector; write http://HOST:PORT (for TLS, run a collector on this host that forwards the spans)"
        );
    };
    let has_path = rest.trim_end_matches('/').contains('/');
    if rest.is_empty() || rest.starts_with('/') || rest.contains(char::is_whitespace) {
        bail!("{text:?} has no host; write http://HOST:PORT");
    }
    Ok(match has_path {
        true => text.to_owned(),
        false => format!("{}{PATH}", text.trim_end_matches('/')),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_gets_the_path_that_is_usual() {
        let of = |text: &str| endpoint(text).ok();
        assert_eq!(of("http://h:4318").as_deref(), Some("http://h:4318/v1/traces"));
        assert_eq!(of("http://h:4318/").as_deref(), Some("http://h:4318/v1/traces"));
        assert_eq!(of("http://h/x/v1/traces").as_deref(), Some("http://h/x/v1/traces"));
        for bad in ["", "h:4318", "https://h", "http://", "http:///v1", "http://a b"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
