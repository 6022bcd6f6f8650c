//! The changes of one table in a window of the log: where they lie, in their order, without those that a later one overwrites.
//!
//! After-images are absolute. Of two patches of one row that write the same columns, each with a value of the same length, the
//! first leaves nothing, if the row has none between them, and all that comes between is patches, too, none of which writes what
//! an index or a length depends on: such patches ask for nothing but their rows and leave them where they are. The later one then
//! takes the place of the earlier one, under its transaction: what is wrong with one is wrong with both, and so found and told
//! as if both were applied. Which row a patch is of, and which columns it writes, is kept in a few words: the bytes of the
//! earlier one are long gone from the caches. What does not fit them is not overwritten.

use std::ops::Range;

use reprise_pages::{prefetch, prefetch_line};
use reprise_wire::{Change, ChangeSink, PatchColumns, RowName};

/// Bytes of a window, at most; numbers of transactions are below it, too.
pub const REDO_WINDOW_BYTES_MAX: usize = 1 << 31;

/// In `Found::txn` of an entry: an insertion with a number.
const ROW_ALONE: u32 = REDO_WINDOW_BYTES_MAX as u32;

/// Bytes of a window for each pair of places in which its last writes are looked for.
const PAIR_BYTES: usize = 256;
const PAIRS_MAX: usize = 1 << 13;
/// Looks in vain after which a table's changes are looked at no more, unless one in so many found something: of so few that are
/// looked at first, most are of rows that come again later.
const MISSES_MIN: u32 = 512;
const HITS_SHARE: u32 = 16;

/// Changes of one table, in the order of the log.
#[derive(Default)]
pub struct RedoList {
    entries: Vec<Found>,
    /// Rows that come, less those that go.
    growth: i64,
    number: u32,
    /// Columns of which the last value is all that counts, as a `ColumnSet`.
    overwritable: u64,
    /// What lies before is not overwritten any more.
    run_start: usize,
    misses: u32,
    hits: u32,
    looks_back: bool,
}

/// Where the latest patch of each row of a window is, for all of its lists. It is looked for in two places, and forgotten where
/// others took both: then it is applied without need. What an earlier window left is of lists that are no more.
#[derive(Default)]
pub struct LastWrites {
    pairs: Vec<Pair>,
    /// Lists so far; 0 is none's number.
    lists: u32,
}

/// One line of the cache.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Pair([Place; 2]);

#[derive(Clone, Copy, Default)]
struct Place {
    mark: Mark,
    list: u32,
    at: u32,
}

/// What a patch is of.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    /// The key's bytes, or the number.
    key: [u64; 2],
    /// The columns, 11 bits each; from `KEY_SHIFT` on how long the key is; from `COUNT_SHIFT` on how many columns. 0: no mark.
    shape: u64,
}

const COLUMN_BITS: u32 = 11;
const COLUMNS_MAX: usize = 5;
/// Of a fixed column.
const VALUE_BYTES_MAX: usize = 16;
const KEY_SHIFT: u32 = COLUMN_BITS * COLUMNS_MAX as u32;
const KEY_MASK: u64 = 31;
const COUNT_SHIFT: u32 = KEY_SHIFT + 5;
/// In place of a key's length and 1: the row has a number.
const NUMBERED: u64 = 31;

impl Mark {
    /// None: the columns are not all `overwritable`, or too many, or the key is too long.
    #[inline(always)]
    fn of(name: RowName<'_>, columns: PatchColumns<'_>, overwritable: u64) -> Option<Self> {
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
        let (key, length) = match name {
            RowName::Number(number) => ([number, 0], NUMBERED),
            RowName::Key(key) => {
                let (first, rest) = word_of(key);
                let (second, rest) = word_of(rest);
                if !rest.is_empty() {
                    return None;
                }
                ([first, second], key.len() as u64 + 1)
            }
        };
        let shape = shape | length << KEY_SHIFT | count;
        Some(Self { key, shape })
    }

    #[inline(always)]
    fn is_of_same_row(&self, other: &Self) -> bool {
        let key = (self.key[0] ^ other.key[0]) | (self.key[1] ^ other.key[1]);
        key | (self.shape ^ other.shape) >> KEY_SHIFT & KEY_MASK == 0
    }
}

/// The first eight bytes, or what there is, and what comes behind.
#[inline(always)]
fn word_of(bytes: &[u8]) -> (u64, &[u8]) {
    match bytes.split_first_chunk() {
        Some((word, rest)) => (u64::from_le_bytes(*word), rest),
        None => {
            let bytes = bytes.iter().rev();
            (bytes.fold(0, |word, byte| word << 8 | *byte as u64), &[])
        }
    }
}

impl LastWrites {
    /// A window of so many bytes comes, which has no lists yet.
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

    /// A number that no other list has.
    pub fn list(&mut self) -> u32 {
        self.lists += 1;
        self.lists
    }

    #[inline(always)]
    fn pair(&mut self, list: u32, key: [u64; 2]) -> &mut [Place; 2] {
        let hash = mix(mix(list as u64, key[0]), key[1]);
        let mask = self.pairs.len() - 1;
        &mut self.pairs[hash as usize & mask].0
    }
}

#[inline(always)]
fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word) as u128 * 0x9e37_79b9_7f4a_7c15;
    product as u64 ^ (product >> 64) as u64
}

/// Where a change lies in its window, and a number of its transaction.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub txn: u32,
    pub at: u32,
    pub end: u32,
}

impl RedoList {
    /// Forgets what it held; `number` is of `LastWrites::list`, `overwritable` tells the table's columns of which the last value is all that counts.
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

    /// Forgets what it held, but for its memory.
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Changes that are left.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// By how many rows the table grows.
    pub fn growth(&self) -> u64 {
        self.growth.max(0) as u64
    }

    /// Adds the next change, which lies where `found` says and is neither an insertion with a number nor a patch. Numbers of
    /// transactions grow.
    #[inline]
    pub fn push(&mut self, found: Found, growth: i64) {
        self.growth += growth;
        self.push_any(found);
    }

    /// As `push`, of an insertion with a number.
    #[inline(always)]
    pub fn push_row(&mut self, found: Found) {
        self.growth += 1;
        self.push_any(Found {
            txn: found.txn | ROW_ALONE,
            ..found
        });
    }

    /// As `push`, of a patch.
    #[inline(always)]
    pub fn push_patch(&mut self, found: Found, name: RowName<'_>, columns: PatchColumns<'_>, last: &mut LastWrites) {
        if self.looks_back {
            match Mark::of(name, columns, self.overwritable) {
                Some(mark) if self.take_place(found, mark, last) => return,
                Some(_) => return self.entries.push(found),
                None => {}
            }
            return self.push_any(found);
        }
        self.entries.push(found);
    }

    /// A change that is not looked for, and behind which others do not look.
    #[inline(always)]
    fn push_any(&mut self, entry: Found) {
        self.run_start = self.entries.len() + 1;
        self.entries.push(entry);
    }

    /// Puts the patch where the row's last one stands, if it overwrites that; else notes that it will stand at the end.
    #[inline(always)]
    fn take_place(&mut self, entry: Found, mark: Mark, last: &mut LastWrites) -> bool {
        let at_end = Place {
            mark,
            list: self.number,
            at: self.entries.len() as u32,
        };
        let pair = last.pair(self.number, mark.key);
        // Which of the two it is can't be foretold: both are looked at, without a jump.
        let is_of_row = |place: &Place| {
            let is_ours = (place.list == self.number) & (place.at as usize >= self.run_start);
            is_ours & place.mark.is_of_same_row(&mark)
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

    /// One of the changes that are left.
    #[inline(always)]
    pub fn change<'w>(&self, window: &'w [u8], at: usize) -> Change<'w> {
        Change::again(bytes_of(window, self.entries[at])).expect("read when it was found")
    }

    /// As `change`, handed to `sink`.
    #[inline(always)]
    pub(super) fn read_into<'w, S: ChangeSink<'w>>(&self, window: &'w [u8], at: usize, sink: S) -> S::Out {
        Change::again_into(bytes_of(window, self.entries[at]), sink).expect("read when it was found")
    }

    /// Asks for a change's bytes.
    #[inline]
    pub(super) fn prefetch_line(&self, window: &[u8], at: usize) {
        if let Some(entry) = self.entries.get(at) {
            prefetch(bytes_of(window, *entry));
        }
    }

    /// Asks for where a change's bytes begin.
    #[inline]
    pub(super) fn fetch_start(&self, window: &[u8], at: usize) {
        if let Some(entry) = self.entries.get(at)
            && let Some(byte) = window.get(entry.at as usize)
        {
            prefetch_line(byte);
        }
    }

    /// The row of an insertion, and its number.
    #[inline]
    pub(super) fn row<'w>(&self, window: &'w [u8], at: usize) -> Option<(u64, &'w [u8])> {
        let entry = self.entries.get(at)?;
        match entry.txn & ROW_ALONE {
            0 => None,
            _ => Change::again_into(bytes_of(window, *entry), NumberedRow)?,
        }
    }

    /// The number of its transaction.
    #[inline]
    pub fn txn(&self, at: usize) -> u32 {
        self.entries[at].txn & !ROW_ALONE
    }

    /// From a change to the end of its transaction.
    pub(super) fn rest_of_txn(&self, from: usize) -> Range<usize> {
        let txn = self.txn(from);
        let end = (from..self.len()).find(|at| self.txn(*at) != txn);
        from..end.unwrap_or(self.len())
    }
}

/// The row of an insertion, and its number; None of what is none or has none.
struct NumberedRow;

impl<'w> ChangeSink<'w> for NumberedRow {
    type Out = Option<(u64, &'w [u8])>;

    #[inline(always)]
    fn take(self, _: usize, change: Change<'w>) -> Self::Out {
        match change {
            Change::Insert { number, row, .. } => Some((number?, row)),
            _ => None,
        }
    }
}

#[inline]
fn bytes_of(window: &[u8], entry: Found) -> &[u8] {
    &window[entry.at as usize..entry.end as usize]
}
