//! From the log to ready partitions: reads records in order and hands each to the engine threads that own its partitions.
//! Owns: the walk over the log at opening, its progress, its parallelism.
//! Does not: apply a record (`replay`), judge a torn tail (`log`), accept calls (`router`).
//! Invariants: each partition sees its records in log order; a multi-partition record is a barrier for what it touches;
//! after an error no partition is served.
//! Called by: the binary, before the router takes calls.
#![forbid(unsafe_code)]

mod fill;
mod load;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_checkpoint::CheckpointError;
use reprise_partition::{Gathering, Held, Job, Shared, SiteMessage, Touched, receive};
use reprise_replay::{Command, Divergence, Replayed, replay_multi, replay_single};
use reprise_storage::Store;
use reprise_txn::{Candidate, Compiler, apply, plan, remove};
use reprise_wire::{CommandRef, DeployRef, PartitionSet, RecordRef, RemoveRef};

pub use load::LoadedKey;

/// Commands that travel to a site together.
const JOB_COMMANDS: usize = 256;
/// Jobs on their way at most, over all sites: bounds memory while the reader is ahead.
const JOBS_IN_FLIGHT_MAX: usize = 64;

/// Why the tables could not be made from the log.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error(transparent)]
    Diverged(#[from] Box<Divergence>),
    #[error("the module {name:?} deployed at LSN {lsn} can't be installed again: {reason}")]
    Module {
        lsn: Lsn,
        name: String,
        reason: String,
    },
    #[error(
        "the log was made for {found} partitions; the record at LSN {lsn} names partition {partition}"
    )]
    Partition {
        lsn: Lsn,
        partition: u16,
        found: u16,
    },
    #[error("the record at LSN {lsn} is of kind {kind}, which this program can't replay")]
    Kind { lsn: Lsn, kind: &'static str },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the engine has stopped")]
    Stopped,
}

/// What came out of the log.
#[derive(Default)]
pub struct Recovered {
    /// Transactions replayed.
    pub commands: u64,
    /// Outcomes of the calls that carried idempotency keys, in no particular order.
    pub remembered: Vec<Replayed>,
}

/// Hands records to the sites. Feed it in log order, then `finish`.
pub struct Recovery {
    shared: Arc<Shared>,
    inboxes: Vec<Sender<SiteMessage>>,
    compiler: Arc<dyn Compiler>,
    /// Commands gathered for a site, in order, not sent yet.
    pending: Vec<Vec<(PartitionId, Command)>>,
    outcome: Arc<Outcome>,
    /// A token per job that may yet be sent.
    tokens: (Sender<()>, Receiver<()>),
    commands: u64,
}

/// What the sites report.
#[derive(Default)]
struct Outcome {
    failed: AtomicBool,
    error: Mutex<Option<RecoveryError>>,
    remembered: Mutex<Vec<Replayed>>,
    replayed: AtomicU64,
}

impl Outcome {
    /// Keeps the error of the earliest position: later ones may follow from it.
    fn fail(&self, error: RecoveryError) {
        self.failed.store(true, Ordering::Release);
        let mut kept = self.error.lock().expect("held for a store");
        let is_earlier = match (&*kept, &error) {
            (None, _) => true,
            (Some(RecoveryError::Diverged(old)), RecoveryError::Diverged(new)) => new.lsn < old.lsn,
            (Some(_), _) => false,
        };
        if is_earlier {
            *kept = Some(error);
        }
    }

    fn note(&self, result: Result<Option<Replayed>, Box<Divergence>>) {
        self.replayed.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(None) => {}
            Ok(Some(replayed)) => {
                let mut remembered = self.remembered.lock().expect("held for a push");
                remembered.push(replayed);
            }
            Err(divergence) => self.fail(RecoveryError::Diverged(divergence)),
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

impl Recovery {
    pub fn new(
        shared: Arc<Shared>,
        inboxes: Vec<Sender<SiteMessage>>,
        compiler: Arc<dyn Compiler>,
    ) -> Self {
        let tokens = crossbeam_channel::bounded(JOBS_IN_FLIGHT_MAX);
        for _ in 0..JOBS_IN_FLIGHT_MAX {
            tokens.0.send(()).expect("the channel has room for all");
        }
        Self {
            pending: inboxes.iter().map(|_| Vec::new()).collect(),
            shared,
            inboxes,
            compiler,
            outcome: Arc::default(),
            tokens,
            commands: 0,
        }
    }

    /// Transactions that the sites have replayed so far.
    pub fn replayed(&self) -> u64 {
        self.outcome.replayed.load(Ordering::Relaxed)
    }

    /// Takes the next record, which lies at `lsn..end`. Err: something failed, here or earlier; stop feeding.
    pub fn feed(&mut self, lsn: Lsn, end: Lsn, record: RecordRef<'_>) -> Result<(), RecoveryError> {
        if self.outcome.has_failed() {
            return Err(self.take_error());
        }
        match record {
            RecordRef::Command(command) => self.feed_command(lsn, end, &command),
            RecordRef::Deploy(deploy) => self.feed_deploy(lsn, end, &deploy),
            RecordRef::Remove(removal) => self.feed_remove(end, &removal),
            RecordRef::Checkpoint(mark) => self.feed_mark(end, mark.txn_id),
            RecordRef::Changes(_) => Err(RecoveryError::Kind {
                lsn,
                kind: record.kind().name(),
            }),
            RecordRef::Genesis(_) => Ok(()),
        }
    }

    fn feed_command(
        &mut self,
        lsn: Lsn,
        end: Lsn,
        record: &CommandRef<'_>,
    ) -> Result<(), RecoveryError> {
        self.commands += 1;
        let command = Command {
            lsn,
            end,
            txn_id: record.txn_id,
            module_id: reprise_txn::ModuleId(record.module_id),
            procedure: record.procedure,
            digest: record.digest,
            args: record.args.to_vec(),
            idempotency_key: record.idempotency_key.map(Into::into),
        };
        let touched = match &record.partitions {
            PartitionSet::One(partition) => {
                let partition = self.check_partition(lsn, *partition)?;
                let site = partition.site(self.shared.sites_count).index();
                self.pending[site].push((partition, command));
                if self.pending[site].len() >= JOB_COMMANDS {
                    self.send_pending(site)?;
                }
                return Ok(());
            }
            PartitionSet::All => Touched::All,
            PartitionSet::Several(list) => {
                let mut partitions = Vec::new();
                for partition in list.iter() {
                    partitions.push(self.check_partition(lsn, partition)?);
                }
                Touched::Some(partitions)
            }
        };
        let outcome = self.outcome.clone();
        self.gather(
            touched,
            Box::new(move |held| {
                if !outcome.has_failed() {
                    outcome.note(replay_multi(held, command));
                }
            }),
        )
    }

    fn check_partition(
        &self,
        lsn: Lsn,
        partition: PartitionId,
    ) -> Result<PartitionId, RecoveryError> {
        if partition.0 < self.shared.partitions_count {
            return Ok(partition);
        }
        Err(RecoveryError::Partition {
            lsn,
            partition: partition.0,
            found: self.shared.partitions_count,
        })
    }

    fn feed_deploy(
        &mut self,
        lsn: Lsn,
        end: Lsn,
        record: &DeployRef<'_>,
    ) -> Result<(), RecoveryError> {
        let name = record.name.to_owned();
        let failure = |reason: String| RecoveryError::Module {
            lsn,
            name: name.clone(),
            reason,
        };
        let candidate = self
            .compiler
            .compile(&name, record.wasm)
            .map_err(|error| failure(error.to_string()))?;
        if candidate.hash != record.hash {
            return Err(failure("its bytes do not have the logged hash".into()));
        }
        let txn_id = record.txn_id;
        let wasm: Arc<[u8]> = record.wasm.into();
        let outcome = self.outcome.clone();
        self.gather(
            Touched::All,
            Box::new(move |held| {
                if outcome.has_failed() {
                    return;
                }
                match install(held, candidate, txn_id, end) {
                    Ok(()) => held.tools.shared.note_binary(wasm),
                    Err(reason) => outcome.fail(RecoveryError::Module { lsn, name, reason }),
                }
            }),
        )
    }

    /// Nothing but the transaction id that it took.
    fn feed_mark(&mut self, end: Lsn, txn_id: TxnId) -> Result<(), RecoveryError> {
        let job: Job = Box::new(move |held| note_position(held, txn_id, end));
        self.gather(Touched::All, job)
    }

    fn feed_remove(&mut self, end: Lsn, record: &RemoveRef<'_>) -> Result<(), RecoveryError> {
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

    /// Waits until every site has done all of it.
    pub fn finish(mut self) -> Result<Recovered, RecoveryError> {
        self.send_all_pending()?;
        for _ in 0..JOBS_IN_FLIGHT_MAX {
            self.take_token()?;
        }
        if self.outcome.has_failed() {
            return Err(self.take_error());
        }
        let mut remembered = self.outcome.remembered.lock().expect("no site works now");
        Ok(Recovered {
            commands: self.commands,
            remembered: std::mem::take(&mut remembered),
        })
    }

    fn take_error(&self) -> RecoveryError {
        let mut error = self.outcome.error.lock().expect("held for a store");
        error.take().unwrap_or(RecoveryError::Stopped)
    }

    fn send_pending(&mut self, site: usize) -> Result<(), RecoveryError> {
        if self.pending[site].is_empty() {
            return Ok(());
        }
        let commands = std::mem::take(&mut self.pending[site]);
        self.take_token()?;
        let (outcome, token) = (self.outcome.clone(), self.tokens.0.clone());
        let job = SiteMessage::Job(Box::new(move |site| {
            for (id, command) in commands {
                if outcome.has_failed() {
                    break;
                }
                let (partition, tools) = site.split(id);
                outcome.note(replay_single(partition, tools, command));
            }
            let _ = token.send(()); // recovery may have ended with an error
        }));
        self.inboxes[site]
            .send(job)
            .map_err(|_| RecoveryError::Stopped)
    }

    fn send_all_pending(&mut self) -> Result<(), RecoveryError> {
        (0..self.inboxes.len()).try_for_each(|site| self.send_pending(site))
    }

    /// A job over several partitions, after all that was fed before.
    fn gather(&mut self, touched: Touched, job: Job) -> Result<(), RecoveryError> {
        self.send_all_pending()?;
        self.take_token()?;
        let token = self.tokens.0.clone();
        let job: Job = Box::new(move |held| {
            job(held);
            let _ = token.send(()); // as in `send_pending`
        });
        let sites = touched.sites(self.shared.sites_count);
        let gathering = Arc::new(Gathering::new(touched, self.shared.partitions_count, job));
        for site in sites {
            self.inboxes[site]
                .send(SiteMessage::Gather(gathering.clone()))
                .map_err(|_| RecoveryError::Stopped)?;
        }
        Ok(())
    }

    fn take_token(&self) -> Result<(), RecoveryError> {
        receive(&*self.shared.threads, &self.tokens.1).map_err(|_| RecoveryError::Stopped)
    }
}

fn install(
    held: &mut Held<'_>,
    candidate: Candidate,
    txn_id: TxnId,
    end: Lsn,
) -> Result<(), String> {
    let deployed = held.tools.deployed().clone();
    let stores: Vec<&Store> = held.partitions.iter().map(|part| &part.store).collect();
    let plan = plan(&deployed, &candidate, &stores).map_err(|error| {
        let conflicts = error.conflicts.iter().map(|c| c.to_string());
        conflicts.collect::<Vec<_>>().join("; ")
    })?;
    let mut stores: Vec<&mut Store> = held
        .partitions
        .iter_mut()
        .map(|part| &mut part.store)
        .collect();
    let next = apply(&deployed, candidate, plan, txn_id, &mut stores);
    held.tools.install(next);
    note_position(held, txn_id, end);
    Ok(())
}

fn note_position(held: &mut Held<'_>, txn_id: TxnId, end: Lsn) {
    for partition in held.partitions.iter_mut() {
        partition.clock.advance_past(txn_id.tick());
        partition.last_end = end;
    }
    let shared = &held.tools.shared;
    shared.multi_tick.fetch_max(txn_id.tick(), Ordering::AcqRel);
}
