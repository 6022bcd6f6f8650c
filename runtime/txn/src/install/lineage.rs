//! The present places of tables and columns of versions out of service, under any name, so that the tables can go back.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use reprise_base::limits::VERSIONS_KEPT_MAX;
use reprise_storage::TableId;

use crate::module::{Deployed, ModuleId};

/// The present place of a table of a version out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The stored table.
    pub table: TableId,
    /// For each declared column, the position of the stored column that it became. None: it was dropped.
    pub columns: Vec<Option<u16>>,
}

/// Origins of one version's tables, in the order of their declaration. None: a table of another module, or a table that was dropped or made
/// anew.
pub type TableOrigins = Vec<Option<Origin>>;

/// Origins of the last versions out of service, with different bytes, of each module.
#[derive(Clone, Debug, Default)]
pub struct Lineage(BTreeMap<ModuleId, Arc<TableOrigins>>);

impl Lineage {
    /// Returns the origins of a version out of service, if they are kept.
    pub fn of(&self, id: ModuleId) -> Option<&Arc<TableOrigins>> {
        self.0.get(&id)
    }

    /// Estimates the memory that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        let origins = self.0.values().flat_map(|origins| origins.iter());
        let bytes =
            origins.map(|origin| size_of::<Option<Origin>>() + origin.as_ref().map_or(0, |it| 4 * it.columns.len()));
        bytes.sum::<usize>() as u64
    }

    pub(crate) fn put(&mut self, id: ModuleId, origins: TableOrigins) {
        self.0.insert(id, Arc::new(origins));
    }

    /// Applies a change of a table to all origins. None: the table was dropped.
    fn follow(&mut self, id: TableId, sources: Option<&[Option<u16>]>) {
        let is_of = |origin: &Option<Origin>| origin.as_ref().is_some_and(|origin| origin.table == id);
        for origins in self.0.values_mut().filter(|origins| origins.iter().any(is_of)) {
            let moved = origins.iter().map(|origin| match origin {
                Some(origin) if origin.table == id => origin.moved(sources?),
                other => other.clone(),
            });
            *origins = Arc::new(moved.collect());
        }
    }
}

impl Origin {
    /// Returns the origin after a change of the table, whose columns come from `sources`. None: the table was made anew, and its name finds
    /// it from then on.
    fn moved(&self, sources: &[Option<u16>]) -> Option<Self> {
        if sources.iter().all(Option::is_none) {
            return None;
        }
        let now = |at: u16| sources.iter().position(|source| *source == Some(at));
        let columns = self.columns.iter().map(|at| at.and_then(now).map(|at| at as u16));
        Some(Self {
            table: self.table,
            columns: columns.collect(),
        })
    }
}

impl Deployed {
    /// Returns the places of the tables of this module's former version that has these bytes.
    pub(super) fn origins_of(&self, name: &str, hash: &[u8; 32]) -> Option<Arc<TableOrigins>> {
        let is_it = |id: &ModuleId| {
            let module = &self.versions[id.0 as usize];
            module.name == name && module.hash == *hash
        };
        let found = self.lineage.0.iter().rfind(|(id, _)| is_it(id))?;
        Some(found.1.clone())
    }

    /// Records the places of the tables of the version that is about to leave service.
    pub(crate) fn record_origins(&mut self, name: &str) {
        let Some(module) = self.current.get(name).cloned() else {
            return;
        };
        let tables = module.schema.tables.iter().zip(&module.tables);
        let origins = tables.map(|(declared, bound)| {
            bound.is_own.then(|| Origin {
                table: bound.table,
                columns: (0..declared.columns.len() as u16).map(Some).collect(),
            })
        });
        self.lineage.put(module.id, origins.collect());
        let mut hashes = BTreeSet::new();
        let all: Vec<ModuleId> = self.lineage.0.keys().rev().copied().collect();
        for id in all {
            let version = &self.versions[id.0 as usize];
            if version.name == name && (hashes.len() == VERSIONS_KEPT_MAX || !hashes.insert(version.hash)) {
                self.lineage.0.remove(&id);
            }
        }
    }

    /// Records, for all former versions, the sources of a changed table's columns.
    pub(crate) fn follow_change(&mut self, id: TableId, sources: &[Option<u16>]) {
        self.lineage.follow(id, Some(sources));
    }

    /// Records, for all former versions, that a table was dropped.
    pub(crate) fn follow_drop(&mut self, id: TableId) {
        self.lineage.follow(id, None);
    }
}
