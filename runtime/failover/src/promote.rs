//! The way to lead. A standby takes it by hand, by the lease or by a hand-over. A primary takes it when it opens its directory.

use reprise_base::{Epoch, Lsn, Safety};

use crate::{
    document::{FollowerStanding, LeaseRecord, LogEnd, NodeStanding, Reign, SyncStatus},
    loss::{Basis, Lost, Promise},
    node::{Mode, Node, NodeRefusal},
    node_id::NodeId,
    sets::NodeSet,
};

/// The place that a primary gave away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandOver {
    pub from: NodeId,
    pub epoch: Epoch,
    /// End of its log.
    pub end: Lsn,
}

/// How a node is to take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PromotionRequest {
    /// An operator accepts what may be lost.
    pub accepts_loss: bool,
    /// The primary's last word is younger than its waiting time.
    pub is_heard: bool,
    pub given: Option<HandOver>,
    /// End of this node's log.
    pub end: Lsn,
}

/// How far a promotion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromotionStage {
    /// The other nodes are asked for a promise.
    Asking,
    TakingLease,
    /// All that was received is made durable and replayed.
    Replaying,
    /// A primary that opens its directory may not lead, as far as it knows: another node may have led since. It continues to ask.
    Barred,
}

/// A promotion under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PromotionState {
    pub request: PromotionRequest,
    pub(crate) stage: PromotionStage,
    pub(crate) promises: Vec<Promise>,
    is_asking_over: bool,
    /// Told this primary of a later epoch, so it has to answer, too.
    teller: Option<NodeId>,
    /// The loss that is accepted, or none.
    pub lost: Option<Lost>,
}

impl PromotionState {
    pub fn stage(&self) -> PromotionStage {
        self.stage
    }

    fn new(request: PromotionRequest, teller: Option<NodeId>) -> Self {
        Self {
            request,
            teller,
            stage: PromotionStage::Asking,
            promises: Vec::new(),
            is_asking_over: false,
            lost: None,
        }
    }
}

impl Node {
    /// A primary's directory is opened, or its standbys were asked for a promise by another node meanwhile.
    pub(crate) fn begin_opening(&mut self, end: Lsn, teller: Option<NodeId>) {
        if !self.has_lease {
            self.draw_epoch();
            self.save();
        }
        let request = PromotionRequest {
            accepts_loss: false,
            is_heard: true,
            given: None,
            end,
        };
        self.mode = Mode::Promoting(PromotionState::new(request, teller));
        self.advance_promotion();
    }

    pub(crate) fn on_promote(&mut self, request: PromotionRequest) -> Result<(), NodeRefusal> {
        match self.mode {
            Mode::Leading(_) => return Err(NodeRefusal::Leads),
            Mode::Promoting(ref promotion) if promotion.stage != PromotionStage::Barred => {
                return Err(NodeRefusal::IsPromoting);
            }
            Mode::Promoting(_) | Mode::Following | Mode::Retired => {}
        }
        self.refused = None;
        let mut follower = self.document.standing.as_follower();
        if let NodeStanding::Primary(_) | NodeStanding::Retired { .. } = &self.document.standing {
            // Another node may have led since it gave its place away, or lost it.
            (follower.status, follower.led) = (self.document.status(self.id), None);
        }
        // A place that was given counts no more once another node asked for it.
        if let Some(given) = request.given
            && (given.end != request.end || given.epoch != follower.of || self.document.bound.is_after(given.epoch))
        {
            return Err(NodeRefusal::NotInSync);
        }
        let epoch = self.draw_epoch();
        self.document.standing = NodeStanding::Claiming {
            follower,
            epoch,
            allowed: None,
        };
        self.save();
        self.mode = Mode::Promoting(PromotionState::new(request, None));
        self.advance_promotion();
        Ok(())
    }

    fn promotion(&self) -> Option<&PromotionState> {
        match &self.mode {
            Mode::Promoting(promotion) => Some(promotion),
            _ => None,
        }
    }

    fn promotion_mut(&mut self) -> Option<&mut PromotionState> {
        match &mut self.mode {
            Mode::Promoting(promotion) => Some(promotion),
            _ => None,
        }
    }

    /// Whether the directory is opened as the primary's that it was.
    fn is_opening(&self) -> bool {
        self.promotion().is_some() && matches!(self.document.standing, NodeStanding::Primary(_))
    }

    /// Returns the highest epoch that this node promised to another one.
    fn rival(&self) -> Epoch {
        self.document.rival.later(self.document.bound)
    }

    fn own_status(&self) -> (Option<SyncStatus>, bool) {
        let led = match &self.document.standing {
            NodeStanding::Primary(_) => true,
            NodeStanding::Claiming { follower, .. } => follower.led.is_some() && follower.status.is_none(),
            _ => false,
        };
        (self.document.status(self.id), led)
    }

    fn with_basis<T>(&self, promotion: &PromotionState, read: impl for<'a> FnOnce(&Basis<'a>) -> T) -> T {
        let (status, led) = self.own_status();
        read(&Basis {
            node: self.id,
            level: self.level(),
            status: status.as_ref(),
            led,
            end: LogEnd {
                epoch: self.document.normal(),
                lsn: promotion.request.end,
            },
            is_heard: promotion.request.is_heard,
            teller: promotion.teller,
            rivals: &[self.rival()],
            recorded: self
                .record()
                .filter(|record| record.primary != self.id)
                .map(|record| record.epoch),
            promises: &promotion.promises,
        })
    }

    /// Returns the epoch that other nodes are to promise, and these. The claim is durable.
    pub fn asks(&self) -> Option<(Epoch, NodeSet)> {
        let promotion = self.promotion()?;
        let is_asking = matches!(promotion.stage, PromotionStage::Asking | PromotionStage::Barred) && self.is_saved();
        is_asking.then(|| {
            (
                self.document.claimed,
                self.with_basis(promotion, |basis| basis.to_ask()),
            )
        })
    }

    pub(crate) fn on_promised(&mut self, promise: Promise) {
        let epoch = self.document.claimed;
        let Some(promotion) = self.promotion_mut() else { return };
        let is_new = promotion.promises.iter().all(|known| known.from != promise.from);
        if promise.epoch == epoch
            && matches!(promotion.stage, PromotionStage::Asking | PromotionStage::Barred)
            && is_new
        {
            promotion.promises.push(promise);
            promotion.promises.sort_by_key(|promise| promise.from);
            promotion.stage = PromotionStage::Asking;
            self.advance_promotion();
        }
    }

    pub(crate) fn on_unheard(&mut self) {
        if let Some(promotion) = self.promotion_mut() {
            promotion.request.is_heard = false;
        }
    }

    pub(crate) fn on_asking_over(&mut self) {
        if let Some(promotion) = self.promotion_mut() {
            promotion.is_asking_over = true;
            self.advance_promotion();
        }
    }

    /// Whether the lease's record alone decides that this node has everything. At `quorum` a standby in sync may lack what others have.
    fn is_decided_by_record(&self) -> bool {
        self.has_lease && self.level() != Safety::Quorum
    }

    /// Whether the store's record is of a reign that this directory began. A later number is no ground: a start that is refused draws one, too.
    fn is_own_record(&self, record: &LeaseRecord) -> bool {
        let led = match &self.document.standing {
            NodeStanding::Primary(reign) => Some(reign.epoch),
            NodeStanding::Claiming { follower, .. } | NodeStanding::Follower(follower) => {
                follower.led.as_ref().map(|reign| reign.epoch)
            }
            NodeStanding::Retired { .. } => None,
        };
        let is_claimed = self.is_opening() && record.epoch == self.document.claimed;
        record.primary == self.id && (is_claimed || led == Some(record.epoch))
    }

    /// Returns what may be lost by the store's record. A node in it has everything that was acknowledged.
    fn lost_by_record(&self, record: &LeaseRecord) -> Option<Lost> {
        let has_all = self.is_own_record(record) || (record.in_sync.contains(self.id) && !self.is_opening());
        (!has_all).then_some(Lost {
            from: None,
            is_known: true,
        })
    }

    /// Advances the promotion as far as the node's knowledge allows.
    pub(crate) fn advance_promotion(&mut self) {
        let Some(promotion) = self.promotion() else { return };
        if promotion.stage != PromotionStage::Asking || !self.is_saved() {
            return;
        }
        let (request, is_asking_over) = (promotion.request, promotion.is_asking_over);
        let is_elsewhere = self.lease_holder().is_some_and(|holder| holder != self.id);
        if is_elsewhere && !self.is_opening() {
            self.abandon_promotion();
            return;
        }
        if self.has_lease && !self.prepare_for_lease() {
            return;
        }
        let Some(promotion) = self.promotion() else { return };
        let lost = match self.record() {
            Some(record) if self.is_decided_by_record() => self.lost_by_record(record),
            // No node had the lease yet.
            None if self.is_decided_by_record() && self.is_opening() => None,
            // At quorum a majority has to know it all the same: the node that gave the place may have it again by now.
            _ if request.given.is_some() && self.level() != Safety::Quorum => None,
            _ => {
                let is_complete = self.with_basis(promotion, |basis| basis.is_complete());
                let lost = self.with_basis(promotion, |basis| basis.lost());
                let is_known = lost.is_some_and(|lost| lost.is_known);
                if !is_complete && !is_asking_over && !is_known {
                    return;
                }
                lost
            }
        };
        self.decide(lost);
    }

    /// Draws the epoch of a primary that opens, once the record is known; one whose place another node took retires. True where the lease may
    /// be asked for, as far as the store was seen.
    fn prepare_for_lease(&mut self) -> bool {
        if self.lease_holder().is_some_and(|holder| holder != self.id) || self.lease.is_none() {
            return false;
        }
        if !self.is_opening() {
            return true;
        }
        let record = self.record().cloned();
        let is_own = record.as_ref().is_none_or(|record| self.is_own_record(record));
        if !is_own {
            self.retire(None);
            return false;
        }
        let is_drawn = self
            .reign()
            .is_some_and(|reign| self.document.claimed.is_after(reign.epoch));
        let is_free = record.is_none_or(|record| !record.epoch.is_after(self.document.claimed));
        if !is_drawn || !is_free {
            self.draw_epoch();
            self.save();
            return false;
        }
        true
    }

    fn decide(&mut self, lost: Option<Lost>) {
        let (is_opening, has_lease) = (self.is_opening(), self.has_lease);
        let lone_levels = !matches!(self.level(), Safety::Quorum | Safety::VerySafe);
        let Some(promotion) = self.promotion_mut() else { return };
        let is_allowed = match lost {
            None => true,
            // A lone primary continues if no answer tells of another one.
            Some(lost) if is_opening => lone_levels && !has_lease && !lost.is_known,
            Some(_) => promotion.request.accepts_loss,
        };
        if !is_allowed {
            promotion.stage = PromotionStage::Barred;
            match is_opening {
                true if lost.is_some_and(|lost| lost.is_known) => self.retire(None),
                true => {}
                false => {
                    self.refused = lost;
                    self.abandon_promotion();
                }
            }
            return;
        }
        promotion.lost = lost.filter(|_| !is_opening);
        promotion.stage = if has_lease {
            PromotionStage::TakingLease
        } else {
            PromotionStage::Replaying
        };
        if let NodeStanding::Claiming { allowed, .. } = &mut self.document.standing {
            *allowed = Some(lost);
            self.save();
        }
        if is_opening && !has_lease {
            self.lead();
        }
    }

    pub(crate) fn on_replayed(&mut self) {
        if self
            .promotion()
            .is_some_and(|promotion| promotion.stage == PromotionStage::Replaying)
            && self.is_saved()
        {
            self.lead();
        }
    }

    /// The lease is this node's, by this record.
    pub(crate) fn lead_with_lease(&mut self, record: &LeaseRecord) {
        let is_opening = self.is_opening();
        let claimed = self.document.claimed;
        let Some(promotion) = self.promotion_mut() else { return };
        if promotion.stage != PromotionStage::TakingLease || record.epoch != claimed {
            return;
        }
        promotion.stage = PromotionStage::Replaying;
        if is_opening {
            self.lead();
        }
    }

    fn lead(&mut self) {
        let epoch = self.document.claimed;
        let reign = match &self.document.standing {
            NodeStanding::Primary(reign) => Reign { epoch, ..reign.clone() },
            NodeStanding::Claiming { follower, .. } => {
                let Some(promotion) = self.promotion() else { return };
                Reign {
                    epoch,
                    begins: promotion.request.end,
                    current: self.first_set(follower, promotion),
                    change: None,
                    took_over: promotion.lost.is_none().then_some(follower.of),
                }
            }
            _ => return,
        };
        self.begin_reign(reign);
    }

    /// Returns the set of a new primary. Levels that count standbys while they are away keep them; else no node is in sync.
    fn first_set(&self, follower: &FollowerStanding, promotion: &PromotionState) -> NodeSet {
        if !matches!(self.level(), Safety::Quorum | Safety::VerySafe) {
            return NodeSet::default();
        }
        let statuses = promotion.promises.iter().filter_map(|promise| promise.status.as_ref());
        let own = follower.status.clone().or_else(|| self.document.status(self.id));
        let newest = own
            .iter()
            .chain(statuses)
            .max_by_key(|status| (status.epoch.count(), status.number));
        let set = newest.map(|status| status.next.as_ref().unwrap_or(&status.current));
        set.map_or_else(NodeSet::default, |set| set.without(self.id))
    }

    /// Returns the loss that refused the last promotion: no operator had accepted it.
    pub fn refused(&self) -> Option<Lost> {
        self.refused
    }

    pub(crate) fn abandon_promotion(&mut self) {
        if self.promotion().is_some()
            && let NodeStanding::Claiming { follower, .. } = &self.document.standing
        {
            self.document.standing = NodeStanding::Follower(follower.clone());
            self.save();
            self.mode = Mode::Following;
        }
    }
}
