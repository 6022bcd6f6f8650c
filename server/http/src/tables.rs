//! `/v1/tables`: the stored tables.

use axum::{
    Json,
    extract::State,
    http::{HeaderName, StatusCode},
    response::{IntoResponse, Response},
};
use reprise_abi::TableSchema;
use reprise_api::{Problem, TableInfo, TableList, headers};
use reprise_router::{Deployed, TableId};

use crate::{
    control::ControlOp,
    front::{Params, PathName, parse_digits},
    limits::STATS_WAIT_MAX,
    list_page::{self, ListParams, bad_cursor, json_answer},
    permits::Operation,
    principal::Principal,
    refusal::Refusal,
    schema::table_info,
    state::AppState,
};

/// Lists the tables
#[utoipa::path(
    get,
    path = "/v1/tables",
    tag = "Tables",
    params(ListParams),
    responses(
        (status = 200, description = "Tables in the order of their creation", body = TableList),
    )
)]
pub async fn list_tables(
    State(state): State<AppState>,
    Params(params): Params<ListParams>,
) -> Result<Response, Refusal> {
    let limit = params.limit()?;
    let first = match params.cursor.as_deref() {
        None => 0,
        Some(text) => parse_digits(text).ok_or_else(bad_cursor)?,
    };
    let stats = state
        .blocking(Operation::ReadStats, |parts| parts.router.table_stats(STATS_WAIT_MAX))
        .await??;
    let deployed = state.router.deployed();
    let ids = deployed
        .tables()
        .map(|(id, _)| id.0)
        .filter(|id| u64::from(*id) >= first);
    let info = |id: u16| {
        let stats = stats.get(id as usize).copied().unwrap_or_default();
        table_info(&deployed, TableId(id), &deployed.tables[id as usize], stats)
    };
    Ok(json_answer(list_page::page("tables", limit, ids, info)))
}

/// Describes a table
#[utoipa::path(
    get,
    path = "/v1/tables/{table}",
    tag = "Tables",
    params(("table" = String, Path)),
    responses(
        (status = 200, description = "The table's columns, keys, indexes and size", body = TableInfo),
    )
)]
pub async fn show_table(State(state): State<AppState>, PathName(name): PathName) -> Result<Json<TableInfo>, Refusal> {
    let deployed = state.router.deployed();
    let (id, table) = find_table(&deployed, &name)?;
    let stats = state
        .blocking(Operation::ReadStats, |parts| parts.router.table_stats(STATS_WAIT_MAX))
        .await??;
    let stats = stats.get(id as usize).copied().unwrap_or_default();
    Ok(Json(table_info(&deployed, TableId(id), table, stats)))
}

/// Drops a table
///
/// Drops the table and its rows. The server refuses to drop a table that a module in service declares.
#[utoipa::path(
    delete,
    path = "/v1/tables/{table}",
    tag = "Tables",
    params(("table" = String, Path)),
    responses(
        (status = 204, description = "Dropped"),
        (status = 409, description = "schema-conflict", body = Problem, content_type = "application/problem+json"),
        (status = 421, description = "not-primary: send the request to `primary`", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn drop_table(
    State(state): State<AppState>,
    PathName(name): PathName,
    principal: Principal,
) -> Result<Response, Refusal> {
    let lsn = state
        .control(ControlOp::DropTable(name.clone()), principal, move |parts| {
            find_table(&parts.router.deployed(), &name)?;
            Ok(parts.router.drop_table(&name)?)
        })
        .await?;
    let mut response = StatusCode::NO_CONTENT.into_response();
    response
        .headers_mut()
        .insert(HeaderName::from_static(headers::LSN), lsn.0.into());
    Ok(response)
}

pub fn find_table<'d>(deployed: &'d Deployed, name: &str) -> Result<(u16, &'d TableSchema), Refusal> {
    match deployed.table(name) {
        Some((id, table)) => Ok((id.0, table)),
        None => Err(Refusal::not_found(format!(
            "the server has no table {name:?}, or several modules have one; GET /v1/tables lists them as module.table"
        ))),
    }
}
