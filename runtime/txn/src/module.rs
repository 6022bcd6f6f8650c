//! A module in service: its code, its description, and how its tables map to the stored ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use reprise_abi::{HostOps, ModuleSchema, Placement, ProcedureSchema, RowLayout, TableSchema};
use reprise_base::{Lsn, MemoryLedger, TxnId};
use reprise_host::CallOutcome;
use reprise_observe::ModuleMeters;
use reprise_storage::{RowProjection, TableId};

use crate::{
    install::{Candidate, Lineage},
    keyplace::KeyPlace,
    past::TablePast,
    prefetch::PrefetchRow,
    shape::Shape,
};

/// One version of one module; numbered in the order of deployment, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

/// Code that can be run: a compiled wasm module, or procedures compiled into this binary.
pub trait Code: Send + Sync {
    /// An executor for one engine thread, of which nothing has run yet. Err: why there can be none.
    fn instantiate(&self) -> Result<Box<dyn Executor>, String>;

    /// Makes ready for `instantiate` what that would make otherwise. Err: as there.
    fn prepare(&self) -> Result<(), String> {
        Ok(())
    }

    /// Gives up what it holds: its module went out of service, and nobody instantiates it any more.
    fn let_go(&self) {}

    /// Memory that compiled code takes now.
    fn code_bytes(&self) -> usize {
        0
    }

    /// `instantiate` would make nothing that others could use again.
    fn is_ready(&self) -> bool {
        true
    }
}

/// Code that runs on one engine thread.
pub trait Executor {
    /// Runs one procedure to its end; its rows go through `ops`.
    fn call(&mut self, procedure: usize, ops: &mut dyn HostOps) -> CallOutcome;

    /// Counts its memory in `memory` from its next call on, and asks there before.
    fn count_in(&mut self, _memory: &Arc<MemoryLedger>) {}

    /// Memory that its next call takes beside what it has, about.
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
    /// From 1, per name.
    pub version: u32,
    /// SHA-256 of the uploaded bytes.
    pub hash: [u8; 32],
    /// Length of the uploaded bytes.
    pub wasm_bytes: u64,
    /// Transaction that installed it; its time is the time of installation.
    pub installed_by: TxnId,
    /// The module's declarations.
    pub schema: ModuleSchema,
    /// The JSON of which `schema` was made, as it was sent: what was taken in once is kept as it is.
    pub description: Arc<[u8]>,
    /// Bindings of `schema.tables`, in the same order.
    pub tables: Vec<TableBinding>,
    /// By procedure: rows to prefetch before it runs.
    pub prefetch: Vec<Vec<PrefetchRow>>,
    /// By procedure: what the bytes of its result are checked against.
    pub(crate) results: Vec<Shape>,
    /// The router's counts of its calls.
    pub meters: ModuleMeters,
    /// The code that instances are made from.
    pub code: Arc<dyn Code>,
}

/// How a module's table maps to the stored one.
pub struct TableBinding {
    /// The stored table.
    pub table: TableId,
    /// The module's, not another's that it uses.
    pub is_own: bool,
    /// The placement of its rows.
    pub placement: Placement,
    /// Module's index number -> stored index number; index 0 is the primary key in both.
    pub indexes: Vec<u16>,
    /// By the module's index numbers: where the partition column lies in a key, if that is known.
    pub places: Vec<Option<KeyPlace>>,
    /// By stored index numbers: the key and its columns of any length, for people.
    pub keys: Vec<String>,
    /// Layout of the rows as the module knows them.
    pub layout: RowLayout,
    /// Set where the stored table has columns that this module does not know.
    pub projection: Option<RowProjection>,
}

impl TableBinding {
    /// Every partition has every row.
    pub fn is_replicated(&self) -> bool {
        self.placement == Placement::Replicated
    }
}

/// Why a module could not be bound to the stored tables.
#[derive(Debug, thiserror::Error)]
#[error("the module's tables conflict with the stored tables")]
pub struct BindError {
    /// All that were found.
    pub conflicts: Vec<reprise_storage::Conflict>,
}

impl Module {
    /// A procedure by its name, and its position in the schema.
    pub fn procedure(&self, name: &str) -> Option<(usize, &ProcedureSchema)> {
        self.schema
            .procedures
            .iter()
            .enumerate()
            .find(|(_, procedure)| procedure.name == name)
    }
}

/// All modules and tables of a database at one moment. Swapped whole.
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
    pub quarantine: BTreeMap<(ModuleId, u16), Arc<Quarantined>>,
}

/// Why a procedure of one module version takes no calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// The record whose replay diverged.
    pub diverged: Lsn,
    /// The divergence in words.
    pub what: String,
}

impl Deployed {
    /// A version by its number, in service or not.
    pub fn module(&self, id: ModuleId) -> Option<&Arc<Module>> {
        self.versions.get(id.0 as usize)
    }

    /// True where the version is in service.
    pub fn is_current(&self, id: ModuleId) -> bool {
        self.module(id)
            .is_some_and(|module| self.current.get(&module.name).is_some_and(|current| current.id == id))
    }

    /// The table of a name as people write it: `module.table`, or the table's name alone where one module has it.
    pub fn table(&self, name: &str) -> Option<(TableId, &Arc<TableSchema>)> {
        let mut named = self.tables().filter(|(_, table)| match name.split_once('.') {
            Some((owner, bare)) => table.owner == owner && table.name == bare,
            None => table.name == name,
        });
        let found = named.next()?;
        named.next().is_none().then_some(found)
    }

    /// The table as the rows of a transaction were written; none where that is no longer known: a deployment may have changed it since,
    /// and came before all that is known of the past.
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

    /// True where the module runs something over its tables when it is deployed: one without a name does so each time, one with a name
    /// unless the tables have had it.
    pub(crate) fn is_to_migrate(&self, candidate: &Candidate) -> bool {
        let had = self.migrations.get(&candidate.name);
        let is_new = |name: &String| name.is_empty() || had.is_none_or(|had| !had.contains(name));
        candidate.schema.on_deploy.as_ref().is_some_and(is_new)
    }

    /// Takes the module's migration for one that its tables have had. Where its bytes are those of a former version, the tables go back,
    /// and have had what that lists alone.
    pub(crate) fn note_migration(&mut self, candidate: &Candidate) {
        let mut versions = self.versions.iter();
        let is_former = versions.any(|module| module.name == candidate.name && module.hash == candidate.hash);
        let listed = candidate.schema.on_deploy.as_ref().filter(|name| !name.is_empty());
        let names = self.migrations.entry(candidate.name.clone()).or_default();
        if is_former {
            names.retain(|name| listed == Some(name));
        }
        names.extend(listed.cloned());
        if names.is_empty() {
            self.migrations.remove(&candidate.name);
        }
    }

    /// With one more procedure that takes no calls. Err: there is no such procedure.
    pub fn with_quarantined(&self, id: ModuleId, procedure: u16, why: Quarantined) -> Result<Self, String> {
        let module = self.module(id).ok_or_else(|| format!("module number {}", id.0))?;
        if procedure as usize >= module.schema.procedures.len() {
            return Err(format!("procedure number {procedure} of module {}", module.name));
        }
        let mut next = self.clone();
        next.quarantine.insert((id, procedure), Arc::new(why));
        next.generation += 1;
        Ok(next)
    }

    /// Why calls of a procedure are refused, if they are.
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

    /// Tables that are stored, without the places of those that were dropped.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &Arc<TableSchema>)> {
        let tables = self.tables.iter().enumerate();
        let numbered = tables.map(|(at, table)| (TableId(at as u16), table));
        numbered.filter(|(_, table)| !table.is_dropped())
    }
}
