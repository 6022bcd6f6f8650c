//! Reads descriptions that were accepted once: of modules as clients sent them, and of stored tables as checkpoints write them.
//!
//! It is lenient where `describe` is strict: it skips unknown members, missing members have their default, and no number or length is
//! bounded. A description that was accepted once is readable for ever, whatever today's uploads are refused for. An error means that the
//! text is no description at all, or refers to things that it does not contain.

use reprise_abi::{
    ABI_VERSION, AbortSchema, ColumnSchema, IndexKind, IndexSchema, LogDeclaration, ModuleSchema, Parameter,
    Partitioning, PrefetchKey, PrefetchPart, ProcedureSchema, StructField, StructType, TablePlacement, TableSchema,
    Type,
};
use serde_json::Value;

use crate::describe::{scalar, unhex};

type Read<T> = Result<T, String>;

/// Reads the description of a module.
pub fn read_module(json: &[u8]) -> Read<ModuleSchema> {
    let document: Value = serde_json::from_slice(json).map_err(|error| format!("not JSON: {error}"))?;
    let tables = items(&document, "tables").iter().map(read_table);
    let tables = tables.collect::<Read<Vec<_>>>()?;
    let retiring = items(&document, "retiring").iter().map(read_table);
    let procedures = items(&document, "procedures").iter();
    let procedures = procedures.map(|value| read_procedure(value, &tables));
    Ok(ModuleSchema {
        table_docs: items(&document, "tables").iter().map(docs).collect(),
        abi: document
            .get("abi")
            .and_then(Value::as_u64)
            .map_or(ABI_VERSION, |abi| abi as u32),
        procedures: procedures.collect::<Read<_>>()?,
        on_deploy: match document.get("on_deploy") {
            Some(Value::String(name)) => Some(name.clone()),
            Some(Value::Bool(true)) => Some(String::new()),
            _ => None,
        },
        retiring: retiring.collect::<Read<_>>()?,
        tables,
    })
}

/// Reads the description of one stored table: that of a module with this table alone. None: it has no table.
pub fn read_stored_table(json: &[u8]) -> Read<Option<TableSchema>> {
    let mut tables = read_module(json)?.tables;
    match (tables.pop(), tables.is_empty()) {
        (table, true) => Ok(table),
        _ => Err("several tables".into()),
    }
}

fn items<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn flag(value: &Value, name: &str) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or_default()
}

fn text<'v>(value: &'v Value, name: &str) -> Read<&'v str> {
    let text = value.get(name).and_then(Value::as_str);
    text.ok_or_else(|| format!("no {name} in {}", short(value)))
}

fn docs(value: &Value) -> String {
    value.get("docs").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn was(value: &Value) -> Option<String> {
    value.get("was").and_then(Value::as_str).map(str::to_owned)
}

/// Returns enough of a value to find it.
fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// Returns the positions of a list's names in `known`.
fn positions(names: &[Value], known: &[&str]) -> Read<Vec<u16>> {
    names
        .iter()
        .map(|name| position(name.as_str().unwrap_or_default(), known))
        .collect()
}

fn position(name: &str, known: &[&str]) -> Read<u16> {
    let found = known.iter().position(|other| *other == name);
    let found = found.and_then(|at| u16::try_from(at).ok());
    found.ok_or_else(|| format!("{name:?} is not among {}", known.len()))
}

fn read_table(value: &Value) -> Read<TableSchema> {
    let columns = items(value, "columns").iter().map(read_column);
    let columns = columns.collect::<Read<Vec<_>>>()?;
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let indexes = items(value, "indexes").iter().map(|index| {
        Ok(IndexSchema {
            name: text(index, "name")?.to_owned(),
            columns: positions(items(index, "columns"), &names)?,
            unique: flag(index, "unique"),
        })
    });
    let placement = match value.get("placement") {
        Some(Value::String(word)) if word == "replicated" => TablePlacement::Replicated,
        Some(by @ Value::Object(_)) => TablePlacement::By(position(text(by, "by")?, &names)?),
        _ => TablePlacement::Local,
    };
    let full = text(value, "name")?;
    let (owner, name) = full.split_once('.').unwrap_or(("", full));
    Ok(TableSchema {
        owner: owner.to_owned(),
        name: name.to_owned(),
        shared: flag(value, "shared"),
        was: was(value),
        primary_key: positions(items(value, "primary_key"), &names)?,
        primary_kind: match value.get("primary_kind").and_then(Value::as_str) {
            Some("hash") => IndexKind::Hash,
            Some("dense") => IndexKind::Dense,
            _ => IndexKind::Ordered,
        },
        indexes: indexes.collect::<Read<_>>()?,
        placement,
        columns,
    })
}

fn read_column(value: &Value) -> Read<ColumnSchema> {
    let word = text(value, "type")?;
    let default = value.get("default").and_then(Value::as_str);
    let default = default.map(|hex| unhex(hex).ok_or_else(|| format!("a default that is {hex:?}")));
    Ok(ColumnSchema {
        variants: items(value, "variants")
            .iter()
            .map(|name| name.as_str().unwrap_or_default().to_owned())
            .collect(),
        name: text(value, "name")?.to_owned(),
        was: was(value),
        ty: scalar(word).ok_or_else(|| format!("a column of type {word:?}"))?,
        nullable: flag(value, "nullable"),
        default: default.transpose()?,
    })
}

fn read_procedure(value: &Value, tables: &[TableSchema]) -> Read<ProcedureSchema> {
    let params = items(value, "params").iter().map(|param| {
        let (name, ty) = read_member(param)?;
        Ok(Parameter { name, ty })
    });
    let params = params.collect::<Read<Vec<_>>>()?;
    let names: Vec<&str> = params.iter().map(|param| param.name.as_str()).collect();
    let partitioning = match value.get("partitioning") {
        Some(by @ Value::Object(_)) => Partitioning::By(positions(items(by, "by"), &names)?),
        Some(Value::String(word)) if word == "any" => Partitioning::Any,
        _ => Partitioning::All,
    };
    let prefetch = items(value, "prefetch").iter();
    Ok(ProcedureSchema {
        docs: docs(value),
        name: text(value, "name")?.to_owned(),
        returns: value.get("returns").map_or(Ok(Type::Unit), read_type)?,
        read_only: flag(value, "read_only"),
        partitioning,
        prefetch: prefetch
            .filter_map(|prefetch| read_prefetch(prefetch, tables, &names))
            .collect(),
        log: match value.get("log").and_then(Value::as_str) {
            Some("command") => LogDeclaration::Command,
            Some("physiological") => LogDeclaration::Physiological,
            Some("auto") => LogDeclaration::Auto,
            _ => LogDeclaration::Server,
        },
        time_max_ms: value
            .get("time_max_ms")
            .and_then(Value::as_u64)
            .and_then(|ms| u32::try_from(ms).ok()),
        fuel_max: value.get("fuel_max").and_then(Value::as_u64),
        aborts: items(value, "aborts").iter().map(read_abort).collect(),
        params,
    })
}

fn read_abort(value: &Value) -> AbortSchema {
    AbortSchema {
        code: value.get("code").and_then(Value::as_str).unwrap_or_default().to_owned(),
        docs: docs(value),
    }
}

/// Reads a key to prefetch. None if it is not understood, because it only affects speed.
fn read_prefetch(value: &Value, tables: &[TableSchema], params: &[&str]) -> Option<PrefetchKey> {
    let name = value.get("table")?.as_str()?;
    let table = tables.iter().position(|table| table.full_name() == name)?;
    let parts = items(value, "key").iter().map(|part| match part {
        Value::String(param) => position(param, params).ok().map(PrefetchPart::Param),
        other => other.as_i64().map(PrefetchPart::Int),
    });
    let key = parts.collect::<Option<Vec<_>>>()?;
    (key.len() == tables[table].primary_key.len()).then_some(PrefetchKey {
        table: table as u16,
        key,
    })
}

fn read_member(value: &Value) -> Read<(String, Type)> {
    let ty = value
        .get("type")
        .ok_or_else(|| format!("no type in {}", short(value)))?;
    Ok((text(value, "name")?.to_owned(), read_type(ty)?))
}

fn read_type(value: &Value) -> Read<Type> {
    let unknown = || format!("type {}", short(value));
    let (word, inner) = match value {
        Value::String(word) if word == "unit" => return Ok(Type::Unit),
        Value::String(word) => return scalar(word).map(Type::Scalar).ok_or_else(unknown),
        Value::Object(members) => {
            let mut words = members.iter().filter(|(word, _)| *word != "name");
            words.next().ok_or_else(unknown)?
        }
        _ => return Err(unknown()),
    };
    let list = inner.as_array().map_or(&[][..], Vec::as_slice);
    match word.as_str() {
        "option" => Ok(Type::Option(Box::new(read_type(inner)?))),
        "list" => Ok(Type::List(Box::new(read_type(inner)?))),
        "struct" => {
            let fields = list.iter().map(|field| {
                let (name, ty) = read_member(field)?;
                Ok(StructField { name, ty })
            });
            Ok(Type::Struct(StructType {
                name: value.get("name").and_then(Value::as_str).map(str::to_owned),
                fields: fields.collect::<Read<_>>()?,
            }))
        }
        "enum" => {
            let names = list.iter().map(|name| name.as_str().map(str::to_owned));
            Ok(Type::Enum(names.collect::<Option<_>>().ok_or_else(unknown)?))
        }
        _ => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::{from_json, to_json};

    const MODULE: &str = r#"{"abi":1,"tables":[{"name":"t","shared":true,"was":"s","columns":[{"name":"a","type":"i64","was":"z"},
        {"name":"b","type":"decimal(12)","nullable":true,"default":"0a000000000000000000000000000000"}],"primary_key":["a"],
        "primary_kind":"hash","indexes":[{"name":"by_b","columns":["b","a"],"unique":true}],"placement":{"by":"a"}},
        {"name":"other.u","shared":true,"columns":[{"name":"x","type":"text","nullable":true}],"placement":"replicated"}],
        "procedures":[{"name":"p","params":[{"name":"a","type":"i64"},{"name":"l","type":{"list":{"option":"text"}}}],
        "returns":{"struct":[{"name":"outcome","type":{"enum":["yes","no"]}},{"name":"n","type":"unit"}],"name":"Answer"},
        "partitioning":{"by":["a"]},"log":"physiological","fuel_max":200000000,"aborts":[{"code":"late","docs":"Too late."},{"code":"no"}],"prefetch":[{"table":"t","key":["a"]},{"table":"t","key":[-7]}]},
        {"name":"q","params":[],"read_only":true,"partitioning":"any"}]}"#;

    #[test]
    fn accepted_description_reads_the_same() {
        let expected = from_json(MODULE.as_bytes()).expect("a good module");
        assert_eq!(read_module(MODULE.as_bytes()), Ok(expected.clone()));
        assert_eq!(read_module(to_json(&expected).as_bytes()), Ok(expected));
    }

    #[test]
    fn description_that_uploads_may_no_longer_hold_is_read() {
        let indexes = (0..100).map(|at| format!(r#"{{"name":"i{at}","columns":["a"],"later":[1]}}"#));
        let indexes = indexes.collect::<Vec<_>>().join(",");
        let columns = (0..2_000).map(|at| format!(r#",{{"name":"C {at}","type":"i8","more":{{}}}}"#));
        let columns: String = columns.collect();
        let table = format!(
            r#"{{"abi":9,"made_by":"a later one","tables":[{{"name":"T-1","owner":null,"columns":[{{"name":"a","type":"i64"}}{columns}],
                "indexes":[{indexes}]}}]}}"#
        );
        assert!(from_json(table.as_bytes()).is_err());
        let read = read_stored_table(table.as_bytes()).expect("read").expect("a table");
        assert_eq!((read.columns.len(), read.indexes.len()), (2_001, 100));
        assert_eq!(read.placement, TablePlacement::Local);
        assert_eq!(read_stored_table(b"{}"), Ok(None));
    }

    #[test]
    fn invalid_description_is_an_error() {
        for json in [
            "",
            "[",
            r#"{"tables":[{}]}"#,
            r#"{"tables":[{"name":"t","columns":[{"name":"a","type":"i65"}]}]}"#,
            r#"{"tables":[{"name":"t","columns":[{"name":"a","type":"i64","default":"0"}]}]}"#,
            r#"{"tables":[{"name":"t","columns":[],"primary_key":["a"]}]}"#,
            r#"{"tables":[{"name":"t","columns":[],"placement":{"by":"a"}}]}"#,
            r#"{"procedures":[{"name":"p","params":[{"name":"a","type":{"map":"text"}}]}]}"#,
        ] {
            assert!(read_module(json.as_bytes()).is_err(), "{json}");
        }
    }
}
