//! The ordered index: a B+tree from keys to record ids.
//!
//! Nodes lie in arrays and name each other by number. Runs of growing keys, at the right end or anywhere else, leave full leaves behind. A
//! leaf that is filled in order is split at the run's position, not in the middle. Leaves merge only when both are sparse, and may be empty
//! if no sibling could take them.

mod build;
mod change;
mod fingers;
#[cfg(test)]
mod tests;

pub(crate) use build::SameKey;

use std::{cell::Cell, sync::Arc};

use fingers::Fingers;
use reprise_base::Budget;
use reprise_pages::{Pages, prefetch_line};

use crate::{
    charge::Charge,
    chunked::ChunkedArray,
    treekey::{Edge, TreeKey},
    vacant::Vacant,
};

const NONE: u32 = u32::MAX;
/// Number of inserts in order after which a full leaf is split at the insertion point.
const RUN_MIN: u16 = 4;
/// Bytes that the processor fetches at once.
const LINE_BYTES: usize = 64;
/// Bytes of a step in which keys on the heap are counted. The second constant is the assumed length of a key before it exists.
const HEAP_STEP_BYTES: usize = 64 << 10;
const HEAP_KEY_BYTES: usize = 1 << 10;

pub(crate) struct Tree<K, const CAP: usize> {
    leaves: ChunkedArray<Leaf<K, CAP>>,
    inners: ChunkedArray<Inner<K, CAP>>,
    free_leaves: Vacant<Leaf<K, CAP>>,
    free_inners: Vec<u32>,
    root: u32,
    /// Number of inner levels above the leaves.
    height: u32,
    rightmost: u32,
    /// First key that belongs to the rightmost leaf. None if it is not known.
    rightmost_low: Option<K>,
    /// The leaf of the last look-up, if no insert went elsewhere since. An insert often follows a look-up of its place.
    finger: Cell<u32>,
    /// Leaves of runs whose keys are cheap to copy. They exist once there was a run that is not at the right end.
    fingers: Option<Box<Fingers<K>>>,
    len: usize,
    heap_bytes: usize,
    /// Memory of keys on the heap, in steps: at least `heap_bytes`.
    heap: Charge,
    path: Vec<Step>,
}

struct Leaf<K, const CAP: usize> {
    keys: [K; CAP],
    rids: [u32; CAP],
    len: u16,
    /// The place of the last inserted key, and the number of keys before it that each followed the previous one.
    last_put: u16,
    run: u16,
    previous: u32,
    next: u32,
}

/// An inner node with `len` fences and `len + 1` children. Child `i + 1` holds the keys from fence `i` on.
struct Inner<K, const CAP: usize> {
    fences: [K; CAP],
    children: [u32; CAP],
    len: u16,
}

/// Makes leaves from all memory that an array has.
fn fill_with_leaves<K: TreeKey, const CAP: usize>(leaves: &mut Pages<Leaf<K, CAP>>) {
    leaves.extend(std::iter::repeat_with(Leaf::new).take(ChunkedArray::<Leaf<K, CAP>>::CHUNK));
}

/// An inner node on the descent, and the child taken.
#[derive(Clone, Copy)]
struct Step {
    node: u32,
    child: usize,
}

/// A place in the order: before entry `at` of the leaf, or behind its last entry.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    leaf: u32,
    at: usize,
}

impl<K: TreeKey, const CAP: usize> Leaf<K, CAP> {
    fn new() -> Self {
        Self {
            keys: std::array::from_fn(|_| K::vacant()),
            rids: [0; CAP],
            len: 0,
            last_put: 0,
            run: 0,
            previous: NONE,
            next: NONE,
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    fn keys(&self) -> &[K] {
        &self.keys[..self.len as usize]
    }

    #[inline]
    fn put(&mut self, at: usize, key: K, rid: u32) {
        let len = self.len() + 1;
        if at + 1 < len {
            K::open_gap(&mut self.keys[..len], at);
            self.rids.copy_within(at..len - 1, at + 1);
        }
        self.keys[at] = key;
        self.rids[at] = rid;
        self.len = len as u16;
        self.run = if at == self.last_put as usize + 1 {
            self.run.saturating_add(1)
        } else {
            0
        };
        self.last_put = at as u16;
    }

    fn take(&mut self, at: usize) -> u32 {
        let len = self.len();
        let rid = self.rids[at];
        K::close_gap(&mut self.keys[..len], at);
        self.rids.copy_within(at + 1..len, at);
        self.len -= 1;
        self.run = 0;
        rid
    }
}

impl<K: TreeKey, const CAP: usize> Inner<K, CAP> {
    fn new() -> Self {
        Self {
            fences: std::array::from_fn(|_| K::vacant()),
            children: [NONE; CAP],
            len: 0,
        }
    }

    fn len(&self) -> usize {
        self.len as usize
    }
}

impl<K: TreeKey, const CAP: usize> Tree<K, CAP> {
    pub fn new() -> Self {
        assert!(
            CAP >= 8 && CAP.is_multiple_of(8) && CAP < u16::MAX as usize,
            "nodes are whole blocks of keys"
        );
        let mut leaves = ChunkedArray::default();
        leaves.push(Leaf::new());
        Self {
            leaves,
            inners: ChunkedArray::default(),
            free_leaves: Vacant::default(),
            free_inners: Vec::new(),
            root: 0,
            height: 0,
            rightmost: 0,
            rightmost_low: Some(K::default()),
            finger: Cell::new(0),
            fingers: None,
            len: 0,
            heap_bytes: 0,
            heap: Charge::default(),
            path: Vec::new(),
        }
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.leaves.count_in(budget);
        self.inners.count_in(budget);
        self.heap.count_in(budget);
        self.count_heap();
    }

    /// Adjusts the counted heap memory to its real size.
    #[inline(always)]
    fn count_heap(&mut self) {
        let counted = self.heap.bytes();
        if !K::IS_COPIED && (self.heap_bytes > counted || counted - self.heap_bytes > 2 * HEAP_STEP_BYTES) {
            self.heap.resize(self.heap_bytes.next_multiple_of(HEAP_STEP_BYTES));
        }
    }

    /// True if this many entries take no memory, even if each splits nodes on the path.
    #[inline(always)]
    pub fn has_memory(&self, entries: usize) -> bool {
        let inners = entries + self.height as usize;
        self.leaves.spare() + self.free_leaves.len() >= entries
            && self.inners.spare() + self.free_inners.len() >= inners
            && (K::IS_COPIED || self.heap.bytes() - self.heap_bytes >= HEAP_KEY_BYTES * entries)
    }

    /// Takes memory for this many entries, each of which may split nodes on the path. False if it is refused.
    #[cold]
    pub fn make_memory(&mut self, entries: usize) -> bool {
        self.make_heap(HEAP_KEY_BYTES * entries) && self.make_nodes(entries)
    }

    /// True if `give_back` may find memory to release.
    #[inline]
    pub fn has_whole(&self) -> bool {
        self.free_leaves.has_whole()
    }

    /// Releases memory in which no leaf is left.
    pub fn give_back(&mut self) {
        self.free_leaves.give_back(&mut self.leaves);
    }

    fn make_heap(&mut self, bytes: usize) -> bool {
        K::IS_COPIED || self.heap.bytes() - self.heap_bytes >= bytes || self.heap.try_grow(HEAP_STEP_BYTES.max(bytes))
    }

    fn make_nodes(&mut self, entries: usize) -> bool {
        while self.leaves.spare() + self.free_leaves.len() < entries {
            if !self.free_leaves.try_grow(&mut self.leaves, fill_with_leaves) {
                return false;
            }
        }
        while self.inners.spare() + self.free_inners.len() < entries + self.height as usize {
            if !self.inners.try_grow() {
                return false;
            }
        }
        true
    }

    /// The `make_memory` variant for one entry. It takes no memory if the entry's leaf has room.
    #[cold]
    pub fn make_memory_for(&mut self, key: &K) -> bool {
        if !self.make_heap(key.heap_bytes()) {
            return false;
        }
        let reach = self.descend(|inner| K::rank_up_to(&inner.fences, inner.len(), key));
        self.leaves[reach.leaf].len() < CAP || self.make_nodes(1)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the heap bytes of the keys in the leaves: a function of the entries alone.
    pub fn heap_bytes(&self) -> usize {
        self.heap_bytes
    }

    pub fn memory_bytes(&self) -> usize {
        let fingers = self.fingers.as_ref().map_or(0, |_| size_of::<Fingers<K>>());
        let beside = fingers + self.free_leaves.memory_bytes();
        self.leaves.memory_bytes() + self.inners.memory_bytes() + self.heap.bytes() + beside
    }

    #[inline]
    fn leaf_of(&self, probe: &K::Probe<'_>) -> u32 {
        if self.height > 0
            && let Some(fingers) = &self.fingers
            && let Some(leaf) = fingers.find_probe(probe)
        {
            return leaf;
        }
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node];
            node = inner.children[K::rank_fences(&inner.fences, inner.len(), probe)];
        }
        node
    }

    /// Returns the first place whose preceding entries are all before the probe.
    #[inline]
    pub fn seek(&self, probe: &K::Probe<'_>) -> Place {
        let leaf = self.leaf_of(probe);
        self.finger.set(leaf);
        let node = &self.leaves[leaf];
        let at = K::rank_before(&node.keys, node.len(), probe);
        Place { leaf, at }
    }

    /// Prefetches the memory of the leaf that a look-up of the key reads first.
    #[inline]
    pub fn touch(&self, probe: &K::Probe<'_>) {
        let leaf = &self.leaves[self.leaf_of(probe)];
        prefetch_line(&leaf.len);
        prefetch_line(&leaf.keys[CAP / 4]);
        prefetch_line(&leaf.keys[CAP / 2]);
        prefetch_line(&leaf.keys[CAP / 4 * 3]);
    }

    /// Prefetches the memory that an insert of the key will read and write, unless keys are inserted there all the time.
    #[inline]
    pub fn touch_place_of(&self, key: &K) {
        if self.known_leaf_of(key).is_some() {
            return;
        }
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node];
            node = inner.children[K::rank_up_to(&inner.fences, inner.len(), key)];
        }
        self.finger.set(node);
        let leaf = &self.leaves[node];
        prefetch_line(&leaf.len);
        let of_line = |entry_bytes: usize| (LINE_BYTES / entry_bytes).max(1);
        leaf.keys
            .iter()
            .step_by(of_line(size_of::<K>()))
            .for_each(prefetch_line);
        leaf.rids
            .iter()
            .step_by(of_line(size_of::<u32>()))
            .for_each(prefetch_line);
    }

    /// Returns the leaf to which keys like this one go, if it is known without a descent.
    #[inline]
    fn known_leaf_of(&self, key: &K) -> Option<u32> {
        let fingers = self.fingers.as_ref();
        match fingers.and_then(|fingers| fingers.find(key)) {
            Some((leaf, _)) => Some(leaf),
            None => self.is_rightmost(key).then_some(self.rightmost),
        }
    }

    #[inline]
    fn is_rightmost(&self, key: &K) -> bool {
        self.rightmost_low.as_ref().is_some_and(|low| low <= key)
    }

    /// Returns the record id of the whole key that `probe` was made from.
    #[inline]
    pub fn get(&self, probe: &K::Probe<'_>) -> Option<u32> {
        let place = self.seek(probe);
        let leaf = &self.leaves[place.leaf];
        let is_here = place.at < leaf.len() && leaf.keys[place.at].is_at(probe);
        is_here.then(|| leaf.rids[place.at])
    }

    /// The `get` variant that avoids the descent if the key lies within the leaf of the last look-up.
    #[inline]
    pub fn get_prefetch(&self, probe: &K::Probe<'_>) -> Option<u32> {
        if self.finger.get() == NONE {
            return self.get(probe);
        }
        let leaf = &self.leaves[self.finger.get()];
        if let [first, .., last] = leaf.keys()
            && (first.is_before(probe) || first.is_at(probe))
            && !last.is_before(probe)
        {
            let at = K::rank_before(&leaf.keys, leaf.len(), probe);
            return leaf.keys[at].is_at(probe).then(|| leaf.rids[at]);
        }
        self.get(probe)
    }

    /// Returns the record id of a key, like `get`, for keys that are cheap to make.
    #[inline]
    pub fn find(&self, key: K) -> Option<u32> {
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node];
            node = inner.children[K::rank_up_to(&inner.fences, inner.len(), &key)];
        }
        self.finger.set(node);
        let leaf = &self.leaves[node];
        let at = K::rank_less(&leaf.keys, leaf.len(), &key);
        (at < leaf.len() && leaf.keys[at] == key).then(|| leaf.rids[at])
    }

    /// Returns the entry behind the place.
    #[inline]
    pub fn next(&self, place: Place) -> Option<(&K, u32)> {
        let mut leaf = &self.leaves[place.leaf];
        let mut at = place.at;
        while at >= leaf.len() {
            if leaf.next == NONE {
                return None;
            }
            leaf = &self.leaves[leaf.next];
            at = 0;
        }
        Some((&leaf.keys[at], leaf.rids[at]))
    }

    /// Returns the entry before the place.
    #[inline]
    pub fn previous(&self, place: Place) -> Option<(&K, u32)> {
        let mut leaf = &self.leaves[place.leaf];
        let mut at = place.at;
        while at == 0 {
            if leaf.previous == NONE {
                return None;
            }
            leaf = &self.leaves[leaf.previous];
            at = leaf.len();
        }
        Some((&leaf.keys[at - 1], leaf.rids[at - 1]))
    }

    /// Visits the entries from `place` on and before `upper`, until `visit` returns false. False if it did.
    #[inline]
    pub fn walk_up(&self, place: Place, upper: &K::Probe<'_>, mut visit: impl FnMut(&K, u32) -> bool) -> bool {
        let mut leaf = &self.leaves[place.leaf];
        let mut at = place.at;
        loop {
            let end = leaf.end_before(upper);
            for entry in at..end {
                if !visit(&leaf.keys[entry], leaf.rids[entry]) {
                    return false;
                }
            }
            if end < leaf.len() || leaf.next == NONE {
                return true;
            }
            leaf = &self.leaves[leaf.next];
            at = 0;
        }
    }

    /// Shows the record ids of the entries from `place` on and before `upper`, those of one leaf together. It stops when `visit` takes
    /// fewer than it was shown, and returns the first one that it did not take.
    #[inline]
    pub fn walk_leaves(
        &self,
        place: Place,
        upper: &K::Probe<'_>,
        mut visit: impl FnMut(&[u32]) -> usize,
    ) -> Option<&K> {
        let mut leaf = &self.leaves[place.leaf];
        let mut at = place.at;
        loop {
            let end = leaf.end_before(upper);
            if at < end {
                let taken = visit(&leaf.rids[at..end]);
                if taken < end - at {
                    return Some(&leaf.keys[at + taken]);
                }
            }
            if end < leaf.len() || leaf.next == NONE {
                return None;
            }
            leaf = &self.leaves[leaf.next];
            at = 0;
        }
    }

    /// Visits the entries before `place` that are not before `lower`, last first. The result is that of `walk_up`.
    #[inline]
    pub fn walk_down(&self, place: Place, lower: &K::Probe<'_>, mut visit: impl FnMut(&K, u32) -> bool) -> bool {
        let mut leaf = &self.leaves[place.leaf];
        let mut at = place.at;
        loop {
            for entry in (0..at).rev() {
                if leaf.keys[entry].is_before(lower) {
                    return true;
                }
                if !visit(&leaf.keys[entry], leaf.rids[entry]) {
                    return false;
                }
            }
            if leaf.previous == NONE {
                return true;
            }
            leaf = &self.leaves[leaf.previous];
            at = leaf.len();
        }
    }

    /// Returns the number of entries from `place` on and before `upper`. Every few leaves it calls `go_on` with the entries passed since.
    /// If that returns false, the count is incomplete.
    pub fn count(&self, place: Place, upper: &K::Probe<'_>, go_on: &mut dyn FnMut(u64) -> bool) -> u64 {
        let mut leaf = &self.leaves[place.leaf];
        let (mut count, mut reported) = (0, 0);
        let mut at = place.at;
        loop {
            let end = leaf.end_before(upper);
            count += end.saturating_sub(at) as u64;
            if end < leaf.len() || leaf.next == NONE {
                return count;
            }
            if count - reported > COUNTED_AT_ONCE {
                if !go_on(count - reported) {
                    return count;
                }
                reported = count;
            }
            leaf = &self.leaves[leaf.next];
            at = 0;
        }
    }
}

/// Number of entries that are counted between two calls of `go_on`.
const COUNTED_AT_ONCE: u64 = 16 << 10;

impl<K: TreeKey, const CAP: usize> Leaf<K, CAP> {
    /// Returns the number of entries before `upper`.
    #[inline]
    fn end_before(&self, upper: &K::Probe<'_>) -> usize {
        match self.keys().last() {
            Some(last) if !last.is_before(upper) => K::rank_before(&self.keys, self.len(), upper),
            _ => self.len(),
        }
    }
}

/// Returns the edge right before a whole key, or with `after` right behind it.
#[inline]
pub(crate) fn edge(bytes: &[u8], after: bool) -> Edge<'_> {
    Edge { bytes, after }
}
