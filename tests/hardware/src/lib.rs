//! Tests that no process of this machine can run: the server in a virtual machine of its own, and its disk after a power failure.
//! Owns: the virtual machine (`boot-vm`), the log of a block device's writes, the disks that a power failure may leave.
//! Does not: judge speed (the processor is emulated), link any crate of the server.
//! Invariants: a failure names the seed and the point; only processes that were started here are signalled.
//! Called by: the binaries `power`, `nvdimm` and `rdma-failover`, the tests beside them (`cargo xtask power`, `cargo xtask nvdimm`,
//! `cargo xtask failover --rdma`).
//!
//! The load runs in the machine, on ext4 over `dm-log-writes`: the kernel's own record of every write, flush and forced write of the block
//! device. Our marks in it name the calls acknowledged by then. From that record, outside of the machine, the test makes every disk that a
//! power failure could have left. Such a disk has all writes up to the last flush before the point. Of later writes that no flush had made
//! safe, it has a random part, some of them torn. `e2fsck` replays the file system's journal, `debugfs` takes the data directory out, and
//! the server opens it.

mod disk;
mod failover;
mod guest;
mod model;
mod nvdimm;
mod power;
mod vm;
mod writes;

pub use failover::{RdmaFailovers, run as run_rdma_failovers, run_guest as run_rdma_failovers_guest};
pub use guest::{GuestConfig, run as run_guest};
pub use nvdimm::{NvdimmConfig, NvdimmGuestConfig, NvdimmReport, run as run_nvdimm, run_guest as run_nvdimm_guest};
pub use power::{Config, Report, run};
pub use vm::{Processors, is_available};
