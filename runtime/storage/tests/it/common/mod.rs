//! Schemas for the tests.
#![allow(dead_code)] // Each test binary uses its part.

pub mod model;
pub mod redo;

use reprise_abi::{ColumnSchema, ColumnSet, IndexKind, IndexSchema, ScalarType, TableSchema};
use reprise_storage::{Rid, Store, TableId, WriteError};

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
        indexes: indexes
            .iter()
            .map(|(name, columns, unique)| IndexSchema::new(*name, columns, *unique))
            .collect(),
        ..TableSchema::new(
            name,
            columns
                .iter()
                .map(|(name, ty, nullable)| ColumnSchema {
                    nullable: *nullable,
                    ..ColumnSchema::new(*name, *ty)
                })
                .collect(),
            primary_key,
        )
    }
}

/// The ways in which a table finds its rows; `None`: by a hidden number.
pub const KINDS: [Option<IndexKind>; 4] = [
    Some(IndexKind::Hash),
    Some(IndexKind::Ordered),
    Some(IndexKind::Dense),
    None,
];

/// A table that finds its rows so, and has the name of that way.
pub fn table_by(
    kind: Option<IndexKind>,
    columns: &[(&str, ScalarType, bool)],
    indexes: &[(&str, &[u16], bool)],
) -> TableSchema {
    let key: &[u16] = if kind.is_some() { &[0] } else { &[] };
    let name = kind.map_or("numbered".into(), |kind| format!("{kind:?}").to_lowercase());
    TableSchema {
        primary_kind: kind.unwrap_or(IndexKind::Ordered),
        ..table(&name, columns, key, indexes)
    }
}

/// A table whose rows are found by a name's hash.
pub fn hashed(indexes: &[(&str, &[u16], bool)]) -> TableSchema {
    let columns = [
        ("name", ScalarType::Text, false),
        ("rank", ScalarType::I16, true),
        ("total", ScalarType::I64, false),
        ("pad", ScalarType::Bytes, true),
    ];
    TableSchema {
        primary_kind: IndexKind::Hash,
        ..table("hashed", &columns, &[0], indexes)
    }
}

pub fn keyless() -> TableSchema {
    let columns = [
        ("kind", ScalarType::U8, false),
        ("data", ScalarType::Bytes, false),
        ("n", ScalarType::U64, false),
    ];
    let indexes: [(&str, &[u16], bool); 2] = [("by_kind", &[0], false), ("by_data", &[1], true)];
    table("keyless", &columns, &[], &indexes)
}

/// Overwrites these columns of a row with those of another row.
pub fn patch_from(store: &mut Store, table: TableId, rid: Rid, set: ColumnSet, row: &[u8]) -> Result<(), WriteError> {
    let layout = store.layout(table);
    let mut values = vec![0; layout.columns_bytes(set, row)];
    layout.read_columns(set, row, &mut values);
    store.patch(table, rid, set, &values)
}

/// Columns of a table of fixed numbers and a name.
pub const PLAIN: [(&str, ScalarType, bool); 4] = [
    ("id", ScalarType::I32, false),
    ("total", ScalarType::I8, false),
    ("name", ScalarType::Text, true),
    ("tag", ScalarType::U8, false),
];
