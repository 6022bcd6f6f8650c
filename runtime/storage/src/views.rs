//! Rows as open views see them (Query Fresh, section 3.4, with the versions made by whoever changes a row): before a row changes that an open
//! view sees, it is kept as it is, once for all views that are open. A reader takes the version of its view, or else the row itself.
//!
//! A row is found by a version's keys, too. As long as no index entry of a row has changed since a version was kept, the row's own entries
//! lead to the version. From then on the version's entries lie beside each index, and the row's own lead past it.

use std::{
    collections::{BTreeMap, btree_map::Entry as MapEntry},
    mem,
    ops::Bound,
};

use reprise_base::MemoryKind;
use reprise_pages::drop_aside;

use crate::{
    charge::Charge,
    index::{Index, NotOrdered, Range, ScanPosition, Visit},
    indirection::Rid,
    keyplan::{RowRef, Scratch},
    rows::{Rows, split_stored},
    store::{Store, TableId},
    table::Table,
    treekey::Edge,
};

/// Views are numbered in the order in which they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ViewId(pub u64);

/// Why nothing is seen at a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum ViewError {
    #[error("the view is not open here")]
    NotOpen,
    #[error("the versions that the view needs took more than {max} bytes")]
    Lost { max: usize },
}

/// What becomes of a row that a view may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Its id has just been given out.
    New,
    /// No key of an index changes.
    Plain,
    /// Anything may change.
    Any,
}

/// Bytes of a version beside its row, and of an entry beside its key, about.
const VERSION_BYTES: usize = 96;
const ENTRY_BYTES: usize = 80;
/// Versions that no view needs any more, dropped when a view is opened or closed: as many as a window of the log changes rows, about.
const COLLECTED_AT_ONCE: usize = 4 << 10;
/// Bytes of versions from which on they are dropped aside.
const DROP_BYTES_MIN: usize = 1 << 20;

/// Views from `since` to `until` see it.
#[derive(Clone, Copy)]
struct Span {
    since: u64,
    until: u64,
}

impl Span {
    fn holds(self, view: ViewId) -> bool {
        (self.since..=self.until).contains(&view.0)
    }
}

struct Version {
    span: Span,
    /// The row with its number; none where there was no row.
    stored: Option<Box<[u8]>>,
    /// Its entries lie beside the indexes.
    has_entries: bool,
}

/// Of a version, beside an index.
struct KeptEntry {
    rid: Rid,
    span: Span,
}

#[derive(Default)]
struct TableVersions {
    /// By record id; those of one row in the order of their spans.
    rows: BTreeMap<u32, Vec<Version>>,
    /// By index, then by the whole entry key. Those of one key have spans that do not meet.
    entries: Vec<BTreeMap<Box<[u8]>, Vec<KeptEntry>>>,
}

/// What is kept for the views that are open.
pub(crate) struct Views {
    /// With what whoever opened them says of them.
    open: BTreeMap<u64, u64>,
    newest: u64,
    /// Views up to this one are given up: their versions took too much.
    lost: u64,
    tables: Vec<TableVersions>,
    /// By the last view that sees them, which rows have versions, as far as they were not looked at.
    kept: BTreeMap<u64, Vec<(TableId, Rid)>>,
    charge: Charge,
    bytes_max: usize,
    scratch: Scratch,
}

/// How a view sees a row.
enum Seen<'s> {
    /// As it is.
    Live,
    /// So, and where `by_entries`, not through the row's own index entries.
    Kept { stored: &'s [u8], by_entries: bool },
    /// Not at all.
    Absent,
}

impl TableVersions {
    fn seen(&self, view: ViewId, rid: Rid) -> Seen<'_> {
        let versions = self.rows.get(&rid.0).map_or(&[][..], Vec::as_slice);
        match versions.iter().find(|version| version.span.until >= view.0) {
            None => Seen::Live,
            Some(Version { stored: None, .. }) => Seen::Absent,
            Some(Version {
                stored: Some(stored),
                has_entries,
                ..
            }) => Seen::Kept {
                stored,
                by_entries: *has_entries,
            },
        }
    }

    /// The stored row under an entry key that lies beside the index.
    fn entry(&self, view: ViewId, index: u16, key: &[u8]) -> Option<(Rid, &[u8])> {
        let entries = self.entries.get(index as usize)?.get(key)?;
        let entry = entries.iter().find(|entry| entry.span.holds(view))?;
        Some((entry.rid, self.stored(view, entry.rid)))
    }

    fn stored(&self, view: ViewId, rid: Rid) -> &[u8] {
        match self.seen(view, rid) {
            Seen::Kept { stored, .. } => stored,
            Seen::Live | Seen::Absent => unreachable!("an entry beside an index is of a kept version"),
        }
    }

    /// Entries beside an index that the view sees, between two edges, in the direction of the range.
    fn entries_between<'v>(
        &'v self,
        view: ViewId,
        index: u16,
        edges: Edges<'v>,
        is_reverse: bool,
    ) -> Box<dyn Iterator<Item = (&'v [u8], Rid)> + 'v> {
        let Some(map) = self.entries.get(index as usize).filter(|map| !map.is_empty()) else {
            return Box::new(std::iter::empty());
        };
        let visible = move |key: &'v [u8], entries: &'v [KeptEntry]| {
            let entry = entries.iter().find(|entry| entry.span.holds(view))?;
            Some((key, entry.rid))
        };
        let Edges { lower, upper } = edges;
        if is_reverse {
            let end = successor(upper.bytes).map_or(Bound::Unbounded, Bound::Included);
            let walk = map.range::<[u8], _>((Bound::Unbounded, end.as_ref().map(Vec::as_slice)));
            let walk = walk.rev().skip_while(move |(key, _)| !upper.is_behind(key));
            return Box::new(
                walk.take_while(move |(key, _)| !lower.is_behind(key))
                    .filter_map(move |(key, entries)| visible(key, entries)),
            );
        }
        let zeros = lower.bytes.iter().rev().take_while(|byte| **byte == 0).count();
        let first = &lower.bytes[..lower.bytes.len() - zeros];
        let walk = map.range::<[u8], _>((Bound::Included(first), Bound::Unbounded));
        let walk = walk.skip_while(move |(key, _)| lower.is_behind(key));
        Box::new(
            walk.take_while(move |(key, _)| upper.is_behind(key))
                .filter_map(move |(key, entries)| visible(key, entries)),
        )
    }
}

#[derive(Clone, Copy)]
struct Edges<'a> {
    lower: Edge<'a>,
    upper: Edge<'a>,
}

/// The least bytes behind all that begin with these; none where there are none.
fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let last = bytes.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = bytes[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

impl Views {
    fn new(store: &Store, bytes_max: usize) -> Self {
        let mut charge = Charge::default();
        if let Some(memory) = &store.memory {
            charge.count_in(memory.kind(MemoryKind::Views));
        }
        Self {
            open: BTreeMap::new(),
            newest: 0,
            lost: 0,
            tables: Vec::new(),
            kept: BTreeMap::new(),
            charge,
            bytes_max,
            scratch: Scratch::default(),
        }
    }

    /// As of `Watchers`.
    pub fn before_change(&mut self, id: TableId, rid: Rid, table: &Table, touch: Touch) {
        if self.newest <= self.lost {
            return; // nobody can see it any more
        }
        self.keep(id, rid, &table.rows, touch == Touch::New);
        if touch == Touch::Any {
            self.add_entries(id, rid, table);
        }
        self.judge_bytes();
    }

    /// As of `Watchers`.
    pub fn before_patch(&mut self, id: TableId, rid: Rid, rows: &Rows) {
        if self.newest > self.lost {
            self.keep(id, rid, rows, false);
            self.judge_bytes();
        }
    }

    /// Keeps the row as it is for the views that see it so, unless it is kept already.
    fn keep(&mut self, id: TableId, rid: Rid, rows: &Rows, is_new: bool) {
        let (at, until) = (id.0 as usize, self.newest);
        if self.tables.len() <= at {
            self.tables.resize_with(at + 1, TableVersions::default);
        }
        let versions = self.tables[at].rows.entry(rid.0).or_default();
        let last = versions.last().map(|version| version.span.until);
        if last == Some(until) {
            return;
        }
        let live = (!is_new).then(|| rows.place(rid)).flatten();
        let stored: Option<Box<[u8]>> = live.map(|place| rows.stored(place).into());
        let bytes = VERSION_BYTES + stored.as_ref().map_or(0, |stored| stored.len());
        let since = last.map_or(0, |last| last + 1);
        versions.push(Version {
            span: Span { since, until },
            stored,
            has_entries: false,
        });
        self.kept.entry(until).or_default().push((id, rid));
        self.charge.grow(bytes);
    }

    /// An index entry of the row may go: from now on its versions are found by entries of their own.
    fn add_entries(&mut self, id: TableId, rid: Rid, table: &Table) {
        let TableVersions { rows, entries } = &mut self.tables[id.0 as usize];
        let versions = rows.get_mut(&rid.0).map_or(&mut [][..], Vec::as_mut_slice);
        let mut bytes = 0;
        for version in versions.iter_mut().filter(|version| !version.has_entries) {
            version.has_entries = true;
            let Some(stored) = &version.stored else { continue };
            if entries.len() < table.indexes.len() {
                entries.resize_with(table.indexes.len(), BTreeMap::new);
            }
            for (index, entries) in table.indexes.iter().zip(entries.iter_mut()) {
                let key = index
                    .plan
                    .encode(&table.layout, split_stored(stored), &mut self.scratch);
                let entry = KeptEntry {
                    rid,
                    span: version.span,
                };
                entries.entry(key.bytes.into()).or_default().push(entry);
                bytes += ENTRY_BYTES + key.bytes.len();
            }
        }
        self.charge.grow(bytes);
    }

    /// All views that are open are given up where their versions take too much: none of them ever sees something else instead.
    fn judge_bytes(&mut self) {
        if self.charge.bytes() > self.bytes_max {
            self.lost = self.newest;
            self.forget_versions();
        }
    }

    fn forget_versions(&mut self) {
        let versions = (mem::take(&mut self.tables), mem::take(&mut self.kept));
        if self.charge.bytes() >= DROP_BYTES_MIN {
            drop_aside(versions);
        }
        self.charge.resize(0);
    }

    /// Drops some versions that no open view sees.
    fn collect(&mut self, tables: &[Table]) {
        let oldest = self.open.first_key_value().map_or(u64::MAX, |(view, _)| *view);
        for _ in 0..COLLECTED_AT_ONCE {
            let Some(mut kept) = self.kept.first_entry().filter(|kept| *kept.key() < oldest) else {
                return;
            };
            match kept.get_mut().pop() {
                None => _ = kept.remove(),
                Some((id, rid)) => {
                    let until = *kept.key();
                    self.drop_version(until, id, rid, &tables[id.0 as usize]);
                }
            }
        }
    }

    fn drop_version(&mut self, until: u64, id: TableId, rid: Rid, table: &Table) {
        let TableVersions { rows, entries } = &mut self.tables[id.0 as usize];
        let MapEntry::Occupied(mut row) = rows.entry(rid.0) else {
            return;
        };
        let versions = row.get_mut();
        let Some(at) = versions.iter().position(|version| version.span.until == until) else {
            return;
        };
        let gone = versions.remove(at);
        if versions.is_empty() {
            row.remove();
        }
        let mut bytes = VERSION_BYTES + gone.stored.as_ref().map_or(0, |stored| stored.len());
        if let (true, Some(stored)) = (gone.has_entries, &gone.stored) {
            for (index, entries) in table.indexes.iter().zip(entries) {
                let key = index
                    .plan
                    .encode(&table.layout, split_stored(stored), &mut self.scratch);
                if let Some(list) = entries.get_mut(key.bytes) {
                    list.retain(|entry| entry.rid != rid || entry.span.until != until);
                    if list.is_empty() {
                        entries.remove(key.bytes);
                    }
                }
                bytes += ENTRY_BYTES + key.bytes.len();
            }
        }
        self.charge.resize(self.charge.bytes() - bytes);
    }
}

impl Store {
    /// Opens a view of the tables as they are, between two transactions; it is behind all that were opened before. `mark` is told to who sees it. What
    /// is kept for all views of this store may take `bytes_max`; beyond that they are lost.
    pub fn open_view(&mut self, view: ViewId, mark: u64, bytes_max: usize) {
        assert!(!self.in_txn(), "a view is opened between transactions");
        if self.watchers.as_ref().is_none_or(|watchers| watchers.views.is_none()) {
            let views = Views::new(self, bytes_max);
            self.watch().views = Some(views);
        }
        let views = self.watch().views.as_mut().expect("it was just made");
        assert!(view.0 > views.newest, "views are opened in order");
        views.newest = view.0;
        views.bytes_max = bytes_max;
        views.open.insert(view.0, mark);
        self.collect_versions();
    }

    /// What was kept for this view alone goes.
    pub fn close_view(&mut self, view: ViewId) {
        let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) else {
            return;
        };
        views.open.remove(&view.0);
        if views.open.is_empty() {
            views.forget_versions();
            self.watch().views = None;
            self.forget_idle_watchers();
        }
        self.collect_versions();
    }

    /// Drops some of what was kept for views that are closed, while others are open.
    fn collect_versions(&mut self) {
        if let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) {
            views.collect(&self.tables);
        }
    }

    /// A table is about to be changed or dropped whole: no view that is open sees anything after that.
    pub(crate) fn give_views_up(&mut self) {
        if let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) {
            views.lost = views.newest;
            views.forget_versions();
        }
    }

    /// The tables as they are, to be read as those at a view are.
    pub fn as_it_is(&self) -> StoreAtView<'_> {
        StoreAtView {
            tables: &self.tables,
            views: None,
            view: ViewId(u64::MAX),
        }
    }

    /// Bytes that versions take, about.
    pub fn version_bytes(&self) -> usize {
        let views = self.watchers.as_ref().and_then(|watchers| watchers.views.as_ref());
        views.map_or(0, |views| views.charge.bytes())
    }

    /// The tables as a view sees them.
    pub fn at_view(&self, view: ViewId) -> Result<StoreAtView<'_>, ViewError> {
        let views = self.watchers.as_ref().and_then(|watchers| watchers.views.as_ref());
        let views = views.filter(|views| views.open.contains_key(&view.0));
        let views = views.ok_or(ViewError::NotOpen)?;
        match view.0 <= views.lost {
            true => Err(ViewError::Lost { max: views.bytes_max }),
            false => Ok(StoreAtView {
                tables: &self.tables,
                views: Some(views),
                view,
            }),
        }
    }
}

/// A store's tables as an open view sees them. As of `Store`, methods panic on a table or an index that there is not.
#[derive(Clone, Copy)]
pub struct StoreAtView<'s> {
    tables: &'s [Table],
    /// None: the tables are shown as they are.
    views: Option<&'s Views>,
    view: ViewId,
}

impl<'s> StoreAtView<'s> {
    fn table(&self, id: TableId) -> (&'s Table, &'s TableVersions) {
        static NONE: TableVersions = TableVersions {
            rows: BTreeMap::new(),
            entries: Vec::new(),
        };
        let versions = self.views.and_then(|views| views.tables.get(id.0 as usize));
        (&self.tables[id.0 as usize], versions.unwrap_or(&NONE))
    }

    /// What was said of the view when it was opened; 0 of tables as they are.
    pub fn mark(&self) -> u64 {
        self.views.map_or(0, |views| views.open[&self.view.0])
    }

    /// The row of an id that the view saw before.
    pub fn row(&self, id: TableId, rid: Rid) -> Option<&'s [u8]> {
        self.numbered(id, rid).map(|found| found.row)
    }

    /// The number of that row.
    pub fn row_number(&self, id: TableId, rid: Rid) -> Option<u64> {
        self.numbered(id, rid).map(|found| found.number)
    }

    fn numbered(&self, id: TableId, rid: Rid) -> Option<RowRef<'s>> {
        let (table, versions) = self.table(id);
        match versions.seen(self.view, rid) {
            Seen::Live => table
                .rows
                .place(rid)
                .map(|place| split_stored(table.rows.stored(place))),
            Seen::Kept { stored, .. } => Some(split_stored(stored)),
            Seen::Absent => None,
        }
    }

    /// Visits rows from `first` on as they lie, by their record ids, until `visit` ends it: rows that are live, and rows that are not any more. Behind
    /// `ids_max` record ids it ends, too. Where to go on; none behind the last row.
    pub fn walk(
        &self,
        id: TableId,
        first: Rid,
        ids_max: u32,
        mut visit: impl FnMut(Rid, &[u8]) -> Visit,
    ) -> Option<Rid> {
        let (table, versions) = self.table(id);
        let kept = versions.rows.last_key_value().map_or(0, |(rid, _)| rid + 1);
        let end = table.rows.rids_end().max(kept);
        let until = end.min(first.0.saturating_add(ids_max));
        for rid in (first.0..until).map(Rid) {
            let Some(row) = self.row(id, rid) else { continue };
            match visit(rid, row) {
                Visit::Next => {}
                Visit::Stop => return Some(Rid(rid.0 + 1)),
                Visit::Again => return Some(rid),
            }
        }
        (until < end).then_some(Rid(until))
    }

    /// As `Store::get_row`.
    pub fn get_row(&self, id: TableId, index: u16, key: &[u8]) -> Option<(Rid, &'s [u8])> {
        let (table, versions) = self.table(id);
        let found = &table.indexes[index as usize];
        if !found.is_whole(key) {
            return None;
        }
        if !found.is_unique {
            return self.first_of(id, index, key);
        }
        if let Some((rid, stored)) = versions.entry(self.view, index, key) {
            return Some((rid, split_stored(stored).row));
        }
        let (rid, row) = found.get(&table.rows, key)?;
        match versions.seen(self.view, rid) {
            Seen::Live => Some((rid, row.row)),
            Seen::Kept {
                stored,
                by_entries: false,
            } => Some((rid, split_stored(stored).row)),
            Seen::Kept { .. } | Seen::Absent => None,
        }
    }

    fn first_of(&self, id: TableId, index: u16, key: &[u8]) -> Option<(Rid, &'s [u8])> {
        let range = Range::new(key, key, Default::default());
        let (mut position, mut first) = (ScanPosition::default(), None);
        while first.is_none() && !position.is_end() {
            let on_row = |rid, _: &[u8]| {
                first = Some(rid);
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
        &self,
        id: TableId,
        index: u16,
        range: &Range<'_>,
        (position, entries_max): (&mut ScanPosition, usize),
        mut visit: impl FnMut(Rid, &[u8]) -> Visit,
    ) -> Result<(), NotOrdered> {
        let (table, versions) = self.table(id);
        if position.is_end() {
            return Ok(());
        }
        let from = position.clone();
        let (lower, upper) = from.edges(range);
        let edges = Edges { lower, upper };
        let is_reverse = range.is_reverse();
        let mut walk = Walk {
            table,
            versions,
            index: &table.indexes[index as usize],
            view: self.view,
            is_reverse,
            kept: versions.entries_between(self.view, index, edges, is_reverse).peekable(),
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

/// A scan of an index and of what lies beside it.
struct Walk<'w, K: Iterator<Item = (&'w [u8], Rid)>, V> {
    table: &'w Table,
    versions: &'w TableVersions,
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

impl<'w, K: Iterator<Item = (&'w [u8], Rid)>, V: FnMut(Rid, &[u8]) -> Visit> Walk<'w, K, V> {
    /// The next entry of the index itself.
    fn on_entry(&mut self, rid: Rid) -> Visit {
        let live = self.table.rows.at(rid);
        if self.kept.peek().is_some() {
            let key = self.key_of(live);
            if !self.show_kept(Some(&key)) {
                return Visit::Again;
            }
        }
        self.looked_at += 1;
        let seen = match self.versions.seen(self.view, rid) {
            Seen::Live => Some(live.row),
            Seen::Kept {
                stored,
                by_entries: false,
            } => Some(split_stored(stored).row),
            Seen::Kept { .. } | Seen::Absent => None,
        };
        let said = seen.map_or(Visit::Next, |row| (self.visit)(rid, row));
        match said {
            Visit::Next if self.looked_at < self.entries_max => return Visit::Next,
            Visit::Next | Visit::Stop => self.stopped = Some((self.key_of(live), true)),
            Visit::Again => self.stopped = Some((self.key_of(live), false)),
        }
        Visit::Stop
    }

    fn key_of(&mut self, row: RowRef<'_>) -> Vec<u8> {
        let key = self.index.plan.encode(&self.table.layout, row, &mut self.scratch);
        key.bytes.to_vec()
    }

    /// Shows what lies beside the index and comes before a key, or all of it. False: it stopped.
    fn show_kept(&mut self, before: Option<&[u8]>) -> bool {
        while let Some((key, rid)) = self.kept.peek().copied() {
            // With the key of an entry that the view does not see, or else it would be passed over with that.
            let comes_later = before.is_some_and(|before| match self.is_reverse {
                true => key < before,
                false => key > before,
            });
            if comes_later {
                return true;
            }
            let row = split_stored(self.versions.stored(self.view, rid)).row;
            self.looked_at += 1;
            let said = (self.visit)(rid, row);
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
