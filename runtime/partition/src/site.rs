//! The engine thread's loop and everything it needs to run one call.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvError};
use reprise_base::{Lsn, MemoryKind, MemoryLedger, PartitionId, SiteId, TxnClock, TxnId};
use reprise_env::Step;
use reprise_observe::Recorder;
use reprise_storage::Store;
use reprise_txn::{Deployed, Executors, Module, ModuleId, Outcome, TxnScratch, run_multi};
use reprise_wire::{PartitionList, PartitionSet};

use crate::{
    batch::{CallBatch, ReplyOutcome, hold_of},
    copy::{Copying, Slice},
    desk::Meeting,
    gather::{Gathering, Touched},
    home::Home,
    logging::Choice,
    shared::Shared,
    sink::Sink,
    told::Telling,
    turn::{
        Running, TurnStart, Watched, begin_batch, begin_capture, has_small_result, input_of, note_sample, run_alike,
        settle_commit, settle_refusal,
    },
};

/// How soon an idle site looks whether the writer of a checkpoint takes more.
const COPY_LOOK: Duration = Duration::from_millis(1);
/// How long a thread looks for what will soon be there before it sleeps: a few times what waking it takes.
const LOOK: Duration = Duration::from_micros(50);
/// The same while a partition is at a meeting, which is over when as many jobs as it runs are.
const LOOK_AWAY: Duration = Duration::from_micros(500);

/// What arrives in a site's inbox, in the order in which it is done.
pub enum SiteMessage {
    Batch(Box<CallBatch>),
    /// Bring your partitions to a multi-partition job.
    Gather(Arc<Gathering>),
    /// Tell of your tables (`told`).
    Tell,
    /// Run this over the partitions of this site (recovery's replay).
    Job(Box<dyn FnOnce(&mut Site) + Send>),
    Stop,
}

impl SiteMessage {
    /// True for what waits until every partition of the site is home.
    fn needs_all(&self) -> bool {
        matches!(self, Self::Job(_) | Self::Stop)
    }
}

/// One partition: its tables and its place in the order.
pub struct Partition {
    pub id: PartitionId,
    pub store: Store,
    pub clock: TxnClock,
    /// Where the last record of this partition ends in the log.
    pub last_end: Lsn,
    pub(crate) copying: Option<Copying>,
    pub(crate) telling: Telling,
}

/// What a thread runs procedures with.
pub struct ExecContext {
    pub shared: Arc<Shared>,
    pub executors: Executors,
    pub frame: TxnScratch,
    pub sink: Box<dyn Sink>,
    pub recorder: Recorder,
    pub records: Vec<u8>,
    /// What a result took in the last batch, and a little more.
    result_bytes: usize,
    /// What a call of the last batch took.
    call_ns: u64,
    deployed: Arc<Deployed>,
    /// The versions in service, by `ModuleId`.
    pub(crate) in_service: Vec<Option<Arc<Module>>>,
    /// What their calls leave in the log, by procedure.
    pub(crate) choices: Vec<Vec<Choice>>,
}

/// An engine thread's own state.
pub struct Site {
    pub id: SiteId,
    pub(crate) home: Home,
    pub tools: ExecContext,
    pub(crate) inbox: Receiver<SiteMessage>,
    /// Taken from the inbox, and the next to be done.
    pub(crate) held_back: Option<SiteMessage>,
    /// Meetings that this site is the host of.
    pub(crate) called: VecDeque<Arc<Meeting>>,
}

/// What a multi-partition job works on.
pub struct ExclusivePartitions<'a> {
    /// The touched partitions, ascending.
    pub partitions: &'a mut [Box<Partition>],
    pub tools: &'a mut ExecContext,
}

impl Partition {
    pub fn new(id: PartitionId, memory: &Arc<MemoryLedger>) -> Self {
        Self {
            id,
            store: Store::counted_in(memory),
            clock: TxnClock::default(),
            last_end: Lsn(0),
            copying: None,
            telling: Telling::default(),
        }
    }
}

impl Partition {
    /// Forgets the undo of what is durable. Once the log has failed for good, takes back what is not: nobody was told of it.
    pub fn settle(&mut self, sink: &dyn Sink) {
        let Some(durable) = sink.settled() else {
            return;
        };
        self.store.settle(durable.0);
        if sink.is_stopped() && self.last_end > durable {
            self.note_change();
            self.store.unwind();
            self.last_end = durable;
            // What was copied may hold what was just taken back; its checkpoint waits for the log in vain.
            self.store.end_snapshot();
        }
    }
}

impl ExecContext {
    pub fn new(shared: Arc<Shared>, sink: Box<dyn Sink>, recorder: Recorder) -> Self {
        let deployed = shared.deployed.load_full();
        let in_service = in_service(&deployed);
        Self {
            choices: choices(&shared, &in_service),
            executors: Executors::counted_in(shared.memory.kind(MemoryKind::Guests)),
            shared,
            frame: TxnScratch::default(),
            sink,
            recorder,
            records: Vec::new(),
            result_bytes: 0,
            call_ns: 0,
            deployed,
            in_service,
        }
    }

    pub fn deployed(&self) -> &Arc<Deployed> {
        &self.deployed
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
    fn in_service(&self, id: ModuleId) -> Option<Arc<Module>> {
        self.in_service.get(id.0 as usize)?.clone()
    }

    /// Puts another deployment into service. The caller holds every partition.
    pub fn install(&mut self, deployed: Deployed) {
        assert!(deployed.generation > self.deployed.generation);
        let generation = deployed.generation;
        // What goes out of service is not called again: only a replay that begins earlier could, and it makes the module anew.
        let before = self.deployed.current.values();
        before
            .filter(|module| !deployed.is_current(module.id))
            .for_each(|module| module.code.let_go());
        self.shared.release_binaries(&deployed);
        self.shared.deployed.store(Arc::new(deployed));
        self.shared.generation.store(generation, Ordering::Release);
        self.refresh_if_due();
    }

    /// A multi-partition id later than all that these partitions have seen, and than every other multi-partition id.
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
    /// A site with fresh partitions: those `p` with `p % sites_count == id`.
    pub fn new(id: SiteId, tools: ExecContext, inbox: Receiver<SiteMessage>) -> Self {
        Self {
            id,
            home: Home::new(id, &tools.shared),
            tools,
            inbox,
            held_back: None,
            called: VecDeque::new(),
        }
    }

    /// Runs until `Stop`, or until every sender is gone.
    pub fn run(mut self) {
        while let Some(message) = self.next_message() {
            self.copy_slices(false);
            let message = match message.needs_all() {
                true => self.wait_before(message),
                false => message,
            };
            if !self.handle(message) {
                break;
            }
        }
        self.wait_for_all();
    }

    /// As `run`, one message or less. For a site without a thread of its own.
    pub fn step(&mut self) -> Step {
        if !self.is_quiet() && (self.attend() || self.act_if_due()) {
            return Step::Done;
        }
        let is_let = |message: &mut SiteMessage| !message.needs_all() || self.home.is_quiet();
        let next = match self.held_back.is_some() {
            true => self.held_back.take_if(is_let),
            false => self.inbox.try_recv().ok(),
        };
        let Some(message) = next else {
            if self.attend_idle() {
                return Step::Done;
            }
            return match self.copy_slices(true) {
                Slice::Copied => Step::Done,
                _ => Step::Idle,
            };
        };
        self.tools.shared.desk.set_idle(self.id, false);
        if message.needs_all() && !self.is_quiet() {
            self.held_back = Some(message);
            return Step::Done;
        }
        self.copy_slices(false);
        match self.handle(message) {
            true => Step::Done,
            false => Step::Over,
        }
    }

    /// Does what a message asks for; false when it ends the site.
    fn handle(&mut self, message: SiteMessage) -> bool {
        match message {
            SiteMessage::Batch(batch) => self.take_batch(batch),
            SiteMessage::Gather(gathering) => self.join(&gathering),
            SiteMessage::Tell => {
                self.tools.refresh_if_due(); // a site that nobody calls keeps nothing of what is out of service
                self.tell();
            }
            SiteMessage::Job(job) => {
                self.tools.refresh_if_due();
                job(self);
                self.home.iter_mut().for_each(Partition::note_change);
            }
            SiteMessage::Stop => return false,
        }
        true
    }

    /// The next message; meanwhile partitions come and go, and what waited for them is done.
    fn next_message(&mut self) -> Option<SiteMessage> {
        while !self.is_quiet() {
            if self.attend() {
                continue;
            }
            // What only takes its place comes first; then what waited here and what arrives take turns.
            let has_taken = self.take_gatherings();
            let has_acted = self.act_if_due();
            if has_acted {
                self.attend(); // nobody waits for two batches
            }
            if let Some(message) = self.held_back.take() {
                return Some(message);
            }
            if has_taken || has_acted {
                continue;
            }
            let next = self.wait_idle();
            self.tools.shared.desk.set_idle(self.id, false);
            match next {
                Ok(None) => {}
                Ok(Some(message)) => return Some(message),
                Err(RecvError) => return None,
            }
        }
        if let Some(message) = self.held_back.take() {
            return Some(message);
        }
        while self.tools.shared.copying.load(Ordering::Relaxed) > 0 {
            if let Ok(message) = self.inbox.try_recv() {
                return Some(message);
            }
            // Nothing to copy here, or the writer is behind: look again soon.
            if self.copy_slices(true) != Slice::Copied
                && let Ok(message) = self.inbox.recv_timeout(COPY_LOOK)
            {
                return Some(message);
            }
        }
        self.inbox.recv().ok()
    }

    /// Waits for whatever comes first. None: an arrival, or one that this site made itself.
    fn wait_idle(&mut self) -> Result<Option<SiteMessage>, RecvError> {
        if self.attend_idle() || self.is_quiet() {
            return Ok(None);
        }
        let (arrivals, inbox) = (&self.home.arrivals, &self.inbox);
        let look = if self.home.has_away() { LOOK_AWAY } else { LOOK };
        let threads = &self.tools.shared.threads;
        if threads.look(look, &|| !arrivals.is_empty() || !inbox.is_empty()) {
            return Ok(None);
        }
        crossbeam_channel::select! {
            recv(arrivals) -> arrival => {
                self.welcome(arrival.expect("the desk holds a sender"));
                Ok(None)
            }
            recv(inbox) -> message => message.map(Some),
        }
    }

    /// Copies a slice of each partition that is being copied. `Copied` where one can go on at once.
    fn copy_slices(&mut self, is_idle: bool) -> Slice {
        let shared = &self.tools.shared;
        if shared.copying.load(Ordering::Relaxed) == 0 {
            return Slice::Over;
        }
        let slices = self
            .home
            .iter_mut()
            .map(|partition| partition.copy_slice(shared, is_idle));
        slices.fold(Slice::Over, |all, one| match (all, one) {
            (Slice::Copied, _) | (_, Slice::Copied) => Slice::Copied,
            (Slice::Later, _) | (_, Slice::Later) => Slice::Later,
            _ => Slice::Over,
        })
    }

    /// Waits for all before a message; nothing that arrived after it is done meanwhile.
    fn wait_before(&mut self, message: SiteMessage) -> SiteMessage {
        self.held_back = Some(message);
        self.wait_for_all();
        self.held_back.take().expect("nobody takes it while all are waited for")
    }

    /// Waits until every partition is home and nothing waits. It ends: jobs are in one order in all inboxes, so what the first
    /// of them lacks waits for nothing.
    fn wait_for_all(&mut self) {
        while !self.is_quiet() {
            if self.attend() || self.act_if_due() || self.attend_idle() || self.is_quiet() {
                continue;
            }
            let arrival = self.home.arrivals.recv();
            self.welcome(arrival.expect("the desk holds a sender"));
        }
        self.tools.shared.desk.set_idle(self.id, false);
    }

    /// From now on what is committed can be taken back until it is durable. Called once the log is replayed.
    pub fn retain_undo(&mut self) {
        if self.tools.sink.settled().is_some() {
            let held = self.home.iter_mut();
            held.for_each(|partition| partition.store.retain_undo());
        }
        self.home.iter_mut().for_each(Partition::note_change);
        self.tell();
    }

    /// Takes out this site's touched partitions, of a job that has them back (`take_back`) before it ends.
    pub fn lend(&mut self, touched: &Touched, to: &mut Vec<Box<Partition>>) {
        self.home.lend(touched, to);
    }

    /// Takes back those of `from` that are this site's.
    pub fn take_back(&mut self, from: &mut Vec<Box<Partition>>) {
        self.home.take_back(from);
    }

    pub fn partition(&mut self, id: PartitionId) -> &mut Partition {
        self.split(id).0
    }

    /// The tables of a partition of this site.
    pub fn store(&self, id: PartitionId) -> &Store {
        let partition = self.home.peek(id);
        &partition
            .expect("what needs a partition is parked while it is away")
            .store
    }

    /// A partition of this site beside the tools that run calls on it.
    pub fn split(&mut self, id: PartitionId) -> (&mut Partition, &mut ExecContext) {
        let partition = self.home.get(id);
        let partition = partition.expect("what needs a partition is parked while it is away");
        (partition, &mut self.tools)
    }

    /// The modules, as the calls of this turn see them.
    pub fn deployed(&self) -> &Arc<Deployed> {
        self.tools.deployed()
    }

    pub fn run_batch(&mut self, mut batch: Box<CallBatch>) {
        let started = Instant::now();
        self.tools.refresh_if_due();
        let id = batch.partition.expect("a multi-partition call comes as a job");
        let (partition, tools) = self.split(id);
        partition.settle(&*tools.sink);
        let turn = TurnStart {
            now_us: tools.shared.clock.now_us(),
            refusal: tools.sink.refusal(),
            results_max: batch.results_max(),
        };
        tools.records.clear();
        let count = batch.calls.len();
        batch.make_room_for_results(tools.result_bytes);
        begin_batch(&batch, &tools.shared, &mut tools.frame);
        let mut slot = 0;
        while slot < count {
            slot = run_alike(partition, tools, &mut batch, slot, &turn);
        }
        tools.result_bytes = batch.usual_result_bytes();
        batch.count_results();
        let waited = tools.shared.waiting[id.index()].fetch_sub(count, Ordering::Relaxed);
        batch.note_ran();
        let ran = started.elapsed();
        tools.call_ns = ran.as_nanos() as u64 / count.max(1) as u64;
        batch.hold = hold_of(tools.call_ns, waited.saturating_sub(count));
        tools.recorder.ran(count as u64, ran, tools.frame.take_fuel());
        tools.recorder.wrote(batch.share_of_writes(ran, tools.records.len()));
        let records = std::mem::take(&mut tools.records);
        publish(tools, &records, &mut [&mut *partition], batch);
        tools.records = records;
        partition.note_change();
        partition.tell_if_due(&tools.shared, started);
    }
}

/// Publishes a run batch. A refused append takes the whole turn back: nothing of it was acknowledged.
fn publish(tools: &mut ExecContext, records: &[u8], partitions: &mut [&mut Partition], batch: Box<CallBatch>) {
    tools.recorder.logged(records.len() as u64);
    let retains = tools.sink.settled().is_some();
    match tools.sink.publish(records, partitions, batch) {
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
    /// Runs the one call of a multi-partition batch over the held partitions and publishes it.
    pub fn run_call(&mut self, mut batch: Box<CallBatch>) {
        let started = Instant::now();
        self.tools.records.clear();
        begin_batch(&batch, &self.tools.shared, &mut self.tools.frame);
        self.run_held_slot(&mut batch);
        batch.count_results();
        batch.note_ran();
        let ran = started.elapsed();
        self.tools.recorder.ran(1, ran, self.tools.frame.take_fuel());
        self.tools
            .recorder
            .wrote(batch.share_of_writes(ran, self.tools.records.len()));
        batch.hold = hold_of(self.tools.call_ns, self.fewest_waiting());
        let records = std::mem::take(&mut self.tools.records);
        let mut partitions: Vec<&mut Partition> = self.partitions.iter_mut().map(|part| &mut **part).collect();
        publish(self.tools, &records, &mut partitions, batch);
        self.tools.records = records;
        let shared = &self.tools.shared;
        self.partitions
            .iter_mut()
            .for_each(|part| part.tell_if_due(shared, started));
    }

    /// Calls `then` once everything that these partitions show is durable (at once where nobody waits for that), or, with the
    /// reason, when it never will be.
    pub fn when_durable(&mut self, then: impl FnOnce(Result<(), Arc<str>>) + Send + Sync + 'static) {
        let mut partitions: Vec<&mut Partition> = self.partitions.iter_mut().map(|part| &mut **part).collect();
        let published = self.tools.sink.publish(&[], &mut partitions, CallBatch::waiting(then));
        if let Err((reason, mut waiting)) = published {
            waiting.refuse(&reason);
            waiting.finish();
        }
    }

    /// Calls that wait for the partition for which fewest do.
    fn fewest_waiting(&self) -> usize {
        let waiting = |part: &Box<Partition>| &self.tools.shared.waiting[part.id.index()];
        let counts = self.partitions.iter().map(|part| waiting(part).load(Ordering::Relaxed));
        counts.min().unwrap_or(0)
    }

    fn run_held_slot(&mut self, batch: &mut CallBatch) {
        let CallBatch {
            calls,
            args,
            results,
            answers,
            scope,
            ticket,
            deadlines,
            ..
        } = batch;
        let scope = scope.as_deref().unwrap_or("").as_bytes();
        let has_room = answers.as_ref().is_none_or(|answers| answers.has_room(1));
        let watched = Watched::of(ticket.as_ref(), deadlines);
        let (call, tools) = (&mut calls[0], &mut *self.tools);
        let Some(module) = tools.in_service(call.module) else {
            call.outcome = ReplyOutcome::Superseded;
            return;
        };
        let procedure = &module.schema.procedures[call.procedure as usize];
        let is_read_only = procedure.read_only;
        if !has_room && !has_small_result(procedure) {
            call.outcome = ReplyOutcome::ANSWERS_FULL;
            return;
        }
        let (refusal, around) = (tools.sink.refusal(), (&*tools.shared, &mut tools.frame));
        if let Err(outcome) = watched.begin(0, procedure, refusal.as_ref(), around) {
            return settle_refusal(&tools.recorder, call, outcome);
        }
        call.txn_id = tools.next_multi_id(self.partitions);
        watched.note_begun(0, call.txn_id);
        let running = Running::of(&module, call, args, scope);
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
            running.encode(set, commit, kind, &tools.frame, &mut tools.records);
            let choice = &tools.choices[module.id.0 as usize][call.procedure as usize];
            note_sample(choice, sample, &running, &tools.frame, &*tools.shared.clock);
        }
        running.note_end(&tools.shared, &mut tools.frame);
        match outcome {
            Outcome::Commit(_) => settle_commit(&tools.recorder, &tools.frame, call, results),
            Outcome::Fail(failure) => running.settle_failure(&tools.shared, &tools.recorder, call, failure),
        }
    }
}
