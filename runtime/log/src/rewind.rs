//! A log that no process has open: its epochs and its end, and rewinding it to an earlier end.

use std::sync::Arc;

use reprise_base::{Epoch, Lsn};
use reprise_env::{Disk, DiskError, DiskErrorKind, DiskFile, DiskLock};
use reprise_wire::History;

use crate::{
    copy::{CopyRange, LogCopy},
    error::LogError,
    group::{Position, history_until},
    index::{LogIndex, LogPoint},
    reader::{LogReader, ReadEnd},
    scan::{VerifyReport, scan},
};

/// A segment that takes the place of a longer one.
const SHORTER_NAME: &str = "shorter.seg";

/// The first record of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// Its number.
    pub epoch: Epoch,
    /// LSN of its first record; the log's start if that lies in the epoch.
    pub start: Lsn,
    /// History before that record.
    pub history: History,
}

/// A closed log, as its files hold it.
pub struct LogOutline {
    disk: Arc<dyn Disk>,
    index: Arc<LogIndex>,
    end_mark: LogPoint,
    /// The report of reading all blocks.
    pub report: VerifyReport,
    /// Behind the last record, and the history up to there.
    pub end: Position,
}

impl LogOutline {
    /// Reads all blocks. None: there is no log. Err also if it is damaged.
    pub fn of(disk: &Arc<dyn Disk>) -> Result<Option<Self>, LogError> {
        let scanned = scan(&**disk)?;
        if let Some(damage) = scanned.report.damage {
            return Err(LogError::Corrupt(Arc::new(damage)));
        }
        if scanned.report.segments.is_empty() {
            return Ok(None);
        }
        let report = scanned.report;
        Ok(Some(Self {
            disk: Arc::clone(disk),
            index: Arc::new(scanned.index),
            end_mark: LogPoint {
                place: scanned.end_place,
                lsn: report.end,
            },
            end: Position {
                epoch: scanned.next.epoch,
                lsn: report.end,
                history: scanned.history,
            },
            report,
        }))
    }

    /// The epochs that records are of, the oldest first.
    pub fn epochs(&self) -> Vec<EpochStart> {
        self.index.epochs()
    }

    fn reader(&self, from: Lsn) -> Result<LogReader, LogError> {
        let end = ReadEnd::Fixed(self.end_mark);
        LogReader::new(Arc::clone(&self.disk), Arc::clone(&self.index), end, from)
    }

    /// History before `lsn`. None: the log does not hold it.
    pub fn history_at(&self, lsn: Lsn) -> Result<Option<History>, LogError> {
        let Some(segment) = self.index.segment_with(lsn).filter(|_| lsn <= self.end.lsn) else {
            return Ok(None);
        };
        history_until(&mut self.reader(segment.start)?, segment.history, lsn).map(Some)
    }

    /// Copies the records from `from` on, with the block in which the first one lies, to files on `target`.
    pub fn copy_from(&self, from: Lsn, target: &dyn Disk) -> Result<LogCopy, LogError> {
        let range = CopyRange {
            from: Lsn(from.0 + 1),
            until: Lsn(u64::MAX),
        };
        self.reader(self.report.start)?.copy(range, target, &mut |_| true)
    }

    /// Rewinds the log to the records before `lsn`, at least one. A crash leaves a complete log that ends at `lsn` or later. The
    /// caller holds the folder's lock.
    pub fn rewind_to(self, lsn: Lsn) -> Result<(), LogError> {
        assert!(lsn > self.report.start, "a record stays");
        let mut segments = self.report.segments.clone();
        while let Some(last) = segments.pop_if(|last| last.start >= lsn) {
            self.disk.remove(&last.file)?;
            self.disk.sync_dir()?;
        }
        let last = segments.last().expect("the first one begins before it");
        if last.end <= lsn {
            return Ok(());
        }
        match self.disk.remove(SHORTER_NAME) {
            Err(error) if error.kind != DiskErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let range = CopyRange {
            from: Lsn(last.start.0 + 1),
            until: lsn,
        };
        let shorter = ShorterFile(Arc::clone(&self.disk));
        let copied = self.reader(last.start)?.copy(range, &shorter, &mut |_| true)?;
        assert_eq!(copied.files, [last.file.as_str()], "one segment for another");
        self.disk.rename(SHORTER_NAME, &last.file)?;
        Ok(self.disk.sync_dir()?)
    }
}

/// The folder, in which the one new file has another name.
struct ShorterFile(Arc<dyn Disk>);

fn refused(name: &str) -> DiskError {
    DiskError::new("open", name, DiskErrorKind::Refused, "one file is written here")
}

impl Disk for ShorterFile {
    fn create(&self, _: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        self.0.create(SHORTER_NAME)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused(name))
    }

    fn open_read(&self, name: &str) -> Result<Arc<dyn DiskFile>, DiskError> {
        Err(refused(name))
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        self.0.list()
    }

    fn rename(&self, from: &str, _: &str) -> Result<(), DiskError> {
        Err(refused(from))
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        Err(refused(name))
    }

    fn sync_dir(&self) -> Result<(), DiskError> {
        self.0.sync_dir()
    }

    fn lock(&self) -> Result<DiskLock, DiskError> {
        self.0.lock()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}
