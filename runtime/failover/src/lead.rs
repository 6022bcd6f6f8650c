//! A primary: what it may acknowledge, and how the set changes that it waits for.

use std::collections::BTreeMap;

use reprise_base::{Epoch, Lsn, Safety};

use crate::{
    document::{LeaseRecord, NodeStanding, Reign, SetChange, SyncStatus},
    follow::ProgressReport,
    node::{LeaseView, Mode, Node, NodeRefusal},
    node_id::NodeId,
    promote::{HandOver, PromotionStage},
    sets::{NodeSet, is_confirmed, needed},
};

/// Another node, as a primary hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerReport {
    pub node: NodeId,
    /// The node is bound to this epoch, or leads in it.
    pub epoch: Epoch,
    /// A primary of that epoch is known, so it is no claim alone.
    pub leads: bool,
}

/// The bound of acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// Nothing.
    Closed,
    /// Everything before an LSN.
    Before(Lsn),
    /// Everything that is durable here: the primary waits for no standby.
    Alone,
}

/// A primary's state in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaderState {
    /// Reports of this epoch.
    pub(crate) standbys: BTreeMap<NodeId, ProgressReport>,
    /// The node that gets the place, and the end of the log.
    pub(crate) hand_over: Option<(NodeId, Lsn)>,
}

/// A node's wish to the lease's store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseWish {
    /// The lease, if no other node has it, and this record with it, in one step, if the store holds what was seen.
    Take(LeaseRecord),
    /// This record, as long as the lease is this node's.
    Record(LeaseRecord),
    /// The lease goes back. With a record where the place was given away.
    Release(Option<LeaseRecord>),
}

impl Node {
    /// Whether this node is the primary, as far as it knows.
    pub fn leads(&self) -> bool {
        let is_primary = |standing: &NodeStanding| matches!(standing, NodeStanding::Primary(_));
        matches!(self.mode, Mode::Leading(_)) && self.holds_lease && is_primary(&self.durable.standing)
    }

    fn durable_reign(&self) -> Option<&Reign> {
        match &self.durable.standing {
            NodeStanding::Primary(reign) if self.leads() => Some(reign),
            _ => None,
        }
    }

    /// Whether acknowledgements wait for everybody who may take over by the store's record.
    fn is_recorded(&self) -> bool {
        let Some(reign) = self.reign() else { return false };
        let record = self.record().filter(|record| record.primary == self.id);
        !self.has_lease || record.is_some_and(|record| record.in_sync.all(|node| reign.members().contains(node)))
    }

    /// Returns the epoch in which this node may write. None: it takes no writes.
    pub fn writes_in(&self) -> Option<Epoch> {
        match &self.mode {
            Mode::Leading(leading) if leading.hand_over.is_none() => {
                let reign = self.durable_reign()?;
                (reign.epoch == self.document.claimed).then_some(reign.epoch)
            }
            _ => None,
        }
    }

    /// Returns the limit up to which the durable records here may be acknowledged, and shown.
    pub fn limit(&self, persisted: &dyn Fn(NodeId) -> Lsn) -> Limit {
        let (Some(durable), Some(newest)) = (self.durable_reign(), self.reign()) else {
            return Limit::Closed;
        };
        if !self.is_recorded() {
            return Limit::Closed;
        }
        let limits = [durable, newest].map(|reign| reign.limit(self.level(), persisted));
        match limits.into_iter().flatten().min() {
            Some(limit) => Limit::Before(limit),
            None => Limit::Alone,
        }
    }

    /// Whether an acknowledgement names the safety level of the cluster. Else it names `1-safe`.
    pub fn is_backed(&self) -> bool {
        let (Some(durable), Some(newest)) = (self.durable_reign(), self.reign()) else {
            return false;
        };
        !self.level().asks_standbys() || (!durable.current.is_empty() && !newest.current.is_empty())
    }

    /// Returns the status that this primary sends to a standby.
    pub fn sent_status(&self) -> Option<SyncStatus> {
        self.durable_reign()?;
        self.durable.status(self.id)
    }

    /// Whether this primary returns the send time of a standby's reports. It does so only for standbys that it waits for. A standby whose report came
    /// back a moment ago therefore knows that the primary has not continued without it.
    pub fn echoes(&self, node: NodeId) -> bool {
        let waits = |reign: &Reign| {
            reign.current.contains(node) && reign.change.as_ref().is_none_or(|change| change.to.contains(node))
        };
        self.durable_reign().is_some_and(waits) && self.reign().is_some_and(waits)
    }

    /// Returns the place that was given to `node`, once that is durable.
    pub fn handed_over(&self, node: NodeId) -> Option<HandOver> {
        match &self.durable.standing {
            NodeStanding::Retired {
                reign,
                handed: Some((to, end)),
            } if *to == node && !self.document.bound.is_after(reign.epoch) => Some(HandOver {
                from: self.id,
                epoch: reign.epoch,
                end: *end,
            }),
            _ => None,
        }
    }

    pub(crate) fn begin_reign(&mut self, reign: Reign) {
        self.document.bound = reign.epoch;
        self.document.standing = NodeStanding::Primary(reign);
        self.mode = Mode::Leading(LeaderState {
            standbys: BTreeMap::new(),
            hand_over: None,
        });
        self.save();
        // Standbys confirm what this reign tells them, not what an earlier one did.
        let version = self.document.version;
        if let NodeStanding::Primary(Reign {
            change: Some(change), ..
        }) = &mut self.document.standing
        {
            change.number = version;
        }
    }

    pub(crate) fn retire(&mut self, handed: Option<(NodeId, Lsn)>) {
        if let NodeStanding::Primary(reign) = &self.document.standing {
            let reign = reign.clone();
            self.document.standing = NodeStanding::Retired { reign, handed };
            self.save();
        }
        self.mode = Mode::Retired;
    }

    pub(crate) fn on_peer(&mut self, peer: PeerReport, end: Lsn) {
        let PeerReport { node, epoch, leads } = peer;
        if epoch.is_after(self.heard) {
            self.heard = epoch;
        }
        let Some(reign) = self.reign() else { return };
        // The lease tells which of two primaries of one count it is.
        let is_alike = self.has_lease && !epoch.allows(reign.epoch);
        if !epoch.is_after(reign.epoch) && !is_alike {
            return;
        }
        let leads = leads && !is_alike;
        match (&self.mode, leads) {
            (Mode::Leading(_) | Mode::Promoting(_), true) => self.retire(None),
            // Its members have promised not to follow it any longer, and no node leads them: it asks them again.
            (Mode::Leading(leading), false) if leading.hand_over.is_none() => self.begin_opening(end, Some(node)),
            _ => {}
        }
    }

    pub(crate) fn on_progress(&mut self, progress: ProgressReport) {
        let epoch = self.reign().map(|reign| reign.epoch);
        let Mode::Leading(leading) = &mut self.mode else { return };
        if epoch != Some(progress.of) {
            return;
        }
        leading.standbys.insert(progress.node, progress);
        match leading.hand_over {
            Some((to, end)) if to == progress.node && progress.persisted >= end => self.retire(Some((to, end))),
            _ => self.advance_change(),
        }
    }

    /// Whether everybody who has to knows of the change, and those who come have everything.
    fn is_change_ready(&self) -> bool {
        let (Mode::Leading(leading), Some(reign)) = (&self.mode, self.reign()) else {
            return false;
        };
        let Some(change) = &reign.change else { return false };
        let has = |node: NodeId| {
            leading
                .standbys
                .get(&node)
                .is_some_and(|standby| standby.persisted >= change.at)
        };
        // A node that leaves may be one of those that had a write, so the new set has to have it by itself.
        let is_enough = self.level() != Safety::Quorum || change.to.count(has) >= needed(self.level(), change.to.len());
        let knows = |node: NodeId| {
            leading
                .standbys
                .get(&node)
                .is_some_and(|standby| standby.noted >= change.number)
        };
        self.durable.version >= change.number
            && change.to.all(|node| reign.current.contains(node) || has(node))
            && is_enough
            && is_confirmed(self.level(), &reign.current, &change.to, &knows)
    }

    pub(crate) fn advance_change(&mut self) {
        if !self.is_change_ready() {
            return;
        }
        let is_recorded = |node: &Self, to: &NodeSet| {
            let record = node.record();
            record.is_some_and(|record| record.primary == node.id && record.in_sync == *to)
        };
        let Some(change) = self.reign().and_then(|reign| reign.change.clone()) else {
            return;
        };
        if self.has_lease && !is_recorded(self, &change.to) {
            return;
        }
        if let NodeStanding::Primary(reign) = &mut self.document.standing {
            (reign.current, reign.change) = (change.to, None);
            self.save();
        }
    }

    /// Begins a change of the sync set, in place of one that is under way.
    fn begin_change(&mut self, to: NodeSet, at: Lsn) {
        let number = self.document.version + 1;
        if let NodeStanding::Primary(reign) = &mut self.document.standing {
            reign.change = (to != reign.current).then_some(SetChange { to, at, number });
            self.save();
        }
        self.advance_change();
    }

    /// Returns the sets, where a change may begin. The store may hold the record of a change that is ready.
    fn changeable(&self) -> Result<&Reign, NodeRefusal> {
        let Mode::Leading(LeaderState { hand_over: None, .. }) = &self.mode else {
            return Err(NodeRefusal::DoesNotLead);
        };
        let reign = self.durable_reign().and(self.reign()).ok_or(NodeRefusal::DoesNotLead)?;
        match self.has_lease && self.is_change_ready() {
            true => Err(NodeRefusal::IsChanging),
            false => Ok(reign),
        }
    }

    pub(crate) fn on_came(&mut self, node: NodeId, end: Lsn) -> Result<(), NodeRefusal> {
        let level = self.level();
        let reign = self.changeable()?;
        if reign.change.is_some() {
            return Err(NodeRefusal::IsChanging);
        }
        let Mode::Leading(leading) = &self.mode else {
            return Ok(());
        };
        if reign.current.contains(node) || !level.asks_standbys() || !leading.standbys.contains_key(&node) {
            return Ok(());
        }
        let to = reign.current.with(node);
        self.begin_change(to, end);
        Ok(())
    }

    /// At `quorum` and `very-safe` a lost standby counts on.
    pub(crate) fn on_gone(&mut self, node: NodeId) -> Result<(), NodeRefusal> {
        match self.level() {
            Safety::TwoSafe => self.remove(node, Lsn(0)),
            _ => Ok(()),
        }
    }

    pub(crate) fn on_forget(&mut self, node: NodeId, end: Lsn) -> Result<(), NodeRefusal> {
        self.remove(node, end)
    }

    fn remove(&mut self, node: NodeId, end: Lsn) -> Result<(), NodeRefusal> {
        let reign = self.changeable()?;
        if !reign.members().contains(node) {
            return Ok(());
        }
        // A node that was on its way in does not hold up one that leaves: it comes again afterwards.
        let stays = |other: NodeId| {
            let change = reign.change.as_ref();
            other != node && change.is_none_or(|change| change.to.contains(other))
        };
        let to: NodeSet = reign.current.iter().filter(|other| stays(*other)).collect();
        if reign.change.as_ref().is_some_and(|change| change.to == to) {
            return Ok(());
        }
        self.begin_change(to, end);
        if let Mode::Leading(leading) = &mut self.mode {
            leading.standbys.remove(&node);
        }
        Ok(())
    }

    pub(crate) fn on_step_down(&mut self, to: NodeId, end: Lsn) -> Result<(), NodeRefusal> {
        let has_standbys = self.level().asks_standbys();
        let reign = self.changeable()?;
        if reign.change.is_some() {
            return Err(NodeRefusal::IsChanging);
        }
        if has_standbys && !reign.current.contains(to) {
            return Err(NodeRefusal::NotInSync);
        }
        let Mode::Leading(leading) = &mut self.mode else {
            return Err(NodeRefusal::DoesNotLead);
        };
        let has_all = leading
            .standbys
            .get(&to)
            .is_some_and(|standby| standby.persisted >= end);
        leading.hand_over = Some((to, end));
        if has_all {
            self.retire(Some((to, end)));
        }
        Ok(())
    }

    pub(crate) fn on_stay(&mut self) {
        if let Mode::Leading(leading) = &mut self.mode {
            leading.hand_over = None;
        }
    }

    /// Returns the record of this reign that the lease should hold.
    fn wanted_record(&self, reign: &Reign) -> LeaseRecord {
        let in_sync = match &reign.change {
            Some(change) if self.is_change_ready() => change.to.clone(),
            _ => reign.current.clone(),
        };
        LeaseRecord {
            primary: self.id,
            epoch: reign.epoch,
            in_sync,
        }
    }

    /// Returns what this node wants of the lease's store now.
    pub fn wants_lease(&self) -> Option<LeaseWish> {
        if !self.has_lease {
            return None;
        }
        let holds = self.lease_holder() == Some(self.id);
        match &self.mode {
            Mode::Promoting(promotion) if promotion.stage == PromotionStage::TakingLease => {
                let standing = &self.durable.standing;
                // Until this node acknowledges something, all that may take over now may take over yet, and so may this one.
                let before = self.record().into_iter();
                let before = before.flat_map(|record| record.in_sync.iter().chain([record.primary]));
                let in_sync = match (&self.document.standing, standing) {
                    (NodeStanding::Primary(reign), NodeStanding::Primary(_)) => reign.current.clone(),
                    (
                        _,
                        NodeStanding::Claiming {
                            allowed: Some(None), ..
                        },
                    ) => before.collect::<NodeSet>().with(self.id),
                    (
                        _,
                        NodeStanding::Claiming {
                            allowed: Some(Some(_)), ..
                        },
                    ) => NodeSet::default(),
                    _ => return None,
                };
                let record = LeaseRecord {
                    primary: self.id,
                    epoch: self.document.claimed,
                    in_sync,
                };
                (self.durable.claimed == self.document.claimed).then_some(LeaseWish::Take(record))
            }
            Mode::Leading(_) => {
                let reign = self.reign()?;
                let record = self.wanted_record(reign);
                match (self.holds_lease, holds) {
                    (true, true) if self.record() == Some(&record) => None,
                    (true, true) => self.durable_reign().map(|_| LeaseWish::Record(record)),
                    // The lease ran out, and no other node had it since.
                    _ => Some(LeaseWish::Take(record)),
                }
            }
            Mode::Retired if holds => match &self.durable.standing {
                NodeStanding::Retired {
                    reign,
                    handed: Some((to, _)),
                } => Some(LeaseWish::Release(Some(LeaseRecord {
                    primary: self.id,
                    epoch: reign.epoch,
                    in_sync: [*to].into_iter().collect(),
                }))),
                NodeStanding::Retired { handed: None, .. } => Some(LeaseWish::Release(None)),
                _ => None,
            },
            Mode::Following if holds => Some(LeaseWish::Release(None)),
            _ => None,
        }
    }

    /// Takes the contents of the lease's store. A primary that finds another holder there is deposed.
    pub(crate) fn on_lease_seen(&mut self, view: LeaseView) {
        let is_own = view.holder.is_none_or(|holder| holder == self.id)
            && view.record.as_ref().is_none_or(|record| record.primary == self.id);
        self.holds_lease &= !self.has_lease || view.holder == Some(self.id);
        self.lease = Some(view);
        // It may have taken the lease without an answer.
        let taken = self.record().cloned().filter(|record| {
            self.lease_holder() == Some(self.id) && record.primary == self.id && record.epoch == self.document.claimed
        });
        match (&self.mode, taken) {
            (Mode::Leading(_), _) if !is_own => self.retire(None),
            (Mode::Promoting(promotion), Some(record)) if promotion.stage == PromotionStage::TakingLease => {
                self.lead_with_lease(&record);
            }
            _ => self.advance_promotion(),
        }
    }

    pub(crate) fn on_lease_taken(&mut self, record: LeaseRecord) {
        self.lease = Some(LeaseView {
            holder: Some(self.id),
            record: Some(record.clone()),
        });
        self.holds_lease = true;
        self.lead_with_lease(&record);
    }

    pub(crate) fn on_recorded(&mut self, record: LeaseRecord) {
        self.lease.get_or_insert_default().record = Some(record);
        self.advance_change();
    }
}
