//! What a deployment would do, for people to look at first.

use reprise_storage::{ChangeStep, Conflict};

/// What a deployment would do to the stored tables, or why it can't be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanSummary {
    /// Tables that it would create or change, in the order of their declaration.
    pub tables: Vec<TablePlan>,
    /// The module would run something on its tables, which are copied for that.
    pub migrates: bool,
    /// Empty: it would be taken up.
    pub conflicts: Vec<Conflict>,
    /// How long all partitions would stand still for it: as long as it took to make the changed tables for this summary.
    pub estimated_ms: u64,
}

impl PlanSummary {
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

/// What would become of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePlan {
    /// `module.table`, as it would be called.
    pub table: String,
    /// In the order in which they are done.
    pub steps: Vec<ChangeStep>,
    /// Rows that it holds, on all partitions together.
    pub rows: u64,
    /// All of these are read; else the table's description alone changes.
    pub reads_rows: bool,
}
