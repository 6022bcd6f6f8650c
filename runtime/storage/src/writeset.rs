//! The running transaction's net effect, row by row in the order of first touch: the body of a physiological record
//! (paper A, section III-A). Rows are found by the undo entries and named by their numbers, after-images are the live rows, and images
//! from before serve to tell which columns an update changed.

mod capture;

use reprise_abi::{ColumnSet, RowLayout, row::ColumnSlot};
use reprise_wire::{Change, ChangesBuffer, PatchWriter, RowName};

use crate::{
    arena::Location,
    indirection::Rid,
    journal::{Journal, Undo, UndoKind},
    keyplan::{NO_PREVIOUS, RowRef},
    rows::split_stored,
    store::Store,
    table::Table,
};

pub(crate) use capture::{Capture, Captured, Changed, PatchPlan, PatchPlans};

/// How updates are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AfterImage {
    /// The columns that changed, where that is shorter than the row.
    #[default]
    Changed,
    /// The whole row.
    Whole,
}

/// Columns that a `ColumnSet` can name.
const NAMED_COLUMNS: usize = 64;
/// Rows up to which a row is looked for one by one.
const FEW_ROWS: usize = 8;
const FREE: u32 = u32::MAX;

/// A row's bytes from before a change.
#[derive(Clone, Copy, Debug)]
enum Before {
    None,
    Place(Location),
    /// In the journal's bytes, the number included.
    Kept {
        at: usize,
        len: usize,
    },
}

/// What became of one row.
struct Touched {
    /// Table and record id.
    row: u64,
    before: Before,
    /// Columns that differ, of a row that was there before.
    columns: u64,
    was_live: bool,
    /// Not all that differs can be named: write the whole row.
    is_whole: bool,
    /// Where its bytes lay when it was deleted.
    gone: Option<Location>,
}

/// Memory that is used again from transaction to transaction.
#[derive(Default)]
pub(crate) struct WriteSet {
    touched: Vec<Touched>,
    /// Positions in `touched` by hash of the row, where there are more than a few.
    slots: Vec<u32>,
}

impl Store {
    /// From now on the changes of the running transaction, which has made none yet, are written down as they are made:
    /// `write_set` and `take_changes` then cost little. Where whole rows are wanted it does nothing.
    #[inline]
    pub fn capture(&mut self, images: AfterImage) {
        let journal = &mut self.journal;
        assert!(
            journal.is_active && journal.ops.len() == journal.txn_start,
            "capture begins with a transaction"
        );
        if images == AfterImage::Changed {
            journal.capture.begin();
        }
    }

    /// Appends the changes of the running transaction (walked by `reprise_wire::Changes`) to `out`; the number of rows
    /// changed. Applied by `apply` to a store that is as this one was when the transaction began, they make it the same.
    pub fn write_set(&mut self, images: AfterImage, out: &mut Vec<u8>) -> u32 {
        let journal = &mut self.journal;
        assert!(journal.is_active, "only a running transaction has changes");
        if let Some((rows, changes)) = journal.captured_whole(images) {
            out.extend_from_slice(changes.as_bytes());
            return rows;
        }
        self.write_set.write_merged(&self.tables, journal, images, out)
    }

    /// As `write_set`, in place of what `out` holds.
    #[inline]
    pub fn take_changes(&mut self, images: AfterImage, out: &mut ChangesBuffer) -> u32 {
        if let Some((rows, changes)) = self.journal.captured_whole(images) {
            std::mem::swap(out, changes);
            self.journal.capture.is_on = false;
            return rows;
        }
        out.clear();
        out.other(|out| self.write_set(images, out))
    }
}

impl Store {
    /// How many changes of the running transaction were written down so far, and their bytes, which only a rollback to a savepoint makes
    /// fewer. They count as they are where [`Store::is_captured`] says so at the transaction's end.
    #[inline]
    pub fn captured(&self) -> (u32, &[u8]) {
        self.journal.capture.so_far()
    }

    /// True where what was written down is the running transaction's write set: no row was changed twice.
    pub fn is_captured(&mut self, images: AfterImage) -> bool {
        self.journal.captured_whole(images).is_some()
    }
}

impl Journal {
    /// What was captured of the running transaction, if it is of use.
    #[inline]
    fn captured_whole(&mut self, images: AfterImage) -> Option<(u32, &mut ChangesBuffer)> {
        match images {
            AfterImage::Changed => self.capture.whole(&self.ops[self.txn_start..]),
            AfterImage::Whole => None,
        }
    }
}

impl WriteSet {
    /// Of any transaction: what was done to a row is put together first.
    fn write_merged(&mut self, tables: &[Table], journal: &Journal, images: AfterImage, out: &mut Vec<u8>) -> u32 {
        self.gather(tables, journal, images);
        let mut rows = 0;
        for touched in &self.touched {
            let table = &tables[(touched.row >> 32) as usize];
            rows += touched.write(table, images, out) as u32;
        }
        rows
    }

    fn gather(&mut self, tables: &[Table], journal: &Journal, images: AfterImage) {
        let ops = &journal.ops[journal.txn_start..];
        self.touched.clear();
        self.slots.clear();
        if ops.len() > FEW_ROWS {
            self.slots.resize((2 * ops.len()).next_power_of_two(), FREE);
        }
        let mut at = journal.txn_bytes_start;
        for undo in ops {
            let found = self.find_or_add(undo.row());
            let table = &tables[undo.table as usize];
            self.touched[found].note(undo, at, table, journal, images);
            at += undo.kept_bytes();
        }
    }

    #[inline]
    fn find_or_add(&mut self, row: u64) -> usize {
        let next = self.touched.len();
        if self.slots.is_empty() {
            let found = self.touched.iter().rposition(|touched| touched.row == row);
            if let Some(found) = found {
                return found;
            }
        } else {
            let mask = self.slots.len() - 1;
            let mut slot = (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
            while self.slots[slot] != FREE {
                let found = self.slots[slot] as usize;
                if self.touched[found].row == row {
                    return found;
                }
                slot = (slot + 1) & mask;
            }
            self.slots[slot] = next as u32;
        }
        self.touched.push(Touched::new(row));
        next
    }
}

impl Touched {
    fn new(row: u64) -> Self {
        Self {
            row,
            before: Before::None,
            columns: 0,
            was_live: true,
            is_whole: false,
            gone: None,
        }
    }

    /// Takes up a change; bytes that its undo kept lie at `at`.
    #[inline]
    fn note(&mut self, undo: &Undo, at: usize, table: &Table, journal: &Journal, images: AfterImage) {
        let before = match undo.kind {
            UndoKind::Insert => {
                self.was_live = false;
                return;
            }
            UndoKind::Add => return self.note_sum(undo),
            UndoKind::Columns => {
                if matches!(self.before, Before::None) {
                    self.columns |= undo.detail;
                }
                return;
            }
            UndoKind::Delete => {
                self.gone = Some(undo.place());
                Before::Place(undo.place())
            }
            UndoKind::Move => Before::Place(undo.place()),
            UndoKind::Patch => Before::Kept {
                at,
                len: undo.place().len(),
            },
        };
        // An image from before holds against the row as it is now, whatever came between.
        if !self.was_live || !matches!(self.before, Before::None) {
            return;
        }
        if images == AfterImage::Changed
            && let Some(now) = table.rows.get(undo.rid)
        {
            let old = before.read(table, journal).expect("an image was kept");
            self.note_difference(&table.layout, old.row, now);
        }
        self.before = before;
    }

    fn note_sum(&mut self, undo: &Undo) {
        if !matches!(self.before, Before::None) {
            return;
        }
        match undo.column() {
            column if column < NAMED_COLUMNS => self.columns |= 1 << column,
            _ => self.is_whole = true,
        }
    }

    fn note_difference(&mut self, layout: &RowLayout, old: &[u8], now: &[u8]) {
        match differing_columns(layout, old, now) {
            Some(columns) => self.columns |= columns,
            None => self.is_whole = true,
        }
    }

    /// Appends the change; false where nothing came of it.
    #[inline]
    fn write(&self, table: &Table, images: AfterImage, out: &mut Vec<u8>) -> bool {
        let number = (self.row >> 32) as u16;
        let live = table.rows.live(Rid(self.row as u32));
        match (self.was_live, live) {
            (false, Some(now)) => {
                let (table, number, row) = (number, Some(now.number), now.row);
                Change::Insert { table, number, row }.encode(out);
                true
            }
            (_, None) => self.write_gone(table, number, out),
            (true, Some(now)) => self.write_update(table, now, images, out),
        }
    }

    /// Of a row that was there, or one that came and went: that took a number, and the next one continues behind it. Nothing of an
    /// insertion that was taken back.
    fn write_gone(&self, table: &Table, number: u16, out: &mut Vec<u8>) -> bool {
        match self.gone {
            Some(place) => {
                let name = RowName::Number(table.rows.read(place).number);
                Change::Delete { table: number, name }.encode(out);
                true
            }
            None => false,
        }
    }

    #[inline]
    fn write_update(&self, table: &Table, now: RowRef<'_>, images: AfterImage, out: &mut Vec<u8>) -> bool {
        let (number, name) = ((self.row >> 32) as u16, RowName::Number(now.number));
        if images == AfterImage::Changed && !self.is_whole {
            if self.columns == 0 {
                return false;
            }
            let columns = ColumnSet(self.columns);
            if patch_bytes(&table.layout, columns, now.row) < now.row.len() {
                write_patch(out, number, name, &table.layout, columns, now.row);
                return true;
            }
        }
        let (table, row) = (number, now.row);
        Change::Replace { table, name, row }.encode(out);
        true
    }
}

impl Before {
    #[inline]
    fn read<'a>(self, table: &'a Table, journal: &'a Journal) -> Option<RowRef<'a>> {
        match self {
            Self::None => None,
            Self::Place(place) => Some(table.rows.read(place)),
            Self::Kept { at, len } => Some(split_stored(&journal.bytes[at..at + len])),
        }
    }
}

/// The columns in which two rows differ; none where not all that do can be named.
fn differing_columns(layout: &RowLayout, old: &[u8], now: &[u8]) -> Option<u64> {
    if old == now {
        return Some(0);
    }
    if layout.columns.len() > NAMED_COLUMNS {
        return None;
    }
    let slots = layout.columns.iter().enumerate();
    let differ = |slot| column_value(layout, old, slot) != column_value(layout, now, slot);
    Some(slots.fold(0, |set, (at, slot)| set | (differ(slot) as u64) << at))
}

/// Bytes of the columns in a patch, or a few more.
#[inline]
fn patch_bytes(layout: &RowLayout, columns: ColumnSet, row: &[u8]) -> usize {
    let bytes = columns.positions().map(|at| {
        let slot = &layout.columns[at];
        match slot.ty.is_variable() {
            true => 4 + column_value(layout, row, slot).map_or(0, <[u8]>::len),
            false => capture::fixed_bytes(slot.ty.slot_bytes()),
        }
    });
    bytes.sum()
}

#[inline]
fn write_patch(out: &mut Vec<u8>, table: u16, name: RowName<'_>, layout: &RowLayout, columns: ColumnSet, row: &[u8]) {
    let mut patch = PatchWriter::begin(out, table, name, columns.0.count_ones() as u16);
    for at in columns.positions() {
        patch.column(at as u16, column_value(layout, row, &layout.columns[at]));
    }
    patch.finish();
}

/// What a valid row holds in a column, without its length where that varies; none for null.
#[inline]
pub(crate) fn column_value<'a>(layout: &RowLayout, row: &'a [u8], slot: &ColumnSlot) -> Option<&'a [u8]> {
    if slot.is_null(row) {
        return None;
    }
    let at = slot.offset as usize;
    if !slot.ty.is_variable() {
        return Some(&row[at..at + slot.ty.slot_bytes()]);
    }
    let read = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes")) as usize;
    let start = match slot.previous {
        NO_PREVIOUS => 0,
        previous => read(previous as usize),
    };
    let data = layout.fixed_bytes();
    Some(&row[data + start..data + read(at)])
}
