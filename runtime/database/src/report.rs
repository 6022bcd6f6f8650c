//! The findings and the work of an opening.

use reprise_base::Lsn;
use reprise_replay::Divergence;
use reprise_txn::{Deployed, ModuleId, Quarantine};
use serde::Serialize;

/// The work of a recovery.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Transactions replayed.
    pub commands: u64,
    pub seconds: f64,
    /// Bytes of the replayed log.
    pub log_bytes: u64,
    /// Bytes of the kept log, all of which was checked, and the seconds of that check.
    pub checked_bytes: u64,
    pub check_seconds: f64,
    /// The part of `seconds` after the checkpoint.
    pub replay_seconds: f64,
    /// The checkpoint that was loaded, and the time of loading it.
    pub checkpoint: Option<LoadedCheckpoint>,
    /// Newer checkpoints that could not be used, and why.
    pub passed_over: Vec<String>,
    /// Bytes of a write that a crash interrupted. Recovery cut them off. No record in them was acknowledged.
    pub torn_bytes: u64,
    /// Idempotency keys found.
    pub keys: usize,
    /// Settings hash of the log's newest part, if it is not this program's. The replay compared outcomes all the same.
    pub other_settings_hash: Option<u64>,
    /// Number of versions of all modules.
    pub module_versions: usize,
}

/// A checkpoint that recovery began with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadedCheckpoint {
    pub lsn: Lsn,
    pub rows: u64,
    /// Bytes of rows, before compression.
    pub row_bytes: u64,
    pub file_bytes: u64,
    pub seconds: f64,
    /// Seconds of that time for compiling its modules.
    pub compile_seconds: f64,
}

/// The findings of an opening for reading alone.
#[derive(Debug)]
pub struct ReadOnly {
    pub report: RecoveryReport,
    /// The record before which the replay stopped.
    pub divergence: Option<Box<Divergence>>,
    /// The difference from the primary's tables when the directory was a standby's.
    pub differed: Option<String>,
}

/// A procedure of one module version that takes no calls. Replay uses the log's changes of its calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuarantinedProcedure {
    /// Number of the version in the log.
    pub module_id: u32,
    /// The procedure's number in the module.
    pub procedure_number: u16,
    pub module: String,
    pub version: u32,
    pub procedure: String,
    /// The record that diverged.
    pub lsn: u64,
    pub what: String,
}

impl QuarantinedProcedure {
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

    pub(crate) fn place(&self) -> (ModuleId, u16) {
        (ModuleId(self.module_id), self.procedure_number)
    }

    pub(crate) fn why(&self) -> Quarantine {
        Quarantine {
            diverged: Lsn(self.lsn),
            what: self.what.clone(),
        }
    }

    pub(crate) fn all_of(deployed: &Deployed) -> Vec<Self> {
        let all = deployed.quarantine.iter();
        let entries = all.map(|((id, number), why)| {
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
        entries.collect()
    }
}
