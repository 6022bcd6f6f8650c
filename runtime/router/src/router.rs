//! The router: inboxes, admission, order, phase.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, RwLock, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::{Budget, Epoch, Lsn, MemoryLedger, PartitionId, Role, limits::DEPLOY_TIME_MAX_S};
use reprise_log::{Log, NvramBufferStatus};
use reprise_observe::{LineFilter, Notices, ProcedureMeters, RecentLine, Recorder, Registry};
use reprise_partition::{
    CallBatch, CallInfo, Deadline, DeployProgress, ExclusivePartitions, Job, MeasuredCosts, MultiPartitionTxn,
    ReadTask, ReadWork, RendezvousStats, ReplyOutcome, Shared, SiteMessage, Stream, TxnPartitions,
};
use reprise_txn::{CallPartitions, Compiler, Deployed, Module};

use crate::{
    builder::{BatchBuilder, BatchPart, OnReply},
    clock_watch::ClockWatch,
    dangers::DangerWatch,
    idempotency::{Idempotency, IdempotencyStats},
    pace::Pace,
    query::RowsError,
    replication::ReplicationService,
    standby,
};

/// The step of a recovery. The bytes beside it count this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryStage {
    /// Loading rows and building indexes: bytes of rows.
    Checkpoint,
    /// Replaying the records behind the checkpoint: bytes of log.
    Log,
}

/// The phase of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePhase {
    Recovering {
        step: RecoveryStage,
        replayed: u64,
        bytes_done: u64,
        bytes_total: u64,
    },
    Ready,
    /// The opening stopped. The report says what failed, at which place, and what the operator can do.
    Failed {
        report: String,
    },
    Stopping,
}

/// The error that the node takes no jobs now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub Arc<str>);

/// The parts of a router.
pub struct RouterConfig {
    pub shared: Arc<Shared>,
    /// The inbox of each site, by `SiteId`.
    pub inboxes: Vec<Sender<SiteMessage>>,
    /// None without a log.
    pub log: Option<Arc<Log<Box<CallBatch>>>>,
    pub compiler: Arc<dyn Compiler>,
    pub registry: Arc<Registry>,
    pub commit: &'static str,
    /// The NVRAM before the log's files. None if there is none.
    pub nvram: Option<NvramDevice>,
    pub database_id: [u8; 16],
    pub settings_hash: u64,
    /// The budget for kept outcomes of calls with idempotency keys.
    pub idempotency: Arc<Budget>,
}

/// The NVRAM before the log's files.
#[derive(Clone, Debug)]
pub struct NvramDevice {
    pub path: PathBuf,
    pub bytes: u64,
    /// `fence`, `msync` or `assumed`.
    pub persistence: &'static str,
    /// The writes lost when the machine loses power, if any.
    pub warning: Option<&'static str>,
    /// When changes go to the region (`FlushPolicy::name`).
    pub flush: &'static str,
    /// Entries at which the copy to the files begins.
    pub copy_at_entries: u64,
}

/// One node's state in numbers and names.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    pub role: Role,
    /// Epoch of new records. None without a log.
    pub epoch: Option<Epoch>,
    pub log: &'static str,
    /// None without a log.
    pub device: Option<&'static str>,
    /// The NVRAM, and how full it is.
    pub nvram: Option<(NvramDevice, NvramBufferStatus)>,
    pub commit: &'static str,
    pub partitions: u16,
    pub sites: u16,
    pub committed_lsn: Lsn,
    pub durable_lsn: Lsn,
    pub started_unix_us: i64,
    pub phase: NodePhase,
    pub log_error: Option<Arc<str>>,
    pub database_id: [u8; 16],
    pub settings_hash: u64,
    pub idempotency: IdempotencyStats,
    /// Calls accepted and not yet run, over all partitions.
    pub waiting: u64,
    /// The deployment that they wait for, while it holds all partitions.
    pub deployment: Option<DeployProgress>,
}

pub use reprise_observe::MetricsSnapshot;

/// A handle on the node's engine; cheap to clone.
#[derive(Clone)]
pub struct Router(pub(crate) Arc<RouterInner>);

pub(crate) struct RouterInner {
    pub config: RouterConfig,
    phase: RwLock<NodePhase>,
    /// Locked while a multi-partition job enters the inboxes, and on a standby while any message does. It makes one order for all.
    order: Mutex<()>,
    /// The next stream's number.
    streams: AtomicU64,
    /// Locked for a whole deployment or removal.
    pub deploying: Mutex<()>,
    idempotency: Idempotency,
    pub clock_watch: ClockWatch,
    pub dangers: DangerWatch,
    pub replication: OnceLock<Weak<dyn ReplicationService>>,
    pub part: standby::ReplicationPart,
    /// Time of the start, in microseconds since 1970.
    started_unix_us: i64,
    pace: Pace,
    /// True after the first phase behind recovery, so that a call reads no lock.
    is_recovered: AtomicBool,
    /// The limit for a deployment, in seconds; 0: no limit.
    deploy_time_max_s: AtomicU32,
}

impl Router {
    /// Returns the form in which a procedure's calls are logged now, with the reason if the server chose it by measurement.
    pub fn explain_log(&self, module: &Module, procedure: u16) -> (&'static str, Option<String>) {
        self.0.config.shared.logging.explain(module, procedure)
    }

    /// Returns what a procedure's calls cost in either form of the log. None: they are not measured.
    pub fn log_costs(&self, module: &Module, procedure: u16) -> Option<MeasuredCosts> {
        self.0.config.shared.logging.costs(module, procedure)
    }

    pub fn new(config: RouterConfig) -> Self {
        let started_unix_us = config.shared.clock.now_us();
        let idempotency = Idempotency::new(config.shared.clone(), &config.idempotency);
        let phase = RwLock::new(NodePhase::Recovering {
            step: RecoveryStage::Checkpoint,
            replayed: 0,
            bytes_done: 0,
            bytes_total: 0,
        });
        Self(Arc::new(RouterInner {
            config,
            phase,
            order: Mutex::new(()),
            streams: AtomicU64::new(0),
            deploying: Mutex::new(()),
            idempotency,
            clock_watch: ClockWatch::default(),
            dangers: DangerWatch::default(),
            replication: OnceLock::new(),
            part: standby::ReplicationPart::default(),
            started_unix_us,
            pace: Pace::default(),
            is_recovered: AtomicBool::new(false),
            deploy_time_max_s: AtomicU32::new(DEPLOY_TIME_MAX_S),
        }))
    }

    pub fn deployed(&self) -> Arc<Deployed> {
        self.0.config.shared.deployed.load_full()
    }

    pub fn partitions_count(&self) -> u16 {
        self.0.config.shared.partitions_count
    }

    /// Returns the budget for results on their way to clients.
    pub fn answers(&self) -> &Arc<Budget> {
        self.memory().results()
    }

    pub fn idempotency(&self) -> &Idempotency {
        &self.0.idempotency
    }

    pub fn phase(&self) -> NodePhase {
        self.0.phase.read().expect("held for a clone").clone()
    }

    /// True once every record is replayed.
    pub fn is_recovered(&self) -> bool {
        self.0.is_recovered.load(Ordering::Acquire)
    }

    pub fn set_phase(&self, phase: NodePhase) {
        let is_recovered = phase == NodePhase::Ready;
        *self.0.phase.write().expect("held for a store") = phase;
        if is_recovered {
            self.0.is_recovered.store(true, Ordering::Release);
            self.run_key_clock();
        }
    }

    /// Returns the ledger of all memory.
    pub fn memory(&self) -> &Arc<MemoryLedger> {
        &self.0.config.shared.memory
    }

    pub fn status(&self) -> NodeStatus {
        let config = &self.0.config;
        let log = config.log.as_deref();
        let waiting = config.shared.waiting.iter();
        NodeStatus {
            role: self.role(),
            // A standby whose promotion failed has no record of that epoch.
            epoch: log.map(|log| match (self.role(), log.received()) {
                (Role::Standby, Some(received)) => received.epoch,
                (Role::Standby, None) => log.written_epoch(),
                (Role::Primary | Role::ReadOnly, _) => log.epoch(),
            }),
            log: self.0.config.shared.logging.rule.name(),
            device: log.map(|_| if config.nvram.is_some() { "nvram" } else { "file" }),
            nvram: config.nvram.clone().zip(log.and_then(Log::nvram_status)),
            commit: config.commit,
            partitions: config.shared.partitions_count,
            sites: config.shared.sites_count,
            committed_lsn: self.view(),
            durable_lsn: log.map_or(Lsn(0), Log::durable),
            started_unix_us: self.0.started_unix_us,
            phase: self.phase(),
            log_error: self.log_trouble(),
            database_id: config.database_id,
            settings_hash: config.settings_hash,
            idempotency: self.0.idempotency.stats(),
            waiting: waiting.map(|w| w.load(Ordering::Relaxed) as u64).sum(),
            deployment: config.shared.underway.progress(&*config.shared.clock),
        }
    }

    pub fn metrics(&self) -> MetricsSnapshot {
        self.0.config.registry.snapshot()
    }

    /// Returns the nanoseconds that the engine threads needed for calls that left records.
    pub fn write_ns(&self) -> u64 {
        self.0.config.registry.write_ns()
    }

    /// Returns a recorder for one more thread's counts.
    pub fn recorder(&self) -> Recorder {
        self.0.config.registry.recorder()
    }

    /// Returns the counts of each procedure's calls since the start.
    pub fn procedures(&self) -> &ProcedureMeters {
        &self.0.config.registry.procedures
    }

    /// Returns the number of rendezvous since the start, and how long calls of several partitions waited for one.
    pub fn rendezvous(&self) -> RendezvousStats {
        self.0.config.shared.coordinator.stats()
    }

    /// Returns the notices for the operator.
    pub fn notices(&self) -> &Notices {
        &self.0.config.shared.notices
    }

    /// Returns the lines that procedures logged, the newest first.
    pub fn procedure_log(&self, filter: &LineFilter, limit: usize) -> Vec<RecentLine> {
        self.0.config.shared.lines.newest(filter, limit)
    }

    /// Waits until everything before `lsn` is durable. False if the time is over first.
    pub fn wait_durable(&self, lsn: Lsn, timeout: Duration) -> bool {
        match &self.0.config.log {
            Some(log) => log.wait_durable(lsn, timeout),
            None => true,
        }
    }

    pub fn has_log(&self) -> bool {
        self.0.config.log.is_some()
    }

    /// Returns the bytes of the log's files that hold the records from `from` to `to`; 0 without a log.
    pub fn log_bytes_between(&self, from: Lsn, to: Lsn) -> u64 {
        let log = self.0.config.log.as_deref();
        log.map_or(0, |log| log.bytes_between(from, to))
    }

    /// Returns the calls on their way, the first accepted first, and how many there are in all.
    pub fn calls(&self, limit: usize) -> (Vec<CallInfo>, u64) {
        let shared = &self.0.config.shared;
        shared.calls.list(shared.clock.monotonic_ns(), limit)
    }

    /// Limits the time of calls whose procedures declare none, in milliseconds; 0: no limit.
    pub fn set_call_time_max_ms(&self, time_max_ms: u32) {
        self.0.config.shared.calls.set_time_max_ms(time_max_ms);
    }

    /// Returns the limit for a deployment, in seconds; 0: no limit.
    pub fn deploy_time_max_s(&self) -> u32 {
        self.0.deploy_time_max_s.load(Ordering::Relaxed)
    }

    /// Limits the time of later deployments: to make the changed tables and to run their migrations.
    pub fn set_deploy_time_max_s(&self, time_max_s: u32) {
        self.0.deploy_time_max_s.store(time_max_s, Ordering::Relaxed);
    }

    /// Ends a call by its own id or its transaction's, unless it has run. Returns its phase before, or None if there is no such call.
    pub fn cancel(&self, id: u64) -> Option<CallInfo> {
        let shared = &self.0.config.shared;
        shared.calls.cancel(id, shared.clock.monotonic_ns())
    }

    /// Returns the fuel that a call of a partition burned lately.
    pub(crate) fn fuel(&self, partition: PartitionId) -> u64 {
        self.0.config.shared.coordinator.fuel(partition)
    }

    pub(crate) fn monotonic_ns(&self) -> u64 {
        self.0.config.shared.clock.monotonic_ns()
    }

    /// Returns the moment after this time, by the clock of deadlines.
    pub fn deadline_in(&self, time: Duration) -> u64 {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.config.shared.clock.monotonic_ns().saturating_add(time_ns).max(1)
    }

    /// Returns the time until a deadline. None: it has passed.
    pub fn left_until(&self, deadline: &Deadline) -> Option<Duration> {
        let left = deadline.ns().saturating_sub(self.0.config.shared.clock.monotonic_ns());
        (left > 0).then(|| Duration::from_nanos(left))
    }

    /// Returns a new stream. Batches of a stream keep their order among each other if some calls are of several partitions. A client takes one to
    /// send batches without waiting for answers. The calls of a batch keep their order anyway.
    pub fn new_stream(&self) -> Stream {
        Stream(self.0.streams.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs a batch. `done` is called once, with all answers.
    pub fn submit(&self, builder: BatchBuilder, done: OnReply) {
        let refusal = self.refusal();
        builder.submit(done, |part| match &refusal {
            Some(outcome) => part.batch.turn_away(outcome),
            None => self.dispatch(part),
        });
    }

    pub(crate) fn record_answered(&self, calls: u64, took: Duration) {
        self.0.config.registry.answered(calls, took);
        self.0.pace.record(calls);
    }

    /// Returns why the node takes no calls now, if there is a reason.
    fn refusal(&self) -> Option<ReplyOutcome> {
        match &*self.0.phase.read().expect("held for a short time") {
            NodePhase::Ready => None,
            NodePhase::Recovering { .. } => Some("the server recovers; /readyz shows the progress"),
            NodePhase::Failed { .. } => Some("the server serves no tables; /readyz has the report"),
            NodePhase::Stopping => Some("the server is stopping"),
        }
        .map(|reason| ReplyOutcome::Unavailable(reason.into()))
    }

    /// Checks that the node takes calls.
    pub fn check_ready(&self) -> Result<(), Unavailable> {
        match self.refusal() {
            Some(ReplyOutcome::Unavailable(reason)) => Err(Unavailable(reason)),
            _ => Ok(()),
        }
    }

    fn dispatch(&self, part: BatchPart) {
        match part.touched {
            CallPartitions::One(partition) => self.enqueue(partition, part.batch),
            CallPartitions::Several(partitions) => self.enqueue_multi(TxnPartitions::Some(partitions), part.batch),
            CallPartitions::All => self.enqueue_multi(TxnPartitions::All, part.batch),
        }
    }

    /// Admission control (paper A, section V): beyond the limit a batch is refused, not queued.
    fn enqueue(&self, partition: PartitionId, mut batch: Box<CallBatch>) {
        let shared = &self.0.config.shared;
        let waiting = &shared.waiting[partition.index()];
        let count = batch.calls.len();
        if waiting.fetch_add(count, Ordering::Relaxed) + count > shared.waiting_max {
            waiting.fetch_sub(count, Ordering::Relaxed);
            return batch.turn_away(&self.overloaded());
        }
        batch.enter(&shared.calls, shared.clock.monotonic_ns());
        if self.is_standby()
            && let Some(aside) = self.read_aside()
        {
            let (work, partitions) = (ReadWork::Calls(batch), vec![partition]);
            return self.read(&aside, ReadTask { work, partitions });
        }
        let site = partition.site(shared.sites_count).index();
        self.send(site, SiteMessage::Batch(batch));
    }

    /// Locks the order of the inboxes. Messages sent while the lock is held come behind earlier ones and before later ones, on all sites.
    pub(crate) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.0.order.lock().expect("held for sends alone")
    }

    #[cold]
    fn overloaded(&self) -> ReplyOutcome {
        let shared = &self.0.config.shared;
        let waiting = shared.waiting.iter().map(|count| count.load(Ordering::Relaxed) as u64);
        let now_ns = shared.clock.monotonic_ns();
        ReplyOutcome::Overloaded {
            retry_after_ms: self.0.pace.retry_after_ms(now_ns, waiting.sum()),
        }
    }

    fn enqueue_multi(&self, touched: TxnPartitions, mut batch: Box<CallBatch>) {
        let shared = &self.0.config.shared;
        let partitions = match &touched {
            TxnPartitions::All => (0..shared.partitions_count).map(PartitionId).collect(),
            TxnPartitions::Some(list) => list.clone(),
        };
        for (admitted, partition) in partitions.iter().enumerate() {
            let (waiting, count) = (&shared.waiting[partition.index()], batch.count_on(*partition));
            if waiting.fetch_add(count, Ordering::Relaxed) + count > shared.waiting_max {
                for partition in &partitions[..=admitted] {
                    let count = batch.count_on(*partition);
                    shared.waiting[partition.index()].fetch_sub(count, Ordering::Relaxed);
                }
                return batch.turn_away(&self.overloaded());
            }
        }
        let stream = batch.stream.expect("a batch of several partitions is of a stream");
        let sent_ns = shared.clock.monotonic_ns();
        batch.enter(&shared.calls, sent_ns);
        if self.is_standby()
            && let Some(aside) = self.read_aside()
        {
            let work = ReadWork::Calls(batch);
            return self.read(&aside, ReadTask { work, partitions });
        }
        let job: Job = Box::new(move |held: &mut ExclusivePartitions<'_>| held.run_calls(batch));
        let count = shared.partitions_count;
        self.send_multi(MultiPartitionTxn::in_stream(touched, count, stream, sent_ns, job));
    }

    /// Sends a transaction over several partitions. It runs once all of them are held.
    pub(crate) fn send_multi(&self, txn: MultiPartitionTxn) {
        self.send_multi_in(&self.in_order(), txn);
    }

    pub(crate) fn send_multi_in(&self, _order: &MutexGuard<'_, ()>, txn: MultiPartitionTxn) {
        let sites = txn.touched().sites(self.0.config.shared.sites_count);
        let txn = Arc::new(txn);
        for site in sites {
            self.send(site, SiteMessage::Multi(txn.clone()));
        }
    }

    /// Runs `job` over all partitions and waits for its result.
    pub(crate) fn run_on_all<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut ExclusivePartitions<'_>) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        self.check_ready()?;
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let job: Job = Box::new(move |held| {
            let _ = sender.send(job(held)); // the job is done even if the caller has gone
        });
        let count = self.0.config.shared.partitions_count;
        self.send_multi(MultiPartitionTxn::barrier(TxnPartitions::All, count, job));
        self.0
            .config
            .shared
            .threads
            .receive(&receiver)
            .map_err(|_| Unavailable("the engine has stopped".into()))
    }

    /// Reads from some partitions at one moment, and waits until the rows that it read are durable. The partitions run other calls until
    /// all of them are ready for it.
    pub(crate) fn run_durably<T: Send + Sync + 'static>(
        &self,
        touched: TxnPartitions,
        read: impl FnOnce(&mut ExclusivePartitions<'_>) -> Result<T, RowsError> + Send + 'static,
    ) -> Result<T, RowsError> {
        let receiver = self.send_durably(touched, read);
        let received = self.0.config.shared.threads.receive(&receiver);
        received.map_err(|_| RowsError::Unavailable("the engine has stopped".into()))?
    }

    /// The `run_durably` variant that waits at most `wait_max`, then reports the partition as busy. The read still runs, and its result is
    /// dropped.
    pub(crate) fn run_durably_within<T: Send + Sync + 'static>(
        &self,
        touched: TxnPartitions,
        wait_max: Duration,
        read: impl FnOnce(&mut ExclusivePartitions<'_>) -> Result<T, RowsError> + Send + 'static,
    ) -> Result<T, RowsError> {
        let receiver = self.send_durably(touched, read);
        let received = self.0.config.shared.threads.receive_for(&receiver, wait_max);
        received.map_err(|_| RowsError::Unavailable("the row's partition is busy".into()))?
    }

    fn send_durably<T: Send + Sync + 'static>(
        &self,
        touched: TxnPartitions,
        read: impl FnOnce(&mut ExclusivePartitions<'_>) -> Result<T, RowsError> + Send + 'static,
    ) -> Receiver<Result<T, RowsError>> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let job: Job = Box::new(move |held: &mut ExclusivePartitions<'_>| {
            let found = read(held);
            held.when_durable(move |durable| {
                let _ = sender.send(durable.map_err(RowsError::from).and(found));
            });
        });
        let shared = &self.0.config.shared;
        let (count, sent_ns) = (shared.partitions_count, shared.clock.monotonic_ns());
        self.send_multi(MultiPartitionTxn::in_stream(
            touched,
            count,
            self.new_stream(),
            sent_ns,
            job,
        ));
        receiver
    }

    pub(crate) fn send(&self, site: usize, message: SiteMessage) {
        let sent = self.0.config.inboxes[site].send(message);
        if let Err(unsent) = sent
            && let SiteMessage::Batch(batch) = unsent.0
        {
            batch.turn_away(&ReplyOutcome::Unavailable("the engine has stopped".into()));
        }
    }

    /// Tells the sites to end after the messages in their inboxes.
    pub fn stop(&self) {
        self.set_phase(NodePhase::Stopping);
        let _order = self.in_order();
        for site in 0..self.0.config.inboxes.len() {
            self.send(site, SiteMessage::Stop);
        }
    }
}

impl From<Unavailable> for ReplyOutcome {
    fn from(unavailable: Unavailable) -> Self {
        Self::Unavailable(unavailable.0)
    }
}
