//! Builds a dense index from keys that are in order.

use super::{Common, Dense, PAGE_KEYS_MIN};
use crate::{tag::tag_of, tree::SameKey};

impl Dense {
    /// Fills an empty index with entries in the order of their keys.
    pub fn fill_sorted(&mut self, entries: &[[u64; 3]]) -> Result<(), SameKey> {
        let key_of = |entry: &[u64; 3]| (entry[0] as u128) << 64 | entry[1] as u128;
        if entries.windows(2).any(|pair| pair[0][..2] == pair[1][..2]) {
            return Err(SameKey);
        }
        let mut rest = entries;
        while let Some(first) = rest.first() {
            let (common, _) = self.split(key_of(first));
            let len = rest.partition_point(|entry| self.split(key_of(entry)).0 <= common);
            let (neighbours, after) = rest.split_at(len);
            match self.page_for(common, len) {
                Some(page) => {
                    for entry in neighbours {
                        let (_, place) = self.split(key_of(entry));
                        self.pages[page][place] = entry[2] as u32 + 1;
                    }
                    self.heads[page as usize].count = len as u32;
                    self.len += len;
                }
                None => {
                    for entry in neighbours {
                        let placed = self.thin.insert(tag_of(key_of(entry)), entry[2] as u32, |_| false);
                        debug_assert!(placed.is_ok());
                    }
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Returns a page for neighbours that fill it well enough, or while pages are free.
    fn page_for(&mut self, common: Common, keys: usize) -> Option<u32> {
        (keys >= PAGE_KEYS_MIN || self.may_add_page()).then(|| self.add_page(common))
    }
}
