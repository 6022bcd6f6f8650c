//! The failover's model: every interleaving of the acts of three nodes, a network, a lease's store, crashes and operators, with the very
//! `Node` of `runtime/failover`.
//! Owns: the surroundings of the nodes, the properties, the search and the walks.
//! Does not: run the product, or know time but as the order of two timers.
//! Invariants: a step that a server can take is a step here; an effect that is immediate here may be late only as a fault.
//! Called by: its tests; `reprise-model` by hand.
//!
//! The model's log is a list of at most a few entries, each of one epoch. A message that is late or lost is a step that comes late or
//! never. A message is read from its sender's state, so it is never older than that.

mod acts;
mod around;
mod effects;
mod ghost;
mod mutant;
mod recovery;
mod search;
mod walk;
mod world;

pub use acts::Act;
pub use mutant::Mutant;
pub use search::{Report, search};
pub use walk::{replay, walk};
pub use world::{Bounds, LARGE_SETTINGS, NODES_MAX, SETTINGS, Setting, World};
