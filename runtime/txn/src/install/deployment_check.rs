//! The only check of a deployment: it checks the tables and bindings that the deployment would result in. It reads no row, except to count
//! the values of columns that would be dropped.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use reprise_abi::{ModuleSchema, TablePlacement, TableSchema, describe::write_json};
use reprise_base::limits::{DESCRIPTION_BYTES_MAX, MODULES_MAX, TABLES_MAX};
use reprise_storage::{
    Conflict, TableChange, TableId, as_stored, check_limits, plan_change, plan_change_of_empty, plan_logged_change,
    plan_return,
};

use super::{
    Candidate, DeploymentRules,
    bind::bind_all,
    conflict,
    exchanged_names::check_exchanged_names,
    lineage::{Origin, TableOrigins},
    outline::{DeclaredChange, Outline, RetiringSchema},
    put_table,
    summary::{PlanSummary, TableSources},
};
use crate::module::Deployed;

/// Checks `candidate` over the stored tables.
pub fn outline(deployed: &Deployed, candidate: &Candidate, rules: DeploymentRules<'_>) -> Outline {
    let mut check = DeploymentCheck::new(deployed, &candidate.name, &candidate.hash, &candidate.schema, rules);
    check.check_counts();
    check.check_names();
    check.take_all();
    check.finish(candidate)
}

pub(super) struct DeploymentCheck<'a> {
    pub(super) deployed: &'a Deployed,
    /// Name of the module.
    pub(super) name: &'a str,
    /// Tables that the module declares.
    pub(super) schema: &'a ModuleSchema,
    rules: DeploymentRules<'a>,
    /// The present places of the declared tables, if the module had these bytes before. The tables then go back.
    origins: Option<Arc<TableOrigins>>,
    pub(super) conflicts: Vec<Conflict>,
    pub(super) changes: Vec<DeclaredChange>,
    /// The tables after the deployment.
    pub(super) next: Deployed,
}

/// Bindings of the module, those of other modules in service by name, and the tables that retire.
type BoundTables = (
    Vec<crate::TableBinding>,
    BTreeMap<String, Vec<crate::TableBinding>>,
    Vec<RetiringSchema>,
);

/// The stored table that a declaration is about.
enum DeclaredTarget {
    New(TableSchema),
    /// Its own table, and the declaration with its owner.
    Own(TableId, TableSchema),
    /// A table of another module.
    Other,
}

impl<'a> DeploymentCheck<'a> {
    pub(super) fn new(
        deployed: &'a Deployed,
        name: &'a str,
        hash: &[u8; 32],
        schema: &'a ModuleSchema,
        rules: DeploymentRules<'a>,
    ) -> Self {
        let origins = match rules {
            DeploymentRules::Replay(_) => None,
            DeploymentRules::Deployment(_) | DeploymentRules::WayBack => deployed.origins_of(name, hash),
        };
        Self {
            origins,
            deployed,
            name,
            schema,
            rules,
            conflicts: Vec::new(),
            changes: Vec::new(),
            next: deployed.clone(),
        }
    }

    /// Checks the declared tables.
    pub(super) fn take_all(&mut self) {
        let schema = self.schema;
        for (at, table) in schema.tables.iter().enumerate() {
            self.take(at, table);
        }
    }

    fn refuse(&mut self, item: &str, what: &'static str, stored: &str, declared: &str, way_on: &str) {
        self.conflicts.push(conflict("", item, what, stored, declared, way_on));
    }

    /// Checks the limits on numbers. A replay has none, because the deployment took place.
    fn check_counts(&mut self) {
        if matches!(self.rules, DeploymentRules::Replay(_)) {
            return;
        }
        let name = self.name;
        let is_new = !self.deployed.current.contains_key(name);
        if is_new && self.deployed.current.len() >= MODULES_MAX {
            let stored = format!("{MODULES_MAX} are in service");
            self.refuse(name, "module", &stored, "one more", "remove one that is not called");
        }
        let bytes = write_json(self.schema).len();
        if bytes > DESCRIPTION_BYTES_MAX {
            let (most, found) = (format!("at most {DESCRIPTION_BYTES_MAX} bytes"), bytes.to_string());
            let way_on = "divide it into two modules, or shorten names";
            self.refuse(name, "description", &most, &found, way_on);
        }
    }

    /// Refuses names that are exchanged. A description that was accepted once stays so, also for a rollback.
    fn check_names(&mut self) {
        if matches!(self.rules, DeploymentRules::Deployment(_)) && self.origins.is_none() {
            self.conflicts
                .extend(check_exchanged_names(self.name, &self.schema.tables));
        }
    }

    /// Checks one declared table.
    fn take(&mut self, at: usize, declared: &TableSchema) {
        if let Some(unfit) = unfit_placement(declared) {
            return self.conflicts.push(unfit);
        }
        let target = match self.target(at, declared) {
            Ok(target) => target,
            Err(found) => return self.conflicts.push(found),
        };
        let change = match target {
            DeclaredTarget::Other => return,
            DeclaredTarget::New(table) => match self.check_new(&table) {
                Ok(()) => DeclaredChange::Create(table),
                Err(found) => return self.conflicts.extend(found),
            },
            DeclaredTarget::Own(id, declared) => match self.check_change(at, id, &declared) {
                Ok(change) => DeclaredChange::Change(id, change),
                Err(found) => return self.conflicts.extend(found),
            },
        };
        match &change {
            DeclaredChange::Create(table) => {
                put_table(&mut self.next.tables, Arc::new(table.clone()));
            }
            DeclaredChange::Change(id, change) => {
                self.next.tables[id.0 as usize] = Arc::new(change.schema.clone());
            }
        }
        self.changes.push(change);
    }

    fn target(&self, at: usize, declared: &TableSchema) -> Result<DeclaredTarget, Conflict> {
        let module = self.name;
        if !declared.owner.is_empty() && declared.owner != module {
            return self.target_of_other(declared);
        }
        let mut table = declared.clone();
        table.owner = module.to_owned();
        if let Some(origin) = self.origin(at).filter(|origin| !self.is_taken(origin.table)) {
            return self.target_of_return(origin.table, table);
        }
        if let Some(logged) = self.logged(&declared.name)
            && let Some(id) = self.deployed.owned(module, &logged.was)
        {
            return Ok(DeclaredTarget::Own(id, table));
        }
        let was = declared.was.as_deref().filter(|was| !self.declares(was));
        let before = was.and_then(|was| self.find_by_name(at, declared, was));
        let found = match (self.find_by_name(at, declared, &declared.name), before) {
            // A record lists each table that it changes. Another one had its name before, whatever `was` finds now.
            (Some(id), Some(_)) if matches!(self.rules, DeploymentRules::Replay(_)) => Some(id),
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
                false => Ok(DeclaredTarget::Own(id, table)),
                true => {
                    let full = table.full_name();
                    let way_on = "declare it once";
                    Err(conflict(&full, "", "table", "one table", "declared twice", way_on))
                }
            };
        }
        Ok(DeclaredTarget::New(as_stored(table)))
    }

    /// Returns the present place of the declared table.
    fn origin(&self, at: usize) -> Option<&Origin> {
        self.origins.as_ref()?.get(at)?.as_ref()
    }

    /// Returns the table in the log's record of the deployment.
    fn logged(&self, name: &str) -> Option<&'a TableSources> {
        match self.rules {
            DeploymentRules::Replay(logged) => logged.iter().find(|table| table.table == name),
            DeploymentRules::Deployment(_) | DeploymentRules::WayBack => None,
        }
    }

    /// Returns the module's stored table of this name, unless another declared table comes from it. Otherwise a dropped table would take
    /// the rows of a renamed one.
    fn find_by_name(&self, at: usize, declared: &TableSchema, name: &str) -> Option<TableId> {
        let id = self.deployed.owned(self.name, name)?;
        let mut origins = self.origins.iter().flat_map(|origins| origins.iter().enumerate());
        let returns = origins.any(|(other, origin)| other != at && origin.as_ref().is_some_and(|it| it.table == id));
        let logged: &[TableSources] = match self.rules {
            DeploymentRules::Replay(logged) => logged,
            DeploymentRules::Deployment(_) | DeploymentRules::WayBack => &[],
        };
        let mut logged = logged.iter();
        let is_logged = logged.any(|other| other.table != declared.name && other.was == name);
        (!returns && !is_logged).then_some(id)
    }

    /// Returns the stored table that the declared one was before, unless another table that stays has its name.
    fn target_of_return(&self, id: TableId, table: TableSchema) -> Result<DeclaredTarget, Conflict> {
        let origins = self.origins.iter().flat_map(|origins| origins.iter().flatten());
        let leaves = |other: TableId| origins.clone().any(|origin| origin.table == other);
        match self.deployed.owned(self.name, &table.name) {
            Some(other) if other != id && !leaves(other) => {
                let now = &self.deployed.tables[id.0 as usize].name;
                let stored = format!("both {now}, which was {0}, and another {0}", table.name);
                let way_on = format!(
                    "drop the table {} first, when no module in service declares it",
                    table.full_name()
                );
                Err(conflict(&table.full_name(), "", "table", &stored, "one table", &way_on))
            }
            _ => Ok(DeclaredTarget::Own(id, table)),
        }
    }

    fn declares(&self, name: &str) -> bool {
        let mut tables = self.schema.tables.iter();
        tables.any(|table| table.name == name && (table.owner.is_empty() || table.owner == self.name))
    }

    fn is_taken(&self, id: TableId) -> bool {
        let mut changes = self.changes.iter();
        changes.any(|change| matches!(change, DeclaredChange::Change(taken, _) if *taken == id))
    }

    fn target_of_other(&self, declared: &TableSchema) -> Result<DeclaredTarget, Conflict> {
        let (full, owner) = (declared.full_name(), &declared.owner);
        let refuse = |stored: &str, way_on: String| {
            let declared = format!("used by {}", self.name);
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
            Some(_) => Ok(DeclaredTarget::Other),
        }
    }

    fn check_new(&self, table: &TableSchema) -> Result<(), Vec<Conflict>> {
        // A change from nothing checks the declaration alone.
        plan_change(table, table)?;
        self.check_limits(table)
    }

    fn check_change(&self, at: usize, id: TableId, declared: &TableSchema) -> Result<TableChange, Vec<Conflict>> {
        let stored = &self.deployed.tables[id.0 as usize];
        let origin = self.origin(at).filter(|origin| origin.table == id);
        let columns = origin.map(|origin| &*origin.columns);
        let change = match (self.rules, columns) {
            (DeploymentRules::Deployment(counts), _) if counts.table(id, stored).rows == 0 => {
                plan_change_of_empty(stored, declared, columns)?
            }
            (DeploymentRules::Deployment(_) | DeploymentRules::WayBack, Some(columns)) => {
                plan_return(stored, declared, columns)?
            }
            _ => match self.logged(&declared.name) {
                Some(logged) => plan_logged_change(stored, declared, &logged.columns)?,
                None => plan_change(stored, declared)?,
            },
        };
        self.check_limits(&change.schema)?;
        Ok(change)
    }

    fn check_limits(&self, table: &TableSchema) -> Result<(), Vec<Conflict>> {
        let found = match self.rules {
            DeploymentRules::Deployment(_) => check_limits(table),
            DeploymentRules::Replay(_) | DeploymentRules::WayBack => Vec::new(),
        };
        match found.is_empty() {
            true => Ok(()),
            false => Err(found),
        }
    }

    fn finish(mut self, candidate: &Candidate) -> Outline {
        self.check_table_count();
        let migrates = self.deployed.is_to_migrate(candidate);
        let (mut bindings, mut rebound, mut retiring) = (Vec::new(), BTreeMap::new(), Vec::new());
        if self.conflicts.is_empty() {
            match self.bind(migrates) {
                Ok(bound) => (bindings, rebound, retiring) = bound,
                Err(conflicts) => self.conflicts = conflicts,
            }
        }
        let mut summary = PlanSummary {
            migrates,
            migration: candidate.schema.on_deploy.clone(),
            ..PlanSummary::default()
        };
        if migrates {
            let whole = |change| match change {
                DeclaredChange::Change(id, change) => DeclaredChange::Change(id, change.whole()),
                created => created,
            };
            self.changes = self.changes.into_iter().map(whole).collect();
        }
        if let DeploymentRules::Deployment(counts) = self.rules {
            let copies = retiring
                .iter()
                .filter_map(|(_, change): &RetiringSchema| change.as_ref());
            self.summarize(&mut summary, counts, copies);
        }
        summary.conflicts = self.conflicts;
        Outline {
            stored: self.deployed.tables.clone(),
            changes: self.changes,
            bindings,
            rebound,
            retiring,
            summary,
        }
    }

    fn bind(&self, migrates: bool) -> Result<BoundTables, Vec<Conflict>> {
        let bindings = bind_all(self.name, self.schema, &self.next)?;
        let rebound = self.rebound()?;
        let retiring = if migrates { self.retiring()? } else { Vec::new() };
        Ok((bindings, rebound, retiring))
    }

    /// Returns the stored tables as the migration sees them.
    fn retiring(&self) -> Result<Vec<RetiringSchema>, Vec<Conflict>> {
        let mut retiring = Vec::new();
        for declared in &self.schema.retiring {
            let mut seen = declared.clone();
            seen.owner = self.name.to_owned();
            let Some(id) = self.deployed.owned(self.name, &declared.name) else {
                retiring.push((seen, None));
                continue;
            };
            let stored = &self.deployed.tables[id.0 as usize];
            let change = match self.rules {
                DeploymentRules::Deployment(counts) if counts.table(id, stored).rows > 0 => plan_change(stored, &seen)?,
                // A replay finds the rows of that time. If the columns do not fit, there were no rows.
                _ => plan_change_of_empty(stored, &seen, None)?,
            };
            retiring.push((seen, Some((id, change.whole()))));
        }
        Ok(retiring)
    }

    fn check_table_count(&mut self) {
        let tables_max = match self.rules {
            DeploymentRules::Deployment(_) => TABLES_MAX,
            DeploymentRules::Replay(_) | DeploymentRules::WayBack => usize::from(u16::MAX),
        };
        let live = self.next.tables.iter().filter(|table| !table.is_dropped());
        if live.count() + self.schema.retiring.len() > tables_max {
            let (name, stored) = (self.name.to_owned(), format!("at most {tables_max}"));
            self.refuse(&name, "tables", &stored, "more", "drop tables that no module uses");
        }
    }

    /// Returns the other modules in service, bound to the changed tables.
    fn rebound(&self) -> Result<BTreeMap<String, Vec<crate::TableBinding>>, Vec<Conflict>> {
        let changed: BTreeSet<TableId> = self.changes.iter().filter_map(changed_table).collect();
        let mut rebound = BTreeMap::new();
        let mut conflicts = Vec::new();
        for module in self.deployed.current.values().filter(|module| module.name != self.name) {
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
            if matches!(self.rules, DeploymentRules::Deployment(_)) {
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

fn changed_table(change: &DeclaredChange) -> Option<TableId> {
    match change {
        DeclaredChange::Change(id, change) if !change.is_noop() => Some(*id),
        _ => None,
    }
}

/// Returns why the partitions could not tell rows of this table apart.
fn unfit_placement(table: &TableSchema) -> Option<Conflict> {
    let full = table.full_name();
    let column = match table.placement {
        TablePlacement::Local => return None,
        TablePlacement::Replicated if table.primary_key.is_empty() => {
            let declared = "replicated, without a primary key";
            let way_on = "declare a primary key";
            return Some(conflict(&full, "", "primary key", "", declared, way_on));
        }
        TablePlacement::Replicated => return None,
        TablePlacement::By(column) => column,
    };
    let name = &table.columns.get(column as usize)?.name;
    let lacks = |columns: &[u16]| !columns.is_empty() && !columns.contains(&column);
    let lacking = format!("without the partition column {name}");
    let way_on = format!("add {name} to it");
    if lacks(&table.primary_key) {
        return Some(conflict(
            &full,
            "",
            "primary key",
            "",
            &format!("with a primary key {lacking}"),
            &way_on,
        ));
    }
    let mut unique = table.indexes.iter().filter(|index| index.unique);
    let unfit = unique.find(|index| lacks(&index.columns))?;
    Some(conflict(&full, &unfit.name, "unique index", "", &lacking, &way_on))
}
