//! Bytes -> JSON.

use reprise_abi::{
    ColumnSchema, Field, Parameter, RowLayout, ScalarType, Type,
    value::{ValueError, ValueReader},
};
use reprise_api::integers_are_numbers;

use super::scalar;

/// Writes one value of type `ty`. Err: the bytes are no such value, and the caller must throw away the bytes written.
pub fn write_value(ty: &Type, reader: &mut ValueReader<'_>, out: &mut Vec<u8>) -> Result<(), ValueError> {
    match ty {
        Type::Unit => out.extend_from_slice(b"null"),
        Type::Scalar(scalar) => write_field(*scalar, &read_scalar(*scalar, reader)?, out),
        Type::Option(inner) => {
            if reader.flag()? {
                return write_value(inner, reader, out);
            }
            out.extend_from_slice(b"null");
        }
        Type::List(item) => {
            out.push(b'[');
            for index in 0..reader.list_len()? {
                if index > 0 {
                    out.push(b',');
                }
                write_value(item, reader, out)?;
            }
            out.push(b']');
        }
        Type::Struct(of) => {
            out.push(b'{');
            for (index, field) in of.fields.iter().enumerate() {
                write_member_name(index, &field.name, out);
                write_value(&field.ty, reader, out)?;
            }
            out.push(b'}');
        }
        Type::Enum(variants) => {
            let offset = reader.offset();
            let variant = reader.varint()? as usize;
            let name = variants.get(variant).ok_or(ValueError { offset })?;
            write_string(name, out);
        }
    }
    Ok(())
}

/// Writes encoded arguments as an object by parameter name.
pub fn write_arguments(params: &[Parameter], args: &[u8], out: &mut Vec<u8>) -> Result<(), ValueError> {
    let mut reader = ValueReader::new(args);
    out.push(b'{');
    for (index, param) in params.iter().enumerate() {
        write_member_name(index, &param.name, out);
        write_value(&param.ty, &mut reader, out)?;
    }
    out.push(b'}');
    reader.finish()
}

/// Writes a valid row as an object by column name.
pub fn write_row(columns: &[ColumnSchema], layout: &RowLayout, row: &[u8], out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, column) in columns.iter().enumerate() {
        write_member_name(index, &column.name, out);
        write_column(column, &layout.field(row, index as u16), out);
    }
    out.push(b'}');
}

/// Writes these columns of a row, in this order.
pub fn write_columns(columns: &[ColumnSchema], wanted: &[u16], layout: &RowLayout, row: &[u8], out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, at) in wanted.iter().enumerate() {
        let column = &columns[*at as usize];
        write_member_name(index, &column.name, out);
        write_column(column, &layout.field(row, *at), out);
    }
    out.push(b'}');
}

/// Writes a column's value: of an enum the variant's name, if it has one.
pub fn write_column(column: &ColumnSchema, field: &Field<'_>, out: &mut Vec<u8>) {
    let variant = match field {
        Field::Uint(number) => column.variants.get(*number as usize),
        _ => None,
    };
    match variant {
        Some(name) => write_string(name, out),
        None => write_field(column.ty, field, out),
    }
}

pub(super) fn write_member_name(index: usize, name: &str, out: &mut Vec<u8>) {
    if index > 0 {
        out.push(b',');
    }
    write_string(name, out);
    out.push(b':');
}

/// Writes a JSON string.
pub(super) fn write_string(text: &str, out: &mut Vec<u8>) {
    let is_plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.len() <= 64 && text.bytes().all(is_plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    serde_json::to_writer(out, text).expect("memory takes every string");
}

/// Reads one encoded scalar. Text and bytes borrow from the reader's bytes.
pub fn read_scalar<'a>(ty: ScalarType, reader: &mut ValueReader<'a>) -> Result<Field<'a>, ValueError> {
    Ok(match ty {
        ScalarType::Bool => Field::Bool(reader.flag()?),
        ScalarType::I8 => Field::Int(i8::from_le_bytes(reader.array()?) as i64),
        ScalarType::I16 => Field::Int(i16::from_le_bytes(reader.array()?) as i64),
        ScalarType::I32 => Field::Int(i32::from_le_bytes(reader.array()?) as i64),
        ScalarType::I64 | ScalarType::Timestamp => Field::Int(i64::from_le_bytes(reader.array()?)),
        ScalarType::U8 => Field::Uint(reader.byte()? as u64),
        ScalarType::U16 => Field::Uint(u16::from_le_bytes(reader.array()?) as u64),
        ScalarType::U32 => Field::Uint(u32::from_le_bytes(reader.array()?) as u64),
        ScalarType::U64 => Field::Uint(u64::from_le_bytes(reader.array()?)),
        ScalarType::F64 => Field::F64(f64::from_le_bytes(reader.array()?)),
        ScalarType::Decimal { .. } => Field::Decimal(i128::from_le_bytes(reader.array()?)),
        ScalarType::Text => Field::Text(reader.text()?),
        ScalarType::Bytes => Field::Bytes(reader.bytes()?),
        ScalarType::Uuid => Field::Uuid(reader.array()?),
    })
}

fn write_field(ty: ScalarType, field: &Field<'_>, out: &mut Vec<u8>) {
    match *field {
        Field::Null => out.extend_from_slice(b"null"),
        Field::Bool(value) => out.extend_from_slice(if value { b"true" } else { b"false" }),
        Field::Int(value) => match ty {
            ScalarType::Timestamp => quoted(out, |out| scalar::push_timestamp(out, value)),
            ScalarType::I64 if !integers_are_numbers() => quoted(out, |out| push_integer(out, value)),
            _ => push_integer(out, value),
        },
        Field::Uint(value) => match ty {
            ScalarType::U64 if !integers_are_numbers() => quoted(out, |out| push_integer(out, value)),
            _ => push_integer(out, value),
        },
        Field::F64(value) => write_f64(value, out),
        Field::Decimal(value) => {
            let ScalarType::Decimal { scale } = ty else {
                unreachable!("only a decimal column has decimal fields");
            };
            quoted(out, |out| scalar::push_decimal(out, value, scale));
        }
        Field::Text(text) => write_string(text, out),
        Field::Bytes(bytes) => quoted(out, |out| scalar::push_base64(out, bytes)),
        Field::Uuid(uuid) => quoted(out, |out| scalar::push_uuid(out, &uuid)),
    }
}

pub(super) fn quoted(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(b'"');
    write(out);
    out.push(b'"');
}

pub(super) fn push_integer(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

pub(super) fn write_f64(value: f64, out: &mut Vec<u8>) {
    let text: &[u8] = if value.is_nan() {
        b"\"NaN\""
    } else if value == f64::INFINITY {
        b"\"Infinity\""
    } else if value == f64::NEG_INFINITY {
        b"\"-Infinity\""
    } else {
        serde_json::to_writer(out, &value).expect("memory takes every number");
        return;
    };
    out.extend_from_slice(text);
}
