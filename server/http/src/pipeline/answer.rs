//! Answers as the bytes of HTTP/1.1, several in one buffer.

use std::{
    cell::RefCell,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::http::Response;
use reprise_api::headers;
use reprise_base::Safety;
use reprise_codec::Format;
use reprise_router::{CallReply, Router};

use crate::{
    calls::{media_type, write_body},
    refusal::Refusal,
    replication::Staleness,
    target::Target,
    texts::Room,
    trace::CallTrace,
};

thread_local! {
    /// The second for which the text of `Date` was made, and the text.
    static DATE: RefCell<(u64, String)> = RefCell::default();
}

/// The buffers of answers, one after the other.
pub struct Answers<'a> {
    pub out: &'a mut Vec<u8>,
    /// The body of the answer being written.
    pub body: &'a mut Vec<u8>,
    /// Room for a long answer in `out`, until it is written.
    pub room: &'a mut Option<Room>,
    /// Source of the age of a standby's view.
    pub router: Option<&'a Router>,
    /// The safety of writes; none if there are only refusals.
    pub safety: Option<Safety>,
}

impl Answers<'_> {
    /// The answer to a call that ran; its status. `closes`: nothing more is answered on this connection.
    pub fn push_reply(
        &mut self,
        target: &Target,
        reply: &CallReply<'_>,
        format: Format,
        trace: Option<&CallTrace>,
        closes: bool,
    ) -> u16 {
        self.body.clear();
        if let Err(refusal) = write_body(target, reply, format, self.body) {
            return self.push_refusal(&refusal, trace, closes);
        }
        let mut digits = itoa::Buffer::new();
        self.put("HTTP/1.1 200 OK\r\ncontent-type: ");
        self.put(media_type(format));
        self.put_header(headers::TXN_ID, digits.format(reply.txn_id.0));
        self.put_header(headers::LSN, digits.format(reply.lsn.0));
        if let Some(level) = self.safety.filter(|_| !target.schema().read_only) {
            self.put_header(headers::SAFETY, level.name());
        }
        let shown = self.router.and_then(|router| Staleness::of_record(router, reply.lsn.0));
        if let Some(shown) = shown {
            shown.headers().for_each(|(name, value)| self.put_header(name, &value));
        }
        if reply.replayed {
            self.put_header(headers::IDEMPOTENT_REPLAYED, "true");
        }
        if let Some(trace) = trace {
            self.put_header(headers::TRACEPARENT, trace.header.to_str().unwrap_or_default());
            if let Some(span) = &trace.span {
                span.committed(reply);
            }
        }
        self.end(closes);
        200
    }

    /// The answer to a call that did not commit; its status.
    pub fn push_refusal(&mut self, refusal: &Refusal, trace: Option<&CallTrace>, closes: bool) -> u16 {
        let mut answer = refusal.answer();
        if let Some(staleness) = self.router.and_then(Staleness::of) {
            staleness.write_headers(answer.headers_mut());
        }
        if let Some(trace) = trace {
            answer.headers_mut().insert(headers::TRACEPARENT, trace.header.clone());
            if let Some(span) = &trace.span {
                span.answered(&answer);
            }
        }
        self.push_answer(answer, closes)
    }

    /// Any answer; its status.
    pub fn push_answer(&mut self, answer: Response<Vec<u8>>, closes: bool) -> u16 {
        let (head, body) = answer.into_parts();
        self.put("HTTP/1.1 ");
        self.put(head.status.as_str());
        self.put(" ");
        self.put(head.status.canonical_reason().unwrap_or_default());
        for (name, value) in &head.headers {
            self.put("\r\n");
            self.put(name.as_str());
            self.put(": ");
            self.out.extend_from_slice(value.as_bytes());
        }
        *self.body = body;
        self.end(closes);
        head.status.as_u16()
    }

    /// Writes the end of every answer's head, and its body.
    fn end(&mut self, closes: bool) {
        let mut digits = itoa::Buffer::new();
        self.put_header("content-length", digits.format(self.body.len()));
        if closes {
            self.put_header("connection", "close");
        }
        put_date(self.out);
        self.put("\r\n\r\n");
        self.out.extend_from_slice(self.body);
    }

    fn put_header(&mut self, name: &str, value: &str) {
        self.put("\r\n");
        self.put(name);
        self.put(": ");
        self.put(value);
    }

    fn put(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }
}

fn put_date(out: &mut Vec<u8>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    DATE.with_borrow_mut(|(second, text)| {
        if *second != now.as_secs() || text.is_empty() {
            *second = now.as_secs();
            *text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(*second));
        }
        out.extend_from_slice(b"\r\ndate: ");
        out.extend_from_slice(text.as_bytes());
    });
}

/// The bytes of an answer after which the connection ends.
pub fn last_answer(refusal: &Refusal) -> Vec<u8> {
    let (mut out, mut body) = (Vec::new(), Vec::new());
    let mut answers = Answers {
        out: &mut out,
        body: &mut body,
        room: &mut None,
        router: None,
        safety: None,
    };
    answers.push_answer(refusal.answer(), true);
    out
}

#[cfg(test)]
mod tests {
    use reprise_api::ProblemKind;

    use super::*;

    #[test]
    fn a_refusal_is_an_answer_with_its_length_and_the_date() {
        let refusal = Refusal::new(ProblemKind::NotFound, "no such thing");
        let text = String::from_utf8(last_answer(&refusal)).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        assert!(
            head.starts_with("HTTP/1.1 404 Not Found\r\ncontent-type: application/problem+json\r\n"),
            "{head}"
        );
        assert!(
            head.contains(&format!(
                "\r\ncontent-length: {}\r\nconnection: close\r\ndate: ",
                body.len()
            )),
            "{head}"
        );
        let date = head.rsplit_once("date: ").expect("a date").1;
        let stamp = httpdate::parse_http_date(date).expect("a date of HTTP");
        assert!(stamp.elapsed().expect("not of the future") < Duration::from_secs(60));
    }
}
