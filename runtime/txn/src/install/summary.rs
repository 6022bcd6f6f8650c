//! The effects of a deployment, which people read before it.

use reprise_storage::{ChangeAction, ChangeStep, Conflict};

use super::consent::{Consent, DestroyedItem};

/// Everything that a deployment would change, or why it can't be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanSummary {
    /// Tables that it would create or change, in the order of their declaration.
    pub tables: Vec<TableChangePlan>,
    /// Procedures that it would add, drop or change, in the order of their names.
    pub procedures: Vec<ProcedureChange>,
    /// Tables that the version in service declares, and that no module in service would declare any more.
    pub abandoned: Vec<OrphanedTable>,
    /// Things that would be destroyed, each with the consent that it needs.
    pub destroyed: Vec<DestroyedItem>,
    /// Columns that may have been renamed: one would be dropped, and one of its type added.
    pub renames: Vec<RenameGuess>,
    /// True if the module would run a migration on its tables, which are copied for that.
    pub migrates: bool,
    /// Name of the module's migration. If `migrates` is false, the tables have had it.
    pub migration: Option<String>,
    /// The way back to the version in service, if there is one.
    pub way_back: Option<RollbackPlan>,
    /// Conflicts. Empty: the deployment is possible, with consent to the things that it destroys.
    pub conflicts: Vec<Conflict>,
    /// Estimate of the milliseconds for which all partitions would stand still.
    pub estimated_ms: u64,
}

impl PlanSummary {
    /// Returns the things that it would destroy without consent.
    pub fn missing<'s>(&'s self, given: &'s [Consent]) -> impl Iterator<Item = &'s DestroyedItem> {
        let is_missing = |needed: &&DestroyedItem| !given.iter().any(|consent| consent.covers(&needed.consent));
        self.destroyed.iter().filter(is_missing)
    }

    /// Adds conflicts. Without conflicts, it changes nothing.
    pub fn refuse(&mut self, conflicts: Vec<Conflict>) {
        if !conflicts.is_empty() {
            self.conflicts.extend(conflicts);
            self.way_back = None;
        }
    }

    /// Returns a line for each step, of at most `bytes_max` bytes.
    pub fn to_text(&self, bytes_max: usize) -> String {
        let mut text = String::new();
        for table in &self.tables {
            for step in &table.steps {
                let words = [&table.table, step.action.name(), step.what, &*step.item, &*step.detail];
                let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
                text.push_str(&words.join(" "));
                text.push('\n');
            }
        }
        let end = text.floor_char_boundary(bytes_max);
        text.truncate(end);
        text
    }
}

/// The changes of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChangePlan {
    /// `module.table` under its new name.
    pub table: String,
    /// Its steps, in the order in which they are done.
    pub steps: Vec<ChangeStep>,
    /// Rows that it holds, as clients see them.
    pub rows: u64,
    /// True if the change reads all of these rows; otherwise only the table's description changes.
    pub reads_rows: bool,
    /// The table's own name before. Empty for a new table.
    pub was: String,
    /// For each column of the new table, the position of the stored column that it comes from. Empty for a new table.
    pub sources: Vec<Option<u16>>,
}

/// The change of one procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureChange {
    /// Its name.
    pub procedure: String,
    /// `Add`, `Drop` or `Convert`.
    pub action: ChangeAction,
    /// Changed members of the procedure.
    pub detail: String,
}

/// A table that would lose its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanedTable {
    /// `module.table`.
    pub table: String,
    /// Rows that it holds, as clients see them.
    pub rows: u64,
}

/// A column that would be dropped, and one of its type that would be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenameGuess {
    /// `module.table`.
    pub table: String,
    /// The stored column.
    pub from: String,
    /// The declared one.
    pub to: String,
}

/// The result of a rollback to the version in service, by the rules of the rollback itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollbackPlan {
    /// The version in service.
    pub version: u32,
    /// Why its tables could not be restored. Empty: a rollback would be possible.
    pub conflicts: Vec<Conflict>,
    /// Conditions that all rows must meet at a rollback, for people. A row that is written meanwhile may break them.
    pub needs: Vec<String>,
    /// Columns that a rollback would drop, by full name, because its version does not declare them.
    pub drops: Vec<String>,
}

/// The stored table that a changed table comes from, and the stored column of each of its columns. The log keeps this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSources {
    /// The table's own new name.
    pub table: String,
    /// The table's own name before.
    pub was: String,
    /// The sources, by position.
    pub columns: Vec<Option<u16>>,
}
