//! Answers of the server, read: one, a problem, or those to a batch.

use std::{
    io::{self, BufRead, BufReader, Read},
    sync::mpsc::{self, RecvTimeoutError, SyncSender},
    thread,
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

/// Reads an answer whole. A peer that sends bytes without end, or stops within its answer, fills no memory and holds no caller.
pub(crate) fn read_whole(answer: Response, bytes_max: usize) -> Result<Vec<u8>, ClientError> {
    read_within(answer, bytes_max, ANSWER_TIME_MAX)
}

/// Does as `read_whole`, with another time limit. A thread of its own reads the body, because the HTTP library has no limit for the body
/// alone. If the peer stops, that thread waits until the connection ends, and the caller does not.
pub(crate) fn read_within(
    answer: impl Read + Send + 'static,
    bytes_max: usize,
    time_max: Duration,
) -> Result<Vec<u8>, ClientError> {
    let until = Instant::now() + time_max;
    let (sender, pieces) = mpsc::sync_channel(1);
    let reading = thread::Builder::new().name("client-answer".into());
    reading
        .spawn(move || send_pieces(answer, &sender))
        .map_err(|error| ClientError::Http(format!("start a thread that reads the answer: {error}")))?;
    let mut body = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let next = match left.is_zero() {
            true => Err(RecvTimeoutError::Timeout),
            false => pieces.recv_timeout(left),
        };
        match next {
            Ok(Ok(piece)) if piece.is_empty() => return Ok(body),
            Ok(Ok(piece)) if body.len() + piece.len() > bytes_max => {
                return Err(ClientError::Protocol(format!("it has more than {bytes_max} bytes")));
            }
            Ok(Ok(piece)) => body.extend_from_slice(&piece),
            Ok(Err(error)) => return Err(ClientError::Http(io_chain(&error))),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = time_max.as_secs();
                return Err(ClientError::Http(format!("the answer did not end within {seconds} s")));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ClientError::Http(
                    "the thread that reads the answer ended early".to_owned(),
                ));
            }
        }
    }
}

/// Sends an answer piece by piece. The last piece is empty, or an error. If the receiver is gone, the rest of the answer stays unread.
fn send_pieces(mut answer: impl Read, pieces: &SyncSender<io::Result<Vec<u8>>>) {
    let mut room = vec![0; PIECE_BYTES];
    loop {
        let piece = answer.read(&mut room).map(|length| room[..length].to_vec());
        let has_more = piece.as_ref().is_ok_and(|piece| !piece.is_empty());
        if pieces.send(piece).is_err() || !has_more {
            return;
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
fn io_chain(error: &io::Error) -> String {
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
