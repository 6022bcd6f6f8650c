//! The steps that are possible.

use std::rc::Rc;

use reprise_base::{Epoch, Lsn};
use reprise_failover::{HandOver, Mode, NodeEvent, NodeStanding, OpenAs, PeerReport, ProgressReport, PromotionRequest};

use crate::mutant::Mutant;
use crate::world::{Bounds, Entry, NODES_MAX, Setting, World, id};

/// A step of one node, of two, or of their surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    Save(usize),
    Append(usize),
    Flush(usize),
    /// A standby connects to a primary, and binds itself to it.
    Follow(usize, usize),
    /// A standby cuts off what its primary does not have.
    Align(usize, usize),
    Replicate(usize, usize),
    /// A standby gets the sync set.
    Tell(usize, usize),
    /// A primary hears how far a standby is.
    Hear(usize, usize),
    Gone(usize, usize),
    Came(usize, usize),
    PeerSeen(usize, usize),
    Promote {
        node: usize,
        accepts_loss: bool,
    },
    Ask(usize, usize),
    AskingOver(usize),
    GiveUp(usize),
    StepDown(usize, usize),
    StayOn(usize),
    /// The successor takes the place that it was given.
    Succeed(usize, usize),
    Forget(usize, usize),
    Cut(usize, usize),
    Heal(usize, usize),
    Crash {
        node: usize,
        is_saved: bool,
        keeps_log: bool,
    },
    Start(usize, OpenAs),
    LeaseOver(usize),
    Expire,
    Look(usize),
    /// The store does what a node asks of it, and the answer comes, or does not.
    Grant {
        node: usize,
        is_answered: bool,
    },
    TakeOver(usize),
}

/// One step, what it leads to, and a broken property that only the step shows.
pub struct Next {
    pub act: Act,
    pub world: World,
    pub fault: Option<String>,
}

pub(crate) struct Steps<'a> {
    pub(crate) from: &'a World,
    pub(crate) setting: Setting,
    bounds: Bounds,
    found: Vec<Next>,
}

impl World {
    /// Returns every step that is possible here and changes something.
    pub fn next(&self, setting: Setting, bounds: Bounds) -> Vec<Next> {
        let mut steps = Steps {
            from: self,
            setting,
            bounds,
            found: Vec::new(),
        };
        for node in self.nodes() {
            match self.hosts[node].node {
                Some(_) => steps.of_node(node),
                None => steps.of_dead(node),
            }
        }
        for (a, b) in self.pairs() {
            steps.of_wire(a, b);
        }
        if setting.has_lease {
            steps.of_store();
        }
        steps.found
    }
}

impl Steps<'_> {
    /// Adds a step if it is possible: once with all disk work done at once, and once with slow disks, which is a fault.
    pub(crate) fn add(&mut self, act: Act, change: impl FnOnce(&mut World) -> bool) {
        let mut world = self.from.clone();
        if change(&mut world) && world != *self.from {
            self.add_world(act, world, None);
        }
    }

    fn add_world(&mut self, act: Act, world: World, fault: Option<String>) {
        let (from, setting) = (self.from, self.setting);
        let is_touched = |world: &World, node: usize| !Rc::ptr_eq(&from.hosts[node], &world.hosts[node]);
        let mut done = world.clone();
        let touched: Vec<_> = world.nodes().filter(|node| is_touched(&world, *node)).collect();
        let mut was_slow = false;
        for node in touched {
            was_slow |= done.finish_disk(node);
        }
        let mut push = |mut world: World| {
            for node in world.nodes() {
                if world.hosts[node].leads_in() != from.hosts[node].leads_in() {
                    world.forsake(setting, node);
                }
            }
            for node in world.nodes() {
                world.acknowledge(setting, node);
            }
            let fault = fault.clone();
            self.found.push(Next { act, world, fault });
        };
        push(done);
        if was_slow && from.faults < self.bounds.faults {
            let mut slow = world;
            slow.faults += 1;
            push(slow);
        }
    }

    pub(crate) fn has_fault(&self) -> bool {
        self.from.faults < self.bounds.faults
    }

    fn has_act(&self) -> bool {
        self.from.acts < self.bounds.acts
    }

    pub(crate) fn has_epoch(&self) -> bool {
        let highest = self
            .from
            .hosts
            .iter()
            .flat_map(|host| &host.disk)
            .map(|document| document.claimed.count());
        highest.max().unwrap_or(0) < self.bounds.epochs
    }

    fn of_node(&mut self, node: usize) {
        let from = self.from;
        let host = &from.hosts[node];
        let Some(running) = &host.node else { return };
        if host.disk.len() > 1 {
            self.add(Act::Save(node), |world| {
                world.save(node);
                true
            });
        }
        if host.durable < host.log.len() {
            self.add(Act::Flush(node), |world| {
                let host = world.host_mut(node);
                host.durable = host.log.len();
                true
            });
        }
        if let Some(epoch) = running.writes_in()
            && from.written < self.bounds.entries
        {
            self.add(Act::Append(node), |world| {
                let serial = world.written;
                world.written += 1;
                world.host_mut(node).log.push(Entry { epoch, serial });
                true
            });
        }
        self.of_promotion(node);
        for other in from
            .nodes()
            .filter(|other| *other != node && from.hosts[*other].node.is_some())
        {
            self.of_pair(node, other);
        }
        if self.has_fault() {
            self.of_crash(node);
        }
    }

    fn of_promotion(&mut self, node: usize) {
        let from = self.from;
        let host = &from.hosts[node];
        let Some(running) = &host.node else { return };
        let request = |accepts_loss, given| PromotionRequest {
            accepts_loss,
            is_heard: host.is_heard,
            given,
            end: host.end(),
        };
        match running.mode() {
            Mode::Following | Mode::Retired if self.has_epoch() => {
                if self.has_act() {
                    for accepts_loss in [false, true] {
                        self.add(Act::Promote { node, accepts_loss }, |world| {
                            world.acts += 1;
                            world.feed(node, NodeEvent::Promote(request(accepts_loss, None)))
                        });
                    }
                }
                let may_take = from.store.holder.is_none()
                    && from
                        .store
                        .record
                        .as_ref()
                        .is_some_and(|record| record.in_sync.contains(id(node)));
                if self.setting.has_lease && may_take && running.mode() == &Mode::Following {
                    self.add(Act::TakeOver(node), |world| {
                        world.feed(node, NodeEvent::Promote(request(false, None)))
                    });
                }
            }
            Mode::Promoting(_) => {
                let setting = self.setting;
                let is_short = setting.is(Mutant::AsksShortly);
                if running.asks().is_some() {
                    // A node that does not answer is waited for as long as a primary waits for a silent standby.
                    self.add(Act::AskingOver(node), |world| {
                        let silent = from.nodes().filter(|other| !from.is_echoed(*other) && !is_short);
                        silent.for_each(|other| world.silence(other));
                        if setting.is(Mutant::SilencePromises) {
                            world.promise_for_silent(node);
                        }
                        world.feed(node, NodeEvent::AskingOver)
                    });
                }
                if self.has_fault() {
                    self.add(Act::GiveUp(node), |world| {
                        world.faults += 1;
                        world.feed(node, NodeEvent::AbandonPromotion)
                    });
                }
            }
            _ => {}
        }
        if self.setting.has_lease && running.holds_lease() && self.has_fault() {
            self.add(Act::LeaseOver(node), |world| {
                world.faults += 1;
                world.feed(node, NodeEvent::LeaseOver)
            });
        }
        if running.writes_in().is_none() && running.leads() {
            self.add(Act::StayOn(node), |world| world.feed(node, NodeEvent::StayOn));
        }
    }

    /// Steps between two nodes that run: `node` acts.
    fn of_pair(&mut self, node: usize, other: usize) {
        let from = self.from;
        let (own, theirs) = (&from.hosts[node], &from.hosts[other]);
        let (Some(running), Some(peer)) = (&own.node, &theirs.node) else {
            return;
        };
        let (led, setting) = (own.leads_in(), self.setting);
        let is_last = matches!(&running.document().standing, NodeStanding::Primary(reign) if {
            let set = reign.change.as_ref().map_or(&reign.current, |change| &change.to);
            set.without(id(other)).is_empty()
        });
        // A primary that does not reach a standby, or is not followed by it.
        if led.is_some() && (!from.reach(node, other) || peer.follows() != led) {
            // The standby's own time is over first.
            self.add(Act::Gone(node, other), |world| {
                if !setting.is(Mutant::LeavesEarly) {
                    world.silence(other);
                }
                world.feed(node, NodeEvent::Gone(id(other)))
            });
            let end = if setting.is(Mutant::ForgetsEarly) {
                Lsn(0)
            } else {
                own.end()
            };
            if self.has_act() {
                self.add(Act::Forget(node, other), |world| {
                    world.acts += 1;
                    world.silence(other);
                    world.ghost.note_forgotten(setting, id(other), is_last);
                    world.feed(node, NodeEvent::Forget { node: id(other), end })
                });
            }
        }
        if !from.reach(node, other) {
            return;
        }
        self.of_standby(node, other);
        if let Some((epoch, targets)) = running.asks()
            && targets.contains(id(other))
        {
            self.ask(node, other, epoch);
        }
        self.of_peer(node, other);
        if let Some(given) = running.handed_over(id(other)) {
            self.succeed(node, other, given);
        }
    }

    /// A primary hears what another node is bound to, or leads.
    fn of_peer(&mut self, node: usize, other: usize) {
        let (own, theirs) = (&self.from.hosts[node], &self.from.hosts[other]);
        let (Some(running), Some(peer)) = (&own.node, &theirs.node) else {
            return;
        };
        if let NodeStanding::Primary(reign) = &running.document().standing {
            let bound = peer.document().bound;
            let of = match &peer.document().standing {
                NodeStanding::Follower(follower) | NodeStanding::Claiming { follower, .. } => follower.of,
                NodeStanding::Primary(reign) | NodeStanding::Retired { reign, .. } => reign.epoch,
            };
            let end = own.end();
            let later = theirs.leads_in().filter(|epoch| epoch.is_after(reign.epoch));
            let may_be_bound = bound.is_after(reign.epoch) || (self.setting.has_lease && !bound.allows(reign.epoch));
            let (epoch, leads) = match later {
                Some(epoch) => (epoch, true),
                None if may_be_bound && self.has_epoch() => (bound, of.is_after(reign.epoch)),
                None => return,
            };
            let peer = PeerReport {
                node: id(other),
                epoch,
                leads,
            };
            self.add(Act::PeerSeen(node, other), |world| {
                world.feed(node, NodeEvent::PeerSeen { peer, end })
            });
        }
    }

    fn succeed(&mut self, node: usize, successor: usize, given: HandOver) {
        let host = &self.from.hosts[successor];
        let request = PromotionRequest {
            accepts_loss: false,
            is_heard: host.is_heard,
            given: Some(given),
            end: host.end(),
        };
        self.add(Act::Succeed(successor, node), |world| {
            world.feed(successor, NodeEvent::Promote(request))
        });
    }

    /// Steps between a primary and a standby that reach each other.
    fn of_standby(&mut self, primary: usize, standby: usize) {
        let from = self.from;
        let (own, theirs) = (&from.hosts[primary], &from.hosts[standby]);
        let (Some(running), Some(peer)) = (&own.node, &theirs.node) else {
            return;
        };
        let Some(epoch) = own.leads_in() else { return };
        let setting = self.setting;
        let is_deaf = setting.is(Mutant::ServesFormerPrimary) && theirs.aligned == Some(epoch);
        if peer.is_bound_to() != Some(epoch) {
            self.follow(primary, standby);
            if !is_deaf {
                return;
            }
        } else if peer.follows() != Some(epoch) || theirs.aligned != Some(epoch) {
            self.align(primary, standby);
            return;
        }
        if theirs.log.len() < own.log.len() && own.fork(theirs) == theirs.log.len() {
            self.add(Act::Replicate(primary, standby), |world| {
                let (own, at) = (&world.hosts[primary].log, world.hosts[standby].log.len());
                let skipped = own.get(at + 1).filter(|_| setting.is(Mutant::SkipsEntry));
                let next = *skipped.unwrap_or(&own[at]);
                world.host_mut(standby).log.push(next);
                true
            });
        }
        if let Some(mut status) = running.sent_status() {
            if setting.is(Mutant::HidesBeginning) {
                status.begins = Lsn(0);
            }
            self.add(Act::Tell(primary, standby), |world| {
                world.feed(standby, NodeEvent::StatusCame(status))
            });
        }
        self.hear(primary, standby, is_deaf.then_some(epoch));
        let end = Lsn(own.log.len() as u64);
        self.add(Act::Came(primary, standby), |world| {
            world.feed(primary, NodeEvent::Came { node: id(standby), end })
        });
        if self.has_act() && running.writes_in().is_some() && self.has_epoch() {
            let end = if self.setting.is(Mutant::HandsOverLess) {
                Lsn(theirs.durable as u64)
            } else {
                end
            };
            self.add(Act::StepDown(primary, standby), |world| {
                world.acts += 1;
                world.feed(primary, NodeEvent::StepDown { to: id(standby), end })
            });
        }
    }

    /// A primary hears how far a standby is. Some: the standby reports to the primary of this epoch, which it may not follow.
    fn hear(&mut self, primary: usize, standby: usize, former: Option<Epoch>) {
        let (from, setting) = (self.from, self.setting);
        let theirs = &from.hosts[standby];
        let (Some(running), Some(peer)) = (&from.hosts[primary].node, &theirs.node) else {
            return;
        };
        let persisted = Lsn(theirs.durable as u64);
        let former = former.map(|of| ProgressReport {
            node: id(standby),
            of,
            persisted,
            noted: 0,
        });
        if let Some(mut progress) = peer.progress(persisted).or(former) {
            self.forge(&mut progress, standby);
            let is_echoed = running.echoes(id(standby)) || self.setting.is(Mutant::EchoesAll);
            self.add(Act::Hear(primary, standby), |world| {
                world.host_mut(standby).is_heard |= is_echoed;
                let report = (progress.of, progress.persisted.0 as usize);
                let reported = &mut world.host_mut(primary).reported;
                match setting.is(Mutant::CountsTwice) {
                    true => *reported = [report; NODES_MAX],
                    false => reported[standby] = report,
                }
                world.feed(primary, NodeEvent::Progress(progress))
            });
        }
    }

    /// A node asks another one, which answers once its promise is durable.
    fn ask(&mut self, asker: usize, node: usize, epoch: Epoch) {
        let mut world = self.from.clone();
        world.feed(node, NodeEvent::Asked(epoch));
        let mut answered = world.clone();
        let was_slow = answered.finish_disk(node);
        if was_slow && self.has_fault() && self.setting.is(Mutant::PromisesUnsaved) {
            let mut early = world.clone();
            early.faults += 1;
            early.answer_unsaved(node, asker, epoch);
            self.add_slow(Act::Ask(asker, node), early);
        }
        if answered.answer(self.setting, (node, asker), epoch) {
            self.add_world(Act::Ask(asker, node), answered, None);
        }
        if was_slow && self.has_fault() {
            world.faults += 1;
            self.add_slow(Act::Ask(asker, node), world);
        }
    }

    /// Adds a step after which a disk has something to do yet.
    fn add_slow(&mut self, act: Act, world: World) {
        let fault = None;
        self.found.push(Next { act, world, fault });
    }

    /// The standby binds itself; with a quick disk it is then cut back at once.
    fn follow(&mut self, primary: usize, standby: usize) {
        let mut world = self.from.clone();
        let Some(epoch) = world.hosts[primary].leads_in() else {
            return;
        };
        world.host_mut(standby).is_heard = false;
        if !world.feed(standby, NodeEvent::Follow { epoch }) {
            return;
        }
        let mut bound = world.clone();
        bound.finish_disk(standby);
        let fault = bound.align(self.setting, primary, standby);
        self.add_world(Act::Follow(standby, primary), bound, fault);
        if self.has_fault() {
            world.faults += 1;
            self.found.push(Next {
                act: Act::Follow(standby, primary),
                world,
                fault: None,
            });
        }
    }

    fn align(&mut self, primary: usize, standby: usize) {
        let mut world = self.from.clone();
        let fault = world.align(self.setting, primary, standby);
        self.add_world(Act::Align(standby, primary), world, fault);
    }
}
