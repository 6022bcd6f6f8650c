//! Procedures that were taken out of service because their replay diverged.

use std::collections::BTreeSet;

use reprise_partition::TxnPartitions;
use reprise_recovery::RecoveryError;
use reprise_txn::ModuleId;
use reprise_wire::RecordRef;

use crate::{database::Database, error::OpenError, report::QuarantinedProcedure};

impl Database {
    /// Returns the procedures that take no calls.
    pub fn quarantine(&self) -> Vec<QuarantinedProcedure> {
        QuarantinedProcedure::all_of(&self.router().deployed())
    }

    /// Makes the quarantine outlast this process: it logs a record for each procedure that has none yet. It comes after a recovery that
    /// succeeded.
    pub fn keep_quarantine(&self) -> Result<(), OpenError> {
        let mut list = self.upkeep.quarantine.lock().expect("held by who keeps it");
        while let Some(found) = list.first() {
            let (module, procedure) = found.place();
            self.router().quarantine(module, procedure, found.why())?;
            list.remove(0);
        }
        Ok(())
    }

    /// Refuses calls of procedures whose records are not in the log yet.
    pub(crate) fn begin_quarantine(&self) -> Result<(), RecoveryError> {
        let list = self.upkeep.quarantine.lock().expect("held for a copy").clone();
        if list.is_empty() {
            return Ok(());
        }
        let mut replayer = self.replayer();
        replayer.gather(
            TxnPartitions::All,
            Box::new(move |held| {
                for found in list {
                    let (module, procedure) = found.place();
                    // A procedure that does not exist takes no calls anyway.
                    if let Ok(next) = held.tools.deployed().with_quarantined(module, procedure, found.why()) {
                        held.tools.install(next);
                    }
                }
            }),
        )?;
        Ok(replayer.drain()?)
    }

    /// Returns every procedure whose logged changes replace its replay, by version and number. These are the procedures out of service,
    /// those with a record in the log, and those whose record is about to be written.
    pub(crate) fn distrusted(&self) -> Result<BTreeSet<(ModuleId, u16)>, OpenError> {
        let mut places: BTreeSet<_> = self.router().deployed().quarantine.keys().copied().collect();
        let list = self.upkeep.quarantine.lock().expect("held for a short time");
        places.extend(list.iter().map(QuarantinedProcedure::place));
        let (Some(log), Some(opened)) = (&self.log, &self.opened) else {
            return Ok(places);
        };
        for lsn in &opened.found.control {
            if let Some(record) = log.record(*lsn)?
                && let RecordRef::Quarantine(found) = record.get().record
            {
                places.insert((ModuleId(found.module_id), found.procedure));
            }
        }
        Ok(places)
    }
}
