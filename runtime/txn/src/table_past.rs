//! The former stored tables, which decode the log's records.

use std::sync::Arc;

use reprise_abi::TableSchema;
use reprise_base::TxnId;
use reprise_storage::TableId;

/// Changes of the stored tables since a transaction. A change of a table holds all partitions, so ticks tell which transactions ran before
/// it.
#[derive(Clone, Default)]
pub struct TablePast {
    /// The transaction before which the tables' past is unknown.
    since: TxnId,
    /// The former tables, in the order of `until`.
    former: Vec<FormerTable>,
}

/// A table as it was before a transaction changed or dropped it.
#[derive(Clone)]
struct FormerTable {
    id: TableId,
    until: TxnId,
    table: Arc<TableSchema>,
}

impl TablePast {
    /// Makes a past that begins at `since`.
    pub fn unknown_before(since: TxnId) -> Self {
        Self {
            since,
            former: Vec::new(),
        }
    }

    /// Records that the transaction `until`, the latest one yet, changes or drops the table. Equal forms share their memory, because
    /// deployments that are rolled back would otherwise add one form each.
    pub(crate) fn push(&mut self, id: TableId, until: TxnId, table: Arc<TableSchema>) {
        let same = self.tables().find(|former| **former == table).cloned();
        let table = same.unwrap_or(table);
        self.former.push(FormerTable { id, until, table });
    }

    /// Returns the former tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<TableSchema>> {
        self.former.iter().map(|former| &former.table)
    }

    /// True if all changes of the tables since that transaction are known.
    pub fn reaches(&self, txn_id: TxnId) -> bool {
        self.since.tick() <= txn_id.tick()
    }

    /// Returns the table as it was when the transaction ran, and the transaction that then changed it. None: the table has not changed
    /// since.
    pub(crate) fn table_at(&self, id: TableId, txn_id: TxnId) -> Option<(&Arc<TableSchema>, TxnId)> {
        let later = self
            .former
            .iter()
            .find(|former| former.id == id && former.until.tick() > txn_id.tick());
        later.map(|former| (&former.table, former.until))
    }
}
