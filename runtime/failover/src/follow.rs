//! A standby: the primary that it follows, and its confirmations and promises.

use reprise_base::{Epoch, Lsn, Safety};

use crate::{
    document::{FollowerStanding, LogEnd, NodeStanding, Reign, SyncStatus},
    loss::Promise,
    node::{Mode, Node, NodeRefusal},
    node_id::NodeId,
};

/// A standby's report to the primary that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProgressReport {
    pub node: NodeId,
    /// Epoch of the primary that it follows.
    pub of: Epoch,
    /// Everything before it is durable.
    pub persisted: Lsn,
    /// Number of the newest sync status that it keeps; 0: none of this epoch.
    pub noted: u64,
}

impl Node {
    /// A directory is opened as that of a standby.
    pub(crate) fn become_standby(&mut self) {
        // A claim is over. A node that gave its place away, or lost it, stays what it is until it follows another one.
        if let NodeStanding::Primary(_) | NodeStanding::Claiming { .. } = &self.document.standing {
            self.document.standing = NodeStanding::Follower(self.document.standing.as_follower());
            self.save();
        }
    }

    /// Returns the epoch of the primary whose groups this node may take now: it is bound to it, and its log has that primary's history.
    pub fn follows(&self) -> Option<Epoch> {
        let normal = self.is_bound_to()?;
        (self.durable.normal() == normal && self.document.normal() == normal).then_some(normal)
    }

    /// Returns the epoch of the primary to which this node is bound, so that what that primary does not have may be cut off.
    pub fn is_bound_to(&self) -> Option<Epoch> {
        let of = |standing: &NodeStanding| match standing {
            NodeStanding::Follower(follower) => Some(follower.of),
            _ => None,
        };
        let (newest, durable) = (of(&self.document.standing)?, of(&self.durable.standing)?);
        let is_free = self.mode == Mode::Following && newest == durable && !self.document.bound.is_after(newest);
        (is_free && newest.count() > 0).then_some(newest)
    }

    /// Returns what the standby may tell of its log, which is durable before `persisted`.
    pub fn progress(&self, persisted: Lsn) -> Option<ProgressReport> {
        let of = self.follows()?;
        let NodeStanding::Follower(follower) = &self.durable.standing else {
            return None;
        };
        let noted = follower.status.as_ref().filter(|status| status.epoch == of);
        Some(ProgressReport {
            node: self.id,
            of,
            persisted,
            noted: noted.map_or(0, |status| status.number),
        })
    }

    /// Whether a write of this node's own reign, which its new primary lacks, may have been acknowledged. `leader` and `reign` are the new primary's.
    /// The node asks this before it cuts the surplus records off.
    pub fn may_be_acknowledged(&self, leader: NodeId, reign: &Reign) -> bool {
        let NodeStanding::Follower(FollowerStanding { led: Some(led), .. }) = &self.document.standing else {
            return true;
        };
        // Whatever this node answered, it needed one of those who allowed the new primary, or the new primary itself.
        let needed_it = match self.level() {
            Safety::Quorum => true,
            _ => self.has_lease || led.current.contains(leader),
        };
        !(needed_it && reign.took_over == Some(led.epoch))
    }

    pub(crate) fn on_follow(&mut self, epoch: Epoch) -> Result<(), NodeRefusal> {
        if !matches!(self.mode, Mode::Following) {
            return Err(match self.mode {
                Mode::Leading(_) => NodeRefusal::Leads,
                _ => NodeRefusal::IsPromoting,
            });
        }
        if !self.document.bound.allows(epoch) {
            return Err(NodeRefusal::Bound(self.document.bound));
        }
        if matches!(&self.document.standing, NodeStanding::Follower(follower) if follower.of == epoch) {
            return Ok(());
        }
        self.document.bound = epoch;
        self.document.standing = NodeStanding::Follower(FollowerStanding {
            of: epoch,
            status: None,
            ..self.document.standing.as_follower()
        });
        self.save();
        Ok(())
    }

    /// The log has only what its primary has, so nothing of an own reign is left to be checked.
    pub(crate) fn on_aligned(&mut self) {
        let Some(of) = self.is_bound_to() else { return };
        if let NodeStanding::Follower(follower) = &mut self.document.standing
            && follower.normal != of
        {
            (follower.normal, follower.led) = (of, None);
            self.save();
        }
    }

    pub(crate) fn on_status(&mut self, status: SyncStatus) {
        if self.follows() != Some(status.epoch) {
            return;
        }
        if let NodeStanding::Follower(follower) = &mut self.document.standing
            && follower.status.as_ref().is_none_or(|known| status.is_newer_than(known))
        {
            follower.status = Some(status);
            self.save();
        }
    }

    /// Another node claims an epoch.
    pub(crate) fn on_asked(&mut self, epoch: Epoch) -> Result<(), NodeRefusal> {
        match self.mode {
            Mode::Leading(_) => return Err(NodeRefusal::Leads),
            Mode::Promoting(_) => return Err(NodeRefusal::IsPromoting),
            Mode::Following | Mode::Retired => {}
        }
        if self.document.bound == epoch {
            return Ok(());
        }
        if !epoch.is_after(self.document.bound) {
            return Err(NodeRefusal::Bound(self.document.bound));
        }
        // The node that had the promise before may lead by now.
        self.document.rival = self.document.rival.later(self.document.bound);
        self.document.bound = epoch;
        self.save();
        Ok(())
    }

    /// Returns the promise of `epoch`, once it is durable. `end` is the durable end of this node's log, `fork` the LSN before which it is the same as
    /// that of the node that asked.
    pub fn promise(&self, epoch: Epoch, end: Lsn, fork: Lsn) -> Option<Promise> {
        let is_free = matches!(self.mode, Mode::Following | Mode::Retired);
        let is_kept = self.durable.bound == epoch && self.document.bound == epoch;
        (is_free && is_kept).then(|| Promise {
            from: self.id,
            epoch,
            end: LogEnd {
                epoch: self.durable.normal(),
                lsn: end,
            },
            status: self.document.status(self.id),
            rival: self.document.rival,
            fork,
        })
    }
}
