//! What a declared table would take: asked before a deployment is logged, for what follows its record can't fail.

use reprise_abi::TableSchema;
use reprise_base::MemoryLedger;
use reprise_pages::PAGE_BYTES;

use crate::{
    evolve::{plan_change, plan_change_of_empty},
    store::Store,
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

impl Store {
    /// What it takes to serve these tables: those that are new, and those that are made anew beside what they were, which with `copies`
    /// all of the module's own are.
    pub fn growth_to_serve<'t>(
        &self,
        module: &str,
        tables: impl Iterator<Item = &'t TableSchema>,
        copies: bool,
    ) -> Growth {
        let mut growth = Growth::default();
        tables.for_each(|declared| growth.add(self.growth_of(module, declared, copies)));
        growth
    }

    fn growth_of(&self, module: &str, declared: &TableSchema, copies: bool) -> Growth {
        let is_copied = copies && (declared.owner.is_empty() || declared.owner == module);
        let indexes = declared.indexes.len() + 1;
        let numbers = !declared.primary_key.is_empty() as usize;
        let empty = Growth {
            bytes: ((indexes + numbers) * PAGE_BYTES) as u64,
            // Places and bytes of rows; leaves and inner nodes, or what a dense index has, as the numbers of rows do.
            mappings: 2 + 2 * (indexes + numbers),
        };
        let names = [
            declared.full_name(),
            format!("{module}.{}", declared.name),
            declared.name.clone(),
        ];
        let Some(id) = names.iter().find_map(|name| self.table_id(name)) else {
            return empty;
        };
        let planned = match self.rows_count(id) {
            0 => plan_change_of_empty(self.schema(id), declared),
            _ => plan_change(self.schema(id), declared),
        };
        match planned {
            Ok(change) if is_copied || change.reads_rows() => {
                let stats = self.stats(id);
                let held = self.tables[id.0 as usize].memory_bytes() as u64;
                let entries = indexes as u64 * stats.rows * ENTRY_BYTES;
                let bytes = held.saturating_add(entries);
                let mappings = empty.mappings + (bytes / reprise_pages::HUGE_BYTES as u64) as usize;
                Growth { bytes, mappings }
            }
            _ => Growth::default(),
        }
    }
}

/// What an index's entry takes that may be new, about.
const ENTRY_BYTES: u64 = 16;
