//! The memory that a declared table would take. A deployment asks for it before it is logged, because no step after its record may fail.

use reprise_abi::{ColumnSchema, Field, RowLayout, TableSchema};
use reprise_base::MemoryLedger;
use reprise_pages::PAGE_BYTES;

use crate::{
    evolve::TableChange,
    project::default_field,
    store::{Store, TableId},
    table::StoredTable,
};

/// The memory that a change of tables takes before it frees anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Growth {
    /// Bytes of memory.
    pub bytes: u64,
    /// Memory mappings, which a process has a limited number of.
    pub mappings: usize,
}

impl Growth {
    /// True if the ledger has that much left.
    pub fn fits(&self, memory: &MemoryLedger) -> bool {
        *self == Self::default() || memory.has_room(self.bytes) && reprise_pages::has_mappings(self.mappings)
    }

    /// Adds another growth to this one.
    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.mappings += other.mappings;
    }
}

impl Growth {
    /// Returns the memory of a new table.
    pub fn of_new(table: &TableSchema) -> Self {
        let indexes = table.indexes.len() + 1;
        let numbers = !table.primary_key.is_empty() as usize;
        Self {
            bytes: ((indexes + numbers) * PAGE_BYTES) as u64,
            // Two for the rows (places and bytes). Two for each index and for the numbers: leaves and inner nodes, or the parts of a dense
            // index.
            mappings: 2 + 2 * (indexes + numbers),
        }
    }
}

impl Store {
    /// Returns the memory of a changed table that is made beside the stored one. It is nothing if no table is made.
    pub fn growth_of(&self, id: TableId, change: &TableChange) -> Growth {
        if !change.rewrites_rows() && change.made_indexes() == 0 {
            return Growth::default();
        }
        let stored = &self.tables[id.0 as usize];
        let rows = match change.rewrites_rows() {
            true => stored.rows.growth_bytes(stored.added_row_bytes(change)),
            false => 0,
        };
        let entries = stored.rows.count().saturating_mul(stored.entries_bytes(change));
        let held = stored.memory_bytes() as u64;
        let bytes = held.saturating_add(rows).saturating_add(entries);
        let mappings = Growth::of_new(&change.schema).mappings + (bytes / reprise_pages::HUGE_BYTES as u64) as usize;
        Growth { bytes, mappings }
    }
}

impl StoredTable {
    /// Returns the bytes by which the change makes a row longer, at most: by wider slots, and by the defaults of new columns. Dropped columns
    /// may free more, because their values have any length.
    fn added_row_bytes(&self, change: &TableChange) -> usize {
        let columns = change.sources().iter().zip(&change.schema.columns);
        let added = columns.filter(|(source, _)| source.is_none());
        let data: usize = added.map(|(_, column)| default_data_bytes(column)).sum();
        let fixed = RowLayout::of_table(&change.schema).fixed_bytes();
        (fixed + data).saturating_sub(self.layout.fixed_bytes())
    }

    /// Estimates the bytes that the change adds to the index entries of each row. The stored entries are counted already.
    fn entries_bytes(&self, change: &TableChange) -> u64 {
        let table = &change.schema;
        let added = |columns: &[u16]| -> u64 {
            let columns = columns.iter();
            columns.map(|column| self.added_column_bytes(change, *column)).sum()
        };
        let primary = added(&table.primary_key);
        let secondary = table.indexes.iter().map(|index| match index.unique {
            true => added(&index.columns),
            false => added(&index.columns) + primary,
        });
        let keys = primary + secondary.sum::<u64>();
        (table.indexes.len() as u64 + 1) * ENTRY_BYTES + keys
    }

    /// Returns the bytes that the change adds to a column of a row: all of its bytes if the column is new, and else those of its wider slot.
    fn added_column_bytes(&self, change: &TableChange, column: u16) -> u64 {
        let declared = &change.schema.columns[column as usize];
        let slot = declared.ty.slot_bytes();
        let bytes = match change.sources()[column as usize] {
            Some(source) => slot.saturating_sub(self.schema.columns[source as usize].ty.slot_bytes()),
            None => slot + default_data_bytes(declared),
        };
        bytes as u64
    }
}

/// Returns the bytes of a new column's default in the variable part of a row.
fn default_data_bytes(column: &ColumnSchema) -> usize {
    match default_field(column) {
        Ok(Field::Text(text)) => text.len(),
        Ok(Field::Bytes(bytes)) => bytes.len(),
        // A column without a value in any row is refused if there are rows.
        _ => 0,
    }
}

/// The bytes of a new index entry: an estimate.
const ENTRY_BYTES: u64 = 16;

#[cfg(test)]
mod tests {
    use reprise_abi::{
        IndexSchema,
        ScalarType::{I8, I64, Text},
        value::push_bytes,
    };
    use reprise_pages::HUGE_BYTES;

    use super::*;
    use crate::evolve::plan_change;

    /// Memory comes in pieces, so the last ones may be nearly empty.
    const SLACK_BYTES: u64 = HUGE_BYTES as u64;
    const ROWS: i64 = 10_000;
    const SMALL: usize = 64;

    /// A table of small integers.
    fn filled() -> (Store, TableId) {
        let names = (0..SMALL).map(|at| (format!("c{at}"), I8));
        let columns = [("id".to_owned(), I64)].into_iter().chain(names);
        let columns = columns.map(|(name, ty)| ColumnSchema::new(name, ty)).collect();
        let mut store = Store::new();
        let created = store.create_table(TableSchema::new("t", columns, &[0]));
        let id = created.expect("schema is valid");
        store.begin();
        for number in 0..ROWS {
            let mut fields = vec![Field::Int(1); 1 + SMALL];
            fields[0] = Field::Int(number);
            let row = store.layout(id).build(&fields);
            store.insert(id, &row).expect("fresh key");
        }
        store.commit();
        (store, id)
    }

    /// Changes the table. Returns its counted growth, and the memory that the changed table takes.
    fn grow(change: impl FnOnce(&mut TableSchema)) -> (u64, u64) {
        let (mut store, id) = filled();
        let mut declared = store.schema(id).clone();
        change(&mut declared);
        let change = plan_change(store.schema(id), &declared).expect("no conflict");
        let counted = store.growth_of(id, &change).bytes;
        let Ok(prepared) = store.prepare(id, change, &|_| true) else {
            panic!("rows do not fit");
        };
        store.install(prepared);
        (counted, store.tables[id.0 as usize].memory_bytes() as u64)
    }

    /// A column with a text of this many bytes as its default.
    fn text(bytes: usize) -> ColumnSchema {
        let mut default = Vec::new();
        push_bytes(&mut default, &vec![b'x'; bytes]);
        ColumnSchema {
            default: Some(default),
            ..ColumnSchema::new("text", Text)
        }
    }

    #[test]
    fn growth_counts_the_default_of_a_new_column() {
        for bytes in [500, 5_000] {
            let (counted, taken) = grow(|table| table.columns.push(text(bytes)));
            assert!(taken > ROWS as u64 * bytes as u64, "{taken} bytes");
            assert!(counted + SLACK_BYTES >= taken, "{counted} of {taken} bytes");
        }
    }

    #[test]
    fn growth_counts_wider_columns() {
        let (counted, taken) = grow(|table| {
            let small = table.columns.iter_mut().filter(|column| column.ty == I8);
            small.for_each(|column| column.ty = I64);
        });
        assert!(taken > ROWS as u64 * 8 * SMALL as u64, "{taken} bytes");
        assert!(counted + SLACK_BYTES >= taken, "{counted} of {taken} bytes");
    }

    #[test]
    fn growth_counts_the_default_in_each_index_of_the_new_column() {
        let (without, _) = grow(|table| table.columns.push(text(500)));
        let (counted, taken) = grow(|table| {
            table.columns.push(text(500));
            let column = table.columns.len() as u16 - 1;
            table.indexes.push(IndexSchema::new("by_text", &[column], false));
        });
        assert!(counted >= without + ROWS as u64 * 500, "{without}, then {counted}");
        assert!(counted + SLACK_BYTES >= taken, "{counted} of {taken} bytes");
    }

    #[test]
    fn growth_counts_no_values_that_are_not_added() {
        let (without, _) = grow(|table| table.indexes.push(IndexSchema::new("by_c0", &[1], false)));
        let (dropped, _) = grow(|table| {
            table.columns.pop();
            table.indexes.push(IndexSchema::new("by_c0", &[1], false));
        });
        assert_eq!(dropped, without);
    }
}
