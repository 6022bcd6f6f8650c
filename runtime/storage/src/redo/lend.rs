//! Tables that leave their store while their changes are applied, so that several threads apply one partition's changes: each has other
//! tables. The store lacks them meanwhile, so the lender reads nothing else before they are back.
//! Why: one partition's changes keep one core busy, and the thread that feeds waits. Figures: `docs/lab/redo.md`, of lending every table;
//! the threshold below was not measured by itself.
//! Command: `reprise-bench tpcc --log physiological --data-dir DIR`, then `reprise-bench replay --data-dir DIR`.

use std::cmp::Reverse;

use super::{PartitionRedo, RedoError, RedoList, TableRedo, earlier};
use crate::{
    keyplan::KeyScratch,
    store::{Store, TableId},
    table::StoredTable,
};

/// Number of a table's changes below which it stays. They are applied before another thread has woken and has loaded the table's cache
/// lines.
const LEND_MIN: usize = 512;

/// A lent table, and the changes to apply to it.
pub struct LentTable {
    id: u16,
    table: StoredTable,
    list: RedoList,
    growth_times: f64,
    applied: Result<(), RedoError>,
}

impl LentTable {
    /// Applies the changes, which are in this window. The table's store gets the errors.
    pub fn apply(&mut self, window: &[u8]) {
        let redo = TableRedo {
            id: self.id,
            table: &mut self.table,
            scratch: &mut KeyScratch::default(),
            watchers: None,
        };
        self.applied = redo.apply(window, &self.list, self.growth_times);
        self.list.clear();
    }
}

impl PartitionRedo {
    /// The `apply` variant that shares the work by `carry_out`. That function gets the caller's tables, and the tables with many changes
    /// for other threads, the largest first. It must call `LentTable::apply` for each and return all of them. A watched partition lends
    /// none.
    pub fn apply_lent(
        &mut self,
        store: &mut Store,
        window: &[u8],
        growth_times: f64,
        carry_out: impl FnOnce(Vec<LentTable>, Vec<LentTable>) -> Vec<LentTable>,
    ) -> Result<(), RedoError> {
        let lists = &self.lists;
        let changes = |id: &TableId| lists[id.0 as usize].len();
        let large = self.begun.iter().filter(|id| changes(id) >= LEND_MIN).count();
        if large < 2 || store.watchers.is_some() {
            return self.apply(store, window, growth_times);
        }
        store.assert_no_undo();
        self.begun.sort_by_key(|id| Reverse(changes(id)));
        let tables = std::mem::take(&mut store.tables);
        let count = tables.len();
        let mut places: Vec<Option<StoredTable>> = tables.into_iter().map(Some).collect();
        let lend = |id: TableId| {
            Some(LentTable {
                id: id.0,
                table: places[id.0 as usize].take()?,
                list: std::mem::take(&mut self.lists[id.0 as usize]),
                growth_times,
                applied: Ok(()),
            })
        };
        let mut own: Vec<LentTable> = self.begun.drain(..).filter_map(lend).collect();
        let lent = own.drain(1..large).collect();
        let mut failed = Ok(());
        for back in carry_out(own, lent) {
            failed = earlier(failed, back.applied);
            self.lists[back.id as usize] = back.list;
            places[back.id as usize] = Some(back.table);
        }
        store.tables = places.into_iter().flatten().collect();
        assert_eq!(store.tables.len(), count, "each table that was lent comes back");
        failed
    }
}
