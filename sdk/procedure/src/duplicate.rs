//! A key that is taken, and its words: without the formatting machinery, which would double the size of a small guest.

use reprise_abi::Field;

use crate::module::{Abort, ColumnInfo, TableInfo};

/// A row's key is taken in a unique index.
#[derive(Clone, Debug)]
pub struct DuplicateKey {
    /// The table.
    pub table: &'static TableInfo,
    /// 0 = primary key.
    pub index: u16,
    /// The refused row. Empty if it is one of several, or known only in part.
    row: Vec<u8>,
}

impl DuplicateKey {
    /// An error of one of several rows, or of columns of one.
    #[cold]
    pub(crate) fn new(table: &'static TableInfo, index: u16) -> Self {
        let row = Vec::new();
        Self { table, index, row }
    }

    /// An error of this whole row.
    #[cold]
    #[inline(never)]
    pub(crate) fn of_row(table: &'static TableInfo, index: u16, row: &[u8]) -> Self {
        let row = row.to_vec();
        Self { table, index, row }
    }

    /// Name of the unique index in which the key is taken; `primary_key` of the primary key.
    pub fn index_name(&self) -> &'static str {
        self.table.index_name(self.index)
    }

    /// The columns of the key with their values, for people: `event=7, seat="A1"`. None where several rows were written in one host call,
    /// or some columns of one.
    pub fn key_text(&self) -> Option<String> {
        let layout = self.table.layout();
        layout.validate(&self.row).ok()?;
        let columns = match (self.index as usize).checked_sub(1) {
            None => self.table.primary_key,
            Some(secondary) => self.table.indexes.get(secondary)?.columns,
        };
        let mut text = String::new();
        for position in columns {
            let column = self.table.columns.get(*position as usize)?;
            if !text.is_empty() {
                text.push_str(", ");
            }
            text.push_str(column.name);
            text.push('=');
            push_field(&mut text, column, &layout.field(&self.row, *position));
        }
        Some(text)
    }
}

impl PartialEq for DuplicateKey {
    fn eq(&self, other: &Self) -> bool {
        (self.table.name, self.index) == (other.table.name, other.index)
    }
}

impl From<DuplicateKey> for Abort {
    #[cold]
    fn from(duplicate: DuplicateKey) -> Self {
        let mut message = String::from("table ");
        message.push_str(duplicate.table.name);
        message.push_str(" already has a row with this key in ");
        message.push_str(duplicate.index_name());
        if let Some(key) = duplicate.key_text() {
            message.push_str(": ");
            message.push_str(&key);
        }
        Self::new("duplicate_key", message)
    }
}

fn push_field(out: &mut String, column: &ColumnInfo, field: &Field<'_>) {
    let scale = match column.ty {
        reprise_abi::ScalarType::Decimal { scale } => scale as usize,
        _ => 0,
    };
    match *field {
        Field::Null => out.push_str("null"),
        Field::Bool(true) => out.push_str("true"),
        Field::Bool(false) => out.push_str("false"),
        Field::Int(value) => push_digits(out, value < 0, value.unsigned_abs().into(), 0),
        Field::Uint(value) => match column.variants.get(value as usize) {
            Some(name) => out.push_str(name),
            None => push_digits(out, false, value.into(), 0),
        },
        Field::Decimal(units) => push_digits(out, units < 0, units.unsigned_abs(), scale),
        // Floats would bring in tables of digits: these are the bits.
        Field::F64(value) => push_hex(out, &value.to_bits().to_be_bytes()),
        Field::Text(text) => {
            out.push('"');
            out.push_str(text);
            out.push('"');
        }
        Field::Bytes(bytes) => push_hex(out, bytes),
        Field::Uuid(bytes) => push_hex(out, &bytes),
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    out.push_str("0x");
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
}

/// Digits before the lowest `scale` ones, a point, and these. Divides by parts of 32 bits, which guests do without a library.
fn push_digits(out: &mut String, is_negative: bool, magnitude: u128, scale: usize) {
    let mut parts = [
        (magnitude >> 96) as u32,
        (magnitude >> 64) as u32,
        (magnitude >> 32) as u32,
        magnitude as u32,
    ];
    let mut digits = Vec::new();
    while digits.len() <= scale || parts != [0; 4] {
        let mut rest = 0;
        for part in &mut parts {
            let value = rest << 32 | u64::from(*part);
            *part = (value / 10) as u32;
            rest = value % 10;
        }
        digits.push(b'0' + rest as u8);
    }
    if is_negative {
        out.push('-');
    }
    for (left, digit) in (0..digits.len()).rev().zip(digits.iter().rev()) {
        out.push(*digit as char);
        if left == scale && scale > 0 {
            out.push('.');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        for (value, scale, expected) in [
            (0, 0, "0"),
            (7, 2, "0.07"),
            (-12_345, 2, "-123.45"),
            (i128::MIN, 0, "-170141183460469231731687303715884105728"),
            (i128::MAX, 38, "1.70141183460469231731687303715884105727"),
        ] {
            let mut text = String::new();
            push_digits(&mut text, value < 0, value.unsigned_abs(), scale);
            assert_eq!(text, expected);
        }
    }
}
