//! The memory that a declared table would take. A deployment asks for it before it is logged, because no step after its record may fail.

use reprise_abi::TableSchema;
use reprise_base::MemoryLedger;
use reprise_pages::PAGE_BYTES;

use crate::{
    evolve::TableChange,
    store::{Store, TableId},
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
        let table = &change.schema;
        let held = self.tables[id.0 as usize].memory_bytes() as u64;
        let entries = (table.indexes.len() as u64 + 1) * self.stats(id).rows * ENTRY_BYTES;
        let bytes = held.saturating_add(entries);
        let mappings = Growth::of_new(table).mappings + (bytes / reprise_pages::HUGE_BYTES as u64) as usize;
        Growth { bytes, mappings }
    }
}

/// The bytes of a new index entry: an estimate.
const ENTRY_BYTES: u64 = 16;
