//! The checkpoints of a database: the running one, published ones, and failed ones of this run.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Condvar, Mutex, MutexGuard},
    time::Duration,
};

use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointError, CheckpointSize};
use reprise_env::Clock;
use reprise_observe::{Notice, NoticeKind};

use crate::{
    checkpoint_info::{CheckpointInfo, CheckpointPhase, FailedCheckpoint},
    engine::EngineHandles,
};

/// Failures remembered.
const FAILURES_MAX: usize = 8;

/// The checkpoints of a database, which everything in this crate reads and the one writer fills.
pub(crate) struct CheckpointHistory {
    pub engine: EngineHandles,
    state: Mutex<HistoryState>,
    stop: Condvar,
}

#[derive(Default)]
struct HistoryState {
    is_stopping: bool,
    running: Option<CheckpointInfo>,
    /// When the running one was begun, by the node's clock. Set before it is marked in the log.
    begun_ns: Option<u64>,
    /// Time of the engine threads for calls that write, up to the mark of the checkpoint that runs.
    running_write_ns: u64,
    /// Write time up to the mark of the newest published checkpoint.
    published_write_ns: u64,
    published: BTreeMap<Lsn, CheckpointInfo>,
    /// Files that the opening could not use. They are no way back.
    passed_over: BTreeSet<Lsn>,
    failed: Vec<CheckpointInfo>,
    last_failure: Option<FailedCheckpoint>,
    /// Published and failed in this run.
    counts: (u64, u64),
}

/// The checkpoint that a restart would load, and the log behind it.
pub(crate) struct RestartPoint {
    /// Bytes of rows in the checkpoint; 0 without one.
    pub row_bytes: u64,
    /// LSN at which the log behind it begins.
    pub log_from: Lsn,
    /// Time that the engine threads spent since then on calls that write.
    pub write_ns: u64,
}

impl HistoryState {
    fn running(&self, clock: &dyn Clock) -> Option<CheckpointInfo> {
        let mut info = self.running.clone()?;
        info.seconds = self.begun_ns.map(|begun_ns| seconds_since(clock, begun_ns));
        Some(info)
    }
}

impl CheckpointHistory {
    pub fn new(engine: EngineHandles) -> Self {
        Self {
            engine,
            state: Mutex::default(),
            stop: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HistoryState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    fn clock(&self) -> &dyn Clock {
        &*self.engine.shared.clock
    }

    /// Has everything under way give up.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.stop.notify_all();
    }

    pub fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Sleeps for `time`, or until the node stops.
    pub fn wait_stop(&self, time: Duration) {
        let state = self.lock();
        if !state.is_stopping {
            drop(self.stop.wait_timeout(state, time));
        }
    }

    /// Records a checkpoint of an earlier run.
    pub fn record_found(&self, info: CheckpointInfo) {
        let mut state = self.lock();
        state.passed_over.remove(&info.lsn);
        state.published.insert(info.lsn, info);
    }

    /// Records a file of an earlier run that can't be used.
    pub fn record_passed_over(&self, lsn: Lsn) {
        let mut state = self.lock();
        state.published.remove(&lsn);
        state.passed_over.insert(lsn);
    }

    pub fn is_passed_over(&self, lsn: Lsn) -> bool {
        self.lock().passed_over.contains(&lsn)
    }

    /// Reserves the turn to take a checkpoint. Returns false if another one has it.
    pub fn reserve(&self) -> bool {
        let mut state = self.lock();
        let is_free = state.begun_ns.is_none();
        if is_free {
            state.begun_ns = Some(self.clock().monotonic_ns());
        }
        is_free
    }

    /// Gives the turn back: the checkpoint did not begin.
    pub fn release(&self) {
        let mut state = self.lock();
        (state.begun_ns, state.running) = (None, None);
    }

    /// Records that a checkpoint was marked, when the engine threads had spent `write_ns` on calls that write.
    pub fn record_begin(&self, info: CheckpointInfo, write_ns: u64) {
        let mut state = self.lock();
        (state.running, state.running_write_ns) = (Some(info), write_ns);
    }

    pub fn record_progress(&self, size: CheckpointSize) {
        if let Some(info) = &mut self.lock().running {
            (info.rows, info.row_bytes) = (size.rows, size.row_bytes);
            info.file_bytes = size.file_bytes;
        }
    }

    /// Records how the writing of the running checkpoint ended. `leftover` says why files that it replaces are still there.
    pub fn record_end(&self, written: Result<CheckpointSize, CheckpointError>, leftover: Option<String>) {
        let mut state = self.lock();
        // One lock covers both: a caller that sees the failure can begin another checkpoint at once.
        if let Err(error) = &written {
            self.count_failure(&mut state, error.to_string());
        }
        let begun_ns = state.begun_ns.take();
        let Some(mut info) = state.running.take() else {
            return;
        };
        info.seconds = begun_ns.map(|begun_ns| seconds_since(self.clock(), begun_ns));
        match written {
            Ok(size) => {
                (info.rows, info.row_bytes) = (size.rows, size.row_bytes);
                info.file_bytes = size.file_bytes;
                info.state = CheckpointPhase::Published;
                info.error = leftover;
                let published = || Notice::CheckpointPublished {
                    lsn: info.lsn,
                    rows: info.rows,
                    file_bytes: info.file_bytes,
                    seconds: info.seconds.unwrap_or_default(),
                };
                self.engine.shared.notices.publish(NoticeKind::Checkpoint, published);
                state.passed_over.remove(&info.lsn);
                state.published.insert(info.lsn, info);
                state.published_write_ns = state.running_write_ns;
                state.counts.0 += 1;
            }
            Err(error) => {
                info.state = CheckpointPhase::Failed;
                info.error = Some(error.to_string());
                state.failed.insert(0, info);
                state.failed.truncate(FAILURES_MAX);
            }
        }
    }

    /// Records that a checkpoint failed, or could not be begun.
    pub fn record_failure(&self, error: String) {
        self.count_failure(&mut self.lock(), error);
    }

    fn count_failure(&self, state: &mut HistoryState, error: String) {
        let shared = &self.engine.shared;
        state.counts.1 += 1;
        let reason = error.clone();
        state.last_failure = Some(FailedCheckpoint {
            at_unix_us: shared.clock.now_us(),
            error,
        });
        shared
            .notices
            .publish(NoticeKind::Checkpoint, || Notice::CheckpointFailed { reason });
    }

    /// Forgets a published checkpoint whose file is gone.
    pub fn forget(&self, lsn: Lsn) {
        self.lock().published.remove(&lsn);
    }

    pub fn running(&self) -> Option<CheckpointInfo> {
        self.lock().running(self.clock())
    }

    /// The running checkpoint, published ones from the newest on, then failed ones.
    pub fn list(&self) -> Vec<CheckpointInfo> {
        let state = self.lock();
        let published = state.published.values().rev().cloned();
        let running = state.running(self.clock()).into_iter();
        running.chain(published).chain(state.failed.iter().cloned()).collect()
    }

    pub fn newest(&self) -> Option<Lsn> {
        self.lock().published.keys().next_back().copied()
    }

    /// The newest published checkpoint, if less than `bytes` of log were written since.
    pub fn newest_within(&self, bytes: u64) -> Option<Lsn> {
        let newest = self.newest()?;
        (self.engine.log.bytes_behind(newest) < bytes).then_some(newest)
    }

    /// Published checkpoints, the oldest first, each with the time when it was begun in microseconds since 1970.
    pub fn published(&self) -> Vec<(Lsn, i64)> {
        let state = self.lock();
        let published = state.published.values();
        published.map(|info| (info.lsn, info.began_unix_us)).collect()
    }

    /// Returns the point at which a restart would begin.
    pub fn restart_point(&self) -> RestartPoint {
        let state = self.lock();
        let newest = state.published.values().next_back();
        RestartPoint {
            row_bytes: newest.map_or(0, |newest| newest.row_bytes),
            log_from: newest.map_or_else(|| self.engine.log.start(), |newest| newest.lsn),
            write_ns: self.engine.router.write_ns() - state.published_write_ns,
        }
    }

    pub fn last_failure(&self) -> Option<FailedCheckpoint> {
        self.lock().last_failure.clone()
    }

    /// Published and failed in this run.
    pub fn counts(&self) -> (u64, u64) {
        self.lock().counts
    }
}

fn seconds_since(clock: &dyn Clock, begun_ns: u64) -> f64 {
    Duration::from_nanos(clock.monotonic_ns() - begun_ns).as_secs_f64()
}
