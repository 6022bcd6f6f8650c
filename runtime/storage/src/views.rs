//! Rows as open views see them (Query Fresh, section 3.4). Replay notes patches and inserted rows in an array (`arrays`). A reader builds a
//! row in place from the notes that its view sees, for itself and for later readers. Before any other change to a row that an open view
//! sees, the row is kept in its present form, once for all open views. The same happens before a row is built beyond an older view. A
//! reader takes the version of its view, or the row itself if there is none.
//!
//! A reader also finds a row by a version's keys. If no index entry of a row has changed since a version was kept, the row's own entries
//! lead to the version. Afterwards, the version's entries are beside each index, and the row's own entries do not lead to it.

use std::{
    collections::{BTreeMap, btree_map::Entry as MapEntry},
    mem,
    ops::Bound,
    sync::Arc,
};

use reprise_base::{MemoryKind, MemoryLedger};
use reprise_pages::drop_aside;
use reprise_wire::PatchColumns;

use crate::{
    apply::PlainRows,
    arrays::{ReplayArray, put},
    at_view::StoreAtView,
    charge::VersionMemory,
    indirection::Rid,
    keyplan::KeyScratch,
    rows::{RowHeap, split_stored},
    store::{Store, TableId},
    table::StoredTable,
    treekey::Edge,
    waiting_turns::RowImages,
};

/// A view's number. Views are numbered in the order in which they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ViewId(pub u64);

/// The view of tables in which some rows are as their images.
pub(crate) const IMAGES_VIEW: ViewId = ViewId(1);

/// Why a view shows nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what each one is")]
pub enum ViewError {
    #[error("the view is not open here")]
    NotOpen,
    #[error("the versions that the view needs took more than {max} bytes")]
    Lost { max: usize },
}

/// The kind of change to a row that a view may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// The row's id was just given out.
    New,
    /// No key of an index changes.
    Plain,
    /// Any part of the row may change.
    Any,
}

/// Bytes of a version beside its row, and of an entry beside its key: an estimate.
const VERSION_BYTES: usize = 96;
const ENTRY_BYTES: usize = 80;
/// Number of unneeded versions that are dropped when a view is opened or closed: about as many as a window of the log changes rows.
const COLLECTED_AT_ONCE: usize = 4 << 10;
/// Bytes of versions from which on another thread drops them.
const DROP_BYTES_MIN: usize = 1 << 20;
/// Divisor of the views' memory that notes may take. Beyond that share, or beyond a number of bytes, the oldest notes are put in place.
const NOTES_SHARE: usize = 4;
const NOTES_BYTES_MAX: usize = 16 << 20;
/// The bytes of rows that may be copied when notes are put in place. The copy then takes about 10 ms.
const ROWS_BYTES_MAX: usize = 32 << 20;

/// The range of views that see it, from `since` to `until`.
#[derive(Clone, Copy)]
struct ViewSpan {
    since: u64,
    until: u64,
}

impl ViewSpan {
    fn holds(self, view: ViewId) -> bool {
        (self.since..=self.until).contains(&view.0)
    }
}

struct Version {
    span: ViewSpan,
    /// The row with its number. None if there was no row.
    stored: Option<Box<[u8]>>,
    /// True if its entries are beside the indexes.
    has_entries: bool,
}

/// An index entry of a kept version, beside the index.
struct KeptEntry {
    rid: Rid,
    span: ViewSpan,
}

/// Versions by record id. Those of one row are in the order of their spans.
type RowVersions = BTreeMap<u32, Vec<Version>>;

#[derive(Default)]
struct TableVersions {
    rows: RowVersions,
    entries: KeptEntries,
    array: ReplayArray,
}

/// Entries by index, then by the whole entry key. The spans of one key's entries do not overlap.
#[derive(Default)]
pub(crate) struct KeptEntries(Vec<BTreeMap<Box<[u8]>, Vec<KeptEntry>>>);

/// Row versions kept for the open views.
pub(crate) struct Views {
    /// The open views, each with the mark of its opener.
    open: BTreeMap<u64, u64>,
    /// The oldest open view. Without an open view, it is behind all.
    oldest: u64,
    newest: u64,
    /// Views up to this one are given up, because their versions took too much memory.
    lost: u64,
    tables: Vec<TableVersions>,
    /// Rows with versions that were not collected yet, by the last view that sees them.
    kept: BTreeMap<u64, Vec<(TableId, Rid)>>,
    taken: VersionMemory,
    bytes_max: usize,
    /// True if some notes may not be in place.
    has_notes: bool,
    /// True if notes take too much memory and open views do not see the oldest ones. Until these are closed, rows are kept and changes put
    /// in place.
    is_full: bool,
    scratch: KeyScratch,
}

/// How a view sees a row.
pub(crate) enum RowVisibility {
    /// The live row.
    Live,
    /// The kept version. With `by_entries`, the row's own index entries do not lead to it.
    Kept { by_entries: bool },
    /// The view does not see the row.
    Absent,
}

/// Returns the first version that reaches to the view.
fn version_for(rows: &RowVersions, view: ViewId, rid: Rid) -> Option<&Version> {
    let versions = rows.get(&rid.0)?;
    versions.iter().find(|version| version.span.until >= view.0)
}

fn stored_for(rows: &RowVersions, view: ViewId, rid: Rid) -> &[u8] {
    let stored = version_for(rows, view, rid).and_then(|version| version.stored.as_deref());
    stored.expect("a version of the row is kept for the view")
}

/// The kept versions of one table's rows.
pub(crate) struct VersionedRows<'v> {
    id: TableId,
    keeper: Keeper<'v>,
    rows: &'v mut RowVersions,
    array: &'v mut ReplayArray,
}

/// The part of `Views` that keeps rows.
struct Keeper<'v> {
    open: &'v BTreeMap<u64, u64>,
    oldest: u64,
    newest: u64,
    lost: &'v mut u64,
    kept: &'v mut BTreeMap<u64, Vec<(TableId, Rid)>>,
    taken: &'v mut VersionMemory,
    bytes_max: usize,
}

impl Keeper<'_> {
    /// Keeps the row in its present form for the open views up to `upto` that see it so, unless it is kept already. If that takes too much
    /// memory, all open views are lost. A reader that reads one at this moment can continue, because the rows that it sees are in place.
    fn keep(&mut self, versions: &mut RowVersions, (id, rid): (TableId, Rid), rows: &RowHeap, upto: u64, is_new: bool) {
        if upto < self.oldest {
            return;
        }
        let last = versions.get(&rid.0).and_then(|versions| versions.last());
        let since = last.map_or(0, |last| last.span.until + 1);
        let seeing = since.max(*self.lost + 1);
        if seeing > upto || self.open.range(seeing..=upto).next().is_none() {
            return;
        }
        let live = (!is_new).then(|| rows.place(rid)).flatten();
        let bytes = VERSION_BYTES + live.map_or(0, |place| rows.stored(place).len());
        if self.taken.bytes() + bytes > self.bytes_max {
            *self.lost = self.newest;
            return;
        }
        let stored: Option<Box<[u8]>> = live.map(|place| rows.stored(place).into());
        versions.entry(rid.0).or_default().push(Version {
            span: ViewSpan { since, until: upto },
            stored,
            has_entries: false,
        });
        self.kept.entry(upto).or_default().push((id, rid));
        self.taken.set_versions(self.taken.versions + bytes);
    }
}

impl<'v> VersionedRows<'v> {
    /// Returns how the view sees the row. The row's notes that the view sees are in place then.
    #[inline]
    pub fn see(&mut self, view: ViewId, rid: Rid, table: &mut PlainRows<'_>) -> RowVisibility {
        let is_live = self.rows.is_empty() || version_for(self.rows, view, rid).is_none();
        if is_live && self.array.has(rid) {
            self.build(rid, table, view.0);
            if self.array.hides(rid, view.0) {
                return RowVisibility::Absent;
            }
        }
        match version_for(self.rows, view, rid) {
            None => RowVisibility::Live,
            Some(Version { stored: None, .. }) => RowVisibility::Absent,
            Some(Version { has_entries, .. }) => RowVisibility::Kept {
                by_entries: *has_entries,
            },
        }
    }

    /// Puts the row's notes in place that views from `upto` on see. It keeps the row before that for older open views.
    fn build(&mut self, rid: Rid, table: &mut PlainRows<'_>, upto: u64) {
        let chain = self.array.chain(rid);
        let mut count = 0;
        for number in chain.numbers() {
            let note = self.array.note(*number);
            if note.hidden_from >= upto {
                break;
            }
            let row = (self.id, rid);
            self.keeper
                .keep(self.rows, row, table.rows, note.hidden_from, note.is_new_row());
            if let Some(columns) = self.array.columns(*number) {
                put(table, rid, columns);
            }
            count += 1;
        }
        self.array.set_built(rid, &chain, count);
    }

    /// Returns the id behind the greatest record id that has a version.
    pub fn end(&self) -> u32 {
        self.rows.last_key_value().map_or(0, |(rid, _)| rid + 1)
    }

    /// Returns the stored row that is kept for the view.
    pub fn stored(&self, view: ViewId, rid: Rid) -> &[u8] {
        stored_for(self.rows, view, rid)
    }

    /// The `stored` variant that consumes the value.
    pub fn into_stored(self, view: ViewId, rid: Rid) -> &'v [u8] {
        stored_for(self.rows, view, rid)
    }
}

impl KeptEntries {
    /// Returns an empty iterator, for tables without kept entries.
    pub fn nothing<'v>() -> Box<dyn Iterator<Item = (&'v [u8], Rid)> + 'v> {
        Box::new(std::iter::empty())
    }

    /// Returns the row under an entry key beside the index.
    pub fn get(&self, view: ViewId, index: u16, key: &[u8]) -> Option<Rid> {
        let entries = self.0.get(index as usize)?.get(key)?;
        Some(entries.iter().find(|entry| entry.span.holds(view))?.rid)
    }

    /// Returns the entries beside an index that the view sees, between two edges, in the direction of the range.
    pub fn between<'v>(
        &'v self,
        view: ViewId,
        index: u16,
        edges: Edges<'v>,
        is_reverse: bool,
    ) -> Box<dyn Iterator<Item = (&'v [u8], Rid)> + 'v> {
        let Some(map) = self.0.get(index as usize).filter(|map| !map.is_empty()) else {
            return Self::nothing();
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
pub(crate) struct Edges<'a> {
    pub lower: Edge<'a>,
    pub upper: Edge<'a>,
}

/// Returns the least bytes behind all that begin with these. None if there are none.
fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let last = bytes.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = bytes[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

impl Views {
    /// Returns a view of the tables in which rows are as their images (`add_images`), and all others as they lie.
    pub fn of_images(memory: Option<&Arc<MemoryLedger>>) -> Self {
        let mut views = Self::new(memory, usize::MAX);
        let view = IMAGES_VIEW.0;
        views.open.insert(view, 0);
        (views.oldest, views.newest) = (view, view);
        views
    }

    /// Adds the images of rows that have none yet. False: all of them take more than `bytes_max`.
    pub fn add_images(&mut self, images: &RowImages, tables: &[StoredTable], bytes_max: usize) -> bool {
        let span = ViewSpan {
            since: 0,
            until: IMAGES_VIEW.0,
        };
        for ((table, rid), stored) in images {
            let (id, rid) = (TableId(*table), Rid(*rid));
            let bytes = VERSION_BYTES + stored.as_ref().map_or(0, Vec::len);
            let (shown, _) = self.shown(id);
            if shown.rows.contains_key(&rid.0) {
                continue;
            }
            let version = Version {
                span,
                stored: stored.as_deref().map(Into::into),
                has_entries: false,
            };
            shown.rows.insert(rid.0, vec![version]);
            self.taken.set_versions(self.taken.versions + bytes);
            self.add_entries(id, rid, &tables[*table as usize]);
            if self.taken.versions > bytes_max {
                return false;
            }
        }
        true
    }

    fn new(memory: Option<&Arc<MemoryLedger>>, bytes_max: usize) -> Self {
        let mut taken = VersionMemory::default();
        if let Some(memory) = memory {
            taken.charge.count_in(memory.kind(MemoryKind::Views));
        }
        Self {
            open: BTreeMap::new(),
            oldest: u64::MAX,
            newest: 0,
            lost: 0,
            tables: Vec::new(),
            kept: BTreeMap::new(),
            taken,
            bytes_max,
            has_notes: false,
            is_full: false,
            scratch: KeyScratch::default(),
        }
    }

    /// Returns the kept versions of a table, and the entries beside its indexes.
    pub fn shown(&mut self, id: TableId) -> (VersionedRows<'_>, &KeptEntries) {
        let at = id.0 as usize;
        if self.tables.len() <= at {
            self.tables.resize_with(at + 1, TableVersions::default);
        }
        let TableVersions { rows, entries, array } = &mut self.tables[at];
        let keeper = Keeper {
            open: &self.open,
            oldest: self.oldest,
            newest: self.newest,
            lost: &mut self.lost,
            kept: &mut self.kept,
            taken: &mut self.taken,
            bytes_max: self.bytes_max,
        };
        let shown = VersionedRows {
            id,
            keeper,
            rows,
            array,
        };
        (shown, entries)
    }

    /// Keeps a row before a change, like `Watchers`. The row's notes are in place then.
    pub fn before_change(&mut self, id: TableId, rid: Rid, table: &mut StoredTable, touch: Touch) {
        let newest = self.newest;
        let (mut shown, _) = self.shown(id);
        if shown.array.has(rid) {
            shown.build(rid, &mut table.plain_rows(), u64::MAX);
        }
        if newest <= *shown.keeper.lost {
            return; // no view can see the row any more
        }
        let is_new = touch == Touch::New;
        shown.keeper.keep(shown.rows, (id, rid), &table.rows, newest, is_new);
        if touch == Touch::Any {
            self.add_entries(id, rid, table);
        }
        self.limit_bytes();
    }

    /// Keeps a row before a transaction's patch, like `Watchers`. No row has notes then.
    pub fn before_patch(&mut self, id: TableId, rid: Rid, rows: &RowHeap) {
        let newest = self.newest;
        if newest > self.lost {
            let (mut shown, _) = self.shown(id);
            shown.keeper.keep(shown.rows, (id, rid), rows, newest, false);
            self.limit_bytes();
        }
    }

    /// Defers a patch that fits, or an inserted row, as a note. False, with nothing deferred, if no view can see the row before it.
    #[inline]
    pub fn defer(&mut self, id: TableId, rid: Rid, patch: Option<PatchColumns<'_>>, table: &mut StoredTable) -> bool {
        let newest = self.newest;
        if newest <= self.lost || self.is_full {
            return false;
        }
        let (mut shown, _) = self.shown(id);
        if !shown.array.has_room(rid) {
            shown.build(rid, &mut table.plain_rows(), u64::MAX);
        }
        let row_bytes = table.rows.place(rid).map_or(0, |place| place.len() as u32);
        shown.array.push((rid, row_bytes), patch, newest);
        let (grown, rows_bytes) = (shown.array.take_growth(), shown.array.rows_bytes());
        self.has_notes = true;
        if grown != 0 || rows_bytes > ROWS_BYTES_MAX {
            self.taken.add_notes(grown);
            self.make_room(id, table);
            self.limit_bytes();
        }
        true
    }

    /// Makes room after the notes of the table have grown.
    #[cold]
    fn make_room(&mut self, id: TableId, table: &mut StoredTable) {
        while self.has_many_notes(1) && self.has_old_notes(id.0 as usize) {
            self.build_oldest(id.0 as usize, table, self.oldest);
        }
        self.is_full = self.has_many_notes(1);
    }

    /// True if notes, or the rows that may have to be kept when they are put in place, exceed this part of their limit.
    fn has_many_notes(&self, part: usize) -> bool {
        let notes_max = NOTES_BYTES_MAX.min(self.bytes_max / NOTES_SHARE);
        let rows = self.tables.iter().map(|table| table.array.rows_bytes());
        self.taken.notes > notes_max / part || rows.sum::<usize>() > ROWS_BYTES_MAX / part
    }

    /// True if the oldest notes of a table can be put in place without keeping a row, because every open view sees them.
    fn has_old_notes(&self, at: usize) -> bool {
        let hidden_from = self.tables[at].array.oldest_hidden_from();
        hidden_from.is_some_and(|hidden_from| hidden_from < self.oldest)
    }

    /// Puts all notes in place.
    fn build_all(&mut self, tables: &mut [StoredTable]) {
        if !self.has_notes {
            return;
        }
        for (at, table) in tables.iter_mut().enumerate().take(self.tables.len()) {
            while self.tables[at].array.left() > 0 && self.is_seen() {
                self.build_oldest(at, table, u64::MAX);
            }
            self.tables[at].array.put_all(&mut table.plain_rows());
            self.release_view(at);
        }
        (self.has_notes, self.is_full) = (false, false);
        self.limit_bytes();
    }

    /// False if no open view is still shown.
    fn is_seen(&self) -> bool {
        self.oldest <= self.newest && self.newest > self.lost
    }

    /// Puts the notes in place that views from `upto` on see, for the rows with a table's oldest notes.
    fn build_oldest(&mut self, at: usize, table: &mut StoredTable, upto: u64) {
        let (mut shown, _) = self.shown(TableId(at as u16));
        let mut table = table.plain_rows();
        for rid in shown.array.oldest_rows() {
            if shown.array.has(rid) {
                shown.build(rid, &mut table, upto);
            }
        }
        self.release_view(at);
    }

    fn release_view(&mut self, at: usize) {
        let array = &mut self.tables[at].array;
        array.release_built();
        let grown = array.take_growth();
        self.taken.add_notes(grown);
    }

    /// Puts notes in place that every open view sees, except for some that may be overwritten soon. If no view is shown any more, it puts
    /// all of them in place. It runs between two windows.
    fn build_some(&mut self, tables: &mut [StoredTable]) {
        if !self.is_seen() || self.tables.iter().any(|table| !table.array.has_numbers()) {
            self.build_all(tables);
        }
        let noted = if self.has_notes { self.tables.len() } else { 0 };
        for (at, table) in tables.iter_mut().enumerate().take(noted) {
            self.release_view(at);
            // Few notes stay in the processor's caches.
            while self.has_old_notes(at) && self.has_many_notes(8) {
                self.build_oldest(at, table, self.oldest);
            }
        }
        self.is_full &= self.has_many_notes(2);
        self.limit_bytes();
    }

    /// Gives the row's versions entries of their own, because an index entry of the row may be removed.
    fn add_entries(&mut self, id: TableId, rid: Rid, table: &StoredTable) {
        let TableVersions { rows, entries, .. } = &mut self.tables[id.0 as usize];
        let entries = &mut entries.0;
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
        self.taken.set_versions(self.taken.versions + bytes);
    }

    /// Ends all open views if the kept bytes are too many. A view never shows another state instead.
    fn limit_bytes(&mut self) {
        if self.taken.bytes() > self.bytes_max {
            self.lost = self.newest;
        }
        if self.newest <= self.lost && self.taken.versions > 0 {
            self.forget_versions();
        }
    }

    /// Drops the versions. Notes stay, because they are part of their rows.
    fn forget_versions(&mut self) {
        let mut versions = Vec::new();
        for TableVersions { rows, entries, .. } in &mut self.tables {
            versions.push((mem::take(rows), mem::take(entries)));
        }
        let versions = (versions, mem::take(&mut self.kept));
        if self.taken.versions >= DROP_BYTES_MIN {
            drop_aside(versions);
        }
        self.taken.set_versions(0);
    }

    fn check_view(&self, view: ViewId) -> Result<(), ViewError> {
        match (self.open.contains_key(&view.0), view.0 <= self.lost) {
            (false, _) => Err(ViewError::NotOpen),
            (true, true) => Err(ViewError::Lost { max: self.bytes_max }),
            (true, false) => Ok(()),
        }
    }

    /// Returns the mark that an open view was opened with.
    pub fn mark(&self, view: ViewId) -> u64 {
        self.open[&view.0]
    }

    /// Drops some versions that no open view sees.
    fn collect(&mut self, tables: &[StoredTable]) {
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

    fn drop_version(&mut self, until: u64, id: TableId, rid: Rid, table: &StoredTable) {
        let Some(TableVersions { rows, entries, .. }) = self.tables.get_mut(id.0 as usize) else {
            return;
        };
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
            for (index, entries) in table.indexes.iter().zip(&mut entries.0) {
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
        self.taken.set_versions(self.taken.versions.saturating_sub(bytes));
    }
}

impl Store {
    /// Opens a view of the present tables, between two transactions. Its number is behind those of all earlier views. Readers of the view
    /// get `mark`. The versions of all views of this store may take `bytes_max`; beyond that, the views are lost.
    pub fn open_view(&mut self, view: ViewId, mark: u64, bytes_max: usize) {
        assert!(!self.in_txn(), "a view is opened between transactions");
        if self.watchers.as_ref().is_none_or(|watchers| watchers.views.is_none()) {
            let views = Views::new(self.memory.as_ref(), bytes_max);
            self.watch().views = Some(views);
        }
        let views = self.watch().views.as_mut().expect("it was just made");
        assert!(view.0 > views.newest, "views are opened in order");
        views.newest = view.0;
        views.bytes_max = bytes_max;
        views.open.insert(view.0, mark);
        views.oldest = views.oldest.min(view.0);
        self.collect_versions();
    }

    /// Closes a view and frees the versions kept for it alone.
    pub fn close_view(&mut self, view: ViewId) {
        let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) else {
            return;
        };
        views.open.remove(&view.0);
        views.oldest = views.open.first_key_value().map_or(u64::MAX, |(view, _)| *view);
        if views.open.is_empty() {
            views.build_all(&mut self.tables);
            views.forget_versions();
            self.watch().views = None;
            self.forget_idle_watchers();
        }
        self.collect_versions();
    }

    /// Drops some versions of closed views, while others are open.
    fn collect_versions(&mut self) {
        if let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) {
            views.collect(&self.tables);
        }
    }

    /// Gives up all open views, because a table is about to be changed or dropped whole.
    pub(crate) fn give_views_up(&mut self) {
        if let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) {
            views.build_all(&mut self.tables);
            views.lost = views.newest;
            views.forget_versions();
        }
    }

    /// Puts all noted changes in place, before rows are read without a view and outside of a transaction.
    #[inline]
    pub fn build_notes(&mut self) {
        if let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) {
            views.build_all(&mut self.tables);
        }
    }

    /// Puts some notes in place, as `Views::build_some` does.
    pub(crate) fn build_some(&mut self) {
        if let Some(views) = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut()) {
            views.build_some(&mut self.tables);
        }
    }

    /// Returns the number of noted changes that are not in place.
    pub fn notes(&self) -> usize {
        let views = self.watchers.as_ref().and_then(|watchers| watchers.views.as_ref());
        views.map_or(0, |views| views.tables.iter().map(|table| table.array.left()).sum())
    }

    /// Returns the present tables, to be read like those at a view.
    pub fn as_it_is(&mut self) -> StoreAtView<'_> {
        self.build_notes();
        StoreAtView::new(&mut self.tables, None, ViewId(u64::MAX))
    }

    /// Estimates the bytes of versions and notes.
    pub fn version_bytes(&self) -> usize {
        let views = self.watchers.as_ref().and_then(|watchers| watchers.views.as_ref());
        views.map_or(0, |views| views.taken.bytes())
    }

    /// Checks that the view is open, and that it can still be shown.
    pub fn has_view(&self, view: ViewId) -> Result<(), ViewError> {
        let views = self.watchers.as_ref().and_then(|watchers| watchers.views.as_ref());
        views.ok_or(ViewError::NotOpen)?.check_view(view)
    }

    /// Returns the tables as a view sees them.
    pub fn at_view(&mut self, view: ViewId) -> Result<StoreAtView<'_>, ViewError> {
        let views = self.watchers.as_mut().and_then(|watchers| watchers.views.as_mut());
        let views = views.ok_or(ViewError::NotOpen)?;
        views.check_view(view)?;
        Ok(StoreAtView::new(&mut self.tables, Some(views), view))
    }
}
