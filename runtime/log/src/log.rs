//! Opening, closing, and the state of the log as a whole.

use std::{
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use reprise_base::{Epoch, Lsn, MemoryLedger, OnReached, Role, Watermark, WatermarkWaiter, hex, limits::SEGMENT_BYTES};
use reprise_env::{Clock, Disk, DiskErrorKind, DiskFile, DiskLock, MakeWork, RealThreads, ThreadHandle, Threads};
use reprise_observe::FlushStats;
use reprise_wire::{BlockKind, History, SEGMENT_HEADER_BYTES, SegmentHeader};

use crate::{
    append::Appender,
    cursor::SegmentCursor,
    delay::CommitDelay,
    error::{LogError, UnavailableKind},
    flush::{Flusher, create_first_segment},
    group::Position,
    index::{LogPoint, RECYCLE_NAME, SPARE_NAME},
    nvram_buffer::NvramBuffer,
    prepare::Preparer,
    replication_slot::SegmentReleaser,
    scan::{LogScan, VerifyReport, scan},
    state::{LogEnv, LogShared, LogState},
};

/// Size of a new database's first segment; each further one is twice as large, up to the configured size.
const FIRST_SEGMENT_BYTES: u64 = 4 << 20;
const SEGMENT_BYTES_MIN: u64 = 4096;

/// Told for each waiting `P`: the LSN behind its records, and that they are durable, or the error that stopped the log. Runs on the flusher
/// thread, in the order of positions, or on the thread that called `pend`; it must only hand over.
pub type Complete<P> = Box<dyn Fn(Lsn, Result<(), &LogError>, P) + Send + Sync>;

/// How a log is opened.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// After which a segment is followed by another one.
    pub segment_bytes: u64,
    /// Time for which a group may grow before it is written. Zero: a group holds the records that arrived during the write before it. It
    /// also holds those of clients that this write acknowledged and that append again at once.
    pub group_commit_delay: Duration,
    /// Callers of a group that end its configured wait.
    pub group_calls_max: usize,
    /// Longest time that a group waits while its engine threads are all busy, without a configured delay.
    pub patience_max: Duration,
    /// Quiet time after which a block of records is sealed; zero: only at close.
    pub seal_after: Duration,
    /// Longest wait of an append for room.
    pub append_wait_max: Duration,
    /// Hash of the settings that can change the results of a replay.
    pub settings_hash: u64,
    /// `Standby`: the log takes groups of a primary instead of appends.
    pub role: Role,
    /// The part of the node's identity that its epochs carry.
    pub writer: u16,
    /// Id for a log that is created now.
    pub new_database_id: [u8; 16],
    /// Unguessable, for the blocks of a log that is created now.
    pub new_block_key: u32,
    /// Another database's log, or an empty directory, is refused.
    pub expected_database_id: Option<[u8; 16]>,
    /// Memory of the database, of which each block carries the size.
    pub memory: Arc<MemoryLedger>,
}

impl LogConfig {
    /// The defaults, for a primary.
    pub fn new(new_database_id: [u8; 16]) -> Self {
        Self {
            segment_bytes: SEGMENT_BYTES,
            group_commit_delay: Duration::ZERO,
            group_calls_max: usize::MAX,
            patience_max: Duration::from_millis(4),
            seal_after: Duration::from_millis(5),
            append_wait_max: Duration::from_secs(10),
            settings_hash: 0,
            role: Role::Primary,
            writer: 0,
            new_database_id,
            new_block_key: 0,
            expected_database_id: None,
            memory: MemoryLedger::unlimited(),
        }
    }
}

/// The result of opening a log.
#[derive(Clone, Debug)]
pub struct OpenReport {
    /// True if it was made just now.
    pub is_new: bool,
    /// Id of the log's database.
    pub database_id: [u8; 16],
    /// The log as found; `torn` was cut.
    pub found: VerifyReport,
    /// Settings hash of the newest segment, when it is not the configured one. New records go to a new segment.
    pub other_settings_hash: Option<u64>,
    /// Epoch of records appended after this opening.
    pub epoch: Epoch,
}

/// How far the log is: durable <= written <= filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Behind the last appended record.
    pub filled: Lsn,
    /// Behind the last block that was handed to the disk.
    pub written: Lsn,
    /// Behind the last record that a crash leaves.
    pub durable: Lsn,
}

/// The node's log: one for all engine threads.
pub struct Log<P: Send + 'static> {
    pub(crate) shared: Arc<LogShared<P>>,
    pub(crate) releaser: Arc<SegmentReleaser>,
    /// The NVRAM buffer before the files, if any.
    pub(crate) nvram: OnceLock<Arc<NvramBuffer>>,
    threads: Mutex<Vec<Box<dyn ThreadHandle>>>,
    /// Given back at `close`.
    lock: Mutex<Option<DiskLock>>,
}

impl<P: Send + 'static> Log<P> {
    /// Opens the log on `disk`, or begins one on an empty directory. It checks every block, and erases the remains of a write that a crash
    /// interrupted. Any other damage is `Corrupt`, and files of a program with other numbers are `Foreign`; both change nothing.
    pub fn open(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        config: LogConfig,
        complete: Complete<P>,
    ) -> Result<(Self, OpenReport), LogError> {
        Self::open_on(disk, clock, Arc::new(RealThreads), config, complete)
    }

    /// Opens like `open`, with other threads than the system's.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        threads: Arc<dyn Threads>,
        config: LogConfig,
        complete: Complete<P>,
    ) -> Result<(Self, OpenReport), LogError> {
        assert!(config.segment_bytes >= SEGMENT_BYTES_MIN, "segment too small");
        let lock = disk.lock()?;
        let scanned = scan(&*disk)?;
        check_identity(&scanned.report, &config)?;
        check_memory(&scanned.report, &config)?;
        if let Some(damage) = scanned.report.damage {
            return Err(LogError::Corrupt(Arc::new(damage)));
        }
        for leftover in [SPARE_NAME, RECYCLE_NAME] {
            match disk.remove(leftover) {
                Err(error) if error.kind != DiskErrorKind::NotFound => return Err(error.into()),
                _ => {}
            }
        }
        let opened = match scanned.report.segments.is_empty() {
            true => OpenedFiles::create(&*disk, scanned, &config)?,
            false => OpenedFiles::resume(&*disk, scanned, &config)?,
        };
        let around = LogEnv { disk, clock, threads };
        opened.start(around, config, complete, lock)
    }

    /// Makes an appender. It takes nothing if the log has NVRAM before it: then records are appended through that.
    pub fn appender(&self) -> Appender<P> {
        Appender(Arc::clone(&self.shared))
    }

    /// Id of the log's database.
    pub fn database_id(&self) -> [u8; 16] {
        self.shared.database_id
    }

    /// Behind the last appended record.
    pub fn filled(&self) -> Lsn {
        Lsn(self.filled_mark().get())
    }

    fn filled_mark(&self) -> &Arc<Watermark> {
        self.nvram.get().map_or(&self.shared.filled, |nvram| &nvram.filled)
    }

    /// Runs `hook` once records are appended up to `lsn`, on the thread that appends them. None: they are already.
    pub fn when_filled(&self, lsn: Lsn, hook: OnReached) -> Option<WatermarkWaiter> {
        self.filled_mark().when(lsn.0, hook)
    }

    /// Runs `hook` once everything before `end` is durable in the log's files, on the thread that writes them. None: it is already.
    pub fn when_durable(&self, end: Lsn, hook: OnReached) -> Option<WatermarkWaiter> {
        self.shared.durable.lsn.when(end.0, hook)
    }

    /// Everything before it is durable.
    pub fn durable(&self) -> Lsn {
        match self.nvram.get() {
            Some(nvram) => nvram.lsns.durable(),
            None => self.copied(),
        }
    }

    /// No caller got a result for a record from here on. With an NVRAM buffer a record may be acknowledged before a lower one is
    /// durable.
    pub fn answered_max(&self) -> Lsn {
        match self.nvram.get() {
            Some(_) => self.filled(),
            None => self.copied(),
        }
    }

    /// Returns the present positions.
    pub fn positions(&self) -> Positions {
        if let Some(nvram) = self.nvram.get() {
            let durable = nvram.lsns.durable();
            return Positions {
                filled: self.filled().max(durable),
                written: durable,
                durable,
            };
        }
        let state = self.shared.lock();
        Positions {
            filled: state.filled(),
            written: state.fill_start,
            durable: self.durable(),
        }
    }

    /// LSN of the oldest record that is kept.
    pub fn start(&self) -> Lsn {
        self.shared.index.start().lsn
    }

    /// Returns the bytes of the log's files that hold the durable records from `from` to `to`. They are exact at the ends of segments,
    /// elsewhere to half a MiB.
    pub fn bytes_between(&self, from: Lsn, to: Lsn) -> u64 {
        let end = self.shared.durable.get();
        self.shared.index.bytes_between(from, to, end)
    }

    /// Returns the bytes of the log's files that hold the durable records from `from` on.
    pub fn bytes_behind(&self, from: Lsn) -> u64 {
        self.bytes_between(from, Lsn(u64::MAX))
    }

    /// Waits until everything before `end` is durable; false when the time is over or the log stopped first.
    pub fn wait_durable(&self, end: Lsn, timeout: Duration) -> bool {
        match self.nvram.get() {
            Some(nvram) => self.wait_persistent(nvram, end, timeout),
            None => self.shared.wait_durable(end, timeout),
        }
    }

    /// True once a write has failed: nothing more gets to the files.
    pub fn is_stopped(&self) -> bool {
        self.shared.lock().stopped.is_some()
    }

    /// Why appends are refused now, if they are.
    pub fn refusal(&self) -> Option<Arc<str>> {
        self.shared.refusal().map(LogError::into_reason)
    }

    /// Returns why the log refuses appends, or refuses long ones alone, for which it has no room left.
    pub fn trouble(&self) -> Option<Arc<str>> {
        let lacks = || self.shared.lock().lack_of_room().map(LogError::into_reason);
        self.refusal().or_else(lacks)
    }

    /// True if it takes no appends, on request (`refuse`).
    pub fn is_read_only(&self) -> bool {
        let kind = UnavailableKind::ReadOnly;
        matches!(self.shared.refusal(), Some(LogError::Unavailable { kind: found, .. }) if found == kind)
    }

    /// Epoch of appended records.
    pub fn epoch(&self) -> Epoch {
        self.shared.lock().epoch
    }

    /// Epoch of the last written record, or of the log's start.
    pub fn written_epoch(&self) -> Epoch {
        self.shared.lock().block_epoch
    }

    /// Refuses further appends for this reason. Records appended before are written, and reading continues.
    pub fn refuse(&self, reason: &str) {
        // Records that can't be written are refused for that reason.
        let _ = self.wait_copied(self.filled(), self.shared.config.append_wait_max);
        let refusal = LogError::unavailable(UnavailableKind::ReadOnly, reason);
        self.shared.stop(refusal.clone(), refusal);
    }

    /// The flusher's counters.
    pub fn stats(&self) -> Arc<FlushStats> {
        Arc::clone(&self.shared.stats)
    }

    /// Writes the appended records, marks the log as closed in order, and ends the threads. Later appends are refused. The error is the one
    /// that stopped the log before.
    pub fn close(&self) -> Result<(), LogError> {
        self.close_nvram();
        self.shared.lock().is_closing = true;
        self.shared.may_refuse.store(true, std::sync::atomic::Ordering::Release);
        self.shared.wake_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics in here"));
        for thread in threads {
            // The last owner may drop the log on the flusher thread itself, inside `complete`. A panic there has stopped the log, and
            // the error below reports it.
            thread.join();
        }
        self.releaser.close();
        *self.lock.lock().expect("nothing panics in here") = None;
        match &self.shared.lock().stopped {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

impl<P: Send + 'static> Drop for Log<P> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Callers that need the result call `close`.
            let _ = self.close();
        }
    }
}

fn check_identity(found: &VerifyReport, config: &LogConfig) -> Result<(), LogError> {
    let Some(expected) = config.expected_database_id else {
        return Ok(());
    };
    match found.database_id {
        Some(id) if id == expected => Ok(()),
        // A damaged first segment hides the id; the damage is reported then.
        None if found.damage.is_some() => Ok(()),
        id => Err(LogError::WrongDatabase {
            expected: hex(&expected),
            found: id.map_or("an empty directory".to_owned(), |id| hex(&id)),
        }),
    }
}

/// Refuses a log that needs more memory than the limit, before anything is changed.
fn check_memory(found: &VerifyReport, config: &LogConfig) -> Result<(), LogError> {
    let (needed, max) = (found.memory_bytes, config.memory.max_bytes());
    match needed <= max {
        true => Ok(()),
        false => Err(LogError::MemoryMax { needed, max }),
    }
}

/// First epoch of a new log; a standby's is its primary's.
fn first_epoch(config: &LogConfig) -> Epoch {
    match config.role {
        Role::Standby => Epoch::default(),
        Role::Primary | Role::ReadOnly => Epoch::new(1, config.writer),
    }
}

/// A log that was checked, on the way to its threads.
struct OpenedFiles {
    scan: LogScan,
    /// Epoch of the last block, or of the segment that begins.
    block_epoch: Epoch,
    report: OpenReport,
    segment: Arc<dyn DiskFile>,
    segment_start: u64,
    room: u64,
    segment_room: u64,
}

impl OpenedFiles {
    fn create(disk: &dyn Disk, mut scan: LogScan, config: &LogConfig) -> Result<Self, LogError> {
        let header = SegmentHeader {
            block_key: config.new_block_key,
            database_id: config.new_database_id,
            start: Lsn(0),
            place: 0,
            settings_hash: config.settings_hash,
            epoch: first_epoch(config),
            history: History::default(),
            chain: 0,
        };
        let file_bytes = config.segment_bytes.min(FIRST_SEGMENT_BYTES);
        let segment = create_first_segment(disk, &header, file_bytes)?;
        scan.index.add_segment(&header);
        scan.block_key = header.block_key;
        scan.next.epoch = header.epoch;
        let room = file_bytes - SEGMENT_HEADER_BYTES as u64;
        Ok(Self {
            report: OpenReport {
                is_new: true,
                database_id: config.new_database_id,
                found: scan.report.clone(),
                other_settings_hash: None,
                epoch: header.epoch,
            },
            scan,
            block_epoch: header.epoch,
            segment,
            segment_start: 0,
            room,
            segment_room: room,
        })
    }

    fn resume(disk: &dyn Disk, mut scan: LogScan, config: &LogConfig) -> Result<Self, LogError> {
        let newest = scan.report.segments.last().expect("checked by the caller").clone();
        let segment = disk.open(&newest.file)?;
        let mut cursor = SegmentCursor::new(Arc::clone(&segment), newest.place);
        if let Some(torn) = &scan.report.torn {
            cursor.erase(torn.offset, torn.bytes)?;
        }
        if let Some(last) = scan.last_block.filter(|last| *last >= newest.place) {
            cursor.write_again(last, newest.end_place)?;
        }
        // The name of the newest segment may have been given by a process that did not live to make it durable.
        disk.sync_dir()?;
        let database_id = scan.report.database_id.expect("every segment has one");
        let block_epoch = scan.next.epoch;
        // Durable with the first record that is written, and so before anything of it is acknowledged.
        if config.role != Role::Standby {
            scan.next.epoch = Epoch::new(0, config.writer).behind(scan.next.epoch);
        }
        let is_continued = newest.settings_hash == config.settings_hash;
        let segment_room = newest.file_bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64);
        let used = newest.end_place - newest.place;
        Ok(Self {
            report: OpenReport {
                is_new: false,
                database_id,
                found: scan.report.clone(),
                other_settings_hash: (newest.settings_hash != config.settings_hash).then_some(newest.settings_hash),
                epoch: scan.next.epoch,
            },
            block_epoch,
            segment,
            segment_start: newest.place,
            room: if is_continued {
                segment_room.saturating_sub(used)
            } else {
                0
            },
            segment_room,
            scan,
        })
    }

    fn start<P: Send + 'static>(
        self,
        around: LogEnv,
        config: LogConfig,
        complete: Complete<P>,
        lock: DiskLock,
    ) -> Result<(Log<P>, OpenReport), LogError> {
        let found = &self.scan.report;
        let last_kind = found.last_block.unwrap_or(BlockKind::Close);
        let segment_bytes = config.segment_bytes;
        let end = LogPoint {
            place: self.scan.end_place,
            lsn: found.end,
        };
        let epoch = self.report.epoch;
        let mut state = LogState::new(end, epoch, self.room, self.segment_room, segment_bytes, last_kind);
        state.block_epoch = self.block_epoch;
        state.received = (config.role == Role::Standby).then_some(Position {
            epoch,
            lsn: end.lsn,
            history: self.scan.history,
        });
        let room_max = config.segment_bytes - SEGMENT_HEADER_BYTES as u64;
        state.spare_wish = (2 * self.segment_room).min(room_max).max(1);
        let place = self.scan.index.segment_of(self.segment_start);
        let block_tag = place.expect("its header was read or written").block_tag;
        let shared = Arc::new(LogShared::new(
            state,
            self.scan.index,
            around,
            config,
            self.report.database_id,
            complete,
        ));
        let delay = CommitDelay::new(shared.config.group_commit_delay, shared.config.group_calls_max);
        let flusher = Flusher {
            shared: Arc::clone(&shared),
            segment: self.segment,
            segment_start: self.segment_start,
            block_tag,
            block_key: self.scan.block_key,
            next: self.scan.next,
            history: self.scan.history,
            to_acknowledge: Vec::new(),
            delay,
            idle_since_ns: None,
        };
        let preparer = Preparer::new(Arc::clone(&shared));
        let (disk, index) = (Arc::clone(&shared.disk), Arc::clone(&shared.index));
        let log = Log {
            releaser: Arc::new(SegmentReleaser::new(disk, index, Arc::clone(&shared.durable))),
            shared,
            nvram: OnceLock::new(),
            threads: Mutex::default(),
            lock: Mutex::new(Some(lock)),
        };
        log.start_thread("log-flusher", Box::new(move || Box::new(flusher)))?;
        log.start_thread("log-preparer", Box::new(move || Box::new(preparer)))?;
        Ok((log, self.report))
    }
}

impl<P: Send + 'static> Log<P> {
    fn start_thread(&self, name: &str, make: MakeWork) -> Result<(), LogError> {
        let thread = self.shared.threads.start_prompt(name, make).map_err(|error| {
            let reason = format!("start thread {name}: {error}");
            LogError::unavailable(UnavailableKind::Failed, reason)
        })?;
        self.threads.lock().expect("nothing panics in here").push(thread);
        Ok(())
    }
}
