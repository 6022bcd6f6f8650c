//! One seed: lives of one database, one after the other, with calls, checkpoints, faults, crashes and harm in between.

mod auto;
mod backups;
mod drift;
mod end;
mod standby;

use std::panic::{AssertUnwindSafe, catch_unwind};

use reprise_base::Lsn;
use reprise_database::{
    AfterImage, CommitMode, FlushPolicy, LogPolicy, RecoverFrom, RecoveryReport, RedoConfig, Sampling,
};
use reprise_env::{
    Disk, SimDisk,
    sim::{CrashPolicy, FaultPlan, FaultRandom},
};
use reprise_log::verify;
use reprise_router::{CallReply, CheckpointState, ReplyOutcome};

use crate::{
    damage::{self, Harm},
    ledger::{Attempt, Call, Fate, Ledger},
    model::{Item, Model, Tables, difference},
    module::{BYTES, NAME, Way},
    mutant::{Mutant, Tampering},
    op::{Op, decode_everywhere, decode_here},
    region::region_end,
    world::{Refused, Settings, World},
};

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub mutant: Option<Mutant>,
    pub is_verbose: bool,
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What happened, counted.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Stats { $($(#[$doc])* pub $name: u64),* }
        impl Stats {
            pub fn add(&mut self, other: &Stats) { $(self.$name += other.$name;)* }
            pub fn list(&self) -> Vec<(&'static str, u64)> { vec![$((stringify!($name), self.$name)),*] }
        }
    };
}
stats! {
    seeds, lives, calls, commits, repeats, steps, crashes, closes, checkpoints, loaded_checkpoints, passed_over,
    released_logs, harms, refusals, log_failures, full_disks, refused_calls, checks, upgrades, torn_tails,
    auto_switches, backups, failed_backups, verified_backups, restores, divergences, quarantines,
    /// Crashes of lives whose changes went to NVRAM as they were made.
    inserted_crashes,
    ended, standbys, standby_checks, standby_restarts, promotions, failovers,
}

/// What a seed found, with the way to see it again.
#[derive(Debug)]
pub struct Found {
    pub seed: u64,
    pub what: String,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, what } = self;
        write!(
            f,
            "seed {seed}: {what}\nreproduce: cargo xtask sim --from {seed} --seeds 1 --verbose"
        )
    }
}

/// Runs a seed to its end.
pub fn run(seed: u64, options: Options) -> Result<Stats, Found> {
    let ran = catch_unwind(AssertUnwindSafe(|| Run::new(seed, options).go()));
    let what = match ran {
        Ok(Ok(stats)) => return Ok(stats),
        Ok(Err(what)) => what,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    Err(Found { seed, what })
}

/// Turns of all threads within which every call is answered.
const QUIESCE_TURNS_MAX: u32 = 200_000;

struct Run {
    options: Options,
    random: FaultRandom,
    settings: Settings,
    notes_max: u32,
    /// Of a hundred actions, those that break something.
    fault_percent: u64,
    ledger: Ledger,
    stats: Stats,
    now_us: i64,
    /// The second version was in service, for sure.
    is_upgraded: bool,
    /// Its deployment was acknowledged in this life after so many operations.
    upgraded_at: Option<usize>,
    life: u64,
    /// Each life logs both kinds: then nothing is lost to a program that drifts.
    logs_both: bool,
    told: backups::Told,
    /// Backups that the server was asked to remove.
    removed: Vec<String>,
    /// By procedure: `auto` logs its changes.
    choices: Vec<bool>,
    tampering: Tampering,
    /// Of this life's primary.
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
            sampling: Sampling {
                every: one_of(&[1, 2, 5]) as u32,
                window: one_of(&[1, 3, 10]) as u32,
            },
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
        // The same tables on every number of sites.
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

    /// What else can be made of what a life left: copies of it are tried, the next life goes on with itself.
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

    fn open_on(&mut self, disk: &SimDisk, sites: u16) -> Result<(Life, RecoveryReport), Refused> {
        // The wall clock may have been set back.
        let jump = self.below(20_000_000) as i64 - 5_000_000;
        self.choose_log();
        self.now_us = (self.now_us + jump).max(1_740_000_000_000_000);
        let seed = self.random.next_u64();
        self.stats.lives += 1;
        disk.set_faults(FaultPlan {
            lies: self.options.mutant == Some(Mutant::LyingDisk),
            ..FaultPlan::default()
        });
        World::open(disk, self.settings, sites, self.now_us, seed)
    }

    /// What the next life logs, and which of two records its recovery believes.
    fn choose_log(&mut self) {
        if let Some(mutant) = self.options.mutant {
            if mutant == Mutant::DriftingCode && self.life.is_multiple_of(2) {
                self.settings.way = Way::Drifts;
            }
            return; // one record a transaction, so that each is missed
        }
        // On the same region, another, or none: whatever one life leaves there the next one brings home.
        self.settings.nvram = match self.below(4) {
            0 => None,
            1 => Some(1),
            _ => Some(0),
        };
        self.settings.log = match self.below(5) {
            _ if self.logs_both => LogPolicy::Both,
            0 => LogPolicy::Command,
            1 => LogPolicy::Auto,
            2 => LogPolicy::Both,
            _ => LogPolicy::Physiological,
        };
        self.settings.redo = RedoConfig {
            images: match self.below(2) {
                0 => AfterImage::Changed,
                _ => AfterImage::Whole,
            },
            from: match self.below(2) {
                0 => RecoverFrom::Command,
                _ => RecoverFrom::Changes,
            },
        };
        self.settings.flush = match (self.settings.log, self.settings.redo.images) {
            (LogPolicy::Command, _) | (_, AfterImage::Whole) => FlushPolicy::OnCommit,
            _ => FlushPolicy::ALL[self.below(3) as usize],
        };
    }

    /// Opens an undamaged disk, sometimes after a try on which the disk failed.
    fn open(&mut self, disk: &SimDisk) -> Result<Life, String> {
        let sites = 1 + self.below(self.settings.partitions as u64) as u16;
        if self.fault_percent > 0 && self.below(6) == 0 {
            self.open_with_faults(disk, sites)?;
        }
        let opened = self.open_on(disk, sites);
        let (world, report) = opened.map_err(|refused| format!("an undamaged database: {}", refused.text()))?;
        self.note(|| {
            format!(
                "opened on {sites} sites, log {:?} {:?}, flush {:?}: {} commands behind checkpoint {:?}, {} keys, {} torn bytes, passed over {:?}",
                self.settings.log, self.settings.redo, self.settings.flush, report.commands, report.checkpoint.map(|c| c.lsn), report.keys, report.torn_bytes, report.passed_over
            )
        });
        self.stats.loaded_checkpoints += report.checkpoint.is_some() as u64;
        self.stats.torn_tails += (report.torn_bytes > 0) as u64;
        Ok(world)
    }

    /// A try that may fail, and must not harm.
    fn open_with_faults(&mut self, disk: &SimDisk, sites: u16) -> Result<(), String> {
        let plan = FaultPlan {
            sync_error_in: Some(self.below(6)),
            write_error_in: (self.below(2) == 0).then(|| self.random.below(6)),
            ..FaultPlan::default()
        };
        disk.set_faults(plan);
        let seed = self.random.next_u64();
        self.stats.lives += 1;
        let tried = World::<Attempt>::open(disk, self.settings, sites, self.now_us, seed);
        self.note(|| match &tried {
            Ok(_) => "opened on a failing disk".into(),
            Err(refused) => format!("not opened on a failing disk: {}", refused.text()),
        });
        if let Ok((mut world, _)) = tried {
            let _ = world.close(); // the disk may fail now
        }
        Ok(())
    }

    /// Lets time go on until every call is answered.
    fn quiesce(&mut self, world: &Life) -> Result<(), String> {
        for _ in 0..QUIESCE_TURNS_MAX {
            if self.ledger.flying() == 0 {
                return Ok(());
            }
            world.stepper.help();
            self.settle(world)?;
        }
        Err(format!("{} calls are never answered", self.ledger.flying()))
    }

    fn settle(&mut self, world: &Life) -> Result<(), String> {
        for arrived in world.take_arrived() {
            for (at, attempt) in arrived.attempts.iter().enumerate() {
                let mut reply = arrived.reply.get(at);
                let mut tampering = std::mem::take(&mut self.tampering);
                let op = &self.ledger.calls[attempt.call].op;
                let mutant = self.options.mutant;
                let is_told = mutant.is_none_or(|mutant| tampering.tamper(mutant, op, &mut reply));
                if is_told {
                    self.settle_one(world, *attempt, &reply, arrived.ops)?;
                }
                self.tampering = tampering;
            }
        }
        Ok(())
    }

    fn settle_one(&mut self, world: &Life, attempt: Attempt, reply: &CallReply<'_>, ops: usize) -> Result<(), String> {
        self.note(|| {
            format!(
                "{attempt:?} after {ops} operations: {:?} {}",
                reply.outcome, reply.txn_id
            )
        });
        self.stats.refused_calls += matches!(
            reply.outcome,
            ReplyOutcome::LogUnavailable(_) | ReplyOutcome::OutcomeUnknown(_)
        ) as u64;
        let durable = world.router().status().durable_lsn;
        let is_write = !self.ledger.calls[attempt.call].op.is_read();
        if *reply.outcome == ReplyOutcome::Committed && is_write && reply.lsn >= durable {
            return Err(format!(
                "{attempt:?} was acknowledged at {}, durable is {durable}",
                reply.lsn
            ));
        }
        self.ledger.answered(attempt, reply, ops)
    }

    /// Reads every table on every partition.
    fn read_all(&self, world: &Life) -> Result<Option<Tables>, String> {
        let model = Model::new(self.settings.partitions);
        let ids = (0..self.settings.partitions)
            .map(|place| (0..10_000i64).find(|id| model.place(*id).0 == place).expect("spread"));
        let mut calls = vec![("everywhere", None, Vec::new())];
        calls.extend(ids.map(|id| ("here", None, id.to_le_bytes().to_vec())));
        world.submit(&calls, Vec::new());
        let reply = loop {
            let mut arrived = world.take_arrived();
            match arrived.pop() {
                Some(arrived) => break arrived.reply,
                None => world.stepper.help(),
            }
        };
        let is_refused = |at: usize| matches!(reply.get(at).outcome, ReplyOutcome::LogUnavailable(_));
        if world.is_log_stopped() && (0..reply.len()).any(is_refused) {
            return Ok(None); // it would have told of what the log just failed to keep
        }
        let answer = |at: usize| match reply.get(at) {
            answer if *answer.outcome == ReplyOutcome::Committed => Ok(answer.result),
            answer => Err(format!("a read of everything ended with {:?}", answer.outcome)),
        };
        let mut tables = Tables::default();
        let everywhere = decode_everywhere(answer(0)?).map_err(|error| error.to_string())?;
        tables.items = (everywhere.items.into_iter())
            .map(|item| {
                (
                    item.id,
                    Item {
                        value: item.value,
                        note_bytes: item.note_bytes,
                        total: item.total,
                        later: item.later,
                    },
                )
            })
            .collect();
        tables.marks = everywhere
            .marks
            .iter()
            .map(|mark| ((mark.a, mark.b), mark.c as u64))
            .collect();
        for place in 0..self.settings.partitions {
            let here = decode_here(answer(1 + place as usize)?).map_err(|error| error.to_string())?;
            let announcements = here
                .announcements
                .iter()
                .map(|row| (row.a, (row.b as u64, row.c)))
                .collect();
            let settings = here.settings.iter().map(|row| (row.a, row.b)).collect();
            if place > 0 && (tables.announcements != announcements || tables.settings != settings) {
                return Err(format!(
                    "partition {place} has other replicated rows than those before it"
                ));
            }
            (tables.announcements, tables.settings) = (announcements, settings);
            let draws: Vec<_> = here.draws.iter().map(|row| (row.a, row.b as u64)).collect();
            if !draws.is_empty() {
                tables.draws.insert(place, draws);
            }
        }
        Ok(Some(tables))
    }

    fn compare(&mut self, found: &Tables, when: &str) -> Result<(), String> {
        self.stats.checks += 1;
        let mut expected = self.ledger.expected(self.settings.partitions, found)?;
        expected.draws.retain(|_, draws| !draws.is_empty());
        match difference(&expected, found) {
            None => Ok(()),
            Some(difference) => Err(format!("{when}: {difference}")),
        }
    }

    /// The version in service, and since when the second one is.
    fn look_at_versions(&mut self, world: &Life) -> Option<u32> {
        let deployed = world.router().deployed();
        let second = deployed.versions.iter().find(|module| module.version == 2);
        self.ledger.second_from = second.map(|module| module.installed_by.0);
        deployed.current.get(NAME).map(|module| module.version)
    }

    /// After an opening: nothing acknowledged is lost, nothing is there twice or by half.
    fn check_restart(&mut self, world: &Life) -> Result<(), String> {
        let version = self.look_at_versions(world);
        if self.is_upgraded && version != Some(2) {
            return Err(format!("version 2 was in service, and now {version:?} is"));
        }
        self.is_upgraded |= version == Some(2);
        if version.is_none() {
            if self
                .ledger
                .calls
                .iter()
                .any(|call| matches!(call.fate, Fate::Committed { .. }))
            {
                return Err("the module is gone, though calls of it were committed".into());
            }
            self.ledger.resolve(&Tables::default());
            let deployed = world.router().deploy(NAME, BYTES[0]);
            return deployed.map(drop).map_err(|error| format!("deploy: {error}"));
        }
        let found = self.read_all(world)?.ok_or("the log stopped at once")?;
        self.ledger.resolve(&found);
        self.compare(&found, "after the opening")
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
                let taken = world.router().take_checkpoint();
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

    fn call(&mut self, world: &Life) {
        let mut chosen = Vec::new();
        for _ in 0..1 + self.below(4) {
            let op = Op::random(&mut self.random, self.notes_max);
            let has_key = !op.is_read() && self.below(4) == 0;
            self.ledger.calls.push(Call {
                key: has_key.then(|| format!("key {}", self.ledger.calls.len())),
                op,
                fate: Fate::Unknown,
                flying: 0,
                is_doubtful: false,
                refused_at: None,
            });
            chosen.push(self.ledger.calls.len() - 1);
        }
        self.send(world, &chosen, false);
    }

    fn send(&mut self, world: &Life, chosen: &[usize], conflicts: bool) {
        let mut attempts = Vec::new();
        let mut calls = Vec::new();
        for at in chosen {
            let call = &mut self.ledger.calls[*at];
            let is_known = matches!(call.fate, Fate::Committed { .. });
            attempts.push(Attempt {
                call: *at,
                is_repeat: is_known,
                conflicts,
            });
            call.flying += 1;
            if call.fate == Fate::Absent && !conflicts {
                call.fate = Fate::Unknown;
            }
            let mut args = Vec::new();
            call.op.encode(Ledger::nonce(*at), &mut args);
            let forgets = is_known && self.options.mutant == Some(Mutant::ForgottenKey);
            calls.push((call.op.procedure(), call.key.clone().filter(|_| !forgets), args));
        }
        let calls: Vec<_> = calls
            .iter()
            .map(|(name, key, args)| (*name, key.as_deref(), args.clone()))
            .collect();
        self.note(|| {
            format!(
                "send {chosen:?} {:?}",
                calls.iter().map(|call| call.0).collect::<Vec<_>>()
            )
        });
        world.submit(&calls, attempts);
    }

    /// Sends a call with a key once more, as a client does that got no answer, or lost it.
    fn send_again(&mut self, world: &Life) {
        let calls = self.ledger.calls.iter().enumerate();
        let keyed: Vec<_> = calls.filter(|(_, call)| call.key.is_some()).map(|(at, _)| at).collect();
        if !keyed.is_empty() {
            let at = keyed[self.below(keyed.len() as u64) as usize];
            self.send(world, &[at], false);
        }
    }

    /// Uses a key of a committed call for another one.
    fn conflict(&mut self, world: &Life) {
        let calls = self.ledger.calls.iter();
        let committed = calls.filter(|call| matches!(call.fate, Fate::Committed { .. }));
        let keys: Vec<_> = committed.filter_map(|call| call.key.clone()).collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.below(keys.len() as u64) as usize].clone();
        self.ledger.calls.push(Call {
            op: Op::Announce { value: 1_000_000 },
            key: Some(key),
            fate: Fate::Absent,
            flying: 0,
            is_doubtful: false,
            refused_at: None,
        });
        let at = self.ledger.calls.len() - 1;
        self.send(world, &[at], true);
        // It must not be sent again as a call of its own.
        self.ledger.calls[at].key = None;
    }

    fn upgrade(&mut self, world: &Life) {
        if self.is_upgraded || self.upgraded_at.is_some() || self.stats.checks < 2 {
            return;
        }
        let deployed = world.router().deploy(NAME, BYTES[1]);
        self.note(|| format!("deploy: {:?}", deployed.as_ref().map(|deployed| deployed.lsn)));
        self.look_at_versions(world);
        if deployed.is_ok() {
            self.upgraded_at = Some(world.disk.ops_count());
            self.stats.upgrades += 1;
        }
    }

    fn break_disk(&mut self, world: &Life) {
        let mut plan = FaultPlan {
            lies: self.options.mutant == Some(Mutant::LyingDisk),
            ..FaultPlan::default()
        };
        plan.fails_once = self.below(2) == 0;
        match self.below(6) {
            0 => plan.sync_error_in = Some(self.below(6)),
            1 => plan.write_error_in = Some(self.below(6)),
            2 => plan.read_only = true,
            3 | 4 => {
                plan.capacity_bytes = Some(world.disk.used_bytes() + self.below(20_000));
                self.stats.full_disks += 1;
            }
            _ => {}
        }
        self.note(|| format!("faults: {plan:?}"));
        world.disk.set_faults(plan);
    }

    /// What is called durable is in every crash image.
    fn check_durable(&mut self, world: &Life) -> Result<(), String> {
        self.stats.checks += 1;
        let durable = world.router().status().durable_lsn;
        let policy = match self.below(3) {
            0 => CrashPolicy::LoseAll,
            1 => CrashPolicy::KeepAll,
            _ => CrashPolicy::Random(self.random.next_u64()),
        };
        let image = world.disk.crash(&policy);
        let report = verify(&image.folder("log")).map_err(|error| error.to_string())?;
        let end = match self.settings.nvram {
            None => report.end,
            Some(number) => report.end.max(region_end(&image, number)?),
        };
        match report.damage {
            Some(damage) => Err(format!("a crash now would damage the log: {damage:?}")),
            None if end < durable && durable > Lsn(0) => Err(format!(
                "durable is {durable}, and a crash would keep the log up to {end}"
            )),
            None => Ok(()),
        }
    }

    /// Ends a life by a crash or in order; the disk that the next one finds.
    fn end(&mut self, mut world: Life) -> Result<SimDisk, String> {
        let infos = world.router().checkpoints();
        let published = infos
            .iter()
            .filter(|info| info.state == CheckpointState::Published && info.seconds.is_some());
        self.stats.checkpoints += published.count() as u64;
        self.look_at_choices(&world);
        self.choices.clear();
        self.look_at_backups(&world);
        self.stats.log_failures += world.is_log_stopped() as u64;
        self.stats.steps += world.stepper.steps();
        let is_crash = self.below(4) > 0;
        let ops_now = world.disk.ops_count();
        let image;
        let ops_at_death;
        if is_crash {
            self.stats.crashes += 1;
            let is_inserting = self.settings.nvram.is_some() && self.settings.flush.is_on_insert();
            self.stats.inserted_crashes += is_inserting as u64;
            let back = match self.below(4) {
                0 => 0,
                1 => self.below(ops_now as u64 + 1),
                _ => self.below(12).min(ops_now as u64),
            };
            let mut ops = ops_now - back as usize;
            if self.below(2) == 0 {
                // In the middle of a write, where there is one not long before.
                let before = (ops.saturating_sub(40)..=ops).rev();
                ops = before
                    .into_iter()
                    .find(|ops| world.disk.unsynced_sectors(*ops).is_some())
                    .unwrap_or(ops);
            }
            ops_at_death = ops;
            let policy = self.crash_policy(&world.disk, ops_at_death);
            let sectors = world.disk.unsynced_sectors(ops_at_death);
            self.note(|| {
                format!("crash after operation {ops_at_death} of {ops_now}, {policy:?}, {sectors:?} sectors in flight")
            });
            image = world.disk.crash_image(ops_at_death, &policy);
            let _ = world.close(); // another world now
        } else {
            self.stats.closes += 1;
            let was_stopped = world.is_log_stopped();
            world.disk.set_faults(FaultPlan {
                lies: self.options.mutant == Some(Mutant::LyingDisk),
                ..FaultPlan::default()
            });
            let closed = world.database().close();
            self.settle(&world)?;
            if self.ledger.flying() > 0 {
                return Err(format!("{} calls were never answered", self.ledger.flying()));
            }
            if let (Err(error), false) = (closed, was_stopped) {
                return Err(format!("close: {error}"));
            }
            ops_at_death = world.disk.ops_count();
            image = world.disk.crash(&CrashPolicy::LoseAll);
            self.note(|| "closed in order".into());
        }
        drop(world);
        self.is_upgraded |= self.upgraded_at.is_some_and(|ops| ops <= ops_at_death);
        self.upgraded_at = None;
        self.ledger.died_after(ops_at_death);
        if self.options.mutant.is_none() {
            self.check_backups(&image, ops_at_death)?;
        }
        let log = image.folder("log");
        self.stats.released_logs += log.list().is_ok_and(|names| {
            names.iter().any(|name| name.starts_with("log-")) && !names.contains(&"log-0000000000000000.seg".into())
        }) as u64;
        Ok(image)
    }

    /// A promoted standby goes on in the place of the primary, with everything before `lsn`: what was acknowledged behind it is lost.
    fn take_over(&mut self, lsn: Lsn, found: &Tables) -> Result<(), String> {
        self.stats.failovers += 1;
        self.ledger.died_after(usize::MAX);
        self.ledger.resolve(found);
        self.ledger.cut_at(lsn, found)?;
        self.ledger.lose_from(lsn);
        self.choices.clear();
        self.upgraded_at = None;
        self.told = backups::Told::default();
        Ok(())
    }

    fn crash_policy(&mut self, disk: &SimDisk, ops: usize) -> CrashPolicy {
        let sectors = disk.unsynced_sectors(ops).unwrap_or(0) as u64 + 1;
        match self.below(8) {
            0 => CrashPolicy::LoseAll,
            1 => CrashPolicy::KeepAll,
            2 => CrashPolicy::TornAfter(self.below(sectors) as usize),
            3 => CrashPolicy::TornBefore(self.below(sectors) as usize),
            _ => CrashPolicy::Random(self.random.next_u64()),
        }
    }

    /// Harms a copy of the disk: the opening refuses, or serves what is right.
    fn harm(&mut self, disk: &SimDisk) -> Result<(), String> {
        let harmed = disk.copy();
        let Some(harm) = damage::harm(&harmed, &mut self.random) else {
            return Ok(());
        };
        self.stats.harms += 1;
        self.note(|| format!("harm: {harm:?}"));
        let sites = 1 + self.below(self.settings.partitions as u64) as u16;
        self.check_harmed(&harmed, &harm, sites)
            .map_err(|what| format!("{} {}: {what}", harm.file, harm.what))
    }

    fn check_harmed(&mut self, harmed: &SimDisk, harm: &Harm, sites: u16) -> Result<(), String> {
        let (mut world, report) = match self.open_on(harmed, sites) {
            Ok(opened) => opened,
            Err(refused) => {
                self.note(|| refused.text());
                self.stats.refusals += 1;
                return Ok(());
            }
        };
        if harm.must_refuse {
            return Err("the log was opened".into());
        }
        if harm.checkpoint.is_some() && report.checkpoint.map(|loaded| loaded.lsn) == harm.checkpoint {
            return Err("the checkpoint was loaded".into());
        }
        self.stats.passed_over += !report.passed_over.is_empty() as u64;
        if world.router().deployed().current.contains_key(NAME) {
            let found = self.read_all(&world)?.ok_or("the log stopped at once")?;
            // A look at what a restart would resolve; the next life starts from the disk that was not harmed.
            let fates: Vec<_> = self.ledger.calls.iter().map(|call| call.fate.clone()).collect();
            self.ledger.resolve(&found);
            self.compare(&found, "after harm")?;
            self.ledger
                .calls
                .iter_mut()
                .zip(fates)
                .for_each(|(call, fate)| call.fate = fate);
        }
        world.close()
    }

    /// Arms what can only be armed on files.
    fn mutate(&mut self, disk: &SimDisk) -> Option<SimDisk> {
        let mutant = self.options.mutant?;
        if let Some(forgery) = mutant.log_forgery() {
            return damage::rewrite_log(disk, self.random.below(3) as usize, forgery);
        }
        let forged = damage::forge_checkpoint(disk, mutant.checkpoint_forgery()?);
        forged.map(|()| disk.clone())
    }
}
