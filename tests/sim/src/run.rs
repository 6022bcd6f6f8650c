//! One seed: lives of one database, one after the other, with calls, checkpoints, faults, crashes and harm in between.

mod answers;
mod auto;
mod backups;
mod calls;
mod crash;
mod deposed;
mod drift;
mod end;
mod harm;
mod opening;
mod standby;
pub(crate) mod stats;
mod tables;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
};

use reprise_base::limits::PART_BYTES;
use reprise_database::{CommitMode, FlushPolicy, LogPolicy, RedoConfig, SampleRate};
use reprise_env::{SimDisk, sim::FaultRandom};

use crate::{
    ledger::{Attempt, Ledger},
    module::Way,
    mutant::{Mutant, Tampering},
    world::{Settings, World},
};

pub use stats::Stats;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub mutant: Option<Mutant>,
    pub is_verbose: bool,
}

/// The violation that a seed found, with the command that repeats it.
#[derive(Debug)]
pub struct Found {
    pub seed: u64,
    pub what: String,
    /// Flags of the command that repeats it.
    pub flags: String,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, what, flags } = self;
        write!(
            f,
            "seed {seed}: {what}\nreproduce: cargo xtask sim{flags} --from {seed} --seeds 1 --verbose"
        )
    }
}

/// Runs a seed to its end.
pub fn run(seed: u64, options: Options) -> Result<Stats, Found> {
    let ran = catch_unwind(AssertUnwindSafe(|| Run::new(seed, options).go()));
    let what = match ran {
        Ok(Ok(stats)) => return Ok(stats),
        Ok(Err(what)) => what,
        Err(panic) => panicked(&*panic),
    };
    let flags = String::new();
    Err(Found { seed, what, flags })
}

/// Returns the text of a panic.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    format!("panic: {}", text.unwrap_or_default())
}

struct Run {
    options: Options,
    random: FaultRandom,
    settings: Settings,
    notes_max: u32,
    /// The number of faults among a hundred actions.
    fault_percent: u64,
    ledger: Ledger,
    stats: Stats,
    now_us: i64,
    /// The second version was in service, for sure.
    is_upgraded: bool,
    /// The number of operations in this life after which its deployment was acknowledged.
    upgraded_at: Option<usize>,
    life: u64,
    /// Each life logs both kinds: then nothing is lost to a program that drifts.
    logs_both: bool,
    told: backups::Told,
    /// Backups that the server was asked to remove.
    removed: Vec<String>,
    /// True for each procedure whose changes `auto` logs.
    choices: Vec<bool>,
    tampering: Tampering,
    /// The standby of this life's primary.
    standby: Option<standby::Standby>,
}

type Life = World<Attempt>;

impl Run {
    fn new(seed: u64, options: Options) -> Self {
        let mut random = FaultRandom::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0x51);
        let mut one_of = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let settings = Settings {
            partitions: one_of(&[1, 2, 3, 4, 5]) as u16,
            segment_bytes: one_of(&[4 << 10, 8 << 10, 32 << 10, 128 << 10]),
            keep: one_of(&[1, 2, 2, 3]) as usize,
            commit: match options.mutant {
                Some(Mutant::AcknowledgesBeforeSync) => CommitMode::Async,
                _ => CommitMode::Sync,
            },
            nvram: None,
            flush: FlushPolicy::OnCommit,
            checkpoint_bytes: match one_of(&[0, 0, 0, 1]) {
                0 => 0,
                _ => one_of(&[6 << 10, 20 << 10]),
            },
            way: Way::of(options.mutant),
            log: match options.mutant {
                Some(Mutant::ForgedChange) => LogPolicy::Physiological,
                _ => LogPolicy::Command,
            },
            redo: RedoConfig::default(),
            sampling: SampleRate {
                every: one_of(&[1, 2, 5]) as u32,
                window: one_of(&[1, 3, 10]) as u32,
            },
            part_bytes: PART_BYTES,
            quarantines: false,
        };
        let logs_both = one_of(&[0, 0, 0, 1]) == 1;
        let notes_max = one_of(&[2, 40, 700, 5_000]) as u32;
        let fault_percent = one_of(&[0, 0, 1, 3]);
        Self {
            options,
            random,
            settings,
            notes_max,
            fault_percent,
            ledger: Ledger::default(),
            stats: Stats {
                seeds: 1,
                ..Stats::default()
            },
            now_us: 1_750_000_000_000_000,
            is_upgraded: false,
            upgraded_at: None,
            life: 0,
            logs_both,
            told: backups::Told::default(),
            removed: Vec::new(),
            choices: Vec::new(),
            tampering: Tampering::default(),
            standby: None,
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if self.options.is_verbose {
            println!("  life {}: {}", self.life, text());
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn go(mut self) -> Result<Stats, String> {
        let lives = 2 + self.below(4);
        let mut disk = SimDisk::new();
        for _ in 0..lives {
            self.life += 1;
            let mut world = self.open(&disk)?;
            self.begin_standby(&world)?;
            self.check_restart(&world)?;
            self.live(&mut world)?;
            if let Some(taken_over) = self.fail_over(&world)? {
                disk = taken_over;
                continue;
            }
            disk = self.end(world)?;
            if let Some(mutated) = self.mutate(&disk) {
                disk = mutated;
            }
            if self.below(3) == 0 {
                self.harm(&disk)?;
            }
            if self.options.mutant.is_none() {
                self.look_aside(&disk)?;
            }
        }
        // Every number of sites must give equal tables.
        for sites in [1, self.settings.partitions] {
            self.life += 1;
            let mut world = self.open_on(&disk.copy(), sites).map_err(|refused| refused.text())?.0;
            self.check_restart(&world)?;
            world.close()?;
        }
        self.stats.commits = self.ledger.commits;
        self.stats.repeats = self.ledger.repeats;
        self.stats.calls = self.ledger.calls.len() as u64;
        Ok(self.stats)
    }

    /// Tries other uses of the files that a life left, on copies. The next life continues with the files themselves.
    fn look_aside(&mut self, disk: &SimDisk) -> Result<(), String> {
        let now_us = self.now_us;
        if self.below(4) == 0 {
            self.check_copies(disk)?;
        }
        if self.below(if self.logs_both { 3 } else { 20 }) == 0 {
            self.check_drift(disk)?;
        }
        self.now_us = now_us;
        Ok(())
    }

    /// The calls and mishaps of one life.
    fn live(&mut self, world: &mut Life) -> Result<(), String> {
        let actions = 5 + self.below(120);
        for _ in 0..actions {
            self.act(world)?;
            self.settle(world)?;
            world.clock.advance_us(self.random.below(300) as i64);
        }
        Ok(())
    }

    fn act(&mut self, world: &Life) -> Result<(), String> {
        if self.below(100) < self.fault_percent {
            self.break_disk(world);
        }
        match self.below(124) {
            0..40 => self.call(world),
            40..80 => {
                for _ in 0..self.below(12) {
                    world.stepper.step();
                }
            }
            80..86 => world.clock.advance_us(self.below(20_000) as i64),
            86..89 => {
                let taken = world.checkpointer().take();
                self.note(|| format!("checkpoint: {:?}", taken.as_ref().map(|info| info.lsn)));
            }
            89 => self.upgrade(world),
            90..94 => self.send_again(world),
            94 => self.conflict(world),
            95..97 => {
                self.quiesce(world)?;
                if let Some(found) = self.read_all(world)? {
                    self.compare(&found, "while running")?;
                }
            }
            97..100 => self.check_durable(world)?,
            100..102 => self.back_up(world),
            102 => self.end_call(world)?,
            104.. => self.act_on_standby(world)?,
            _ => self.change_pace(world),
        }
        Ok(())
    }
}
