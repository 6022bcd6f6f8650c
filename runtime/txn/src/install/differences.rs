//! The changes that a deployment or a removal would make, and the things that it would destroy.

use std::collections::BTreeSet;

use reprise_abi::{ColumnSchema, ModuleSchema, Partitioning, ProcedureSchema, TableSchema};
use reprise_storage::{ChangeAction, ChangeStep, Misfits, TableChange, TableId};

use super::{
    DeploymentRules,
    consent::{Consent, ConsentKind, DestroyedItem},
    counts::StoredCounts,
    deployment_check::DeploymentCheck,
    outline::DeclaredChange,
    summary::{OrphanedTable, PlanSummary, ProcedureChange, RenameGuess, RollbackPlan, TableChangePlan},
};
use crate::module::{Deployed, Module};

impl DeploymentCheck<'_> {
    /// Describes the checked deployment. `copies` are tables that are copied for the migration.
    pub(super) fn summarize<'c>(
        &self,
        summary: &mut PlanSummary,
        counts: &dyn StoredCounts,
        copies: impl Iterator<Item = &'c (TableId, TableChange)>,
    ) {
        let mut work_ns = 0;
        let mut add_work = |id: &TableId, change: &TableChange| {
            work_ns += counts
                .table(*id, &self.deployed.tables[id.0 as usize])
                .change_ns(change);
        };
        copies.for_each(|(id, change)| add_work(id, change));
        for change in &self.changes {
            match change {
                DeclaredChange::Create(table) => summary.tables.push(created(table)),
                DeclaredChange::Change(id, change) => {
                    if !change.is_noop() || summary.migrates {
                        add_work(id, change);
                    }
                    if !change.is_noop() {
                        self.describe_change(summary, counts, *id, change);
                    }
                }
            }
        }
        summary.estimated_ms = work_ns.div_ceil(1_000_000);
        if let Some(former) = self.deployed.current.get(self.name) {
            let own = self.changes.iter().filter_map(|change| match change {
                DeclaredChange::Change(id, _) => Some(*id),
                DeclaredChange::Create(_) => None,
            });
            let declared = self.schema.tables.iter();
            let of_others = declared.filter(|table| !table.owner.is_empty() && table.owner != self.name);
            let kept = own.chain(of_others.filter_map(|table| self.deployed.table_of(self.name, table)));
            summary.procedures = procedure_changes(&former.schema, self.schema);
            summary.abandoned = abandoned(self.deployed, former, &kept.collect(), counts);
            summary.record_lost(self.name);
            if self.conflicts.is_empty() {
                summary.way_back = Some(self.way_back(former, counts));
            }
        }
    }

    fn describe_change(&self, summary: &mut PlanSummary, counts: &dyn StoredCounts, id: TableId, change: &TableChange) {
        let stored = &self.deployed.tables[id.0 as usize];
        let rows = counts.table(id, stored).rows;
        let dropped: Vec<u16> = change.dropped_columns(stored).collect();
        if rows > 0 {
            summary.renames.extend(likely_renames(stored, change, &dropped));
            for column in dropped {
                let names = [&*stored.owner, &*stored.name, &*stored.columns[column as usize].name];
                let counted = counts.values(id, stored, column);
                let destroyed = DestroyedItem {
                    consent: Consent::to(ConsentKind::DropColumn, &names),
                    count: counted.unwrap_or(rows),
                    is_exact: counted.is_some(),
                };
                summary.destroyed.extend((destroyed.count > 0).then_some(destroyed));
            }
        }
        summary.tables.push(TableChangePlan {
            table: change.schema.full_name(),
            steps: change.steps.clone(),
            rows,
            reads_rows: change.reads_rows(),
            was: stored.name.clone(),
            sources: change.sources().to_vec(),
        });
    }

    /// Checks a rollback to `former` over the new tables, by the rules of the rollback itself. Their future rows are not known, so the
    /// result says which conditions the rows must meet.
    fn way_back(&self, former: &Module, counts: &dyn StoredCounts) -> RollbackPlan {
        let mut next = self.next.clone();
        next.record_origins(&former.name);
        for change in &self.changes {
            if let DeclaredChange::Change(id, change) = change {
                next.follow_change(*id, change.sources());
            }
        }
        let mut check = DeploymentCheck::new(
            &next,
            &former.name,
            &former.hash,
            &former.schema,
            DeploymentRules::WayBack,
        );
        check.take_all();
        let mut way = RollbackPlan {
            version: former.version,
            ..RollbackPlan::default()
        };
        let mut conflicts = std::mem::take(&mut check.conflicts);
        for change in &check.changes {
            let DeclaredChange::Change(id, change) = change else {
                continue;
            };
            let table = &next.tables[id.0 as usize];
            let columns = change.dropped_columns(table).map(|at| &table.columns[at as usize].name);
            way.drops
                .extend(columns.map(|column| format!("{}.{column}", table.full_name())));
            // A table that the deployment creates has no count yet.
            let stored = self.deployed.tables.get(id.0 as usize);
            let rows = stored.map_or(0, |stored| counts.table(*id, stored).rows);
            let misfits = change.conditions(table).map(|(text, allows_no_row)| {
                let is_hopeless = allows_no_row && rows > 0;
                if !is_hopeless {
                    way.needs.push(text);
                    return Misfits::default();
                }
                Misfits {
                    rows,
                    example: counts.any_row(*id),
                }
            });
            let misfits = misfits.collect();
            conflicts.extend(change.conflicts_of(table, misfits));
        }
        if !conflicts.is_empty() {
            way.drops.clear();
        }
        way.conflicts = conflicts;
        way
    }
}

impl PlanSummary {
    /// Adds the lost procedures and tables to the things that need consent.
    fn record_lost(&mut self, module: &str) {
        let dropped = self.procedures.iter().filter(|plan| plan.action == ChangeAction::Drop);
        let dropped = dropped.map(|plan| DestroyedItem {
            consent: Consent::to(ConsentKind::DropProcedure, &[module, &plan.procedure]),
            count: 0,
            is_exact: true,
        });
        let left = self.abandoned.iter().filter(|table| table.rows > 0);
        let left = left.map(|table| DestroyedItem {
            consent: Consent::to(ConsentKind::AbandonTable, &[&table.table]),
            count: table.rows,
            is_exact: true,
        });
        self.destroyed.extend(dropped.chain(left));
    }
}

fn created(table: &TableSchema) -> TableChangePlan {
    TableChangePlan {
        table: table.full_name(),
        steps: vec![ChangeStep::new(ChangeAction::Create, "table", "", "")],
        rows: 0,
        reads_rows: false,
        was: String::new(),
        sources: Vec::new(),
    }
}

/// Plans to take a module out of service. None: no such module is in service.
pub fn outline_removal(deployed: &Deployed, name: &str, counts: &dyn StoredCounts) -> Option<PlanSummary> {
    let former = deployed.current.get(name)?;
    let mut summary = PlanSummary {
        procedures: procedure_changes(&former.schema, &ModuleSchema::default()),
        abandoned: abandoned(deployed, former, &BTreeSet::new(), counts),
        ..PlanSummary::default()
    };
    summary.record_lost(name);
    Some(summary)
}

/// Returns the tables that the version declares and no other module in service does, without the kept ones. Tables of other modules count,
/// too, because their owner may have left before.
fn abandoned(
    deployed: &Deployed,
    former: &Module,
    kept: &BTreeSet<TableId>,
    counts: &dyn StoredCounts,
) -> Vec<OrphanedTable> {
    let others = deployed.current.values().filter(|module| module.name != former.name);
    let used: BTreeSet<TableId> = others
        .flat_map(|module| module.tables.iter().map(|bound| bound.table))
        .collect();
    let bound = former.tables.iter().map(|bound| bound.table);
    let left = bound.filter(|id| !kept.contains(id) && !used.contains(id));
    left.map(|id| {
        let stored = &deployed.tables[id.0 as usize];
        OrphanedTable {
            table: stored.full_name(),
            rows: counts.table(id, stored).rows,
        }
    })
    .collect()
}

/// Returns each dropped column with the first added column of its type that is not taken yet.
fn likely_renames(stored: &TableSchema, change: &TableChange, dropped: &[u16]) -> Vec<RenameGuess> {
    let columns = change.schema.columns.iter().zip(change.sources());
    let mut added: Vec<_> = columns
        .filter(|(_, source)| source.is_none())
        .map(|(column, _)| column)
        .collect();
    let mut renames = Vec::new();
    for column in dropped.iter().map(|at| &stored.columns[*at as usize]) {
        let is_alike = |added: &&ColumnSchema| (added.ty, &added.variants) == (column.ty, &column.variants);
        if let Some(at) = added.iter().position(is_alike) {
            renames.push(RenameGuess {
                table: change.schema.full_name(),
                from: column.name.clone(),
                to: added.remove(at).name.clone(),
            });
        }
    }
    renames
}

/// Returns the procedures that differ, in the order of their names.
fn procedure_changes(former: &ModuleSchema, next: &ModuleSchema) -> Vec<ProcedureChange> {
    let of = |schema: &ModuleSchema, name: &str| {
        let mut procedures = schema.procedures.iter();
        procedures.find(|procedure| procedure.name == name).cloned()
    };
    let all = former.procedures.iter().chain(&next.procedures);
    let names: BTreeSet<&str> = all.map(|procedure| &*procedure.name).collect();
    let plans = names.into_iter().filter_map(|name| {
        let (action, detail) = match (of(former, name), of(next, name)) {
            (Some(_), None) => (ChangeAction::Drop, String::new()),
            (None, _) => (ChangeAction::Add, String::new()),
            (Some(former), Some(next)) => (ChangeAction::Convert, difference(&former, &next)?),
        };
        Some(ProcedureChange {
            procedure: name.to_owned(),
            action,
            detail,
        })
    });
    plans.collect()
}

/// Describes the change for its callers. None if nothing changes for them.
fn difference(former: &ProcedureSchema, next: &ProcedureSchema) -> Option<String> {
    let mut parts = Vec::new();
    let of = |procedure: &ProcedureSchema, name: &str| {
        let mut params = procedure.params.iter();
        params.find(|param| param.name == name).map(|param| param.ty.clone())
    };
    for param in &former.params {
        match of(next, &param.name) {
            None => parts.push(format!("without parameter {}", param.name)),
            Some(ty) if ty != param.ty => parts.push(format!("parameter {} of another type", param.name)),
            Some(_) => {}
        }
    }
    let added = next.params.iter().filter(|param| of(former, &param.name).is_none());
    parts.extend(added.map(|param| format!("with parameter {}", param.name)));
    if former.returns != next.returns {
        parts.push("another result".to_owned());
    }
    match (former.read_only, next.read_only) {
        (false, true) => parts.push("read-only".to_owned()),
        (true, false) => parts.push("no longer read-only".to_owned()),
        _ => {}
    }
    if !is_placed_alike(former, next) {
        parts.push("on other partitions".to_owned());
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// True if a call of either procedure takes the same partitions.
fn is_placed_alike(former: &ProcedureSchema, next: &ProcedureSchema) -> bool {
    let names = |procedure: &ProcedureSchema, params: &[u16]| {
        let params = params.iter().map(|at| procedure.params.get(usize::from(*at)));
        params
            .map(|param| param.map(|param| param.name.clone()))
            .collect::<Vec<_>>()
    };
    match (&former.partitioning, &next.partitioning) {
        (Partitioning::By(before), Partitioning::By(after)) => names(former, before) == names(next, after),
        (before, after) => before == after,
    }
}
