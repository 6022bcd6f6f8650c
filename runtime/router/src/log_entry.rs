//! A record of the log in the terms of people: with the module, the caller and the rows that it names.

use std::sync::Arc;

use reprise_abi::{ProcedureSchema, RowLayout, TableSchema};
use reprise_base::{Lsn, PartitionId, TxnId};
use reprise_log::ReadRecord;
use reprise_partition::Principals;
use reprise_storage::TableId;
use reprise_txn::{Deployed, DestroyedItem, Module, ModuleId};
use reprise_wire::{Change, Changes, PartitionSet, RecordRef, RecordScope};

use crate::plans::destroyed_in;

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
    pub(crate) fn at(module_id: u32, number: u16, deployed: &Deployed) -> Self {
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

/// A control operation: what was done, to what, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogControl {
    pub operation: String,
    /// `done`, or the slug of the problem.
    pub outcome: String,
    /// May be empty.
    pub subject: String,
    /// Duration in microseconds. The largest number also stands for longer ones.
    pub took_us: u32,
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
    /// A control operation. The entry's principal carried it out, or was refused.
    Control(LogControl),
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
            RecordRef::Control(control) => Some(control.principal.into()),
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
        RecordRef::Control(control) => LogBody::Control(LogControl {
            operation: control.operation.to_owned(),
            outcome: control.outcome.to_owned(),
            subject: control.subject.to_owned(),
            took_us: control.took_us,
        }),
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
