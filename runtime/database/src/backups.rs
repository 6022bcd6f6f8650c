//! Backups of the running database, in a directory that the operator chose. One at a time, beside the engine.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use reprise_base::Lsn;
use reprise_checkpoint::{Checkpoints, checkpoint_name};
use reprise_env::{Clock, RealDisk};
use reprise_log::{CopyRange, Log};
use reprise_partition::CallBatch;
use reprise_router::{
    BackupError, BackupFileInfo, BackupInfo, BackupService, BackupState, CheckpointService,
    CheckpointState,
};

use crate::{
    backup::seal,
    checkpoint::Checkpointer,
    manifest::{BackupManifest, MANIFEST_NAME, sum_file},
    restore::{RestoreError, RestoreReport},
    staging::{Staging, copy_file},
};

const PREFIX: &str = "backup-";
const LOOK: Duration = Duration::from_millis(20);
/// Failures remembered.
const FAILURES_MAX: usize = 8;

pub(crate) struct Backups {
    dir: PathBuf,
    checkpoints_dir: PathBuf,
    log: Arc<Log<Box<CallBatch>>>,
    checkpointer: Arc<Checkpointer>,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    is_stopping: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
    this: Weak<Self>,
}

#[derive(Default)]
struct State {
    running: Option<BackupInfo>,
    begun: Option<Instant>,
    /// In this run: how long one took is not in its manifest.
    seconds: Vec<(String, f64)>,
    failed: Vec<BackupInfo>,
}

impl Backups {
    pub fn new(
        dir: PathBuf,
        data_dir: &Path,
        log: Arc<Log<Box<CallBatch>>>,
        checkpointer: Arc<Checkpointer>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            dir,
            checkpoints_dir: data_dir.join("checkpoints"),
            log,
            checkpointer,
            clock,
            state: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            thread: Mutex::default(),
            this: this.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Gives up what is under way.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        let thread = self.thread.lock().expect("held to take").take();
        if let Some(thread) = thread {
            let _ = thread.join(); // what it did is in the list
        }
    }

    fn goes_on(&self) -> bool {
        !self.is_stopping.load(Ordering::Acquire)
    }

    fn run(&self, id: &str) {
        let made = self.make(id);
        let mut state = self.lock();
        let seconds = state
            .begun
            .take()
            .map(|begun| begun.elapsed().as_secs_f64());
        let Some(mut info) = state.running.take() else {
            return;
        };
        match made {
            Ok(_) => state
                .seconds
                .push((id.to_owned(), seconds.unwrap_or_default())),
            Err(error) => {
                (info.state, info.seconds) = (BackupState::Failed, seconds);
                info.error = Some(error.to_string());
                state.failed.insert(0, info);
                state.failed.truncate(FAILURES_MAX);
            }
        }
    }

    fn make(&self, id: &str) -> Result<BackupManifest, RestoreError> {
        RealDisk::create(&self.dir)?;
        // Not released before the copy is made: neither the checkpoint nor the log behind it.
        let _kept = self.checkpointer.keep_all();
        let staging = Staging::begin(&self.dir.join(format!("{PREFIX}{id}")))?;
        let (checkpoint, checkpoint_bytes) = self.copy_checkpoint(&staging)?;
        // In this order: what is not in it is later, but for the length of a turn.
        let created_us = self.clock.now_us();
        let until = self.log.durable();
        let note = |bytes: u64| {
            if let Some(info) = &mut self.lock().running {
                info.bytes = info.bytes.max(bytes);
            }
        };
        note(checkpoint_bytes);
        let range = CopyRange {
            from: checkpoint,
            until,
        };
        let log =
            self.log
                .reader(checkpoint)?
                .copy(range, &*staging.folder("log")?, &mut |lsn| {
                    note(checkpoint_bytes + lsn.0.saturating_sub(checkpoint.0));
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

    /// The copy of a checkpoint of now, and its bytes. An older one may have decayed since it was written: the copy is read
    /// back, and a new one is taken where it is not whole.
    fn copy_checkpoint(&self, staging: &Staging) -> Result<(Lsn, u64), RestoreError> {
        let source = RealDisk::open(&self.checkpoints_dir)?;
        let target = staging.folder("checkpoints")?;
        let copies = Checkpoints::new(target.clone());
        for older in [self.checkpointer.fresh(), None] {
            let lsn = match older {
                Some(lsn) => lsn,
                None => self.new_checkpoint()?,
            };
            let name = checkpoint_name(lsn);
            let bytes = copy_file(&source, &*target, &name, &mut || self.goes_on())?;
            match copies.open(lsn).and_then(|reader| reader.verify()) {
                Ok(()) => return Ok((lsn, bytes)),
                Err(error) if error.is_corrupt() && older.is_some() => copies.remove(lsn)?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(RestoreError::GivenUp(
            "no checkpoint can be read back".into(),
        ))
    }

    fn new_checkpoint(&self) -> Result<Lsn, RestoreError> {
        let given_up = |reason: String| Err(RestoreError::GivenUp(reason));
        let begun = match self.checkpointer.take() {
            Ok(begun) => begun.lsn,
            Err(error) => return given_up(format!("a checkpoint is needed first: {error}")),
        };
        while self.goes_on() {
            let all = self.checkpointer.list();
            match all.into_iter().find(|found| found.lsn == begun) {
                Some(found) if found.state == CheckpointState::Published => return Ok(begun),
                Some(found) if found.state == CheckpointState::Failed => {
                    let reason = found.error.unwrap_or_default();
                    return given_up(format!("a checkpoint is needed first: {reason}"));
                }
                Some(_) => thread::sleep(LOOK),
                None => return given_up("the checkpoint that was taken for it is gone".into()),
            }
        }
        given_up("the node stops".into())
    }

    fn running(&self) -> Option<BackupInfo> {
        let state = self.lock();
        let mut info = state.running.clone()?;
        info.seconds = state.begun.map(|begun| begun.elapsed().as_secs_f64());
        Some(info)
    }

    fn place(&self, id: &str) -> Option<PathBuf> {
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        is_id.then(|| self.dir.join(format!("{PREFIX}{id}")))
    }

    fn published(&self, id: &str) -> Option<BackupInfo> {
        let dir = self.place(id)?;
        let began_unix_us = id.parse().ok()?;
        let mut info = BackupInfo {
            id: id.to_owned(),
            state: BackupState::Published,
            began_unix_us,
            seconds: None,
            bytes: 0,
            checkpoint_lsn: None,
            end_lsn: None,
            directory: dir.display().to_string(),
            files: Vec::new(),
            error: None,
        };
        match BackupManifest::read(&dir) {
            Ok(manifest) => {
                info.bytes = manifest.bytes();
                info.checkpoint_lsn = manifest.checkpoint_lsn.map(Lsn);
                info.end_lsn = Some(Lsn(manifest.log_end));
                info.files = files_of(&dir, &manifest);
            }
            Err(crate::ManifestError::Missing(_)) => return None,
            Err(error) => {
                info.state = BackupState::Failed;
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
fn files_of(dir: &Path, manifest: &BackupManifest) -> Vec<BackupFileInfo> {
    let named = manifest.files.iter().map(|file| BackupFileInfo {
        path: file.path.clone(),
        bytes: file.bytes,
        sha256: file.sha256.clone(),
    });
    let own = sum_file(&dir.join(MANIFEST_NAME), &mut |_| true);
    let own = own.ok().map(|(bytes, sha256)| BackupFileInfo {
        path: MANIFEST_NAME.to_owned(),
        bytes,
        sha256,
    });
    own.into_iter().chain(named).collect()
}

impl BackupService for Backups {
    fn create(&self) -> Result<BackupInfo, BackupError> {
        let mut state = self.lock();
        if let Some(running) = &state.running {
            return Ok(running.clone());
        }
        if !self.goes_on() {
            return Err(BackupError::Unavailable("the node stops".into()));
        }
        let began_unix_us = self.clock.now_us();
        let id = began_unix_us.to_string();
        let directory = self.dir.join(format!("{PREFIX}{id}"));
        let info = BackupInfo {
            id: id.clone(),
            state: BackupState::Running,
            began_unix_us,
            seconds: Some(0.0),
            bytes: 0,
            checkpoint_lsn: None,
            end_lsn: None,
            directory: directory.display().to_string(),
            files: Vec::new(),
            error: None,
        };
        let this = self.this.upgrade();
        let this = this.ok_or_else(|| BackupError::Unavailable("the node stops".into()))?;
        let spawned = thread::Builder::new()
            .name("backup".into())
            .spawn(move || this.run(&id));
        let thread = spawned.map_err(|error| {
            BackupError::Unavailable(format!("no thread could be started for it: {error}").into())
        })?;
        *self.thread.lock().expect("held for a store") = Some(thread);
        (state.running, state.begun) = (Some(info.clone()), Some(Instant::now()));
        Ok(info)
    }

    fn list(&self) -> Vec<BackupInfo> {
        // Where it can't be read there are none to list.
        let listed = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = listed.filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<_> = names
            .filter_map(|name| name.strip_prefix(PREFIX)?.parse::<i64>().ok())
            .collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        let running = self.running();
        let published = ids.iter().filter_map(|id| self.published(&id.to_string()));
        let published: Vec<_> = published.collect();
        let failed = self.lock().failed.clone();
        running.into_iter().chain(published).chain(failed).collect()
    }

    fn find(&self, id: &str) -> Option<BackupInfo> {
        let is_it = |info: &BackupInfo| info.id == id;
        let failed = || self.lock().failed.iter().find(|info| is_it(info)).cloned();
        self.running()
            .filter(is_it)
            .or_else(|| self.published(id))
            .or_else(failed)
    }

    fn open_file(&self, id: &str, name: &str) -> Result<(File, u64), BackupError> {
        let info = self.published(id).ok_or(BackupError::NotFound)?;
        // Only what the manifest names: no path of a client's making reaches the disk.
        let mut files = info.files.iter();
        let found = files.find(|file| file.path.rsplit('/').next() == Some(name));
        let found = found.ok_or(BackupError::NotFound)?;
        let dir = self.place(id).ok_or(BackupError::NotFound)?;
        let file = File::open(dir.join(&found.path));
        let file = file.map_err(|error| BackupError::Unavailable(error.to_string().into()))?;
        Ok((file, found.bytes))
    }

    fn remove(&self, id: &str) -> Result<(), BackupError> {
        let failed = |error: std::io::Error| BackupError::Unavailable(error.to_string().into());
        let known = self.lock().failed.len();
        self.lock().failed.retain(|info| info.id != id);
        let was_failure = self.lock().failed.len() < known;
        let dir = match self
            .place(id)
            .filter(|dir| dir.join(MANIFEST_NAME).exists())
        {
            Some(dir) => dir,
            None if was_failure => return Ok(()),
            None => return Err(BackupError::NotFound),
        };
        // Without its manifest it is no backup any more, whatever happens to the rest.
        std::fs::remove_file(dir.join(MANIFEST_NAME)).map_err(failed)?;
        std::fs::remove_dir_all(&dir).map_err(failed)
    }
}
