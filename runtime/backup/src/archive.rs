//! The archive: checkpoints and log that the data directory no longer needs, kept elsewhere for days. The server copies each file
//! under a temporary name, syncs it, renames it, and only then removes the original. A crash at any moment therefore leaves each file
//! complete in one place.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use reprise_base::{Lsn, hex};
use reprise_checkpoint::{CheckpointError, Checkpoints, checkpoint_name, parse_checkpoint_name};
use reprise_env::{Disk, DiskError, DiskErrorKind, DiskLock};
use reprise_log::{LogError, OwnedRecord, parse_segment_name, segment_name, start_of_segment, verify};

use crate::{
    history::{check_history, settled_id},
    staging::copy_as,
    tree::DirHandle,
    union::UnionDisk,
};

/// A file on its way into the archive; none is ever read.
const TEMPORARY_NAME: &str = "archive.tmp";
const COMPARED_BYTES: usize = 1 << 20;

/// Why files can't be put into an archive.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum ArchiveError {
    #[error(
        "{0} is in use as a data directory, or as the archive of another server: name another directory, if possible on another disk"
    )]
    InUse(PathBuf),
    #[error("{archive} is another database's archive ({found}); this one is {expected}: name an empty directory")]
    OtherDatabase {
        archive: PathBuf,
        expected: String,
        found: String,
    },
    #[error(
        "the archive {archive} ends at LSN {end}, and the log begins at {start}: the archive lacks the log between. You can restore from \
         it up to LSN {end}. Name another directory for the new archive"
    )]
    Gap { archive: PathBuf, end: Lsn, start: Lsn },
    #[error(
        "{archive} has another file {name}. A restored database, a standby that began again, or a server whose log was rewound needs \
         an archive of its own"
    )]
    OtherFile { archive: PathBuf, name: String },
    #[error(
        "{archive} did not answer within {seconds} s. If its disk is missing, mount it again. Or start with another directory; the \
         archive then lacks the log in between"
    )]
    Hangs { archive: PathBuf, seconds: f64 },
    #[error("the server could not start a thread for it")]
    NoThread,
    #[error("it was given up: the server is stopping")]
    GivenUp,
    #[error(
        "{held} bytes waited for the archive, more than --archive-hold-max ({max}): the server removed them, and the archive ends at LSN \
         {end}. You can restore from it up to there. Restart the server with another directory"
    )]
    Overheld { held: u64, max: u64, end: Lsn },
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// Contents and failures of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArchiveStatus {
    /// Its directory.
    pub directory: String,
    /// Files of the log and of checkpoints.
    pub files: u64,
    /// Bytes of all of these files.
    pub bytes: u64,
    /// The earliest state that it restores.
    pub oldest_checkpoint: Option<Lsn>,
    /// Bytes in the data directory that wait for the archive to take them.
    pub held_bytes: u64,
    /// Maximum of `held_bytes`, as in `ArchiveBounds::held_bytes_max`.
    pub held_bytes_max: u64,
    /// End of the archive, after too much was held: nothing more is put there.
    pub ends_at: Option<Lsn>,
    /// Attempts of this run that failed.
    pub failures: u64,
    /// Time of the last failed attempt, in microseconds since 1970, and why it failed. None if the last attempt succeeded.
    pub failure: Option<(i64, String)>,
}

/// The files that one expiry removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveExpiry {
    /// Number of checkpoints and files of the log.
    pub files: u64,
    /// The oldest point that can still be restored, a checkpoint.
    pub oldest: Lsn,
}

/// How much is kept for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveBounds {
    /// Age by the key clock after which a file is removed, unless a younger one needs it; none: no file is removed.
    pub keep: Option<Duration>,
    /// Bytes of the data directory that wait for an archive that does not take them; with more it is given up.
    pub held_bytes_max: u64,
    /// Longest time that an opening waits for it, because its disk may hang.
    pub open_max: Duration,
}

impl ArchiveBounds {
    /// Ample for a far disk: one file of the log is read, and the others are listed.
    pub const OPEN_MAX: Duration = Duration::from_secs(60);
}

/// Two folders as in a data directory: a restore reads both alike.
pub struct Archive {
    path: PathBuf,
    log: Arc<dyn Disk>,
    checkpoints: Arc<dyn Disk>,
    bounds: ArchiveBounds,
    origin: ArchiveSource,
    state: Mutex<ArchiveStatus>,
    _lock: DiskLock,
}

/// The data directory whose files the archive takes.
pub struct ArchiveSource {
    /// The data directory's folder of segments.
    pub log: Arc<dyn Disk>,
    /// The data directory's folder of checkpoints.
    pub checkpoints: Arc<dyn Disk>,
    /// An archive of another database is refused.
    pub database_id: [u8; 16],
    /// Start of the directory's log.
    pub start: Lsn,
}

/// Finds a record of the data directory's log. None: the log does not hold it.
pub type FindRecord<'a> = dyn Fn(Lsn) -> Result<Option<OwnedRecord>, LogError> + 'a;

impl Archive {
    /// Opens the archive: makes missing folders and removes the remains of a crash. Checks that it belongs to this database, and that its log
    /// has no gap to the directory's. Checks also its newest checkpoint against the directory's log, in which `find` reads.
    pub fn open(
        place: &DirHandle,
        bounds: ArchiveBounds,
        origin: ArchiveSource,
        find: &FindRecord<'_>,
    ) -> Result<Self, ArchiveError> {
        place.tree().prepare()?;
        let (log, checkpoints) = (place.folder_or_new("log")?, place.folder_or_new("checkpoints")?);
        let lock = log.lock().map_err(|error| match error.kind {
            DiskErrorKind::Locked => ArchiveError::InUse(place.path()),
            _ => error.into(),
        })?;
        for folder in [&log, &checkpoints] {
            remove_if_there(&**folder, TEMPORARY_NAME)?;
        }
        let archive = Self {
            path: place.path(),
            log,
            checkpoints,
            bounds,
            origin,
            state: Mutex::new(ArchiveStatus {
                held_bytes_max: bounds.held_bytes_max,
                ..ArchiveStatus::default()
            }),
            _lock: lock,
        };
        let has_log = archive.check_log()?;
        archive.check_checkpoint(has_log, find)?;
        archive.count(|status| status.directory = archive.path.display().to_string())?;
        Ok(archive)
    }

    /// Checks the newest archived file of the log. Returns false if there is none.
    fn check_log(&self) -> Result<bool, ArchiveError> {
        let origin = &self.origin;
        let Some(newest) = segments(&*self.log)?.last().copied() else {
            return Ok(false);
        };
        let alone = UnionDisk::Narrowed(self.log.clone(), segment_name(newest));
        let found = verify(&alone)?;
        if let Some(found) = found.database_id {
            self.check_identity(found)?;
        }
        if origin.start > found.end {
            return Err(ArchiveError::Gap {
                archive: self.path.clone(),
                end: found.end,
                start: origin.start,
            });
        }
        // The newest archived file is live yet, or ends where the live log begins. In a restored directory files end elsewhere.
        let live = segments(&*origin.log)?;
        let ends_at = found.segments.last().map(|segment| segment.end_place);
        match live.contains(&newest) || live.first().copied() == ends_at {
            true => Ok(true),
            false => Err(self.other_file(segment_name(newest))),
        }
    }

    /// Checks the newest archived checkpoint that can be read. If the log was rewound since, or the directory was restored, the newest one is
    /// the first to be of another history. A restore would load its tables before the records of this log.
    fn check_checkpoint(&self, has_log: bool, find: &FindRecord<'_>) -> Result<(), ArchiveError> {
        let own = Checkpoints::new(self.checkpoints.clone());
        for lsn in own.list()?.into_iter().rev() {
            let header = match own.open(lsn) {
                Ok(reader) => *reader.header(),
                Err(CheckpointError::Disk(error)) => return Err(error.into()),
                Err(_) => continue, // a restore passes over it, or says why it can't
            };
            self.check_identity(header.database_id)?;
            let start = self.origin.start;
            let is_own = match lsn > start {
                true => find(Lsn(lsn.0 - 1))?
                    .is_some_and(|record| check_history(&header, settled_id(&record.get().record)).is_ok()),
                // The archive has the log between them, or lacks it.
                false => lsn == start || has_log,
            };
            return match is_own {
                true => Ok(()),
                false => Err(self.other_file(checkpoint_name(lsn))),
            };
        }
        Ok(())
    }

    fn check_identity(&self, found: [u8; 16]) -> Result<(), ArchiveError> {
        let expected = self.origin.database_id;
        match found == expected {
            true => Ok(()),
            false => Err(ArchiveError::OtherDatabase {
                archive: self.path.clone(),
                expected: hex(&expected),
                found: hex(&found),
            }),
        }
    }

    fn other_file(&self, name: String) -> ArchiveError {
        ArchiveError::OtherFile {
            archive: self.path.clone(),
            name,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ArchiveStatus> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// The contents and failures now.
    pub fn status(&self) -> ArchiveStatus {
        self.lock().clone()
    }

    /// Counts the archive's files, after `change`.
    fn count(&self, change: impl FnOnce(&mut ArchiveStatus)) -> Result<(), DiskError> {
        let (mut files, mut bytes) = (0, 0);
        for folder in [&self.log, &self.checkpoints] {
            for name in folder.list()?.iter().filter(|name| is_ours(name)) {
                files += 1;
                bytes += folder.open_read(name)?.len()?;
            }
        }
        let oldest = checkpoints(&*self.checkpoints)?.first().copied();
        let mut status = self.lock();
        (status.files, status.bytes, status.oldest_checkpoint) = (files, bytes, oldest);
        change(&mut status);
        Ok(())
    }

    /// Records that the archive took every file that it should.
    pub fn record_success(&self) -> Result<(), DiskError> {
        self.count(|status| (status.failure, status.held_bytes) = (None, 0))
    }

    /// Records the files of the log up to `end`, and the checkpoints, that the archive did not take. Err: they are too much, and
    /// nothing more is put there.
    pub fn hold(&self, segments: &[String], past: &[Lsn], end: Lsn) -> Result<(), ArchiveError> {
        let origin = &self.origin;
        let log = segments.iter().map(|name| (&origin.log, name.clone()));
        let checkpoints = past.iter().map(|lsn| (&origin.checkpoints, checkpoint_name(*lsn)));
        let mut held = 0;
        for (folder, name) in log.chain(checkpoints) {
            held += folder.open_read(&name)?.len()?;
        }
        let mut status = self.lock();
        status.held_bytes = held;
        let max = self.bounds.held_bytes_max;
        if held <= max {
            return Ok(());
        }
        // A part may have been taken: it ends there at the earliest.
        status.ends_at = Some(end);
        status.held_bytes = 0;
        Err(ArchiveError::Overheld { held, max, end })
    }

    /// True once too much was held for it.
    pub fn is_given_up(&self) -> bool {
        self.lock().ends_at.is_some()
    }

    /// Records a failed attempt and its time, in microseconds since 1970.
    pub fn record_failure(&self, at_unix_us: i64, error: String) {
        let mut status = self.lock();
        status.failures += 1;
        status.failure = Some((at_unix_us, error));
    }

    /// Takes a file of the log; its original may go afterwards.
    pub fn take_segment(&self, name: &str, goes_on: &dyn Fn() -> bool) -> Result<(), ArchiveError> {
        self.take(&*self.origin.log, &*self.log, name, goes_on)
    }

    /// Takes the checkpoint at a position; its original may go afterwards. It ends early where `goes_on` says no.
    pub fn take_checkpoint(&self, lsn: Lsn, goes_on: &dyn Fn() -> bool) -> Result<(), ArchiveError> {
        self.take(
            &*self.origin.checkpoints,
            &*self.checkpoints,
            &checkpoint_name(lsn),
            goes_on,
        )
    }

    fn take(&self, from: &dyn Disk, to: &dyn Disk, name: &str, goes_on: &dyn Fn() -> bool) -> Result<(), ArchiveError> {
        if to.list()?.iter().any(|known| known == name) {
            // The file was taken before a crash, which came before the original was removed.
            return match is_same(from, to, name)? {
                true => Ok(()),
                false => Err(self.other_file(name.to_owned())),
            };
        }
        remove_if_there(to, TEMPORARY_NAME)?;
        let copied = copy_as(from, to, name, TEMPORARY_NAME, &mut || goes_on());
        // Its disk may have held the last step for long.
        let copied = match goes_on() {
            true => copied.map_err(ArchiveError::from),
            false => Err(ArchiveError::GivenUp),
        };
        if let Err(error) = copied {
            // If it can't be removed now, the next copy removes it.
            let _ = remove_if_there(to, TEMPORARY_NAME);
            return Err(error);
        }
        to.rename(TEMPORARY_NAME, name)?;
        Ok(to.sync_dir()?)
    }

    /// Removes files that are older than `keep`: everything before the newest checkpoint, here or in the data directory, that has this age.
    /// Every moment of that time can still be restored. `live` are the data directory's checkpoints. The key clock measures the age and
    /// reads `now_us`, so that a jump of the wall clock makes no file older. `on_removed` is called once if files went, even before an
    /// error.
    pub fn expire(&self, live: &[Lsn], now_us: u64, on_removed: &dyn Fn(ArchiveExpiry)) -> Result<(), ArchiveError> {
        let keep_us = self.bounds.keep.map(|keep| keep.as_micros() as u64);
        let Some(until_us) = keep_us.and_then(|keep_us| now_us.checked_sub(keep_us)) else {
            return Ok(()); // files are kept for ever, or no file can be old enough yet
        };
        let Some(base) = self.newest_until(live, until_us)? else {
            return Ok(());
        };
        let mut files = 0;
        let removed = self.remove_before(base, &mut files);
        if files > 0 {
            on_removed(ArchiveExpiry { files, oldest: base });
        }
        removed
    }

    /// Returns the newest checkpoint that was begun when the key clock read `until_us` or less.
    fn newest_until(&self, live: &[Lsn], until_us: u64) -> Result<Option<Lsn>, DiskError> {
        let archived = Checkpoints::new(self.checkpoints.clone());
        let origin = Checkpoints::new(self.origin.checkpoints.clone());
        let stored = checkpoints(&*self.checkpoints)?;
        let stored = stored.iter().map(|lsn| (*lsn, &archived));
        let mut all: Vec<_> = stored.chain(live.iter().map(|lsn| (*lsn, &origin))).collect();
        all.sort_by_key(|(lsn, _)| *lsn);
        let mut newest = None;
        for (lsn, folder) in all {
            // A checkpoint that can't be read is no way back.
            let Ok(reader) = folder.open(lsn) else {
                continue;
            };
            // The clock never falls, so all later ones are too young as well.
            if reader.database().key_clock_us > until_us {
                break;
            }
            newest = Some(lsn);
        }
        Ok(newest)
    }

    /// Removes the checkpoints before `base` and the log that ends before it, and counts these files.
    fn remove_before(&self, base: Lsn, files: &mut u64) -> Result<(), ArchiveError> {
        let archived = Checkpoints::new(self.checkpoints.clone());
        let stored = checkpoints(&*self.checkpoints)?;
        for lsn in stored.into_iter().filter(|lsn| *lsn < base) {
            archived.remove(lsn)?;
            *files += 1;
        }
        // Oldest first, and each step durable, so that no gap appears.
        let places = segments(&*self.log)?;
        for pair in places.windows(2) {
            if start_of_segment(&*self.log, pair[1])? > base {
                break;
            }
            self.log.remove(&segment_name(pair[0]))?;
            *files += 1;
            self.log.sync_dir()?;
        }
        Ok(())
    }
}

/// The log's files and the checkpoints of a data directory, and those of its archive, as one.
pub(crate) fn with_archive(live: &DirHandle, archive: &DirHandle, folder: &str) -> Result<Arc<dyn Disk>, DiskError> {
    let archived = archive.folder(folder)?;
    match live.folder(folder) {
        Ok(live) => Ok(Arc::new(UnionDisk::Both(live, archived))),
        Err(error) if error.kind == DiskErrorKind::NotFound => Ok(archived),
        Err(error) => Err(error),
    }
}

fn is_ours(name: &str) -> bool {
    parse_segment_name(name).is_some() || parse_checkpoint_name(name).is_some()
}

/// Starts of the segments, oldest first.
fn segments(disk: &dyn Disk) -> Result<Vec<u64>, DiskError> {
    Ok(disk
        .list()?
        .iter()
        .filter_map(|name| parse_segment_name(name))
        .collect())
}

fn checkpoints(disk: &dyn Disk) -> Result<Vec<Lsn>, DiskError> {
    Ok(disk
        .list()?
        .iter()
        .filter_map(|name| parse_checkpoint_name(name))
        .collect())
}

fn remove_if_there(disk: &dyn Disk, name: &str) -> Result<(), DiskError> {
    match disk.remove(name) {
        Err(error) if error.kind != DiskErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn is_same(one: &dyn Disk, other: &dyn Disk, name: &str) -> Result<bool, DiskError> {
    let (one, other) = (one.open_read(name)?, other.open_read(name)?);
    if one.len()? != other.len()? {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]);
    let mut at = 0;
    loop {
        let (read, other_read) = (one.read_at(at, &mut left)?, other.read_at(at, &mut right)?);
        if read != other_read || left[..read] != right[..read] {
            return Ok(false);
        }
        if read == 0 {
            return Ok(true);
        }
        at += read as u64;
    }
}
