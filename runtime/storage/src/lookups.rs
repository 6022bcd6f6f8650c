//! Looks up many keys or rows, so that all of them wait for memory together.

use reprise_abi::{ReadSpan, calls::EqualKeys};
use reprise_pages::prefetch;

use crate::{
    indirection::Rid,
    store::{Store, TableId},
};

/// Number of keys of one look-up that wait for memory together. The processor can load about as many lines at once.
const NEAR_KEYS: usize = 16;

impl Store {
    /// The `get_row` variant for many keys, which are shown in their order. It fetches the memory for all look-ups at once; of each row, it
    /// fetches `prefetch`.
    #[inline]
    pub fn multi_get<'k>(
        &self,
        table: TableId,
        index: u16,
        keys: impl Iterator<Item = &'k [u8]> + Clone,
        prefetch: ReadSpan<'_>,
        mut visit: impl FnMut(Option<(Rid, &[u8])>),
    ) {
        self.multi_get_rows(table, index, keys, prefetch, |found, rows| {
            for (slot, row) in found.iter().zip(rows) {
                visit(slot.map(|(rid, _)| (rid, *row)));
            }
        });
    }

    /// The `multi_get` variant that visits several rows at once. Absent rows have no bytes.
    #[inline]
    pub fn multi_get_rows<'k>(
        &self,
        table: TableId,
        index: u16,
        mut keys: impl Iterator<Item = &'k [u8]> + Clone,
        prefetch: ReadSpan<'_>,
        mut visit: impl FnMut(&[Option<(Rid, &u64)>], &[&[u8]]),
    ) {
        let table = self.table(table);
        let index = &table.indexes[index as usize];
        let (mut slots, mut rows) = ([None; NEAR_KEYS], [&[][..]; NEAR_KEYS]);
        loop {
            let count = index.get_batch(&table.rows, &mut keys, &mut slots);
            for (slot, row) in slots[..count].iter().zip(&mut rows) {
                *row = match slot {
                    Some((_, slot)) => table.rows.prefetch_row(slot, &prefetch),
                    None => &[],
                };
            }
            prefetch_rest(&rows[..count], &prefetch);
            visit(&slots[..count], &rows[..count]);
            if count < NEAR_KEYS {
                return;
            }
        }
    }

    /// The `multi_get` variant for keys of one length: no step depends on a key, and results are not `Option`s. A Stock-Level takes 12 %
    /// longer without it (`reprise-bench-cost stock_level 6000 tpcc.wasm`; docs/lab/special-cases.md).
    #[inline]
    pub fn multi_get_equal(
        &self,
        id: TableId,
        index: u16,
        keys: EqualKeys<'_>,
        prefetch: ReadSpan<'_>,
        mut visit: impl FnMut(Option<(Rid, &[u8])>),
    ) {
        let (table, mut rest) = (self.table(id), Some(keys));
        let (mut rids, mut slots) = ([Rid(0); NEAR_KEYS], [&0; NEAR_KEYS]);
        let mut rows = [&[][..]; NEAR_KEYS];
        while let Some(keys) = rest {
            let (keys, behind) = keys.split(NEAR_KEYS);
            rest = behind;
            let found = &table.indexes[index as usize];
            if !found.get_whole_batch(&table.rows, &keys, (&mut rids, &mut slots)) {
                self.multi_get(id, index, keys.iter(), prefetch, &mut visit);
                continue;
            }
            let rows = &mut rows[..keys.count()];
            for (row, slot) in rows.iter_mut().zip(&slots) {
                *row = table.rows.prefetch_row(slot, &prefetch);
            }
            prefetch_rest(rows, &prefetch);
            for (row, rid) in rows.iter().zip(&rids) {
                visit(Some((*rid, row)));
            }
        }
    }

    /// Shows rows that an index named, several at once. It prefetches the span `prefetch` of all of them before it shows them.
    #[inline]
    pub fn read_rows(
        &self,
        table: TableId,
        rids: &[Rid],
        prefetch: ReadSpan<'_>,
        mut visit: impl FnMut(&[Rid], &[&[u8]]),
    ) {
        let rows_of = &self.table(table).rows;
        let mut rows = [&[][..]; NEAR_KEYS];
        for rids in rids.chunks(NEAR_KEYS) {
            for (rid, row) in rids.iter().zip(&mut rows) {
                *row = rows_of.prefetch_row_of(*rid, &prefetch);
            }
            visit(rids, &rows[..rids.len()]);
        }
    }
}

/// Prefetches the parts of the rows whose place is known only after their first part has arrived.
#[inline(always)]
fn prefetch_rest(rows: &[&[u8]], span: &ReadSpan<'_>) {
    if span.has_rest() {
        rows.iter().for_each(|row| prefetch(span.rest(row)));
    }
}
