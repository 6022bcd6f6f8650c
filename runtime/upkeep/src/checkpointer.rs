//! Takes checkpoints beside the running engine.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crossbeam_channel::bounded;
use reprise_backup::{ArchiveBounds, ArchiveError, ArchiveSource, ArchiveStatus, DirHandle};
use reprise_base::Lsn;
use reprise_checkpoint::checkpoint_name;
use reprise_env::{MakeWork, ThreadHandle};
use reprise_txn::Module;

use crate::{
    checkpoint_history::CheckpointHistory,
    checkpoint_info::{CheckpointInfo, CheckpointPhase, FailedCheckpoint, TakeError},
    checkpoint_job::CheckpointJob,
    config::CheckpointConfig,
    engine::EngineHandles,
    module_bytes::BytesError,
    restart::{OpeningSpeeds, RestartCost},
    retention::{Retention, RetentionGuard},
};

/// Pages of rows on their way from the engine threads to the writer: bounds memory while the disk is slow.
const PAGES_IN_FLIGHT_MAX: usize = 64;
/// Interval at which a caller checks whether the checkpoint that another caller begins is marked.
const BEGIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Log that has grown by less is no reason for another checkpoint.
pub(crate) const GROWN_BYTES_MIN: u64 = 4096;

/// Takes the checkpoints of one open database, and decides how many stay.
pub struct Checkpointer {
    pub(crate) history: Arc<CheckpointHistory>,
    retention: Arc<Retention>,
    pub(crate) config: CheckpointConfig,
    speeds: Mutex<OpeningSpeeds>,
    threads: Mutex<Vec<Box<dyn ThreadHandle>>>,
}

impl Checkpointer {
    /// Takes none yet: that begins with the schedule, or with a caller.
    pub fn new(engine: EngineHandles, config: CheckpointConfig) -> Arc<Self> {
        let history = Arc::new(CheckpointHistory::new(engine));
        Arc::new(Self {
            retention: Arc::new(Retention::new(history.clone(), config.keep)),
            history,
            config,
            speeds: Mutex::default(),
            threads: Mutex::default(),
        })
    }

    pub(crate) fn engine(&self) -> &EngineHandles {
        &self.history.engine
    }

    /// Records a checkpoint of an earlier run.
    pub fn record_found(&self, info: CheckpointInfo) {
        self.history.record_found(info);
    }

    /// Records a file of an earlier run that can't be used: it does not count as kept.
    pub fn record_passed_over(&self, lsn: Lsn) {
        self.history.record_passed_over(lsn);
    }

    /// Opens the archive that gets each file before it is removed. Once.
    pub fn open_archive(
        &self,
        place: &DirHandle,
        bounds: ArchiveBounds,
        origin: ArchiveSource,
    ) -> Result<(), ArchiveError> {
        self.retention.open_archive(place, bounds, origin)
    }

    pub(crate) fn start(&self, name: &str, make: MakeWork) -> bool {
        let started = self.engine().shared.threads.start(name, make);
        let mut threads = self.threads.lock().expect("held for a push");
        threads.retain(|thread| !thread.is_over());
        started.map(|thread| threads.push(thread)).is_ok()
    }

    /// Keeps all present and new files while the guard lives.
    pub fn keep_all(&self) -> RetentionGuard {
        self.retention.guard()
    }

    /// Records the speeds of the opening, which replayed the log.
    pub fn record_speeds(&self, speeds: OpeningSpeeds) {
        *self.speeds.lock().expect("held for a store") = speeds;
    }

    /// Records that the opening took `seconds` in all.
    pub fn record_opened(&self, seconds: f64) {
        self.speeds.lock().expect("held for a store").record_end(seconds);
    }

    /// Records that the engine threads run the calls that are logged from here on: this standby is the primary now.
    pub fn record_promotion(&self) {
        self.speeds.lock().expect("held for a store").own_log_from = self.engine().log.durable();
    }

    /// Stops the work in progress and ends the threads.
    pub fn stop(&self) {
        self.history.stop();
        let threads = std::mem::take(&mut *self.threads.lock().expect("held to take"));
        for thread in threads {
            thread.join(); // the history has its results
        }
        self.retention.stop();
    }

    /// Begins a checkpoint and returns at once; if one is running, returns that one.
    pub fn take(&self) -> Result<CheckpointInfo, TakeError> {
        loop {
            if let Some(taken) = self.try_take()? {
                return Ok(taken);
            }
            if self.history.is_stopping() {
                return Err(TakeError::Failed("another one is just begun".into()));
            }
            self.engine().shared.threads.sleep(BEGIN_POLL_INTERVAL);
        }
    }

    /// Returns all checkpoints, the newest first: the running one, published ones, then failed ones of this run.
    pub fn list(&self) -> Vec<CheckpointInfo> {
        self.history.list()
    }

    /// Position of the newest published one.
    pub fn newest(&self) -> Option<Lsn> {
        self.history.newest()
    }

    /// Estimates the time of a restart now.
    pub fn restart(&self) -> RestartCost {
        let speeds = *self.speeds.lock().expect("held for a copy");
        let (point, log) = (self.history.restart_point(), &self.engine().log);
        // Replay runs the commands of this run once more. The log before them takes the time that it took at the opening.
        let opened_bytes = log.bytes_between(point.log_from, speeds.own_log_from);
        let opened_bytes = speeds.replay.bytes_near(opened_bytes);
        let own_seconds = point.write_ns as f64 / 1e9 / f64::from(self.engine().shared.sites_count);
        let replay_seconds = speeds.replay.seconds_for(opened_bytes);
        let check_bytes = log.bytes_behind(log.start());
        let target = self.config.recovery_target;
        RestartCost {
            load_bytes: point.row_bytes,
            load_seconds: speeds.load.seconds_for(point.row_bytes),
            replay_bytes: log.bytes_behind(point.log_from),
            replay_seconds: replay_seconds.map(|seconds| seconds + own_seconds),
            check_bytes,
            check_seconds: speeds.check.seconds_for(check_bytes),
            other_seconds: speeds.other_seconds,
            target_seconds: (!target.is_zero()).then_some(target.as_secs_f64()),
        }
    }

    /// The last checkpoint of this run that failed, scheduled or requested.
    pub fn last_failure(&self) -> Option<FailedCheckpoint> {
        self.history.last_failure()
    }

    /// Numbers of checkpoints published and failed in this run.
    pub fn counts(&self) -> (u64, u64) {
        self.history.counts()
    }

    /// The archive, if there is one.
    pub fn archive(&self) -> Option<ArchiveStatus> {
        self.retention.archive_status()
    }

    /// Reads the kept bytes of a module version, in service or not.
    pub fn module_bytes(&self, module: &Module) -> Result<Vec<u8>, BytesError> {
        self.engine().read_bytes(module)
    }

    /// Begins a checkpoint, unless one is under way. Returns `None` if another caller has begun one that is not marked yet. Once that one
    /// is marked or has failed, it is this caller's turn.
    pub(crate) fn try_take(&self) -> Result<Option<CheckpointInfo>, TakeError> {
        if let Some(running) = self.history.running() {
            return Ok(Some(running));
        }
        if !self.history.reserve() {
            return Ok(None);
        }
        let begun = self.begin();
        if begun.is_err() {
            self.history.release();
        }
        begun.map(Some)
    }

    /// Returns whether a checkpoint that was begun is published yet. Err: why it never will be.
    pub fn is_published(&self, lsn: Lsn) -> Result<bool, String> {
        match self.list().into_iter().find(|info| info.lsn == lsn) {
            Some(info) if info.state == CheckpointPhase::Failed => Err(info.error.unwrap_or_default()),
            Some(info) => Ok(info.state == CheckpointPhase::Published),
            None => Err("it is gone".to_owned()),
        }
    }

    /// Marks the moment and leaves the rest to a thread.
    fn begin(&self) -> Result<CheckpointInfo, TakeError> {
        let engine = self.engine();
        let (to, pages) = bounded(PAGES_IN_FLIGHT_MAX);
        let (on_answered, answered) = bounded(1);
        let on_answered = Box::new(move || {
            let _ = on_answered.send(()); // the writer may have given up
        });
        let start = engine.router.begin_copy(to, on_answered)?;
        let write_ns = engine.router.write_ns();
        let tables = start.partitions.iter().flat_map(|partition| &partition.tables);
        let info = CheckpointInfo {
            lsn: start.lsn,
            state: CheckpointPhase::Running,
            began_unix_us: engine.shared.clock.now_us(),
            seconds: Some(0.0),
            rows: 0,
            rows_total: tables.map(|table| table.rows).sum(),
            row_bytes: 0,
            file_bytes: 0,
            file: checkpoint_name(start.lsn),
            error: None,
        };
        self.history.record_begin(info.clone(), write_ns);
        let (history, retention) = (self.history.clone(), self.retention.clone());
        let make = Box::new(move || CheckpointJob::make(history, retention, start, pages, answered));
        match self.start("checkpoint", make) {
            true => Ok(info),
            false => Err(TakeError::Failed("the server could not start a thread for it".into())),
        }
    }
}
