//! The dense index: an array from key to record id, for integer keys whose last column counts up.
//!
//! The array has pages of 1,024 neighbouring keys, which the common part of the keys leads to. So a key may begin with other columns (a
//! warehouse, a district) and need not begin at zero. Keys with few neighbours would waste their pages. When too many pages are thin, the
//! index makes no further ones, and such keys go to a hash index beside it.

mod build;

use std::sync::Arc;

use reprise_base::Budget;
use reprise_pages::{Pages, prefetch_line};

use crate::{charge::Charge, chunked::ChunkedArray, hash::HashIndex, tag::tag_of, vacant::Vacant};

const PAGE_KEYS: usize = 1024;
const PAGE_SHIFT: u32 = PAGE_KEYS.ilog2();
/// Number of pages whose places have a number of 32 bits.
const SLOT_PAGES_MAX: u32 = 1 << (u32::BITS - PAGE_SHIFT);
/// Number of pages that are made whatever they hold.
const PAGES_MIN: usize = 16;
/// Number of keys below which a page costs more than their entries in the hash index.
const PAGE_KEYS_KEPT: u32 = 320;
/// Average number of keys that the pages must hold for another one to be made.
const PAGE_KEYS_MIN: usize = 128;

pub(crate) struct Dense {
    /// Record ids + 1; 0 at a place without a key.
    pages: ChunkedArray<[u32; PAGE_KEYS]>,
    /// For each page, the common part of its keys (the key divided by `PAGE_KEYS`), and their number.
    heads: Vec<DenseHead>,
    /// Page numbers + 1, each at the hash of its common part or behind it, going around. At most a quarter of the places are used.
    directory: Vec<u32>,
    /// 64 minus the number of bits that choose a place in the directory.
    directory_shift: u32,
    free: Vacant<[u32; PAGE_KEYS]>,
    /// Keys that have no page, or had none when they were inserted.
    thin: HashIndex,
    len: usize,
    /// Shift that moves the last byte of a key, which is padded on the right, to the right end.
    shift: u32,
    /// Memory beside the pages.
    charge: Charge,
}

struct DenseHead {
    common: Common,
    count: u32,
}

/// The bits that the keys of a page share: high and low word.
type Common = (u64, u64);

impl Dense {
    /// Makes an index for keys of `bytes` bytes, at most 16.
    pub fn new(bytes: usize) -> Self {
        assert!((1..=16).contains(&bytes), "a dense key has 1 to 16 bytes");
        Self {
            pages: ChunkedArray::default(),
            heads: Vec::new(),
            directory: vec![0; 4],
            directory_shift: 62,
            free: Vacant::default(),
            thin: HashIndex::new(),
            len: 0,
            shift: 128 - 8 * bytes as u32,
            charge: Charge::default(),
        }
    }

    /// Counts its memory in `budget` from now on.
    pub fn count_in(&mut self, budget: &Arc<Budget>) {
        self.pages.count_in(budget);
        self.thin.count_in(budget);
        self.charge.count_in(budget);
        self.charge.resize(self.beside_bytes());
    }

    fn beside_bytes(&self) -> usize {
        self.heads.capacity() * size_of::<DenseHead>() + self.directory.capacity() * 4 + self.free.memory_bytes()
    }

    /// True if this many entries take almost certainly no memory.
    #[inline(always)]
    pub fn has_memory(&self, entries: usize) -> bool {
        self.pages.spare() >= entries && (self.thin.len() == 0 || self.thin.has_memory(entries))
    }

    /// Takes memory for an entry of the key. False if it is refused.
    #[cold]
    pub fn make_memory(&mut self, key: u128) -> bool {
        if self.page_of(self.split(key).0).is_some() {
            return true;
        }
        match self.may_add_page() {
            true => self.pages.spare() + self.free.len() > 0 || self.grow_pages(),
            false => self.thin.make_memory(tag_of(key)),
        }
    }

    /// True if `give_back` may find memory to release.
    #[inline]
    pub fn has_whole(&self) -> bool {
        self.free.has_whole()
    }

    /// Releases memory in which no page is left.
    pub fn give_back(&mut self) {
        self.free.give_back(&mut self.pages);
    }

    #[cold]
    fn grow_pages(&mut self) -> bool {
        self.free.try_grow(&mut self.pages, Pages::fill_with_zeros)
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len + self.thin.len()
    }

    pub fn memory_bytes(&self) -> usize {
        self.pages.memory_bytes() + self.beside_bytes() + self.thin.memory_bytes()
    }

    /// The `remove` variant for keys that are removed in order and for good. A page that lost most keys gives the others to the hash index,
    /// unless it still gets new keys, like the page of `newest`.
    pub fn remove_for_good(&mut self, key: u128, rid: u32, newest: u128) -> bool {
        let (common, _) = self.split(key);
        let is_removed = self.remove(key, rid);
        if let Some(page) = self.page_of(common)
            && self.heads[page as usize].count < PAGE_KEYS_KEPT
            && common != self.split(newest).0
        {
            self.break_up(page);
        }
        is_removed
    }

    #[cold]
    fn break_up(&mut self, page: u32) {
        let (high, low) = self.heads[page as usize].common;
        let first = ((high as u128) << 64 | low as u128) << PAGE_SHIFT;
        for place in 0..PAGE_KEYS {
            let Some(rid) = std::mem::take(&mut self.pages[page][place]).checked_sub(1) else {
                continue;
            };
            let tag = tag_of((first | place as u128) << self.shift);
            let moved = self.thin.insert(tag, rid, |_| false);
            debug_assert!(moved.is_ok(), "no other entry is of the key");
        }
        let head = &mut self.heads[page as usize];
        self.len -= std::mem::take(&mut head.count) as usize;
        self.drop_if_empty(page);
    }

    /// Returns the common part of the key's page, and the key's place in it.
    #[inline(always)]
    fn split(&self, key: u128) -> (Common, usize) {
        if self.shift >= 64 {
            let number = (key >> 64) as u64 >> (self.shift - 64);
            return ((0, number >> PAGE_SHIFT), number as usize % PAGE_KEYS);
        }
        let number = key >> self.shift;
        let common = number >> PAGE_SHIFT;
        (((common >> 64) as u64, common as u64), number as usize % PAGE_KEYS)
    }

    /// Returns the preferred place of the page of `common` in the directory.
    #[inline(always)]
    fn home_of(&self, (high, low): Common) -> usize {
        // The first product spreads neighbours evenly, so that each of successive pages has its preferred place. The second product moves
        // runs of them apart.
        let low = low ^ high.rotate_left(32);
        let mixed = low.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (low >> 10).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> self.directory_shift) as usize
    }

    /// The `page_of` variant for keys of at most 8 bytes.
    #[inline(always)]
    fn page_of_short(&self, common: u64) -> Option<u32> {
        let mut at = self.home_of((0, common));
        loop {
            let page = self.directory[at].checked_sub(1)?;
            if self.heads[page as usize].common.1 == common {
                return Some(page);
            }
            at = (at + 1) & (self.directory.len() - 1);
        }
    }

    #[inline(always)]
    fn page_of(&self, common: Common) -> Option<u32> {
        let mut at = self.home_of(common);
        loop {
            let page = self.directory[at].checked_sub(1)?;
            if self.heads[page as usize].common == common {
                return Some(page);
            }
            at = (at + 1) & (self.directory.len() - 1);
        }
    }

    fn list_page(&mut self, page: u32) {
        let mut at = self.home_of(self.heads[page as usize].common);
        while self.directory[at] != 0 {
            at = (at + 1) & (self.directory.len() - 1);
        }
        self.directory[at] = page + 1;
    }

    /// Makes room for another page.
    fn grow_directory(&mut self) {
        if 4 * (self.heads.len() + 1) <= self.directory.len() {
            return;
        }
        let old = std::mem::take(&mut self.directory);
        self.directory = vec![0; 2 * old.len()];
        self.directory_shift -= 1;
        for page in old.into_iter().filter_map(|page| page.checked_sub(1)) {
            self.list_page(page);
        }
    }

    /// Takes a page out of the directory. Pages that had to pass it move up.
    fn unlist_page(&mut self, page: u32) {
        let mask = self.directory.len() - 1;
        let mut hole = self.home_of(self.heads[page as usize].common);
        while self.directory[hole] != page + 1 {
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some(other) = self.directory[at].checked_sub(1) else {
                break;
            };
            let home = self.home_of(self.heads[other as usize].common);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.directory[hole] = other + 1;
                hole = at;
            }
        }
        self.directory[hole] = 0;
    }

    /// Prefetches the memory that `find_dense` reads.
    #[inline]
    pub fn touch(&self, key: u128) {
        self.prefetch_slot_of(key);
    }

    /// Prefetches and returns the array's slot for the key: a record id + 1, or 0. None: the array has no page for it.
    #[inline(always)]
    pub fn prefetch_slot_of(&self, key: u128) -> Option<&u32> {
        let (common, place) = self.split(key);
        let slot = &self.pages[self.page_of(common)?][place];
        prefetch_line(slot);
        Some(slot)
    }

    /// The `prefetch_slot_of` variant for a key of at most 8 bytes, given as its number.
    #[inline(always)]
    pub fn prefetch_slot_of_short(&self, number: u64) -> Option<&u32> {
        debug_assert!(self.shift >= 64);
        let slot = &self.pages[self.page_of_short(number >> PAGE_SHIFT)?][number as usize % PAGE_KEYS];
        prefetch_line(slot);
        Some(slot)
    }

    /// The `prefetch_slot_of` variant that returns the slot's number, for `at_slot`.
    #[inline(always)]
    pub fn touch_slot(&self, key: u128) -> Option<u32> {
        let (common, place) = self.split(key);
        let page = self.page_of(common)?;
        prefetch_line(&self.pages[page][place]);
        (page < SLOT_PAGES_MAX).then_some(page << PAGE_SHIFT | place as u32)
    }

    /// Returns the record id at a place that `touch_slot` returned.
    #[inline(always)]
    pub fn at_slot(&self, slot: u32) -> Option<u32> {
        let page = slot >> PAGE_SHIFT;
        self.pages.find(page)?[slot as usize % PAGE_KEYS].checked_sub(1)
    }

    /// Returns the record id of the key in the array.
    #[inline(always)]
    pub fn find_dense(&self, key: u128) -> Option<u32> {
        let (common, place) = self.split(key);
        self.pages[self.page_of(common)?][place].checked_sub(1)
    }

    /// The `find_dense` variant for a key of at most 8 bytes, given as the number of its bytes.
    #[inline(always)]
    pub fn find_short(&self, number: u64) -> Option<u32> {
        debug_assert!(self.shift >= 64);
        let page = self.page_of_short(number >> PAGE_SHIFT)?;
        self.pages[page][number as usize % PAGE_KEYS].checked_sub(1)
    }

    /// Returns the keys that are not in the array, by `tag_of`. None if there are none.
    #[inline]
    pub fn thin(&self) -> Option<&HashIndex> {
        (self.thin.len() > 0).then_some(&self.thin)
    }

    /// Adds an entry unless the key exists. `is_same` says whether a record id outside the array has the key.
    pub fn insert(&mut self, key: u128, rid: u32, mut is_same: impl FnMut(u32) -> bool) -> Result<(), u32> {
        let (common, place) = self.split(key);
        let page = self.page_of(common);
        let Some(page) = page.or_else(|| self.may_add_page().then(|| self.add_page(common))) else {
            return self.thin.insert(tag_of(key), rid, is_same);
        };
        if let Some(taken) = self.pages[page][place].checked_sub(1) {
            return Err(taken);
        }
        if self.thin.len() > 0
            && let Some(taken) = self.thin.find(tag_of(key), |r| is_same(r).then_some(r))
        {
            self.drop_if_empty(page);
            return Err(taken);
        }
        self.pages[page][place] = rid + 1;
        self.heads[page as usize].count += 1;
        self.len += 1;
        Ok(())
    }

    fn may_add_page(&self) -> bool {
        let pages = self.heads.len() - self.free.len_with_gone();
        pages < PAGES_MIN + self.len / PAGE_KEYS_MIN
    }

    #[cold]
    fn add_page(&mut self, common: Common) -> u32 {
        self.grow_directory();
        let head = DenseHead { common, count: 0 };
        let page = match self.free.take(&mut self.pages, Pages::fill_with_zeros) {
            Some(page) => {
                self.heads[page as usize] = head;
                page
            }
            None => {
                self.pages.push_zeroed();
                self.heads.push(head);
                (self.heads.len() - 1) as u32
            }
        };
        self.list_page(page);
        self.charge.resize(self.beside_bytes());
        page
    }

    /// Releases a page without keys: all its places are 0.
    fn drop_if_empty(&mut self, page: u32) {
        if self.heads[page as usize].count > 0 {
            return;
        }
        self.unlist_page(page);
        self.free.push(page);
    }

    /// Removes the entry. False if it does not exist.
    pub fn remove(&mut self, key: u128, rid: u32) -> bool {
        let (common, place) = self.split(key);
        if let Some(page) = self.page_of(common)
            && self.pages[page][place] == rid + 1
        {
            self.pages[page][place] = 0;
            self.heads[page as usize].count -= 1;
            self.len -= 1;
            self.drop_if_empty(page);
            return true;
        }
        self.thin.remove(tag_of(key), rid)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    struct World {
        dense: Dense,
        /// Keys by record id, for the questions of the index.
        keys: Vec<u128>,
        model: BTreeMap<u128, u32>,
    }

    impl World {
        fn find(&self, key: u128) -> Option<u32> {
            let in_thin =
                |thin: &HashIndex| thin.find(tag_of(key), |rid| (self.keys[rid as usize] == key).then_some(rid));
            let found = self.dense.find_dense(key);
            if self.dense.shift >= 64 {
                let short = self.dense.find_short((key >> self.dense.shift) as u64);
                assert_eq!(short, found);
            }
            found.or_else(|| in_thin(self.dense.thin()?))
        }

        fn insert(&mut self, key: u128) {
            let rid = self.keys.len() as u32;
            self.keys.push(key);
            let keys = &self.keys;
            let found = self.dense.insert(key, rid, |r| keys[r as usize] == key);
            assert_eq!(found, self.model.get(&key).map_or(Ok(()), |taken| Err(*taken)));
            self.model.entry(key).or_insert(rid);
        }

        fn remove(&mut self, key: u128) {
            if let Some(rid) = self.model.remove(&key) {
                assert!(self.dense.remove(key, rid) && !self.dense.remove(key, rid));
            }
            assert_eq!(self.find(key), None);
        }

        fn check(&self) {
            assert_eq!(self.dense.len(), self.model.len());
            for (key, rid) in &self.model {
                assert_eq!(self.find(*key), Some(*rid));
            }
            let listed = self.dense.directory.iter().filter(|page| **page != 0);
            assert_eq!(listed.count(), self.dense.heads.len() - self.dense.free.len_with_gone());
        }
    }

    fn world(key_bytes: usize) -> World {
        World {
            dense: Dense::new(key_bytes),
            keys: Vec::new(),
            model: BTreeMap::new(),
        }
    }

    fn key(prefix: u32, number: u64) -> u128 {
        (prefix as u128) << 96 | (number as u128) << 32
    }

    /// Makes a key of 8 bytes.
    fn short(prefix: u32, number: u64) -> u128 {
        (prefix as u128) << 96 | (number as u32 as u128) << 64
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
        #[test]
        fn a_dense_index_is_a_map(ops in prop::collection::vec((any::<bool>(), 0..3u32, any::<u64>(), 0..400u64), 0..60)) {
            for (mut world, key) in [(world(12), key as fn(u32, u64) -> u128), (world(8), short)] {
                for (is_insert, kind, start, count) in &ops {
                    // Runs of neighbours, keys far apart, and keys that occur again.
                    let (step, start) = [(1, start % 4096), (1 << 40, start % 7), (1024, start % 50)][*kind as usize];
                    for number in 0..*count {
                        let key = key(kind % 2, start.wrapping_add(number.wrapping_mul(step)));
                        if *is_insert { world.insert(key) } else { world.remove(key) }
                    }
                }
                world.check();
            }
        }
    }

    #[test]
    fn neighbours_cost_little_and_strangers_do_not_cost_pages() {
        let mut world = world(12);
        for number in 0..100_000 {
            world.insert(key(1, number));
        }
        assert!(world.dense.thin().is_none() && world.dense.heads.len() < 100);
        for number in 0..100_000 {
            world.insert(key(2, number << 20));
        }
        world.check();
        assert!(world.dense.heads.len() < 1000, "{} pages", world.dense.heads.len());
        for number in 0..100_000 {
            world.remove(key(1, number));
            world.insert(key(3, number));
        }
        world.check();
        assert!(world.dense.heads.len() < 1200, "{} pages", world.dense.heads.len());
    }
}
