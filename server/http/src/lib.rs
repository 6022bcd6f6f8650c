//! The REST API, the OpenAPI document, the metrics and the web console, over HTTP/1.1.
//! Owns: connections and their limits, JSON, authentication, the mapping of outcomes to answers and problems.
//! Does not: run procedures, know the place of a row or a record: calls go through `router`, an operator's requests through `database`.
//! Invariants: a submitted transaction is never cancelled; memory per connection is bounded; every error is a problem.
//! Called by: `node`, also while it still recovers.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod assets;
mod audit;
mod auth;
mod backups;
mod batch;
mod body;
mod bounded_refusal;
mod call_text;
mod calls;
mod checkpoints;
mod coalescer;
mod connections;
mod control;
mod deadlines;
mod docs;
mod event_places;
mod events;
mod freshness;
mod front;
mod grants;
mod heads;
mod idempotency;
mod integers;
mod limits;
mod list_page;
mod log;
mod log_match;
mod log_record;
mod media;
mod metrics;
mod module_openapi;
mod modules;
mod pages;
#[doc(hidden)]
mod permits;
mod pipeline;
mod plan;
mod principal;
pub mod probe;
mod problems;
mod process_metrics;
mod promise;
#[cfg(test)]
mod reference;
mod refusal;
mod replication;
mod reply;
mod roles;
mod rollback;
mod rows;
mod running_calls;
mod safety;
mod schema;
mod server;
mod stall;
mod standby_metrics;
mod state;
mod status;
mod submission;
mod tables;
mod target;
mod texts;
mod tls;
mod trace;
mod unavailable;

pub use auth::{Auth, AuthError, Token};
pub use docs::openapi;
pub use limits::ConnectionLimits;
pub use log_record::log_record;
pub use pages::{AllowedOrigins, OriginError};
pub use principal::Principal;
pub use roles::TokenRole;
pub use server::{ServeError, serve};
pub use state::{AppState, HttpOptions};
