//! Ids, limits, watermarks and budgets that every layer shares.
//! Owns: the meaning of `TxnId`, `Lsn`, `Epoch`, `PartitionId`, `SiteId`, every limit (`limits`), and the count of memory (`MemoryLedger`).
//! Does not: do I/O, read a clock, start a thread.
//! Invariants: a watermark only grows; what was taken of a budget is given back; relations between limits hold at compile time.
//! Called by: everything.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod budget;
pub mod ids;
mod joiner;
pub mod limits;
pub mod memory;
mod named;
pub mod names;
pub mod placed_bytes;
pub mod safety;
pub mod watermark;

pub use budget::{Budget, Grant};
pub use ids::{Epoch, Lsn, PartitionId, Role, SiteId, TxnClock, TxnId};
pub use joiner::{Joiner, NodeProcess};
pub use memory::{MemoryKind, MemoryLedger};
pub use names::{NODE_NAME_BYTES_MAX, check_node_name, hex};
pub use placed_bytes::PlacedBytes;
pub use safety::Safety;
pub use watermark::{OnReached, Watermark, WatermarkWaiter};
