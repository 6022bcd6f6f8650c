//! Finds a module's tables among the stored ones, and checks whether the module can work on them.

use std::sync::Arc;

use reprise_abi::{ModuleSchema, RowLayout, TablePlacement, TableSchema};
use reprise_storage::{Conflict, RowProjection, TableId};

use super::conflict;
use crate::{
    keyplace::KeyPlace,
    module::{Deployed, TableBinding},
};

impl Deployed {
    /// Returns the table that a module's declaration means: its own, or the shared one that it names.
    pub fn table_of(&self, module: &str, declared: &TableSchema) -> Option<TableId> {
        let owner = match declared.owner.as_str() {
            "" => module,
            owner => owner,
        };
        self.owned(owner, &declared.name)
    }

    pub(crate) fn owned(&self, owner: &str, name: &str) -> Option<TableId> {
        let is_it = |table: &Arc<TableSchema>| table.name == name && table.owner == owner;
        self.tables.iter().position(is_it).map(|at| TableId(at as u16))
    }
}

/// Binds all of a module's tables to `tables`, the stored ones.
pub(super) fn bind_all(
    module: &str,
    schema: &ModuleSchema,
    deployed: &Deployed,
) -> Result<Vec<TableBinding>, Vec<Conflict>> {
    let (mut bindings, mut conflicts) = (Vec::new(), Vec::new());
    for declared in &schema.tables {
        let Some(id) = deployed.table_of(module, declared) else {
            conflicts.push(missing(module, declared));
            continue;
        };
        match bind(module, declared, id, &deployed.tables[id.0 as usize]) {
            Ok(binding) => bindings.push(binding),
            Err(found) => conflicts.extend(found),
        }
    }
    match conflicts.is_empty() {
        true => Ok(bindings),
        false => Err(conflicts),
    }
}

fn missing(module: &str, declared: &TableSchema) -> Conflict {
    let way_on = match declared.owner.as_str() {
        "" => "deploy the module again".to_owned(),
        owner => format!("deploy module {owner} first, which declares it"),
    };
    let found = format!("declared by {module}");
    conflict(&declared.full_name(), "", "table", "no such table", &found, &way_on)
}

/// Binds a declared table. The declaration may lack trailing columns and indexes of the stored table; the parts that it has must be the
/// same.
fn bind(
    module: &str,
    declared: &TableSchema,
    table: TableId,
    stored: &TableSchema,
) -> Result<TableBinding, Vec<Conflict>> {
    let mut conflicts = differences(module, declared, stored);
    let of_name = |name: &str| stored.indexes.iter().position(|index| index.name == name);
    let named = declared
        .indexes
        .iter()
        .filter_map(|index| Some(of_name(&index.name)? as u16 + 1));
    let known = declared.columns.len();
    let projection = match conflicts.is_empty() && known < stored.columns.len() {
        false => None,
        true => match RowProjection::new(&stored.columns, known) {
            Ok(projection) => Some(projection),
            Err(error) => {
                let (found, way_on) = (
                    format!("module {module} does not know it"),
                    format!("give the column a default, make it nullable, or declare it in {module}, too"),
                );
                let full = stored.full_name();
                conflicts.push(conflict(&full, "", "column", &error.to_string(), &found, &way_on));
                None
            }
        },
    };
    let indexes: Vec<u16> = std::iter::once(0).chain(named).collect();
    match conflicts.is_empty() {
        false => Err(conflicts),
        true => Ok(TableBinding {
            table,
            is_own: stored.owner == module,
            places: indexes.iter().map(|index| KeyPlace::of(stored, *index)).collect(),
            keys: keys_text(stored),
            layout: RowLayout::of_table(declared),
            placement: stored.placement.clone(),
            indexes,
            projection,
        }),
    }
}

/// Returns the binding of a copy that only a migration sees, and that nothing writes.
pub(super) fn bind_retiring(declared: &TableSchema, table: TableId) -> TableBinding {
    TableBinding {
        table,
        is_own: false,
        placement: declared.placement.clone(),
        indexes: vec![0],
        places: vec![KeyPlace::of(declared, 0)],
        keys: Vec::new(),
        layout: RowLayout::of_table(declared),
        projection: None,
    }
}

/// Returns the name of each key of a stored table, the primary key first. Messages about keys that are too long use them.
fn keys_text(stored: &TableSchema) -> Vec<String> {
    let table = stored.full_name();
    let text = |name: String, columns: &[u16]| {
        let columns = columns.iter().map(|at| &stored.columns[*at as usize]);
        let lengthy: Vec<_> = columns
            .filter(|column| column.ty.is_variable())
            .map(|column| &column.name[..])
            .collect();
        match lengthy[..] {
            [column] => format!("{name} of {table}, by its column {column},"),
            _ => format!("{name} of {table}, by its columns {},", lengthy.join(", ")),
        }
    };
    let primary = text("the primary key".into(), &stored.primary_key);
    let indexes = stored.indexes.iter();
    let indexes = indexes.map(|index| text(format!("the key in index {}", index.name), &index.columns));
    std::iter::once(primary).chain(indexes).collect()
}

/// Returns the differences that keep a module from working on a stored table.
fn differences(module: &str, declared: &TableSchema, stored: &TableSchema) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    let table = stored.full_name();
    let mut refuse = |item: &str, what, found: String, known: String| {
        let declared = format!("module {module}: {known}");
        let way_on = format!(
            "change the declaration in {module}; if {module} is in service, remove it, and deploy it again behind this"
        );
        conflicts.push(conflict(&table, item, what, &found, &declared, &way_on));
    };
    let text = |column: &reprise_abi::ColumnSchema| {
        let null = if column.nullable { " or null" } else { "" };
        let variants = column.variants.join(", ");
        format!("{} {:?}{null} {variants}", column.name, column.ty)
            .to_lowercase()
            .trim_end()
            .to_owned()
    };
    for (at, column) in declared.columns.iter().enumerate() {
        match stored.columns.get(at) {
            None => refuse(&column.name, "column", "no such column".into(), text(column)),
            Some(known) if text(known) != text(column) => {
                refuse(
                    &column.name,
                    "column",
                    format!("{} in its place", text(known)),
                    text(column),
                );
            }
            Some(_) => {}
        }
    }
    if declared.primary_key != stored.primary_key {
        let key = |schema: &TableSchema| format!("columns {:?}", schema.primary_key);
        refuse("", "primary key", key(stored), key(declared));
    } else if !stored.primary_key.is_empty() && declared.primary_kind != stored.primary_kind {
        let kind = |schema: &TableSchema| format!("{:?}", schema.primary_kind).to_lowercase();
        refuse("", "primary key", kind(stored), kind(declared));
    }
    if declared.placement != stored.placement {
        let place = |placement: &TablePlacement| match placement {
            TablePlacement::By(column) => format!("by column {column}"),
            other => format!("{other:?}").to_lowercase(),
        };
        refuse("", "placement", place(&stored.placement), place(&declared.placement));
    }
    for index in &declared.indexes {
        let known = stored.indexes.iter().find(|known| known.name == index.name);
        if known != Some(index) {
            let found = if known.is_some() {
                "another one"
            } else {
                "no such index"
            };
            refuse(
                &index.name,
                "index",
                found.into(),
                format!("columns {:?}", index.columns),
            );
        }
    }
    conflicts
}
