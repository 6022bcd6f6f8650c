//! The log for people: decoded records, with the module and arguments that they name.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_log::{LogError, PageBounds, ReadRecord};
use reprise_txn::Deployed;
use reprise_wire::{RecordFacts, RecordKind, RecordRef, RecordScope};

use crate::{
    log_entry::{LogEntry, LogProcedure, decode_entry},
    router::Router,
};

/// The choice of the records to read.
#[derive(Clone, Debug, Default)]
pub struct LogSearch {
    /// First position. None: the log's start, unless `newest` is true.
    pub from: Option<Lsn>,
    /// True for the last records before `from` (or before the end), newest first.
    pub newest: bool,
    pub limit: usize,
    pub partition: Option<u16>,
    /// Name of a record kind, as in [`LogEntry`].
    pub kind: Option<String>,
    pub transaction: Option<TxnId>,
    /// Name of a module, whose calls, deployments and removals pass.
    pub module: Option<String>,
    /// Name of a procedure, whose calls pass.
    pub procedure: Option<String>,
    /// A further condition on the decoded record.
    pub matching: Option<LogMatch>,
}

/// A condition on decoded records.
#[derive(Clone)]
pub struct LogMatch(pub Arc<dyn Fn(&LogEntry) -> bool + Send + Sync>);

impl fmt::Debug for LogMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogMatch")
    }
}

pub struct LogEntryPage {
    pub records: Vec<LogEntry>,
    /// The position to continue at, now or once more records exist. None: the page is newest first and reached the beginning.
    pub next: Option<Lsn>,
    /// The beginning of the log.
    pub oldest: Lsn,
    /// LSN before which everything is durable and can be read.
    pub end: Lsn,
}

fn touches(facts: &RecordFacts<'_>, partition: u16) -> bool {
    match facts.scope {
        RecordScope::Partitions(partitions) => partitions.contains(PartitionId(partition)),
        RecordScope::Database | RecordScope::Nothing => true,
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LogReadError {
    #[error("this server keeps no log")]
    NoLog,
    #[error("the log begins at {oldest}: the server has released the earlier part")]
    Released { oldest: Lsn },
    #[error(transparent)]
    Failed(#[from] LogError),
    #[error("{0:?} is not a kind of record; take {kinds}", kinds = kind_names())]
    BadKind(String),
}

fn kind_names() -> String {
    let [others @ .., last] = RecordKind::ALL.map(RecordKind::name);
    format!("{} and {last}", others.join(", "))
}

/// Bytes of records after which a page ends before its limit.
const PAGE_BYTES_MAX: usize = 4 << 20;
/// Records that are read for one page, so that a filter without hits ends.
const LOOKED_AT_MAX: usize = 100_000;
/// Time after which a page ends before its limit.
const READ_TIME_MAX: Duration = Duration::from_secs(1);

impl Router {
    /// Returns a page of durable records.
    pub fn log_records(&self, query: LogSearch) -> Result<LogEntryPage, LogReadError> {
        query.check_kind()?;
        let log = self.0.config.log.as_ref().ok_or(LogReadError::NoLog)?;
        check_released(query.from.unwrap_or(log.start()), log.start())?;
        let (deployed, until) = (self.deployed(), Instant::now() + READ_TIME_MAX);
        let wanted = |record: &ReadRecord<'_>| {
            query.passes(&record.record, &deployed)
                && query
                    .matching
                    .as_ref()
                    .is_none_or(|matching| (matching.0)(&self.decode_entry(record, &deployed)))
        };
        let decode = |record: &ReadRecord<'_>| LogEntry {
            durable: record.lsn < log.durable(),
            ..self.decode_entry(record, &deployed)
        };
        let mut page = LogEntryPage {
            records: Vec::new(),
            next: None,
            oldest: log.start(),
            end: log.durable(),
        };
        if query.newest {
            let bounds = PageBounds {
                records: query.limit,
                bytes: PAGE_BYTES_MAX,
            };
            let found = log.newest(query.from, bounds, wanted)?;
            page.records = found.records.iter().map(|owned| decode(&owned.get())).collect();
            page.next = found.next;
            return Ok(self.with_keys(page));
        }
        let from = query.from.unwrap_or_default().max(log.start());
        page.next = Some(from);
        if from >= log.durable() {
            return Ok(page);
        }
        let mut reader = log.reader(from)?;
        let mut bytes = 0;
        for _ in 0..LOOKED_AT_MAX {
            let Some(record) = reader.next_record()? else {
                // The log may have grown since the page began: it is durable up to here.
                page.end = page.end.max(reader.position());
                page.next = Some(reader.position());
                return Ok(self.with_keys(page));
            };
            if page.records.len() >= query.limit || bytes >= PAGE_BYTES_MAX || Instant::now() >= until {
                page.next = Some(record.lsn);
                return Ok(self.with_keys(page));
            }
            if wanted(&record) {
                bytes += record.bytes.len();
                page.records.push(decode(&record));
            }
        }
        page.next = Some(reader.position());
        Ok(self.with_keys(page))
    }

    fn with_keys(&self, mut page: LogEntryPage) -> LogEntryPage {
        self.name_rows(&mut page.records);
        page
    }

    fn decode_entry(&self, record: &ReadRecord<'_>, deployed: &Deployed) -> LogEntry {
        decode_entry(record, deployed, &self.0.config.shared.principals)
    }

    /// Returns the record that begins at `lsn`, if there is one and it is durable.
    pub fn log_record(&self, lsn: Lsn) -> Result<Option<LogEntry>, LogReadError> {
        let log = self.0.config.log.as_ref().ok_or(LogReadError::NoLog)?;
        check_released(lsn, log.start())?;
        let Some(found) = log.record(lsn)? else {
            return Ok(None);
        };
        let mut entry = [self.decode_entry(&found.get(), &self.deployed())];
        self.name_rows(&mut entry);
        let [entry] = entry;
        Ok(Some(entry))
    }
}

impl LogSearch {
    fn check_kind(&self) -> Result<(), LogReadError> {
        match &self.kind {
            Some(kind) if RecordKind::ALL.iter().all(|known| known.name() != kind.as_str()) => {
                Err(LogReadError::BadKind(kind.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Checks the conditions that do not need the record decoded for people.
    fn passes(&self, record: &RecordRef<'_>, deployed: &Deployed) -> bool {
        let facts = record.facts();
        self.kind.as_ref().is_none_or(|kind| kind == facts.shown_as)
            && self.partition.is_none_or(|p| touches(&facts, p))
            && self.transaction.is_none_or(|txn_id| record.txn_id() == Some(txn_id))
            && self.is_of(record, &facts, deployed)
    }

    fn is_of(&self, record: &RecordRef<'_>, facts: &RecordFacts<'_>, deployed: &Deployed) -> bool {
        if self.module.is_none() && self.procedure.is_none() {
            return true;
        }
        let called = facts
            .procedure
            .map(|(module_id, number)| LogProcedure::at(module_id, number, deployed));
        let name = match record {
            RecordRef::Deploy(deploy) => Some(deploy.name),
            RecordRef::Remove(removal) => Some(removal.name),
            _ => called
                .as_ref()
                .and_then(|called| Some(called.module.as_ref()?.name.as_str())),
        };
        let schema = called.as_ref().and_then(LogProcedure::schema);
        self.module.as_deref().is_none_or(|wanted| name == Some(wanted))
            && self
                .procedure
                .as_deref()
                .is_none_or(|wanted| schema.is_some_and(|schema| schema.name == wanted))
    }
}

fn check_released(lsn: Lsn, oldest: Lsn) -> Result<(), LogReadError> {
    match lsn < oldest {
        true => Err(LogReadError::Released { oldest }),
        false => Ok(()),
    }
}
