//! Options of requests, and answers to calls and as text.

use reprise_api::{CallAnswer, RowsQuery};
use serde::Serialize;

/// Options of a call besides its arguments.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions<'a> {
    /// A repeat with the same key answers the first outcome.
    pub idempotency_key: Option<&'a str>,
    /// LSN that the read view must hold before a read is answered.
    pub min_lsn: Option<u64>,
    /// Milliseconds that the read waits for `min_lsn`.
    pub max_wait_ms: Option<u64>,
    /// Least safety level of a write (`1-safe`, `2-safe`, `quorum`, `very-safe`). Below it the call gets an error.
    pub safety: Option<&'a str>,
}

/// A committed call.
#[derive(Clone, Debug, Serialize)]
pub struct CallResponse {
    /// The server's answer.
    #[serde(flatten)]
    pub answer: CallAnswer,
    /// True when the idempotency key was used before: this is the first outcome again.
    pub replayed: bool,
    /// The safety level of a write, if the server has one or the call asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safety: Option<String>,
}

/// The query of a request for rows.
pub(crate) fn rows_pairs(query: &RowsQuery) -> Vec<(&'static str, String)> {
    let texts = [
        ("limit", query.limit.map(|limit| limit.to_string())),
        ("cursor", query.cursor.clone()),
        ("index", query.index.clone()),
        ("prefix", query.prefix.clone()),
        ("from", query.from.clone()),
        ("to", query.to.clone()),
        ("reverse", query.reverse.then(|| "true".to_owned())),
        ("columns", query.columns.clone()),
    ];
    let conditions = query.conditions.iter().map(|condition| ("where", condition.clone()));
    texts
        .into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .chain(conditions)
        .collect()
}

/// Rows as text, and the position of the next page.
pub struct RowsText {
    /// The page, in the form that was asked for.
    pub text: String,
    /// Cursor of the next page; none on the last one.
    pub next_cursor: Option<String>,
}

/// Which lines of procedures.
#[derive(Clone, Debug, Default)]
pub struct LinesQuery {
    /// Lines at most.
    pub limit: Option<u32>,
    /// Only lines of this module's procedures.
    pub module: Option<String>,
    /// Only lines of procedures of this name.
    pub procedure: Option<String>,
    /// This level and above: `debug`, `info`, `warn` or `error`.
    pub level: Option<String>,
    /// Only this transaction's lines.
    pub transaction: Option<u64>,
    /// Lines with this number or a later one.
    pub since: Option<u64>,
}

/// Which records of the log, and in which order.
#[derive(Clone, Debug, Default)]
pub struct LogQuery {
    /// Position to begin at: `next` of the page before.
    pub from: Option<u64>,
    /// The last records, newest first.
    pub newest: bool,
    /// Records of a page at most.
    pub limit: Option<u32>,
    /// Only records that touch this partition.
    pub partition: Option<u16>,
    /// Only records of this kind.
    pub kind: Option<String>,
    /// Only this transaction's records.
    pub transaction: Option<u64>,
    /// Only calls of this module, and its deployments.
    pub module: Option<String>,
    /// Only calls of procedures of this name.
    pub procedure: Option<String>,
    /// An idempotency key, or the values of a changed row's primary key, separated by commas.
    pub key: Option<String>,
    /// Each `name:value`.
    pub arguments: Vec<String>,
    /// Only transactions at this time (RFC 3339) or later.
    pub since: Option<String>,
    /// Only transactions before this time.
    pub until: Option<String>,
}
