//! The one kind of request that a pipeline reads itself: a call with a declared length that needs only an answer. Any unusual, doubtful or
//! wrong request is left to hyper. Two readers of one grammar must not differ, so this one knows a small part of it.

use std::{ops::Range, sync::Arc};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use reprise_api::headers;
use reprise_base::limits::IDEMPOTENCY_KEY_BYTES_MAX;

use crate::{
    auth::Auth,
    calls::{Call, is_valid_key},
    limits::{PIPELINE_HEADERS_MAX, PIPELINE_REQUEST_BYTES_MAX},
};

/// The kind of a connection's next bytes of input.
#[derive(Debug)]
pub enum InputKind<'b> {
    /// The beginning of a request that may yet become a call.
    Part,
    Call(Box<CallHead<'b>>),
    /// Hyper's, with all that follows.
    Other,
}

/// A call's head; `bytes` of head and then `body_bytes` of body are all there.
#[derive(Debug)]
pub struct CallHead<'b> {
    pub path: &'b str,
    pub headers: HeaderMap,
    pub bytes: usize,
    pub body_bytes: usize,
    /// Place of the value of its idempotency key, if it has one.
    pub key: Option<Range<usize>>,
}

/// An earlier head. Clients repeat theirs byte by byte except the key's value, and its meaning stays the same while the modules do.
pub struct KnownHead {
    pub head: Box<[u8]>,
    /// Place of the value of its idempotency key, if it has one.
    pub key: Option<Range<usize>>,
    pub body_bytes: usize,
    pub generation: u64,
    /// The tokens by which it was admitted.
    pub auth: Arc<Auth>,
    /// Its call, without a key.
    pub call: Call,
}

/// A head that differs from a known one in the value of its key at most.
#[derive(Debug, PartialEq, Eq)]
pub struct AlikeHead<'b> {
    pub key: Option<&'b str>,
    pub bytes: usize,
}

impl<'b> AlikeHead<'b> {
    /// The head that `input` begins with, if it is like `head`, whose key's value lies at `key`. A value that a reader of HTTP
    /// would trim, or refuse, is none.
    #[inline]
    pub fn find(head: &[u8], key: Option<&Range<usize>>, input: &'b [u8]) -> Option<Self> {
        let Some(key) = key else {
            let bytes = head.len();
            return input.starts_with(head).then_some(Self { key: None, bytes });
        };
        let (before, behind) = (&head[..key.start], &head[key.end..]);
        let rest = input.strip_prefix(before)?;
        let end = rest
            .iter()
            .take(IDEMPOTENCY_KEY_BYTES_MAX + 1)
            .position(|byte| *byte == b'\r')?;
        let (value, rest) = rest.split_at(end);
        let value = str::from_utf8(value).ok()?;
        let is_whole = is_valid_key(value) && value.trim_matches(' ').len() == value.len();
        (is_whole && rest.starts_with(behind)).then_some(Self {
            key: Some(value),
            bytes: before.len() + end + behind.len(),
        })
    }
}

/// How every such request begins.
const LINE: &[u8] = b"POST /v1/call/";

pub fn recognise(input: &[u8]) -> InputKind<'_> {
    let seen = input.len().min(LINE.len());
    if input[..seen] != LINE[..seen] {
        return InputKind::Other;
    }
    let part = match input.len() < PIPELINE_REQUEST_BYTES_MAX {
        true => InputKind::Part,
        false => InputKind::Other,
    };
    let mut lines = [httparse::EMPTY_HEADER; PIPELINE_HEADERS_MAX];
    let mut request = httparse::Request::new(&mut lines);
    let bytes = match request.parse(input) {
        Ok(httparse::Status::Complete(bytes)) => bytes,
        Ok(httparse::Status::Partial) => return part,
        Err(_) => return InputKind::Other,
    };
    let (Some("POST"), Some(1), Some(path)) = (request.method, request.version, request.path) else {
        return InputKind::Other;
    };
    let Some((headers, body_bytes)) = is_plain_path(path).then(|| take_headers(request.headers)).flatten() else {
        return InputKind::Other;
    };
    let key = request.headers.iter().find(|line| is_key(line));
    let key = key.map(|line| {
        let start = line.value.as_ptr().addr() - input.as_ptr().addr();
        start..start + line.value.len()
    });
    if bytes + body_bytes > PIPELINE_REQUEST_BYTES_MAX {
        return InputKind::Other;
    }
    if input.len() < bytes + body_bytes {
        return InputKind::Part;
    }
    InputKind::Call(Box::new(CallHead {
        path,
        headers,
        bytes,
        body_bytes,
        key,
    }))
}

fn is_key(line: &httparse::Header<'_>) -> bool {
    line.name.eq_ignore_ascii_case(headers::IDEMPOTENCY_KEY)
}

/// A path that is the same however it is read: no query, no escapes.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_' | b'-' | b'.' | b'~');
    path.bytes().all(is_plain)
}

/// Returns the headers and the length of the body. None if one of them asks for something that a pipeline can't do.
fn take_headers(lines: &[httparse::Header<'_>]) -> Option<(HeaderMap, usize)> {
    let mut taken = HeaderMap::with_capacity(lines.len());
    let mut length = None;
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        if name == header::CONTENT_LENGTH {
            let said = parse_length(line.value)?;
            if length.replace(said).is_some() {
                return None;
            }
        }
        if name == header::CONNECTION && !line.value.eq_ignore_ascii_case(b"keep-alive") {
            return None;
        }
        if is_more_than_a_call(&name) {
            return None;
        }
        taken.append(name, HeaderValue::from_bytes(line.value).ok()?);
    }
    Some((taken, length?))
}

/// True for headers that change how a request is read or answered.
fn is_more_than_a_call(name: &HeaderName) -> bool {
    let names = [
        "transfer-encoding",
        "content-encoding",
        "expect",
        "upgrade",
        "te",
        "trailer",
        "proxy-connection",
        "http2-settings",
        // Answers to pages have headers of their own.
        "origin",
        "reprise-integers",
    ];
    names.contains(&name.as_str())
}

fn parse_length(value: &[u8]) -> Option<usize> {
    let is_number = matches!(value.len(), 1..=6) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |sum, digit| sum * 10 + (digit - b'0') as usize))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the input in one word.
    fn word(input: &[u8]) -> String {
        match recognise(input) {
            InputKind::Part => "part".into(),
            InputKind::Other => "other".into(),
            InputKind::Call(head) => {
                let body = &input[head.bytes..head.bytes + head.body_bytes];
                let headers = head.headers.len();
                format!("{} {headers} {}", head.path, body.escape_ascii())
            }
        }
    }

    fn call(lines: &str, body: &str) -> Vec<u8> {
        format!("POST /v1/call/m/p HTTP/1.1\r\n{lines}\r\n{body}").into_bytes()
    }

    #[test]
    fn a_plain_call_is_taken_and_its_beginnings_are_waited_for() {
        let request = call("Host: localhost\r\nContent-Length: 8\r\n", "{\"id\":1}");
        assert_eq!(word(&request), "/v1/call/m/p 2 {\\\"id\\\":1}");
        for end in 0..request.len() {
            assert_eq!(word(&request[..end]), "part", "{end}");
        }
        let two = [&request[..], &request[..]].concat();
        assert_eq!(word(&two), word(&request));
        let traced = call("content-length: 0\r\ntraceparent: 00-0-0-0\r\n", "");
        assert_eq!(word(&traced), "/v1/call/m/p 2 ");
        let empty = call("content-length: 0\r\nconnection: Keep-Alive\r\n", "");
        assert_eq!(word(&empty), "/v1/call/m/p 2 ");
    }

    #[test]
    fn doubtful_requests_are_left_to_hyper() {
        let body = "{\"id\":1}";
        for lines in [
            "",
            "host: localhost\r\n",
            "content-length: 8\r\ncontent-length: 8\r\n",
            "content-length: 8\r\ncontent-length: 9\r\n",
            "content-length: 8\r\ntransfer-encoding: chunked\r\n",
            "content-length: 8\r\ntransfer-encoding: identity\r\n",
            "content-length: 8\r\ncontent-encoding: gzip\r\n",
            "content-length: +8\r\n",
            "content-length: -1\r\n",
            "content-length: 0x8\r\n",
            "content-length: 8, 8\r\n",
            "content-length: 8 8\r\n",
            "content-length:\r\n",
            "content-length: 1000000\r\n",
            "content-length: 40000\r\n",
            "content-length : 8\r\n",
            " content-length: 8\r\n",
            "content-length: 8\r\nx-a: b\r\n c\r\n",
            "content-length: 8\r\nx-a: b\0\r\n",
            "content-length: 8\r\nconnection: close\r\n",
            "content-length: 8\r\nconnection: upgrade\r\nupgrade: h2c\r\n",
            "content-length: 8\r\nexpect: 100-continue\r\n",
            "content-length: 8\r\nTE: trailers\r\n",
            "content-length: 8\r\norigin: https://a.example\r\n",
        ] {
            assert_eq!(word(&call(lines, body)), "other", "{lines:?}");
        }
        let length = "HTTP/1.1\r\ncontent-length: 0\r\n\r\n";
        for line in [
            "GET /v1/call/m/p ",
            "POST /v1/batch ",
            "post /v1/call/m/p ",
            "POST /v1/call/m/p?x ",
            "POST /v1/call/m/%70 ",
            "POST  /v1/call/m/p ",
            "POST /v1/call/m/p\t",
            "\r\nPOST /v1/call/m/p ",
        ] {
            assert_eq!(word(format!("{line}{length}").as_bytes()), "other", "{line:?}");
        }
        let old = b"POST /v1/call/m/p HTTP/1.0\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(word(old), "other");
        let many = "x-a: b\r\n".repeat(PIPELINE_HEADERS_MAX);
        assert_eq!(word(&call(&format!("{many}content-length: 0\r\n"), "")), "other");
        let long = format!(
            "POST /v1/call/m/p HTTP/1.1\r\nx-a: {}",
            "b".repeat(PIPELINE_REQUEST_BYTES_MAX)
        );
        assert_eq!(word(long.as_bytes()), "other");
    }

    /// The key of a request whose head is like the one of another.
    fn alike<'b>(known: &[u8], request: &'b [u8]) -> Option<(Option<&'b str>, usize)> {
        let InputKind::Call(head) = recognise(known) else {
            panic!("the known request is a call");
        };
        let alike = AlikeHead::find(&known[..head.bytes], head.key.as_ref(), request);
        alike.map(|alike| (alike.key, alike.bytes))
    }

    fn keyed(key: &str) -> Vec<u8> {
        call(&format!("Idempotency-Key: {key}\r\ncontent-length: 2\r\n"), "{}")
    }

    #[test]
    fn heads_are_alike_when_their_keys_alone_differ() {
        let known = keyed("first");
        for key in ["first", "x", "another key, and longer", &"k".repeat(255)] {
            let request = keyed(key);
            assert_eq!(alike(&known, &request), Some((Some(key), request.len() - 2)), "{key}");
            let InputKind::Call(head) = recognise(&request) else {
                panic!("{key:?} is no call");
            };
            assert_eq!(head.headers[headers::IDEMPOTENCY_KEY], key);
        }
        let plain = call("content-length: 2\r\n", "{}");
        assert_eq!(alike(&plain, &plain), Some((None, plain.len() - 2)));
    }

    #[test]
    fn heads_are_not_alike_when_more_differs_or_a_key_is_doubtful() {
        let known = keyed("first");
        for key in [
            "",
            " x",
            "x ",
            "\tx",
            "x\ty",
            "\u{e9}",
            "x\0",
            "x\ny",
            &"k".repeat(256),
            "x\r\nx-a: b",
        ] {
            assert_eq!(alike(&known, &keyed(key)), None, "{key:?}");
        }
        let twice = call(
            "Idempotency-Key: a\r\nIdempotency-Key: b\r\ncontent-length: 2\r\n",
            "{}",
        );
        let longer = call("Idempotency-Key: a\r\ncontent-length: 20\r\n", "{}");
        let plain = call("content-length: 2\r\n", "{}");
        for request in [&twice, &longer, &plain, &known[..known.len() - 4].to_vec()] {
            assert_eq!(alike(&known, request), None, "{}", request.escape_ascii());
        }
        assert_eq!(alike(&plain, &known), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_something(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            recognise(&bytes);
            recognise(&[LINE, &bytes].concat());
            let mut request = call("host: a\r\ncontent-length: 3\r\n", "{ }more");
            let at = at.index(request.len());
            request[at] = byte;
            if let InputKind::Call(head) = recognise(&request) {
                prop_assert!(head.bytes + head.body_bytes <= request.len());
            }
        }
    }
}
