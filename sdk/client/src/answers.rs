//! Answers of the server, read: one, a problem, or those to a batch.

use std::{
    io::{BufRead, BufReader, Read},
    time::{Duration, Instant},
};

use reprise_api::{BatchAnswer, Problem, ProblemKind};
use reqwest::{Url, blocking::Response};
use serde::de::DeserializeOwned;

use crate::error::ClientError;

/// Longest answer, or line of a batch's answer, in bytes: a server makes at most 288 MiB of JSON of one result.
pub(crate) const ANSWER_BYTES_MAX: usize = 320 << 20;
/// Longest answer to what nodes ask of each other, and longest problem, in bytes.
pub(crate) const SHORT_ANSWER_BYTES_MAX: usize = 1 << 20;
/// Longest time for a whole answer once its head has come.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(300);
const PIECE_BYTES: usize = 64 << 10;

/// Reads an answer whole. A peer that sends bytes without end fills no memory and holds no caller.
pub(crate) fn read_whole(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, ClientError> {
    let until = Instant::now() + ANSWER_TIME_MAX;
    let (mut body, mut piece) = (Vec::new(), vec![0; PIECE_BYTES]);
    loop {
        let read = response.read(&mut piece);
        match read.map_err(|error| ClientError::Http(io_chain(&error)))? {
            0 => return Ok(body),
            read if body.len() + read > bytes_max => {
                return Err(ClientError::Protocol(format!("it has more than {bytes_max} bytes")));
            }
            read => body.extend_from_slice(&piece[..read]),
        }
        if Instant::now() > until {
            let seconds = ANSWER_TIME_MAX.as_secs();
            return Err(ClientError::Http(format!("the answer did not end within {seconds} s")));
        }
    }
}

pub(crate) fn read<T: DeserializeOwned>(response: Response) -> Result<T, ClientError> {
    parse(&read_whole(response, ANSWER_BYTES_MAX)?)
}

/// Does as `read`, for an answer that is short from each server.
pub(crate) fn read_short<T: DeserializeOwned>(response: Response) -> Result<T, ClientError> {
    parse(&read_whole(response, SHORT_ANSWER_BYTES_MAX)?)
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body).map_err(|error| ClientError::Protocol(error.to_string()))
}

pub(crate) fn refusal(response: Response) -> ClientError {
    let status = response.status();
    match read_short::<Problem>(response) {
        Ok(problem) => ClientError::Problem(Box::new(problem)),
        Err(ClientError::Protocol(_)) => ClientError::Protocol(format!("status {status} without a problem")),
        Err(other) => other,
    }
}

/// Returns the error and its causes, on one line.
pub(crate) fn chain(error: &reqwest::Error) -> String {
    chain_of(error)
}

/// Does as `chain`, for an error while a body is read.
fn io_chain(error: &std::io::Error) -> String {
    match error.get_ref() {
        Some(inner) => chain_of(inner),
        None => error.to_string(),
    }
}

fn chain_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The answers to a batch, in the order of its calls. Ends early with an error when the connection does.
pub struct BatchAnswers {
    pub(crate) lines: BufReader<Response>,
    pub(crate) left: usize,
}

impl Iterator for BatchAnswers {
    type Item = Result<BatchAnswer, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let mut line = Vec::new();
        let mut bounded = (&mut self.lines).take(ANSWER_BYTES_MAX as u64);
        let outcome = match bounded.read_until(b'\n', &mut line) {
            Ok(0) => Err(ClientError::Http(format!("the answer ended {} calls early", self.left))),
            Ok(_) => parse(&line), // a line that the bound cut off is not JSON
            Err(error) => Err(ClientError::Http(error.to_string())),
        };
        self.left = if outcome.is_ok() { self.left - 1 } else { 0 };
        Some(outcome)
    }
}

/// The primary to which a standby refers a write that it refused.
pub(crate) fn primary_of(refused: &ClientError) -> Option<Url> {
    let ClientError::Problem(problem) = refused else {
        return None;
    };
    let primary = problem
        .primary
        .as_deref()
        .filter(|_| refused.kind() == Some(ProblemKind::NotPrimary))?;
    Url::parse(primary).ok()
}
