//! The integration tests of `reprise-test-http`, in one binary.
#![allow(clippy::unwrap_used)]

mod ahead;
mod api;
mod browsers;
mod budgets;
mod cbor;
mod edges;
mod errors;
mod garbage;
mod grouped;
mod keys;
mod looking;
mod meaning;
mod plan;
mod replication;
mod rollback;
mod rows;
mod running;
mod slow;
mod spans;
