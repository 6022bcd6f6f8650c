//! The way back once nothing fails any more: by itself, or with an operator.

use reprise_failover::{Node, NodeEvent, OpenAs, PromotionRequest};

use crate::{
    acts::Act,
    world::{Bounds, Entry, Setting, World},
};

impl World {
    /// Does what comes by itself while nothing fails, until nothing is left to do.
    pub fn settle(&mut self, setting: Setting) {
        self.settle_with(setting, |act| match act {
            Act::Gone(..) | Act::Expire | Act::StayOn(_) | Act::AskingOver(_) | Act::TakeOver(_) => None,
            Act::Start(..) | Act::Heal(..) => None,
            _ => Some(0),
        });
    }

    /// Takes the possible step of the lowest rank again and again.
    fn settle_with(&mut self, setting: Setting, rank: impl Fn(Act) -> Option<u8>) {
        let bounds = Bounds {
            entries: self.written,
            faults: 0,
            acts: 0,
            epochs: u32::MAX,
            states: 0,
        };
        let mut seen = vec![self.clone()];
        while seen.len() < 300 {
            let next = self
                .next(setting, bounds)
                .into_iter()
                .filter(|next| !seen.contains(&next.world));
            let ranked = next.filter_map(|next| Some((rank(next.act)?, next)));
            let Some((_, next)) = ranked.min_by_key(|(rank, _)| *rank) else {
                return;
            };
            *self = next.world;
            seen.push(self.clone());
        }
    }

    /// Once nothing fails any more, some node leads and what it writes is acknowledged. An operator helps where none does.
    pub fn recovers(&self, setting: Setting) -> bool {
        let usual = |act: Act| match act {
            Act::Heal(..) | Act::Start(_, OpenAs::Primary) => Some(0),
            Act::Start(..) => Some(1),
            Act::AskingOver(_) | Act::Expire | Act::StayOn(_) | Act::TakeOver(_) | Act::Gone(..) => Some(3),
            _ => Some(2),
        };
        let mut world = self.clone();
        world.settle_with(setting, usual);
        if world.nodes().any(|leader| world.answers(setting, leader, usual)) {
            return true;
        }
        // An operator starts all of them as standbys, chooses one, and has it lead.
        world.nodes().any(|chosen| {
            let mut world = world.clone();
            for node in world.nodes() {
                world.finish_disk(node);
                world.host_mut(node).node = None;
                world.host_mut(node).aligned = None;
                world.open(setting, node, OpenAs::Standby);
                world.finish_disk(node);
            }
            let request = PromotionRequest {
                accepts_loss: true,
                is_heard: false,
                given: None,
                end: world.hosts[chosen].end(),
            };
            world.finish_disk(chosen);
            world.feed(chosen, NodeEvent::Promote(request));
            world.finish_disk(chosen);
            world.settle_with(setting, usual);
            world.answers(setting, chosen, usual)
        })
    }

    /// Whether a write of this primary is acknowledged.
    fn answers(&self, setting: Setting, primary: usize, usual: impl Fn(Act) -> Option<u8>) -> bool {
        let mut world = self.clone();
        let Some(epoch) = world.hosts[primary].node.as_ref().and_then(Node::writes_in) else {
            return false;
        };
        let serial = world.written;
        world.written += 1;
        let entry = Entry { epoch, serial };
        world.host_mut(primary).log.push(entry);
        world.finish_disk(primary);
        world.settle_with(setting, usual);
        world.nodes().for_each(|node| {
            world.acknowledge(setting, node);
        });
        world.ghost.acks.iter().any(|ack| ack.entry == entry)
    }
}
