//! Steps of servers that are down, of the network, and of the lease's store.

use reprise_failover::{LeaseView, LeaseWish, Node, NodeEvent, NodeId, NodeStanding, OpenAs, ProgressReport};

use crate::{
    acts::{Act, Steps},
    mutant::Mutant,
    world::{id, index, pair},
};

impl Steps<'_> {
    /// A crash: of the process, which keeps what the system has, or of the machine.
    pub(crate) fn of_crash(&mut self, node: usize) {
        let (host, setting) = (self.from.hosts[node].clone(), self.setting);
        for (is_saved, keeps_log) in [(false, false), (false, true), (true, false), (true, true)] {
            if (is_saved && host.disk.len() == 1) || (keeps_log && host.durable == host.log.len()) {
                continue;
            }
            let act = Act::Crash {
                node,
                is_saved,
                keeps_log,
            };
            self.add(act, |world| {
                world.faults += 1;
                world.crash(setting, node, is_saved, keeps_log);
                true
            });
        }
    }

    /// Has a standby say more than is durable.
    pub(crate) fn forge(&self, progress: &mut ProgressReport, standby: usize) {
        let host = &self.from.hosts[standby];
        if self.setting.is(Mutant::ReportsReceived) {
            progress.persisted = host.end();
        }
        let newest = host.node.as_ref().map(|node| &node.document().standing);
        if let Some(NodeStanding::Follower(follower)) = newest
            && self.setting.is(Mutant::ConfirmsUnsaved)
        {
            progress.noted = follower.status.as_ref().map_or(0, |status| status.number);
        }
    }

    pub(crate) fn of_dead(&mut self, node: usize) {
        let setting = self.setting;
        let is_primary = matches!(self.from.hosts[node].disk[0].standing, NodeStanding::Primary(_));
        if is_primary && self.has_epoch() {
            self.add(Act::Start(node, OpenAs::Primary), |world| {
                world.open(setting, node, OpenAs::Primary);
                true
            });
        }
        self.add(Act::Start(node, OpenAs::Standby), |world| {
            world.open(setting, node, OpenAs::Standby);
            true
        });
    }

    pub(crate) fn of_wire(&mut self, a: usize, b: usize) {
        let number = pair(a, b);
        if self.from.cuts[number] {
            self.add(Act::Heal(a, b), |world| {
                world.cuts[number] = false;
                true
            });
        } else if self.has_fault() {
            self.add(Act::Cut(a, b), |world| {
                world.faults += 1;
                world.cuts[number] = true;
                true
            });
        }
    }

    pub(crate) fn of_store(&mut self) {
        let from = self.from;
        let store = &from.store;
        let is_used = |holder: NodeId| from.hosts[index(holder)].node.as_ref().is_some_and(Node::holds_lease);
        let ends_early = self.setting.is(Mutant::LeaseEndsEarly) && self.has_fault();
        if store.holder.is_some_and(|holder| !is_used(holder) || ends_early) {
            self.add(Act::Expire, |world| {
                world.store.holder = None;
                true
            });
        }
        let view = LeaseView {
            holder: store.holder,
            record: store.record.clone(),
        };
        for node in from.nodes() {
            let Some(running) = &from.hosts[node].node else {
                continue;
            };
            let view = view.clone();
            self.add(Act::Look(node), |world| world.feed(node, NodeEvent::LeaseSeen(view)));
            let Some(wish) = running.wants_lease() else { continue };
            let setting = self.setting;
            let is_free = store.holder.is_none_or(|holder| holder == id(node)) || setting.is(Mutant::GivesHeldLease);
            let is_possible = match &wish {
                LeaseWish::Take(_) => is_free && running.seen_lease().is_some_and(|seen| seen.record == store.record),
                LeaseWish::Record(_) | LeaseWish::Release(_) => store.holder == Some(id(node)),
            };
            if !is_possible {
                continue;
            }
            for is_answered in [true, false] {
                if !is_answered && !self.has_fault() {
                    continue;
                }
                let wish = wish.clone();
                self.add(Act::Grant { node, is_answered }, |world| {
                    world.faults += u8::from(!is_answered);
                    world.grant(setting, node, wish, is_answered);
                    true
                });
            }
        }
    }
}
