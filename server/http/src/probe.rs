//! Decoders of requests, for tests with arbitrary bytes.

use bytes::Bytes;
use reprise_abi::Parameter;
use reprise_codec::{ArgsScratch, Format, encode_document};
use reprise_router::{BatchBuilder, Router};

pub use crate::heads::{HeadScan, scan_heads};
use crate::{
    batch::{Chunk, LineParser},
    pipeline::request::{InputKind, recognise},
    principal::Principal,
};

/// A pipeline's reading of the first bytes of its input.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// The beginning of a request that may still become a call.
    Part,
    /// A call, with the lengths of its head and its body.
    Call {
        /// The path in the request.
        path: String,
        /// Names and values, as in the request.
        headers: Vec<(String, Vec<u8>)>,
        /// Bytes of the head, the empty line behind it included.
        head_bytes: usize,
        /// Bytes of the body by its declared length.
        body_bytes: usize,
    },
    /// A request for another reader.
    Other,
}

/// Reads input as a pipeline does first.
pub fn request(input: &[u8]) -> Request {
    let head = match recognise(input) {
        InputKind::Part => return Request::Part,
        InputKind::Other => return Request::Other,
        InputKind::Call(head) => head,
    };
    let headers = head.headers.iter();
    let headers = headers.map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()));
    Request::Call {
        path: head.path.to_owned(),
        headers: headers.collect(),
        head_bytes: head.bytes,
        body_bytes: head.body_bytes,
    }
}

fn format(is_cbor: bool) -> Format {
    match is_cbor {
        true => Format::Cbor,
        false => Format::Json,
    }
}

/// Returns the encoded arguments of a call's body. None if the body is refused.
pub fn arguments(params: &[Parameter], is_cbor: bool, body: &[u8]) -> Option<Vec<u8>> {
    let mut encoded = Vec::new();
    let outcome = encode_document(format(is_cbor), params, body, &mut encoded, &mut ArgsScratch::default());
    outcome.ok().map(|()| encoded)
}

/// How many of two equal calls of a batch are accepted; nothing is submitted.
pub fn batch_calls(router: &Router, is_cbor: bool, call: &[u8]) -> usize {
    let text = Bytes::from([call, call].concat());
    let mut chunk = Chunk::new(text, format(is_cbor), router.new_stream());
    let mut batch = BatchBuilder::new(router.deployed(), router);
    let mut parser = LineParser::default();
    parser.begin_chunk();
    let length = call.len() as u32;
    for line in [0..length, length..2 * length] {
        chunk.add(line, &mut batch, &mut parser, &Principal::ANONYMOUS);
    }
    chunk.calls.slots().iter().filter(|slot| !slot.is_refused()).count()
}
