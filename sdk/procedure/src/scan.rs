//! Ranges of an ordered index: chosen by leading columns, read many rows per host call.

use std::{
    marker::PhantomData,
    ops::{Bound, RangeBounds},
};

use reprise_abi::{IndexTarget, ScanFlags, ScanRequest};

use crate::{
    key::KeyPrefix,
    ops::Answer,
    scratch::Scratch,
    table::{ColumnsOf, DuplicateKey, InModule, IndexOf, Owned, Row, Table, misfit, take_row},
    txn::Txn,
};

const FIRST_BATCH_BYTES: usize = 4 << 10;
const BATCH_BYTES_MAX: usize = 256 << 10;
/// Bytes for one row at most: the longest row and its header.
const ROW_ROOM_BYTES_MAX: usize = reprise_abi::row::ROW_BYTES_MAX + 8;

/// A range of index `I` of table `T` that is still being narrowed. Iterate over it to read it.
#[must_use = "a scan reads nothing until it is iterated over"]
pub struct Scan<'t, 'h, T: IndexOf<I>, const I: u16, R = <T as IndexOf<I>>::Columns> {
    tx: &'t Txn<'h>,
    flags: u32,
    limit: u32,
    batch_bytes: usize,
    lower: Scratch,
    upper: Scratch,
    /// The lower bound is the upper one, too.
    is_prefix: bool,
    /// Bytes of both bounds that are the prefix's.
    prefix_bytes: usize,
    /// `R`: columns of the index behind those of the prefix.
    table: PhantomData<fn() -> (T, R)>,
}

impl<'t, 'h, T: InModule + IndexOf<I> + Owned, const I: u16> Scan<'t, 'h, T, I> {
    #[doc(hidden)]
    #[inline(always)]
    pub fn new(tx: &'t Txn<'h>) -> Self {
        Self {
            tx,
            flags: 0,
            limit: 0,
            batch_bytes: FIRST_BATCH_BYTES,
            lower: Scratch::new(),
            upper: Scratch::new(),
            is_prefix: false,
            prefix_bytes: 0,
            table: PhantomData,
        }
    }

    #[doc(hidden)]
    #[inline(always)]
    pub fn local(tx: &'t Txn<'h>) -> Self {
        Self {
            flags: ScanFlags::LOCAL,
            ..Self::new(tx)
        }
    }

    /// Rows whose leading columns are these. What narrows the scan further (`from`, `after`, `to`, `before`, `range`) takes the columns
    /// behind them.
    #[inline(always)]
    pub fn prefix<K: KeyPrefix<<T as IndexOf<I>>::Columns>>(self, key: K) -> Scan<'t, 'h, T, I, K::Rest> {
        let mut lower = Scratch::new();
        key.push_prefix(&mut lower);
        Scan {
            tx: self.tx,
            flags: self.flags & (ScanFlags::REVERSE | ScanFlags::LOCAL),
            limit: self.limit,
            batch_bytes: self.batch_bytes,
            prefix_bytes: lower.len(),
            lower,
            upper: self.upper,
            is_prefix: true,
            table: PhantomData,
        }
    }
}

impl<'t, 'h, T: InModule + IndexOf<I> + Owned, const I: u16, R> Scan<'t, 'h, T, I, R> {
    /// Rows whose next columns lie between two keys, as Rust writes ranges: `(3,)..(7,)`, `..=(9,)`; of the index's last column the bare
    /// value: `3..7`. A bound takes in or leaves out every row that begins with it.
    pub fn range<K: KeyPrefix<R>>(self, range: impl RangeBounds<K>) -> Self {
        let lower = match range.start_bound() {
            Bound::Unbounded => self,
            Bound::Included(key) => self.bounded_below(key, false),
            Bound::Excluded(key) => self.bounded_below(key, true),
        };
        match range.end_bound() {
            Bound::Unbounded => lower,
            Bound::Included(key) => lower.bounded_above(key, false),
            Bound::Excluded(key) => lower.bounded_above(key, true),
        }
    }

    /// Limits the scan to rows from this key on: rows that begin with it, and the rows behind them.
    pub fn from(self, key: impl KeyPrefix<R>) -> Self {
        self.bounded_below(&key, false)
    }

    /// Rows behind all that begin with this key.
    pub fn after(self, key: impl KeyPrefix<R>) -> Self {
        self.bounded_below(&key, true)
    }

    /// Rows up to this key, and all that begin with it.
    pub fn to(self, key: impl KeyPrefix<R>) -> Self {
        self.bounded_above(&key, false)
    }

    /// Rows before all that begin with this key.
    pub fn before(self, key: impl KeyPrefix<R>) -> Self {
        self.bounded_above(&key, true)
    }

    fn bounded_below<K: KeyPrefix<R>>(mut self, key: &K, is_exclusive: bool) -> Self {
        self.part_bounds();
        self.lower.truncate(self.prefix_bytes);
        key.push_prefix(&mut self.lower);
        self.set_flag(ScanFlags::LOWER_EXCLUSIVE, is_exclusive);
        self
    }

    fn bounded_above<K: KeyPrefix<R>>(mut self, key: &K, is_exclusive: bool) -> Self {
        self.part_bounds();
        self.upper.truncate(self.prefix_bytes);
        key.push_prefix(&mut self.upper);
        self.set_flag(ScanFlags::UPPER_EXCLUSIVE, is_exclusive);
        self
    }

    /// Each bound begins with the prefix.
    fn part_bounds(&mut self) {
        if self.is_prefix {
            self.upper = Scratch::new();
            self.upper.push_text(self.lower.as_slice());
            self.is_prefix = false;
        }
    }

    fn set_flag(&mut self, flag: u32, is_set: bool) {
        self.flags = (self.flags & !flag) | if is_set { flag } else { 0 };
    }

    /// Reverses the scan, from the last row to the first.
    #[inline(always)]
    pub fn reverse(mut self) -> Self {
        self.flags |= ScanFlags::REVERSE;
        self
    }

    /// Some columns of the rows, and no others.
    #[inline(always)]
    pub fn columns<V: ColumnsOf<T> + InModule + IndexOf<I> + Owned>(self) -> Scan<'t, 'h, V, I, R> {
        Scan {
            tx: self.tx,
            flags: self.flags,
            limit: self.limit,
            batch_bytes: self.batch_bytes,
            lower: self.lower,
            upper: self.upper,
            is_prefix: self.is_prefix,
            prefix_bytes: self.prefix_bytes,
            table: PhantomData,
        }
    }

    /// Limits the scan to this many rows. 0 is no limit.
    #[inline(always)]
    pub fn limit(mut self, rows: u32) -> Self {
        self.limit = rows;
        self
    }

    /// Sets the room for the rows of the first host call, in bytes, for a scan that is known to be short or long. Each row takes eight
    /// bytes more than its own.
    #[inline(always)]
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.clamp(64, BATCH_BYTES_MAX);
        self
    }

    #[inline(always)]
    fn request(&self) -> ScanRequest<'_> {
        ScanRequest {
            target: IndexTarget {
                table: T::TABLE,
                index: I,
            },
            flags: ScanFlags(self.flags),
            limit: self.limit,
            lower: self.lower.as_slice(),
            upper: match self.is_prefix {
                true => self.lower.as_slice(),
                false => self.upper.as_slice(),
            },
        }
    }

    /// The first row of the range, in one host call and without the heap.
    #[inline(always)]
    pub fn first(mut self) -> Option<Row<T>> {
        self.limit = 1;
        let mut answer = Answer::new(T::EMPTY_BUFFER);
        let cursor = self.tx.ops.scan_into(&self.request(), T::COLUMNS, &mut answer);
        let mut row = answer.filled();
        if row.is_empty() {
            return if cursor == 0 {
                None
            } else {
                Rows::resume(self.tx, cursor).next()
            };
        }
        read_next(&mut row)
    }

    /// The last row of the range, in one host call.
    #[inline(always)]
    pub fn last(mut self) -> Option<Row<T>> {
        self.flags ^= ScanFlags::REVERSE;
        self.first()
    }

    /// Deletes the rows of the range and answers how many they were.
    pub fn delete(self) -> u64 {
        let rows: Vec<_> = self.iter().map(|row| row.handle()).collect();
        rows.iter().for_each(|handle| self.tx.ops.delete(*handle));
        rows.len() as u64
    }

    /// Changes each row of the range as it was at the beginning, writes it back, and returns how many there were. At an error, which
    /// names the unique index with the duplicate key, the rows before that one are changed.
    pub fn update(self, mut change: impl FnMut(&mut T)) -> Result<u64, DuplicateKey> {
        let mut rows: Vec<_> = self.iter().collect();
        rows.iter_mut().for_each(|row| change(&mut **row));
        rows.iter().try_for_each(|row| row.update(self.tx))?;
        Ok(rows.len() as u64)
    }

    /// The number of rows in the range, without reading them.
    pub fn count(self) -> u64 {
        self.tx.ops.count(&self.request())
    }

    /// Reads the range: its rows as they are, in their order, whatever is written while they are read.
    pub fn iter(&self) -> Rows<'t, 'h, T> {
        let mut buffer = vec![0; self.batch_bytes];
        let (cursor, filled) = read::<T>(self.tx, &self.request(), &mut buffer);
        Rows {
            tx: self.tx,
            buffer,
            read: 0,
            filled,
            cursor,
            table: PhantomData,
        }
    }
}

impl<'t, 'h, T: InModule + IndexOf<I> + Owned, const I: u16, R> IntoIterator for Scan<'t, 'h, T, I, R> {
    type Item = Row<T>;
    type IntoIter = Rows<'t, 'h, T>;
    fn into_iter(self) -> Rows<'t, 'h, T> {
        self.iter()
    }
}

#[inline(always)]
fn read<T: Table>(tx: &Txn<'_>, request: &ScanRequest<'_>, out: &mut [u8]) -> (u32, usize) {
    match T::COLUMNS {
        None => tx.ops.scan(request, out),
        Some(columns) => tx.ops.scan_columns(request, columns, out),
    }
}

#[inline(always)]
fn read_next<T: Owned>(rest: &mut &[u8]) -> Option<Row<T>> {
    let (handle, row) = take_row(rest)?;
    Some(Row::new(T::read_row(row).unwrap_or_else(|| misfit()), handle))
}

/// The rows of a range, in order, as they were when the scan began. Rows that are changed, moved or deleted meanwhile appear in their old
/// form, and new ones do not appear. `update` refuses a row that was changed by other means since then.
pub struct Rows<'t, 'h, T> {
    tx: &'t Txn<'h>,
    buffer: Vec<u8>,
    /// `buffer[read..filled]` is still to be handed out.
    read: usize,
    filled: usize,
    cursor: u32,
    table: PhantomData<fn() -> T>,
}

impl<'t, 'h, T: Owned> Rows<'t, 'h, T> {
    /// Continues a scan whose first row did not fit.
    #[cold]
    fn resume(tx: &'t Txn<'h>, cursor: u32) -> Self {
        Self {
            tx,
            buffer: vec![0; FIRST_BATCH_BYTES],
            read: 0,
            filled: 0,
            cursor,
            table: PhantomData,
        }
    }

    fn refill(&mut self) {
        let mut room = (self.buffer.len() * 4).min(BATCH_BYTES_MAX).max(self.buffer.len());
        while self.cursor != 0 {
            self.buffer.resize(room, 0);
            (self.cursor, self.filled) = match T::COLUMNS {
                None => self.tx.ops.scan_next(self.cursor, &mut self.buffer),
                Some(columns) => {
                    let out = &mut self.buffer;
                    self.tx.ops.scan_next_columns(self.cursor, columns, out)
                }
            };
            self.read = 0;
            if self.filled > 0 {
                return;
            }
            // The next row alone is longer than the buffer.
            room = (room * 4).min(ROW_ROOM_BYTES_MAX);
        }
    }
}

impl<T> Drop for Rows<'_, '_, T> {
    /// A cursor that is not read to its end would keep old rows while its table is written.
    #[inline]
    fn drop(&mut self) {
        if self.cursor != 0 {
            self.tx.ops.scan_close(self.cursor);
        }
    }
}

impl<T: Owned> Iterator for Rows<'_, '_, T> {
    type Item = Row<T>;

    fn next(&mut self) -> Option<Row<T>> {
        if self.read == self.filled {
            if self.cursor == 0 {
                return None;
            }
            self.refill();
        }
        let mut rest = self.buffer.get(self.read..self.filled)?;
        let row = read_next(&mut rest)?;
        self.read = self.filled - rest.len();
        Some(row)
    }

    /// Keeps the read position of a batch in registers. `for_each`, `extend`, `sum` and the like go this way, and a `for` loop does not.
    #[inline]
    fn fold<B, F: FnMut(B, Row<T>) -> B>(mut self, init: B, mut f: F) -> B {
        let mut folded = init;
        loop {
            let mut rest = self.buffer.get(self.read..self.filled).unwrap_or(&[]);
            while let Some(row) = read_next(&mut rest) {
                folded = f(folded, row);
            }
            self.read = self.filled;
            if self.cursor == 0 {
                return folded;
            }
            self.refill();
        }
    }

    /// Passes over `n` rows without decoding them.
    fn nth(&mut self, n: usize) -> Option<Row<T>> {
        for _ in 0..n {
            if self.read == self.filled {
                if self.cursor == 0 {
                    return None;
                }
                self.refill();
            }
            let mut rest = self.buffer.get(self.read..self.filled)?;
            take_row(&mut rest)?;
            self.read = self.filled - rest.len();
        }
        self.next()
    }
}
