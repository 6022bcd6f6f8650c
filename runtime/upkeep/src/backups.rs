//! Backups of the running database, in a directory that the operator chose. One at a time, beside the engine.

use std::{
    fs::File,
    io,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reprise_backup::{
    BackupManifest, DirHandle, DirTree, MANIFEST_NAME, ManifestError, ManifestFile, RestoreError, RestoreReport,
    StagingDir, copy_file, partial_target, remove_remainder, seal, sum_file,
};
use reprise_base::Lsn;
use reprise_checkpoint::{Checkpoints, checkpoint_name};
use reprise_env::{Clock, Disk, DiskError, MakeWork, ThreadHandle, open_regular_file};
use reprise_log::CopyRange;

use crate::{
    backup_info::{BackupError, BackupInfo, BackupPhase},
    backup_job::{BackupJob, CleaningJob},
    bounded_join::join_bounded,
    checkpoint_info::CheckpointPhase,
    checkpointer::Checkpointer,
    engine::EngineHandles,
};

pub(crate) const PREFIX: &str = "backup-";
/// Digits of an id: microseconds since 1970, from 2001 to 2286. A directory with another number is not one that the server made.
const ID_DIGITS: usize = 16;
/// Longest wait until the records of a backup are in the log's files.
const COPY_WAIT_MAX: Duration = Duration::from_mins(1);
/// Failures remembered.
const FAILURES_MAX: usize = 8;
/// Backups that may lie beside each other: listing them reads the manifest of each.
const BACKUPS_MAX: usize = 1_000;

/// The backups of one open database, in a directory that the operator chose.
pub struct Backups {
    /// The directories of all backups.
    pub(crate) tree: Arc<dyn DirTree>,
    /// Bytes that all of them may have together.
    bytes_max: u64,
    checkpoints: Arc<dyn Disk>,
    pub(crate) checkpointer: Arc<Checkpointer>,
    state: Mutex<BackupsState>,
    is_stopping: AtomicBool,
    threads: Mutex<Vec<Box<dyn ThreadHandle>>>,
}

#[derive(Default)]
struct BackupsState {
    running: Option<BackupInfo>,
    /// When the running one was begun, by the node's clock.
    begun_ns: u64,
    /// Seconds that each backup of this run took, until it is removed. A manifest does not have them.
    seconds: Vec<(String, f64)>,
    failed: Vec<BackupInfo>,
}

impl BackupsState {
    fn running(&self, clock: &dyn Clock) -> Option<BackupInfo> {
        let mut info = self.running.clone()?;
        let spent_ns = clock.monotonic_ns() - self.begun_ns;
        info.seconds = Some(Duration::from_nanos(spent_ns).as_secs_f64());
        Some(info)
    }
}

/// Returns the id of the backup whose directory has this name, complete or not. None: the directory is not one that the server made.
fn id_of(name: &str) -> Option<&str> {
    let id = partial_target(name).unwrap_or(name).strip_prefix(PREFIX)?;
    let is_id = id.len() == ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_digit());
    is_id.then_some(id)
}

impl Backups {
    /// Makes backups in `tree`, of `bytes_max` together at most. Copies checkpoints from their folder, `checkpoints`. Begins to remove the
    /// directories that a killed server left in the tree.
    pub fn new(
        tree: Arc<dyn DirTree>,
        bytes_max: u64,
        checkpoints: Arc<dyn Disk>,
        checkpointer: Arc<Checkpointer>,
    ) -> Arc<Self> {
        let backups = Arc::new(Self {
            tree,
            bytes_max,
            checkpoints,
            checkpointer,
            state: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        });
        let job = CleaningJob(backups.clone());
        // A thread does it, because the disk may hang. If there is no thread, the next backup does it.
        let _ = backups.start("backup-clean", Box::new(move || Box::new(job)));
        backups
    }

    fn start(&self, name: &str, make: MakeWork) -> io::Result<()> {
        let started = self.engine().shared.threads.start(name, make)?;
        let mut threads = self.threads.lock().expect("held for a push");
        threads.retain(|thread| !thread.is_over());
        threads.push(started);
        Ok(())
    }

    pub(crate) fn engine(&self) -> &EngineHandles {
        self.checkpointer.engine()
    }

    fn lock(&self) -> MutexGuard<'_, BackupsState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Stops a backup in progress, and waits for it, but not for a disk that hangs.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        let threads = std::mem::take(&mut *self.threads.lock().expect("held to take"));
        join_bounded(&self.engine().shared, threads); // the list has their results
    }

    pub(crate) fn goes_on(&self) -> bool {
        !self.is_stopping.load(Ordering::Acquire)
    }

    /// Ids of the existing backups, the newest first.
    fn ids(&self) -> Vec<i64> {
        // An unreadable tree has none.
        let names = self.tree.list().unwrap_or_default().into_iter();
        let mut ids: Vec<i64> = names
            .filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok())
            .collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        ids
    }

    /// Removes the directories that a killed server left of backups and of removals. If one can't be removed now, the next backup tries again.
    pub(crate) fn remove_remainders(&self) {
        // The names are read first: the list then has no directory of a backup that begins after the look at `running`.
        let names = self.tree.list().unwrap_or_default();
        let running = self.lock().running.as_ref().map(|info| info.id.clone());
        for name in names {
            let is_ours = id_of(&name).is_some_and(|id| running.as_deref() != Some(id));
            if is_ours && self.goes_on() {
                let _ = remove_remainder(&*self.tree, &name);
            }
        }
    }

    /// Checks that there is room for one more. Its size is estimated by the newest checkpoint and the log behind it, if these are known.
    fn check_room(&self, with_earlier: bool) -> Result<(), BackupError> {
        let ids = self.ids();
        if ids.len() >= BACKUPS_MAX {
            return Err(BackupError::Full(
                format!("the server has {} backups, and {BACKUPS_MAX} is the limit", ids.len()).into(),
            ));
        }
        let manifests = ids.iter().filter_map(|id| self.place(&id.to_string()));
        let stored: u64 = manifests
            .filter_map(|place| BackupManifest::read_in(&place).ok())
            .map(|manifest| manifest.bytes())
            .sum();
        let published = self.checkpointer.history.list();
        let mut sizes = published
            .iter()
            .filter(|found| found.state == CheckpointPhase::Published)
            .map(|found| (found.lsn, found.file_bytes));
        let log = &self.engine().log;
        let (newest, newest_bytes) = sizes.next().unwrap_or((log.start(), 0));
        let next = match with_earlier {
            false => newest_bytes + log.bytes_behind(newest),
            true => newest_bytes + sizes.map(|(_, bytes)| bytes).sum::<u64>() + log.bytes_behind(log.start()),
        };
        match stored.saturating_add(next) > self.bytes_max {
            false => Ok(()),
            true => Err(BackupError::Full(
                format!(
                    "the backups take {stored} bytes, the next one needs about {next}, and --backup-max is {}",
                    self.bytes_max
                )
                .into(),
            )),
        }
    }

    pub(crate) fn record_end(&self, made: Result<BackupManifest, RestoreError>) {
        let Some(mut info) = self.running() else {
            return;
        };
        let mut state = self.lock();
        state.running = None;
        match made {
            Ok(_) => state.seconds.push((info.id, info.seconds.unwrap_or_default())),
            Err(error) => {
                info.state = BackupPhase::Failed;
                info.error = Some(error.to_string());
                state.failed.insert(0, info);
                state.failed.truncate(FAILURES_MAX);
            }
        }
    }

    /// Makes all of a backup but its checkpoint, which was copied and has `checkpoint_bytes`.
    pub(crate) fn make(
        &self,
        staging: StagingDir,
        checkpoint: Lsn,
        mut checkpoint_bytes: u64,
        with_earlier: bool,
    ) -> Result<BackupManifest, RestoreError> {
        let mut from = checkpoint;
        if with_earlier {
            let stored = self.engine().files.list()?;
            from = match self.engine().log.start() {
                Lsn(0) => Lsn(0),
                start => stored.iter().copied().find(|lsn| *lsn >= start).unwrap_or(checkpoint),
            };
            for earlier in stored.into_iter().filter(|lsn| (from..checkpoint).contains(lsn)) {
                checkpoint_bytes += self.copy_checkpoint(&staging, earlier)?.unwrap_or_default();
            }
        }
        // The time is read first. So every record that is not in the backup is later, within the length of a turn.
        let created_us = self.engine().shared.clock.now_us();
        let until = self.engine().log.durable();
        // With an NVRAM buffer, a site may yet store a number below this one. The files then end before it.
        self.engine().log.wait_copied(until, COPY_WAIT_MAX)?;
        let note = |bytes: u64| {
            if let Some(info) = &mut self.lock().running {
                info.bytes = info.bytes.max(bytes);
            }
        };
        note(checkpoint_bytes);
        let range = CopyRange { from, until };
        let log = self
            .engine()
            .log
            .reader(from)?
            .copy(range, &*staging.folder("log")?, &mut |copied| {
                note(checkpoint_bytes + copied);
                self.goes_on()
            })?;
        let report = RestoreReport {
            checkpoint: Some(checkpoint),
            cut: until,
            records: log.records,
            log,
            ..RestoreReport::default()
        };
        seal(staging, &report, created_us, &mut |_| self.goes_on())
    }

    /// Copies a checkpoint and reads the copy back: it may have decayed since it was written. Its bytes; none for one that is
    /// not whole.
    pub(crate) fn copy_checkpoint(&self, staging: &StagingDir, lsn: Lsn) -> Result<Option<u64>, RestoreError> {
        let target = staging.folder("checkpoints")?;
        let copies = Checkpoints::new(target.clone());
        let name = checkpoint_name(lsn);
        let bytes = copy_file(&*self.checkpoints, &*target, &name, &mut || self.goes_on())?;
        match copies.open(lsn).and_then(|reader| reader.verify()) {
            Ok(()) => Ok(Some(bytes)),
            Err(error) if error.is_corrupt() => {
                copies.remove(lsn)?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Begins a checkpoint that the backup needs. Returns its LSN. None: another one has just begun.
    pub(crate) fn new_checkpoint(&self) -> Result<Option<Lsn>, RestoreError> {
        let begun = self.checkpointer.try_take();
        begun.map(|begun| begun.map(|begun| begun.lsn)).map_err(|error| {
            RestoreError::GivenUp(format!(
                "the server could not take the checkpoint that it needs first: {error}"
            ))
        })
    }

    /// Returns whether the checkpoint that was begun for the backup is published yet.
    pub(crate) fn is_published(&self, lsn: Lsn) -> Result<bool, RestoreError> {
        if !self.goes_on() {
            return Err(RestoreError::GivenUp("the node stops".into()));
        }
        let is_published = self.checkpointer.is_published(lsn);
        is_published.map_err(|reason| {
            RestoreError::GivenUp(format!(
                "the server could not take the checkpoint that it needs first: \
         {reason}"
            ))
        })
    }

    fn running(&self) -> Option<BackupInfo> {
        self.lock().running(&*self.engine().shared.clock)
    }

    fn place(&self, id: &str) -> Option<DirHandle> {
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        is_id.then(|| DirHandle::new(self.tree.clone(), &format!("{PREFIX}{id}")))
    }

    fn published(&self, id: &str) -> Option<BackupInfo> {
        let place = self.place(id)?;
        let began_unix_us = id.parse().ok()?;
        let mut info = BackupInfo {
            id: id.to_owned(),
            state: BackupPhase::Published,
            began_unix_us,
            seconds: None,
            bytes: 0,
            checkpoint_lsn: None,
            end_lsn: None,
            directory: place.path().display().to_string(),
            files: Vec::new(),
            error: None,
        };
        match BackupManifest::read_in(&place) {
            Ok(manifest) => {
                info.bytes = manifest.bytes();
                info.checkpoint_lsn = manifest.checkpoint_lsn.map(Lsn);
                info.end_lsn = Some(Lsn(manifest.log_end));
                info.files = files_of(&place, &manifest);
            }
            Err(ManifestError::Missing(_)) => return None,
            Err(error) => {
                info.state = BackupPhase::Failed;
                info.error = Some(error.to_string());
            }
        }
        let state = self.lock();
        let known = state.seconds.iter().find(|(known, _)| known == id);
        info.seconds = known.map(|(_, seconds)| *seconds);
        Some(info)
    }
}

/// The manifest's files, and itself.
fn files_of(place: &DirHandle, manifest: &BackupManifest) -> Vec<ManifestFile> {
    let shown = place.path().join(MANIFEST_NAME);
    let own = sum_file(place.root(), MANIFEST_NAME, shown, &mut |_| true);
    let own = own.ok().map(|(bytes, sha256)| ManifestFile {
        path: MANIFEST_NAME.to_owned(),
        bytes,
        sha256,
    });
    own.into_iter().chain(manifest.files.iter().cloned()).collect()
}

impl Backups {
    /// Begins a backup and returns at once; if one is running, returns that one. A new one has 0 seconds. With `with_earlier` it also holds
    /// the older checkpoints, and all log from the oldest of them on. It can then be restored to points before it was made.
    pub fn create(self: &Arc<Self>, with_earlier: bool) -> Result<BackupInfo, BackupError> {
        if let Some(running) = self.running() {
            return Ok(running);
        }
        // Reads the disk, which may hang, so that no lock is held.
        self.check_room(with_earlier)?;
        let mut state = self.lock();
        if let Some(running) = state.running(&*self.engine().shared.clock) {
            return Ok(running);
        }
        if !self.goes_on() {
            return Err(BackupError::Unavailable("the node stops".into()));
        }
        let began_unix_us = self.engine().shared.clock.now_us();
        let id = began_unix_us.to_string();
        let directory = self.tree.path(&format!("{PREFIX}{id}"));
        let info = BackupInfo {
            id: id.clone(),
            state: BackupPhase::Running,
            began_unix_us,
            seconds: Some(0.0),
            bytes: 0,
            checkpoint_lsn: None,
            end_lsn: None,
            directory: directory.display().to_string(),
            files: Vec::new(),
            error: None,
        };
        let job = BackupJob::new(self.clone(), id, with_earlier);
        let started = self.start("backup", Box::new(move || Box::new(job)));
        started.map_err(|error| {
            BackupError::Unavailable(format!("the server could not start a thread for it: {error}").into())
        })?;
        (state.running, state.begun_ns) = (Some(info.clone()), self.engine().shared.clock.monotonic_ns());
        Ok(info)
    }

    /// Returns all backups, the newest first. Backups that failed in this run come last.
    pub fn list(&self) -> Vec<BackupInfo> {
        let running = self.running();
        let ids = self.ids();
        let published = ids.iter().filter_map(|id| self.published(&id.to_string()));
        let published: Vec<_> = published.collect();
        let failed = self.lock().failed.clone();
        running.into_iter().chain(published).chain(failed).collect()
    }

    /// The backup with this id, if there is one.
    pub fn find(&self, id: &str) -> Option<BackupInfo> {
        let is_it = |info: &BackupInfo| info.id == id;
        let failed = || self.lock().failed.iter().find(|info| is_it(info)).cloned();
        self.running()
            .filter(is_it)
            .or_else(|| self.published(id))
            .or_else(failed)
    }

    /// Opens a file of a published backup, by the last part of its path. Returns its length, too.
    pub fn open_file(&self, id: &str, name: &str) -> Result<(File, u64), BackupError> {
        let info = self.published(id).ok_or(BackupError::NotFound)?;
        // Only files of the manifest are served, so that no path of a client reaches the disk.
        let mut files = info.files.iter();
        let found = files.find(|file| file.path.rsplit('/').next() == Some(name));
        let found = found.ok_or(BackupError::NotFound)?;
        let place = self.place(id).ok_or(BackupError::NotFound)?;
        let file = open_regular_file(&place.path().join(&found.path));
        let file = file.map_err(|error| BackupError::Unavailable(error.to_string().into()))?;
        Ok((file, found.bytes))
    }

    /// Removes a backup, or the record of a failed one. A backup without its manifest, whose removal did not end, is removed as well.
    pub fn remove(&self, id: &str) -> Result<(), BackupError> {
        let failed = |error: DiskError| BackupError::Unavailable(error.to_string().into());
        let known = self.lock().failed.len();
        self.lock().failed.retain(|info| info.id != id);
        let was_failure = self.lock().failed.len() < known;
        let place = self.place(id).ok_or(BackupError::NotFound)?;
        if !place.holds(MANIFEST_NAME) {
            let removed = match id_of(place.name()) {
                Some(_) => remove_remainder(&*self.tree, place.name()),
                None => Ok(false),
            };
            return match removed {
                Ok(true) => Ok(()),
                _ if was_failure => Ok(()),
                Ok(false) => Err(BackupError::NotFound),
                Err(error) => Err(failed(error)),
            };
        }
        // The manifest goes first. Without it the directory is no backup any more, and the next backup removes the rest after a kill.
        let root = place.root().map_err(failed)?;
        let _held = root.lock().map_err(failed)?;
        root.remove(MANIFEST_NAME).map_err(failed)?;
        root.sync_dir().map_err(failed)?;
        self.lock().seconds.retain(|(known, _)| known != id);
        self.tree.remove(place.name()).map_err(failed)
    }
}
