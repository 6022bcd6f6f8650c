//! A module's description as JSON: the result of the `reprise_describe` export. The parser is in `host`.
//!
//! One writer for all guests, so that the text of one schema is always the same bytes.

use alloc::{string::String, vec::Vec};

use crate::{
    schema::{
        AbortSchema, ColumnSchema, IndexKind, IndexSchema, ModuleSchema, Partitioning, PrefetchKey, PrefetchPart,
        ProcedureSchema, TablePlacement, TableSchema,
    },
    types::{ScalarType, StructField, StructType, Type},
};

/// The description of `schema`. Column and parameter positions are written as names; a position outside its list is
/// written as an empty name, which every reader refuses.
pub fn write_json(schema: &ModuleSchema) -> String {
    let mut out = String::new();
    put(&mut out, "{\"abi\":");
    push_number(&mut out, schema.abi);
    put(&mut out, ",\"tables\":");
    let docs = schema
        .table_docs
        .iter()
        .map(String::as_str)
        .chain(core::iter::repeat(""));
    let tables: Vec<_> = schema.tables.iter().zip(docs).collect();
    push_list(&mut out, &tables, |out, (table, docs)| push_table(out, table, docs));
    put(&mut out, ",\"procedures\":");
    push_list(&mut out, &schema.procedures, |out, procedure| {
        push_procedure(out, schema, procedure)
    });
    if let Some(name) = &schema.on_deploy {
        put(&mut out, ",\"on_deploy\":");
        match name.is_empty() {
            true => push_bool(&mut out, true),
            false => push_text(&mut out, name),
        }
    }
    if !schema.retiring.is_empty() {
        put(&mut out, ",\"retiring\":");
        push_list(&mut out, &schema.retiring, |out, table| push_table(out, table, ""));
    }
    out.push('}');
    out
}

fn push_table(out: &mut String, table: &TableSchema, docs: &str) {
    put(out, "{\"name\":");
    push_text(out, &table.full_name());
    push_docs(out, docs);
    if table.shared {
        put(out, ",\"shared\":true");
    }
    push_was(out, &table.was);
    put(out, ",\"columns\":");
    push_list(out, &table.columns, push_column);
    put(out, ",\"primary_key\":");
    push_list(out, &table.primary_key, |out, column| {
        push_column_name(out, table, *column)
    });
    put(
        out,
        match table.primary_kind {
            IndexKind::Ordered => ",\"primary_kind\":\"ordered\"",
            IndexKind::Hash => ",\"primary_kind\":\"hash\"",
            IndexKind::Dense => ",\"primary_kind\":\"dense\"",
        },
    );
    put(out, ",\"indexes\":");
    push_list(out, &table.indexes, |out, index| push_index(out, table, index));
    put(out, ",\"placement\":");
    match table.placement {
        TablePlacement::By(column) => {
            put(out, "{\"by\":");
            push_column_name(out, table, column);
            out.push('}');
        }
        TablePlacement::Replicated => put(out, "\"replicated\""),
        TablePlacement::Local => put(out, "\"local\""),
    }
    out.push('}');
}

fn push_column(out: &mut String, column: &ColumnSchema) {
    put(out, "{\"name\":");
    push_text(out, &column.name);
    push_was(out, &column.was);
    put(out, ",\"type\":");
    push_scalar(out, column.ty);
    if !column.variants.is_empty() {
        put(out, ",\"variants\":");
        push_list(out, &column.variants, |out, name| push_text(out, name));
    }
    put(out, ",\"nullable\":");
    push_bool(out, column.nullable);
    if let Some(default) = &column.default {
        put(out, ",\"default\":\"");
        for byte in default {
            push_hex(out, *byte);
        }
        out.push('"');
    }
    out.push('}');
}

fn push_docs(out: &mut String, docs: &str) {
    if !docs.is_empty() {
        put(out, ",\"docs\":");
        push_text(out, docs);
    }
}

fn push_was(out: &mut String, was: &Option<String>) {
    if let Some(name) = was {
        put(out, ",\"was\":");
        push_text(out, name);
    }
}

fn push_index(out: &mut String, table: &TableSchema, index: &IndexSchema) {
    put(out, "{\"name\":");
    push_text(out, &index.name);
    put(out, ",\"columns\":");
    push_list(out, &index.columns, |out, column| push_column_name(out, table, *column));
    put(out, ",\"unique\":");
    push_bool(out, index.unique);
    out.push('}');
}

fn push_procedure(out: &mut String, schema: &ModuleSchema, procedure: &ProcedureSchema) {
    put(out, "{\"name\":");
    push_text(out, &procedure.name);
    push_docs(out, &procedure.docs);
    put(out, ",\"params\":");
    push_list(out, &procedure.params, |out, param| {
        push_member(out, &param.name, &param.ty)
    });
    put(out, ",\"returns\":");
    push_type(out, &procedure.returns);
    put(out, ",\"read_only\":");
    push_bool(out, procedure.read_only);
    put(out, ",\"partitioning\":");
    match &procedure.partitioning {
        Partitioning::By(params) => {
            put(out, "{\"by\":");
            push_list(out, params, |out, position| {
                let param = procedure.params.get(*position as usize);
                push_text(out, param.map_or("", |param| &param.name));
            });
            out.push('}');
        }
        Partitioning::All => put(out, "\"all\""),
        Partitioning::Any => put(out, "\"any\""),
    }
    if let Some(log) = procedure.log.name() {
        put(out, ",\"log\":");
        push_text(out, log);
    }
    if let Some(time_max_ms) = procedure.time_max_ms {
        put(out, ",\"time_max_ms\":");
        push_number(out, time_max_ms);
    }
    if let Some(fuel_max) = procedure.fuel_max {
        put(out, ",\"fuel_max\":");
        push_int(out, i64::try_from(fuel_max).unwrap_or(i64::MAX));
    }
    if !procedure.aborts.is_empty() {
        put(out, ",\"aborts\":");
        push_list(out, &procedure.aborts, push_abort);
    }
    if !procedure.prefetch.is_empty() {
        put(out, ",\"prefetch\":");
        push_list(out, &procedure.prefetch, |out, prefetch| {
            push_prefetch(out, schema, procedure, prefetch)
        });
    }
    out.push('}');
}

fn push_abort(out: &mut String, abort: &AbortSchema) {
    put(out, "{\"code\":");
    push_text(out, &abort.code);
    push_docs(out, &abort.docs);
    out.push('}');
}

fn push_prefetch(out: &mut String, schema: &ModuleSchema, procedure: &ProcedureSchema, prefetch: &PrefetchKey) {
    put(out, "{\"table\":");
    let table = schema.tables.get(prefetch.table as usize);
    push_text(out, &table.map_or_else(String::new, |table| table.full_name()));
    put(out, ",\"key\":");
    push_list(out, &prefetch.key, |out, part| match part {
        PrefetchPart::Param(position) => {
            let param = procedure.params.get(*position as usize);
            push_text(out, param.map_or("", |param| &param.name));
        }
        PrefetchPart::Int(value) => push_int(out, *value),
    });
    out.push('}');
}

fn push_type(out: &mut String, ty: &Type) {
    match ty {
        Type::Unit => put(out, "\"unit\""),
        Type::Scalar(scalar) => push_scalar(out, *scalar),
        Type::Option(inner) => push_wrapped(out, "{\"option\":", |out| push_type(out, inner)),
        Type::List(item) => push_wrapped(out, "{\"list\":", |out| push_type(out, item)),
        Type::Struct(StructType { name, fields }) => push_wrapped(out, "{\"struct\":", |out| {
            push_list(out, fields, |out, field: &StructField| {
                push_member(out, &field.name, &field.ty);
            });
            if let Some(name) = name {
                put(out, ",\"name\":");
                push_text(out, name);
            }
        }),
        Type::Enum(variants) => push_wrapped(out, "{\"enum\":", |out| {
            push_list(out, variants, |out, name| push_text(out, name));
        }),
    }
}

fn push_wrapped(out: &mut String, open: &str, inner: impl FnOnce(&mut String)) {
    put(out, open);
    inner(out);
    out.push('}');
}

#[inline(never)]
fn push_member(out: &mut String, name: &str, ty: &Type) {
    put(out, "{\"name\":");
    push_text(out, name);
    put(out, ",\"type\":");
    push_type(out, ty);
    out.push('}');
}

#[inline(never)]
fn push_scalar(out: &mut String, ty: ScalarType) {
    let name = match ty {
        ScalarType::Bool => "bool",
        ScalarType::I8 => "i8",
        ScalarType::I16 => "i16",
        ScalarType::I32 => "i32",
        ScalarType::I64 => "i64",
        ScalarType::U8 => "u8",
        ScalarType::U16 => "u16",
        ScalarType::U32 => "u32",
        ScalarType::U64 => "u64",
        ScalarType::F64 => "f64",
        ScalarType::Text => "text",
        ScalarType::Bytes => "bytes",
        ScalarType::Timestamp => "timestamp",
        ScalarType::Uuid => "uuid",
        ScalarType::Decimal { scale } => {
            put(out, "\"decimal(");
            push_number(out, scale as u32);
            return put(out, ")\"");
        }
    };
    out.push('"');
    put(out, name);
    out.push('"');
}

fn push_column_name(out: &mut String, table: &TableSchema, position: u16) {
    push_text(
        out,
        table.columns.get(position as usize).map_or("", |column| &column.name),
    );
}

fn push_list<T>(out: &mut String, items: &[T], push_item: impl Fn(&mut String, &T)) {
    out.push('[');
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        push_item(out, item);
    }
    out.push(']');
}

/// Out of line: guests carry this code, and a description is written once per upload.
#[inline(never)]
fn put(out: &mut String, text: &str) {
    out.push_str(text);
}

fn push_bool(out: &mut String, value: bool) {
    put(out, if value { "true" } else { "false" });
}

/// Decimal digits without the formatting machinery, which would double the size of a small guest.
fn push_number(out: &mut String, value: u32) {
    if value >= 10 {
        push_number(out, value / 10);
    }
    out.push((b'0' + (value % 10) as u8) as char);
}

fn push_int(out: &mut String, value: i64) {
    if value < 0 {
        out.push('-');
    }
    let (high, low) = (
        value.unsigned_abs() / 1_000_000_000,
        value.unsigned_abs() % 1_000_000_000,
    );
    match high {
        0 => push_number(out, low as u32),
        _ => {
            // Here `high` is 9,223,372,036 at most, above the nine digits of `low`.
            if high >= 1_000_000_000 {
                push_number(out, (high / 1_000_000_000) as u32);
                push_nine(out, (high % 1_000_000_000) as u32);
            } else {
                push_number(out, high as u32);
            }
            push_nine(out, low as u32);
        }
    }
}

/// Nine digits, leading zeros among them.
fn push_nine(out: &mut String, value: u32) {
    let mut unit = 100_000_000;
    while unit > 0 {
        out.push((b'0' + (value / unit % 10) as u8) as char);
        unit /= 10;
    }
}

#[inline(never)]
fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\0'..='\x1f' => {
                put(out, "\\u00");
                push_hex(out, c as u8);
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

fn push_hex(out: &mut String, byte: u8) {
    for digit in [byte >> 4, byte & 15] {
        out.push(char::from_digit(digit as u32, 16).unwrap_or('0'));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{LogDeclaration, Parameter};
    use alloc::{boxed::Box, vec};

    #[test]
    fn the_text_is_frozen() {
        let column = |name: &str, ty, nullable, default| ColumnSchema {
            variants: Vec::new(),
            was: (name == "b").then(|| "c".into()),
            name: name.into(),
            ty,
            nullable,
            default,
        };
        let schema = ModuleSchema {
            table_docs: vec!["Rows.\nOf t.".into()],
            abi: 1,
            tables: vec![TableSchema {
                owner: "m".into(),
                shared: true,
                was: Some("s".into()),
                name: "t".into(),
                columns: vec![
                    column("a", ScalarType::I64, false, None),
                    ColumnSchema {
                        variants: vec!["free".into(), "sold".into()],
                        ..column("e", ScalarType::U8, false, None)
                    },
                    column("b", ScalarType::Decimal { scale: 12 }, true, Some(vec![0x0a, 0xff])),
                ],
                primary_key: vec![0],
                primary_kind: IndexKind::Hash,
                indexes: vec![IndexSchema {
                    name: "by_b".into(),
                    columns: vec![2, 0],
                    unique: true,
                }],
                placement: TablePlacement::By(0),
            }],
            procedures: vec![ProcedureSchema {
                docs: "Does.".into(),
                name: "p".into(),
                params: vec![Parameter {
                    name: "a".into(),
                    ty: Type::List(Box::new(Type::Option(Box::new(Type::Scalar(ScalarType::Text))))),
                }],
                returns: Type::Struct(StructType {
                    name: Some("Answer".into()),
                    fields: vec![StructField {
                        name: "outcome".into(),
                        ty: Type::Enum(vec!["yes".into(), "n\"o\n".into()]),
                    }],
                }),
                read_only: true,
                partitioning: Partitioning::By(vec![0]),
                log: LogDeclaration::Physiological,
                time_max_ms: None,
                fuel_max: Some(5_000_000_000),
                aborts: vec![
                    AbortSchema {
                        code: "sold_out".into(),
                        docs: "No seat is free.".into(),
                    },
                    AbortSchema {
                        code: "closed".into(),
                        docs: String::new(),
                    },
                ],
                prefetch: vec![PrefetchKey {
                    table: 0,
                    key: vec![
                        PrefetchPart::Param(0),
                        PrefetchPart::Int(-7),
                        PrefetchPart::Int(i64::MIN),
                    ],
                }],
            }],
            on_deploy: Some("split-name".into()),
            retiring: vec![TableSchema {
                owner: String::new(),
                shared: false,
                was: None,
                name: "o".into(),
                columns: vec![column("a", ScalarType::I64, false, None)],
                primary_key: vec![0],
                primary_kind: IndexKind::Ordered,
                indexes: Vec::new(),
                placement: TablePlacement::Local,
            }],
        };
        let expected = concat!(
            r#"{"abi":1,"tables":[{"name":"m.t","docs":"Rows.\u000aOf t.","shared":true,"was":"s","columns":[{"name":"a","type":"i64","nullable":false},"#,
            r#"{"name":"e","type":"u8","variants":["free","sold"],"nullable":false},"#,
            r#"{"name":"b","was":"c","type":"decimal(12)","nullable":true,"default":"0aff"}],"primary_key":["a"],"#,
            r#""primary_kind":"hash","indexes":[{"name":"by_b","columns":["b","a"],"unique":true}],"#,
            r#""placement":{"by":"a"}}],"procedures":[{"name":"p","docs":"Does.","params":[{"name":"a","#,
            r#""type":{"list":{"option":"text"}}}],"returns":{"struct":[{"name":"outcome","#,
            r#""type":{"enum":["yes","n\"o\u000a"]}}],"name":"Answer"},"read_only":true,"partitioning":{"by":["a"]},"log":"physiological","#,
            r#""fuel_max":5000000000,"aborts":[{"code":"sold_out","docs":"No seat is free."},{"code":"closed"}],"#,
            r#""prefetch":[{"table":"m.t","key":["a",-7,-9223372036854775808]}]}],"on_deploy":"split-name","#,
            r#""retiring":[{"name":"o","columns":[{"name":"a","type":"i64","nullable":false}],"primary_key":["a"],"#,
            r#""primary_kind":"ordered","indexes":[],"placement":"local"}]}"#,
        );
        assert_eq!(write_json(&schema), expected);
    }
}
