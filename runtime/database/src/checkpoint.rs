//! Takes checkpoints beside the running engine, keeps the newest ones, and lets go of the log behind them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_channel::bounded;
use reprise_backup::{Archive, ArchiveError};
use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointError, CheckpointSize, Checkpoints, checkpoint_name};
use reprise_env::{MakeWork, Started, Step, Work};
use reprise_log::Log;
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{CallBatch, Shared};
use reprise_router::{
    ArchiveStatus, BytesError, CheckpointFailure, CheckpointInfo, CheckpointService, CheckpointState, RestartEstimate,
    Router, TakeError,
};
use reprise_txn::Module;
use reprise_wire::Genesis;

use crate::{config::CheckpointConfig, estimate::OpeningSpeeds, writing::Writing};

/// Pages of rows on their way from the engine threads to the writer: bounds memory while the disk is slow.
const PAGES_IN_FLIGHT_MAX: usize = 64;
/// How often the schedule is looked at.
const SCHEDULE_LOOK: Duration = Duration::from_millis(200);
/// How often it is looked whether one that somebody else begins is marked.
const BEGIN_LOOK: Duration = Duration::from_millis(1);
/// Log that has grown by less is no reason for another checkpoint.
const GROWN_BYTES_MIN: u64 = 4096;
/// Of the recovery target: with less log to replay another checkpoint would not help.
const REPLAY_SHARE_MIN: f64 = 0.1;
/// Failures remembered.
const FAILURES_MAX: usize = 8;
/// How long a stop waits for an archive whose disk may hang.
const ARCHIVE_STOP_MAX: Duration = Duration::from_secs(5);
const ARCHIVE_STOP_LOOK: Duration = Duration::from_millis(1);

pub(crate) struct Checkpointer {
    pub router: Router,
    pub log: Arc<Log<Box<CallBatch>>>,
    pub files: Checkpoints,
    pub shared: Arc<Shared>,
    pub genesis: Genesis,
    pub settings_hash: u64,
    config: CheckpointConfig,
    pub speeds: Mutex<OpeningSpeeds>,
    /// Takes what is let go of first.
    archive: OnceLock<Archive>,
    state: Mutex<State>,
    is_stopping: AtomicBool,
    stop: Condvar,
    threads: Mutex<Vec<Box<dyn Started>>>,
    archiving: Mutex<ArchiveThread>,
    /// How many need all that is there; held while something is let go.
    keepers: Mutex<usize>,
    this: Weak<Self>,
}

/// While it lives, no checkpoint and no log is let go.
pub(crate) struct Kept(Arc<Checkpointer>);

impl Drop for Kept {
    fn drop(&mut self) {
        *self.0.keepers.lock().expect("held to count") -= 1;
    }
}

/// The one thread that puts files into the archive. A disk that hangs may hold it for ever; nobody waits for it under a lock.
#[derive(Default)]
struct ArchiveThread {
    started: Option<Box<dyn Started>>,
    is_busy: bool,
    /// A checkpoint that was published while it was busy.
    next: Option<Lsn>,
}

#[derive(Default)]
struct State {
    running: Option<CheckpointInfo>,
    begun: Option<Instant>,
    /// Time of the engine threads for calls that write, up to the mark of the checkpoint that runs.
    running_write_ns: u64,
    /// The same, up to the mark of the newest published checkpoint.
    published_write_ns: u64,
    published: BTreeMap<Lsn, CheckpointInfo>,
    failed: Vec<CheckpointInfo>,
    last_failure: Option<CheckpointFailure>,
    /// Published and failed in this run.
    counts: (u64, u64),
}

impl Checkpointer {
    pub fn new(
        router: Router,
        log: Arc<Log<Box<CallBatch>>>,
        files: Checkpoints,
        shared: Arc<Shared>,
        genesis: Genesis,
        settings_hash: u64,
        config: CheckpointConfig,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            router,
            log,
            files,
            shared,
            genesis,
            settings_hash,
            config,
            speeds: Mutex::default(),
            archive: OnceLock::new(),
            state: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            stop: Condvar::new(),
            threads: Mutex::default(),
            archiving: Mutex::default(),
            keepers: Mutex::default(),
            this: this.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Notes a checkpoint of an earlier run.
    pub fn note(&self, info: CheckpointInfo) {
        self.lock().published.insert(info.lsn, info);
    }

    /// What is let go of goes into the archive first. Once.
    pub fn set_archive(&self, archive: Archive) {
        assert!(self.archive.set(archive).is_ok(), "there is one archive");
    }

    /// Begins to take checkpoints by the schedule, if there is one.
    pub fn start_schedule(&self) {
        let config = &self.config;
        if config.every.is_zero() && config.log_bytes == 0 && config.recovery_target.is_zero() {
            return;
        }
        if let Some(this) = self.this.upgrade() {
            self.start("checkpoint-schedule", Box::new(move || Box::new(Schedule::new(this))));
        }
    }

    fn start(&self, name: &str, make: MakeWork) -> bool {
        let started = self.shared.threads.start(name, make);
        let mut threads = self.threads.lock().expect("held for a push");
        threads.retain(|thread| !thread.is_over());
        started.map(|thread| threads.push(thread)).is_ok()
    }

    /// Keeps everything that is there now, and what comes.
    pub fn keep_all(self: &Arc<Self>) -> Kept {
        *self.keepers.lock().expect("held to count") += 1;
        Kept(self.clone())
    }

    /// The newest checkpoint, where next to nothing was written since.
    pub fn fresh(&self) -> Option<Lsn> {
        let newest = self.newest()?;
        (self.log.bytes_behind(newest) < GROWN_BYTES_MIN).then_some(newest)
    }

    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Another checkpoint is due, the last one having been begun so long ago.
    fn is_due(&self, since_last: Duration) -> bool {
        let behind = self.newest().unwrap_or(self.log.start());
        let grown = self.log.bytes_behind(behind);
        let is_time = !self.config.every.is_zero() && since_last >= self.config.every;
        let is_long = self.config.log_bytes > 0 && grown >= self.config.log_bytes;
        grown >= GROWN_BYTES_MIN && (is_time || is_long || self.is_beyond_target())
    }

    /// Returns true if the parts of a restart that are known take longer than the target, and a checkpoint would help. It does not help
    /// if loading alone takes that long.
    fn is_beyond_target(&self) -> bool {
        let target = self.config.recovery_target.as_secs_f64();
        if target == 0.0 {
            return false;
        }
        let estimate = CheckpointService::restart(self);
        let replay_seconds = estimate.replay_seconds.unwrap_or(0.0);
        estimate.known_seconds() > target && replay_seconds > target * REPLAY_SHARE_MIN
    }

    /// Records that the engine threads run the calls that are logged from here on: this standby is the primary now.
    pub fn record_promotion(&self) {
        self.speeds.lock().expect("held for a store").own_log_from = self.log.durable();
    }

    fn note_failure(&self, error: String) {
        let mut state = self.lock();
        state.counts.1 += 1;
        let reason = error.clone();
        state.last_failure = Some(CheckpointFailure {
            at_unix_us: self.shared.clock.now_us(),
            error,
        });
        self.shared
            .notices
            .tell(NoticeKind::Checkpoint, || Notice::CheckpointFailed { reason });
    }

    /// Gives up what is under way and ends the threads.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.stop.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("held to take"));
        for thread in threads {
            thread.join(); // what it did is in the list
        }
        self.stop_archiving();
    }

    /// Waits for the archive's thread, but not for ever: what it did not take is taken after the next checkpoint.
    fn stop_archiving(&self) {
        let Some(thread) = self.archiving().started.take() else {
            return;
        };
        let looks = ARCHIVE_STOP_MAX.as_micros() / ARCHIVE_STOP_LOOK.as_micros();
        for _ in 0..looks {
            if thread.is_over() {
                return thread.join();
            }
            self.shared.threads.sleep(ARCHIVE_STOP_LOOK);
        }
    }

    fn archiving(&self) -> MutexGuard<'_, ArchiveThread> {
        self.archiving.lock().expect("nothing panics under this lock")
    }

    /// Notes how the writing of a checkpoint ended; behind a published one, lets go of what it replaces.
    pub fn note_end(&self, lsn: Lsn, written: Result<CheckpointSize, CheckpointError>) {
        let is_archived = written.is_ok() && self.archive.get().is_some_and(|archive| !archive.is_given_up());
        let retired = match &written {
            Ok(_) => match is_archived {
                true => Ok(()), // on a thread of its own: to copy may take long
                false => self.retire(lsn),
            },
            Err(error) => {
                self.note_failure(error.to_string());
                Ok(())
            }
        };
        let mut state = self.lock();
        let begun = state.begun.take();
        let Some(mut info) = state.running.take() else {
            return;
        };
        info.seconds = begun.map(|begun| begun.elapsed().as_secs_f64());
        match written {
            Ok(size) => {
                (info.rows, info.row_bytes) = (size.rows, size.row_bytes);
                info.file_bytes = size.file_bytes;
                info.state = CheckpointState::Published;
                info.error = retired.err().map(|error| error.to_string());
                self.shared
                    .notices
                    .tell(NoticeKind::Checkpoint, || Notice::CheckpointPublished {
                        lsn,
                        rows: info.rows,
                        file_bytes: info.file_bytes,
                        seconds: info.seconds.unwrap_or_default(),
                    });
                state.published.insert(lsn, info);
                state.published_write_ns = state.running_write_ns;
                state.counts.0 += 1;
            }
            Err(error) => {
                info.state = CheckpointState::Failed;
                info.error = Some(error.to_string());
                state.failed.insert(0, info);
                state.failed.truncate(FAILURES_MAX);
            }
        }
        drop(state);
        if is_archived && !self.is_stopping() {
            self.begin_archiving(lsn);
        }
    }

    /// Has the archive's thread take what this checkpoint replaces; where it is still busy with an earlier one, judges what waits.
    fn begin_archiving(&self, lsn: Lsn) {
        let Some(this) = self.this.upgrade() else {
            return;
        };
        let mut archiving = self.archiving();
        if archiving.is_busy {
            archiving.next = Some(lsn);
            drop(archiving);
            return self.judge_held(lsn);
        }
        let make: MakeWork = Box::new(move || Box::new(Archiving(this, lsn)));
        match self.shared.threads.start("archive", make) {
            Ok(thread) => (archiving.started, archiving.is_busy) = (Some(thread), true),
            Err(_) => {
                drop(archiving);
                self.note_archived(Err(ArchiveError::NoThread));
            }
        }
    }

    /// The archive's thread is at an earlier checkpoint, perhaps for ever: where too much waits for it, the archive is given up, and what
    /// waited goes.
    fn judge_held(&self, newest: Lsn) {
        let Some(archive) = self.archive.get().filter(|archive| !archive.is_given_up()) else {
            return;
        };
        let retired = self
            .replaced_by(newest)
            .and_then(|replaced| match self.held_too_much(archive, &replaced) {
                None => Ok(()),
                Some(overheld) => self.retire(newest).and(Err(overheld)),
            });
        if retired.is_err() {
            self.note_archived(retired);
        }
    }

    /// Notes how the archive took what was to go.
    fn note_archived(&self, retired: Result<(), ArchiveError>) {
        let Some(archive) = self.archive.get() else {
            return;
        };
        let now_us = self.shared.clock.now_us();
        let published = self
            .lock()
            .published
            .values()
            .map(|info| (info.lsn, info.began_unix_us))
            .collect::<Vec<_>>();
        if retired.is_ok() && archive.is_given_up() {
            return; // what was let go of since then is none of its
        }
        let kept = retired.and_then(|()| archive.let_go(&published, now_us));
        let error = match kept.and_then(|()| Ok(archive.note_taken()?)) {
            Ok(()) | Err(ArchiveError::GivenUp) => return,
            Err(error) => error,
        };
        archive.note_failure(now_us, error.to_string());
        self.shared.notices.tell(NoticeKind::Archive, || Notice::ArchiveFailed {
            reason: error.to_string(),
        });
    }

    pub fn note_progress(&self, size: CheckpointSize) {
        if let Some(info) = &mut self.lock().running {
            (info.rows, info.row_bytes) = (size.rows, size.row_bytes);
            info.file_bytes = size.file_bytes;
        }
    }

    /// Removes checkpoints beyond those kept, then the log that only they needed: in this order a crash between the two
    /// leaves each checkpoint with its log.
    fn retire(&self, newest: Lsn) -> Result<(), ArchiveError> {
        if self.is_kept() {
            return Ok(()); // the next checkpoint does it
        }
        let replaced = self.replaced_by(newest)?;
        let archive = self.archive.get().filter(|archive| !archive.is_given_up());
        let mut overheld = Ok(());
        if let Some(archive) = archive
            && let Err(error) = self.put_away(archive, &replaced)
        {
            overheld = match self.held_too_much(archive, &replaced) {
                None => return Err(error),
                Some(overheld) => Err(overheld),
            };
        }
        // Held from the look on: who comes later finds all or nothing of it.
        let keepers = self.keepers.lock().expect("held to count");
        if *keepers > 0 {
            return overheld;
        }
        if overheld.is_ok() && archive.is_some_and(Archive::is_given_up) {
            return Err(ArchiveError::GivenUp); // meanwhile: it is gone already
        }
        for lsn in &replaced.past {
            self.files.remove(*lsn)?;
            self.lock().published.remove(lsn);
        }
        if let Some(lsn) = replaced.released {
            self.log.release_before(lsn)?;
        }
        overheld
    }

    fn is_kept(&self) -> bool {
        *self.keepers.lock().expect("held for a look") > 0
    }

    /// What goes with this checkpoint.
    fn replaced_by(&self, newest: Lsn) -> Result<Replaced, ArchiveError> {
        let keep = self.config.keep.max(1);
        let stored = self.files.list()?;
        let older = stored.iter().filter(|lsn| **lsn <= newest).count();
        let (past, kept) = stored[..older].split_at(older.saturating_sub(keep));
        Ok(Replaced {
            past: past.to_vec(),
            // With fewer, the log from the beginning is the way back from a damaged one.
            released: kept.first().filter(|_| kept.len() == keep).copied(),
        })
    }

    /// Some: the archive took nothing for so long that what waits for it would fill the disk; it is given up.
    fn held_too_much(&self, archive: &Archive, replaced: &Replaced) -> Option<ArchiveError> {
        if self.is_stopping() || archive.is_given_up() {
            return None;
        }
        let segments = self.releasable(replaced);
        archive.hold(&segments, &replaced.past, self.log.start()).err()
    }

    fn releasable(&self, replaced: &Replaced) -> Vec<String> {
        replaced
            .released
            .map_or(Vec::new(), |lsn| self.log.releasable_before(lsn))
    }

    /// Copies what is to go. Until all of it is there, nothing goes.
    fn put_away(&self, archive: &Archive, replaced: &Replaced) -> Result<(), ArchiveError> {
        let goes_on = || !self.is_stopping() && !archive.is_given_up();
        for name in self.releasable(replaced) {
            archive.take_segment(&name, &goes_on)?;
        }
        replaced
            .past
            .iter()
            .try_for_each(|lsn| archive.take_checkpoint(*lsn, &goes_on))
    }
}

impl CheckpointService for Checkpointer {
    fn take(&self) -> Result<CheckpointInfo, TakeError> {
        loop {
            if let Some(taken) = self.try_take()? {
                return Ok(taken);
            }
            if self.is_stopping() {
                return Err(TakeError::Failed("another one is just begun".into()));
            }
            self.shared.threads.sleep(BEGIN_LOOK);
        }
    }

    fn list(&self) -> Vec<CheckpointInfo> {
        let running = self.running();
        let state = self.lock();
        let published = state.published.values().rev().cloned();
        running
            .into_iter()
            .chain(published)
            .chain(state.failed.iter().cloned())
            .collect()
    }

    fn newest(&self) -> Option<Lsn> {
        self.lock().published.keys().next_back().copied()
    }

    fn restart(&self) -> RestartEstimate {
        let speeds = *self.speeds.lock().expect("held for a copy");
        let state = self.lock();
        let (load_bytes, from) = match state.published.values().next_back() {
            Some(newest) => (newest.row_bytes, newest.lsn),
            None => (0, self.log.start()),
        };
        let write_ns = self.router.write_ns() - state.published_write_ns;
        drop(state);
        // Replay runs the commands of this run once more. The log before them takes what it took at the opening.
        let opened_bytes = self.log.bytes_between(from, speeds.own_log_from);
        let own_seconds = write_ns as f64 / 1e9 / f64::from(self.shared.sites_count);
        let replay_seconds = speeds.replay.seconds_for(opened_bytes);
        let check_bytes = self.log.bytes_behind(self.log.start());
        let target = self.config.recovery_target;
        RestartEstimate {
            load_bytes,
            load_seconds: speeds.load.seconds_for(load_bytes),
            replay_bytes: self.log.bytes_behind(from),
            replay_seconds: replay_seconds.map(|seconds| seconds + own_seconds),
            check_bytes,
            check_seconds: speeds.check.seconds_for(check_bytes),
            other_seconds: speeds.other_seconds,
            target_seconds: (!target.is_zero()).then_some(target.as_secs_f64()),
        }
    }

    fn last_failure(&self) -> Option<CheckpointFailure> {
        self.lock().last_failure.clone()
    }

    fn counts(&self) -> (u64, u64) {
        self.lock().counts
    }

    fn archive(&self) -> Option<ArchiveStatus> {
        self.archive.get().map(Archive::status)
    }

    fn module_bytes(&self, module: &Module) -> Result<Vec<u8>, BytesError> {
        self.read_bytes(module)
    }
}

impl Checkpointer {
    /// Begins one, unless one is under way. None: somebody else has begun one that is not marked yet; it will be, or it fails,
    /// and then it is the caller's turn.
    pub fn try_take(&self) -> Result<Option<CheckpointInfo>, TakeError> {
        if let Some(running) = self.running() {
            return Ok(Some(running));
        }
        let mut state = self.lock();
        if state.begun.is_some() {
            return Ok(None);
        }
        state.begun = Some(Instant::now());
        drop(state);
        let begun = self.begin();
        if begun.is_err() {
            self.lock().begun = None;
        }
        begun.map(Some)
    }

    fn running(&self) -> Option<CheckpointInfo> {
        let state = self.lock();
        let mut info = state.running.clone()?;
        info.seconds = state.begun.map(|begun| begun.elapsed().as_secs_f64());
        Some(info)
    }

    /// Marks the moment and leaves the rest to a thread.
    fn begin(&self) -> Result<CheckpointInfo, TakeError> {
        let (to, pages) = bounded(PAGES_IN_FLIGHT_MAX);
        let (tell, told) = bounded(1);
        let tell = Box::new(move || {
            let _ = tell.send(()); // the writer may have given up
        });
        let start = self.router.begin_copy(to, tell)?;
        let write_ns = self.router.write_ns();
        let tables = start.partitions.iter().flat_map(|partition| &partition.tables);
        let info = CheckpointInfo {
            lsn: start.lsn,
            state: CheckpointState::Running,
            began_unix_us: self.shared.clock.now_us(),
            seconds: Some(0.0),
            rows: 0,
            rows_total: tables.map(|table| table.rows).sum(),
            row_bytes: 0,
            file_bytes: 0,
            file: checkpoint_name(start.lsn),
            error: None,
        };
        let mut state = self.lock();
        (state.running, state.running_write_ns) = (Some(info.clone()), write_ns);
        drop(state);
        let this = self.this.upgrade();
        let this = this.ok_or_else(|| TakeError::Failed("the node stops".into()))?;
        let make = Box::new(move || Writing::make(this, start, pages, told));
        match self.start("checkpoint", make) {
            true => Ok(info),
            false => {
                self.lock().running = None;
                Err(TakeError::Failed("no thread could be started for it".into()))
            }
        }
    }
}

/// Takes checkpoints when they are due.
struct Schedule {
    checkpointer: Arc<Checkpointer>,
    /// When the last one was begun, by the node's clock.
    last_ns: u64,
    looked_ns: u64,
}

impl Schedule {
    fn new(checkpointer: Arc<Checkpointer>) -> Self {
        let now_ns = checkpointer.shared.clock.monotonic_ns();
        Self {
            checkpointer,
            last_ns: now_ns,
            looked_ns: now_ns,
        }
    }

    fn wait(&self) {
        let state = self.checkpointer.lock();
        drop(self.checkpointer.stop.wait_timeout(state, SCHEDULE_LOOK));
    }
}

impl Work for Schedule {
    fn run(mut self: Box<Self>) {
        while self.step() != Step::Over {
            self.wait();
        }
    }

    fn step(&mut self) -> Step {
        let checkpointer = &self.checkpointer;
        if checkpointer.is_stopping() {
            return Step::Over;
        }
        let now_ns = checkpointer.shared.clock.monotonic_ns();
        if Duration::from_nanos(now_ns - self.looked_ns) < SCHEDULE_LOOK {
            return Step::Idle;
        }
        self.looked_ns = now_ns;
        if !checkpointer.is_due(Duration::from_nanos(now_ns - self.last_ns)) {
            return Step::Idle;
        }
        self.last_ns = now_ns;
        // The next time comes.
        if let Err(error) = checkpointer.try_take() {
            checkpointer.note_failure(error.to_string());
        }
        Step::Done
    }
}

/// Puts what a published checkpoint replaces into the archive, and lets go of it.
struct Archiving(Arc<Checkpointer>, Lsn);

/// Checkpoints that a newer one replaces, and up to where the log goes with them.
struct Replaced {
    past: Vec<Lsn>,
    released: Option<Lsn>,
}

impl Work for Archiving {
    fn run(mut self: Box<Self>) {
        while self.step() == Step::Done {}
    }

    fn step(&mut self) -> Step {
        let Self(checkpointer, lsn) = self;
        let retired = checkpointer.retire(*lsn);
        checkpointer.note_archived(retired);
        let mut archiving = checkpointer.archiving();
        match archiving.next.take().filter(|_| !checkpointer.is_stopping()) {
            Some(next) => {
                *lsn = next;
                Step::Done
            }
            None => {
                archiving.is_busy = false;
                Step::Over
            }
        }
    }
}
