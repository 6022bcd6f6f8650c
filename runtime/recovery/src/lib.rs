//! From the log to ready partitions: reads records in order and hands each to the engine threads that own its partitions.
//! Owns: the walk over the log at opening, its progress, its parallelism.
//! Does not: apply a record (`replay`), judge a torn tail (`log`), accept calls (`router`).
//! Invariants: each partition sees its records in log order; a multi-partition record is a barrier for what it touches;
//! after an error no partition is served.
//! Called by: the binary, before the router takes calls.
#![forbid(unsafe_code)]

mod feed;
mod fill;
mod joint;
mod load;
mod parallel_redo;
mod ready;
mod window;
mod work;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::{Lsn, MemoryLedger, PartitionId, TxnId};
use reprise_checkpoint::CheckpointError;
use reprise_log::LogError;
use reprise_partition::{ExclusivePartitions, Gathering, Job, Shared, SiteMessage, Touched};
use reprise_replay::{Command, Divergence, IdempotentOutcome, LoggedChanges, Redo, ReplayOutcome, replay_multi};
use reprise_storage::Store;
use reprise_txn::{Candidate, Compiler, Judge, ModuleId, apply, apply_drop, plan, remove};
use reprise_wire::{
    ChangesRef, CommandRef, DeployRef, DropTableRef, PartitionSet, RecordRef, RemoveRef, SEMANTICS_OLDEST, WireError,
};

use crate::{
    joint::Joint,
    window::{Sorted, Window},
    work::{Batch, Part},
};

pub use feed::WINDOW_BYTES;
pub use fill::{load_sample, load_threads};
pub use load::{LoadedKey, check_descriptions};
pub use ready::make_ready;

/// Jobs on their way at most, over all sites: bounds memory while the reader is ahead. Never less than two for each site, for
/// what is sent to one may wait for what is sent to the others.
const JOBS_IN_FLIGHT: usize = 64;

/// Why the tables could not be made from the log.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    #[error(transparent)]
    Diverged(#[from] Box<Divergence>),
    #[error("the module {name:?} deployed at LSN {lsn} can't be installed again: {reason}")]
    Module { lsn: Lsn, name: String, reason: String },
    #[error("the log was made for {found} partitions; the record at LSN {lsn} names partition {partition}")]
    Partition { lsn: Lsn, partition: u16, found: u16 },
    #[error(
        "the record at LSN {lsn} can't be read, although its block is whole: {error}. Was it written by a newer program? \
         `reprise log verify` tells more"
    )]
    Malformed { lsn: Lsn, error: WireError },
    #[error(
        "the record at LSN {lsn} drops table {table:?}, which there is not; `reprise restore --lsn {lsn}` goes on from before it"
    )]
    DropTable { lsn: Lsn, table: String },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(
        "the data needs more than {} MiB of memory, which is what --memory-max leaves. Nothing was changed: start with more",
        .max / (1 << 20)
    )]
    Memory { max: u64 },
    #[error("the engine has stopped")]
    Stopped,
}

/// Which record is applied of a transaction that was logged both ways. One that was logged one way is applied that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RecoverFrom {
    /// The command is run again, and its digest compared.
    #[default]
    Command,
    /// The changed rows are put in place: nothing is run.
    Changes,
}

/// What came out of the log.
#[derive(Default)]
pub struct Recovered {
    /// Transactions replayed.
    pub commands: u64,
    /// Bytes of log that held changes alone and were applied by all cores, and how long that took; the rest of the log is
    /// mostly commands.
    pub redo_bytes: u64,
    pub redo_seconds: f64,
    /// Outcomes of the calls that carried idempotency keys, in no particular order.
    pub remembered: Vec<ReplayOutcome>,
}

/// Hands records to the sites. `feed` it, then `finish`.
pub struct Recovery {
    shared: Arc<Shared>,
    inboxes: Vec<Sender<SiteMessage>>,
    compiler: Arc<dyn Compiler>,
    from: RecoverFrom,
    quarantine: BTreeSet<(ModuleId, u16)>,
    /// What is gathered for a site, in order, and not sent yet.
    pending: Vec<Batch>,
    /// Something in `pending` is with several sites: what goes to one of them has to go to all.
    has_joint: bool,
    /// The command before, which may turn out to have been logged by its changes, too.
    held: Option<(Command, Where)>,
    /// Where the log probably ends: tables make ready for what is still to come.
    log_end: Lsn,
    /// Changes alone, not handed on yet.
    window: Window,
    /// So many of them are applied by all cores at once.
    window_bytes: usize,
    /// Memory of windows of earlier lanes.
    spare_windows: Vec<Sorted>,
    outcome: Arc<Outcome>,
    /// Batches that were done, for their memory.
    spares: (Sender<Batch>, Receiver<Batch>),
    /// A token per job that may yet be sent.
    tokens: (Sender<()>, Receiver<()>),
    jobs_in_flight_max: usize,
    commands: u64,
    /// Compiling the modules of a checkpoint took so long.
    compiled_ns: u64,
}

/// Where a command is run.
enum Where {
    One(PartitionId),
    /// Over these, all held.
    Gathered(Touched),
}

/// What the sites report.
struct Outcome {
    memory: Arc<MemoryLedger>,
    failed: AtomicBool,
    error: Mutex<Option<RecoveryError>>,
    remembered: Mutex<Vec<ReplayOutcome>>,
    replayed: AtomicU64,
    lane_bytes: AtomicU64,
    lane_ns: AtomicU64,
}

impl Outcome {
    fn new(memory: Arc<MemoryLedger>) -> Self {
        Self {
            memory,
            failed: AtomicBool::new(false),
            error: Mutex::default(),
            remembered: Mutex::default(),
            replayed: AtomicU64::new(0),
            lane_bytes: AtomicU64::new(0),
            lane_ns: AtomicU64::new(0),
        }
    }

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

    fn note(&self, result: Result<Option<ReplayOutcome>, Box<Divergence>>) {
        match result {
            Ok(None) => {}
            Ok(Some(replayed)) => self.remember(replayed),
            Err(divergence) => self.fail(RecoveryError::Diverged(divergence)),
        }
    }

    fn remember(&self, replayed: ReplayOutcome) {
        let mut remembered = self.remembered.lock().expect("held for a push");
        remembered.push(replayed);
    }

    fn count(&self, replayed: u64) {
        self.replayed.fetch_add(replayed, Ordering::Relaxed);
    }

    fn note_lane(&self, bytes: u64, ns: u64) {
        self.lane_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.lane_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Also where more memory is held than there may be: the process would be killed for it.
    fn has_failed(&self) -> bool {
        let error = self.memory_error();
        error.into_iter().for_each(|error| self.fail(error));
        self.failed.load(Ordering::Acquire)
    }

    fn memory_error(&self) -> Option<RecoveryError> {
        let max = self.memory.max_bytes();
        self.memory.is_over().then_some(RecoveryError::Memory { max })
    }
}

impl Recovery {
    pub fn new(shared: Arc<Shared>, inboxes: Vec<Sender<SiteMessage>>, compiler: Arc<dyn Compiler>) -> Self {
        let jobs_in_flight_max = JOBS_IN_FLIGHT.max(2 * inboxes.len());
        let tokens = crossbeam_channel::bounded(jobs_in_flight_max);
        for _ in 0..jobs_in_flight_max {
            tokens.0.send(()).expect("the channel has room for all");
        }
        Self {
            from: RecoverFrom::default(),
            quarantine: BTreeSet::new(),
            pending: inboxes.iter().map(|_| Batch::default()).collect(),
            has_joint: false,
            held: None,
            log_end: Lsn(0),
            window: Window::default(),
            window_bytes: WINDOW_BYTES,
            spare_windows: Vec::new(),
            spares: crossbeam_channel::unbounded(),
            outcome: Arc::new(Outcome::new(shared.memory.clone())),
            shared,
            inboxes,
            compiler,
            tokens,
            jobs_in_flight_max,
            commands: 0,
            compiled_ns: 0,
        }
    }

    /// Chooses among the records of transactions that were logged both ways.
    pub fn set_from(&mut self, from: RecoverFrom) {
        self.from = from;
    }

    /// Sets from how many bytes of changes alone on all cores apply them at once. Where a log is short, tests ask for few.
    pub fn set_window_bytes(&mut self, bytes: usize) {
        self.window_bytes = bytes;
    }

    /// Tells where what will be fed ends, so that tables can make ready for it. Nothing but speed depends on it.
    pub fn set_log_end(&mut self, end: Lsn) {
        self.log_end = end;
    }

    /// Of these procedures, by version and number, the changes are applied wherever they were logged.
    pub fn set_quarantine(&mut self, quarantine: BTreeSet<(ModuleId, u16)>) {
        self.quarantine = quarantine;
    }

    fn from_of(&self, command: &Command) -> RecoverFrom {
        match self.quarantine.contains(&(command.module_id, command.procedure)) {
            true => RecoverFrom::Changes,
            false => self.from,
        }
    }

    /// Of `load`, what compiling its modules took.
    pub fn compile_seconds(&self) -> f64 {
        self.compiled_ns as f64 / 1e9
    }

    /// Transactions that the sites have replayed so far.
    pub fn replayed(&self) -> u64 {
        self.outcome.replayed.load(Ordering::Relaxed)
    }

    /// Takes the next record, which lies at `lsn..end`.
    fn feed_record(&mut self, lsn: Lsn, end: Lsn, record: RecordRef<'_>) -> Result<(), RecoveryError> {
        if self.outcome.has_failed() {
            return Err(self.take_error());
        }
        if let RecordRef::Changes(changes) = &record
            && let Some((command, place)) = self.take_twin(changes)
        {
            return match self.from_of(&command) {
                RecoverFrom::Command => self.dispatch(command, place),
                RecoverFrom::Changes => self.feed_changes(lsn, end, changes),
            };
        }
        self.release()?;
        match record {
            RecordRef::Command(command) => self.feed_command(lsn, end, &command),
            RecordRef::Changes(changes) => self.feed_changes(lsn, end, &changes),
            RecordRef::Deploy(deploy) => self.feed_deploy(lsn, end, &deploy),
            RecordRef::Remove(removal) => self.feed_remove(end, &removal),
            RecordRef::Checkpoint(mark) => self.feed_mark(end, mark.txn_id),
            RecordRef::Genesis(_) => Ok(()),
            RecordRef::DropTable(drop) => self.feed_drop(lsn, end, &drop),
        }
    }

    /// Keeps the command until the next record is known.
    fn feed_command(&mut self, lsn: Lsn, end: Lsn, record: &CommandRef<'_>) -> Result<(), RecoveryError> {
        let place = match &record.partitions {
            PartitionSet::One(partition) => Where::One(self.check_partition(lsn, *partition)?),
            PartitionSet::All => Where::Gathered(Touched::All),
            PartitionSet::Several(list) => {
                let checked = list.iter().map(|partition| self.check_partition(lsn, partition));
                Where::Gathered(Touched::Some(checked.collect::<Result<_, _>>()?))
            }
        };
        let mut args = match &place {
            Where::One(partition) => self.pending[partition.site(self.shared.sites_count).index()].args(),
            Where::Gathered(_) => Vec::new(),
        };
        args.extend_from_slice(record.args);
        let command = Command {
            lsn,
            end,
            txn_id: record.txn_id,
            module_id: ModuleId(record.module_id),
            procedure: record.procedure,
            digest: record.digest,
            args,
            idempotency_key: record.idempotency_key.map(Into::into),
            idempotency_scope: record.idempotency_scope.into(),
            twin: None,
        };
        self.held = Some((command, place));
        Ok(())
    }

    /// The command that was held, if these are its changes: both of a transaction stand side by side.
    fn take_twin(&mut self, changes: &ChangesRef<'_>) -> Option<(Command, Where)> {
        let is_twin = |(command, _): &mut (Command, Where)| command.txn_id == changes.txn_id;
        let (mut command, place) = self.held.take_if(is_twin)?;
        if self.from == RecoverFrom::Command {
            let groups = changes.groups().map(|(id, changes)| (id, changes.into()));
            command.twin = Some(LoggedChanges {
                groups: groups.collect(),
            });
        }
        Some((command, place))
    }

    /// Lets the command that was held go to where it is run.
    fn release(&mut self) -> Result<(), RecoveryError> {
        match self.held.take() {
            Some((command, place)) => self.dispatch(command, place),
            None => Ok(()),
        }
    }

    fn dispatch(&mut self, command: Command, place: Where) -> Result<(), RecoveryError> {
        self.commands += 1;
        let touched = match place {
            Where::One(partition) => {
                let site = partition.site(self.shared.sites_count).index();
                self.pending[site].push_command(partition, command);
                return self.send_if_full(site);
            }
            Where::Gathered(touched) => touched,
        };
        match self.shared.threads.cores() {
            1 => self.gather_command(touched, command),
            _ => self.join_command(touched, command),
        }
    }

    /// Puts the command into the work of all of its sites: the last one that comes to it runs it.
    fn join_command(&mut self, touched: Touched, command: Command) -> Result<(), RecoveryError> {
        let sites = touched.sites(self.shared.sites_count);
        match self.joint_before(&touched, &sites) {
            Some(joint) => {
                joint.push(command);
                sites.iter().for_each(|site| self.pending[*site].note_joined());
            }
            None => {
                let partitions_count = touched.len(self.shared.partitions_count);
                let joint = Arc::new(Joint::new(touched, partitions_count, command));
                sites
                    .iter()
                    .for_each(|site| self.pending[*site].push_joint(joint.clone()));
                self.has_joint = true;
            }
        }
        match sites.iter().any(|site| self.pending[*site].is_full()) {
            true => self.send_all_pending(),
            false => Ok(()),
        }
    }

    /// The commands over the same partitions that come right before, for each of their sites, and were not sent.
    fn joint_before(&self, touched: &Touched, sites: &[usize]) -> Option<&Arc<Joint>> {
        let joint = self.pending[*sites.first()?].last_joint()?;
        let is_last = |site: &usize| {
            let last = self.pending[*site].last_joint();
            last.is_some_and(|last| Arc::ptr_eq(last, joint))
        };
        (joint.touched() == touched && sites.iter().all(is_last)).then_some(joint)
    }

    /// The same where one thread does everything, and none may wait for another.
    fn gather_command(&mut self, touched: Touched, command: Command) -> Result<(), RecoveryError> {
        let outcome = self.outcome.clone();
        self.gather(
            touched,
            Box::new(move |held| {
                if !outcome.has_failed() {
                    outcome.count(1);
                    outcome.note(replay_multi(held, command));
                }
            }),
        )
    }

    /// Hands each touched partition its part. No barrier: the parts do not see each other.
    fn feed_changes(&mut self, lsn: Lsn, end: Lsn, record: &ChangesRef<'_>) -> Result<(), RecoveryError> {
        self.commands += 1;
        let mut keyed = record.keyed.map(|keyed| {
            Box::new(IdempotentOutcome {
                scope: keyed.scope.into(),
                key: keyed.key.into(),
                fingerprint: keyed.fingerprint,
                result: keyed.result.into(),
            })
        });
        let is_multi = !matches!(record.partitions, PartitionSet::One(_));
        if is_multi {
            let multi_tick = &self.shared.multi_tick;
            multi_tick.fetch_max(record.txn_id.tick(), Ordering::AcqRel);
        }
        let mut groups = record.groups().peekable();
        let mut counts = true;
        let mut hand = |recovery: &mut Self, id: PartitionId| {
            let partition = recovery.check_partition(lsn, id)?;
            let changes = groups.next_if(|(changed, _)| *changed == id);
            let part = Part {
                partition,
                redo: Redo {
                    lsn,
                    end,
                    txn_id: record.txn_id,
                    module_id: ModuleId(record.module_id),
                    procedure: record.procedure,
                },
                at: 0,
                len: 0,
                counts: std::mem::take(&mut counts),
                is_multi,
                keyed: keyed.take(),
            };
            let site = partition.site(recovery.shared.sites_count).index();
            let changes = changes.map_or(&[][..], |(_, changes)| changes);
            recovery.pending[site].push_part(part, changes);
            recovery.send_if_full(site)
        };
        match &record.partitions {
            PartitionSet::One(id) => hand(self, *id),
            PartitionSet::Several(list) => list.iter().try_for_each(|id| hand(self, id)),
            PartitionSet::All => {
                let count = self.shared.partitions_count;
                (0..count).try_for_each(|id| hand(self, PartitionId(id)))?;
                groups
                    .next()
                    .map_or(Ok(()), |(id, _)| self.check_partition(lsn, id).map(drop))
            }
        }
    }

    fn check_partition(&self, lsn: Lsn, partition: PartitionId) -> Result<PartitionId, RecoveryError> {
        if partition.0 < self.shared.partitions_count {
            return Ok(partition);
        }
        Err(RecoveryError::Partition {
            lsn,
            partition: partition.0,
            found: self.shared.partitions_count,
        })
    }

    fn feed_deploy(&mut self, lsn: Lsn, end: Lsn, record: &DeployRef<'_>) -> Result<(), RecoveryError> {
        let name = record.name.to_owned();
        let failure = |reason: String| RecoveryError::Module {
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
                    Err(reason) => outcome.fail(RecoveryError::Module { lsn, name, reason }),
                }
            }),
        )
    }

    fn feed_drop(&mut self, lsn: Lsn, end: Lsn, record: &DropTableRef<'_>) -> Result<(), RecoveryError> {
        let (table, txn_id, outcome) = (record.table.to_owned(), record.txn_id, self.outcome.clone());
        self.gather(
            Touched::All,
            Box::new(move |held| {
                if outcome.has_failed() {
                    return;
                }
                let deployed = held.tools.deployed().clone();
                let Some((id, _)) = deployed.table(&table) else {
                    return outcome.fail(RecoveryError::DropTable { lsn, table });
                };
                let mut stores: Vec<&mut Store> = held.partitions.iter_mut().map(|part| &mut part.store).collect();
                let next = apply_drop(&deployed, id, &mut stores);
                held.tools.install(next);
                note_position(held, txn_id, end);
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
        self.release()?;
        self.send_all_pending()?;
        for _ in 0..self.jobs_in_flight_max {
            self.take_token()?;
        }
        if self.outcome.has_failed() {
            return Err(self.take_error());
        }
        let mut remembered = self.outcome.remembered.lock().expect("no site works now");
        Ok(Recovered {
            commands: self.commands,
            redo_bytes: self.outcome.lane_bytes.load(Ordering::Relaxed),
            redo_seconds: self.outcome.lane_ns.load(Ordering::Relaxed) as f64 / 1e9,
            remembered: std::mem::take(&mut remembered),
        })
    }

    fn take_error(&self) -> RecoveryError {
        let mut error = self.outcome.error.lock().expect("held for a store");
        error.take().unwrap_or(RecoveryError::Stopped)
    }

    fn send_if_full(&mut self, site: usize) -> Result<(), RecoveryError> {
        match (self.pending[site].is_full(), self.has_joint) {
            (true, true) => self.send_all_pending(),
            (true, false) => self.send_pending(site),
            (false, _) => Ok(()),
        }
    }

    fn send_pending(&mut self, site: usize) -> Result<(), RecoveryError> {
        if self.pending[site].is_empty() {
            return Ok(());
        }
        self.take_token()?;
        let next = self.spares.1.try_recv().unwrap_or_default();
        let mut batch = std::mem::replace(&mut self.pending[site], next);
        let (outcome, token) = (self.outcome.clone(), self.tokens.0.clone());
        let spares = self.spares.0.clone();
        let job = SiteMessage::Job(Box::new(move |site| {
            batch.run(site, &outcome);
            // Recovery may have ended with an error.
            let _ = spares.send(batch);
            let _ = token.send(());
        }));
        self.inboxes[site].send(job).map_err(|_| {
            self.outcome.fail(RecoveryError::Stopped); // nobody waits for a site that is gone
            RecoveryError::Stopped
        })
    }

    fn send_all_pending(&mut self) -> Result<(), RecoveryError> {
        self.has_joint = false;
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
        self.shared
            .threads
            .receive(&self.tokens.1)
            .map_err(|_| RecoveryError::Stopped)
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
