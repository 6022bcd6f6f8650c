//! Tables and their rows.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Json, U64, types::TypeInfo};

/// The tables that are stored.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TableList {
    /// In the order of their creation.
    pub tables: Vec<TableInfo>,
    /// Cursor of the next page; null on the last one. Opaque.
    pub next_cursor: Option<String>,
}

/// A table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TableInfo {
    /// Its name.
    pub name: String,
    /// In the order of their declaration.
    pub columns: Vec<ColumnInfo>,
    /// Names of the columns of the primary key, in its order; empty for a table without one.
    pub primary_key: Vec<String>,
    /// All indexes; the first is the primary key, named `primary`, if there is one.
    /// Documentation from a module that declares it; may be empty.
    #[serde(default)]
    pub docs: String,
    /// The primary key first.
    pub indexes: Vec<IndexInfo>,
    /// Placement of its rows.
    pub placement: Placement,
    /// The column whose value names a row's partition.
    pub partition_column: Option<String>,
    /// Modules in service that declare the table.
    pub modules: Vec<String>,
    /// Rows on all partitions; the copies of a replicated table count once.
    pub rows: u64,
    /// Bytes of memory: rows and indexes, all copies.
    pub bytes: u64,
    /// Bytes that its rows take in memory.
    pub row_bytes: u64,
    /// Bytes that its indexes take in memory.
    pub index_bytes: u64,
}

/// A column of a table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ColumnInfo {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: TypeInfo,
    /// Whether it may hold null.
    pub nullable: bool,
    /// Value of rows written before the column existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub default: Option<Json>,
}

/// An index of a table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct IndexInfo {
    /// Its name; `primary` of the primary key.
    pub name: String,
    /// Names of the columns, in the order of the key.
    pub columns: Vec<String>,
    /// Whether no two rows may have the same key.
    pub unique: bool,
    /// True where rows can be read in the order of the key; false for a hash index.
    pub ordered: bool,
}

/// On which partitions the rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Each row on the partition that the value of the partition column names.
    ByColumn,
    /// Every row on every partition.
    Replicated,
    /// Each partition keeps rows of its own.
    Local,
}

/// Committed rows of one table: one consistent snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RowsPage {
    /// Objects with a member for each column.
    #[schema(value_type = Vec<Object>)]
    pub rows: Vec<Json>,
    /// Cursor of the next page; null on the last one. Opaque.
    pub next_cursor: Option<String>,
    /// Position of the newest transaction that the snapshot holds.
    pub lsn: U64,
}

/// Rows of a table, counted and summed group by group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct GroupsPage {
    /// In the order of the index.
    pub groups: Vec<RowGroup>,
    /// The last group may go on with the first of the next page: then count and sums of both are to be added.
    pub continues: bool,
    /// Cursor of the next page; null on the last one. Opaque.
    pub next_cursor: Option<String>,
    /// Position of the newest transaction that was seen.
    pub lsn: U64,
}

/// The rows of one group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RowGroup {
    /// The values of the columns that make the group, by name.
    #[schema(value_type = Object)]
    pub key: Json,
    /// How many there are.
    pub count: U64,
    /// By column: a text of digits for whole numbers and decimals, a number for floats. Null adds nothing.
    #[schema(value_type = Object)]
    pub sums: serde_json::Map<String, serde_json::Value>,
}
