//! Merges a transaction's net effect at its end, row by row in the order of first touch. The undo entries lead to the rows, and their
//! numbers name them. After-images are the live rows. Images from before show which columns an update changed.

use reprise_abi::{ColumnSet, RowLayout};
use reprise_wire::Change;

use crate::{
    arena::Location,
    changelog::{
        AfterImage, UndoLog,
        columns::{NAMED_COLUMNS, differing_columns, patch_bytes, write_patch},
    },
    indirection::Rid,
    journal::{Undo, UndoKind},
    keyplan::StoredRow,
    rows::split_stored,
    table::StoredTable,
};

/// Number of rows up to which a row is searched one by one.
const FEW_ROWS: usize = 8;
const FREE: u32 = u32::MAX;

/// A row's bytes from before a change.
#[derive(Clone, Copy, Debug)]
enum BeforeImage {
    None,
    Place(Location),
    /// Bytes in the undo, the number included.
    Kept {
        at: usize,
        len: usize,
    },
}

/// All changes of one row, merged.
struct TouchedRow {
    /// Table and record id.
    row: u64,
    before: BeforeImage,
    /// Columns that differ, for a row that existed before.
    columns: u64,
    was_live: bool,
    /// True if a column set can't name all differences, so the whole row is written.
    is_whole: bool,
    /// The place of its bytes when it was deleted.
    gone: Option<Location>,
}

/// Memory that transactions reuse.
#[derive(Default)]
pub(super) struct ChangeMerge {
    touched: Vec<TouchedRow>,
    /// Positions in `touched` by hash of the row, if there are more than a few.
    slots: Vec<u32>,
}

impl ChangeMerge {
    /// Appends a transaction's changes to `out`. Returns the number of rows changed.
    pub fn append(&mut self, tables: &[StoredTable], undo: UndoLog<'_>, images: AfterImage, out: &mut Vec<u8>) -> u32 {
        self.gather(tables, undo, images);
        let mut rows = 0;
        for touched in &self.touched {
            let table = &tables[(touched.row >> 32) as usize];
            rows += touched.write(table, images, out) as u32;
        }
        rows
    }

    fn gather(&mut self, tables: &[StoredTable], log: UndoLog<'_>, images: AfterImage) {
        let ops = log.ops;
        self.touched.clear();
        self.slots.clear();
        if ops.len() > FEW_ROWS {
            self.slots.resize((2 * ops.len()).next_power_of_two(), FREE);
        }
        let mut at = 0;
        for undo in ops {
            let found = self.find_or_add(undo.row());
            let table = &tables[undo.table as usize];
            self.touched[found].add_change(undo, at, table, log.bytes, images);
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
        self.touched.push(TouchedRow::new(row));
        next
    }
}

impl TouchedRow {
    fn new(row: u64) -> Self {
        Self {
            row,
            before: BeforeImage::None,
            columns: 0,
            was_live: true,
            is_whole: false,
            gone: None,
        }
    }

    /// Adds a change. The bytes that its undo kept begin at `at`.
    #[inline]
    fn add_change(&mut self, undo: &Undo, at: usize, table: &StoredTable, kept: &[u8], images: AfterImage) {
        let before = match undo.kind {
            UndoKind::Insert => {
                self.was_live = false;
                return;
            }
            UndoKind::Add => return self.add_sum(undo),
            UndoKind::Columns => {
                if matches!(self.before, BeforeImage::None) {
                    self.columns |= undo.detail;
                }
                return;
            }
            UndoKind::Delete => {
                self.gone = Some(undo.place());
                BeforeImage::Place(undo.place())
            }
            UndoKind::Move => BeforeImage::Place(undo.place()),
            UndoKind::Patch => BeforeImage::Kept {
                at,
                len: undo.place().len(),
            },
        };
        // An image from before is valid against the row as it is now, whatever changes came between.
        if !self.was_live || !matches!(self.before, BeforeImage::None) {
            return;
        }
        if images == AfterImage::Changed
            && let Some(now) = table.rows.get(undo.rid)
        {
            let old = before.read(table, kept).expect("an image was kept");
            self.add_difference(&table.layout, old.row, now);
        }
        self.before = before;
    }

    fn add_sum(&mut self, undo: &Undo) {
        if !matches!(self.before, BeforeImage::None) {
            return;
        }
        match undo.column() {
            column if column < NAMED_COLUMNS => self.columns |= 1 << column,
            _ => self.is_whole = true,
        }
    }

    fn add_difference(&mut self, layout: &RowLayout, old: &[u8], now: &[u8]) {
        match differing_columns(layout, old, now) {
            Some(columns) => self.columns |= columns,
            None => self.is_whole = true,
        }
    }

    /// Appends the change. False if the row did not change in the end.
    #[inline]
    fn write(&self, table: &StoredTable, images: AfterImage, out: &mut Vec<u8>) -> bool {
        let number = (self.row >> 32) as u16;
        let live = table.rows.live(Rid(self.row as u32));
        match (self.was_live, live) {
            (false, Some(now)) => {
                let (table, number, row) = (number, now.number, now.row);
                Change::Insert { table, number, row }.encode(out);
                true
            }
            (_, None) => self.write_gone(table, number, out),
            (true, Some(now)) => self.write_update(table, now, images, out),
        }
    }

    /// Writes the deletion of a row that existed before, or of a row that was inserted and deleted. The latter took a number, and the next
    /// number follows it. An insertion that was rolled back leaves nothing.
    fn write_gone(&self, table: &StoredTable, id: u16, out: &mut Vec<u8>) -> bool {
        match self.gone {
            Some(place) => {
                let number = table.rows.read(place).number;
                Change::Delete { table: id, number }.encode(out);
                true
            }
            None => false,
        }
    }

    #[inline]
    fn write_update(&self, table: &StoredTable, now: StoredRow<'_>, images: AfterImage, out: &mut Vec<u8>) -> bool {
        let id = (self.row >> 32) as u16;
        if images == AfterImage::Changed && !self.is_whole {
            if self.columns == 0 {
                return false;
            }
            let columns = ColumnSet(self.columns);
            if patch_bytes(&table.layout, columns, now.row) < now.row.len() {
                write_patch(out, id, now.number, &table.layout, columns, now.row);
                return true;
            }
        }
        let (table, number, row) = (id, now.number, now.row);
        Change::Replace { table, number, row }.encode(out);
        true
    }
}

impl BeforeImage {
    #[inline]
    fn read<'a>(self, table: &'a StoredTable, kept: &'a [u8]) -> Option<StoredRow<'a>> {
        match self {
            Self::None => None,
            Self::Place(place) => Some(table.rows.read(place)),
            Self::Kept { at, len } => Some(split_stored(&kept[at..at + len])),
        }
    }
}
