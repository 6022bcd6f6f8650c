//! The integration tests of `reprise-nvram`, in one binary.

mod crash;
mod pmem;
