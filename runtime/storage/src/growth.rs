//! What a declared table would take: asked before a deployment is logged, for what follows its record can't fail.

use reprise_abi::TableSchema;
use reprise_base::MemoryLedger;
use reprise_pages::PAGE_BYTES;

use crate::{
    evolve::TableChange,
    store::{Store, TableId},
};

/// What a change of the tables takes before anything else may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Growth {
    /// Of memory.
    pub bytes: u64,
    /// Of memory, of which a process has so many.
    pub mappings: usize,
}

impl Growth {
    /// True where there is as much.
    pub fn fits(&self, memory: &MemoryLedger) -> bool {
        *self == Self::default() || memory.has_room(self.bytes) && reprise_pages::has_mappings(self.mappings)
    }

    /// As much more.
    pub fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.mappings += other.mappings;
    }
}

impl Growth {
    /// Returns what a new table takes.
    pub fn of_new(table: &TableSchema) -> Self {
        let indexes = table.indexes.len() + 1;
        let numbers = !table.primary_key.is_empty() as usize;
        Self {
            bytes: ((indexes + numbers) * PAGE_BYTES) as u64,
            // Places and bytes of rows; leaves and inner nodes, or what a dense index has, as the numbers of rows do.
            mappings: 2 + 2 * (indexes + numbers),
        }
    }
}

impl Store {
    /// Returns what a changed table takes that is made beside the stored one; nothing where nothing is made.
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

/// What an index's entry takes that may be new, about.
const ENTRY_BYTES: u64 = 16;
