//! The surroundings of a node: its disk, the wire, the lease's store.

use reprise_base::Lsn;
use reprise_failover::{Epoch, LeaseView, LeaseWish, Mode, Node, NodeEvent, NodeStanding, PromotionStage};

use crate::world::{NODES, World, id};

impl World {
    /// Has the disk of a node do all that it has to do, and what waits for that. False: it had nothing to do.
    pub(crate) fn finish_disk(&mut self, node: usize) -> bool {
        let mut was_slow = false;
        loop {
            let host = &self.hosts[node];
            if host.disk.len() > 1 && host.node.is_some() {
                self.save(node);
            } else if host.durable < host.log.len() {
                let host = self.host_mut(node);
                host.durable = host.log.len();
            } else {
                break;
            }
            was_slow = true;
        }
        self.replayed(node) || was_slow
    }

    /// A promotion ends once all that was received is durable, and replayed.
    pub fn replayed(&mut self, node: usize) -> bool {
        let host = &self.hosts[node];
        let is_ready = |running: &Node| {
            running.is_saved()
                && matches!(running.mode(), Mode::Promoting(promotion) if promotion.stage() == PromotionStage::Replaying)
        };
        if host.durable < host.log.len() || !host.node.as_ref().is_some_and(is_ready) {
            return false;
        }
        self.feed(node, NodeEvent::Replayed);
        self.finish_disk(node);
        true
    }

    /// Whether a primary goes on hearing this standby.
    pub(crate) fn is_echoed(&self, node: usize) -> bool {
        let follows = self.hosts[node].node.as_ref().and_then(Node::follows);
        let hears = |other: usize| other != node && self.reach(node, other) && self.hosts[other].leads_in() == follows;
        follows.is_some() && (0..NODES).any(hears)
    }

    /// The time is over for which a standby's primary does not go on without it. The standby's clock says so first.
    pub(crate) fn silence(&mut self, node: usize) {
        if self.hosts[node].is_heard {
            self.host_mut(node).is_heard = false;
            self.feed(node, NodeEvent::Unheard);
        }
    }

    /// A node tells the one that asked what it promises.
    pub(crate) fn answer(&mut self, node: usize, asker: usize, epoch: Epoch) -> bool {
        let host = &self.hosts[node];
        let (end, fork) = (Lsn(host.durable as u64), Lsn(self.hosts[asker].fork(host) as u64));
        let Some(promise) = host.node.as_ref().and_then(|running| running.promise(epoch, end, fork)) else {
            return false;
        };
        self.feed(asker, NodeEvent::Promised(promise))
    }

    /// A standby cuts off what its primary does not have. Returns what is wrong with what it says of that.
    pub(crate) fn align(&mut self, primary: usize, standby: usize) -> Option<String> {
        let (own, theirs) = (self.hosts[primary].clone(), self.hosts[standby].clone());
        let fork = own.fork(&theirs);
        let cut = &theirs.log[fork..];
        let epoch = own.leads_in()?;
        let NodeStanding::Primary(reign) = &own.node.as_ref()?.durable().standing else {
            return None;
        };
        let peer = theirs.node.as_ref().filter(|peer| peer.is_bound_to() == Some(epoch))?;
        let says_no = !cut.is_empty() && !peer.may_be_acknowledged(id(primary), reign);
        let was_told = self.ghost.acks.iter().any(|ack| cut.contains(&ack.entry));
        let host = self.host_mut(standby);
        host.log.truncate(fork);
        host.durable = host.durable.min(fork);
        host.aligned = Some(epoch);
        self.feed(standby, NodeEvent::Aligned);
        (says_no && was_told).then(|| format!("6: node {standby} cuts {cut:?} off and says that nobody was told of it"))
    }

    /// The store does what a node wants.
    pub(crate) fn grant(&mut self, node: usize, wish: LeaseWish, is_answered: bool) {
        let answer = match wish {
            LeaseWish::Take(record) => {
                (self.store.holder, self.store.record) = (Some(id(node)), Some(record.clone()));
                NodeEvent::LeaseTaken(record)
            }
            LeaseWish::Record(record) => {
                self.store.record = Some(record.clone());
                NodeEvent::LeaseRecorded(record)
            }
            LeaseWish::Release(record) => {
                self.store.holder = None;
                self.store.record = record.or(self.store.record.take());
                NodeEvent::LeaseSeen(LeaseView {
                    holder: None,
                    record: self.store.record.clone(),
                })
            }
        };
        if is_answered {
            self.feed(node, answer);
        }
    }
}
