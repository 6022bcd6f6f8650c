//! Leading key values of a rows request -> the bytes with which the keys begin.

use reprise_abi::{ColumnSchema, Field, ScalarType, Type, key, value::ValueReader};
use serde_json::value::RawValue;

use super::{decode::encode_value, encode::read_scalar, source::TokenSource, text::JsonSource};
use crate::names::first_names;

/// Why a prefix could not be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PrefixError(String);

/// Key bytes of the leading `columns`. `text` is a JSON array of values, or a comma list of their text forms.
pub fn encode_prefix(columns: &[&ColumnSchema], text: &str) -> Result<Vec<u8>, PrefixError> {
    let mut out = Vec::new();
    if text.trim_start().starts_with('[') {
        let values: Vec<&RawValue> =
            serde_json::from_str(text).map_err(|error| PrefixError(format!("not a JSON array: {error}")))?;
        check_count(columns, values.len())?;
        for (column, value) in columns.iter().zip(values) {
            push_json(column, value.get(), &mut out)?;
        }
        return Ok(out);
    }
    let items: Vec<_> = text.split(',').map(str::trim).collect();
    check_count(columns, items.len())?;
    for (column, item) in columns.iter().zip(items) {
        push_text(column, item, &mut out)?;
    }
    Ok(out)
}

/// Key bytes of one column's value in its text form, whatever is in it.
pub fn encode_column(column: &ColumnSchema, text: &str) -> Result<Vec<u8>, PrefixError> {
    let mut out = Vec::new();
    push_text(column, text, &mut out)?;
    Ok(out)
}

fn push_text(column: &ColumnSchema, item: &str, out: &mut Vec<u8>) -> Result<(), PrefixError> {
    let is_literal =
        matches!(column.ty, ScalarType::Bool | ScalarType::F64) && !["NaN", "Infinity", "-Infinity"].contains(&item);
    match is_literal || item == "null" && column.nullable {
        true => push_json(column, item, out),
        false => push_json(column, &serde_json::to_string(item).expect("a string serializes"), out),
    }
}

/// How many columns the values of a prefix are of.
pub fn count_prefix(text: &str) -> usize {
    match text.trim_start().starts_with('[') {
        true => serde_json::from_str::<Vec<&RawValue>>(text).map_or(0, |values| values.len()),
        false => text.split(',').count(),
    }
}

fn check_count(columns: &[&ColumnSchema], count: usize) -> Result<(), PrefixError> {
    if count <= columns.len() {
        return Ok(());
    }
    let names: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
    Err(PrefixError(format!(
        "{count} values, but the index has the columns {}",
        names.join(", ")
    )))
}

fn push_json(column: &ColumnSchema, json: &str, out: &mut Vec<u8>) -> Result<(), PrefixError> {
    let number = variant_number(column, json)?;
    let json = number.as_deref().unwrap_or(json);
    let mut ty = Type::Scalar(column.ty);
    if column.nullable {
        ty = Type::Option(Box::new(ty));
    }
    let mut encoded = Vec::new();
    let mut source = JsonSource::new(json.as_bytes());
    let errors = encode_value(&ty, &mut source, &mut encoded)
        .and_then(|errors| source.end().map(|()| errors))
        .map_err(|error| PrefixError(format!("column {}: {error}", column.name)))?;
    if let Some(error) = errors.first() {
        return Err(PrefixError(format!("column {}: {}", column.name, error.message)));
    }
    let mut reader = ValueReader::new(&encoded);
    if column.nullable {
        if !reader.flag().expect("encoded above") {
            key::push_null(out);
            return Ok(());
        }
        key::push_present(out);
    }
    let field = read_scalar(column.ty, &mut reader).expect("encoded above");
    push_field(column.ty, &field, out);
    Ok(())
}

/// Returns the number of a variant that is given by its name. None: the column has no names, or a number is given.
fn variant_number(column: &ColumnSchema, json: &str) -> Result<Option<String>, PrefixError> {
    let Some(name) = serde_json::from_str::<String>(json)
        .ok()
        .filter(|_| !column.variants.is_empty())
    else {
        return Ok(None);
    };
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Some(name));
    }
    match column.variants.iter().position(|variant| *variant == name) {
        Some(number) => Ok(Some(number.to_string())),
        None => {
            let known = first_names(column.variants.iter().map(String::as_str));
            Err(PrefixError(format!(
                "column {}: expected one of {known}, found {name:?}",
                column.name
            )))
        }
    }
}

fn push_field(ty: ScalarType, field: &Field<'_>, out: &mut Vec<u8>) {
    match (*field, ty) {
        (Field::Bool(value), _) => key::push_bool(out, value),
        (Field::Int(value), ScalarType::I8) => key::push_i8(out, value as i8),
        (Field::Int(value), ScalarType::I16) => key::push_i16(out, value as i16),
        (Field::Int(value), ScalarType::I32) => key::push_i32(out, value as i32),
        (Field::Int(value), _) => key::push_i64(out, value),
        (Field::Uint(value), ScalarType::U8) => key::push_u8(out, value as u8),
        (Field::Uint(value), ScalarType::U16) => key::push_u16(out, value as u16),
        (Field::Uint(value), ScalarType::U32) => key::push_u32(out, value as u32),
        (Field::Uint(value), _) => key::push_u64(out, value),
        (Field::F64(value), _) => key::push_f64(out, value),
        (Field::Decimal(value), _) => key::push_i128(out, value),
        (Field::Text(text), _) => key::push_bytes(out, text.as_bytes()),
        (Field::Bytes(bytes), _) => key::push_bytes(out, bytes),
        (Field::Uuid(uuid), _) => out.extend_from_slice(&uuid),
        (Field::Null, _) => key::push_null(out),
    }
}
