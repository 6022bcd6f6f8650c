//! The integration tests of `reprise-procedure`, in one binary.
#![allow(clippy::unwrap_used)]

mod borrowed;
mod columns;
mod reach;
mod retiring;
mod shop;
mod tables;
