//! Applies one change of the log to its table. It keeps no undo and runs no procedure. `redo` applies many changes.

use reprise_abi::{RowLayout, ScalarType, row::ColumnSlot};
use reprise_wire::{Change, Changes, PatchColumns, WireError};

use crate::{
    changelog::column_value,
    index::Index,
    indirection::Rid,
    keyplan::{KeyScratch, StoredRow},
    numbers::NUMBER_MAX,
    rows::RowHeap,
    store::Store,
    table::{StoredTable, WriteError, relink, unlink},
};

/// Why changes do not fit the tables. Some of them may have been applied, so the store is unusable then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum ApplyError {
    #[error("a changed row is of table number {table}, and there are {count} tables")]
    Table { table: u16, count: usize },
    #[error("the changed row with number {number} is not in table {table}")]
    Missing { table: String, number: u64 },
    #[error("a row comes to table {table} with number {found}, and {next} is the next one that the table gives out")]
    Number { table: String, found: u64, next: u64 },
    #[error("column {column} of table {table} can't take the {found} bytes that a change holds for it")]
    Column { table: String, column: u16, found: usize },
    #[error("a changed row does not fit table {table}: {error}")]
    Row { table: String, error: WriteError },
    #[error(transparent)]
    Malformed(#[from] WireError),
}

/// The steps of `Store::touch_change`, in the order in which it prefetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStep {
    /// Prefetches the line of the index that names the row.
    Index,
    /// Prefetches the word that names the row's place.
    Place,
    /// Prefetches the row's bytes.
    Row,
}

/// Number of rows below which a table is assumed to be in the caches.
const FAR_ROWS: u64 = 1 << 13;

/// A row that is taken out and put in again.
pub(crate) struct Again {
    /// The old row. None: the row is only inserted.
    pub rid: Option<Rid>,
    /// The row's new bytes. None: the row is deleted.
    pub row: Option<Vec<u8>>,
    pub number: u64,
}

/// Memory in which `Store::find_changed` makes keys.
#[derive(Default)]
pub struct RedoScratch(KeyScratch);

/// The row of a change.
#[derive(Clone, Copy)]
pub(crate) enum ChangeTarget {
    New,
    Row(Rid),
    /// A row that was inserted and deleted within its transaction.
    Passed,
}

/// Rows whose plain columns are written in place: no index and no length depends on them.
pub(crate) struct PlainRows<'t> {
    pub rows: &'t mut RowHeap,
    pub layout: &'t RowLayout,
    plain_columns: u64,
}

impl<'t> PlainRows<'t> {
    /// Returns the row, if it is live.
    pub fn into_live(self, rid: Rid) -> Option<StoredRow<'t>> {
        self.rows.live(rid)
    }

    /// Writes columns. False if the row is not live, or if some column can't be written in place. The columns before it are written then,
    /// and will be written again with the whole row.
    #[inline]
    pub fn put(&mut self, rid: Rid, columns: PatchColumns<'_>) -> bool {
        let Some(place) = self.rows.place(rid) else {
            return false;
        };
        let row = self.rows.bytes_mut(place);
        columns.iter().all(|(column, value)| {
            let slot = plain_slot(self.layout, self.plain_columns, column, value);
            slot.inspect(|slot| put_fixed(row, slot, value)).is_some()
        })
    }
}

/// Returns the column's slot if its value is written in place and nothing else depends on it.
#[inline]
fn plain_slot<'l>(layout: &'l RowLayout, plain: u64, column: u16, value: Option<&[u8]>) -> Option<&'l ColumnSlot> {
    if column >= 64 || plain >> column & 1 == 0 {
        return None;
    }
    let slot = &layout.columns[column as usize];
    let fits = match value {
        None => slot.is_nullable(),
        Some(value) if slot.ty == ScalarType::Bool => matches!(value, [0 | 1]),
        Some(value) => value.len() == slot.ty.slot_bytes(),
    };
    fits.then_some(slot)
}

impl Store {
    /// Prefetches the memory that `apply` of the change will read. For many changes, the caller does each step for all of them before the
    /// next.
    #[inline]
    pub fn touch_change(&self, change: &Change<'_>, prefetch: PrefetchStep) {
        if let Some(table) = self.tables.get(change.table() as usize)
            && table.is_far()
        {
            table.touch_change(change, prefetch);
        }
    }

    /// Finds the rows of one partition's changes of a record (`Changes`) the way that `apply` does, and changes nothing. Returns how many of the rows
    /// are here. Timed, this tells what the redo of such changes costs in these tables.
    pub fn find_changed(&self, changes: &[u8], scratch: &mut RedoScratch) -> u32 {
        let found = Changes::new(changes).map_while(Result::ok).filter(|change| {
            let table = self.tables.get(change.table() as usize);
            table.is_some_and(|table| table.has_changed(change, &mut scratch.0))
        });
        found.count() as u32
    }

    pub(crate) fn assert_no_undo(&self) {
        assert!(
            !self.journal.is_active && self.journal.ops.is_empty() && self.retained.is_empty(),
            "changes are applied where nothing can be taken back"
        );
    }
}

impl StoredTable {
    pub fn is_far(&self) -> bool {
        self.rows.count() >= FAR_ROWS
    }

    #[inline]
    pub fn touch_change(&self, change: &Change<'_>, prefetch: PrefetchStep) {
        if let Change::Insert { row, .. } = change {
            let index = &self.indexes[0];
            if prefetch == PrefetchStep::Index && row.len() >= self.layout.fixed_bytes() {
                let tag = index.touch_of(StoredRow { row, number: 0 });
                tag.into_iter().for_each(|tag| index.touch_tag(tag));
            }
            return;
        }
        let number = change.number();
        if prefetch == PrefetchStep::Index {
            return self.rows.touch_number(number);
        }
        match self.rows.numbered_candidate(number) {
            Some(rid) if prefetch == PrefetchStep::Place => self.rows.touch_place(rid),
            Some(rid) => self.rows.touch(rid),
            None => {}
        }
    }

    /// True if the row exists and the change is about it.
    #[inline]
    pub fn is_row_of(&self, rid: Rid, change: &Change<'_>) -> bool {
        !matches!(change, Change::Insert { .. }) && self.is_numbered(rid, change.number())
    }

    /// True if the row exists and has that number.
    #[inline]
    pub fn is_numbered(&self, rid: Rid, number: u64) -> bool {
        self.rows.live(rid).is_some_and(|row| row.number == number)
    }

    /// Returns the row of that number, which must exist.
    #[inline]
    pub fn numbered(&self, number: u64) -> Result<Rid, ApplyError> {
        self.find(number).ok_or_else(|| self.missing(number))
    }

    /// Returns the row of a change.
    #[inline]
    pub fn target(&self, change: &Change<'_>) -> Result<ChangeTarget, ApplyError> {
        let number = match change {
            Change::Insert { .. } => return Ok(ChangeTarget::New),
            Change::Replace { number, .. } | Change::Patch { number, .. } | Change::Delete { number, .. } => *number,
        };
        match self.find(number) {
            Some(rid) => Ok(ChangeTarget::Row(rid)),
            None if matches!(change, Change::Delete { .. }) => Ok(ChangeTarget::Passed),
            None => Err(self.missing(number)),
        }
    }

    /// Makes the change and returns the inserted row, if there is one. A change that is refused as a duplicate changes nothing.
    #[inline]
    pub fn carry_out(
        &mut self,
        change: &Change<'_>,
        target: ChangeTarget,
        scratch: &mut KeyScratch,
    ) -> Result<Option<Rid>, ApplyError> {
        match (change, target) {
            (Change::Insert { number, row, .. }, _) => {
                let number = self.check_number(*number)?;
                let put = self.put_new(row, number, scratch);
                return Ok(Some(put.map_err(|error| self.unfit(error))?));
            }
            (Change::Delete { number, .. }, ChangeTarget::Passed) => self.pass_number(*number)?,
            (Change::Delete { .. }, ChangeTarget::Row(rid)) => self.take_out(rid, scratch),
            (Change::Replace { row, .. }, ChangeTarget::Row(rid)) => {
                let put = self.put(rid, row, scratch);
                put.map_err(|error| self.unfit(error))?;
            }
            (Change::Patch { columns, .. }, ChangeTarget::Row(rid)) => {
                self.put_columns(rid, *columns, scratch)?;
            }
            (Change::Replace { number, .. } | Change::Patch { number, .. }, _)
            | (Change::Delete { number, .. }, ChangeTarget::New) => return Err(self.missing(*number)),
        }
        Ok(None)
    }

    /// Returns the row that the change leaves. It serves changes whose rows are all taken out before any is put in.
    pub fn last_state(&mut self, change: &Change<'_>) -> Result<Again, ApplyError> {
        let number = change.number();
        let again = |rid, row| Again { rid, row, number };
        let target = self.target(change)?;
        Ok(match (change, target) {
            (Change::Insert { row, .. }, _) => {
                self.take_number(number)?;
                again(None, Some(row.to_vec()))
            }
            (Change::Delete { .. }, ChangeTarget::Passed) => {
                self.pass_number(number)?;
                again(None, None)
            }
            (_, ChangeTarget::Row(rid)) => {
                let row = match change {
                    Change::Replace { row, .. } => Some(row.to_vec()),
                    Change::Patch { columns, .. } => Some(self.patched(self.rows.at(rid).row, *columns)?),
                    Change::Insert { .. } | Change::Delete { .. } => None,
                };
                again(Some(rid), row)
            }
            (_, ChangeTarget::New | ChangeTarget::Passed) => return Err(self.missing(number)),
        })
    }

    fn missing(&self, number: u64) -> ApplyError {
        ApplyError::Missing {
            table: self.schema.name.clone(),
            number,
        }
    }

    pub fn unfit(&self, error: WriteError) -> ApplyError {
        ApplyError::Row {
            table: self.schema.name.clone(),
            error,
        }
    }

    /// Returns the row of that number, if it exists.
    #[inline]
    pub fn find(&self, number: u64) -> Option<Rid> {
        match self.has_number() {
            true => Some(self.indexes[0].get(&self.rows, &number.to_be_bytes())?.0),
            false => self.rows.by_number(number),
        }
    }

    /// Whether the change's row is here. It reads what making the change would read: an insertion looks into every index.
    pub fn has_changed(&self, change: &Change<'_>, scratch: &mut KeyScratch) -> bool {
        match change {
            Change::Insert { row, number, .. } => {
                let row = StoredRow { row, number: *number };
                self.validate(row.row).is_ok()
                    && self.indexes.iter().all(|index| {
                        let found = index.has(&self.rows, &self.layout, row, scratch);
                        found.is_ok_and(|found| found || !index.is_unique)
                    })
            }
            _ => self.find(change.number()).and_then(|rid| self.rows.live(rid)).is_some(),
        }
    }

    /// Checks the number of a row that will be inserted. A table with a primary key has numbers without gaps, because the log has every row
    /// that took one.
    #[inline]
    pub fn check_number(&self, number: u64) -> Result<u64, ApplyError> {
        match !self.has_number() && number != self.next_number() || number > NUMBER_MAX {
            true => Err(self.misnumbered(number)),
            false => Ok(number),
        }
    }

    /// The `check_number` variant for a row that is inserted later: the next number follows it.
    fn take_number(&mut self, number: u64) -> Result<(), ApplyError> {
        self.check_number(number)?;
        self.record_number(number);
        Ok(())
    }

    /// Skips the number of a row that was inserted and deleted within its transaction. No other row gets it.
    fn pass_number(&mut self, number: u64) -> Result<(), ApplyError> {
        match number >= self.next_number() {
            true => self.take_number(number),
            false => Err(self.missing(number)),
        }
    }

    #[cold]
    fn misnumbered(&self, found: u64) -> ApplyError {
        ApplyError::Number {
            table: self.schema.name.clone(),
            found,
            next: self.next_number(),
        }
    }

    /// Refuses a second change of one row in one transaction: no write set has two.
    pub fn check_live(&self, rid: Rid) -> Result<(), ApplyError> {
        let live = self.rows.place(rid).map(|_| ());
        live.ok_or_else(|| self.unfit(WriteError::NotLive))
    }

    #[inline]
    pub fn put_new(&mut self, row: &[u8], number: u64, scratch: &mut KeyScratch) -> Result<Rid, WriteError> {
        let rid = self.rows.next_rid();
        self.load(row, number, scratch)?;
        Ok(rid)
    }

    pub fn take_out(&mut self, rid: Rid, scratch: &mut KeyScratch) {
        let row = self.rows.at(rid);
        unlink(&mut self.indexes, &self.layout, rid, row, scratch);
        let place = self.rows.bury(rid);
        self.rows.free(place);
        self.rows.release(rid);
    }

    /// Replaces a live row by `row`.
    fn put(&mut self, rid: Rid, row: &[u8], scratch: &mut KeyScratch) -> Result<(), WriteError> {
        self.validate(row)?;
        let place = self.rows.place(rid).ok_or(WriteError::NotLive)?;
        let old = self.rows.read(place);
        let new = StoredRow {
            row,
            number: old.number,
        };
        if self.check_relink(old, new, scratch)? {
            relink(&mut self.indexes, &self.layout, &self.rows, rid, old, new, scratch);
        }
        match self.rows.resized(place, row.len()) {
            Some(to) => self.overwrite(rid, place, to, new),
            None => {
                let to = self.rows.store(new);
                self.rows.redirect(rid, to);
                self.rows.free(place);
            }
        }
        Ok(())
    }

    #[inline]
    pub fn put_columns(
        &mut self,
        rid: Rid,
        columns: PatchColumns<'_>,
        scratch: &mut KeyScratch,
    ) -> Result<(), ApplyError> {
        if self.plain_rows().put(rid, columns) {
            return Ok(());
        }
        let row = self.patched(self.rows.at(rid).row, columns)?;
        self.put(rid, &row, scratch).map_err(|error| self.unfit(error))
    }

    /// True if `PlainRows::put` can write the columns of any row of the table.
    #[inline]
    pub fn fits_plain(&self, columns: PatchColumns<'_>) -> bool {
        let mut columns = columns.iter();
        columns.all(|(column, value)| plain_slot(&self.layout, self.plain_columns, column, value).is_some())
    }

    #[inline]
    pub fn plain_rows(&mut self) -> PlainRows<'_> {
        self.split().0
    }

    /// Returns its rows, and the indexes of them.
    #[inline]
    pub fn split(&mut self) -> (PlainRows<'_>, &[Index]) {
        let rows = PlainRows {
            rows: &mut self.rows,
            layout: &self.layout,
            plain_columns: self.plain_columns,
        };
        (rows, &self.indexes)
    }

    /// Returns the row with these columns in place of its own.
    fn patched(&self, old: &[u8], columns: PatchColumns<'_>) -> Result<Vec<u8>, ApplyError> {
        let unfit = |column: u16, value: Option<&[u8]>| ApplyError::Column {
            table: self.schema.name.clone(),
            column,
            found: value.map_or(0, <[u8]>::len),
        };
        let mut patch = columns.iter().peekable();
        let mut row = old[..self.layout.fixed_bytes()].to_vec();
        for (at, slot) in self.layout.columns.iter().enumerate() {
            let patched = patch.next_if(|(column, _)| *column as usize == at);
            let value = match patched {
                Some((_, value)) => value,
                None => column_value(&self.layout, old, slot),
            };
            let fits = match value {
                None => slot.is_nullable(),
                Some(value) => slot.ty.is_variable() || value.len() == slot.ty.slot_bytes(),
            };
            if !fits {
                return Err(unfit(at as u16, value));
            }
            put_value(&self.layout, &mut row, at, value);
        }
        match patch.next() {
            Some((column, value)) => Err(unfit(column, value)),
            None => Ok(row),
        }
    }
}

#[inline]
fn put_null_bit(row: &mut [u8], slot: &ColumnSlot, is_null: bool) {
    let bit = 1 << (slot.null_bit % 8);
    let byte = &mut row[slot.null_bit as usize / 8];
    *byte = if is_null { *byte | bit } else { *byte & !bit };
}

/// Puts a value of a fixed length in its place.
#[inline]
fn put_fixed(row: &mut [u8], slot: &ColumnSlot, value: Option<&[u8]>) {
    if slot.is_nullable() {
        put_null_bit(row, slot, value.is_none());
    }
    let place = &mut row[slot.offset as usize..][..slot.ty.slot_bytes()];
    match value {
        Some(value) => place.copy_from_slice(value),
        None => place.fill(0),
    }
}

/// Adds the value of the next column to a row that is being built: its slot, its null bit, and its data at the end.
fn put_value(layout: &RowLayout, row: &mut Vec<u8>, column: usize, value: Option<&[u8]>) {
    let slot = &layout.columns[column];
    if slot.ty.is_variable() {
        if slot.is_nullable() {
            put_null_bit(row, slot, value.is_none());
        }
        let at = slot.offset as usize;
        row.extend_from_slice(value.unwrap_or_default());
        let end = (row.len() - layout.fixed_bytes()) as u32;
        row[at..at + 4].copy_from_slice(&end.to_le_bytes());
        return;
    }
    put_fixed(row, slot, value);
}
