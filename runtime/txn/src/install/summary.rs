//! The effects of a deployment, for people to read first.

use reprise_storage::{ChangeAction, ChangeStep, Conflict};

use super::consent::{Consent, Destroyed};

/// Everything that a deployment would change, or why it can't be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanSummary {
    /// Tables that it would create or change, in the order of their declaration.
    pub tables: Vec<TablePlan>,
    /// Procedures that it would add, drop or change, in the order of their names.
    pub procedures: Vec<ProcedurePlan>,
    /// Tables that the version in service declares and no module in service would declare any more.
    pub abandoned: Vec<AbandonedTable>,
    /// Things that would be destroyed, each with the consent that it needs.
    pub destroyed: Vec<Destroyed>,
    /// Columns that may have been renamed: one would be dropped, and one of its type added.
    pub renames: Vec<LikelyRename>,
    /// The module would run something on its tables, which are copied for that.
    pub migrates: bool,
    /// Name of what the module runs when it is deployed. Where it does not migrate, the tables have had that.
    pub migration: Option<String>,
    /// The way back to the version in service; none where there is none.
    pub way_back: Option<WayBack>,
    /// Empty: it would be taken up, with consent to what it destroys.
    pub conflicts: Vec<Conflict>,
    /// How long all partitions would stand still for it, about.
    pub estimated_ms: u64,
}

impl PlanSummary {
    /// Things that it would destroy without consent.
    pub fn missing<'s>(&'s self, given: &'s [Consent]) -> impl Iterator<Item = &'s Destroyed> {
        let is_missing = |needed: &&Destroyed| !given.iter().any(|consent| consent.covers(&needed.consent));
        self.destroyed.iter().filter(is_missing)
    }

    /// Takes in why it can't be. Nothing where there are no conflicts.
    pub fn refuse(&mut self, conflicts: Vec<Conflict>) {
        if !conflicts.is_empty() {
            self.conflicts.extend(conflicts);
            self.way_back = None;
        }
    }

    /// A line for each step, of at most so many bytes.
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
pub struct TablePlan {
    /// `module.table`, as it would be called.
    pub table: String,
    /// In the order in which they are done.
    pub steps: Vec<ChangeStep>,
    /// Rows that it holds, as clients see them.
    pub rows: u64,
    /// All of these are read; else the table's description alone changes.
    pub reads_rows: bool,
    /// The table's own name before; empty of a new one.
    pub was: String,
    /// For each column of the table as it will be, the position of the stored one that it comes from. Empty of a new table.
    pub sources: Vec<Option<u16>>,
}

/// Change of one procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedurePlan {
    /// Its name.
    pub procedure: String,
    /// `Add`, `Drop` or `Convert`.
    pub action: ChangeAction,
    /// Changed members of the procedure.
    pub detail: String,
}

/// A table that would lose its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedTable {
    /// `module.table`.
    pub table: String,
    /// Rows that it holds, as clients see them.
    pub rows: u64,
}

/// A column that would be dropped, and one of its type that would be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LikelyRename {
    /// `module.table`.
    pub table: String,
    /// The stored column.
    pub from: String,
    /// The declared one.
    pub to: String,
}

/// Result of a rollback to the version in service, by the rules that the rollback itself has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WayBack {
    /// The version in service.
    pub version: u32,
    /// Why its tables could not be had again. Empty: a rollback would be taken up.
    pub conflicts: Vec<Conflict>,
    /// Conditions that all rows must meet then, for people. A row written meanwhile may break them.
    pub needs: Vec<String>,
    /// Columns that it would drop, by full name: its version does not declare them.
    pub drops: Vec<String>,
}

/// The stored table that a changed one comes from, and for each of its columns the stored one, as the log keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSources {
    /// The table's own name, as it is called afterwards.
    pub table: String,
    /// The table's own name before.
    pub was: String,
    /// By position.
    pub columns: Vec<Option<u16>>,
}
