//! `traceparent` (W3C Trace Context): taken over, continued under a span of ours.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::http::HeaderValue;

/// A request's place in a trace that began elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: String,
    pub parent_id: String,
    pub span_id: String,
    flags: u8,
}

impl TraceContext {
    /// None for anything malformed: the standard asks to go on as if it were not there.
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

    pub fn header(&self) -> HeaderValue {
        // Of the flags only "sampled" is defined; unknown ones are not passed on.
        let text = format!(
            "00-{}-{}-{:02x}",
            self.trace_id,
            self.span_id,
            self.flags & 1
        );
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
    is_lower
        .then(|| u8::from_str_radix(text, 16).ok())
        .flatten()
}

/// Unique in this process, and between processes as far as 64 random bits go.
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
