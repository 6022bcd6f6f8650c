//! The integration tests of `reprise-test-history`, in one binary.

mod checker;
mod failovers;
mod order;
