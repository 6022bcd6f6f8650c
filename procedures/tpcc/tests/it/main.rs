//! The integration tests of `tpcc`, in one binary.
#![allow(clippy::unwrap_used)]

mod conditions;
mod fixture;
mod transactions;
