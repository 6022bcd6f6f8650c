//! Texts of keys and values of rows, for reports of divergences and refused deployments.

use reprise_abi::{ScalarType, TableSchema, key::KeyReader};

/// Bytes of the longest value that a message shows whole.
const VALUE_BYTES_MAX: usize = 64;

/// Returns the columns of an encoded key with their values: `event=7, seat="A1"`. None: it is no key of these columns.
pub(crate) fn key_text(schema: &TableSchema, columns: &[u16], key: &[u8]) -> Option<String> {
    let mut reader = KeyReader::new(key);
    let columns = columns.iter().map(|at| &schema.columns[*at as usize]);
    let texts: Option<Vec<_>> = columns
        .map(|column| {
            let value = reader.next_column(column.ty, column.nullable)?;
            Some(format!("{}={}", column.name, value_text(column.ty, value.as_deref())))
        })
        .collect();
    Some(texts?.join(", "))
}

/// Returns the text of a value from a row's slot, or from the data of a text or bytes column.
pub(crate) fn value_text(ty: ScalarType, value: Option<&[u8]>) -> String {
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
        (ScalarType::Decimal { scale }, 16) => decimal_text(signed(value), usize::from(scale)),
        (ScalarType::Text, _) => cut(&format!("{:?}", String::from_utf8_lossy(value))),
        _ => {
            let shown = &value[..value.len().min(VALUE_BYTES_MAX)];
            let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            let rest = if shown.len() < value.len() { "…" } else { "" };
            format!("0x{hex}{rest}")
        }
    }
}

/// Returns a decimal in digits. `units` are units of its last place.
fn decimal_text(units: i128, scale: usize) -> String {
    let digits = format!("{:0>width$}", units.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if units < 0 { "-" } else { "" };
    match fraction.is_empty() {
        true => format!("{sign}{whole}"),
        false => format!("{sign}{whole}.{fraction}"),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(VALUE_BYTES_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_told_as_people_write_them() {
        for (units, scale, text) in [(125, 2, "1.25"), (-5, 2, "-0.05"), (7, 0, "7"), (0, 3, "0.000")] {
            assert_eq!(decimal_text(units, scale), text);
        }
    }
}
