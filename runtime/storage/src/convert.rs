//! Makes a changed table beside the stored one, so that what may fail has failed before anything is changed.

use reprise_abi::{Field, RowLayout, row::ROW_BYTES_MAX};

use crate::{
    evolve::TableChange,
    index::{Index, Refused},
    keyplan::{RowRef, Scratch},
    project::default_field,
    rows::Rows,
    schema::{At, Conflict, describe_index, names},
    store::TableId,
    table::{Table, make_indexes},
};

/// A changed table, ready to take the stored one's place.
pub struct Prepared {
    pub(crate) table: TableId,
    change: TableChange,
    layout: RowLayout,
    /// None: the stored ones are kept.
    rows: Option<Rows>,
    /// In order, the primary key's first; none where the stored one is kept.
    indexes: Vec<Option<Index>>,
}

impl Prepared {
    /// Reads the stored table only. Err: rows that the changed one can't hold.
    pub(crate) fn new(id: TableId, stored: &Table, change: TableChange) -> Result<Self, Vec<Conflict>> {
        let layout = RowLayout::of_table(&change.schema);
        let rows = match change.rewrites_rows {
            true => Some(rewrite(stored, &change, &layout)?),
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
            let built = fill(&mut index, rows.as_ref().unwrap_or(&stored.rows), &layout);
            built.map_err(|refused| vec![refuse_rows(&change, at, refused)])?;
            indexes.push(Some(index));
        }
        Ok(Self {
            table: id,
            change,
            layout,
            rows,
            indexes,
        })
    }

    /// The changed table, of the one that it was prepared from. Its undo is settled: rows may have moved.
    pub(crate) fn finish(self, stored: Table) -> Table {
        let next_number = stored.next_number();
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
        Table::from_parts(self.change.schema, self.layout, rows, indexes, next_number)
    }

    pub(crate) fn rewrites_rows(&self) -> bool {
        self.rows.is_some()
    }
}

/// The stored rows as the changed table has them, with record ids from 0 on.
fn rewrite(stored: &Table, change: &TableChange, layout: &RowLayout) -> Result<Rows, Vec<Conflict>> {
    let schema = &change.schema;
    let added = |(at, source): (usize, &Option<u16>)| match source {
        Some(_) => Field::Null,
        None => default_field(&schema.columns[at]).expect("judged when the change was planned"),
    };
    let defaults: Vec<Field<'_>> = change.columns.iter().enumerate().map(added).collect();
    let mut rows = Rows::default();
    let mut fields = Vec::with_capacity(defaults.len());
    for (_, old) in stored.all_rows() {
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
            let at = At {
                table,
                item: "",
                what: "rows",
            };
            return Err(vec![at.conflict(
                found,
                "of at most 1 MiB",
                "shorten that row, or the defaults",
            )]);
        }
        rows.insert(RowRef {
            row: &row,
            number: old.number,
        });
    }
    Ok(rows)
}

fn fill(index: &mut Index, rows: &Rows, layout: &RowLayout) -> Result<(), Refused> {
    if rows.count() == u64::from(rows.rids_end()) {
        return index.fill(rows, layout);
    }
    let mut scratch = Scratch::default();
    for rid in rows.rids() {
        index.insert(rows, layout, rows.at(rid), rid, &mut scratch)?;
    }
    Ok(())
}

fn refuse_rows(change: &TableChange, index: usize, refused: Refused) -> Conflict {
    let schema = &change.schema;
    let table = &schema.full_name();
    let (item, what, declared) = match index.checked_sub(1) {
        None => ("", "primary key", names(schema, &schema.primary_key)),
        Some(at) => {
            let index = &schema.indexes[at];
            (index.name.as_str(), "index", describe_index(schema, index))
        }
    };
    let (stored, way_on) = match refused {
        Refused::Taken => (
            "rows with equal keys",
            "delete or change the rows that are equal, or declare it without unique",
        ),
        Refused::TooLong => (
            "rows with keys that are too long",
            "shorten what those rows have there, or leave the column out of the key",
        ),
    };
    At { table, item, what }.conflict(stored, declared, way_on)
}
