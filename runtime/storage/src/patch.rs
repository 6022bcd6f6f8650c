//! Writes some columns of a row: in place if no index and no length depends on them.

use reprise_abi::{ColumnPlan, ColumnSet, RowError, RowLayout};

use crate::{
    arena::Location,
    changelog::{CapturedRow, PatchPlan},
    digest::fold,
    index::Index,
    indirection::Rid,
    insert::RUN_ROWS,
    journal::{DigestChange, Journal},
    rows::{RowHeap, split_stored},
    store::{Store, TableId},
    table::{StoredTable, WriteError, fold_key},
    watchers::Watchers,
};

impl StoredTable {
    /// Writes these columns, which fit the table's layout. `reprise_abi::columns` describes the layout of the values.
    #[inline]
    pub fn patch(
        &mut self,
        id: u16,
        rid: Rid,
        columns: ColumnSet,
        values: &[u8],
        journal: &mut Journal,
    ) -> Result<(), WriteError> {
        if columns.0 & !self.plain_columns != 0 {
            return self.patch_as_row(id, rid, columns, values, journal);
        }
        let mut patcher = self.patcher(id, columns, journal, None);
        patcher.patch(rid, values)
    }

    /// Returns a patcher for columns that are all plain.
    #[inline]
    fn patcher<'a>(
        &'a mut self,
        id: u16,
        columns: ColumnSet,
        journal: &'a mut Journal,
        watchers: Option<&'a mut Watchers>,
    ) -> Patcher<'a> {
        let logged = journal.changes.is_on();
        Patcher {
            id,
            logged: logged.then(|| self.logged_patches.of(&self.layout, columns)),
            rows: &mut self.rows,
            indexes: &self.indexes,
            layout: &self.layout,
            plan: self.plans.of(&self.layout, columns),
            journal,
            watchers,
        }
    }

    /// Writes the whole row, because an index or the row's length depends on a column.
    fn patch_as_row(
        &mut self,
        id: u16,
        rid: Rid,
        columns: ColumnSet,
        values: &[u8],
        journal: &mut Journal,
    ) -> Result<(), WriteError> {
        let place = self.rows.place(rid).ok_or(WriteError::NotLive)?;
        let before = self.rows.read(place).row;
        let mut row = Vec::with_capacity(before.len() + values.len());
        let patched = self.layout.patch_row(columns, before, values, &mut row);
        patched.map_err(|_| malformed(values))?;
        self.update(id, rid, &row, journal)
    }
}

/// Writes the same columns of several rows of one table in place.
pub struct Patcher<'a> {
    id: u16,
    /// The plan for capturing the changes. None if they are not captured.
    logged: Option<&'a PatchPlan>,
    rows: &'a mut RowHeap,
    indexes: &'a [Index],
    layout: &'a RowLayout,
    plan: &'a ColumnPlan,
    journal: &'a mut Journal,
    watchers: Option<&'a mut Watchers>,
}

impl Patcher<'_> {
    /// Patches one row, as `Store::patch` does.
    #[inline]
    pub fn patch(&mut self, rid: Rid, values: &[u8]) -> Result<(), WriteError> {
        self.plan.check(values).map_err(|_| malformed(values))?;
        self.keep_before(rid);
        let place = self.rows.place(rid).ok_or(WriteError::NotLive)?;
        let (plan, journal) = (self.plan, &mut *self.journal);
        let stored = self.rows.bytes_mut(place);
        let (row, what) = (split_stored(stored), (self.id, DigestChange::Patch, 0));
        fold_key(self.indexes, self.layout, row, what, journal);
        journal.written.digest = fold(journal.written.digest, plan.set().0, values);
        journal.record_columns(self.id, rid, plan, stored);
        journal.count(values.len());
        plan.write(stored, values);
        if let Some(logged) = self.logged {
            let now = split_stored(stored);
            let changed = CapturedRow::new(self.id, self.layout, now.number);
            journal.changes.columns(&changed, logged, now.row);
        }
        Ok(())
    }

    /// The `patch` variant for several rows, which stops at the first that can't be patched. `values` holds the values of all rows in
    /// order.
    pub fn patch_run(&mut self, rids: &[Rid], values: &[u8]) -> Result<(), WriteError> {
        let each = self.plan.fixed_bytes();
        if values.len() != each * rids.len() {
            return Err(malformed(values));
        }
        // A capture needs each row completely written, so it takes one row at a time.
        let rows_at_once = if self.logged.is_some() { 1 } else { RUN_ROWS };
        let mut rest = values;
        for rids in rids.chunks(rows_at_once) {
            let (these, after) = rest.split_at(each * rids.len());
            match *rids {
                [rid] => self.patch(rid, these)?,
                _ => self.patch_few(rids, these)?,
            }
            rest = after;
        }
        Ok(())
    }

    /// Patches at most `RUN_ROWS` rows whose changes are not captured. Each step is a short loop over all of them.
    fn patch_few(&mut self, rids: &[Rid], values: &[u8]) -> Result<(), WriteError> {
        if self.watchers.is_some() {
            rids.iter().for_each(|rid| self.keep_before(*rid));
        }
        let mut places = [Location(0); RUN_ROWS];
        let live = self.rows.places_of(rids, &mut places);
        let sound = self.plan.fitting(values);
        let fit = rids.len().min(live).min(sound);
        let refused = match (fit == rids.len(), sound <= live) {
            (true, _) => None,
            (false, true) => Some(malformed(values)),
            (false, false) => Some(WriteError::NotLive),
        };
        let (rids, places) = (&rids[..fit], &places[..fit]);
        self.fold(places, values);
        self.write(rids, places, values);
        refused.map_or(Ok(()), Err)
    }

    /// Has each watcher keep the row in its present form.
    #[inline]
    fn keep_before(&mut self, rid: Rid) {
        if let Some(watchers) = &mut self.watchers {
            watchers.before_patch(TableId(self.id), rid, self.rows);
        }
    }

    /// Folds keys and values into the digest. No key depends on the written columns.
    #[inline(always)]
    fn fold(&mut self, places: &[Location], values: &[u8]) {
        let (plan, set, each) = (&self.indexes[0].plan, self.plan.set().0, self.plan.fixed_bytes());
        let Some(ints) = plan.ints().filter(|_| plan.has_words()) else {
            return self.fold_long(places, values);
        };
        let (mut written, mut rest) = (self.journal.written, values);
        for place in places {
            let (own, after) = rest.split_at(each);
            written.fold_ints(self.id, DigestChange::Patch, 0, ints.words(self.rows.read(*place)));
            written.digest = fold(written.digest, set, own);
            rest = after;
        }
        self.journal.written = written;
    }

    /// Folds a key that does not consist of a few integers.
    #[cold]
    fn fold_long(&mut self, places: &[Location], values: &[u8]) {
        let mut rest = values;
        for place in places {
            let (own, after) = rest.split_at(self.plan.fixed_bytes());
            let what = (self.id, DigestChange::Patch, 0);
            fold_key(self.indexes, self.layout, self.rows.read(*place), what, self.journal);
            let written = &mut self.journal.written;
            written.digest = fold(written.digest, self.plan.set().0, own);
            rest = after;
        }
    }

    /// Writes the values in place. The undo has the old values.
    #[inline(always)]
    fn write(&mut self, rids: &[Rid], places: &[Location], values: &[u8]) {
        let (plan, each, mut rest) = (self.plan, self.plan.fixed_bytes(), values);
        self.journal.ops.reserve(rids.len());
        for (rid, place) in rids.iter().zip(places) {
            let (own, after) = rest.split_at(each);
            let stored = self.rows.bytes_mut(*place);
            self.journal.record_columns(self.id, *rid, plan, stored);
            plan.write(stored, own);
            rest = after;
        }
        self.journal.count_many(rids.len(), each * rids.len());
    }
}

impl Store {
    /// Returns a patcher for these columns of several rows. None if an index or a row's length depends on one; the caller then calls
    /// `patch` for each row.
    #[inline]
    pub fn patcher(&mut self, table: TableId, columns: ColumnSet) -> Option<Patcher<'_>> {
        assert!(self.journal.is_active, "writes need a transaction");
        let watchers = self.watchers.as_deref_mut();
        let (found, journal) = (&mut self.tables[table.0 as usize], &mut self.journal);
        let is_plain = columns.0 & !found.plain_columns == 0;
        is_plain.then(|| found.patcher(table.0, columns, journal, watchers))
    }
}

#[cold]
fn malformed(values: &[u8]) -> WriteError {
    WriteError::Malformed(RowError::Length {
        expected: 0,
        found: values.len(),
    })
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, ColumnSet, Field, ScalarType, TablePlacement, TableSchema};

    use crate::Store;

    fn column(name: &str, ty: ScalarType, nullable: bool) -> ColumnSchema {
        ColumnSchema {
            nullable,
            ..ColumnSchema::new(name, ty)
        }
    }

    fn store() -> (Store, crate::TableId, crate::Rid) {
        let mut store = Store::new();
        let schema = TableSchema {
            placement: TablePlacement::Replicated,
            ..TableSchema::new(
                "t",
                vec![
                    column("id", ScalarType::I32, false),
                    column("a", ScalarType::I64, false),
                    column("b", ScalarType::I16, false),
                    column("text", ScalarType::Text, true),
                    column("flag", ScalarType::Bool, false),
                    column("c", ScalarType::I32, true),
                ],
                &[0],
            )
        };
        let table = store.create_table(schema).expect("a table");
        store.begin();
        let row = store.layout(table).build(&[
            Field::Int(7),
            Field::Int(10),
            Field::Int(20),
            Field::Text("old"),
            Field::Bool(false),
            Field::Null,
        ]);
        let rid = store.insert(table, &row).expect("inserted");
        store.commit();
        (store, table, rid)
    }

    fn values(store: &Store, table: crate::TableId, set: u64, fields: [Field<'_>; 6]) -> Vec<u8> {
        let (layout, set) = (store.layout(table), ColumnSet(set));
        let row = layout.build(&fields);
        let mut out = vec![0; layout.columns_bytes(set, &row)];
        layout.read_columns(set, &row, &mut out);
        out
    }

    #[test]
    fn a_patch_writes_its_columns_and_is_taken_back_with_the_transaction() {
        let (mut store, table, rid) = store();
        let before = store.digest();
        let fields = [
            Field::Int(8),
            Field::Int(-1),
            Field::Int(-2),
            Field::Text("longer than before"),
            Field::Bool(true),
            Field::Int(5),
        ];
        for set in 1..64_u64 {
            let patch = values(&store, table, set, fields);
            store.begin();
            store.patch(table, rid, ColumnSet(set), &patch).expect("patched");
            let row = store.row(table, rid).expect("live").to_vec();
            for (at, new) in fields.iter().enumerate() {
                let found = store.layout(table).field(&row, at as u16);
                assert_eq!(found == *new, set >> at & 1 == 1, "set {set:b} column {at}");
            }
            assert_eq!(
                store.get(table, 0, &row_key(if set & 1 == 1 { 8 } else { 7 })),
                Some(rid)
            );
            store.rollback();
            assert_eq!(store.digest(), before, "set {set:b}");
        }
    }

    fn fields(at: i64, last: Field<'static>) -> [Field<'static>; 6] {
        [
            Field::Int(0),
            Field::Int(at),
            Field::Int(-at),
            Field::Null,
            Field::Bool(true),
            last,
        ]
    }

    fn row_key(id: i32) -> Vec<u8> {
        let mut key = Vec::new();
        reprise_abi::key::push_i32(&mut key, id);
        key
    }

    #[test]
    fn a_run_of_patches_is_each_of_them() {
        let columns = ColumnSet(0b110110);
        let fields = |at| fields(at, Field::Int(at));
        let run = |by_patcher: bool| {
            let (mut store, table, rid) = store();
            store.begin();
            let values: Vec<_> = (1..4).map(|at| values(&store, table, columns.0, fields(at))).collect();
            if by_patcher {
                let mut patcher = store.patcher(table, columns).expect("plain columns");
                let last = [crate::Rid(9), rid].map(|second| [rid, second, rid]);
                let all = values.concat();
                // The first of them is removed, and then written once more.
                assert!(patcher.patch_run(&last[0], &all).is_err());
                store.rollback();
                store.begin();
                let mut patcher = store.patcher(table, columns).expect("plain columns");
                patcher.patch_run(&last[1], &all).expect("patched");
                assert!(patcher.patch(crate::Rid(9), &values[0]).is_err());
                assert!(patcher.patch(rid, &values[0][1..]).is_err());
            } else {
                for values in &values {
                    store.patch(table, rid, columns, values).expect("patched");
                }
            }
            let written = store.commit();
            (written, store.row(table, rid).expect("live").to_vec(), store.digest())
        };
        assert_eq!(run(true), run(false));
        let (mut store, table, _) = store();
        store.begin();
        assert!(store.patcher(table, ColumnSet(0b1)).is_none(), "a key");
        assert!(store.patcher(table, ColumnSet(0b1010)).is_none(), "text");
        store.rollback();
    }

    #[test]
    fn of_a_run_what_comes_before_a_row_that_is_not_there_stays_and_is_taken_back() {
        let columns = ColumnSet(0b110110);
        let fields = |at| fields(at, Field::Null);
        let run = |rids: &[u32]| {
            let (mut store, table, rid) = store();
            let before = store.digest();
            store.begin();
            let all: Vec<_> = (0..rids.len())
                .map(|at| values(&store, table, columns.0, fields(at as i64)))
                .collect();
            let mut patcher = store.patcher(table, columns).expect("plain columns");
            let rids: Vec<_> = rids.iter().map(|past| crate::Rid(rid.0 + past)).collect();
            let is_whole = patcher.patch_run(&rids, &all.concat()).is_ok();
            let found = (is_whole, store.written(), store.row(table, rid).map(<[u8]>::to_vec));
            store.rollback();
            assert_eq!(store.digest(), before);
            found
        };
        let (whole, cut, none) = (run(&[0, 0]), run(&[0, 0, 1, 0]), run(&[1, 0]));
        assert_eq!((whole.0, cut.0, none.0), (true, false, false));
        assert_eq!((cut.1, &cut.2), (whole.1, &whole.2));
        assert_eq!((none.1.rows_written, none.1.digest), (0, 0));
    }

    #[test]
    fn a_malformed_patch_changes_nothing() {
        let (mut store, table, rid) = store();
        let before = store.digest();
        store.begin();
        for (set, bytes) in [
            (0b10, &[0; 7][..]),
            (0b10, &[0; 9]),
            (0b10000, &[2]),
            (0b1000, &[0, 9, 0, 0, 0]),
            (0b100000, &[1, 9, 0, 0, 0]),
        ] {
            assert!(store.patch(table, rid, ColumnSet(set), bytes).is_err(), "{set:b}");
        }
        assert_eq!(store.commit().rows_written, 0);
        assert_eq!(store.digest(), before);
    }
}
