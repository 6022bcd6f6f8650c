//! The arguments of one call as a whole document.

use reprise_abi::Parameter;

use crate::{
    cbor::Cbor,
    decode::{ArgsError, ArgsScratch, encode_args},
    source::TokenSource,
    text::JsonSource,
};

/// How arguments and answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON, by the table in this crate's header.
    Json,
    /// CBOR: integers of 64 bits and bytes keep their types, and the rest is as in JSON.
    Cbor,
}

/// The arguments that make up a whole document. Nothing but white space stands for an empty object.
pub fn encode_document(
    format: Format,
    params: &[Parameter],
    document: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut ArgsScratch,
) -> Result<(), ArgsError> {
    let text = match format {
        Format::Json => document.trim_ascii(),
        Format::Cbor => document,
    };
    match format {
        _ if text.is_empty() => encode_whole(params, JsonSource::new(b"{}"), out, scratch),
        Format::Json => encode_whole(params, JsonSource::new(text), out, scratch),
        Format::Cbor => encode_whole(params, Cbor::new(text), out, scratch),
    }
}

fn encode_whole<'t, S: TokenSource<'t>>(
    params: &[Parameter],
    mut source: S,
    out: &mut Vec<u8>,
    scratch: &mut ArgsScratch,
) -> Result<(), ArgsError> {
    let outcome = encode_args(params, &mut source, out, scratch);
    let outcome = outcome.and_then(|outcome| source.end().map(|()| outcome));
    outcome.map_err(ArgsError::Syntax)?
}
