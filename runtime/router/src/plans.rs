//! Forms of a plan for the log and the operator, counts for a plan that holds no partition, and the bound of a schema's texts.

use std::{sync::Arc, time::Duration};

use reprise_abi::{TablePlacement, TableSchema, schema::ModuleSchema, text::TextBound};
use reprise_base::{
    PartitionId,
    limits::{DEPLOY_LIST_BYTES_MAX, TEXT_PER_BYTE_MAX},
};
use reprise_partition::TxnPartitions;
use reprise_storage::{Misfits, TableChange, TableId};
use reprise_txn::{
    Candidate, Consent, ConsentKind, Deployed, DeploymentRules, DestroyedItem, PlanSummary, StoredCounts, TableCount,
    outline,
};
use reprise_wire::{DestroyedList, DestroyedRef, SourceList};

use crate::{
    admin::DeployError,
    query::{RowsError, TableTotals},
    router::Router,
};

/// Longest wait of a plan for partitions to publish their counts. A busy partition has published them while it worked.
const COUNTS_WAIT_MAX: Duration = Duration::from_millis(30);

/// The lists of a plan that the log holds beside texts.
pub(crate) struct Lists {
    pub sources: Vec<u8>,
    pub destroyed: Vec<u8>,
}

impl Lists {
    /// Makes the lists. Err: they have more than `max` bytes, or more than the log takes for a list.
    pub fn of(plan: &PlanSummary, max: usize) -> Result<Self, DeployError> {
        let mut lists = Self {
            sources: Vec::new(),
            destroyed: Vec::new(),
        };
        for table in plan.tables.iter().filter(|table| !table.sources.is_empty()) {
            let name = table.table.split_once('.').map_or(&*table.table, |(_, name)| name);
            SourceList::push(&mut lists.sources, name, &table.was, &table.sources);
        }
        for destroyed in &plan.destroyed {
            let destroyed = DestroyedRef {
                kind: destroyed.consent.kind as u8,
                name: &destroyed.consent.name,
                count: destroyed.count,
            };
            DestroyedList::push(&mut lists.destroyed, destroyed);
        }
        let max = max.min(DEPLOY_LIST_BYTES_MAX);
        let bytes = lists.sources.len().max(lists.destroyed.len());
        match bytes <= max {
            true => Ok(lists),
            false => Err(DeployError::RecordTooLong { bytes, max }),
        }
    }
}

/// Counts from the partitions' last published statistics.
pub(crate) struct PublishedCounts<'r> {
    pub router: &'r Router,
    pub stats: Vec<TableTotals>,
}

impl StoredCounts for PublishedCounts<'_> {
    fn table(&self, id: TableId, _schema: &TableSchema) -> TableCount {
        let stats = self.stats.get(usize::from(id.0)).copied().unwrap_or_default();
        TableCount {
            rows: stats.rows,
            copies: stats.copies,
            row_bytes: stats.row_bytes,
        }
    }

    fn values(&self, id: TableId, schema: &TableSchema, column: u16) -> Option<u64> {
        let is_nullable = schema.columns[usize::from(column)].nullable;
        (!is_nullable).then(|| self.table(id, schema).rows)
    }

    fn any_row(&self, id: TableId) -> Option<String> {
        let mut partitions = (0..self.router.partitions_count()).map(PartitionId);
        partitions.find_map(|partition| {
            let read = self
                .router
                .run_durably(TxnPartitions::Some(vec![partition]), move |held| {
                    let mut stores = held.partitions.iter_mut().map(|partition| &mut partition.store);
                    Ok(stores.find_map(|store| store.any_row(id)))
                });
            read.ok()?
        })
    }
}

impl Router {
    /// Plans a deployment over the stored tables, and counts rows that they could no longer hold.
    pub(crate) fn outline(&self, deployed: &Deployed, candidate: &Candidate) -> Result<PlanSummary, DeployError> {
        let stats = self.table_stats(COUNTS_WAIT_MAX)?;
        let counts = PublishedCounts { router: self, stats };
        let mut outline = outline(deployed, candidate, DeploymentRules::Deployment(&counts));
        if outline.summary.conflicts.is_empty() {
            let count = |id: TableId, _: &TableSchema, change: &TableChange| {
                self.count_misfits(id, &deployed.tables[usize::from(id.0)], change)
            };
            let found = outline.row_conflicts(count)?;
            outline.summary.refuse(found);
        }
        Ok(outline.summary)
    }

    /// Counts rows that a changed table could not hold, a few thousand at a time on one partition after the other. No partition waits for
    /// another, and calls run in between.
    pub(crate) fn count_misfits(
        &self,
        id: TableId,
        stored: &Arc<TableSchema>,
        change: &TableChange,
    ) -> Result<Vec<Misfits>, DeployError> {
        // Every partition has the same rows of a replicated table.
        let partitions = match stored.placement {
            TablePlacement::Replicated => 1,
            _ => self.partitions_count(),
        };
        let mut found: Vec<Misfits> = Vec::new();
        for partition in (0..partitions).map(PartitionId) {
            let mut from = Some(0);
            while let Some(first) = from {
                let (stored, change) = (stored.clone(), change.clone());
                let read = self.run_durably(TxnPartitions::Some(vec![partition]), move |held| {
                    if held.tools.deployed().tables.get(usize::from(id.0)) != Some(&stored) {
                        return Err(RowsError::Changed);
                    }
                    let store = held.partitions.iter_mut().map(|partition| &mut partition.store).next();
                    let store = store.ok_or(RowsError::NotFound)?;
                    store.build_notes();
                    Ok(store.misfits_from(id, &change, first))
                });
                let some;
                (some, from) = read.map_err(|error| DeployError::Unavailable(error.to_string().into()))?;
                found.resize(some.len(), Misfits::default());
                found.iter_mut().zip(some).for_each(|(all, some)| all.add(some));
            }
        }
        Ok(found)
    }
}

/// Number of names in a line for the operator at most. The log has all of them.
const DESTROYED_TOLD_MAX: usize = 8;

/// Returns the list for the operator.
pub(crate) fn names_of(destroyed: &[DestroyedItem]) -> Vec<String> {
    let mut names: Vec<_> = destroyed
        .iter()
        .take(DESTROYED_TOLD_MAX)
        .map(DestroyedItem::to_string)
        .collect();
    if destroyed.len() > names.len() {
        names.push(format!("{} more", destroyed.len() - names.len()));
    }
    names
}

/// The things in a record's list that a deployment destroyed.
pub(crate) fn destroyed_in(list: &DestroyedList<'_>) -> Vec<DestroyedItem> {
    let known = list.iter().filter_map(|found| {
        let kind = ConsentKind::of_number(found.kind)?;
        Some(DestroyedItem {
            consent: Consent {
                kind,
                name: found.name.to_owned(),
            },
            count: found.count,
            is_exact: true,
        })
    });
    known.collect()
}

/// Checks that no byte of a result can become too many bytes of text, because results are bounded in bytes before they commit. Only the
/// upload is checked: modules in service stay.
pub(crate) fn check_texts(schema: &ModuleSchema) -> Result<(), DeployError> {
    for procedure in &schema.procedures {
        let params = procedure.params.iter().map(|param| (&*param.name, &param.ty));
        for (what, bound) in [
            ("arguments", TextBound::of_members(params)),
            ("result", TextBound::of(&procedure.returns)),
        ] {
            if bound.per_byte > TEXT_PER_BYTE_MAX {
                let reason = format!(
                    "the {what} of {} may take {} bytes of JSON for each byte, and the limit is {TEXT_PER_BYTE_MAX}. Shorten the names in its \
                     lists, or leave out members of type unit",
                    procedure.name, bound.per_byte
                );
                return Err(DeployError::Invalid { reason, offset: None });
            }
        }
    }
    Ok(())
}
