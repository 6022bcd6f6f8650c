//! Takes memory for future entries before a row is inserted, so that no index has to refuse the row half-way.

use std::sync::Arc;

use reprise_abi::RowLayout;
use reprise_base::Budget;

use super::{Body, Index, entry_key, int_key};
use crate::{
    keyplan::{KeyScratch, StoredRow},
    tag::{tag_of, tag_of_bytes},
};

impl Index {
    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        match &mut self.body {
            Body::HashInts(hash) | Body::HashBytes(hash) => hash.count_in(budget),
            Body::Dense(dense) => dense.count_in(budget),
            body => dispatch!(body, tree => tree.count_in(budget), _ => ()),
        }
        self.budget = Some(Arc::clone(budget));
    }

    /// True if `give_back` may find memory to release.
    #[inline]
    pub fn has_whole(&self) -> bool {
        match &self.body {
            Body::HashInts(_) | Body::HashBytes(_) => false,
            Body::Dense(dense) => dense.has_whole(),
            body => dispatch!(body, tree => tree.has_whole(), _ => false),
        }
    }

    /// Releases memory in which nothing is left.
    #[cold]
    pub fn give_back(&mut self) {
        match &mut self.body {
            Body::HashInts(_) | Body::HashBytes(_) => {}
            Body::Dense(dense) => dense.give_back(),
            body => dispatch!(body, tree => tree.give_back(), _ => ()),
        }
    }

    /// True if this many rows take no memory.
    #[inline(always)]
    pub fn has_memory(&self, rows: usize) -> bool {
        match &self.body {
            Body::HashInts(hash) | Body::HashBytes(hash) => hash.has_memory(rows),
            Body::Dense(dense) => dense.has_memory(rows),
            body => dispatch!(body, tree => tree.has_memory(rows), _ => true),
        }
    }

    /// Takes memory for this many entries of a tree. False if it is refused, or if it depends on the keys.
    #[cold]
    pub fn make_memory_for(&mut self, rows: usize) -> bool {
        dispatch!(&mut self.body, tree => tree.make_memory(rows), _ => false)
    }

    /// Takes memory for the row's entry. False if it is refused.
    #[cold]
    pub fn make_memory(&mut self, layout: &RowLayout, row: StoredRow<'_>, scratch: &mut KeyScratch) -> bool {
        let plan = &self.plan;
        match &mut self.body {
            Body::HashInts(hash) => hash.make_memory(tag_of(int_key(plan, row))),
            Body::Dense(dense) => dense.make_memory(int_key(plan, row)),
            Body::HashBytes(hash) => {
                let key = plan.encode(layout, row, scratch);
                key.is_too_long() || hash.make_memory(tag_of_bytes(key.bytes))
            }
            // A key that is too long is refused for that reason later.
            body => dispatch!(body,
                tree => entry_key(plan, layout, row, scratch).map_or(true, |key| tree.make_memory_for(&key)),
                _ => true
            ),
        }
    }
}
