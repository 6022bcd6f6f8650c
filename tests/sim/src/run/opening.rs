//! How a life begins: what it logs, on how many sites, sometimes after a try on a failing disk.

use reprise_base::{Role, limits::PART_BYTES};
use reprise_database::{AfterImage, FlushPolicy, LogPolicy, RecoveryReport};
use reprise_env::{SimDisk, sim::FaultPlan};

use super::{Life, Run};
use crate::{
    ledger::Attempt,
    module::Way,
    mutant::Mutant,
    world::{Refused, World, any_redo},
};

impl Run {
    pub(super) fn open_on(&mut self, disk: &SimDisk, sites: u16) -> Result<(Life, RecoveryReport), Refused> {
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
        World::open(disk, (self.settings, Role::Primary), sites, self.now_us, seed)
    }

    /// Chooses the log form of the next life, and the record that its recovery prefers.
    pub(super) fn choose_log(&mut self) {
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
        self.settings.part_bytes = match self.below(5) {
            0 => PART_BYTES,
            at => [1, 60, 250, 900][at as usize - 1],
        };
        self.settings.redo = any_redo(|bound| self.below(bound));
        self.settings.flush = match (self.settings.log, self.settings.redo.images) {
            (LogPolicy::Command, _) | (_, AfterImage::Whole) => FlushPolicy::OnCommit,
            _ => FlushPolicy::ALL[self.below(3) as usize],
        };
    }

    /// Opens an undamaged disk, sometimes after a try on which the disk failed.
    pub(super) fn open(&mut self, disk: &SimDisk) -> Result<Life, String> {
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
    pub(super) fn open_with_faults(&mut self, disk: &SimDisk, sites: u16) -> Result<(), String> {
        let plan = FaultPlan {
            sync_error_in: Some(self.below(6)),
            write_error_in: (self.below(2) == 0).then(|| self.random.below(6)),
            ..FaultPlan::default()
        };
        disk.set_faults(plan);
        let seed = self.random.next_u64();
        self.stats.lives += 1;
        let tried = World::<Attempt>::open(disk, (self.settings, Role::Primary), sites, self.now_us, seed);
        self.note(|| match &tried {
            Ok(_) => "opened on a failing disk".into(),
            Err(refused) => format!("not opened on a failing disk: {}", refused.text()),
        });
        if let Ok((mut world, _)) = tried {
            let _ = world.close(); // the disk may fail now
        }
        Ok(())
    }
}
