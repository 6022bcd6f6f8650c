//! A program that does not do again what it did: replay diverges, and the procedure goes into quarantine.

use reprise_database::{OpenError, RecoverFrom, RecoveryError, ReplayError};
use reprise_env::{
    SimDisk,
    sim::{CrashPolicy, FaultPlan},
};
use reprise_router::ReplyOutcome;

use super::{Life, Run};
use crate::{
    ledger::Ledger,
    module::{BYTES, NAME, Way},
    op::Op,
    world::Refused,
};

impl Run {
    /// Opens a copy of the disk with a program whose `add` adds more than it did.
    pub(super) fn check_drift(&mut self, disk: &SimDisk) -> Result<(), String> {
        let settings = self.settings;
        self.settings.way = Way::Drifts;
        let checked = self.open_drifting(&disk.copy());
        self.settings = settings;
        checked.map_err(|what| format!("a program that drifts: {what}"))
    }

    fn open_drifting(&mut self, disk: &SimDisk) -> Result<(), String> {
        self.settings.quarantines = true;
        let sites = 1 + self.below(self.settings.partitions as u64) as u16;
        let mut world = match self.open_on(disk, sites) {
            Ok((world, _)) => world,
            Err(refused) => return self.is_divergence(&refused),
        };
        let second_from = self.ledger.second_from;
        let version = self.look_at_versions(&world);
        let compared = match version {
            None => Ok(()),
            Some(_) => self.check_tables(&world),
        };
        self.ledger.second_from = second_from;
        compared?;
        if world.database().quarantine().is_empty() {
            return world.close();
        }
        self.stats.quarantines += 1;
        self.check_refused(&world)?;
        let image = self.keep_quarantine(world)?;
        self.reopen_drifting(image)
    }

    /// Compares a copy's tables, and then restores the known fates of calls, because the copy decides nothing.
    fn check_tables(&mut self, world: &Life) -> Result<(), String> {
        let found = self.read_all(world)?.ok_or("the log stopped at once")?;
        let fates: Vec<_> = self.ledger.calls.iter().map(|call| call.fate.clone()).collect();
        self.ledger.resolve(&found);
        let compared = self.compare(&found, "the tables");
        let calls = self.ledger.calls.iter_mut();
        calls.zip(fates).for_each(|(call, fate)| call.fate = fate);
        compared
    }

    /// Checks that the start was refused because replay does something else, and the log does not have the changes.
    fn is_divergence(&mut self, refused: &Refused) -> Result<(), String> {
        match refused {
            Refused::Recover(OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found))))
                if found.procedure == "add" =>
            {
                self.stats.divergences += 1;
                Ok(())
            }
            other => Err(other.text()),
        }
    }

    /// Checks that the server refuses `add` if the version in service is in quarantine, and takes all other calls.
    fn check_refused(&mut self, world: &Life) -> Result<(), String> {
        let deployed = world.router().deployed();
        let version = deployed.current.get(NAME).map(|module| module.version);
        let list = world.database().quarantine();
        let is_refused = list.iter().any(|found| Some(found.version) == version);
        for (op, is_refused) in [
            (Op::Add { id: 1, amount: 3 }, is_refused),
            (Op::Announce { value: 3 }, false),
        ] {
            let mut args = Vec::new();
            // A nonce of no other call.
            op.encode(Ledger::nonce(1 << 30) + self.random.below(1 << 30) as i64, &mut args);
            world.submit(&[(op.procedure(), None, args)], Vec::new());
            let reply = loop {
                match world.take_arrived().pop() {
                    Some(arrived) => break arrived.reply,
                    None => world.stepper.help(),
                }
            };
            let is_right = match reply.get(0).outcome {
                ReplyOutcome::Quarantined(_) => is_refused,
                ReplyOutcome::Committed => !is_refused,
                _ => false,
            };
            if !is_right {
                return Err(format!("{op:?} ended with {:?}", reply.get(0).outcome));
            }
        }
        Ok(())
    }

    /// Keeps the quarantine on a disk that may fail, and crashes. Returns the disk after that, and whether the list must be there.
    fn keep_quarantine(&mut self, mut world: Life) -> Result<(SimDisk, bool), String> {
        let before = world.disk.ops_count();
        world.disk.set_faults(FaultPlan {
            sync_error_in: (self.below(3) == 0).then(|| self.random.below(3)),
            write_error_in: (self.below(4) == 0).then(|| self.random.below(2)),
            fails_once: true,
            ..FaultPlan::default()
        });
        let kept = world.database().keep_quarantine();
        world.disk.set_faults(FaultPlan::default());
        let after = world.disk.ops_count();
        let ops = match self.below(2) {
            0 => after,
            _ => before + self.below((after - before) as u64 + 1) as usize,
        };
        let is_kept = kept.is_ok() && ops == after;
        self.note(|| format!("quarantine kept: {kept:?}, crash after operation {ops} of {after}"));
        let image = world
            .disk
            .crash_image(ops, &CrashPolicy::Random(self.random.next_u64()));
        let _ = world.close(); // another world now
        Ok((image, is_kept))
    }

    /// The next opening knows of it, or meets it once more; a new version of the module ends it.
    fn reopen_drifting(&mut self, (disk, is_kept): (SimDisk, bool)) -> Result<(), String> {
        self.settings.quarantines = false;
        let mut world = match self.open_on(&disk, 1) {
            Ok((world, _)) => world,
            Err(refused) if is_kept => return Err(format!("the quarantine was kept: {}", refused.text())),
            Err(refused) => return self.is_divergence(&refused),
        };
        let is_replayed = self.settings.redo.from == RecoverFrom::Command;
        if world.database().quarantine().is_empty() && (is_kept || is_replayed) {
            return Err("nothing is in quarantine, and nothing diverged".into());
        }
        self.check_refused(&world)?;
        let deployed = world.router().deployed();
        if deployed.current.get(NAME).is_some_and(|module| module.version == 1) {
            let deployed = world.router().deploy(NAME, BYTES[1]);
            deployed.map_err(|error| format!("deploy over the quarantine: {error}"))?;
            self.check_refused(&world)?;
        }
        world.close()
    }
}
