//! Rows of several partitions in the order of an index. They are read ahead from stores that are open for a short time each.

use reprise_abi::{OpError, RowLayout, TableSchema};
use reprise_storage::{Range, Rid, ScanPosition, ShownRow, TableId, Visit};

use crate::{scan::scan_error, view::ViewStores};

/// Rows, and bytes, at which a page ends.
const PAGE_ROWS_MAX: usize = 64;
const PAGE_BYTES_MAX: usize = 32 << 10;
/// Index entries that are passed at once, whether the view sees their rows or not.
pub(crate) const ENTRIES_AT_ONCE: usize = 512;

/// The rows that a scan has read ahead on each of its stores. The view does not change, so the rows are valid while it is open.
pub struct ReadAheadPages {
    table: TableId,
    index: u16,
    heads: Vec<PageHead>,
    is_reverse: bool,
    /// Columns by which rows of several stores are ordered. None if there is one store.
    columns: Vec<u16>,
    layout: RowLayout,
    /// True if rows of the table have no name other than their numbers.
    is_numbered: bool,
}

/// A row that was read ahead.
#[derive(Clone, Copy)]
pub struct NextRow<'a> {
    /// Position of its store among those that are scanned.
    pub at: usize,
    /// Its place in that store.
    pub rid: Rid,
    /// Its number on its partition, if the table has no primary key; otherwise 0.
    pub number: u64,
    /// The row in its stored form.
    pub row: &'a [u8],
}

/// The next rows of one store.
struct PageHead {
    /// Behind the last one.
    position: ScanPosition,
    rows: Vec<ReadAhead>,
    bytes: Vec<u8>,
    /// Number of rows that were taken.
    taken: usize,
    /// Number of rows of the next page.
    rows_max: usize,
}

/// A row whose key and bytes end here in the bytes of its page.
struct ReadAhead {
    rid: Rid,
    number: u64,
    key_end: usize,
    end: usize,
}

impl PageHead {
    fn new(position: ScanPosition) -> Self {
        Self {
            position,
            rows: Vec::new(),
            bytes: Vec::new(),
            taken: 0,
            rows_max: 1,
        }
    }

    /// Returns the next row, and its key.
    fn next(&self, at: usize) -> Option<(NextRow<'_>, &[u8])> {
        let next = self.rows.get(self.taken)?;
        let start = self.taken.checked_sub(1).map_or(0, |before| self.rows[before].end);
        let row = NextRow {
            at,
            rid: next.rid,
            number: next.number,
            row: &self.bytes[next.key_end..next.end],
        };
        Some((row, &self.bytes[start..next.key_end]))
    }
}

impl ReadAheadPages {
    /// Makes the pages for an index of a table, from a position on each store.
    pub fn new(schema: &TableSchema, (table, index): (TableId, u16), positions: Vec<ScanPosition>) -> Self {
        let mut columns = Vec::new();
        if positions.len() > 1 {
            if let Some(secondary) = index.checked_sub(1) {
                columns.clone_from(&schema.indexes[secondary as usize].columns);
            }
            columns.extend_from_slice(&schema.primary_key);
        }
        Self {
            table,
            index,
            heads: positions.into_iter().map(PageHead::new).collect(),
            is_reverse: false,
            columns,
            layout: RowLayout::of_table(schema),
            is_numbered: schema.primary_key.is_empty(),
        }
    }

    pub(crate) fn stores(&self) -> usize {
        self.heads.len()
    }

    /// Reads ahead so that each store with more rows in the range has a next row. `first_store` is the first of them.
    pub fn fill(&mut self, stores: &mut dyn ViewStores, first_store: usize, range: &Range<'_>) -> Result<(), OpError> {
        self.is_reverse = range.is_reverse();
        let (columns, layout, table) = (&self.columns, &self.layout, self.table);
        for (at, head) in self.heads.iter_mut().enumerate() {
            if head.taken < head.rows.len() {
                continue;
            }
            head.rows.clear();
            head.bytes.clear();
            head.taken = 0;
            let rows_max = head.rows_max;
            head.rows_max = (2 * rows_max).min(PAGE_ROWS_MAX);
            while head.rows.is_empty() && !head.position.is_end() {
                let mut scanned = Ok(());
                stores.with_store(first_store + at, &mut |mut store| {
                    let (rows, bytes) = (&mut head.rows, &mut head.bytes);
                    let on_row = |ShownRow { rid, number, row }: ShownRow<'_>| {
                        layout.push_key(row, columns, bytes);
                        let key_end = bytes.len();
                        bytes.extend_from_slice(row);
                        rows.push(ReadAhead {
                            rid,
                            number: if self.is_numbered { number } else { 0 },
                            key_end,
                            end: bytes.len(),
                        });
                        match rows.len() < rows_max && bytes.len() < PAGE_BYTES_MAX {
                            true => Visit::Next,
                            false => Visit::Stop,
                        }
                    };
                    let upto = (&mut head.position, ENTRIES_AT_ONCE);
                    scanned = store.scan(table, self.index, range, upto, on_row);
                })?;
                scanned.map_err(scan_error)?;
            }
        }
        Ok(())
    }

    /// Returns the row that comes next. Of rows with equal keys, the first store's comes first. All stores must be filled.
    pub fn next(&self) -> Option<NextRow<'_>> {
        let mut best: Option<(NextRow<'_>, &[u8])> = None;
        for (at, head) in self.heads.iter().enumerate() {
            let Some(next) = head.next(at) else { continue };
            let is_better = |(_, other)| {
                if self.is_reverse {
                    next.1 > other
                } else {
                    next.1 < other
                }
            };
            if best.is_none_or(is_better) {
                best = Some(next);
            }
        }
        best.map(|(next, _)| next)
    }

    /// Takes the next row of a store.
    pub fn take(&mut self, at: usize) {
        self.heads[at].taken += 1;
    }
}
