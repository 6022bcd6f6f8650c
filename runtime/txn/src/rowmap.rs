//! A map by row for one transaction: small, with a cheap hash, and cleared in constant time.

use reprise_storage::{Rid, TableId};

/// Number of entries that are kept from one transaction to the next.
const ENTRIES_KEPT: usize = 4 << 10;
const ENTRIES_FIRST: usize = 64;
/// 2^64 divided by the golden ratio. It spreads numbers that lie close together.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a row of a held store as one word.
#[inline(always)]
pub(crate) fn row_key(store: u16, table: TableId, rid: Rid) -> u64 {
    (table.0 as u64) << 48 | (store as u64) << 32 | rid.0 as u64
}

#[derive(Clone, Copy, Default)]
struct RowMapEntry<V> {
    key: u64,
    /// The round of the entry. An entry of an older round counts as none.
    round: u32,
    value: V,
}

pub(crate) struct RowMap<V> {
    /// The entries; their number is a power of two, or 0.
    entries: Vec<RowMapEntry<V>>,
    len: usize,
    round: u32,
}

impl<V> Default for RowMap<V> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            len: 0,
            round: 1,
        }
    }
}

impl<V: Copy + Default> RowMap<V> {
    pub fn memory_bytes(&self) -> usize {
        self.entries.len() * size_of::<RowMapEntry<V>>()
    }

    /// Returns the bytes of the entries once `more` entries were added, unless the map then grows more than once.
    pub fn memory_bytes_after(&self, more: usize) -> usize {
        match 2 * (self.len + more) < self.entries.len() {
            true => self.memory_bytes(),
            false => 2 * self.memory_bytes(),
        }
    }

    #[inline]
    pub fn clear(&mut self) {
        if self.len > 0 {
            self.begin_round();
        }
    }

    fn begin_round(&mut self) {
        self.len = 0;
        self.round = self.round.wrapping_add(1);
        if self.entries.len() > ENTRIES_KEPT || self.round == 0 {
            *self = Self::default();
        }
    }

    /// Returns the place of the key, or the place for it.
    #[inline(always)]
    fn place(&self, key: u64) -> usize {
        let mask = self.entries.len() - 1;
        let mut at = (key.wrapping_mul(SPREAD) >> 32) as usize & mask;
        while self.entries[at].round == self.round && self.entries[at].key != key {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    pub fn get(&self, key: u64) -> Option<V> {
        if self.len == 0 {
            return None;
        }
        let entry = &self.entries[self.place(key)];
        (entry.round == self.round).then_some(entry.value)
    }

    /// Returns the value under the key. It makes the value if there is none.
    #[inline]
    pub fn entry(&mut self, key: u64) -> &mut V {
        if 2 * self.len >= self.entries.len() {
            self.grow();
        }
        let (at, round) = (self.place(key), self.round);
        let entry = &mut self.entries[at];
        if entry.round != round {
            self.len += 1;
            *entry = RowMapEntry {
                key,
                round,
                value: V::default(),
            };
        }
        &mut entry.value
    }

    #[cold]
    fn grow(&mut self) {
        let larger = (2 * self.entries.len()).max(ENTRIES_FIRST);
        let old = std::mem::replace(&mut self.entries, vec![RowMapEntry::default(); larger]);
        let round = std::mem::replace(&mut self.round, 1);
        for entry in old.into_iter().filter(|entry| entry.round == round) {
            let at = self.place(entry.key);
            self.entries[at] = RowMapEntry { round: 1, ..entry };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_holds_what_a_map_holds_round_after_round() {
        let (mut map, mut state) = (RowMap::<u64>::default(), 7_u64);
        for round in 0..40 {
            let mut model = BTreeMap::new();
            for _ in 0..1 << (round % 14) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let key = row_key(
                    (state >> 60) as u16,
                    TableId((state >> 40) as u16 & 3),
                    Rid(state as u32 & 0x3ff),
                );
                *map.entry(key) += 1;
                *model.entry(key).or_insert(0) += 1;
            }
            for (key, count) in &model {
                assert_eq!(map.get(*key), Some(*count));
            }
            assert_eq!(map.get(u64::MAX), None);
            assert_eq!(map.len, model.len());
            map.clear();
            assert!(map.len == 0 && model.keys().all(|key| map.get(*key).is_none()));
        }
    }
}
