//! The schema of a stored table: its rules, its description for people, its digest.

use std::{collections::BTreeSet, fmt};

use reprise_abi::{
    ColumnSchema, IndexSchema, ModuleSchema, TablePlacement, TableSchema, describe::write_json, key::KEY_BYTES_MAX,
    row::COLUMNS_MAX,
};
use reprise_base::limits::{DESCRIPTION_BYTES_MAX, INDEXES_MAX};

use crate::{digest::fold, project::check_default};

/// A point in which a declared table can't be reconciled with the stored one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The table's name.
    pub table: String,
    /// The column or index; empty for the table itself.
    pub item: String,
    /// The kind of item that differs: "column", "index", "primary key", "placement", "rows", ...
    pub what: &'static str,
    /// The stored form; empty if the declaration contradicts itself.
    pub stored: String,
    /// The declared form.
    pub declared: String,
    /// A remedy for the module's author.
    pub way_on: String,
}

impl Conflict {
    /// Says in words what does not go together.
    pub fn difference(&self) -> String {
        match self.stored.is_empty() {
            true => format!("declared {}", self.declared),
            false => format!("stored {}, declared {}", self.stored, self.declared),
        }
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}: {}", self.table, self.what)?;
        if !self.item.is_empty() {
            write!(f, " {}", self.item)?;
        }
        write!(f, ": {}; {}", self.difference(), self.way_on)
    }
}

/// The table and the item of a conflict.
pub(crate) struct ConflictPlace<'a> {
    pub table: &'a str,
    pub item: &'a str,
    pub what: &'static str,
}

impl ConflictPlace<'_> {
    pub fn conflict(
        &self,
        stored: impl Into<String>,
        declared: impl Into<String>,
        way_on: impl Into<String>,
    ) -> Conflict {
        Conflict {
            table: self.table.into(),
            item: self.item.into(),
            what: self.what,
            stored: stored.into(),
            declared: declared.into(),
            way_on: way_on.into(),
        }
    }
}

/// Returns the reasons why the table can't be stored at all.
pub(crate) fn check_table(schema: &TableSchema) -> Vec<Conflict> {
    let table = &schema.full_name();
    let mut conflicts = Vec::new();
    let mut refuse = |item: &str, what, rule: &str, declared: String, way_on: &str| {
        conflicts.push(ConflictPlace { table, item, what }.conflict(rule, declared, way_on));
    };
    let count = schema.columns.len();
    if count == 0 || count > COLUMNS_MAX {
        let way_on = "put the columns that are seldom used into a table of their own, under the same key";
        refuse("", "columns", &format!("1 to {COLUMNS_MAX}"), count.to_string(), way_on);
    }
    for column in twice(schema.columns.iter().map(|column| &column.name)) {
        refuse(column, "column", "names differ", "twice".into(), "rename one of them");
    }
    for column in &schema.columns {
        if let Err(error) = check_default(column) {
            let way_on = "declare a default that the column can hold";
            refuse(
                &column.name,
                "default",
                "a value of the column's type",
                error.to_string(),
                way_on,
            );
        }
    }
    let mut check_columns = |item: &str, what, columns: &[u16], may_be_empty: bool| {
        let distinct: BTreeSet<_> = columns.iter().collect();
        let is_known = columns.iter().all(|column| (*column as usize) < count);
        if !is_known || distinct.len() != columns.len() || columns.is_empty() && !may_be_empty {
            let rule = "distinct columns of the table";
            refuse(
                item,
                what,
                rule,
                format!("{columns:?}"),
                "name columns that it has, each once",
            );
        }
    };
    check_columns("", "primary key", &schema.primary_key, true);
    for index in &schema.indexes {
        check_columns(&index.name, "index", &index.columns, false);
    }
    if let TablePlacement::By(column) = schema.placement {
        check_columns("", "placement", &[column], false);
    }
    for index in twice(schema.indexes.iter().map(|index| &index.name)) {
        refuse(index, "index", "names differ", "twice".into(), "rename one of them");
    }
    conflicts
}

/// Returns the limits that a well-formed table exceeds. A deployment checks them, and reading a log or a checkpoint does not.
pub fn check_limits(schema: &TableSchema) -> Vec<Conflict> {
    let table = &schema.full_name();
    let mut conflicts = Vec::new();
    let mut refuse = |item: &str, what, rule: String, declared: String, way_on: &str| {
        conflicts.push(ConflictPlace { table, item, what }.conflict(rule, declared, way_on));
    };
    if schema.indexes.len() > INDEXES_MAX {
        let (rule, found) = (format!("at most {INDEXES_MAX}"), schema.indexes.len().to_string());
        refuse("", "indexes", rule, found, "leave out those that no procedure scans");
    }
    let unique = schema
        .indexes
        .iter()
        .map(|index| (index.name.as_str(), "index", &index.columns));
    for (name, what, columns) in [("", "primary key", &schema.primary_key)].into_iter().chain(unique) {
        let bytes = key_bytes_min(schema, columns);
        if bytes > KEY_BYTES_MAX {
            let (rule, found) = (format!("at most {KEY_BYTES_MAX} bytes"), format!("at least {bytes}"));
            refuse(name, what, rule, found, "leave columns out of the key");
        }
    }
    let bytes = stored_json(schema).len();
    if bytes > DESCRIPTION_BYTES_MAX {
        let (rule, found) = (format!("at most {DESCRIPTION_BYTES_MAX} bytes"), bytes.to_string());
        refuse("", "description", rule, found, "shorten names or defaults");
    }
    conflicts
}

/// Returns the least length of a key over these columns.
fn key_bytes_min(schema: &TableSchema, columns: &[u16]) -> usize {
    let bytes_of = |column: &u16| {
        let column = &schema.columns[*column as usize];
        match (column.nullable, column.ty.is_variable()) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => column.ty.slot_bytes(),
        }
    };
    columns.iter().map(bytes_of).sum()
}

/// Returns the description of a stored table in a checkpoint: that of a module with this table alone, or with none if it was dropped.
pub fn stored_json(table: &TableSchema) -> String {
    let stored = (!table.is_dropped()).then(|| table.clone());
    write_json(&ModuleSchema {
        table_docs: Vec::new(),
        abi: reprise_abi::ABI_VERSION,
        tables: stored.into_iter().collect(),
        procedures: Vec::new(),
        on_deploy: None,
        retiring: Vec::new(),
    })
}

fn twice<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut seen = BTreeSet::new();
    names.filter(|name| !seen.insert(*name)).collect()
}

pub(crate) fn names(schema: &TableSchema, columns: &[u16]) -> String {
    let name = |column: &u16| schema.columns[*column as usize].name.as_str();
    format!("({})", columns.iter().map(name).collect::<Vec<_>>().join(", "))
}

pub(crate) fn describe_type(column: &ColumnSchema) -> String {
    let null = if column.nullable { " or null" } else { "" };
    let ty = match column.ty {
        reprise_abi::ScalarType::Decimal { scale } => format!("decimal({scale})"),
        _ if !column.variants.is_empty() => format!("enum({})", column.variants.join(", ")),
        ty => format!("{ty:?}").to_lowercase(),
    };
    format!("{ty}{null}")
}

pub(crate) fn describe_column(column: &ColumnSchema) -> String {
    let ty = describe_type(column);
    match &column.default {
        Some(bytes) => format!("{} {ty} default {bytes:02x?}", column.name),
        None => format!("{} {ty}", column.name),
    }
}

pub(crate) fn describe_index(schema: &TableSchema, index: &IndexSchema) -> String {
    let unique = if index.unique { "unique " } else { "" };
    format!("{unique}{}", names(schema, &index.columns))
}

pub(crate) fn describe_placement(schema: &TableSchema) -> String {
    match schema.placement {
        TablePlacement::By(column) => format!("by {}", schema.columns[column as usize].name),
        TablePlacement::Replicated => "replicated".into(),
        TablePlacement::Local => "local".into(),
    }
}

/// Returns a digest of the parts of a schema that matter to its rows. The kind of the primary key is not in it.
pub(crate) fn digest(schema: &TableSchema) -> u64 {
    let mut text = format!(
        "{} key {} {}",
        schema.full_name(),
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
