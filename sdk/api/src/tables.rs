//! Tables and their rows.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Json, U64, types::TypeInfo};

/// Stored tables.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TableList {
    /// Tables in the order of their creation.
    pub tables: Vec<TableInfo>,
    /// Opaque cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
}

/// A table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TableInfo {
    /// Name in the declaration.
    pub name: String,
    /// List in the order of declaration.
    pub columns: Vec<ColumnInfo>,
    /// Names of the primary key's columns, in order. Empty without a primary key.
    pub primary_key: Vec<String>,
    /// Documentation from a module that declares the table. May be empty.
    #[serde(default)]
    pub docs: String,
    /// All indexes. The first is the primary key, named `primary`, if the table has one.
    pub indexes: Vec<IndexInfo>,
    /// Placement of the rows on partitions.
    pub placement: Placement,
    /// Column whose value decides on which partition a row is.
    pub partition_column: Option<String>,
    /// Modules in service that declare the table.
    pub modules: Vec<String>,
    /// Number of rows on all partitions. Rows of a replicated table count once.
    pub rows: u64,
    /// Bytes of rows and indexes in memory, over all copies.
    pub bytes: u64,
    /// Bytes of rows in memory.
    pub row_bytes: u64,
    /// Bytes of indexes in memory.
    pub index_bytes: u64,
}

/// A column of a table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ColumnInfo {
    /// Name in the declaration.
    pub name: String,
    /// Type of the values.
    #[serde(rename = "type")]
    pub ty: TypeInfo,
    /// Whether the column may have null.
    pub nullable: bool,
    /// Value of the column in rows written before the column existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub default: Option<Json>,
}

/// An index of a table.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct IndexInfo {
    /// Name of the index; `primary` for the primary key.
    pub name: String,
    /// Names of the columns in the order of the key.
    pub columns: Vec<String>,
    /// Whether two rows can't have the same key.
    pub unique: bool,
    /// Whether you can read rows in the order of the key. False for a hash index.
    pub ordered: bool,
}

/// Placement of rows on partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// Each row is on the partition that the value of its partition column names.
    ByColumn,
    /// Every row is on every partition.
    Replicated,
    /// Each partition has its own rows.
    Local,
}

/// Committed rows of one table: one consistent snapshot.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RowsPage {
    /// Rows, as objects with a member for each column.
    #[schema(value_type = Vec<Object>)]
    pub rows: Vec<Json>,
    /// Opaque cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
    /// LSN of the newest transaction in the snapshot.
    pub lsn: U64,
}

/// Rows of a table, counted and summed group by group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct GroupsPage {
    /// Groups in the order of the index.
    pub groups: Vec<RowGroup>,
    /// True if the first group of the next page may continue the last group. If so, add up their counts and sums.
    pub continues: bool,
    /// Opaque cursor of the next page. Null on the last page.
    pub next_cursor: Option<String>,
    /// LSN of the newest transaction that the page includes.
    pub lsn: U64,
}

/// The rows of one group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RowGroup {
    /// Values of the group's columns, by name.
    #[schema(value_type = Object)]
    pub key: Json,
    /// Number of rows in the group.
    pub count: U64,
    /// Sums by column: a string of digits for integers and decimals, a number for floats. Null adds nothing.
    #[schema(value_type = Object)]
    pub sums: serde_json::Map<String, serde_json::Value>,
}

/// Which rows of a table, and how.
#[derive(Clone, Debug, Default)]
pub struct RowsQuery {
    /// Rows of a page at most.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Name of the index that gives the order; the primary key unless given.
    pub index: Option<String>,
    /// Leading values of the index's columns: a JSON array, or a comma list.
    pub prefix: Option<String>,
    /// Values of the columns behind the prefix, from which on and up to which rows are wanted.
    pub from: Option<String>,
    /// Values of the columns behind the prefix up to which rows are shown, themselves included.
    pub to: Option<String>,
    /// Whether the last row comes first.
    pub reverse: bool,
    /// `column:op:value`, all of them.
    pub conditions: Vec<String>,
    /// Names, separated by commas.
    pub columns: Option<String>,
}
