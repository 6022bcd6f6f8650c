//! Three nodes of a cluster, a network, a lease's store, crashes and two operators: every interleaving of what they can do to each
//! other, with the very `Node` that the product runs.
//!
//! The model's log is a list of at most a few entries, each of one epoch. A message that is late or lost is a step that comes late or
//! never; a message is read from its sender's state, so it is never older than that.

mod acts;
mod around;
mod effects;
mod ghost;
mod recovery;
mod search;
mod walk;
mod world;

pub use acts::Act;
pub use search::{Report, search};
pub use walk::{replay, walk};
pub use world::{Bounds, NODES, SETTINGS, Setting, World};
