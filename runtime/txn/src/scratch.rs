//! A transaction's working memory: handles, cursors, result, log lines. Each engine thread has one and reuses it.

mod limits;

use std::sync::Arc;

use reprise_abi::{Handles, LogLevel, OpError, RowHandle, random::TxnRandom, value::RESULT_BYTES_MAX};
use reprise_base::{
    MemoryLedger, PlacedBytes,
    limits::{
        ABORT_CODE_BYTES_MAX, ABORT_MESSAGE_BYTES_MAX, CURSORS_MAX, GUEST_LOG_BYTES_MAX, HANDLES_MAX,
        MIGRATION_LIMITS_FACTOR, REPLAY_LIMITS_FACTOR, ROW_OPS_MAX, SAVEPOINTS_MAX, WRITE_SET_BYTES_MAX,
    },
};
use reprise_nvram::ObjectWriter;
use reprise_storage::{AfterImage, Rid, Store, StoreSavepoint};
use reprise_wire::ChangesBuffer;

use crate::{
    changed_rows::ChangedRows,
    kept_rows::{KeptRows, StepGrant},
    nvram_inserts::NvramInserts,
    scan::Cursor,
    watch::Watch,
};

/// Host calls and rows between two checks whether the call may continue: some hundred microseconds.
const OPS_SLICE: u64 = 1_024;
/// Rows that are looked up or written without such a check: some milliseconds.
pub(crate) const AT_ONCE_MAX: usize = 16 << 10;
/// Entries of an index that a scan passes in the time of a host call: an estimate.
const ROWS_PER_OP: u64 = 64;

/// A row that a guest has seen: the module's table number, the row's held store, and its place there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle {
    pub table: u16,
    pub store: u16,
    pub rid: Rid,
}

/// The extent of a call's limits.
#[derive(Clone, Copy, Default)]
enum LimitScope {
    #[default]
    Call,
    /// A committed call that runs again. Its limits were checked the first time.
    Replay,
    /// A migration.
    Migration,
}

/// A line that a procedure logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedLine {
    /// The level that the procedure chose.
    pub level: LogLevel,
    /// The text that the procedure wrote.
    pub text: String,
}

/// See the module's header.
#[derive(Default)]
pub struct TxnScratch {
    pub(crate) handles: Vec<Handle>,
    pub(crate) cursors: Vec<Option<Cursor>>,
    /// Number of open cursors, and of all cursors ever opened.
    pub(crate) open: usize,
    pub(crate) opened: u32,
    /// Rows of written tables that open cursors keep.
    pub(crate) kept: KeptRows,
    pub(crate) changed: ChangedRows,
    /// The memory of `handles` and `changed`. It is empty while they are small.
    row_memory: StepGrant,
    pub(crate) row: Vec<u8>,
    savepoints: Vec<Vec<StoreSavepoint>>,
    result: Vec<u8>,
    lines: Vec<LoggedLine>,
    line_bytes: usize,
    abort: Option<(String, String)>,
    random: Option<TxnRandom>,
    /// Host calls and visited rows, and the number at which the next check comes.
    ops: u64,
    ops_asked: u64,
    /// The events that may end the running call.
    pub watch: Watch,
    limits: LimitScope,
    /// Fuel of calls at views whose procedures declare none. None: the limit of every transaction.
    pub view_fuel_max: Option<u64>,
    /// Fuel burned since `take_fuel`.
    fuel: u64,
    /// The form in which the next transactions' changes are kept. None: they are not kept.
    capture: Option<AfterImage>,
    pub(crate) changes: ChangesBuffer,
    pub(crate) changed_rows: u32,
    /// The NVRAM that gets changes as they are made.
    pub(crate) inserting: NvramInserts,
    /// One partition's changes, on their way into `changes`.
    pub(crate) group: Vec<u8>,
}

impl TxnScratch {
    /// Makes a scratch that counts in `memory`: the rows that cursors keep, and handles and changed rows if there are many.
    pub fn counted_in(memory: &Arc<MemoryLedger>) -> Self {
        Self {
            kept: KeptRows::counted_in(memory),
            row_memory: StepGrant::counted_in(memory),
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.handles.clear();
        self.result.clear();
        self.changed.clear();
        if self.cursors.len() | self.savepoints.len() | self.line_bytes != 0 || self.abort.is_some() {
            self.clear_rare();
        }
        self.random = None;
        self.ops = 0;
        self.ops_asked = OPS_SLICE;
        self.changes.clear();
        self.changed_rows = 0;
    }

    /// Begins a replay. The calls that follow were committed once, so only a ceiling far above the limits ends them.
    pub fn begin_replay(&mut self) {
        self.limits = LimitScope::Replay;
        self.watch.forget();
    }

    /// Begins a migration: time and memory alone limit it, now and at a replay.
    pub fn begin_migration(&mut self) {
        self.limits = LimitScope::Migration;
    }

    /// Begins calls that run for the first time.
    #[inline]
    pub fn begin_running(&mut self) {
        self.limits = LimitScope::Call;
        self.inserting.begin_batch();
    }

    /// True for a committed call that runs again.
    pub(crate) fn is_replay(&self) -> bool {
        matches!(self.limits, LimitScope::Replay)
    }

    /// Returns the factor by which its limits exceed those of a call.
    pub(crate) fn limits_times(&self) -> u64 {
        match self.limits {
            LimitScope::Call => 1,
            LimitScope::Replay => REPLAY_LIMITS_FACTOR,
            LimitScope::Migration => MIGRATION_LIMITS_FACTOR,
        }
    }

    /// Returns the call's share of a limit.
    fn allowed(&self, max: u64) -> u64 {
        match self.limits {
            LimitScope::Call | LimitScope::Migration => max,
            LimitScope::Replay => max * REPLAY_LIMITS_FACTOR,
        }
    }

    /// Clears the parts that most transactions leave empty.
    #[cold]
    fn clear_rare(&mut self) {
        self.end_call();
        self.savepoints.clear();
        self.lines.clear();
        self.line_bytes = 0;
        self.abort = None;
    }

    /// Drops the parts that only the call itself needed: its cursors with all that they keep, the list of changed rows, and many handles.
    #[inline]
    pub(crate) fn end_call(&mut self) {
        self.changed.clear();
        if self.opened > 0 {
            self.cursors.clear();
            self.kept.clear();
            (self.open, self.opened) = (0, 0);
        }
        if self.row_memory.is_taken() {
            self.release_row_memory();
        }
    }

    /// Sets the form in which a committed transaction leaves its changes here. None: it leaves none.
    #[inline]
    pub fn set_capture(&mut self, images: Option<AfterImage>) {
        self.capture = images;
        self.inserting.is_wanted = false;
    }

    /// Sets the writer of objects for changes as they are made, if any.
    pub fn set_objects(&mut self, writer: Option<ObjectWriter>) {
        self.inserting.set_writer(writer);
    }

    /// Lets the kept changes (`set_capture`) go to the log. If there is NVRAM for objects, each goes there as it is made.
    #[inline]
    pub fn insert_changes(&mut self) {
        self.inserting.is_wanted = self.capture == Some(AfterImage::Changed);
    }

    /// Returns the pieces of `changes` that NVRAM already holds, in growing order.
    #[inline]
    pub fn placed(&self) -> &[PlacedBytes] {
        self.inserting.placed()
    }

    /// Puts the new changes of a held store into NVRAM. It follows each write and each partial rollback.
    #[inline(always)]
    pub(crate) fn insert_objects(&mut self, at: usize, store: &Store) {
        if self.inserting.is_on {
            self.inserting.take_changes(at, store);
        }
    }

    #[inline]
    pub(crate) fn capture(&self) -> Option<AfterImage> {
        self.capture
    }

    /// Returns the kept changes of the last transaction: `reprise_wire::Changes`, or for several partitions `ChangesRef::push_group`.
    #[inline]
    pub fn changes(&self) -> &[u8] {
        self.changes.as_bytes()
    }

    /// Returns the number of rows in `changes`.
    pub fn changed_rows(&self) -> u32 {
        self.changed_rows
    }

    #[inline]
    pub(crate) fn record_fuel(&mut self, fuel: u64) {
        self.fuel += fuel;
    }

    /// Takes the fuel that transactions burned since the last call of this function.
    #[inline]
    pub fn take_fuel(&mut self) -> u64 {
        std::mem::take(&mut self.fuel)
    }

    /// Returns the encoded result of the last transaction.
    #[inline]
    pub fn result(&self) -> &[u8] {
        &self.result
    }

    /// True if the last transaction logged lines.
    #[inline]
    pub fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Returns the lines that the last transaction logged, committed or not.
    pub fn take_lines(&mut self) -> std::vec::Drain<'_, LoggedLine> {
        self.lines.drain(..)
    }

    pub(crate) fn take_abort(&mut self) -> Option<(String, String)> {
        self.abort.take()
    }

    /// Counts a host call or a visited row against the transaction's limit.
    #[inline]
    pub(crate) fn count_op(&mut self) -> Result<(), OpError> {
        self.ops += 1;
        if self.ops > self.ops_asked {
            return self.ask_for_ops();
        }
        Ok(())
    }

    /// Checks whether there may be more operations.
    #[cold]
    fn ask_for_ops(&mut self) -> Result<(), OpError> {
        if self.ops > ROW_OPS_MAX * self.limits_times() {
            return Err(limit("row_ops", ROW_OPS_MAX));
        }
        self.count_row_memory()?;
        self.watch.ask()?;
        self.ops_asked = self.ops + OPS_SLICE;
        Ok(())
    }

    /// Counts a long walk through an index, converted to host calls.
    pub(crate) fn count_walked(&mut self, rows: u64) -> Result<(), OpError> {
        self.ops += rows / ROWS_PER_OP;
        self.ask_for_ops()
    }

    /// Counts many visited rows at once and makes room for their handles. False, with nothing changed, if one of the limits may lie among
    /// them. It is false also if a check is due before the last of them.
    #[inline]
    pub(crate) fn count_many(&mut self, rows: usize) -> bool {
        let fits = (self.handles.len() + rows <= HANDLES_MAX || self.may_have_handles(rows)) && self.count_ops(rows);
        if fits {
            self.handles.reserve(rows);
        }
        fits
    }

    /// The `count_many` variant for host calls whose rows have handles already.
    #[inline]
    pub(crate) fn count_ops(&mut self, rows: usize) -> bool {
        let before = self.ops;
        self.ops += rows as u64;
        if self.ops <= self.ops_asked {
            return true;
        }
        let fits = rows <= AT_ONCE_MAX && self.ask_for_ops().is_ok();
        if !fits {
            self.ops = before;
        }
        fits
    }

    /// Takes back the part of `count_many` for rows that were not reached.
    #[inline]
    pub(crate) fn uncount(&mut self, rows: usize) {
        self.ops -= rows as u64;
    }

    /// Adds handles of rows that `count_many` made room for. Returns the first one; the others follow it.
    #[inline(always)]
    pub(crate) fn push_all(&mut self, handles: impl Iterator<Item = Handle>) -> RowHandle {
        let first = self.handles.len() as u32;
        self.handles.extend(handles);
        first
    }

    /// Adds the handle of a row that `count_many` made room for.
    #[inline(always)]
    pub(crate) fn push_counted(&mut self, handle: Handle) -> RowHandle {
        self.handles.push(handle);
        self.handles.len() as u32 - 1
    }

    #[inline]
    pub(crate) fn push_handle(&mut self, handle: Handle) -> Result<RowHandle, OpError> {
        if self.handles.len() >= HANDLES_MAX {
            self.check_handles()?;
        }
        self.handles.push(handle);
        Ok(self.handles.len() as u32 - 1)
    }

    #[inline]
    pub(crate) fn handle(&self, handle: RowHandle) -> Result<Handle, OpError> {
        self.handles
            .get(handle as usize)
            .copied()
            .ok_or_else(|| OpError::Guest(format!("row handle {handle} was never given out")))
    }

    /// True if the writes exceed the limit of a call, so that they must be checked.
    #[inline(always)]
    pub(crate) fn is_much_written(&self, bytes: usize) -> bool {
        bytes + self.kept.bytes() > WRITE_SET_BYTES_MAX
    }

    pub(crate) fn has_savepoints(&self) -> bool {
        !self.savepoints.is_empty()
    }

    /// Returns the row behind a handle, which must be one of `table`.
    #[inline]
    pub(crate) fn handle_in(&self, table: u16, handle: RowHandle) -> Result<Handle, OpError> {
        let found = self.handle(handle)?;
        if found.table == table {
            return Ok(found);
        }
        Err(OpError::Guest(format!(
            "row handle {handle} is of table {}, not of {table}",
            found.table
        )))
    }

    /// Reads the rows behind handles from position `from` on, as many as `rids` takes. Returns how many there were before a handle that is
    /// not of `table`.
    #[inline]
    pub(crate) fn rids_in(&self, table: u16, handles: &Handles<'_>, from: usize, rids: &mut [Rid]) -> usize {
        for (at, rid) in rids.iter_mut().enumerate() {
            match self.handles.get(handles.at(from + at) as usize) {
                Some(found) if found.table == table => *rid = found.rid,
                _ => return at,
            }
        }
        rids.len()
    }

    pub(crate) fn push_cursor(&mut self, mut cursor: Cursor) -> Result<u32, OpError> {
        if cursor.opened == 0 {
            self.opened += 1;
            cursor.opened = self.opened;
        }
        self.open += 1;
        if self.cursors.len() >= CURSORS_MAX
            && let Some(free) = self.cursors.iter().position(Option::is_none)
        {
            self.cursors[free] = Some(cursor);
            return Ok(free as u32 + 1);
        }
        if self.cursors.len() as u64 >= self.allowed(CURSORS_MAX as u64) {
            return Err(limit("cursors", CURSORS_MAX as u64));
        }
        self.cursors.push(Some(cursor));
        Ok(self.cursors.len() as u32)
    }

    pub(crate) fn take_cursor(&mut self, cursor: u32) -> Result<Cursor, OpError> {
        let taken = (cursor as usize)
            .checked_sub(1)
            .and_then(|at| self.cursors.get_mut(at))
            .and_then(Option::take)
            .ok_or_else(|| OpError::Guest(format!("cursor {cursor} is not open")))?;
        self.open -= 1;
        if self.open == 0 && taken.kept.is_none() && self.kept.bytes() > 0 {
            self.kept.clear();
        }
        Ok(taken)
    }

    /// Drops a cursor that is closed, with the rows that it kept.
    pub(crate) fn drop_cursor(&mut self, cursor: &Cursor) {
        self.kept.forget(cursor.kept.as_deref(), self.open == 0);
    }

    pub(crate) fn table_of_handle(&self, handle: RowHandle) -> Option<u16> {
        self.handles.get(handle as usize).map(|handle| handle.table)
    }

    pub(crate) fn table_of_cursor(&self, cursor: u32) -> Option<u16> {
        let at = (cursor as usize).checked_sub(1)?;
        self.cursors.get(at)?.as_ref().map(|cursor| cursor.table)
    }

    /// Returns how many held stores a cursor walks over; 0 if it is closed, or keeps its rest.
    pub(crate) fn stores_of_cursor(&self, cursor: u32) -> usize {
        let at = (cursor as usize).wrapping_sub(1);
        let cursor = self.cursors.get(at).and_then(Option::as_ref);
        let walking = cursor.filter(|cursor| cursor.kept.is_none());
        walking.map_or(0, |cursor| cursor.positions.len())
    }

    /// Keeps the savepoints of all held stores under one number.
    pub(crate) fn push_savepoint(&mut self, savepoints: Vec<StoreSavepoint>) -> Result<u32, OpError> {
        if self.savepoints.len() as u64 >= self.allowed(SAVEPOINTS_MAX as u64) {
            return Err(limit("savepoints", SAVEPOINTS_MAX as u64));
        }
        self.savepoints.push(savepoints);
        Ok(self.savepoints.len() as u32 - 1)
    }

    /// Returns the savepoints under a number, and forgets later ones.
    pub(crate) fn savepoint(&mut self, savepoint: u32) -> Result<&[StoreSavepoint], OpError> {
        self.savepoints.truncate(savepoint as usize + 1);
        self.savepoints
            .get(savepoint as usize)
            .map(Vec::as_slice)
            .ok_or_else(|| OpError::Guest(format!("savepoint {savepoint} does not stand")))
    }

    #[inline]
    pub(crate) fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError> {
        if bytes.len() > RESULT_BYTES_MAX {
            return Err(limit("result_bytes", RESULT_BYTES_MAX as u64));
        }
        self.result.clear();
        self.result.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn log(&mut self, level: LogLevel, text: &str) -> Result<(), OpError> {
        self.line_bytes += text.len() + 16;
        if self.line_bytes as u64 > self.allowed(GUEST_LOG_BYTES_MAX as u64) {
            return Err(limit("log_bytes", GUEST_LOG_BYTES_MAX as u64));
        }
        self.lines.push(LoggedLine {
            level,
            text: text.to_owned(),
        });
        Ok(())
    }

    pub(crate) fn abort(&mut self, code: &str, message: &str) {
        self.abort = Some((
            cut(code, ABORT_CODE_BYTES_MAX).to_owned(),
            cut(message, ABORT_MESSAGE_BYTES_MAX).to_owned(),
        ));
    }

    /// Draws from the transaction's random stream, which is made at the first draw.
    pub(crate) fn random_u64(&mut self, secret: [u64; 2], txn_id: u64) -> u64 {
        self.random
            .get_or_insert_with(|| TxnRandom::new(secret, txn_id))
            .next_u64()
    }
}

pub(crate) fn limit(limit: &'static str, max: u64) -> OpError {
    OpError::Limit { limit, max }
}

/// Returns the longest prefix of at most `max` bytes that ends between characters.
fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
