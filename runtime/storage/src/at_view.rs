//! A store's tables as one of its open views shows them.

use crate::{
    apply::PlainRows,
    index::{Index, NotOrdered, Range, ScanPosition, Visit},
    indirection::Rid,
    keyplan::{RowRef, Scratch},
    rows::split_stored,
    store::TableId,
    table::Table,
    views::{Edges, Entries, Seen, Shown, ViewId, Views},
    waiting::WaitingRows,
};

/// A row that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownRow<'r> {
    /// Its record id: good as long as the view is open.
    pub rid: Rid,
    /// Its number on its partition.
    pub number: u64,
    /// Its bytes.
    pub row: &'r [u8],
}

impl<'r> ShownRow<'r> {
    fn new(rid: Rid, row: RowRef<'r>) -> Self {
        let RowRef { row, number } = row;
        Self { rid, number, row }
    }
}

/// A store's tables as an open view sees them. A row that is looked at is built for all later readers. As of `Store`, methods panic on a table or an
/// index that there is not.
pub struct StoreAtView<'s> {
    tables: &'s mut [Table],
    /// None: the tables are shown as they are.
    views: Option<&'s mut Views>,
    view: ViewId,
    /// Notes reads of rows that are not acknowledged.
    waiting: Option<&'s WaitingRows>,
}

impl<'s> StoreAtView<'s> {
    pub(crate) fn new(tables: &'s mut [Table], views: Option<&'s mut Views>, view: ViewId) -> Self {
        let waiting = None;
        Self {
            tables,
            views,
            view,
            waiting,
        }
    }

    pub(crate) fn watching(self, waiting: &'s WaitingRows) -> Self {
        let waiting = Some(waiting);
        Self { waiting, ..self }
    }

    fn on_range(&self, id: TableId) {
        if let Some(waiting) = self.waiting {
            waiting.on_range(id);
        }
    }

    /// What was said of the view when it was opened; 0 of tables as they are.
    pub fn mark(&self) -> u64 {
        self.views.as_ref().map_or(0, |views| views.mark(self.view))
    }

    /// The row of an id that the view saw before.
    pub fn row(&mut self, id: TableId, rid: Rid) -> Option<&[u8]> {
        self.find(id, rid, Way::Id).map(|found| found.row)
    }

    /// The row of an id, as the view sees it.
    fn find(&mut self, id: TableId, rid: Rid, way: Way) -> Option<RowRef<'_>> {
        if let Some(waiting) = self.waiting {
            waiting.on_row(id, rid);
        }
        let mut rows = self.tables[id.0 as usize].plain_rows();
        let Some(views) = &mut self.views else {
            return rows.into_live(rid);
        };
        let (mut shown, _) = views.shown(id);
        match shown.see(self.view, rid, &mut rows) {
            Seen::Live => rows.into_live(rid),
            Seen::Kept { by_entries: true } if way == Way::Entry => None,
            Seen::Kept { .. } => Some(split_stored(shown.into_stored(self.view, rid))),
            Seen::Absent => None,
        }
    }

    /// Visits rows from `first` on as they lie, by their record ids, until `visit` ends it: rows that are live, and rows that are not any more. Behind
    /// `ids_max` record ids it ends, too. Where to go on; none behind the last row.
    pub fn walk(
        &mut self,
        id: TableId,
        first: Rid,
        ids_max: u32,
        mut visit: impl FnMut(ShownRow<'_>) -> Visit,
    ) -> Option<Rid> {
        self.on_range(id);
        let kept = self.views.as_mut().map_or(0, |views| views.shown(id).0.end());
        let end = self.tables[id.0 as usize].rows.rids_end().max(kept);
        let until = end.min(first.0.saturating_add(ids_max));
        for rid in (first.0..until).map(Rid) {
            let Some(row) = self.find(id, rid, Way::Id) else {
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

    /// As `Store::get_row`.
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
            Some(rid) => (rid, Way::Id),
            None => match found.get(&table.rows, key) {
                Some(entry) => (entry.0, Way::Entry),
                None => {
                    self.on_range(id);
                    return None;
                }
            },
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

    /// As `Store::scan`, which also ends behind `entries_max` index entries, whether the view sees their rows or not.
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
        self.on_range(id);
        let waiting = self.waiting;
        let mut visit = |row: ShownRow<'_>| {
            if let Some(waiting) = waiting {
                waiting.on_row(id, row.rid);
            }
            visit(row)
        };
        let from = position.clone();
        let (lower, upper) = from.edges(range);
        let edges = Edges { lower, upper };
        let is_reverse = range.is_reverse();
        let (rows, indexes) = self.tables[id.0 as usize].split();
        let shown = self.views.as_mut().map(|views| views.shown(id));
        let (shown, entries) = shown.unzip();
        let kept = match entries {
            Some(entries) => entries.between(self.view, index, edges, is_reverse),
            None => Entries::nothing(),
        };
        let mut walk = Walk {
            rows,
            shown,
            index: &indexes[index as usize],
            view: self.view,
            is_reverse,
            kept: kept.peekable(),
            scratch: Scratch::default(),
            looked_at: 0,
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

/// Index entries that a look-up walks over at once.
const ENTRIES_MAX: usize = 1 << 10;

/// What led to a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Id,
    /// An entry of an index, which may be older or younger than what the view sees.
    Entry,
}

/// A scan of an index and of what lies beside it.
struct Walk<'w, K: Iterator<Item = (&'w [u8], Rid)>, V> {
    rows: PlainRows<'w>,
    /// None: rows are shown as they are.
    shown: Option<Shown<'w>>,
    index: &'w Index,
    view: ViewId,
    is_reverse: bool,
    kept: std::iter::Peekable<K>,
    scratch: Scratch,
    looked_at: usize,
    entries_max: usize,
    /// The key where it stopped, and whether it goes on behind that.
    stopped: Option<(Vec<u8>, bool)>,
    visit: V,
}

impl<'w, K: Iterator<Item = (&'w [u8], Rid)>, V: FnMut(ShownRow<'_>) -> Visit> Walk<'w, K, V> {
    /// The next entry of the index itself.
    fn on_entry(&mut self, rid: Rid) -> Visit {
        if self.kept.peek().is_some() {
            let key = self.key_of(rid);
            if !self.show_kept(Some(&key)) {
                return Visit::Again;
            }
        }
        self.looked_at += 1;
        let seen = match &mut self.shown {
            Some(shown) => shown.see(self.view, rid, &mut self.rows),
            None => Seen::Live,
        };
        let row = match (seen, &self.shown) {
            (Seen::Kept { by_entries: false }, Some(shown)) => Some(split_stored(shown.stored(self.view, rid))),
            (Seen::Live, _) => Some(self.rows.rows.at(rid)),
            _ => None,
        };
        let said = row.map_or(Visit::Next, |row| (self.visit)(ShownRow::new(rid, row)));
        match said {
            Visit::Next if self.looked_at < self.entries_max => return Visit::Next,
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

    /// Shows what lies beside the index and comes before a key, or all of it. False: it stopped.
    fn show_kept(&mut self, before: Option<&[u8]>) -> bool {
        let Some(shown) = &self.shown else { return true };
        while let Some((key, rid)) = self.kept.peek().copied() {
            // With the key of an entry that the view does not see, or else it would be passed over with that.
            let comes_later = before.is_some_and(|before| match self.is_reverse {
                true => key < before,
                false => key > before,
            });
            if comes_later {
                return true;
            }
            let row = split_stored(shown.stored(self.view, rid));
            self.looked_at += 1;
            let said = (self.visit)(ShownRow::new(rid, row));
            if said == Visit::Next && self.looked_at < self.entries_max {
                self.kept.next();
                continue;
            }
            self.stopped = Some((key.to_vec(), said != Visit::Again));
            return false;
        }
        true
    }
}
