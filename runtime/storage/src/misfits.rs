//! Rows that prevent a table from returning to a former version: their number, and one of them.

use reprise_abi::{ColumnSchema, Field, ScalarType, TableSchema};

use crate::{
    convert::{ConvertError, GoOn, ROWS_AT_ONCE, ask},
    evolve::TableChange,
    indirection::Rid,
    keyplan::StoredRow,
    keytext::key_text,
    schema::{Conflict, ConflictPlace, describe_column, describe_type},
    store::{Store, TableId},
    table::StoredTable,
};

/// A rule that every stored row has to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowCheck {
    /// Stored column whose values are checked. None if the table has no such column.
    pub source: Option<u16>,
    /// The column in the changed table.
    pub column: u16,
    pub rule: RowRule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowRule {
    NotNull,
    /// An enum's value must be one of this number of first variants.
    VariantBelow(usize),
    /// An integer must fit this type.
    Fits(ScalarType),
    /// There must be no row: none has a value for the column, and the column has no default.
    NoRow,
}

impl RowRule {
    fn is_met_by(self, field: Field<'_>) -> bool {
        match (self, field) {
            (Self::NoRow, _) => false,
            (Self::NotNull, field) => field != Field::Null,
            (_, Field::Null) => true,
            (Self::VariantBelow(count), Field::Uint(value)) => value < count as u64,
            (Self::Fits(ty), Field::Int(value)) => fits(i128::from(value), ty),
            (Self::Fits(ty), Field::Uint(value)) => fits(i128::from(value), ty),
            _ => unreachable!("a rule of another type"),
        }
    }
}

fn fits(value: i128, ty: ScalarType) -> bool {
    let bits = 8 * ty.slot_bytes() as u32;
    match ty {
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => (0..1 << bits).contains(&value),
        _ => (-(1 << (bits - 1))..1 << (bits - 1)).contains(&value),
    }
}

/// True if every value of the first type is one of the second, in the same order.
pub(crate) fn widens(from: ScalarType, to: ScalarType) -> bool {
    use ScalarType::{I8, I16, I32, I64, U8, U16, U32, U64};
    let (from_bytes, to_bytes) = (from.slot_bytes(), to.slot_bytes());
    match (from, to) {
        (I8 | I16 | I32, I16 | I32 | I64) | (U8 | U16 | U32, U16 | U32 | U64 | I16 | I32 | I64) => {
            from_bytes < to_bytes
        }
        _ => false,
    }
}

/// Returns the rules that a stored column must meet to become a former column again. Without rules the two can't be converted.
pub(crate) fn fits_back(known: &ColumnSchema, column: &ColumnSchema) -> Vec<RowRule> {
    let mut rules = Vec::new();
    if known.nullable && !column.nullable {
        rules.push(RowRule::NotNull);
    }
    let count = column.variants.len();
    if count > 0 && known.variants.len() > count && known.variants.starts_with(&column.variants) {
        rules.push(RowRule::VariantBelow(count));
    }
    if widens(column.ty, known.ty) {
        rules.push(RowRule::Fits(column.ty));
    }
    rules
}

/// Rows that break one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misfits {
    /// Number of such rows.
    pub rows: u64,
    /// Key of one such row, for people, or its number in a table without a primary key.
    pub example: Option<String>,
}

impl Misfits {
    /// Adds the misfits of another store.
    pub fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.example = self.example.take().or(other.example);
    }
}

impl TableChange {
    /// Returns true if the change depends on the contents of the rows.
    pub fn has_checks(&self) -> bool {
        !self.checks.is_empty()
    }

    /// Returns the conditions under which the change is possible, for people. With each comes true if it holds for no row at all.
    pub fn conditions(&self, stored: &TableSchema) -> impl Iterator<Item = (String, bool)> + use<'_> {
        let full = stored.full_name();
        let stored = stored.clone();
        self.checks.iter().map(move |check| {
            let column = &self.schema.columns[check.column as usize];
            let name = format!(
                "{full}.{}",
                check.known(&stored).map_or(&column.name, |known| &known.name)
            );
            let text = match check.rule {
                RowRule::NotNull => format!("{name} is null in no row"),
                RowRule::VariantBelow(count) => {
                    let variants = check.known(&stored).map_or(&[][..], |known| &known.variants[count..]);
                    format!("{name} is {} in no row", variants.join(" or "))
                }
                RowRule::Fits(_) => format!("{name} fits {} in every row", describe_type(column)),
                RowRule::NoRow => format!("{full} has no row"),
            };
            (text, check.rule == RowRule::NoRow)
        })
    }

    /// Returns the conflicts of rows that the changed table could not hold. `misfits` has the sums of all stores, as `Store::misfits`
    /// returns them.
    pub fn conflicts_of(&self, stored: &TableSchema, misfits: Vec<Misfits>) -> Vec<Conflict> {
        let table = &self.schema.full_name();
        let found = self.checks.iter().zip(misfits).filter(|(_, found)| found.rows > 0);
        let conflicts = found.map(|(check, found)| {
            let column = &self.schema.columns[check.column as usize];
            let known = check.known(stored);
            let rows = match found.rows {
                1 => "1 row".to_owned(),
                rows => format!("{rows} rows"),
            };
            let what = match check.rule {
                RowRule::NotNull => "with null there".to_owned(),
                RowRule::VariantBelow(count) => {
                    let variants = known.map_or(&[][..], |known| &known.variants[count..]);
                    format!("with {} there", variants.join(" or "))
                }
                RowRule::Fits(_) => format!("beyond {} there", describe_type(column)),
                RowRule::NoRow => "without it".to_owned(),
            };
            let example = found
                .example
                .map_or(String::new(), |key| format!(", as the one with {key}"));
            let ty = known.map_or(String::new(), |known| format!("{}: ", describe_type(known)));
            let (declared, way_on) = match check.rule {
                RowRule::NoRow => (
                    format!("{}, without a default", describe_column(column)),
                    "deploy a version that has the column with a default, or null",
                ),
                _ => (describe_type(column), "change or delete these rows first"),
            };
            ConflictPlace {
                table,
                item: known.map_or(&column.name, |known| &known.name),
                what: "column",
            }
            .conflict(format!("{ty}{rows} {what}{example}"), declared, way_on)
        });
        conflicts.collect()
    }
}

impl RowCheck {
    /// Returns the stored column whose values are checked.
    fn known<'s>(&self, stored: &'s TableSchema) -> Option<&'s ColumnSchema> {
        self.source.map(|source| &stored.columns[source as usize])
    }
}

impl StoredTable {
    /// Names a stored row by its key, for people, or by its number in a table without a primary key.
    fn row_text(&self, row: StoredRow<'_>) -> String {
        let key = (!self.has_number()).then(|| key_text(&self.schema, &self.schema.primary_key, &self.key_of(row.row)));
        key.flatten().unwrap_or_else(|| format!("number {}", row.number))
    }
}

impl Store {
    /// Names one row of a table, for people. None: the table has no row.
    pub fn any_row(&self, id: TableId) -> Option<String> {
        let table = self.table(id);
        table.all_rows().next().map(|(_, row)| table.row_text(row))
    }

    /// Counts the rows that break each rule of the change, in the order of the rules.
    pub fn misfits(&self, id: TableId, change: &TableChange, go_on: GoOn<'_>) -> Result<Vec<Misfits>, ConvertError> {
        let mut found = vec![Misfits::default(); change.checks.len()];
        let mut from = Some(0);
        while let Some(first) = from {
            let some;
            (some, from) = self.misfits_from(id, change, first);
            found.iter_mut().zip(some).for_each(|(all, some)| all.add(some));
            ask(go_on, 0)?;
        }
        Ok(found)
    }

    /// The `misfits` variant for a few thousand rows from a place on; the first place is 0. It also returns the place to continue at, or
    /// None at the end. Rows may have changed by then.
    pub fn misfits_from(&self, id: TableId, change: &TableChange, from: u32) -> (Vec<Misfits>, Option<u32>) {
        let mut found = vec![Misfits::default(); change.checks.len()];
        if found.is_empty() {
            return (found, None);
        }
        let table = self.table(id);
        for (count, rid) in (0..).zip(table.rows.rids_from(Rid(from))) {
            if count == ROWS_AT_ONCE {
                return (found, Some(rid.0));
            }
            let row = table.rows.at(rid);
            for (check, found) in change.checks.iter().zip(&mut found) {
                let field = check
                    .source
                    .map_or(Field::Null, |source| table.layout.field(row.row, source));
                if check.rule.is_met_by(field) {
                    continue;
                }
                found.rows += 1;
                if found.example.is_none() {
                    found.example = Some(table.row_text(row));
                }
            }
        }
        (found, None)
    }
}
