//! The running transaction's net effect, row by row in the order of first touch: the body of a physiological record
//! (paper A, section III-A). Rows are found by the undo entries, after-images are the live rows, and images from before serve
//! to name a row whose key changed and to tell which columns an update changed.

use reprise_abi::{ColumnSet, RowLayout, row::ColumnSlot};
use reprise_wire::{Change, PatchWriter, RowName};

use crate::{
    arena::Location,
    indirection::Rid,
    journal::{Journal, Undo, UndoKind},
    keyplan::{NO_PREVIOUS, RowRef, Scratch},
    store::Store,
    table::Table,
};

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
    /// In the journal's bytes, the hidden number included.
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
    scratch: Scratch,
}

impl Store {
    /// Appends the changes of the running transaction (walked by `reprise_wire::Changes`) to `out`; the number of rows
    /// changed. Applied by `apply` to a store that is as this one was when the transaction began, they make it the same.
    pub fn write_set(&mut self, images: AfterImage, out: &mut Vec<u8>) -> u32 {
        assert!(
            self.journal.is_active,
            "only a running transaction has changes"
        );
        let (tables, set) = (&self.tables, &mut self.write_set);
        set.gather(tables, &self.journal, images);
        let mut rows = 0;
        for touched in &set.touched {
            let table = &tables[(touched.row >> 32) as usize];
            rows += touched.write(table, &self.journal, images, &mut set.scratch, out) as u32;
        }
        rows
    }
}

impl WriteSet {
    fn gather(&mut self, tables: &[Table], journal: &Journal, images: AfterImage) {
        let ops = &journal.ops[journal.txn_start..];
        self.touched.clear();
        self.slots.clear();
        if ops.len() > FEW_ROWS {
            self.slots.resize((2 * ops.len()).next_power_of_two(), FREE);
        }
        let mut at = journal.txn_bytes_start;
        for undo in ops {
            let found = self.find_or_add((undo.table as u64) << 32 | undo.rid.0 as u64);
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
        self.touched.push(Touched {
            row,
            before: Before::None,
            columns: 0,
            was_live: true,
            is_whole: false,
            gone: None,
        });
        next
    }
}

impl Touched {
    /// Takes up a change; bytes that its undo kept lie at `at`.
    #[inline]
    fn note(
        &mut self,
        undo: &Undo,
        at: usize,
        table: &Table,
        journal: &Journal,
        images: AfterImage,
    ) {
        let before = match undo.kind {
            UndoKind::Insert => {
                self.was_live = false;
                return;
            }
            UndoKind::Add => return self.note_sum(undo, table),
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

    fn note_sum(&mut self, undo: &Undo, table: &Table) {
        if !matches!(self.before, Before::None) {
            return;
        }
        let columns = &table.layout.columns;
        let column = columns
            .iter()
            .position(|slot| slot.offset as u64 == undo.detail);
        match column {
            Some(column) if column < NAMED_COLUMNS => self.columns |= 1 << column,
            _ => self.is_whole = true,
        }
    }

    fn note_difference(&mut self, layout: &RowLayout, old: &[u8], now: &[u8]) {
        if layout.columns.len() > NAMED_COLUMNS {
            self.is_whole |= old != now;
            return;
        }
        for (at, slot) in layout.columns.iter().enumerate() {
            if column_value(layout, old, slot) != column_value(layout, now, slot) {
                self.columns |= 1 << at;
            }
        }
    }

    /// Appends the change; false where nothing came of it.
    #[inline]
    fn write(
        &self,
        table: &Table,
        journal: &Journal,
        images: AfterImage,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> bool {
        let number = (self.row >> 32) as u16;
        let live = table.rows.live(Rid(self.row as u32));
        match (self.was_live, live) {
            (false, Some(now)) => {
                let row_number = table.has_number().then_some(now.number);
                let (table, number, row) = (number, row_number, now.row);
                Change::Insert { table, number, row }.encode(out);
                true
            }
            (false, None) => self.write_passed_number(table, number, out),
            (true, None) => {
                let before = self.before.read(table, journal);
                let name = name_of(table, before.expect("a deletion kept the row"), scratch);
                Change::Delete {
                    table: number,
                    name,
                }
                .encode(out);
                true
            }
            (true, Some(now)) => self.write_update(table, journal, now, images, scratch, out),
        }
    }

    /// A row without a key that came and went took a number, and the next one continues behind it.
    fn write_passed_number(&self, table: &Table, number: u16, out: &mut Vec<u8>) -> bool {
        match self.gone {
            Some(place) if table.has_number() => {
                let name = RowName::Number(table.rows.read(place).number);
                Change::Delete {
                    table: number,
                    name,
                }
                .encode(out);
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn write_update(
        &self,
        table: &Table,
        journal: &Journal,
        now: RowRef<'_>,
        images: AfterImage,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) -> bool {
        let number = (self.row >> 32) as u16;
        let before = self.before.read(table, journal);
        let is_moved =
            before.is_some_and(|before| !table.indexes[0].plan.is_same(before.row, now.row));
        if images == AfterImage::Changed && !is_moved && !self.is_whole {
            if self.columns == 0 {
                return false;
            }
            let columns = ColumnSet(self.columns);
            if patch_bytes(&table.layout, columns, now.row) < now.row.len() {
                let name = name_of(table, now, scratch);
                write_patch(out, number, name, &table.layout, columns, now.row);
                return true;
            }
        }
        let named = if is_moved { before.unwrap_or(now) } else { now };
        let (table, name, row) = (number, name_of(table, named, scratch), now.row);
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
            Self::Kept { at, len } => Some(table.rows.split(&journal.bytes[at..at + len])),
        }
    }
}

#[inline]
fn name_of<'s>(table: &Table, row: RowRef<'_>, scratch: &'s mut Scratch) -> RowName<'s> {
    if table.has_number() {
        return RowName::Number(row.number);
    }
    RowName::Key(
        table.indexes[0]
            .plan
            .encode(&table.layout, row, scratch)
            .bytes,
    )
}

/// Bytes of the columns in a patch, or a few more.
#[inline]
fn patch_bytes(layout: &RowLayout, columns: ColumnSet, row: &[u8]) -> usize {
    let bytes = columns.positions().map(|at| {
        let slot = &layout.columns[at];
        match slot.ty.is_variable() {
            true => 4 + column_value(layout, row, slot).map_or(0, <[u8]>::len),
            false => 2 + slot.ty.slot_bytes(),
        }
    });
    bytes.sum()
}

#[inline]
fn write_patch(
    out: &mut Vec<u8>,
    table: u16,
    name: RowName<'_>,
    layout: &RowLayout,
    columns: ColumnSet,
    row: &[u8],
) {
    let mut patch = PatchWriter::begin(out, table, name, columns.0.count_ones() as u16);
    for at in columns.positions() {
        patch.column(at as u16, column_value(layout, row, &layout.columns[at]));
    }
    patch.finish();
}

/// What a valid row holds in a column, without its length where that varies; none for null.
#[inline]
pub(crate) fn column_value<'a>(
    layout: &RowLayout,
    row: &'a [u8],
    slot: &ColumnSlot,
) -> Option<&'a [u8]> {
    if slot.is_null(row) {
        return None;
    }
    let at = slot.offset as usize;
    if !slot.ty.is_variable() {
        return Some(&row[at..at + slot.ty.slot_bytes()]);
    }
    let read =
        |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("4 bytes")) as usize;
    let start = match slot.previous {
        NO_PREVIOUS => 0,
        previous => read(previous as usize),
    };
    let data = layout.fixed_bytes();
    Some(&row[data + start..data + read(at)])
}
