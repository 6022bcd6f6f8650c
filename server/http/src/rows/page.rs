//! A page of rows, as JSON, as lines of JSON, or as CSV.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use reprise_abi::{RowLayout, TableSchema};
use reprise_api::{CSV_MEDIA_TYPE, Json as RawJson, NDJSON_MEDIA_TYPE, RowsPage, U64, headers};
use reprise_base::Lsn;
use reprise_codec::columns_json;

use super::{
    ask::RowsParameters,
    csv,
    cursor::{pack_cursor, walk_of},
};
use crate::{
    front::PathName, limits::ROWS_LIMIT_MAX, media::MediaPreference, permits::Operation, refusal::Refusal,
    state::AppState, tables::find_table,
};

const ROWS_LIMIT_DEFAULT: u32 = 100;

/// Lists rows
///
/// Returns committed rows in the order of an index, page by page. A page is one consistent snapshot of all partitions that the server
/// reads for it. For one page the server visits at most 20,000 rows, for some milliseconds. So with `where` a page may have few rows
/// or none and still a `next_cursor`. `Accept` selects JSON, lines of JSON (`application/x-ndjson`) or CSV (`text/csv`). With lines
/// and CSV the cursor is in a header.
#[utoipa::path(
    get,
    path = "/v1/tables/{table}/rows",
    tag = "Tables",
    params(
        ("table" = String, Path),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "Largest number of rows in the page. Default: 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before. Send the other parameters unchanged"),
        ("index" = Option<String>, Query, description = "Name of the index whose order the rows have. Default: `primary`"),
        ("prefix" = Option<String>, Query, description = "Values of the index's leading columns that a row must have, as a JSON array or separated by commas"),
        ("from" = Option<String>, Query, description = "First row to read: values of the columns after the prefix, inclusive"),
        ("to" = Option<String>, Query, description = "Last row to read: values of the columns after the prefix, inclusive"),
        ("reverse" = Option<bool>, Query, description = "`true`: read from the last row to the first"),
        ("where" = Option<String>, Query, description = "Condition `column:op:value`. The op is eq, ne, lt, le, gt or ge; for text also starts. You may give several, and a row must meet all of them. With `null` only eq and ne work"),
        ("columns" = Option<String>, Query, description = "Names of the columns to return, separated by commas. Default: all"),
        ("Reprise-Min-Lsn" = Option<String>, Header, pattern = "^[0-9]{1,19}$", description = "LSN that the read must include. The server waits until its data includes it"),
        ("Reprise-Max-Lag-Ms" = Option<u64>, Header, description = "On a standby: largest lag in milliseconds. The server waits until its lag is at most this"),
        ("Reprise-Max-Wait-Ms" = Option<u64>, Header, description = "Longest wait in milliseconds. Default: 1000"),
    ),
    responses(
        (status = 200, description = "A page", content(
            (RowsPage = "application/json"), (String = "application/x-ndjson"), (String = "text/csv"),
        ), headers(
            ("Reprise-Lsn" = String, description = "LSN of the newest transaction that the page includes"),
            ("Reprise-Next-Cursor" = String, description = "For JSON lines and CSV: the cursor of the next page. The last page has none"),
        )),
    )
)]
pub async fn list_rows(
    State(state): State<AppState>,
    PathName(name): PathName,
    asked: RowsParameters,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let form = PageForm::of(&headers);
    let deployed = state.router.deployed();
    let (id, _) = find_table(&deployed, &name)?;
    let table = &deployed.tables[id as usize];
    let limit = asked.rows.limit.unwrap_or(ROWS_LIMIT_DEFAULT);
    if !(1..=ROWS_LIMIT_MAX).contains(&limit) {
        return Err(Refusal::malformed(format!(
            "limit must be a number from 1 to {ROWS_LIMIT_MAX}"
        )));
    }
    asked.columns_of(table)?;
    let request = asked.request(id, table, limit)?;
    let full_name = table.full_name();
    let (asked, request, page) = state
        .blocking(Operation::ReadRows, move |parts| {
            let (request, page) = asked.read_page(&parts.router, &full_name, request)?;
            Ok::<_, Refusal>((asked, request, page))
        })
        .await??;
    let rows = PageRows {
        columns: asked.columns_of(&page.schema)?,
        rows: page.rows,
        next_cursor: page
            .next_cursor
            .map(|cursor| pack_cursor(walk_of(request.table, &page.schema, request.index), &cursor)),
        schema: page.schema,
        lsn: page.lsn,
    };
    rows.answer(form)
}

/// How a page is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageForm {
    Json,
    Lines,
    Csv,
}

impl PageForm {
    /// Chooses the form that weighs most; of two alike, the first of this list.
    fn of(headers: &HeaderMap) -> Self {
        let names = [
            (Self::Json, "application/json"),
            (Self::Lines, NDJSON_MEDIA_TYPE),
            (Self::Csv, CSV_MEDIA_TYPE),
        ];
        let likings = names.map(|(form, name)| (form, MediaPreference::of(headers, &[name])));
        let best = likings.into_iter().rev().max_by_key(|(_, liking)| *liking);
        best.filter(|(_, liking)| !liking.is_none())
            .map_or(Self::Json, |(form, _)| form)
    }
}

struct PageRows {
    rows: Vec<Vec<u8>>,
    schema: Arc<TableSchema>,
    columns: Vec<u16>,
    next_cursor: Option<String>,
    lsn: Lsn,
}

impl PageRows {
    fn answer(self, form: PageForm) -> Result<Response, Refusal> {
        let layout = RowLayout::of_table(&self.schema);
        let json = |row: &Vec<u8>| columns_json(&self.schema, &self.columns, &layout, row);
        let rows: Option<Vec<RawJson>> = self.rows.iter().map(json).collect();
        let rows = rows.ok_or_else(|| Refusal::internal("a stored row is not of its table's layout"))?;
        let (body, media_type) = match form {
            PageForm::Json => {
                let page = RowsPage {
                    rows,
                    next_cursor: self.next_cursor,
                    lsn: U64(self.lsn.0),
                };
                let mut response = Json(page).into_response();
                let name = HeaderName::from_static(headers::LSN);
                response.headers_mut().insert(name, self.lsn.0.into());
                return Ok(response);
            }
            PageForm::Lines => {
                let lines = rows.iter().flat_map(|row| [row.get().as_bytes(), b"\n"]);
                (lines.collect::<Vec<_>>().concat(), NDJSON_MEDIA_TYPE)
            }
            PageForm::Csv => {
                let names = self
                    .columns
                    .iter()
                    .map(|at| self.schema.columns[*at as usize].name.as_str());
                let names: Vec<_> = names.collect();
                let text = csv::write(&names, rows.iter().map(|row| row.get()));
                let text = text.map_err(|error| Refusal::internal(&format!("read a row that was written: {error}")))?;
                (text, CSV_MEDIA_TYPE)
            }
        };
        let mut response = Response::new(Body::from(body));
        let own = response.headers_mut();
        own.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        own.insert(HeaderName::from_static(headers::LSN), self.lsn.0.into());
        if let Some(cursor) = self.next_cursor.and_then(|cursor| HeaderValue::try_from(cursor).ok()) {
            own.insert(HeaderName::from_static(headers::NEXT_CURSOR), cursor);
        }
        Ok(response)
    }
}
