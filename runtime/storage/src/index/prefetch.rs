//! Prefetches rows that will be looked up, in three steps: the index's entry, the row's place, the row. Each step reads the memory that the
//! one before it brought, so other work must be done between two of them. This is a hint: only time depends on it.

use super::{Body, Index};
use crate::{
    indirection::Rid,
    store::{Store, TableId},
    table::StoredTable,
    tag::tag_of,
};

/// How far a row that will be looked up is prefetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchState {
    /// Nothing can be prefetched.
    #[default]
    Nothing,
    /// The hash of its key in the index.
    Tag(u32),
    /// The slot in the index's array.
    Slot(u32),
    /// Its index is ordered.
    Sorted,
    /// The row that will probably be found.
    Row(Rid),
}

impl Index {
    /// Prefetches the memory that a `get` of the key, the first bytes of `key`, reads first.
    #[inline(always)]
    fn prefetch_of(&self, key: u128) -> PrefetchState {
        match &self.body {
            Body::HashInts(hash) => {
                let tag = tag_of(key);
                hash.touch(tag);
                PrefetchState::Tag(tag)
            }
            Body::Dense(dense) => dense
                .touch_slot(key)
                .map_or(PrefetchState::Nothing, PrefetchState::Slot),
            Body::W8(_) | Body::W16(_) => {
                self.touch_bits(key);
                PrefetchState::Sorted
            }
            _ => PrefetchState::Nothing,
        }
    }

    /// Returns the row that a `get` will probably find.
    #[inline(always)]
    fn candidate_of(&self, found: PrefetchState, key: impl FnOnce() -> Option<u128>) -> Option<Rid> {
        match (&self.body, found) {
            (Body::HashInts(hash), PrefetchState::Tag(tag)) => hash.candidate(tag).map(Rid),
            (Body::Dense(dense), PrefetchState::Slot(slot)) => dense.at_slot(slot).map(Rid),
            (_, PrefetchState::Sorted) => self.candidate_of_bits(key()?),
            _ => None,
        }
    }
}

impl Store {
    /// Does the first step for a row by its primary key of integers: `key_bytes` bytes, the first ones of `key`. Its result is for the next
    /// step.
    #[inline(always)]
    pub fn touch(&self, table: TableId, key_bytes: usize, key: u128) -> PrefetchState {
        let index = &self.tables[table.0 as usize].indexes[0];
        match index.key_bytes() == Some(key_bytes) {
            true => index.prefetch_of(key),
            false => PrefetchState::Nothing,
        }
    }

    /// Does the second step: prefetches the slot with the place of the row that the `get` will probably find. `key` makes the key anew if
    /// it is needed.
    #[inline(always)]
    pub fn touch_place(
        &self,
        table: TableId,
        found: PrefetchState,
        key: impl FnOnce() -> Option<u128>,
    ) -> PrefetchState {
        let StoredTable { indexes, rows, .. } = &self.tables[table.0 as usize];
        match (indexes[0].candidate_of(found, key), found) {
            (Some(rid), _) => {
                rows.touch_place(rid);
                PrefetchState::Row(rid)
            }
            // The row may be inserted later.
            (None, PrefetchState::Tag(_)) => found,
            (None, _) => PrefetchState::Nothing,
        }
    }

    /// Does the last step: prefetches the row's bytes, if the row still exists. If there is none, the row may be inserted later. It then
    /// prefetches the index's entry again, because other calls may have evicted it from the first-level cache.
    #[inline(always)]
    pub fn touch_row(&self, table: TableId, found: PrefetchState) {
        let StoredTable { indexes, rows, .. } = &self.tables[table.0 as usize];
        match found {
            PrefetchState::Row(rid) => rows.touch(rid),
            PrefetchState::Tag(tag) => indexes[0].touch_tag(tag),
            PrefetchState::Slot(_) | PrefetchState::Sorted | PrefetchState::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, Field, IndexKind, RowLayout, ScalarType, TableSchema};

    use super::*;

    /// Makes a table by `kind` with the rows 1, 3, …, 99.
    fn odd_numbers(kind: IndexKind) -> (Store, TableId) {
        let table = TableSchema {
            primary_kind: kind,
            ..TableSchema::new("t", vec![ColumnSchema::new("id", ScalarType::I64)], &[0])
        };
        let layout = RowLayout::of_table(&table);
        let mut store = Store::new();
        let id = store.create_table(table).expect("a table");
        store.begin();
        for value in (1..100).step_by(2) {
            store
                .insert(id, &layout.build(&[Field::Int(value)]))
                .expect("a new row");
        }
        store.commit();
        (store, id)
    }

    fn key_of(value: i64) -> u128 {
        ((value as u64 ^ 1 << 63) as u128) << 64
    }

    #[test]
    fn the_row_is_found_that_a_look_up_finds() {
        for kind in [IndexKind::Hash, IndexKind::Dense, IndexKind::Ordered] {
            let (store, table) = odd_numbers(kind);
            for value in -1..101 {
                let key = key_of(value);
                let found = store.touch(table, 8, key);
                let found = store.touch_place(table, found, || Some(key));
                store.touch_row(table, found);
                match store.get(table, 0, &key.to_be_bytes()[..8]) {
                    // A hash index shows one cache line of those that may hold the entry.
                    Some(_) if matches!(found, PrefetchState::Tag(_)) => assert_eq!(kind, IndexKind::Hash),
                    Some(rid) => assert_eq!(found, PrefetchState::Row(rid), "{kind:?} {value}"),
                    None => assert!(!matches!(found, PrefetchState::Row(_)), "{kind:?} {value}"),
                }
            }
        }
    }

    #[test]
    fn keys_of_another_length_lead_nowhere() {
        let (store, table) = odd_numbers(IndexKind::Dense);
        assert_eq!(store.touch(table, 4, key_of(1)), PrefetchState::Nothing);
    }

    /// A row may disappear between two steps, and a state may come from another table's index. Neither does harm.
    #[test]
    fn row_found_elsewhere_does_no_harm() {
        for kind in [IndexKind::Hash, IndexKind::Dense, IndexKind::Ordered] {
            let (store, table) = odd_numbers(kind);
            for found in [
                PrefetchState::Tag(u32::MAX),
                PrefetchState::Slot(u32::MAX),
                PrefetchState::Slot(20 << 10),
                PrefetchState::Sorted,
                PrefetchState::Row(Rid(u32::MAX)),
            ] {
                store.touch_row(table, found);
                let next = store.touch_place(table, found, || Some(u128::MAX));
                store.touch_row(table, next);
                store.touch_place(table, found, || None);
            }
        }
    }
}
