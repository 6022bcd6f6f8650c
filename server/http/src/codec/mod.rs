//! JSON and CBOR <-> the guest contract's bytes, driven by the schema: no tree is built on either way.
//!
//! | type | JSON out | JSON in | CBOR, where it differs |
//! | --- | --- | --- | --- |
//! | bool | `true`, `false` | the same | |
//! | i8 to i32, u8 to u32 | number | exact integer, or a string of one | |
//! | i64, u64 | string | the same | out: integer |
//! | f64 | number; `"NaN"`, `"Infinity"`, `"-Infinity"` | the same | out: float |
//! | decimal | string with all digits of its scale | string or number without loss | |
//! | text | string | string | |
//! | bytes | base64 string, padded | base64 string, padded or not | out: byte string; in: that as well |
//! | timestamp | `2026-01-31T12:00:00.000000Z` | RFC 3339, at most microseconds | |
//! | uuid | hyphenated, lower case | hyphenated or 32 digits | in: 16 bytes as well |
//! | option | the value or `null` | the same; a member may be left out | |
//! | list, struct, enum | array, object, string | the same | |
//! | unit | `null` | `null`, or left out | |
//!
//! Tags of CBOR are passed over: the schema says what a value means.

mod cbor;
mod decode;
mod encode;
mod key;
mod pack;
mod scalar;
mod source;
#[cfg(test)]
mod tests;
mod text;

pub use cbor::{Cbor, ItemScanner};
pub use decode::{ArgsError, Scratch, encode_args};
pub use encode::{read_scalar, write_arguments, write_column, write_columns, write_row, write_value};
pub use key::{count_prefix, encode_column, encode_prefix};
pub use pack::Packer;
pub use scalar::{hex, parse_timestamp, rfc3339};
pub use source::{Source, SyntaxError, Text, Token};
pub use text::Json;

use axum::http::{HeaderMap, HeaderValue, header};
use reprise_abi::Parameter;
use reprise_api::{CBOR_MEDIA_TYPE, CBOR_SEQUENCE_MEDIA_TYPE, NDJSON_MEDIA_TYPE, ProblemKind};

use crate::{pages::is_of_browser, refusal::Refusal};

/// How arguments and answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Cbor,
}

impl Format {
    /// That of a request's body. Without a word about it, a program means JSON; a browser's page always says, and what it
    /// can send to another site unasked (forms, plain text) is none of these types.
    pub fn of_body(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut types = headers.get_all(header::CONTENT_TYPE).iter();
        let format = match (types.next(), types.next()) {
            (None, _) if !is_of_browser(headers) => Some(Self::Json),
            (Some(value), None) => Self::of_media_type(value),
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

    fn of_media_type(value: &HeaderValue) -> Option<Self> {
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
            return Some(Self::Cbor);
        }
        (is_one_of(["application/json", NDJSON_MEDIA_TYPE]) && parts.all(is_utf8)).then_some(Self::Json)
    }

    /// That of the answer: what the client asks for, and without a word about it the body's own.
    pub fn of_answer(headers: &HeaderMap, body: Self) -> Self {
        let mut accepts = headers.get_all(header::ACCEPT).iter().peekable();
        if accepts.peek().is_none() {
            return body;
        }
        let (mut json, mut any) = (false, false);
        for value in accepts {
            if names_cbor(value) {
                return Self::Cbor;
            }
            let text = value.as_bytes();
            json |= memchr::memmem::find(text, b"json").is_some();
            any |= memchr::memmem::find(text, b"*/*").is_some();
        }
        if any && !json { body } else { Self::Json }
    }
}

/// `application/cbor` or `application/cbor-seq`, alone or in a list.
fn names_cbor(value: &HeaderValue) -> bool {
    value.as_bytes().split(|byte| *byte == b',').any(|range| {
        let name = range.split(|byte| *byte == b';').next().unwrap_or_default();
        let name = name.trim_ascii();
        name.eq_ignore_ascii_case(b"application/cbor") || name.eq_ignore_ascii_case(b"application/cbor-seq")
    })
}

/// The arguments that make up a whole document. Nothing but white space stands for an empty object.
pub fn encode_document(
    format: Format,
    params: &[Parameter],
    document: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<(), ArgsError> {
    let text = match format {
        Format::Json => document.trim_ascii(),
        Format::Cbor => document,
    };
    match format {
        _ if text.is_empty() => encode_whole(params, Json::new(b"{}"), out, scratch),
        Format::Json => encode_whole(params, Json::new(text), out, scratch),
        Format::Cbor => encode_whole(params, Cbor::new(text), out, scratch),
    }
}

fn encode_whole<'t, S: Source<'t>>(
    params: &[Parameter],
    mut source: S,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<(), ArgsError> {
    let outcome = encode_args(params, &mut source, out, scratch);
    let outcome = outcome.and_then(|outcome| source.end().map(|()| outcome));
    outcome.map_err(ArgsError::Syntax)?
}
