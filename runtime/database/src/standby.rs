//! A database as the standby of another one. It takes the groups of its primary's log, replays durable records, serves reads of them, and
//! can become the primary.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::RecvTimeoutError;
use reprise_base::{Epoch, Lsn, OnReached, Role, Safety, WatermarkWaiter};
use reprise_env::{Disk, DiskError, ThreadHandle};
use reprise_log::{
    AppendError, AppendOutcome, Group, GroupAppender, GroupSink, Log, LogError, Position, UnavailableKind,
};
use reprise_partition::{CallBatch, LogPolicy, NvramSink, Shared, SiteMessage};
use reprise_replay::Replayer;
use reprise_router::{NodePhase, PromotionResult, ReadPath, ReplicationError, Router};

use crate::{
    config::DatabaseConfig,
    cutting,
    database::Database,
    environment::Environment,
    error::OpenError,
    follower::{FOLLOW_WINDOW_BYTES, Follower, Orders, ReplayEnd},
    node_file::{DirectoryUse, NodeFile},
    readers::Readers,
    report::RecoveryReport,
    shown_limit::{self, ShownFile, ShownLimit},
    standby_comparer::StandbyComparer,
};

/// Longest time for which a promotion waits until received records are durable.
const DURABLE_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest such wait if the disk refuses to take them: it may have been full for a moment.
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(5);
/// Interval at which a promotion checks whether the replay has failed.
const ENDED_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the view is saved.
const VIEW_KEPT_NS: u64 = 1_000_000_000;

/// The positions of a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StandbyPositions {
    /// Epoch of the newest record received.
    pub epoch: Epoch,
    /// LSN before which everything was received.
    pub received: Lsn,
    /// LSN before which everything is durable.
    pub persisted: Lsn,
    /// LSN before which everything is in the tables.
    pub replayed: Lsn,
    /// LSN before which readers see everything.
    pub view: Lsn,
}

/// The parts of a database that was opened as a standby.
pub(crate) struct StandbyParts {
    placing: Mutex<StandbyAppender>,
    orders: Arc<Orders>,
    woken: crossbeam_channel::Receiver<()>,
    ended: (
        crossbeam_channel::Sender<ReplayEnd>,
        crossbeam_channel::Receiver<ReplayEnd>,
    ),
    /// Reason for which the replay ended. The first thread that asks sets it.
    failure: Mutex<Option<Arc<str>>>,
    thread: Mutex<Option<Box<dyn ThreadHandle>>>,
    /// Locked while this standby is promoted. It has the end of the replay, once the replay has ended.
    promoting: Mutex<Option<Lsn>>,
    /// The state at the opening, without later records of a primary.
    found: OnceLock<(Option<ShownLimit>, Option<Lsn>)>,
    /// LSN before which the primary must have committed everything before readers see the tables. 0: readers see them. Until then the
    /// saved view does not change.
    hidden_until: AtomicU64,
    /// True if this standby follows a primary, or will after its recovery. It then replays only records that the primary reports as committed.
    is_following: AtomicBool,
    /// The saved view, once this standby follows a primary.
    shown: Mutex<Option<SavedView>>,
    pub hiding: Arc<ReadGate>,
    /// The comparison of this standby's tables with its primary's.
    pub comparison: Arc<StandbyComparer>,
    readers: Mutex<Readers>,
}

/// The view, which the standby saves at intervals.
struct SavedView {
    file: ShownFile,
    kept: Lsn,
    kept_ns: u64,
}

struct StandbyAppender {
    receiver: GroupAppender<Box<CallBatch>>,
    is_closed: bool,
}

impl StandbyParts {
    pub fn new(log: &Log<Box<CallBatch>>, shared: &Arc<Shared>) -> Self {
        let (orders, woken) = Orders::new();
        Self {
            placing: Mutex::new(StandbyAppender {
                receiver: log.group_appender(),
                is_closed: false,
            }),
            orders,
            woken,
            ended: crossbeam_channel::unbounded(),
            failure: Mutex::default(),
            thread: Mutex::default(),
            promoting: Mutex::default(),
            found: OnceLock::new(),
            hidden_until: AtomicU64::new(0),
            is_following: AtomicBool::new(false),
            shown: Mutex::default(),
            hiding: Arc::default(),
            comparison: StandbyComparer::new(shared.clone()),
            readers: Mutex::default(),
        }
    }

    pub fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().expect("held while readers start")
    }

    fn placing(&self) -> MutexGuard<'_, StandbyAppender> {
        self.placing.lock().expect("nothing panics while it places")
    }

    pub(crate) fn keep_failure(&self, failure: &Arc<str>) {
        *self.failure.lock().expect("held for a store") = Some(failure.clone());
    }

    fn failure(&self) -> Option<Arc<str>> {
        match self.ended.1.try_recv() {
            Ok(Err(failure)) => self.keep_failure(&failure),
            // The replay ended well. A waiting promotion gets the message.
            Ok(ended) => _ = self.ended.0.send(ended),
            Err(_) => {}
        }
        self.failure.lock().expect("held for a copy").clone()
    }

    fn shown(&self) -> MutexGuard<'_, Option<SavedView>> {
        self.shown.lock().expect("held for a short write")
    }

    /// Saves the view if it is beyond the saved one. After an error the older one stays, and the standby shows less after a restart.
    fn keep_view(&self, view: Lsn, now_ns: u64) {
        let is_hidden = view.0 < self.hidden_until.load(Ordering::Acquire);
        let mut shown = self.shown();
        let Some(showing) = shown.as_mut().filter(|showing| showing.kept < view && !is_hidden) else {
            return;
        };
        showing.kept_ns = now_ns;
        let shown = ShownLimit {
            limit: view,
            hides_checkpoint: false,
        };
        if showing.file.store(shown).is_ok() {
            showing.kept = view;
        }
    }

    /// Returns the LSN before which the primary reported everything as committed. None: this standby follows no primary.
    pub fn reported_committed(&self) -> Option<Lsn> {
        self.orders.reported_committed()
    }

    /// Asks the replay to end at its present record, and waits for no thread.
    pub fn request_stop(&self) {
        self.orders.stop();
    }

    /// Whether the replay was ended before its time: nothing more comes from it.
    fn is_stopped(&self) -> bool {
        self.thread.lock().expect("held to take").is_none()
    }

    /// Ends the replay at its present record.
    pub fn stop(&self, view: Lsn) {
        self.orders.stop();
        let thread = self.thread.lock().expect("held to take").take();
        if let Some(thread) = thread {
            thread.join();
        }
        self.keep_view(view, 0);
    }
}

/// Gate that says whether clients may read replayed records. A primary can refuse this standby's history at any time, also during its
/// recovery.
#[derive(Default)]
pub(crate) struct ReadGate(Mutex<Option<String>>);

impl ReadGate {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().expect("held for a store")
    }

    /// Stops all reads for this reason.
    pub fn hide(&self, router: &Router, report: String) {
        let mut hidden = self.lock();
        *hidden = Some(report.clone());
        router.set_phase(NodePhase::Failed { report });
    }

    /// Opens replayed records to readers, unless there is a reason to hide them.
    pub fn open_reads(&self, router: &Router) {
        let hidden = self.lock();
        router.set_phase(match hidden.clone() {
            None => NodePhase::Ready,
            Some(report) => NodePhase::Failed { report },
        });
    }

    /// Lifts the reason: this server is the primary now, so the history of another one does not matter.
    pub fn show_again(&self, router: &Router) {
        let mut hidden = self.lock();
        if let (Some(hidden), NodePhase::Failed { report }) = (hidden.take(), router.phase())
            && hidden == report
        {
            router.set_phase(NodePhase::Ready);
        }
    }
}

impl ShownLimit {
    /// Returns the limit if this checkpoint has records beyond it that readers must not see.
    fn hidden_behind(self, checkpoint: Option<Lsn>) -> Option<Lsn> {
        let is_beyond = checkpoint.is_some_and(|checkpoint| self.limit < checkpoint);
        (self.hides_checkpoint && is_beyond).then_some(self.limit)
    }
}

impl Database {
    /// Opens a directory as a standby of its primary. The directory was bootstrapped from that primary, or restored from its backup. The
    /// log takes groups (`place`) and nothing else, and keeps their epochs. `recover` replays the log, admits reads, and continues with
    /// the records that arrive. `open` refuses this directory until an operator makes it a primary's (`NodeFile::make_primary`).
    pub fn open_standby(config: DatabaseConfig) -> Result<Self, OpenError> {
        let Some(dir) = config.dir.as_deref() else {
            return Err(OpenError::Config("a standby needs a data directory".into()));
        };
        // This check precedes any new folder in the directory.
        if !dir.join("log").exists() {
            return Err(not_bootstrapped(dir));
        }
        Self::check_directory(&config)?;
        let environment = Environment::real(&config)?;
        Self::open_standby_in(config, environment)
    }

    /// The `open_standby` variant with this clock, these folders, threads and compiler. It does not use `config.dir`.
    pub fn open_standby_in(config: DatabaseConfig, around: Environment) -> Result<Self, OpenError> {
        if config.log == LogPolicy::None {
            return Err(OpenError::Config(
                "a standby keeps the log of its primary: --log none has none".into(),
            ));
        }
        let database = Self::open_as(config, around, DirectoryUse::Standby)?;
        database.router.set_role(Role::Standby);
        if let (Some(standby), Some(root)) = (&database.upkeep.standby, database.root()) {
            let durable = database.log.as_ref().map(|log| log.durable());
            let found = (database.shown_before(root)?, durable);
            assert!(standby.found.set(found).is_ok(), "it is opened once");
        }
        Ok(database)
    }

    /// Appends a group of the primary's log, which the replay takes once the group is durable here. The call waits, within bounds, while
    /// the log's buffers are full.
    pub fn place(&self, group: &Group<'_>) -> Result<AppendOutcome, AppendError> {
        let Some(standby) = self.upkeep.standby.as_ref() else {
            return Err(closed("this server was opened as a primary"));
        };
        let placing = standby.placing();
        match placing.is_closed {
            true => Err(closed("this standby becomes the primary, or is it already")),
            false => placing.receiver.append(group),
        }
    }

    /// Gives `sink` all groups that the log writes here from the next one on, while the database is open. It does nothing without a log.
    pub fn add_group_sink(&self, sink: Arc<dyn GroupSink>) {
        if let Some(log) = &self.log {
            log.add_sink(sink);
        }
    }

    /// Returns the position up to which a standby's log has received groups. None on a server that is no standby.
    pub fn received(&self) -> Option<Position> {
        self.log.as_ref()?.received()
    }

    /// Runs `hook` once everything before `end` is durable here. The hook runs on a thread of the log, so it must only hand over. None:
    /// everything is durable already, or there is no log.
    pub fn when_durable(&self, end: Lsn, hook: OnReached) -> Option<WatermarkWaiter> {
        self.log.as_ref()?.when_durable(end, hook)
    }

    /// Returns the positions of this standby. None on a server that is no standby.
    pub fn standby_positions(&self) -> Option<StandbyPositions> {
        let log = self.log.as_ref()?;
        // Read in this order, each position is at most the next one.
        let view = self.router.view();
        let persisted = log.durable();
        let received = log.received()?;
        Some(StandbyPositions {
            epoch: received.epoch,
            received: received.lsn,
            persisted,
            replayed: view,
            view,
        })
    }

    /// The `recover` variant for a standby.
    pub(crate) fn recover_standby(&self, standby: &StandbyParts) -> Result<RecoveryReport, OpenError> {
        let mut replayer = self.replayer();
        let (shown, durable) = standby.found.get().copied().unwrap_or_default();
        let until = durable.map(|durable| shown.map_or(durable, |shown| shown.limit.min(durable)));
        let (report, end) = self
            .replay_with(&mut replayer, until)
            .map_err(|error| self.fail(error))?;
        let checkpoint = report.checkpoint.map(|loaded| loaded.lsn);
        let hidden = shown.and_then(|shown| shown.hidden_behind(checkpoint));
        // The log may end between the parts of a transaction. Readers never see such a transaction.
        let whole = end.min(replayer.open_since().unwrap_or(end));
        self.router.raise_view(hidden.unwrap_or(whole));
        let hidden_until = hidden.map(|_| end);
        standby
            .hidden_until
            .store(hidden_until.unwrap_or_default().0, Ordering::Release);
        if shown.is_some() {
            standby.orders.begin_commits(hidden.unwrap_or(end));
        }
        if standby.is_following.load(Ordering::Acquire) {
            self.begin_commits()?;
        }
        self.make_ready_for_calls()?;
        self.start_readers(standby).map_err(|error| self.fail(error))?;
        if hidden.is_none() {
            standby.hiding.open_reads(&self.router);
        }
        self.follow(standby, replayer, (end, hidden_until))
            .map_err(|error| self.fail(error))?;
        if let Some(checkpointer) = &self.checkpointer {
            checkpointer.start_schedule();
        }
        Ok(report)
    }

    /// Returns the limit of the records that this directory has shown, or may show as a former primary. A former primary's callers may
    /// still have waited for standbys beyond the limit. None: this directory may show all records.
    fn shown_before(&self, root: &dyn Disk) -> Result<Option<ShownLimit>, DiskError> {
        let end = self.received().map(|received| received.epoch);
        let as_primary = end
            .zip(self.node())
            .and_then(|(end, node)| cutting::committed_at_end(node, end));
        let hidden = as_primary.map(|limit| ShownLimit {
            limit,
            hides_checkpoint: true,
        });
        let kept = shown_limit::load(root)?.map(|shown| ShownLimit {
            hides_checkpoint: shown.hides_checkpoint || hidden.is_some(),
            ..shown
        });
        Ok(kept.or(hidden))
    }

    pub(crate) fn root(&self) -> Option<&dyn Disk> {
        self.upkeep.folders.as_ref().map(|folders| &*folders.root)
    }

    /// Returns the document of the directory. None without a log.
    pub(crate) fn node(&self) -> Option<&Arc<NodeFile>> {
        self.upkeep.node.as_ref()
    }

    /// Begins to follow a primary. From now on, or from the end of the recovery on, the standby replays only records that the primary
    /// reports as committed. It first saves that it follows one, and the limit of the records that it may show. Later nothing else says
    /// which records were its own.
    pub(crate) fn begin_following(&self) -> Result<(), DiskError> {
        let Some(standby) = &self.upkeep.standby else {
            return Ok(());
        };
        self.node()
            .map_or(Ok(()), |node| node.change(|document| document.follows = true))?;
        standby.is_following.store(true, Ordering::Release);
        let is_recovered = standby.thread.lock().expect("held for a short time").is_some();
        match is_recovered {
            true => self.begin_commits(),
            false => {
                standby.orders.begin_commits(Lsn(0));
                self.keep_found(standby)
            }
        }
    }

    /// Saves the limit of the records that this directory may show by itself, if another limit or none is saved.
    fn keep_found(&self, standby: &StandbyParts) -> Result<(), DiskError> {
        let (Some(root), Some((shown, Some(durable)))) = (self.root(), standby.found.get().copied()) else {
            return Ok(());
        };
        let all = ShownLimit {
            limit: durable,
            hides_checkpoint: false,
        };
        let found = shown.unwrap_or(all);
        match shown_limit::load(root)? == Some(found) {
            true => Ok(()),
            false => shown_limit::keep(root, found),
        }
    }

    /// Limits the replay to records that the primary reports as committed, and saves the view from now on.
    fn begin_commits(&self) -> Result<(), DiskError> {
        let (Some(standby), Some(root)) = (&self.upkeep.standby, self.root()) else {
            return Ok(());
        };
        let file = ShownFile::open(root)?;
        standby.orders.begin_commits(self.router.view());
        *standby.shown() = Some(SavedView {
            file,
            kept: Lsn(0),
            kept_ns: 0,
        });
        standby.keep_view(self.router.view(), 0);
        Ok(())
    }

    /// Records the committed LSN that the primary reports, and saves the view if that is due.
    pub(crate) fn record_committed(&self, committed: Lsn, now_ns: u64) {
        let Some(standby) = &self.upkeep.standby else {
            return;
        };
        standby.orders.record_committed(committed);
        let kept_ns = standby.shown().as_ref().map(|showing| showing.kept_ns);
        if kept_ns.is_some_and(|kept_ns| now_ns.saturating_sub(kept_ns) >= VIEW_KEPT_NS) {
            standby.keep_view(self.router.view(), now_ns);
        }
    }

    /// Replays the records that become durable from `from` on. The follower admits reads once everything before `hidden_until` is committed.
    fn follow(
        &self,
        standby: &StandbyParts,
        mut replayer: Replayer,
        (from, hidden_until): (Lsn, Option<Lsn>),
    ) -> Result<(), OpenError> {
        let log = self.log.clone().expect("a standby has a log");
        let (router, orders) = (self.router.clone(), standby.orders.clone());
        replayer.begin_snapshot_points(Arc::new(move |reached| match reached {
            Ok(end) => router.raise_view(end),
            Err(()) => orders.wake(), // the follower finds the failure
        }));
        let comparison = standby.comparison.clone();
        replayer.set_at_mark(Box::new(move |end| comparison.at_mark(end)));
        let follower = Follower {
            router: self.router.clone(),
            shared: self.shared.clone(),
            reader: log.reader(from)?,
            _copying: log.follow(),
            log,
            replayer,
            window_bytes: self.redo_window_bytes.min(FOLLOW_WINDOW_BYTES),
            orders: standby.orders.clone(),
            woken: standby.woken.clone(),
            ended: standby.ended.0.clone(),
            generation: self.router.deployed().generation,
            waiter: None,
            is_cut_due: false,
            is_at_limit: false,
            hidden_until,
            hiding: standby.hiding.clone(),
        };
        let thread = self
            .shared
            .threads
            .start_prompt("standby-replay", Box::new(move || Box::new(follower)));
        let thread = thread.map_err(OpenError::Thread)?;
        *standby.thread.lock().expect("held for a store") = Some(thread);
        Ok(())
    }

    pub(crate) fn hiding(&self) -> Option<Arc<ReadGate>> {
        self.upkeep.standby.as_ref().map(|standby| standby.hiding.clone())
    }

    /// Returns the parts that become the primary. Err: this server is no standby, or is not open yet.
    fn promotable(&self) -> Result<(&Arc<Log<Box<CallBatch>>>, &StandbyParts), ReplicationError> {
        let epoch = || self.log.as_ref().map(|log| log.epoch()).unwrap_or_default();
        let (Some(log), Some(standby)) = (&self.log, &self.upkeep.standby) else {
            return Err(ReplicationError::IsPrimary(epoch()));
        };
        if self.router.role() != Role::Standby {
            return Err(ReplicationError::IsPrimary(epoch()));
        }
        // An operator can promote a standby that replays and shows nothing yet, before a primary reports commits.
        let follows = standby.thread.lock().expect("held for a store").is_some();
        if !follows && !self.router.is_recovered() {
            return Err(unavailable("this standby is still being opened".into()));
        }
        Ok((log, standby))
    }

    /// Checks that this standby can be promoted, before its primary steps down for it.
    pub(crate) fn check_promotion(&self) -> Result<(), ReplicationError> {
        let (_, standby) = self.promotable()?;
        standby.failure().map_or(Ok(()), |failure| Err(unavailable(failure)))
    }

    /// Makes this standby the primary, in a new epoch, whatever the old primary does. The standby takes no more groups. It makes the
    /// received records durable, replays them, and then takes writes. The call blocks until then. Err: it continues as a standby. If its
    /// replay had already ended, it takes no more groups until it is promoted or restarted.
    pub fn promote(&self) -> Result<PromotionResult, ReplicationError> {
        self.promote_in(Epoch::default())
    }

    /// The `promote` variant with an epoch of at least this one.
    pub(crate) fn promote_in(&self, at_least: Epoch) -> Result<PromotionResult, ReplicationError> {
        let (_, standby) = self.promotable()?;
        // The second check reports a promotion that happened meanwhile.
        let mut ended = standby.promoting.lock().expect("a promotion never panics");
        let (log, standby) = self.promotable()?;
        standby.placing().is_closed = true;
        let replayed = match *ended {
            Some(end) => Ok(end),
            None => self.finish_replay(standby, log),
        };
        let promoted = replayed.and_then(|lsn| {
            *ended = Some(lsn);
            let promoted = log.promote(at_least);
            let epoch = promoted.map_err(|error| unavailable(error.to_string().into()))?;
            let epoch = epoch.ok_or_else(|| unavailable("its log is no standby's any more".into()))?;
            let has_stepped_down = false;
            Ok(PromotionResult {
                epoch,
                lsn,
                has_stepped_down,
                may_be_lost: None,
            })
        });
        match &promoted {
            Ok(_) => self.take_writes()?,
            Err(error) => {
                standby.placing().is_closed = ended.is_some();
                self.shared.gate.leave_open(&error.to_string().into());
            }
        }
        promoted
    }

    /// Waits until all received records are durable and replayed. Returns their end.
    fn finish_replay(&self, standby: &StandbyParts, log: &Log<Box<CallBatch>>) -> Result<Lsn, ReplicationError> {
        let received = self.received().map(|position| position.lsn).unwrap_or_default();
        // The records must be in the files, where the replay reads them.
        let is_refused = || log.refusal().is_some() && !log.is_read_only();
        let is_durable = log.wait_copied(received, REFUSED_WAIT_MAX).is_ok()
            || (!is_refused() && log.wait_copied(received, DURABLE_WAIT_MAX).is_ok());
        if !is_durable {
            let reason = log.refusal().filter(|_| log.is_stopped() || is_refused());
            let reason = reason.unwrap_or_else(|| "the disk does not take it".into());
            return Err(unavailable(
                format!("what was received up to LSN {received} is not durable: {reason}").into(),
            ));
        }
        if matches!(self.safety(), Safety::Quorum | Safety::VerySafe) {
            // The cluster may still lose uncommitted records with this server. No reader sees them until this server takes writes.
            standby.shown().take(); // this server does not save the view as shown either
            self.stop_readers();
            self.keep_commits();
        }
        standby.orders.finish(received);
        loop {
            if let Some(failure) = standby.failure() {
                return Err(unavailable(failure));
            }
            let ended = self.shared.threads.receive_for(&standby.ended.1, ENDED_POLL_INTERVAL);
            match ended {
                Ok(Ok(end)) => {
                    assert!(end == received, "nothing is placed meanwhile: {end} is not {received}");
                    return Ok(end);
                }
                Ok(Err(failure)) => standby.keep_failure(&failure),
                Err(RecvTimeoutError::Timeout) if standby.is_stopped() => {
                    return Err(unavailable("the server stops".into()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(unavailable("the replay has ended".into())),
            }
        }
    }

    /// Makes this server a primary that takes writes.
    fn take_writes(&self) -> Result<(), ReplicationError> {
        self.stop_readers();
        self.shared.memory.enforce();
        for (number, inbox) in self.inboxes.iter().enumerate() {
            let nvram = self.log.as_ref().and_then(|log| log.nvram_appender(number));
            let sink = nvram.map(|nvram| Box::new(NvramSink::new(nvram, self.shared.gate.clone())));
            let begin = SiteMessage::Job(Box::new(move |site| {
                sink.into_iter().for_each(|sink| site.set_sink(sink));
                site.retain_undo();
            }));
            let sent = inbox.send(begin);
            sent.map_err(|_| unavailable("the engine has stopped".into()))?;
        }
        self.router.set_primary_url(None);
        if let (Some(standby), Some(root)) = (&self.upkeep.standby, self.root()) {
            standby.shown().take();
            if !self.safety().asks_standbys() {
                // If the old limit stays, the server shows less when it is a standby again.
                let _ = shown_limit::forget(root);
            }
        }
        self.keep_commits();
        if let Some(checkpointer) = &self.checkpointer {
            checkpointer.record_promotion();
        }
        self.router.set_read_path(ReadPath::Sites, 0);
        self.router.set_role(Role::Primary);
        Ok(())
    }
}

fn closed(reason: &str) -> AppendError {
    let kind = UnavailableKind::Closed;
    let reason = reason.into();
    LogError::Unavailable { kind, reason }.into()
}

fn unavailable(reason: Arc<str>) -> ReplicationError {
    ReplicationError::Unavailable(reason)
}

pub(crate) fn not_bootstrapped(dir: &Path) -> OpenError {
    OpenError::NotBootstrapped(dir.display().to_string())
}
