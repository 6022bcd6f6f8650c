//! From files to ready partitions: loads a checkpoint, then reads the log behind it and hands it to a `Replayer`, to the log's end.
//! Owns: the walk over the files at opening, the parallelism of loading, the schemas that a log's records have made.
//! Does not: apply a record (`replay`), check a torn tail (`log`), accept calls (`router`).
//! Invariants: a checkpoint is loaded whole or not at all; after an error no partition is served.
//! Called by: `database`, before the router takes calls; `upkeep` (a checkpoint read back), `node` (listing).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod feed;
mod fill;
mod load;
mod ready;
mod schemas;

pub use error::RecoveryError;
pub use feed::{WindowEnd, feed, read_window};
pub use load::{LoadReport, check_descriptions, load, reset};
pub use ready::make_ready;
pub use schemas::{Description, LogSchemas, described_in};
