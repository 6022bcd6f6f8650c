//! Who this node is, in which epoch, which nodes are in sync with it, and what it may acknowledge: one document, one state, one
//! transition function.
//!
//! The crate is pure. It has no I/O, lock, clock or thread. A driver owns a [`Node`], saves its [`Document`], carries out its
//! carries out what its questions answer and feeds what happens back as [`Event`]s. `tests/model` enumerates what three nodes can do to each other with the same
//! type.
//!
//! Two rules hold everywhere:
//! - What restricts holds at once. What grants holds once the document that says so is durable. [`Node`] keeps both, the newest
//!   document and the newest durable one, and each question is answered by the stricter of the two.
//! - A change of the sync set is like a write: while it is under way, both sets count.

mod document;
mod epoch;
mod follow;
mod lead;
mod loss;
mod node;
mod promote;
mod sets;

pub use document::{Change, Document, Follower, LeaseRecord, Mark, Reign, Standing, SyncStatus};
pub use epoch::{Epoch, NodeId};
pub use follow::Progress;
pub use lead::{LeaseWish, Limit};
pub use loss::{Basis, LossClass, Lost, Promise};
pub use node::{Config, Event, LeaseView, Mode, Node, OpenAs, Refusal};
pub use promote::{HandOver, Promotion, Request, Stage};
pub use sets::{Members, is_read_quorum, limit};
