//! Insert with split, remove with merge.

use super::{Inner, Leaf, NONE, RUN_MIN, Step, Tree};
use crate::{indirection::Rid, treekey::TreeKey};

impl<K: TreeKey, const CAP: usize> Tree<K, CAP> {
    /// Adds an entry; the record id in place when the key is taken.
    #[inline]
    pub fn insert(&mut self, key: K, rid: u32) -> Result<(), u32> {
        let id = self.leaf_for(&key);
        self.insert_in(id, key, rid)
    }

    /// As `insert` of entries one behind the other, until a key is taken: how many those before it are. Keys that follow each other
    /// behind all others of a leaf are put there by one move.
    pub fn insert_run(&mut self, keys: &[K], rids: &[Rid]) -> usize {
        let mut done = 0;
        while done < keys.len() {
            let id = self.leaf_for(&keys[done]);
            match self.append_run(id, &keys[done..], &rids[done..]) {
                0 if self.insert_in(id, keys[done].clone(), rids[done].0).is_err() => break,
                0 => done += 1,
                more => done += more,
            }
        }
        done
    }

    /// Puts the first keys behind all others of the leaf, where the first of them belongs; how many there were for which that is
    /// right, 0 where it is not known how far the leaf reaches.
    #[inline]
    fn append_run(&mut self, id: u32, keys: &[K], rids: &[Rid]) -> usize {
        let is_last = id == self.rightmost;
        if !is_last && id != self.run_leaf {
            return 0;
        }
        let (leaf, end) = (&mut self.leaves[id], &self.run_end);
        let len = leaf.len();
        let room = keys.len().min(CAP - len);
        if room == 0 || leaf.keys().last().is_none_or(|last| *last >= keys[0]) {
            return 0;
        }
        let is_next = |pair: &[K]| pair[0] < pair[1] && (is_last || pair[1] < *end);
        let count = 1 + keys[..room].windows(2).take_while(|pair| is_next(pair)).count();
        leaf.keys[len..len + count].clone_from_slice(&keys[..count]);
        for (to, rid) in leaf.rids[len..len + count].iter_mut().zip(rids) {
            *to = rid.0;
        }
        let is_behind = len == leaf.last_put as usize + 1;
        let run = if is_behind { leaf.run.saturating_add(1) } else { 0 };
        leaf.run = run.saturating_add(count as u16 - 1);
        leaf.len = (len + count) as u16;
        leaf.last_put = leaf.len - 1;
        self.len += count;
        self.heap_bytes += keys[..count].iter().map(K::heap_bytes).sum::<usize>();
        count
    }

    #[inline]
    fn insert_in(&mut self, id: u32, key: K, rid: u32) -> Result<(), u32> {
        let leaf = &mut self.leaves[id];
        let at = match leaf.keys().last() {
            Some(last) if *last < key => leaf.len(),
            _ => K::rank_less(&leaf.keys, leaf.len(), &key),
        };
        if at < leaf.len() && leaf.keys[at] == key {
            return Err(leaf.rids[at]);
        }
        self.len += 1;
        self.heap_bytes += key.heap_bytes();
        if leaf.len() < CAP {
            leaf.put(at, key, rid);
        } else {
            self.split_leaf(id, at, key, rid);
        }
        Ok(())
    }

    /// Takes the whole key that `probe` was made from; its record id.
    pub fn remove(&mut self, probe: &K::Probe<'_>) -> Option<u32> {
        let place = self.seek(probe);
        let leaf = &mut self.leaves[place.leaf];
        if place.at >= leaf.len() || !leaf.keys[place.at].is_at(probe) {
            return None;
        }
        self.len -= 1;
        self.heap_bytes -= leaf.keys[place.at].heap_bytes();
        let rid = leaf.take(place.at);
        if leaf.len() < CAP / 4 && self.height > 0 {
            self.shrink(probe);
        }
        Some(rid)
    }

    #[inline]
    fn leaf_for(&mut self, key: &K) -> u32 {
        let last = &self.leaves[self.rightmost];
        if last.keys().first().is_some_and(|first| first <= key) {
            return self.rightmost;
        }
        if self.run_leaf != NONE
            && *key < self.run_end
            && let Some(first) = self.leaves[self.run_leaf].keys().first()
            && first <= key
        {
            return self.run_leaf;
        }
        let finger = self.finger.get();
        if let [first, .., last] = self.leaves[finger].keys()
            && first <= key
            && key <= last
        {
            return finger;
        }
        self.descend_for(key)
    }

    fn descend_for(&mut self, key: &K) -> u32 {
        let mut node = self.root;
        let mut end = None;
        for _ in 0..self.height {
            let inner = &self.inners[node];
            let child = K::rank_up_to(&inner.fences, inner.len(), key);
            if K::IS_COPIED && child < inner.len() {
                end = Some(&inner.fences[child]);
            }
            node = inner.children[child];
        }
        if let Some(end) = end {
            (self.run_leaf, self.run_end) = (node, end.clone());
        }
        node
    }

    fn record_path(&mut self, rank: impl Fn(&Inner<K, CAP>) -> usize) -> Vec<Step> {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let mut node = self.root;
        for _ in 0..self.height {
            let inner = &self.inners[node];
            let child = rank(inner);
            path.push(Step { node, child });
            node = inner.children[child];
        }
        path
    }

    fn new_leaf(&mut self) -> u32 {
        if let Some(id) = self.free_leaves.pop() {
            self.leaves[id] = Leaf::new();
            return id;
        }
        self.leaves.push(Leaf::new());
        (self.leaves.len() - 1) as u32
    }

    fn new_inner(&mut self) -> u32 {
        if let Some(id) = self.free_inners.pop() {
            self.inners[id] = Inner::new();
            return id;
        }
        self.inners.push(Inner::new());
        (self.inners.len() - 1) as u32
    }

    #[cold]
    fn split_leaf(&mut self, id: u32, at: usize, key: K, rid: u32) {
        self.run_leaf = NONE;
        let path = self.record_path(|inner| K::rank_up_to(&inner.fences, inner.len(), &key));
        let right_id = self.new_leaf();
        if at == CAP && self.leaves[id].next == NONE {
            return self.append_leaf(id, right_id, path, key, rid);
        }
        let mut right = std::mem::replace(&mut self.leaves[right_id], Leaf::new());
        let left = &mut self.leaves[id];
        let is_run = left.run + 1 >= RUN_MIN && at == left.last_put as usize + 1;
        let cut = if is_run { at } else { CAP / 2 };
        for (entry, from) in (cut..CAP).enumerate() {
            right.keys[entry] = std::mem::replace(&mut left.keys[from], K::vacant());
            right.rids[entry] = left.rids[from];
        }
        right.len = (CAP - cut) as u16;
        left.len = cut as u16;
        if at < cut || at == cut && cut < CAP {
            left.put(at, key, rid);
        } else {
            right.put(at - cut, key, rid);
            right.run = if is_run { left.run } else { 0 };
        }
        let fence = right.keys[0].clone();
        right.previous = id;
        right.next = left.next;
        left.next = right_id;
        match right.next {
            NONE => self.rightmost = right_id,
            next => self.leaves[next].previous = right_id,
        }
        self.leaves[right_id] = right;
        self.add_child(path, fence, right_id);
    }

    /// Begins a leaf behind the last one, which is full.
    fn append_leaf(&mut self, last: u32, new: u32, path: Vec<Step>, key: K, rid: u32) {
        self.leaves[last].next = new;
        let run = self.leaves[last].run;
        let leaf = &mut self.leaves[new];
        leaf.put(0, key.clone(), rid);
        leaf.run = run;
        leaf.previous = last;
        self.rightmost = new;
        self.add_child(path, key, new);
    }

    /// Puts a new child right of the one that the path leads through, splitting upwards.
    fn add_child(&mut self, mut path: Vec<Step>, mut fence: K, mut child: u32) {
        while let Some(step) = path.pop() {
            let inner = &mut self.inners[step.node];
            if inner.len() + 1 < CAP {
                inner.put(step.child, fence, child);
                self.path = path;
                return;
            }
            (fence, child) = self.split_inner(step, fence, child);
        }
        let root = self.new_inner();
        let inner = &mut self.inners[root];
        inner.children[0] = self.root;
        inner.put(0, fence, child);
        self.root = root;
        self.height += 1;
        self.path = path;
    }

    /// Splits a full inner node and puts the child in; the new node on the right and its fence.
    fn split_inner(&mut self, step: Step, fence: K, child: u32) -> (K, u32) {
        let right_id = self.new_inner();
        let mut right = Inner::new();
        let left = &mut self.inners[step.node];
        let len = left.len();
        if step.child == len {
            right.children[0] = child;
            self.inners[right_id] = right;
            return (fence, right_id);
        }
        let middle = len / 2;
        for (to, from) in (middle + 1..len).enumerate() {
            right.fences[to] = std::mem::replace(&mut left.fences[from], K::vacant());
        }
        right.children[..len - middle].copy_from_slice(&left.children[middle + 1..len + 1]);
        right.len = (len - middle - 1) as u16;
        let up = std::mem::replace(&mut left.fences[middle], K::vacant());
        left.len = middle as u16;
        if step.child <= middle {
            left.put(step.child, fence, child);
        } else {
            right.put(step.child - middle - 1, fence, child);
        }
        self.inners[right_id] = right;
        (up, right_id)
    }

    /// Merges the sparse leaf of `probe` with a sibling, and sparse nodes above it, where they fit together.
    #[cold]
    fn shrink(&mut self, probe: &K::Probe<'_>) {
        self.run_leaf = NONE;
        let path = self.record_path(|inner| K::rank_fences(&inner.fences, inner.len(), probe));
        let mut is_leaf = true;
        for step in path.iter().rev() {
            let len = self.inners[step.node].len();
            let merged = (step.child < len && self.merge(step.node, step.child, is_leaf))
                || (step.child > 0 && self.merge(step.node, step.child - 1, is_leaf));
            if !merged || self.inners[step.node].len() >= CAP / 4 {
                break;
            }
            is_leaf = false;
        }
        while self.height > 0 && self.inners[self.root].len() == 0 {
            let child = self.inners[self.root].children[0];
            self.free_inners.push(self.root);
            self.root = child;
            self.height -= 1;
        }
        self.path = path;
    }

    /// Merges children `left` and `left + 1` of `parent` when they fit; true when it did.
    fn merge(&mut self, parent: u32, left: usize, is_leaf: bool) -> bool {
        let inner = &self.inners[parent];
        let (left_id, right_id) = (inner.children[left], inner.children[left + 1]);
        let fits = if is_leaf {
            self.leaves_fit(left_id, right_id)
        } else {
            self.inners_fit(left_id, right_id)
        };
        if !fits {
            return false;
        }
        let fence = self.inners[parent].take(left);
        if is_leaf {
            self.merge_leaves(left_id, right_id);
        } else {
            self.merge_inners(left_id, right_id, fence);
        }
        true
    }

    fn leaves_fit(&self, left: u32, right: u32) -> bool {
        let (left, right) = (self.leaves[left].len(), self.leaves[right].len());
        left == 0 || right == 0 || left + right <= CAP / 4 * 3
    }

    fn inners_fit(&self, left: u32, right: u32) -> bool {
        let (left, right) = (self.inners[left].len(), self.inners[right].len());
        let sum = left + right + 1;
        sum <= CAP / 4 * 3 || (left == 0 || right == 0) && sum < CAP
    }

    fn merge_leaves(&mut self, left_id: u32, right_id: u32) {
        let mut right = std::mem::replace(&mut self.leaves[right_id], Leaf::new());
        let left = &mut self.leaves[left_id];
        let at = left.len();
        for entry in 0..right.len() {
            left.keys[at + entry] = std::mem::replace(&mut right.keys[entry], K::vacant());
            left.rids[at + entry] = right.rids[entry];
        }
        left.len += right.len;
        left.run = 0;
        left.next = right.next;
        match right.next {
            NONE => self.rightmost = left_id,
            next => self.leaves[next].previous = left_id,
        }
        self.free_leaves.push(right_id);
    }

    fn merge_inners(&mut self, left_id: u32, right_id: u32, fence: K) {
        let mut right = std::mem::replace(&mut self.inners[right_id], Inner::new());
        let left = &mut self.inners[left_id];
        let at = left.len() + 1;
        left.fences[at - 1] = fence;
        for entry in 0..right.len() {
            left.fences[at + entry] = std::mem::replace(&mut right.fences[entry], K::vacant());
        }
        left.children[at..=at + right.len()].copy_from_slice(&right.children[..=right.len()]);
        left.len += right.len + 1;
        self.free_inners.push(right_id);
    }
}

impl<K: TreeKey, const CAP: usize> Inner<K, CAP> {
    /// Puts a fence at `at` and the child that it begins behind it.
    fn put(&mut self, at: usize, fence: K, child: u32) {
        let len = self.len() + 1;
        K::open_gap(&mut self.fences[..len], at);
        self.fences[at] = fence;
        self.children.copy_within(at + 1..len, at + 2);
        self.children[at + 1] = child;
        self.len = len as u16;
    }

    /// Takes fence `at` and the child behind it away.
    fn take(&mut self, at: usize) -> K {
        let len = self.len();
        let fence = std::mem::replace(&mut self.fences[at], K::vacant());
        K::close_gap(&mut self.fences[..len], at);
        self.children.copy_within(at + 2..len + 1, at + 1);
        self.len -= 1;
        fence
    }
}
