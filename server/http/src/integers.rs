//! `Reprise-Integers: number`: integers of 64 bits are written as numbers, for readers that have such integers.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::HeaderMap,
    response::Response,
};
use hyper::body::{Frame, SizeHint};
use reprise_api::{headers, with_integers};

use crate::{calls::single, refusal::Refusal};

/// Whether the request asks for numbers.
pub fn asked(headers: &HeaderMap) -> Result<bool, Refusal> {
    match single(headers, headers::INTEGERS)?.map(|value| value.as_bytes()) {
        None | Some(b"string") => Ok(false),
        Some(b"number") => Ok(true),
        Some(_) => Err(Refusal::malformed(
            "the header Reprise-Integers must be string or number",
        )),
    }
}

/// Returns an answer with numbers, also in the part of its body that will still come.
pub async fn as_numbers(answer: impl Future<Output = Response>) -> Response {
    let mut answer = pin!(answer);
    let response = std::future::poll_fn(|cx| with_integers(true, || answer.as_mut().poll(cx))).await;
    response.map(|body| Body::new(RewrittenBody(body)))
}

/// A body that is written while it is read.
struct RewrittenBody(Body);

impl HttpBody for RewrittenBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        with_integers(true, || Pin::new(&mut self.0).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
