//! Media types: the format of a request's body, and that of its answer.

use axum::http::{HeaderMap, HeaderValue, header};
use reprise_api::{CBOR_MEDIA_TYPE, CBOR_SEQUENCE_MEDIA_TYPE, NDJSON_MEDIA_TYPE, ProblemKind};
use reprise_codec::Format;

use crate::{pages::is_of_browser, refusal::Refusal};

/// That of a request's body. Without a word about it, a program means JSON; a browser's page always says, and what it
/// can send to another site unasked (forms, plain text) is none of these types.
pub fn format_of_body(headers: &HeaderMap) -> Result<Format, Refusal> {
    let mut types = headers.get_all(header::CONTENT_TYPE).iter();
    let format = match (types.next(), types.next()) {
        (None, _) if !is_of_browser(headers) => Some(Format::Json),
        (Some(value), None) => of_media_type(value),
        _ => None,
    };
    format.ok_or_else(|| {
        Refusal::new(
            ProblemKind::UnsupportedMediaType,
            "a body is application/json, application/cbor, application/x-ndjson or application/cbor-seq, and the header \
             Content-Type says which; with curl: -H 'content-type: application/json'",
        )
    })
}

fn of_media_type(value: &HeaderValue) -> Option<Format> {
    let mut parts = value.to_str().ok()?.split(';').map(str::trim);
    let name = parts.next().unwrap_or_default();
    let is_utf8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, charset)) if name.eq_ignore_ascii_case("charset") => {
            charset.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    };
    let is_one_of = |names: [&str; 2]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
    if is_one_of([CBOR_MEDIA_TYPE, CBOR_SEQUENCE_MEDIA_TYPE]) {
        return Some(Format::Cbor);
    }
    (is_one_of(["application/json", NDJSON_MEDIA_TYPE]) && parts.all(is_utf8)).then_some(Format::Json)
}

/// That of the answer: what the client asks for, and without a word about it the body's own.
pub fn format_of_answer(headers: &HeaderMap, body: Format) -> Format {
    let mut accepts = headers.get_all(header::ACCEPT).iter().peekable();
    if accepts.peek().is_none() {
        return body;
    }
    let (mut json, mut any) = (false, false);
    for value in accepts {
        if names_cbor(value) {
            return Format::Cbor;
        }
        let text = value.as_bytes();
        json |= memchr::memmem::find(text, b"json").is_some();
        any |= memchr::memmem::find(text, b"*/*").is_some();
    }
    if any && !json { body } else { Format::Json }
}

/// `application/cbor` or `application/cbor-seq`, alone or in a list.
fn names_cbor(value: &HeaderValue) -> bool {
    value.as_bytes().split(|byte| *byte == b',').any(|range| {
        let name = range.split(|byte| *byte == b';').next().unwrap_or_default();
        let name = name.trim_ascii();
        name.eq_ignore_ascii_case(b"application/cbor") || name.eq_ignore_ascii_case(b"application/cbor-seq")
    })
}
