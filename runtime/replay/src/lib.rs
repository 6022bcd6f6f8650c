//! Replays the log's records on the engine threads, in order and in parallel, while records arrive. Commands run again on the same path,
//! and changes are applied.
//! Owns: the order in which each partition gets its records, the comparison of digests, the report of a divergence.
//! Does not: read files, check a torn tail (`log`), load a checkpoint (`recovery`), accept calls (`router`).
//! Invariants: each partition sees its records in the log's order; the same `txn` functions run a command as when it was logged; a mismatch
//! always stops the replay; changes run nothing and hold only their own partition; after an error no partition is served.
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
