//! A second small engine with the parts of a disk-based one, to redraw the breakdown of "OLTP Through the Looking Glass".
//! Owns: rows in slotted pages, B-trees by page, log, two-phase locking, latches, buffer pool, and builds without each of them.
//! Does not: recover after a crash, or belong to the server, which has none of these parts.
//! Invariants: a build without a part has no branch for it; after the same calls every build has the same rows as our engine.
//! Called by: the binary `reprise-bench-looking-glass`.
#![deny(missing_docs)]

pub mod bars;
pub mod callgrind;
pub mod chart;
pub mod components;
pub mod digest;
pub mod engine;
pub mod figures;
pub mod heap;
pub mod latch;
pub mod lock;
pub mod log;
mod ops;
pub mod ours;
pub mod page;
pub mod parts;
pub mod pool;
pub mod redb_bar;
pub mod redo;
pub mod run;
pub mod tree;
pub mod txn;
pub mod work;
