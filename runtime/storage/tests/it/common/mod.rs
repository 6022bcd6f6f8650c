//! Schemas for the tests.
#![allow(dead_code)] // Each test binary uses its part.

pub mod model;
pub mod redo;

use reprise_abi::{ColumnSchema, IndexKind, IndexSchema, ScalarType, TablePlacement, TableSchema};
use reprise_storage::Store;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % below
    }
}

pub fn store_of(schemas: Vec<TableSchema>) -> Store {
    let mut store = Store::new();
    for schema in schemas {
        store.create_table(schema).expect("a table");
    }
    store
}

/// A table whose columns are `(name, type, nullable)` and whose indexes are `(name, columns, unique)`.
pub fn table(
    name: &str,
    columns: &[(&str, ScalarType, bool)],
    primary_key: &[u16],
    indexes: &[(&str, &[u16], bool)],
) -> TableSchema {
    TableSchema {
        owner: String::new(),
        shared: false,
        was: None,
        name: name.into(),
        columns: columns
            .iter()
            .map(|(name, ty, nullable)| ColumnSchema {
                variants: Vec::new(),
                was: None,
                name: (*name).into(),
                ty: *ty,
                nullable: *nullable,
                default: None,
            })
            .collect(),
        primary_key: primary_key.to_vec(),
        primary_kind: IndexKind::Ordered,
        indexes: indexes
            .iter()
            .map(|(name, columns, unique)| IndexSchema {
                name: (*name).into(),
                columns: columns.to_vec(),
                unique: *unique,
            })
            .collect(),
        placement: TablePlacement::Local,
    }
}
