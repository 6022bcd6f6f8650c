//! The difference between a transaction that ran again and its logged changes, for the report of a divergence.

use std::{collections::BTreeSet, fmt};

use reprise_wire::{Change, Changes};

use crate::{
    changelog::column_value,
    keytext::{key_text, value_text},
    store::Store,
    table::StoredTable,
};

/// The first row in which a store and logged changes differ. Values are texts for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowDifference {
    /// The table's name.
    pub table: String,
    /// Columns of the primary key with their values. The number, if there is no key or the row does not exist.
    pub row: String,
    /// The column. None: only one side has the row.
    pub column: Option<String>,
    /// The value in the log.
    pub logged: String,
    /// The value in the store.
    pub replayed: String,
}

impl fmt::Display for RowDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {} of table {}", self.row, self.table)?;
        if let Some(column) = &self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": logged {}, replayed {}", self.logged, self.replayed)
    }
}

impl Store {
    /// Compares a transaction that has just run here with its logged changes. It first compares `logged` with the present rows, then the
    /// rows of `replayed` (its own `write_set`) that the log lacks. None: all rows agree.
    pub fn first_difference(&self, logged: &[u8], replayed: &[u8]) -> Option<RowDifference> {
        let read = |changes| Changes::new(changes).map_while(Result::ok);
        let found = read(logged).find_map(|change| self.difference_of(&change));
        found.or_else(|| {
            let known: BTreeSet<_> = read(logged).map(|change| (change.table(), change.number())).collect();
            let change = read(replayed).find(|change| !known.contains(&(change.table(), change.number())))?;
            let table = self.tables.get(change.table() as usize)?;
            Some(RowDifference {
                table: table.schema.name.clone(),
                row: table.text_of(&change),
                column: None,
                logged: "no change".into(),
                replayed: change_text(&change).into(),
            })
        })
    }

    fn difference_of(&self, change: &Change<'_>) -> Option<RowDifference> {
        let table = self.tables.get(change.table() as usize)?;
        let differ = |column: Option<usize>, logged: String, replayed: String| RowDifference {
            table: table.schema.name.clone(),
            row: table.text_of(change),
            column: column.map(|at| table.schema.columns[at].name.clone()),
            logged,
            replayed,
        };
        let is_deleted = matches!(change, Change::Delete { .. });
        let Some(now) = table.find(change.number()).map(|rid| table.rows.at(rid)) else {
            return (!is_deleted).then(|| differ(None, change_text(change).into(), "no such row".into()));
        };
        let compare = |at: usize, logged: Option<&[u8]>| {
            let slot = table.layout.columns.get(at)?;
            let replayed = column_value(&table.layout, now.row, slot);
            let text = |value| value_text(slot.ty, value);
            (logged != replayed).then(|| differ(Some(at), text(logged), text(replayed)))
        };
        match change {
            Change::Delete { .. } => Some(differ(None, "deleted".into(), "still there".into())),
            Change::Insert { row, .. } | Change::Replace { row, .. } => {
                table.validate(row).ok()?;
                let mut columns = table.layout.columns.iter().enumerate();
                columns.find_map(|(at, slot)| compare(at, column_value(&table.layout, row, slot)))
            }
            Change::Patch { columns, .. } => {
                let mut columns = columns.iter();
                columns.find_map(|(at, logged)| compare(at as usize, logged))
            }
        }
    }
}

impl StoredTable {
    pub(crate) fn key_of(&self, row: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        self.layout.push_key(row, &self.schema.primary_key, &mut key);
        key
    }

    /// Names the changed row: the columns of its primary key with their values, if they are known, or its number.
    fn text_of(&self, change: &Change<'_>) -> String {
        let live = self.find(change.number()).and_then(|rid| self.rows.get(rid));
        let row = match change {
            _ if self.has_number() => None,
            Change::Insert { row, .. } | Change::Replace { row, .. } => {
                live.or(self.validate(row).is_ok().then_some(*row))
            }
            Change::Patch { .. } | Change::Delete { .. } => live,
        };
        let key = row.and_then(|row| key_text(&self.schema, &self.schema.primary_key, &self.key_of(row)));
        key.unwrap_or_else(|| format!("number {}", change.number()))
    }
}

fn change_text(change: &Change<'_>) -> &'static str {
    match change {
        Change::Insert { .. } => "inserted",
        Change::Replace { .. } | Change::Patch { .. } => "updated",
        Change::Delete { .. } => "deleted",
    }
}
