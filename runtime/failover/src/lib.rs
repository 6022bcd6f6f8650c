//! The failover of a cluster: one document, one state and one transition function decide which node leads, in which epoch, with
//! which standbys, and what it may acknowledge.
//! Owns: the document of a node, the meaning of its epochs, the rules of the safety levels for acknowledgements and promotions.
//! Does not: read or write a file, lock, wait, read a clock, know the wire or the lease's store.
//! Invariants: no epoch has two writers; a bound epoch never falls; nothing is acknowledged at the cluster's level that a later primary
//! lacks, unless the promotion named it.
//! Called by: `ship` (what commits wait for, and whether a change of the set is complete), `database` (the doubts of a promotion),
//! `tests/model`.
//!
//! The crate is pure. It has no I/O, lock, clock or thread. A driver owns a [`Node`], saves its [`Document`], carries out what its questions
//! answer, and feeds what happens back as [`NodeEvent`]s. `tests/model` enumerates what three nodes can do to each other with the same type.
//!
//! Two rules hold everywhere:
//! - A restriction holds at once. A grant holds once the document that records it is durable. [`Node`] keeps both, the newest document and the newest
//!   durable one, and the stricter of the two answers each question.
//! - A change of the sync set is like a write: while it is under way, both sets count.

mod document;
mod follow;
mod lead;
mod loss;
mod node;
mod node_id;
mod promote;
mod sets;

pub use document::{Document, FollowerStanding, LeaseRecord, LogEnd, NodeStanding, Reign, SetChange, SyncStatus};
pub use follow::ProgressReport;
pub use lead::{LeaseWish, Limit, PeerReport};
pub use loss::{Basis, Doubt, Lost, Promise};
pub use node::{Config, LeaseView, Mode, Node, NodeEvent, NodeRefusal, OpenAs};
pub use node_id::NodeId;
pub use promote::{HandOver, PromotionRequest, PromotionStage, PromotionState};
pub use sets::{NodeSet, is_confirmed, is_read_quorum, limit, needed};
