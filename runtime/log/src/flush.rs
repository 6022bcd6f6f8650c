//! The flusher thread: one block after the other, each one write.

use std::{
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use reprise_base::Lsn;
use reprise_env::{AlignedBuf, Disk, DiskError, DiskErrorKind, DiskFile, Step, Work};
use reprise_wire::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, History, MEMORY_UNIT_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader,
    seal_block, tag_at,
};

use crate::{
    cursor::{Continuity, PlacedBlock},
    delay::{BegunWait, CommitDelay},
    error::{LogError, UnavailableKind},
    group::{Group, Position},
    index::{SPARE_NAME, segment_name},
    prepare::RETRY_AFTER,
    state::{FilledBlock, LogShared, LogState, Spare},
};

pub(crate) struct Flusher<P> {
    pub shared: Arc<LogShared<P>>,
    /// The newest segment.
    pub segment: Arc<dyn DiskFile>,
    /// Place of the segment's first block.
    pub segment_start: u64,
    /// Base of the tags of its blocks.
    pub block_tag: u32,
    /// Base of the tags of later segments.
    pub block_key: u32,
    pub next: Continuity,
    /// History of all written records.
    pub history: History,
    /// Callers to acknowledge after the next write; kept for its allocation.
    pub to_acknowledge: Vec<(Lsn, P)>,
    pub delay: CommitDelay,
    /// Time since which there was nothing to write. Only a stepped flusher has it.
    pub idle_since_ns: Option<u64>,
}

/// The next action of the flusher.
enum FlushAction {
    Write(BlockKind),
    Wait,
    Over,
}

/// A block that is not known to be durable.
struct FailedWrite {
    error: DiskError,
    /// Offset and length of the part that may be in the newest segment.
    begun: Option<(u64, usize)>,
    /// Others have it.
    is_handed: bool,
}

impl From<DiskError> for FailedWrite {
    fn from(error: DiskError) -> Self {
        Self {
            error,
            begun: None,
            is_handed: false,
        }
    }
}

/// The error for callers whose records a failed write may have kept.
fn doubtful(error: &LogError) -> LogError {
    let reason = match error {
        LogError::Unavailable { reason, .. } => reason.to_string(),
        other => other.to_string(),
    };
    let reason =
        format!("{reason}. Only a restart shows whether this call is kept: ask then, under its idempotency key");
    LogError::unavailable(UnavailableKind::Doubtful, reason)
}

/// Stops the log when its thread dies.
struct StopOnFlushPanic<P>(Arc<LogShared<P>>);

impl<P> Drop for StopOnFlushPanic<P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let error = LogError::unavailable(UnavailableKind::Failed, "its flusher panicked");
            self.0.stop(error.clone(), doubtful(&error));
        }
    }
}

impl<P: Send + 'static> Work for Flusher<P> {
    fn run(mut self: Box<Self>) {
        let _guard = StopOnFlushPanic(Arc::clone(&self.shared));
        while let Some(block) = self.next_block() {
            if !self.write_or_stop(block) {
                return;
            }
        }
    }

    /// The group that is written is what came in since the step before.
    fn step(&mut self) -> Step {
        let shared = Arc::clone(&self.shared);
        let state = shared.lock();
        let now_ns = shared.clock.monotonic_ns();
        let quiet_ns = now_ns - *self.idle_since_ns.get_or_insert(now_ns);
        let quiet_max = shared.config.seal_after;
        let is_quiet = !quiet_max.is_zero() && quiet_ns as u128 >= quiet_max.as_nanos();
        match self.next(&state, is_quiet) {
            FlushAction::Wait => Step::Idle,
            FlushAction::Over => Step::Over,
            FlushAction::Write(BlockKind::Data) if self.delay.still_waits(&state, now_ns) => Step::Idle,
            FlushAction::Write(kind) => {
                self.idle_since_ns = None;
                let block = self.take(state, kind);
                match self.write_or_stop(block) {
                    true => Step::Done,
                    false => Step::Over,
                }
            }
        }
    }
}

impl<P: Send + 'static> Flusher<P> {
    /// Writes a block. False: the log has stopped, and all callers got the error.
    fn write_or_stop(&mut self, block: FilledBlock) -> bool {
        let Err(FailedWrite {
            error,
            begun,
            is_handed,
        }) = self.write(block)
        else {
            return true;
        };
        // A block that a sink has received can't be taken back.
        let is_known = !is_handed && begun.is_none_or(|(offset, bytes)| self.take_back(offset, bytes));
        let reason = format!("{error}; the server does not try again: restart it");
        let error = LogError::unavailable(UnavailableKind::Failed, reason);
        let in_flight = match is_known {
            true => error.clone(),
            false => doubtful(&error),
        };
        self.shared.stop(error, in_flight);
        false
    }

    /// Erases the remains of a failed write. Its callers get an error that says that nothing is kept, and this must hold after a restart,
    /// too. False if the disk refuses the erasure as well.
    fn take_back(&self, offset: u64, bytes: usize) -> bool {
        let mut zeros = AlignedBuf::with_capacity(bytes);
        zeros.resize(bytes);
        self.segment.write_durable_at(offset, &zeros).is_ok()
    }

    /// Waits for the next block to write; none when the log is stopped or closed.
    fn next_block(&mut self) -> Option<FilledBlock> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        let mut is_quiet = false;
        loop {
            match self.next(&state, is_quiet) {
                FlushAction::Over => return None,
                FlushAction::Wait => {
                    (state, is_quiet) = match self.delay.begin_idle(shared.clock.monotonic_ns()) {
                        None => self.sleep(state),
                        Some(begun) => (self.pause(&shared, state, begun), false),
                    };
                }
                FlushAction::Write(BlockKind::Data) => {
                    if let Some(begun) = self.delay.begin(&state, shared.clock.monotonic_ns()) {
                        state = self.pause(&shared, state, begun);
                    }
                    return Some(self.take(state, BlockKind::Data));
                }
                FlushAction::Write(kind) => return Some(self.take(state, kind)),
            }
        }
    }

    /// Chooses the next action. `is_quiet`: no record was appended for long enough that a seal is due behind the last ones.
    fn next(&self, state: &LogState<P>, is_quiet: bool) -> FlushAction {
        if state.stopped.is_some() {
            return FlushAction::Over;
        }
        if state.fill_records > 0 {
            return FlushAction::Write(BlockKind::Data);
        }
        if state.is_closing {
            let closes = state.last_kind != BlockKind::Close && state.can_seal();
            return match closes {
                true => FlushAction::Write(BlockKind::Close),
                false => FlushAction::Over,
            };
        }
        match is_quiet && state.last_kind == BlockKind::Data && state.can_seal() {
            true => FlushAction::Write(BlockKind::Seal),
            false => FlushAction::Wait,
        }
    }

    /// Lets the group grow. The flusher sleeps meanwhile, because the clients that it waits for may need this core.
    fn pause<'a>(
        &mut self,
        shared: &'a LogShared<P>,
        mut state: MutexGuard<'a, LogState<P>>,
        begun: BegunWait,
    ) -> MutexGuard<'a, LogState<P>> {
        state.pause = Some(begun.pause);
        let is_paused = |state: &mut LogState<P>| state.pause.is_some() && state.may_pause(begun.pause);
        let ns_max = Duration::from_nanos(begun.ns_max);
        let waited = shared.work.wait_timeout_while(state, ns_max, is_paused);
        state = waited.expect("the log's state is whole").0;
        state.pause = None;
        let now_ns = shared.clock.monotonic_ns();
        self.delay.end(begun, state.fill_pending.len(), now_ns);
        state
    }

    /// Sleeps until there may be work; true when the log has been quiet behind records that no seal follows.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, LogState<P>>) -> (MutexGuard<'a, LogState<P>>, bool) {
        state.flusher_sleeps = true;
        let quiet = self.shared.config.seal_after;
        let wants_seal = state.last_kind == BlockKind::Data && !quiet.is_zero() && state.can_seal();
        let (mut state, is_seal_due) = if wants_seal {
            let idle = |state: &mut LogState<P>| state.flusher_sleeps && !state.is_closing && state.stopped.is_none();
            let waited = self.shared.work.wait_timeout_while(state, quiet, idle);
            let (mut state, timeout) = waited.expect("the log's state is whole");
            let is_due = timeout.timed_out() && idle(&mut state) && state.can_seal();
            (state, is_due)
        } else {
            let waited = self.shared.work.wait(state);
            (waited.expect("the log's state is whole"), false)
        };
        state.flusher_sleeps = false;
        (state, is_seal_due)
    }

    fn take(&mut self, mut state: MutexGuard<'_, LogState<P>>, kind: BlockKind) -> FilledBlock {
        self.delay.record_taken(&state);
        let block = state.take_block(kind);
        self.shared.filled.advance(state.filled().0);
        if block.begins.is_some() {
            // The next segment may be twice as large: small databases stay small, large ones seldom change files.
            let room_max = self.shared.config.segment_bytes - SEGMENT_HEADER_BYTES as u64;
            let next_room = (2 * state.segment_room).min(room_max);
            state.spare_wish = state.spare_wish.max(next_room);
        }
        if state.spare_wanted.max(state.spare_wish) > 0 {
            self.shared.prepare.notify_one();
        }
        if state.appenders_wait > 0 {
            self.shared.space.notify_all();
        }
        block
    }

    fn write(&mut self, mut block: FilledBlock) -> Result<(), FailedWrite> {
        self.next.epoch = block.epoch;
        if block.begins.is_some() {
            self.block_tag = self.segment_header(&block).block_tag();
        }
        let header = BlockHeader {
            kind: block.kind,
            lsn: block.lsn,
            payload_bytes: block.payload_bytes as u32,
            records_count: block.records_count,
            chain: self.next.chain,
            tag: tag_at(self.block_tag, block.place),
            epoch: self.next.epoch,
            payload_crc: 0,
            memory_units: memory_units(self.shared.config.memory.data_bytes()),
        };
        let crc = seal_block(&header, &mut block.buffer);
        let began_ns = self.shared.clock.monotonic_ns();
        if let Some(spare) = block.begins.take() {
            self.begin_segment(spare, &block)?;
        }
        let offset = block.place - self.segment_start + SEGMENT_HEADER_BYTES as u64;
        let (group_end, is_handed) = self.hand_over(&block);
        let written = self.retry_while_full(|| self.segment.write_durable_at(offset, &block.buffer));
        written.map_err(|error| FailedWrite {
            error,
            begun: Some((offset, block.buffer.len())),
            is_handed,
        })?;
        let written = PlacedBlock {
            header,
            place: block.place,
        };
        (self.next.chain, self.next.lsn) = (crc, written.end());
        if block.records_count > 0 {
            self.shared.index.record_epoch(block.epoch, block.lsn, self.history);
        }
        self.history = group_end.history;
        self.shared.index.mark(&written);
        if block.changes_count == block.records_count {
            self.shared.index.record_changes(block.place, written.end_place());
        }
        let ended_ns = self.shared.clock.monotonic_ns();
        let write_ns = ended_ns - began_ns;
        self.delay.record_written(ended_ns);
        let (bytes, records) = (block.buffer.len() as u64, block.records_count as u64);
        self.shared.stats.wrote(bytes, records, write_ns);
        self.acknowledge(block, &written, write_ns);
        Ok(())
    }

    /// Does a write, and retries while the disk has no space for it: some file systems take space for each write. Meanwhile appends
    /// are refused, but callers of the present block keep waiting: it has its place, and standbys may have it.
    fn retry_while_full(&self, mut write: impl FnMut() -> Result<(), DiskError>) -> Result<(), DiskError> {
        let (shared, mut was_full) = (&*self.shared, false);
        loop {
            let written = write();
            let full = written.as_ref().err().filter(|error| error.kind == DiskErrorKind::Full);
            if full.is_none() && !was_full {
                return written;
            }
            was_full = true;
            let mut state = shared.lock();
            state.block_error = full.cloned();
            if full.is_none() || state.is_closing || state.stopped.is_some() {
                shared.clear_refusal(&state);
                return written;
            }
            shared.may_refuse.store(true, Ordering::Release);
            drop(state);
            shared.space.notify_all();
            shared.threads.sleep(RETRY_AFTER);
        }
    }

    /// Passes the records of a sealed block to the sinks. Returns their end, and whether there is any sink.
    fn hand_over(&self, block: &FilledBlock) -> (Position, bool) {
        let own = &block.buffer[BLOCK_HEADER_BYTES..][..block.payload_bytes];
        let end = Position {
            epoch: block.epoch,
            lsn: Lsn(block.lsn.0 + u64::from(block.records_count)),
            history: match block.stand_ins_count {
                0 => self.history.then_plain(own),
                _ => self.history.then(own),
            },
        };
        let records = if block.shipped.is_empty() { own } else { &block.shipped };
        let group = Group {
            first: block.lsn,
            end,
            records,
        };
        let is_handed = block.kind == BlockKind::Data && self.shared.sinks.hand(&group);
        (end, is_handed)
    }

    /// The header of a segment that begins with this block.
    fn segment_header(&self, block: &FilledBlock) -> SegmentHeader {
        let config = &self.shared.config;
        SegmentHeader {
            database_id: self.shared.database_id,
            start: block.lsn,
            place: block.place,
            settings_hash: config.settings_hash,
            epoch: self.next.epoch,
            history: self.history,
            chain: self.next.chain,
            block_key: self.block_key,
        }
    }

    /// Gives the spare file its place in the log. Each step is durable before the next. So a file with a segment's name has a whole header.
    /// No block goes to a file that a crash could leave without a name. A disk without space for a step gets all of them again.
    fn begin_segment(&mut self, spare: Spare, block: &FilledBlock) -> Result<(), DiskError> {
        let header = self.segment_header(block);
        let name = segment_name(header.place);
        let mut is_renamed = false;
        self.retry_while_full(|| {
            let disk = &*self.shared.disk;
            if is_renamed {
                // A second sync alone may report success for a change that the first one failed to write: the directory changes again.
                disk.rename(&name, SPARE_NAME)?;
                is_renamed = false;
            }
            write_header(&*spare.file, &header)?;
            disk.rename(SPARE_NAME, &name)?;
            is_renamed = true;
            disk.sync_dir()
        })?;
        self.segment = spare.file;
        self.segment_start = header.place;
        self.shared.index.add_segment(&header);
        // The name is free again for the preparer.
        let mut state = self.shared.lock();
        state.is_spare_named = false;
        drop(state);
        self.shared.prepare.notify_one();
        Ok(())
    }

    /// Publishes that a block is durable, and answers the waiting callers in the order of positions.
    fn acknowledge(&mut self, block: FilledBlock, written: &PlacedBlock, write_ns: u64) {
        let shared = &*self.shared;
        let mut state = shared.lock();
        shared.durable.place.advance(written.end_place());
        shared.durable.lsn.advance(written.end().0);
        state.last_kind = block.kind;
        state.return_buffers(block.buffer, block.shipped);
        std::mem::swap(&mut self.to_acknowledge, &mut state.flight_pending);
        self.delay
            .record_acknowledged(self.to_acknowledge.len(), state.fill_pending.len(), write_ns);
        if state.durable_waiters > 0 {
            shared.durable_grew.notify_all();
        }
        drop(state);
        for (end, waiting) in self.to_acknowledge.drain(..) {
            (shared.complete)(end, Ok(()), waiting);
        }
    }
}

/// The log's beginning: a segment for the very first block.
pub(crate) fn create_first_segment(
    disk: &dyn Disk,
    header: &SegmentHeader,
    file_bytes: u64,
) -> Result<Arc<dyn DiskFile>, DiskError> {
    let file = disk.create(SPARE_NAME)?;
    file.preallocate(file_bytes)?;
    write_header(&*file, header)?;
    disk.rename(SPARE_NAME, &segment_name(header.place))?;
    disk.sync_dir()?;
    Ok(file)
}

fn write_header(file: &dyn DiskFile, header: &SegmentHeader) -> Result<(), DiskError> {
    let mut aligned = AlignedBuf::with_capacity(SEGMENT_HEADER_BYTES);
    aligned.extend_from_slice(&header.encode());
    file.write_durable_at(0, &aligned)
}

impl<P> LogShared<P> {
    /// After this, `refusal` reads only one flag again.
    pub fn clear_refusal(&self, state: &LogState<P>) {
        let has_room = state.block_error.is_none() && state.spare_error.is_none();
        let is_open = state.stopped.is_none() && !state.is_closing;
        if has_room && is_open && state.received.is_none() && state.paused.is_none() {
            self.may_refuse.store(false, Ordering::Release);
        }
    }
}

/// Memory units of a block.
fn memory_units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(MEMORY_UNIT_BYTES)).unwrap_or(u32::MAX)
}
