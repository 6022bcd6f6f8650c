//! The next declarations of a module: its tables with a change or two, most of which the database accepts.

use reprise_abi::{ColumnSchema, IndexSchema, ScalarType, TablePlacement, TableSchema};
use reprise_env::sim::FaultRandom;

use super::{
    model::Model,
    module::{self, Migration},
};

#[derive(Clone, Debug)]
pub struct Declared {
    pub module: String,
    pub tables: Vec<TableSchema>,
    /// The migration of the deployment, and the tables that it sees in their earlier form.
    pub migration: Migration,
    pub retiring: Vec<TableSchema>,
    /// No rule is known by which it could be refused.
    pub must_pass: bool,
}

impl Declared {
    pub fn bytes(&self) -> Vec<u8> {
        module::description(&self.tables, self.migration, &self.retiring)
    }
}

const MODULES: [&str; 3] = ["a", "b", "c"];
const TABLES_MAX: usize = 4;

pub fn next(random: &mut FaultRandom, model: &Model) -> Declared {
    let module = MODULES[random.below(3) as usize].to_owned();
    let mut next = Next {
        random,
        model,
        module: &module,
        tables: model.modules.get(&module).cloned().unwrap_or_default(),
        must_pass: true,
    };
    if !model.modules.contains_key(&module) {
        next.take_up_again();
    }
    next.forget_names_before();
    for _ in 0..1 + next.random.below(3) {
        next.change();
    }
    let migration = match next.below(6) {
        0 | 1 => Migration::Counts,
        2 => Migration::Fails,
        _ => Migration::Nothing,
    };
    let retiring = match migration {
        Migration::Nothing => Vec::new(),
        Migration::Counts | Migration::Fails => next.retiring(),
    };
    let (tables, must_pass) = (next.tables, next.must_pass);
    Declared {
        module,
        tables,
        migration,
        retiring,
        must_pass,
    }
}

struct Next<'a> {
    random: &'a mut FaultRandom,
    model: &'a Model,
    module: &'a str,
    tables: Vec<TableSchema>,
    must_pass: bool,
}

impl Next<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// Tables that are stored of a module out of service.
    fn take_up_again(&mut self) {
        let own = self
            .model
            .tables
            .values()
            .filter(|table| table.schema.owner == self.module);
        for table in own.take(TABLES_MAX) {
            let mut schema = table.schema.clone();
            schema.owner = String::new();
            self.tables.push(schema);
        }
    }

    /// Some of the tables as they are stored; every column but the keys' may be gone one day.
    fn retiring(&mut self) -> Vec<TableSchema> {
        let names: Vec<_> = self
            .tables
            .iter()
            .map(|table| format!("{}.{}", self.module, table.name))
            .collect();
        let mut retiring = Vec::new();
        for name in names {
            let Some(stored) = self.model.tables.get(&name).filter(|_| self.random.below(2) == 0) else {
                continue;
            };
            let mut seen = stored.schema.clone();
            (seen.owner, seen.was, seen.shared) = (String::new(), None, false);
            seen.indexes.clear();
            let by = position(&seen);
            for (at, column) in (0..).zip(&mut seen.columns) {
                if !seen.primary_key.contains(&at) && !by.contains(&at) {
                    (column.nullable, column.default) = (true, None);
                }
            }
            retiring.push(seen);
        }
        retiring
    }

    /// `was` stays in a source for a while.
    fn forget_names_before(&mut self) {
        if self.below(2) == 0 {
            for table in &mut self.tables {
                table.was = None;
                table.columns.iter_mut().for_each(|column| column.was = None);
            }
        }
    }

    fn fresh(&mut self, prefix: &str) -> String {
        format!("{prefix}{}", self.below(1_000))
    }

    /// The stored table that this declaration will be about has a column of that name.
    fn is_stored(&self, at: usize, column: &str) -> bool {
        let table = &self.tables[at];
        let names = [Some(&table.name), table.was.as_ref()].into_iter().flatten();
        let mut known = names.filter_map(|name| self.model.tables.get(&format!("{}.{name}", self.module)));
        known.any(|known| known.schema.columns.iter().any(|found| found.name == column))
    }

    fn change(&mut self) {
        let owned: Vec<usize> = (0..self.tables.len())
            .filter(|at| self.tables[*at].owner.is_empty())
            .collect();
        if owned.is_empty() || (self.tables.len() < TABLES_MAX && self.below(6) == 0) {
            return match self.below(3) {
                0 => self.use_others(),
                _ => self.add_table(),
            };
        }
        let at = owned[self.below(owned.len())];
        let full = format!("{}.{}", self.module, self.tables[at].name);
        if self.model.is_used_by_others(self.module, &full) {
            self.must_pass = false;
        }
        match self.below(17) {
            0..3 => self.add_column(at),
            3..5 => self.drop_column(at),
            5..7 => self.rename_column(at),
            7..9 => self.widen(at),
            9 => self.make_nullable(at),
            10 => self.reorder(at),
            11 => self.add_index(at),
            12 => self.tables[at].indexes.clear(),
            13 => self.rename_table(at),
            14 => self.tables[at].shared = self.below(3) > 0,
            15 => self.reorder_indexes(at),
            _ => self.break_rule(at),
        }
    }

    fn add_table(&mut self) {
        let name = self.fresh("t");
        let taken = self.model.tables.contains_key(&format!("{}.{name}", self.module));
        if taken || self.tables.iter().any(|table| table.name == name) {
            return;
        }
        let key = ColumnSchema::new("k", [ScalarType::I8, ScalarType::I32, ScalarType::U16][self.below(3)]);
        let (keyed, shared) = (self.below(5) > 0, self.below(2) == 0);
        self.tables.push(TableSchema {
            shared,
            placement: TablePlacement::By(0),
            ..TableSchema::new(name, vec![key], if keyed { &[0] } else { &[] })
        });
        let at = self.tables.len() - 1;
        (0..1 + self.below(3)).for_each(|_| self.add_column(at));
    }

    /// Another module's table, or its first columns.
    fn use_others(&mut self) {
        self.must_pass = false;
        let others: Vec<_> = self
            .model
            .tables
            .values()
            .filter(|table| table.schema.owner != self.module)
            .collect();
        if others.is_empty() {
            return;
        }
        let mut schema = others[self.random.below(others.len() as u64) as usize].schema.clone();
        if self.tables.iter().any(|table| table.full_name() == schema.full_name()) {
            return;
        }
        schema.shared = true;
        if self.below(2) == 0 {
            schema.indexes.clear();
        }
        if self.below(2) == 0 {
            // A user finds indexes by their names, whatever their order is.
            schema.indexes.reverse();
        }
        if self.below(3) == 0 && schema.columns.len() > 1 && schema.indexes.is_empty() {
            schema.columns.pop();
        }
        if schema
            .primary_key
            .iter()
            .chain(&position(&schema))
            .all(|at| (*at as usize) < schema.columns.len())
        {
            self.tables.push(schema);
        }
    }

    fn add_column(&mut self, at: usize) {
        let name = self.fresh("c");
        let table = &self.tables[at];
        if self.is_stored(at, &name)
            || table.columns.len() > 7
            || table
                .columns
                .iter()
                .any(|column| column.name == name || column.was.as_ref() == Some(&name))
        {
            return;
        }
        use ScalarType::{I8, I16, I32, I64, Text, U8, U16, U32, U64};
        let ty = [I8, I16, I32, I64, U8, U16, U32, U64, Text][self.below(9)];
        let value = match ty {
            Text => b"\x02ab".to_vec(),
            _ => {
                let mut bytes = vec![0; ty.slot_bytes()];
                bytes[0] = self.below(100) as u8;
                bytes
            }
        };
        let nullable = self.below(2) == 0;
        let default = (!nullable || self.below(3) == 0).then_some(value);
        let column = ColumnSchema {
            nullable,
            default,
            ..ColumnSchema::new(name, ty)
        };
        self.tables[at].columns.push(column);
    }

    /// A column that is in no key.
    fn free_column(&mut self, at: usize) -> Option<usize> {
        let by = position(&self.tables[at]);
        let table = &self.tables[at];
        let used = |column: usize| {
            let number = column as u16;
            by.contains(&number)
                || table.primary_key.contains(&number)
                || table.indexes.iter().any(|index| index.columns.contains(&number))
        };
        let free: Vec<_> = (0..table.columns.len()).filter(|column| !used(*column)).collect();
        match free.is_empty() {
            true => None,
            false => Some(free[self.below(free.len())]),
        }
    }

    fn drop_column(&mut self, at: usize) {
        self.tables[at].indexes.clear();
        if let Some(column) = self.free_column(at) {
            self.move_columns(at, |order| order.retain(|at| *at != column));
        }
    }

    fn reorder(&mut self, at: usize) {
        let count = self.tables[at].columns.len();
        let (a, b) = (self.below(count), self.below(count));
        self.move_columns(at, |order| order.swap(a, b));
    }

    /// Columns change places, and with them all that names them by place.
    fn move_columns(&mut self, at: usize, change: impl FnOnce(&mut Vec<usize>)) {
        let table = &mut self.tables[at];
        let mut order: Vec<usize> = (0..table.columns.len()).collect();
        change(&mut order);
        let place = |column: &mut u16| {
            let moved = order.iter().position(|from| *from == *column as usize);
            *column = moved.expect("no key column is dropped") as u16;
        };
        table.primary_key.iter_mut().for_each(place);
        table
            .indexes
            .iter_mut()
            .flat_map(|index| &mut index.columns)
            .for_each(place);
        if let TablePlacement::By(column) = &mut table.placement {
            place(column);
        }
        table.columns = order.iter().map(|from| table.columns[*from].clone()).collect();
    }

    fn rename_column(&mut self, at: usize) {
        let column = self.below(self.tables[at].columns.len());
        let name = self.fresh("r");
        let columns = &self.tables[at].columns;
        // A declaration renames a column once. A renamed column that was not deployed has no stored name.
        if self.is_stored(at, &name) || columns.iter().any(|other| other.name == name || other.was.is_some()) {
            return;
        }
        let was_stored = self.is_stored(at, &columns[column].name);
        let renamed = &mut self.tables[at].columns[column];
        let before = std::mem::replace(&mut renamed.name, name);
        renamed.was = was_stored.then_some(before);
    }

    fn widen(&mut self, at: usize) {
        use ScalarType::{I16, I32, I64, U8, U16, U32, U64};
        let column = self.below(self.tables[at].columns.len());
        let column = &mut self.tables[at].columns[column];
        let wider = match column.ty {
            ScalarType::I8 => I16,
            I16 => I32,
            I32 => I64,
            U8 => U16,
            U16 => I32,
            U32 => U64,
            _ => return,
        };
        column.ty = wider;
        if let Some(default) = &mut column.default {
            default.resize(wider.slot_bytes(), 0);
        }
    }

    fn make_nullable(&mut self, at: usize) {
        if let Some(column) = self.free_column(at) {
            self.tables[at].columns[column].nullable = true;
        }
    }

    fn add_index(&mut self, at: usize) {
        let (name, count) = (self.fresh("i"), self.tables[at].columns.len());
        let (unique, column) = (self.below(3) == 0, self.below(count) as u16);
        let table = &mut self.tables[at];
        if table.indexes.len() >= 3 || table.indexes.iter().any(|index| index.name == name) {
            return;
        }
        let mut columns = match unique {
            true => position(table).to_vec(),
            false => Vec::new(),
        };
        if !columns.contains(&column) {
            columns.push(column);
        }
        table.indexes.push(IndexSchema { name, columns, unique });
    }

    /// Indexes change places in the declaration. The stored ones keep theirs.
    fn reorder_indexes(&mut self, at: usize) {
        let count = self.tables[at].indexes.len();
        if count > 1 {
            let turned = 1 + self.below(count - 1);
            self.tables[at].indexes.rotate_left(turned);
        }
    }

    fn rename_table(&mut self, at: usize) {
        let (name, before) = (self.fresh("n"), self.tables[at].name.clone());
        let is_taken = self.model.tables.contains_key(&format!("{}.{name}", self.module));
        if is_taken
            || self
                .tables
                .iter()
                .any(|table| table.name == name || table.was.is_some())
        {
            return;
        }
        if self.model.tables.contains_key(&format!("{}.{before}", self.module)) {
            self.tables[at].was = Some(before);
        }
        self.tables[at].name = name;
    }

    /// Something that is refused, where rows or other modules make it so.
    fn break_rule(&mut self, at: usize) {
        self.must_pass = false;
        let count = self.tables[at].columns.len();
        let column = self.below(count);
        match self.below(5) {
            0 => self.tables[at].columns[column].default = None,
            1 => self.tables[at].columns[column].ty = ScalarType::I64,
            2 if count < 9 => (0..300).for_each(|number| {
                let column = ColumnSchema {
                    nullable: true,
                    ..ColumnSchema::new(format!("wide{number}"), ScalarType::I8)
                };
                self.tables[at].columns.push(column);
            }),
            3 => self.tables[at].primary_key.clear(),
            _ => {
                self.tables.remove(at);
            }
        }
        if let Some(table) = self.tables.get_mut(at) {
            // Invalid descriptions are not the subject of this test.
            table.columns.truncate(256);
            for column in &mut table.columns {
                let fits = column
                    .default
                    .as_ref()
                    .is_none_or(|default| default.len() == column.ty.slot_bytes());
                if !fits && column.ty != ScalarType::Text {
                    column.default = None;
                }
            }
        }
    }
}

fn position(table: &TableSchema) -> [u16; 1] {
    match table.placement {
        TablePlacement::By(column) => [column],
        TablePlacement::Replicated | TablePlacement::Local => [0],
    }
}
