//! Records of the log that all partitions meet at once, but for deployments (`deploy`): removals, dropped tables, quarantine, the
//! marks of checkpoints.

use reprise_base::Lsn;
use reprise_partition::{Job, TxnPartitions, record_position};
use reprise_storage::Store;
use reprise_txn::{ModuleId, Quarantine, apply_drop, remove};
use reprise_wire::{CheckpointMark, ControlRef, DropTableRef, PrincipalRef, QuarantineRef, RemoveRef, corrupt};

use crate::{error::ReplayError, replayer::Replayer};

impl Replayer {
    pub(crate) fn feed_drop(&mut self, lsn: Lsn, end: Lsn, record: &DropTableRef<'_>) -> Result<(), ReplayError> {
        let (table, txn_id, outcome) = (record.table.to_owned(), record.txn_id, self.outcome.clone());
        self.gather_barrier(Box::new(move |held| {
            if outcome.has_failed() {
                return;
            }
            let deployed = held.tools.deployed().clone();
            let Some((id, _)) = deployed.table(&table) else {
                return outcome.fail(ReplayError::DropTable { lsn, table });
            };
            let mut stores: Vec<&mut Store> = held.partitions.iter_mut().map(|part| &mut part.store).collect();
            let next = apply_drop(&deployed, id, txn_id, &mut stores);
            held.tools.install(next);
            record_position(held, txn_id, end);
        }))
    }

    pub(crate) fn feed_quarantine(
        &mut self,
        lsn: Lsn,
        end: Lsn,
        record: &QuarantineRef<'_>,
    ) -> Result<(), ReplayError> {
        let (module, procedure) = (ModuleId(record.module_id), record.procedure);
        let why = Quarantine {
            diverged: record.diverged,
            what: record.what.to_owned(),
        };
        let (txn_id, outcome) = (record.txn_id, self.outcome.clone());
        self.gather_barrier(Box::new(move |held| {
            if outcome.has_failed() {
                return;
            }
            match held.tools.deployed().with_quarantined(module, procedure, why) {
                Ok(next) => held.tools.install(next),
                Err(what) => return outcome.fail(ReplayError::Quarantine { lsn, what }),
            }
            record_position(held, txn_id, end);
        }))
    }

    /// A name of callers, which later records give by its number. All partitions meet here, so a copy of the tables that is taken
    /// before this record does not have the name.
    pub(crate) fn feed_principal(&mut self, lsn: Lsn, end: Lsn, record: &PrincipalRef<'_>) -> Result<(), ReplayError> {
        let (txn_id, number, name) = (record.txn_id, record.number, record.name.to_owned());
        let outcome = self.outcome.clone();
        let job: Job = Box::new(move |held| {
            if outcome.has_failed_before(end) {
                return;
            }
            if let Err(next) = held.tools.shared.principals.define(number, &name) {
                let error = corrupt("number of a principal", next, number);
                return outcome.fail(ReplayError::Malformed { lsn, error });
            }
            record_position(held, txn_id, end);
        });
        self.gather(TxnPartitions::All, job)
    }

    /// The transaction id that a control operation took.
    pub(crate) fn feed_control(&mut self, end: Lsn, record: &ControlRef<'_>) -> Result<(), ReplayError> {
        let txn_id = record.txn_id;
        let job: Job = Box::new(move |held| record_position(held, txn_id, end));
        self.gather(TxnPartitions::All, job)
    }

    /// The transaction id that it took, the key clock, and the work to do at this place. The clock waits until the sites have replayed
    /// everything before the mark: the mark dates the keys of these calls, and no others.
    pub(crate) fn feed_mark(&mut self, end: Lsn, mark: &CheckpointMark) -> Result<(), ReplayError> {
        let (txn_id, key_clock_us) = (mark.txn_id, mark.key_clock_us);
        let (wanted, outcome) = (
            self.at_mark.as_mut().and_then(|at_mark| at_mark(end)),
            self.outcome.clone(),
        );
        let job: Job = Box::new(move |held| {
            held.tools.shared.key_clock.raise_at_mark(key_clock_us);
            record_position(held, txn_id, end);
            if let Some(wanted) = wanted.filter(|_| !outcome.has_failed()) {
                wanted(held);
            }
        });
        self.gather(TxnPartitions::All, job)
    }

    pub(crate) fn feed_remove(&mut self, end: Lsn, record: &RemoveRef<'_>) -> Result<(), ReplayError> {
        let (name, txn_id) = (record.name.to_owned(), record.txn_id);
        self.gather_barrier(Box::new(move |held| {
            if let Some(next) = remove(held.tools.deployed(), &name) {
                held.tools.install(next);
            }
            record_position(held, txn_id, end);
        }))
    }
}
