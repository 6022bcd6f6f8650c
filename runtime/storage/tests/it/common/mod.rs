//! Schemas for the tests.
#![allow(dead_code)] // Each test binary uses its part.

pub mod model;
pub mod redo;

use reprise_abi::{ColumnSchema, IndexKind, IndexSchema, Placement, ScalarType, TableSchema};

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
        placement: Placement::Local,
    }
}
