//! The document that a node keeps of its cluster, replaced whole.

use reprise_base::{Epoch, Lsn, Safety};

use crate::{
    loss::Lost,
    node_id::NodeId,
    sets::{NodeSet, limit},
};

/// The position of a node. Its epoch is not that of the last record, but that of the primary whose history the log has. A record of an earlier epoch
/// may have been acknowledged in a later one (Viewstamped Replication compares the same way).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogEnd {
    pub epoch: Epoch,
    pub lsn: Lsn,
}

impl LogEnd {
    /// Whether a log that ends here may have acknowledged records that a log with the end `other` lacks.
    pub fn is_further_than(self, other: Self) -> bool {
        let key = |mark: Self| (mark.epoch.count(), mark.lsn);
        key(self) > key(other) || (self.epoch.count() == other.epoch.count() && self.epoch != other.epoch)
    }
}

/// A change of the sync set that is under way. Until it is complete, the old set and the new one both count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetChange {
    pub to: NodeSet,
    /// A node has everything that was acknowledged under the old set alone once it has persisted everything before this.
    pub at: Lsn,
    /// Number of the first sync status that tells of the change.
    pub number: u64,
}

/// A primary's part of the document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reign {
    pub epoch: Epoch,
    /// End of the log with which the first reign under this set began. Acknowledged records before it may be on no node of the set.
    pub begins: Lsn,
    /// The nodes that acknowledgements wait for, by the rule of the safety level.
    pub current: NodeSet,
    pub change: Option<SetChange>,
    /// The epoch that this primary followed, where it took over everything that was acknowledged in it.
    pub took_over: Option<Epoch>,
}

impl Reign {
    /// Returns the LSN before which standbys have what the level asks for, in both sets. None: the primary waits for no standby.
    pub fn limit(&self, level: Safety, persisted: &dyn Fn(NodeId) -> Lsn) -> Option<Lsn> {
        let both = [Some(&self.current), self.change.as_ref().map(|change| &change.to)];
        let limits = both
            .into_iter()
            .flatten()
            .filter_map(|set| limit(level, set, persisted));
        limits.min()
    }

    /// Returns the nodes of both sets.
    pub fn members(&self) -> NodeSet {
        let change = self.change.iter().flat_map(|change| change.to.iter());
        self.current.iter().chain(change).collect()
    }
}

/// A primary's word on the sync set, as its standbys hear it. A standby keeps the newest one, then confirms its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SyncStatus {
    pub epoch: Epoch,
    pub primary: NodeId,
    /// Grows within an epoch.
    pub number: u64,
    pub current: NodeSet,
    /// The set to which a change is under way.
    pub next: Option<NodeSet>,
    /// A node whose log ends before this may lack what was acknowledged in earlier reigns, though it is in the set.
    pub begins: Lsn,
}

impl SyncStatus {
    /// Whether this one is newer than `other`.
    pub(crate) fn is_newer_than(&self, other: &Self) -> bool {
        (self.epoch.count(), self.number) > (other.epoch.count(), other.number)
    }

    /// Whether acknowledgements wait for `node` for certain.
    pub fn has(&self, node: NodeId) -> bool {
        let is_in = |set: &NodeSet| set.contains(node);
        is_in(&self.current) && self.next.as_ref().is_none_or(is_in)
    }

    /// Returns the sets that count.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &NodeSet> {
        [&self.current].into_iter().chain(&self.next)
    }
}

/// A standby's part of the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FollowerStanding {
    /// Epoch of the primary that it follows, or followed last.
    pub of: Epoch,
    /// Epoch of the primary whose history the log has: `of`, once what that primary does not have is cut off.
    pub normal: Epoch,
    /// The newest word of that primary.
    pub status: Option<SyncStatus>,
    /// This node was the primary of the log that is here, and nothing of another one's came since.
    pub led: Option<Reign>,
}

/// A node's part in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeStanding {
    Primary(Reign),
    Follower(FollowerStanding),
    /// Between "asked to take over" and "leads". It wrote nothing in that epoch yet.
    Claiming {
        follower: FollowerStanding,
        epoch: Epoch,
        /// Some: the promotion was allowed, at this loss.
        allowed: Option<Option<Lost>>,
    },
    /// It was the primary, and is it no more.
    Retired {
        reign: Reign,
        /// The successor, and the end of what it gets. None: another node took over.
        handed: Option<(NodeId, Lsn)>,
    },
}

impl NodeStanding {
    /// Returns the standing as a follower's: that of a node that led follows its own log.
    pub(crate) fn as_follower(&self) -> FollowerStanding {
        match self {
            Self::Follower(follower) | Self::Claiming { follower, .. } => follower.clone(),
            Self::Primary(reign) | Self::Retired { reign, .. } => FollowerStanding {
                of: reign.epoch,
                normal: reign.epoch,
                status: None,
                led: Some(reign.clone()),
            },
        }
    }
}

/// The document of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Document {
    /// Grows with each save.
    pub version: u64,
    /// The safety level of the cluster.
    pub level: Safety,
    /// This node follows no primary before this epoch: the highest one that it followed, or promised to a node that claimed it.
    pub bound: Epoch,
    /// The highest epoch that another node had claimed when this one promised a later one. Whether that node led in it is not known.
    pub rival: Epoch,
    /// The highest epoch that this node drew for itself.
    pub claimed: Epoch,
    pub standing: NodeStanding,
}

impl Document {
    /// Returns that of a new cluster's first node.
    pub fn first(level: Safety) -> Self {
        Self::new(
            level,
            NodeStanding::Primary(Reign {
                epoch: Epoch::default(),
                begins: Lsn(0),
                current: NodeSet::default(),
                change: None,
                took_over: None,
            }),
        )
    }

    /// Returns that of a new standby.
    pub fn standby(level: Safety) -> Self {
        Self::new(level, NodeStanding::Follower(FollowerStanding::default()))
    }

    fn new(level: Safety, standing: NodeStanding) -> Self {
        Self {
            version: 1,
            level,
            bound: Epoch::default(),
            rival: Epoch::default(),
            claimed: Epoch::default(),
            standing,
        }
    }

    /// Returns the status that the node knows best: its own, if it leads or led, otherwise the one that a primary sent.
    pub fn status(&self, node: NodeId) -> Option<SyncStatus> {
        let own = |reign: &Reign| SyncStatus {
            epoch: reign.epoch,
            primary: node,
            number: self.version,
            current: reign.current.clone(),
            next: reign.change.as_ref().map(|change| change.to.clone()),
            begins: reign.begins,
        };
        match &self.standing {
            NodeStanding::Primary(reign) | NodeStanding::Retired { reign, .. } => Some(own(reign)),
            NodeStanding::Follower(follower) | NodeStanding::Claiming { follower, .. } => {
                follower.status.clone().or_else(|| follower.led.as_ref().map(own))
            }
        }
    }

    /// Returns the epoch of the primary whose history the log has: its own, where it leads or led.
    pub fn normal(&self) -> Epoch {
        match &self.standing {
            NodeStanding::Primary(reign) | NodeStanding::Retired { reign, .. } => reign.epoch,
            NodeStanding::Follower(follower) | NodeStanding::Claiming { follower, .. } => follower.normal,
        }
    }

    fn of(&self) -> Epoch {
        match &self.standing {
            NodeStanding::Primary(reign) | NodeStanding::Retired { reign, .. } => reign.epoch,
            NodeStanding::Follower(follower) | NodeStanding::Claiming { follower, .. } => follower.of,
        }
    }

    /// Returns the highest epoch that the document knows of.
    pub(crate) fn highest(&self) -> Epoch {
        self.bound.later(self.claimed).later(self.of())
    }
}

/// The record beside the lease in the store: which nodes may take the lease when it is free.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRecord {
    /// The last primary.
    pub primary: NodeId,
    pub epoch: Epoch,
    /// Standbys that may take over.
    pub in_sync: NodeSet,
}
