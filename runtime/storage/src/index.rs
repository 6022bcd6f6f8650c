//! One index of a table: hash or tree, chosen once by declaration and key width.

use std::cell::RefCell;

use hashbrown::HashTable;
use reprise_abi::{IndexKind, RowLayout, ScanFlags};

use crate::{
    digest::fold,
    indirection::Rid,
    keyplan::{KeyPlan, Scratch},
    rows::Rows,
    tree::{Tree, edge},
    treekey::{Edge, TreeKey, Wide},
};

pub(crate) struct Index {
    pub plan: KeyPlan,
    pub is_unique: bool,
    body: Body,
}

enum Body {
    Hash(HashTable<u32>),
    W8(Tree<u64, 64>),
    W16(Tree<u128, 64>),
    W24(Tree<Wide<3>, 32>),
    W32(Tree<Wide<4>, 32>),
    Bytes(Tree<Box<[u8]>, 32>),
}

/// Nominal bytes of a hash entry: 4 and a control byte, at the mean fill of a table that doubles.
const HASH_ENTRY_BYTES: usize = 8;
/// Seeds the hash of keys. Fixed, so that runs are alike; nothing observable depends on it.
const HASH_TAG: u64 = 0x6b65_7973;

/// Runs the first expression with the tree, whatever its keys are, or the second with the hash table.
macro_rules! dispatch {
    ($body:expr, $tree:ident => $on_tree:expr, $hash:ident => $on_hash:expr) => {
        match $body {
            Body::Hash($hash) => $on_hash,
            Body::W8($tree) => $on_tree,
            Body::W16($tree) => $on_tree,
            Body::W24($tree) => $on_tree,
            Body::W32($tree) => $on_tree,
            Body::Bytes($tree) => $on_tree,
        }
    };
}

/// A range of an ordered index, in the sense of `reprise_abi::ScanRequest`. A bound that is longer than the index's own
/// key goes on into the primary key columns that the index lacks; a key shorter than a bound compares as if zero bytes
/// followed it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    pub lower: &'a [u8],
    pub upper: &'a [u8],
    pub flags: ScanFlags,
}

impl<'a> Range<'a> {
    pub fn new(lower: &'a [u8], upper: &'a [u8], flags: ScanFlags) -> Self {
        Self {
            lower,
            upper,
            flags,
        }
    }

    #[inline]
    fn lower_edge(&self) -> Edge<'a> {
        edge(self.lower, self.flags.has(ScanFlags::LOWER_EXCLUSIVE))
    }
    #[inline]
    fn upper_edge(&self) -> Edge<'a> {
        edge(self.upper, !self.flags.has(ScanFlags::UPPER_EXCLUSIVE))
    }
    #[inline]
    fn is_reverse(&self) -> bool {
        self.flags.has(ScanFlags::REVERSE)
    }
}

/// What a visitor says of the row it was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Taken; go on.
    Next,
    /// Taken; stop here.
    Stop,
    /// Not taken; stop here, and show it again when the scan goes on.
    Again,
}

/// How far a scan has come: a key, so that rows may come and go between two calls.
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
    /// True when the range was walked to its end.
    pub fn is_end(&self) -> bool {
        self.state == ScanState::End
    }

    /// Back to the beginning; keeps the buffer.
    pub fn reset(&mut self) {
        self.state = ScanState::Start;
    }
}

/// A key that another row has: the change is refused.
pub(crate) struct Taken;

/// The index is a hash table: it has no order to scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash index can't be scanned")]
pub struct NotOrdered;

#[inline]
fn hash_of(key: &[u8]) -> u64 {
    fold(0, HASH_TAG, key)
}

impl Index {
    pub fn new(plan: KeyPlan, is_unique: bool, kind: IndexKind) -> Self {
        let body = match (kind, plan.bytes_max()) {
            (IndexKind::Hash, _) => Body::Hash(HashTable::new()),
            (_, Some(..=8)) => Body::W8(Tree::new()),
            (_, Some(9..=16)) => Body::W16(Tree::new()),
            (_, Some(17..=24)) => Body::W24(Tree::new()),
            (_, Some(25..=32)) => Body::W32(Tree::new()),
            _ => Body::Bytes(Tree::new()),
        };
        Self {
            plan,
            is_unique,
            body,
        }
    }

    /// The row under a whole key; of several the first.
    #[inline]
    pub fn get(&self, rows: &Rows, key: &[u8]) -> Option<Rid> {
        if !self.plan.is_whole(key) {
            return None;
        }
        let rid = dispatch!(&self.body,
            tree => if self.is_unique { get_unique(tree, key) } else { get_first(tree, key) },
            hash => find_hash(hash, &self.plan, rows, key)
        );
        rid.map(Rid)
    }

    /// True when the entry key (as `KeyPlan::encode` makes it) is in the index.
    pub fn has(&self, rows: &Rows, key: &[u8]) -> bool {
        dispatch!(&self.body,
            tree => get_unique(tree, key).is_some(),
            hash => find_hash(hash, &self.plan, rows, key).is_some()
        )
    }

    #[inline]
    pub fn insert(
        &mut self,
        rows: &Rows,
        layout: &RowLayout,
        key: &[u8],
        rid: Rid,
    ) -> Result<(), Taken> {
        let plan = &self.plan;
        dispatch!(&mut self.body,
            tree => insert_tree(tree, key, rid),
            hash => insert_hash(hash, plan, rows, layout, key, rid)
        )
    }

    /// Takes the entry away. Panics when it is not there: the index would no longer agree with the rows.
    pub fn remove(&mut self, key: &[u8], rid: Rid) {
        let found = dispatch!(&mut self.body,
            tree => remove_tree(tree, key),
            hash => hash.find_entry(hash_of(key), |r| *r == rid.0).ok().map(|entry| entry.remove().0)
        );
        assert!(
            found == Some(rid.0),
            "an index entry is missing or names another row"
        );
    }

    /// The first row of the range.
    #[inline]
    pub fn first(&self, range: &Range<'_>) -> Result<Option<Rid>, NotOrdered> {
        let rid = dispatch!(&self.body, tree => first_in_tree(tree, range), _hash => return Err(NotOrdered));
        Ok(rid.map(Rid))
    }

    #[inline]
    pub fn scan(
        &self,
        range: &Range<'_>,
        position: &mut ScanPosition,
        visit: impl FnMut(Rid) -> Visit,
    ) -> Result<(), NotOrdered> {
        dispatch!(&self.body, tree => scan_tree(tree, range, position, visit), _hash => return Err(NotOrdered));
        Ok(())
    }

    pub fn count(&self, range: &Range<'_>) -> Result<u64, NotOrdered> {
        Ok(dispatch!(&self.body, tree => count_tree(tree, range), _hash => return Err(NotOrdered)))
    }

    pub fn is_ordered(&self) -> bool {
        !matches!(self.body, Body::Hash(_))
    }

    /// An estimate that depends on the entries alone, not on how they came to be there.
    pub fn nominal_bytes(&self) -> usize {
        dispatch!(&self.body, tree => nominal_tree(tree), hash => hash.len() * HASH_ENTRY_BYTES)
    }

    /// Bytes held from the allocator.
    pub fn memory_bytes(&self) -> usize {
        dispatch!(&self.body, tree => tree.memory_bytes(), hash => hash.allocation_size())
    }
}

#[inline]
fn find_hash(hash: &HashTable<u32>, plan: &KeyPlan, rows: &Rows, key: &[u8]) -> Option<u32> {
    hash.find(hash_of(key), |rid| plan.matches(rows.at(Rid(*rid)), key))
        .copied()
}

fn insert_hash(
    hash: &mut HashTable<u32>,
    plan: &KeyPlan,
    rows: &Rows,
    layout: &RowLayout,
    key: &[u8],
    rid: Rid,
) -> Result<(), Taken> {
    let bits = hash_of(key);
    if hash
        .find(bits, |r| plan.matches(rows.at(Rid(*r)), key))
        .is_some()
    {
        return Err(Taken);
    }
    let scratch = RefCell::new(Scratch::default());
    hash.insert_unique(bits, rid.0, |r| {
        let scratch = &mut *scratch.borrow_mut();
        hash_of(plan.encode(layout, rows.at(Rid(*r)), scratch).bytes)
    });
    Ok(())
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

#[inline]
fn insert_tree<K: TreeKey, const CAP: usize>(
    tree: &mut Tree<K, CAP>,
    key: &[u8],
    rid: Rid,
) -> Result<(), Taken> {
    tree.insert(K::from_bytes(key), rid.0).map_err(|_| Taken)
}

fn remove_tree<K: TreeKey, const CAP: usize>(tree: &mut Tree<K, CAP>, key: &[u8]) -> Option<u32> {
    tree.remove(&K::probe(edge(key, false)))
}

#[inline]
fn first_in_tree<K: TreeKey, const CAP: usize>(
    tree: &Tree<K, CAP>,
    range: &Range<'_>,
) -> Option<u32> {
    let (lower, upper) = (K::probe(range.lower_edge()), K::probe(range.upper_edge()));
    if range.is_reverse() {
        let (key, rid) = tree.previous(tree.seek(&upper))?;
        (!key.is_before(&lower)).then_some(rid)
    } else {
        let (key, rid) = tree.next(tree.seek(&lower))?;
        key.is_before(&upper).then_some(rid)
    }
}

fn scan_tree<K: TreeKey, const CAP: usize>(
    tree: &Tree<K, CAP>,
    range: &Range<'_>,
    position: &mut ScanPosition,
    mut visit: impl FnMut(Rid) -> Visit,
) {
    if position.is_end() {
        return;
    }
    let mut buffer = std::mem::take(&mut position.key);
    let stopped = walk(tree, range, position.state, &buffer, &mut visit);
    buffer.clear();
    position.state = match stopped {
        Some((key, state)) => {
            key.push_to(&mut buffer);
            state
        }
        None => ScanState::End,
    };
    position.key = buffer;
}

/// Where and how the visitor stopped; none when the range ended.
#[inline]
fn walk<K: TreeKey, const CAP: usize>(
    tree: &Tree<K, CAP>,
    range: &Range<'_>,
    state: ScanState,
    key: &[u8],
    visit: &mut impl FnMut(Rid) -> Visit,
) -> Option<(K, ScanState)> {
    let is_reverse = range.is_reverse();
    let (mut lower, mut upper) = (range.lower_edge(), range.upper_edge());
    if state != ScanState::Start {
        // Going up, "at the key" is the edge before it; going down, the edge behind it.
        let resume = edge(key, (state == ScanState::Beyond) != is_reverse);
        *(if is_reverse { &mut upper } else { &mut lower }) = resume;
    }
    let (lower, upper) = (K::probe(lower), K::probe(upper));
    let mut stopped = None;
    let on_entry = |key: &K, rid: u32| {
        let state = match visit(Rid(rid)) {
            Visit::Next => return true,
            Visit::Stop => ScanState::Beyond,
            Visit::Again => ScanState::At,
        };
        stopped = Some((key.clone(), state));
        false
    };
    if is_reverse {
        tree.walk_down(tree.seek(&upper), &lower, on_entry);
    } else {
        tree.walk_up(tree.seek(&lower), &upper, on_entry);
    }
    stopped
}

fn count_tree<K: TreeKey, const CAP: usize>(tree: &Tree<K, CAP>, range: &Range<'_>) -> u64 {
    let lower = tree.seek(&K::probe(range.lower_edge()));
    tree.count(lower, &K::probe(range.upper_edge()))
}

/// Nodes at three quarters full, and the heap part of the keys.
fn nominal_tree<K: TreeKey, const CAP: usize>(tree: &Tree<K, CAP>) -> usize {
    tree.len() * (size_of::<K>() + size_of::<u32>()) * 4 / 3 + tree.heap_bytes()
}
