//! One index of a table: dense, hash or tree, chosen once by declaration and key width.

mod batch;
mod fill;
mod prefetch;
mod prefetch_entry;
mod scan;

use std::sync::Arc;

use reprise_abi::{IndexKind, RowLayout, ScanFlags};
use reprise_base::Budget;
use reprise_pages::prefetch_line;

use crate::{
    dense::Dense,
    hash::HashIndex,
    indirection::Rid,
    insert::RUN_ROWS,
    intkey::{IntKey, KeyLoad},
    keyplan::{KeyPlan, KeyScratch, StoredRow},
    rows::RowHeap,
    tag::{tag_of, tag_of_bytes},
    tree::{Tree, edge},
    treekey::{Edge, Long, TreeKey, Wide},
};

pub(crate) use fill::FillError;
pub use prefetch::PrefetchState;
use scan::{count_tree, edges_from, first_in_tree, page_tree, scan_tree};

pub(crate) struct Index {
    pub plan: KeyPlan,
    pub is_unique: bool,
    /// Length of every whole key. If the keys of an index differ in length, no key has it.
    key_bytes: usize,
    /// The loader of integer keys. None for other keys.
    load: Option<KeyLoad>,
    body: Body,
    /// The budget that counts the index's memory.
    budget: Option<Arc<Budget>>,
}

enum Body {
    /// Integer keys of at most 16 bytes that have neighbours.
    Dense(Dense),
    /// Integer keys of at most 16 bytes.
    HashInts(HashIndex),
    HashBytes(HashIndex),
    W8(Tree<u64, 40>),
    W16(Tree<u128, 48>),
    W24(Tree<Wide<3>, 32>),
    W32(Tree<Wide<4>, 32>),
    Bytes(Tree<Long, 32>),
}

/// Nominal bytes of a hash entry: 8, at the mean fill of segments that split when they are full.
const HASH_ENTRY_BYTES: usize = 12;
/// Nominal bytes of a dense entry: 4, at a page two thirds full.
const DENSE_ENTRY_BYTES: usize = 6;

/// Runs the expression with the tree, whatever its keys are, or the other expression if there is no tree.
macro_rules! dispatch {
    ($body:expr, $tree:ident => $on_tree:expr, _ => $on_other:expr) => {
        match $body {
            Body::W8($tree) => $on_tree,
            Body::W16($tree) => $on_tree,
            Body::W24($tree) => $on_tree,
            Body::W32($tree) => $on_tree,
            Body::Bytes($tree) => $on_tree,
            Body::Dense(_) | Body::HashInts(_) | Body::HashBytes(_) => $on_other,
        }
    };
}

mod memory;

/// A range of an ordered index, in the sense of `reprise_abi::ScanRequest`. A bound that is longer than the index's own key continues into
/// the primary key columns that the index lacks. A key that is shorter than a bound compares as if zero bytes followed it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    /// The lower bound. Empty: from the first row.
    pub lower: &'a [u8],
    /// The upper bound. Empty: up to the last row.
    pub upper: &'a [u8],
    /// Which bounds are part of the range, and its direction.
    pub flags: ScanFlags,
}

impl<'a> Range<'a> {
    /// Makes the range between these bounds.
    pub fn new(lower: &'a [u8], upper: &'a [u8], flags: ScanFlags) -> Self {
        Self { lower, upper, flags }
    }

    #[inline]
    fn lower_edge(&self) -> Edge<'a> {
        edge(self.lower, self.flags.has(ScanFlags::LOWER_EXCLUSIVE))
    }
    #[inline]
    fn upper_edge(&self) -> Edge<'a> {
        edge(self.upper, !self.flags.has(ScanFlags::UPPER_EXCLUSIVE))
    }
    /// True if it goes from its end to its start.
    #[inline]
    pub fn is_reverse(&self) -> bool {
        self.flags.has(ScanFlags::REVERSE)
    }
}

/// A visitor's decision about the row that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// The visitor took the row; the scan continues.
    Next,
    /// The visitor took the row; the scan stops here.
    Stop,
    /// The visitor did not take the row. The scan stops here, and shows it again when it continues.
    Again,
}

/// The position of a scan: a key, so that rows may come and go between two calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPosition {
    key: Vec<u8>,
    state: ScanState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    Start,
    /// The next row is the first one at the key or beyond it.
    At,
    /// The next row is the first one beyond the key.
    Beyond,
    End,
}

impl ScanPosition {
    /// True if the scan reached the end of the range.
    pub fn is_end(&self) -> bool {
        self.state == ScanState::End
    }

    /// Makes the state of a scan that went up to this key. The key may be any bytes.
    pub fn behind(key: Vec<u8>) -> Self {
        let state = ScanState::Beyond;
        Self { key, state }
    }

    /// Returns the edges of the rest of the range.
    pub(crate) fn edges<'a>(&'a self, range: &Range<'a>) -> (Edge<'a>, Edge<'a>) {
        edges_from(range, self.state, &self.key)
    }

    /// Stops at this key, or behind it if the row was taken.
    pub(crate) fn stop_at(&mut self, key: Vec<u8>, is_taken: bool) {
        let state = if is_taken { ScanState::Beyond } else { ScanState::At };
        *self = Self { key, state };
    }

    /// Records that the scan reached the end of the range.
    pub(crate) fn end(&mut self) {
        self.state = ScanState::End;
    }

    /// Returns to the beginning and keeps the buffer.
    pub fn reset(&mut self) {
        self.state = ScanState::Start;
    }
}

/// Why an index refuses a row.
pub(crate) enum KeyRefusal {
    /// Another row has the key.
    Taken,
    /// The key is too long.
    TooLong,
}

/// The index is a hash table: it has no order to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash index can't be scanned")]
pub struct NotOrdered;

/// Returns a row's key in an index of integer keys.
#[inline(always)]
fn int_key(plan: &KeyPlan, row: StoredRow<'_>) -> u128 {
    u128::from_ints(plan.ints().expect("the index is of integer keys"), row)
}

impl Index {
    pub fn new(plan: KeyPlan, is_unique: bool, kind: IndexKind) -> Self {
        // The stored form of a table with such keys depends on this, so rows that are shorter than a load are excluded.
        let int_bytes = plan.bytes_max().filter(|_| plan.has_words());
        let body = match (kind, int_bytes, plan.bytes_max()) {
            (IndexKind::Dense, Some(bytes), _) => Body::Dense(Dense::new(bytes)),
            (IndexKind::Hash, Some(_), _) => Body::HashInts(HashIndex::new()),
            (IndexKind::Hash | IndexKind::Dense, None, _) => Body::HashBytes(HashIndex::new()),
            (IndexKind::Ordered, _, Some(..=8)) => Body::W8(Tree::new()),
            (IndexKind::Ordered, _, Some(9..=16)) => Body::W16(Tree::new()),
            (IndexKind::Ordered, _, Some(17..=24)) => Body::W24(Tree::new()),
            (IndexKind::Ordered, _, Some(25..=32)) => Body::W32(Tree::new()),
            (IndexKind::Ordered, ..) => Body::Bytes(Tree::new()),
        };
        Self {
            key_bytes: plan.own_bytes().unwrap_or(usize::MAX),
            load: plan.load(),
            plan,
            is_unique,
            body,
            budget: None,
        }
    }

    #[inline(always)]
    pub fn is_whole(&self, key: &[u8]) -> bool {
        key.len() == self.key_bytes || self.key_bytes == usize::MAX && self.plan.is_whole(key)
    }

    /// Returns the bytes of a whole key, at most 16, as a number.
    #[inline(always)]
    fn bits_of(&self, key: &[u8]) -> u128 {
        match &self.load {
            Some(load) => load.load(key),
            None => u128::from_bytes(key),
        }
    }

    /// Returns the row of a whole key. If there are several, it returns the first.
    #[inline]
    pub fn get<'r>(&self, rows: &'r RowHeap, key: &[u8]) -> Option<(Rid, StoredRow<'r>)> {
        if !self.is_whole(key) {
            return None;
        }
        match &self.body {
            Body::HashInts(hash) => find_int(hash, &self.plan, rows, self.bits_of(key)),
            Body::Dense(dense) => {
                let Some(rid) = self.find_dense(dense, key) else {
                    return self.get_thin(dense, rows, key);
                };
                let row = rows.keyed_at(rid);
                // A caller that wants only the handle writes to the row next.
                row.row.first().into_iter().for_each(prefetch_line);
                Some((rid, row))
            }
            _ => self.get_other(rows, key),
        }
    }

    /// Returns the record id of the row that `get` finds. A dense index finds it without reading the row.
    #[inline(always)]
    pub fn find(&self, rows: &RowHeap, key: &[u8]) -> Option<Rid> {
        let found = match &self.body {
            _ if !self.is_whole(key) => None,
            Body::HashInts(hash) => find_int(hash, &self.plan, rows, self.bits_of(key)),
            Body::Dense(dense) => match self.find_dense(dense, key) {
                None => self.get_thin(dense, rows, key),
                found => return found,
            },
            _ => self.get_other(rows, key),
        };
        found.map(|(rid, _)| rid)
    }

    /// Returns a whole key's record id in the array.
    #[inline(always)]
    fn find_dense(&self, dense: &Dense, key: &[u8]) -> Option<Rid> {
        let found = match &self.load {
            Some(load) if self.key_bytes <= 8 => dense.find_short(load.load_short(key)),
            _ => dense.find_dense(self.bits_of(key)),
        };
        found.map(Rid)
    }

    /// Finds a key that the array does not have. It is out of line, like `get_other`, so that `get` keeps its values in registers.
    #[inline(never)]
    fn get_thin<'r>(&self, dense: &Dense, rows: &'r RowHeap, key: &[u8]) -> Option<(Rid, StoredRow<'r>)> {
        find_int(dense.thin()?, &self.plan, rows, self.bits_of(key))
    }

    #[inline(never)]
    fn get_other<'r>(&self, rows: &'r RowHeap, key: &[u8]) -> Option<(Rid, StoredRow<'r>)> {
        let found = |rid: u32| (Rid(rid), rows.at(Rid(rid)));
        let rid = match &self.body {
            Body::W8(tree) if self.is_unique => tree.find((self.bits_of(key) >> 64) as u64),
            Body::W16(tree) if self.is_unique => tree.find(self.bits_of(key)),
            Body::HashBytes(hash) => hash.find(tag_of_bytes(key), |rid| {
                self.plan.matches(found(rid).1, key).then_some(rid)
            }),
            body => dispatch!(body,
                tree => if self.is_unique { get_unique(tree, key) } else { get_first(tree, key) },
                _ => None
            ),
        };
        rid.map(found)
    }

    /// Prefetches the memory that a `get` of the key reads first.
    #[inline]
    pub fn touch(&self, key: &[u8]) {
        if !self.is_whole(key) {
            return;
        }
        match &self.body {
            Body::HashBytes(hash) => hash.touch(tag_of_bytes(key)),
            Body::W24(tree) => touch_tree(tree, key),
            Body::W32(tree) => touch_tree(tree, key),
            Body::Bytes(tree) => touch_tree(tree, key),
            _ => self.touch_bits(self.bits_of(key)),
        }
    }

    /// The `touch` variant for a key of integers in the form of a number. It does nothing for longer keys.
    #[inline]
    pub fn touch_bits(&self, key: u128) {
        match &self.body {
            Body::HashInts(hash) => hash.touch(tag_of(key)),
            Body::Dense(dense) => dense.touch(key),
            Body::W8(tree) => tree.touch(&((key >> 64) as u64).as_probe()),
            Body::W16(tree) => tree.touch(&key.as_probe()),
            _ => {}
        }
    }

    /// Prefetches the memory that an insertion of the row will write. Of a hash of integer keys it prefetches only the directory entry, and
    /// returns the tag. The caller gives the tag to `touch_tag` later, when that entry may have arrived.
    #[inline]
    pub fn touch_of(&self, row: StoredRow<'_>) -> Option<u32> {
        match &self.body {
            Body::HashInts(hash) => {
                let tag = tag_of(int_key(&self.plan, row));
                hash.touch_way(tag);
                return Some(tag);
            }
            Body::Dense(dense) => dense.touch(int_key(&self.plan, row)),
            _ => {}
        }
        None
    }

    /// Prefetches the memory that an insertion of a row with the tag will write.
    #[inline]
    pub fn touch_tag(&self, tag: u32) {
        if let Body::HashInts(hash) = &self.body {
            hash.touch(tag);
        }
    }

    /// Prepares for this many entries in all, if that saves work.
    pub fn expect(&mut self, entries: usize) {
        if let Body::HashInts(hash) | Body::HashBytes(hash) = &mut self.body {
            hash.expect(entries);
        }
    }

    /// True if `touch_tag_of` and `insert_stored` may be called.
    #[inline]
    pub fn has_tags(&self) -> bool {
        matches!(self.body, Body::HashInts(_))
    }

    /// Returns the row's tag, in an index that has tags.
    #[inline(always)]
    pub fn tag_of_row(&self, row: StoredRow<'_>) -> u32 {
        tag_of(int_key(&self.plan, row))
    }

    /// Prefetches the memory that an insertion of the row will write. Returns the row's tag.
    #[inline(always)]
    pub fn touch_tag_of(&self, row: StoredRow<'_>) -> u32 {
        let tag = self.tag_of_row(row);
        self.touch_tag(tag);
        tag
    }

    /// The `insert` variant for a stored row with a known tag.
    #[inline(always)]
    pub fn insert_stored(&mut self, rows: &RowHeap, rid: Rid, tag: u32) -> Result<(), KeyRefusal> {
        let Body::HashInts(hash) = &mut self.body else {
            unreachable!("only a hash of integer keys has tags of its rows");
        };
        let key = |rid| int_key(&self.plan, rows.keyed_at(rid));
        let is_same = |other| key(Rid(other)) == key(rid);
        hash.insert(tag, rid.0, is_same).map_err(|_| KeyRefusal::Taken)
    }

    /// The `insert` variant for a row with a known tag.
    #[inline(always)]
    pub fn insert_tagged(&mut self, rows: &RowHeap, row: StoredRow<'_>, rid: Rid, tag: u32) -> Result<(), KeyRefusal> {
        let Body::HashInts(hash) = &mut self.body else {
            unreachable!("only a hash of integer keys has tags of its rows");
        };
        let key = |row| int_key(&self.plan, row);
        let is_same = |other| key(rows.keyed_at(Rid(other))) == key(row);
        hash.insert(tag, rid.0, is_same).map_err(|_| KeyRefusal::Taken)
    }

    /// Returns the row that a `get` of the key will probably find, so that the caller can prefetch it.
    #[inline]
    pub fn candidate(&self, key: &[u8]) -> Option<Rid> {
        if !self.is_whole(key) {
            return None;
        }
        match &self.body {
            Body::HashBytes(hash) => hash.candidate(tag_of_bytes(key)).map(Rid),
            Body::W24(tree) => get_unique(tree, key).map(Rid),
            Body::W32(tree) => get_unique(tree, key).map(Rid),
            Body::Bytes(tree) => get_unique(tree, key).map(Rid),
            _ => self.candidate_of_bits(self.bits_of(key)),
        }
    }

    /// The `candidate` variant for a key of integers in the form of a number. None for longer keys.
    #[inline]
    pub fn candidate_of_bits(&self, key: u128) -> Option<Rid> {
        let rid = match &self.body {
            Body::HashInts(hash) => hash.candidate(tag_of(key)),
            Body::Dense(dense) => dense.find_dense(key),
            Body::W8(tree) => tree.get(&((key >> 64) as u64).as_probe()),
            Body::W16(tree) => tree.get(&key.as_probe()),
            _ => None,
        };
        rid.map(Rid)
    }

    /// Returns the bytes of a whole key, if all keys have the same length.
    #[inline]
    pub fn key_bytes(&self) -> Option<usize> {
        (self.key_bytes != usize::MAX).then_some(self.key_bytes)
    }

    /// The `candidate` variant for keys that often come in order.
    #[inline]
    pub fn candidate_prefetch(&self, key: &[u8]) -> Option<Rid> {
        if !self.is_whole(key) {
            return None;
        }
        let prefetch = dispatch!(
            &self.body,
            tree => tree.get_prefetch(&probe_of(tree, key)),
            _ => return self.candidate(key)
        );
        prefetch.map(Rid)
    }

    /// True if the row's entry key is in the index.
    pub fn has(
        &self,
        rows: &RowHeap,
        layout: &RowLayout,
        row: StoredRow<'_>,
        scratch: &mut KeyScratch,
    ) -> Result<bool, KeyRefusal> {
        let encoded = self.plan.encode(layout, row, scratch);
        if encoded.is_too_long() {
            return Err(KeyRefusal::TooLong);
        }
        // Only unique indexes are asked, whose entries are whole keys.
        Ok(self.get(rows, encoded.bytes).is_some())
    }

    #[inline]
    pub fn insert(
        &mut self,
        rows: &RowHeap,
        layout: &RowLayout,
        row: StoredRow<'_>,
        rid: Rid,
        scratch: &mut KeyScratch,
    ) -> Result<(), KeyRefusal> {
        let plan = &self.plan;
        let taken = match &mut self.body {
            Body::HashInts(hash) => {
                let key = int_key(plan, row);
                let is_same = |other| int_key(plan, rows.keyed_at(Rid(other))) == key;
                hash.insert(tag_of(key), rid.0, is_same)
            }
            Body::Dense(dense) => {
                let key = int_key(plan, row);
                let is_same = |other| int_key(plan, rows.keyed_at(Rid(other))) == key;
                dense.insert(key, rid.0, is_same)
            }
            Body::HashBytes(hash) => {
                let key = plan.encode(layout, row, scratch);
                if key.is_too_long() {
                    return Err(KeyRefusal::TooLong);
                }
                let is_same = |other| plan.matches(rows.at(Rid(other)), key.bytes);
                hash.insert(tag_of_bytes(key.bytes), rid.0, is_same)
            }
            body => dispatch!(body,
                tree => tree.insert(entry_key(plan, layout, row, scratch)?, rid.0),
                _ => Ok(())
            ),
        };
        taken.map_err(|_| KeyRefusal::Taken)
    }

    /// The `insert` variant for a run of at most `RUN_ROWS` stored rows. Returns the number of rows before the first refused one.
    pub fn insert_run(
        &mut self,
        rows: &RowHeap,
        layout: &RowLayout,
        run: &[&[u8]],
        rids: &[Rid],
        scratch: &mut KeyScratch,
    ) -> usize {
        if let Some(ints) = self.plan.ints() {
            match &mut self.body {
                Body::W8(tree) => return insert_ints(tree, ints, run, rids),
                Body::W16(tree) => return insert_ints(tree, ints, run, rids),
                Body::W24(tree) => return insert_ints(tree, ints, run, rids),
                Body::W32(tree) => return insert_ints(tree, ints, run, rids),
                _ => {}
            }
        }
        let mut run = run.iter().zip(rids);
        let refused = run.position(|(row, rid)| {
            let row = StoredRow { row, number: 0 };
            self.insert(rows, layout, row, *rid, scratch).is_err()
        });
        refused.unwrap_or(rids.len())
    }

    /// Removes the row's entry. It panics if there is none: the index would no longer agree with the rows.
    pub fn remove(&mut self, layout: &RowLayout, row: StoredRow<'_>, rid: Rid, scratch: &mut KeyScratch) {
        let plan = &self.plan;
        let is_removed = match &mut self.body {
            Body::HashInts(hash) => hash.remove(tag_of(int_key(plan, row)), rid.0),
            Body::Dense(dense) => dense.remove(int_key(plan, row), rid.0),
            Body::HashBytes(hash) => {
                let key = plan.encode(layout, row, scratch);
                hash.remove(tag_of_bytes(key.bytes), rid.0)
            }
            body => dispatch!(body,
                tree => remove_tree(tree, plan, layout, row, scratch) == Some(rid.0),
                _ => false
            ),
        };
        assert!(is_removed, "an index entry is missing or names another row");
    }

    /// Returns the first row of the range.
    #[inline]
    pub fn first(&self, range: &Range<'_>) -> Result<Option<Rid>, NotOrdered> {
        let rid = dispatch!(&self.body, tree => first_in_tree(tree, range), _ => return Err(NotOrdered));
        Ok(rid.map(Rid))
    }

    #[inline]
    pub fn scan(
        &self,
        range: &Range<'_>,
        position: &mut ScanPosition,
        visit: impl FnMut(Rid) -> Visit,
    ) -> Result<(), NotOrdered> {
        dispatch!(&self.body, tree => scan_tree(tree, range, position, visit), _ => return Err(NotOrdered));
        Ok(())
    }

    /// Fills `rids` with the next rows of the range and returns their number. See `Store::scan_page`.
    pub fn scan_page(
        &self,
        range: &Range<'_>,
        position: &mut ScanPosition,
        rids: &mut [Rid],
    ) -> Result<usize, NotOrdered> {
        if !range.is_reverse() {
            return Ok(
                dispatch!(&self.body, tree => page_tree(tree, range, position, rids), _ => return Err(NotOrdered)),
            );
        }
        let mut count = 0;
        let on_entry = |rid| match rids.get_mut(count) {
            Some(room) => {
                *room = rid;
                count += 1;
                Visit::Next
            }
            None => Visit::Again,
        };
        self.scan(range, position, on_entry)?;
        Ok(count)
    }

    /// Counts the rows of the range. It calls `go_on` now and then, with the number of rows passed since.
    pub fn count(&self, range: &Range<'_>, go_on: &mut dyn FnMut(u64) -> bool) -> Result<u64, NotOrdered> {
        Ok(dispatch!(&self.body, tree => count_tree(tree, range, go_on), _ => return Err(NotOrdered)))
    }

    pub fn is_ordered(&self) -> bool {
        dispatch!(&self.body, _tree => true, _ => false)
    }

    /// Returns an estimate that depends on the entries alone, not on the history of the index.
    pub fn nominal_bytes(&self) -> usize {
        match &self.body {
            Body::HashInts(hash) | Body::HashBytes(hash) => hash.len() * HASH_ENTRY_BYTES,
            Body::Dense(dense) => dense.len() * DENSE_ENTRY_BYTES,
            body => dispatch!(body, tree => nominal_tree(tree), _ => 0),
        }
    }

    /// Returns the bytes of memory that it holds.
    pub fn memory_bytes(&self) -> usize {
        match &self.body {
            Body::HashInts(hash) | Body::HashBytes(hash) => hash.memory_bytes(),
            Body::Dense(dense) => dense.memory_bytes(),
            body => dispatch!(body, tree => tree.memory_bytes(), _ => 0),
        }
    }
}

#[inline(always)]
fn find_int<'r>(hash: &HashIndex, plan: &KeyPlan, rows: &'r RowHeap, key: u128) -> Option<(Rid, StoredRow<'r>)> {
    let mut walk = hash.walk(tag_of(key));
    while let Some(rid) = walk.next() {
        let row = rows.keyed_at(Rid(rid));
        if int_key(plan, row) == key {
            return Some((Rid(rid), row));
        }
    }
    hash.find_overflowed(&walk, |rid| {
        let row = rows.keyed_at(Rid(rid));
        (int_key(plan, row) == key).then_some((Rid(rid), row))
    })
}

/// Returns a row's key in a tree, straight from its columns if they are integers.
#[inline]
fn entry_key<K: TreeKey>(
    plan: &KeyPlan,
    layout: &RowLayout,
    row: StoredRow<'_>,
    scratch: &mut KeyScratch,
) -> Result<K, KeyRefusal> {
    if let Some(ints) = plan.ints() {
        return Ok(K::from_ints(ints, row));
    }
    let key = plan.encode(layout, row, scratch);
    if key.is_too_long() {
        return Err(KeyRefusal::TooLong);
    }
    Ok(K::from_bytes(key.bytes))
}

/// Inserts rows of a table with a primary key, by keys of integers; see `Index::insert_run`.
#[inline]
fn insert_ints<K: TreeKey + Copy, const CAP: usize>(
    tree: &mut Tree<K, CAP>,
    ints: &IntKey,
    rows: &[&[u8]],
    rids: &[Rid],
) -> usize {
    let mut keys = [K::vacant(); RUN_ROWS];
    for (key, row) in keys.iter_mut().zip(rows) {
        *key = K::from_ints(ints, StoredRow { row, number: 0 });
    }
    tree.insert_run(&keys[..rows.len()], rids)
}

#[inline]
fn touch_tree<K: TreeKey, const CAP: usize>(tree: &Tree<K, CAP>, key: &[u8]) {
    tree.touch(&K::probe(edge(key, false)));
}

#[inline]
fn probe_of<'p, K: TreeKey, const CAP: usize>(_: &Tree<K, CAP>, key: &'p [u8]) -> K::Probe<'p> {
    K::probe(edge(key, false))
}

#[inline]
fn get_unique<K: TreeKey, const CAP: usize>(tree: &Tree<K, CAP>, key: &[u8]) -> Option<u32> {
    tree.get(&K::probe(edge(key, false)))
}

#[inline]
fn get_first<K: TreeKey, const CAP: usize>(tree: &Tree<K, CAP>, key: &[u8]) -> Option<u32> {
    let (found, rid) = tree.next(tree.seek(&K::probe(edge(key, false))))?;
    found.is_before(&K::probe(edge(key, true))).then_some(rid)
}

fn remove_tree<K: TreeKey, const CAP: usize>(
    tree: &mut Tree<K, CAP>,
    plan: &KeyPlan,
    layout: &RowLayout,
    row: StoredRow<'_>,
    scratch: &mut KeyScratch,
) -> Option<u32> {
    let key: K = entry_key(plan, layout, row, scratch).ok()?;
    tree.remove(&key.as_probe())
}

/// Returns the bytes of nodes that are three quarters full, and of the heap part of the keys.
fn nominal_tree<K: TreeKey, const CAP: usize>(tree: &Tree<K, CAP>) -> usize {
    tree.len() * (size_of::<K>() + size_of::<u32>()) * 4 / 3 + tree.heap_bytes()
}
