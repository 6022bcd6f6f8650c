//! In what a transaction that was run again differs from the changes that were logged of it: for the report of a divergence.

use std::{collections::BTreeSet, fmt};

use reprise_abi::{ScalarType, key::KeyReader};
use reprise_wire::{Change, Changes, RowName};

use crate::{apply::text_of, store::Store, table::Table, writeset::column_value};

/// The first row in which a store and logged changes differ. Values are told for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowDifference {
    pub table: String,
    /// Columns of the primary key with their values, or the number.
    pub row: String,
    /// None where the whole row is there in one and not in the other.
    pub column: Option<String>,
    pub logged: String,
    pub replayed: String,
}

impl fmt::Display for RowDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {} of table {}", self.row, self.table)?;
        if let Some(column) = &self.column {
            write!(f, ", column {column}")?;
        }
        write!(f, ": logged {}, replayed {}", self.logged, self.replayed)
    }
}

/// Longest value that is told whole, in bytes.
const VALUE_BYTES_MAX: usize = 64;

impl Store {
    /// Compares a transaction that has just run here with the changes that were logged of it: `logged` with the rows as they
    /// are now, then the rows of `replayed` (its own `write_set`) that the log does not have. None: all rows agree.
    pub fn first_difference(&self, logged: &[u8], replayed: &[u8]) -> Option<RowDifference> {
        let read = |changes| {
            Changes::new(changes)
                .map_while(Result::ok)
                .filter(|change| !self.is_passed(change))
        };
        let logged: Vec<_> = read(logged).collect();
        let kept = logged.iter().filter(|change| !matches!(change, Change::Delete { .. }));
        let taken: BTreeSet<_> = kept.map(|change| self.place_after(change)).collect();
        let found = logged.iter().find_map(|change| self.difference_of(change, &taken));
        found.or_else(|| {
            let mut extra = read(replayed);
            let logged: BTreeSet<_> = logged.iter().map(|change| self.place_before(change)).collect();
            let change = extra.find(|change| !logged.contains(&self.place_before(change)))?;
            let table = self.tables.get(change.table() as usize)?;
            Some(RowDifference {
                table: table.schema.name.clone(),
                row: table.name_text(&self.place_before(&change).1),
                column: None,
                logged: "no change".into(),
                replayed: change_text(&change).into(),
            })
        })
    }

    /// True where rows are named by their number.
    fn is_numbered(&self, table: u16) -> bool {
        let table = self.tables.get(table as usize);
        table.is_some_and(Table::has_number)
    }

    /// True of a row with a key that came and went: nothing but a number that was given out.
    fn is_passed(&self, change: &Change<'_>) -> bool {
        matches!(change, Change::Delete { table, name: RowName::Number(_) } if !self.is_numbered(*table))
    }

    /// Table and name of the row once the change is made: its encoded key, or its number's bytes.
    fn place_after(&self, change: &Change<'_>) -> (u16, Vec<u8>) {
        let Some(table) = self.tables.get(change.table() as usize) else {
            return self.place_before(change);
        };
        match change {
            Change::Insert { row, .. } | Change::Replace { row, .. }
                if !table.has_number() && table.validate(row).is_ok() =>
            {
                let mut key = Vec::new();
                table.layout.push_key(row, &table.schema.primary_key, &mut key);
                (change.table(), key)
            }
            _ => self.place_before(change),
        }
    }

    /// The same by the name that the change gives it.
    fn place_before(&self, change: &Change<'_>) -> (u16, Vec<u8>) {
        let name = match change {
            Change::Insert {
                number: Some(number),
                table,
                ..
            } if self.is_numbered(*table) => RowName::Number(*number),
            Change::Insert { .. } => return self.place_of_insert(change),
            Change::Replace { name, .. } | Change::Patch { name, .. } | Change::Delete { name, .. } => *name,
        };
        let name = match name {
            RowName::Key(key) => key.to_vec(),
            RowName::Number(number) => number.to_be_bytes().to_vec(),
        };
        (change.table(), name)
    }

    fn place_of_insert(&self, change: &Change<'_>) -> (u16, Vec<u8>) {
        let mut key = Vec::new();
        if let (Change::Insert { row, .. }, Some(table)) = (change, self.tables.get(change.table() as usize))
            && table.validate(row).is_ok()
        {
            table.layout.push_key(row, &table.schema.primary_key, &mut key);
        }
        (change.table(), key)
    }

    fn difference_of(&self, change: &Change<'_>, taken: &BTreeSet<(u16, Vec<u8>)>) -> Option<RowDifference> {
        let (number, name) = self.place_after(change);
        let table = self.tables.get(number as usize)?;
        let differ = |column: Option<usize>, logged: String, replayed: String| RowDifference {
            table: table.schema.name.clone(),
            row: table.name_text(&name),
            column: column.map(|at| table.schema.columns[at].name.clone()),
            logged,
            replayed,
        };
        let live = table.indexes[0].get(&table.rows, &name).map(|(rid, _)| rid);
        let now = live.and_then(|rid| table.rows.get(rid));
        let Some(now) = now else {
            let is_deleted = matches!(change, Change::Delete { .. });
            return (!is_deleted).then(|| differ(None, change_text(change).into(), "no such row".into()));
        };
        let compare = |at: usize, logged: Option<&[u8]>| {
            let slot = table.layout.columns.get(at)?;
            let replayed = column_value(&table.layout, now, slot);
            let text = |value| value_text(slot.ty, value);
            (logged != replayed).then(|| differ(Some(at), text(logged), text(replayed)))
        };
        match change {
            // Another row has taken its key: that one is compared itself.
            Change::Delete { .. } if taken.contains(&(number, name.clone())) => None,
            Change::Delete { .. } => Some(differ(None, "deleted".into(), "still there".into())),
            Change::Insert { row, .. } | Change::Replace { row, .. } => {
                table.validate(row).ok()?;
                let mut columns = table.layout.columns.iter().enumerate();
                columns.find_map(|(at, slot)| compare(at, column_value(&table.layout, row, slot)))
            }
            Change::Patch { columns, .. } => {
                let mut columns = columns.iter();
                columns.find_map(|(at, logged)| compare(at as usize, logged))
            }
        }
    }
}

impl Table {
    /// A row's name for people: the key's columns with their values, or the number.
    fn name_text(&self, name: &[u8]) -> String {
        if let (true, Ok(number)) = (self.has_number(), name.try_into()) {
            return format!("number {}", u64::from_be_bytes(number));
        }
        let mut reader = KeyReader::new(name);
        let columns = self
            .schema
            .primary_key
            .iter()
            .map(|at| &self.schema.columns[*at as usize]);
        let columns: Option<Vec<_>> = columns
            .map(|column| {
                let value = reader.next_column(column.ty, column.nullable)?;
                Some(format!("{}={}", column.name, value_text(column.ty, value.as_deref())))
            })
            .collect();
        columns.map_or_else(|| text_of(RowName::Key(name)), |columns| columns.join(", "))
    }
}

fn change_text(change: &Change<'_>) -> &'static str {
    match change {
        Change::Insert { .. } => "inserted",
        Change::Replace { .. } | Change::Patch { .. } => "updated",
        Change::Delete { .. } => "deleted",
    }
}

/// A value as in a row's slot (or the data of a text or bytes column), for people.
fn value_text(ty: ScalarType, value: Option<&[u8]>) -> String {
    let Some(value) = value else {
        return "null".into();
    };
    let signed = |bytes: &[u8]| {
        let sign = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut wide = [if sign { 0xff } else { 0 }; 16];
        wide[..bytes.len().min(16)].copy_from_slice(&bytes[..bytes.len().min(16)]);
        i128::from_le_bytes(wide)
    };
    match (ty, value.len()) {
        (ScalarType::Bool, 1) => (value[0] != 0).to_string(),
        (ScalarType::I8 | ScalarType::I16 | ScalarType::I32 | ScalarType::I64, 1..=8) | (ScalarType::Timestamp, 8) => {
            signed(value).to_string()
        }
        (ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64, 1..=8) => {
            let mut wide = [0; 8];
            wide[..value.len()].copy_from_slice(value);
            u64::from_le_bytes(wide).to_string()
        }
        (ScalarType::F64, 8) => f64::from_bits(signed(value) as u64).to_string(),
        (ScalarType::Decimal { scale: 0 }, 16) => signed(value).to_string(),
        (ScalarType::Decimal { scale }, 16) => format!("{}e-{scale}", signed(value)),
        (ScalarType::Text, _) => cut(&format!("{:?}", String::from_utf8_lossy(value))),
        _ => {
            let shown = &value[..value.len().min(VALUE_BYTES_MAX)];
            let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            let rest = if shown.len() < value.len() { "…" } else { "" };
            format!("0x{hex}{rest}")
        }
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(VALUE_BYTES_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
