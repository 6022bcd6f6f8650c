//! `traceparent` (W3C Trace Context): taken over, continued under a span of ours.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::http::{HeaderMap, HeaderValue, Response, header};
use opentelemetry::{
    Context, KeyValue,
    trace::{
        Span as _, SpanBuilder, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId,
        TraceState, Tracer,
    },
};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use reprise_api::{PROBLEM_MEDIA_TYPE, headers};
use reprise_router::{CallReply, CallTimes};

use crate::{batch, calls, refusal::ProblemSlug};

/// The span of one call or batch, for a collector. It ends when it is dropped.
#[derive(Clone)]
pub struct RequestSpan(Arc<Mutex<Span>>);

impl RequestSpan {
    /// Starts a span. None if no collector is set, or if a request of this path is no call.
    pub fn start(tracer: Option<&SdkTracer>, path: &str, context: Option<&TraceContext>) -> Option<Self> {
        let tracer = tracer?;
        let (name, attributes) = if path == batch::PATH {
            ("batch", Vec::new())
        } else {
            let (module, procedure) = path.strip_prefix(calls::PATH_PREFIX)?.split_once('/')?;
            let attributes = vec![
                KeyValue::new("reprise.module", module.to_owned()),
                KeyValue::new("reprise.procedure", procedure.to_owned()),
            ];
            ("call", attributes)
        };
        let builder = SpanBuilder::from_name(name)
            .with_kind(SpanKind::Server)
            .with_attributes(attributes);
        let parent = match context.and_then(TraceContext::remote) {
            Some(remote) => Context::new().with_remote_span_context(remote),
            None => Context::new(),
        };
        let span = tracer.build_with_context(builder, &parent);
        Some(Self(Arc::new(Mutex::new(span))))
    }

    fn with(&self, act: impl FnOnce(&mut Span)) {
        act(&mut self.0.lock().expect("held for a few attributes alone"));
    }

    /// Returns the answer's `traceparent`.
    pub fn header(&self) -> HeaderValue {
        let mut text = String::new();
        self.with(|span| {
            let context = span.span_context();
            let sampled = context.trace_flags().to_u8() & 1;
            text = format!("00-{}-{}-{sampled:02x}", context.trace_id(), context.span_id());
        });
        HeaderValue::try_from(text).expect("hexadecimal digits and hyphens")
    }

    /// Records the outcome of a call in the ended span, by its answer.
    pub fn answered<B>(&self, response: &Response<B>) {
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let status = response.status().as_u16();
        let is_problem = header(header::CONTENT_TYPE.as_str()).as_deref() == Some(PROBLEM_MEDIA_TYPE);
        let outcome = match response.extensions().get::<ProblemSlug>() {
            Some(problem) => problem.slug.clone(),
            None if is_problem => format!("status {status}"),
            None => "committed".to_owned(),
        };
        self.with(|span| {
            span.set_attribute(KeyValue::new("http.response.status_code", status as i64));
            for (name, of) in [("reprise.txn_id", headers::TXN_ID), ("reprise.lsn", headers::LSN)] {
                if let Some(value) = header(of) {
                    span.set_attribute(KeyValue::new(name, value));
                }
            }
            if is_problem && status >= 500 {
                span.set_status(Status::error(outcome.clone()));
            }
            span.set_attribute(KeyValue::new("reprise.outcome", outcome));
            span.end();
        });
    }

    /// A call committed. The span has ended.
    pub fn committed(&self, reply: &CallReply<'_>) {
        self.with(|span| {
            span.set_attribute(KeyValue::new("http.response.status_code", 200));
            for (name, value) in [("reprise.txn_id", reply.txn_id.0), ("reprise.lsn", reply.lsn.0)] {
                span.set_attribute(KeyValue::new(name, value.to_string()));
            }
            span.set_attribute(KeyValue::new("reprise.outcome", "committed"));
            span.end();
        });
    }

    /// Records how long a call waited for its turn, ran with the calls beside it, and waited for the log, in microseconds.
    pub fn ran(&self, times: &CallTimes) {
        self.with(|span| {
            for (name, time) in [
                ("reprise.queue_us", times.queued()),
                ("reprise.run_us", times.running()),
                ("reprise.log_us", times.logging()),
            ] {
                span.set_attribute(KeyValue::new(name, time.as_micros() as i64));
            }
        });
    }

    /// Records the outcome of a batch.
    pub fn batch_ended(&self, calls: usize, failed: usize) {
        self.with(|span| {
            span.set_attribute(KeyValue::new("reprise.calls", calls as i64));
            span.set_attribute(KeyValue::new("reprise.calls_failed", failed as i64));
            let outcome = if failed == 0 { "committed" } else { "some failed" };
            span.set_attribute(KeyValue::new("reprise.outcome", outcome));
        });
    }
}

/// A pipeline's call on its way, with its trace.
#[derive(Clone)]
pub struct CallTrace {
    /// The answer's `traceparent`.
    pub header: HeaderValue,
    /// The span. None if no collector is set.
    pub span: Option<RequestSpan>,
}

impl CallTrace {
    /// Starts a trace. None if neither the caller nor this server traces the call.
    pub fn start(tracer: Option<&SdkTracer>, path: &str, request: &HeaderMap) -> Option<Self> {
        let context = request.get(headers::TRACEPARENT).and_then(TraceContext::continue_from);
        let span = RequestSpan::start(tracer, path, context.as_ref());
        let header = match &span {
            Some(span) => span.header(),
            None => context?.header(),
        };
        Some(Self { header, span })
    }
}

/// A request's place in a trace that began elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: String,
    pub parent_id: String,
    pub span_id: String,
    flags: u8,
}

impl TraceContext {
    /// None for anything malformed: the standard asks to continue as if it were not there.
    pub fn continue_from(header: &HeaderValue) -> Option<Self> {
        let text = header.to_str().ok()?;
        let mut parts = text.split('-');
        let version = hex_byte(parts.next()?)?;
        let (trace_id, parent_id) = (parts.next()?, parts.next()?);
        let flags = hex_byte(parts.next()?)?;
        let is_whole = version != 0 || parts.next().is_none();
        if version == 0xff || !is_whole || !is_id(trace_id, 32) || !is_id(parent_id, 16) {
            return None;
        }
        Some(Self {
            trace_id: trace_id.into(),
            parent_id: parent_id.into(),
            span_id: next_span_id(),
            flags,
        })
    }

    fn remote(&self) -> Option<SpanContext> {
        let trace_id = TraceId::from_hex(&self.trace_id).ok()?;
        let parent_id = SpanId::from_hex(&self.parent_id).ok()?;
        let flags = TraceFlags::new(self.flags & 1);
        let state = TraceState::default();
        Some(SpanContext::new(trace_id, parent_id, flags, true, state))
    }

    pub fn header(&self) -> HeaderValue {
        // Only the flag "sampled" is defined; unknown flags are not passed on.
        let text = format!("00-{}-{}-{:02x}", self.trace_id, self.span_id, self.flags & 1);
        HeaderValue::try_from(text).expect("hexadecimal digits and hyphens")
    }
}

fn is_id(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        && text.bytes().any(|b| b != b'0')
}

fn hex_byte(text: &str) -> Option<u8> {
    let is_lower = text.len() == 2 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_lower.then(|| u8::from_str_radix(text, 16).ok()).flatten()
}

/// Returns an id that is unique in this process. Between processes it has 64 random bits.
fn next_span_id() -> String {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let id = KEYS.hash_one(NEXT.fetch_add(1, Ordering::Relaxed));
    format!("{:016x}", id.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_continued_and_nonsense_ignored() {
        let parse = |text: &str| TraceContext::continue_from(&text.parse().expect("header value"));
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = parse(good).expect("valid");
        assert_eq!(context.parent_id, "b7ad6b7169203331");
        let sent = context.header();
        let sent = sent.to_str().expect("ASCII");
        assert!(sent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && sent.ends_with("-01"));
        assert!(!sent.contains("b7ad6b7169203331"));
        assert_ne!(parse(good).expect("valid").span_id, context.span_id);
        assert!(parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more").is_some());
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
