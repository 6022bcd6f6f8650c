//! The engine thread's loop and everything it needs to run one call.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Select, TryRecvError};
use reprise_base::{Lsn, MemoryLedger, PartitionId, SiteId, TxnClock, TxnId};
use reprise_env::Step;
use reprise_observe::Recorder;
use reprise_storage::Store;
use reprise_txn::{Deployed, Executors, Module, ModuleId, Outcome, TxnScratch, run_multi};
use reprise_wire::{PartitionList, PartitionSet, RecordBatch};

use crate::{
    acknowledged_reads::{self, borrow},
    batch::CallBatch,
    checkout::Lender,
    copy::{PartitionCopy, Slice},
    digest::DigestRun,
    gate::{CommitGate, ReadLimit},
    log_costs::Choice,
    outcome::ReplyOutcome,
    partition_table::PartitionTable,
    paused_batch::{Pause, PausedBatch},
    published_stats::PublishTimer,
    rendezvous::{MultiPartitionTxn, Rendezvous},
    shared::Shared,
    sink::{LogRefusal, NewRecords, Sink},
    turn::{BatchWatch, CallContext, TurnStart, begin_batch, begin_capture, input_of, record_commit, run_alike},
};

/// Interval at which an idle site checks whether the writer of a checkpoint takes more.
const COPY_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time for which a thread polls for a message before it sleeps: a few times the cost of waking it.
const SPIN: Duration = Duration::from_micros(50);
/// Time for which it polls while a partition is at a rendezvous, which ends when the jobs there have run.
const SPIN_AT_RENDEZVOUS: Duration = Duration::from_micros(500);

/// Why a standby does not answer a read.
pub(crate) const REPLAY_FAILED: &str = "this server could not replay the primary's log; /readyz has the report";

/// The messages of a site's inbox, in the order in which the site handles them.
pub enum SiteMessage {
    /// Run these calls of one of your partitions.
    Batch(Box<CallBatch>),
    /// Prepare your partitions for a transaction over several.
    Multi(Arc<MultiPartitionTxn>),
    /// Publish the sizes of your tables (`PublishedStats`).
    Tell,
    /// Run this over the partitions of this site (recovery's replay).
    Job(Box<dyn FnOnce(&mut Site) + Send>),
    /// End.
    Stop,
}

impl SiteMessage {
    /// True for a message that waits until every partition of the site is home.
    fn needs_all(&self) -> bool {
        matches!(self, Self::Job(_) | Self::Stop)
    }
}

/// One partition: its tables and its place in the order.
pub struct Partition {
    /// Its number.
    pub id: PartitionId,
    /// Its tables.
    pub store: Store,
    /// The clock that gives out its transaction ids.
    pub clock: TxnClock,
    /// The end of this partition's last record in the log.
    pub last_end: Lsn,
    pub(crate) copying: Option<PartitionCopy>,
    pub(crate) digesting: Option<DigestRun>,
    pub(crate) publish_timer: PublishTimer,
}

/// The means with which a thread runs procedures.
pub struct ExecContext {
    /// The state that all sites share.
    pub shared: Arc<Shared>,
    /// Instances of modules, ready to be called.
    pub executors: Executors,
    /// The running transaction's memory.
    pub frame: TxnScratch,
    /// The receiver of finished batches.
    pub sink: Box<dyn Sink>,
    /// The thread's counters.
    pub recorder: Recorder,
    /// The records of the running batch.
    pub records: RecordBatch,
    /// The mean length of a result in the last batch, and a little more.
    result_bytes: usize,
    /// The time that a call of the last batch took.
    call_ns: u64,
    deployed: Arc<Deployed>,
    /// The versions in service, by `ModuleId`.
    pub(crate) in_service: Vec<Option<Arc<Module>>>,
    /// The kind of record that their calls leave in the log, by procedure.
    pub(crate) choices: Vec<Vec<Choice>>,
}

/// An engine thread's own state.
pub struct Site {
    /// Its number.
    pub id: SiteId,
    pub(crate) table: PartitionTable,
    /// The means with which it runs procedures.
    pub tools: ExecContext,
    pub(crate) inbox: Receiver<SiteMessage>,
    /// Taken from the inbox, and the next to be done.
    pub(crate) held_back: Option<SiteMessage>,
    /// True once all senders are gone.
    is_cut_off: bool,
    /// True if the coordinator knows that this site has nothing to do except work that waits for others.
    pub(crate) is_idle: bool,
    /// Rendezvous that this site leads.
    pub(crate) called: VecDeque<Arc<Rendezvous>>,
    /// The lending of its stores, on a standby with readers.
    pub(crate) lender: Option<Lender>,
}

/// The partitions of a transaction over several partitions.
pub struct ExclusivePartitions<'a> {
    /// The touched partitions, ascending.
    pub partitions: &'a mut [Box<Partition>],
    /// The means of the thread that holds them.
    pub tools: &'a mut ExecContext,
    /// Limit of a read of these partitions; none: the read waits for the writes that it shows (`limit_read`).
    pub(crate) limit: Option<ReadLimit>,
}

impl Partition {
    /// Makes a partition without tables.
    pub fn new(id: PartitionId, memory: &Arc<MemoryLedger>) -> Self {
        Self {
            id,
            store: Store::counted_in(memory),
            clock: TxnClock::default(),
            last_end: Lsn(0),
            copying: None,
            digesting: None,
            publish_timer: PublishTimer::default(),
        }
    }
}

impl Partition {
    /// Drops the undo of durable records. Once the log has failed for good, takes back the other records: no client has learned of them.
    pub fn release_undo(&mut self, sink: &dyn Sink, gate: &CommitGate) {
        // The order matters. Once the log has stopped, nothing becomes durable any more, and earlier records have their answers.
        let is_stopped = sink.is_stopped();
        let Some(durable) = sink.durable_lsn() else {
            return;
        };
        self.store.acknowledge(gate.acknowledged().0);
        self.store.release_undo(durable.0);
        if is_stopped && self.last_end > durable {
            self.record_change();
            self.store.unwind();
            self.last_end = durable;
            // The copy may hold rows that were just taken back. Its checkpoint waits for the log in vain.
            self.store.end_snapshot();
            self.store.end_digest();
        }
    }
}

impl ExecContext {
    /// Makes the means of one thread.
    pub fn new(shared: Arc<Shared>, sink: Box<dyn Sink>, recorder: Recorder) -> Self {
        let deployed = shared.deployed.load_full();
        let in_service = in_service(&deployed);
        shared.records_max.fetch_min(sink.records_max(), Ordering::Relaxed);
        let mut frame = TxnScratch::counted_in(&shared.memory);
        frame.set_objects(sink.objects());
        Self {
            choices: choices(&shared, &in_service),
            executors: Executors::counted_in(&shared.memory),
            frame,
            shared,
            sink,
            recorder,
            records: RecordBatch::default(),
            result_bytes: 0,
            call_ns: 0,
            deployed,
            in_service,
        }
    }

    /// Returns the modules, as the calls of this turn see them.
    pub fn deployed(&self) -> &Arc<Deployed> {
        &self.deployed
    }

    /// Returns why writes can't be taken now, if there is a reason: the log, or missing standbys.
    pub fn refusal(&self) -> Option<LogRefusal> {
        self.sink.refusal().or_else(|| self.shared.gate.refusal())
    }

    /// Takes up a deployment made since the last turn.
    pub(crate) fn refresh_if_due(&mut self) {
        if self.shared.generation.load(Ordering::Acquire) != self.deployed.generation {
            self.deployed = self.shared.deployed.load_full();
            self.in_service = in_service(&self.deployed);
            self.choices = choices(&self.shared, &self.in_service);
            let deployed = &self.deployed;
            self.executors.retain(|id| deployed.is_current(id));
        }
    }

    #[inline]
    pub(crate) fn in_service(&self, id: ModuleId) -> Option<Arc<Module>> {
        self.in_service.get(id.0 as usize)?.clone()
    }

    /// Puts another deployment into service. The caller holds every partition.
    pub fn install(&mut self, deployed: Deployed) {
        assert!(deployed.generation > self.deployed.generation);
        let generation = deployed.generation;
        // No call reaches a module that goes out of service. Only a replay that begins earlier could, and it builds the module anew.
        let before = self.deployed.current.values();
        before
            .filter(|module| !deployed.is_current(module.id))
            .for_each(|module| module.code.release());
        self.shared.release_binaries(&deployed);
        self.shared.logging.release_meters(&deployed);
        self.shared.deployed.store(Arc::new(deployed));
        self.shared.generation.store(generation, Ordering::Release);
        self.refresh_if_due();
    }

    /// Returns a multi-partition id later than all that these partitions have seen, and than every other multi-partition id.
    pub fn next_multi_id(&self, partitions: &mut [Box<Partition>]) -> TxnId {
        let seen = partitions.iter().map(|p| p.clock.last_tick()).max();
        let now = TxnId::tick_at(self.shared.clock.now_us());
        let at_least = seen.unwrap_or(0).max(now) + 1;
        let tick = match self
            .shared
            .multi_tick
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(at_least.max(last + 1)))
        {
            Ok(last) => at_least.max(last + 1),
            Err(_) => unreachable!("the update never declines"),
        };
        for partition in partitions {
            partition.clock.advance_past(tick);
        }
        TxnId::new(tick, TxnId::MULTI_PARTITION)
    }
}

fn in_service(deployed: &Deployed) -> Vec<Option<Arc<Module>>> {
    let versions = deployed.versions.iter();
    versions
        .map(|module| deployed.is_current(module.id).then(|| module.clone()))
        .collect()
}

fn choices(shared: &Shared, in_service: &[Option<Arc<Module>>]) -> Vec<Vec<Choice>> {
    let choices_of = |module: &Arc<Module>| shared.logging.choices_of(module);
    let modules = in_service.iter();
    modules
        .map(|module| module.as_ref().map_or_else(Vec::new, choices_of))
        .collect()
}

impl Site {
    /// Makes a site with fresh partitions: each `p` with `p % sites_count == id`.
    pub fn new(id: SiteId, tools: ExecContext, inbox: Receiver<SiteMessage>) -> Self {
        Self {
            id,
            table: PartitionTable::new(id, &tools.shared),
            tools,
            inbox,
            held_back: None,
            is_cut_off: false,
            is_idle: false,
            called: VecDeque::new(),
            lender: None,
        }
    }

    /// Runs until `Stop`, or until every sender is gone.
    pub fn run(mut self) {
        loop {
            match self.step() {
                Step::Done => {}
                Step::Idle => self.wait(),
                // A message asked for lending, and that alone ends this loop.
                Step::Over if self.is_lending() => {
                    if !self.run_lending() {
                        return;
                    }
                }
                Step::Over => return,
            }
        }
    }

    /// Runs the site while it lends its stores to readers. True: the lending is over, and the site continues with `run`.
    fn run_lending(&mut self) -> bool {
        loop {
            self.serve_readers();
            match self.step() {
                Step::Done => {}
                Step::Idle => {
                    self.lend();
                    self.wait();
                    self.take_back();
                }
                Step::Over => {
                    self.lender = None;
                    return false;
                }
            }
            self.end_lending_if_over();
            if !self.is_lending() {
                return true;
            }
        }
    }

    /// Does the work that there is, up to one message. Meanwhile partitions come and go.
    pub fn step(&mut self) -> Step {
        self.set_idle(false);
        let mut has_acted = false;
        if !self.is_quiet() {
            if self.attend() {
                return Step::Done;
            }
            // Messages that only take their place come first. Messages that waited here and messages that arrive then take turns.
            has_acted = self.take_multis();
            if self.act_if_due() {
                has_acted = true;
                self.attend(); // no caller waits for two batches
            }
        }
        let Some(message) = self.next_message() else {
            return match has_acted {
                true => Step::Done,
                false => self.step_idle(),
            };
        };
        self.copy_slices(false);
        match self.handle(message) {
            true => Step::Done,
            false => Step::Over,
        }
    }

    /// Returns the next message that the site may handle. A message that needs all partitions keeps later ones back until they are home.
    fn next_message(&mut self) -> Option<SiteMessage> {
        if self.held_back.is_none() {
            match self.inbox.try_recv() {
                Ok(message) => self.held_back = Some(message),
                Err(TryRecvError::Disconnected) => self.is_cut_off = true,
                Err(TryRecvError::Empty) => {}
            }
        }
        let is_let = |message: &mut SiteMessage| !message.needs_all() || self.table.is_quiet();
        self.held_back.take_if(is_let)
    }

    /// Does the work for which no message is needed.
    fn step_idle(&mut self) -> Step {
        if self.is_cut_off && self.is_quiet() {
            return Step::Over;
        }
        match self.attend_idle() || self.copy_slices(true) == Slice::Copied {
            true => Step::Done,
            false => Step::Idle,
        }
    }

    /// Sleeps until a message has arrived, in a thread of its own. The wait also ends if partitions are away. Transactions over several partitions
    /// are in one order in all inboxes, so nothing blocks the sites that the first of them still lacks.
    fn wait(&mut self) {
        let (arrivals, inbox, shared) = (&self.table.arrivals, &self.inbox, &self.tools.shared);
        if self.table.is_quiet() {
            let received = match shared.copying.load(Ordering::Relaxed) {
                0 => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
                // Nothing to copy here, or the writer is behind: read again soon.
                _ => inbox.recv_timeout(COPY_POLL_INTERVAL),
            };
            match received {
                Ok(message) => self.held_back = Some(message),
                Err(error) => self.is_cut_off = error == RecvTimeoutError::Disconnected,
            }
            return;
        }
        let takes_messages = self.held_back.is_none() && !self.is_cut_off;
        let spin = if self.table.has_away() {
            SPIN_AT_RENDEZVOUS
        } else {
            SPIN
        };
        let is_there = || !arrivals.is_empty() || takes_messages && !inbox.is_empty();
        if shared.threads.poll(spin, &is_there) {
            return;
        }
        let mut select = Select::new();
        select.recv(arrivals);
        if takes_messages {
            select.recv(inbox);
        }
        select.ready(); // the next step takes the message
    }

    /// Handles a message. False if it ends the site, or the way in which the site ran until now.
    fn handle(&mut self, message: SiteMessage) -> bool {
        match message {
            SiteMessage::Batch(batch) => self.take_batch(batch),
            SiteMessage::Multi(txn) => self.take_multi(&txn),
            SiteMessage::Tell => {
                self.tools.refresh_if_due(); // an idle site must not keep modules that are out of service
                self.publish();
            }
            SiteMessage::Job(job) => {
                self.tools.refresh_if_due();
                let was_lending = self.is_lending();
                job(self);
                self.table.iter_mut().for_each(Partition::record_change);
                return was_lending || !self.is_lending();
            }
            SiteMessage::Stop => return false,
        }
        true
    }

    /// Copies a slice of each partition with a copy under way, and digests a slice of each one with a digest. `Slice::Copied` if one can continue at once.
    fn copy_slices(&mut self, is_idle: bool) -> Slice {
        let shared = &self.tools.shared;
        if shared.copying.load(Ordering::Relaxed) == 0 {
            return Slice::Over;
        }
        let slices = self.table.iter_mut().flat_map(|partition| {
            let copied = partition.copy_slice(shared, is_idle);
            [copied, partition.digest_slice(shared, is_idle)]
        });
        slices.fold(Slice::Over, |all, one| match (all, one) {
            (Slice::Copied, _) | (_, Slice::Copied) => Slice::Copied,
            (Slice::Later, _) | (_, Slice::Later) => Slice::Later,
            _ => Slice::Over,
        })
    }

    /// Replaces the sink of a standby, which took nothing. The caller does so once the standby is promoted, before its first call that writes.
    pub fn set_sink(&mut self, sink: Box<dyn Sink>) {
        self.tools.frame.set_objects(sink.objects());
        self.tools.sink = sink;
    }

    /// Keeps undo from now on: a committed write can be taken back until it is durable. Called once the log is replayed.
    pub fn retain_undo(&mut self) {
        if self.tools.sink.durable_lsn().is_some() {
            let held = self.table.iter_mut();
            held.for_each(|partition| {
                partition.store.retain_undo();
                // Replayed writes have no undo.
                partition.store.forget_waiting(partition.last_end.0);
            });
        }
        self.serve();
    }

    /// Publishes what recovery put in place. Called once recovery is through.
    pub fn serve(&mut self) {
        self.table.iter_mut().for_each(Partition::record_change);
        self.publish();
    }

    /// Returns the partitions of this site that are not at a rendezvous.
    pub fn partitions_at_home(&mut self) -> impl Iterator<Item = &mut Partition> {
        self.table.iter_mut()
    }

    /// Returns a partition of this site that is at home.
    pub fn partition(&mut self, id: PartitionId) -> &mut Partition {
        self.split(id).0
    }

    /// Returns the tables of a partition of this site.
    pub fn store(&self, id: PartitionId) -> &Store {
        let partition = self.table.peek(id);
        &partition
            .expect("what needs a partition is deferred while it is away")
            .store
    }

    /// Returns a partition of this site beside the tools that run calls on it.
    pub fn split(&mut self, id: PartitionId) -> (&mut Partition, &mut ExecContext) {
        let partition = self.table.get(id);
        let partition = partition.expect("what needs a partition is deferred while it is away");
        (partition, &mut self.tools)
    }

    /// Returns the modules, as the calls of this turn see them.
    pub fn deployed(&self) -> &Arc<Deployed> {
        self.tools.deployed()
    }

    /// Runs the calls of one partition, and hands the batch on.
    pub fn run_batch(&mut self, mut batch: Box<CallBatch>) {
        let started_ns = self.now_ns();
        self.tools.refresh_if_due();
        let id = batch.partition.expect("a multi-partition call comes as a job");
        let (partition, tools) = self.split(id);
        partition.release_undo(&*tools.sink, &tools.shared.gate);
        let mut turn = TurnStart::new(tools, &batch);
        tools.records.clear();
        let count = batch.calls.len();
        batch.make_room_for_results(tools.result_bytes);
        begin_batch(&batch, &tools.shared, &mut tools.frame);
        let limit = match tools.shared.gate.is_short() {
            true => acknowledged_reads::run(tools, &mut [&mut *partition], &mut batch, &turn),
            false => None,
        };
        let mut slot = limit.as_ref().map_or(0, |_| count);
        while slot < count {
            let paused;
            (slot, paused) = run_alike(partition, tools, &mut batch, slot..count, &turn);
            if let Some(why) = paused {
                let mut pausing = PausedBatch {
                    tools: &mut *tools,
                    partitions: &mut [&mut *partition],
                    turn: &mut turn,
                };
                pausing.pause(&mut batch, slot, Some(id), &why);
            }
        }
        tools.result_bytes = batch.usual_result_bytes();
        batch.count_results();
        let waited = tools.shared.waiting[id.index()].fetch_sub(count, Ordering::Relaxed);
        batch.record_ran();
        let ran = batch.times.ran(started_ns, tools.shared.clock.monotonic_ns());
        tools.call_ns = ran.as_nanos() as u64 / count.max(1) as u64;
        batch.busy = busy_with(waited.saturating_sub(count), tools.call_ns);
        let fuel = tools.frame.take_fuel();
        tools.shared.coordinator.record_fuel(id, fuel / count.max(1) as u64);
        tools.recorder.ran(count as u64, ran, fuel);
        tools
            .recorder
            .wrote(batch.site_time_of_writes(ran, tools.records.count(), 1));
        let records = std::mem::take(&mut tools.records);
        match limit {
            Some(limit) => tools.shared.gate.complete(limit.end, Ok(()), batch),
            None => publish(tools, &records, &mut [&mut *partition], batch),
        }
        tools.records = records;
        partition.record_change();
        partition.publish_if_due(&tools.shared, started_ns);
    }
}

/// Returns the time that `calls` waiting calls take, at `call_ns` each.
fn busy_with(calls: usize, call_ns: u64) -> Duration {
    Duration::from_nanos(call_ns.saturating_mul(calls as u64))
}

/// Publishes a run batch. If the log refuses it, the whole turn is taken back: none of it was acknowledged.
fn publish(tools: &mut ExecContext, records: &RecordBatch, partitions: &mut [&mut Partition], batch: Box<CallBatch>) {
    if tools.shared.replay_failed.load(Ordering::Acquire) {
        return batch.withdraw(REPLAY_FAILED);
    }
    tools.recorder.logged(records.bytes().len() as u64);
    let retains = tools.sink.durable_lsn().is_some();
    match tools.sink.publish(NewRecords::Whole(records), partitions, batch) {
        Ok(()) if retains && !records.is_empty() => {
            for partition in partitions {
                partition.store.seal(partition.last_end.0);
            }
        }
        Ok(()) => {}
        Err((reason, mut batch)) => {
            if retains {
                partitions
                    .iter_mut()
                    .for_each(|partition| partition.store.unwind_unsealed());
            }
            batch.refuse(&reason);
            batch.finish();
        }
    }
}

impl ExclusivePartitions<'_> {
    /// Runs the calls of a batch of several partitions over these, which it touches, and publishes it.
    pub fn run_calls(&mut self, mut batch: Box<CallBatch>) {
        let tools = &mut *self.tools;
        let started_ns = tools.shared.clock.monotonic_ns();
        let mut turn = TurnStart::new(tools, &batch);
        tools.records.clear();
        let count = batch.calls.len();
        batch.make_room_for_results(tools.result_bytes);
        begin_batch(&batch, &tools.shared, &mut tools.frame);
        let limit = match tools.shared.gate.is_short() {
            true => acknowledged_reads::run(tools, &mut borrow(self.partitions), &mut batch, &turn),
            false => None,
        };
        let mut slot = limit.as_ref().map_or(0, |_| count);
        while slot < count {
            let single = batch.partition_of(slot);
            let paused = match single {
                Some(id) => {
                    let at = self.partitions.binary_search_by_key(&id, |part| part.id);
                    let partition = &mut self.partitions[at.expect("a call is of a partition that its batch touches")];
                    let alike = slot..batch.end_of_singles(slot);
                    let (next, paused) = run_alike(partition, self.tools, &mut batch, alike, &turn);
                    slot = next;
                    paused
                }
                None => self.run_over_all(&mut batch, &mut slot, &turn),
            };
            if let Some(why) = paused {
                let mut partitions = borrow(self.partitions);
                let mut pausing = PausedBatch {
                    tools: &mut *self.tools,
                    partitions: &mut partitions,
                    turn: &mut turn,
                };
                pausing.pause(&mut batch, slot, single, &why);
            }
        }
        for part in self.partitions.iter() {
            let waiting = &self.tools.shared.waiting[part.id.index()];
            waiting.fetch_sub(batch.count_on(part.id), Ordering::Relaxed);
        }
        batch.count_results();
        batch.record_ran();
        let ran = batch.times.ran(started_ns, self.tools.shared.clock.monotonic_ns());
        let tools = &mut *self.tools;
        let fuel = tools.frame.take_fuel();
        for part in self.partitions.iter() {
            tools
                .shared
                .coordinator
                .record_fuel(part.id, fuel / count.max(1) as u64);
        }
        tools.recorder.ran(count as u64, ran, fuel);
        let sites = self.partitions.len().min(tools.shared.sites_count.into());
        let wrote = batch.site_time_of_writes(ran, tools.records.count(), sites as u32);
        tools.recorder.wrote(wrote);
        batch.busy = busy_with(self.fewest_waiting(), self.tools.call_ns);
        let records = std::mem::take(&mut self.tools.records);
        let mut partitions = borrow(self.partitions);
        match limit {
            Some(limit) => self.tools.shared.gate.complete(limit.end, Ok(()), batch),
            None => publish(self.tools, &records, &mut partitions, batch),
        }
        self.tools.records = records;
        let shared = &self.tools.shared;
        self.partitions
            .iter_mut()
            .for_each(|part| part.publish_if_due(shared, started_ns));
    }

    /// Returns the number of calls that wait for the partition for which fewest do.
    fn fewest_waiting(&self) -> usize {
        let waiting = &self.tools.shared.waiting;
        let counts = self
            .partitions
            .iter()
            .map(|part| waiting[part.id.index()].load(Ordering::Relaxed));
        counts.min().unwrap_or(0)
    }

    /// Runs a call over all of these partitions, and moves `next` behind it. It does not if the calls before it go to the log first.
    fn run_over_all(&mut self, batch: &mut CallBatch, next: &mut usize, turn: &TurnStart) -> Option<Pause> {
        let slot = *next;
        *next += 1;
        let CallBatch {
            calls,
            args,
            results,
            caller,
            ticket,
            deadlines,
            ..
        } = batch;
        let caller = caller.as_ref();
        let scope = caller.map_or(&[][..], |caller| caller.scope.as_bytes());
        let watched = BatchWatch::of(ticket.as_ref(), deadlines);
        let (call, tools) = (&mut calls[slot], &mut *self.tools);
        call.lsn = Lsn(tools.records.count().into());
        let Some(module) = tools.in_service(call.module) else {
            call.outcome = ReplyOutcome::Superseded;
            return None;
        };
        let procedure = &module.schema.procedures[call.procedure as usize];
        let is_read_only = procedure.read_only;
        let (at, placed) = ((slot, &mut *call), (&watched, scope, tools.shared.partitions_count));
        let behind = (&tools.records, results.len());
        let around = (&*tools.shared, &mut tools.frame, &tools.recorder);
        if let Err(why) = turn.begin(at, procedure, placed, behind, around) {
            *next -= usize::from(why.is_some());
            return why;
        }
        call.txn_id = tools.next_multi_id(self.partitions);
        watched.record_begun(slot, call.txn_id);
        let running = CallContext::of(&module, call, args, caller);
        let choice = &mut tools.choices[module.id.0 as usize][call.procedure as usize];
        let (kind, sample) = begin_capture(choice, &tools.shared, &mut tools.frame);
        let outcome = {
            let input = input_of(&tools.shared, &running);
            let parts = self.partitions.iter_mut();
            let mut stores: Vec<_> = parts.map(|part| (part.id, &mut part.store)).collect();
            match tools.executors.get(&module) {
                Ok(executor) => run_multi(&mut stores, &input, executor, &mut tools.frame),
                Err(failure) => Outcome::Fail(failure),
            }
        };
        if let (Outcome::Commit(commit), false) = (&outcome, is_read_only) {
            let ids: Vec<_> = self.partitions.iter().map(|part| part.id).collect();
            let set = match ids.len() == tools.shared.partitions_count as usize {
                true => PartitionSet::All,
                false => PartitionSet::Several(PartitionList::new(&ids)),
            };
            let is_encoded = running.encode(set, commit, kind, &tools.frame, (&mut tools.records, turn));
            let choice = &mut tools.choices[module.id.0 as usize][call.procedure as usize];
            let parts = &self.partitions;
            let here = |id| parts.iter().find(|part| part.id == id).map(|part| &part.store);
            running.record_sample(choice, sample, set, &tools.shared, &tools.frame, &here);
            if !is_encoded {
                return Some(Pause::of(commit, kind));
            }
        }
        running.record_end(&tools.shared, &mut tools.frame);
        match outcome {
            Outcome::Commit(_) => record_commit(&tools.recorder, &tools.frame, call, results),
            Outcome::Fail(failure) => running.record_failure(&tools.shared, &tools.recorder, call, failure),
        }
        None
    }
}
