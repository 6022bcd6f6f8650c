//! The host calls: one trait on the host's side, one import table on the guest's.
//!
//! Wasm imports (module `reprise1`), at most four integer parameters each. `slice` is an `i64` that packs
//! `pointer | length << 32`; `out` packs `pointer | capacity << 32`.
//!
//! | import | signature | returns |
//! | --- | --- | --- |
//! | `args_read` | `(pointer i32)` | nothing; copies the whole argument bytes (their length is the entry's parameter) |
//! | `result_write` | `(slice i64)` | nothing; replaces the result so far |
//! | `get` | `(target i32, key slice i64, out i64) -> i64` | `handle << 32 \| row bytes`, or `-1` not found. A row longer than the capacity is not copied: call `row_read` |
//! | `multi_get` | `(target i32, keys slice i64, count i32, out i64) -> i64` | bytes written; `keys` is `count` times `[len u32][key]`; the output is `count` times `[handle u32][len u32][row]`, `handle` `0xffff_ffff` where not found; `-needed` when the buffer is too small, whose contents are then undefined |
//! | `exists` | `(target i32, key slice i64) -> i32` | 1 where `get` would find a row, else 0; no row is handed out |
//! | `row_read` | `(handle i32, out i64) -> i32` | row bytes; copies only when they fit |
//! | `get_columns` | `(target i32, key slice i64, columns i64, out i64) -> i64` | as `get`, but these columns alone |
//! | `multi_get_columns` | `(target i32, keys slice i64, columns i64, out i64) -> i64` | as `multi_get`, but these columns alone; `keys` is run through to its end |
//! | `multi_get_slots` | `(request i64, keys slice i64, columns i64, out i64) -> i64` | as `multi_get_columns`, of keys that all have one length: `request` is `target \| count << 32`, `keys` are `count` keys one after the other, and `out` is `count` slots of one length, each `[handle u32][bytes u32][columns]`. Columns that a slot has no room for are not written, though their bytes are said; returns how many slots these are |
//! | `row_read_columns` | `(handle i32, table i32, columns i64, out i64) -> i32` | as `row_read`, but these columns alone |
//! | `scan_columns` | `(request pointer i32, columns i64, out i64) -> i64` | as `scan`, but these columns alone |
//! | `scan_next_columns` | `(cursor i32, table i32, columns i64, out i64) -> i64` | as `scan_next`, but these columns alone |
//! | `patch` | `(table i32, handles slice i64, columns i64, values slice i64) -> i64` | writes these columns of each row; `handles` are `u32`, `values` one after the other; `0`, or `-2 - index` for a duplicate key |
//! | `insert` | `(table i32, row slice i64) -> i64` | handle, or `-2 - index` for a duplicate key in that index |
//! | `multi_insert` | `(table i32, rows slice i64, count i32) -> i64` | handle of the first row, the others' following it; `rows` is `count` times `[len u32][row]`; `-2 - index` for a duplicate key, the rows before that one being inserted; `0xffff_ffff` for no rows |
//! | `update` | `(handle i32, row slice i64) -> i64` | `0`, or `-2 - index` for a duplicate key |
//! | `delete` | `(handle i32)` | nothing |
//! | `add` | `(handle i32, column i32, delta i64) -> i64` | the new value (of an integer column that no key or index holds, not null); wraps never: overflow is a fault |
//! | `add_by_key` | `(what i64, key slice i64, delta i64, out i64) -> i32` | `what` packs `target \| column << 32`: as `get`, and `add` to the row that it finds; 1, and the new value's eight bytes in `out` where they fit, or 0 where there is no such row. No row is handed out |
//! | `scan` | `(request pointer i32, out i64) -> i64` | `cursor << 32 \| bytes`; cursor 0 when the range is exhausted; the output is a run of `[handle u32][len u32][row]` |
//! | `scan_next` | `(cursor i32, out i64) -> i64` | as `scan` |
//! | `scan_close` | `(cursor i32)` | nothing; the cursor is not open any more |
//! | `count` | `(request pointer i32) -> i64` | the number of rows in the range (limit applies) |
//! | `savepoint` | `() -> i32` | a savepoint |
//! | `rollback_to` | `(savepoint i32)` | nothing; the savepoint stays usable |
//! | `now` | `() -> i64` | the transaction's time, microseconds since 1970 |
//! | `random` | `() -> i64` | 64 random bits from the transaction's stream |
//! | `txn_id` | `() -> i64` | its low ten bits are the partition's number, or 1023 for several (`TXN_ORIGIN_SEVERAL`) |
//! | `caller` | `(out i64) -> i32` | bytes of the caller's name, 1 to 255, written to `out` where they fit; 0 without tokens |
//! | `log` | `(level i32, text slice i64)` | nothing |
//! | `abort` | `(code slice i64, message slice i64)` | nothing; the guest then returns 1 from the entry |
//! | `panic` | `(text slice i64)` | does not return: the call ends as a trap, told with the first 4 KiB of the text |
//!
//! `columns` is a set of the table's columns, bit `i` for column `i` (`columns::ColumnSet`); their bytes are those of a row
//! of a table that has these columns alone.
//!
//! The scan request in guest memory is 32 bytes of little-endian `u32`: target, flags, limit (0 = none), lower pointer,
//! lower length, upper pointer, upper length, 0.
//!
//! **A cursor shows rows, order and contents as they were when it was opened**, whatever is written meanwhile: rows that were deleted or
//! moved are shown, new ones are not, and `rollback_to` a savepoint from before or after the opening changes nothing of it. What writes
//! make an open cursor keep counts in the limit of the write set. A cursor is open until it was read to its end or closed.
//!
//! **`update` and `patch` write what was read.** A copy of a row is as old as its handle, the last `row_read` of it, or the last change
//! that was made through it while it was up to date. Where the transaction has changed the row since then, by another handle, by its
//! key or by a roll back over a change of it, both are refused. `add` and `delete` are not.
//!
//! **A call reads the rows of its own partitions and no others.** A key, or a range whose bounds agree in the index's columns up to the
//! partition column, is refused where its rows lie elsewhere. A range that does not hold the partition column, and a key of an index
//! without it, need a call that has all partitions; a scan or a count may have flag 8 (`ScanFlags::LOCAL`) instead, which asks for the
//! call's own rows. Replicated and partition-local tables, and databases of one partition, know no such bounds.
//!
//! An entry returns 0 (done) or 1 (after `abort`). Two optional exports, called once when an instance starts, save host
//! calls; each returns the slice of a buffer of at most [`BUFFER_BYTES_MAX`] bytes, of 0 bytes for none:
//!
//! * `reprise_args_buffer`: arguments that fit lie at its start when the entry is called. `args_read` works as ever.
//! * `reprise_result_buffer`: an entry that returns `2 + n` is done, and its first `n` bytes are the result.
//!
//! A mistake of the guest (forged handle, malformed row, write in a read-only procedure, write to a replicated table
//! from one partition, a limit, an end from outside) is not a return code: the host ends the transaction with a fault.

use alloc::{format, string::String};

use crate::{
    columns::ColumnSet,
    plan::ColumnPlan,
    room::{FixedSlots, OutBuffer},
};

/// Longest buffer that a guest may offer for its arguments or its result.
pub const BUFFER_BYTES_MAX: usize = 4096;
/// Return value of an entry whose result buffer holds no bytes; each byte of the result adds one.
pub const RETURNED_IN_BUFFER: i32 = 2;

/// A row as a transaction knows it: its position in the transaction's own list of rows seen, from 0.
/// Never a storage address: replay must hand out the same numbers.
pub type RowHandle = u32;

/// Row handle that stands for "no row" in `multi_get`'s output.
pub const HANDLE_NONE: RowHandle = u32::MAX;

/// Row handles in one of two forms.
#[derive(Clone, Copy, Debug)]
pub enum Handles<'a> {
    /// A slice of numbers.
    Numbers(&'a [RowHandle]),
    /// Little-endian numbers in a guest's memory.
    Bytes(&'a [[u8; 4]]),
}

impl Handles<'_> {
    /// How many they are.
    pub fn len(&self) -> usize {
        match self {
            Self::Numbers(handles) => handles.len(),
            Self::Bytes(handles) => handles.len(),
        }
    }

    /// True for none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Panics behind the last one.
    #[inline]
    pub fn at(&self, position: usize) -> RowHandle {
        match self {
            Self::Numbers(handles) => handles[position],
            Self::Bytes(handles) => u32::from_le_bytes(handles[position]),
        }
    }
}

/// Items one after the other, each as `[len u32][bytes]`: the keys of `multi_get`, the rows of `multi_insert`.
#[derive(Clone, Copy, Debug)]
pub struct PackedItems<'a> {
    bytes: &'a [u8],
    left: u32,
}

impl<'a> PackedItems<'a> {
    /// Makes the list. None if `bytes` end before `count` items do.
    #[inline]
    pub fn new(bytes: &'a [u8], count: u32) -> Option<Self> {
        let items = Self { bytes, left: count };
        let mut rest = items;
        while rest.left > 0 {
            rest.take_item()?;
        }
        Some(items)
    }

    /// Reads items up to the end of `bytes`. None if the last item is cut off.
    #[inline]
    pub fn to_end(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Self { bytes, left: u32::MAX };
        while !rest.bytes.is_empty() {
            rest.take_item()?;
        }
        Some(Self {
            bytes,
            left: u32::MAX - rest.left,
        })
    }

    #[inline]
    fn take_item(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.bytes.split_first_chunk::<4>()?;
        let (item, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        (self.bytes, self.left) = (rest, self.left - 1);
        Some(item)
    }
}

impl ExactSizeIterator for PackedItems<'_> {}

impl<'a> Iterator for PackedItems<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 { None } else { self.take_item() }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

/// Keys that all have one length, one after the other: those of `multi_get_slots`.
#[derive(Clone, Copy, Debug)]
pub struct EqualKeys<'a> {
    bytes: &'a [u8],
    each: usize,
    count: usize,
}

impl<'a> EqualKeys<'a> {
    /// Makes the list. None if `bytes` are not `count` keys of one length, of at least one byte.
    #[inline]
    pub fn new(bytes: &'a [u8], count: usize) -> Option<Self> {
        let each = bytes.len().checked_div(count)?;
        (each > 0 && each * count == bytes.len()).then_some(Self { bytes, each, count })
    }

    /// Each key, in order.
    #[inline]
    pub fn iter(&self) -> core::slice::ChunksExact<'a, u8> {
        self.bytes.chunks_exact(self.each)
    }

    /// How many keys there are; one at least.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of a key.
    #[inline]
    pub fn each(&self) -> usize {
        self.each
    }

    /// All keys, one behind the other.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the first keys, at most `count` and at least one, and the keys behind them, if there are any.
    #[inline(always)]
    pub fn split(self, count: usize) -> (Self, Option<Self>) {
        if self.count <= count {
            return (self, None);
        }
        let (first, rest) = self.bytes.split_at(self.each * count);
        let of = |bytes, count| Self {
            bytes,
            each: self.each,
            count,
        };
        (of(first, count), Some(of(rest, self.count - count)))
    }
}

/// A table's index: table position in the module in the high half, index (0 = primary key) in the low half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexTarget {
    /// Position in the module.
    pub table: u16,
    /// 0: the primary key.
    pub index: u16,
}

impl IndexTarget {
    /// The number that host calls pass.
    pub const fn pack(self) -> u32 {
        (self.table as u32) << 16 | self.index as u32
    }
    /// Restores the target from the number of `pack`.
    pub const fn unpack(bits: u32) -> Self {
        Self {
            table: (bits >> 16) as u16,
            index: bits as u16,
        }
    }
}

/// Flags of a [`ScanRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ScanFlags(pub u32);

impl ScanFlags {
    /// Keys that begin with the lower bound are not in the range.
    pub const LOWER_EXCLUSIVE: u32 = 1;
    /// Keys that begin with the upper bound are not in the range.
    pub const UPPER_EXCLUSIVE: u32 = 2;
    /// The range from the end to the start.
    pub const REVERSE: u32 = 4;
    /// The rows of the call's own partitions are wanted, whatever there is on others.
    pub const LOCAL: u32 = 8;
    const KNOWN: u32 = 15;

    /// Whether one of the above is set.
    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
    /// None is set but the above.
    pub const fn is_known(self) -> bool {
        self.0 & !Self::KNOWN == 0
    }
}

/// A range of an ordered index. A bound is compared with the first `bound.len()` bytes of each encoded key. A bound of leading columns
/// therefore includes (or excludes) every key that starts with it, and an empty inclusive bound is no bound.
#[derive(Clone, Copy, Debug)]
pub struct ScanRequest<'a> {
    /// Table and index.
    pub target: IndexTarget,
    /// Which bounds are part of it, and its direction.
    pub flags: ScanFlags,
    /// Rows at most; 0 = no limit.
    pub limit: u32,
    /// Empty: from the first row.
    pub lower: &'a [u8],
    /// Empty: up to the last row.
    pub upper: &'a [u8],
}

/// The result of a scan call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanBatch {
    /// 0 when the range (or the limit) is exhausted, else to be passed to `scan_next`.
    pub cursor: u32,
    /// Rows that were visited.
    pub rows: u32,
}

/// Importance of a line that a procedure logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// Lines for debugging.
    Debug = 0,
    /// Worth knowing.
    Info = 1,
    /// A possible problem.
    Warn = 2,
    /// Something is wrong.
    Error = 3,
}

impl LogLevel {
    /// The level of a host call's number; none for any other number.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::Debug),
            1 => Some(Self::Info),
            2 => Some(Self::Warn),
            3 => Some(Self::Error),
            _ => None,
        }
    }
}

/// Why a host call did not do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are said by their variants")]
pub enum OpError {
    /// The guest may handle it: the key exists in this index of the table.
    DuplicateKey { index: u16 },
    /// A value makes a key longer than any may be; the host ends the transaction. `key` names it and its columns.
    KeyTooLong { key: String },
    /// A limit of the transaction was reached; the host ends it. `limit` is its name, as in `docs/FORMAT.md`.
    Limit { limit: &'static str, max: u64 },
    /// A mistake in the guest; the host ends the transaction.
    Guest(String),
    /// The operator ended the call, or its client waits no longer; no guest sees it as a value.
    Ended(EndReason),
}

/// The reason why a running call was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// An operator cancelled it.
    Cancelled,
    /// The time for which its client waits is over.
    Deadline,
}

/// `HostOps::multi_get_columns` by whole rows.
pub fn look_up_rows<O: HostOps + ?Sized>(
    ops: &mut O,
    target: IndexTarget,
    keys: PackedItems<'_>,
    plan: &ColumnPlan,
    out: &mut [u8],
) -> Result<usize, OpError> {
    let mut room = OutBuffer::new(plan, out);
    ops.multi_get(target, keys, &mut |handle, row| room.push(handle, row))?;
    Ok(room.filled())
}

/// `HostOps::multi_get_slots` by one look-up for each key.
pub fn fill_slots<O: HostOps + ?Sized>(
    ops: &mut O,
    target: IndexTarget,
    keys: EqualKeys<'_>,
    mut slots: FixedSlots<'_>,
) -> Result<usize, OpError> {
    for key in keys.iter() {
        match ops.get(target, key)? {
            Some((handle, row)) => slots.put(handle, row),
            None => slots.put(HANDLE_NONE, &[]),
        }
    }
    Ok(slots.misfits())
}

/// `HostOps::scan_columns` by whole rows, which `scan` shows.
pub fn scan_rows(
    plan: &ColumnPlan,
    out: &mut [u8],
    scan: impl FnOnce(&mut dyn FnMut(RowHandle, &[u8]) -> bool) -> Result<ScanBatch, OpError>,
) -> Result<(ScanBatch, usize), OpError> {
    let mut room = OutBuffer::new(plan, out);
    let batch = scan(&mut |handle, row| room.try_push(handle, row))?;
    Ok((batch, room.filled()))
}

/// Takes the handle and the bytes of each row.
pub type RowVisitor<'v> = dyn FnMut(RowHandle, &[u8]) + 'v;
/// Takes the rows of a scan. False: it does not take this row, and the scan ends before it.
pub type RowTaker<'v> = dyn FnMut(RowHandle, &[u8]) -> bool + 'v;

/// A transaction as a procedure sees it. `txn` implements it over storage; `host` (wasm) and the SDK's native mode call it.
/// After an error other than `DuplicateKey` the caller must end the transaction without another call.
pub trait HostOps {
    /// The encoded arguments of this call (`value` module).
    fn args(&self) -> &[u8];
    /// Replaces the encoded result.
    fn set_result(&mut self, bytes: &[u8]) -> Result<(), OpError>;

    /// Finds one row by the whole key of a unique index (by a non-unique one: the first row with that key).
    fn get(&mut self, target: IndexTarget, key: &[u8]) -> Result<Option<(RowHandle, &[u8])>, OpError>;
    /// Looks up each key like `get`. `visit` receives the results in order; for a key without a row, `HANDLE_NONE` and no bytes.
    fn multi_get(
        &mut self,
        target: IndexTarget,
        keys: PackedItems<'_>,
        visit: &mut RowVisitor<'_>,
    ) -> Result<(), OpError> {
        for key in keys {
            match self.get(target, key)? {
                Some((handle, row)) => visit(handle, row),
                None => visit(HANDLE_NONE, &[]),
            }
        }
        Ok(())
    }
    /// Looks up like `multi_get` and writes some columns to `out` in the import's format. Returns the bytes that all results need; if
    /// `out` is shorter, its contents are undefined. `plan` belongs to the module's table.
    fn multi_get_columns(
        &mut self,
        target: IndexTarget,
        keys: PackedItems<'_>,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<usize, OpError> {
        look_up_rows(self, target, keys, plan, out)
    }
    /// Whether `get` would find a row.
    fn exists(&mut self, target: IndexTarget, key: &[u8]) -> Result<bool, OpError> {
        Ok(self.get(target, key)?.is_some())
    }
    /// Looks up like `multi_get_columns`, with one slot per key. Returns the number of rows that did not fit their slots.
    fn multi_get_slots(
        &mut self,
        target: IndexTarget,
        keys: EqualKeys<'_>,
        slots: FixedSlots<'_>,
    ) -> Result<usize, OpError> {
        fill_slots(self, target, keys, slots)
    }
    /// The row behind a handle, as it is now; the handle's copy is from now.
    fn row(&mut self, handle: RowHandle) -> Result<&[u8], OpError>;
    /// Puts in a row, valid by the layout of `table`.
    fn insert(&mut self, table: u16, row: &[u8]) -> Result<RowHandle, OpError>;
    /// Inserts rows in their order; the handle of the first, the others' following it. At a duplicate key it stops: the
    /// rows before stay inserted.
    fn multi_insert(&mut self, table: u16, rows: PackedItems<'_>) -> Result<RowHandle, OpError> {
        let mut first = HANDLE_NONE;
        for row in rows {
            let handle = self.insert(table, row)?;
            first = first.min(handle);
        }
        Ok(first)
    }
    /// Writes the whole row anew.
    fn update(&mut self, handle: RowHandle, row: &[u8]) -> Result<(), OpError>;
    /// The module's number of the table that a handle's row is of; none for a forged one.
    fn table_of_handle(&self, _handle: RowHandle) -> Option<u16> {
        None
    }
    /// The module's number of the table that an open cursor scans.
    fn table_of_cursor(&self, _cursor: u32) -> Option<u16> {
        None
    }
    /// Writes some columns of a row of `table`; `columns` fits its layout.
    fn patch(&mut self, table: u16, _handle: RowHandle, _columns: ColumnSet, _values: &[u8]) -> Result<(), OpError> {
        Err(OpError::Guest(format!("table {table} has no columns here")))
    }
    /// Patches each row like `patch`; each row's values take `bytes_each` bytes of `values`, in order. Stops at a duplicate key:
    /// earlier rows stay written.
    fn multi_patch(
        &mut self,
        table: u16,
        handles: Handles<'_>,
        columns: ColumnSet,
        bytes_each: usize,
        values: &[u8],
    ) -> Result<(), OpError> {
        for at in 0..handles.len() {
            let values = &values[at * bytes_each..(at + 1) * bytes_each];
            self.patch(table, handles.at(at), columns, values)?;
        }
        Ok(())
    }
    /// Removes the row.
    fn delete(&mut self, handle: RowHandle) -> Result<(), OpError>;
    /// Adds to an integer column that is in no key or index; the new value (of a `u64`: its bits).
    fn add(&mut self, handle: RowHandle, column: u16, delta: i64) -> Result<i64, OpError>;
    /// Adds like `add` to the row that `get` finds; none if there is no such row.
    fn add_by_key(&mut self, target: IndexTarget, key: &[u8], column: u16, delta: i64) -> Result<Option<i64>, OpError> {
        let Some((handle, _)) = self.get(target, key)? else {
            return Ok(None);
        };
        self.add(handle, column, delta).map(Some)
    }

    /// Visits rows in index order until the range ends or `visit` returns false; the row for which it did is visited
    /// again by `scan_next`. A visitor takes at least one row unless its buffer is too small for it.
    fn scan(&mut self, request: &ScanRequest<'_>, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError>;
    /// Continues a scan behind its last row; `cursor` is used up.
    fn scan_next(&mut self, cursor: u32, visit: &mut RowTaker<'_>) -> Result<ScanBatch, OpError>;
    /// Scans like `scan` and writes some columns to `out` in the import's format; also returns the bytes written. `plan` belongs to
    /// the module's table.
    fn scan_columns(
        &mut self,
        request: &ScanRequest<'_>,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<(ScanBatch, usize), OpError> {
        scan_rows(plan, out, |visit| self.scan(request, visit))
    }
    /// Continues a scan like `scan_next`, writing columns like `scan_columns`.
    fn scan_next_columns(
        &mut self,
        cursor: u32,
        plan: &ColumnPlan,
        out: &mut [u8],
    ) -> Result<(ScanBatch, usize), OpError> {
        scan_rows(plan, out, |visit| self.scan_next(cursor, visit))
    }
    /// Gives up an open cursor.
    fn scan_close(&mut self, cursor: u32) -> Result<(), OpError> {
        Err(OpError::Guest(format!("cursor {cursor} is not open")))
    }
    /// Counts the rows of a range.
    fn count(&mut self, request: &ScanRequest<'_>) -> Result<u64, OpError>;

    /// The number of a point to which the transaction may be taken back.
    fn savepoint(&mut self) -> Result<u32, OpError>;
    /// Rolls back the writes since the savepoint, which stays. Later savepoints are dropped.
    fn rollback_to(&mut self, savepoint: u32) -> Result<(), OpError>;

    /// Asked between slices of work: may the call go on? An error ends it.
    fn go_on(&mut self) -> Result<(), OpError> {
        Ok(())
    }
    /// Factor on the limits of a call. It is more than one for a committed call that runs again, because its limits were checked before. It
    /// is so, too, for calls that only time and memory limit.
    fn limits_times(&self) -> u64 {
        1
    }

    /// Returns the fuel that the call may burn, if it differs from the limit of every transaction.
    fn fuel_max(&self) -> Option<u64> {
        None
    }

    /// The transaction's time, in microseconds since 1970.
    fn now_us(&self) -> i64;
    /// The transaction's id.
    fn txn_id(&self) -> u64;
    /// Name of the token that called; none without tokens.
    fn caller(&self) -> Option<&str> {
        None
    }
    /// The next number of the transaction's own stream.
    fn random_u64(&mut self) -> u64;
    /// Notes a line, kept whether the transaction commits or not.
    fn log(&mut self, level: LogLevel, text: &str) -> Result<(), OpError>;
    /// Notes the abort; the procedure must return right after it.
    fn abort(&mut self, code: &str, message: &str);
}
