//! Procedures that were taken out of service because their replay diverged.

use std::collections::BTreeSet;

use reprise_base::Lsn;
use reprise_partition::Touched;
use reprise_recovery::RecoveryError;
use reprise_replay::Divergence;
use reprise_txn::{Deployed, ModuleId};
use reprise_wire::RecordRef;
use serde::Serialize;

use crate::{database::Database, error::OpenError};

/// A procedure of one module version that takes no calls; of what it did, the log's changes are believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Quarantined {
    /// Number of the version in the log.
    pub module_id: u32,
    /// Its number in the module.
    pub procedure_number: u16,
    pub module: String,
    pub version: u32,
    pub procedure: String,
    /// The record that diverged.
    pub lsn: u64,
    pub what: String,
}

impl Quarantined {
    pub(crate) fn of(found: &Divergence) -> Self {
        Self {
            module_id: found.module_id.0,
            procedure_number: found.procedure_number,
            module: found.module.clone(),
            version: found.version,
            procedure: found.procedure.clone(),
            lsn: found.lsn.0,
            what: found.what.clone(),
        }
    }

    pub fn name(&self) -> String {
        format!("{}.{}", self.module, self.procedure)
    }

    fn place(&self) -> (ModuleId, u16) {
        (ModuleId(self.module_id), self.procedure_number)
    }

    fn why(&self) -> reprise_txn::Quarantined {
        reprise_txn::Quarantined {
            diverged: Lsn(self.lsn),
            what: self.what.clone(),
        }
    }

    fn all_of(deployed: &Deployed) -> Vec<Self> {
        let all = deployed.quarantine.iter();
        let told = all.map(|((id, number), why)| {
            let module = &deployed.versions[id.0 as usize];
            Self {
                module_id: id.0,
                procedure_number: *number,
                module: module.name.clone(),
                version: module.version,
                procedure: module.schema.procedures[*number as usize].name.clone(),
                lsn: why.diverged.0,
                what: why.what.clone(),
            }
        });
        told.collect()
    }
}

impl Database {
    /// Procedures that take no calls.
    pub fn quarantine(&self) -> Vec<Quarantined> {
        Quarantined::all_of(&self.router().deployed())
    }

    /// Makes the quarantine outlast this process: a record in the log for each procedure that has none yet. After a recovery that went through.
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
            Touched::All,
            Box::new(move |held| {
                for found in list {
                    let (module, procedure) = found.place();
                    // A procedure that there is not takes no calls as it is.
                    if let Ok(next) = held.tools.deployed().with_quarantined(module, procedure, found.why()) {
                        held.tools.install(next);
                    }
                }
            }),
        )?;
        Ok(replayer.drain()?)
    }

    /// Every procedure whose changes are to be believed, by its version and number: in service so, noted in the log, or about to be.
    pub(crate) fn distrusted(&self) -> Result<BTreeSet<(ModuleId, u16)>, OpenError> {
        let mut places: BTreeSet<_> = self.router().deployed().quarantine.keys().copied().collect();
        let list = self.upkeep.quarantine.lock().expect("held for a look");
        places.extend(list.iter().map(Quarantined::place));
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
