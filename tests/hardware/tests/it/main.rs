//! The integration tests of `reprise-test-hardware`, in one binary.

mod loss;
mod nvram;
mod rdma;
mod short;
