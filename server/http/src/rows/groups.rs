//! Counts and sums of a table's rows, group by group of an index. The server reads pages of rows one after the other, so it holds no
//! partition longer than for one page.

use std::time::{Duration, Instant};

use axum::{Json, extract::State};
use reprise_abi::{Field, RowLayout, ScalarType, TableSchema};
use reprise_api::{GroupsPage, RowGroup, U64, integers_are_numbers};
use reprise_codec::{columns_json, decimal};
use reprise_router::{Router, RowsRequest, StoredPage};
use serde_json::{Map, Number, Value};

use super::{
    ask::{RowsParameters, find_column, find_columns, find_index, has_order},
    cursor::{pack_cursor, walk_of},
};
use crate::{front::PathName, permits::Operation, refusal::Refusal, state::AppState, tables::find_table};

const GROUPS_LIMIT_DEFAULT: u32 = 100;
const GROUPS_LIMIT_MAX: u32 = 1000;
/// Rows of one page of the engine.
const PAGE_ROWS: u32 = 1000;
/// Bytes of groups after which a page ends, too.
const GROUPS_BYTES_MAX: usize = 4 << 20;
/// Time after which a page of groups ends, wherever it is.
const GROUPS_TIME_MAX: Duration = Duration::from_secs(1);

/// Counts and sums rows
///
/// Groups the rows by the leading `by` columns of an index, in the order of the index. With `by=0` all rows are one group. A page
/// ends after `limit` groups, or after one second. If it ends inside a group, `continues` is true, and the next page has the rest of
/// the group: add up its count and sums. The server reads rows page by page, so a change during the read may be included or not.
#[utoipa::path(
    get,
    path = "/v1/tables/{table}/groups",
    tag = "Tables",
    params(
        ("table" = String, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "Number of groups after which the page ends. It may have some hundred more. Default: 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before. Send the other parameters unchanged"),
        ("index" = Option<String>, Query, description = "Name of the index. Default: `primary`"),
        ("by" = Option<u32>, Query, description = "Number of the index's leading columns that make a group. Default: 1"),
        ("sum" = Option<String>, Query, description = "Numeric columns to add up, separated by commas"),
        ("prefix" = Option<String>, Query, description = "Values of the index's leading columns that a row must have, as a JSON array or separated by commas"),
        ("from" = Option<String>, Query, description = "First row to count: values of the columns after the prefix, inclusive"),
        ("to" = Option<String>, Query, description = "Last row to count: values of the columns after the prefix, inclusive"),
        ("where" = Option<String>, Query, description = "Condition `column:op:value`, as for rows. You may give several"),
        ("Reprise-Min-Lsn" = Option<String>, Header, pattern = "^[0-9]{1,19}$", description = "LSN that the read must include. The server waits until its data includes it"),
        ("Reprise-Max-Lag-Ms" = Option<u64>, Header, description = "On a standby: largest lag in milliseconds. The server waits until its lag is at most this"),
        ("Reprise-Max-Wait-Ms" = Option<u64>, Header, description = "Longest wait in milliseconds. Default: 1000"),
    ),
    responses(
        (status = 200, description = "A page", body = GroupsPage),
    )
)]
pub async fn list_groups(
    State(state): State<AppState>,
    PathName(name): PathName,
    asked: RowsParameters,
) -> Result<Json<GroupsPage>, Refusal> {
    let deployed = state.router.deployed();
    let (id, _) = find_table(&deployed, &name)?;
    let table = &deployed.tables[id as usize];
    let limit = asked.rows.limit.unwrap_or(GROUPS_LIMIT_DEFAULT);
    if !(1..=GROUPS_LIMIT_MAX).contains(&limit) {
        return Err(Refusal::malformed(format!(
            "limit must be a number from 1 to {GROUPS_LIMIT_MAX}"
        )));
    }
    let request = asked.request(id, table, PAGE_ROWS)?;
    GroupColumns::of(&asked, table)?;
    let full_name = table.full_name();
    let groups = state
        .blocking(Operation::ReadRows, move |parts| {
            let until = Instant::now() + GROUPS_TIME_MAX;
            let (request, page) = asked.read_page(&parts.router, &full_name, request)?;
            // A deployment may have changed the table, and the positions of its columns, while the first page waited.
            let grouping = GroupColumns::of(&asked, &page.schema)?;
            grouping.read(&parts.router, request, page, limit as usize, until)
        })
        .await??;
    Ok(Json(groups))
}

/// The columns that make a group, and the columns that are summed.
struct GroupColumns {
    by: Vec<u16>,
    sums: Vec<u16>,
    names: Vec<String>,
}

/// A group on its way.
struct GroupTotals {
    key: Vec<u8>,
    /// The group's key in the answer's form: no other part of a row is kept.
    key_json: reprise_api::Json,
    count: u64,
    sums: Vec<Sum>,
}

/// A sum of whole numbers, of decimals by their smallest unit, or of floats.
#[derive(Clone, Copy)]
enum Sum {
    Whole(i128),
    Float(f64),
}

impl GroupColumns {
    fn of(asked: &RowsParameters, table: &TableSchema) -> Result<Self, Refusal> {
        let (index, columns) = find_index(table, asked.rows.index.as_deref())?;
        let by = asked.by.unwrap_or(1) as usize;
        if by > columns.len() {
            return Err(Refusal::malformed(format!(
                "by must be from 0 to {}, the number of columns of the index",
                columns.len()
            )));
        }
        if by > 0 && by < columns.len() && !has_order(table, index) {
            return Err(Refusal::malformed(format!(
                "the primary key of {} has no order, so its rows do not come in groups: name another index, or group by 0 or all {} columns",
                table.name,
                columns.len()
            )));
        }
        let by: Result<_, _> = columns[..by]
            .iter()
            .map(|column| find_column(table, &column.name))
            .collect();
        let sums = match &asked.sum {
            None => Vec::new(),
            Some(names) => find_columns(table, "sum", names)?,
        };
        let names: Vec<String> = sums.iter().map(|at| table.columns[*at as usize].name.clone()).collect();
        let is_number = |at: &u16| {
            !matches!(
                table.columns[*at as usize].ty,
                ScalarType::Bool | ScalarType::Text | ScalarType::Bytes | ScalarType::Timestamp | ScalarType::Uuid
            )
        };
        match sums.iter().position(|at| !is_number(at)) {
            None => Ok(Self { by: by?, sums, names }),
            Some(at) => Err(Refusal::malformed(format!(
                "the column {} has no numbers to add up",
                names[at]
            ))),
        }
    }

    /// Reads on from the first page. All further pages have its request's schema, by which the columns were found.
    fn read(
        &self,
        router: &Router,
        mut request: RowsRequest,
        mut page: StoredPage,
        limit: usize,
        until: Instant,
    ) -> Result<GroupsPage, Refusal> {
        let (mut groups, mut bytes): (Vec<GroupTotals>, usize) = (Vec::new(), 0);
        loop {
            let (schema, layout) = (page.schema.clone(), RowLayout::of_table(&page.schema));
            match self.rows_within(&layout, &page.rows, &groups, limit) {
                None => {}
                Some(0) => return Ok(self.answer(groups, false, &schema, (&request, page.lsn.0))),
                Some(rows) => {
                    // A page has only a position for its end, and none within it.
                    request.limit = rows as u32;
                    page = router.table_rows(request.clone())?;
                    continue;
                }
            }
            request.limit = PAGE_ROWS;
            for row in page.rows {
                bytes += self.add((&schema, &layout), row, &mut groups)?;
            }
            request.cursor = page.next_cursor;
            // Pages end between rows, not between groups: the last group may continue, also where this page passed over all of its rows.
            let is_over = bytes >= GROUPS_BYTES_MAX || Instant::now() >= until;
            if request.cursor.is_none() || is_over {
                let continues = request.cursor.is_some() && !groups.is_empty();
                return Ok(self.answer(groups, continues, &schema, (&request, page.lsn.0)));
            }
            page = router.table_rows(request.clone())?;
        }
    }

    /// How many rows of a page come before the one that begins a group too many; None: no row does.
    fn rows_within(&self, layout: &RowLayout, rows: &[Vec<u8>], groups: &[GroupTotals], limit: usize) -> Option<usize> {
        let (mut count, mut last) = (groups.len(), groups.last().map(|group| group.key.clone()));
        rows.iter().position(|row| {
            let mut key = Vec::new();
            layout.push_key(row, &self.by, &mut key);
            if last.as_ref() != Some(&key) {
                count += 1;
                last = Some(key);
            }
            count > limit
        })
    }

    /// Bytes that are kept of it.
    fn add(
        &self,
        (schema, layout): (&TableSchema, &RowLayout),
        row: Vec<u8>,
        groups: &mut Vec<GroupTotals>,
    ) -> Result<usize, Refusal> {
        let strange = || Refusal::internal("a stored row is not of its table's layout");
        let (mut bytes, mut key) = (0, Vec::new());
        layout.push_key(&row, &self.by, &mut key);
        if groups.last().is_none_or(|group| group.key != key) {
            let zero = |at: &u16| match layout.field(&row, *at) {
                Field::F64(_) => Sum::Float(0.0),
                _ => Sum::Whole(0),
            };
            let sums: Vec<Sum> = self.sums.iter().map(zero).collect();
            let key_json = columns_json(schema, &self.by, layout, &row).ok_or_else(strange)?;
            bytes = size_of::<GroupTotals>() + key.len() + key_json.get().len() + size_of_val(&*sums);
            groups.push(GroupTotals {
                key,
                key_json,
                count: 0,
                sums,
            });
        }
        let Some(group) = groups.last_mut() else {
            return Ok(bytes);
        };
        group.count += 1;
        for (sum, at) in group.sums.iter_mut().zip(&self.sums) {
            *sum = sum
                .plus(layout.field(&row, *at))
                .ok_or_else(|| Refusal::malformed("a sum has more than 128 bits"))?;
        }
        Ok(bytes)
    }

    fn answer(
        &self,
        groups: Vec<GroupTotals>,
        continues: bool,
        schema: &TableSchema,
        (request, lsn): (&RowsRequest, u64),
    ) -> GroupsPage {
        let mut row_groups = Vec::with_capacity(groups.len());
        for group in groups {
            let sums = self.names.iter().zip(&self.sums).zip(&group.sums);
            let sums: Map<String, Value> = sums
                .map(|((name, at), sum)| (name.clone(), sum.json(schema.columns[*at as usize].ty)))
                .collect();
            row_groups.push(RowGroup {
                key: group.key_json,
                count: U64(group.count),
                sums,
            });
        }
        GroupsPage {
            groups: row_groups,
            continues,
            next_cursor: request
                .cursor
                .as_deref()
                .map(|cursor| pack_cursor(walk_of(request.table, schema, request.index), cursor)),
            lsn: U64(lsn),
        }
    }
}

impl Sum {
    /// Adds a field. None if the sum does not fit. Null adds nothing.
    fn plus(self, field: Field<'_>) -> Option<Self> {
        Some(match (self, field) {
            (Self::Whole(sum), Field::Int(value)) => Self::Whole(sum.checked_add(value.into())?),
            (Self::Whole(sum), Field::Uint(value)) => Self::Whole(sum.checked_add(value.into())?),
            (Self::Whole(sum), Field::Decimal(value)) => Self::Whole(sum.checked_add(value)?),
            (Self::Float(sum), Field::F64(value)) => Self::Float(sum + value),
            (Self::Whole(0), Field::F64(value)) => Self::Float(value),
            (sum, _) => sum,
        })
    }

    /// Whole numbers and decimals as texts, with all their digits; whole ones of 64 bits as numbers for readers that have such.
    fn json(self, ty: ScalarType) -> Value {
        match (self, ty) {
            (Self::Float(sum), _) => Number::from_f64(sum).map_or(Value::String(sum.to_string()), Value::Number),
            (Self::Whole(_), ScalarType::F64) => Value::from(0.0),
            (Self::Whole(sum), ScalarType::Decimal { scale }) => Value::String(decimal(sum, scale)),
            (Self::Whole(sum), _) => match Number::from_i128(sum).filter(|_| integers_are_numbers()) {
                Some(number) => Value::Number(number),
                None => Value::String(sum.to_string()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use reprise_api::with_integers;

    use super::*;

    #[test]
    fn sums_keep_all_digits() {
        assert_eq!(decimal(-5, 2), "-0.05");
        assert_eq!(decimal(123_456, 4), "12.3456");
        assert_eq!(decimal(7, 0), "7");
        let sum = Sum::Whole(i128::from(i64::MAX))
            .plus(Field::Int(i64::MAX))
            .expect("room");
        assert_eq!(sum.json(ScalarType::I64), Value::from("18446744073709551614"));
        let as_number = |sum: Sum| with_integers(true, || sum.json(ScalarType::I64));
        assert_eq!(as_number(Sum::Whole(-7)), Value::from(-7));
        assert_eq!(as_number(Sum::Whole(u64::MAX.into())), Value::from(u64::MAX));
        assert_eq!(as_number(sum), Value::from(u64::MAX - 1));
        let beyond = Sum::Whole(i128::from(u64::MAX) + 1);
        assert_eq!(as_number(beyond), Value::from("18446744073709551616"));
        assert!(Sum::Whole(i128::MAX).plus(Field::Int(1)).is_none());
    }
}
