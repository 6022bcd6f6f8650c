//! The effects that code below the router may have: time and files.
//! Owns: the traits `Clock` and `Disk`, the real ones, and simulated ones with faults (`sim`).
//! Does not: know what is stored, retry anything, start a thread.
//! Invariants: no unsafe code; a write that was reported durable is in every crash image of `SimDisk`.
//! Called by: `log`, `recovery`, `partition`, `node`, and their tests.
#![forbid(unsafe_code)]

mod aligned;
mod clock;
mod disk;
mod entropy;
mod real;
pub mod sim;

pub use aligned::{AlignedBuf, DIRECT_ALIGN_BYTES};
pub use clock::{Clock, RealClock};
pub use disk::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};
pub use entropy::entropy;
pub use real::RealDisk;
pub use sim::{SimClock, SimDisk};
