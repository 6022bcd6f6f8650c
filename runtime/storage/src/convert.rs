//! Makes a changed table beside the stored one, so that every possible failure comes before any change.

use std::collections::{BTreeMap, BTreeSet};

use reprise_abi::{Field, RowLayout, TableSchema, key::KEY_BYTES_MAX, row::ROW_BYTES_MAX};

use crate::{
    digest::fold,
    evolve::TableChange,
    index::{FillError, Index, KeyRefusal},
    indirection::Rid,
    keyplan::{KeyScratch, StoredRow},
    keytext::key_text,
    project::default_field,
    rows::RowHeap,
    schema::{Conflict, ConflictPlace, describe_index, names},
    store::{Store, TableId},
    table::{StoredTable, make_indexes},
};

/// A changed table, ready to replace the stored one.
pub struct PreparedTable {
    pub(crate) table: TableId,
    change: TableChange,
    layout: RowLayout,
    /// The new rows. None: the stored rows are kept.
    rows: Option<RowHeap>,
    /// The new indexes in order, the primary key's first. None: the stored index is kept.
    indexes: Vec<Option<Index>>,
    /// The number of the next row when the table was prepared.
    next_number: u64,
}

impl PreparedTable {
    /// Prepares a change. It only reads the stored table. `go_on` gets the number of copied rows, and says whether to continue.
    pub(crate) fn new(
        id: TableId,
        stored: &StoredTable,
        change: TableChange,
        go_on: GoOn<'_>,
    ) -> Result<Self, ConvertError> {
        let layout = RowLayout::of_table(&change.schema);
        let rows = match change.rewrites_rows {
            true => Some(rewrite(stored, &change, &layout, go_on)?),
            false => None,
        };
        let kept = change.indexes.iter().map(Option::is_some);
        let kept = std::iter::once(change.keeps_primary).chain(kept);
        let mut indexes = Vec::new();
        for (at, (mut index, is_kept)) in make_indexes(&change.schema, &layout).into_iter().zip(kept).enumerate() {
            if is_kept {
                indexes.push(None);
                continue;
            }
            let rows = rows.as_ref().unwrap_or(&stored.rows);
            match fill(&mut index, rows, &layout, go_on) {
                Ok(()) => ask(go_on, 0)?,
                Err(FillError::Ended) => return Err(ConvertError::Ended),
                Err(FillError::Refused(refused)) => {
                    let conflict = refuse_rows(&change.schema, at, &refused, (rows, &layout), go_on);
                    return Err(ConvertError::Conflicts(vec![conflict]));
                }
            }
            indexes.push(Some(index));
        }
        Ok(Self {
            table: id,
            change,
            layout,
            rows,
            indexes,
            next_number: stored.next_number(),
        })
    }

    /// Makes a table without rows.
    pub fn empty(schema: TableSchema) -> Self {
        Self::new(
            TableId(0),
            &StoredTable::new(schema.clone()),
            TableChange::copy_of(schema),
            &|_| true,
        )
        .expect("no row is refused")
    }

    /// Returns the changed table, which must be a whole copy, to stand beside the stored one.
    pub(crate) fn into_copy(self) -> StoredTable {
        let rows = self.rows.expect("a whole copy has rows");
        let indexes = self.indexes.into_iter().flatten().collect();
        StoredTable::from_parts(self.change.schema, self.layout, rows, indexes, self.next_number)
    }

    /// Returns the changed table. It also returns the stored table if no part of that is in the changed one. The undo of both must be
    /// settled, because rows may have moved.
    pub(crate) fn finish(self, stored: StoredTable) -> (StoredTable, Option<StoredTable>) {
        let next_number = stored.next_number();
        if self.is_whole() {
            let rows = self.rows.expect("a whole copy has rows");
            let indexes = self.indexes.into_iter().flatten().collect();
            let changed = StoredTable::from_parts(self.change.schema, self.layout, rows, indexes, next_number);
            return (changed, Some(stored));
        }
        let mut known: Vec<_> = stored.indexes.into_iter().map(Some).collect();
        let sources = self
            .change
            .indexes
            .iter()
            .map(|kept| kept.map_or(0, |at| at as usize + 1));
        let sources = std::iter::once(0).chain(sources);
        let indexes = self
            .indexes
            .into_iter()
            .zip(sources)
            .map(|(built, source)| match built {
                Some(index) => index,
                None => known[source].take().expect("an index is kept once"),
            });
        let indexes = indexes.collect();
        let rows = self.rows.unwrap_or(stored.rows);
        let changed = StoredTable::from_parts(self.change.schema, self.layout, rows, indexes, next_number);
        (changed, None)
    }

    /// True if no part of the stored table will be in the changed one.
    fn is_whole(&self) -> bool {
        self.rows.is_some() && self.indexes.iter().all(Option::is_some)
    }

    pub(crate) fn rewrites_rows(&self) -> bool {
        self.rows.is_some()
    }
}

impl Store {
    /// Counts the rows in which a column is not null. It reads all rows if the column may be null.
    pub fn values_count(&self, id: TableId, column: u16) -> u64 {
        let table = self.table(id);
        match table.schema.columns[column as usize].nullable {
            false => table.rows.count(),
            true => {
                let is_value = |row: &[u8]| table.layout.field(row, column) != Field::Null;
                table.all_rows().filter(|(_, row)| is_value(row.row)).count() as u64
            }
        }
    }
}

/// Gets the number of rows copied since its last call, and says whether to continue.
pub type GoOn<'a> = &'a dyn Fn(u64) -> bool;

/// Why a changed table could not be made. The stored one is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertError {
    /// The changed table can't hold some rows.
    Conflicts(Vec<Conflict>),
    /// The caller ended the change.
    Ended,
}

/// Number of rows that are copied between two checks whether to continue.
pub(crate) const ROWS_AT_ONCE: u64 = 4_096;

pub(crate) fn ask(go_on: GoOn<'_>, rows: u64) -> Result<(), ConvertError> {
    match go_on(rows) {
        true => Ok(()),
        false => Err(ConvertError::Ended),
    }
}

/// Asks whether to continue, once in `ROWS_AT_ONCE` rows. `count` is the number of rows up to this one, which are not copied.
#[inline]
pub(crate) fn is_to_go_on(go_on: GoOn<'_>, count: u64) -> bool {
    !count.is_multiple_of(ROWS_AT_ONCE) || go_on(0)
}

/// Returns the stored rows in the changed table's form, with record ids from 0 on.
fn rewrite(
    stored: &StoredTable,
    change: &TableChange,
    layout: &RowLayout,
    go_on: GoOn<'_>,
) -> Result<RowHeap, ConvertError> {
    let schema = &change.schema;
    let mut rows = stored.rows.fresh();
    if stored.rows.count() == 0 {
        return Ok(rows); // an empty table needs no default for a new column
    }
    let added = |(at, source): (usize, &Option<u16>)| match source {
        Some(_) => Field::Null,
        None => default_field(&schema.columns[at]).expect("checked when the change was planned"),
    };
    let defaults: Vec<Field<'_>> = change.columns.iter().enumerate().map(added).collect();
    let mut fields = Vec::with_capacity(defaults.len());
    for (count, (_, old)) in (1_u64..).zip(stored.all_rows()) {
        if count % ROWS_AT_ONCE == 0 {
            ask(go_on, ROWS_AT_ONCE)?;
        }
        fields.clear();
        fields.extend(
            change
                .columns
                .iter()
                .zip(&defaults)
                .map(|(source, default)| match source {
                    Some(column) => stored.layout.field(old.row, *column),
                    None => *default,
                }),
        );
        let row = layout.build(&fields);
        if row.len() > ROW_BYTES_MAX {
            let (table, found) = (&schema.full_name(), format!("one of {} bytes", row.len()));
            let at = ConflictPlace {
                table,
                item: "",
                what: "rows",
            };
            let way_on = "shorten that row, or the defaults";
            return Err(ConvertError::Conflicts(vec![at.conflict(
                found,
                "of at most 1 MiB",
                way_on,
            )]));
        }
        rows.insert(StoredRow {
            row: &row,
            number: old.number,
        });
    }
    Ok(rows)
}

fn fill(index: &mut Index, rows: &RowHeap, layout: &RowLayout, go_on: GoOn<'_>) -> Result<(), FillError> {
    if rows.count() == u64::from(rows.rids_end()) {
        return index.fill(rows, layout, go_on);
    }
    let mut scratch = KeyScratch::default();
    for (count, rid) in (1..).zip(rows.rids()) {
        if !is_to_go_on(go_on, count) {
            return Err(FillError::Ended);
        }
        index.insert(rows, layout, rows.at(rid), rid, &mut scratch)?;
    }
    Ok(())
}

/// Names the rows for which an index can't be made, if `go_on` allows the search for them.
fn refuse_rows(
    schema: &TableSchema,
    index: usize,
    refused: &KeyRefusal,
    rows: (&RowHeap, &RowLayout),
    go_on: GoOn<'_>,
) -> Conflict {
    let table = &schema.full_name();
    let (item, what, declared, columns) = match index.checked_sub(1) {
        None => (
            "",
            "primary key",
            names(schema, &schema.primary_key),
            &schema.primary_key,
        ),
        Some(at) => {
            let index = &schema.indexes[at];
            (
                index.name.as_str(),
                "index",
                describe_index(schema, index),
                &index.columns,
            )
        }
    };
    let keys = IndexKeys {
        schema,
        columns,
        rows,
        go_on,
    };
    let holds_null = columns.iter().any(|at| schema.columns[*at as usize].nullable);
    let (stored, way_on) = match refused {
        KeyRefusal::Taken => (
            keys.equal_rows().unwrap_or_else(|| "rows with equal keys".into()),
            match holds_null {
                true => "delete or change the rows that are equal (null equals null), or declare it without unique",
                false => "delete or change the rows that are equal, or declare it without unique",
            },
        ),
        KeyRefusal::TooLong => (
            keys.long_row()
                .unwrap_or_else(|| "rows with keys that are too long".into()),
            "shorten what those rows have there, or leave the column out of the key",
        ),
    };
    ConflictPlace { table, item, what }.conflict(stored, declared, way_on)
}

/// The keys that an index would have, for rows for which it can't be made.
struct IndexKeys<'a> {
    schema: &'a TableSchema,
    columns: &'a [u16],
    rows: (&'a RowHeap, &'a RowLayout),
    go_on: GoOn<'a>,
}

impl IndexKeys<'_> {
    /// Returns the rows to search. The list ends early if the search is to end.
    fn rids(&self) -> impl Iterator<Item = Rid> + '_ {
        let rids = (1..).zip(self.rows.0.rids());
        rids.map_while(move |(count, rid)| is_to_go_on(self.go_on, count).then_some(rid))
    }

    fn key(&self, rid: Rid, columns: &[u16]) -> Vec<u8> {
        let (rows, layout) = self.rows;
        let mut key = Vec::new();
        layout.push_key(rows.at(rid).row, columns, &mut key);
        key
    }

    /// Names a row by its primary key, or by its number if it has none.
    fn row_text(&self, rid: Rid) -> String {
        let columns = &self.schema.primary_key;
        let key = match columns.is_empty() {
            true => None,
            false => key_text(self.schema, columns, &self.key(rid, columns)),
        };
        key.unwrap_or_else(|| format!("number {}", self.rows.0.at(rid).number))
    }

    /// Names two rows of one key. The search takes eight bytes a row, and runs once after a refusal. None: it ended before it found them.
    fn equal_rows(&self) -> Option<String> {
        let hash_of = |rid| fold(0, 0, &self.key(rid, self.columns));
        let mut hashes: Vec<u64> = self.rids().map(hash_of).collect();
        hashes.sort_unstable();
        let twice: BTreeSet<u64> = hashes
            .windows(2)
            .filter(|pair| pair[0] == pair[1])
            .map(|pair| pair[0])
            .collect();
        let mut seen = BTreeMap::new();
        for rid in self.rids().filter(|rid| twice.contains(&hash_of(*rid))) {
            let key = self.key(rid, self.columns);
            if let Some(first) = seen.get(&key) {
                let (first, second) = (self.row_text(*first), self.row_text(rid));
                let key = key_text(self.schema, self.columns, &key)?;
                return Some(format!(
                    "rows with equal keys, as {key} of the rows {first} and {second}"
                ));
            }
            seen.insert(key, rid);
        }
        None
    }

    /// Names a row whose key is too long.
    fn long_row(&self) -> Option<String> {
        let mut rids = self.rids();
        let rid = rids.find(|rid| self.key(*rid, self.columns).len() > KEY_BYTES_MAX)?;
        let bytes = self.key(rid, self.columns).len();
        let row = self.row_text(rid);
        Some(format!(
            "rows with keys that are too long, as {bytes} bytes of the row {row}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use reprise_abi::{ColumnSchema, IndexKind, IndexSchema, ScalarType};

    use super::*;
    use crate::evolve::plan_change;

    const ROWS: u64 = 3 * ROWS_AT_ONCE;

    /// A table whose last two rows have one `a`. With `has_hole`, a row behind them was deleted.
    fn filled(has_hole: bool) -> (Store, TableId) {
        let columns = ["id", "a", "b"].map(|name| ColumnSchema::new(name, ScalarType::I64));
        let mut store = Store::new();
        let created = store.create_table(TableSchema::new("t", columns.into(), &[0]));
        let id = created.expect("schema is valid");
        store.begin();
        let mut last = None;
        for number in 0..ROWS as i64 + i64::from(has_hole) {
            let a = number.min(ROWS as i64 - 2);
            let fields = [Field::Int(number), Field::Int(a), Field::Int(number)];
            let row = store.layout(id).build(&fields);
            last = Some(store.insert(id, &row).expect("fresh key"));
        }
        store.commit();
        if has_hole {
            store.begin();
            store.delete(id, last.expect("there are rows")).expect("live");
            store.commit();
        }
        (store, id)
    }

    /// The table with another index.
    fn change_to(store: &Store, id: TableId, index: IndexSchema) -> TableChange {
        let mut declared = store.schema(id).clone();
        declared.indexes.push(index);
        plan_change(store.schema(id), &declared).expect("no conflict")
    }

    /// Says this many times to continue.
    fn times(count: u32) -> impl Fn(u64) -> bool {
        let left = Cell::new(count);
        move |_| {
            let now = left.get();
            left.set(now.saturating_sub(1));
            now > 0
        }
    }

    fn conflict_of(prepared: Result<PreparedTable, ConvertError>) -> String {
        match prepared.err() {
            Some(ConvertError::Conflicts(conflicts)) => conflicts[0].stored.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_index_is_ended_among_its_rows() {
        for has_hole in [false, true] {
            let (store, id) = filled(has_hole);
            for (index, unique) in [("by_b", true), ("by_a", false)] {
                let column = if unique { 2 } else { 1 };
                let change = change_to(&store, id, IndexSchema::new(index, &[column], unique));
                // Three times among the rows, and once behind them.
                assert!(store.prepare(id, change.clone(), &times(4)).is_ok(), "{index}");
                let ended = store.prepare(id, change, &times(1));
                assert_eq!(ended.err(), Some(ConvertError::Ended), "{index}");
            }
        }
    }

    #[test]
    fn every_kind_of_primary_key_is_ended_among_its_rows() {
        let (store, id) = filled(false);
        for kind in [IndexKind::Hash, IndexKind::Dense] {
            let mut declared = store.schema(id).clone();
            declared.primary_kind = kind;
            let change = plan_change(store.schema(id), &declared).expect("no conflict");
            let ended = store.prepare(id, change, &times(1));
            assert_eq!(ended.err(), Some(ConvertError::Ended), "{kind:?}");
        }
    }

    #[test]
    fn equal_rows_are_not_named_when_the_search_for_them_is_ended() {
        let (store, id) = filled(false);
        let change = change_to(&store, id, IndexSchema::new("one_a", &[1], true));
        let named = conflict_of(store.prepare(id, change.clone(), &|_| true));
        assert!(named.starts_with("rows with equal keys, as a="), "{named}");
        // The index was asked about three times before it met the equal rows.
        let unnamed = conflict_of(store.prepare(id, change, &times(3)));
        assert_eq!(unnamed, "rows with equal keys");
    }
}
