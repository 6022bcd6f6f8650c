//! A thread that runs read-only calls and other reads of tables on a standby. Each batch has a view of its own. It does not see what the sites replay
//! meanwhile.

use std::{
    any::Any,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use reprise_abi::OpError;
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_env::{Clock, Step};
use reprise_storage::{StoreAtView, ViewError, ViewId};
use reprise_txn::{Deployed, Outcome, ViewStores, run_at_view};

use crate::{
    batch::CallBatch,
    checkout::{ReadFailure, StoreCheckout},
    outcome::ReplyOutcome,
    sink::NoLog,
    site::{ExecContext, REPLAY_FAILED},
    turn::{BatchWatch, CallContext, begin_batch, has_small_result, input_of, record_commit, record_refusal},
};

/// A view of all partitions, open as long as it is held.
pub struct OpenedView {
    /// The number by which stores know it.
    pub id: ViewId,
    /// Keeps it open.
    pub lease: Arc<dyn Any + Send + Sync>,
}

/// Opens views.
pub trait OpenViews: Send + Sync {
    /// Opens a view of everything that was sent to the sites until now. None: a deployment waits for older ones. Err: there are no more.
    fn try_open(&self) -> Result<Option<OpenedView>, Arc<str>>;

    /// Opens a view, and waits until that is possible.
    fn open(&self) -> Result<OpenedView, Arc<str>>;
}

/// A task for a reader, over these partitions, ascending.
pub struct ReadTask {
    /// The work.
    pub work: ReadWork,
    /// The partitions that it reads.
    pub partitions: Vec<PartitionId>,
}

/// The work of a reader.
pub enum ReadWork {
    /// Calls that read.
    Calls(Box<CallBatch>),
    /// A read of tables without a procedure.
    Table(Box<dyn TableReadJob>),
}

/// A read of tables as a view shows them. It answers the client that asked for it.
pub trait TableReadJob: Send {
    /// Reads. `deployed`: the modules that the view has in service. `seen`: the last record that its partitions show. Err: the view is over, and the
    /// read with it.
    fn read(&mut self, stores: &mut dyn ViewStores, deployed: &Deployed, seen: Lsn) -> Result<(), OpError>;

    /// Answers. Called once. Err: there was no view, or it ended, or the replay has failed.
    fn answer(self: Box<Self>, outcome: Result<(), ReplyOutcome>);
}

impl ReadTask {
    /// Answers without a read.
    pub fn turn_away(self, outcome: &ReplyOutcome) {
        match self.work {
            ReadWork::Calls(batch) => batch.turn_away(outcome),
            ReadWork::Table(job) => job.answer(Err(outcome.clone())),
        }
    }
}

/// The queue of reads. Readers open views in its order. If a client sends two reads, the second therefore sees no less than the first.
pub struct ReadQueue(Mutex<Receiver<ReadTask>>);

impl ReadQueue {
    /// Makes the queue, and the sender by which reads enter it.
    pub fn new() -> (Sender<ReadTask>, Arc<Self>) {
        // Bounded by admission, as inboxes are.
        let (sender, queue) = crossbeam_channel::unbounded();
        (sender, Arc::new(Self(Mutex::new(queue))))
    }

    /// Takes the next read, with a view of its own. None: all senders are gone.
    fn next(&self, views: &dyn OpenViews) -> Option<OpenedRead> {
        let queue = self.0.lock().expect("held while a view is opened");
        let reading = queue.recv().ok()?;
        Some((reading, views.open()))
    }

    /// Takes the next read if there is one and a view for it.
    fn try_next(&self, views: &dyn OpenViews) -> Result<OpenedRead, TryRecvError> {
        let queue = self.0.lock().expect("held while a view is opened");
        if queue.is_empty() {
            return queue.try_recv().map(|reading| (reading, views.open()));
        }
        match views.try_open() {
            Ok(None) => Err(TryRecvError::Empty),
            Ok(Some(opened)) => Ok((queue.try_recv()?, Ok(opened))),
            Err(reason) => Ok((queue.try_recv()?, Err(reason))),
        }
    }
}

/// A read, and the view that was opened for it.
type OpenedRead = (ReadTask, Result<OpenedView, Arc<str>>);

/// A reader. See the module's header.
pub struct Reader {
    tools: ExecContext,
    lending: Arc<StoreCheckout>,
    views: Arc<dyn OpenViews>,
    queue: Arc<ReadQueue>,
    limits: ViewLimits,
    /// The read that waits for its view, if all work shares one thread.
    begun: Option<OpenedRead>,
}

/// Limits of one read at a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewLimits {
    /// For how long its view is held.
    pub time_max: Duration,
    /// Fuel of a call whose procedure declares none.
    pub fuel_max: u64,
}

/// Name of the limit at which a call at a view ended.
const VIEW_TIME: &str = "view_time";

impl Reader {
    /// Makes a reader. `tools`: the context of a thread that publishes nothing (`Reader::tools`).
    pub fn new(
        mut tools: ExecContext,
        (lending, views): (Arc<StoreCheckout>, Arc<dyn OpenViews>),
        queue: Arc<ReadQueue>,
        limits: ViewLimits,
    ) -> Self {
        tools.frame.view_fuel_max = Some(limits.fuel_max);
        Self {
            tools,
            lending,
            views,
            queue,
            limits,
            begun: None,
        }
    }

    /// Returns the context with which a reader runs calls.
    pub fn tools(shared: Arc<crate::shared::Shared>, recorder: reprise_observe::Recorder) -> ExecContext {
        ExecContext::new(shared, Box::new(NoLog), recorder)
    }

    /// Reads until all senders are gone.
    pub fn run(mut self) {
        while let Some(begun) = self.queue.next(&*self.views) {
            self.read(begun);
        }
    }

    /// Runs the next read once its view is open on all sites. The read then waits for no site.
    pub fn step(&mut self) -> Step {
        let begun = match self.begun.take() {
            Some(begun) => Ok(begun),
            None => self.queue.try_next(&*self.views),
        };
        let begun = match begun {
            Ok(begun) => begun,
            Err(TryRecvError::Empty) => return Step::Idle,
            Err(TryRecvError::Disconnected) => return Step::Over,
        };
        let is_ready = match &begun {
            (reading, Ok(opened)) => self.lending.shows(&reading.partitions, opened.id),
            (_, Err(_)) => true,
        };
        if !is_ready {
            self.begun = Some(begun);
            return Step::Idle;
        }
        self.read(begun);
        Step::Done
    }

    fn read(&mut self, (reading, opened): OpenedRead) {
        let opened = match opened {
            Ok(opened) => opened,
            Err(reason) => {
                if let ReadWork::Calls(batch) = &reading.work {
                    self.end_waiting(batch, &reading.partitions);
                }
                return reading.turn_away(&ReplyOutcome::Unavailable(reason));
            }
        };
        let ReadTask { work, partitions } = reading;
        let (lending, clock) = (self.lending.clone(), self.tools.shared.clock.clone());
        let mut stores = Stores {
            lending: &lending,
            view: opened.id,
            were_open: vec![false; partitions.len()],
            ends: vec![Lsn(0); partitions.len()],
            all: &partitions,
            held: 0..partitions.len(),
            until_ns: clock.monotonic_ns() + self.limits.time_max.as_nanos() as u64,
            clock,
            time_max: self.limits.time_max,
            ended: None,
        };
        // Deployments wait until no view is open. Once the sites have reached the view, the modules are therefore those of the view.
        let is_open = stores.wait_open();
        self.tools.refresh_if_due();
        match work {
            ReadWork::Calls(batch) => self.run_calls(batch, is_open, stores, opened),
            ReadWork::Table(job) => self.run_read(job, is_open, stores, opened),
        }
    }

    fn run_calls(
        &mut self,
        mut batch: Box<CallBatch>,
        is_open: Result<(), OpError>,
        mut stores: Stores<'_>,
        opened: OpenedView,
    ) {
        let (partitions, tools) = (stores.all, &mut self.tools);
        let (shared, deployed) = (tools.shared.clone(), tools.deployed().clone());
        let started_ns = shared.clock.monotonic_ns();
        let count = batch.calls.len();
        begin_batch(&batch, &shared, &mut tools.frame);
        let terms = ReadTerms {
            on_write: ReplyOutcome::NotPrimary(None),
            // A call at a view holds nothing: the view's time is its limit.
            time_max_ms: 0,
        };
        for slot in 0..count {
            match (&is_open, batch.partition_of(slot)) {
                (Err(_), _) => {
                    batch.calls[slot].outcome = stores.outcome();
                    continue;
                }
                (Ok(()), None) => stores.held = 0..partitions.len(),
                (Ok(()), Some(id)) => {
                    let at = partitions.binary_search(&id);
                    let at = at.expect("a call is of a partition that its batch touches");
                    stores.held = at..at + 1;
                }
            }
            run_call(tools, &deployed, &mut batch, slot, &mut stores, &terms);
            batch.calls[slot].lsn = stores.newest_seen();
        }
        self.end_waiting(&batch, partitions);
        let tools = &mut self.tools;
        batch.count_results();
        batch.record_ran();
        let ran = batch.times.ran(started_ns, shared.clock.monotonic_ns());
        let fuel = tools.frame.take_fuel();
        tools.recorder.ran(count as u64, ran, fuel);
        drop(opened);
        match shared.replay_failed.load(Ordering::Acquire) {
            true => batch.withdraw(REPLAY_FAILED),
            false => batch.finish(),
        }
    }

    fn run_read(
        &mut self,
        mut job: Box<dyn TableReadJob>,
        is_open: Result<(), OpError>,
        mut stores: Stores<'_>,
        opened: OpenedView,
    ) {
        let (deployed, seen) = (self.tools.deployed().clone(), stores.newest_seen());
        let outcome = is_open.and_then(|()| job.read(&mut stores, &deployed, seen));
        let outcome = outcome.map_err(|_| stores.outcome());
        drop(opened);
        match self.tools.shared.replay_failed.load(Ordering::Acquire) {
            true => job.answer(Err(ReplyOutcome::LogUnavailable(REPLAY_FAILED.into()))),
            false => job.answer(outcome),
        }
    }

    /// Records that the batch's calls wait no more.
    fn end_waiting(&self, batch: &CallBatch, partitions: &[PartitionId]) {
        for id in partitions {
            self.tools.shared.waiting[id.index()].fetch_sub(batch.count_on(*id), Ordering::Relaxed);
        }
    }
}

/// Stores that may end a call which reads them.
pub(crate) trait EndingStores: ViewStores {
    /// Takes the outcome of a call that the stores ended, if they did. The next call begins anew.
    fn take_end(&mut self) -> Option<ReplyOutcome>;
}

/// Terms of all calls of a batch that only reads.
pub(crate) struct ReadTerms {
    /// The answer to a call that writes.
    pub on_write: ReplyOutcome,
    /// Time of a call whose procedure declares none; 0: no limit.
    pub time_max_ms: u32,
}

pub(crate) fn run_call(
    tools: &mut ExecContext,
    deployed: &Deployed,
    batch: &mut CallBatch,
    slot: usize,
    stores: &mut dyn EndingStores,
    terms: &ReadTerms,
) {
    let results_max = batch.results_max();
    let CallBatch {
        calls,
        args,
        results,
        caller,
        ticket,
        deadlines,
        ..
    } = batch;
    let watched = BatchWatch::of(ticket.as_ref(), deadlines);
    let call = &mut calls[slot];
    let Some(module) = tools.in_service(call.module) else {
        call.outcome = ReplyOutcome::Superseded;
        return;
    };
    let procedure = &module.schema.procedures[call.procedure as usize];
    if !procedure.read_only {
        return record_refusal(&tools.recorder, call, terms.on_write.clone());
    }
    if results.len() >= results_max && !has_small_result(procedure) {
        call.outcome = ReplyOutcome::ANSWERS_FULL;
        return;
    }
    let time_max_ms = procedure.time_max_ms.unwrap_or(terms.time_max_ms);
    let begun = watched.begin_within(slot, time_max_ms, (&tools.shared, &mut tools.frame));
    if let Err(outcome) = begun {
        return record_refusal(&tools.recorder, call, outcome);
    }
    call.txn_id = next_id(tools);
    watched.record_begun(slot, call.txn_id);
    let running = CallContext::of(&module, call, args, caller.as_ref());
    let outcome = {
        let input = input_of(&tools.shared, &running);
        match tools.executors.get(&module) {
            Ok(executor) => run_at_view(stores, &deployed.tables, &input, executor, &mut tools.frame),
            Err(failure) => Outcome::Fail(failure),
        }
    };
    running.record_end(&tools.shared, &mut tools.frame);
    match (outcome, stores.take_end()) {
        (Outcome::Commit(_), None) => record_commit(&tools.recorder, &tools.frame, call, results),
        (_, Some(ended)) => record_refusal(&tools.recorder, call, ended),
        (Outcome::Fail(failure), None) => running.record_failure(&tools.shared, &tools.recorder, call, failure),
    }
}

/// Returns an id that no other transaction here gets. Nothing is logged under it.
fn next_id(tools: &ExecContext) -> TxnId {
    let now = TxnId::tick_at(tools.shared.clock.now_us());
    let next = |last: u64| now.max(last + 1);
    let taken = tools
        .shared
        .multi_tick
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(next(last)));
    TxnId::new(next(taken.unwrap_or_else(|last| last)), TxnId::MULTI_PARTITION)
}

/// Why a view is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Time(Duration),
    Bytes(usize),
    /// The server becomes the primary, or stops.
    Lending,
}

/// The partitions of a batch at its view; those of the call that runs are `held`.
struct Stores<'r> {
    lending: &'r StoreCheckout,
    view: ViewId,
    were_open: Vec<bool>,
    /// The ends of the records that each shows.
    ends: Vec<Lsn>,
    all: &'r [PartitionId],
    held: std::ops::Range<usize>,
    clock: Arc<dyn Clock>,
    until_ns: u64,
    time_max: Duration,
    ended: Option<Over>,
}

impl Stores<'_> {
    /// Waits until all sites have reached the view.
    fn wait_open(&mut self) -> Result<(), OpError> {
        for at in 0..self.all.len() {
            let mut end = 0;
            self.with_store(at, &mut |store| end = store.mark())?;
            self.ends[at] = Lsn(end);
        }
        Ok(())
    }

    /// Returns the last record that the call's partitions show.
    fn newest_seen(&self) -> Lsn {
        let newest = self.ends[self.held.clone()].iter().max();
        Lsn(newest.map_or(0, |end| end.0.saturating_sub(1)))
    }

    fn check(&self) -> Result<(), Over> {
        if self.lending.is_over() {
            return Err(Over::Lending);
        }
        match self.clock.monotonic_ns() < self.until_ns {
            true => Ok(()),
            false => Err(Over::Time(self.time_max)),
        }
    }

    /// Returns the answer to a call that was ended.
    fn outcome(&self) -> ReplyOutcome {
        match self.ended {
            None | Some(Over::Lending) => ReplyOutcome::Unavailable(
                "this standby closed its views, because it becomes the primary or stops; try again".into(),
            ),
            Some(Over::Time(max)) => ReplyOutcome::TooStale(
                format!("a view is held for {} ms at most (view-time-max-ms)", max.as_millis()).into(),
            ),
            Some(Over::Bytes(max)) => ReplyOutcome::TooStale(
                format!(
                    "the changes since the view was opened need more than {max} bytes on a partition (view-memory-max)"
                )
                .into(),
            ),
        }
    }

    fn end(&mut self, over: Over) -> OpError {
        self.ended = Some(over);
        OpError::Limit {
            limit: VIEW_TIME,
            max: self.time_max.as_millis() as u64,
        }
    }
}

impl EndingStores for Stores<'_> {
    fn take_end(&mut self) -> Option<ReplyOutcome> {
        let ended = self.ended.is_some().then(|| self.outcome());
        self.ended = None;
        ended
    }
}

impl ViewStores for Stores<'_> {
    fn partitions(&self) -> &[PartitionId] {
        &self.all[self.held.clone()]
    }

    fn with_store(&mut self, at: usize, read: &mut dyn FnMut(StoreAtView<'_>)) -> Result<(), OpError> {
        let at = self.held.start + at;
        let mut was_open = self.were_open[at];
        let place = (self.all[at], self.view, &mut was_open);
        let outcome = self.lending.with_view(place, || self.check(), read);
        self.were_open[at] = was_open;
        outcome.map_err(|failure| {
            self.end(match failure {
                ReadFailure::Ended(over) => over,
                ReadFailure::View(ViewError::Lost { max }) => Over::Bytes(max),
                ReadFailure::View(ViewError::NotOpen) => Over::Lending,
            })
        })
    }

    fn go_on(&mut self) -> Result<(), OpError> {
        self.check().map_err(|over| self.end(over))
    }
}
