//! Finds the present primary keys of rows that the log names by their numbers. It asks the partitions of the rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use reprise_abi::{TablePlacement, TableSchema};
use reprise_base::PartitionId;
use reprise_partition::{ExclusivePartitions, TxnPartitions};
use reprise_storage::TableId;
use reprise_txn::partition_between;

use crate::{
    log_entry::{ChangedRow, LogEntry, key_of},
    query::RowsError,
    router::Router,
};

/// Number of a page's rows whose keys are asked for. Later rows are shown by number.
const ROWS_ASKED_MAX: usize = 2_048;
/// Rows for which a partition is held at once: some tens of microseconds.
const ROWS_AT_ONCE: usize = 256;
/// Longest wait for a partition. A partition that is busy for longer is not asked again for the same page.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// A row by its number, on one partition, or for a replicated table on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumberedRow {
    /// The partition. None for a replicated table.
    pub partition: Option<PartitionId>,
    pub table: TableId,
    pub number: u64,
}

/// A table as the caller knows it, and the values that are searched in it.
type TableSearch<T> = (TableId, Arc<TableSchema>, T);

impl NumberedRow {
    /// Returns the row of a change. None if its table is no longer known.
    pub fn of(row: &ChangedRow) -> Option<Self> {
        let table = row.table.as_ref()?;
        let is_copy = table.placement == TablePlacement::Replicated;
        Some(Self {
            partition: (!is_copy).then_some(PartitionId(row.partition)),
            table: TableId(row.table_id),
            number: row.number,
        })
    }
}

impl Router {
    /// Adds the present keys of changed rows whose records have only numbers, for at most `ROWS_ASKED_MAX` rows. Deleted rows get no key.
    /// After a partition was busy for too long, all later rows get none either.
    pub(crate) fn name_rows(&self, entries: &mut [LogEntry]) {
        let mut unnamed: BTreeMap<u16, Vec<TableSearch<&mut ChangedRow>>> = BTreeMap::new();
        let mut left = ROWS_ASKED_MAX;
        for entry in entries {
            for row in &mut entry.rows {
                let is_asked = row.key.is_none() && row.row.is_none() && NumberedRow::of(row).is_some();
                let Some(table) = row
                    .table
                    .clone()
                    .filter(|table| is_asked && !table.primary_key.is_empty())
                else {
                    continue;
                };
                if left == 0 {
                    return self.ask_keys(unnamed);
                }
                left -= 1;
                let asked = (TableId(row.table_id), table, row);
                unnamed.entry(asked.2.partition).or_default().push(asked);
            }
        }
        self.ask_keys(unnamed)
    }

    fn ask_keys(&self, unnamed: BTreeMap<u16, Vec<TableSearch<&mut ChangedRow>>>) {
        for (partition, mut rows) in unnamed {
            for rows in rows.chunks_mut(ROWS_AT_ONCE) {
                let asked = rows
                    .iter()
                    .map(|(table, schema, row)| (*table, schema.clone(), row.number));
                let asked: Vec<_> = asked.collect();
                let Ok(keys) = self.ask_partition(PartitionId(partition), move |held| {
                    let key = |(table, schema, number): &TableSearch<u64>| {
                        known(held, *table, schema)?;
                        key_of(schema, held.partitions[0].store.numbered_row(*table, *number)?)
                    };
                    asked.iter().map(key).collect::<Vec<_>>()
                }) else {
                    return;
                };
                rows.iter_mut().zip(keys).for_each(|((.., row), key)| row.key = key);
            }
        }
    }

    /// Returns the numbers of the rows that have these whole primary keys (`reprise_abi::key`) now. It asks the partition of each key; for
    /// a partition-local table it asks all partitions. Err: this node can't answer.
    pub fn numbered_rows(&self, keys: Vec<TableSearch<Vec<u8>>>) -> Result<BTreeSet<NumberedRow>, RowsError> {
        let count = self.partitions_count();
        let mut by_partition: BTreeMap<PartitionId, Vec<TableSearch<Vec<u8>>>> = BTreeMap::new();
        for (table, schema, key) in keys {
            let place = match schema.placement {
                TablePlacement::Replicated => Some(PartitionId(0)),
                TablePlacement::By(column) => partition_between(&schema, 0, column, (&key, &key), count),
                TablePlacement::Local => None,
            };
            let places = match place {
                Some(one) => one.0..one.0 + 1,
                None => 0..count,
            };
            for id in places {
                let asked = (table, schema.clone(), key.clone());
                by_partition.entry(PartitionId(id)).or_default().push(asked);
            }
        }
        let mut found = BTreeSet::new();
        for (id, keys) in by_partition {
            found.extend(self.ask_partition(id, move |held| {
                let store = &held.partitions[0].store;
                let number = |(table, schema, key): &TableSearch<Vec<u8>>| {
                    known(held, *table, schema)?;
                    let number = store.row_number(*table, store.get(*table, 0, key)?);
                    let is_copy = schema.placement == TablePlacement::Replicated;
                    Some(NumberedRow {
                        partition: (!is_copy).then_some(id),
                        table: *table,
                        number,
                    })
                };
                keys.iter().filter_map(number).collect::<Vec<_>>()
            })?);
        }
        Ok(found)
    }

    /// Runs `read` on one partition, without holding any other.
    fn ask_partition<T: Send + Sync + 'static>(
        &self,
        id: PartitionId,
        read: impl FnOnce(&ExclusivePartitions<'_>) -> T + Send + 'static,
    ) -> Result<T, RowsError> {
        self.check_ready()?;
        self.run_durably_within(TxnPartitions::Some(vec![id]), WAIT_MAX, move |held| Ok(read(held)))
    }
}

/// Checks that the table has not changed since the caller read its schema.
fn known(held: &ExclusivePartitions<'_>, table: TableId, schema: &Arc<TableSchema>) -> Option<()> {
    let now = held.tools.deployed().tables.get(table.0 as usize)?;
    Arc::ptr_eq(now, schema).then_some(())
}
