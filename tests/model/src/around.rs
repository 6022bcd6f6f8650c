//! Steps of servers that are down, of the network, and of the lease's store.

use reprise_failover::{LeaseView, LeaseWish, Node, NodeEvent, NodeId, NodeStanding, OpenAs};

use crate::{
    acts::{Act, Steps},
    world::{NODES, id, index, pair},
};

impl Steps<'_> {
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
        if store.holder.is_some_and(|holder| !is_used(holder)) {
            self.add(Act::Expire, |world| {
                world.store.holder = None;
                true
            });
        }
        let view = LeaseView {
            holder: store.holder,
            record: store.record.clone(),
        };
        for node in 0..NODES {
            let Some(running) = &from.hosts[node].node else {
                continue;
            };
            let view = view.clone();
            self.add(Act::Look(node), |world| world.feed(node, NodeEvent::LeaseSeen(view)));
            let Some(wish) = running.wants_lease() else { continue };
            let is_free = store.holder.is_none_or(|holder| holder == id(node));
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
                    world.grant(node, wish, is_answered);
                    true
                });
            }
        }
    }
}
