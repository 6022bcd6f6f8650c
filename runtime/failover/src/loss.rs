//! The losses of a promotion: which answers exclude one, and which one is named where they do not.

use reprise_base::{Epoch, Lsn, Safety};

use crate::{
    document::{LogEnd, SyncStatus},
    node_id::NodeId,
    sets::{NodeSet, is_read_quorum},
};

/// Why a promotion can't exclude a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// A node that answered has records that this one lacks.
    AnotherHasMore,
    /// No primary reported its sync set.
    NeverTold,
    /// The primary's writes did not wait for this node.
    OutOfSync,
    /// Nodes of the sync set did not answer, so that one of them may lead, or help another node to acknowledge.
    TooFewAnswers,
    /// A node claimed a later epoch and did not answer. It may lead.
    Rival,
    /// The primary may have continued without this node since it was heard last: alone, or with a node that came since.
    Unheard,
}

/// A loss that a promotion can't exclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lost {
    /// From this LSN on. None: another primary may have led since, and may have cut off records that are here.
    pub from: Option<Lsn>,
    /// A node that answered has it.
    pub is_known: bool,
}

/// The answer of a node that is asked for an epoch: from now on it follows no primary of an earlier epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    pub from: NodeId,
    pub epoch: Epoch,
    /// End of its log.
    pub end: LogEnd,
    pub status: Option<SyncStatus>,
    /// The highest epoch that another node had claimed before; it may have led in that.
    pub rival: Epoch,
    /// Before it both logs are the same.
    pub fork: Lsn,
}

/// The knowledge that a promotion is checked against.
pub struct Basis<'a> {
    pub node: NodeId,
    pub level: Safety,
    /// The sync status that the node itself knows.
    pub status: Option<&'a SyncStatus>,
    /// This node was the primary of that status.
    pub led: bool,
    pub end: LogEnd,
    /// The primary's last word is younger than its waiting time.
    pub is_heard: bool,
    pub promises: &'a [Promise],
    /// A node that reported a later epoch.
    pub teller: Option<NodeId>,
    /// Epochs that other nodes claimed, as this one knows.
    pub rivals: &'a [Epoch],
    /// Epoch of the last primary by the lease's record. None: there is no record, or it names this node.
    pub recorded: Option<Epoch>,
}

impl Basis<'_> {
    fn newest(&self) -> Option<&SyncStatus> {
        let statuses = self.promises.iter().filter_map(|promise| promise.status.as_ref());
        self.status
            .into_iter()
            .chain(statuses)
            .reduce(|best, other| match other.is_newer_than(best) {
                true => other,
                false => best,
            })
    }

    fn answered(&self, node: NodeId) -> bool {
        node == self.node || self.promises.iter().any(|promise| promise.from == node)
    }

    /// Returns the nodes to ask.
    pub(crate) fn to_ask(&self) -> NodeSet {
        let known = self.newest().into_iter();
        let known = known.flat_map(|status| status.sets().flat_map(NodeSet::iter).chain([status.primary]));
        let all = known.chain(self.teller);
        all.filter(|node| !self.answered(*node)).collect()
    }

    /// Whether the answers suffice: no other node can lead, or acknowledge at the level of the cluster, unknown to the nodes that answered.
    pub(crate) fn is_complete(&self) -> bool {
        self.teller.is_none_or(|teller| self.answered(teller))
            && self.newest().is_some_and(|status| {
                // A new cluster has no node to ask.
                let mut sets = status.sets();
                status.epoch.count() == 0
                    || sets.all(|set| is_read_quorum(self.level, set, status.primary, &|node| self.answered(node)))
            })
    }

    /// Whether no node led after the primary whose log is here.
    fn is_bounded(&self) -> bool {
        self.is_complete() && self.newest().is_some_and(|status| status.epoch == self.end.epoch)
    }

    fn claims(&self) -> impl Iterator<Item = Epoch> {
        let promised = self.promises.iter().map(|promise| promise.rival);
        promised.chain(self.rivals.iter().copied())
    }

    fn writer_answered(&self, epoch: Epoch) -> bool {
        let mut nodes = self.promises.iter().map(|promise| promise.from).chain([self.node]);
        nodes.any(|node| node.writer() == epoch.writer())
    }

    /// Whether a node that did not answer claimed an epoch behind that of `status`: it may lead. At `quorum` such a node needs one of those who
    /// answered, unless it was promoted although a loss was not excluded. Then the lease's record names it, and none of them promised it anything.
    fn has_rival(&self, status: &SyncStatus) -> bool {
        let is_rival = |epoch: Epoch| epoch.is_after(status.epoch) && !self.writer_answered(epoch);
        if self.level != Safety::Quorum {
            return self.claims().any(is_rival);
        }
        let is_promised = |by: Epoch| {
            let mut claims = self.claims();
            claims.any(|claim| claim.writer() == by.writer() && claim.is_after(status.epoch))
        };
        // A primary that starts again counts the standbys that it counted before.
        let is_same = |by: Epoch| by.writer() == status.primary.writer();
        self.recorded
            .is_some_and(|by| is_rival(by) && !is_same(by) && !is_promised(by))
    }

    /// Whether this node has everything that was acknowledged at the level of the cluster, as far as those who answered know.
    fn has_everything(&self, status: &SyncStatus) -> bool {
        let is_led = self.led && status.primary == self.node;
        match self.level {
            // The furthest of a read quorum has it. Records of earlier reigns may be on no other node of the set but the primary.
            Safety::Quorum => is_led || self.end.lsn >= status.begins,
            Safety::TwoSafe | Safety::VerySafe => is_led || status.has(self.node),
            Safety::OneSafe | Safety::LocalSync | Safety::LocalAsync => is_led,
        }
    }

    /// Returns why a loss can't be excluded. None: nothing is lost of what was acknowledged until now.
    pub fn doubt(&self) -> Option<Doubt> {
        let is_further = |promise: &Promise| promise.end.is_further_than(self.end);
        if self.promises.iter().any(is_further) {
            return Some(Doubt::AnotherHasMore);
        }
        let Some(status) = self.newest() else {
            return Some(Doubt::NeverTold);
        };
        let is_led = self.led && status.primary == self.node;
        if !self.has_everything(status) {
            Some(Doubt::OutOfSync)
        } else if self.level == Safety::VerySafe && status.has(self.node) {
            // Each write of a very-safe primary waits for this node, where it is none's own.
            None
        } else if !self.is_complete() {
            Some(Doubt::TooFewAnswers)
        } else if self.has_rival(status) {
            Some(Doubt::Rival)
        } else {
            (self.level == Safety::TwoSafe && !is_led && !self.is_heard).then_some(Doubt::Unheard)
        }
    }

    /// Returns what may be lost. None: nothing, of what was acknowledged until now.
    pub fn lost(&self) -> Option<Lost> {
        let doubt = self.doubt()?;
        let further = self
            .promises
            .iter()
            .filter(|promise| promise.end.is_further_than(self.end));
        let from = further.map(|promise| promise.fork).min().unwrap_or(self.end.lsn);
        Some(Lost {
            from: self.is_bounded().then_some(from),
            is_known: doubt == Doubt::AnotherHasMore,
        })
    }
}
