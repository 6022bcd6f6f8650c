//! Answers, and requests that no HTTP library would send.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use serde_json::Value;

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn of(response: reqwest::blocking::Response) -> Self {
        let text = |value: &reqwest::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Self {
            status: response.status().as_u16(),
            headers: response
                .headers()
                .iter()
                .map(|(name, value)| (name.to_string(), text(value)))
                .collect(),
            body: response.bytes().expect("read the answer").to_vec(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The JSON of a success.
    #[track_caller]
    pub fn ok(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }

    /// The problem behind a slug, with everything that every problem has.
    #[track_caller]
    pub fn problem(&self, slug: &str, status: u16) -> Value {
        let problem = self.json();
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{problem}"
        );
        assert_eq!(problem["type"], format!("/problems/{slug}"), "{problem}");
        assert_eq!(
            (self.status, problem["status"].as_u64()),
            (status, Some(status as u64)),
            "{problem}"
        );
        for member in ["title", "detail"] {
            assert!(
                problem[member].as_str().is_some_and(|text| !text.is_empty()),
                "{problem}"
            );
        }
        problem
    }

    /// Returns the problem, whose detail must contain these words.
    #[track_caller]
    pub fn problem_with(&self, (slug, status): (&str, u16), words: &str) -> Value {
        let problem = self.problem(slug, status);
        let is_told = problem["detail"].as_str().is_some_and(|text| text.contains(words));
        assert!(is_told, "no {words:?}: {problem}");
        problem
    }
}

/// Sends bytes as they are and returns the answer up to the end of the connection.
pub fn raw(address: &str, request: &[u8]) -> String {
    let mut stream = connect(address);
    stream.write_all(request).expect("send");
    rest(&mut stream)
}

/// A connection whose reads end by a mistake alone.
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    let wait_max = Some(Duration::from_secs(180));
    stream.set_read_timeout(wait_max).expect("set timeout");
    stream.set_nodelay(true).expect("set nodelay");
    stream
}

/// Everything until the server closes.
pub fn rest(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer); // a reset is an end too
    String::from_utf8_lossy(&answer).into_owned()
}
