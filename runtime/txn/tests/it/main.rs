//! The integration tests of `reprise-txn`, in one binary.
#![allow(clippy::unwrap_used)]

mod bed;
mod bounds;
mod cursors;
mod inserting;
mod keyed;
mod many;
mod restoring;
