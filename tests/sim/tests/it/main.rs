//! The integration tests of `reprise-test-sim`, in one binary.

mod failovers;
mod schemas;
mod seeds;
