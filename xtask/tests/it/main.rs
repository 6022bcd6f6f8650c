//! The integration tests of `xtask`, in one binary.
#![allow(clippy::unwrap_used)]

mod room;
mod tidy;
