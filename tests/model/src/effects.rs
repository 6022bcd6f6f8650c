//! The surroundings of a node: its disk, the wire, the lease's store.

use reprise_base::{Epoch, Lsn};
use reprise_failover::{
    Document, LeaseView, LeaseWish, LogEnd, Mode, Node, NodeEvent, NodeId, NodeStanding, Promise, PromotionStage,
};

use crate::{
    mutant::Mutant,
    world::{Setting, World, id, index},
};

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

    /// True while a primary hears this standby.
    pub(crate) fn is_echoed(&self, node: usize) -> bool {
        let follows = self.hosts[node].node.as_ref().and_then(Node::follows);
        let hears = |other: usize| other != node && self.reach(node, other) && self.hosts[other].leads_in() == follows;
        follows.is_some() && self.nodes().any(hears)
    }

    /// The time is over for which a standby's primary does not go on without it. The standby's clock says so first.
    pub(crate) fn silence(&mut self, node: usize) {
        if self.hosts[node].is_heard {
            self.host_mut(node).is_heard = false;
            self.feed(node, NodeEvent::Unheard);
        }
    }

    /// A node tells the one that asked what it promises.
    pub(crate) fn answer(&mut self, setting: Setting, (node, asker): (usize, usize), epoch: Epoch) -> bool {
        let host = &self.hosts[node];
        let (end, fork) = (Lsn(host.durable as u64), Lsn(self.hosts[asker].fork(host) as u64));
        let Some(promise) = host.node.as_ref().and_then(|running| running.promise(epoch, end, fork)) else {
            return false;
        };
        let hides_end = setting.is(Mutant::PromisesNoEnd);
        let promise = Promise {
            end: if hides_end { LogEnd::default() } else { promise.end },
            ..promise
        };
        self.feed(asker, NodeEvent::Promised(promise))
    }

    /// Takes each silent node for one that promised.
    pub(crate) fn promise_for_silent(&mut self, asker: usize) {
        let host = self.hosts[asker].clone();
        let Some((epoch, targets)) = host.node.as_ref().and_then(Node::asks) else {
            return;
        };
        let is_silent = |node: &NodeId| {
            let peer = index(*node);
            !self.reach(asker, peer) || self.hosts[peer].node.is_none()
        };
        let silent: Vec<_> = targets.iter().filter(is_silent).collect();
        for from in silent {
            let promise = Promise {
                from,
                epoch,
                end: LogEnd::default(),
                status: None,
                rival: Epoch::default(),
                fork: host.end(),
            };
            self.feed(asker, NodeEvent::Promised(promise));
        }
    }

    /// Answers before the promise is durable.
    pub(crate) fn answer_unsaved(&mut self, node: usize, asker: usize, epoch: Epoch) {
        let host = &self.hosts[node];
        let Some(running) = &host.node else { return };
        let promise = Promise {
            from: id(node),
            epoch,
            end: LogEnd {
                epoch: running.document().normal(),
                lsn: Lsn(host.durable as u64),
            },
            status: running.document().status(id(node)),
            rival: running.document().rival,
            fork: Lsn(self.hosts[asker].fork(host) as u64),
        };
        self.feed(asker, NodeEvent::Promised(promise));
    }

    pub(crate) fn crash(&mut self, setting: Setting, node: usize, is_saved: bool, keeps_log: bool) {
        let host = self.host_mut(node);
        host.node = None;
        if is_saved && let Some(document) = host.disk.pop() {
            host.disk = vec![document];
        }
        host.disk.truncate(1);
        if !keeps_log {
            let kept = host
                .durable
                .saturating_sub(usize::from(setting.is(Mutant::LosesDurable)));
            host.log.truncate(kept);
        }
        if setting.is(Mutant::LosesDocument) {
            host.disk = vec![Document::standby(setting.level)];
        }
        host.durable = host.log.len();
        (host.aligned, host.is_heard) = (None, false);
        host.reported = Default::default();
    }

    /// A standby cuts off what its primary does not have. Returns what is wrong with what it says of that.
    pub(crate) fn align(&mut self, setting: Setting, primary: usize, standby: usize) -> Option<String> {
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
        if !setting.is(Mutant::KeepsFork) {
            host.log.truncate(fork);
            host.durable = host.durable.min(fork);
        }
        host.aligned = Some(epoch);
        self.feed(standby, NodeEvent::Aligned);
        (says_no && was_told)
            .then(|| format!("6: node {standby} cuts {cut:?} off and says that no client was told of it"))
    }

    /// The store does what a node wants.
    pub(crate) fn grant(&mut self, setting: Setting, node: usize, wish: LeaseWish, is_answered: bool) {
        let is_believed = setting.is(Mutant::BelievesInLease);
        let before = self.store.clone();
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
        if is_answered || is_believed {
            self.feed(node, answer);
        }
        if is_believed && !is_answered {
            self.store = before;
        }
    }
}
