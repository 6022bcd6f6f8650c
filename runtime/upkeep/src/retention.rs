//! Decides which checkpoints and log stay. It removes the files that a published checkpoint replaces, once the archive has them, unless a
//! guard keeps them.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use reprise_backup::{Archive, ArchiveBounds, ArchiveError, ArchiveExpiry, ArchiveSource, ArchiveStatus, DirHandle};
use reprise_base::Lsn;
use reprise_checkpoint::{CheckpointError, CheckpointSize};
use reprise_env::{MakeWork, Step, ThreadHandle, Work};
use reprise_observe::{Notice, NoticeKind};

use crate::{bounded_join::join_bounded, checkpoint_history::CheckpointHistory};

/// Removes checkpoints and log that newer checkpoints replace.
pub(crate) struct Retention {
    history: Arc<CheckpointHistory>,
    /// Number of newest checkpoints that stay.
    keep: usize,
    /// Gets each file before it is removed.
    archive: OnceLock<Archive>,
    archive_thread: Mutex<ArchiveThread>,
    /// Number of guards; locked while files are removed.
    guards: Mutex<usize>,
}

/// Keeps every checkpoint and all log while it lives.
pub struct RetentionGuard(Arc<Retention>);

impl Drop for RetentionGuard {
    fn drop(&mut self) {
        *self.0.guards.lock().expect("held to count") -= 1;
    }
}

/// The one thread that puts files into the archive. A disk that hangs may hold it for ever, so nothing waits for it under a lock.
#[derive(Default)]
struct ArchiveThread {
    started: Option<Box<dyn ThreadHandle>>,
    is_busy: bool,
    /// A checkpoint that was published while it was busy.
    next: Option<Lsn>,
}

/// Checkpoints that a newer one replaces, and the LSN up to which the log goes with them.
struct ReplacedFiles {
    checkpoints: Vec<Lsn>,
    log_before: Option<Lsn>,
}

impl Retention {
    pub fn new(history: Arc<CheckpointHistory>, keep: usize) -> Self {
        Self {
            history,
            keep: keep.max(1),
            archive: OnceLock::new(),
            archive_thread: Mutex::default(),
            guards: Mutex::default(),
        }
    }

    /// Opens the archive that gets each file before it is removed. Once.
    pub fn open_archive(
        &self,
        place: &DirHandle,
        bounds: ArchiveBounds,
        origin: ArchiveSource,
    ) -> Result<(), ArchiveError> {
        let path = place.path();
        let place = place.clone();
        let log = self.history.engine.log.clone();
        let open = move || Archive::open(&place, bounds, origin, &|lsn: Lsn| log.record(lsn));
        let threads = &self.history.engine.shared.threads;
        let opened = threads.within("archive-open", bounds.open_max, open);
        let archive = opened
            .map_err(|_| ArchiveError::NoThread)?
            .ok_or(ArchiveError::Hangs {
                archive: path,
                seconds: bounds.open_max.as_secs_f64(),
            })??;
        assert!(self.archive.set(archive).is_ok(), "there is one archive");
        Ok(())
    }

    pub fn archive_status(&self) -> Option<ArchiveStatus> {
        self.archive.get().map(Archive::status)
    }

    pub fn guard(self: &Arc<Self>) -> RetentionGuard {
        *self.guards.lock().expect("held to count") += 1;
        RetentionGuard(self.clone())
    }

    fn archive_thread(&self) -> MutexGuard<'_, ArchiveThread> {
        self.archive_thread.lock().expect("nothing panics under this lock")
    }

    /// The archive, until too much waited for it.
    fn filling_archive(&self) -> Option<&Archive> {
        self.archive.get().filter(|archive| !archive.is_given_up())
    }

    /// Waits for the archive's thread, but not for ever. Files that it did not take are taken after the next checkpoint.
    pub fn stop(&self) {
        let started = self.archive_thread().started.take();
        join_bounded(&self.history.engine.shared, started.into_iter().collect());
    }

    /// Records how the writing of a checkpoint ended. After a published one, it removes the files that it replaces.
    pub fn record_end(self: &Arc<Self>, lsn: Lsn, written: Result<CheckpointSize, CheckpointError>) {
        let is_archived = written.is_ok() && self.filling_archive().is_some();
        let removed = match written.is_ok() && !is_archived {
            true => self.remove_replaced(lsn),
            false => Ok(()), // the archive's thread copies, because that may take long
        };
        let leftover = removed.err().map(|error| error.to_string());
        self.history.record_end(written, leftover);
        if is_archived && !self.history.is_stopping() {
            self.begin_archiving(lsn);
        }
    }

    /// Has the archive's thread take the files that this checkpoint replaces. If it is still busy with an earlier one, this checks the
    /// waiting files.
    fn begin_archiving(self: &Arc<Self>, lsn: Lsn) {
        let mut thread = self.archive_thread();
        if thread.is_busy {
            thread.next = Some(lsn);
            drop(thread);
            return self.check_held(lsn);
        }
        let job = ArchiveJob(self.clone(), lsn);
        let make: MakeWork = Box::new(move || Box::new(job));
        match self.history.engine.shared.threads.start("archive", make) {
            Ok(started) => (thread.started, thread.is_busy) = (Some(started), true),
            Err(_) => {
                drop(thread);
                self.record_archived(Err(ArchiveError::NoThread));
            }
        }
    }

    /// Gives the archive up if too much waits for it, and removes what waited. Its thread is at an earlier checkpoint, perhaps for ever.
    fn check_held(&self, newest: Lsn) {
        let Some(archive) = self.filling_archive() else {
            return;
        };
        let removed = self
            .replaced_by(newest)
            .and_then(|replaced| match self.held_too_much(archive, &replaced) {
                None => Ok(()),
                Some(overheld) => self.remove_replaced(newest).and(Err(overheld)),
            });
        if removed.is_err() {
            self.record_archived(removed);
        }
    }

    /// Records whether the archive took the files.
    fn record_archived(&self, removed: Result<(), ArchiveError>) {
        let Some(archive) = self.archive.get() else {
            return;
        };
        let shared = &self.history.engine.shared;
        let now_us = shared.clock.now_us();
        if removed.is_ok() && archive.is_given_up() {
            return; // later removals do not concern this archive
        }
        let kept = removed.and_then(|()| self.expire(archive));
        let error = match kept.and_then(|()| Ok(archive.record_success()?)) {
            Ok(()) | Err(ArchiveError::GivenUp) => return,
            Err(error) => error,
        };
        archive.record_failure(now_us, error.to_string());
        shared.notices.publish(NoticeKind::Archive, || Notice::ArchiveFailed {
            reason: error.to_string(),
        });
    }

    /// Removes the files that the archive has kept for long enough, and reports how many went.
    fn expire(&self, archive: &Archive) -> Result<(), ArchiveError> {
        let shared = &self.history.engine.shared;
        let begun_ns = shared.clock.monotonic_ns();
        let live: Vec<_> = self.history.published().into_iter().map(|(lsn, _)| lsn).collect();
        let report = |expiry: ArchiveExpiry| {
            let ArchiveExpiry { files, oldest } = expiry;
            let took_ns = shared.clock.monotonic_ns().saturating_sub(begun_ns);
            shared.notices.publish(NoticeKind::Control, || Notice::Controlled {
                principal: "the server".to_owned(),
                operation: "expire-archive",
                subject: format!("{files} files removed, oldest point left: LSN {oldest}"),
                outcome: "done".to_owned(),
                took: Duration::from_nanos(took_ns),
            });
        };
        archive.expire(&live, shared.key_clock.now_us(), &report)
    }

    /// Removes surplus checkpoints, then the log that only they needed. In this order a crash between the two leaves each checkpoint with
    /// its log.
    fn remove_replaced(&self, newest: Lsn) -> Result<(), ArchiveError> {
        if *self.guards.lock().expect("held for a short time") > 0 {
            return Ok(()); // the next checkpoint removes it
        }
        let replaced = self.replaced_by(newest)?;
        let archive = self.filling_archive();
        let mut overheld = Ok(());
        if let Some(archive) = archive
            && let Err(error) = self.put_away(archive, &replaced)
        {
            overheld = match self.held_too_much(archive, &replaced) {
                None => return Err(error),
                Some(overheld) => Err(overheld),
            };
        }
        // Held from this check on: a guard that comes later finds all or nothing of it.
        let guards = self.guards.lock().expect("held to count");
        if *guards > 0 {
            return overheld;
        }
        if overheld.is_ok() && archive.is_some_and(Archive::is_given_up) {
            return Err(ArchiveError::GivenUp); // another thread gave the archive up meanwhile
        }
        let engine = &self.history.engine;
        for lsn in &replaced.checkpoints {
            engine.files.remove(*lsn)?;
            self.history.forget(*lsn);
        }
        if let Some(lsn) = replaced.log_before {
            engine.log.release_before(lsn)?;
        }
        overheld
    }

    /// The files that go with this checkpoint.
    fn replaced_by(&self, newest: Lsn) -> Result<ReplacedFiles, ArchiveError> {
        let stored = self.history.engine.files.list()?;
        let older = stored.into_iter().filter(|lsn| *lsn <= newest);
        let is_unusable = |lsn: &Lsn| *lsn != newest && self.history.is_passed_over(*lsn);
        let (unusable, whole): (Vec<_>, Vec<_>) = older.partition(is_unusable);
        let (past, kept) = whole.split_at(whole.len().saturating_sub(self.keep));
        // With fewer checkpoints, the log from the beginning is the way back from a damaged one.
        let log_before = kept.first().filter(|_| kept.len() == self.keep).copied();
        let unusable = unusable.into_iter().filter(|_| log_before.is_some());
        Ok(ReplacedFiles {
            checkpoints: past.iter().copied().chain(unusable).collect(),
            log_before,
        })
    }

    /// Returns an error if the waiting files would fill the disk, because the archive has taken nothing for too long. The archive is then
    /// given up.
    fn held_too_much(&self, archive: &Archive, replaced: &ReplacedFiles) -> Option<ArchiveError> {
        if self.history.is_stopping() || archive.is_given_up() {
            return None;
        }
        let start = self.history.engine.log.start();
        archive
            .hold(&self.releasable(replaced), &replaced.checkpoints, start)
            .err()
    }

    fn releasable(&self, replaced: &ReplacedFiles) -> Vec<String> {
        let log = &self.history.engine.log;
        replaced.log_before.map_or(Vec::new(), |lsn| log.releasable_before(lsn))
    }

    /// Copies the files to the archive. Until all of them are there, none is removed.
    fn put_away(&self, archive: &Archive, replaced: &ReplacedFiles) -> Result<(), ArchiveError> {
        let goes_on = || !self.history.is_stopping() && !archive.is_given_up();
        for name in self.releasable(replaced) {
            archive.take_segment(&name, &goes_on)?;
        }
        let mut checkpoints = replaced.checkpoints.iter();
        checkpoints.try_for_each(|lsn| archive.take_checkpoint(*lsn, &goes_on))
    }
}

/// Puts the files that a published checkpoint replaces into the archive, and removes them.
struct ArchiveJob(Arc<Retention>, Lsn);

impl Work for ArchiveJob {
    fn run(mut self: Box<Self>) {
        while self.step() == Step::Done {}
    }

    fn step(&mut self) -> Step {
        let Self(retention, lsn) = self;
        let removed = retention.remove_replaced(*lsn);
        retention.record_archived(removed);
        let mut thread = retention.archive_thread();
        match thread.next.take().filter(|_| !retention.history.is_stopping()) {
            Some(next) => {
                *lsn = next;
                Step::Done
            }
            None => {
                thread.is_busy = false;
                Step::Over
            }
        }
    }
}
