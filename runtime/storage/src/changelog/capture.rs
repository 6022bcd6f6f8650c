//! The running transaction's changes, captured as they are made, if its record will hold them: rows and columns are at hand then. They are
//! usable if no row was changed twice, as in nearly all transactions. Otherwise the changes of each row are merged at the end from undo and
//! live rows, and the captured bytes are not used. Both ways give the same bytes.

use reprise_abi::{ColumnSet, RowLayout, row::ColumnSlot};
use reprise_wire::{Change, ChangesBuffer};

use crate::{
    changelog::columns::{NAMED_COLUMNS, differing_columns, fixed_bytes, patch_bytes, write_patch},
    journal::Undo,
};

/// Number of changes below which each is compared with all before it.
const FEW_CHANGES: usize = 5;
/// Number of changes up to which the marks are on the stack.
const SOME_CHANGES: usize = 64;
const SOME_SHIFT: u32 = 64 - (SOME_CHANGES * MARKS_PER_CHANGE).ilog2();
/// Number of changes from which on rows are merged, because it would take too long to compare those that share a mark.
const MANY_CHANGES: usize = 4096;
/// Number of marks for each change.
const MARKS_PER_CHANGE: usize = 16;

/// See the module's header.
#[derive(Default)]
pub(super) struct Capture {
    /// True while this transaction's changes are captured.
    pub is_on: bool,
    rows: u32,
    changes: ChangesBuffer,
    marks: Marks,
}

/// The captured amount at a savepoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChangeMark {
    rows: u32,
    bytes: usize,
}

/// The row of a change.
pub(crate) struct CapturedRow<'a> {
    table: u16,
    layout: &'a RowLayout,
    number: u64,
}

impl<'a> CapturedRow<'a> {
    /// Names the row with this number in the table with this number and layout.
    #[inline(always)]
    pub fn new(table: u16, layout: &'a RowLayout, number: u64) -> Self {
        Self { table, layout, number }
    }

    /// True if the fast paths can name its table.
    #[inline(always)]
    fn is_usual(&self) -> bool {
        ChangesBuffer::takes_table(self.table)
    }
}

impl Capture {
    pub fn begin(&mut self) {
        self.is_on = true;
        self.rows = 0;
        self.changes.clear();
    }

    #[inline]
    pub fn mark(&self) -> ChangeMark {
        ChangeMark {
            rows: self.rows,
            bytes: self.changes.len(),
        }
    }

    /// Returns the number of captured changes, and their bytes.
    #[inline]
    pub fn so_far(&self) -> (u32, &[u8]) {
        (self.rows, self.changes.as_bytes())
    }

    /// Drops the changes behind a mark.
    pub fn take_back(&mut self, to: ChangeMark) {
        self.rows = to.rows;
        self.changes.truncate(to.bytes);
    }

    /// Returns the changes and the number of their rows, if no row was changed twice. `ops` are the transaction's undo.
    #[inline]
    pub fn whole(&mut self, ops: &[Undo]) -> Option<(u32, &mut ChangesBuffer)> {
        let is_whole = self.is_on && self.marks.are_apart(ops);
        is_whole.then_some((self.rows, &mut self.changes))
    }

    #[inline(never)]
    pub fn insert(&mut self, table: u16, number: u64, row: &[u8]) {
        self.rows += 1;
        self.changes.insert(table, number, row);
    }

    #[inline(never)]
    pub fn delete(&mut self, table: u16, number: u64) {
        self.rows += 1;
        self.changes.delete(table, number);
    }

    /// Captures a write of the plan's columns. `now` is the row after it.
    #[inline(never)]
    pub fn columns(&mut self, changed: &CapturedRow<'_>, plan: &PatchPlan, now: &[u8]) {
        if !changed.is_usual() || plan.bytes >= now.len() || plan.columns.is_empty() {
            return self.named_columns(changed, plan.set, now);
        }
        self.rows += 1;
        let (table, count) = (changed.table, plan.columns.len() as u8);
        self.changes.patch(table, changed.number, count, |patch| {
            for column in &plan.columns {
                match column.slot.is_null(now) {
                    true => patch.null_column(column.position),
                    false => {
                        let at = column.slot.offset as usize;
                        patch.column(column.position, now, at, column.width);
                    }
                }
            }
        });
    }

    /// Captures an addition to an integer column (its position, place and bytes). `now` is the row after it.
    #[inline(never)]
    pub fn sum(&mut self, changed: &CapturedRow<'_>, (column, at, width): (u16, u32, usize), now: &[u8]) {
        if column as usize >= NAMED_COLUMNS {
            return self.replace(changed, now);
        }
        if !changed.is_usual() || fixed_bytes(width) >= now.len() {
            return self.named_columns(changed, 1 << column, now);
        }
        self.rows += 1;
        self.changes.patch(changed.table, changed.number, 1, |patch| {
            patch.column(column as u8, now, at as usize, width as u8);
        });
    }

    /// Captures a write of the whole row.
    #[inline(never)]
    pub fn update(&mut self, changed: &CapturedRow<'_>, before: &[u8], now: &[u8]) {
        match differing_columns(changed.layout, before, now) {
            Some(columns) => self.named_columns(changed, columns, now),
            None => self.replace(changed, now),
        }
    }

    /// Captures columns in a way that suits all tables.
    fn named_columns(&mut self, changed: &CapturedRow<'_>, columns: u64, now: &[u8]) {
        let columns = ColumnSet(columns);
        if columns.0 == 0 {
            return;
        }
        if patch_bytes(changed.layout, columns, now) >= now.len() {
            return self.replace(changed, now);
        }
        self.rows += 1;
        let write = |out: &mut Vec<u8>| write_patch(out, changed.table, changed.number, changed.layout, columns, now);
        self.changes.other(write);
    }

    fn replace(&mut self, changed: &CapturedRow<'_>, row: &[u8]) {
        self.rows += 1;
        let (table, number) = (changed.table, changed.number);
        let replace = Change::Replace { table, number, row };
        self.changes.other(|out| replace.encode(out));
    }
}

/// The rows of a transaction with many changes that were met before: a bit for each hash of a row.
#[derive(Default)]
struct Marks(Vec<u64>);

impl Marks {
    /// True if each change is of another row. With very many changes it returns false without a check.
    #[inline]
    fn are_apart(&mut self, ops: &[Undo]) -> bool {
        match ops.len() {
            0..=1 => true,
            2..FEW_CHANGES => (1..ops.len()).all(|at| is_first(ops, at)),
            FEW_CHANGES..=SOME_CHANGES => {
                let mut marks = [0; SOME_CHANGES * MARKS_PER_CHANGE / 64];
                are_marked_once(ops, &mut marks, SOME_SHIFT)
            }
            len if len >= MANY_CHANGES => false,
            len => {
                let bits = (len * MARKS_PER_CHANGE).next_power_of_two();
                self.0.clear();
                self.0.resize(bits / 64, 0);
                are_marked_once(ops, &mut self.0, 64 - bits.trailing_zeros())
            }
        }
    }
}

/// True if no two changes are of one row. A mark is a hash without its last `shift` bits.
#[inline(always)]
fn are_marked_once(ops: &[Undo], marks: &mut [u64], shift: u32) -> bool {
    for (at, undo) in ops.iter().enumerate() {
        let mark = (undo.row().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift) as usize;
        let (word, bit) = (&mut marks[mark / 64], 1 << (mark % 64));
        if *word & bit != 0 && !is_first(ops, at) {
            return false;
        }
        *word |= bit;
    }
    true
}

/// True if no change before the one at `at` is of its row.
#[inline]
fn is_first(ops: &[Undo], at: usize) -> bool {
    let row = ops[at].row();
    ops[..at].iter().all(|before| before.row() != row)
}

/// Columns of fixed width that are patched together.
pub(crate) struct PatchPlan {
    set: u64,
    columns: Vec<PlannedColumn>,
    /// Bytes that `patch_bytes` returns for these columns.
    bytes: usize,
}

struct PlannedColumn {
    position: u8,
    width: u8,
    slot: ColumnSlot,
}

impl PatchPlan {
    fn new(layout: &RowLayout, set: u64) -> Self {
        let columns: Vec<_> = ColumnSet(set)
            .positions()
            .map(|at| PlannedColumn {
                position: at as u8,
                width: layout.columns[at].ty.slot_bytes() as u8,
                slot: layout.columns[at],
            })
            .collect();
        let bytes = columns.iter().map(|column| fixed_bytes(column.width as usize));
        Self {
            set,
            bytes: bytes.sum(),
            columns,
        }
    }
}

/// Plans of one table, made at their first use.
#[derive(Default)]
pub(crate) struct PatchPlans {
    plans: Vec<PatchPlan>,
    last: usize,
}

/// Number of plans that are kept. A caller with more sets makes plans anew.
const PLANS_MAX: usize = 64;

impl PatchPlans {
    /// Returns the plan of some columns of fixed width. The layout is always the same one.
    #[inline]
    pub fn of(&mut self, layout: &RowLayout, set: ColumnSet) -> &PatchPlan {
        if self.plans.get(self.last).is_none_or(|plan| plan.set != set.0) {
            self.seek(layout, set.0);
        }
        &self.plans[self.last]
    }

    #[inline(never)]
    fn seek(&mut self, layout: &RowLayout, set: u64) {
        if let Some(found) = self.plans.iter().position(|plan| plan.set == set) {
            self.last = found;
            return;
        }
        if self.plans.len() >= PLANS_MAX {
            self.plans.clear();
        }
        self.last = self.plans.len();
        self.plans.push(PatchPlan::new(layout, set));
    }
}

#[cfg(test)]
mod tests {
    use reprise_abi::{ColumnSchema, ColumnSet, Field, IndexSchema, RowLayout, ScalarType, TableSchema};

    use reprise_wire::ChangesBuffer;

    use crate::{AfterImage, Rid, Store, TableId};

    const COLUMNS: [(ScalarType, bool); 7] = [
        (ScalarType::I32, false),
        (ScalarType::I64, false),
        (ScalarType::I16, true),
        (ScalarType::Text, true),
        (ScalarType::Bool, false),
        (ScalarType::Uuid, true),
        (ScalarType::I64, false),
    ];

    fn schema(name: &str, key: &[u16], columns: usize) -> TableSchema {
        let columns = (0..columns).map(|at| ColumnSchema {
            nullable: COLUMNS[at % 7].1,
            ..ColumnSchema::new(format!("c{at}"), COLUMNS[at % 7].0)
        });
        TableSchema {
            indexes: vec![IndexSchema::new("second", &[3], false)],
            ..TableSchema::new(name, columns.collect(), key)
        }
    }

    fn row(layout: &RowLayout, id: i64, number: i64) -> Vec<u8> {
        let fields = (0..layout.columns.len()).map(|at| match at % 7 {
            0 => Field::Int(id),
            1 | 6 => Field::Int(number),
            2 if number % 3 == 0 => Field::Null,
            2 => Field::Int(number % 100),
            3 => Field::Text(&"some text that a row holds"[..number as usize % 26]),
            4 => Field::Bool(number % 2 == 0),
            _ if number % 4 == 0 => Field::Null,
            _ => Field::Uuid([number as u8; 16]),
        });
        layout.build(&fields.collect::<Vec<_>>())
    }

    /// Makes a store of five tables. Their keys are of integers, of nothing, of text, and too long for a short key; one table has columns
    /// that no set can name.
    /// columns that no set can name.
    fn filled() -> Store {
        let mut store = Store::new();
        let keys: [(&[u16], usize); 5] = [(&[0, 1], 7), (&[], 7), (&[0, 3], 7), (&[0, 1, 6], 7), (&[0], 80)];
        for (at, (key, columns)) in keys.into_iter().enumerate() {
            let table = store.create_table(schema(&format!("t{at}"), key, columns));
            let table = table.expect("a table");
            store.begin();
            for number in 0..90 {
                let row = row(store.layout(table), number, number);
                store.insert(table, &row).expect("new");
            }
            store.commit();
        }
        store
    }

    /// Makes one change of a row, of the kind that `what` says. A refused change leaves nothing.
    fn change(store: &mut Store, table: TableId, number: u32, what: u64) {
        let layout = store.layout(table).clone();
        let id = number as i64;
        let (rid, new) = (Rid(number), row(&layout, id, id + (what >> 32) as i64 % 3));
        match what % 6 {
            0 => _ = store.insert(table, &row(&layout, 1000 + id, id)),
            1 => _ = store.delete(table, rid),
            2 => _ = store.update(table, rid, &new),
            3 => _ = store.add(table, rid, [2, 6, 6, 76][what as usize / 6 % 4], 1),
            _ => {
                let set = ((what >> 8) % (1 << 7)) & !1 | 2;
                let mut values = vec![0; layout.columns_bytes(ColumnSet(set), &new)];
                layout.read_columns(ColumnSet(set), &new, &mut values);
                _ = store.patch(table, rid, ColumnSet(set), &values);
            }
        }
    }

    fn next(random: &mut u64) -> u64 {
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*random ^ *random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 31
    }

    /// Returns the captured and the merged changes of the running transaction. The captured ones are None if a row was changed twice.
    fn both(store: &mut Store) -> (Option<(u32, Vec<u8>)>, (u32, Vec<u8>)) {
        let captured = store.journal.captured_whole(AfterImage::Changed);
        let captured = captured.map(|(rows, changes)| (rows, changes.as_bytes().to_vec()));
        let mut merged = Vec::new();
        let rows = store.journal.merged(&store.tables, AfterImage::Changed, &mut merged);
        (captured, (rows, merged))
    }

    #[test]
    fn captured_changes_are_those_that_are_put_together() {
        let (mut store, mut random) = (filled(), 5);
        let (mut captured, mut many, mut buffer) = (0, 0, ChangesBuffer::default());
        for turn in 0..6_000 {
            store.begin();
            store.capture(AfterImage::Changed);
            let mut savepoint = store.savepoint();
            for _ in 0..[1, 3, 10, 40][turn % 4] {
                let [table, number, what] = [0; 3].map(|_| next(&mut random));
                let table = TableId((table % 5) as u16);
                change(&mut store, table, number as u32 % 90, what);
                match what >> 50 & 31 {
                    0 => savepoint = store.savepoint(),
                    1 => store.rollback_to(savepoint),
                    _ => {}
                }
            }
            let (found, expected) = both(&mut store);
            if let Some(found) = found {
                assert_eq!(found, expected, "turn {turn}");
                captured += 1;
                many += (found.0 > 20) as usize;
            }
            let mut out = vec![7];
            assert_eq!(store.write_set(AfterImage::Changed, &mut out), expected.0);
            assert_eq!(out[1..], expected.1);
            assert_eq!(store.take_changes(AfterImage::Changed, &mut buffer), expected.0);
            assert_eq!(buffer.as_bytes(), expected.1);
            store.rollback();
        }
        assert!(captured > 3_000 && many > 20, "{captured}, {many}");
    }

    #[test]
    fn where_a_row_was_changed_twice_what_was_captured_is_not_used() {
        let mut store = filled();
        for count in [2, 4, 5, 30, 85] {
            for what in 0..40 {
                store.begin();
                store.capture(AfterImage::Changed);
                for number in 0..count {
                    change(&mut store, TableId(0), number, 4 + 768 * what);
                }
                assert!(both(&mut store).0.is_some(), "{count} rows");
                let again = [1, 2, 9][what as usize % 3];
                change(&mut store, TableId(0), count / 2, again);
                assert_eq!(both(&mut store).0, None, "{count} rows, change {what}");
                store.rollback();
            }
        }
    }

    #[test]
    fn changes_of_a_transaction_without_capture_or_with_whole_rows_are_put_together() {
        let mut store = filled();
        for images in [None, Some(AfterImage::Whole)] {
            store.begin();
            images.into_iter().for_each(|images| store.capture(images));
            change(&mut store, TableId(0), 3, 9);
            assert_eq!(both(&mut store).0, None);
            let mut out = Vec::new();
            assert_eq!(store.write_set(AfterImage::Whole, &mut out), 1);
            let mut walk = reprise_wire::Changes::new(&out).map(|change| change.expect("whole"));
            assert!(matches!(walk.next(), Some(reprise_wire::Change::Replace { .. })));
            store.commit();
        }
    }
}
