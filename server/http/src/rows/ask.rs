//! The translation of a query into a request to the engine.

use std::sync::Arc;

use axum::{
    extract::{FromRequestParts, Query},
    http::request::Parts,
};
use reprise_abi::{ColumnSchema, IndexKind, RowLayout, ScalarType, TableSchema};
use reprise_api::RowsQuery;
use reprise_codec::{count_prefix, encode_column, encode_prefix, first_names};
use reprise_router::{Router, RowFilter, RowsError, RowsRequest, StoredPage};

use super::cursor::{CursorScope, unpack_cursor, walk_of};
use crate::{refusal::Refusal, schema::PRIMARY, tables::find_table};

/// Conditions on one request.
const WHERE_MAX: usize = 16;

/// The query's members, each as it was written.
#[derive(Default)]
pub struct RowsParameters {
    pub rows: RowsQuery,
    /// The number of leading columns that make a group; for groups alone.
    pub by: Option<u32>,
    pub sum: Option<String>,
}

/// A query may have `where` more than once.
impl<S: Send + Sync> FromRequestParts<S> for RowsParameters {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Query(pairs) = Query::<Vec<(String, String)>>::from_request_parts(parts, state)
            .await
            .map_err(|error| Refusal::malformed(format!("the server can't read the query: {}", error.body_text())))?;
        let is_of_groups = parts.uri.path().ends_with("/groups");
        let mut asked = Self::default();
        for (name, value) in pairs {
            asked.take(&name, value, is_of_groups)?;
        }
        Ok(asked)
    }
}

impl RowsParameters {
    fn take(&mut self, name: &str, value: String, is_of_groups: bool) -> Result<(), Refusal> {
        let place = match name {
            "limit" => return set(&mut self.rows.limit, name, number(name, &value)?),
            "by" if is_of_groups => return set(&mut self.by, name, number(name, &value)?),
            "reverse" if !is_of_groups => {
                self.rows.reverse = match &*value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(Refusal::malformed("reverse must be true or false")),
                };
                return Ok(());
            }
            "where" => {
                self.rows.conditions.push(value);
                return match self.rows.conditions.len() <= WHERE_MAX {
                    true => Ok(()),
                    false => Err(Refusal::malformed(format!(
                        "a query may have at most {WHERE_MAX} conditions"
                    ))),
                };
            }
            "cursor" => &mut self.rows.cursor,
            "index" => &mut self.rows.index,
            "prefix" => &mut self.rows.prefix,
            "from" => &mut self.rows.from,
            "to" => &mut self.rows.to,
            "columns" if !is_of_groups => &mut self.rows.columns,
            "sum" if is_of_groups => &mut self.sum,
            _ => {
                let known = match is_of_groups {
                    true => "limit, cursor, index, by, sum, prefix, from, to and where",
                    false => "limit, cursor, index, prefix, from, to, reverse, where and columns",
                };
                return Err(Refusal::malformed(format!(
                    "the query has no parameter {name:?}; it has {known}"
                )));
            }
        };
        // An empty one stands for none, as a form sends it.
        match value.is_empty() {
            true => Ok(()),
            false => set(place, name, value),
        }
    }

    /// The request for a page of at most `limit` rows.
    pub fn request(&self, id: u16, table: &Arc<TableSchema>, limit: u32) -> Result<RowsRequest, Refusal> {
        let (index, columns) = find_index(table, self.rows.index.as_deref())?;
        let fits = |name: &str, text: &Option<String>, columns: &[&ColumnSchema]| match text {
            None => Ok(Vec::new()),
            Some(text) => encode_prefix(columns, text)
                .map_err(|error| Refusal::malformed(format!("{name} does not fit the index: {error}"))),
        };
        let behind = self.rows.prefix.as_deref().map_or(0, count_prefix).min(columns.len());
        if behind > 0 && behind < columns.len() && !has_order(table, index) {
            return Err(Refusal::malformed(format!(
                "the primary key of {} has no order: give all {} values of it as the prefix, or use where or another index",
                table.name,
                columns.len()
            )));
        }
        Ok(RowsRequest {
            table: id,
            schema: Some(table.clone()),
            index,
            limit,
            cursor: self
                .rows
                .cursor
                .as_deref()
                .map(|text| cursor_of(walk_of(id, table, index), text))
                .transpose()?,
            prefix: fits("prefix", &self.rows.prefix, &columns)?,
            from: fits("from", &self.rows.from, &columns[behind..])?,
            to: fits("to", &self.rows.to, &columns[behind..])?,
            reverse: self.rows.reverse,
            filter: self.filter(table)?,
        })
    }

    /// Reads the page of a request. If a deployment changes the table while the read waits, encodes the query once more by the changed table.
    /// Returns the request that was read, too. `full_name` names the table with its module, as grants do.
    pub fn read_page(
        &self,
        router: &Router,
        full_name: &str,
        request: RowsRequest,
    ) -> Result<(RowsRequest, StoredPage), Refusal> {
        let limit = request.limit;
        match router.table_rows(request.clone()) {
            Err(RowsError::Changed) => {}
            read => return Ok((request, read?)),
        }
        let deployed = router.deployed();
        let (id, _) = find_table(&deployed, full_name)?;
        let request = self.request(id, &deployed.tables[id as usize], limit)?;
        let page = router.table_rows(request.clone())?;
        Ok((request, page))
    }

    fn filter(&self, table: &TableSchema) -> Result<Option<RowFilter>, Refusal> {
        if self.rows.conditions.is_empty() {
            return Ok(None);
        }
        let parsed: Result<Vec<_>, _> = self
            .rows
            .conditions
            .iter()
            .map(|text| Condition::read(table, text))
            .collect();
        let (conditions, layout) = (parsed?, RowLayout::of_table(table));
        Ok(Some(RowFilter {
            passes: Arc::new(move |row| {
                let mut key = Vec::with_capacity(32);
                conditions
                    .iter()
                    .all(|condition| condition.passes(&layout, row, &mut key))
            }),
        }))
    }

    /// The columns that are wanted, all unless some are named.
    pub fn columns_of(&self, table: &TableSchema) -> Result<Vec<u16>, Refusal> {
        match &self.rows.columns {
            None => Ok((0..table.columns.len() as u16).collect()),
            Some(names) => find_columns(table, "columns", names),
        }
    }
}

/// Names, separated by commas, none of them twice: so no answer has more of a row than the row.
pub fn find_columns(table: &TableSchema, member: &str, names: &str) -> Result<Vec<u16>, Refusal> {
    let mut found = Vec::new();
    for name in names.split(',') {
        let at = find_column(table, name.trim())?;
        if found.contains(&at) {
            return Err(Refusal::malformed(format!(
                "{member} names the column {} more than once",
                table.columns[at as usize].name
            )));
        }
        found.push(at);
    }
    Ok(found)
}

fn set<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), Refusal> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::malformed(format!("the query has {name} more than once"))),
    }
}

fn number(name: &str, text: &str) -> Result<u32, Refusal> {
    text.parse()
        .map_err(|_| Refusal::malformed(format!("{name} must be a number, not {text:?}")))
}

pub fn find_column(table: &TableSchema, name: &str) -> Result<u16, Refusal> {
    match table.columns.iter().position(|column| column.name == name) {
        Some(at) => Ok(at as u16),
        None => {
            let names = first_names(table.columns.iter().map(|column| column.name.as_str()));
            Err(Refusal::malformed(format!(
                "table {} has no column {name:?}; it has {names}",
                table.name
            )))
        }
    }
}

pub fn find_index<'t>(table: &'t TableSchema, name: Option<&str>) -> Result<(u16, Vec<&'t ColumnSchema>), Refusal> {
    let columns = |positions: &[u16]| positions.iter().map(|at| &table.columns[*at as usize]).collect();
    match name {
        None => Ok((0, columns(&table.primary_key))),
        Some(PRIMARY) if !table.primary_key.is_empty() => Ok((0, columns(&table.primary_key))),
        Some(name) => match table.indexes.iter().position(|index| index.name == name) {
            Some(at) => Ok((at as u16 + 1, columns(&table.indexes[at].columns))),
            None => {
                let names: Vec<_> = table.indexes.iter().map(|index| index.name.as_str()).collect();
                Err(Refusal::not_found(format!(
                    "table {} has no index {name:?}; it has {PRIMARY} {}",
                    table.name,
                    names.join(" ")
                )))
            }
        },
    }
}

/// Whether an index has an order. The primary key of a hash table has none, so the rows with a part of it lie anywhere.
pub fn has_order(table: &TableSchema, index: u16) -> bool {
    index > 0 || table.primary_kind == IndexKind::Ordered
}

/// `column:op:value`: of a value's bytes as in a key, which are in the order of the values.
struct Condition {
    column: u16,
    nullable: bool,
    compare: Compare,
    value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Compare {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
    Starts,
}

const OPERATORS: [(&str, Compare); 7] = [
    ("eq", Compare::Equal),
    ("ne", Compare::Unequal),
    ("lt", Compare::Less),
    ("le", Compare::AtMost),
    ("gt", Compare::Greater),
    ("ge", Compare::AtLeast),
    ("starts", Compare::Starts),
];

impl Condition {
    fn read(table: &TableSchema, text: &str) -> Result<Self, Refusal> {
        let wrong = || {
            let names = OPERATORS.map(|(name, _)| name).join(", ");
            Refusal::malformed(format!(
                "write where as column:op:value, with an op of {names}, not {text:?}"
            ))
        };
        let (name, rest) = text.split_once(':').ok_or_else(wrong)?;
        let (operator, value) = rest.split_once(':').ok_or_else(wrong)?;
        let (_, compare) = OPERATORS
            .into_iter()
            .find(|(known, _)| *known == operator)
            .ok_or_else(wrong)?;
        let at = find_column(table, name)?;
        let column = &table.columns[at as usize];
        if compare == Compare::Starts && column.ty != ScalarType::Text {
            return Err(Refusal::malformed(format!(
                "starts works on text only, and the column {name} is not text"
            )));
        }
        if column.nullable && value == "null" && !matches!(compare, Compare::Equal | Compare::Unequal) {
            return Err(Refusal::malformed(format!(
                "only eq and ne work on null, which has no order: {text:?}"
            )));
        }
        let mut value = encode_column(column, value)
            .map_err(|error| Refusal::malformed(format!("where does not fit the table: {error}")))?;
        if compare == Compare::Starts {
            // The mark of its end is left out.
            value.truncate(value.len().saturating_sub(2));
        }
        Ok(Self {
            column: at,
            nullable: column.nullable,
            compare,
            value,
        })
    }

    fn passes(&self, layout: &RowLayout, row: &[u8], key: &mut Vec<u8>) -> bool {
        key.clear();
        layout.push_key(row, &[self.column], key);
        // Null is neither before nor behind a value.
        let is_null = self.nullable && key.first() == Some(&0);
        match self.compare {
            Compare::Equal => *key == self.value,
            Compare::Unequal => *key != self.value,
            _ if is_null => false,
            Compare::Less => *key < self.value,
            Compare::AtMost => *key <= self.value,
            Compare::Greater => *key > self.value,
            Compare::AtLeast => *key >= self.value,
            Compare::Starts => key.starts_with(&self.value),
        }
    }
}

fn cursor_of(walk: CursorScope, text: &str) -> Result<Vec<u8>, Refusal> {
    unpack_cursor(walk, text).ok_or_else(|| {
        Refusal::malformed(
            "cursor does not belong to this table and index as they are. Take next_cursor of the page before, or begin again if a deployment \
             changed them",
        )
    })
}
