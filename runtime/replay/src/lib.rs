//! Replays the log's records on the engine threads, in order and in parallel, while records come: commands run again on the same path,
//! changes are applied.
//! Owns: the order in which each partition is handed its records, the comparison of digests, the report of a divergence.
//! Does not: read files, check a torn tail (`log`), load a checkpoint (`recovery`), accept calls (`router`).
//! Invariants: each partition sees its records in the log's order; a command is run by the same `txn` functions as when it was
//! logged; a mismatch is never passed over; changes are applied without running anything, and hold no partition but their own;
//! after an error no partition is served.
//! Called by: `recovery`, `database`.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod assist;
mod batch;
mod command;
mod control;
mod deploy;
mod error;
mod feed;
mod outcome;
mod redo;
mod replayer;
mod run;
mod snapshot_point;
mod window;

pub use command::{Divergence, KeyedOutcome};
pub use error::ReplayError;
pub use feed::NextDeployment;
pub use outcome::Remember;
pub use replayer::{AtMark, RecoverFrom, Replayer};
pub use snapshot_point::OnSnapshotPoint;
pub use window::{WINDOW_BYTES, Window};
