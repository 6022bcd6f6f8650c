//! The log for people: decoded records, with the module and arguments that they name.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use reprise_abi::{ProcedureSchema, RowLayout, TableSchema};
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_log::{LogError, ReadRecord};
use reprise_partition::Principals;
use reprise_storage::TableId;
use reprise_txn::{Deployed, DestroyedItem, Module, ModuleId};
use reprise_wire::{Change, Changes, PartitionSet, RecordFacts, RecordKind, RecordRef, RecordScope};

use crate::{plans::destroyed_in, router::Router};

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

/// One record.
pub struct LogEntry {
    pub lsn: Lsn,
    /// Bytes of the record in the log.
    pub bytes: u32,
    pub segment: String,
    /// Byte offset in the segment's file.
    pub offset: u64,
    pub durable: bool,
    /// Name of the record's kind.
    pub kind: &'static str,
    /// Id of the transaction. None for the genesis, and for a number without a record.
    pub txn_id: Option<TxnId>,
    /// Time of the transaction, or of the database's creation.
    pub time_us: Option<i64>,
    /// Partitions that the transaction touches; empty means all. None for a record of the whole database.
    pub partitions: Option<Vec<u16>>,
    pub procedure: Option<LogProcedure>,
    pub idempotency_key: Option<String>,
    pub idempotency_scope: Option<String>,
    /// Name of the caller. None without tokens, or if the definition of the name is not known.
    pub principal: Option<Arc<str>>,
    /// Rows that the record puts in place.
    pub rows: Vec<ChangedRow>,
    pub body: LogBody,
}

/// A procedure that a record names.
pub struct LogProcedure {
    /// None if the module number is unknown, in a log read without its earlier records.
    pub module: Option<Arc<Module>>,
    pub number: u16,
}

impl LogProcedure {
    fn at(module_id: u32, number: u16, deployed: &Deployed) -> Self {
        Self {
            module: deployed.module(ModuleId(module_id)).cloned(),
            number,
        }
    }

    pub fn schema(&self) -> Option<&ProcedureSchema> {
        self.module.as_ref()?.schema.procedures.get(self.number as usize)
    }
}

/// The migration that a module ran when it was deployed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogMigration {
    /// The migration's name. Empty if it has none.
    pub name: String,
    /// Changes of the stored tables, one line each.
    pub plan: String,
    /// Digests of the written rows, by partition.
    pub digests: Vec<u64>,
}

/// Content that records of one kind alone have.
pub enum LogBody {
    Nothing,
    Genesis {
        database_id: [u8; 16],
        partitions: u16,
    },
    Deploy {
        name: String,
        version: u32,
        hash: [u8; 32],
        wasm_bytes: u64,
        /// The migration. None if the module ran none.
        migration: Option<LogMigration>,
        /// Things that the deployment destroyed, with consent.
        destroyed: Vec<DestroyedItem>,
    },
    Remove {
        name: String,
        destroyed: Vec<DestroyedItem>,
    },
    Command {
        args: Vec<u8>,
        digest: u64,
    },
    Changes {
        digest: u64,
        /// Number of part records before it, which have the earlier rows.
        parts: u32,
    },
    /// Some changes of the transaction whose record follows.
    Part {
        /// Number of the part, from 0.
        number: u32,
    },
    DropTable {
        table: String,
    },
    /// A procedure that takes no calls from then on.
    Quarantine {
        /// The record whose replay diverged.
        diverged: Lsn,
        /// The difference that the replay found.
        what: String,
    },
}

/// One row of a `changes` record.
pub struct ChangedRow {
    pub partition: u16,
    pub table_id: u16,
    /// The table's schema at the time of the change. None if it is no longer known, because its records or checkpoints were released.
    pub table: Option<Arc<TableSchema>>,
    /// "insert", "update" or "delete".
    pub change: &'static str,
    /// The row's number.
    pub number: u64,
    /// Encoded primary key, in a table with one. It comes from the record, or, in a page of records that asks for it, from the present row.
    /// None for an insertion, whose row holds it, or if it is not known.
    pub key: Option<Vec<u8>>,
    /// The row of an insert, or of an update that was not logged by columns.
    pub row: Option<Vec<u8>>,
    /// Changed columns: position, and value in the form of a row's slot. None for null.
    pub columns: Vec<(u16, Option<Vec<u8>>)>,
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
/// Records taken from the log's end at a time.
const NEWEST_CHUNK: usize = 32;
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
        let mut bytes = 0;
        if query.newest {
            let mut before = query.from;
            while page.records.len() < query.limit && bytes < PAGE_BYTES_MAX {
                let wanted_count = NEWEST_CHUNK.min(query.limit - page.records.len());
                let found = log.newest(before, wanted_count, wanted)?;
                for owned in &found.records {
                    bytes += owned.bytes().len();
                    page.records.push(decode(&owned.get()));
                }
                page.next = found.next;
                if found.next.is_none() || found.records.len() < wanted_count || Instant::now() >= until {
                    break;
                }
                before = found.next;
            }
            return Ok(self.with_keys(page));
        }
        let from = query.from.unwrap_or_default().max(log.start());
        page.next = Some(from);
        if from >= log.durable() {
            return Ok(page);
        }
        let mut reader = log.reader(from)?;
        for _ in 0..LOOKED_AT_MAX {
            let Some(record) = reader.next_record()? else {
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

/// Returns a record in the terms of this interface. `deployed` names the modules, `principals` the callers.
pub fn decode_entry(record: &ReadRecord<'_>, deployed: &Deployed, principals: &Principals) -> LogEntry {
    let facts = record.record.facts();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // Without a scope, the key belongs to all callers.
    let scope = facts.keyed.map(|keyed| keyed.scope).filter(|scope| !scope.is_empty());
    LogEntry {
        lsn: record.lsn,
        bytes: record.bytes.len() as u32,
        segment: record.place.file(),
        offset: record.place.offset,
        durable: true,
        kind: facts.shown_as,
        txn_id: record.record.txn_id(),
        time_us: record.record.time_us(),
        partitions: match facts.scope {
            RecordScope::Partitions(partitions) => Some(numbers(&partitions)),
            RecordScope::Database | RecordScope::Nothing => None,
        },
        procedure: facts
            .procedure
            .map(|(module_id, number)| LogProcedure::at(module_id, number, deployed)),
        idempotency_key: facts.keyed.map(|keyed| text(keyed.key)),
        idempotency_scope: scope.map(text),
        principal: match &record.record {
            RecordRef::Principal(defined) => Some(defined.name.into()),
            _ => principals.name(facts.principal),
        },
        rows: changed_rows(&record.record, deployed),
        body: body_of(&record.record),
    }
}

fn body_of(record: &RecordRef<'_>) -> LogBody {
    match record {
        RecordRef::Genesis(genesis) => LogBody::Genesis {
            database_id: genesis.database_id,
            partitions: genesis.partitions,
        },
        RecordRef::Deploy(deploy) => LogBody::Deploy {
            name: deploy.name.to_owned(),
            version: deploy.version,
            hash: deploy.hash,
            wasm_bytes: deploy.wasm.len() as u64,
            migration: deploy.migration.map(|found| LogMigration {
                name: found.name.to_owned(),
                plan: found.plan.to_owned(),
                digests: found.digests().collect(),
            }),
            destroyed: destroyed_in(&deploy.destroyed),
        },
        RecordRef::Remove(removal) => LogBody::Remove {
            name: removal.name.to_owned(),
            destroyed: destroyed_in(&removal.destroyed),
        },
        RecordRef::Command(command) => LogBody::Command {
            args: command.args.to_vec(),
            digest: command.digest,
        },
        RecordRef::Changes(changes) => LogBody::Changes {
            digest: changes.digest,
            parts: changes.parts,
        },
        RecordRef::Part(part) => LogBody::Part { number: part.number },
        RecordRef::DropTable(drop) => LogBody::DropTable {
            table: drop.table.to_owned(),
        },
        RecordRef::Quarantine(found) => LogBody::Quarantine {
            diverged: found.diverged,
            what: found.what.to_owned(),
        },
        RecordRef::Checkpoint(_) | RecordRef::Principal(_) | RecordRef::Void => LogBody::Nothing,
    }
}

fn changed_rows(record: &RecordRef<'_>, deployed: &Deployed) -> Vec<ChangedRow> {
    let mut rows = Vec::new();
    for (partition, changes) in record.groups() {
        let txn_id = record.txn_id().expect("a transaction changed the rows");
        // A decoded record has no errors in its changes.
        let changes = Changes::new(changes).flatten();
        rows.extend(changes.map(|change| {
            let table = deployed.table_at(TableId(change.table()), txn_id);
            changed_row(partition, change, table.cloned())
        }));
    }
    rows
}

fn changed_row(partition: PartitionId, change: Change<'_>, table: Option<Arc<TableSchema>>) -> ChangedRow {
    let mut found = ChangedRow {
        partition: partition.0,
        table_id: change.table(),
        table,
        change: "update",
        number: change.number(),
        key: None,
        row: None,
        columns: Vec::new(),
    };
    match change {
        Change::Insert { row, .. } => {
            found.change = "insert";
            found.row = Some(row.to_vec());
        }
        Change::Replace { row, .. } => {
            found.key = found.table.as_ref().and_then(|table| key_of(table, row));
            found.row = Some(row.to_vec());
        }
        Change::Patch { columns, .. } => {
            found.columns = columns
                .iter()
                .map(|(column, value)| (column, value.map(<[u8]>::to_vec)))
                .collect();
        }
        Change::Delete { .. } => found.change = "delete",
    }
    found
}

/// Returns the encoded primary key of a row. None if the table has none, or if the bytes are no row of the table.
pub(crate) fn key_of(table: &TableSchema, row: &[u8]) -> Option<Vec<u8>> {
    let layout = RowLayout::of_table(table);
    if table.primary_key.is_empty() || layout.validate(row).is_err() {
        return None;
    }
    let mut key = Vec::new();
    layout.push_key(row, &table.primary_key, &mut key);
    Some(key)
}

fn numbers(partitions: &PartitionSet<'_>) -> Vec<u16> {
    match partitions {
        PartitionSet::One(PartitionId(one)) => vec![*one],
        PartitionSet::Several(list) => list.iter().map(|p| p.0).collect(),
        PartitionSet::All => Vec::new(),
    }
}
