//! The integration tests of `reprise-ship`, in one binary.

mod common;
mod first_files;
mod simulated;
mod streaming;
