//! Rows and the operations on them. `#[table]` writes a thin method for each, so that a table reads as its own type.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use reprise_abi::{IndexTarget, RowHandle, ScalarType};

use crate::{
    column::Columns, found_row::FoundRow, key::WholeKey, module::TableInfo, ops::Answer, scratch::Scratch, txn::Txn,
};

pub use crate::duplicate::DuplicateKey;
pub use crate::many::{FoundRows, SameLayout, multi_get, multi_read, multi_read_alike};

/// A type whose values are rows of a table, or some columns of them. Implemented by `#[table]` and `#[columns]`.
pub trait Table: Sized {
    /// Bytes on the stack that hold a usual row after 8 bytes of a scan's header.
    type Buffer: RowBuffer;
    /// A buffer of zeros.
    const EMPTY_BUFFER: Self::Buffer;
    /// The table as declared.
    const INFO: &'static TableInfo;
    /// Some columns of the table, or all of them: whole rows.
    const COLUMNS: Option<Columns> = None;
    /// Types of the columns that `COLUMNS` chooses, and whether they may be null.
    const SHAPE: &'static [(ScalarType, bool)] = &[];

    /// Bytes of the row as it is stored.
    fn row_bytes(&self) -> usize;
    /// Writes the row to `out`, which is zeroed and `row_bytes()` long.
    fn write_row(&self, out: &mut [u8]);
}

/// A buffer whose length the compiler knows, so that fields at fixed places are read without a check.
pub trait RowBuffer: AsRef<[u8]> + AsMut<[u8]> {
    /// Buffers that lie one behind the other.
    fn slots(bytes: &[u8]) -> &[Self]
    where
        Self: Sized;
}

impl<const N: usize> RowBuffer for [u8; N] {
    #[inline(always)]
    fn slots(bytes: &[u8]) -> &[Self] {
        bytes.as_chunks().0
    }
}

/// How a row is read from bytes that live for `'r`.
pub trait ReadRow<'r>: Table {
    /// The row that the bytes begin with; behind it may be others. None when they begin with no row of this table.
    fn read_row(row: &'r [u8]) -> Option<Self>;
}

/// A row that owns all that it holds.
pub trait Owned: Table + for<'r> ReadRow<'r> {}
impl<T: Table + for<'r> ReadRow<'r>> Owned for T {}

/// A table that `module!` lists, and its position there.
#[diagnostic::on_unimplemented(
    message = "table `{Self}` is not part of the module",
    note = "list it in `reprise_procedure::module! {{ tables: [...], ... }}`"
)]
pub trait InModule {
    /// Its position among the module's tables.
    const TABLE: u16;
}

/// A table's index number `I` (0 = primary key) and the tuple of its columns' types.
pub trait IndexOf<const I: u16>: Table {
    /// The types of the index's columns, as a tuple.
    type Columns;
}

/// Some columns of table `T`. Implemented by `#[columns]`.
pub trait ColumnsOf<T>: Table {}

/// A row that was read, and its handle in the transaction.
#[derive(Clone, Debug)]
pub struct Row<T> {
    value: T,
    handle: RowHandle,
}

impl<T> Deref for Row<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Row<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Row<T> {
    pub(crate) fn new(value: T, handle: RowHandle) -> Self {
        Self { value, handle }
    }

    /// Makes new values for the row behind a handle, for `update_many`. They are values of columns other than those that were read.
    pub fn at(handle: RowHandle, value: T) -> Self {
        Self { value, handle }
    }

    /// The row's number in this transaction.
    pub fn handle(&self) -> RowHandle {
        self.handle
    }

    /// The row as it was read.
    pub fn into_inner(self) -> T {
        self.value
    }
}

impl<T: Table> Row<T> {
    /// Writes the row, or the columns that were read of it, back to the table as they are now in memory. If the row was changed since it
    /// was read, other than through this copy, it ends the transaction with the table's name. In that case `refresh` the row, or add to
    /// columns.
    #[inline]
    pub fn update(&self, tx: &Txn<'_>) -> Result<(), DuplicateKey> {
        write(tx, self.handle, &self.value)
    }

    /// Deletes the row.
    pub fn delete(self, tx: &Txn<'_>) {
        tx.ops.delete(self.handle);
    }

    /// Reads the row again, for instance after a roll back to a savepoint.
    pub fn refresh(&mut self, tx: &Txn<'_>)
    where
        T: Owned,
    {
        self.value = read_by_handle(tx, self.handle);
    }

    /// Adds to an integer column in the table, and in memory; returns the new value. Overflow ends the transaction.
    ///
    /// `row.add(tx, Account::BALANCE, -5)`: a table has such a constant for each integer column that is in no key.
    #[inline(always)]
    pub fn add<C: Integer>(&mut self, tx: &Txn<'_>, column: SumColumn<T, C>, delta: i64) -> C {
        let value = C::from_sum(tx.ops.add(self.handle, column.position, delta));
        (column.set)(&mut self.value, value);
        value
    }
}

/// An integer column of table `T` that is in no key. A table has one as a constant: of the column `hits`, `Table::HITS`.
pub struct SumColumn<T, C> {
    position: u16,
    set: fn(&mut T, C),
}

impl<T, C> SumColumn<T, C> {
    #[doc(hidden)]
    pub const fn new(position: u16, set: fn(&mut T, C)) -> Self {
        Self { position, set }
    }
}

/// A type of integer columns.
pub trait Integer: Copy {
    /// Converts the host's sum, which fits in the column.
    #[doc(hidden)]
    fn from_sum(sum: i64) -> Self;
}

macro_rules! integer {
    ($($ty:ty)*) => {$(
        impl Integer for $ty {
            #[inline(always)]
            fn from_sum(sum: i64) -> Self {
                sum as Self
            }
        }
    )*};
}
integer! { i8 i16 i32 i64 u8 u16 u32 u64 }

/// Writes a row, or some columns of one, under a handle of the table.
#[inline(always)]
pub fn write<T: Table>(tx: &Txn<'_>, handle: RowHandle, value: &T) -> Result<(), DuplicateKey> {
    with_row(value, |row| match T::COLUMNS {
        None => {
            let written = tx.ops.update(handle, row);
            written.map_err(|index| DuplicateKey::of_row(T::INFO, index, row))
        }
        Some(columns) => tx.ops.patch(&[handle], columns, row).map_err(duplicate::<T>),
    })
}

/// Writes the columns that were read of many rows, in one host call.
pub fn update_many<T: Table>(tx: &Txn<'_>, rows: &[Row<T>]) -> Result<(), DuplicateKey> {
    let mut updates = Updates::with_room_for(rows.len());
    rows.iter().for_each(|row| updates.push(row.handle, &row.value));
    updates.write(tx)
}

/// Rows in the making, one behind the other. They are zeros until they are written.
struct PackedRows {
    bytes: Vec<u8>,
    filled: usize,
}

impl PackedRows {
    #[inline]
    fn with_room_for(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
            filled: 0,
        }
    }

    /// The next bytes, which are zeros.
    #[inline(always)]
    fn take(&mut self, bytes: usize) -> &mut [u8] {
        let (start, end) = (self.filled, self.filled + bytes);
        if end > self.bytes.len() {
            self.bytes = grown(std::mem::take(&mut self.bytes), 2 * end);
        }
        self.filled = end;
        self.bytes.get_mut(start..end).unwrap_or_default()
    }

    #[inline(always)]
    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or(&[])
    }
}

/// Takes and gives the block by value, so that a block that was never lent can be held in registers.
#[cold]
#[inline(never)]
fn grown<T: Clone + Default>(mut room: Vec<T>, count: usize) -> Vec<T> {
    room.resize(count, T::default());
    room
}

/// Some columns of rows that are written together: each is put down when it comes, and all go to the table in one host call.
pub struct Updates<T> {
    /// Handles of the rows that were pushed, and room for more.
    handles: Vec<RowHandle>,
    count: usize,
    values: PackedRows,
    table: PhantomData<fn() -> T>,
}

impl<T: Table> Updates<T> {
    const COLUMNS: Columns = T::COLUMNS.expect("columns of a table, not its whole rows");

    /// Reserves room for `rows` rows.
    pub fn with_room_for(rows: usize) -> Self {
        Self {
            handles: vec![0; rows],
            count: 0,
            values: PackedRows::with_room_for(rows * (T::EMPTY_BUFFER.as_ref().len() - 8)),
            table: PhantomData,
        }
    }

    /// The row's columns will be these.
    #[inline(always)]
    pub fn push(&mut self, handle: RowHandle, value: &T) {
        if self.count == self.handles.len() {
            self.handles = grown(std::mem::take(&mut self.handles), 2 * self.count + 1);
        }
        if let Some(place) = self.handles.get_mut(self.count) {
            *place = handle;
        }
        self.count += 1;
        value.write_row(self.values.take(value.row_bytes()));
    }

    /// Writes them in the order in which they came.
    #[inline(always)]
    pub fn write(self, tx: &Txn<'_>) -> Result<(), DuplicateKey> {
        let handles = self.handles.get(..self.count).unwrap_or(&[]);
        tx.ops
            .patch(handles, Self::COLUMNS, self.values.as_slice())
            .map_err(duplicate::<T>)
    }
}

/// Rows that are inserted together: each is put down when it comes, and all go to the table in one host call. Of whole rows, or
/// of columns that are all of a table's.
pub struct Inserts<T> {
    rows: PackedRows,
    count: u32,
    table: PhantomData<fn() -> T>,
}

impl<T: InModule + Table> Inserts<T> {
    const IS_WHOLE: () = assert!(
        T::COLUMNS.is_none() || T::SHAPE.len() == T::INFO.columns.len(),
        "a row is inserted with all of its columns"
    );

    /// Reserves room for `rows` rows.
    pub fn with_room_for(rows: usize) -> Self {
        let () = Self::IS_WHOLE;
        Self {
            rows: PackedRows::with_room_for(rows * T::EMPTY_BUFFER.as_ref().len()),
            count: 0,
            table: PhantomData,
        }
    }

    /// Adds a row; it is inserted with the others.
    #[inline(always)]
    pub fn push(&mut self, row: &T) {
        let length = row.row_bytes();
        let out = self.rows.take(4 + length);
        if let Some((head, out)) = out.split_first_chunk_mut::<4>() {
            *head = (length as u32).to_le_bytes();
            row.write_row(out);
        }
        self.count += 1;
    }

    /// Inserts like `insert_many` of a table.
    #[inline(always)]
    pub fn insert(self, tx: &Txn<'_>) -> Result<(), DuplicateKey> {
        let inserted = tx.ops.multi_insert(T::TABLE, self.rows.as_slice(), self.count);
        inserted.map_err(duplicate::<T>)
    }
}

#[cold]
fn duplicate<T: Table>(index: u16) -> DuplicateKey {
    DuplicateKey::new(T::INFO, index)
}

/// A row that was found and not read: enough to add to its columns or to delete it.
#[derive(Clone, Copy, Debug)]
pub struct RowRef<T> {
    handle: RowHandle,
    table: PhantomData<fn() -> T>,
}

impl<T> RowRef<T> {
    /// The row's number in this transaction.
    pub fn handle(&self) -> RowHandle {
        self.handle
    }

    /// Deletes the row.
    pub fn delete(self, tx: &Txn<'_>) {
        tx.ops.delete(self.handle);
    }

    /// Adds like `add` to a row that was read, and returns the new value.
    #[inline(always)]
    pub fn add<C: Integer>(&self, tx: &Txn<'_>, column: SumColumn<T, C>, delta: i64) -> C {
        C::from_sum(tx.ops.add(self.handle, column.position, delta))
    }
}

pub(crate) const fn target(table: u16, index: u16) -> u32 {
    IndexTarget { table, index }.pack()
}

/// Encodes `row` on the stack if it fits, else on the heap.
#[inline(always)]
fn with_row<T: Table, R>(row: &T, then: impl FnOnce(&[u8]) -> R) -> R {
    let bytes = row.row_bytes();
    let mut buffer = T::EMPTY_BUFFER;
    let mut heap = Vec::new();
    let out = match buffer.as_mut().get_mut(..bytes) {
        Some(out) => out,
        None => {
            heap.resize(bytes, 0);
            heap.as_mut_slice()
        }
    };
    row.write_row(out);
    then(out)
}

/// The row that was answered, or read again over the heap when it was too long for it.
#[inline(always)]
fn found_row<T: Owned>(tx: &Txn<'_>, found: FoundRow, answer: &Answer<T::Buffer>) -> Row<T> {
    let row = answer.filled();
    let value = match row.len() == found.bytes {
        true => T::read_row(row).unwrap_or_else(|| misfit()),
        false => read_by_handle(tx, found.handle),
    };
    Row::new(value, found.handle)
}

/// Reads the row, or columns of it, behind a handle of the table: of a row of which other columns were read.
#[inline(always)]
pub fn read<T: Owned>(tx: &Txn<'_>, handle: RowHandle) -> Row<T> {
    let mut answer = Answer::new(T::EMPTY_BUFFER);
    let bytes = tx.ops.row_read_into(handle, T::COLUMNS, &mut answer);
    found_row(tx, FoundRow { handle, bytes }, &answer)
}

#[cold]
#[inline(never)]
fn read_by_handle<T: Owned>(tx: &Txn<'_>, handle: RowHandle) -> T {
    T::read_row(&read_long(tx, handle, T::COLUMNS, size_of::<T::Buffer>())).unwrap_or_else(|| misfit())
}

/// The bytes of a row, or of columns of one, whatever their number.
#[cold]
#[inline(never)]
pub(crate) fn read_long(tx: &Txn<'_>, handle: RowHandle, columns: Option<Columns>, usual: usize) -> Vec<u8> {
    let mut row = vec![0; usual];
    loop {
        let bytes = match columns {
            None => tx.ops.row_read(handle, &mut row),
            Some(columns) => tx.ops.row_read_columns(handle, columns, &mut row),
        };
        if bytes <= row.len() {
            row.truncate(bytes);
            return row;
        }
        row.resize(bytes, 0);
    }
}

/// Room for one row of which texts are borrowed (`get_in`).
pub struct RowRoom<T: Table> {
    usual: Answer<T::Buffer>,
    /// A row that is longer than usual.
    long: Vec<u8>,
}

impl<T: Table> Default for RowRoom<T> {
    #[inline(always)]
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Table> RowRoom<T> {
    /// Room for one row.
    #[inline(always)]
    pub fn new() -> Self {
        Self {
            usual: Answer::new(T::EMPTY_BUFFER),
            long: Vec::new(),
        }
    }
}

/// Gets a row like `get`, with texts that lie in `room`.
#[inline(always)]
pub fn get_in<'r, T: InModule + IndexOf<I> + ReadRow<'r>, const I: u16>(
    tx: &Txn<'_>,
    key: impl WholeKey<<T as IndexOf<I>>::Columns>,
    room: &'r mut RowRoom<T>,
) -> Option<Row<T>> {
    let mut bytes = Scratch::new();
    key.push_whole(&mut bytes);
    let (target, key) = (target(T::TABLE, I), bytes.as_slice());
    let found = tx.ops.get_into(target, key, T::COLUMNS, &mut room.usual)?;
    Some(row_in(tx, found, room))
}

/// Reads a row like `read`, with texts that lie in `room`.
#[inline(always)]
pub fn read_in<'r, T: ReadRow<'r>>(tx: &Txn<'_>, handle: RowHandle, room: &'r mut RowRoom<T>) -> Row<T> {
    let bytes = tx.ops.row_read_into(handle, T::COLUMNS, &mut room.usual);
    row_in(tx, FoundRow { handle, bytes }, room)
}

#[inline(always)]
fn row_in<'r, T: ReadRow<'r>>(tx: &Txn<'_>, found: FoundRow, room: &'r mut RowRoom<T>) -> Row<T> {
    // Each way reads the row for itself: of the usual one the compiler knows how long it is.
    let row = match room.usual.filled().len() == found.bytes {
        true => T::read_row(room.usual.room()),
        false => {
            room.long = read_long(tx, found.handle, T::COLUMNS, found.bytes);
            T::read_row(&room.long)
        }
    };
    Row::new(row.unwrap_or_else(|| misfit()), found.handle)
}

/// A stored row is valid, so it can only be a `SmallText` that is too small for what another version of the module wrote.
#[cold]
#[inline(never)]
pub(crate) fn misfit() -> ! {
    panic!("a stored row does not fit its Rust type (is a SmallText too small for it?)")
}

/// The row with this key.
#[inline(always)]
pub fn get<T: InModule + IndexOf<I> + Owned, const I: u16>(
    tx: &Txn<'_>,
    key: impl WholeKey<<T as IndexOf<I>>::Columns>,
) -> Option<Row<T>> {
    let mut bytes = Scratch::new();
    key.push_whole(&mut bytes);
    let mut answer = Answer::new(T::EMPTY_BUFFER);
    let (target, key) = (target(T::TABLE, I), bytes.as_slice());
    let found = tx.ops.get_into(target, key, T::COLUMNS, &mut answer)?;
    Some(found_row(tx, found, &answer))
}

/// Whether a row with this key exists, without reading it.
#[inline(always)]
pub fn exists<T: InModule + IndexOf<I>, const I: u16>(
    tx: &Txn<'_>,
    key: impl WholeKey<<T as IndexOf<I>>::Columns>,
) -> bool {
    let mut bytes = Scratch::new();
    key.push_whole(&mut bytes);
    tx.ops.exists(target(T::TABLE, I), bytes.as_slice())
}

/// Adds to an integer column of the row with this key and returns the new value; overflow ends the transaction.
#[doc(hidden)]
#[inline(always)]
pub fn add_by_key<T: InModule + IndexOf<I>, const I: u16>(
    tx: &Txn<'_>,
    key: impl WholeKey<<T as IndexOf<I>>::Columns>,
    column: u16,
    delta: i64,
) -> Option<i64> {
    let mut bytes = Scratch::new();
    key.push_whole(&mut bytes);
    tx.ops.add_by_key(target(T::TABLE, I), column, bytes.as_slice(), delta)
}

/// The row with this key, without reading it.
#[inline(always)]
pub fn find<T: InModule + IndexOf<I>, const I: u16>(
    tx: &Txn<'_>,
    key: impl WholeKey<<T as IndexOf<I>>::Columns>,
) -> Option<RowRef<T>> {
    let mut bytes = Scratch::new();
    key.push_whole(&mut bytes);
    let found = tx.ops.get(target(T::TABLE, I), bytes.as_slice(), &mut [])?;
    Some(RowRef {
        handle: found.handle,
        table: PhantomData,
    })
}

/// Changes the row with this key. False: there is none.
#[inline]
pub fn update_by_key<T: InModule + IndexOf<I> + Owned, const I: u16>(
    tx: &Txn<'_>,
    key: impl WholeKey<<T as IndexOf<I>>::Columns>,
    change: impl FnOnce(&mut T),
) -> Result<bool, DuplicateKey> {
    let Some(mut row) = get::<T, I>(tx, key) else {
        return Ok(false);
    };
    change(&mut row.value);
    row.update(tx)?;
    Ok(true)
}

/// Inserts a row; an error names the unique index in which its key is taken.
#[inline(always)]
pub fn insert<T: Table + InModule>(tx: &Txn<'_>, row: &T) -> Result<RowHandle, DuplicateKey> {
    with_row(row, |row| {
        let inserted = tx.ops.insert(T::TABLE, row);
        inserted.map_err(|index| DuplicateKey::of_row(T::INFO, index, row))
    })
}

/// Inserts many rows in one host call.
pub fn insert_many<T: Table + InModule>(tx: &Txn<'_>, rows: &[T]) -> Result<(), DuplicateKey> {
    let mut inserts = Inserts::with_room_for(rows.len());
    rows.iter().for_each(|row| inserts.push(row));
    inserts.insert(tx)
}

/// Takes one `[handle u32][len u32][row]` off the front.
#[inline]
pub(crate) fn take_row<'a>(bytes: &mut &'a [u8]) -> Option<(RowHandle, &'a [u8])> {
    let (handle, rest) = bytes.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (row, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    *bytes = rest;
    Some((u32::from_le_bytes(*handle), row))
}
