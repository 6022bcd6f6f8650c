//! Digests of tables as they were at one moment, made while transactions run. Two nodes that replayed the same log have the same digests.
//! Rows are read a slice at a time. A row that is about to change is taken first, as for a snapshot.

use std::sync::Arc;

use reprise_base::{Budget, Grant};

use crate::{
    digest::fold, keyplan::StoredRow, rows::RowHeap, schema, snapshot::ScanProgress, store::TableId, table::StoredTable,
};

/// The digest of a table at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableDigest {
    /// The table's number.
    pub table: u16,
    /// Digest of the parts of the schema that matter to the rows.
    pub schema: u64,
    /// Number of its rows.
    pub rows: u64,
    /// Digest of the rows with their numbers, of their count, and of the number that the next row would get. It does not depend on the
    /// order of the rows.
    pub digest: u64,
}

/// Digests that are being made.
pub(crate) struct Digests {
    /// The state of each table, by number. None for tables that are left out, or done.
    tables: Vec<Option<TableDigesting>>,
    done: Vec<TableDigest>,
    _grant: Option<Grant>,
}

pub(crate) struct TableDigesting {
    pub taken: ScanProgress,
    /// Sum of the digests of the rows that were taken.
    sum: u64,
    next_number: u64,
    /// The digest with everything but the rows.
    begun: TableDigest,
}

impl TableDigesting {
    fn new(id: TableId, table: &StoredTable) -> Option<Self> {
        (!table.schema.is_dropped()).then(|| Self {
            taken: ScanProgress::none_of(&table.rows),
            sum: 0,
            next_number: table.next_number(),
            begun: TableDigest {
                table: id.0,
                schema: schema::digest(&table.schema),
                rows: table.rows.count(),
                digest: 0,
            },
        })
    }

    /// Reads rows until `bytes` are used up. True if no row is left.
    pub fn go_on(&mut self, rows: &RowHeap, bytes: &mut usize) -> bool {
        let Self { taken, sum, .. } = self;
        taken.take(rows, bytes, |row| *sum = sum.wrapping_add(digest_of_row(row)))
    }

    /// Adds a row, as `StoredTable::rows_digest` does.
    pub fn add(&mut self, row: StoredRow<'_>) {
        self.sum = self.sum.wrapping_add(digest_of_row(row));
    }
}

impl Digests {
    pub fn new(tables: &[StoredTable]) -> Self {
        let numbered = (0..).map(TableId).zip(tables);
        Self {
            tables: numbered.map(|(id, table)| TableDigesting::new(id, table)).collect(),
            done: Vec::new(),
            _grant: None,
        }
    }

    /// Counts the memory of the marks of taken rows, like any other memory.
    pub fn count_in(&mut self, budget: Option<&Arc<Budget>>) {
        let done: u64 = self.tables.iter().flatten().map(|table| table.taken.done_bytes()).sum();
        self._grant = budget.map(|budget| budget.take(done));
    }

    pub fn table_mut(&mut self, id: TableId) -> Option<&mut TableDigesting> {
        self.tables.get_mut(id.0 as usize)?.as_mut()
    }

    /// Reads rows until `bytes` are used up. True if no row is left.
    pub fn go_on(&mut self, tables: &[StoredTable], bytes: &mut usize) -> bool {
        for (at, table) in tables.iter().enumerate() {
            let Some(digesting) = self.tables.get_mut(at).and_then(Option::as_mut) else {
                continue;
            };
            if !digesting.go_on(&table.rows, bytes) {
                return false;
            }
            self.end_table(at);
        }
        // All rows of tables that were dropped meanwhile were taken before.
        (0..self.tables.len()).for_each(|at| self.end_table(at));
        true
    }

    fn end_table(&mut self, at: usize) {
        if let Some(table) = self.tables[at].take() {
            let TableDigesting {
                sum,
                next_number,
                begun,
                ..
            } = table;
            let digest = digest_of(sum, next_number, begun.rows);
            self.done.push(TableDigest { digest, ..begun });
        }
    }

    /// Returns the digests by table number, without dropped tables.
    pub fn into_found(self) -> Vec<TableDigest> {
        self.done
    }
}

fn digest_of_row(row: StoredRow<'_>) -> u64 {
    fold(0, row.number, row.row)
}

/// Returns the digest of a table, from the sum of its rows' digests.
pub(crate) fn digest_of(sum: u64, next_number: u64, rows: u64) -> u64 {
    fold(fold(sum, next_number, &[]), rows, &[])
}
