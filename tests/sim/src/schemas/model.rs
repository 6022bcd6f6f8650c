//! The tables as people think of them: rows by key, values by the names of their columns.

use std::collections::{BTreeMap, BTreeSet};

use reprise_abi::{
    ColumnSchema, Field, IndexSchema, ModuleSchema, RowLayout, ScalarType, TableSchema, describe::write_json,
    value::push_bytes,
};
use reprise_env::sim::FaultRandom;

use super::{
    change::Declared,
    lineage::{Moves, Places},
    module::{Migration, counted, counted_column},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Text(String),
}

pub type Row = BTreeMap<String, Value>;

#[derive(Clone, Debug)]
pub struct Table {
    /// The schema in its stored form.
    pub schema: TableSchema,
    pub rows: BTreeMap<i64, Row>,
}

#[derive(Clone, Default)]
pub struct Model {
    /// Tables by `module.table`.
    pub tables: BTreeMap<String, Table>,
    /// The declarations of modules in service.
    pub modules: BTreeMap<String, Vec<TableSchema>>,
    places: Places,
}

/// A call, and its change.
#[derive(Clone, Debug)]
pub struct Write {
    pub module: String,
    /// Its number in the module.
    number: usize,
    declared: TableSchema,
    table: String,
    key: i64,
    /// None: the row is deleted. In the columns that the module knows.
    row: Option<Row>,
    is_new: bool,
}

impl Write {
    pub fn procedure(&self) -> &'static str {
        match (&self.row, self.is_new) {
            (None, _) => "erase",
            (Some(_), true) => "put",
            (Some(_), false) => "change",
        }
    }

    pub fn args(&self) -> Vec<u8> {
        let layout = RowLayout::of_table(&self.declared);
        let row = self.row.as_ref().map(|row| encode(&self.declared, row));
        let mut out = self.key.to_le_bytes().to_vec();
        out.extend_from_slice(&(self.number as i64).to_le_bytes());
        let mut key = Vec::new();
        if !self.declared.primary_key.is_empty() {
            let mut named = Row::new();
            for column in &self.declared.columns {
                named.insert(column.name.clone(), zero(column));
            }
            named.insert(key_name(&self.declared), Value::Int(self.key));
            layout.push_key(&encode(&self.declared, &named), &self.declared.primary_key, &mut key);
        }
        push_bytes(&mut out, &key);
        push_bytes(&mut out, &row.unwrap_or_default());
        out
    }
}

/// Returns the name of the column that places rows. It is also the key if there is one.
fn key_name(schema: &TableSchema) -> String {
    match schema.placement {
        reprise_abi::TablePlacement::By(column) => schema.columns[column as usize].name.clone(),
        _ => unreachable!("all tables here lie by a column"),
    }
}

fn zero(column: &ColumnSchema) -> Value {
    match (column.nullable, column.ty) {
        (true, _) => Value::Null,
        (false, ScalarType::Text) => Value::Text(String::new()),
        (false, _) => Value::Int(0),
    }
}

/// The value of a default, as `change` makes them.
pub fn default_of(column: &ColumnSchema) -> Value {
    match (&column.default, column.ty) {
        (None, _) => Value::Null,
        (Some(bytes), ScalarType::Text) => Value::Text(String::from_utf8_lossy(&bytes[1..]).into_owned()),
        (Some(bytes), _) => Value::Int(i64::from(bytes[0])),
    }
}

fn encode(schema: &TableSchema, row: &Row) -> Vec<u8> {
    use ScalarType::{U8, U16, U32, U64};
    let field = |column: &ColumnSchema| match (&row[&column.name], column.ty) {
        (Value::Null, _) => Field::Null,
        (Value::Int(value), U8 | U16 | U32 | U64) => Field::Uint(*value as u64),
        (Value::Int(value), _) => Field::Int(*value),
        (Value::Text(text), _) => Field::Text(text),
    };
    let fields: Vec<_> = schema.columns.iter().map(field).collect();
    RowLayout::of_table(schema).build(&fields)
}

pub fn form(schema: &TableSchema) -> String {
    write_json(&ModuleSchema {
        table_docs: Vec::new(),
        abi: 1,
        tables: vec![schema.clone()],
        procedures: Vec::new(),
        on_deploy: None,
        retiring: Vec::new(),
    })
}

fn full_name(module: &str, declared: &TableSchema) -> String {
    match declared.owner.is_empty() {
        true => format!("{module}.{}", declared.name),
        false => declared.full_name(),
    }
}

impl Model {
    pub fn is_used(&self, table: &str) -> bool {
        let mut modules = self.modules.iter();
        modules.any(|(module, declared)| declared.iter().any(|found| full_name(module, found) == table))
    }

    pub fn is_used_by_others(&self, owner: &str, table: &str) -> bool {
        let mut modules = self.modules.iter().filter(|(module, _)| *module != owner);
        modules.any(|(module, declared)| declared.iter().any(|found| full_name(module, found) == table))
    }

    /// Applies an accepted declaration. `anew`: full names of tables without rows that were made anew.
    pub fn deploy(&mut self, declared: &Declared, anew: &[String]) {
        let (module, bytes) = (&declared.module, declared.bytes());
        if self.places.is_current(module, &bytes) {
            return;
        }
        let places = self.places.of(module, &bytes);
        self.places.retire(module);
        let (mut changed, mut moves) = (Vec::new(), Moves::new());
        let claimed = places.iter().flatten().map(|(full, _)| full);
        let claimed: BTreeSet<_> = claimed
            .filter(|full| self.tables.contains_key(*full))
            .cloned()
            .collect();
        for (at, table) in declared.tables.iter().enumerate() {
            if !table.owner.is_empty() {
                continue;
            }
            let name = full_name(module, table);
            let place = places.get(at).cloned().flatten();
            let place = place.filter(|(full, _)| self.tables.contains_key(full));
            let (before, known) = match &place {
                Some((full, _)) => (full.clone(), self.tables.remove(full)),
                None => self.take_by_name(declared, table, &claimed),
            };
            let (mut rows, mut indexes) = (BTreeMap::new(), table.indexes.clone());
            if let Some(known) = known {
                indexes = in_stored_order(&known.schema.indexes, &table.indexes);
                let sources = match place {
                    Some((_, columns)) => columns,
                    None => sources_by_name(table, &known.schema),
                };
                let names = table.columns.iter().zip(&sources);
                let names = names.filter_map(|(column, source)| Some((source.clone()?, column.name.clone())));
                let is_new = anew.contains(&name);
                moves.insert(before, (!is_new).then(|| (name.clone(), names.collect())));
                let carried = known
                    .rows
                    .into_iter()
                    .map(|(key, row)| (key, carry(table, &sources, &row)));
                rows = carried.collect();
            }
            let mut schema = table.clone();
            schema.indexes = indexes;
            schema.owner = module.clone();
            schema.was = None;
            schema.columns.iter_mut().for_each(|column| column.was = None);
            changed.push((name, Table { schema, rows }));
        }
        self.tables.extend(changed);
        self.places.follow(&moves);
        self.places.serve(module, bytes, &declared.tables);
        self.modules.insert(module.clone(), declared.tables.clone());
    }

    /// Takes the stored table of a declaration out, by its name or the one that it had. Another declared table of the same version may have
    /// claimed it by its place.
    fn take_by_name(
        &mut self,
        declared: &Declared,
        table: &TableSchema,
        claimed: &BTreeSet<String>,
    ) -> (String, Option<Table>) {
        let name = full_name(&declared.module, table);
        let mut take = |full: &str| match claimed.contains(full) {
            true => None,
            false => self.tables.remove(full),
        };
        if let Some(known) = take(&name) {
            return (name, Some(known));
        }
        let is_own = |other: &&TableSchema| other.owner.is_empty();
        let keeps = |was: &str| declared.tables.iter().filter(is_own).any(|other| other.name == was);
        let was = table.was.as_ref().filter(|was| !keeps(was));
        let was = was.map_or(String::new(), |was| format!("{}.{was}", declared.module));
        let known = take(&was);
        (was, known)
    }

    pub fn remove(&mut self, module: &str) {
        self.modules.remove(module);
        self.places.retire(module);
    }

    pub fn drop_table(&mut self, name: &str) {
        self.tables.remove(name);
        self.places.follow(&Moves::from([(name.to_owned(), None)]));
    }

    /// Applies the migration of a deployment.
    pub fn migrate(&mut self, declared: &Declared) {
        if declared.migration == Migration::Nothing {
            return;
        }
        for table in &declared.tables {
            let Some(column) = counted_column(table) else {
                continue;
            };
            let stored = self.tables.get_mut(&full_name(&declared.module, table));
            let rows = stored.expect("it was deployed").rows.values_mut();
            for value in rows.filter_map(|row| row.get_mut(&table.columns[column].name)) {
                if let Value::Int(value) = value {
                    *value = counted(*value);
                }
            }
        }
    }

    /// Returns the tables in the form of `Life::tables`.
    pub fn stored(&self) -> Vec<(String, Vec<Vec<u8>>)> {
        let mut tables: Vec<_> = self
            .tables
            .values()
            .map(|table| {
                let mut rows: Vec<_> = table.rows.values().map(|row| encode(&table.schema, row)).collect();
                rows.sort();
                (form(&table.schema), rows)
            })
            .collect();
        tables.sort();
        tables
    }

    pub fn random_write(&self, random: &mut FaultRandom) -> Option<Write> {
        let all: Vec<_> = self
            .modules
            .iter()
            .flat_map(|(module, tables)| {
                tables
                    .iter()
                    .enumerate()
                    .map(move |(number, table)| (module, number, table))
            })
            .collect();
        if all.is_empty() {
            return None;
        }
        let (module, number, declared) = all[random.below(all.len() as u64) as usize];
        let table = full_name(module, declared);
        let key = random.below(40) as i64;
        let is_new = !self.tables[&table].rows.contains_key(&key);
        if !is_new && declared.primary_key.is_empty() {
            return None;
        }
        let mut row = Row::new();
        for column in &declared.columns {
            row.insert(column.name.clone(), random_value(random, column));
        }
        row.insert(key_name(declared), Value::Int(key));
        let is_erased = !is_new && random.below(3) == 0;
        Some(Write {
            module: module.clone(),
            number,
            declared: declared.clone(),
            table,
            key,
            row: (!is_erased).then_some(row),
            is_new,
        })
    }

    pub fn write(&mut self, write: &Write) {
        let table = self.tables.get_mut(&write.table).expect("it was found there");
        let Some(known) = &write.row else {
            table.rows.remove(&write.key);
            return;
        };
        let fresh = || {
            table
                .schema
                .columns
                .iter()
                .map(|column| (column.name.clone(), default_of(column)))
                .collect()
        };
        let mut row = table.rows.remove(&write.key).unwrap_or_else(fresh);
        row.extend(known.clone());
        table.rows.insert(write.key, row);
    }
}

/// Returns the stored source of each declared column.
fn sources_by_name(declared: &TableSchema, before: &TableSchema) -> Vec<Option<String>> {
    let had = |name: &String| before.columns.iter().any(|column| column.name == *name);
    let source = |column: &ColumnSchema| {
        let was = column
            .was
            .as_ref()
            .filter(|was| declared.columns.iter().all(|other| other.name != **was));
        [Some(&column.name), was]
            .into_iter()
            .flatten()
            .find(|name| had(name))
            .cloned()
    };
    declared.columns.iter().map(source).collect()
}

/// Returns the declared indexes as they are stored. Those of a stored name keep their order among each other.
fn in_stored_order(stored: &[IndexSchema], declared: &[IndexSchema]) -> Vec<IndexSchema> {
    let mut kept: Vec<(usize, &IndexSchema)> = declared
        .iter()
        .filter_map(|index| Some((place_of(stored, index)?, index)))
        .collect();
    kept.sort_by_key(|(at, _)| *at);
    let mut kept = kept.into_iter().map(|(_, index)| index.clone());
    let indexes = declared.iter().map(|index| match place_of(stored, index) {
        Some(_) => kept.next().expect("as many as were found"),
        None => index.clone(),
    });
    indexes.collect()
}

fn place_of(stored: &[IndexSchema], index: &IndexSchema) -> Option<usize> {
    stored.iter().position(|known| known.name == index.name)
}

/// A row under the declaration that came after it.
fn carry(declared: &TableSchema, sources: &[Option<String>], row: &Row) -> Row {
    let columns = declared.columns.iter().zip(sources);
    let value = |(column, source): (&ColumnSchema, &Option<String>)| {
        let value = source
            .as_ref()
            .map_or_else(|| default_of(column), |source| row[source].clone());
        (column.name.clone(), value)
    };
    columns.map(value).collect()
}

fn random_value(random: &mut FaultRandom, column: &ColumnSchema) -> Value {
    if column.nullable && random.below(3) == 0 {
        return Value::Null;
    }
    match column.ty {
        ScalarType::Text => Value::Text("x".repeat(random.below(30) as usize)),
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => Value::Int(random.below(200) as i64),
        _ => Value::Int(random.below(200) as i64 - 100),
    }
}
