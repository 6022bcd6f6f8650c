//! Why there is no answer.

use reprise_api::{Problem, ProblemKind};

/// Why a request has no answer that its caller could use.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server's answer is no.
    #[error("{}: {}", .0.title, .0.detail)]
    Problem(Box<Problem>),
    /// The address is none of a server.
    #[error("{url:?} is not the URL of a server: {reason}")]
    Url {
        /// URL that was given.
        url: String,
        /// Why it is none.
        reason: String,
    },
    /// No certificate of a server could be checked.
    #[error("TLS: {0}")]
    Trust(String),
    /// No connection, or it ended before the answer.
    #[error("reach {url}: {error}; is the server running there?")]
    Connect {
        /// The server's address.
        url: String,
        /// Error of the system.
        error: String,
    },
    /// The answer is not HTTP, or not as this client expects.
    #[error("talk to the server: {0}")]
    Http(String),
    /// The answer is none of this API: another program, or another version, listens there.
    #[error("the answer is not one of this API: {0}")]
    Protocol(String),
}

impl ClientError {
    /// The error's type, if the server named one of the API's.
    pub fn kind(&self) -> Option<ProblemKind> {
        match self {
            Self::Problem(problem) => problem.kind(),
            _ => None,
        }
    }
}
