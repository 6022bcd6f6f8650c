//! A module in service: its code, its description, and the binding of its tables to the stored ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use reprise_abi::{HostOps, ModuleSchema, ProcedureSchema, RowLayout, TablePlacement, TableSchema};
use reprise_base::{Lsn, MemoryLedger, TxnId};
use reprise_host::CallOutcome;
use reprise_observe::ModuleMeters;
use reprise_storage::{RowProjection, TableId};

use crate::{
    install::{Candidate, Lineage},
    keyplace::KeyPlace,
    prefetch::PrefetchRow,
    shape::Shape,
    table_past::TablePast,
};

/// Number of one version of one module. Numbers follow the order of deployment and are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// Code that can be run: a compiled wasm module, or procedures compiled into this binary.
pub trait Code: Send + Sync {
    /// Makes an executor for one engine thread, which has run nothing yet. Err: why there can be none.
    fn instantiate(&self) -> Result<Box<dyn Executor>, String>;

    /// Makes in advance the code that `instantiate` would make. Err: as there.
    fn prepare(&self) -> Result<(), String> {
        Ok(())
    }

    /// Drops its memory. Its module went out of service, so no thread instantiates it any more.
    fn release(&self) {}

    /// Memory that compiled code takes now.
    fn code_bytes(&self) -> usize {
        0
    }

    /// True if `instantiate` would make nothing that others could use again.
    fn is_ready(&self) -> bool {
        true
    }
}

/// Code that runs on one engine thread.
pub trait Executor {
    /// Runs one procedure to its end. It reads and writes rows through `ops`.
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome;

    /// Counts its memory in `memory` from its next call on. It asks there before it takes more.
    fn count_in(&mut self, _memory: &Arc<MemoryLedger>) {}

    /// Estimates the memory that its next call takes beside the memory that it has.
    fn wanted_bytes(&self) -> u64 {
        0
    }
}

/// One version of a module, as installed.
pub struct Module {
    /// Number of the version in the log.
    pub id: ModuleId,
    /// The name in the URL.
    pub name: String,
    /// Number from 1, per name.
    pub version: u32,
    /// SHA-256 of the uploaded bytes.
    pub hash: [u8; 32],
    /// Length of the uploaded bytes.
    pub wasm_bytes: u64,
    /// Transaction that installed it; its time is the time of installation.
    pub installed_by: TxnId,
    /// The module's declarations. Versions out of service share equal ones.
    pub schema: Arc<ModuleSchema>,
    /// The JSON from which `schema` was made, as the client sent it. A description that was accepted once stays as it is. Versions share
    /// equal ones.
    pub description: Arc<[u8]>,
    /// Bindings of `schema.tables`, in the same order.
    pub tables: Vec<TableBinding>,
    /// Rows to prefetch before it runs, by procedure.
    pub prefetch: Vec<Vec<PrefetchRow>>,
    /// The shape against which its result is checked, by procedure. A version out of service has none, because it runs no calls.
    pub(crate) results: Vec<Shape>,
    /// The router's counts of its calls.
    pub meters: ModuleMeters,
    /// The code that instances are made from.
    pub code: Arc<dyn Code>,
}

/// The binding of a module's table to a stored table.
pub struct TableBinding {
    /// The stored table.
    pub table: TableId,
    /// True for a table of the module, false for another module's that it uses.
    pub is_own: bool,
    /// The placement of its rows.
    pub placement: TablePlacement,
    /// Module's index number -> stored index number; index 0 is the primary key in both.
    pub indexes: Vec<u16>,
    /// The place of the partition column in a key, if it is known. By the module's index numbers.
    pub places: Vec<Option<KeyPlace>>,
    /// The key and its columns of variable length, for people. By stored index numbers.
    pub keys: Vec<String>,
    /// Layout of the rows as the module knows them.
    pub layout: RowLayout,
    /// The projection, if the stored table has columns that this module does not know.
    pub projection: Option<RowProjection>,
}

impl TableBinding {
    /// True if every partition has every row.
    pub fn is_replicated(&self) -> bool {
        self.placement == TablePlacement::Replicated
    }
}

/// Why a module could not be bound to the stored tables.
#[derive(Debug, thiserror::Error)]
#[error("the module's tables conflict with the stored tables")]
pub struct BindError {
    /// All conflicts that were found.
    pub conflicts: Vec<reprise_storage::Conflict>,
}

impl Module {
    /// Returns a procedure by its name, and its position in the schema.
    pub fn procedure(&self, name: &str) -> Option<(usize, &ProcedureSchema)> {
        self.schema
            .procedures
            .iter()
            .enumerate()
            .find(|(_, procedure)| procedure.name == name)
    }
}

/// All modules and tables of a database at one moment. A change replaces the whole.
#[derive(Default, Clone)]
pub struct Deployed {
    /// Grows with each deployment and removal.
    pub generation: u64,
    /// Every version since the log begins, by `ModuleId`.
    pub versions: Vec<Arc<Module>>,
    /// Modules in service by name.
    pub current: BTreeMap<String, Arc<Module>>,
    /// Stored tables by `TableId`, places of dropped ones among them.
    pub tables: Vec<Arc<TableSchema>>,
    /// Earlier forms of the tables.
    pub past: TablePast,
    /// The present places of tables of versions out of service.
    pub lineage: Lineage,
    /// Names of the migrations that the tables of a module have had, by module.
    pub migrations: BTreeMap<String, BTreeSet<String>>,
    /// Procedures that take no calls.
    pub quarantine: BTreeMap<(ModuleId, u16), Arc<Quarantine>>,
}

/// Why a procedure of one module version takes no calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// The record whose replay diverged.
    pub diverged: Lsn,
    /// The divergence in words.
    pub what: String,
}

impl Deployed {
    /// Returns a version by its number, in service or not.
    pub fn module(&self, id: ModuleId) -> Option<&Arc<Module>> {
        self.versions.get(id.0 as usize)
    }

    /// True if the version is in service.
    pub fn is_current(&self, id: ModuleId) -> bool {
        self.module(id)
            .is_some_and(|module| self.current.get(&module.name).is_some_and(|current| current.id == id))
    }

    /// Returns the table of a name as people write it: `module.table`, or the table's name alone if one module has it.
    pub fn table(&self, name: &str) -> Option<(TableId, &Arc<TableSchema>)> {
        let mut named = self.tables().filter(|(_, table)| match name.split_once('.') {
            Some((owner, bare)) => table.owner == owner && table.name == bare,
            None => table.name == name,
        });
        let found = named.next()?;
        named.next().is_none().then_some(found)
    }

    /// Returns the table as it was when the rows of a transaction were written. None if it is no longer known, because a deployment before
    /// the known past may have changed it since.
    pub fn table_at(&self, id: TableId, txn_id: TxnId) -> Option<&Arc<TableSchema>> {
        let (table, until) = match self.past.table_at(id, txn_id) {
            Some((table, until)) => (table, until.tick()),
            None => (self.tables.get(id.0 as usize)?, u64::MAX),
        };
        if table.is_dropped() {
            return None;
        }
        let mut before = self
            .versions
            .iter()
            .filter(|module| module.installed_by.tick() < until)
            .rev();
        let mut changed = || before.find(|module| module.name == table.owner);
        let is_known =
            self.past.reaches(txn_id) || changed().is_some_and(|module| module.installed_by.tick() < txn_id.tick());
        is_known.then_some(table)
    }

    /// True if the module runs a migration when it is deployed. A migration without a name runs each time, one with a name only if the
    /// tables have not had it.
    pub(crate) fn is_to_migrate(&self, candidate: &Candidate) -> bool {
        let had = self.migrations.get(&candidate.name);
        let is_new = |name: &String| name.is_empty() || had.is_none_or(|had| !had.contains(name));
        candidate.schema.on_deploy.as_ref().is_some_and(is_new)
    }

    /// Records that the tables have had the module's migration. If its bytes are those of a former version, the tables go back. They then
    /// keep only the names that they had while that version was in service.
    pub(crate) fn record_migration(&mut self, candidate: &Candidate) {
        let former = self.migrations_of_former(&candidate.name, &candidate.hash);
        let names = self.migrations.entry(candidate.name.clone()).or_default();
        if let Some(former) = former {
            names.retain(|name| former.contains(name));
        }
        names.extend(migration_name(&candidate.schema).cloned());
        if names.is_empty() {
            self.migrations.remove(&candidate.name);
        }
    }

    /// Returns the names of the migrations that the tables had under the module's newest version with these bytes. They follow from the
    /// order of the deployments alone, which replay and checkpoints have. None: no version has these bytes.
    fn migrations_of_former(&self, module: &str, hash: &[u8; 32]) -> Option<BTreeSet<String>> {
        let mut by_hash: BTreeMap<[u8; 32], BTreeSet<&String>> = BTreeMap::new();
        let mut names: BTreeSet<&String> = BTreeSet::new();
        for version in self.versions.iter().filter(|version| version.name == module) {
            if let Some(former) = by_hash.get(&version.hash) {
                names.retain(|name| former.contains(name));
            }
            names.extend(migration_name(&version.schema));
            by_hash.insert(version.hash, names.clone());
        }
        let found = by_hash.remove(hash)?;
        Some(found.into_iter().cloned().collect())
    }

    /// Returns the deployment with one more procedure that takes no calls. Err: there is no such procedure.
    pub fn with_quarantined(&self, id: ModuleId, procedure: u16, why: Quarantine) -> Result<Self, String> {
        let module = self.module(id).ok_or_else(|| format!("module number {}", id.0))?;
        if procedure as usize >= module.schema.procedures.len() {
            return Err(format!("procedure number {procedure} of module {}", module.name));
        }
        let mut next = self.clone();
        next.quarantine.insert((id, procedure), Arc::new(why));
        next.generation += 1;
        Ok(next)
    }

    /// Returns why calls of a procedure are refused, if they are.
    pub fn quarantined(&self, id: ModuleId, procedure: usize) -> Option<String> {
        let found = self.quarantine.get(&(id, procedure as u16))?;
        let module = self.module(id)?;
        let name = &module.schema.procedures.get(procedure)?.name;
        Some(format!(
            "{}.{name} version {} is in quarantine, because its replay diverged at LSN {}: deploy a new version of the module to take \
             calls again",
            module.name, module.version, found.diverged
        ))
    }

    /// Returns the stored tables, without the places of dropped ones.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &Arc<TableSchema>)> {
        let tables = self.tables.iter().enumerate();
        let numbered = tables.map(|(at, table)| (TableId(at as u16), table));
        numbered.filter(|(_, table)| !table.is_dropped())
    }
}

/// Returns the name of the migration that the module lists, if it has a name.
fn migration_name(schema: &ModuleSchema) -> Option<&String> {
    schema.on_deploy.as_ref().filter(|name| !name.is_empty())
}
