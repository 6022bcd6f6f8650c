//! Rows as objects of JSON.

use reprise_abi::{RowLayout, TableSchema};
use reprise_api::Json;
use serde_json::value::RawValue;

use crate::encode::{write_columns, write_row};

/// Bytes that one of this crate's writers of JSON made.
pub fn raw_json(bytes: Vec<u8>) -> Option<Json> {
    RawValue::from_string(String::from_utf8(bytes).ok()?).ok()
}

/// These columns of a row as JSON, in this order.
pub fn columns_json(table: &TableSchema, wanted: &[u16], layout: &RowLayout, row: &[u8]) -> Option<Json> {
    layout.validate(row).ok()?;
    let mut out = Vec::with_capacity(row.len());
    write_columns(&table.columns, wanted, layout, row, &mut out);
    raw_json(out)
}

/// A valid stored row as an object; None for bytes that are no row of the table.
pub fn row_json(table: &TableSchema, layout: &RowLayout, row: &[u8]) -> Option<Json> {
    layout.validate(row).ok()?;
    let mut out = Vec::with_capacity(row.len() * 2);
    write_row(&table.columns, layout, row, &mut out);
    raw_json(out)
}
