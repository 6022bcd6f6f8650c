//! A client of HTTP/1.1 that costs as little as it can: the load generator shares its cores with the server.
//! Requests one at a time or several ahead of their answers, on a connection that is kept alive.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::ReadHalf},
};

const READ_BYTES: usize = 16 << 10;
/// Longer requests are written while the answer is read: a server may stream answers before it has read all.
const WRITE_AT_ONCE_BYTES: usize = 32 << 10;
const HEAD_BYTES_MAX: usize = 64 << 10;
const BODY_BYTES_MAX: usize = 1 << 30;

pub(crate) struct Connection {
    stream: TcpStream,
    reader: AnswerReader,
    /// The server closes after the last answer.
    closing: bool,
}

pub(crate) struct Answer<'a> {
    pub status: u16,
    pub body: &'a [u8],
}

impl Connection {
    pub(crate) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            reader: AnswerReader::default(),
            closing: false,
        })
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Sends a whole request and reads the whole answer to it.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> io::Result<Answer<'_>> {
        let (mut read, mut write) = self.stream.split();
        let head = if request.len() <= WRITE_AT_ONCE_BYTES {
            write.write_all(request).await?;
            self.reader.read(&mut read).await?
        } else {
            // A server that refuses a request answers without reading all of it: the answer counts, not the failed write.
            let (_, head) = tokio::join!(write.write_all(request), self.reader.read(&mut read));
            head?
        };
        self.closing = head.closes;
        Ok(Answer {
            status: head.status,
            body: self.reader.body(),
        })
    }
}

impl Connection {
    /// Sends requests; each wants one `receive`.
    pub(crate) async fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stream.write_all(requests).await
    }

    /// The answer to the first request that has none yet.
    pub(crate) async fn receive(&mut self) -> io::Result<Answer<'_>> {
        let (mut read, _) = self.stream.split();
        let head = self.reader.read(&mut read).await?;
        self.closing |= head.closes;
        Ok(Answer {
            status: head.status,
            body: self.reader.body(),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    length: Length,
    closes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Known(usize),
    Chunked,
}

/// Bytes received and what they turned out to be.
#[derive(Default)]
struct AnswerReader {
    received: Vec<u8>,
    /// Bytes of `received` that answers before were made of.
    used: usize,
    /// Body in `received`, or in `joined` where it came in chunks.
    plain: std::ops::Range<usize>,
    joined: Vec<u8>,
    is_chunked: bool,
}

impl AnswerReader {
    fn body(&self) -> &[u8] {
        if self.is_chunked {
            &self.joined
        } else {
            &self.received[self.plain.clone()]
        }
    }

    async fn read(&mut self, stream: &mut ReadHalf<'_>) -> io::Result<Head> {
        if self.used == self.received.len() || self.used > READ_BYTES {
            self.received.drain(..self.used);
            self.used = 0;
        }
        let mut seen = self.used;
        let head_end = loop {
            let end = memchr::memmem::find(&self.received[seen..], b"\r\n\r\n");
            if let Some(end) = end {
                break seen + end + 4;
            }
            if self.received.len() - self.used > HEAD_BYTES_MAX {
                return Err(bad("a head without end"));
            }
            seen = self.received.len().saturating_sub(3).max(self.used);
            self.fill(stream).await?;
        };
        let head = parse_head(&self.received[self.used..head_end])?;
        match head.length {
            Length::Known(bytes) => {
                while self.received.len() < head_end + bytes {
                    self.fill(stream).await?;
                }
                (self.plain, self.is_chunked) = (head_end..head_end + bytes, false);
                self.used = head_end + bytes;
            }
            Length::Chunked => {
                self.is_chunked = true;
                self.joined.clear();
                self.used = self.read_chunks(stream, head_end).await?;
            }
        }
        Ok(head)
    }

    async fn fill(&mut self, stream: &mut ReadHalf<'_>) -> io::Result<()> {
        self.received.reserve(READ_BYTES);
        match stream.read_buf(&mut self.received).await? {
            0 => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the server closed the connection",
            )),
            _ => Ok(()),
        }
    }

    /// Joins the chunks from `at` on; where they end.
    async fn read_chunks(&mut self, stream: &mut ReadHalf<'_>, mut at: usize) -> io::Result<usize> {
        loop {
            let (size, data) = loop {
                let line = self.received[at..].windows(2).position(|window| window == b"\r\n");
                if let Some(line) = line {
                    break (parse_chunk_size(&self.received[at..at + line])?, at + line + 2);
                }
                self.fill(stream).await?;
            };
            if self.joined.len() + size > BODY_BYTES_MAX {
                return Err(bad("a body that is too long"));
            }
            while self.received.len() < data + size + 2 {
                self.fill(stream).await?;
            }
            if &self.received[data + size..data + size + 2] != b"\r\n" {
                return Err(bad("a chunk that does not end where it says, or a trailer"));
            }
            if size == 0 {
                return Ok(data + 2);
            }
            self.joined.extend_from_slice(&self.received[data..data + size]);
            at = data + size + 2;
        }
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {what}"))
}

fn parse_chunk_size(line: &[u8]) -> io::Result<usize> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let text = std::str::from_utf8(digits).map_err(|_| bad("a chunk without a size"))?;
    match usize::from_str_radix(text, 16) {
        Ok(size) if size <= BODY_BYTES_MAX => Ok(size),
        _ => Err(bad("a chunk without a size")),
    }
}

fn parse_head(head: &[u8]) -> io::Result<Head> {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let status_line = lines.next().unwrap_or_default();
    let code = status_line.strip_prefix(b"HTTP/1.1 ").and_then(|rest| rest.get(..3));
    let status = code.and_then(|code| std::str::from_utf8(code).ok()?.parse().ok());
    let mut parsed = Head {
        status: status.ok_or_else(|| bad("no HTTP/1.1"))?,
        length: Length::Known(0),
        closes: false,
    };
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let text = std::str::from_utf8(value).unwrap_or_default();
            match text.parse() {
                Ok(bytes) if bytes <= BODY_BYTES_MAX => parsed.length = Length::Known(bytes),
                _ => return Err(bad("a length that is none")),
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") && value.eq_ignore_ascii_case(b"chunked") {
            parsed.length = Length::Chunked;
        } else if name.eq_ignore_ascii_case(b"connection") {
            parsed.closes = value.eq_ignore_ascii_case(b"close");
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Serves one connection by `serve`, and opens it for `ask`. It stays open until then if `serve` returns it.
    fn with_server<S, T>(serve: impl AsyncFnOnce(TcpStream) -> S, ask: impl AsyncFnOnce(Connection) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
            let address = listener.local_addr().expect("address").to_string();
            let server = async {
                let (stream, _) = listener.accept().await.expect("accept");
                serve(stream).await
            };
            let client = async { ask(Connection::open(&address).await.expect("connect")).await };
            tokio::join!(server, client).1
        })
    }

    async fn send_pieces(stream: &mut TcpStream, bytes: &[u8], piece: usize) {
        for part in bytes.chunks(piece) {
            stream.write_all(part).await.expect("write");
            tokio::task::yield_now().await;
        }
    }

    /// Returns the client's reading of these bytes, cut into pieces of `piece` bytes.
    fn check_answer(bytes: &'static [u8], piece: usize) -> Result<(u16, String), String> {
        let serve = async |mut stream: TcpStream| {
            let mut request = [0; 4];
            stream.read_exact(&mut request).await.expect("request");
            send_pieces(&mut stream, bytes, piece).await;
        };
        with_server(serve, async |mut connection| {
            let answer = connection.exchange(b"GET ").await.map_err(|error| error.to_string())?;
            Ok((answer.status, String::from_utf8_lossy(answer.body).into_owned()))
        })
    }

    #[test]
    fn answers_are_read_however_they_are_cut() {
        for piece in [1, 7, 1000] {
            let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
            assert_eq!(check_answer(plain, piece), Ok((200, "hello".into())));
            let chunked =
                b"HTTP/1.1 422 No\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n";
            assert_eq!(check_answer(chunked, piece), Ok((422, "abc0123456789".into())));
        }
    }

    /// Reads `count` answers that the server sends in pieces.
    fn check_answers(bytes: &'static [u8], piece: usize, count: usize) -> Vec<String> {
        let serve = async |mut stream: TcpStream| {
            send_pieces(&mut stream, bytes, piece).await;
            stream
        };
        with_server(serve, async |mut connection| {
            connection.send(b"GET ").await.expect("send");
            let mut bodies = Vec::new();
            for _ in 0..count {
                let answer = connection.receive().await.expect("an answer");
                bodies.push(String::from_utf8_lossy(answer.body).into_owned());
            }
            bodies
        })
    }

    #[test]
    fn answers_that_come_together_are_told_apart() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        for piece in [1, 10, 77, 10_000] {
            assert_eq!(check_answers(bytes, piece, 4), ["hello", "abc", "", "ok"]);
        }
    }

    #[test]
    fn bytes_that_are_no_answer_are_an_error() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: minus\r\n\r\n",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert!(check_answer(bytes, 1000).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
