//! The work of the running transaction: undo in memory, the write digest, the counters.
//!
//! Row bytes after a delete or a move stay in their slots until the transaction ends. So do record ids: a handle of the transaction never
//! names another row.

use reprise_abi::{ColumnPlan, row::COLUMNS_MAX};
use reprise_pages::prefetch_line;

use crate::{
    arena::Location,
    changelog::{ChangeLog, ChangeMark},
    digest::{fold, fold_ints, fold_word},
    indirection::Rid,
    keyplan::KeyScratch,
    retained_turns::Turn,
};

/// The effect of a change on a row, which says how to undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UndoKind {
    Insert,
    /// The row was deleted. Its bytes are still at `detail`, a place.
    Delete,
    /// The row moved to another slot. The old bytes are still at `detail`, a place.
    Move,
    /// The row was overwritten in place. `detail` has the old length, and the old bytes end `Journal::bytes`.
    Patch,
    /// Some columns of fixed width were overwritten; `detail` is their `ColumnSet`. `width` times eight bytes end `Journal::bytes`: the old
    /// bytes in the range of their `ColumnPlan`, and maybe more.
    Columns,
    /// An integer column of `width` bytes was changed. The lower half of `detail` is its place in the row, the upper half its position. Its
    /// old value ends `Journal::bytes`, as a `u64`.
    Add,
}

/// The undo of one change.
#[derive(Clone, Copy)]
pub(crate) struct Undo {
    pub rid: Rid,
    pub table: u16,
    pub kind: UndoKind,
    pub width: u8,
    pub detail: u64,
}

const _: () = assert!(size_of::<Undo>() == 16);

impl Undo {
    /// Returns the bytes of `Journal::bytes` that belong to this entry. The next entry's follow.
    #[inline]
    pub fn kept_bytes(&self) -> usize {
        match self.kind {
            UndoKind::Insert | UndoKind::Delete | UndoKind::Move => 0,
            UndoKind::Patch => self.place().len(),
            UndoKind::Columns => 8 * self.width as usize,
            UndoKind::Add => 8,
        }
    }

    /// Returns table and record id.
    #[inline(always)]
    pub fn row(&self) -> u64 {
        (self.table as u64) << 32 | self.rid.0 as u64
    }

    /// Returns the position of the column that was added to.
    #[inline]
    pub fn column(&self) -> usize {
        (self.detail >> 32) as usize
    }

    /// True if bytes or an id become free once the change can't be undone any more.
    #[inline]
    pub fn leaves_garbage(&self) -> bool {
        matches!(self.kind, UndoKind::Delete | UndoKind::Move)
    }

    /// Returns the place in `detail`, for a kind that has one.
    pub fn place(&self) -> Location {
        Location(self.detail)
    }
}

/// A summary of one transaction's writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct WriteSummary {
    /// Digest of the writes; 0 if there were none.
    pub digest: u64,
    /// Number of changed rows. Each change of a row counts.
    pub rows_written: u32,
    /// Bytes of the written rows, or of the written columns.
    pub bytes_written: u32,
}

impl WriteSummary {
    #[inline]
    pub(crate) fn fold(&mut self, table: u16, change: DigestChange, detail: u16, bytes: &[u8]) {
        self.digest = fold(self.digest, tag(table, change, detail), bytes);
    }

    /// Folds a key of integers into the digest.
    #[inline(always)]
    pub(crate) fn fold_ints(&mut self, table: u16, change: DigestChange, detail: u16, key: [u64; 2]) {
        self.digest = fold_ints(self.digest, tag(table, change, detail), key);
    }

    /// Folds a word that belongs to the previous fold.
    #[inline(always)]
    pub(crate) fn fold_word(&mut self, word: u64) {
        self.digest = fold_word(self.digest, word);
    }
}

#[inline(always)]
fn tag(table: u16, change: DigestChange, detail: u16) -> u64 {
    (table as u64) << 32 | (detail as u64) << 8 | change as u64
}

/// A point in a transaction to which it can roll back, any number of times.
#[derive(Clone, Copy, Debug)]
pub struct StoreSavepoint {
    pub(crate) undo_len: usize,
    pub(crate) written: WriteSummary,
    pub(crate) captured: ChangeMark,
    pub(crate) txn: u64,
}

/// The kinds of change in the digest. They are frozen.
#[derive(Clone, Copy)]
pub(crate) enum DigestChange {
    Insert = 1,
    Update = 2,
    Delete = 3,
    /// The key of a row, then the value of one of its columns after an addition.
    Add = 4,
    /// The primary key after an update.
    Rekey = 5,
    /// The number of a row.
    Number = 6,
    /// The key of a row with some written columns; then their values, tagged with the columns.
    Patch = 8,
}

#[derive(Default)]
pub(crate) struct Journal {
    pub ops: Vec<Undo>,
    pub bytes: Vec<u8>,
    /// Ids of inserted rows that were rolled back. They become free at the transaction's end.
    pub buried: Vec<(u16, Rid)>,
    /// Entries of `ops` with something to free at commit: deletes and moves, which are few.
    pub garbage: Vec<Undo>,
    pub written: WriteSummary,
    pub changes: ChangeLog,
    pub scratch: KeyScratch,
    pub is_active: bool,
    /// True if commits keep their undo here until the turn is sealed.
    pub retains: bool,
    /// The beginning of the running transaction's undo in `ops`, and in `bytes`.
    pub txn_start: usize,
    pub txn_bytes_start: usize,
    /// Counts transactions, so that a savepoint of another one is detected.
    pub txn: u64,
}

// A row's null bitmap and all columns that a set can name fit an entry's `width`.
const _: () = assert!((64 * 16 + COLUMNS_MAX / 8) / 8 < u8::MAX as usize);

/// Undo memory that is kept for the next transaction, in bytes.
const KEPT_BYTES: usize = 1 << 20;

/// The bytes that the processor fetches at once. The second constant is the number of lines that are prefetched for the next transactions.
const LINE_BYTES: usize = 64;
const NEAR_LINES: usize = 6;

impl Journal {
    #[inline]
    pub fn fold(&mut self, table: u16, change: DigestChange, detail: u16, bytes: &[u8]) {
        self.written.fold(table, change, detail, bytes);
    }

    #[inline]
    pub fn count(&mut self, bytes: usize) {
        self.count_many(1, bytes);
    }

    /// Counts rows, and the bytes of all of them.
    #[inline]
    pub fn count_many(&mut self, rows: usize, bytes: usize) {
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        self.written.rows_written = self.written.rows_written.saturating_add(rows);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.written.bytes_written = self.written.bytes_written.saturating_add(bytes);
    }

    /// Returns the bytes of the running transaction's writes and of their undo.
    #[inline]
    pub fn write_set_bytes(&self) -> usize {
        let (ops, bytes) = (self.ops.len() - self.txn_start, self.bytes.len() - self.txn_bytes_start);
        self.written.bytes_written as usize + bytes + ops * size_of::<Undo>()
    }

    /// Records a change at a place, or a change of a kind that needs none.
    #[inline]
    pub fn record(&mut self, table: u16, rid: Rid, kind: UndoKind, place: Location) {
        let undo = Undo {
            rid,
            table,
            kind,
            width: 0,
            detail: place.0,
        };
        self.ops.push(undo);
        if undo.leaves_garbage() {
            self.garbage.push(undo);
        }
    }

    /// Records rows that were inserted, in this order.
    #[inline]
    pub fn record_inserts(&mut self, table: u16, rids: &[Rid]) {
        self.ops.extend(rids.iter().map(|rid| Undo {
            rid: *rid,
            table,
            kind: UndoKind::Insert,
            width: 0,
            detail: 0,
        }));
    }

    /// Removes the last change, to undo it.
    pub fn pop(&mut self) -> Option<Undo> {
        let undo = self.ops.pop()?;
        if undo.leaves_garbage() {
            self.garbage.pop();
        }
        Some(undo)
    }

    /// Records the value `before` of an integer column (its position and place) of a row.
    #[inline]
    pub fn record_add(&mut self, (table, rid): (u16, Rid), (column, offset): (u16, u32), width: usize, before: u64) {
        self.bytes.extend_from_slice(&before.to_le_bytes());
        self.ops.push(Undo {
            rid,
            table,
            kind: UndoKind::Add,
            width: width as u8,
            detail: (column as u64) << 32 | offset as u64,
        });
    }

    /// Records the values of these columns of a row before they are written. `stored` may continue behind the row.
    #[inline(always)]
    pub fn record_columns(&mut self, table: u16, rid: Rid, plan: &ColumnPlan, stored: &[u8]) {
        let written = plan.written();
        let from = &stored[written.start..];
        // The copy takes more bytes than it needs, so that it takes no call and no loop.
        let words = match written.len() {
            ..=8 if self.keep::<8>(from) => 1,
            9..=16 if self.keep::<16>(from) => 2,
            17..=32 if self.keep::<32>(from) => 4,
            bytes => self.keep_bytes(&from[..bytes]),
        };
        self.ops.push(Undo {
            rid,
            table,
            kind: UndoKind::Columns,
            width: words as u8,
            detail: plan.set().0,
        });
    }

    /// Keeps the first bytes. False, with none kept, if there are fewer.
    #[inline(always)]
    fn keep<const BYTES: usize>(&mut self, stored: &[u8]) -> bool {
        let kept = stored.first_chunk::<BYTES>();
        kept.into_iter().for_each(|kept| self.bytes.extend_from_slice(kept));
        kept.is_some()
    }

    /// Keeps the bytes and pads their last word. Returns the number of words.
    #[inline(never)]
    fn keep_bytes(&mut self, stored: &[u8]) -> usize {
        let words = stored.len().div_ceil(8);
        let end = self.bytes.len() + 8 * words;
        self.bytes.extend_from_slice(stored);
        self.bytes.resize(end, 0);
        words
    }

    /// Removes the old value that the last addition in the journal recorded.
    pub fn take_before(&mut self) -> u64 {
        let before = *self.bytes.last_chunk().expect("an addition noted 8 bytes");
        self.bytes.truncate(self.bytes.len() - 8);
        u64::from_le_bytes(before)
    }

    #[inline]
    pub fn begin(&mut self) {
        assert!(!self.is_active, "one transaction at a time");
        self.is_active = true;
        self.txn_start = self.ops.len();
        self.txn_bytes_start = self.bytes.len();
        self.txn += 1;
        self.written = WriteSummary::default();
        if self.retains {
            self.prefetch_room();
        }
    }

    /// Retained undo goes to memory that was last used some turns ago, which has left the caches.
    #[inline]
    fn prefetch_room(&mut self) {
        let ops = self.ops.spare_capacity_mut();
        ops.iter()
            .step_by(LINE_BYTES / size_of::<Undo>())
            .take(NEAR_LINES)
            .for_each(prefetch_line);
        let bytes = self.bytes.spare_capacity_mut();
        bytes
            .iter()
            .step_by(LINE_BYTES)
            .take(NEAR_LINES)
            .for_each(prefetch_line);
    }

    /// Ends the transaction. `ops` and `buried` were settled, or are retained.
    #[inline]
    pub fn end(&mut self) {
        self.is_active = false;
        self.changes.end();
        self.buried.clear();
        if !self.retains {
            self.forget();
        }
    }

    /// Drops all undo.
    #[inline]
    pub fn forget(&mut self) {
        // A buffer with more room than is kept was at least half full.
        if self.bytes.len() + (self.ops.len() + self.garbage.len()) * size_of::<Undo>() > KEPT_BYTES / 2 {
            self.shrink();
        }
        self.ops.clear();
        self.bytes.clear();
        self.buried.clear();
        self.garbage.clear();
    }

    #[cold]
    fn shrink(&mut self) {
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
        for ops in [&mut self.ops, &mut self.garbage] {
            if ops.capacity() > KEPT_BYTES / size_of::<Undo>() {
                *ops = Vec::new();
            }
        }
    }

    /// Removes the undo of the last transaction.
    pub fn split_last(&mut self) -> Turn {
        let ops = self.ops.split_off(self.txn_start);
        let bytes = self.bytes.split_off(self.txn_bytes_start);
        let left = ops.iter().filter(|undo| undo.leaves_garbage()).count();
        let garbage = self.garbage.split_off(self.garbage.len() - left);
        (self.txn_start, self.txn_bytes_start) = (0, 0);
        Turn::of(ops, bytes, garbage)
    }

    /// Takes a sealed turn back into the journal, to undo it.
    pub fn restore(&mut self, turn: Turn) {
        assert!(self.ops.is_empty() && self.bytes.is_empty());
        self.ops = turn.ops;
        self.garbage = turn.garbage;
        self.bytes = turn.bytes;
    }

    pub fn memory_bytes(&self) -> usize {
        let entries = self.ops.capacity() + self.garbage.capacity();
        self.bytes.capacity() + entries * size_of::<Undo>()
    }
}
