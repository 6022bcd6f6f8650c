//! Answers of the server, read: one, a problem, or those to a batch.

use std::io::{BufRead, BufReader};

use reprise_api::{BatchAnswer, Problem, ProblemKind};
use reqwest::{Url, blocking::Response};
use serde::de::DeserializeOwned;

use crate::error::ClientError;

pub(crate) fn read<T: DeserializeOwned>(response: Response) -> Result<T, ClientError> {
    let body = response.bytes().map_err(|error| ClientError::Http(chain(&error)))?;
    serde_json::from_slice(&body).map_err(|error| ClientError::Protocol(error.to_string()))
}

pub(crate) fn refusal(response: Response) -> ClientError {
    let status = response.status();
    match read::<Problem>(response) {
        Ok(problem) => ClientError::Problem(Box::new(problem)),
        Err(ClientError::Protocol(_)) => ClientError::Protocol(format!("status {status} without a problem")),
        Err(other) => other,
    }
}

/// The error and what it came from, on one line.
pub(crate) fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
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
        let outcome = match self.lines.read_until(b'\n', &mut line) {
            Ok(0) => Err(ClientError::Http(format!("the answer ended {} calls early", self.left))),
            Ok(_) => serde_json::from_slice(&line).map_err(|error| ClientError::Protocol(error.to_string())),
            Err(error) => Err(ClientError::Http(error.to_string())),
        };
        self.left = if outcome.is_ok() { self.left - 1 } else { 0 };
        Some(outcome)
    }
}

/// Where a write goes that a standby refused.
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
