//! The stored tables as they were: what the log's records are decoded with.

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
    /// In the order of `until`.
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
    /// Nothing is known of what was before `since`.
    pub fn unknown_before(since: TxnId) -> Self {
        Self {
            since,
            former: Vec::new(),
        }
    }

    /// The transaction `until` changes or drops the table, the latest one so far.
    pub(crate) fn push(&mut self, id: TableId, until: TxnId, table: Arc<TableSchema>) {
        self.former.push(FormerTable { id, until, table });
    }

    /// Tables as they were.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<TableSchema>> {
        self.former.iter().map(|former| &former.table)
    }

    /// True where all that became of the tables since that transaction is known.
    pub fn reaches(&self, txn_id: TxnId) -> bool {
        self.since.tick() <= txn_id.tick()
    }

    /// The table as it was when the transaction ran, and which transaction changed it then; None: it was not changed since.
    pub(crate) fn table_at(&self, id: TableId, txn_id: TxnId) -> Option<(&Arc<TableSchema>, TxnId)> {
        let later = self
            .former
            .iter()
            .find(|former| former.id == id && former.until.tick() > txn_id.tick());
        later.map(|former| (&former.table, former.until))
    }
}
