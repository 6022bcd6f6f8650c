//! The effects that code below the router may have: time, files, threads and connections.
//! Owns: the traits `Clock`, `Disk`, `Threads` and `Net`, the real ones, and simulated ones with faults (`sim`, `stepper`, `simnet`).
//! Does not: know what is stored or done, retry anything but an open that found no descriptor left.
//! Invariants: no unsafe code but for calls of the system; a write that was reported durable is in every crash image of `SimDisk`.
//! Called by: `host`, `log`, `txn`, `checkpoint`, `partition`, `replay`, `recovery`, `upkeep`, `database`, `backup`, `ship`, `net-rdma`, `net-tls`, `node`.
#![deny(unsafe_code)]
#![deny(missing_docs)]

mod aligned;
mod allocator;
mod clock;
mod descriptors;
mod disk;
mod entropy;
mod filter;
mod net;
mod overlay;
mod real;
mod shared;
pub mod sim;
mod simclock;
mod simnet;
mod slice;
mod socket;
pub mod stepper;
mod tcp;
mod threads;

pub use aligned::{AlignedBuf, DIRECT_ALIGN_BYTES};
pub use allocator::bound_arenas;
pub use clock::{Clock, RealClock};
pub use descriptors::{ignore_signals, raise_descriptor_limit};
pub use disk::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};
pub use entropy::entropy;
pub use filter::{DiskFilter, FilteredDisk};
pub use net::{
    Connection, FrameSender, Listener, Net, NetError, NetLimits, RealNet, check_frame, frame_prefix, read_frame,
    start_reading,
};
pub use overlay::OverlayDisk;
pub use real::{PRIVATE_FILE_MODE, RealDisk, make_private_dir, make_private_dirs, open_regular_file};
pub use shared::{FrameBuffer, FrameMemory, FramePoster, SHARED_FRAMES_MAX, SharedFrame};
pub use sim::SimDisk;
pub use simclock::SimClock;
pub use simnet::{FrameForger, NetFaults, SimHost, SimNet};
pub use slice::ask_for_short_slices;
pub use socket::{DroppedMark, OpenSocket, SocketReader};
pub use stepper::Stepper;
pub use tcp::{bind_tcp, connect_tcp, greet_on};
pub use threads::{MakeWork, RealThreads, Step, ThreadHandle, Threads, Work};
