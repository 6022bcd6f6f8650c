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
pub use encode::{write_arguments, write_row, write_value};
pub use key::encode_prefix;
pub use pack::Packer;
pub use scalar::{hex, parse_timestamp, rfc3339};
pub use source::{Source, SyntaxError, Text, Token};
pub use text::Json;

use axum::http::{HeaderMap, HeaderValue, header};
use reprise_abi::Parameter;

/// How arguments and answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Cbor,
}

impl Format {
    /// That of a request's body. What is not said to be CBOR is JSON.
    pub fn of_body(headers: &HeaderMap) -> Self {
        match headers.get(header::CONTENT_TYPE) {
            Some(value) if names_cbor(value) => Self::Cbor,
            _ => Self::Json,
        }
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
        name.eq_ignore_ascii_case(b"application/cbor")
            || name.eq_ignore_ascii_case(b"application/cbor-seq")
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
