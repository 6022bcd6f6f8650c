//! Schema changes: what a module declares against what is stored.
//!
//! A declaration may know fewer trailing columns and fewer indexes than are stored (an older module), or more (a newer
//! one). Whatever both know must be the same.

use std::{collections::BTreeSet, fmt};

use reprise_abi::{
    ColumnSchema, IndexSchema, Placement, RowLayout, TableSchema,
    row::{COLUMNS_MAX, ROW_BYTES_MAX},
};

use crate::{
    digest::fold,
    index::Refused,
    keyplan::{RowRef, Scratch},
    project::{RowProjection, check_default},
    rows::Rows,
    store::TableId,
    table::{Table, has_number, make_indexes},
};

/// A point in which a declared table can't be reconciled with the stored one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub table: String,
    /// The column or index; empty when it is the table itself.
    pub item: String,
    /// What differs: "column", "index", "primary key", "placement", "rows", ...
    pub what: &'static str,
    pub stored: String,
    pub declared: String,
}

impl Conflict {
    fn new(
        table: &str,
        item: &str,
        what: &'static str,
        stored: impl Into<String>,
        declared: impl Into<String>,
    ) -> Self {
        Self {
            table: table.into(),
            item: item.into(),
            what,
            stored: stored.into(),
            declared: declared.into(),
        }
    }

    pub(crate) fn on_table(table: &str, what: &'static str, stored: &str, declared: &str) -> Self {
        Self::new(table, "", what, stored, declared)
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}: {}", self.table, self.what)?;
        if !self.item.is_empty() {
            write!(f, " {}", self.item)?;
        }
        write!(f, ": stored {}, declared {}", self.stored, self.declared)
    }
}

/// How the store will serve a declared table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableChange {
    pub table: TableId,
    /// The table as it will be stored.
    pub schema: TableSchema,
    pub added_columns: usize,
    pub added_indexes: usize,
    /// Declared index number (0 = primary key) -> stored index number.
    pub index_map: Vec<u16>,
}

impl TableChange {
    /// The stored table stays as it is.
    pub fn is_noop(&self) -> bool {
        self.added_columns == 0 && self.added_indexes == 0
    }
}

/// What is wrong with a table in itself; the conflicts' "stored" side names the rule.
pub(crate) fn check_table(schema: &TableSchema) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    let mut refuse = |item: &str, what, rule: &str, declared: String| {
        conflicts.push(Conflict::new(&schema.name, item, what, rule, declared));
    };
    let count = schema.columns.len();
    if count == 0 || count > COLUMNS_MAX {
        refuse("", "columns", "1 to 256", count.to_string());
    }
    let mut names = BTreeSet::new();
    for column in &schema.columns {
        if !names.insert(&column.name) {
            refuse(&column.name, "column", "names differ", "twice".into());
        }
        if let Err(error) = check_default(column) {
            refuse(
                &column.name,
                "default",
                "a value of the column's type",
                error.to_string(),
            );
        }
    }
    let mut check_columns = |item: &str, what, columns: &[u16], may_be_empty: bool| {
        let distinct: BTreeSet<_> = columns.iter().collect();
        let is_known = columns.iter().all(|column| (*column as usize) < count);
        if !is_known || distinct.len() != columns.len() || columns.is_empty() && !may_be_empty {
            refuse(
                item,
                what,
                "distinct columns of the table",
                format!("{columns:?}"),
            );
        }
    };
    check_columns("", "primary key", &schema.primary_key, true);
    for index in &schema.indexes {
        check_columns(&index.name, "index", &index.columns, false);
    }
    if let Placement::By(column) = schema.placement {
        check_columns("", "placement", &[column], false);
    }
    let mut names = BTreeSet::new();
    for index in &schema.indexes {
        if !names.insert(&index.name) {
            refuse(&index.name, "index", "names differ", "twice".into());
        }
    }
    conflicts
}

/// Compares a declaration with the stored table, rows not looked at.
pub(crate) fn plan_change(
    table: TableId,
    stored: &TableSchema,
    declared: &TableSchema,
) -> Result<TableChange, Vec<Conflict>> {
    let mut conflicts = check_table(declared);
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    compare_columns(stored, declared, &mut conflicts);
    compare_table(stored, declared, &mut conflicts);
    let mut schema = stored.clone();
    let mut index_map = vec![0];
    for index in &declared.indexes {
        let position = match stored
            .indexes
            .iter()
            .position(|known| known.name == index.name)
        {
            Some(position) => {
                let known = &stored.indexes[position];
                if known != index {
                    let (stored, declared) = (
                        describe_index(stored, known),
                        describe_index(declared, index),
                    );
                    conflicts.push(Conflict::new(
                        &schema.name,
                        &index.name,
                        "index",
                        stored,
                        declared,
                    ));
                }
                position
            }
            None => {
                schema.indexes.push(index.clone());
                schema.indexes.len() - 1
            }
        };
        index_map.push(position as u16 + 1);
    }
    if !conflicts.is_empty() {
        return Err(conflicts);
    }
    let added = declared
        .columns
        .get(stored.columns.len()..)
        .unwrap_or_default();
    schema.columns.extend_from_slice(added);
    Ok(TableChange {
        table,
        added_columns: added.len(),
        added_indexes: schema.indexes.len() - stored.indexes.len(),
        schema,
        index_map,
    })
}

fn compare_columns(stored: &TableSchema, declared: &TableSchema, conflicts: &mut Vec<Conflict>) {
    for (known, column) in stored.columns.iter().zip(&declared.columns) {
        if known != column {
            conflicts.push(Conflict::new(
                &stored.name,
                &column.name,
                "column",
                describe_column(known),
                describe_column(column),
            ));
        }
    }
    for column in declared.columns.iter().skip(stored.columns.len()) {
        if !column.nullable && column.default.is_none() {
            conflicts.push(Conflict::new(
                &stored.name,
                &column.name,
                "column",
                "rows without it",
                format!("{}, without a default", describe_column(column)),
            ));
        }
    }
}

fn compare_table(stored: &TableSchema, declared: &TableSchema, conflicts: &mut Vec<Conflict>) {
    let mut compare = |what, stored_text: String, declared_text: String| {
        if stored_text != declared_text {
            conflicts.push(Conflict::new(
                &stored.name,
                "",
                what,
                stored_text,
                declared_text,
            ));
        }
    };
    compare(
        "primary key",
        names(stored, &stored.primary_key),
        names(declared, &declared.primary_key),
    );
    if !stored.primary_key.is_empty() {
        let kind = |schema: &TableSchema| format!("{:?}", schema.primary_kind).to_lowercase();
        compare("primary key kind", kind(stored), kind(declared));
    }
    compare(
        "placement",
        describe_placement(stored),
        describe_placement(declared),
    );
}

fn names(schema: &TableSchema, columns: &[u16]) -> String {
    let name = |column: &u16| schema.columns[*column as usize].name.as_str();
    format!(
        "({})",
        columns.iter().map(name).collect::<Vec<_>>().join(", ")
    )
}

fn describe_column(column: &ColumnSchema) -> String {
    let null = if column.nullable { " or null" } else { "" };
    let ty = format!("{:?}", column.ty).to_lowercase();
    match &column.default {
        Some(bytes) => format!("{} {ty}{null} default {bytes:02x?}", column.name),
        None => format!("{} {ty}{null}", column.name),
    }
}

fn describe_index(schema: &TableSchema, index: &IndexSchema) -> String {
    let unique = if index.unique { "unique " } else { "" };
    format!("{unique}{}", names(schema, &index.columns))
}

fn describe_placement(schema: &TableSchema) -> String {
    match schema.placement {
        Placement::By(column) => format!("by {}", schema.columns[column as usize].name),
        Placement::Replicated => "replicated".into(),
        Placement::Local => "local".into(),
    }
}

/// The table as the change will leave it: rows with the added columns' defaults, indexes built anew. The stored table is
/// only read; a row that the new indexes refuse is a conflict.
pub(crate) fn build_changed(stored: &Table, change: &TableChange) -> Result<Table, Vec<Conflict>> {
    let schema = change.schema.clone();
    let table = &schema.name;
    let projection =
        RowProjection::new(&schema.columns, stored.schema.columns.len()).map_err(|error| {
            vec![Conflict::on_table(
                table,
                "column",
                "rows without it",
                &error.to_string(),
            )]
        })?;
    let layout = RowLayout::of_table(&schema);
    let mut indexes = make_indexes(&schema, &layout);
    let mut rows = Rows::new(has_number(&schema));
    let mut scratch = Scratch::default();
    for rid in stored.sorted_rids() {
        let old = stored.rows.at(rid);
        let widened = if projection.is_identity() {
            None
        } else {
            Some(
                projection
                    .widen_insert(old.row)
                    .expect("a stored row is valid"),
            )
        };
        let row = RowRef {
            row: widened.as_deref().unwrap_or(old.row),
            number: old.number,
        };
        if row.row.len() > ROW_BYTES_MAX {
            let bytes = format!("one of {} bytes", row.row.len());
            return Err(vec![Conflict::on_table(
                table,
                "rows",
                "of at most 1 MiB",
                &bytes,
            )]);
        }
        let rid = rows.next_rid();
        for (at, index) in indexes.iter_mut().enumerate() {
            if let Err(refused) = index.insert(&rows, &layout, row, rid, &mut scratch) {
                return Err(vec![refuse_rows(&schema, at, refused)]);
            }
        }
        rows.insert(row);
    }
    Ok(Table::from_parts(
        schema,
        layout,
        rows,
        indexes,
        stored.next_number(),
    ))
}

fn refuse_rows(schema: &TableSchema, index: usize, refused: Refused) -> Conflict {
    assert!(index > 0, "stored rows agree with the primary key");
    let index = &schema.indexes[index - 1];
    let stored = match refused {
        Refused::Taken => "rows with equal keys",
        Refused::TooLong => "rows with keys that are too long",
    };
    Conflict::new(
        &schema.name,
        &index.name,
        "index",
        stored,
        describe_index(schema, index),
    )
}

/// A digest of what a schema means for its rows; the kind of the primary key is not in it.
pub(crate) fn digest(schema: &TableSchema) -> u64 {
    let mut text = format!(
        "{} key {} {}",
        schema.name,
        names(schema, &schema.primary_key),
        describe_placement(schema)
    );
    for column in &schema.columns {
        text += &format!("; {}", describe_column(column));
    }
    for index in &schema.indexes {
        text += &format!("; {} {}", index.name, describe_index(schema, index));
    }
    fold(0, 0, text.as_bytes())
}
