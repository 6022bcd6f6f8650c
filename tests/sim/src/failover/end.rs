//! How a seed ends: all is whole again, and all nodes come to hold the same.

use reprise_env::{NetFaults, sim::FaultPlan};
use reprise_router::StandbyPhase;

use super::{
    Run,
    around::{NAMES, NODES},
    calls::What,
    history::{Place, lock},
};

/// Rounds in which it has to come to that, and turns of each.
const ROUNDS_MAX: u32 = 60;
const TURNS: u32 = 4_000;

impl Run {
    fn mend(&mut self) {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            self.around.net.heal(NAMES[one], NAMES[other]);
        }
        self.around.net.set_faults(NetFaults::default());
        self.around.leases.set_all_away(false);
        for process in self.nodes.iter().filter_map(|node| node.process.as_ref()) {
            process.life.pause_until(0);
            if !process.life.is_dead() {
                process.disk.set_faults(FaultPlan::default());
                self.around.leases.set_away(&process.life.key(), false);
            }
        }
    }

    /// One primary, with two standbys that are in sync and stream.
    pub(super) fn is_together(&self) -> Option<usize> {
        let mut primaries = (0..3).filter(|node| self.is_primary(*node));
        let (primary, None) = (primaries.next()?, primaries.next()) else {
            return None;
        };
        let process = self.nodes[primary].process.as_ref()?;
        let info = process.service().info();
        let alike = info
            .standbys
            .iter()
            .filter(|standby| standby.in_sync == Some(true) && standby.state == StandbyPhase::Streaming);
        (alike.count() == 2 && (0..3).all(|node| self.is_up(node))).then_some(primary)
    }

    pub(super) fn converge(&mut self) -> Result<(), String> {
        for round in 0..ROUNDS_MAX {
            self.mend();
            self.look()?;
            for node in NODES {
                self.start(node)?;
            }
            for _ in 0..TURNS {
                self.turn();
            }
            self.look()?;
            self.deploy_if_missing();
            if let Some(primary) = self.is_together() {
                self.note(|| format!("together after {round} rounds, around {}", NAMES[primary]));
                return self.look_at_all(primary);
            }
            let is_led = (0..3).any(|node| self.is_primary(node));
            // A lease has it decided by itself, for a while.
            if !is_led && round > 3 && self.around.leases.holder().is_none() {
                self.force_somebody()?;
                self.look()?;
            }
            self.end_old_primaries();
            self.restart_stuck()?;
        }
        Err(format!("the nodes do not come together: {}", self.told()))
    }

    /// Starts an old primary that still runs again as a standby.
    fn end_old_primaries(&mut self) {
        for node in NODES {
            let process = self.nodes[node].process.as_ref();
            let is_newest = process.is_some_and(|process| Some(process.life.number) == self.newest);
            if self.is_primary(node) && !is_newest && !self.settings.is_leased {
                self.around.kill(node, &mut self.random);
            }
        }
    }

    fn told(&self) -> String {
        let mut told = format!(
            "the operator takes {:?} for the primary",
            self.primary.map(|node| NAMES[node])
        );
        for (name, node) in NAMES.iter().zip(&self.nodes) {
            let Some(process) = &node.process else {
                told += &format!("; {name} is down");
                continue;
            };
            let (info, own) = (process.service().info(), process.service().own());
            let phase = process.database.router().phase();
            told += &format!(
                "; {name} is {:?} of epoch {}, {phase:?}, {own:?}",
                info.role, info.epoch
            );
        }
        told
    }

    /// Checks that a write is answered, and that all nodes show the same as the primary's log.
    fn look_at_all(&mut self, primary: usize) -> Result<(), String> {
        self.sessions.iter_mut().for_each(|session| session.primary = primary);
        let acknowledged = self.stats.acknowledged;
        for _ in 0..20 {
            self.write();
            for _ in 0..TURNS {
                self.turn();
            }
            self.look()?;
            if self.stats.acknowledged > acknowledged {
                break;
            }
        }
        if self.stats.acknowledged == acknowledged {
            return Err(format!("no write is answered: {}", self.told()));
        }
        let head = self.common_head(primary)?;
        for _ in 0..TURNS {
            self.turn(); // until all show it
        }
        let expected = lock(&self.histories).tables(head, self.settings.partitions)?;
        for node in NODES {
            let seen = self.stats.reads;
            self.sessions[0].seen = None;
            let what = What::Read {
                session: 0,
                since: None,
            };
            self.submit(node, ("everywhere", None, &[]), (what, 0));
            for _ in 0..TURNS {
                self.turn();
            }
            self.look()?;
            let shown = match self.sessions[0].seen {
                _ if self.stats.reads == seen => {
                    return Err(format!("{} answers no read: {}", NAMES[node], self.told()));
                }
                shown => lock(&self.histories).tables(shown, self.settings.partitions)?,
            };
            if (&shown.items, &shown.marks) != (&expected.items, &expected.marks) {
                return Err(format!("{} does not show all of it", NAMES[node]));
            }
        }
        Ok(())
    }

    /// Behind the last record of all logs. Marks of comparisons may be on their way.
    fn common_head(&mut self, primary: usize) -> Result<Option<Place>, String> {
        let mut heads = Vec::new();
        for _ in 0..TURNS {
            for _ in 0..10 {
                self.turn();
            }
            let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
            heads = processes.map(|process| process.tape.path().head()).collect();
            if heads.len() == 3 && heads.iter().all(|head| *head == heads[primary]) {
                return Ok(heads[primary]);
            }
        }
        Err(format!("the logs end at {heads:?}, around {}", NAMES[primary]))
    }

    /// Ends all processes.
    pub(super) fn close(&mut self) {
        for node in &mut self.nodes {
            if let Some(process) = node.process.take() {
                process.life.pause_until(0);
                process.disk.set_faults(FaultPlan::default());
                let _ = process.database.close(); // the check has read its contents
            }
        }
        lock(&self.around.arrived).clear();
        self.around.stepper.kill();
        self.around.stepper.forget();
        self.stats.lost += self.marks.lost() as u64;
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // A panic on its way: what would wait for others panics again.
        for node in &mut self.nodes {
            std::mem::forget(node.process.take());
        }
    }
}
