//! The integration tests of `reprise-host`, in one binary.
#![allow(clippy::unwrap_used)]

mod buffers;
mod columns;
mod describe;
mod hostile;
mod isolation;
mod keys;
mod limits;
mod start;
mod support;
mod threads;
