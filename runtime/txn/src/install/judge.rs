//! The one judgement of a deployment: on the tables and bindings that it would result in.

use std::{collections::BTreeSet, sync::Arc};

use reprise_abi::{Placement, TableSchema, describe::write_json};
use reprise_base::limits::{DESCRIPTION_BYTES_MAX, MODULES_MAX, TABLES_MAX};
use reprise_storage::{
    ChangeAction, ChangeStep, Conflict, GoOn, Prepared, Store, TableChange, TableId, Unprepared, as_stored,
    check_limits, plan_change,
};

use super::{Candidate, Judge, Plan, PlanSummary, Step, TablePlan, bind::bind_all, conflict, put_table};
use crate::module::Deployed;

/// Judges `candidate` over the stored tables, and makes what the deployment will need: the changed tables, the bindings. `go_on` is
/// told of rows that were copied, and asked whether there may be more.
pub fn plan(
    deployed: &Deployed,
    candidate: &Candidate,
    stores: &[&Store],
    judge: Judge,
    go_on: GoOn<'_>,
) -> Result<Plan, Unprepared> {
    let mut judged = Judged {
        deployed,
        candidate,
        judge,
        conflicts: Vec::new(),
        changes: Vec::new(),
        next: deployed.clone(),
    };
    judged.check_counts();
    for table in &candidate.schema.tables {
        judged.take(table);
    }
    judged.finish(stores, go_on)
}

/// What becomes of a declared table.
enum Change {
    Create(TableSchema),
    Change(TableId, TableChange),
}

struct Judged<'a> {
    deployed: &'a Deployed,
    candidate: &'a Candidate,
    judge: Judge,
    conflicts: Vec<Conflict>,
    changes: Vec<Change>,
    /// The tables as they would be.
    next: Deployed,
}

/// Which stored table a declaration is about.
enum Target {
    New(TableSchema),
    /// Its own, and the declaration with its owner.
    Own(TableId, TableSchema),
    /// Another module's.
    Other,
}

impl Judged<'_> {
    fn refuse(&mut self, item: &str, what: &'static str, stored: &str, declared: &str, way_on: &str) {
        self.conflicts.push(conflict("", item, what, stored, declared, way_on));
    }

    /// Limits on numbers alone; none where the deployment has been.
    fn check_counts(&mut self) {
        if self.judge != Judge::Deployment {
            return;
        }
        let name = &self.candidate.name;
        let is_new = !self.deployed.current.contains_key(name);
        if is_new && self.deployed.current.len() >= MODULES_MAX {
            let stored = format!("{MODULES_MAX} are in service");
            self.refuse(name, "module", &stored, "one more", "remove one that is not called");
        }
        let bytes = write_json(&self.candidate.schema).len();
        if bytes > DESCRIPTION_BYTES_MAX {
            let (most, found) = (format!("at most {DESCRIPTION_BYTES_MAX} bytes"), bytes.to_string());
            let way_on = "divide it into two modules, or shorten names";
            self.refuse(name, "description", &most, &found, way_on);
        }
    }

    /// Judges one declared table.
    fn take(&mut self, declared: &TableSchema) {
        if let Some(unfit) = unfit_placement(declared) {
            return self.conflicts.push(unfit);
        }
        let target = match self.target(declared) {
            Ok(target) => target,
            Err(found) => return self.conflicts.push(found),
        };
        let change = match target {
            Target::Other => return,
            Target::New(table) => match self.check_new(&table) {
                Ok(()) => Change::Create(table),
                Err(found) => return self.conflicts.extend(found),
            },
            Target::Own(id, declared) => match self.check_change(id, &declared) {
                Ok(change) => Change::Change(id, change),
                Err(found) => return self.conflicts.extend(found),
            },
        };
        match &change {
            Change::Create(table) => {
                put_table(&mut self.next.tables, Arc::new(table.clone()));
            }
            Change::Change(id, change) => {
                self.next.tables[id.0 as usize] = Arc::new(change.schema.clone());
            }
        }
        self.changes.push(change);
    }

    fn target(&self, declared: &TableSchema) -> Result<Target, Conflict> {
        let module = &self.candidate.name;
        if !declared.owner.is_empty() && declared.owner != *module {
            return self.target_of_other(declared);
        }
        let mut table = declared.clone();
        table.owner = module.clone();
        let was = declared.was.as_deref().filter(|was| !self.declares(was));
        let before = was.and_then(|was| self.deployed.owned(module, was));
        let found = match (self.deployed.owned(module, &declared.name), before) {
            (Some(_), Some(_)) => {
                let (stored, declared) = (
                    format!("both {} and {}", table.name, was.unwrap_or_default()),
                    format!("was {}", was.unwrap_or_default()),
                );
                let way_on = "leave `was` out, or drop one of the tables first";
                return Err(conflict(&table.full_name(), "", "table", &stored, &declared, way_on));
            }
            (found, before) => found.or(before),
        };
        if let Some(id) = found {
            return match self.is_taken(id) {
                false => Ok(Target::Own(id, table)),
                true => {
                    let full = table.full_name();
                    let way_on = "declare it once";
                    Err(conflict(&full, "", "table", "one table", "declared twice", way_on))
                }
            };
        }
        Ok(Target::New(as_stored(table)))
    }

    fn declares(&self, name: &str) -> bool {
        let mut tables = self.candidate.schema.tables.iter();
        tables.any(|table| table.name == name && (table.owner.is_empty() || table.owner == self.candidate.name))
    }

    fn is_taken(&self, id: TableId) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| matches!(change, Change::Change(taken, _) if *taken == id))
    }

    fn target_of_other(&self, declared: &TableSchema) -> Result<Target, Conflict> {
        let (full, owner) = (declared.full_name(), &declared.owner);
        let refuse = |stored: &str, way_on: String| {
            let declared = format!("used by {}", self.candidate.name);
            Err(conflict(&full, "", "table", stored, &declared, &way_on))
        };
        match self.deployed.owned(owner, &declared.name) {
            _ if !declared.shared => refuse("another module's", "declare it `shared` here, too".to_owned()),
            None => refuse(
                "no such table",
                format!("deploy module {owner} first, which declares it"),
            ),
            Some(id) if !self.deployed.tables[id.0 as usize].shared => refuse(
                "not shared",
                format!("declare the table `shared` in {owner}, too, and deploy that first"),
            ),
            Some(_) => Ok(Target::Other),
        }
    }

    fn check_new(&self, table: &TableSchema) -> Result<(), Vec<Conflict>> {
        // A change from nothing: what is judged is the declaration alone.
        plan_change(table, table)?;
        self.check_limits(table)
    }

    fn check_change(&self, id: TableId, declared: &TableSchema) -> Result<TableChange, Vec<Conflict>> {
        let change = plan_change(&self.deployed.tables[id.0 as usize], declared)?;
        self.check_limits(&change.schema)?;
        Ok(change)
    }

    fn check_limits(&self, table: &TableSchema) -> Result<(), Vec<Conflict>> {
        let found = match self.judge {
            Judge::Deployment => check_limits(table),
            Judge::Replay => Vec::new(),
        };
        match found.is_empty() {
            true => Ok(()),
            false => Err(found),
        }
    }

    fn finish(mut self, stores: &[&Store], go_on: GoOn<'_>) -> Result<Plan, Unprepared> {
        self.check_table_count();
        if !self.conflicts.is_empty() {
            return Err(Unprepared::Conflicts(self.conflicts));
        }
        let bindings = bind_all(&self.candidate.name, &self.candidate.schema, &self.next);
        let bindings = bindings.map_err(Unprepared::Conflicts)?;
        let migrates = self.candidate.schema.on_deploy;
        let mut plan = Plan {
            steps: Vec::new(),
            bindings,
            rebound: self.rebound().map_err(Unprepared::Conflicts)?,
            retiring: self.retiring(stores, go_on)?,
            summary: PlanSummary {
                migrates,
                ..PlanSummary::default()
            },
        };
        for change in self.changes {
            let (step, table) = carry_out(change, stores, migrates, go_on)?;
            plan.steps.push(step);
            plan.summary.tables.extend(table);
        }
        Ok(plan)
    }

    /// Copies of the stored tables as what runs at the deployment sees them; empty ones of tables that are not stored.
    fn retiring(&self, stores: &[&Store], go_on: GoOn<'_>) -> Result<Vec<(TableSchema, Vec<Prepared>)>, Unprepared> {
        let mut retiring = Vec::new();
        for declared in &self.candidate.schema.retiring {
            let mut seen = declared.clone();
            seen.owner = self.candidate.name.clone();
            let Some(id) = self.deployed.owned(&self.candidate.name, &declared.name) else {
                let copies = stores.iter().map(|_| Prepared::empty(seen.clone()));
                retiring.push((seen.clone(), copies.collect()));
                continue;
            };
            let change = plan_change(&self.deployed.tables[id.0 as usize], &seen);
            let change = change.map_err(Unprepared::Conflicts)?.whole();
            let copies = stores.iter().map(|store| store.prepare(id, change.clone(), go_on));
            retiring.push((seen, copies.collect::<Result<_, _>>()?));
        }
        Ok(retiring)
    }

    fn check_table_count(&mut self) {
        let tables_max = match self.judge {
            Judge::Deployment => TABLES_MAX,
            Judge::Replay => usize::from(u16::MAX),
        };
        let live = self.next.tables.iter().filter(|table| !table.is_dropped());
        if live.count() + self.candidate.schema.retiring.len() > tables_max {
            let (name, stored) = (self.candidate.name.clone(), format!("at most {tables_max}"));
            self.refuse(&name, "tables", &stored, "more", "drop tables that no module uses");
        }
    }

    /// Other modules in service, bound to what would become of their tables.
    fn rebound(&self) -> Result<std::collections::BTreeMap<String, Vec<crate::TableBinding>>, Vec<Conflict>> {
        let changed: BTreeSet<TableId> = self.changes.iter().filter_map(changed_table).collect();
        let mut rebound = std::collections::BTreeMap::new();
        let mut conflicts = Vec::new();
        for module in self
            .deployed
            .current
            .values()
            .filter(|module| module.name != self.candidate.name)
        {
            let mut used = module
                .tables
                .iter()
                .filter(|bound| changed.contains(&bound.table))
                .peekable();
            if used.peek().is_none() {
                continue;
            }
            let tables = used.map(|bound| &self.next.tables[bound.table.0 as usize]);
            let unshared = tables.filter(|table| !table.shared && table.owner != module.name);
            if self.judge == Judge::Deployment {
                conflicts.extend(unshared.map(|table| used_by(&module.name, table)));
            }
            match bind_all(&module.name, &module.schema, &self.next) {
                Ok(tables) => drop(rebound.insert(module.name.clone(), tables)),
                Err(found) => conflicts.extend(found),
            }
        }
        match conflicts.is_empty() {
            true => Ok(rebound),
            false => Err(conflicts),
        }
    }
}

fn used_by(module: &str, table: &TableSchema) -> Conflict {
    let full = table.full_name();
    let stored = format!("used by module {module} in service");
    let way_on = format!("declare it `shared`, here and in {module}; or remove {module}");
    conflict(&full, "", "table", &stored, "not shared", &way_on)
}

fn changed_table(change: &Change) -> Option<TableId> {
    match change {
        Change::Change(id, change) if !change.is_noop() => Some(*id),
        _ => None,
    }
}

/// Makes what the change needs; with what people are told of it. Where the module runs something at its deployment, its tables are
/// copied whole, changed or not.
fn carry_out(
    change: Change,
    stores: &[&Store],
    migrates: bool,
    go_on: GoOn<'_>,
) -> Result<(Step, Option<TablePlan>), Unprepared> {
    match change {
        Change::Create(table) => {
            let told = TablePlan {
                table: table.full_name(),
                steps: vec![ChangeStep::new(ChangeAction::Create, "table", "", "")],
                rows: 0,
                reads_rows: false,
            };
            Ok((Step::Create(table), Some(told)))
        }
        Change::Change(id, change) => {
            let schema = Arc::new(change.schema.clone());
            if change.is_noop() && !migrates {
                return Ok((Step::Change(id, schema, Vec::new()), None));
            }
            let change = if migrates { change.whole() } else { change };
            let told = TablePlan {
                table: schema.full_name(),
                steps: change.steps.clone(),
                rows: stores.iter().map(|store| store.rows_count(id)).sum(),
                reads_rows: change.reads_rows(),
            };
            let prepared = stores.iter().map(|store| store.prepare(id, change.clone(), go_on));
            let prepared = prepared.collect::<Result<_, _>>()?;
            Ok((
                Step::Change(id, schema, prepared),
                (!told.steps.is_empty()).then_some(told),
            ))
        }
    }
}

/// Why rows of this table could not be told apart over the partitions.
fn unfit_placement(table: &TableSchema) -> Option<Conflict> {
    let full = table.full_name();
    let column = match table.placement {
        Placement::Local => return None,
        Placement::Replicated if table.primary_key.is_empty() => {
            let (rule, declared) = ("replicated tables have one", "none");
            return Some(conflict(
                &full,
                "",
                "primary key",
                rule,
                declared,
                "declare a primary key",
            ));
        }
        Placement::Replicated => return None,
        Placement::By(column) => column,
    };
    let name = &table.columns.get(column as usize)?.name;
    let lacks = |columns: &[u16]| !columns.is_empty() && !columns.contains(&column);
    let rule = format!("holds the partition column {name}");
    let way_on = format!("add {name} to it");
    if lacks(&table.primary_key) {
        return Some(conflict(&full, "", "primary key", &rule, "does not", &way_on));
    }
    let mut unique = table.indexes.iter().filter(|index| index.unique);
    let unfit = unique.find(|index| lacks(&index.columns))?;
    Some(conflict(&full, &unfit.name, "unique index", &rule, "does not", &way_on))
}
