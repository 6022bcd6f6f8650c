//! The state of a node, and the one function that changes it.

use reprise_base::{Epoch, Lsn, Safety};

use crate::{
    document::{Document, LeaseRecord, NodeStanding, Reign, SyncStatus},
    follow::ProgressReport,
    lead::{LeaderState, PeerReport},
    loss::{Lost, Promise},
    node_id::NodeId,
    promote::{PromotionRequest, PromotionState},
};

/// The part for which a data directory is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpenAs {
    Primary,
    Standby,
}

/// Why a request is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeRefusal {
    /// The directory is not that of a primary: another node may lead.
    NotPrimary,
    /// The directory is a primary's of another safety level.
    OtherLevel,
    /// The node leads, and a promotion is for one that does not.
    Leads,
    /// A promotion is under way.
    IsPromoting,
    /// The node does not lead.
    DoesNotLead,
    /// A change of the sync set is under way.
    IsChanging,
    /// The node is bound to a later epoch.
    Bound(Epoch),
    /// The successor is not in the sync set.
    NotInSync,
}

/// The content of the lease's store, as the node saw it last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseView {
    pub holder: Option<NodeId>,
    pub record: Option<LeaseRecord>,
}

/// The work of this process for its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Following,
    /// It is on its way to lead: a standby that takes over, or a primary that opens its directory.
    Promoting(PromotionState),
    Leading(LeaderState),
    /// It gave its place away, or lost it. It takes no part until it is started again, or promoted.
    Retired,
}

/// An event of a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeEvent {
    /// This document is durable.
    Saved(Document),
    /// This primary hears of another node. Its log ends at `end`.
    PeerSeen {
        peer: PeerReport,
        end: Lsn,
    },
    /// A primary took the connection.
    Follow {
        epoch: Epoch,
    },
    /// Nothing is left of the log that the primary does not have.
    Aligned,
    StatusCame(SyncStatus),
    /// A standby of this primary reports: the epoch that it follows, its durable end, and the newest status that it keeps.
    Progress(ProgressReport),
    /// A standby of this primary is close behind the log's end, which is here.
    Came {
        node: NodeId,
        end: Lsn,
    },
    /// A standby is lost. Its own time is over by now.
    Gone(NodeId),
    /// An operator has the primary forget a standby. The log ends at `end`.
    Forget {
        node: NodeId,
        end: Lsn,
    },
    /// Another node asks for a promise of this epoch.
    Asked(Epoch),
    /// An operator, or the lease, has this node take over.
    Promote(PromotionRequest),
    /// This node's primary may have continued without it by now.
    Unheard,
    Promised(Promise),
    /// The other nodes had their time to answer.
    AskingOver,
    /// Everything that was received is durable and replayed.
    Replayed,
    /// The promotion can't be carried out.
    AbandonPromotion,
    /// The place is to be given to a standby. The log ends here, and takes nothing more.
    StepDown {
        to: NodeId,
        end: Lsn,
    },
    /// The successor did not get everything in time.
    StayOn,
    LeaseSeen(LeaseView),
    /// The lease is this node's, and the record is written.
    LeaseTaken(LeaseRecord),
    /// The lease was prolonged.
    LeaseRenewed,
    /// The lease may be over, by this node's clock.
    LeaseOver,
    LeaseRecorded(LeaseRecord),
}

/// The settings of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    pub id: NodeId,
    pub level: Safety,
    /// A store that all nodes reach decides who may lead.
    pub has_lease: bool,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub(crate) id: NodeId,
    pub(crate) has_lease: bool,
    /// The newest document.
    pub(crate) document: Document,
    /// The newest one that is durable.
    pub(crate) durable: Document,
    pub(crate) mode: Mode,
    /// The highest epoch that any node reported.
    pub(crate) heard: Epoch,
    /// The content of the lease's store when it was seen last.
    pub(crate) lease: Option<LeaseView>,
    /// The lease is this node's, by its own clock. True where there is none.
    pub(crate) holds_lease: bool,
    pub(crate) refused: Option<Lost>,
}

impl Node {
    /// Opens a data directory, whose document is durable, and whose log ends at `end`. A server that opens as the primary asks the other
    /// nodes first.
    ///
    /// # Errors
    /// [`NodeRefusal::NotPrimary`] for a standby's directory that is to open as the primary, [`NodeRefusal::OtherLevel`] for one of another
    /// safety level.
    pub fn open(config: Config, document: Document, open_as: OpenAs, end: Lsn) -> Result<Self, NodeRefusal> {
        if document.level != config.level {
            return Err(NodeRefusal::OtherLevel);
        }
        match (&document.standing, open_as) {
            (NodeStanding::Primary(_), OpenAs::Primary) | (_, OpenAs::Standby) => {}
            (_, OpenAs::Primary) => return Err(NodeRefusal::NotPrimary),
        }
        let mut node = Self {
            id: config.id,
            has_lease: config.has_lease,
            durable: document.clone(),
            document,
            mode: Mode::Following,
            heard: Epoch::default(),
            lease: None,
            holds_lease: !config.has_lease,
            refused: None,
        };
        match open_as {
            OpenAs::Primary => node.begin_opening(end, None),
            OpenAs::Standby => node.become_standby(),
        }
        Ok(node)
    }

    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the newest document, which is to be saved where its version is not the durable one's.
    pub fn document(&self) -> &Document {
        &self.document
    }

    pub fn durable(&self) -> &Document {
        &self.durable
    }

    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    pub fn is_saved(&self) -> bool {
        self.document.version == self.durable.version
    }

    pub(crate) fn level(&self) -> Safety {
        self.document.level
    }

    /// The document changed.
    pub(crate) fn save(&mut self) {
        self.document.version += 1;
    }

    /// Draws the next epoch of this node. It is kept with the next save.
    pub(crate) fn draw_epoch(&mut self) -> Epoch {
        let record = self.record().map_or(Epoch::default(), |record| record.epoch);
        let highest = self.document.highest().later(self.heard).later(record);
        self.document.claimed = Epoch::new(0, self.id.writer()).behind(highest);
        self.document.claimed
    }

    /// Whether the lease is this node's, by its own clock.
    pub fn holds_lease(&self) -> bool {
        self.holds_lease
    }

    /// Returns what the lease's store held when it was seen last.
    pub fn seen_lease(&self) -> Option<&LeaseView> {
        self.lease.as_ref()
    }

    pub(crate) fn record(&self) -> Option<&LeaseRecord> {
        self.lease.as_ref()?.record.as_ref()
    }

    pub(crate) fn lease_holder(&self) -> Option<NodeId> {
        self.lease.as_ref()?.holder
    }

    pub(crate) fn reign(&self) -> Option<&Reign> {
        match &self.document.standing {
            NodeStanding::Primary(reign) => Some(reign),
            _ => None,
        }
    }

    /// Takes what happened.
    ///
    /// # Errors
    /// Why a request is not carried out. Nothing has changed then.
    pub fn on(&mut self, event: NodeEvent) -> Result<(), NodeRefusal> {
        match event {
            NodeEvent::Saved(document) => self.on_saved(document),
            NodeEvent::PeerSeen { peer, end } => self.on_peer(peer, end),
            NodeEvent::Follow { epoch } => return self.on_follow(epoch),
            NodeEvent::Aligned => self.on_aligned(),
            NodeEvent::StatusCame(status) => self.on_status(status),
            NodeEvent::Progress(progress) => self.on_progress(progress),
            NodeEvent::Came { node, end } => return self.on_came(node, end),
            NodeEvent::Gone(node) => return self.on_gone(node),
            NodeEvent::Forget { node, end } => return self.on_forget(node, end),
            NodeEvent::Asked(epoch) => return self.on_asked(epoch),
            NodeEvent::Promote(request) => return self.on_promote(request),
            NodeEvent::Unheard => self.on_unheard(),
            NodeEvent::Promised(promise) => self.on_promised(promise),
            NodeEvent::AskingOver => self.on_asking_over(),
            NodeEvent::Replayed => self.on_replayed(),
            NodeEvent::AbandonPromotion => self.abandon_promotion(),
            NodeEvent::StepDown { to, end } => return self.on_step_down(to, end),
            NodeEvent::StayOn => self.on_stay(),
            NodeEvent::LeaseSeen(view) => self.on_lease_seen(view),
            NodeEvent::LeaseTaken(record) => self.on_lease_taken(record),
            NodeEvent::LeaseRenewed => self.holds_lease = true,
            NodeEvent::LeaseOver => self.holds_lease = false,
            NodeEvent::LeaseRecorded(record) => self.on_recorded(record),
        }
        Ok(())
    }

    fn on_saved(&mut self, document: Document) {
        if document.version > self.durable.version {
            self.durable = document;
        }
        self.advance_change();
        self.advance_promotion();
    }
}
