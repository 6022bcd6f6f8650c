//! Promotions by hand: switch-overs, and by force, as the runbook says or without a look.

use reprise_base::{Role, Safety};
use reprise_env::Disk;
use reprise_log::LogOutline;
use reprise_router::{LeaseStatus, LossCause, NodePhase, PromoteOptions, PromotionResult, ReplicationError};
use std::sync::Arc;

use super::{
    Run,
    around::{NAMES, NODES},
    marks::How,
};
use crate::tree::LOG;

const ASKED: PromoteOptions = PromoteOptions {
    is_forced: false,
    accepts_loss: false,
};
const FORCED: PromoteOptions = PromoteOptions {
    is_forced: true,
    accepts_loss: false,
};
const ACCEPTING: PromoteOptions = PromoteOptions {
    is_forced: true,
    accepts_loss: true,
};

/// A node that could take over, as an operator who checks it sees it.
struct Candidate {
    node: usize,
    /// Epoch and end of the durable records there.
    at: (u32, u64),
    /// True or false by the word of itself and the others. None: it does not know, and no other one says that it is not in sync.
    in_sync: Option<bool>,
}

impl Run {
    fn promote(&self, node: usize, options: PromoteOptions) -> Result<PromotionResult, ReplicationError> {
        let process = self.nodes[node].process.as_ref();
        let process = process.ok_or_else(|| ReplicationError::Unavailable("it is gone".into()))?;
        process.service().promote(options)
    }

    /// A standby that is no primary, and has not taken a lease by itself.
    fn some_standby(&mut self) -> Option<usize> {
        let first = self.below(3) as usize;
        let mut nodes = (0..3).map(|turn| (first + turn) % 3);
        nodes.find(|node| {
            let Some(process) = self.nodes[*node].process.as_ref().filter(|_| self.is_up(*node)) else {
                return false;
            };
            let lease = process.service().info().lease;
            let holds = lease.is_some_and(|lease| matches!(lease.state, LeaseStatus::Held | LeaseStatus::Over));
            process.database.router().role() == Role::Standby && !holds
        })
    }

    pub(super) fn switch_over(&mut self) -> Result<(), String> {
        let Some(new) = self.some_standby() else { return Ok(()) };
        if self.is_behind_the_newest(new) {
            return Ok(());
        }
        self.calm_leases();
        let promoted = self.promote(new, ASKED);
        self.note(|| format!("switch-over to {}: {promoted:?}", NAMES[new]));
        if promoted.is_ok() && self.is_up(new) {
            self.stats.switch_overs += 1;
            return self.count_primary(new, How::Whole);
        }
        if !self.settings.is_leased && self.primary.is_none_or(|old| self.has_stepped_down(old)) {
            self.primary = None;
        }
        Ok(())
    }

    /// True if it follows another node than the newest primary: a lost one, or one that stepped down. That node handed over once, says so
    /// again, and knows of no later primary. Without a lease, only the operator who promoted the newest one by force knows it.
    fn is_behind_the_newest(&self, standby: usize) -> bool {
        let followed = self.nodes[standby].of;
        let is_later =
            |primary: usize| primary != followed && (!self.is_up(primary) || self.has_stepped_down(followed));
        !self.settings.is_leased && self.primary.is_some_and(is_later)
    }

    /// Keeps a primary from losing its lease while it hands over. In one thread, the thread that must hear of the loss would wait for the
    /// hand-over.
    fn calm_leases(&self) {
        if self.settings.is_leased {
            self.around.leases.set_all_away(false);
            for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
                process.life.pause_until(0);
                if !process.life.is_dead() {
                    self.around.leases.set_away(&process.life.key(), false);
                }
            }
        }
    }

    /// Returns whether the node is known to have handed over to another one.
    fn has_stepped_down(&self, node: usize) -> bool {
        let process = self.nodes[node].process.as_ref().filter(|_| self.is_up(node));
        process.is_some_and(|process| process.database.router().role() == Role::Standby)
    }

    pub(super) fn force(&mut self) -> Result<(), String> {
        if self.settings.is_leased {
            return self.force_leased();
        }
        if self.settings.is_blind && self.below(4) == 0 {
            return self.force_blindly();
        }
        if matches!(self.settings.safety, Safety::Quorum | Safety::TwoSafe) && self.below(2) == 0 {
            return self.force_by_promises();
        }
        match self.primary.filter(|primary| self.is_primary(*primary)) {
            Some(old) if self.is_counted() && self.below(2) == 0 => self.isolate(old),
            old => {
                self.end_primaries(old)?;
                self.force_furthest()
            }
        }
    }

    /// The old primary is stopped first: it may answer.
    fn end_primaries(&mut self, old: Option<usize>) -> Result<(), String> {
        for node in NODES {
            if Some(node) == old || self.is_primary(node) {
                self.around.kill(node, &mut self.random);
            }
        }
        self.look()
    }

    fn candidates(&self) -> Vec<Candidate> {
        let mut called_out = Vec::new();
        let mut found = Vec::new();
        for node in NODES {
            let Some(process) = self.nodes[node].process.as_ref().filter(|_| self.is_up(node)) else {
                continue;
            };
            if matches!(process.database.router().phase(), NodePhase::Failed { .. }) {
                continue;
            }
            let (info, own) = (process.service().info(), process.service().own());
            called_out.extend(info.out_of_sync.into_iter().map(|other| other.name));
            found.push(Candidate {
                node,
                at: (info.epoch.count(), info.durable.0),
                in_sync: own.and_then(|own| own.in_sync),
            });
        }
        for candidate in &mut found {
            if called_out.iter().any(|name| name == NAMES[candidate.node]) {
                candidate.in_sync = Some(false);
            }
        }
        found
    }

    /// Promotes by force, as the runbook says, the node with the most records, the lost primary excepted. A node of an older epoch may
    /// believe that it is in sync, and lack records that a later primary acknowledged.
    fn force_furthest(&mut self) -> Result<(), String> {
        let mut candidates = self.candidates();
        let needed = if self.primary.is_some() { 2 } else { 3 };
        let is_wiped = candidates.iter().any(|candidate| self.nodes[candidate.node].is_wiped);
        if candidates.len() < needed || is_wiped {
            return Ok(()); // the operator waits for more nodes
        }
        if self.settings.safety == Safety::TwoSafe {
            let newest = candidates.iter().map(|candidate| candidate.at.0).max();
            candidates.retain(|candidate| candidate.in_sync != Some(false) && Some(candidate.at.0) == newest);
        }
        let Some(best) = candidates.iter().max_by_key(|candidate| candidate.at) else {
            return Ok(());
        };
        let node = best.node;
        // One that does not know names what may be lost.
        let is_sure = self.settings.safety != Safety::TwoSafe || best.in_sync == Some(true);
        let how = is_sure.then_some(How::Forced);
        self.force_looked(node, how).map(drop)
    }

    /// Promotes by force. A standby asks the others itself. An operator who has checked all of them accepts the loss that it can't exclude.
    fn force_looked(&mut self, node: usize, how: Option<How>) -> Result<bool, String> {
        let promoted = self.promote(node, self.looked(node));
        match promoted {
            Err(ReplicationError::OutOfSync(lost)) if lost.cause != LossCause::NeverTold => {
                self.force_one(node, ACCEPTING, how)
            }
            promoted => self.count_forced(node, promoted, how),
        }
    }

    /// Returns the options of an operator who has checked all of them. At 2-safe a standby that was not heard lately does not know whether
    /// its primary continued without it. At 1-safe no standby knows. A node that stepped down does not know whether another one took over
    /// and wrote.
    fn looked(&self, node: usize) -> PromoteOptions {
        let process = self.nodes[node].process.as_ref();
        let own = process.and_then(|process| process.service().own());
        let in_sync = own.as_ref().and_then(|own| own.in_sync);
        let gave_place = own.is_some_and(|own| own.error.as_deref() == Some("it stepped down"));
        let is_accepted = match self.settings.safety {
            Safety::VerySafe => gave_place,
            Safety::Quorum => false,
            Safety::TwoSafe => in_sync.is_none(),
            _ => true,
        };
        if is_accepted { ACCEPTING } else { FORCED }
    }

    /// True if the node with the most records has all acknowledged ones.
    fn is_counted(&self) -> bool {
        matches!(self.settings.safety, Safety::Quorum | Safety::VerySafe)
    }

    /// Promotes one node by force. Returns whether it was promoted.
    fn force_one(&mut self, node: usize, options: PromoteOptions, how: Option<How>) -> Result<bool, String> {
        let promoted = self.promote(node, options);
        self.count_forced(node, promoted, how)
    }

    fn count_forced(
        &mut self,
        node: usize,
        promoted: Result<PromotionResult, ReplicationError>,
        how: Option<How>,
    ) -> Result<bool, String> {
        self.note(|| format!("{} is forced: {promoted:?}", NAMES[node]));
        let Ok(promoted) = promoted else { return Ok(false) };
        if !self.is_up(node) {
            self.primary = None;
            return Ok(false);
        }
        self.stats.forced += 1;
        let accepted = promoted.may_be_lost.filter(|_| how != Some(How::Forced));
        let accepted = accepted.map(|lost| How::Accepted {
            from: lost.from.0,
            epoch: lost.epoch.count(),
        });
        let known = accepted.or(how).filter(|_| !self.is_torn);
        let how = known.unwrap_or(How::Blindly);
        self.count_primary(node, how)?;
        Ok(true)
    }

    /// Isolates the old primary, which may continue without a standby. Other nodes that might follow it are stopped, and have no more
    /// records.
    fn isolate(&mut self, old: usize) -> Result<(), String> {
        let mut others = (0..3).filter(|node| *node != old);
        let (Some(mut new), Some(mut third)) = (others.next(), others.next()) else {
            return Ok(());
        };
        if self.below(2) == 0 {
            (new, third) = (third, new);
        }
        let is_wiped = self.nodes[new].is_wiped || self.nodes[third].is_wiped;
        if !self.is_up(new) || is_wiped {
            return Ok(());
        }
        self.around.kill(third, &mut self.random);
        self.look()?;
        let Some(disk) = &self.nodes[third].disk else {
            return Ok(());
        };
        let log: Arc<dyn Disk> = Arc::new(disk.folder(LOG));
        let outline = LogOutline::of(&log).map_err(|error| error.to_string())?;
        let third_at = outline.map_or((0, 0), |outline| (outline.end.epoch.count(), outline.end.lsn.0));
        // The node gets no more from the old one while it is compared, and promoted.
        self.around.net.part(NAMES[old], NAMES[new]);
        self.around.net.break_between(NAMES[old], NAMES[new]);
        let candidates = self.candidates();
        let own = candidates.iter().find(|candidate| candidate.node == new);
        if own.is_some_and(|own| own.at >= third_at) && self.force_beside(new)? {
            self.stats.isolated += 1;
        }
        Ok(())
    }

    /// Promotes by force beside an old primary that runs. A standby that comes back may find that primary, so a loss that was named may happen.
    fn force_beside(&mut self, node: usize) -> Result<bool, String> {
        match self.promote(node, self.looked(node)) {
            Err(ReplicationError::OutOfSync(lost)) if lost.cause != LossCause::NeverTold => {
                self.force_one(node, ACCEPTING, None)
            }
            promoted => self.count_forced(node, promoted, Some(How::Forced)),
        }
    }

    /// Any standby: the others tell it whether it has all that was answered. The old primary is stopped, or does not reach the new one.
    fn force_by_promises(&mut self) -> Result<(), String> {
        if !self.settings.keeps_old {
            self.end_primaries(self.primary)?;
        }
        let Some(node) = self.some_standby() else { return Ok(()) };
        if let Some(old) = self.primary.filter(|old| *old != node && self.settings.keeps_old) {
            self.around.net.part(NAMES[old], NAMES[node]);
            self.around.net.break_between(NAMES[old], NAMES[node]);
        }
        self.force_one(node, FORCED, Some(How::Forced)).map(drop)
    }

    /// Any standby, whatever the others have. The old primary is stopped.
    fn force_blindly(&mut self) -> Result<(), String> {
        self.end_primaries(self.primary)?;
        let Some(node) = self.some_standby() else { return Ok(()) };
        let accepts = self.below(2) == 0;
        self.is_torn = true;
        self.force_one(node, if accepts { ACCEPTING } else { FORCED }, None)
            .map(drop)
    }

    fn force_leased(&mut self) -> Result<(), String> {
        let Some(node) = self.some_standby() else { return Ok(()) };
        self.calm_leases();
        let accepts = self.below(4) == 0;
        if accepts && self.below(2) == 0 {
            self.cut_off_holder(node);
        }
        let options = if accepts { ACCEPTING } else { FORCED };
        self.force_one(node, options, Some(How::Whole)).map(drop)
    }

    /// Cuts off the old primary, which continues and hears nothing of a new one. Only its lease ends it.
    fn cut_off_holder(&mut self, new: usize) {
        let Some(old) = NODES.into_iter().find(|node| *node != new && self.is_primary(*node)) else {
            return;
        };
        self.note(|| format!("{} is cut off", NAMES[old]));
        self.stats.isolated += 1;
        let process = self.nodes[old].process.as_ref();
        let key = process.map(|process| process.life.key());
        key.iter().for_each(|key| self.around.leases.set_away(key, true));
        for other in NODES.into_iter().filter(|node| *node != old) {
            self.around.net.part(NAMES[old], NAMES[other]);
            self.around.net.break_between(NAMES[old], NAMES[other]);
        }
    }

    /// All are down: the standbys are started, and one of them takes over.
    pub(super) fn go_on_without_primary(&mut self) -> Result<(), String> {
        let old = self.primary;
        for node in NODES.into_iter().filter(|node| Some(*node) != old) {
            self.start(node)?;
        }
        for _ in 0..self.below(200) {
            self.turn();
        }
        self.look()?;
        match self.settings.is_leased {
            true => Ok(()), // a standby takes the lease
            false => self.force_furthest(),
        }
    }

    /// Makes some node the primary again, whatever is lost by it.
    pub(super) fn force_somebody(&mut self) -> Result<(), String> {
        if self.settings.is_leased {
            let Some(node) = self.some_standby() else { return Ok(()) };
            self.calm_leases();
            return self.force_one(node, ACCEPTING, Some(How::Whole)).map(drop);
        }
        let mut candidates = self.candidates();
        candidates.sort_by_key(|candidate| candidate.at);
        match candidates.last() {
            Some(best) => self.force_one(best.node, ACCEPTING, None).map(drop),
            None => Ok(()),
        }
    }
}
