//! Three nodes on a network that is late, breaks and parts: a primary, its standbys and clients. An operator, or a lease, has others take
//! over. Processes die at any step, and disks fail.
//!
//! A new primary has everything that clients were told, except for records that its safety level or a forced promotion gives up. Every read
//! shows the beginning of a log, and a session never goes back. With a lease, no two primaries answer at one time. A node's log holds only
//! records that primaries wrote.

mod around;
mod calls;
mod end;
mod forge;
mod forged_store;
mod history;
mod marks;
mod mutant;
mod node;
mod operator;
mod promote;
mod stats;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use reprise_base::{Role, Safety, limits::PART_BYTES};
use reprise_database::LogPolicy;
use reprise_env::{
    Threads, Work,
    sim::{FaultPlan, FaultRandom},
};

use self::{
    around::{Around, Fate, NAMES, NODES},
    calls::Session,
    history::{Shared, lock},
    marks::{How, Marks},
    node::{Node, Own, Settings},
};
use crate::{
    run::{Found, panicked},
    world::any_redo,
};

pub use mutant::FailoverMutant;
pub use stats::FailoverStats;

const SESSIONS: u64 = 3;
const WAIT_TURNS_MAX: u32 = 20_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct FailoverOptions {
    pub mutant: Option<FailoverMutant>,
    /// The level and the promotions under which this mutant shows, whether or not it is armed.
    pub as_for: Option<FailoverMutant>,
    pub is_verbose: bool,
}

/// Runs a seed to its end.
pub fn run_failovers(seed: u64, options: FailoverOptions) -> Result<FailoverStats, Found> {
    let ran = catch_unwind(AssertUnwindSafe(|| {
        let mut run = Run::new(seed, options);
        let ran = run.go();
        run.close();
        ran.map(|()| run.stats)
    }));
    let what = match ran {
        Ok(Ok(stats)) => return Ok(stats),
        Ok(Err(what)) => what,
        Err(panic) => panicked(&*panic),
    };
    let flags = match (options.mutant, options.as_for) {
        (Some(mutant), _) => format!(" --failovers --mutant {mutant:?}"),
        (None, Some(mutant)) => format!(" --failovers --as-for {mutant:?}"),
        (None, None) => " --failovers".to_owned(),
    };
    Err(Found { seed, what, flags })
}

struct Run {
    options: FailoverOptions,
    random: FaultRandom,
    /// Decides when a disk is copied, and when it is replaced by its copy.
    copying: FaultRandom,
    settings: Settings,
    around: Arc<Around>,
    histories: Shared,
    marks: Marks,
    nodes: [Node; 3],
    sessions: [Session; SESSIONS as usize],
    /// Calls with a key whose outcome is not known.
    open_keys: Vec<usize>,
    /// Whom the operator takes for the primary. None: none is known to be there.
    primary: Option<usize>,
    /// True after a promotion without a look at the others, until the nodes have come together. Two primaries may have taken one epoch, so
    /// epochs and LSNs do not show which node has most.
    is_torn: bool,
    /// The process that was counted as the newest primary.
    newest: Option<u64>,
    lives: u64,
    stats: FailoverStats,
}

impl Run {
    fn new(seed: u64, options: FailoverOptions) -> Self {
        let mut random = FaultRandom::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xfa11);
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let levels = [Safety::OneSafe, Safety::TwoSafe, Safety::Quorum, Safety::VerySafe];
        let mut safety = levels[one_of(&[0, 1, 1, 2, 2, 3]) as usize];
        let mut is_leased = one_of(&[0, 1]) == 1 && safety != Safety::OneSafe;
        let fixed = options.mutant.or(options.as_for);
        if let Some(mutant) = fixed {
            (safety, is_leased) = mutant.shows_under();
        }
        let settings = Settings {
            partitions: one_of(&[1, 2, 3]) as u16,
            segment_bytes: one_of(&[8 << 10, 32 << 10, 128 << 10]),
            safety,
            is_leased,
            hold_bytes_max: one_of(&[1 << 20, 16 << 10]),
            compare_every: Duration::from_millis(one_of(&[0, 300, 3_000])),
            is_blind: one_of(&[0, 0, 1]) == 1 && fixed.is_none(),
            keeps_old: fixed.is_some_and(FailoverMutant::needs_old_primary),
            has_slow_disks: fixed.is_some_and(FailoverMutant::needs_slow_disks),
        };
        let rareness = one_of(&[2_000, 10_000, 100_000]);
        let around = Around::new(seed, options.mutant);
        let fate = Fate {
            around: around.clone(),
            random: FaultRandom::new(seed ^ 0xfa7e),
            rareness,
        };
        // The network comes before all others, so that these continue whichever thread waits.
        let net = around.net.clone();
        let begun = [
            around
                .stepper
                .start("fate", Box::new(move || Box::new(fate) as Box<dyn Work>)),
            around.stepper.start("network", Box::new(move || net.work())),
        ];
        assert!(begun.iter().all(Result::is_ok), "nothing has ended yet");
        Self {
            options,
            random,
            copying: FaultRandom::new(seed ^ 0xc09e),
            settings,
            around,
            histories: Shared::default(),
            marks: Marks::default(),
            nodes: [1, 2, 3].map(Node::new),
            sessions: Default::default(),
            open_keys: Vec::new(),
            primary: Some(0),
            is_torn: false,
            newest: None,
            lives: 0,
            stats: FailoverStats {
                seeds: 1,
                ..FailoverStats::default()
            },
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if self.options.is_verbose {
            println!("  {:>9} us: {}", self.around.now_ns() / 1_000 % 1_000_000_000, text());
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn own(&mut self) -> Own {
        Own {
            sites: 1 + self.below(self.settings.partitions as u64) as u16,
            log: match self.below(2) {
                0 => LogPolicy::Command,
                _ => LogPolicy::Both,
            },
            redo: any_redo(|bound| self.below(bound)),
            part_bytes: match self.below(3) {
                0 => 60,
                _ => PART_BYTES,
            },
            seed: self.random.next_u64(),
        }
    }

    fn go(&mut self) -> Result<(), String> {
        self.note(|| format!("{:?}", self.settings));
        self.begin()?;
        let actions = 100 + self.below(400);
        self.around.is_fateful.store(true, Ordering::Relaxed);
        for _ in 0..actions {
            self.act()?;
            self.look()?;
        }
        self.around.is_fateful.store(false, Ordering::Relaxed);
        self.converge()
    }

    /// A step of any node, or of time.
    fn turn(&mut self) {
        if !self.around.stepper.step() {
            let us = 50 + self.below(3_000);
            self.around.clock.advance_us(us as i64);
        }
    }

    /// Lets time pass: sometimes long enough for a lease to end, or for a waiting caller to give up.
    fn wait(&mut self) {
        let ms = [50, 1_000, 12_000][self.below(3) as usize];
        let until_ns = self.around.now_ns() + self.below(ms) * 1_000_000;
        for _ in 0..WAIT_TURNS_MAX {
            if self.around.now_ns() >= until_ns {
                return;
            }
            self.turn();
        }
    }

    fn act(&mut self) -> Result<(), String> {
        match self.below(100) {
            0..30 => {
                for _ in 0..self.below(60) {
                    self.turn();
                }
            }
            30..34 => self.wait(),
            34..54 => {
                for _ in 0..1 + self.below(3) {
                    self.write();
                }
            }
            54..64 => self.read(),
            64..70 => self.start_any()?,
            70..73 => self.switch_over()?,
            73..77 => self.force()?,
            77 if self.below(4) == 0 => self.fail_power()?,
            77 => {
                let node = self.below(3) as usize;
                self.note(|| format!("{} is killed", NAMES[node]));
                self.stats.kills += 1;
                self.around.kill(node, &mut self.random);
            }
            78..96 => self.disturb(),
            96..98 => self.restart_stuck()?,
            _ => self.deploy_if_missing(),
        }
        Ok(())
    }

    /// Cuts the power of all nodes at once, while calls are on their way. The primary may not come back.
    fn fail_power(&mut self) -> Result<(), String> {
        for _ in 0..1 + self.below(3) {
            self.write();
        }
        for _ in 0..self.below(60) {
            self.turn();
        }
        self.note(|| "the power fails".to_owned());
        self.stats.power_failures += 1;
        for node in NODES {
            self.around.kill(node, &mut self.random);
        }
        self.look()?;
        match self.below(2) {
            0 => Ok(()),
            _ => self.go_on_without_primary(),
        }
    }

    fn disturb(&mut self) {
        let (one, other) = (self.below(3) as usize, self.below(3) as usize);
        let names = (NAMES[one], NAMES[other]);
        match self.below(16) {
            0 => self.around.net.cut(names.0, names.1),
            1 => self.around.net.part(names.0, names.1),
            2..6 => self.around.net.heal(names.0, names.1),
            6 => self.around.net.break_between(names.0, names.1),
            7 => self.slow_down(),
            8 => self.break_disk(one),
            9 => {
                if let Some(process) = &self.nodes[one].process {
                    let taken = process.database.checkpointer().map(|checkpointer| checkpointer.take());
                    self.stats.checkpoints += u64::from(matches!(taken, Ok(Ok(_))));
                }
            }
            10 => {
                let us = self.below(2_000_000);
                self.around.clock.advance_us(us as i64);
            }
            11 | 12 => {
                let ms = self.below(8_000);
                if let Some(process) = &self.nodes[one].process {
                    self.note(|| format!("{} stands still for {ms} ms", NAMES[one]));
                    process.life.pause_until(self.around.now_ns() + ms * 1_000_000);
                    self.stats.pauses += 1;
                }
            }
            13 if self.settings.is_leased => {
                let is_away = self.below(2) == 0;
                if let Some(process) = self.nodes[one]
                    .process
                    .as_ref()
                    .filter(|process| !process.life.is_dead())
                {
                    let (leases, key) = (&self.around.leases, process.life.key());
                    leases.set_away(&key, is_away);
                    if !is_away {
                        leases.lose_answer(&key);
                    }
                }
            }
            14 if self.settings.is_leased => {
                let is_away = self.below(3) == 0;
                self.around.leases.set_all_away(is_away);
            }
            _ => {}
        }
    }

    fn slow_down(&mut self) {
        let most = [50, 500, 50_000][self.below(3) as usize];
        let breaks_per_mille = self.below(8);
        self.around.net.set_faults(reprise_env::NetFaults {
            delay_us: (10, most),
            breaks_per_mille,
        });
    }

    fn break_disk(&mut self, node: usize) {
        let plan = FaultPlan {
            sync_error_in: (self.below(2) == 0).then(|| self.random.below(20)),
            write_error_in: (self.below(2) == 0).then(|| self.random.below(20)),
            fails_once: self.below(2) == 0,
            ..FaultPlan::default()
        };
        if let Some(process) = self.nodes[node]
            .process
            .as_ref()
            .filter(|process| !process.life.is_dead())
        {
            self.note(|| format!("{} has {plan:?}", NAMES[node]));
            process.disk.set_faults(plan);
            self.stats.disk_faults += 1;
        }
    }

    /// Checks the state after an action.
    fn look(&mut self) -> Result<(), String> {
        self.around.deliver_late();
        self.bury();
        self.count_primaries()?;
        self.look_at_answers()?;
        self.is_torn = self.is_torn && self.is_together().is_none();
        for node in NODES {
            let Some(process) = &self.nodes[node].process else {
                continue;
            };
            let compared = process.service().own().and_then(|own| own.compared);
            if let Some(difference) = compared.as_ref().and_then(|compared| compared.difference.as_ref()) {
                return Err(format!("{} differs from its primary: {difference}", NAMES[node]));
            }
            if process.database.router().status().log_error.is_some() {
                self.note(|| format!("the log of {} has failed", NAMES[node]));
                self.around.kill(node, &mut self.random);
            }
        }
        match lock(&self.histories).wrong.take() {
            Some(wrong) => Err(wrong),
            None => Ok(()),
        }
    }

    /// Nodes that became the primary by themselves.
    fn count_primaries(&mut self) -> Result<(), String> {
        for node in NODES {
            let Some(process) = &self.nodes[node].process else {
                continue;
            };
            let is_primary = process.database.router().role() == Role::Primary && !process.life.is_dead();
            if is_primary && !process.is_counted_primary {
                self.stats.by_lease += 1;
                self.note(|| format!("{} took over", NAMES[node]));
                self.count_primary(node, How::Whole)?;
            }
        }
        let mut processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        if let Some(process) = processes.find(|process| Some(process.life.number) == self.newest) {
            self.marks.grow(process.tape.path());
        }
        Ok(())
    }

    /// A node is the primary from here on.
    fn count_primary(&mut self, node: usize, how: How) -> Result<(), String> {
        let process = self.nodes[node].process.as_mut().ok_or("it is gone")?;
        process.is_counted_primary = true;
        self.newest = Some(process.life.number);
        let path = process.tape.path();
        let epoch = process.database.router().status().epoch.unwrap_or_default().count();
        self.primary = Some(node);
        self.marks.begin(how, epoch, path)
    }
}
