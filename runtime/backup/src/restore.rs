//! A new data directory that holds a database as it was at a point of its log. Nothing runs: the newest checkpoint before
//! the point and the log behind it, cut there, are copied; opening the directory does the rest.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use reprise_base::{Lsn, TxnId};
use reprise_checkpoint::{CheckpointError, Checkpoints, checkpoint_name};
use reprise_env::{Clock, Disk, DiskError, DiskErrorKind, DiskLock, RealClock, RealThreads, Threads};
use reprise_log::{CopyRange, Damage, LogCopy, LogError, LogReader, VerifyReport};
use reprise_wire::PairWalk;

use crate::{
    archive::with_archive,
    history::check_history,
    manifest::{BackupManifest, MANIFEST_NAME, ManifestError},
    staging::{StagingDir, StagingError, copy_file},
    tree::DirHandle,
};

/// The point up to which a database is restored, included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Everything.
    End,
    /// All records that begin at this position or before it.
    Lsn(Lsn),
    /// All records up to this transaction's.
    Txn(TxnId),
    /// All records before the first one whose transaction is later, in microseconds since 1970. Partitions give out ids of
    /// their own: behind that record others may lie whose ids are earlier by the length of a turn.
    Time(i64),
}

/// The result of a restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreReport {
    /// The checkpoint that the new directory begins with.
    pub checkpoint: Option<Lsn>,
    /// Newer checkpoints that could not be used, and why.
    pub passed_over: Vec<String>,
    /// The first record that is not in it would begin here.
    pub cut: Lsn,
    /// The last transaction that is in it, unless the checkpoint holds it.
    pub last: Option<(Lsn, TxnId)>,
    /// Records behind the checkpoint, replayed at the first opening.
    pub records: u64,
    /// Records of the source behind the point.
    pub left_out: u64,
    /// The part of the log that was copied.
    pub log: LogCopy,
    /// Bytes of the checkpoint file that was copied.
    pub checkpoint_bytes: u64,
    /// Damage of the source behind the point.
    pub damage: Option<String>,
}

/// Why a database can't be restored to a point.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum RestoreError {
    #[error("there is no database in {0}: it has no folder log with segments")]
    NoDatabase(PathBuf),
    #[error("a server runs on {0}: take a backup of it with `reprise backup create`, or stop the server")]
    Running(PathBuf),
    #[error("{point} is before the oldest point that you can restore, {oldest}")]
    TooEarly { point: String, oldest: String },
    #[error("{point} is after the end: {end}")]
    TooLate { point: String, end: String },
    #[error(
        "the log has no record of transaction {txn_id}. Read-only, refused and aborted transactions leave no record. `reprise log dump` \
         shows the transaction id of each record"
    )]
    UnknownTxn { txn_id: TxnId },
    #[error("{damage} You can restore a point before LSN {} with --lsn, --txn or --time", damage.lsn)]
    Damaged { damage: Box<Damage> },
    #[error("no checkpoint before LSN {cut} is usable ({reasons}), and the beginning of the log is gone")]
    NoCheckpoint { cut: Lsn, reasons: String },
    #[error("it was given up: {0}")]
    GivenUp(String),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Staging(#[from] StagingError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Disk(#[from] DiskError),
}

impl RestoreError {
    /// True if the next reading may differ, because a server runs.
    fn may_pass(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::NoCheckpoint { .. } | Self::Checkpoint(_) => true,
            Self::Log(error) => matches!(
                error,
                LogError::Corrupt(_) | LogError::Disk(_) | LogError::OutOfRange { .. }
            ),
            Self::Disk(error) => error.kind == DiskErrorKind::NotFound,
            _ => false,
        }
    }
}

/// Makes the directory `target` out of the data directory or backup `source`, which is only read; a server may run on it meanwhile. Of a
/// backup every checksum is checked first.
pub fn restore(source: &Path, target: &Path, point: Point) -> Result<RestoreReport, RestoreError> {
    let now_us = RealClock::new().now_us();
    restore_in(&DirHandle::at(source), &new_place(target)?, point, now_us)
}

/// Restores from a data directory and its archive, to any point that one of them holds.
pub fn restore_archived(
    source: &Path,
    archive: &Path,
    target: &Path,
    point: Point,
) -> Result<RestoreReport, RestoreError> {
    let now_us = RealClock::new().now_us();
    let (source, archive) = (DirHandle::at(source), DirHandle::at(archive));
    RestoreSource::of(&source, Some(&archive))?.restore_held(&new_place(target)?, point, now_us)
}

/// Restores in any tree; `now_us` since 1970.
pub fn restore_in(
    source: &DirHandle,
    target: &DirHandle,
    point: Point,
    now_us: i64,
) -> Result<RestoreReport, RestoreError> {
    if source.holds(MANIFEST_NAME) {
        let manifest = BackupManifest::read_in(source)?;
        manifest.check_files(source, &mut |_| true)?;
        return RestoreSource::open(source)?.restore(target, point, manifest.created_us);
    }
    RestoreSource::open(source)?.restore_held(target, point, now_us)
}

/// Smallest number of readings of a directory on which a server runs, before an error counts as damage.
const LIVE_READINGS_MIN: u32 = 5;
/// Shortest time for which such a directory is read again. A busy machine may delay a write of the server for this time.
const LIVE_READINGS_TIME: Duration = Duration::from_secs(10);
const LIVE_READINGS_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) fn new_place(target: &Path) -> Result<DirHandle, StagingError> {
    DirHandle::beside(target).ok_or_else(|| StagingError::Name(target.to_owned()))
}

/// A database's files: a data directory or a backup, perhaps with an archive.
pub struct RestoreSource {
    place: DirHandle,
    archive: Option<DirHandle>,
    log: Arc<dyn Disk>,
}

impl RestoreSource {
    /// A data directory or a backup, alone.
    pub fn open(place: &DirHandle) -> Result<Self, RestoreError> {
        Self::of(place, None)
    }

    /// Opens like `open`, with the directory's archive, if any.
    pub fn of(place: &DirHandle, archive: Option<&DirHandle>) -> Result<Self, RestoreError> {
        let missing = || RestoreError::NoDatabase(place.path());
        let log = folder(place, archive, "log").map_err(|error| match error.kind {
            DiskErrorKind::NotFound => missing(),
            _ => error.into(),
        })?;
        if !log.list()?.iter().any(|name| name.starts_with("log-")) {
            return Err(missing());
        }
        Ok(Self {
            place: place.clone(),
            archive: archive.cloned(),
            log,
        })
    }

    /// Locks the directory while it is read: a server would write and release the copied files.
    pub fn lock(&self) -> Result<DiskLock, RestoreError> {
        self.log.lock().map_err(|error| match error.kind {
            DiskErrorKind::Locked => RestoreError::Running(self.place.path()),
            _ => error.into(),
        })
    }

    /// Returns the checkpoints, oldest first. None if there is no folder of them.
    fn checkpoints(&self) -> Result<Option<(Arc<dyn Disk>, Vec<Lsn>)>, RestoreError> {
        match folder(&self.place, self.archive.as_ref(), "checkpoints") {
            Ok(disk) => {
                let stored = Checkpoints::new(disk.clone()).list()?;
                Ok(Some((disk, stored)))
            }
            Err(error) if error.kind == DiskErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Restores from a directory that this process locks, or that a running server writes. The server appends at the log's end and removes
    /// its beginning. Errors are therefore checked again: they may come from a write in progress, or from a file that was just removed.
    pub fn restore_held(&self, target: &DirHandle, point: Point, now_us: i64) -> Result<RestoreReport, RestoreError> {
        let held = match self.lock() {
            Ok(held) => Some(held),
            Err(RestoreError::Running(_)) => None,
            Err(error) => return Err(error),
        };
        let threads: &'static dyn Threads = &RealThreads;
        let clock = RealClock::new();
        let mut readings = 1;
        loop {
            let ended = self.restore(target, point, now_us);
            let may_pass = held.is_none() && ended.as_ref().is_err_and(RestoreError::may_pass);
            let elapsed = Duration::from_nanos(clock.monotonic_ns());
            if !may_pass || (readings >= LIVE_READINGS_MIN && elapsed >= LIVE_READINGS_TIME) {
                return ended;
            }
            readings += 1;
            threads.sleep(LIVE_READINGS_INTERVAL);
        }
    }

    /// Names the place of a damaged file, if there are two places.
    fn name_place(&self, mut damage: Damage) -> Damage {
        if let Some(archive) = &self.archive {
            let is_live = self
                .place
                .folder("log")
                .is_ok_and(|live| live.open_read(&damage.file).is_ok());
            let place = if is_live { &self.place } else { archive };
            damage.file = place.path().join("log").join(&damage.file).display().to_string();
        }
        damage
    }

    /// `known_until_us`: later than that nothing is known of the database.
    pub fn restore(
        &self,
        target: &DirHandle,
        point: Point,
        known_until_us: i64,
    ) -> Result<RestoreReport, RestoreError> {
        let staging = StagingDir::begin(target)?;
        let report = self.write_to(&staging, point, known_until_us)?;
        staging.publish()?;
        Ok(report)
    }

    /// Restores into a directory that the caller publishes.
    pub fn write_to(
        &self,
        staging: &StagingDir,
        point: Point,
        known_until_us: i64,
    ) -> Result<RestoreReport, RestoreError> {
        let (mut reader, mut found) = LogReader::open(self.log.clone(), Lsn(0))?;
        found.damage = found.damage.map(|damage| self.name_place(damage));
        let stored = self.checkpoints()?;
        let oldest = stored
            .as_ref()
            .and_then(|(_, stored)| stored.iter().find(|lsn| (found.start..=found.end).contains(lsn)));
        let lsns = stored.as_ref().map_or(&[][..], |(_, stored)| stored.as_slice());
        let cut = LogWalk::over(&mut reader, point, lsns)?;
        cut.check_point(point, &found, oldest.copied(), known_until_us)?;
        let mut report = RestoreReport {
            cut: cut.until,
            last: cut.last,
            left_out: cut.left_out,
            damage: found.damage.as_ref().map(ToString::to_string),
            ..RestoreReport::default()
        };
        if let Some((disk, stored)) = &stored {
            let usable = stored.iter().rev().copied();
            let usable = usable.filter(|lsn| *lsn >= found.start && *lsn <= cut.until);
            copy_checkpoint(&**disk, usable, &cut, staging, &mut report)?;
        }
        if report.checkpoint.is_none() && found.start > Lsn(0) {
            return Err(RestoreError::NoCheckpoint {
                cut: cut.until,
                reasons: report.passed_over.join("; "),
            });
        }
        let range = CopyRange {
            from: report.checkpoint.unwrap_or_default(),
            until: cut.until,
        };
        report.log = reader.copy(range, &*staging.folder("log")?, &mut |_| true)?;
        report.records = cut.records_from(range.from);
        Ok(report)
    }
}

fn folder(place: &DirHandle, archive: Option<&DirHandle>, name: &str) -> Result<Arc<dyn Disk>, DiskError> {
    match archive {
        None => place.folder(name),
        Some(archive) => with_archive(place, archive, name),
    }
}

/// Takes the newest checkpoint that is of this log and whole, also as a copy.
fn copy_checkpoint(
    source: &dyn Disk,
    usable: impl Iterator<Item = Lsn>,
    walk: &LogWalk,
    staging: &StagingDir,
    report: &mut RestoreReport,
) -> Result<(), RestoreError> {
    let folder = staging.folder("checkpoints")?;
    let copies = Checkpoints::new(folder.clone());
    for lsn in usable {
        let bytes = copy_file(source, &*folder, &checkpoint_name(lsn), &mut || true)?;
        let before = walk.log_before(lsn).and_then(|before| before.newest);
        let opened = copies.open(lsn);
        let reason = match opened.and_then(|reader| reader.verify().map(|()| *reader.header())) {
            Ok(header) => match check_history(&header, before) {
                Ok(()) => {
                    (report.checkpoint, report.checkpoint_bytes) = (Some(lsn), bytes);
                    return Ok(());
                }
                Err(other) => other.to_string(),
            },
            Err(error) if error.is_corrupt() => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        report.passed_over.push(reason);
        copies.remove(lsn)?;
    }
    Ok(())
}

/// The part of the log before a stored checkpoint.
struct LogBefore {
    checkpoint: Lsn,
    records: u64,
    /// The newest transaction that is settled there, as `settled_id` returns it.
    newest: Option<TxnId>,
}

/// The result of reading the log up to a point.
#[derive(Default)]
struct LogWalk {
    first: Option<Lsn>,
    /// Behind the last record that is included.
    until: Lsn,
    last: Option<(Lsn, TxnId)>,
    included: u64,
    /// Parts of a transaction that were met, and not the record that makes them count.
    parts: u64,
    /// The log before each stored checkpoint. A standby's checkpoint has no mark in the log, so its LSN alone names its place.
    before: Vec<LogBefore>,
    left_out: u64,
    /// The record or transaction that was asked for, or a record behind the point, was met.
    is_found: bool,
    newest: Option<TxnId>,
    /// The newest transaction of all records that are no parts.
    newest_settled: Option<TxnId>,
    oldest: Option<TxnId>,
}

impl LogWalk {
    /// Reads the log up to `point`. `checkpoints` are the LSNs of the stored ones, oldest first.
    fn over(reader: &mut LogReader, point: Point, checkpoints: &[Lsn]) -> Result<Self, RestoreError> {
        let (mut walk, mut pairs) = (Self::default(), PairWalk::default());
        let mut checkpoints = checkpoints.iter().copied().peekable();
        let mut is_over = false;
        while let Some(record) = reader.next_record()? {
            while let Some(lsn) = checkpoints.next_if(|lsn| *lsn <= record.lsn) {
                walk.record_checkpoint(lsn);
            }
            let (txn_id, facts) = (record.record.txn_id(), record.record.facts());
            walk.first = walk.first.or(Some(record.lsn));
            walk.oldest = walk.oldest.or(txn_id);
            walk.newest = walk.newest.max(txn_id);
            walk.newest_settled = walk.newest_settled.max(txn_id.filter(|_| facts.standalone));
            // The changes that were logged beside a command belong to it.
            let is_twin = pairs.is_beside(&record.record);
            is_over |= match point {
                Point::End => false,
                Point::Lsn(lsn) => record.lsn > lsn && !is_twin,
                Point::Txn(_) => walk.is_found && !is_twin,
                Point::Time(time_us) => record.record.time_us().is_some_and(|at_us| at_us > time_us),
            };
            if is_over {
                walk.is_found |= !matches!(point, Point::Txn(_));
                walk.left_out += 1 + std::mem::take(&mut walk.parts);
                continue;
            }
            if !facts.standalone {
                walk.parts += 1;
                walk.is_found |= matches!(point, Point::Lsn(wanted) if record.lsn == wanted);
                continue;
            }
            walk.until = record.end;
            walk.included += 1 + std::mem::take(&mut walk.parts);
            walk.last = txn_id.map(|id| (record.lsn, id)).or(walk.last);
            // Changes that would follow a command have the same effect as the command.
            walk.is_found |= match point {
                Point::Txn(wanted) => txn_id == Some(wanted),
                Point::Lsn(wanted) => record.lsn == wanted,
                _ => false,
            };
        }
        checkpoints.for_each(|lsn| walk.record_checkpoint(lsn));
        Ok(walk)
    }

    /// Records the log before a checkpoint. The record at the checkpoint's LSN comes next.
    fn record_checkpoint(&mut self, checkpoint: Lsn) {
        self.before.push(LogBefore {
            checkpoint,
            records: self.included + self.parts,
            newest: self.newest_settled,
        });
    }

    fn log_before(&self, checkpoint: Lsn) -> Option<&LogBefore> {
        self.before.iter().find(|before| before.checkpoint == checkpoint)
    }

    fn records_from(&self, from: Lsn) -> u64 {
        self.included - self.log_before(from).map_or(0, |before| before.records)
    }

    fn check_point(
        &self,
        point: Point,
        found: &VerifyReport,
        oldest: Option<Lsn>,
        known_until_us: i64,
    ) -> Result<(), RestoreError> {
        if let (false, Some(damage)) = (self.is_found, &found.damage) {
            let damage = Box::new(damage.clone());
            return Err(RestoreError::Damaged { damage });
        }
        let is_gone = found.start > Lsn(0) && oldest.is_none_or(|oldest| self.until < oldest);
        let is_early = self.until == Lsn(0) || is_gone;
        let late = |point: String, end: String| Err(RestoreError::TooLate { point, end });
        match point {
            Point::Lsn(lsn) if lsn > found.end => {
                let end = format!("the log ends at LSN {}", found.end);
                return late(format!("LSN {lsn}"), end);
            }
            Point::Time(time_us) if time_us > known_until_us && !self.is_found => {
                let end = "that time has not come yet".to_owned();
                return late("the time".into(), end);
            }
            Point::Txn(txn_id) if !self.is_found => {
                return Err(match (self.oldest, self.newest) {
                    (Some(oldest), _) if txn_id < oldest => self.too_early(point, found, None),
                    (_, Some(newest)) if txn_id > newest => RestoreError::TooLate {
                        point: format!("transaction {txn_id}"),
                        end: format!("the log's last transaction is {newest}"),
                    },
                    _ => RestoreError::UnknownTxn { txn_id },
                });
            }
            _ => {}
        }
        match is_early {
            true => Err(self.too_early(point, found, oldest)),
            false => Ok(()),
        }
    }

    fn too_early(&self, point: Point, found: &VerifyReport, oldest: Option<Lsn>) -> RestoreError {
        let point = match point {
            Point::End => "the end".to_owned(),
            Point::Lsn(lsn) => format!("LSN {lsn}"),
            Point::Txn(txn_id) => format!("transaction {txn_id}"),
            Point::Time(_) => "the time".to_owned(),
        };
        let oldest = match (found.start, oldest) {
            (Lsn(0), _) => {
                format!("the database's beginning at LSN {}", self.first.unwrap_or_default())
            }
            (_, Some(oldest)) => format!("the checkpoint at LSN {oldest}"),
            (start, None) => format!("after LSN {start}, where the log begins"),
        };
        RestoreError::TooEarly { point, oldest }
    }
}
