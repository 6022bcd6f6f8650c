//! State that appenders, flusher and preparer share: the block being filled, its waiting callers, and the room for it.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reprise_base::{
    Epoch, Lsn, Watermark,
    limits::{BLOCK_BYTES_MAX, LOG_BUFFER_BYTES},
};
use reprise_env::{AlignedBuf, Clock, Disk, DiskError, DiskErrorKind, DiskFile, Threads};
use reprise_observe::FlushStats;
use reprise_wire::{BLOCK_HEADER_BYTES, BlockKind, RecordBatch, block_bytes};

use crate::{
    delay::{GroupWait, patience},
    error::{LogError, UnavailableKind},
    group::{Position, Sinks},
    index::{LogIndex, LogPoint},
    log::{Complete, LogConfig},
    reader::Durable,
};

/// One buffer is filled while the other is written.
const FILL_BYTES_MAX: usize = LOG_BUFFER_BYTES / 2;
/// A call to `refusal` says no when not even so much would find room.
const REFUSAL_ROOM_BYTES: usize = 64 << 10;

const _: () = assert!(FILL_BYTES_MAX <= BLOCK_BYTES_MAX);

/// True for records that do not share a block with others.
pub(crate) fn is_large(bytes: usize) -> bool {
    block_bytes(bytes) > FILL_BYTES_MAX
}

/// A prepared segment file: zeros, durable, without a place in the log.
pub(crate) struct Spare {
    pub file: Arc<dyn DiskFile>,
    /// Bytes of blocks that it takes.
    pub room: u64,
}

/// A block that the flusher has taken to write.
pub(crate) struct FilledBlock {
    pub kind: BlockKind,
    pub epoch: Epoch,
    pub place: u64,
    /// LSN of its first record, or of the next one.
    pub lsn: Lsn,
    pub buffer: AlignedBuf,
    pub payload_bytes: usize,
    pub records_count: u32,
    /// Number of changes among them.
    pub changes_count: u32,
    /// Number of alternate records among them, which stand for others.
    pub stand_ins_count: u32,
    /// The records as standbys get them; empty if they get the same bytes.
    pub shipped: Vec<u8>,
    /// The block begins this segment.
    pub begins: Option<Spare>,
}

pub(crate) struct LogState<P> {
    /// Header space and the records of the block being filled.
    pub fill: AlignedBuf,
    pub fill_records: u32,
    /// Number of changes among them.
    pub fill_changes: u32,
    /// Number of alternate records among them, which stand for others.
    pub fill_stand_ins: u32,
    /// The records as standbys get them; empty if they get the same bytes.
    pub fill_shipped: Vec<u8>,
    /// Place of the block being filled; everything before it is durable or in flight.
    pub fill_place: u64,
    /// LSN of its first record.
    pub fill_start: Lsn,
    /// Waiting for the block being filled: (end of its records, who).
    pub fill_pending: Vec<(Lsn, P)>,
    /// Epoch of the block being filled.
    pub epoch: Epoch,
    /// Epoch of the last block.
    pub block_epoch: Epoch,
    /// How far a standby's log has received: appends are refused. None for a primary's.
    pub received: Option<Position>,
    pub flight_pending: Vec<(Lsn, P)>,
    /// The other buffer, unless it is in flight.
    pub idle_buffer: Option<AlignedBuf>,
    /// The idle buffer for records as standbys get them; empty.
    pub idle_shipped: Vec<u8>,
    /// Bytes left in the newest segment behind the blocks that were taken.
    pub room: u64,
    pub spare: Option<Spare>,
    /// A file has the spare's name: from its preparation until its block gives it another.
    pub is_spare_named: bool,
    /// Room that the next spare must have for a block that waits; 0 when none is asked for.
    pub spare_wanted: u64,
    /// Room that the next spare should have: of a disk that has less it gets less, which is no error.
    pub spare_wish: u64,
    /// True while the preparer has the spare. Appends that need it wait.
    pub is_spare_growing: bool,
    pub spare_error: Option<DiskError>,
    /// Why the present block is not written yet, if the disk has no space for it.
    pub block_error: Option<DiskError>,
    /// Room of the newest segment when it was empty: the next one may be larger.
    pub segment_room: u64,
    pub last_kind: BlockKind,
    pub stopped: Option<LogError>,
    /// Why appends are refused for now: the primary gives its place away.
    pub paused: Option<LogError>,
    /// There is NVRAM before the files, and records come from there alone.
    pub has_nvram: bool,
    /// The fate of the block that was being written when the log stopped.
    pub lost_in_flight: Option<LogError>,
    pub is_closing: bool,
    /// A thread waits for room: no delay for the sake of larger groups.
    pub is_hurried: bool,
    pub flusher_sleeps: bool,
    /// How long the block being filled may be kept for company: the least that any of its appenders allows.
    pub patience_ns: u64,
    /// Why the flusher lets the block being filled grow, while it does.
    pub pause: Option<GroupWait>,
    pub appenders_wait: u32,
    /// Appends that need a block of their own; smaller ones wait behind them, or they would never find it empty.
    pub large_wait: u32,
    /// Parts of a transaction were appended, and not the record that makes them count: others wait.
    pub is_run_open: bool,
    pub durable_waiters: u32,
}

pub(crate) struct LogShared<P> {
    state: Mutex<LogState<P>>,
    /// The flusher waits here for records.
    pub work: Condvar,
    /// Appenders wait here for room.
    pub space: Condvar,
    /// The preparer waits here for a request.
    pub prepare: Condvar,
    pub durable_grew: Condvar,
    pub durable: Arc<Durable>,
    /// `LogState::filled`, readable and awaitable without the lock.
    pub filled: Arc<Watermark>,
    /// Set when a write was refused: `refusal` then takes the lock to say why.
    pub may_refuse: AtomicBool,
    pub index: Arc<LogIndex>,
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub threads: Arc<dyn Threads>,
    pub config: LogConfig,
    pub database_id: [u8; 16],
    pub sinks: Sinks,
    pub stats: Arc<FlushStats>,
    pub complete: Complete<P>,
}

/// The environment of the log.
pub(crate) struct LogEnv {
    pub disk: Arc<dyn Disk>,
    pub clock: Arc<dyn Clock>,
    pub threads: Arc<dyn Threads>,
}

/// The source of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordSource {
    /// This node's, which is the primary.
    Own,
    /// This node's, behind the first part of a run: no other records come between.
    Run,
    /// A primary's, of this epoch.
    Group(Epoch),
    /// The NVRAM buffer, which gave them their LSNs: this node's or a primary's.
    NvramBuffer,
}

/// Bytes of records that are to be appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub bytes: usize,
    /// Bytes in the form that standbys get; 0: the same bytes.
    pub shipped: usize,
}

impl Extent {
    /// The extent of records that standbys get as they are.
    pub fn of_bytes(bytes: usize) -> Self {
        Self { bytes, shipped: 0 }
    }

    #[inline]
    pub fn of(records: &RecordBatch) -> Self {
        Self {
            bytes: records.bytes().len(),
            shipped: records.shipped().map_or(0, <[u8]>::len),
        }
    }

    /// Bytes of the longer form.
    pub fn max(self) -> usize {
        self.bytes.max(self.shipped)
    }
}

/// Whether an append fits now.
pub(crate) enum Admission {
    Now,
    /// Room is being made.
    Wait,
    Refuse(LogError),
}

impl<P> LogState<P> {
    /// Makes the state. `segment_bytes` bounds the size of most blocks; the buffer grows for a longer one.
    pub fn new(
        end: LogPoint,
        epoch: Epoch,
        room: u64,
        segment_room: u64,
        segment_bytes: u64,
        last_kind: BlockKind,
    ) -> Self {
        let buffer = || {
            let mut buffer = AlignedBuf::with_capacity(FILL_BYTES_MAX.min(segment_bytes as usize));
            buffer.resize(BLOCK_HEADER_BYTES);
            buffer
        };
        Self {
            fill: buffer(),
            fill_records: 0,
            fill_changes: 0,
            fill_stand_ins: 0,
            fill_shipped: Vec::new(),
            fill_place: end.place,
            fill_start: end.lsn,
            fill_pending: Vec::new(),
            epoch,
            block_epoch: epoch,
            received: None,
            flight_pending: Vec::new(),
            idle_buffer: Some(buffer()),
            idle_shipped: Vec::new(),
            room,
            spare: None,
            is_spare_named: false,
            spare_wanted: 0,
            spare_wish: 0,
            is_spare_growing: false,
            spare_error: None,
            block_error: None,
            segment_room,
            last_kind,
            stopped: None,
            paused: None,
            has_nvram: false,
            lost_in_flight: None,
            is_closing: false,
            is_hurried: false,
            flusher_sleeps: false,
            patience_ns: u64::MAX,
            pause: None,
            appenders_wait: 0,
            large_wait: 0,
            is_run_open: false,
            durable_waiters: 0,
        }
    }

    /// Behind the last record that was appended.
    pub fn filled(&self) -> Lsn {
        Lsn(self.fill_start.0 + u64::from(self.fill_records))
    }

    /// Puts admitted records into the block being filled.
    #[inline]
    pub fn fill_extend(&mut self, records: &RecordBatch) {
        match records.shipped() {
            None if self.fill_shipped.is_empty() => {}
            None => self.fill_shipped.extend_from_slice(records.bytes()),
            Some(shipped) => {
                if self.fill_shipped.is_empty() {
                    self.fill_shipped.extend_from_slice(&self.fill[BLOCK_HEADER_BYTES..]);
                }
                self.fill_shipped.extend_from_slice(shipped);
            }
        }
        self.fill.extend_from_slice(records.bytes());
        self.fill_records += records.count();
        self.fill_changes += records.changes_count();
        self.fill_stand_ins += records.stand_ins_count();
    }

    /// Returns the bytes of the records in the block being filled, as standbys get them, with `more` behind them. None if they get them as
    /// they are.
    fn shipped_bytes(&self, more: Extent) -> usize {
        if self.fill_shipped.is_empty() && more.shipped == 0 {
            return 0;
        }
        let filled = self.fill_shipped.len().max(self.fill.len() - BLOCK_HEADER_BYTES);
        filled + more.max()
    }

    /// True when the block being filled lies on the newest segment, so that the spare is free.
    pub fn spare_is_free(&self) -> bool {
        let block = block_bytes(self.fill.len() - BLOCK_HEADER_BYTES);
        self.fill_records == 0 || block as u64 <= self.room
    }

    pub fn fits(&self, block: usize) -> bool {
        let spare_room = self.spare.as_ref().map_or(0, |spare| spare.room);
        block as u64 <= self.room.max(spare_room)
    }

    /// Decides on an append. An append is taken only when its block has a place on preallocated space.
    pub fn admit(&mut self, extent: Extent, source: RecordSource) -> Admission {
        let bytes = extent.bytes;
        if let Some(error) = &self.stopped {
            return Admission::Refuse(error.clone());
        }
        if let (RecordSource::Own | RecordSource::Run, Some(error)) = (&source, &self.paused) {
            return Admission::Refuse(error.clone());
        }
        match source {
            RecordSource::Own | RecordSource::Run if self.received.is_some() => return Admission::Refuse(standby()),
            RecordSource::Own | RecordSource::Run | RecordSource::Group(_) if self.has_nvram => {
                let error = LogError::unavailable(UnavailableKind::Failed, "its front alone gives out numbers");
                return Admission::Refuse(error);
            }
            // A block is of one epoch.
            RecordSource::Group(epoch) if epoch != self.epoch && self.fill_records > 0 => {
                self.is_hurried = true;
                return Admission::Wait;
            }
            _ => {}
        }
        if self.is_closing {
            let error = LogError::unavailable(UnavailableKind::Closed, "it is closed");
            return Admission::Refuse(error);
        }
        if let Some(error) = &self.block_error {
            return Admission::Refuse(no_room(error));
        }
        let waits = match source {
            RecordSource::Run | RecordSource::NvramBuffer => false,
            _ => self.is_run_open || self.large_wait > 0 && !is_large(extent.max()),
        };
        if waits {
            return Admission::Wait;
        }
        let block = block_bytes(self.fill.len() - BLOCK_HEADER_BYTES + bytes);
        // A standby's log has it in one block, too.
        let longer = block.max(block_bytes(self.shipped_bytes(extent)));
        if self.fill_records > 0 {
            if longer <= FILL_BYTES_MAX && self.fits(block) {
                return Admission::Now;
            }
            self.is_hurried = true;
            return Admission::Wait;
        }
        if longer > BLOCK_BYTES_MAX {
            let (bytes, max) = (extent.max(), BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES);
            return Admission::Refuse(LogError::TooLong { bytes, max });
        }
        if self.fits(block) {
            return Admission::Now;
        }
        self.spare_wanted = self.spare_wanted.max(block as u64);
        match &self.spare_error {
            Some(error) if !self.is_spare_growing => Admission::Refuse(no_room(error)),
            _ => Admission::Wait,
        }
    }

    /// Hands the filled block to the flusher and begins the next one.
    pub fn take_block(&mut self, kind: BlockKind) -> FilledBlock {
        let payload_bytes = self.fill.len() - BLOCK_HEADER_BYTES;
        let bytes = block_bytes(payload_bytes);
        self.fill.resize(bytes);
        let begins = if bytes as u64 <= self.room {
            None
        } else {
            let spare = self.spare.take().expect("admitted: the block has a place");
            assert!(bytes as u64 <= spare.room, "admitted: the block has a place");
            self.room = spare.room;
            self.segment_room = spare.room;
            Some(spare)
        };
        self.room -= bytes as u64;
        let next = self.idle_buffer.take().expect("one block in flight at most");
        let filled = self.filled();
        // A block without records belongs to those before it: an epoch is durable with its first record.
        if kind == BlockKind::Data {
            self.block_epoch = self.epoch;
        }
        let block = FilledBlock {
            kind,
            epoch: self.block_epoch,
            place: self.fill_place,
            lsn: self.fill_start,
            buffer: std::mem::replace(&mut self.fill, next),
            payload_bytes,
            records_count: std::mem::take(&mut self.fill_records),
            changes_count: std::mem::take(&mut self.fill_changes),
            stand_ins_count: std::mem::take(&mut self.fill_stand_ins),
            shipped: std::mem::replace(&mut self.fill_shipped, std::mem::take(&mut self.idle_shipped)),
            begins,
        };
        self.fill_place += bytes as u64;
        self.fill_start = filled;
        self.is_hurried = false;
        self.patience_ns = u64::MAX;
        assert!(self.flight_pending.is_empty(), "one block in flight at most");
        std::mem::swap(&mut self.fill_pending, &mut self.flight_pending);
        block
    }

    /// Takes a written block's buffers back.
    pub fn return_buffers(&mut self, mut buffer: AlignedBuf, mut shipped: Vec<u8>) {
        if shipped.capacity() > 2 * FILL_BYTES_MAX {
            shipped = Vec::new();
        }
        shipped.clear();
        self.idle_shipped = shipped;
        if buffer.capacity() > 2 * FILL_BYTES_MAX {
            buffer = AlignedBuf::with_capacity(FILL_BYTES_MAX);
        }
        buffer.clear();
        buffer.resize(BLOCK_HEADER_BYTES);
        self.idle_buffer = Some(buffer);
    }

    /// True while the flusher may let the block being filled grow, for this reason.
    pub fn may_pause(&self, pause: GroupWait) -> bool {
        self.may_grow()
            && match pause {
                GroupWait::Configured(calls_max) => self.fill_pending.len() < calls_max,
                GroupWait::Busy => self.patience_ns > 0 && !self.is_awaited(),
                GroupWait::Returns(wait) => self.fill_pending.len() < wait.until_count && !self.is_awaited(),
            }
    }

    /// True if a caller needs the block being filled to be written now.
    pub fn is_awaited(&self) -> bool {
        self.durable_waiters > 0 || self.appenders_wait > 0
    }

    /// True while a group may wait for more: it is not large yet, and no thread waits for room.
    pub fn may_grow(&self) -> bool {
        !self.is_hurried && !self.is_closing && !self.is_filled_enough() && self.stopped.is_none()
    }

    pub fn is_filled_enough(&self) -> bool {
        self.fill.len().max(self.fill_shipped.len()) >= FILL_BYTES_MAX / 4
    }

    /// True when the block being filled can take a block without records.
    pub fn can_seal(&self) -> bool {
        self.fill_records == 0 && self.room >= block_bytes(0) as u64
    }

    /// Why it takes none at all, whatever room there is.
    pub fn refusal_of_appends(&self) -> Option<LogError> {
        if let Some(error) = self.stopped.as_ref().or(self.paused.as_ref()) {
            return Some(error.clone());
        }
        if self.is_closing {
            return Some(LogError::unavailable(UnavailableKind::Closed, "it is closed"));
        }
        self.received.map(|_| standby())
    }

    fn refusal(&self) -> Option<LogError> {
        if let Some(error) = self.refusal_of_appends() {
            return Some(error);
        }
        if let Some(error) = &self.block_error {
            return Some(no_room(error));
        }
        let block = block_bytes(self.fill.len() + REFUSAL_ROOM_BYTES);
        let error = self.spare_error.as_ref().filter(|_| !self.is_spare_growing);
        error.filter(|_| !self.fits(block)).map(no_room)
    }

    /// The error for records that end at `end`: records in flight when the log stopped lie before the block being filled.
    pub fn loss(&self, end: Lsn) -> Option<LogError> {
        let was_in_flight = end <= self.fill_start;
        let lost = if was_in_flight {
            &self.lost_in_flight
        } else {
            &self.stopped
        };
        lost.clone()
    }
}

fn standby() -> LogError {
    LogError::unavailable(
        UnavailableKind::ReadOnly,
        "this server is a standby: its primary writes",
    )
}

pub(crate) fn no_room(error: &DiskError) -> LogError {
    let kind = match error.kind {
        DiskErrorKind::Full => UnavailableKind::Full,
        _ => UnavailableKind::Failed,
    };
    LogError::unavailable(kind, format!("no space for its segments ({error})"))
}

impl<P> LogShared<P> {
    pub fn new(
        state: LogState<P>,
        index: LogIndex,
        around: LogEnv,
        config: LogConfig,
        database_id: [u8; 16],
        complete: Complete<P>,
    ) -> Self {
        let LogEnv { disk, clock, threads } = around;
        let is_standby = state.received.is_some();
        Self {
            durable: Arc::new(Durable {
                lsn: Arc::new(Watermark::new(state.fill_start.0)),
                place: Watermark::new(state.fill_place),
            }),
            filled: Arc::new(Watermark::new(state.filled().0)),
            state: Mutex::new(state),
            work: Condvar::new(),
            space: Condvar::new(),
            prepare: Condvar::new(),
            durable_grew: Condvar::new(),
            may_refuse: AtomicBool::new(is_standby),
            index: Arc::new(index),
            disk,
            clock,
            threads,
            config,
            database_id,
            sinks: Sinks::default(),
            stats: Arc::new(FlushStats::default()),
            complete,
        }
    }

    /// Panics when another thread panicked inside: an invariant is broken, and nothing may be acknowledged any more.
    pub fn lock(&self) -> MutexGuard<'_, LogState<P>> {
        self.state.lock().expect("the log's state is whole")
    }

    pub fn refusal(&self) -> Option<LogError> {
        if !self.may_refuse.load(Ordering::Acquire) {
            return None;
        }
        self.lock().refusal()
    }

    /// Why a primary takes nothing while it gives its place away.
    pub fn refusal_of_pause(&self) -> Option<LogError> {
        self.may_refuse
            .load(Ordering::Acquire)
            .then(|| self.lock().paused.clone())
            .flatten()
    }

    /// The error that stopped the log, if one did.
    pub fn refusal_of_stop(&self) -> Option<LogError> {
        self.lock().stopped.clone()
    }

    /// Records that an appender joined the block being filled, and is busy for `busy`.
    pub fn record_joined(&self, state: &mut LogState<P>, busy: Duration) {
        let patience_ns = patience(busy, self.config.patience_max);
        state.patience_ns = state.patience_ns.min(patience_ns);
        self.end_pause_if_due(state);
    }

    /// Ends a pause after a change that may end it.
    pub fn end_pause_if_due(&self, state: &mut LogState<P>) {
        if state.pause.is_some_and(|pause| !state.may_pause(pause)) {
            state.pause = None;
            self.work.notify_one();
        }
    }

    /// True once everything before `end` is durable.
    #[inline]
    pub fn is_durable(&self, end: Lsn) -> bool {
        self.durable.lsn.get() >= end.0
    }

    pub fn wait_durable(&self, end: Lsn, timeout: Duration) -> bool {
        if self.is_durable(end) {
            return true;
        }
        let mut state = self.lock();
        state.durable_waiters += 1;
        self.end_pause_if_due(&mut state);
        let began_ns = self.clock.monotonic_ns();
        while !self.is_durable(end) && state.stopped.is_none() {
            let waited = Duration::from_nanos(self.clock.monotonic_ns() - began_ns);
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                break;
            };
            (state, _) = self.threads.wait_on(&self.state, &self.durable_grew, state, left);
        }
        state.durable_waiters -= 1;
        self.is_durable(end)
    }

    /// Waits until there may be room for an append; true when the time is over first.
    pub fn wait_for_space<'a>(
        &'a self,
        state: MutexGuard<'a, LogState<P>>,
        wait_max: Duration,
    ) -> (MutexGuard<'a, LogState<P>>, bool) {
        self.threads.wait_on(&self.state, &self.space, state, wait_max)
    }

    /// Ends writing for good and tells everybody who waits: those of the block in flight what became of it. The first
    /// reason stays.
    pub fn stop(&self, error: LogError, in_flight: LogError) {
        // Also after a panic inside: no thread may wait any longer.
        let mut state = match self.state.lock() {
            Ok(state) => state,
            Err(poisoned) => poisoned.into_inner(),
        };
        let error = state.stopped.get_or_insert(error).clone();
        state.lost_in_flight.get_or_insert_with(|| in_flight.clone());
        self.may_refuse.store(true, Ordering::Release);
        let flying = std::mem::take(&mut state.flight_pending);
        let filling = std::mem::take(&mut state.fill_pending);
        drop(state);
        self.wake_all();
        for (pending, error) in [(flying, &in_flight), (filling, &error)] {
            for (end, waiting) in pending {
                (self.complete)(end, Err(error), waiting);
            }
        }
    }

    pub fn wake_all(&self) {
        self.work.notify_all();
        self.space.notify_all();
        self.prepare.notify_all();
        self.durable_grew.notify_all();
    }
}
