//! A store's tables at one of its open views.

use crate::{
    apply::PlainRows,
    index::{Index, NotOrdered, Range, ScanPosition, Visit},
    indirection::Rid,
    keyplan::{KeyScratch, StoredRow},
    rows::split_stored,
    store::TableId,
    table::StoredTable,
    views::{Edges, KeptEntries, RowVisibility, VersionedRows, ViewId, Views},
};

/// A row at a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownRow<'r> {
    /// Its record id, which is valid while the view is open.
    pub rid: Rid,
    /// Its number on its partition.
    pub number: u64,
    /// Its bytes.
    pub row: &'r [u8],
}

impl<'r> ShownRow<'r> {
    fn new(rid: Rid, row: StoredRow<'r>) -> Self {
        let StoredRow { row, number } = row;
        Self { rid, number, row }
    }
}

/// A store's tables at an open view. A row that a reader reads is built for all later readers. Like those of `Store`, methods panic on a
/// table or an index that does not exist.
pub struct StoreAtView<'s> {
    tables: &'s mut [StoredTable],
    /// The views. None: the tables are shown as they are.
    views: Option<&'s mut Views>,
    view: ViewId,
}

impl<'s> StoreAtView<'s> {
    pub(crate) fn new(tables: &'s mut [StoredTable], views: Option<&'s mut Views>, view: ViewId) -> Self {
        Self { tables, views, view }
    }

    /// Returns the mark that the view was opened with; 0 for tables as they are.
    pub fn mark(&self) -> u64 {
        self.views.as_ref().map_or(0, |views| views.mark(self.view))
    }

    /// Returns the row of an id that the view has shown before.
    pub fn row(&mut self, id: TableId, rid: Rid) -> Option<&[u8]> {
        self.find(id, rid, AccessPath::Id).map(|found| found.row)
    }

    /// Returns the row of an id, as the view sees it.
    fn find(&mut self, id: TableId, rid: Rid, way: AccessPath) -> Option<StoredRow<'_>> {
        let mut rows = self.tables[id.0 as usize].plain_rows();
        let Some(views) = &mut self.views else {
            return rows.into_live(rid);
        };
        let (mut shown, _) = views.shown(id);
        match shown.see(self.view, rid, &mut rows) {
            RowVisibility::Live => rows.into_live(rid),
            RowVisibility::Kept { by_entries: true } if way == AccessPath::Entry => None,
            RowVisibility::Kept { .. } => Some(split_stored(shown.into_stored(self.view, rid))),
            RowVisibility::Absent => None,
        }
    }

    /// Visits rows from `first` on by their record ids, until `visit` ends it: live rows, and rows that were removed since. It also ends
    /// after `ids_max` record ids. Returns the id to continue at, or None behind the last row.
    pub fn walk(
        &mut self,
        id: TableId,
        first: Rid,
        ids_max: u32,
        mut visit: impl FnMut(ShownRow<'_>) -> Visit,
    ) -> Option<Rid> {
        let kept = self.views.as_mut().map_or(0, |views| views.shown(id).0.end());
        let end = self.tables[id.0 as usize].rows.rids_end().max(kept);
        let until = end.min(first.0.saturating_add(ids_max));
        for rid in (first.0..until).map(Rid) {
            let Some(row) = self.find(id, rid, AccessPath::Id) else {
                continue;
            };
            match visit(ShownRow::new(rid, row)) {
                Visit::Next => {}
                Visit::Stop => return Some(Rid(rid.0 + 1)),
                Visit::Again => return Some(rid),
            }
        }
        (until < end).then_some(Rid(until))
    }

    /// Returns the row under a key of an index, like `Store::get_row`.
    pub fn get_row(&mut self, id: TableId, index: u16, key: &[u8]) -> Option<(Rid, &[u8])> {
        let table = &self.tables[id.0 as usize];
        let found = &table.indexes[index as usize];
        if !found.is_whole(key) {
            return None;
        }
        if !found.is_unique {
            return self.first_of(id, index, key);
        }
        let view = self.view;
        let views = self.views.as_mut();
        let beside = views.and_then(|views| views.shown(id).1.get(view, index, key));
        let (rid, way) = match beside {
            Some(rid) => (rid, AccessPath::Id),
            None => (found.get(&table.rows, key)?.0, AccessPath::Entry),
        };
        self.find(id, rid, way).map(|found| (rid, found.row))
    }

    fn first_of(&mut self, id: TableId, index: u16, key: &[u8]) -> Option<(Rid, &[u8])> {
        let range = Range::new(key, key, Default::default());
        let (mut position, mut first) = (ScanPosition::default(), None);
        while first.is_none() && !position.is_end() {
            let on_row = |row: ShownRow<'_>| {
                first = Some(row.rid);
                Visit::Stop
            };
            self.scan(id, index, &range, (&mut position, ENTRIES_MAX), on_row)
                .ok()?;
        }
        let rid = first?;
        Some((rid, self.row(id, rid)?))
    }

    /// The `Store::scan` variant that also ends after `entries_max` index entries, whether or not the view sees their rows.
    pub fn scan(
        &mut self,
        id: TableId,
        index: u16,
        range: &Range<'_>,
        (position, entries_max): (&mut ScanPosition, usize),
        mut visit: impl FnMut(ShownRow<'_>) -> Visit,
    ) -> Result<(), NotOrdered> {
        if position.is_end() {
            return Ok(());
        }
        let from = position.clone();
        let (lower, upper) = from.edges(range);
        let edges = Edges { lower, upper };
        let is_reverse = range.is_reverse();
        let (rows, indexes) = self.tables[id.0 as usize].split();
        let shown = self.views.as_mut().map(|views| views.shown(id));
        let (shown, entries) = shown.unzip();
        let kept = match entries {
            Some(entries) => entries.between(self.view, index, edges, is_reverse),
            None => KeptEntries::nothing(),
        };
        let mut walk = ViewWalk {
            rows,
            shown,
            index: &indexes[index as usize],
            view: self.view,
            is_reverse,
            kept: kept.peekable(),
            scratch: KeyScratch::default(),
            rows_read: 0,
            entries_max,
            stopped: None,
            visit: &mut visit,
        };
        let mut live = from.clone();
        let found = walk.index;
        found.scan(range, &mut live, |rid| walk.on_entry(rid))?;
        if walk.stopped.is_none() {
            walk.show_kept(None);
        }
        match walk.stopped {
            Some((key, is_taken)) => position.stop_at(key, is_taken),
            None => position.end(),
        }
        Ok(())
    }
}

/// Number of index entries that a look-up passes at once.
const ENTRIES_MAX: usize = 1 << 10;

/// How the reader found a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AccessPath {
    Id,
    /// The reader used an entry of an index, which may be older or newer than the view.
    Entry,
}

/// A scan of an index and of the kept entries beside it.
struct ViewWalk<'w, K: Iterator<Item = (&'w [u8], Rid)>, V> {
    rows: PlainRows<'w>,
    /// The kept versions. None: rows are shown as they are.
    shown: Option<VersionedRows<'w>>,
    index: &'w Index,
    view: ViewId,
    is_reverse: bool,
    kept: std::iter::Peekable<K>,
    scratch: KeyScratch,
    rows_read: usize,
    entries_max: usize,
    /// The key at which it stopped, and whether it continues behind that key.
    stopped: Option<(Vec<u8>, bool)>,
    visit: V,
}

impl<'w, K: Iterator<Item = (&'w [u8], Rid)>, V: FnMut(ShownRow<'_>) -> Visit> ViewWalk<'w, K, V> {
    /// Takes the next entry of the index itself.
    fn on_entry(&mut self, rid: Rid) -> Visit {
        if self.kept.peek().is_some() {
            let key = self.key_of(rid);
            if !self.show_kept(Some(&key)) {
                return Visit::Again;
            }
        }
        self.rows_read += 1;
        let seen = match &mut self.shown {
            Some(shown) => shown.see(self.view, rid, &mut self.rows),
            None => RowVisibility::Live,
        };
        let row = match (seen, &self.shown) {
            (RowVisibility::Kept { by_entries: false }, Some(shown)) => {
                Some(split_stored(shown.stored(self.view, rid)))
            }
            (RowVisibility::Live, _) => Some(self.rows.rows.at(rid)),
            _ => None,
        };
        let said = row.map_or(Visit::Next, |row| (self.visit)(ShownRow::new(rid, row)));
        match said {
            Visit::Next if self.rows_read < self.entries_max => return Visit::Next,
            Visit::Next | Visit::Stop => self.stopped = Some((self.key_of(rid), true)),
            Visit::Again => self.stopped = Some((self.key_of(rid), false)),
        }
        Visit::Stop
    }

    fn key_of(&mut self, rid: Rid) -> Vec<u8> {
        let PlainRows { rows, layout, .. } = &self.rows;
        let key = self.index.plan.encode(layout, rows.at(rid), &mut self.scratch);
        key.bytes.to_vec()
    }

    /// Shows the kept entries before a key, or all of them. False: the visitor stopped.
    fn show_kept(&mut self, before: Option<&[u8]>) -> bool {
        let Some(shown) = &self.shown else { return true };
        while let Some((key, rid)) = self.kept.peek().copied() {
            // A kept entry with the key of an index entry that the view does not see comes now. Otherwise the scan would skip it with that
            // entry.
            let comes_later = before.is_some_and(|before| match self.is_reverse {
                true => key < before,
                false => key > before,
            });
            if comes_later {
                return true;
            }
            let row = split_stored(shown.stored(self.view, rid));
            self.rows_read += 1;
            let said = (self.visit)(ShownRow::new(rid, row));
            if said == Visit::Next && self.rows_read < self.entries_max {
                self.kept.next();
                continue;
            }
            self.stopped = Some((key.to_vec(), said != Visit::Again));
            return false;
        }
        true
    }
}
