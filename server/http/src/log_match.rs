//! Conditions of a log search on decoded records: keys of rows, arguments of calls, times.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use reprise_abi::RowLayout;
use reprise_base::TxnId;
use reprise_codec::{count_prefix, encode_prefix, parse_timestamp, row_json, write_arguments};
use reprise_router::{ChangedRow, LogBody, LogEntry, LogMatch, LogProcedure, NumberedRow, Router, RowsError};
use serde_json::Value;

use crate::{log_record::key_json, refusal::Refusal};

/// Arguments that one search asks for, at most.
const ARGUMENTS_MAX: usize = 16;

/// Conditions on records beside those on their heads.
#[derive(Default)]
pub struct LogFilter {
    pub key: Option<String>,
    /// Names and values; all of them.
    arguments: Vec<(String, String)>,
    since_us: Option<i64>,
    until_us: Option<i64>,
}

impl LogFilter {
    pub fn new(
        key: Option<String>,
        arguments: &[String],
        since: Option<&str>,
        until: Option<&str>,
    ) -> Result<Self, Refusal> {
        if arguments.len() > ARGUMENTS_MAX {
            return Err(Refusal::malformed(format!(
                "a search may have at most {ARGUMENTS_MAX} arguments"
            )));
        }
        let arguments = arguments.iter().map(|text| argument(text));
        Ok(Self {
            key,
            arguments: arguments.collect::<Result<_, _>>()?,
            since_us: since.map(|text| time("since", text)).transpose()?,
            until_us: until.map(|text| time("until", text)).transpose()?,
        })
    }

    /// Returns the condition on decoded records, and the counts of records that it can't decide about. `pages_on`: the page continues
    /// another one.
    pub fn matching(
        self,
        router: &Router,
        newest: bool,
        pages_on: bool,
    ) -> Result<(Option<LogMatch>, Arc<Mutex<SearchGaps>>), RowsError> {
        let unsearched = Arc::new(Mutex::new(SearchGaps::new(self.blind(), newest, pages_on)));
        let Self {
            key,
            arguments,
            since_us,
            until_us,
        } = self;
        if key.is_none() && arguments.is_empty() && since_us.is_none() && until_us.is_none() {
            return Ok((None, unsearched));
        }
        let key = key.map(|key| KeyMatch::new(router, key)).transpose()?;
        let passed = unsearched.clone();
        let matches = move |entry: &LogEntry| {
            let is_after = since_us.is_none_or(|since| entry.time_us.is_some_and(|time| time >= since));
            let is_before = until_us.is_none_or(|until| entry.time_us.is_some_and(|time| time < until));
            if !is_after || !is_before {
                return false;
            }
            let is_wanted = key.as_ref().is_none_or(|key| key.is_in(entry))
                && arguments.iter().all(|(name, value)| has_argument(entry, name, value));
            passed.lock().expect("held for a count").pass(entry, is_wanted);
            is_wanted
        };
        Ok((Some(LogMatch(Arc::new(matches))), unsearched))
    }

    /// Records of which form the search can tell nothing about.
    fn blind(&self) -> Option<WorkForm> {
        match (&self.key, self.arguments.is_empty()) {
            (Some(_), _) => Some(WorkForm::Call),
            (None, false) => Some(WorkForm::Rows),
            (None, true) => None,
        }
    }
}

/// A moment of a query.
fn time(name: &str, text: &str) -> Result<i64, Refusal> {
    let bad = || {
        Refusal::malformed(format!(
            "{name} must be a time such as 2026-11-27T12:00:00Z (RFC 3339; in a URL write + as %2B)"
        ))
    };
    parse_timestamp(text).ok_or_else(bad)
}

/// The form in which a record has the work of a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkForm {
    Call,
    Rows,
}

fn form_of(entry: &LogEntry) -> Option<WorkForm> {
    match entry.body {
        LogBody::Command { .. } => Some(WorkForm::Call),
        LogBody::Changes { .. } | LogBody::Part { .. } => Some(WorkForm::Rows),
        _ => None,
    }
}

/// Counts transactions that a search can't decide about. A search for a row's key can't decide about calls alone, and a search for an
/// argument can't decide about rows alone. A log of both forms has rows behind their call, so each has the other as its neighbour.
pub struct SearchGaps {
    /// Form of the records that the search can't decide about. None: it can decide about all.
    blind: Option<WorkForm>,
    /// If a transaction has both, the record that the search can decide about comes first.
    matched_first: bool,
    /// The neighbour of the page's first record was on the page before.
    is_first_of_more: bool,
    /// The last transaction that the search decided about, or counted.
    counted: Option<TxnId>,
    /// One that could not, until the next record shows.
    pending: Option<TxnId>,
    pub count: u64,
}

impl SearchGaps {
    fn new(blind: Option<WorkForm>, newest: bool, pages_on: bool) -> Self {
        Self {
            blind,
            matched_first: newest == (blind == Some(WorkForm::Call)),
            is_first_of_more: pages_on,
            counted: None,
            pending: None,
            count: 0,
        }
    }

    fn pass(&mut self, entry: &LogEntry, is_wanted: bool) {
        let Some(form) = form_of(entry).filter(|_| self.blind.is_some()) else {
            return;
        };
        let is_first_of_more = std::mem::take(&mut self.is_first_of_more);
        if self.pending.take_if(|pending| Some(*pending) != entry.txn_id).is_some() {
            self.count += 1;
        }
        if Some(form) != self.blind || is_wanted || is_first_of_more && self.matched_first {
            self.pending = None;
            self.counted = entry.txn_id;
        } else if self.counted != entry.txn_id {
            match self.matched_first {
                true => {
                    self.counted = entry.txn_id;
                    self.count += 1;
                }
                false => self.pending = entry.txn_id,
            }
        }
    }
}

/// The argument that is asked for, and its value.
fn argument(text: &str) -> Result<(String, String), Refusal> {
    match text.split_once(':') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Refusal::malformed("write argument as name:value")),
    }
}

/// Number of rows that consecutive insertions gave the key, at most. They are kept for a page.
const ROWS_MET_MAX: usize = 1_024;

/// A key by which records are searched: an idempotency key, or a primary key in any table whose columns take its values.
struct KeyMatch {
    text: String,
    /// Rows that have the key now, and rows that got it in a record that was read before.
    rows: Mutex<BTreeSet<NumberedRow>>,
}

impl KeyMatch {
    fn new(router: &Router, text: String) -> Result<Self, RowsError> {
        let deployed = router.deployed();
        let keys = deployed.tables().filter_map(|(id, table)| {
            let columns: Vec<_> = table
                .primary_key
                .iter()
                .map(|at| &table.columns[*at as usize])
                .collect();
            let is_whole = !columns.is_empty() && count_prefix(&text) == columns.len();
            let key = is_whole.then(|| encode_prefix(&columns, &text).ok())??;
            Some((id, table.clone(), key))
        });
        let rows = Mutex::new(router.numbered_rows(keys.collect())?);
        Ok(Self { text, rows })
    }

    fn is_in(&self, entry: &LogEntry) -> bool {
        let key = Some(self.text.as_str());
        // Each row is read: it may show a number that a later record has.
        let changed = entry.rows.iter().filter(|row| self.is_of(row));
        changed.count() > 0 || entry.idempotency_key.as_deref() == key
    }

    fn is_of(&self, row: &ChangedRow) -> bool {
        let numbered = NumberedRow::of(row);
        let mut rows = self.rows.lock().expect("held for a short time");
        if row_key_text(row).is_some_and(|found| found == self.text) {
            if rows.len() < ROWS_MET_MAX {
                rows.extend(numbered);
            }
            return true;
        }
        numbered.is_some_and(|row| rows.contains(&row))
    }
}

/// The primary key that a record tells of a row, its values separated by commas.
fn row_key_text(row: &ChangedRow) -> Option<String> {
    let table = row.table.as_ref().filter(|table| !table.primary_key.is_empty())?;
    let json = match (&row.key, &row.row) {
        (Some(key), _) => key_json(table, key),
        (None, Some(bytes)) => row_json(table, &RowLayout::of_table(table), bytes),
        (None, None) => None,
    };
    let members = serde_json::from_str::<serde_json::Map<String, Value>>(json?.get()).ok()?;
    let names = table.primary_key.iter().map(|at| &table.columns[*at as usize].name);
    let values = names.map(|name| members.get(name).map_or(String::new(), plain));
    Some(values.collect::<Vec<_>>().join(","))
}

fn has_argument(entry: &LogEntry, name: &str, value: &str) -> bool {
    let schema = entry.procedure.as_ref().and_then(LogProcedure::schema);
    let (LogBody::Command { args, .. }, Some(schema)) = (&entry.body, schema) else {
        return false;
    };
    if !schema.params.iter().any(|param| param.name == name) {
        return false;
    }
    let mut out = Vec::with_capacity(args.len() * 2);
    let is_written = write_arguments(&schema.params, args, &mut out).is_ok();
    let members = serde_json::from_slice::<serde_json::Map<String, Value>>(&out);
    is_written && members.is_ok_and(|members| members.get(name).is_some_and(|found| plain(found) == value))
}

/// A value as one types it: a text without its quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
