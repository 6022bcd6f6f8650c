//! The operator, who starts processes and restarts them, each with the role that its node had last.

use std::sync::Arc;

use reprise_base::Role;
use reprise_database::{CutBack, CutInfo, LeaseError, NODE_NAME, VIEW_NAME};
use reprise_env::{
    Disk, SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_router::{NodePhase, StandbyPhase};

use super::{
    Run,
    around::{Life, NAMES, NODES},
    history::Tape,
    marks::How,
    node::{Closed, Own, Process, follow, identify, lease, lies, open},
};
use crate::{
    module::{BYTES, NAME},
    tree::{LOG, ROOT},
};

/// Time after which a standby that does not stream is started again.
const STUCK_US: i64 = 15_000_000;
/// One of this many starts of a standby copies its disk, and one puts the copy in its place.
const COPY_RARENESS: u64 = 8;
/// Started again so often, it begins anew in an empty directory.
const RESTARTS_MAX: u32 = 4;
/// A primary turns a node away with these words if another directory counts under its name.
const COUNTS: &str = "counts under this name";

impl Run {
    /// A primary with the module, and two standbys in sync with it.
    pub(super) fn begin(&mut self) -> Result<(), String> {
        let disk = self.nodes[0].disk.take().ok_or("a node begins with a disk")?;
        let (life, own) = self.live(0);
        let database = open((&self.around, &life), &disk, (&self.settings, &own), false)?;
        if self.settings.is_leased {
            let kept = database.keep_lease(lease(&self.around, &life));
            kept.map_err(|error| error.to_string())?;
        }
        database.recover().map_err(|error| error.to_string())?;
        let tape = Tape::of(&self.histories, &disk, true)?;
        database.add_group_sink(tape.clone());
        self.settle_in(0, (life, own), database.clone(), (disk, tape));
        self.nodes[0].is_wiped = false;
        self.count_primary(0, How::Whole)?;
        for node in [1, 2] {
            let disk = self.nodes[node].disk.take().ok_or("a node begins with a disk")?;
            self.open_standby(node, disk, 0)?;
        }
        for _ in 0..200_000 {
            if self.nodes[1..].iter().all(|node| !node.is_wiped) {
                let deployed = database.router().deploy(NAME, BYTES[0]);
                return deployed.map(drop).map_err(|error| format!("deploy: {error}"));
            }
            self.turn();
            self.note_in_sync();
        }
        Err("the first standbys do not come to be in sync".into())
    }

    fn live(&mut self, node: usize) -> (Arc<Life>, Own) {
        self.lives += 1;
        self.stats.lives += 1;
        (Life::new(self.lives, node), self.own())
    }

    fn settle_in(
        &mut self,
        node: usize,
        (life, own): (Arc<Life>, Own),
        database: Arc<reprise_database::Database>,
        (disk, tape): (SimDisk, Arc<Tape>),
    ) {
        self.around.set_peer(&life, &database, &disk);
        self.note(|| format!("{} is opened as {:?}, {own:?}", NAMES[node], database.router().role()));
        self.nodes[node].process = Some(Process {
            life,
            database,
            disk,
            tape,
            is_counted_primary: false,
            opened_us: self.now_us(),
        });
    }

    pub(super) fn now_us(&self) -> i64 {
        (self.around.now_ns() / 1_000) as i64
    }

    /// Takes what processes left that are over.
    pub(super) fn bury(&mut self) {
        for node in NODES {
            let is_dead = |process: &mut Process| process.life.is_dead();
            let Some(process) = self.nodes[node].process.take_if(|process| is_dead(process)) else {
                continue;
            };
            self.note(|| format!("{} is dead", NAMES[node]));
            self.stats.deaths += 1;
            if Some(process.life.number) == self.newest {
                self.marks.grow(process.tape.path());
            }
            process.disk.set_faults(FaultPlan::default());
            let _ = process.database.close(); // another world now
            drop(process);
            self.nodes[node].disk = self.around.take_image(node);
        }
        self.note_in_sync();
    }

    fn note_in_sync(&mut self) {
        for node in &mut self.nodes {
            let Some(process) = &node.process else { continue };
            let own = process.service().own();
            if own.is_some_and(|own| own.in_sync == Some(true) && own.state == StandbyPhase::Streaming) {
                (node.is_wiped, node.restarts) = (false, 0);
            }
        }
    }

    pub(super) fn is_up(&self, node: usize) -> bool {
        let process = self.nodes[node].process.as_ref();
        process.is_some_and(|process| !process.life.is_dead())
    }

    /// Returns whether the node runs, and takes writes.
    pub(super) fn is_primary(&self, node: usize) -> bool {
        let process = self.nodes[node].process.as_ref();
        self.is_up(node) && process.is_some_and(|process| process.database.router().role() == Role::Primary)
    }

    pub(super) fn start_any(&mut self) -> Result<(), String> {
        let first = self.below(3) as usize;
        let mut down = (0..3)
            .map(|turn| (first + turn) % 3)
            .filter(|node| self.nodes[*node].disk.is_some());
        match down.next() {
            Some(node) => self.start(node),
            None => Ok(()),
        }
    }

    /// Starts the process of a node that has none.
    pub(super) fn start(&mut self, node: usize) -> Result<(), String> {
        let Some(disk) = self.nodes[node].disk.take() else {
            return Ok(());
        };
        let disk = self.copy_or_restore(node, disk)?;
        self.nodes[node].restarts += 1;
        if self.settings.is_leased {
            return self.start_leased(node, disk);
        }
        match self.primary {
            Some(primary) if primary == node => self.open_primary(node, disk),
            Some(primary) => self.open_standby(node, disk, primary),
            None => self.open_standby(node, disk, (node + 1) % 3),
        }
    }

    /// Copies the disk of a standby now and then, or puts an earlier copy in its place. A backup does not contain the document of the node, so the
    /// copy is another directory.
    fn copy_or_restore(&mut self, node: usize, disk: SimDisk) -> Result<SimDisk, String> {
        let is_standby = self.primary != Some(node) && disk.folder(ROOT).bytes(VIEW_NAME).is_some();
        match self.copying.below(COPY_RARENESS) {
            _ if !is_standby => {}
            0 => self.nodes[node].copy = Some(disk.crash(&CrashPolicy::KeepAll)),
            1 => {
                if let Some(copy) = self.nodes[node].copy.take() {
                    let root = copy.folder(ROOT);
                    if root.bytes(NODE_NAME).is_some() {
                        root.remove(NODE_NAME).map_err(|error| error.to_string())?;
                    }
                    self.note(|| format!("{} is restored from a copy", NAMES[node]));
                    self.stats.restored += 1;
                    identify(&copy, NODES.len() as u64 + self.stats.restored)?;
                    self.nodes[node].is_wiped = true;
                    self.forget_former(node);
                    return Ok(copy);
                }
            }
            _ => {}
        }
        Ok(disk)
    }

    /// Has the primary forget the directory that had the name of this node. At a level that counts standbys, it turns another directory away before.
    fn forget_former(&self, node: usize) {
        let primary = self.primary.filter(|primary| self.is_primary(*primary));
        let process = primary.and_then(|primary| self.nodes[primary].process.as_ref());
        if let Some(process) = process.filter(|_| self.settings.safety.counts_standbys()) {
            let forgotten = process.service().forget(NAMES[node]);
            self.note(|| format!("the former {} is to be forgotten: {forgotten:?}", NAMES[node]));
        }
    }

    /// Does what the refusal of a primary says: the directory that counts is gone.
    fn heed_refusal(&self, node: usize, reason: &str) {
        if reason.contains(COUNTS) {
            self.forget_former(node);
        }
    }

    fn start_leased(&mut self, node: usize, disk: SimDisk) -> Result<(), String> {
        self.around.leases.set_all_away(false);
        let holder = self.around.leases.holder();
        let holder = holder.and_then(|holder| NAMES.iter().position(|name| *name == holder.name));
        match holder.filter(|holder| *holder != node) {
            Some(holder) => self.open_standby(node, disk, holder),
            None if self.below(2) == 0 && !disk.folder(LOG).list().unwrap_or_default().is_empty() => {
                self.open_primary(node, disk)
            }
            None => {
                let of = self.primary.filter(|primary| *primary != node);
                self.open_standby(node, disk, of.unwrap_or((node + 1) % 3))
            }
        }
    }

    /// Opens a node as the primary, which it was last, or may be by its lease.
    fn open_primary(&mut self, node: usize, disk: SimDisk) -> Result<(), String> {
        let (life, own) = self.live(node);
        let tape = Tape::of(&self.histories, &disk, false)?;
        let opened = open((&self.around, &life), &disk, (&self.settings, &own), false);
        let database = match opened {
            Ok(database) => database,
            Err(error) if error.contains("stepped down") => {
                self.note(|| format!("{} is not opened: {error}", NAMES[node]));
                self.primary = None;
                self.nodes[node].disk = Some(disk);
                return Ok(());
            }
            Err(error) => return Err(format!("{} as a primary: {error}", NAMES[node])),
        };
        database.add_group_sink(tape.clone());
        if self.settings.is_leased {
            let kept = database.keep_lease(lease(&self.around, &life));
            if let Err(error) = kept {
                self.note(|| format!("{} is not opened: {error}", NAMES[node]));
                self.stats.lease_refused += 1;
                database.close().map_err(|error| error.to_string())?;
                drop(database);
                self.nodes[node].disk = Some(disk);
                return match error {
                    LeaseError::Held(_) | LeaseError::Behind { .. } | LeaseError::Older(_) | LeaseError::NoRecord => {
                        Ok(())
                    }
                    error => Err(format!("{} takes no lease: {error}", NAMES[node])),
                };
            }
        }
        let recovered = database.recover();
        recovered.map_err(|error| format!("{} as a primary: {error}", NAMES[node]))?;
        self.stats.primary_restarts += 1;
        self.settle_in(node, (life, own), database, (disk, tape));
        self.count_primary(node, How::Whole)
    }

    pub(super) fn open_standby(&mut self, node: usize, disk: SimDisk, of: usize) -> Result<(), String> {
        self.nodes[node].of = of;
        let around = self.around.clone();
        let closed = Closed {
            around: &around,
            node,
            of,
            disk: &disk,
            partitions: self.settings.partitions,
        };
        let before = Tape::of(&self.histories, &disk, false)?.path();
        let cut = closed.cut_back()?;
        self.note(|| format!("{} is to follow {}: {cut:?}", NAMES[node], NAMES[of]));
        match &cut {
            Some(CutBack::Cut(cut)) => {
                self.stats.cuts += 1;
                self.judge_cut(node, &before, cut)?;
            }
            Some(CutBack::Anew(cut)) => {
                self.stats.begun_anew += 1;
                self.judge_cut(node, &before, cut)?;
                closed.clear()?;
            }
            Some(CutBack::Nothing) | None => {}
        }
        if self.nodes[node].restarts > RESTARTS_MAX && self.is_primary(of) {
            self.stats.begun_anew += 1;
            closed.clear()?;
        }
        if disk.folder(LOG).list().unwrap_or_default().is_empty() {
            self.nodes[node].is_wiped = true;
            let come = closed.bootstrap(&mut || {
                if self.below(16) == 0 {
                    self.write();
                }
            });
            match come? {
                Ok(live) => self.stats.live_records += live,
                Err(reason) => {
                    self.note(|| format!("{} gets no first files: {reason}", NAMES[node]));
                    self.heed_refusal(node, &reason);
                    self.nodes[node].disk = Some(disk);
                    return Ok(());
                }
            }
        }
        let (life, own) = self.live(node);
        let tape = Tape::of(&self.histories, &disk, false)?;
        let name = NAMES[node];
        let wrong = |error: &dyn std::fmt::Display| format!("{name} as a standby: {error}");
        let opened = open((&around, &life), &disk, (&self.settings, &own), true);
        let database = opened.map_err(|error| wrong(&error))?;
        database.add_group_sink(tape.clone());
        if self.settings.is_leased {
            let kept = database.keep_lease(lease(&around, &life));
            kept.map_err(|error| wrong(&error))?;
        }
        follow((&around, &life), &database, of).map_err(|error| wrong(&error))?;
        database.recover().map_err(|error| wrong(&error))?;
        disk.set_faults(FaultPlan {
            lies: lies(self.options.mutant),
            ..FaultPlan::default()
        });
        self.settle_in(node, (life, own), database, (disk, tape));
        Ok(())
    }

    /// Checks that a cut is reported as acknowledged if it lost records that this primary alone had acknowledged.
    fn judge_cut(&self, node: usize, before: &super::history::Path, cut: &CutInfo) -> Result<(), String> {
        let lost = self.marks.lost_in(node, before, cut.from).next();
        match lost.filter(|_| !cut.acknowledged) {
            Some(lost) => Err(format!(
                "{} says of {cut:?} that nothing of it was acknowledged: {lost:?}",
                NAMES[node]
            )),
            None => Ok(()),
        }
    }

    /// Deploys the module if the primary lost it. The records that were given up by force may have held it.
    pub(super) fn deploy_if_missing(&mut self) {
        let process = self.primary.and_then(|node| self.nodes[node].process.as_ref());
        let Some(process) = process.filter(|process| !process.life.is_dead()) else {
            return;
        };
        let database = process.database.clone();
        let router = database.router();
        if router.role() != Role::Primary || router.deployed().current.contains_key(NAME) {
            return;
        }
        let deployed = router.deploy(NAME, BYTES[0]).map(drop);
        self.note(|| format!("the module is deployed again: {deployed:?}"));
        self.stats.deployed_again += u64::from(deployed.is_ok());
    }

    /// Starts a standby again that makes no progress.
    pub(super) fn restart_stuck(&mut self) -> Result<(), String> {
        for node in NODES {
            if !self.is_up(node) || self.is_primary(node) {
                continue;
            }
            let Some(process) = &self.nodes[node].process else {
                continue;
            };
            let own = process.service().own();
            let streams = own
                .as_ref()
                .is_some_and(|own| own.state == StandbyPhase::Streaming && own.error.is_none());
            let has_failed = matches!(process.database.router().phase(), NodePhase::Failed { .. });
            let is_late = self.now_us() - process.opened_us > STUCK_US;
            if has_failed || (is_late && !streams) {
                let error = own.and_then(|own| own.error);
                // Bound to an epoch of another one, it follows the primary's next epoch.
                let is_bound = error.as_ref().is_some_and(|error| error.contains("promised epoch"));
                let again = self.primary.filter(|_| is_bound).unwrap_or(node);
                self.note(|| format!("{} is started again: {}: {error:?}", NAMES[again], NAMES[node]));
                self.heed_refusal(node, error.as_deref().unwrap_or_default());
                self.stats.stuck += 1;
                self.around.kill(again, &mut self.random);
                self.bury();
                self.start(again)?;
            }
        }
        Ok(())
    }
}
