//! Identities.

/// The identity of a data directory: drawn once, never replaced. A restored backup and a copy draw another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// Returns the part of the identity that epochs carry.
    pub fn writer(self) -> u16 {
        self.0 as u16
    }
}
