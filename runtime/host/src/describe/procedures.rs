//! Procedures of a description, and the types of their parameters and results.

use reprise_abi::{
    AbortSchema, LogDeclaration, NEAR_KEYS_MAX, Parameter, Partitioning, PrefetchKey, PrefetchPart, ProcedureSchema,
    ScalarType, StructField, StructType, TableSchema, Type,
    schema::{ABORTS_MAX, NAME_BYTES_MAX, is_valid_type_name},
    types::{DECIMAL_SCALE_MAX, TYPE_DEPTH_MAX},
};
use reprise_base::limits::{ABORT_CODE_BYTES_MAX, FUEL_SLICE, PROCEDURE_FUEL_MAX};
use serde_json::Value;

use super::{FIELDS_MAX, Object, ParseResult, Path, VARIANTS_MAX, distinct, list, positions, quoted, text};

pub(super) fn parse_procedure(path: &Path, value: &Value, tables: &[TableSchema]) -> ParseResult<ProcedureSchema> {
    let members = [
        "name",
        "docs",
        "params",
        "returns",
        "read_only",
        "partitioning",
        "log",
        "prefetch",
        "time_max_ms",
        "fuel_max",
        "aborts",
    ];
    let object = Object::new(path, value, &members)?;
    let (at, params) = object.required("params")?;
    let params = list(&at, params, 0, FIELDS_MAX, |at, value| {
        let (name, ty) = parse_member(at, value, 0)?;
        Ok(Parameter { name, ty })
    })?;
    distinct(&at, params.iter().map(|param| &param.name))?;
    let returns = match object.optional("returns") {
        Some((at, value)) => parse_type(&at, value, 0)?,
        None => Type::Unit,
    };
    let read_only = object.flag("read_only")?;
    let partitioning = parse_partitioning(&object, &params)?;
    if partitioning == Partitioning::Any && !read_only {
        return path.member("partitioning").fail("\"any\" is for read-only procedures");
    }
    let prefetch = match object.optional("prefetch") {
        Some((at, value)) => list(&at, value, 0, NEAR_KEYS_MAX, |at, value| {
            parse_prefetch(at, value, tables, &params)
        })?,
        None => Vec::new(),
    };
    Ok(ProcedureSchema {
        docs: object.docs()?,
        name: object.name()?,
        params,
        returns,
        read_only,
        partitioning,
        log: parse_log(&object)?,
        time_max_ms: parse_time_max(&object)?,
        fuel_max: parse_fuel_max(&object)?,
        aborts: parse_aborts(&object)?,
        prefetch,
    })
}

fn parse_time_max(object: &Object<'_>) -> ParseResult<Option<u32>> {
    let Some((at, value)) = object.optional("time_max_ms") else {
        return Ok(None);
    };
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    match number {
        Some(number) => Ok(Some(number)),
        None => at.fail("expected a number of milliseconds, 0 for no limit"),
    }
}

fn parse_fuel_max(object: &Object<'_>) -> ParseResult<Option<u64>> {
    let Some((at, value)) = object.optional("fuel_max") else {
        return Ok(None);
    };
    let number = value.as_u64();
    match number.filter(|number| (FUEL_SLICE..=PROCEDURE_FUEL_MAX).contains(number)) {
        Some(number) => Ok(Some(number)),
        None => at.fail(format!("expected a number from {FUEL_SLICE} to {PROCEDURE_FUEL_MAX}")),
    }
}

fn parse_aborts(object: &Object<'_>) -> ParseResult<Vec<AbortSchema>> {
    let Some((at, value)) = object.optional("aborts") else {
        return Ok(Vec::new());
    };
    let aborts = list(&at, value, 0, ABORTS_MAX, |at, value| {
        let abort = Object::new(at, value, &["code", "docs"])?;
        let (at, code) = abort.required("code")?;
        let code = text(&at, code)?;
        match code.is_empty() || code.len() > ABORT_CODE_BYTES_MAX {
            true => at.fail(format!("a code has 1 to {ABORT_CODE_BYTES_MAX} bytes")),
            false => Ok(AbortSchema {
                code: code.to_owned(),
                docs: abort.docs()?,
            }),
        }
    })?;
    distinct(&at, aborts.iter().map(|abort| &abort.code))?;
    Ok(aborts)
}

fn parse_log(object: &Object<'_>) -> ParseResult<LogDeclaration> {
    let Some((at, value)) = object.optional("log") else {
        return Ok(LogDeclaration::Server);
    };
    match text(&at, value)? {
        "command" => Ok(LogDeclaration::Command),
        "physiological" => Ok(LogDeclaration::Physiological),
        "auto" => Ok(LogDeclaration::Auto),
        other => {
            let other = quoted(other);
            at.fail(format!("{other} is none of command, physiological, auto"))
        }
    }
}

fn parse_prefetch(
    path: &Path,
    value: &Value,
    tables: &[TableSchema],
    params: &[Parameter],
) -> ParseResult<PrefetchKey> {
    let object = Object::new(path, value, &["table", "key"])?;
    let (at, name) = object.required("table")?;
    let name = text(&at, name)?;
    let Some(table) = tables.iter().position(|table| table.full_name() == name) else {
        return at.fail(format!("no table {}", quoted(name)));
    };
    let columns = &tables[table].primary_key;
    let (at, key) = object.required("key")?;
    let mut column = columns.iter();
    let key = list(&at, key, columns.len(), columns.len(), |at, value| {
        let position = *column.next().expect("as many parts as columns") as usize;
        parse_prefetch_part(at, value, tables[table].columns[position].ty, params)
    })?;
    Ok(PrefetchKey {
        table: table as u16,
        key,
    })
}

/// Returns the range of a column of integers. None for any other column.
fn int_range(ty: ScalarType) -> Option<(i128, i128)> {
    if !ty.is_integer() && ty != ScalarType::Timestamp {
        return None;
    }
    let bits = 8 * ty.slot_bytes() as u32;
    Some(match ty {
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 => (0, (1 << bits) - 1),
        _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    })
}

/// Parses a parameter of the column's type before which all parameters have a fixed length, or an integer that fits the column.
fn parse_prefetch_part(
    at: &Path,
    value: &Value,
    column: ScalarType,
    params: &[Parameter],
) -> ParseResult<PrefetchPart> {
    let Some((least, most)) = int_range(column) else {
        return at.fail("keys to prefetch are of integer columns");
    };
    if let Some(value) = value.as_i64() {
        return match least <= value as i128 && value as i128 <= most {
            true => Ok(PrefetchPart::Int(value)),
            false => at.fail(format!("{value} is not in the column's range")),
        };
    }
    let name = text(at, value)?;
    let Some(position) = params.iter().position(|param| param.name == name) else {
        return at.fail(format!("no parameter {}", quoted(name)));
    };
    if params[position].ty != Type::Scalar(column) {
        return at.fail(format!("parameter {} has not the column's type", quoted(name)));
    }
    let is_fixed = |param: &Parameter| matches!(&param.ty, Type::Scalar(scalar) if !scalar.is_variable());
    match params[..position].iter().all(is_fixed) {
        true => Ok(PrefetchPart::Param(position as u16)),
        false => at.fail("the parameters before it have no fixed length"),
    }
}

fn parse_partitioning(object: &Object<'_>, params: &[Parameter]) -> ParseResult<Partitioning> {
    let (at, value) = object.required("partitioning")?;
    match value {
        Value::String(word) if word == "all" => Ok(Partitioning::All),
        Value::String(word) if word == "any" => Ok(Partitioning::Any),
        Value::Object(_) => {
            let by = Object::new(&at, value, &["by"])?;
            let (at, names) = by.required("by")?;
            let known: Vec<&str> = params.iter().map(|param| param.name.as_str()).collect();
            let found = positions(&at, names, &known, "parameter", 1)?;
            for (index, position) in found.iter().enumerate() {
                if !params[*position as usize].ty.can_name_partitions() {
                    return at
                        .item(index)
                        .fail("a partitioning parameter must be a scalar or a list of scalars");
                }
            }
            Ok(Partitioning::By(found))
        }
        _ => at.fail("expected {\"by\": [parameters]}, \"all\" or \"any\""),
    }
}

fn parse_member(path: &Path, value: &Value, depth: usize) -> ParseResult<(String, Type)> {
    let object = Object::new(path, value, &["name", "type"])?;
    let (at, ty) = object.required("type")?;
    Ok((object.name()?, parse_type(&at, ty, depth)?))
}

fn parse_type(path: &Path, value: &Value, depth: usize) -> ParseResult<Type> {
    if depth > TYPE_DEPTH_MAX {
        return path.fail(format!("type nested deeper than {TYPE_DEPTH_MAX}"));
    }
    let wrapped = match value {
        Value::String(word) if word == "unit" => return Ok(Type::Unit),
        Value::String(word) => {
            return match scalar(word) {
                Some(ty) => Ok(Type::Scalar(ty)),
                None => path.fail(format!("unknown type {}", quoted(word))),
            };
        }
        Value::Object(members) if members.len() == 1 => members.iter().next(),
        // A struct may have the name that it has in the source.
        Value::Object(members) if members.len() == 2 && members.contains_key("name") => {
            members.iter().find(|(word, _)| *word == "struct")
        }
        _ => None,
    };
    let Some((word, inner)) = wrapped else {
        return path.fail("not a type");
    };
    let at = path.member(word);
    match word.as_str() {
        "option" => Ok(Type::Option(Box::new(parse_type(&at, inner, depth + 1)?))),
        "list" => {
            let item = parse_type(&at, inner, depth + 1)?;
            if is_empty(&item) {
                return at.fail("items of a list must take at least one byte");
            }
            Ok(Type::List(Box::new(item)))
        }
        "struct" => {
            let fields = list(&at, inner, 1, FIELDS_MAX, |at, value| {
                let (name, ty) = parse_member(at, value, depth + 1)?;
                Ok(StructField { name, ty })
            })?;
            distinct(&at, fields.iter().map(|field| &field.name))?;
            let name = parse_type_name(path, &value["name"])?;
            Ok(Type::Struct(StructType { name, fields }))
        }
        "enum" => {
            let variants = list(&at, inner, 1, VARIANTS_MAX, parse_variant)?;
            distinct(&at, variants.iter())?;
            Ok(Type::Enum(variants))
        }
        _ => path.fail(format!("unknown type {}", quoted(word))),
    }
}

/// Returns the name of a struct in its module's source. None if it has none.
fn parse_type_name(path: &Path, value: &Value) -> ParseResult<Option<String>> {
    let at = path.member("name");
    match value {
        Value::Null => Ok(None),
        Value::String(name) if is_valid_type_name(name) => Ok(Some(name.clone())),
        _ => at.fail("not the name of a type ([A-Za-z][A-Za-z0-9_]*, 63 bytes)"),
    }
}

fn parse_variant(at: &Path, value: &Value) -> ParseResult<String> {
    let name = text(at, value)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return at.fail(format!("a variant has 1 to {NAME_BYTES_MAX} bytes"));
    }
    Ok(name.to_owned())
}

/// True for types whose values take no byte: a list of them could claim any length.
fn is_empty(ty: &Type) -> bool {
    match ty {
        Type::Unit => true,
        Type::Struct(of) => of.fields.iter().all(|field| is_empty(&field.ty)),
        Type::Scalar(_) | Type::Option(_) | Type::List(_) | Type::Enum(_) => false,
    }
}

pub(crate) fn scalar(word: &str) -> Option<ScalarType> {
    Some(match word {
        "bool" => ScalarType::Bool,
        "i8" => ScalarType::I8,
        "i16" => ScalarType::I16,
        "i32" => ScalarType::I32,
        "i64" => ScalarType::I64,
        "u8" => ScalarType::U8,
        "u16" => ScalarType::U16,
        "u32" => ScalarType::U32,
        "u64" => ScalarType::U64,
        "f64" => ScalarType::F64,
        "text" => ScalarType::Text,
        "bytes" => ScalarType::Bytes,
        "timestamp" => ScalarType::Timestamp,
        "uuid" => ScalarType::Uuid,
        _ => {
            let scale = word.strip_prefix("decimal(")?.strip_suffix(')')?;
            let canonical = !scale.is_empty()
                && scale.bytes().all(|byte| byte.is_ascii_digit())
                && (scale.len() == 1 || !scale.starts_with('0'));
            let scale = scale
                .parse()
                .ok()
                .filter(|scale| canonical && *scale <= DECIMAL_SCALE_MAX);
            ScalarType::Decimal { scale: scale? }
        }
    })
}
