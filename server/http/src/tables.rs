//! `/v1/tables`: what is stored.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderName, StatusCode},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reprise_abi::{ColumnSchema, RowLayout, TableSchema};
use reprise_api::{Problem, RowsPage, TableInfo, TableList, U64, headers};
use reprise_router::{Deployed, RowsRequest, TableId};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use utoipa::IntoParams;

use crate::{
    calls::wait_for_min_lsn,
    codec::encode_prefix,
    front::{Name, Params},
    limits::{ROWS_LIMIT_MAX, STATS_WAIT_MAX},
    refusal::Refusal,
    schema::{PRIMARY, row_json, table_info},
    places::Operation,
    state::AppState,
};

const ROWS_LIMIT_DEFAULT: u32 = 100;

/// Lists the tables
#[utoipa::path(
    get,
    path = "/v1/tables",
    tag = "Tables",
    responses(
        (status = 200, description = "In the order of their creation", body = TableList),
        (status = 503, description = "recovering", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn list_tables(State(state): State<AppState>) -> Result<Json<TableList>, Refusal> {
    let stats = state.blocking(Operation::ReadStats, |parts| parts.router.table_stats(STATS_WAIT_MAX)).await??;
    let deployed = state.router.deployed();
    let info = |(id, table): (TableId, &std::sync::Arc<TableSchema>)| {
        let stats = stats.get(id.0 as usize).copied().unwrap_or_default();
        table_info(&deployed, id, table, stats)
    };
    let tables = deployed.tables().map(info).collect();
    Ok(Json(TableList { tables }))
}

/// Describes a table
#[utoipa::path(
    get,
    path = "/v1/tables/{table}",
    tag = "Tables",
    params(("table" = String, Path)),
    responses(
        (status = 200, description = "Columns, keys, indexes, size", body = TableInfo),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "recovering", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn show_table(
    State(state): State<AppState>,
    Name(name): Name,
) -> Result<Json<TableInfo>, Refusal> {
    let deployed = state.router.deployed();
    let (id, table) = find_table(&deployed, &name)?;
    let stats = state.blocking(Operation::ReadStats, |parts| parts.router.table_stats(STATS_WAIT_MAX)).await??;
    let stats = stats.get(id as usize).copied().unwrap_or_default();
    Ok(Json(table_info(&deployed, TableId(id), table, stats)))
}

/// Drops a table
///
/// With its rows. A table that a module in service declares is refused.
#[utoipa::path(
    delete,
    path = "/v1/tables/{table}",
    tag = "Tables",
    params(("table" = String, Path)),
    responses(
        (status = 204, description = "Dropped"),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "schema-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "log-unavailable; outcome-unknown; recovering", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn drop_table(State(state): State<AppState>, Name(name): Name) -> Result<Response, Refusal> {
    find_table(&state.router.deployed(), &name)?;
    let lsn = state.blocking(Operation::Other, move |parts| parts.router.drop_table(&name)).await??;
    let mut response = StatusCode::NO_CONTENT.into_response();
    response.headers_mut().insert(HeaderName::from_static(headers::LSN), lsn.0.into());
    Ok(response)
}

fn find_table<'d>(deployed: &'d Deployed, name: &str) -> Result<(u16, &'d TableSchema), Refusal> {
    match deployed.table(name) {
        Some((id, table)) => Ok((id.0, table)),
        None => Err(Refusal::not_found(format!(
            "no table {name:?}, or several modules have one; GET /v1/tables lists them as module.table"
        ))),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RowsParams {
    /// Rows at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Name of the index that gives the order; `primary` unless given.
    index: Option<String>,
    /// Leading values of the index's columns that a row must have: a JSON array, or a comma list.
    prefix: Option<String>,
}

/// Lists rows
///
/// Committed rows in the order of an index, page by page. A page is one consistent snapshot of all partitions.
#[utoipa::path(
    get,
    path = "/v1/tables/{table}/rows",
    tag = "Tables",
    params(
        ("table" = String, Path),
        RowsParams,
        ("Reprise-Min-Lsn" = Option<String>, Header, pattern = "^[0-9]{1,19}$", description = "Wait until the read view holds this LSN"),
        ("Reprise-Max-Wait-Ms" = Option<u64>, Header, description = "How long to wait for it; 1000 unless given"),
    ),
    responses(
        (status = 200, description = "A page", body = RowsPage),
        (status = 400, description = "malformed-request", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "too-stale; recovering", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn list_rows(
    State(state): State<AppState>,
    Name(name): Name,
    Params(params): Params<RowsParams>,
    headers: HeaderMap,
) -> Result<Json<RowsPage>, Refusal> {
    wait_for_min_lsn(&state, &headers).await?;
    let deployed = state.router.deployed();
    let (id, table) = find_table(&deployed, &name)?;
    let request = rows_request(id, table, &params)?;
    let index = request.index;
    let page = state
        .blocking(Operation::ReadRows, move |parts| parts.router.table_rows(request))
        .await??;
    let table = &page.schema;
    let layout = RowLayout::of_table(table);
    let rows: Option<Vec<_>> = page
        .rows
        .iter()
        .map(|row| row_json(table, &layout, row))
        .collect();
    let rows =
        rows.ok_or_else(|| Refusal::internal("a stored row is not of its table's layout"))?;
    Ok(Json(RowsPage {
        rows,
        next_cursor: page
            .next_cursor
            .map(|cursor| pack_cursor(walk_of(id, table, index), &cursor)),
        lsn: U64(page.lsn.0),
    }))
}

fn rows_request(id: u16, table: &TableSchema, params: &RowsParams) -> Result<RowsRequest, Refusal> {
    let limit = params.limit.unwrap_or(ROWS_LIMIT_DEFAULT);
    if !(1..=ROWS_LIMIT_MAX).contains(&limit) {
        return Err(Refusal::malformed(format!(
            "limit is a number from 1 to {ROWS_LIMIT_MAX}"
        )));
    }
    let (index, columns) = find_index(table, params.index.as_deref())?;
    let prefix = match params.prefix.as_deref() {
        None | Some("") => Vec::new(),
        Some(text) => encode_prefix(&columns, text).map_err(|error| {
            Refusal::malformed(format!("prefix does not fit the index: {error}"))
        })?,
    };
    let cursor = match params.cursor.as_deref() {
        None | Some("") => None,
        Some(text) => Some(unpack_cursor(walk_of(id, table, index), text).ok_or_else(|| {
            Refusal::malformed(
                "cursor is not one of this table and index as they are: take next_cursor of the page before, or begin again where a deployment changed them",
            )
        })?),
    };
    Ok(RowsRequest {
        table: id,
        index,
        limit,
        cursor,
        prefix,
    })
}

fn find_index<'t>(
    table: &'t TableSchema,
    name: Option<&str>,
) -> Result<(u16, Vec<&'t ColumnSchema>), Refusal> {
    let columns = |positions: &[u16]| {
        positions
            .iter()
            .map(|at| &table.columns[*at as usize])
            .collect()
    };
    match name {
        None => Ok((0, columns(&table.primary_key))),
        Some(PRIMARY) if !table.primary_key.is_empty() => Ok((0, columns(&table.primary_key))),
        Some(name) => match table.indexes.iter().position(|index| index.name == name) {
            Some(at) => Ok((at as u16 + 1, columns(&table.indexes[at].columns))),
            None => {
                let names: Vec<_> = table
                    .indexes
                    .iter()
                    .map(|index| index.name.as_str())
                    .collect();
                Err(Refusal::not_found(format!(
                    "table {} has no index {name:?}; it has {PRIMARY} {}",
                    table.name,
                    names.join(" ")
                )))
            }
        },
    }
}

/// What a cursor is good for: a walk through this index of this table, whose keys are made of these columns. After a deployment that
/// drops an index, or makes another of its name, a place in it would be a place in something else.
type Walk = [u8; 8];

fn walk_of(id: u16, table: &TableSchema, index: u16) -> Walk {
    let own = index.checked_sub(1).and_then(|at| table.indexes.get(at as usize));
    let keys = own.map_or(&[][..], |own| &own.columns).iter().chain(&table.primary_key);
    let columns: Vec<_> = keys.map(|at| &table.columns[*at as usize]).map(|column| (&column.name, column.ty, column.nullable)).collect();
    let kind = own.map(|own| (&own.name, own.unique));
    let walk = format!("{id} {index} {} {kind:?} {:?} {columns:?}", table.full_name(), table.primary_kind);
    let digest = Sha256::digest(walk.as_bytes());
    *digest.first_chunk().expect("a digest is longer")
}

fn pack_cursor(walk: Walk, cursor: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode([&walk[..], cursor].concat())
}

fn unpack_cursor(walk: Walk, text: &str) -> Option<Vec<u8>> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (own, cursor) = bytes.split_first_chunk::<8>()?;
    (*own == walk).then(|| cursor.to_vec())
}

#[cfg(test)]
mod tests {
    use reprise_abi::{IndexKind, IndexSchema, Placement, ScalarType};

    use super::*;

    fn table(indexes: &[(&str, u16)]) -> TableSchema {
        let column = |name: &str| ColumnSchema {
            name: name.into(),
            was: None,
            ty: ScalarType::I64,
            nullable: false,
            default: None,
        };
        let index = |(name, column): &(&str, u16)| IndexSchema {
            name: (*name).into(),
            columns: vec![*column],
            unique: false,
        };
        TableSchema {
            owner: "m".into(),
            name: "t".into(),
            shared: false,
            was: None,
            columns: ["id", "a", "b"].map(column).into(),
            primary_key: vec![0],
            primary_kind: IndexKind::Ordered,
            indexes: indexes.iter().map(index).collect(),
            placement: Placement::By(0),
        }
    }

    #[test]
    fn cursors_belong_to_their_walk() {
        let now = table(&[("by_a", 1), ("by_b", 2)]);
        let cursor = pack_cursor(walk_of(3, &now, 1), b"key");
        let read = |id: u16, table: &TableSchema, index: u16| unpack_cursor(walk_of(id, table, index), &cursor);
        assert_eq!(read(3, &now, 1).as_deref(), Some(&b"key"[..]));
        assert_eq!(read(3, &now, 0), None);
        assert_eq!(read(2, &now, 1), None);
        // An index that came in its place, by name or by number, is another one; what else changes is no matter.
        assert_eq!(read(3, &table(&[("by_b", 2)]), 1), None);
        assert_eq!(read(3, &table(&[("by_a", 2)]), 1), None);
        assert!(read(3, &table(&[("by_a", 1)]), 1).is_some());
        for bad in ["", "!", "AAAA", "AA==", "AAAAAAAAAAAAAAAA"] {
            assert_eq!(unpack_cursor(walk_of(0, &now, 0), bad), None, "{bad}");
        }
    }
}
