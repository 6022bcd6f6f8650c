//! Puts a module version into service. It checks the result for the stored tables and the modules bound to them. Then it makes the changed
//! tables beside the stored ones, and exchanges them.

mod bind;
mod consent;
mod counts;
mod deployment_check;
mod differences;
mod exchanged_names;
mod lineage;
mod outline;
mod summary;

use std::{collections::BTreeMap, sync::Arc};

use reprise_abi::{ModuleSchema, TableSchema};
use reprise_base::TxnId;
use reprise_observe::ModuleMeters;
use reprise_storage::{Conflict, PreparedTable, ReplacedTable, Store, TableId};

use crate::{
    module::{BindError, Code, Deployed, Module, ModuleId, TableBinding},
    prefetch::{self, PrefetchRow},
    shape::{self, Shape},
    table_past::TablePast,
};

pub use consent::{Consent, ConsentKind, DestroyedItem};
pub use counts::{HeldCounts, StoredCounts, TableCount};
pub use deployment_check::outline;
pub use differences::outline_removal;
pub use lineage::{Lineage, Origin, TableOrigins};
pub use outline::{Outline, prepare};
pub use summary::{
    OrphanedTable, PlanSummary, ProcedureChange, RenameGuess, RollbackPlan, TableChangePlan, TableSources,
};

/// A module on its way into service.
pub struct Candidate {
    /// Name under which it is deployed.
    pub name: String,
    /// SHA-256 of the uploaded bytes.
    pub hash: [u8; 32],
    /// Length of the uploaded bytes.
    pub wasm_bytes: u64,
    /// The module's declarations.
    pub schema: ModuleSchema,
    /// The JSON from which `schema` was made, as the client sent it.
    pub description: Arc<[u8]>,
    /// The code that instances are made from.
    pub code: Arc<dyn Code>,
}

/// The rules by which a deployment is checked.
#[derive(Clone, Copy)]
pub enum DeploymentRules<'a> {
    /// A deployment that is requested now, over tables with these counts. The limits are those of this program.
    Deployment(&'a dyn StoredCounts),
    /// A deployment in a log, with the sources of its columns. It is carried out if possible, whichever limits held then.
    Replay(&'a [TableSources]),
    /// A rollback that may be requested later, when all tables hold rows.
    WayBack,
}

/// Changes of a deployment. `prepare` makes them, `apply` carries them out.
pub struct Plan {
    steps: Vec<InstallStep>,
    bindings: Vec<TableBinding>,
    /// New bindings of other modules in service, by name.
    rebound: BTreeMap<String, Vec<TableBinding>>,
    /// Tables as they are before the deployment, in the order of their declaration: the migration's view of each, and its copy in each
    /// store.
    retiring: Vec<(TableSchema, Vec<PreparedTable>)>,
    /// The effects of the deployment, for people.
    pub summary: PlanSummary,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.summary.fmt(f)
    }
}

enum InstallStep {
    Create(TableSchema),
    /// The new table, the sources of its columns, and its replacement in each store. A store in which the table stays as it is has no
    /// replacement.
    Change {
        table: TableId,
        schema: Arc<TableSchema>,
        sources: Vec<Option<u16>>,
        prepared: Vec<PreparedTable>,
    },
}

fn conflict(table: &str, item: &str, what: &'static str, stored: &str, declared: &str, way_on: &str) -> Conflict {
    Conflict {
        table: table.to_owned(),
        item: item.to_owned(),
        what,
        stored: stored.to_owned(),
        declared: declared.to_owned(),
        way_on: way_on.to_owned(),
    }
}

/// A plan that was carried out: the changed tables are in place.
pub struct AppliedPlan {
    /// The deployment that is then in service.
    pub next: Deployed,
    /// The version that is then in service.
    pub module: Arc<Module>,
    /// The module as its migration sees it: bound to the retiring tables, too.
    pub migration: Arc<Module>,
    /// True if it ran over copies of all of the module's tables.
    migrates: bool,
    /// The former tables of each store. All of them are kept if the module has a migration.
    replaced: Vec<Vec<ReplacedTable>>,
    /// The places of retiring tables in each store.
    retiring: Vec<Vec<ReplacedTable>>,
}

impl AppliedPlan {
    /// Takes the retiring tables out of the same stores, after the migration has run or failed.
    pub fn retire(&mut self, stores: &mut [&mut Store]) {
        for (store, retiring) in stores.iter_mut().zip(&mut self.retiring) {
            store.put_back(std::mem::take(retiring));
        }
    }

    /// Restores the same stores to their state before. It serves modules with a migration alone, because only then all former tables are
    /// kept.
    pub fn take_back(self, stores: &mut [&mut Store]) {
        assert!(self.migrates, "tables were moved, not copied");
        for (store, replaced) in stores.iter_mut().zip(self.replaced) {
            store.put_back(replaced);
        }
    }
}

/// Carries out a plan that was made over the same stores. It can't fail: either the record of it is durable, or the caller can take the
/// module's deployment back.
pub fn apply(
    deployed: &Deployed,
    candidate: Candidate,
    plan: Plan,
    installed_by: TxnId,
    stores: &mut [&mut Store],
) -> AppliedPlan {
    let mut next = deployed.clone();
    let mut replaced: Vec<_> = stores.iter().map(|_| Vec::new()).collect();
    next.record_origins(&candidate.name);
    for step in plan.steps {
        match step {
            InstallStep::Create(schema) => {
                for (store, replaced) in stores.iter_mut().zip(&mut replaced) {
                    replaced.push(store.place_table(schema.clone()));
                }
                put_table(&mut next.tables, Arc::new(schema));
            }
            InstallStep::Change {
                table: id,
                schema,
                sources,
                prepared,
            } => {
                next.follow_change(id, &sources);
                let stores = stores.iter_mut().zip(&mut replaced);
                for ((store, replaced), table) in stores.zip(prepared) {
                    replaced.extend(store.install(table));
                }
                next.replace_table(id, installed_by, schema);
            }
        }
    }
    next.record_migration(&candidate);
    let migrates = plan.summary.migrates;
    let of_name = next.versions.iter().filter(|module| module.name == candidate.name);
    let description = next.shared_description(&candidate.name, candidate.description);
    let module = Arc::new(Module {
        id: ModuleId(next.versions.len() as u32),
        version: 1 + of_name.count() as u32,
        name: candidate.name,
        hash: candidate.hash,
        wasm_bytes: candidate.wasm_bytes,
        installed_by,
        prefetch: prefetch::rows_of(&candidate.schema, &plan.bindings),
        results: shape::results_of(&candidate.schema),
        meters: ModuleMeters::new(candidate.schema.procedures.len()),
        schema: Arc::new(candidate.schema),
        description,
        tables: plan.bindings,
        code: candidate.code,
    });
    next.versions.push(module.clone());
    next.retire(&module.name);
    next.current.insert(module.name.clone(), module.clone());
    for (name, tables) in plan.rebound {
        rebind(&mut next, &name, tables);
    }
    next.generation += 1;
    let (migration, retiring) = place_retiring(&next, &module, plan.retiring, stores);
    AppliedPlan {
        next,
        module,
        migration,
        migrates,
        replaced,
        retiring,
    }
}

/// Puts the retiring tables behind all others. Returns the module that is bound to them, and their places in each store.
fn place_retiring(
    deployed: &Deployed,
    module: &Arc<Module>,
    tables: Vec<(TableSchema, Vec<PreparedTable>)>,
    stores: &mut [&mut Store],
) -> (Arc<Module>, Vec<Vec<ReplacedTable>>) {
    let mut places: Vec<_> = stores.iter().map(|_| Vec::new()).collect();
    if tables.is_empty() {
        return (module.clone(), places);
    }
    let mut bindings = bind::bind_all(&module.name, &module.schema, deployed).expect("the plan bound them");
    for (schema, copies) in tables {
        let mut table = TableId(0);
        for ((store, places), copy) in stores.iter_mut().zip(&mut places).zip(copies) {
            let place;
            (table, place) = store.place_copy(copy);
            places.push(place);
        }
        bindings.push(bind::bind_retiring(&schema, table));
    }
    (Arc::new(module.bound_to(bindings)), places)
}

/// Puts a table at the place that `Store::put_table` uses too.
fn put_table(tables: &mut Vec<Arc<TableSchema>>, table: Arc<TableSchema>) -> TableId {
    let free = tables.iter().position(|table| table.is_dropped());
    let at = free.unwrap_or(tables.len());
    match free {
        Some(at) => tables[at] = table,
        None => tables.push(table),
    }
    TableId(at as u16)
}

/// Binds a module in service to tables that have changed.
fn rebind(deployed: &mut Deployed, name: &str, tables: Vec<TableBinding>) {
    let rebound = Arc::new(deployed.current[name].bound_to(tables));
    deployed.versions[rebound.id.0 as usize] = rebound.clone();
    deployed.current.insert(name.to_owned(), rebound);
}

impl Deployed {
    /// Replaces a stored table by its changed form.
    fn replace_table(&mut self, id: TableId, until: TxnId, schema: Arc<TableSchema>) {
        let before = std::mem::replace(&mut self.tables[id.0 as usize], schema);
        if before != self.tables[id.0 as usize] {
            self.past.push(id, until, before);
        }
    }

    /// Keeps the parts of the version in service that are needed after it leaves: its procedures, which name records and kept outcomes, and
    /// its description. A running call has the whole version.
    fn retire(&mut self, name: &str) {
        if let Some(module) = self.current.get(name) {
            let schema = self.shared_schema(name, without_tables(&module.schema));
            self.versions[module.id.0 as usize] = Arc::new(module.retired(schema));
        }
    }

    /// Returns the description that a further version of the module can share. Versions often differ in their code alone, and a rollback
    /// brings a former description back.
    fn shared_description(&self, name: &str, description: Arc<[u8]>) -> Arc<[u8]> {
        let mut former = self.versions_of(name).map(|module| &module.description);
        former
            .find(|former| **former == description)
            .cloned()
            .unwrap_or(description)
    }

    /// Returns the declarations that a further version of the module out of service can share.
    fn shared_schema(&self, name: &str, schema: ModuleSchema) -> Arc<ModuleSchema> {
        let mut former = self.versions_of(name).map(|module| &module.schema);
        let same = former.find(|former| ***former == schema).cloned();
        same.unwrap_or_else(|| Arc::new(schema))
    }

    /// Returns the versions of a name, the newest first.
    fn versions_of(&self, name: &str) -> impl Iterator<Item = &Arc<Module>> {
        self.versions.iter().rev().filter(move |module| module.name == name)
    }
}

fn without_tables(schema: &ModuleSchema) -> ModuleSchema {
    ModuleSchema {
        abi: schema.abi,
        procedures: schema.procedures.clone(),
        on_deploy: schema.on_deploy.clone(),
        ..ModuleSchema::default()
    }
}

impl Module {
    /// Returns the version as it is out of service: with these declarations, bound to no table. It runs no calls, so it has no rows to
    /// prefetch.
    fn retired(&self, schema: Arc<ModuleSchema>) -> Self {
        self.with(schema, Vec::new(), Vec::new(), Vec::new())
    }

    /// Returns the version bound to these tables.
    fn bound_to(&self, tables: Vec<TableBinding>) -> Self {
        let prefetch = prefetch::rows_of(&self.schema, &tables);
        let results = shape::results_of(&self.schema);
        self.with(self.schema.clone(), tables, prefetch, results)
    }

    /// Returns this version with another view of the stored tables. It counts its calls anew.
    fn with(
        &self,
        schema: Arc<ModuleSchema>,
        tables: Vec<TableBinding>,
        prefetch: Vec<Vec<PrefetchRow>>,
        results: Vec<Shape>,
    ) -> Self {
        Self {
            prefetch,
            results,
            meters: ModuleMeters::new(schema.procedures.len()),
            tables,
            schema,
            id: self.id,
            name: self.name.clone(),
            version: self.version,
            hash: self.hash,
            wasm_bytes: self.wasm_bytes,
            installed_by: self.installed_by,
            description: self.description.clone(),
            code: self.code.clone(),
        }
    }
}

/// A module version as a checkpoint has it.
pub struct RestoredModule {
    /// Name of the module.
    pub name: String,
    /// Number from 1, per name.
    pub version: u32,
    /// SHA-256 of the uploaded bytes.
    pub hash: [u8; 32],
    /// Length of the uploaded bytes.
    pub wasm_bytes: u64,
    /// The deployment's transaction.
    pub installed_by: TxnId,
    /// True for the version of its name that takes calls.
    pub in_service: bool,
    /// Names of the migrations that the tables of its module have had. One version of each name lists them.
    pub migrations: Vec<String>,
    /// The present places of its tables, if it is out of service and they are known.
    pub origins: Option<TableOrigins>,
    /// The module's declarations.
    pub schema: ModuleSchema,
    /// The JSON from which `schema` was made, as the client sent it.
    pub description: Arc<[u8]>,
    /// The code that instances are made from.
    pub code: Arc<dyn Code>,
}

/// Returns the deployment of a checkpoint: stored tables by `TableId` with their known past, and module versions by `ModuleId`. Versions
/// out of service are bound to no table: they take no calls, and the tables may have changed without them. Each version is taken when the
/// one before is in its place, so that equal ones share their memory from the beginning. Err: the parts do not fit together.
pub fn restore(
    generation: u64,
    tables: Vec<TableSchema>,
    past: TablePast,
    modules: impl IntoIterator<Item = RestoredModule>,
) -> Result<Deployed, String> {
    let mut next = Deployed {
        generation,
        past,
        ..Deployed::default()
    };
    let mut in_service = Vec::new();
    for (number, found) in modules.into_iter().enumerate() {
        if !found.migrations.is_empty() {
            let names = next.migrations.entry(found.name.clone()).or_default();
            names.extend(found.migrations);
        }
        if let Some(origins) = found.origins {
            check_origins(&origins, &tables).map_err(|reason| format!("module {}: {reason}", found.name))?;
            next.lineage.put(ModuleId(number as u32), origins);
        }
        if found.in_service {
            in_service.push(found.name.clone());
        }
        let description = next.shared_description(&found.name, found.description);
        let schema = match found.in_service {
            true => Arc::new(found.schema),
            false => next.shared_schema(&found.name, without_tables(&found.schema)),
        };
        let module = Arc::new(Module {
            id: ModuleId(number as u32),
            prefetch: Vec::new(), // `rebind` makes those of a version in service, and its results
            results: Vec::new(),
            meters: ModuleMeters::new(schema.procedures.len()),
            tables: Vec::new(),
            name: found.name,
            version: found.version,
            hash: found.hash,
            wasm_bytes: found.wasm_bytes,
            installed_by: found.installed_by,
            schema,
            description,
            code: found.code,
        });
        if found.in_service {
            next.current.insert(module.name.clone(), module.clone());
        }
        next.versions.push(module);
    }
    next.tables = tables.into_iter().map(Arc::new).collect();
    for name in in_service {
        let bound = bind::bind_all(&name, &next.current[&name].schema, &next);
        let tables = bound.map_err(|conflicts| {
            let texts: Vec<_> = conflicts.iter().map(ToString::to_string).collect();
            format!("module {name} does not fit the stored tables: {}", texts.join("; "))
        })?;
        rebind(&mut next, &name, tables);
    }
    Ok(next)
}

/// Checks that the tables of a former version lie in these tables.
fn check_origins(origins: &TableOrigins, tables: &[TableSchema]) -> Result<(), String> {
    for origin in origins.iter().flatten() {
        let table = tables.get(origin.table.0 as usize).filter(|table| !table.is_dropped());
        let Some(table) = table else {
            return Err(format!("no table number {}", origin.table.0));
        };
        let mut columns = origin.columns.iter().flatten();
        if let Some(at) = columns.find(|at| **at as usize >= table.columns.len()) {
            return Err(format!("no column number {at} of {}", table.full_name()));
        }
    }
    Ok(())
}

/// Takes a module out of service; its versions stay known. None: no such module is in service.
pub fn remove(deployed: &Deployed, name: &str) -> Option<Deployed> {
    let mut next = deployed.clone();
    next.record_origins(name);
    next.retire(name);
    next.current.remove(name)?;
    next.generation += 1;
    Some(next)
}

/// Checks that no module in service declares the table. Err: the modules that do.
pub fn check_drop(deployed: &Deployed, table: TableId) -> Result<(), BindError> {
    let full = deployed.tables[table.0 as usize].full_name();
    let uses = |module: &&Arc<Module>| module.tables.iter().any(|bound| bound.table == table);
    let users = deployed.current.values().filter(uses);
    let conflicts: Vec<_> = users
        .map(|module| {
            let name = &module.name;
            let way_on = format!("deploy {name} without the table, or remove it, and drop the table then");
            conflict(
                &full,
                "",
                "table",
                &format!("declared by module {name} in service"),
                "dropped",
                &way_on,
            )
        })
        .collect();
    match conflicts.is_empty() {
        true => Ok(()),
        false => Err(BindError { conflicts }),
    }
}

/// Drops a table that `check_drop` admitted, in a transaction. It can't fail, because the record of it is durable.
pub fn apply_drop(deployed: &Deployed, table: TableId, txn_id: TxnId, stores: &mut [&mut Store]) -> Deployed {
    let mut next = deployed.clone();
    stores.iter_mut().for_each(|store| store.drop_table(table));
    let before = std::mem::replace(&mut next.tables[table.0 as usize], Arc::new(TableSchema::dropped()));
    let has_more = next.tables.iter().any(|other| other.owner == before.owner);
    if !has_more {
        // All tables of the name are gone, so its next tables have had no migrations.
        next.migrations.remove(&before.owner);
    }
    next.past.push(table, txn_id, before);
    next.follow_drop(table);
    next.generation += 1;
    next
}
