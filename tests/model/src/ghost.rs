//! The knowledge of an observer of all nodes: what was acknowledged, and what was named as lost.

use reprise_base::{Epoch, Safety};
use reprise_failover::{Limit, NodeId, NodeStanding};

use crate::mutant::Mutant;
use crate::world::{Entry, Setting, World, id, index};

/// An acknowledged entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ack {
    pub at: usize,
    pub entry: Entry,
    /// Epoch of the primary that acknowledged it.
    pub epoch: Epoch,
    /// Without a lease, at `1-safe` and `2-safe`, two primaries may answer at one time. What the older one answers meanwhile is named when
    /// it is cut off, and nowhere else.
    pub is_forsaken: bool,
}

/// A promotion that was allowed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Allowed {
    pub epoch: Epoch,
    /// The nodes that were in sync with the old primary, as the promoted node knew.
    pub members: Vec<NodeId>,
    /// The loss that was named: from this entry on.
    pub lost_from: Option<usize>,
    /// No other node was asked: a primary's directory was opened again, or the place was given.
    pub is_blind: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ghost {
    pub acks: Vec<Ack>,
    pub allowed: Vec<Allowed>,
    /// Nodes that an operator had a primary forget.
    pub forgotten: Vec<NodeId>,
    /// True if a standby was removed that did not confirm it, and an operator may promote it later without knowing. Later acknowledged
    /// writes may be lost, as the operator was warned.
    pub is_open_to_loss: bool,
}

impl Ghost {
    pub fn note(&mut self, allowed: Allowed) {
        if self.allowed.iter().all(|known| known.epoch != allowed.epoch) {
            self.allowed.push(allowed);
            self.allowed
                .sort_by_key(|allowed| (allowed.epoch.count(), allowed.epoch.writer()));
        }
    }

    pub fn note_forgotten(&mut self, setting: Setting, node: NodeId, is_last: bool) {
        self.is_open_to_loss |= setting.level == Safety::VerySafe || (is_last && setting.level == Safety::Quorum);
        if !self.forgotten.contains(&node) {
            self.forgotten.push(node);
            self.forgotten.sort_unstable();
        }
    }

    fn is_named(&self, ack: &Ack, epoch: Epoch) -> bool {
        let names = |allowed: &Allowed| {
            let is_between = is_rival(allowed.epoch, ack.epoch) && !allowed.epoch.is_after(epoch);
            is_between && allowed.lost_from.is_some_and(|from| from <= ack.at)
        };
        self.allowed.iter().any(names)
    }
}

/// Whether a reign is later than another one, or knew nothing of it.
fn is_rival(epoch: Epoch, other: Epoch) -> bool {
    epoch != other && !other.is_after(epoch)
}

/// True for levels at which a lone primary continues.
fn may_be_lone(setting: Setting) -> bool {
    !setting.has_lease && matches!(setting.level, Safety::OneSafe | Safety::TwoSafe)
}

impl World {
    /// Returns how many entries a primary may acknowledge now.
    pub fn ackable(&self, setting: Setting, node: usize) -> Option<usize> {
        let host = &self.hosts[node];
        let running = host.node.as_ref()?;
        let epoch = host.leads_in()?;
        let persisted = |member: NodeId| {
            let (of, persisted) = host.reported[index(member)];
            reprise_base::Lsn(if of == epoch { persisted as u64 } else { 0 })
        };
        if setting.is(Mutant::AcknowledgesTooMuch) && running.limit(&persisted) != Limit::Closed {
            return Some(host.durable);
        }
        let written = match setting.is(Mutant::AcknowledgesUnflushed) {
            true => host.log.len(),
            false => host.durable,
        };
        match running.limit(&persisted) {
            Limit::Closed => None,
            Limit::Before(limit) => Some((limit.0 as usize).min(written)),
            Limit::Alone => Some(written),
        }
    }

    /// A primary acknowledges all that it may. False: there was nothing.
    pub fn acknowledge(&mut self, setting: Setting, node: usize) -> bool {
        let (Some(count), Some(epoch)) = (self.ackable(setting, node), self.hosts[node].leads_in()) else {
            return false;
        };
        let host = &self.hosts[node];
        let running = host.node.as_ref().expect("it leads");
        let is_backed = running.is_backed();
        let NodeStanding::Primary(reign) = &running.durable().standing else {
            return false;
        };
        let waited: Vec<NodeId> = reign.current.iter().collect();
        let is_late = self.ghost.allowed.iter().any(|allowed| {
            let shares = allowed.members.iter().any(|member| waited.contains(member));
            is_rival(allowed.epoch, epoch) && (!is_backed || setting.level == Safety::OneSafe || !shares)
        });
        let mut is_new = false;
        for at in 0..count {
            let entry = host.log[at];
            if self.ghost.acks.iter().all(|ack| ack.entry != entry) {
                self.ghost.acks.push(Ack {
                    at,
                    entry,
                    epoch,
                    is_forsaken: may_be_lone(setting) && is_late,
                });
                is_new = true;
            }
        }
        self.ghost.acks.sort_by_key(|ack| ack.entry.serial);
        is_new
    }

    /// A node leads that asked no other one: the answers of other primaries meanwhile are not here, and it could not know.
    pub fn forsake(&mut self, setting: Setting, node: usize) {
        let Some(epoch) = self.hosts[node].leads_in() else {
            return;
        };
        if !may_be_lone(setting)
            || self
                .ghost
                .allowed
                .iter()
                .any(|allowed| allowed.epoch == epoch && !allowed.is_blind)
        {
            return;
        }
        let Some(NodeStanding::Primary(reign)) = self.hosts[node].node.as_ref().map(|node| &node.durable().standing)
        else {
            return;
        };
        let members = reign.current.iter().collect();
        self.ghost.note(Allowed {
            epoch,
            members,
            lost_from: None,
            is_blind: true,
        });
        let log = self.hosts[node].log.clone();
        let is_lost = |ack: &Ack| is_rival(epoch, ack.epoch) && log.get(ack.at) != Some(&ack.entry);
        self.ghost
            .acks
            .iter_mut()
            .filter(|ack| is_lost(ack))
            .for_each(|ack| ack.is_forsaken = true);
    }

    /// Returns which property does not hold.
    pub fn fault(&self, setting: Setting) -> Option<String> {
        let open = self
            .nodes()
            .filter(|node| self.ackable(setting, *node).is_some())
            .count();
        if setting.has_lease && open > 1 {
            return Some("1: two nodes may acknowledge at one time".into());
        }
        for node in self.nodes() {
            let host = &self.hosts[node];
            let Some(epoch) = host.leads_in() else { continue };
            let was_forgotten = self.ghost.forgotten.contains(&id(node));
            for ack in &self.ghost.acks {
                let is_here = host.log.get(ack.at) == Some(&ack.entry);
                let is_excused =
                    ack.is_forsaken || was_forgotten || self.ghost.is_open_to_loss || self.ghost.is_named(ack, epoch);
                if epoch.is_after(ack.epoch) && !is_here && !is_excused {
                    return Some(format!("2: node {node} leads in {epoch:?} and lacks {ack:?}"));
                }
            }
        }
        for (a, b) in self.pairs() {
            let mut both = self.hosts[a].log.iter().zip(&self.hosts[b].log);
            if both.any(|(a, b)| a.epoch == b.epoch && a.serial != b.serial) {
                return Some(format!("4: nodes {a} and {b} have other entries of one epoch"));
            }
        }
        None
    }
}
