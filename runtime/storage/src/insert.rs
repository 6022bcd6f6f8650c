//! Inserts several rows of one table at once. They are checked, stored, given ids and linked some at a time, each step for all of them
//! before the next. Rows that can't be inserted so are inserted row by row: only that path decides about refusals.

use crate::{
    arena::Location,
    indirection::Rid,
    journal::{DigestChange, Journal},
    keyplan::{KeyScratch, StoredRow},
    store::{Store, TableId},
    table::{StoredTable, WriteError},
};

/// Number of rows of a piece.
pub(crate) const RUN_ROWS: usize = 16;

impl StoredTable {
    /// The `insert` variant for all of `rows`; `rids` has as many entries. Returns false, with nothing done, if a row may be refused or if
    /// rows don't lie apart from all others.
    fn insert_run(&mut self, id: u16, rows: &[&[u8]], rids: &mut [Rid], journal: &mut Journal) -> bool {
        let is_fit = rows.len() > 1 && !self.has_number() && self.rows.has_room(rows.len());
        if !is_fit || rows.iter().any(|row| self.validate(row).is_err()) {
            return false;
        }
        // Without memory for all rows, the caller inserts them row by row, until memory runs out.
        if self.indexes.iter().any(|index| !index.has_memory(rows.len())) && !self.make_memory_for(rows.len()) {
            return false;
        }
        let mut places = [Location(0); RUN_ROWS];
        let numbers: [u64; RUN_ROWS] = std::array::from_fn(|at| self.next_number() + at as u64);
        if !self.rows.append(rows, &numbers, &mut places[..rows.len()], rids) {
            return false;
        }
        if !self.link_run(rows, rids, &mut journal.scratch) {
            self.rows.take_back(rids);
            return false;
        }
        self.record_number(numbers[rows.len() - 1]);
        let mut bytes = 0;
        for row in rows {
            journal.fold(id, DigestChange::Insert, 0, row);
            bytes += row.len();
        }
        journal.count_many(rows.len(), bytes);
        if journal.changes.is_on() {
            let numbered = rows.iter().zip(numbers);
            numbered.for_each(|(row, number)| journal.changes.insert(id, number, row));
        }
        journal.record_inserts(id, rids);
        true
    }

    /// Takes memory for this many entries in trees. False if it is refused, or if it depends on the rows.
    #[cold]
    fn make_memory_for(&mut self, rows: usize) -> bool {
        self.indexes
            .iter_mut()
            .all(|index| index.has_memory(rows) || index.make_memory_for(rows))
    }

    /// Puts the stored rows in all indexes. False, with no index changed, if a key is taken or too long.
    fn link_run(&mut self, rows: &[&[u8]], rids: &[Rid], scratch: &mut KeyScratch) -> bool {
        for at in 0..self.indexes.len() {
            let index = &mut self.indexes[at];
            let linked = index.insert_run(&self.rows, &self.layout, rows, rids, scratch);
            if linked < rows.len() {
                self.unlink_run(at, linked, (rows, rids), scratch);
                return false;
            }
        }
        true
    }

    /// Takes rows out of the indexes before the one at `at`, and the first `linked` rows out of that one.
    #[cold]
    fn unlink_run(&mut self, at: usize, linked: usize, (rows, rids): (&[&[u8]], &[Rid]), scratch: &mut KeyScratch) {
        for (position, index) in self.indexes[..=at].iter_mut().enumerate() {
            let count = if position < at { rows.len() } else { linked };
            for (row, rid) in rows.iter().zip(rids).take(count).rev() {
                let row = StoredRow { row, number: 0 };
                index.remove(&self.layout, row, *rid, scratch);
            }
        }
    }
}

impl Store {
    /// Inserts rows in order until one is refused. The rows before it stay, and their record ids go to `taken`.
    #[inline]
    pub fn multi_insert<'r>(
        &mut self,
        table: TableId,
        mut rows: impl Iterator<Item = &'r [u8]>,
        mut taken: impl FnMut(Rid),
    ) -> Result<(), WriteError> {
        let (mut piece, mut rids) = ([&[][..]; RUN_ROWS], [Rid(0); RUN_ROWS]);
        loop {
            let mut count = 0;
            // The room comes first, because a row that was taken needs an entry.
            for (room, row) in piece.iter_mut().zip(rows.by_ref()) {
                *room = row;
                count += 1;
            }
            let (piece, rids) = (&piece[..count], &mut rids[..count]);
            if self.insert_run(table, piece, rids) {
                rids.iter().for_each(|rid| taken(*rid));
            } else {
                for row in piece {
                    taken(self.insert(table, row)?);
                }
            }
            if count < RUN_ROWS {
                return Ok(());
            }
        }
    }

    fn insert_run(&mut self, table: TableId, rows: &[&[u8]], rids: &mut [Rid]) -> bool {
        let (found, journal) = self.writable(table);
        if !found.insert_run(table.0, rows, rids, journal) {
            return false;
        }
        if self.watchers.is_some() {
            rids.iter().for_each(|rid| self.pass_over(table, *rid));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reprise_abi::{ColumnSchema, Field, IndexKind, IndexSchema, ScalarType, TablePlacement, TableSchema};

    use crate::{AfterImage, Rid, Store, TableId, WriteSummary};

    fn schema(kind: IndexKind, key: &[u16], indexes: &[(&[u16], bool)]) -> TableSchema {
        let types = [
            (ScalarType::I16, false),
            (ScalarType::I8, false),
            (ScalarType::I32, false),
            (ScalarType::Text, true),
            (ScalarType::Bool, false),
        ];
        let column = |(at, (ty, nullable)): (usize, (ScalarType, bool))| ColumnSchema {
            nullable,
            ..ColumnSchema::new(format!("c{at}"), ty)
        };
        TableSchema {
            primary_kind: kind,
            indexes: indexes
                .iter()
                .map(|(columns, unique)| IndexSchema::new(format!("by_{columns:?}"), columns, *unique))
                .collect(),
            placement: TablePlacement::Replicated,
            ..TableSchema::new("t", types.into_iter().enumerate().map(column).collect(), key)
        }
    }

    fn store(which: usize) -> (Store, TableId) {
        let second: &[(&[u16], bool)] = &[(&[2], true), (&[3], false)];
        let schema = match which {
            0 => schema(IndexKind::Ordered, &[0, 1, 2], &[]),
            1 => schema(IndexKind::Ordered, &[0, 1, 2], second),
            2 => schema(IndexKind::Dense, &[0, 2], second),
            3 => schema(IndexKind::Hash, &[0, 1, 2], &[]),
            4 => schema(IndexKind::Ordered, &[0, 3], &[(&[2], true)]),
            _ => schema(IndexKind::Ordered, &[], &[(&[2], true)]),
        };
        let mut store = Store::new();
        let table = store.create_table(schema).expect("a table");
        (store, table)
    }

    /// Returns the visible state of a store within a transaction, and the changes that it would log.
    fn seen(store: &mut Store, table: TableId) -> (WriteSummary, u64, u64, Vec<u8>) {
        let mut changes = Vec::new();
        store.write_set(AfterImage::Changed, &mut changes);
        (store.written(), store.digest(), store.stats(table).row_bytes, changes)
    }

    type Numbers = (i16, i32, u8);

    fn row(store: &Store, table: TableId, (group, number, text): Numbers) -> Vec<u8> {
        let text = &"a text of some bytes"[..text as usize];
        let text = if text.is_empty() {
            Field::Null
        } else {
            Field::Text(text)
        };
        let mut row = store.layout(table).build(&[
            Field::Int(group.into()),
            Field::Int(1),
            Field::Int(number.into()),
            text,
            Field::Bool(number % 2 == 0),
        ]);
        if number % 97 == 96 {
            row.pop(); // not a row
        }
        row
    }

    fn insert_all(store: &mut Store, table: TableId, rows: &[Vec<u8>], at_once: bool) -> (Vec<Rid>, bool) {
        let mut taken = Vec::new();
        if at_once {
            let rows = rows.iter().map(Vec::as_slice);
            let inserted = store.multi_insert(table, rows, |rid| taken.push(rid));
            return (taken, inserted.is_ok());
        }
        for row in rows {
            match store.insert(table, row) {
                Ok(rid) => taken.push(rid),
                Err(_) => return (taken, false),
            }
        }
        (taken, true)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
        /// Runs that come in order or not, with duplicates of existing rows or of each other, or with invalid rows. Some rows come before.
        #[test]
        fn many_rows_are_inserted_as_each_of_them(
            which in 0..6usize,
            runs in prop::collection::vec((0..4i16, 0..300i32, 1..40usize, 0..20u8, 0..8u8), 1..30),
        ) {
            let mut stores = [store(which), store(which)];
            for (group, start, count, text, kind) in runs {
                let numbers = (0..count as i32).map(|at| (group, start + at * (1 + (kind == 1) as i32 * 7), text));
                let mut numbers: Vec<Numbers> = numbers.collect();
                match kind {
                    2 => numbers.reverse(),
                    3 => numbers.extend_from_within(..1),
                    _ => {}
                }
                let mut found = Vec::new();
                for (at, (store, table)) in stores.iter_mut().enumerate() {
                    let rows: Vec<_> = numbers.iter().map(|numbers| row(store, *table, *numbers)).collect();
                    store.begin();
                    store.capture(AfterImage::Changed);
                    let (taken, is_whole) = insert_all(store, *table, &rows, at == 0);
                    for (rid, expected) in taken.iter().zip(&rows) {
                        prop_assert_eq!(store.row(*table, *rid), Some(&expected[..]));
                    }
                    if kind == 4 {
                        taken.iter().step_by(3).for_each(|rid| store.delete(*table, *rid).expect("live"));
                    }
                    found.push((taken.len(), is_whole, seen(store, *table)));
                    if kind == 5 { store.rollback() } else { store.commit(); }
                    let rows = store.stats(*table).rows;
                    for index in 0..store.index_count(*table) as u16 {
                        if store.is_ordered(*table, index) {
                            prop_assert_eq!(store.count(*table, index, &all()), Ok(rows));
                        }
                    }
                }
                prop_assert_eq!(&found[0], &found[1]);
            }
        }
    }

    /// Returns the range of every key except those that begin with more ones than any key of the tables.
    fn all() -> crate::Range<'static> {
        crate::Range::new(&[], &[0xff; 64], reprise_abi::ScanFlags(0))
    }
}
