//! Disks that fail, what is durable meanwhile, and how a life ends: by a crash, in order, or by a standby that takes over.

use reprise_base::Lsn;
use reprise_env::{
    Disk, SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_log::verify;
use reprise_upkeep::CheckpointPhase;

use super::{Life, Run, backups};
use crate::{model::Tables, mutant::Mutant, region::region_end};

impl Run {
    pub(super) fn break_disk(&mut self, world: &Life) {
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

    /// Checks that durable records are in every crash image.
    pub(super) fn check_durable(&mut self, world: &Life) -> Result<(), String> {
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
    pub(super) fn end(&mut self, mut world: Life) -> Result<SimDisk, String> {
        let infos = world.checkpointer().list();
        let published = infos
            .iter()
            .filter(|info| info.state == CheckpointPhase::Published && info.seconds.is_some());
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
                // The crash is in the middle of a write, if there is one not long before.
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

    /// Continues with a promoted standby in place of the primary, with everything before `lsn`. Acknowledged calls behind it are lost.
    pub(super) fn take_over(&mut self, lsn: Lsn, found: &Tables) -> Result<(), String> {
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

    pub(super) fn crash_policy(&mut self, disk: &SimDisk, ops: usize) -> CrashPolicy {
        let sectors = disk.unsynced_sectors(ops).unwrap_or(0) as u64 + 1;
        match self.below(8) {
            0 => CrashPolicy::LoseAll,
            1 => CrashPolicy::KeepAll,
            2 => CrashPolicy::TornAfter(self.below(sectors) as usize),
            3 => CrashPolicy::TornBefore(self.below(sectors) as usize),
            _ => CrashPolicy::Random(self.random.next_u64()),
        }
    }
}
