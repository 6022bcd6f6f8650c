//! Ranges of an ordered index: chosen by leading columns, read many rows per host call.

use std::{
    marker::PhantomData,
    ops::{Bound, RangeBounds},
};

use reprise_abi::{ScanFlags, ScanRequest, Target};

use crate::{
    key::KeyPrefix,
    ops::Answer,
    scratch::Scratch,
    table::{ColumnsOf, InModule, IndexOf, Owned, Row, Table, misfit, take_row},
    txn::Txn,
};

const FIRST_BATCH_BYTES: usize = 4 << 10;
const BATCH_BYTES_MAX: usize = 256 << 10;
/// What one row can need: the longest row and its header.
const ROW_ROOM_BYTES_MAX: usize = reprise_abi::row::ROW_BYTES_MAX + 8;

/// A range of index `I` of table `T` that is still being narrowed. Iterate over it to read it.
#[must_use = "a scan reads nothing until it is iterated over"]
pub struct Scan<'t, 'h, T, const I: u16> {
    tx: &'t Txn<'h>,
    flags: u32,
    limit: u32,
    batch_bytes: usize,
    lower: Scratch,
    upper: Scratch,
    /// The lower bound is the upper one, too.
    is_prefix: bool,
    table: PhantomData<fn() -> T>,
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

    /// Rows whose leading columns are these.
    #[inline(always)]
    pub fn prefix(mut self, key: impl KeyPrefix<<T as IndexOf<I>>::Columns>) -> Self {
        self.lower = Scratch::new();
        key.push_prefix(&mut self.lower);
        self.is_prefix = true;
        self.flags &= ScanFlags::REVERSE | ScanFlags::LOCAL;
        self
    }

    /// Rows whose leading columns lie between two keys. A bound takes in or leaves out every row that begins with it.
    pub fn range<K: KeyPrefix<<T as IndexOf<I>>::Columns>>(
        mut self,
        range: impl RangeBounds<K>,
    ) -> Self {
        let lower_exclusive = push_bound(range.start_bound(), &mut self.lower);
        let upper_exclusive = push_bound(range.end_bound(), &mut self.upper);
        self.is_prefix = false;
        self.flags &= ScanFlags::REVERSE | ScanFlags::LOCAL;
        if lower_exclusive {
            self.flags |= ScanFlags::LOWER_EXCLUSIVE;
        }
        if upper_exclusive {
            self.flags |= ScanFlags::UPPER_EXCLUSIVE;
        }
        self
    }

    /// From the last row to the first.
    #[inline(always)]
    pub fn reverse(mut self) -> Self {
        self.flags |= ScanFlags::REVERSE;
        self
    }

    /// Some columns of the rows, and no others.
    #[inline(always)]
    pub fn columns<V: ColumnsOf<T> + InModule + IndexOf<I> + Owned>(self) -> Scan<'t, 'h, V, I> {
        Scan {
            tx: self.tx,
            flags: self.flags,
            limit: self.limit,
            batch_bytes: self.batch_bytes,
            lower: self.lower,
            upper: self.upper,
            is_prefix: self.is_prefix,
            table: PhantomData,
        }
    }

    /// At most this many rows; 0 = no limit.
    #[inline(always)]
    pub fn limit(mut self, rows: u32) -> Self {
        self.limit = rows;
        self
    }

    /// Room for the rows of the first host call, in bytes, where what comes is known to be little or much. Each row takes
    /// eight bytes more than its own.
    #[inline(always)]
    pub fn batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes.clamp(64, BATCH_BYTES_MAX);
        self
    }

    #[inline(always)]
    fn request(&self) -> ScanRequest<'_> {
        ScanRequest {
            target: Target {
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

impl<'t, 'h, T: InModule + IndexOf<I> + Owned, const I: u16> IntoIterator for Scan<'t, 'h, T, I> {
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

/// Writes a bound; true when it is exclusive.
fn push_bound<C, K: KeyPrefix<C>>(bound: Bound<&K>, out: &mut Scratch) -> bool {
    *out = Scratch::new();
    match bound {
        Bound::Unbounded => false,
        Bound::Included(key) => {
            key.push_prefix(out);
            false
        }
        Bound::Excluded(key) => {
            key.push_prefix(out);
            true
        }
    }
}

#[inline(always)]
fn read_next<T: Owned>(rest: &mut &[u8]) -> Option<Row<T>> {
    let (handle, row) = take_row(rest)?;
    Some(Row::new(
        T::read_row(row).unwrap_or_else(|| misfit()),
        handle,
    ))
}

/// The rows of a range, in order, as they were when the scan began: rows that are changed, moved or deleted meanwhile are shown as
/// they were, and new ones are not shown. To `update` one that was changed by other means since then is refused.
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
    /// Goes on with a scan whose first row did not fit.
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
        let mut room = (self.buffer.len() * 4)
            .min(BATCH_BYTES_MAX)
            .max(self.buffer.len());
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
    /// What is not read to its end would be kept while its table is written.
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

    /// With what is read of a batch in registers: `for_each`, `extend`, `sum` and the like go this way, a `for` loop does not.
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
