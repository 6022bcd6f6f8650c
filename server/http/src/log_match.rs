//! Conditions of a log search on decoded records: keys of rows, arguments of calls, times.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use reprise_abi::RowLayout;
use reprise_base::{Lsn, TxnId};
use reprise_codec::{count_prefix, encode_prefix, parse_timestamp, row_json, write_arguments};
use reprise_router::{
    ChangedRow, LogBody, LogEntry, LogMatch, LogProcedure, LogReadError, LogSearch, NumberedRow, Router, RowsError,
};
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

    /// Returns the condition on decoded records, and the transactions that it can't decide about.
    pub fn matching(
        self,
        router: &Router,
        query: &LogSearch,
    ) -> Result<(Option<LogMatch>, Arc<Mutex<SearchGaps>>), Refusal> {
        let blind = self.blind();
        let neighbour = match (blind, query.from) {
            (Some(_), Some(from)) => neighbour(router, from, query.newest)?,
            _ => None,
        };
        let gaps = Arc::new(Mutex::new(SearchGaps::new(blind, neighbour)));
        let Self {
            key,
            arguments,
            since_us,
            until_us,
        } = self;
        if key.is_none() && arguments.is_empty() && since_us.is_none() && until_us.is_none() {
            return Ok((None, gaps));
        }
        let key = key.map(|key| KeyMatch::new(router, key)).transpose()?;
        let passed = gaps.clone();
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
        Ok((Some(LogMatch(Arc::new(matches))), gaps))
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

/// Returns the transaction of the record next to a page, at or before `from`. Its other record may be the first or the last of the page.
fn neighbour(router: &Router, from: Lsn, newest: bool) -> Result<Option<TxnId>, LogReadError> {
    let beside = match newest {
        true => Some(from.0),
        false => from.0.checked_sub(1),
    };
    match beside.map(|lsn| router.log_record(Lsn(lsn))).transpose() {
        Ok(entry) => Ok(entry.flatten().and_then(|entry| entry.txn_id)),
        Err(LogReadError::Released { .. }) => Ok(None), // the page begins where the log does
        Err(error) => Err(error),
    }
}

/// Transactions that a search can't decide about. A search for a row's key can't decide about calls alone, and a search for an argument
/// can't decide about rows alone. A log of both forms has both records of a transaction side by side in one block, the call first. The
/// records of a block pass in the order of the log, also where the newest block passes first.
pub struct SearchGaps {
    /// Form of the records that the search can't decide about. None: it can decide about all.
    blind: Option<WorkForm>,
    /// The transaction that the search decided about last.
    decided: Option<TxnId>,
    /// Transactions with a record that the search found, and the one beside the page. Some records pass twice: the rest of a block whose end
    /// filled a page of the newest.
    matched: BTreeSet<TxnId>,
    /// Transactions of which only such records passed, and the LSN of the last one.
    gaps: BTreeMap<TxnId, Lsn>,
    /// The transaction whose record passed last.
    last: Option<TxnId>,
}

impl SearchGaps {
    fn new(blind: Option<WorkForm>, neighbour: Option<TxnId>) -> Self {
        Self {
            blind,
            decided: None,
            matched: neighbour.into_iter().collect(),
            gaps: BTreeMap::new(),
            last: None,
        }
    }

    fn pass(&mut self, entry: &LogEntry, is_wanted: bool) {
        let (Some(blind), Some(form), Some(txn_id)) = (self.blind, form_of(entry), entry.txn_id) else {
            return;
        };
        self.last = Some(txn_id);
        if is_wanted || form != blind {
            self.decided = Some(txn_id);
            self.gaps.remove(&txn_id);
            if is_wanted {
                self.matched.insert(txn_id);
            }
        } else if self.decided != Some(txn_id) && !self.matched.contains(&txn_id) {
            self.gaps.insert(txn_id, entry.lsn);
        }
    }

    /// Returns the number of transactions on the page that the search can't decide about. `next`: where the next page begins. `end`: the end
    /// of the durable log. A page forwards that ends before `end` leaves out its last transaction: its other record may be on the next page.
    pub fn count(&self, newest: bool, next: Option<Lsn>, end: Lsn) -> u64 {
        let is_on_page = |(txn_id, lsn): &(&TxnId, &Lsn)| match (newest, next) {
            (_, None) => true,
            (true, Some(next)) => **lsn >= next,
            (false, Some(next)) => **lsn < next && (next == end || self.last != Some(**txn_id)),
        };
        self.gaps.iter().filter(is_on_page).count() as u64
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
