//! Places of a tree where keys are inserted or removed in order, with the key range of each. For example, ten districts insert into ten
//! leaves in turn. A descent would wait once for each level.
//!
//! The cache is exact: a key of `lows[i]..ends[i]` belongs to leaf `leaves[i]`. The tree therefore reports each leaf that it splits or
//! releases. A leaf that takes a sibling's entries keeps its own range.

use crate::treekey::TreeKey;

/// Number of leaves that are remembered at most: those of two or three dozen simultaneous runs.
const FINGERS: usize = 32;

pub(super) struct Fingers<K> {
    /// The lower bounds, in order. Entries behind `len` are vacant.
    lows: [K; FINGERS],
    ends: [K; FINGERS],
    leaves: [u32; FINGERS],
    len: usize,
    /// The entry that is replaced next.
    next_out: usize,
}

impl<K: TreeKey> Fingers<K> {
    pub fn new() -> Self {
        Self {
            lows: std::array::from_fn(|_| K::vacant()),
            ends: std::array::from_fn(|_| K::vacant()),
            leaves: [0; FINGERS],
            len: 0,
            next_out: 0,
        }
    }

    /// Returns the leaf of a key, and the first key behind its known range.
    #[inline]
    pub fn find(&self, key: &K) -> Option<(u32, &K)> {
        let at = K::rank_up_to(&self.lows, self.len, key).checked_sub(1)?;
        (*key < self.ends[at]).then(|| (self.leaves[at], &self.ends[at]))
    }

    /// Returns the leaf at which a descent by the probe would end.
    #[inline]
    pub fn find_probe(&self, probe: &K::Probe<'_>) -> Option<u32> {
        let at = K::rank_fences(&self.lows, self.len, probe).checked_sub(1)?;
        (!self.ends[at].is_up_to(probe)).then(|| self.leaves[at])
    }

    /// Records that keys from `low` on and before `end` belong to the leaf.
    pub fn remember(&mut self, low: K, end: K, leaf: u32) {
        let mut at = K::rank_less(&self.lows, self.len, &low);
        if at == self.len || self.lows[at] != low {
            if self.len == FINGERS {
                let out = self.next_out;
                self.next_out = (out + 1) % FINGERS;
                self.forget(out);
                at -= (out < at) as usize;
            }
            self.len += 1;
            K::open_gap(&mut self.lows[..self.len], at);
            K::open_gap(&mut self.ends[..self.len], at);
            self.leaves.copy_within(at..self.len - 1, at + 1);
        }
        self.lows[at] = low;
        self.ends[at] = end;
        self.leaves[at] = leaf;
    }

    /// Records that the leaf keeps only keys before `fence`. Returns the first key behind the keys that left, if it was known.
    pub fn cut(&mut self, leaf: u32, fence: &K) -> Option<K> {
        let mut end = None;
        for at in (0..self.len).rev() {
            if self.leaves[at] != leaf || self.ends[at] <= *fence {
                continue;
            }
            end = Some(self.ends[at].clone());
            if self.lows[at] < *fence {
                self.ends[at] = fence.clone();
            } else {
                self.forget(at);
            }
        }
        end
    }

    /// Forgets a leaf that is released.
    pub fn drop_leaf(&mut self, leaf: u32) {
        for at in (0..self.len).rev() {
            if self.leaves[at] == leaf {
                self.forget(at);
            }
        }
    }

    fn forget(&mut self, at: usize) {
        K::close_gap(&mut self.lows[..self.len], at);
        K::close_gap(&mut self.ends[..self.len], at);
        self.leaves.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    /// Returns every remembered range, and its leaf.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = (&K, &K, u32)> {
        let each = self.lows.iter().zip(&self.ends).zip(&self.leaves);
        each.take(self.len).map(|((low, end), leaf)| (low, end, *leaf))
    }
}
