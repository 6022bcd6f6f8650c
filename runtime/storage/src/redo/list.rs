//! The changes of one table in a window of the log: their places, in order, without changes that a later one overwrites.
//!
//! Values in the log are whole, not differences. So the list may leave out an earlier patch of a row if a later one writes the same columns
//! with values of the same lengths. The changes between them have to be patches, too, and no index and no length may depend on the columns.
//! The later patch takes the earlier one's place and its transaction's number. An error in either is an error in both, and is reported as
//! if both were applied. The list keeps each patch's row and columns in two words, because the patch's bytes have left the caches. A patch
//! that does not fit two words is never left out.

use std::ops::Range;

use reprise_pages::{prefetch, prefetch_line};
use reprise_wire::{Change, ChangeSink, PatchColumns};

/// Bytes of a window at most. The numbers of transactions are below it, too.
pub const REDO_WINDOW_BYTES_MAX: usize = 1 << 31;

/// A flag in `ChangePlace::txn`: the change is an insertion.
const ROW_ALONE: u32 = REDO_WINDOW_BYTES_MAX as u32;

/// Number of a window's bytes for which `LastWrites` has one pair of places.
const PAIR_BYTES: usize = 256;
const PAIRS_MAX: usize = 1 << 13;
/// Number of misses after which the search for earlier patches stops in a table, unless at least one search in `HITS_SHARE` hit. Rows that
/// occur for the first time miss, so the first searches of a window say little.
const MISSES_MIN: u32 = 512;
const HITS_SHARE: u32 = 16;

/// Changes of one table, in the order of the log.
#[derive(Default)]
pub struct RedoList {
    entries: Vec<ChangePlace>,
    /// Insertions minus deletions.
    growth: i64,
    number: u32,
    /// Columns whose earlier values nothing depends on, one bit each.
    overwritable: u64,
    /// Number of first entries that stay, because a change that is no patch followed them.
    run_start: usize,
    misses: u32,
    hits: u32,
    looks_back: bool,
}

/// The latest patch of each row of a window, for all of its lists: a hash table of pairs of places. If other rows took both places, a row's
/// patch is forgotten, and is applied although it need not be. Entries of earlier windows name lists that no longer exist.
#[derive(Default)]
pub struct LastWrites {
    pairs: Vec<PlacePair>,
    /// The number of the newest list; numbers begin with 1.
    lists: u32,
}

/// A cache line with two places.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct PlacePair([ListPlace; 2]);

#[derive(Clone, Copy, Default)]
struct ListPlace {
    mark: Mark,
    list: u32,
    at: u32,
}

/// A patch's row and columns.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    /// Number of the row.
    number: u64,
    /// Each column's number and length in 11 bits, and the number of columns from `COUNT_SHIFT` on. 0: no mark.
    shape: u64,
}

const COLUMN_BITS: u32 = 11;
const COLUMNS_MAX: usize = 5;
/// Bytes of a fixed column at most.
const VALUE_BYTES_MAX: usize = 16;
const COUNT_SHIFT: u32 = COLUMN_BITS * COLUMNS_MAX as u32;

impl Mark {
    /// Makes the mark. None if a column is not `overwritable`, or if there are too many columns.
    #[inline(always)]
    fn of(number: u64, columns: PatchColumns<'_>, overwritable: u64) -> Option<Self> {
        if columns.count() > COLUMNS_MAX {
            return None;
        }
        let mut shape = 0;
        let count = (columns.count() as u64) << COUNT_SHIFT;
        for (column, value) in columns.iter() {
            let length = value.map_or(0, |value| value.len() + 1);
            if column >= 64 || overwritable >> column & 1 == 0 || length > VALUE_BYTES_MAX + 1 {
                return None;
            }
            shape = shape << COLUMN_BITS | (length as u64) << 6 | column as u64;
        }
        let shape = shape | count;
        Some(Self { number, shape })
    }
}

impl LastWrites {
    /// Begins a window of this many bytes.
    pub fn begin(&mut self, window_bytes: usize) {
        if self.lists > u32::MAX / 2 {
            self.pairs.clear();
            self.lists = 0;
        }
        let pairs = (window_bytes / PAIR_BYTES).next_power_of_two();
        if self.pairs.len() < pairs.min(PAIRS_MAX) {
            self.pairs.resize(pairs.min(PAIRS_MAX), Default::default());
        }
    }

    /// Returns the number of a new list.
    pub fn list(&mut self) -> u32 {
        self.lists += 1;
        self.lists
    }

    #[inline(always)]
    fn pair(&mut self, list: u32, number: u64) -> &mut [ListPlace; 2] {
        let hash = mix(list as u64, number);
        let mask = self.pairs.len() - 1;
        &mut self.pairs[hash as usize & mask].0
    }
}

#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word) as u128 * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

/// The place of a change in its window, and the number of its transaction.
#[derive(Clone, Copy, Debug)]
pub struct ChangePlace {
    pub txn: u32,
    pub at: u32,
    pub end: u32,
}

impl RedoList {
    /// Empties the list for a window. `number` comes from `LastWrites::list`; `overwritable` has a bit for each column whose earlier values
    /// nothing depends on.
    pub fn begin(&mut self, number: u32, overwritable: u64) {
        self.entries.clear();
        *self = Self {
            entries: std::mem::take(&mut self.entries),
            number,
            overwritable,
            looks_back: overwritable != 0,
            ..Self::default()
        };
    }

    /// Empties the list and keeps its memory.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Returns the number of changes to apply.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns by how many rows the table grows.
    pub fn growth(&self) -> u64 {
        self.growth.max(0) as u64
    }

    /// Adds the next change, whose place is `found`, and which is neither an insertion nor a patch. Numbers of transactions grow.
    #[inline]
    pub fn push(&mut self, found: ChangePlace, growth: i64) {
        self.growth += growth;
        self.push_any(found);
    }

    /// The `push` variant for an insertion.
    #[inline(always)]
    pub fn push_row(&mut self, found: ChangePlace) {
        self.growth += 1;
        self.push_any(ChangePlace {
            txn: found.txn | ROW_ALONE,
            ..found
        });
    }

    /// The `push` variant for a patch.
    #[inline(always)]
    pub fn push_patch(&mut self, found: ChangePlace, number: u64, columns: PatchColumns<'_>, last: &mut LastWrites) {
        if self.looks_back {
            match Mark::of(number, columns, self.overwritable) {
                Some(mark) if self.take_place(found, mark, last) => return,
                Some(_) => return self.entries.push(found),
                None => {}
            }
            return self.push_any(found);
        }
        self.entries.push(found);
    }

    /// Adds a change that stays, like all before it.
    #[inline(always)]
    fn push_any(&mut self, entry: ChangePlace) {
        self.run_start = self.entries.len() + 1;
        self.entries.push(entry);
    }

    /// Has the patch take the place of the row's last patch. False: the patch must be added at the end, because the next one looks for it
    /// there.
    #[inline(always)]
    fn take_place(&mut self, entry: ChangePlace, mark: Mark, last: &mut LastWrites) -> bool {
        let at_end = ListPlace {
            mark,
            list: self.number,
            at: self.entries.len() as u32,
        };
        let pair = last.pair(self.number, mark.number);
        // Both places are compared without a branch, because which of them matches is random.
        let is_of_row = |place: &ListPlace| {
            let is_ours = (place.list == self.number) & (place.at as usize >= self.run_start);
            is_ours & (place.mark.number == mark.number)
        };
        let is_second = !is_of_row(&pair[0]);
        if is_second & !is_of_row(&pair[1]) {
            *pair = [at_end, pair[0]];
        } else {
            let place = &mut pair[is_second as usize];
            if place.mark.shape == mark.shape {
                let earlier = &mut self.entries[place.at as usize];
                (earlier.at, earlier.end) = (entry.at, entry.end);
                self.hits += 1;
                return true;
            }
            *place = at_end;
        }
        self.misses += 1;
        self.looks_back = self.misses < MISSES_MIN || self.hits * HITS_SHARE > self.misses;
        false
    }

    /// Returns the change at a position.
    #[inline(always)]
    pub fn change<'w>(&self, window: &'w [u8], at: usize) -> Change<'w> {
        Change::again(bytes_of(window, self.entries[at])).expect("read when it was found")
    }

    /// The `change` variant that hands the change to `sink`.
    #[inline(always)]
    pub(super) fn read_into<'w, S: ChangeSink<'w>>(&self, window: &'w [u8], at: usize, sink: S) -> S::Out {
        Change::again_into(bytes_of(window, self.entries[at]), sink).expect("read when it was found")
    }

    /// Prefetches a change's bytes.
    #[inline]
    pub(super) fn prefetch_line(&self, window: &[u8], at: usize) {
        if let Some(entry) = self.entries.get(at) {
            prefetch(bytes_of(window, *entry));
        }
    }

    /// Prefetches the first line of a change's bytes.
    #[inline]
    pub(super) fn fetch_start(&self, window: &[u8], at: usize) {
        if let Some(entry) = self.entries.get(at)
            && let Some(byte) = window.get(entry.at as usize)
        {
            prefetch_line(byte);
        }
    }

    /// Returns row and number of an insertion.
    #[inline]
    pub(super) fn row<'w>(&self, window: &'w [u8], at: usize) -> Option<(u64, &'w [u8])> {
        let entry = self.entries.get(at)?;
        match entry.txn & ROW_ALONE {
            0 => None,
            _ => Change::again_into(bytes_of(window, *entry), InsertedRow)?,
        }
    }

    /// Returns the number of its transaction.
    #[inline]
    pub fn txn(&self, at: usize) -> u32 {
        self.entries[at].txn & !ROW_ALONE
    }

    /// Returns the positions from a change to the end of its transaction.
    pub(super) fn rest_of_txn(&self, from: usize) -> Range<usize> {
        let txn = self.txn(from);
        let end = (from..self.len()).find(|at| self.txn(*at) != txn);
        from..end.unwrap_or(self.len())
    }
}

/// The sink that returns the row of an insertion and its number. None for another change.
struct InsertedRow;

impl<'w> ChangeSink<'w> for InsertedRow {
    type Out = Option<(u64, &'w [u8])>;

    #[inline(always)]
    fn take(self, _: usize, change: Change<'w>) -> Self::Out {
        match change {
            Change::Insert { number, row, .. } => Some((number, row)),
            _ => None,
        }
    }
}

#[inline]
fn bytes_of(window: &[u8], entry: ChangePlace) -> &[u8] {
    &window[entry.at as usize..entry.end as usize]
}
