//! `/v1/log`: the log's records, decoded. `/v1/procedure-log`: what procedures wrote with `log`.

use axum::{
    Json,
    extract::{FromRequestParts, Query, State},
    http::{Uri, request::Parts},
    response::Response,
};
use reprise_api::{LogPage, LogRecord, Problem, ProcedureLog, ProcedureLogLine, RecordKind, U64};
use reprise_base::{Lsn, TxnId, limits::TEXT_PER_BYTE_MAX};
use reprise_codec::rfc3339;
use reprise_observe::LineFilter;
use reprise_router::{LogEntry, LogSearch};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::{
    front::{Params, PathName, document, parse_digits},
    limits::{LOG_LIMIT_MAX, LOG_PAGE_TEXT_BYTES_MAX, PROCEDURE_LOG_LIMIT_MAX},
    log_match::LogFilter,
    log_record::{log_record, text_bytes},
    permits::Operation,
    principal::Principal,
    refusal::Refusal,
    roles::TokenRole,
    state::AppState,
};

const LIMIT_DEFAULT: usize = 100;

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogOrder {
    /// The records from `from`, or from the beginning, forwards.
    #[default]
    Oldest,
    /// Backwards from before `from`, or from the end.
    Newest,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LogParams {
    /// LSN to begin at; `next` of the page before.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,19}$")]
    from: Option<String>,
    /// Records at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only records that touch this partition.
    #[param(maximum = 65535)]
    partition: Option<u16>,
    /// Only records of this kind.
    #[param(value_type = Option<RecordKind>)]
    kind: Option<String>,
    /// Only this transaction's records.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,19}$")]
    transaction: Option<String>,
    /// Only calls of this module, and its deployments.
    module: Option<String>,
    /// Only calls of procedures of this name.
    procedure: Option<String>,
    /// Only records with this idempotency key, and those that changed a row with this primary key, its values separated by commas: the row
    /// that has it now, or got it in a record before on the page. Other changes of rows that are gone name them by their numbers alone.
    key: Option<String>,
    /// Only records of transactions at this time (RFC 3339) or later. Records without a transaction have no time.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
    /// Only records of transactions before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<String>,
    /// `oldest` unless given.
    order: Option<LogOrder>,
}

/// The query of a read of the log, which may have `argument` more than once.
pub struct LogAsked {
    params: LogParams,
    arguments: Vec<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for LogAsked {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let query = parts.uri.query().unwrap_or_default();
        let (arguments, others): (Vec<_>, Vec<_>) = query
            .split('&')
            .partition(|pair| pair.split('=').next() == Some("argument"));
        let unread = |reason: String| Refusal::malformed(format!("the server can't read the query: {reason}"));
        let uri = |pairs: Vec<&str>| Uri::try_from(format!("/?{}", pairs.join("&")));
        let (arguments, others) = (uri(arguments), uri(others));
        let arguments = arguments.map_err(|error| unread(error.to_string()))?;
        let others = others.map_err(|error| unread(error.to_string()))?;
        let Query(params) = Query::try_from_uri(&others).map_err(|error| unread(error.body_text()))?;
        let Query(arguments) =
            Query::<Vec<(String, String)>>::try_from_uri(&arguments).map_err(|error| unread(error.body_text()))?;
        Ok(Self {
            params,
            arguments: arguments.into_iter().map(|(_, value)| value).collect(),
        })
    }
}

/// Lists log records
///
/// Returns durable records, decoded. If a filter matches few records, a page may be empty and still have a `next`.
#[utoipa::path(
    get,
    path = "/v1/log",
    tag = "Log",
    params(
        LogParams,
        ("argument" = Option<Vec<String>>, Query, description = "Only calls whose argument has this value, as `name:value`. You may give several. Records of changed rows have no arguments"),
    ),
    responses(
        (status = 200, description = "A page", body = LogPage),
        (status = 404, description = "not-found: the server keeps no log", body = Problem, content_type = "application/problem+json"),
        (status = 410, description = "log-released: `from` is before the oldest record in the log", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn list_log(
    State(state): State<AppState>,
    caller: Principal,
    LogAsked { params, arguments }: LogAsked,
) -> Result<Json<LogPage>, Refusal> {
    let limit = limit(params.limit, LOG_LIMIT_MAX)?;
    let (since, until) = (params.since.as_deref(), params.until.as_deref());
    let wanted = LogFilter::new(params.key, &arguments, since, until)?;
    let query = LogSearch {
        from: params.from.as_deref().map(position).transpose()?,
        newest: params.order.unwrap_or_default() == LogOrder::Newest,
        limit,
        partition: params.partition,
        kind: params.kind,
        transaction: params.transaction.as_deref().map(transaction).transpose()?,
        module: params.module,
        procedure: params.procedure,
        matching: None,
    };
    let newest = query.newest;
    let (page, gaps) = state
        .blocking(Operation::ReadLog, move |parts| {
            let (matching, gaps) = wanted.matching(&parts.router, &query)?;
            let page = parts.router.log_records(LogSearch { matching, ..query })?;
            Ok::<_, Refusal>((page, gaps))
        })
        .await??;
    let mut next = page.next.map(|lsn| U64(lsn.0));
    let mut records: Vec<LogRecord> = Vec::new();
    let mut bytes = 0;
    for entry in page.records {
        if bytes >= LOG_PAGE_TEXT_BYTES_MAX {
            // A page of the newest records ends at `from`; any other page begins there.
            let place = records.last().map(|record| record.lsn);
            next = if newest { place } else { Some(U64(entry.lsn.0)) };
            break;
        }
        let record = answer(entry, &caller)?;
        bytes += text_bytes(&record);
        records.push(record);
    }
    let (oldest, end) = (U64(page.oldest.0), U64(page.end.0));
    let next_lsn = next.map(|next| Lsn(next.0));
    let unsearched = gaps.lock().expect("held for a count").count(newest, next_lsn, page.end);
    Ok(Json(LogPage {
        records,
        next,
        oldest,
        end,
        unsearched: (unsearched > 0).then_some(U64(unsearched)),
    }))
}

fn transaction(text: &str) -> Result<TxnId, Refusal> {
    let id = parse_digits(text).map(TxnId);
    id.ok_or_else(|| Refusal::malformed("transaction must be the id of a transaction: 1 to 19 digits"))
}

pub fn position(text: &str) -> Result<Lsn, Refusal> {
    let position = parse_digits(text).map(Lsn);
    position.ok_or_else(|| Refusal::malformed("from must be an LSN: 1 to 19 digits"))
}

pub fn limit(asked: Option<usize>, max: usize) -> Result<usize, Refusal> {
    match asked.unwrap_or(LIMIT_DEFAULT) {
        limit if (1..=max).contains(&limit) => Ok(limit),
        _ => Err(Refusal::malformed(format!("limit must be a number from 1 to {max}"))),
    }
}

/// Shows a log record
#[utoipa::path(
    get,
    path = "/v1/log/{lsn}",
    tag = "Log",
    params(("lsn" = String, Path, description = "LSN at which the record begins")),
    responses(
        (status = 200, description = "The record", body = LogRecord),
        (status = 410, description = "log-released: the LSN is before the oldest record in the log", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn show_record(
    State(state): State<AppState>,
    caller: Principal,
    PathName(lsn): PathName,
) -> Result<Response, Refusal> {
    let none = || Refusal::not_found(format!("no durable record begins at LSN {lsn}; GET /v1/log lists them"));
    let position = parse_digits(&lsn).ok_or_else(none)?;
    let entry = state
        .blocking(Operation::ReadLog, move |parts| parts.router.log_record(Lsn(position)))
        .await??;
    let entry = entry.ok_or_else(none)?;
    let bytes_max = u64::from(entry.bytes) * TEXT_PER_BYTE_MAX;
    document(&state, bytes_max, || answer(entry, &caller)).await
}

/// Returns the whole record.
pub fn decoded(entry: LogEntry) -> Result<LogRecord, Refusal> {
    let lsn = entry.lsn;
    log_record(entry).map_err(|error| Refusal::internal(&format!("decode record at {lsn}: {error}")))
}

/// Returns a record as `caller` may see it: who did what beside calls is for the role `admin`.
fn answer(entry: LogEntry, caller: &Principal) -> Result<LogRecord, Refusal> {
    let mut record = decoded(entry)?;
    if record.control.is_some() && !caller.may(TokenRole::Admin) {
        (record.control, record.principal) = (None, None);
    }
    Ok(record)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ProcedureLogParams {
    /// Lines at most; 100 unless given.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only lines of this module's procedures.
    module: Option<String>,
    /// Only lines of procedures of this name.
    procedure: Option<String>,
    /// Only lines of this level and above it.
    level: Option<LineLevel>,
    /// Only this transaction's lines.
    #[param(value_type = Option<String>, pattern = "^[0-9]{1,19}$")]
    transaction: Option<String>,
    /// Only lines with this number or a later one.
    #[param(value_type = Option<i64>, minimum = 0)]
    since: Option<u64>,
}

/// From the least to the most serious.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LineLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// Lists log lines of procedures
///
/// Returns the newest lines that procedures wrote with `log`, newest first. The server keeps them in memory, and not in the log. Each
/// procedure and each call has its own limit of bytes, so none displaces the lines of another.
#[utoipa::path(
    get,
    path = "/v1/procedure-log",
    tag = "Log",
    params(ProcedureLogParams),
    responses(
        (status = 200, description = "Newest first", body = ProcedureLog),
    )
)]
pub async fn procedure_log(
    State(state): State<AppState>,
    Params(params): Params<ProcedureLogParams>,
) -> Result<Json<ProcedureLog>, Refusal> {
    let limit = limit(params.limit, PROCEDURE_LOG_LIMIT_MAX)?;
    if params.since.is_some_and(|since| i64::try_from(since).is_err()) {
        return Err(Refusal::malformed(
            "since must be the number of a line, at most 9223372036854775807",
        ));
    }
    let filter = LineFilter {
        module: params.module,
        procedure: params.procedure,
        level_min: params.level.map_or(0, |level| level as u8),
        txn_id: params.transaction.as_deref().map(transaction).transpose()?,
        since: params.since,
    };
    let lines = state
        .router
        .procedure_log(&filter, limit)
        .into_iter()
        .map(|line| ProcedureLogLine {
            number: line.number,
            txn_id: U64(line.txn_id.0),
            time: rfc3339(line.txn_id.time_us()),
            module: line.module,
            procedure: line.procedure,
            level: ["debug", "info", "warn", "error"][line.level.min(3) as usize].into(),
            text: line.text,
        });
    Ok(Json(ProcedureLog { lines: lines.collect() }))
}
