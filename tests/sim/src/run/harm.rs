//! Files that are harmed at rest, and what only files can arm.

use std::sync::Arc;

use reprise_checkpoint::Checkpoints;
use reprise_env::SimDisk;

use super::Run;
use crate::{
    damage::{self, Harm},
    module::NAME,
};

impl Run {
    /// Harms a copy of the disk. The opening must refuse it, or serve the right rows.
    pub(super) fn harm(&mut self, disk: &SimDisk) -> Result<(), String> {
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

    pub(super) fn check_harmed(&mut self, harmed: &SimDisk, harm: &Harm, sites: u16) -> Result<(), String> {
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
        let loaded = report.checkpoint.map(|loaded| loaded.lsn);
        if let Some(lsn) = harm.checkpoint.filter(|lsn| loaded == Some(*lsn)) {
            // A load reads no bytes of former versions. A reader of these has to find the harm.
            let files = Checkpoints::new(Arc::new(harmed.folder("checkpoints")));
            let read = files.open(lsn).and_then(|reader| reader.module_bytes(&[0; 32]));
            if read.is_ok() {
                return Err("the checkpoint was loaded".into());
            }
        }
        self.stats.passed_over += !report.passed_over.is_empty() as u64;
        if world.router().deployed().current.contains_key(NAME) {
            let found = self.read_all(&world)?.ok_or("the log stopped at once")?;
            // The calls are settled as a restart would do it. The next life starts from the disk that was not harmed.
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
    pub(super) fn mutate(&mut self, disk: &SimDisk) -> Option<SimDisk> {
        let mutant = self.options.mutant?;
        if let Some(forgery) = mutant.log_forgery() {
            return damage::rewrite_log(disk, self.random.below(3) as usize, forgery);
        }
        let forged = damage::forge_checkpoint(disk, mutant.checkpoint_forgery()?);
        forged.map(|()| disk.clone())
    }
}
