//! The integration tests of `reprise-wire`, in one binary.

mod changes;
mod checkpoint;
mod formats;
mod frames;
