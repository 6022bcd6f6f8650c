//! Chains of deployments that change tables, by seeds. Rows are written in between, and checkpoints are taken. The process is killed, also
//! in the middle of a deployment, and opened again on another number of sites. A model beside it knows rows by the names of their columns,
//! and nothing of their storage.

mod change;
mod lineage;
mod model;
mod module;
mod world;

use std::fmt;

use reprise_env::{SimDisk, sim::FaultRandom};
use reprise_router::{Consent, DeployError, InstallError, PlanSummary};

use change::Declared;
use model::Model;
use module::Migration;
use world::{Life, crash_policy};

/// Counts of the chains' deployments.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChainStats {
    pub chains: u64,
    pub deployed: u64,
    pub refused: u64,
    pub rolled_back: u64,
    pub migrated: u64,
    pub migrations_failed: u64,
    pub removed: u64,
    pub dropped: u64,
    pub rows: u64,
    pub checkpoints: u64,
    pub kills: u64,
    pub kills_in_deployments: u64,
    pub compared: u64,
}

impl ChainStats {
    pub fn add(&mut self, other: &Self) {
        self.chains += other.chains;
        self.deployed += other.deployed;
        self.refused += other.refused;
        self.rolled_back += other.rolled_back;
        self.migrated += other.migrated;
        self.migrations_failed += other.migrations_failed;
        self.removed += other.removed;
        self.dropped += other.dropped;
        self.rows += other.rows;
        self.checkpoints += other.checkpoints;
        self.kills += other.kills;
        self.kills_in_deployments += other.kills_in_deployments;
        self.compared += other.compared;
    }

    /// Returns the events that the chains exist for and that never occurred.
    pub fn never(&self) -> Vec<&'static str> {
        let counts = [
            ("deployed", self.deployed),
            ("refused", self.refused),
            ("rolled back", self.rolled_back),
            ("migrated", self.migrated),
            ("migrations failed", self.migrations_failed),
            ("removed", self.removed),
            ("dropped", self.dropped),
            ("rows", self.rows),
            ("checkpoints", self.checkpoints),
            ("kills", self.kills),
            ("kills in deployments", self.kills_in_deployments),
        ];
        counts
            .into_iter()
            .filter(|(_, count)| *count == 0)
            .map(|(name, _)| name)
            .collect()
    }
}

impl fmt::Display for ChainStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} chains: {} deployments, {} refused, {} back to an older version, {} that migrated, {} whose migration failed, \
             {} removals, {} tables dropped, {} rows written, {} checkpoints, {} kills, {} of them in a deployment, {} comparisons",
            self.chains,
            self.deployed,
            self.refused,
            self.rolled_back,
            self.migrated,
            self.migrations_failed,
            self.removed,
            self.dropped,
            self.rows,
            self.checkpoints,
            self.kills,
            self.kills_in_deployments,
            self.compared
        )
    }
}

/// Runs the chain of a seed. Err: the fault that it found, and how to repeat the run.
pub fn run_chain(seed: u64, is_verbose: bool) -> Result<ChainStats, String> {
    let found = Chain::new(seed, is_verbose).go();
    found.map_err(|found| {
        format!("chain {seed}: {found}\nreproduce: cargo xtask schemas --chains 1 --seed {seed} --verbose")
    })
}

const STEPS: u64 = 24;

struct Chain {
    random: FaultRandom,
    seed: u64,
    is_verbose: bool,
    partitions: u16,
    now_us: i64,
    model: Model,
    /// Declarations of modules, in the order of deployment.
    history: Vec<Declared>,
    stats: ChainStats,
}

impl Chain {
    fn new(seed: u64, is_verbose: bool) -> Self {
        let mut random = FaultRandom::new(seed ^ 0x05c4_e3a5);
        Self {
            seed,
            is_verbose,
            partitions: 1 + random.below(3) as u16,
            random,
            now_us: 1_750_000_000_000_000,
            model: Model::default(),
            history: Vec::new(),
            stats: ChainStats {
                chains: 1,
                ..ChainStats::default()
            },
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if self.is_verbose {
            println!("{}: {}", self.seed, text());
        }
    }

    fn open(&mut self, disk: &SimDisk) -> Result<Life, String> {
        self.now_us += 10_000_000;
        let sites = 1 + self.random.below(u64::from(self.partitions)) as u16;
        let (log, seed) = (self.random.below(4), self.random.next_u64());
        self.note(|| format!("open on {sites} sites, log {log}"));
        Life::open(disk, self.partitions, sites, log, self.now_us, seed)
    }

    fn go(mut self) -> Result<ChainStats, String> {
        let mut life = self.open(&SimDisk::new())?;
        for _ in 0..STEPS {
            match self.random.below(16) {
                0..6 => {
                    if let Some(disk) = self.deploy(&life)? {
                        drop(life);
                        life = self.open(&disk)?;
                        self.compare(&life)?;
                    }
                }
                6..11 => self.write(&life)?,
                11 => self.checkpoint(&life)?,
                12 => self.remove(&life)?,
                13 => self.drop_table(&life)?,
                _ => {
                    let policy = crash_policy(&mut self.random);
                    self.note(|| format!("kill, {policy:?}"));
                    let disk = life.disk.crash(&policy);
                    drop(life);
                    self.stats.kills += 1;
                    life = self.open(&disk)?;
                    self.compare(&life)?;
                }
            }
        }
        self.compare(&life)?;
        let disk = life.disk.copy();
        drop(life);
        for sites in [1, self.partitions] {
            let seed = self.random.next_u64();
            let last = Life::open(&disk.copy(), self.partitions, sites, 0, self.now_us + 20_000_000, seed)?;
            self.compare(&last)?;
        }
        Ok(self.stats)
    }

    /// Deploys a changed declaration, or an older one. Returns the disk after a kill in the middle, if there was one.
    fn deploy(&mut self, life: &Life) -> Result<Option<SimDisk>, String> {
        let is_back = !self.history.is_empty() && self.random.below(8) == 0;
        let declared = match is_back {
            true => self.history[self.random.below(self.history.len() as u64) as usize].clone(),
            false => change::next(&mut self.random, &self.model),
        };
        let bytes = declared.bytes();
        self.note(|| format!("deploy {} {}", declared.module, String::from_utf8_lossy(&bytes)));
        let planned = life
            .router()
            .plan_deploy(&declared.module, &bytes)
            .map_err(|error| error.to_string())?;
        let before = (life.disk.ops_count(), self.model.clone());
        let consents = consents_to(&planned.summary);
        let deployed = life.router().deploy_with(&declared.module, &bytes, &consents);
        match deployed {
            Ok(_) if !planned.summary.conflicts.is_empty() => {
                return Err(format!("deployed, and planned were {:?}", planned.summary.conflicts));
            }
            Ok(_) if declared.migration == Migration::Fails => {
                return Err("deployed, and its migration was to fail".into());
            }
            Ok(deployment) => {
                self.model.deploy(&declared, &made_anew(&planned.summary));
                if !deployment.unchanged {
                    self.model.migrate(&declared);
                    self.stats.migrated += (declared.migration == Migration::Counts) as u64;
                }
            }
            Err(DeployError::Install(InstallError::Migration { failure, .. }))
                if declared.migration == Migration::Fails =>
            {
                self.note(|| format!("failed: {failure:?}"));
                self.stats.migrations_failed += 1;
                return self.compare(life).map(|()| None);
            }
            Err(DeployError::Install(InstallError::Migration { failure, .. })) => {
                return Err(format!("a migration failed: {failure:?}"));
            }
            Err(DeployError::Install(InstallError::Conflicts(conflicts))) => {
                self.note(|| format!("refused: {conflicts:?}"));
                // A plan reads no rows.
                let is_of_rows = conflicts.iter().all(|found| found.stored.starts_with("rows with "));
                let is_planned = conflicts == planned.summary.conflicts || is_of_rows;
                if !is_planned || conflicts.iter().any(|found| found.way_on.is_empty()) {
                    return Err(format!(
                        "refused for {conflicts:?}, planned were {:?}",
                        planned.summary.conflicts
                    ));
                }
                if declared.must_pass && !is_back {
                    return Err(format!("{declared:?} was refused: {conflicts:?}"));
                }
                self.stats.refused += 1;
                return self.compare(life).map(|()| None);
            }
            Err(error) => return Err(error.to_string()),
        }
        self.stats.deployed += 1;
        self.stats.rolled_back += is_back as u64;
        self.history.push(declared);
        self.compare(life)?;
        match self.random.below(5) {
            0 => self.kill_within(life, before),
            _ => Ok(None),
        }
    }

    /// A crash while the deployment was on its way to the disk: it is there as a whole, or not at all.
    fn kill_within(&mut self, life: &Life, (ops, model): (usize, Model)) -> Result<Option<SimDisk>, String> {
        let now = life.disk.ops_count();
        let at = ops + self.random.below((now - ops) as u64 + 1) as usize;
        let disk = life.disk.crash_image(at, &crash_policy(&mut self.random));
        self.note(|| format!("killed after operation {at} of {ops} to {now}"));
        let seed = self.random.next_u64();
        let left = Life::open(&disk.copy(), self.partitions, 1, 0, self.now_us + 5_000_000, seed)?;
        let is_there = left.matches(&self.model)?;
        if !is_there && !left.matches(&model)? {
            return Err("killed in a deployment: what is left is neither before nor after it".into());
        }
        self.stats.kills_in_deployments += 1;
        self.stats.kills += 1;
        if !is_there {
            self.model = model;
            self.history.pop();
        }
        Ok(Some(disk))
    }

    fn write(&mut self, life: &Life) -> Result<(), String> {
        for _ in 0..1 + self.random.below(8) {
            let Some(write) = self.model.random_write(&mut self.random) else {
                return Ok(());
            };
            life.call(&write)?;
            self.model.write(&write);
            self.stats.rows += 1;
        }
        Ok(())
    }

    fn checkpoint(&mut self, life: &Life) -> Result<(), String> {
        self.note(|| "checkpoint".into());
        life.checkpoint()?;
        self.stats.checkpoints += 1;
        Ok(())
    }

    fn remove(&mut self, life: &Life) -> Result<(), String> {
        let names: Vec<_> = self.model.modules.keys().cloned().collect();
        if names.is_empty() || self.random.below(2) == 0 {
            return Ok(());
        }
        let name = &names[self.random.below(names.len() as u64) as usize];
        self.note(|| format!("remove {name}"));
        let removed = match life.router().remove(name, &[]) {
            Err(DeployError::Install(InstallError::Consent { plan, .. })) => {
                life.router().remove(name, &consents_to(&plan))
            }
            other => other,
        };
        removed.map_err(|error| error.to_string())?;
        self.model.remove(name);
        self.stats.removed += 1;
        self.compare(life)
    }

    fn drop_table(&mut self, life: &Life) -> Result<(), String> {
        let names: Vec<_> = self.model.tables.keys().cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let name = &names[self.random.below(names.len() as u64) as usize];
        let is_used = self.model.is_used(name);
        self.note(|| format!("drop {name}, used: {is_used}"));
        match (life.router().drop_table(name), is_used) {
            (Ok(_), false) => {
                self.model.drop_table(name);
                self.stats.dropped += 1;
            }
            (Err(DeployError::Install(InstallError::Conflicts(_))), true) => {}
            (dropped, _) => return Err(format!("drop of {name}: {:?}", dropped.map(drop))),
        }
        self.compare(life)
    }

    fn compare(&mut self, life: &Life) -> Result<(), String> {
        self.stats.compared += 1;
        life.check_log()?;
        match life.matches(&self.model)? {
            true => Ok(()),
            false => Err(life.difference(&self.model)?),
        }
    }
}

/// Consent to all that a plan would destroy.
fn consents_to(plan: &PlanSummary) -> Vec<Consent> {
    plan.destroyed.iter().map(|found| found.consent.clone()).collect()
}

/// Full names of the tables that a plan would make anew: no column of theirs comes from a stored one.
fn made_anew(plan: &PlanSummary) -> Vec<String> {
    let changed = plan.tables.iter().filter(|table| !table.sources.is_empty());
    let anew = changed.filter(|table| table.sources.iter().all(Option::is_none));
    anew.map(|table| table.table.clone()).collect()
}
