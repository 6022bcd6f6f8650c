//! Looks up many keys at once, so that all of them wait for memory together.

use reprise_abi::calls::EqualKeys;

use super::{Body, Index};
use crate::{dense::Dense, indirection::Rid, rows::RowHeap};

impl Index {
    /// Looks up to `N` keys up and returns their number. For each existing row, it returns the slot of its place. It fetches the memory for
    /// all look-ups at once, up to these slots.
    #[inline]
    pub fn get_batch<'k, 'r, const N: usize>(
        &self,
        rows: &'r RowHeap,
        keys: &mut (impl Iterator<Item = &'k [u8]> + Clone),
        slots: &mut [Option<(Rid, &'r u64)>; N],
    ) -> usize {
        if let Body::Dense(dense) = &self.body {
            return self.get_dense_batch(dense, rows, keys, slots);
        }
        // Each step prefetches the memory that the next one reads.
        let these = keys.clone().take(N);
        these.clone().for_each(|key| self.touch(key));
        let mut candidates = [None; N];
        for (key, candidate) in these.clone().zip(&mut candidates) {
            *candidate = self.candidate(key);
            candidate.iter().for_each(|rid| rows.touch_place(*rid));
        }
        candidates.iter().flatten().for_each(|rid| rows.touch(*rid));
        let mut count = 0;
        for (key, slot) in these.zip(slots) {
            let found = self.get(rows, key);
            *slot = found.map(|(rid, _)| (rid, rows.prefetch_slot_of(rid)));
            count += 1;
        }
        keys.by_ref().take(count).for_each(drop);
        count
    }

    #[inline]
    fn get_dense_batch<'k, 'r, const N: usize>(
        &self,
        dense: &Dense,
        rows: &'r RowHeap,
        keys: &mut (impl Iterator<Item = &'k [u8]> + Clone),
        slots: &mut [Option<(Rid, &'r u64)>; N],
    ) -> usize {
        let these = keys.clone();
        let mut entries = [None; N];
        let mut count = 0;
        // The room comes first, because a key that was taken needs an entry.
        for (entry, key) in entries.iter_mut().zip(keys) {
            if self.is_whole(key) {
                *entry = dense.prefetch_slot_of(self.bits_of(key));
            }
            count += 1;
        }
        for (at, (entry, slot)) in entries[..count].iter().zip(slots).enumerate() {
            let rid = match entry.map_or(0, |entry| *entry) {
                0 if dense.thin().is_none() => None,
                0 => self.get_nth(rows, these.clone(), at),
                above => Some(Rid(above - 1)),
            };
            *slot = rid.map(|rid| (rid, rows.prefetch_slot_of(rid)));
        }
        count
    }

    #[cold]
    fn get_nth<'k>(&self, rows: &RowHeap, mut keys: impl Iterator<Item = &'k [u8]>, at: usize) -> Option<Rid> {
        let found = keys.nth(at).and_then(|key| self.get(rows, key));
        found.map(|(rid, _)| rid)
    }

    /// The `get_batch` variant for `N` keys of one length at most, if the array of a dense index has all of them. Otherwise it returns
    /// false, and its results are unusable. No branch depends on a key.
    #[inline(always)]
    pub fn get_whole_batch<'r, const N: usize>(
        &self,
        rows: &'r RowHeap,
        keys: &EqualKeys<'_>,
        (rids, slots): (&mut [Rid; N], &mut [&'r u64; N]),
    ) -> bool {
        let (Body::Dense(dense), Some(load), 1..=8) = (&self.body, &self.load, self.key_bytes) else {
            return false;
        };
        if keys.each() != self.key_bytes || keys.count() > N {
            return false;
        }
        let (mut numbers, mut entries) = ([0; N], [&0; N]);
        load.load_short_each(keys, &mut numbers);
        let (numbers, entries) = (&numbers[..keys.count()], &mut entries[..keys.count()]);
        for (number, entry) in numbers.iter().zip(&mut *entries) {
            match dense.prefetch_slot_of_short(*number) {
                Some(found) => *entry = found,
                None => return false,
            }
        }
        let mut is_whole = true;
        for ((entry, rid), slot) in entries.iter().zip(rids).zip(slots) {
            is_whole &= **entry != 0;
            // An array with a page proves that ids were given out, so the first id stands for absent ones.
            *rid = Rid(entry.saturating_sub(1));
            *slot = rows.prefetch_slot_of(*rid);
        }
        is_whole
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reprise_abi::{
        ColumnSchema, Field, IndexKind, ReadSpan, ScalarType, TablePlacement, TableSchema, calls::EqualKeys,
    };

    use crate::{Rid, Store, TableId};

    struct Found(Vec<Option<(Rid, Vec<u8>)>>);

    impl Found {
        fn push(&mut self, found: Option<(Rid, &[u8])>) {
            self.0.push(found.map(|(rid, bytes)| (rid, bytes.to_vec())));
        }
    }

    /// Keys of up to three columns of these widths, or of none.
    const SHAPES: [&[ScalarType]; 8] = {
        use ScalarType::{I8, I16, I32, I64};
        [
            &[I32],
            &[I64],
            &[I32, I32],
            &[I16, I32],
            &[I16, I8, I32],
            &[I16],
            &[I64, I32],
            &[I16, I8],
        ]
    };

    fn store(shape: &[ScalarType], kind: IndexKind) -> (Store, TableId) {
        let types = [shape, &[ScalarType::Text]].concat();
        let mut store = Store::new();
        let table = store.create_table(TableSchema {
            primary_kind: kind,
            placement: TablePlacement::Replicated,
            ..TableSchema::new(
                "t",
                types
                    .into_iter()
                    .enumerate()
                    .map(|(at, ty)| ColumnSchema::new(format!("c{at}"), ty))
                    .collect(),
                &(0..shape.len() as u16).collect::<Vec<_>>(),
            )
        });
        (store, table.expect("a table"))
    }

    /// A row whose last key column is `number`; the other key columns are a part of it.
    fn row(store: &Store, table: TableId, columns: usize, number: i16) -> Vec<u8> {
        let key = |at: usize| {
            Field::Int(i64::from(if at + 1 == columns {
                number % 128
            } else {
                number / 128 % 100
            }))
        };
        let text = "text".repeat((number % 40) as usize);
        let fields = (0..columns).map(key).chain([Field::Text(&text)]);
        store.layout(table).build(&fields.collect::<Vec<_>>())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
        #[test]
        fn keys_of_one_length_find_what_each_finds(
            which in 0..SHAPES.len(),
            is_dense in any::<bool>(),
            rows in prop::collection::vec(0..600_i16, 1..400),
            wanted in prop::collection::vec((0..2_000_i16, any::<bool>()), 1..50),
        ) {
            let kind = if is_dense { IndexKind::Dense } else { IndexKind::Hash };
            let (mut store, table) = store(SHAPES[which], kind);
            let (columns, mut there) = (SHAPES[which].len(), Vec::new());
            store.begin();
            for number in rows {
                let row = row(&store, table, columns, number);
                if store.insert(table, &row).is_ok() {
                    there.push(number);
                }
            }
            // Now and then all keys exist, as in most real look-ups.
            let is_whole = wanted[0].1;
            let keys = wanted.iter().map(|(number, _)| match is_whole {
                true => there[*number as usize % there.len()],
                false => *number,
            });
            let keys = keys.map(|number| {
                let (mut key, row) = (Vec::new(), row(&store, table, columns, number));
                let columns: Vec<_> = (0..columns as u16).collect();
                store.layout(table).push_key(&row, &columns, &mut key);
                key
            });
            let keys: Vec<_> = keys.collect();
            let expected: Vec<_> = keys.iter().map(|key| store.get(table, 0, key)).collect();
            prop_assert!(!is_whole || expected.iter().all(Option::is_some));
            let (bytes, mut found) = (keys.concat(), Found(Vec::new()));
            let equal = EqualKeys::new(&bytes, keys.len()).expect("keys of one length");
            store.multi_get_equal(table, 0, equal, ReadSpan::ALL, |one| found.push(one));
            prop_assert_eq!(found.0.len(), keys.len());
            for (found, expected) in found.0.into_iter().zip(expected) {
                let expected = expected.map(|rid| (rid, store.row(table, rid).expect("live").to_vec()));
                prop_assert_eq!(found, expected);
            }
            // Keys that are not whole find nothing.
            let short = bytes.len() - bytes.len() % (keys[0].len() + 1);
            if let Some(other) = EqualKeys::new(&bytes[..short], short / (keys[0].len() + 1)).filter(|_| short > 0) {
                let mut found = Found(Vec::new());
                store.multi_get_equal(table, 0, other, ReadSpan::ALL, |one| found.push(one));
                prop_assert!(found.0.iter().all(Option::is_none));
            }
            store.rollback();
        }
    }
}
