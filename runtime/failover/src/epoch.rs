//! Identities and epochs.

use std::fmt;

/// The identity of a data directory: drawn once, never replaced. A restored backup and a copy draw another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// Returns the part of the identity that epochs carry.
    pub fn writer(self) -> u16 {
        self.0 as u16
    }
}

/// One reign of one primary. Two promotions that know nothing of each other draw the same count; the writer tells them apart.
///
/// This crate alone draws epochs, in [`Epoch::after`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    count: u32,
    writer: u16,
}

impl Epoch {
    /// Returns an epoch that a document or another node reported.
    pub fn reported(count: u32, node: NodeId) -> Self {
        let writer = node.writer();
        Self { count, writer }
    }

    /// Returns how many reigns the writer knew of, this one included. 0: no primary led yet.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Returns the part of the primary's identity.
    pub fn writer(self) -> u16 {
        self.writer
    }

    /// Returns the epoch that `node` begins after the highest one that it knows.
    pub(crate) fn after(highest: Self, node: NodeId) -> Self {
        Self {
            count: highest.count.saturating_add(1),
            writer: node.writer(),
        }
    }

    /// Returns the later one of both; this one where neither is.
    pub(crate) fn later(self, other: Self) -> Self {
        if other.is_after(self) { other } else { self }
    }

    /// Whether a node that is bound to this epoch may follow the primary of `other`. An operator alone chooses between two primaries
    /// of one count.
    pub fn allows(self, other: Self) -> bool {
        other == self || other.count > self.count
    }

    /// Whether this epoch comes after `other`.
    pub fn is_after(self, other: Self) -> bool {
        self.count > other.count
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.count)
    }
}
