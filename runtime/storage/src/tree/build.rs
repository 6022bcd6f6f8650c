//! Builds a tree from entries that are in order: first the leaves, then level upon level.

use super::{Inner, Leaf, NONE, Tree};
use crate::treekey::TreeKey;

impl<K: TreeKey, const CAP: usize> Tree<K, CAP> {
    /// Number of keys of a leaf if they come in no particular order: it has room for some before it splits.
    pub const LOOSE: usize = CAP - CAP / 8;
    /// Number of keys of a leaf if they come in order, so that new ones probably go to the end.
    pub const TIGHT: usize = CAP;

    /// Makes a tree of entries in the order of their keys. Err: two have the same key.
    pub fn from_sorted(entries: impl Iterator<Item = (K, u32)>, leaf_entries: usize) -> Result<Self, SameKey> {
        let mut tree = Self::new();
        let mut nodes: Vec<(K, u32)> = Vec::new();
        let mut leaf = Leaf::new();
        for (key, rid) in entries {
            if leaf.keys().last().is_some_and(|last| *last >= key) {
                return Err(SameKey);
            }
            if leaf.len() == leaf_entries {
                tree.append(std::mem::replace(&mut leaf, Leaf::new()), &mut nodes);
            }
            tree.len += 1;
            tree.heap_bytes += key.heap_bytes();
            leaf.put(leaf.len(), key, rid);
        }
        if leaf.len() > 0 {
            tree.append(leaf, &mut nodes);
        }
        tree.raise(nodes);
        tree.count_heap();
        Ok(tree)
    }

    /// Adds a leaf at the right end. No inner node has it yet.
    fn append(&mut self, mut leaf: Leaf<K, CAP>, nodes: &mut Vec<(K, u32)>) {
        let first = leaf.keys[0].clone();
        let id = match nodes.last() {
            // The leaf of an empty tree.
            None => 0,
            Some((_, before)) => {
                let id = self.leaves.len() as u32;
                leaf.previous = *before;
                self.leaves[*before].next = id;
                id
            }
        };
        leaf.next = NONE;
        match id {
            0 => self.leaves[0] = leaf,
            _ => self.leaves.push(leaf),
        }
        if id > 0 {
            self.rightmost_low = Some(first.clone());
        }
        self.rightmost = id;
        nodes.push((first, id));
    }

    /// Builds inner levels over the nodes until one node is left. Each node comes with the first key below it.
    fn raise(&mut self, mut nodes: Vec<(K, u32)>) {
        while nodes.len() > 1 {
            let parents = nodes.len().div_ceil(Self::LOOSE);
            let mut above = Vec::with_capacity(parents);
            let total = nodes.len();
            let mut children = nodes.into_iter();
            for parent in 0..parents {
                // The shares are even, so that no node is left with a single child.
                let share = total * (parent + 1) / parents - total * parent / parents;
                let mut inner = Inner::new();
                let (first, child) = children.next().expect("a share is not empty");
                inner.children[0] = child;
                for (at, (fence, child)) in children.by_ref().take(share - 1).enumerate() {
                    inner.fences[at] = fence;
                    inner.children[at + 1] = child;
                }
                inner.len = (share - 1) as u16;
                above.push((first, self.inners.len() as u32));
                self.inners.push(inner);
            }
            nodes = above;
            self.height += 1;
        }
        if let Some((_, root)) = nodes.first() {
            self.root = *root;
        }
    }
}

/// The error that two entries of an index have one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SameKey;
