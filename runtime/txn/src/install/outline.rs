//! A deployment that was checked, and the tables that are made for it before anything changes.

use std::{collections::BTreeMap, sync::Arc};

use reprise_abi::{TablePlacement, TableSchema};
use reprise_storage::{Conflict, ConvertError, GoOn, Growth, Misfits, PreparedTable, Store, TableChange, TableId};

use super::{InstallStep, Plan, summary::PlanSummary};

/// A checked deployment: its changes, with nothing of them made yet.
pub struct Outline {
    /// The stored tables.
    pub(super) stored: Vec<Arc<TableSchema>>,
    pub(super) changes: Vec<DeclaredChange>,
    pub(super) bindings: Vec<crate::TableBinding>,
    pub(super) rebound: BTreeMap<String, Vec<crate::TableBinding>>,
    /// Stored tables in the form that the migration sees. None if such a table is not stored.
    pub(super) retiring: Vec<RetiringSchema>,
    /// Everything that it would change, its conflicts included. A deployment with a conflict can't be prepared.
    pub summary: PlanSummary,
}

/// The change of a declared table.
pub(super) enum DeclaredChange {
    Create(TableSchema),
    Change(TableId, TableChange),
}

/// A stored table as the migration sees it. None if it is not stored.
pub(super) type RetiringSchema = (TableSchema, Option<(TableId, TableChange)>);

impl Outline {
    /// Returns conflicts of rows that the changed tables could not hold. `count` finds a table's misfits.
    pub fn row_conflicts<E>(
        &self,
        mut count: impl FnMut(TableId, &TableSchema, &TableChange) -> Result<Vec<Misfits>, E>,
    ) -> Result<Vec<Conflict>, E> {
        let mut conflicts = Vec::new();
        for change in &self.changes {
            if let DeclaredChange::Change(id, change) = change
                && change.has_checks()
            {
                let stored = &self.stored[id.0 as usize];
                conflicts.extend(change.conflicts_of(stored, count(*id, stored, change)?));
            }
        }
        Ok(conflicts)
    }

    /// Returns the memory that the changed tables take in one store.
    pub fn growth_in(&self, store: &Store) -> Growth {
        let mut growth = Growth::default();
        for change in &self.changes {
            growth.add(match change {
                DeclaredChange::Create(table) => Growth::of_new(table),
                DeclaredChange::Change(id, change) => store.growth_of(*id, change),
            });
        }
        for (seen, change) in &self.retiring {
            growth.add(match change {
                None => Growth::of_new(seen),
                Some((id, change)) => store.growth_of(*id, change),
            });
        }
        growth
    }
}

/// Counts misfits over the stores whose rows clients see. Of a replicated table one store is as good as another.
fn count_misfits(
    stores: &[&Store],
    id: TableId,
    stored: &TableSchema,
    change: &TableChange,
    go_on: GoOn<'_>,
) -> Result<Vec<Misfits>, ConvertError> {
    let count = match stored.placement {
        TablePlacement::Replicated => 1,
        _ => stores.len(),
    };
    let mut found: Vec<Misfits> = Vec::new();
    for store in stores.iter().take(count) {
        let some = store.misfits(id, change, go_on)?;
        found.resize(some.len(), Misfits::default());
        found.iter_mut().zip(some).for_each(|(all, some)| all.add(some));
    }
    Ok(found)
}

/// Makes the changed tables that the deployment needs. `go_on` gets the number of copied rows, and says whether to continue.
pub fn prepare(outline: Outline, stores: &[&Store], go_on: GoOn<'_>) -> Result<Plan, ConvertError> {
    if outline.summary.conflicts.is_empty() {
        let found = outline.row_conflicts(|id, stored, change| count_misfits(stores, id, stored, change, go_on))?;
        if !found.is_empty() {
            return Err(ConvertError::Conflicts(found));
        }
    }
    let Outline {
        stored: _,
        changes,
        bindings,
        rebound,
        retiring,
        summary,
    } = outline;
    if !summary.conflicts.is_empty() {
        return Err(ConvertError::Conflicts(summary.conflicts));
    }
    let mut plan = Plan {
        steps: Vec::new(),
        bindings,
        rebound,
        retiring: Vec::new(),
        summary,
    };
    for (seen, change) in retiring {
        let copies = match change {
            None => stores.iter().map(|_| PreparedTable::empty(seen.clone())).collect(),
            Some((id, change)) => prepare_all(stores, id, &change, go_on)?,
        };
        plan.retiring.push((seen, copies));
    }
    for change in changes {
        plan.steps.push(match change {
            DeclaredChange::Create(table) => InstallStep::Create(table),
            DeclaredChange::Change(id, change) => {
                let prepared = match change.is_noop() && !plan.summary.migrates {
                    true => Vec::new(),
                    false => prepare_all(stores, id, &change, go_on)?,
                };
                InstallStep::Change {
                    table: id,
                    sources: change.sources().to_vec(),
                    schema: Arc::new(change.schema),
                    prepared,
                }
            }
        });
    }
    Ok(plan)
}

fn prepare_all(
    stores: &[&Store],
    id: TableId,
    change: &TableChange,
    go_on: GoOn<'_>,
) -> Result<Vec<PreparedTable>, ConvertError> {
    let prepared = stores.iter().map(|store| store.prepare(id, change.clone(), go_on));
    prepared.collect()
}
