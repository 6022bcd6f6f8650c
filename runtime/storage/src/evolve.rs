//! Plans the change from the stored table to the declared one: which parts are kept, added, dropped, renamed and converted, or why it is
//! impossible.
//!
//! A table is stored as its owner declares it, except that stored indexes keep their order. Columns are matched by their names, or by their
//! former names (`was`).

use std::collections::BTreeSet;

use reprise_abi::{ColumnSchema, IndexSchema, TablePlacement, TableSchema};
use reprise_base::named_enum;

use crate::{
    index_order::indexes_in_stored_order,
    misfits::{RowCheck, RowRule, fits_back, widens},
    schema::{
        Conflict, ConflictPlace, check_table, describe_column, describe_index, describe_placement, describe_type, names,
    },
};

/// The change of the stored table to the declared one. No row was read for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// The table as it will be stored. Its stored indexes keep their order, whatever the declared order is.
    pub schema: TableSchema,
    /// The steps of the change, for people.
    pub steps: Vec<ChangeStep>,
    /// The stored column of each column.
    pub(crate) columns: Vec<Option<u16>>,
    /// Rules that all stored rows have to meet. Only a way back has rules.
    pub(crate) checks: Vec<RowCheck>,
    /// True if rows are written anew, and all indexes with them.
    pub(crate) rewrites_rows: bool,
    pub(crate) keeps_primary: bool,
    /// For each secondary index, the stored one that is kept for it. All are None if rows are written anew.
    pub(crate) indexes: Vec<Option<u16>>,
}

/// One change of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeStep {
    /// The kind of the change.
    pub action: ChangeAction,
    /// "table", "column", "index", "primary key".
    pub what: &'static str,
    /// The column or index; empty when it is the table itself.
    pub item: String,
    /// The earlier or the later form of the item.
    pub detail: String,
}

named_enum! {
    /// Kinds of changes to a table or to a part of it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ChangeAction {
        /// The table is new.
        Create => "create",
        /// A part is added.
        Add => "add",
        /// A part, or the table itself, is dropped.
        Drop => "drop",
        /// Stored values take another form.
        Convert => "convert",
        /// Stored parts get another name.
        Rename => "rename",
    }
}

impl ChangeStep {
    /// Makes a step of these parts.
    pub fn new(action: ChangeAction, what: &'static str, item: &str, detail: impl Into<String>) -> Self {
        Self {
            action,
            what,
            item: item.into(),
            detail: detail.into(),
        }
    }
}

impl TableChange {
    /// Makes the change that copies a whole table as it is.
    pub(crate) fn copy_of(schema: TableSchema) -> Self {
        Self {
            steps: Vec::new(),
            columns: (0..schema.columns.len() as u16).map(Some).collect(),
            checks: Vec::new(),
            rewrites_rows: true,
            keeps_primary: false,
            indexes: vec![None; schema.indexes.len()],
            schema,
        }
    }

    /// True if the stored table stays as it is.
    pub fn is_noop(&self) -> bool {
        self.steps.is_empty()
    }

    /// Turns the change into one that works on a whole copy. The stored table keeps its rows and indexes until it is released.
    pub fn whole(mut self) -> Self {
        self.rewrites_rows = true;
        self.keeps_primary = false;
        self.indexes.iter_mut().for_each(|kept| *kept = None);
        self
    }

    /// Returns the stored column of each column of the changed table.
    pub fn sources(&self) -> &[Option<u16>] {
        &self.columns
    }

    /// Returns the stored columns that the changed table does not have, by position.
    pub fn dropped_columns(&self, stored: &TableSchema) -> impl Iterator<Item = u16> + use<'_> {
        (0..stored.columns.len() as u16).filter(|at| !self.columns.contains(&Some(*at)))
    }

    /// True if rows are written anew.
    pub fn rewrites_rows(&self) -> bool {
        self.rewrites_rows
    }

    /// Returns the number of indexes that are made from the rows, the primary key's included.
    pub fn made_indexes(&self) -> usize {
        let made = self.indexes.iter().filter(|kept| kept.is_none()).count();
        made + usize::from(!self.keeps_primary)
    }

    /// True if all rows are read.
    pub fn reads_rows(&self) -> bool {
        self.rewrites_rows || !self.keeps_primary || self.indexes.contains(&None) || !self.checks.is_empty()
    }
}

/// Compares a declaration with the stored table. `declared` has its owner.
pub fn plan_change(stored: &TableSchema, declared: &TableSchema) -> Result<TableChange, Vec<Conflict>> {
    let mut plan = Planner::new(stored, declared)?;
    let columns = plan.match_columns();
    plan.compare_columns(&columns);
    plan.compare_table(&columns);
    match plan.conflicts.is_empty() {
        true => Ok(plan.finish(columns)),
        false => Err(plan.conflicts),
    }
}

/// The `plan_change` variant for a table without rows. The table is made anew if rows could not be kept, so only an invalid declaration is
/// refused. `columns` has the source of each column, if it is known.
pub fn plan_change_of_empty(
    stored: &TableSchema,
    declared: &TableSchema,
    columns: Option<&[Option<u16>]>,
) -> Result<TableChange, Vec<Conflict>> {
    let mut plan = Planner::new(stored, declared)?;
    let columns = match columns {
        Some(columns) => columns.to_vec(),
        None => plan.match_columns(),
    };
    plan.check_sources(&columns)?;
    plan.compare_columns(&columns);
    plan.compare_table(&columns);
    if plan.conflicts.is_empty() {
        return Ok(plan.finish(columns));
    }
    for found in std::mem::take(&mut plan.conflicts) {
        let detail = format!("{} to {}", found.stored, found.declared);
        plan.record(ChangeAction::Convert, found.what, &found.item, detail);
    }
    Ok(plan.finish(vec![None; declared.columns.len()]))
}

/// The `plan_change` variant that returns to an earlier form of the table, with the source of each column under any name. Integers become
/// narrow again, columns may not be null any more, and variants go, if all rows allow it. Err: conversions that no rows could pass.
pub fn plan_return(
    stored: &TableSchema,
    declared: &TableSchema,
    columns: &[Option<u16>],
) -> Result<TableChange, Vec<Conflict>> {
    let plan = Planner::of_return(stored, declared, columns)?;
    match plan.conflicts.is_empty() {
        true => Ok(plan.finish(columns.to_vec())),
        false => Err(plan.conflicts),
    }
}

/// The `plan_return` variant with the source of each column as the log holds it, for a deployment that was possible.
pub fn plan_logged_change(
    stored: &TableSchema,
    declared: &TableSchema,
    columns: &[Option<u16>],
) -> Result<TableChange, Vec<Conflict>> {
    let plan = Planner::of_return(stored, declared, columns)?;
    // A table that was made anew had no rows.
    let is_new = columns.iter().all(Option::is_none);
    match plan.conflicts.is_empty() || is_new {
        true => Ok(plan.finish(columns.to_vec())),
        false => Err(plan.conflicts),
    }
}

struct Planner<'a> {
    stored: &'a TableSchema,
    declared: &'a TableSchema,
    conflicts: Vec<Conflict>,
    steps: Vec<ChangeStep>,
    checks: Vec<RowCheck>,
    /// True if the table returns to a former form.
    goes_back: bool,
}

impl<'a> Planner<'a> {
    fn of_return(
        stored: &'a TableSchema,
        declared: &'a TableSchema,
        columns: &[Option<u16>],
    ) -> Result<Self, Vec<Conflict>> {
        let mut plan = Self::new(stored, declared)?;
        plan.goes_back = true;
        plan.check_sources(columns)?;
        plan.compare_columns(columns);
        plan.compare_table(columns);
        Ok(plan)
    }

    fn new(stored: &'a TableSchema, declared: &'a TableSchema) -> Result<Self, Vec<Conflict>> {
        let conflicts = check_table(declared);
        match conflicts.is_empty() {
            true => Ok(Self {
                stored,
                declared,
                conflicts,
                steps: Vec::new(),
                checks: Vec::new(),
                goes_back: false,
            }),
            false => Err(conflicts),
        }
    }
}

impl Planner<'_> {
    fn refuse(
        &mut self,
        item: &str,
        what: &'static str,
        stored: impl Into<String>,
        declared: impl Into<String>,
        way_on: &str,
    ) {
        let table = &self.declared.full_name();
        self.conflicts
            .push(ConflictPlace { table, item, what }.conflict(stored, declared, way_on));
    }

    fn record(&mut self, action: ChangeAction, what: &'static str, item: &str, detail: impl Into<String>) {
        self.steps.push(ChangeStep::new(action, what, item, detail));
    }

    /// Checks that the stored table has these columns.
    fn check_sources(&mut self, columns: &[Option<u16>]) -> Result<(), Vec<Conflict>> {
        let is_there = |source: &Option<u16>| source.is_none_or(|at| (at as usize) < self.stored.columns.len());
        if columns.len() == self.declared.columns.len() && columns.iter().all(is_there) {
            return Ok(());
        }
        let found = format!("columns from {columns:?}");
        let way_on = "restore a backup: the log is damaged";
        self.refuse("", "columns", "other ones", found, way_on);
        Err(std::mem::take(&mut self.conflicts))
    }

    /// Matches columns by name, or by former name.
    fn match_columns(&mut self) -> Vec<Option<u16>> {
        let (stored, declared) = (self.stored, self.declared);
        let position = |name: &str| stored.columns.iter().position(|known| known.name == name);
        let keeps = |name: &str| declared.columns.iter().any(|column| column.name == name);
        let mut renamed = BTreeSet::new();
        let mut sources = Vec::with_capacity(declared.columns.len());
        for column in &declared.columns {
            let was = column.was.as_deref().filter(|was| !keeps(was));
            let from = was.and_then(|was| Some((was, position(was)?)));
            let source = match (position(&column.name), from) {
                (Some(_), Some((was, _))) => {
                    let stored = format!("both {was} and {}", column.name);
                    let way_on = "leave `was` out: the column of the old name is then dropped; or give the new one a name of its own";
                    self.refuse(&column.name, "column", stored, format!("was {was}"), way_on);
                    None
                }
                (Some(at), None) => Some(at),
                (None, Some((was, at))) => {
                    if !renamed.insert(at) {
                        let stored = format!("one column {was}");
                        self.refuse(
                            &column.name,
                            "column",
                            stored,
                            "two that were it",
                            "leave one `was` out",
                        );
                    }
                    Some(at)
                }
                (None, None) => None,
            };
            sources.push(source.map(|at| at as u16));
        }
        sources
    }

    fn compare_columns(&mut self, sources: &[Option<u16>]) {
        let (stored, declared) = (self.stored, self.declared);
        for (column, source) in declared.columns.iter().zip(sources) {
            let Some(at) = source else { continue };
            let was = &stored.columns[*at as usize].name;
            if *was != column.name {
                self.record(ChangeAction::Rename, "column", &column.name, format!("was {was}"));
            }
        }
        for (number, (column, source)) in (0..).zip(self.declared.columns.iter().zip(sources)) {
            match source {
                Some(at) => self.compare_column(*at, number),
                None => self.add_column(number, column),
            }
        }
        for (at, known) in self.stored.columns.iter().enumerate() {
            if !sources.contains(&Some(at as u16)) {
                self.record(ChangeAction::Drop, "column", &known.name, describe_type(known));
            }
        }
        let kept: Vec<u16> = sources.iter().copied().flatten().collect();
        if !kept.is_sorted() {
            self.record(ChangeAction::Convert, "column", "", "another order");
        }
    }

    fn compare_column(&mut self, source: u16, number: u16) {
        let known = &self.stored.columns[source as usize];
        let column = &self.declared.columns[number as usize];
        let (stored, declared) = (describe_type(known), describe_type(column));
        let rules = if self.goes_back {
            fits_back(known, column)
        } else {
            Vec::new()
        };
        let is_allowed = |wanted: fn(&RowRule) -> bool| rules.iter().any(wanted);
        if known.nullable && !column.nullable && !is_allowed(|rule| matches!(rule, RowRule::NotNull)) {
            let way_on = "keep it nullable, or add a column that is not, with a default, and copy what is there";
            self.refuse(&column.name, "column", stored, declared, way_on);
        } else if (!column.variants.starts_with(&known.variants)
            || (known.variants.is_empty() && !column.variants.is_empty()))
            && !is_allowed(|rule| matches!(rule, RowRule::VariantBelow(_)))
        {
            let way_on = "further variants of an enum are added at its end, the others stay as they are. For anything else add a column \
                          of another name and copy what is there";
            self.refuse(&column.name, "column", stored, declared, way_on);
        } else if known.ty != column.ty
            && !widens(known.ty, column.ty)
            && !is_allowed(|rule| matches!(rule, RowRule::Fits(_)))
        {
            let way_on =
                "integers become wider ones; for anything else add a column of another name and copy what is there";
            self.refuse(&column.name, "column", stored, declared, way_on);
        } else if stored != declared {
            self.record(
                ChangeAction::Convert,
                "column",
                &column.name,
                format!("{stored} to {declared}"),
            );
        } else if known.default != column.default {
            self.record(ChangeAction::Convert, "column", &column.name, "another default");
        }
        let checks = rules.into_iter().map(|rule| RowCheck {
            source: Some(source),
            column: number,
            rule,
        });
        self.checks.extend(checks);
    }

    fn add_column(&mut self, number: u16, column: &ColumnSchema) {
        let has_value = column.nullable || column.default.is_some();
        if has_value || self.goes_back {
            if !has_value {
                self.checks.push(RowCheck {
                    source: None,
                    column: number,
                    rule: RowRule::NoRow,
                });
            }
            return self.record(ChangeAction::Add, "column", &column.name, describe_type(column));
        }
        let declared = format!("{}, without a default", describe_column(column));
        let way_on = "give it a default, or make it nullable; if it had another name, say so with `was`";
        self.refuse(&column.name, "column", "rows without it", declared, way_on);
    }

    fn compare_table(&mut self, sources: &[Option<u16>]) {
        let (stored, target) = (self.stored, self.declared);
        let is_from = |columns: &[u16], known: &[u16]| {
            let from = columns.iter().map(|column| sources[*column as usize]);
            from.eq(known.iter().map(|known| Some(*known)))
        };
        if !is_from(&self.declared.primary_key, &stored.primary_key) {
            let (known, declared) = (
                names(stored, &stored.primary_key),
                names(self.declared, &self.declared.primary_key),
            );
            self.refuse("", "primary key", known, declared, WAY_NEW_TABLE);
        }
        let is_placed = match (&self.declared.placement, &stored.placement) {
            (TablePlacement::By(column), TablePlacement::By(known)) => is_from(&[*column], &[*known]),
            (declared, known) => declared == known,
        };
        if !is_placed {
            let (known, declared) = (describe_placement(stored), describe_placement(self.declared));
            self.refuse("", "placement", known, declared, WAY_NEW_TABLE);
        }
        if !stored.primary_key.is_empty() && target.primary_kind != stored.primary_kind {
            let detail = format!("{:?} to {:?}", stored.primary_kind, target.primary_kind);
            self.record(ChangeAction::Convert, "primary key", "", detail.to_lowercase());
        }
        if stored.full_name() != target.full_name() {
            self.record(ChangeAction::Rename, "table", "", format!("was {}", stored.full_name()));
        }
        if stored.shared != target.shared {
            let detail = if target.shared { "shared" } else { "no longer shared" };
            self.record(ChangeAction::Convert, "table", "", detail);
        }
    }

    fn finish(mut self, columns: Vec<Option<u16>>) -> TableChange {
        let stored = self.stored;
        let target = TableSchema {
            indexes: indexes_in_stored_order(stored, self.declared),
            ..self.declared.clone()
        };
        let is_same = |(at, source): (usize, &Option<u16>)| {
            let (known, column) = (stored.columns.get(at), &target.columns[at]);
            *source == Some(at as u16)
                && known.is_some_and(|known| known.ty == column.ty && known.nullable == column.nullable)
        };
        let rewrites_rows = columns.len() != stored.columns.len() || !columns.iter().enumerate().all(is_same);
        let keeps_primary =
            !rewrites_rows && (stored.primary_key.is_empty() || stored.primary_kind == target.primary_kind);
        let mut indexes = Vec::with_capacity(target.indexes.len());
        for index in &target.indexes {
            let from = index.columns.iter().map(|column| columns[*column as usize]);
            let is_it = |known: &IndexSchema| {
                known.name == index.name
                    && known.unique == index.unique
                    && from.clone().eq(known.columns.iter().map(|column| Some(*column)))
            };
            let kept = stored.indexes.iter().position(is_it).map(|at| at as u16);
            if kept.is_none() {
                let action = match stored.indexes.iter().any(|known| known.name == index.name) {
                    true => ChangeAction::Convert,
                    false => ChangeAction::Add,
                };
                self.record(action, "index", &index.name, describe_index(&target, index));
            }
            indexes.push(kept.filter(|_| !rewrites_rows));
        }
        for known in &stored.indexes {
            if !target.indexes.iter().any(|index| index.name == known.name) {
                self.record(ChangeAction::Drop, "index", &known.name, describe_index(stored, known));
            }
        }
        TableChange {
            schema: as_stored(target),
            steps: self.steps,
            columns,
            checks: self.checks,
            rewrites_rows,
            keeps_primary,
            indexes,
        }
    }
}

const WAY_NEW_TABLE: &str =
    "declare a table of another name beside this one, and copy the rows by a procedure; then drop this one";

/// Returns the stored form of a declaration, without the earlier names of the table and its columns.
pub fn as_stored(mut declared: TableSchema) -> TableSchema {
    declared.was = None;
    declared.columns.iter_mut().for_each(|column| column.was = None);
    declared
}
