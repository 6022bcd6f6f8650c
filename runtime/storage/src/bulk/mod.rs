//! Fills tables from a checkpoint: first the rows, a block at a time, then each index from all rows at once.

pub(crate) mod radix;

use reprise_abi::RowLayout;
use reprise_wire::{CheckpointRows, WireError};

use crate::{
    index::{FillError, Index},
    keyplan::StoredRow,
    numbers::NUMBER_MAX,
    rows::RowHeap,
    store::{Store, TableId},
    table::{StoredTable, WriteError, write_error},
};

/// Why the rows of a block can't be the table's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum LoadError {
    #[error("{0}")]
    Block(WireError),
    #[error("{0}")]
    Row(WriteError),
    #[error("two rows have number {0}")]
    Number(u64),
}

/// An empty table that is being filled. Its indexes are empty until they are built, so it must not be used before.
pub struct TableLoad<'s> {
    id: TableId,
    table: &'s mut StoredTable,
    /// Number behind the greatest one that was read.
    numbers_end: u64,
}

/// An index that must still be built. The indexes of one table are built in parallel.
pub struct IndexLoad<'s> {
    index: &'s mut Index,
    /// Its place in the table.
    number: u16,
    rows: &'s RowHeap,
    layout: &'s RowLayout,
}

impl Store {
    /// Returns all tables, which are filled in parallel. It panics if one has rows.
    pub fn loads(&mut self) -> Vec<TableLoad<'_>> {
        assert!(!self.in_txn(), "tables are filled between transactions");
        let tables = self.tables.iter_mut().enumerate();
        let loads = tables.map(|(number, table)| {
            assert!(table.rows.rids_end() == 0, "a table is filled once, when it is new");
            TableLoad {
                id: TableId(number as u16),
                table,
                numbers_end: 0,
            }
        });
        loads.collect()
    }
}

impl<'s> TableLoad<'s> {
    /// Returns the table that is filled.
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Takes the rows of a block and returns their number. Each is checked against the table's layout.
    pub fn rows(&mut self, raw: &[u8]) -> Result<u32, LoadError> {
        let StoredTable { rows, layout, .. } = &mut *self.table;
        let mut count = 0;
        for row in CheckpointRows::new(raw) {
            let (row, number) = row.map_err(LoadError::Block)?;
            let valid = layout.validate(row);
            valid.map_err(|error| LoadError::Row(WriteError::Malformed(error)))?;
            if rows.is_full() {
                return Err(LoadError::Row(WriteError::Full));
            }
            self.numbers_end = self.numbers_end.max(number.saturating_add(1));
            let taken = rows.try_insert(StoredRow { row, number });
            taken.map_err(|_| LoadError::Number(number))?;
            count += 1;
        }
        Ok(count)
    }

    /// Ends the rows and returns the indexes to build. `next_number` is the number of the next row. None if a row has that number or a
    /// later one.
    pub fn finish(self, next_number: u64) -> Option<Vec<IndexLoad<'s>>> {
        if next_number < self.numbers_end || next_number > NUMBER_MAX || !self.table.raise_next_number(next_number) {
            return None;
        }
        let StoredTable {
            rows, layout, indexes, ..
        } = self.table;
        let (rows, layout) = (&*rows, &*layout);
        let loads = indexes.iter_mut().enumerate().map(|(number, index)| IndexLoad {
            index,
            number: number as u16,
            rows,
            layout,
        });
        Some(loads.collect())
    }
}

impl IndexLoad<'_> {
    /// Returns the number of entries that it will have.
    pub fn entries(&self) -> u64 {
        self.rows.count()
    }

    /// Builds the index. It refuses rows that the index could not hold together.
    pub fn build(self) -> Result<(), WriteError> {
        match self.index.fill(self.rows, self.layout, &|_| true) {
            Ok(()) => Ok(()),
            Err(FillError::Refused(refused)) => Err(write_error(refused, self.number as usize)),
            Err(FillError::Ended) => unreachable!("a load is never ended"),
        }
    }
}
