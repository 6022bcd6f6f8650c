//! Records of the log that all partitions meet at once: deployments, removals, dropped tables, the marks of checkpoints.

use std::sync::{Arc, atomic::Ordering};

use reprise_base::{Lsn, TxnId};
use reprise_partition::{ExclusivePartitions, Job, Touched};
use reprise_storage::Store;
use reprise_txn::{Candidate, Judge, apply, apply_drop, plan, remove};
use reprise_wire::{DeployRef, DropTableRef, RemoveRef, SEMANTICS_OLDEST};

use crate::{error::ReplayError, replayer::Replayer};

impl Replayer {
    pub(crate) fn feed_deploy(&mut self, lsn: Lsn, end: Lsn, record: &DeployRef<'_>) -> Result<(), ReplayError> {
        let name = record.name.to_owned();
        let failure = |reason: String| ReplayError::Module {
            lsn,
            name: name.clone(),
            reason,
        };
        let wasm: Arc<[u8]> = record.wasm.into();
        let mut candidate = self
            .compiler
            .restore(&name, &wasm)
            .map_err(|error| failure(error.to_string()))?;
        if candidate.hash != record.hash {
            return Err(failure("its bytes do not have the logged hash".into()));
        }
        candidate.semantics = record.semantics;
        let txn_id = record.txn_id;
        let outcome = self.outcome.clone();
        self.gather(
            Touched::All,
            Box::new(move |held| {
                if outcome.has_failed() {
                    return;
                }
                match install(held, candidate, txn_id, end) {
                    Ok(()) => held.tools.shared.note_binary(wasm),
                    Err(reason) => outcome.fail(ReplayError::Module { lsn, name, reason }),
                }
            }),
        )
    }

    pub(crate) fn feed_drop(&mut self, lsn: Lsn, end: Lsn, record: &DropTableRef<'_>) -> Result<(), ReplayError> {
        let (table, txn_id, outcome) = (record.table.to_owned(), record.txn_id, self.outcome.clone());
        self.gather(
            Touched::All,
            Box::new(move |held| {
                if outcome.has_failed() {
                    return;
                }
                let deployed = held.tools.deployed().clone();
                let Some((id, _)) = deployed.table(&table) else {
                    return outcome.fail(ReplayError::DropTable { lsn, table });
                };
                let mut stores: Vec<&mut Store> = held.partitions.iter_mut().map(|part| &mut part.store).collect();
                let next = apply_drop(&deployed, id, &mut stores);
                held.tools.install(next);
                note_position(held, txn_id, end);
            }),
        )
    }

    /// Nothing but the transaction id that it took.
    pub(crate) fn feed_mark(&mut self, end: Lsn, txn_id: TxnId) -> Result<(), ReplayError> {
        let job: Job = Box::new(move |held| note_position(held, txn_id, end));
        self.gather(Touched::All, job)
    }

    pub(crate) fn feed_remove(&mut self, end: Lsn, record: &RemoveRef<'_>) -> Result<(), ReplayError> {
        let (name, txn_id) = (record.name.to_owned(), record.txn_id);
        self.gather(
            Touched::All,
            Box::new(move |held| {
                if let Some(next) = remove(held.tools.deployed(), &name) {
                    held.tools.install(next);
                }
                note_position(held, txn_id, end);
            }),
        )
    }
}

fn install(held: &mut ExclusivePartitions<'_>, candidate: Candidate, txn_id: TxnId, end: Lsn) -> Result<(), String> {
    let deployed = held.tools.deployed().clone();
    let stores: Vec<&Store> = held.partitions.iter().map(|part| &part.store).collect();
    let judge = match candidate.semantics {
        SEMANTICS_OLDEST => Judge::ReplayShared,
        _ => Judge::Replay,
    };
    let plan = plan(&deployed, &candidate, &stores, judge).map_err(|error| {
        let conflicts = error.conflicts.iter().map(|c| c.to_string());
        conflicts.collect::<Vec<_>>().join("; ")
    })?;
    let mut stores: Vec<&mut Store> = held.partitions.iter_mut().map(|part| &mut part.store).collect();
    let next = apply(&deployed, candidate, plan, txn_id, &mut stores);
    held.tools.install(next);
    note_position(held, txn_id, end);
    Ok(())
}

fn note_position(held: &mut ExclusivePartitions<'_>, txn_id: TxnId, end: Lsn) {
    for partition in held.partitions.iter_mut() {
        partition.clock.advance_past(txn_id.tick());
        partition.last_end = end;
    }
    let shared = &held.tools.shared;
    shared.multi_tick.fetch_max(txn_id.tick(), Ordering::AcqRel);
}
