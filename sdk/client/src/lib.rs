//! A blocking client of the REST API, for the command line and for programs in Rust.
//! Owns: the connection pool, a thread for each answer that it reads, the mapping of answers to types and of problems to errors.
//! Does not: retry, cache, know what a procedure means.
//! Invariants: every error that the server sent is a `ClientError::Problem` with all its members.
//! Called by: `node` (its verbs), tests.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod answers;
mod client;
mod error;
mod lists;
mod query;
mod replication;
mod trust;

pub use answers::BatchAnswers;
pub use client::Client;
pub use error::ClientError;
pub use query::{CallOptions, CallResponse, LinesQuery, LogQuery, RowsText};
pub use reprise_api::RowsQuery;
pub use trust::{ClientCertificate, tls_config};
