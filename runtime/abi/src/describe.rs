//! A module's description as JSON: what the `reprise_describe` export returns. The parser lies in `host`.
//!
//! One writer for all guests, so that the text of one schema is always the same bytes.

use alloc::string::String;

use crate::{
    schema::{
        ColumnSchema, IndexKind, IndexSchema, ModuleSchema, Partitioning, Placement,
        ProcedureSchema, TableSchema,
    },
    types::{ScalarType, StructField, Type},
};

/// The description of `schema`. Column and parameter positions are written as names; a position outside its list is
/// written as an empty name, which every reader refuses.
pub fn write_json(schema: &ModuleSchema) -> String {
    let mut out = String::new();
    out.push_str("{\"abi\":");
    push_number(&mut out, schema.abi);
    out.push_str(",\"tables\":");
    push_list(&mut out, &schema.tables, push_table);
    out.push_str(",\"procedures\":");
    push_list(&mut out, &schema.procedures, push_procedure);
    out.push('}');
    out
}

fn push_table(out: &mut String, table: &TableSchema) {
    out.push_str("{\"name\":");
    push_text(out, &table.name);
    out.push_str(",\"columns\":");
    push_list(out, &table.columns, push_column);
    out.push_str(",\"primary_key\":");
    push_list(out, &table.primary_key, |out, column| push_column_name(out, table, *column));
    out.push_str(match table.primary_kind {
        IndexKind::Ordered => ",\"primary_kind\":\"ordered\"",
        IndexKind::Hash => ",\"primary_kind\":\"hash\"",
    });
    out.push_str(",\"indexes\":");
    push_list(out, &table.indexes, |out, index| push_index(out, table, index));
    out.push_str(",\"placement\":");
    match table.placement {
        Placement::By(column) => {
            out.push_str("{\"by\":");
            push_column_name(out, table, column);
            out.push('}');
        }
        Placement::Replicated => out.push_str("\"replicated\""),
        Placement::Local => out.push_str("\"local\""),
    }
    out.push('}');
}

fn push_column(out: &mut String, column: &ColumnSchema) {
    out.push_str("{\"name\":");
    push_text(out, &column.name);
    out.push_str(",\"type\":");
    push_scalar(out, column.ty);
    out.push_str(",\"nullable\":");
    push_bool(out, column.nullable);
    if let Some(default) = &column.default {
        out.push_str(",\"default\":\"");
        for byte in default {
            push_hex(out, *byte);
        }
        out.push('"');
    }
    out.push('}');
}

fn push_index(out: &mut String, table: &TableSchema, index: &IndexSchema) {
    out.push_str("{\"name\":");
    push_text(out, &index.name);
    out.push_str(",\"columns\":");
    push_list(out, &index.columns, |out, column| push_column_name(out, table, *column));
    out.push_str(",\"unique\":");
    push_bool(out, index.unique);
    out.push('}');
}

fn push_procedure(out: &mut String, procedure: &ProcedureSchema) {
    out.push_str("{\"name\":");
    push_text(out, &procedure.name);
    out.push_str(",\"params\":");
    push_list(out, &procedure.params, |out, param| push_member(out, &param.name, &param.ty));
    out.push_str(",\"returns\":");
    push_type(out, &procedure.returns);
    out.push_str(",\"read_only\":");
    push_bool(out, procedure.read_only);
    out.push_str(",\"partitioning\":");
    match &procedure.partitioning {
        Partitioning::By(params) => {
            out.push_str("{\"by\":");
            push_list(out, params, |out, position| {
                let param = procedure.params.get(*position as usize);
                push_text(out, param.map_or("", |param| &param.name));
            });
            out.push('}');
        }
        Partitioning::All => out.push_str("\"all\""),
        Partitioning::Any => out.push_str("\"any\""),
    }
    out.push('}');
}

fn push_type(out: &mut String, ty: &Type) {
    match ty {
        Type::Unit => out.push_str("\"unit\""),
        Type::Scalar(scalar) => push_scalar(out, *scalar),
        Type::Option(inner) => push_wrapped(out, "{\"option\":", |out| push_type(out, inner)),
        Type::List(item) => push_wrapped(out, "{\"list\":", |out| push_type(out, item)),
        Type::Struct(fields) => push_wrapped(out, "{\"struct\":", |out| {
            push_list(out, fields, |out, field: &StructField| {
                push_member(out, &field.name, &field.ty);
            });
        }),
        Type::Enum(variants) => push_wrapped(out, "{\"enum\":", |out| {
            push_list(out, variants, |out, name| push_text(out, name));
        }),
    }
}

fn push_wrapped(out: &mut String, open: &str, inner: impl FnOnce(&mut String)) {
    out.push_str(open);
    inner(out);
    out.push('}');
}

fn push_member(out: &mut String, name: &str, ty: &Type) {
    out.push_str("{\"name\":");
    push_text(out, name);
    out.push_str(",\"type\":");
    push_type(out, ty);
    out.push('}');
}

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
            out.push_str("\"decimal(");
            push_number(out, scale as u32);
            return out.push_str(")\"");
        }
    };
    out.push('"');
    out.push_str(name);
    out.push('"');
}

fn push_column_name(out: &mut String, table: &TableSchema, position: u16) {
    push_text(out, table.columns.get(position as usize).map_or("", |column| &column.name));
}

fn push_list<T>(out: &mut String, items: &[T], mut push_item: impl FnMut(&mut String, &T)) {
    out.push('[');
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(',');
        }
        push_item(out, item);
    }
    out.push(']');
}

fn push_bool(out: &mut String, value: bool) {
    out.push_str(if value { "true" } else { "false" });
}

/// Decimal digits without the formatting machinery, which would double the size of a small guest.
fn push_number(out: &mut String, value: u32) {
    if value >= 10 {
        push_number(out, value / 10);
    }
    out.push((b'0' + (value % 10) as u8) as char);
}

fn push_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\0'..='\x1f' => {
                out.push_str("\\u00");
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
    use crate::schema::Parameter;
    use alloc::{boxed::Box, vec};

    #[test]
    fn the_text_is_frozen() {
        let column = |name: &str, ty, nullable, default| ColumnSchema {
            name: name.into(),
            ty,
            nullable,
            default,
        };
        let schema = ModuleSchema {
            abi: 1,
            tables: vec![TableSchema {
                name: "t".into(),
                columns: vec![
                    column("a", ScalarType::I64, false, None),
                    column("b", ScalarType::Decimal { scale: 12 }, true, Some(vec![0x0a, 0xff])),
                ],
                primary_key: vec![0],
                primary_kind: IndexKind::Hash,
                indexes: vec![IndexSchema {
                    name: "by_b".into(),
                    columns: vec![1, 0],
                    unique: true,
                }],
                placement: Placement::By(0),
            }],
            procedures: vec![ProcedureSchema {
                name: "p".into(),
                params: vec![Parameter {
                    name: "a".into(),
                    ty: Type::List(Box::new(Type::Option(Box::new(Type::Scalar(ScalarType::Text))))),
                }],
                returns: Type::Struct(vec![StructField {
                    name: "outcome".into(),
                    ty: Type::Enum(vec!["yes".into(), "n\"o\n".into()]),
                }]),
                read_only: true,
                partitioning: Partitioning::By(vec![0]),
            }],
        };
        let expected = concat!(
            r#"{"abi":1,"tables":[{"name":"t","columns":[{"name":"a","type":"i64","nullable":false},"#,
            r#"{"name":"b","type":"decimal(12)","nullable":true,"default":"0aff"}],"primary_key":["a"],"#,
            r#""primary_kind":"hash","indexes":[{"name":"by_b","columns":["b","a"],"unique":true}],"#,
            r#""placement":{"by":"a"}}],"procedures":[{"name":"p","params":[{"name":"a","#,
            r#""type":{"list":{"option":"text"}}}],"returns":{"struct":[{"name":"outcome","#,
            r#""type":{"enum":["yes","n\"o\u000a"]}}]},"read_only":true,"partitioning":{"by":["a"]}}]}"#,
        );
        assert_eq!(write_json(&schema), expected);
    }
}
