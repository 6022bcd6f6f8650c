//! Replays a deployment: the module is validated without the day's limits, and its deployment code runs over the same tables. Its
//! digests are compared with the record's.

use std::sync::Arc;

use reprise_base::{Lsn, TxnId};
use reprise_partition::{
    ExclusivePartitions, InstallError, InstallRules, Installation, MigrationDigests, install, record_position,
};
use reprise_storage::Conflict;
use reprise_txn::{ModuleId, PlanSummary, TableSources, failure_text};
use reprise_wire::DeployRef;

use crate::{command::Divergence, error::ReplayError, replayer::Replayer};

/// A deployment as the log holds it.
struct LoggedDeployment {
    lsn: Lsn,
    end: Lsn,
    name: String,
    hash: [u8; 32],
    version: u32,
    module_id: ModuleId,
    migrated: MigrationDigests,
}

impl Replayer {
    pub(crate) fn feed_deploy(&mut self, lsn: Lsn, end: Lsn, record: &DeployRef<'_>) -> Result<(), ReplayError> {
        let logged = LoggedDeployment {
            lsn,
            end,
            name: record.name.to_owned(),
            hash: record.hash,
            version: record.version,
            module_id: ModuleId(record.module_id),
            migrated: MigrationDigests {
                digests: record.migration.map_or(Vec::new(), |found| found.digests().collect()),
            },
        };
        let wasm: Arc<[u8]> = record.wasm.into();
        let restored = self.compiler.restore(record.name, &wasm);
        let candidate = restored.map_err(|error| logged.refused(error.to_string()))?;
        if candidate.hash != record.hash {
            return Err(logged.refused("its bytes do not have the logged hash".into()));
        }
        if self.points.is_some() {
            // Compiled here so that no engine thread has to, while reads continue at the position before. Calls get the error of a
            // module that can't be compiled.
            let _ = candidate.code.prepare();
        }
        let tables = record.tables.tables().map(|(table, was, columns)| TableSources {
            table: table.to_owned(),
            was: was.to_owned(),
            columns,
        });
        let installation = Installation {
            rules: InstallRules::Logged(tables.collect()),
            candidate,
            wasm,
            txn_id: record.txn_id,
        };
        let outcome = self.outcome.clone();
        self.gather_barrier(Box::new(move |held| {
            if outcome.has_failed() {
                return;
            }
            if let Err(error) = logged.install(held, installation) {
                outcome.fail(error);
            }
        }))
    }
}

impl LoggedDeployment {
    fn install(&self, held: &mut ExclusivePartitions<'_>, installation: Installation) -> Result<(), ReplayError> {
        let txn_id = installation.txn_id;
        let compare = |_: &mut ExclusivePartitions<'_>, _: &PlanSummary, ran: &MigrationDigests| {
            self.compare(ran).map(|()| (self.lsn, ()))
        };
        let compared = install(held, installation, compare).map_err(|error| match error {
            InstallError::Conflicts(conflicts) => self.refused(texts(&conflicts)),
            InstallError::Migration { partition, failure, .. } => {
                let what = format!(
                    "on partition {partition} it committed when logged and {}",
                    failure_text(&failure)
                );
                self.diverged(txn_id, what)
            }
            InstallError::Replicated { table } => {
                self.diverged(txn_id, format!("it leaves different rows of {table} on the partitions"))
            }
            InstallError::Consent { .. }
            | InstallError::Memory { .. }
            | InstallError::Time { .. }
            | InstallError::Log(_) => ReplayError::Stopped,
        })?;
        compared.map_err(|what| self.diverged(txn_id, what))?;
        record_position(held, txn_id, self.end);
        Ok(())
    }

    /// Compares the run with the log. Err: how they differ.
    fn compare(&self, ran: &MigrationDigests) -> Result<(), String> {
        let (logged, found) = (&self.migrated.digests, &ran.digests);
        if logged.len() != found.len() {
            return Err(format!(
                "it was logged of {} partitions and ran on {}",
                logged.len(),
                found.len()
            ));
        }
        let mut both = logged.iter().zip(found).enumerate();
        match both.find(|(_, (logged, found))| logged != found) {
            None => Ok(()),
            Some((partition, (logged, found))) => Err(format!(
                "on partition {partition} it wrote something else (digest {found:016x}, logged {logged:016x})"
            )),
        }
    }

    fn refused(&self, reason: String) -> ReplayError {
        ReplayError::Module {
            lsn: self.lsn,
            name: self.name.clone(),
            reason,
        }
    }

    fn diverged(&self, txn_id: TxnId, what: String) -> ReplayError {
        ReplayError::Diverged(Box::new(Divergence {
            lsn: self.lsn,
            txn_id,
            module: self.name.clone(),
            version: self.version,
            hash: self.hash.iter().map(|byte| format!("{byte:02x}")).collect(),
            procedure: "on_deploy".to_owned(),
            module_id: self.module_id,
            procedure_number: u16::MAX,
            what,
            difference: None,
        }))
    }
}

fn texts(conflicts: &[Conflict]) -> String {
    let texts: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
