//! Inserts with splits, and removals with merges.

use super::{Fingers, Inner, Leaf, NONE, RUN_MIN, Step, Tree, fill_with_leaves};
use crate::{indirection::Rid, treekey::TreeKey};

/// The leaf of a key, which also has all keys from `low` on and before `end`.
pub(super) struct Reach<K> {
    pub leaf: u32,
    pub low: K,
    pub end: K,
    /// True if `low` was not known before.
    is_news: bool,
}

impl<K: TreeKey, const CAP: usize> Tree<K, CAP> {
    /// Adds an entry. Err: the record id of the entry that has the key.
    #[inline]
    pub fn insert(&mut self, key: K, rid: u32) -> Result<(), u32> {
        let reach = self.reach_for(&key);
        self.insert_in(&reach, key, rid)
    }

    /// The `insert` variant for a run of entries, which stops at a key that is taken. Returns the number of entries before it. Successive
    /// keys behind all others of a leaf are put there by one move.
    pub fn insert_run(&mut self, keys: &[K], rids: &[Rid]) -> usize {
        let mut done = 0;
        while done < keys.len() {
            let reach = self.reach_for(&keys[done]);
            match self.append_run(&reach, &keys[done..], &rids[done..]) {
                0 if self.insert_in(&reach, keys[done].clone(), rids[done].0).is_err() => break,
                0 => done += 1,
                more => {
                    done += more;
                    self.remember(&reach);
                }
            }
        }
        done
    }

    /// Puts the first keys behind all others of the leaf in which the first of them belongs. Returns the number of keys for which that is
    /// the right place; 0 for none.
    #[inline]
    fn append_run(&mut self, reach: &Reach<K>, keys: &[K], rids: &[Rid]) -> usize {
        let leaf = &mut self.leaves[reach.leaf];
        let len = leaf.len();
        let room = keys.len().min(CAP - len);
        if room == 0 || leaf.keys().last().is_none_or(|last| *last >= keys[0]) {
            return 0;
        }
        // The keys are compared all at once, because only the end shows whether a run continues.
        let is_run = keys[..room]
            .windows(2)
            .fold(true, |is_run, pair| is_run & (pair[0] < pair[1]));
        let count = match is_run && keys[room - 1] < reach.end {
            true => room,
            false => {
                let is_next = |pair: &[K]| pair[0] < pair[1] && pair[1] < reach.end;
                1 + keys[..room].windows(2).take_while(|pair| is_next(pair)).count()
            }
        };
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
        self.count_heap();
        count
    }

    #[inline]
    fn insert_in(&mut self, reach: &Reach<K>, key: K, rid: u32) -> Result<(), u32> {
        let leaf = &mut self.leaves[reach.leaf];
        let at = match leaf.keys().last() {
            Some(last) if *last < key => leaf.len(),
            _ => K::rank_less(&leaf.keys, leaf.len(), &key),
        };
        if at < leaf.len() && leaf.keys[at] == key {
            return Err(leaf.rids[at]);
        }
        self.len += 1;
        self.heap_bytes += key.heap_bytes();
        let is_fit = leaf.len() < CAP;
        self.count_heap();
        if is_fit {
            let leaf = &mut self.leaves[reach.leaf];
            leaf.put(at, key, rid);
            self.remember(reach);
        } else {
            self.split_leaf(reach.leaf, at, key, rid);
        }
        Ok(())
    }

    /// Records the range of a leaf with a run, if a descent found it.
    #[inline]
    fn remember(&mut self, reach: &Reach<K>) {
        if K::IS_COPIED && reach.is_news && self.leaves[reach.leaf].run + 1 >= RUN_MIN {
            self.remember_reach(reach);
        }
    }

    /// Records the range of the right end, although it is found without it. It is recorded beside other runs, so that one search finds all.
    #[cold]
    fn remember_reach(&mut self, reach: &Reach<K>) {
        if reach.leaf != self.rightmost || self.fingers.is_some() {
            let fingers = self.fingers.get_or_insert_with(|| Box::new(Fingers::new()));
            fingers.remember(reach.low.clone(), reach.end.clone(), reach.leaf);
        }
    }

    /// Removes the whole key that `probe` was made from. Returns its record id.
    pub fn remove(&mut self, probe: &K::Probe<'_>) -> Option<u32> {
        let place = self.seek(probe);
        let leaf = &mut self.leaves[place.leaf];
        if place.at >= leaf.len() || !leaf.keys[place.at].is_at(probe) {
            return None;
        }
        self.len -= 1;
        self.heap_bytes -= leaf.keys[place.at].heap_bytes();
        let rid = leaf.take(place.at);
        let is_sparse = leaf.len() < CAP / 4 && self.height > 0;
        self.count_heap();
        if is_sparse {
            self.shrink(probe);
        } else if K::IS_COPIED && place.at == 0 {
            self.remember_first(probe);
        }
        Some(rid)
    }

    /// Records the leaf, because a caller that removes a leaf's first key often returns for the next one.
    fn remember_first(&mut self, probe: &K::Probe<'_>) {
        let is_known = |fingers: &Fingers<K>| fingers.find_probe(probe).is_some();
        if !self.fingers.as_deref().is_some_and(is_known) {
            let reach = self.descend(|inner| K::rank_fences(&inner.fences, inner.len(), probe));
            self.remember_reach(&reach);
        }
    }

    /// Returns the leaf of a key.
    #[inline]
    fn reach_for(&mut self, key: &K) -> Reach<K> {
        if let Some(fingers) = &self.fingers
            && let Some((leaf, end)) = fingers.find(key)
        {
            return Reach {
                leaf,
                low: K::default(),
                end: end.clone(),
                is_news: false,
            };
        }
        if let Some(low) = &self.rightmost_low
            && low <= key
        {
            return Reach {
                leaf: self.rightmost,
                low: low.clone(),
                end: K::vacant(),
                is_news: self.fingers.is_some(),
            };
        }
        let finger = self.finger.get();
        if finger != NONE {
            if let [first, .., last] = self.leaves[finger].keys()
                && first <= key
                && key <= last
            {
                return Reach {
                    leaf: finger,
                    low: K::default(),
                    end: last.clone(),
                    is_news: false,
                };
            }
            self.finger.set(NONE);
        }
        self.reach_down(key)
    }

    #[inline(never)]
    fn reach_down(&mut self, key: &K) -> Reach<K> {
        let reach = self.descend(|inner| K::rank_up_to(&inner.fences, inner.len(), key));
        if reach.leaf == self.rightmost {
            self.rightmost_low = Some(reach.low.clone());
        }
        reach
    }

    /// Returns the leaf to which `rank` leads; `rank` chooses the next child in an inner node. If keys are expensive to copy, the range of
    /// the leaf is left out, except for the right end.
    #[inline]
    pub(super) fn descend(&self, rank: impl Fn(&Inner<K, CAP>) -> usize) -> Reach<K> {
        let mut node = self.root;
        let (mut low, mut end) = (None, None);
        for _ in 0..self.height {
            let inner = &self.inners[node];
            let child = rank(inner);
            low = child.checked_sub(1).map(|before| &inner.fences[before]).or(low);
            if child < inner.len() {
                end = Some(&inner.fences[child]);
            }
            node = inner.children[child];
        }
        let is_wanted = K::IS_COPIED || node == self.rightmost;
        Reach {
            leaf: node,
            low: low.filter(|_| is_wanted).cloned().unwrap_or_default(),
            end: end.filter(|_| K::IS_COPIED).cloned().unwrap_or_else(K::vacant),
            is_news: true,
        }
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
        if let Some(id) = self.free_leaves.take(&mut self.leaves, fill_with_leaves) {
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
        let stays = at < cut || at == cut && cut < CAP;
        if stays {
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
            NONE => (self.rightmost, self.rightmost_low) = (right_id, Some(fence.clone())),
            next => self.leaves[next].previous = right_id,
        }
        self.leaves[right_id] = right;
        self.cut_fingers(id, &fence, (!stays).then_some(right_id));
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
        (self.rightmost, self.rightmost_low) = (new, Some(key.clone()));
        self.cut_fingers(last, &key, Some(new));
        self.add_child(path, key, new);
    }

    /// Records that another leaf has the keys from `fence` on. If the last inserted key went there, the finger moves to that leaf, because
    /// the run continues there.
    fn cut_fingers(&mut self, leaf: u32, fence: &K, gone_to: Option<u32>) {
        let Some(fingers) = &mut self.fingers else {
            return;
        };
        if let Some(end) = fingers.cut(leaf, fence)
            && let Some(right) = gone_to
        {
            fingers.drop_leaf(leaf);
            fingers.remember(fence.clone(), end, right);
        }
    }

    /// Puts a new child to the right of the one on the path, and splits upwards.
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

    /// Splits a full inner node and puts the child in. Returns the new node on the right and its fence.
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

    /// Merges the sparse leaf of `probe` with a sibling, and sparse nodes above it, if they fit together.
    #[cold]
    fn shrink(&mut self, probe: &K::Probe<'_>) {
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

    /// Merges children `left` and `left + 1` of `parent` if they fit. True if it did.
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
            // The next descent to that leaf finds its beginning.
            NONE => (self.rightmost, self.rightmost_low) = (left_id, None),
            next => self.leaves[next].previous = left_id,
        }
        if let Some(fingers) = &mut self.fingers {
            fingers.drop_leaf(right_id);
        }
        if self.finger.get() == right_id {
            self.finger.set(NONE);
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
    /// Inserts a fence at `at`, and the child that it begins behind it.
    fn put(&mut self, at: usize, fence: K, child: u32) {
        let len = self.len() + 1;
        K::open_gap(&mut self.fences[..len], at);
        self.fences[at] = fence;
        self.children.copy_within(at + 1..len, at + 2);
        self.children[at + 1] = child;
        self.len = len as u16;
    }

    /// Removes fence `at` and the child behind it.
    fn take(&mut self, at: usize) -> K {
        let len = self.len();
        let fence = std::mem::replace(&mut self.fences[at], K::vacant());
        K::close_gap(&mut self.fences[..len], at);
        self.children.copy_within(at + 2..len + 1, at + 1);
        self.len -= 1;
        fence
    }
}
