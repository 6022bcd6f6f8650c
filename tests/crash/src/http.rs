//! HTTP/1.1 over one kept connection, with what a dying server left of an answer.

use std::{
    io::{self, BufRead, BufReader, Error, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

const ANSWER_WAIT_MAX: Duration = Duration::from_secs(180);

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// An answer that ended early.
#[derive(Debug)]
pub struct Cut {
    pub error: Error,
    /// 0 when not even the first line came.
    pub status: u16,
    /// The part of the body that arrived.
    pub body: Vec<u8>,
}

pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(own, _)| own == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the query that consents to all items that a refusal for want of consent names.
    pub fn consents(&self) -> String {
        let problem = self.json();
        let missing = problem["plan"]["missing"].as_array().into_iter().flatten();
        let allow = missing
            .filter_map(Value::as_str)
            .map(|consent| format!("allow={consent}"));
        format!("?{}", allow.collect::<Vec<_>>().join("&"))
    }

    /// Null when the body is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

impl Connection {
    pub fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
        stream.set_write_timeout(Some(ANSWER_WAIT_MAX))?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    pub fn set_wait(&mut self, wait: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(wait))
    }

    pub fn get(&mut self, path: &str) -> Result<Answer, Cut> {
        self.request("GET", path, &[], b"")
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, Cut> {
        let sent = self.send(method, path, headers, body);
        sent.map_err(|error| Cut {
            error,
            status: 0,
            body: Vec::new(),
        })?;
        self.receive()
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.get_mut().write_all(&bytes)
    }

    pub fn receive(&mut self) -> Result<Answer, Cut> {
        let mut answer = Answer {
            status: 0,
            headers: Vec::new(),
            body: Vec::new(),
        };
        match self.read_answer(&mut answer) {
            Ok(()) => Ok(answer),
            Err(error) => Err(Cut {
                error,
                status: answer.status,
                body: answer.body,
            }),
        }
    }

    fn read_answer(&mut self, answer: &mut Answer) -> io::Result<()> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| malformed(&first))?;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
            let header = (name.to_ascii_lowercase(), value.trim().to_owned());
            answer.headers.push(header);
        }
        answer.status = status;
        if answer.header("transfer-encoding") == Some("chunked") {
            return self.read_chunks(&mut answer.body);
        }
        let length = answer.header("content-length").unwrap_or("0");
        let length: usize = length.parse().map_err(|_| malformed(length))?;
        self.read_exactly(length, &mut answer.body)
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let line = self.line()?;
            let length = usize::from_str_radix(&line, 16).map_err(|_| malformed(&line))?;
            self.read_exactly(length, body)?;
            let end = self.line()?;
            if !end.is_empty() {
                return Err(malformed(&end));
            }
            if length == 0 {
                return Ok(());
            }
        }
    }

    /// Appends the bytes that come. After an error, the bytes before it are there.
    fn read_exactly(&mut self, length: usize, body: &mut Vec<u8>) -> io::Result<()> {
        let read = (&mut self.stream).take(length as u64).read_to_end(body)?;
        match read == length {
            true => Ok(()),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\r\n") {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).map_err(|error| Error::new(ErrorKind::InvalidData, error))
    }
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not HTTP: {what:?}"))
}
