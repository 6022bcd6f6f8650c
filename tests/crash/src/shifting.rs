//! A module whose tables change from version to version, for kills among deployments: wasm text made from what is to be stored.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::rng::Rng;

/// Name of the module.
pub const MODULE: &str = "shifting";
/// Values of the column `note`: in rows of versions that do not know it, and in others.
pub const NOTES: [i64; 2] = [7, 5];

/// The tables that a version declares, and whether the second one is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    has_note: bool,
    has_index: bool,
    is_column_renamed: bool,
    is_table_renamed: bool,
    declares_second: bool,
    stores_second: bool,
}

/// One change of the stored tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `PUT /v1/modules/…` with this shape's module.
    Deploy(Shape),
    /// `DELETE /v1/tables/…` of the second table.
    Drop(Shape),
}

impl Step {
    /// Returns the stored tables after the step.
    pub fn shape(self) -> Shape {
        match self {
            Self::Deploy(shape) | Self::Drop(shape) => shape,
        }
    }
}

/// The value that belongs to a row's id.
pub fn amount_of(id: u64) -> i64 {
    id as i64 * 3 + 1
}

impl Shape {
    /// Adds, drops or renames one thing.
    pub fn step(self, rng: &mut Rng) -> Step {
        let mut next = self;
        if self.stores_second && !self.declares_second && rng.below(3) == 0 {
            next.stores_second = false;
            return Step::Drop(next);
        }
        match rng.below(5) {
            0 => next.has_note = !self.has_note,
            1 => next.has_index = !self.has_index,
            2 => next.is_column_renamed = !self.is_column_renamed,
            3 => next.is_table_renamed = !self.is_table_renamed,
            _ => {
                next.declares_second = !self.declares_second;
                next.stores_second |= next.declares_second;
            }
        }
        Step::Deploy(next)
    }

    pub fn table(self) -> &'static str {
        names(self.is_table_renamed, ["items", "things"]).0
    }

    pub fn column(self) -> &'static str {
        names(self.is_column_renamed, ["amount", "total"]).0
    }

    pub fn has_note(self) -> bool {
        self.has_note
    }

    /// The second table's name as people write it.
    pub fn second() -> String {
        format!("{MODULE}.extras")
    }

    /// Reads the shape from the answer of `GET /v1/tables`.
    pub fn of_tables(tables: &Value) -> Result<Self> {
        let tables = tables["tables"].as_array().context("no list of tables")?;
        let named = |name: &str| tables.iter().find(|table| table["name"] == format!("{MODULE}.{name}"));
        let (table, is_table_renamed) = match (named("items"), named("things")) {
            (Some(table), None) => (table, false),
            (None, Some(table)) => (table, true),
            _ => anyhow::bail!("neither items nor things is there, or both are: {tables:?}"),
        };
        let lists = |list: &str, name: &str| {
            let list = table[list].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().any(|found| found["name"] == name)
        };
        let second = named("extras");
        let declared_by = |table: &Value| table["modules"].as_array().is_some_and(|modules| !modules.is_empty());
        Ok(Self {
            has_note: lists("columns", "note"),
            has_index: lists("indexes", "by_value"),
            is_column_renamed: lists("columns", "total"),
            is_table_renamed,
            declares_second: second.is_some_and(declared_by),
            stores_second: second.is_some(),
        })
    }

    /// Returns the version's bytes. `put` inserts a row with its value, after it has rolled back one with another value to a savepoint.
    /// `salt` makes the bytes different from those of every other version.
    pub fn wasm(self, salt: u64) -> Result<Vec<u8>> {
        let description = self.description().to_string().replace('"', "\\\"");
        let row_bytes = if self.has_note { 24 } else { 16 };
        let row = |at: u64| at | row_bytes << 32;
        let text = format!(
            r#"(module (@custom "reprise.describe" "{description}")
              (import "reprise1" "args_read" (func $args_read (param i32)))
              (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
              (import "reprise1" "savepoint" (func $savepoint (result i32)))
              (import "reprise1" "rollback_to" (func $rollback_to (param i32)))
              (memory (export "memory") 1 1)
              (data (i32.const 1024) "{salt}")
              (func (export "reprise_call_put") (param i32) (result i32)
                (local $before i32)
                (call $args_read (i32.const 64))
                (i64.store (i32.const 80) (i64.const {note}))
                (i64.store (i32.const 128) (i64.load (i32.const 64)))
                (i64.store (i32.const 136) (i64.const -1))
                (i64.store (i32.const 144) (i64.const -1))
                (local.set $before (call $savepoint))
                (drop (call $insert (i32.const 0) (i64.const {wrong})))
                (call $rollback_to (local.get $before))
                (drop (call $insert (i32.const 0) (i64.const {right})))
                (i32.const 0)))"#,
            note = NOTES[1],
            wrong = row(128),
            right = row(64),
        );
        wat::parse_str(text).context("the module's text")
    }

    fn description(self) -> Value {
        let (column, was) = names(self.is_column_renamed, ["amount", "total"]);
        let mut columns = vec![
            json!({"name": "id", "type": "i64"}),
            json!({"name": column, "was": was, "type": "i64"}),
        ];
        if self.has_note {
            columns.push(json!({"name": "note", "type": "i64", "default": "0700000000000000"}));
        }
        let indexes = match self.has_index {
            true => vec![json!({"name": "by_value", "columns": [column], "unique": false})],
            false => Vec::new(),
        };
        let (table, was) = names(self.is_table_renamed, ["items", "things"]);
        let mut tables = vec![json!({
            "name": table, "was": was, "columns": columns, "primary_key": ["id"], "indexes": indexes, "placement": {"by": "id"},
        })];
        if self.declares_second {
            tables.push(json!({
                "name": "extras", "columns": [{"name": "id", "type": "i64"}], "primary_key": ["id"], "placement": {"by": "id"},
            }));
        }
        let params = json!([{"name": "id", "type": "i64"}, {"name": "amount", "type": "i64"}]);
        let put = json!({"name": "put", "params": params, "partitioning": {"by": ["id"]}});
        json!({"abi": 1, "tables": tables, "procedures": [put]})
    }
}

/// The name in force, and the one before.
fn names(is_renamed: bool, [first, second]: [&'static str; 2]) -> (&'static str, &'static str) {
    match is_renamed {
        false => (first, second),
        true => (second, first),
    }
}
