//! Writing some columns of a row: in place where no index and no length is touched.

use reprise_abi::{ColumnPlan, ColumnSet, RowError, RowLayout};

use crate::{
    digest::fold,
    index::Index,
    indirection::Rid,
    journal::{Change, Journal},
    rows::{Rows, split_stored},
    snapshot::Snapshot,
    store::{Store, TableId},
    table::{Table, WriteError, changed, fold_key},
    writeset::PatchPlan,
};

impl Table {
    /// Writes these columns, which fit the table's layout, with values laid out as `reprise_abi::columns` says.
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

    /// Of columns that are all plain.
    #[inline]
    fn patcher<'a>(
        &'a mut self,
        id: u16,
        columns: ColumnSet,
        journal: &'a mut Journal,
        snapshot: Option<&'a mut Snapshot>,
    ) -> Patcher<'a> {
        let logged = journal.capture.is_on;
        Patcher {
            id,
            logged: logged.then(|| self.logged_patches.of(&self.layout, columns)),
            rows: &mut self.rows,
            indexes: &self.indexes,
            layout: &self.layout,
            plan: self.plans.of(&self.layout, columns),
            journal,
            snapshot,
        }
    }

    /// Columns of which an index or the row's length hangs: the whole row is written.
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

/// Writes the same columns of several rows of one table where they lie.
pub struct Patcher<'a> {
    id: u16,
    /// Where changes are captured.
    logged: Option<&'a PatchPlan>,
    rows: &'a mut Rows,
    indexes: &'a [Index],
    layout: &'a RowLayout,
    plan: &'a ColumnPlan,
    journal: &'a mut Journal,
    snapshot: Option<&'a mut Snapshot>,
}

impl Patcher<'_> {
    /// As `Store::patch`.
    #[inline(always)]
    pub fn patch(&mut self, rid: Rid, values: &[u8]) -> Result<(), WriteError> {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.before_change(TableId(self.id), rid, self.rows, false);
        }
        let (plan, journal) = (self.plan, &mut *self.journal);
        plan.check(values).map_err(|_| malformed(values))?;
        let place = self.rows.place(rid).ok_or(WriteError::NotLive)?;
        let (stored, has_number) = self.rows.stored_mut(place);
        let row = split_stored(stored, has_number);
        let what = (self.id, Change::Patch, 0);
        let words = fold_key(self.indexes, self.layout, row, what, journal);
        journal.written.digest = fold(journal.written.digest, plan.set().0, values);
        journal.count(values.len());
        journal.note_columns(self.id, rid, plan, row.row);
        plan.write(stored, values);
        if let Some(logged) = self.logged {
            let now = split_stored(stored, has_number);
            let changed = changed(self.id, self.indexes, self.layout, now, words);
            let scratch = &mut journal.scratch;
            journal.capture.columns(&changed, logged, now.row, scratch);
        }
        Ok(())
    }
}

impl Store {
    /// For writing these columns of several rows; None where an index or a row's length hangs on one: `patch` each then.
    #[inline]
    pub fn patcher(&mut self, table: TableId, columns: ColumnSet) -> Option<Patcher<'_>> {
        assert!(self.journal.is_active, "writes need a transaction");
        let snapshot = self.snapshot.as_deref_mut();
        let (found, journal) = (&mut self.tables[table.0 as usize], &mut self.journal);
        let is_plain = columns.0 & !found.plain_columns == 0;
        is_plain.then(|| found.patcher(table.0, columns, journal, snapshot))
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
    use reprise_abi::{
        ColumnSchema, ColumnSet, Field, IndexKind, Placement, ScalarType, TableSchema,
    };

    use crate::Store;

    fn column(name: &str, ty: ScalarType, nullable: bool) -> ColumnSchema {
        ColumnSchema {
            name: name.into(),
            ty,
            nullable,
            default: None,
        }
    }

    fn store() -> (Store, crate::TableId, crate::Rid) {
        let mut store = Store::new();
        let schema = TableSchema {
            name: "t".into(),
            columns: vec![
                column("id", ScalarType::I32, false),
                column("a", ScalarType::I64, false),
                column("b", ScalarType::I16, false),
                column("text", ScalarType::Text, true),
                column("flag", ScalarType::Bool, false),
                column("c", ScalarType::I32, true),
            ],
            primary_key: vec![0],
            primary_kind: IndexKind::Ordered,
            indexes: vec![],
            placement: Placement::Replicated,
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
            store
                .patch(table, rid, ColumnSet(set), &patch)
                .expect("patched");
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

    fn row_key(id: i32) -> Vec<u8> {
        let mut key = Vec::new();
        reprise_abi::key::push_i32(&mut key, id);
        key
    }

    #[test]
    fn a_run_of_patches_is_each_of_them() {
        let columns = ColumnSet(0b110110);
        let fields = |at: i64| {
            [Field::Int(0), Field::Int(at), Field::Int(-at), Field::Null, Field::Bool(true), Field::Int(at)]
        };
        let run = |by_patcher: bool| {
            let (mut store, table, rid) = store();
            store.begin();
            let values: Vec<_> = (1..4).map(|at| values(&store, table, columns.0, fields(at))).collect();
            if by_patcher {
                let mut patcher = store.patcher(table, columns).expect("plain columns");
                values.iter().for_each(|values| patcher.patch(rid, values).expect("patched"));
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
            assert!(
                store.patch(table, rid, ColumnSet(set), bytes).is_err(),
                "{set:b}"
            );
        }
        assert_eq!(store.commit().rows_written, 0);
        assert_eq!(store.digest(), before);
    }
}
