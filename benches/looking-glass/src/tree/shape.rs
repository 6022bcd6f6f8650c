//! How a tree changes its shape: nodes that are split, merged, pushed down and pulled up, under latches on two levels.

use std::cmp::Ordering;

use super::{CHILD_BYTES, RID_BYTES, Rid, Tree, child_at, inner_key, leaf_key};
use crate::{
    log::{Chain, RecordKind, Site},
    page::{Page, PageKind},
    parts::{MAIN_LOG, has, page_bytes},
    pool::{Pool, WritePage},
};

impl Tree {
    #[inline(never)]
    pub(super) fn insert_splitting<const P: u32>(
        &self,
        pool: &Pool<P>,
        chain: &mut Chain,
        key: &[u8],
        rid: Rid,
    ) -> bool {
        let probe = self.probe::<P>(key);
        let mut node = pool.write(self.root);
        if !self.has_room(&node, key) {
            self.push_down_root(pool, chain, &mut node);
        }
        while node.level() > 0 {
            let slot = self.inner_slot::<P>(&node, &probe);
            let mut child = pool.write(child_at(&node, slot));
            if !self.has_room(&child, key) {
                let right = self.split(pool, chain, &mut node, slot, &mut child);
                let is_right = self.compare::<P>(inner_key(node.record(slot + 1)), &probe) != Ordering::Greater;
                if is_right {
                    child = right;
                }
            }
            node = child;
        }
        let (slot, is_there) = self.leaf_slot::<P>(&node, &probe);
        if is_there {
            return false;
        }
        let fits = node.insert(slot, key, &rid.bytes());
        assert!(fits, "a leaf that was split has room");
        self.log_entry(&mut node, chain, RecordKind::NodeInsert, slot, key, &rid.bytes());
        true
    }

    fn has_room(&self, node: &Page, key: &[u8]) -> bool {
        match node.level() {
            0 => node.fits(key.len() + RID_BYTES),
            _ => node.fits(self.key_bytes_max() + CHILD_BYTES),
        }
    }

    /// Moves what the root holds to a child of its own: the root is a level higher.
    fn push_down_root<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, root: &mut WritePage<'_, P>) {
        let level = root.level();
        let mut child = pool.allocate(chain, PageKind::Node, level);
        for slot in 0..root.count() {
            child.insert(slot, root.record(slot), &[]);
        }
        log_image(&mut child, chain);
        root.format(PageKind::Node, level + 1);
        root.insert(0, &child.number.to_le_bytes(), &[]);
        log_image(root, chain);
    }

    /// Moves the upper half of a full child to a new page; that page.
    fn split<'p, const P: u32>(
        &self,
        pool: &'p Pool<P>,
        chain: &mut Chain,
        parent: &mut WritePage<'p, P>,
        slot: usize,
        child: &mut WritePage<'p, P>,
    ) -> WritePage<'p, P> {
        let mut right = pool.allocate(chain, PageKind::Node, child.level());
        let half = child.filled_bytes() / 2;
        let (mut from, mut bytes) = (0, 0);
        while bytes < half && from + 1 < child.count() {
            bytes += child.record(from).len() + 4;
            from += 1;
        }
        for at in from..child.count() {
            right.insert(at - from, child.record(at), &[]);
        }
        let separator = match child.level() {
            0 => leaf_key(child.record(from)).to_vec(),
            _ => inner_key(child.record(from)).to_vec(),
        };
        right.set_next(child.next());
        child.set_next(right.number);
        child.truncate(from);
        log_image(&mut right, chain);
        log_image(child, chain);
        let entry = [&separator[..], &right.number.to_le_bytes()].concat();
        let fits = parent.insert(slot + 1, &entry, &[]);
        assert!(fits, "a parent was split before its child");
        self.log_shape(parent, chain, RecordKind::NodeInsert, slot + 1, &entry);
        right
    }

    /// Merges the sparse nodes on the way to a key with a neighbour each, where both fit into one page.
    #[inline(never)]
    pub(super) fn merge_on_the_way<const P: u32>(&self, pool: &Pool<P>, chain: &mut Chain, key: &[u8]) {
        let probe = self.probe::<P>(key);
        let mut node = pool.write(self.root);
        while node.level() > 0 {
            let slot = self.inner_slot::<P>(&node, &probe);
            let child = pool.write(child_at(&node, slot));
            let child = match is_sparse::<P>(&child) && node.count() > 1 {
                true => self.merge(pool, chain, &mut node, slot, child),
                false => child,
            };
            if node.number == self.root && node.count() == 1 {
                node = self.pull_up_child(pool, chain, node, child);
                continue;
            }
            node = child;
        }
    }

    /// Merges a child with its neighbour if they fit; the page that holds the child's entries afterwards.
    fn merge<'p, const P: u32>(
        &self,
        pool: &'p Pool<P>,
        chain: &mut Chain,
        parent: &mut WritePage<'p, P>,
        slot: usize,
        child: WritePage<'p, P>,
    ) -> WritePage<'p, P> {
        // Latches of one level are taken from left to right.
        let (at, mut left, right) = match slot + 1 < parent.count() {
            true => (slot + 1, child, pool.write(child_at(parent, slot + 1))),
            false => {
                drop(child);
                let left = pool.write(child_at(parent, slot - 1));
                (slot, left, pool.write(child_at(parent, slot)))
            }
        };
        let separator = inner_key(parent.record(at)).to_vec();
        let needed = left.filled_bytes() + right.filled_bytes() + separator.len() + 8;
        if needed > page_bytes(P) * 3 / 4 {
            return if at == slot { right } else { left };
        }
        let count = left.count();
        for slot in 0..right.count() {
            let fits = match (slot, right.level()) {
                (0, 1..) => left.insert(count, &separator, &child_at(&right, 0).to_le_bytes()),
                _ => left.insert(count + slot, right.record(slot), &[]),
            };
            assert!(fits, "both fit into one page");
        }
        left.set_next(right.next());
        log_image(&mut left, chain);
        let entry = parent.record(at).to_vec();
        parent.remove(at);
        self.log_shape(parent, chain, RecordKind::NodeRemove, at, &entry);
        let before = std::mem::replace(&mut chain.is_redo_only, true);
        pool.free(right, chain);
        chain.is_redo_only = before;
        left
    }

    /// Moves what the root's only child holds into the root: the root is a level lower.
    fn pull_up_child<'p, const P: u32>(
        &self,
        pool: &'p Pool<P>,
        chain: &mut Chain,
        mut root: WritePage<'p, P>,
        child: WritePage<'p, P>,
    ) -> WritePage<'p, P> {
        root.format(PageKind::Node, child.level());
        for slot in 0..child.count() {
            root.insert(slot, child.record(slot), &[]);
        }
        log_image(&mut root, chain);
        let before = std::mem::replace(&mut chain.is_redo_only, true);
        pool.free(child, chain);
        chain.is_redo_only = before;
        root
    }
}

/// Less than a quarter of a page is in use.
pub(super) fn is_sparse<const P: u32>(page: &Page) -> bool {
    page.filled_bytes() < page_bytes(P) / 4
}

/// A record of a whole page: what lies before the gap, and behind it.
fn log_image<const P: u32>(page: &mut WritePage<'_, P>, chain: &mut Chain) {
    let before = std::mem::replace(&mut chain.is_redo_only, true);
    let site = Site {
        kind: RecordKind::Image,
        page: page.number,
        slot: 0,
        extra: 0,
    };
    let (front, back) = match const { has(P, MAIN_LOG) } {
        true => page.ends(),
        false => Default::default(),
    };
    page.append(chain, site, &front, &back);
    chain.is_redo_only = before;
}
