//! Reads the input along with hyper. It finds requests that must be refused although hyper accepts them, replaces hyper's bare answers by a
//! problem, and counts the memory of a connection.
//!
//! If a request has both `Transfer-Encoding` and `Content-Length`, hyper follows the former and shows it alone. A proxy before the server
//! may have followed the latter. The two would then disagree about the next request. The server refuses such a request and reads nothing
//! behind it (RFC 9112, section 6.3).

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use reprise_api::ProblemKind;
use reprise_base::{Grant, MemoryKind};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    body::requests_full,
    limits::{BYTES_COUNTED, CONNECTION_BYTES, HEAD_STEP_BYTES, HEADER_BYTES_MAX, HEADERS_MAX},
    pipeline::answer::last_answer,
    refusal::Refusal,
    stall::StallGuard,
    state::AppState,
};

/// The place of the next byte of a connection's input in its requests.
#[derive(Clone, Copy)]
enum InputPosition {
    Head,
    /// The byte is in a body with this many bytes left.
    Body(u64),
    /// The byte is in the line before a chunk. The fields are the value of its digits, and whether they have ended.
    Size(u64, bool),
    /// The byte is in a chunk with this many bytes left, the end of its line included.
    Chunk(u64),
    /// The byte is in a line behind the last chunk. The line has this many bytes.
    Trailer(u64),
    /// The byte is behind input that hyper refuses, or that can't be followed. Nothing more is reported.
    Over,
}

/// Finds the requests of a connection that tell their length twice. Keeps an unfinished head from hyper, so that memory holds one copy of it.
struct HeadScanner {
    at: InputPosition,
    /// The beginning of a head.
    unfinished: Vec<u8>,
    /// Heads that ended.
    count: u64,
    /// The first such request's number, from 1; 0: none yet.
    doubtful: Arc<AtomicU64>,
}

/// Part of the input that hyper may read.
enum PassedInput {
    /// The first bytes of the input, by their number.
    First(usize),
    /// Other bytes, in the place of the input.
    Instead(Vec<u8>),
}

impl HeadScanner {
    fn new(doubtful: Arc<AtomicU64>) -> Self {
        Self {
            at: InputPosition::Head,
            unfinished: Vec::new(),
            count: 0,
            doubtful,
        }
    }

    /// Takes the bytes that were read.
    fn take(&mut self, new: &[u8]) -> PassedInput {
        if self.unfinished.is_empty() {
            let passed = new.len() - self.read(new, 0);
            self.keep(&new[passed..]);
            return PassedInput::First(passed);
        }
        let seen = self.unfinished.len();
        self.keep(new);
        let all = std::mem::take(&mut self.unfinished);
        let unfinished = self.read(&all, seen);
        let mut passed = all;
        if unfinished == passed.len() {
            self.unfinished = passed;
            return PassedInput::Instead(Vec::new());
        }
        let rest = passed.len() - unfinished;
        self.keep(&passed[rest..]);
        passed.truncate(rest);
        PassedInput::Instead(passed)
    }

    /// Ends the following of the input, and returns the unfinished head for hyper.
    fn stop_following(&mut self) -> Vec<u8> {
        self.at = InputPosition::Over;
        std::mem::take(&mut self.unfinished)
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.unfinished.capacity() - self.unfinished.len();
        if bytes.len() > room {
            self.unfinished.reserve_exact(bytes.len().max(HEAD_STEP_BYTES));
        }
        self.unfinished.extend_from_slice(bytes);
    }

    /// Follows the input and returns how many bytes at its end are an unfinished head. The first `seen` bytes are one from before.
    fn read(&mut self, mut bytes: &[u8], mut seen: usize) -> usize {
        while !bytes.is_empty() {
            let (next, taken) = match self.at {
                InputPosition::Head => match self.read_head(bytes, seen) {
                    Some(read) => read,
                    None => return bytes.len(),
                },
                InputPosition::Body(left) => skip(left, bytes, InputPosition::Body, InputPosition::Head),
                InputPosition::Chunk(left) => skip(left, bytes, InputPosition::Chunk, InputPosition::Size(0, false)),
                InputPosition::Size(size, is_complete) => (read_size(size, is_complete, bytes[0]), 1),
                InputPosition::Trailer(length) => (read_trailer(length, bytes[0]), 1),
                InputPosition::Over => return 0,
            };
            (self.at, seen) = (next, 0);
            bytes = &bytes[taken..];
        }
        0
    }

    /// Returns the part that follows a head, and the end of the head. None if the end has not arrived yet.
    fn read_head(&mut self, bytes: &[u8], seen: usize) -> Option<(InputPosition, usize)> {
        // Its end is a line without anything.
        let looked_at = &bytes[seen.saturating_sub(2)..];
        let has_end =
            looked_at.windows(2).any(|two| two == b"\n\n") || looked_at.windows(3).any(|end| end == b"\n\r\n");
        if has_end {
            let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
            let mut request = httparse::Request::new(&mut lines);
            match request.parse(bytes) {
                // Hyper refuses this head. If it came in pieces, the scanner stopped following before its end.
                Ok(httparse::Status::Complete(end)) if end > HEADER_BYTES_MAX => {
                    return Some((InputPosition::Over, bytes.len()));
                }
                Ok(httparse::Status::Complete(end)) => {
                    self.count += 1;
                    return Some((self.body_of(request.headers), end));
                }
                // Lines without anything come before it.
                Ok(httparse::Status::Partial) => {}
                Err(_) => return Some((InputPosition::Over, bytes.len())),
            }
        }
        (bytes.len() > HEADER_BYTES_MAX).then_some((InputPosition::Over, bytes.len()))
    }

    fn body_of(&self, lines: &[httparse::Header<'_>]) -> InputPosition {
        let named = |name: &str| lines.iter().find(|line| line.name.eq_ignore_ascii_case(name));
        match (named("transfer-encoding"), named("content-length")) {
            (None, None) => InputPosition::Head,
            (Some(_), None) => InputPosition::Size(0, false),
            (Some(_), Some(_)) => {
                self.doubtful.store(self.count, Ordering::Release);
                InputPosition::Over
            }
            (None, Some(length)) => {
                let length = str::from_utf8(length.value)
                    .ok()
                    .and_then(|text| text.trim().parse().ok());
                match length {
                    Some(0) => InputPosition::Head,
                    Some(length) => InputPosition::Body(length),
                    None => InputPosition::Over,
                }
            }
        }
    }
}

/// The reading of a connection's input up to its end.
#[derive(Debug, PartialEq, Eq)]
pub struct HeadScan {
    /// The bytes that hyper may read.
    pub passed: Vec<u8>,
    /// Number of the first request that tells its length twice, from 1; 0: none.
    pub doubtful: u64,
}

/// Reads input that arrives in these pieces. Panics if an unfinished head takes more memory than a head may have.
pub fn scan_heads<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> HeadScan {
    let doubtful = Arc::new(AtomicU64::new(0));
    let mut heads = HeadScanner::new(doubtful.clone());
    let mut passed = Vec::new();
    for bytes in pieces {
        match heads.take(bytes) {
            PassedInput::First(count) => passed.extend_from_slice(&bytes[..count]),
            PassedInput::Instead(instead) => passed.extend_from_slice(&instead),
        }
        assert!(heads.unfinished.capacity() <= HEADER_BYTES_MAX + HEAD_STEP_BYTES);
    }
    passed.extend_from_slice(&heads.stop_following());
    HeadScan {
        passed,
        doubtful: doubtful.load(Ordering::Acquire),
    }
}

fn skip(left: u64, bytes: &[u8], within: fn(u64) -> InputPosition, behind: InputPosition) -> (InputPosition, usize) {
    let taken = left.min(bytes.len() as u64);
    let at = if taken == left { behind } else { within(left - taken) };
    (at, taken as usize)
}

fn read_size(size: u64, is_complete: bool, byte: u8) -> InputPosition {
    let digit = (byte as char).to_digit(16).filter(|_| !is_complete);
    match (byte, digit) {
        (b'\n', _) if size == 0 => InputPosition::Trailer(0),
        (b'\n', _) => InputPosition::Chunk(size.saturating_add(2)),
        (_, Some(digit)) => match size.checked_mul(16) {
            Some(sixteen) => InputPosition::Size(sixteen + u64::from(digit), false),
            None => InputPosition::Over,
        },
        // Spaces or an extension.
        (_, None) => InputPosition::Size(size, true),
    }
}

fn read_trailer(length: u64, byte: u8) -> InputPosition {
    match byte {
        b'\n' if length == 0 => InputPosition::Head,
        b'\n' => InputPosition::Trailer(0),
        b'\r' => InputPosition::Trailer(length),
        _ => InputPosition::Trailer(length + 1),
    }
}

/// Counts a connection's requests as hyper hands them out, and tells which it must not have taken.
pub struct RequestCheck {
    taken: AtomicU64,
    doubtful: Arc<AtomicU64>,
}

impl RequestCheck {
    /// Checks the next request.
    pub fn next(&self) -> Result<(), Refusal> {
        let number = self.taken.fetch_add(1, Ordering::AcqRel) + 1;
        match self.doubtful.load(Ordering::Acquire) == number {
            false => Ok(()),
            true => Err(Refusal::malformed(
                "the request has both Transfer-Encoding and Content-Length, which contradict each other: send one of them",
            )),
        }
    }
}

/// A connection that is hyper's.
pub struct WatchedStream {
    stream: StallGuard,
    heads: HeadScanner,
    state: AppState,
    /// Whole heads and the bytes behind them. Hyper reads them before the stream.
    ready: Vec<u8>,
    /// Memory of the unfinished head, among all requests on their way.
    head: Option<Grant>,
    /// True once the unfinished head found no memory.
    is_full: bool,
    /// Memory of hyper's read buffer, beyond what each connection counts.
    buffer: Grant,
    /// The text written in place of hyper's own answer, from some byte on.
    replacement: Option<(Vec<u8>, usize)>,
}

impl WatchedStream {
    pub fn new(stream: StallGuard, state: AppState) -> (Self, RequestCheck) {
        let doubtful = Arc::new(AtomicU64::new(0));
        let check = RequestCheck {
            taken: AtomicU64::new(0),
            doubtful: doubtful.clone(),
        };
        let watched = Self {
            stream,
            heads: HeadScanner::new(doubtful),
            ready: Vec::new(),
            head: None,
            is_full: false,
            buffer: state.router.memory().kind(MemoryKind::Connections).take(0),
            state,
            replacement: None,
        };
        (watched, check)
    }

    /// Counts hyper's read buffer. It grows with the pieces of the input and does not shrink.
    fn count_buffer(&mut self, bytes: usize) {
        let more = (bytes as u64).saturating_sub(CONNECTION_BYTES);
        if more > self.buffer.bytes() {
            self.buffer.resize(more);
        }
    }

    /// Counts the unfinished head among all requests on their way. If there is no room, hyper gets a byte that it refuses. It then ends the
    /// connection, and the client gets `overloaded`.
    fn count_head(&mut self) {
        let bytes = self.heads.unfinished.capacity() as u64;
        if bytes <= BYTES_COUNTED {
            self.head = None;
            return;
        }
        let has_room = match &mut self.head {
            Some(grant) => grant.try_grow(bytes.saturating_sub(grant.bytes())),
            None => {
                self.head = self.state.requests().try_take(bytes);
                self.head.is_some()
            }
        };
        if !has_room {
            self.is_full = true;
            self.heads.stop_following();
            self.ready = vec![0];
            self.head = None;
        }
    }

    /// Writes what stands for the `bytes` of hyper's; as many as those when all is written.
    fn poll_replacement(&mut self, cx: &mut Context<'_>, bytes: usize) -> Poll<io::Result<usize>> {
        while let Some((text, written)) = &mut self.replacement {
            if *written == text.len() {
                self.replacement = None;
                break;
            }
            *written += ready!(Pin::new(&mut self.stream).poll_write(cx, &text[*written..]))?;
        }
        Poll::Ready(Ok(bytes))
    }

    /// True if hyper made this answer by itself, so that a problem takes its place.
    fn stands_for(&mut self, bytes: &[u8]) -> bool {
        if self.replacement.is_some() {
            return true;
        }
        let Some(refusal) = refusal_for(bytes) else {
            return false;
        };
        let refusal = if self.is_full { requests_full() } else { refusal };
        self.state.count_refusal(&refusal);
        self.replacement = Some((last_answer(&refusal), 0));
        true
    }
}

/// Returns the refusal for an answer of hyper's own; none for the server's errors, which all have a body.
fn refusal_for(bytes: &[u8]) -> Option<Refusal> {
    let rest = bytes.strip_prefix(b"HTTP/1.1 ")?;
    let (status, detail) = match rest.get(..3)? {
        b"400" => (
            400,
            "the server can't read the request line or a header as HTTP/1.1".to_owned(),
        ),
        b"414" => (414, "the request's address is too long".to_owned()),
        b"431" => {
            let detail = format!(
                "a request may have at most {HEADERS_MAX} headers, and {HEADER_BYTES_MAX} bytes before its body"
            );
            (431, detail)
        }
        _ => return None,
    };
    let head = str::from_utf8(rest.strip_suffix(b"\r\n\r\n")?).ok()?;
    let is_bare = head.lines().any(|line| line.eq_ignore_ascii_case("content-length: 0"));
    if !is_bare || head.contains("\r\n\r\n") {
        return None;
    }
    let mut refusal = Refusal::new(ProblemKind::MalformedRequest, detail);
    refusal.problem.status = status;
    Some(refusal)
}

impl AsyncRead for WatchedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.count_buffer(buffer.capacity());
        loop {
            if !this.ready.is_empty() {
                let bytes = this.ready.len().min(buffer.remaining());
                buffer.put_slice(&this.ready[..bytes]);
                match bytes == this.ready.len() {
                    true => this.ready = Vec::new(),
                    false => _ = this.ready.drain(..bytes),
                }
                return Poll::Ready(Ok(()));
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buffer))?;
            if buffer.filled().len() == before {
                this.ready = this.heads.stop_following();
                if this.ready.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            match this.heads.take(&buffer.filled()[before..]) {
                PassedInput::First(bytes) => buffer.set_filled(before + bytes),
                PassedInput::Instead(bytes) => {
                    buffer.set_filled(before);
                    this.ready = bytes;
                }
            }
            this.count_head();
            if buffer.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.stands_for(bytes) {
            true => self.poll_replacement(cx, bytes.len()),
            false => Pin::new(&mut self.stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        match (filled.next(), filled.next()) {
            (Some(one), None) if self.stands_for(one) => self.poll_replacement(cx, one.len()),
            _ => Pin::new(&mut self.stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of the request that tells its length twice, whatever the pieces in which the input comes; 0: none.
    fn doubtful(input: &str) -> u64 {
        let mut found = Vec::new();
        for piece in [1, 2, 3, 7, 40, input.len().max(1)] {
            let scan = scan_heads(input.as_bytes().chunks(piece));
            assert!(
                scan.passed == input.as_bytes(),
                "hyper gets all of it, in pieces of {piece}: {input:?}"
            );
            found.push(scan.doubtful);
        }
        assert!(found.windows(2).all(|two| two[0] == two[1]), "{input:?}: {found:?}");
        found[0]
    }

    #[test]
    fn hyper_gets_whole_heads() {
        let head = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let body = "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhel";
        let mut heads = HeadScanner::new(Arc::default());
        let mut take = |text: &str| match heads.take(text.as_bytes()) {
            PassedInput::First(count) => text[..count].to_owned(),
            PassedInput::Instead(bytes) => String::from_utf8(bytes).expect("ASCII"),
        };
        assert_eq!(take(&head[..7]), "");
        assert_eq!(take(&head[7..20]), "");
        assert_eq!(take(&format!("{}GET", &head[20..])), head);
        assert_eq!(take(&format!("{}{body}", &head[3..])), format!("{head}{body}"));
        assert_eq!(take("lo"), "lo");
        assert_eq!(take(&format!("{head}{}", &head[..20])), head);
        assert_eq!(take(&head[20..]), head);
        let blank = "\r\n".repeat(HEADER_BYTES_MAX);
        assert_eq!(take(&blank), blank, "what is no head is not kept for ever");
    }

    const BOTH: &str = "POST /v1/batch HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n";

    #[test]
    fn a_length_told_twice_is_found_behind_every_kind_of_request() {
        assert_eq!(doubtful(BOTH), 1);
        assert_eq!(doubtful(&BOTH.to_uppercase()), 1);
        for before in [
            "GET / HTTP/1.1\r\n\r\n",
            "\r\nGET / HTTP/1.1\nhost: a\n\n",
            "POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello",
            "POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1F \r\n0123456789012345678901234567890\r\n0\r\nx-a: b\r\n\r\n",
        ] {
            assert_eq!(doubtful(before), 0);
            assert_eq!(doubtful(&format!("{before}{before}{BOTH}")), 3, "{before:?}");
        }
        // The bytes of a body are no head.
        let body = format!("POST / HTTP/1.1\r\ncontent-length: {}\r\n\r\n{BOTH}", BOTH.len());
        assert_eq!(doubtful(&body), 0);
        let chunk = format!(
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{BOTH}\r\n0\r\n\r\n",
            BOTH.len()
        );
        assert_eq!(doubtful(&chunk), 0);
        assert_eq!(doubtful("nonsense\r\n\r\n"), 0);
        assert_eq!(
            doubtful(&format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000))),
            0
        );
        // Hyper refuses a head that is too long, in whatever pieces it arrives.
        let long = BOTH.replacen("\r\n", &format!("\r\nx: {}\r\n", "y".repeat(HEADER_BYTES_MAX)), 1);
        assert_eq!(doubtful(&long), 0);
    }

    #[test]
    fn answers_of_hypers_own_are_known_and_no_others() {
        let status = |text: &str| refusal_for(text.as_bytes()).map(|refusal| refusal.problem.status);
        for (line, expected) in [
            ("400 Bad Request", Some(400)),
            ("414 URI Too Long", Some(414)),
            ("431 Request Header Fields Too Large", Some(431)),
            ("404 Not Found", None),
            ("200 OK", None),
        ] {
            let bare = format!("HTTP/1.1 {line}\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n");
            assert_eq!(status(&bare), expected, "{line}");
            let head = format!("HTTP/1.1 {line}\r\ncontent-length: 2\r\n\r\n{{}}");
            assert_eq!(status(&head), None);
        }
    }
}
