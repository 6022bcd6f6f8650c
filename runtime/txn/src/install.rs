//! Puts a module version into service: reconciles its tables with the stored ones, then binds it to them.

use std::sync::Arc;

use reprise_abi::{ModuleSchema, Placement, RowLayout, TableSchema};
use reprise_base::{
    TxnId,
    limits::{MODULES_MAX, TABLES_MAX},
};
use reprise_storage::{Conflict, RowProjection, Store, TableChange, TableId};

use crate::{
    module::{BindError, Code, Deployed, Module, ModuleId, TableBinding},
    near,
};

/// A module on its way into service.
pub struct Candidate {
    pub name: String,
    pub hash: [u8; 32],
    pub wasm_bytes: u64,
    pub schema: ModuleSchema,
    pub code: Arc<dyn Code>,
}

/// What a deployment changes; made by `plan`, carried out by `apply`.
pub struct Plan {
    steps: Vec<Step>,
}

enum Step {
    Create(TableSchema),
    /// The table, and the change per store.
    Change(TableId, Vec<TableChange>),
}

/// Checks `candidate` against the stored tables. Err: every conflict found; nothing was changed.
pub fn plan(
    deployed: &Deployed,
    candidate: &Candidate,
    stores: &[&Store],
) -> Result<Plan, BindError> {
    let mut conflicts = Vec::new();
    let mut steps = Vec::new();
    let is_new = !deployed.current.contains_key(&candidate.name);
    if is_new && deployed.current.len() >= MODULES_MAX {
        let stored = format!("{MODULES_MAX} are in service");
        conflicts.push(conflict("", &candidate.name, "module", &stored, "one more"));
    }
    for table in &candidate.schema.tables {
        if let Some(unfit) = unfit_placement(table) {
            conflicts.push(unfit);
            continue;
        }
        match deployed.table(&table.name) {
            None => steps.push(Step::Create(table.clone())),
            Some((id, _)) => match changes_of(id, table, stores) {
                Ok(changes) => steps.push(Step::Change(id, changes)),
                Err(found) => conflicts.extend(found),
            },
        }
    }
    let created = steps.iter().filter(|s| matches!(s, Step::Create(_))).count();
    if deployed.tables.len() + created > TABLES_MAX {
        let stored = format!("at most {TABLES_MAX}");
        conflicts.push(conflict("", &candidate.name, "tables", &stored, "more"));
    }
    match conflicts.is_empty() {
        true => Ok(Plan { steps }),
        false => Err(BindError { conflicts }),
    }
}

/// Why rows of this table could not be told apart over the partitions.
fn unfit_placement(table: &TableSchema) -> Option<Conflict> {
    let column = match table.placement {
        Placement::Local => return None,
        Placement::Replicated if table.primary_key.is_empty() => {
            let (rule, declared) = ("replicated tables have one", "none");
            return Some(conflict(&table.name, "", "primary key", rule, declared));
        }
        Placement::Replicated => return None,
        Placement::By(column) => column,
    };
    let lacks = |columns: &[u16]| !columns.is_empty() && !columns.contains(&column);
    let rule = format!("holds the partition column {}", table.columns[column as usize].name);
    if lacks(&table.primary_key) {
        return Some(conflict(&table.name, "", "primary key", &rule, "does not"));
    }
    let mut unique = table.indexes.iter().filter(|index| index.unique);
    let unfit = unique.find(|index| lacks(&index.columns))?;
    Some(conflict(&table.name, &unfit.name, "unique index", &rule, "does not"))
}

fn conflict(
    table: &str,
    item: &str,
    what: &'static str,
    stored: &str,
    declared: &str,
) -> Conflict {
    Conflict {
        table: table.to_owned(),
        item: item.to_owned(),
        what,
        stored: stored.to_owned(),
        declared: declared.to_owned(),
    }
}

fn changes_of(
    id: TableId,
    table: &TableSchema,
    stores: &[&Store],
) -> Result<Vec<TableChange>, Vec<Conflict>> {
    stores
        .iter()
        .map(|store| store.check_change(id, table))
        .collect()
}

/// Carries out a plan that was made over the same stores, and answers with the deployment that is then in service.
pub fn apply(
    deployed: &Deployed,
    candidate: Candidate,
    plan: Plan,
    installed_by: TxnId,
    stores: &mut [&mut Store],
) -> Deployed {
    let mut next = deployed.clone();
    for step in plan.steps {
        match step {
            Step::Create(schema) => {
                for store in stores.iter_mut() {
                    let created = store.create_table(schema.clone());
                    let id = created.expect("the plan checked the table");
                    assert_eq!(id.0 as usize, next.tables.len(), "stores hold the same tables");
                }
                next.tables.push(Arc::new(schema));
            }
            Step::Change(id, changes) => {
                for (store, change) in stores.iter_mut().zip(changes) {
                    let changed = store.apply_change(&change);
                    changed.expect("the plan was made over the same rows");
                }
                let stored = stores[0].schema(id).clone();
                next.tables[id.0 as usize] = Arc::new(stored);
            }
        }
    }
    let version = 1 + next
        .versions
        .iter()
        .filter(|module| module.name == candidate.name)
        .count() as u32;
    let tables = bind_all(&candidate.schema, &next);
    let module = Arc::new(Module {
        id: ModuleId(next.versions.len() as u32),
        name: candidate.name,
        version,
        hash: candidate.hash,
        wasm_bytes: candidate.wasm_bytes,
        installed_by,
        near: near::rows_of(&candidate.schema, &tables),
        schema: candidate.schema,
        tables,
        code: candidate.code,
    });
    next.versions.push(module.clone());
    next.current.insert(module.name.clone(), module);
    rebind_others(&mut next);
    next.generation += 1;
    next
}

/// A module version as a checkpoint knows it.
pub struct Restored {
    pub name: String,
    pub version: u32,
    pub hash: [u8; 32],
    pub wasm_bytes: u64,
    pub installed_by: TxnId,
    pub in_service: bool,
    pub schema: ModuleSchema,
    pub code: Arc<dyn Code>,
}

/// The deployment of a checkpoint: stored tables by `TableId`, module versions by `ModuleId`. Err: they do not fit together.
pub fn restore(
    generation: u64,
    tables: Vec<TableSchema>,
    modules: Vec<Restored>,
) -> Result<Deployed, String> {
    let mut next = Deployed {
        generation,
        tables: tables.into_iter().map(Arc::new).collect(),
        ..Deployed::default()
    };
    for (number, found) in modules.into_iter().enumerate() {
        let unfit = found.schema.tables.iter().find(|table| !is_bindable(table, &next));
        if let Some(table) = unfit {
            let (module, table) = (&found.name, &table.name);
            return Err(format!("module {module} does not fit the stored table {table}"));
        }
        let tables = bind_all(&found.schema, &next);
        let module = Arc::new(Module {
            id: ModuleId(number as u32),
            near: near::rows_of(&found.schema, &tables),
            tables,
            name: found.name,
            version: found.version,
            hash: found.hash,
            wasm_bytes: found.wasm_bytes,
            installed_by: found.installed_by,
            schema: found.schema,
            code: found.code,
        });
        if found.in_service {
            next.current.insert(module.name.clone(), module.clone());
        }
        next.versions.push(module);
    }
    Ok(next)
}

/// What `bind` takes for granted.
fn is_bindable(declared: &TableSchema, deployed: &Deployed) -> bool {
    let Some((_, stored)) = deployed.table(&declared.name) else {
        return false;
    };
    let has_index = |name: &str| stored.indexes.iter().any(|index| index.name == name);
    declared.columns.len() <= stored.columns.len()
        && declared.indexes.iter().all(|index| has_index(&index.name))
        && RowProjection::new(&stored.columns, declared.columns.len()).is_ok()
}

/// Takes a module out of service; its versions stay known. None where no such module is in service.
pub fn remove(deployed: &Deployed, name: &str) -> Option<Deployed> {
    let mut next = deployed.clone();
    next.current.remove(name)?;
    next.generation += 1;
    Some(next)
}

/// Binds modules in service again whose tables have since got columns or indexes.
fn rebind_others(deployed: &mut Deployed) {
    let names: Vec<_> = deployed.current.keys().cloned().collect();
    for name in names {
        let module = &deployed.current[&name];
        let tables = bind_all(&module.schema, deployed);
        let rebound = Arc::new(Module {
            near: near::rows_of(&module.schema, &tables),
            tables,
            id: module.id,
            name: module.name.clone(),
            version: module.version,
            hash: module.hash,
            wasm_bytes: module.wasm_bytes,
            installed_by: module.installed_by,
            schema: module.schema.clone(),
            code: module.code.clone(),
        });
        deployed.versions[rebound.id.0 as usize] = rebound.clone();
        deployed.current.insert(name, rebound);
    }
}

fn bind_all(schema: &ModuleSchema, deployed: &Deployed) -> Vec<TableBinding> {
    schema.tables.iter().map(|table| bind(table, deployed)).collect()
}

fn bind(declared: &TableSchema, deployed: &Deployed) -> TableBinding {
    let (table, stored) = deployed
        .table(&declared.name)
        .expect("every declared table was created or found");
    let of_name = |name: &str| {
        let at = stored.indexes.iter().position(|index| index.name == name);
        at.expect("every declared index was created or found") as u16 + 1
    };
    let named = declared.indexes.iter().map(|index| of_name(&index.name));
    TableBinding {
        table,
        layout: RowLayout::of_table(declared),
        placement: stored.placement.clone(),
        indexes: std::iter::once(0).chain(named).collect(),
        projection: (declared.columns.len() < stored.columns.len()).then(|| {
            let projection = RowProjection::new(&stored.columns, declared.columns.len());
            projection.expect("stored columns beyond the declared ones have defaults or are nullable")
        }),
    }
}
