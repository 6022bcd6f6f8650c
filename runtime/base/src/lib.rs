//! Ids, limits and watermarks that every layer shares.
//! Owns: the meaning of `TxnId`, `Lsn`, `PartitionId`, `SiteId`, and every limit (`limits`).
//! Does not: do I/O, read a clock, start a thread.
//! Invariants: a watermark only grows; relations between limits hold at compile time.
//! Called by: everything.
#![forbid(unsafe_code)]

pub mod ids;
pub mod limits;
pub mod watermark;

pub use ids::{Lsn, PartitionId, SiteId, TxnClock, TxnId};
pub use watermark::Watermark;
