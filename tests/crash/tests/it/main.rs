//! The integration tests of `reprise-test-crash`, in one binary.

mod failover;
mod lease;
mod short;
mod workloads;
