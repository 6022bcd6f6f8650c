//! Readers of earlier states of rows: a checkpoint in progress, and open views. Without any, a change pays one comparison for both.

use reprise_wire::PatchColumns;

use crate::{
    indirection::Rid,
    rows::RowHeap,
    snapshot::Snapshot,
    store::{Store, TableId},
    table::StoredTable,
    views::{Touch, Views},
};

#[derive(Default)]
pub(crate) struct Watchers {
    pub snapshot: Option<Snapshot>,
    pub views: Option<Views>,
}

impl Watchers {
    /// Records that a row is about to change, or that its id was just given out.
    #[cold]
    pub fn before_change(&mut self, id: TableId, rid: Rid, table: &mut StoredTable, touch: Touch) {
        if let Some(views) = &mut self.views {
            views.before_change(id, rid, table, touch);
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.before_change(id, rid, &table.rows, touch == Touch::New);
        }
    }

    /// Defers a change as a note, as `Views::defer` does. A checkpoint and digests read the rows themselves, so no
    /// change is deferred while one is made.
    #[inline]
    pub fn defer(&mut self, id: TableId, rid: Rid, columns: Option<PatchColumns<'_>>, table: &mut StoredTable) -> bool {
        match (&self.snapshot, &mut self.views) {
            (None, Some(views)) => views.defer(id, rid, columns, table),
            _ => false,
        }
    }

    /// The `before_change` variant for a row whose plain columns change.
    #[cold]
    pub fn before_patch(&mut self, id: TableId, rid: Rid, rows: &RowHeap) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.before_change(id, rid, rows, false);
        }
        if let Some(views) = &mut self.views {
            views.before_patch(id, rid, rows);
        }
    }
}

impl Store {
    /// Has each watcher keep the row in its present form.
    #[inline]
    pub(crate) fn keep_before(&mut self, id: TableId, rid: Rid, touch: Touch) {
        if let Some(watchers) = &mut self.watchers {
            watchers.before_change(id, rid, &mut self.tables[id.0 as usize], touch);
        }
    }

    /// Has each watcher skip a new row.
    #[inline]
    pub(crate) fn pass_over(&mut self, id: TableId, rid: Rid) {
        self.keep_before(id, rid, Touch::New);
    }

    /// Returns the watchers, and makes them if there are none.
    pub(crate) fn watch(&mut self) -> &mut Watchers {
        self.watchers.get_or_insert_default()
    }

    /// Drops idle watchers, so that changes pay nothing.
    pub(crate) fn forget_idle_watchers(&mut self) {
        let is_idle = |watchers: &mut Box<Watchers>| watchers.snapshot.is_none() && watchers.views.is_none();
        self.watchers.take_if(is_idle);
    }
}
