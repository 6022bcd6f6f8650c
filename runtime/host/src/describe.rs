//! Module descriptions: the JSON that a module carries, checked down to the last name.
//!
//! `docs/FORMAT.md` describes the shape. Other members are refused, because a misspelt one would otherwise silently mean its default.

mod procedures;

use reprise_abi::{
    ABI_VERSION, ColumnSchema, IndexKind, IndexSchema, ModuleSchema, ScalarType, TablePlacement, TableSchema, Type,
    row::COLUMNS_MAX,
    schema::{
        COLUMN_VARIANTS_MAX, DOCS_BYTES_MAX, NAME_BYTES_MAX, is_valid_migration_name, is_valid_name, split_table_name,
    },
    value::ValueReader,
};
use reprise_base::limits::{INDEXES_MAX, PROCEDURES_MAX, TABLES_MAX};
use serde_json::{Map, Value};

use self::procedures::parse_procedure;
pub(crate) use self::procedures::scalar;
pub use reprise_abi::describe::write_json as to_json;
pub use reprise_base::limits::DESCRIPTION_BYTES_MAX;

/// Number of parameters of a procedure, and of fields of a struct, at most.
pub const FIELDS_MAX: usize = 256;
/// Number of variants of an enum at most.
pub const VARIANTS_MAX: usize = 1_024;

/// An error in a description, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("description: {path}{}{reason}", if path.is_empty() { "" } else { ": " })]
pub struct DescribeError {
    /// Place in the document, such as `tables[0].columns[2].type`.
    pub path: String,
    pub reason: String,
}

type ParseResult<T> = Result<T, DescribeError>;

/// Reads and checks a description.
pub fn from_json(json: &[u8]) -> ParseResult<ModuleSchema> {
    let root = Path::root();
    if json.len() > DESCRIPTION_BYTES_MAX {
        return root.fail(format!("longer than {DESCRIPTION_BYTES_MAX} bytes"));
    }
    let document: Value = match serde_json::from_slice(json) {
        Ok(document) => document,
        Err(error) => return root.fail(format!("not JSON: {error}")),
    };
    let object = Object::new(
        &root,
        &document,
        &["abi", "tables", "procedures", "on_deploy", "retiring"],
    )?;
    let (at, abi) = object.required("abi")?;
    if abi.as_u64() != Some(u64::from(ABI_VERSION)) {
        return at.fail(format!("version {abi} is not supported, only {ABI_VERSION} is"));
    }
    let (at, tables) = object.required("tables")?;
    let tables = list(&at, tables, 0, TABLES_MAX, parse_table)?;
    let (tables, table_docs): (Vec<_>, Vec<_>) = tables.into_iter().unzip();
    distinct(&at, tables.iter().map(TableSchema::full_name))?;
    let (at, procedures) = object.required("procedures")?;
    let procedures = list(&at, procedures, 0, PROCEDURES_MAX, |at, value| {
        parse_procedure(at, value, &tables)
    })?;
    distinct(&at, procedures.iter().map(|procedure| &procedure.name))?;
    let on_deploy = parse_on_deploy(&object)?;
    Ok(ModuleSchema {
        table_docs,
        abi: ABI_VERSION,
        retiring: parse_retiring(&object, tables.len(), on_deploy.is_some())?,
        tables,
        procedures,
        on_deploy,
    })
}

/// Returns the name of the migration. It is empty for a migration without a name.
fn parse_on_deploy(object: &Object<'_>) -> ParseResult<Option<String>> {
    match object.optional("on_deploy") {
        None | Some((_, Value::Bool(false))) => Ok(None),
        Some((_, Value::Bool(true))) => Ok(Some(String::new())),
        Some((_, Value::String(name))) if is_valid_migration_name(name) => Ok(Some(name.clone())),
        Some((at, _)) => {
            at.fail("expected the migration's name (a to z, 0 to 9, _ and -, a letter first), true or false")
        }
    }
}

/// Returns the tables that only the migration sees.
fn parse_retiring(object: &Object<'_>, tables: usize, on_deploy: bool) -> ParseResult<Vec<TableSchema>> {
    let Some((at, value)) = object.optional("retiring") else {
        return Ok(Vec::new());
    };
    let retiring = list(&at, value, 0, TABLES_MAX - tables, |at, value| {
        let (table, _) = parse_table(at, value)?;
        if !table.owner.is_empty() || table.shared || table.was.is_some() || !table.indexes.is_empty() {
            return at.fail("a retiring table is the module's own, under its stored name, without indexes");
        }
        for (number, column) in (0..).zip(&table.columns) {
            let names_row = table.primary_key.contains(&number) || table.placement == TablePlacement::By(number);
            if !(names_row || column.nullable || column.default.is_some()) {
                let reason = "a column that may be gone is nullable or has a default";
                return at.member("columns").item(number as usize).fail(reason);
            }
        }
        Ok(table)
    })?;
    distinct(&at, retiring.iter().map(|table| &table.name))?;
    match on_deploy || retiring.is_empty() {
        true => Ok(retiring),
        false => at.fail("nothing would see them: nothing runs at the deployment"),
    }
}

/// A place in the document.
#[derive(Clone)]
struct Path(String);

impl Path {
    fn root() -> Self {
        Self(String::new())
    }

    fn member(&self, name: &str) -> Self {
        let dot = if self.0.is_empty() { "" } else { "." };
        Self(format!("{}{dot}{name}", self.0))
    }

    fn item(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    fn fail<T>(&self, reason: impl Into<String>) -> ParseResult<T> {
        Err(DescribeError {
            path: self.0.clone(),
            reason: reason.into(),
        })
    }
}

/// A JSON object of which only known members are accepted.
struct Object<'a> {
    path: &'a Path,
    members: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    fn new(path: &'a Path, value: &'a Value, known: &[&str]) -> ParseResult<Self> {
        let Value::Object(members) = value else {
            return path.fail("expected an object");
        };
        if let Some(name) = members.keys().find(|name| !known.contains(&name.as_str())) {
            return path.fail(format!("unknown member {}", quoted(name)));
        }
        Ok(Self { path, members })
    }

    /// Returns a member that may be absent or null.
    fn optional(&self, name: &str) -> Option<(Path, &'a Value)> {
        let value = self.members.get(name).filter(|value| !value.is_null())?;
        Some((self.path.member(name), value))
    }

    fn required(&self, name: &str) -> ParseResult<(Path, &'a Value)> {
        match self.optional(name) {
            Some(found) => Ok(found),
            None => self.path.fail(format!("member {name} is missing")),
        }
    }

    fn name(&self) -> ParseResult<String> {
        let (at, value) = self.required("name")?;
        parse_name(&at, value)
    }

    fn docs(&self) -> ParseResult<String> {
        let Some((at, value)) = self.optional("docs") else {
            return Ok(String::new());
        };
        let docs = text(&at, value)?;
        match docs.len() > DOCS_BYTES_MAX {
            true => at.fail(format!("longer than {DOCS_BYTES_MAX} bytes")),
            false => Ok(docs.to_owned()),
        }
    }

    fn was(&self) -> ParseResult<Option<String>> {
        let was = self.optional("was");
        was.map(|(at, value)| parse_name(&at, value)).transpose()
    }

    fn flag(&self, name: &str) -> ParseResult<bool> {
        match self.optional(name) {
            None => Ok(false),
            Some((_, Value::Bool(flag))) => Ok(*flag),
            Some((at, _)) => at.fail("expected true or false"),
        }
    }
}

/// Returns a short text of the document for a message.
fn quoted(text: &str) -> String {
    let short: String = text.chars().take(NAME_BYTES_MAX + 1).collect();
    format!("{short:?}")
}

fn text<'a>(at: &Path, value: &'a Value) -> ParseResult<&'a str> {
    match value {
        Value::String(text) => Ok(text),
        _ => at.fail("expected a string"),
    }
}

fn parse_name(at: &Path, value: &Value) -> ParseResult<String> {
    let name = text(at, value)?;
    if !is_valid_name(name) {
        return at.fail(format!("{} is not a name ([a-z][a-z0-9_]*, 63 bytes)", quoted(name)));
    }
    Ok(name.to_owned())
}

fn list<T>(
    at: &Path,
    value: &Value,
    min: usize,
    max: usize,
    mut parse: impl FnMut(&Path, &Value) -> ParseResult<T>,
) -> ParseResult<Vec<T>> {
    let Value::Array(items) = value else {
        return at.fail("expected a list");
    };
    if items.len() < min || items.len() > max {
        return at.fail(format!("{} items, expected {min} to {max}", items.len()));
    }
    let items = items.iter().enumerate();
    items.map(|(index, item)| parse(&at.item(index), item)).collect()
}

fn distinct<T: Ord + AsRef<str>>(at: &Path, names: impl Iterator<Item = T>) -> ParseResult<()> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        let text = quoted(name.as_ref());
        if !seen.insert(name) {
            return at.fail(format!("{text} twice"));
        }
    }
    Ok(())
}

/// Returns the positions of named things, each at most once.
fn positions(at: &Path, value: &Value, known: &[&str], what: &str, min: usize) -> ParseResult<Vec<u16>> {
    let found = list(at, value, min, known.len(), |at, value| {
        let name = text(at, value)?;
        match known.iter().position(|other| *other == name) {
            Some(position) => Ok(position as u16),
            None => at.fail(format!("no {what} {}", quoted(name))),
        }
    })?;
    for (index, position) in found.iter().enumerate() {
        if found[..index].contains(position) {
            return at
                .item(index)
                .fail(format!("{what} {} twice", known[*position as usize]));
        }
    }
    Ok(found)
}

/// Returns a table and its documentation.
fn parse_table(path: &Path, value: &Value) -> ParseResult<(TableSchema, String)> {
    let members = [
        "name",
        "docs",
        "shared",
        "was",
        "columns",
        "primary_key",
        "primary_kind",
        "indexes",
        "placement",
    ];
    let object = Object::new(path, value, &members)?;
    let (at, columns) = object.required("columns")?;
    let columns = list(&at, columns, 1, COLUMNS_MAX, parse_column)?;
    distinct(&at, columns.iter().map(|column| &column.name))?;
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let primary_key = match object.optional("primary_key") {
        Some((at, value)) => positions(&at, value, &names, "column", 0)?,
        None => Vec::new(),
    };
    if let Some(null) = primary_key.iter().find(|column| columns[**column as usize].nullable) {
        let name = names[*null as usize];
        return path.member("primary_key").fail(format!("column {name} is nullable"));
    }
    let primary_kind = parse_primary_kind(&object)?;
    let indexes = match object.optional("indexes") {
        Some((at, value)) => {
            let indexes = list(&at, value, 0, INDEXES_MAX, |at, value| parse_index(at, value, &names))?;
            distinct(&at, indexes.iter().map(|index| &index.name))?;
            indexes
        }
        None => Vec::new(),
    };
    let placement = parse_placement(&object, &columns, &names)?;
    let (owner, name) = parse_table_name(&object)?;
    let table = TableSchema {
        owner,
        name,
        shared: object.flag("shared")?,
        was: object.was()?,
        columns,
        primary_key,
        primary_kind,
        indexes,
        placement,
    };
    Ok((table, object.docs()?))
}

/// Returns module and table. The module is empty for the module's own.
fn parse_table_name(object: &Object<'_>) -> ParseResult<(String, String)> {
    let (at, value) = object.required("name")?;
    let full = text(&at, value)?;
    let Some((owner, name)) = split_table_name(full) else {
        return at.fail(format!(
            "{} is not a table's name (name or module.name; each [a-z][a-z0-9_]*, 63 bytes)",
            quoted(full)
        ));
    };
    if !owner.is_empty() && object.was()?.is_some() {
        return at.fail("a table of another module can't be renamed here");
    }
    Ok((owner.to_owned(), name.to_owned()))
}

fn parse_primary_kind(object: &Object<'_>) -> ParseResult<IndexKind> {
    let Some((at, value)) = object.optional("primary_kind") else {
        return Ok(IndexKind::Ordered);
    };
    match text(&at, value)? {
        "ordered" => Ok(IndexKind::Ordered),
        "hash" => Ok(IndexKind::Hash),
        "dense" => Ok(IndexKind::Dense),
        other => at.fail(format!("{} is none of ordered, hash, dense", quoted(other))),
    }
}

fn parse_placement(object: &Object<'_>, columns: &[ColumnSchema], names: &[&str]) -> ParseResult<TablePlacement> {
    let (at, value) = object.required("placement")?;
    match value {
        Value::String(word) if word == "replicated" => Ok(TablePlacement::Replicated),
        Value::String(word) if word == "local" => Ok(TablePlacement::Local),
        Value::Object(_) => {
            let by = Object::new(&at, value, &["by"])?;
            let (at, name) = by.required("by")?;
            let name = text(&at, name)?;
            let Some(position) = names.iter().position(|other| *other == name) else {
                return at.fail(format!("no column {}", quoted(name)));
            };
            if columns[position].nullable {
                return at.fail(format!("partition column {name} is nullable"));
            }
            Ok(TablePlacement::By(position as u16))
        }
        _ => at.fail("expected {\"by\": column}, \"replicated\" or \"local\""),
    }
}

fn parse_column(path: &Path, value: &Value) -> ParseResult<ColumnSchema> {
    let object = Object::new(path, value, &["name", "was", "type", "variants", "nullable", "default"])?;
    let (at, ty) = object.required("type")?;
    let Some(ty) = scalar(text(&at, ty)?) else {
        return at.fail("not a column type");
    };
    let variants = match object.optional("variants") {
        None => Vec::new(),
        Some((at, _)) if ty != ScalarType::U8 => return at.fail("an enum is a column of type u8"),
        Some((at, value)) => {
            let names = list(&at, value, 1, COLUMN_VARIANTS_MAX, parse_name)?;
            distinct(&at, names.iter())?;
            names
        }
    };
    let default = match object.optional("default") {
        Some((at, value)) => Some(parse_default(&at, value, ty)?),
        None => None,
    };
    Ok(ColumnSchema {
        variants,
        name: object.name()?,
        was: object.was()?,
        ty,
        nullable: object.flag("nullable")?,
        default,
    })
}

fn parse_default(at: &Path, value: &Value, ty: ScalarType) -> ParseResult<Vec<u8>> {
    let Some(bytes) = unhex(text(at, value)?) else {
        return at.fail("not hexadecimal");
    };
    let mut reader = ValueReader::new(&bytes);
    let valid = reader.skip(&Type::Scalar(ty)).and_then(|()| reader.finish());
    match valid {
        Ok(()) => Ok(bytes),
        Err(error) => at.fail(format!("not a value of the column's type: {error}")),
    }
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn parse_index(path: &Path, value: &Value, columns: &[&str]) -> ParseResult<IndexSchema> {
    let object = Object::new(path, value, &["name", "columns", "unique"])?;
    let (at, value) = object.required("columns")?;
    Ok(IndexSchema {
        name: object.name()?,
        columns: positions(&at, value, columns, "column", 1)?,
        unique: object.flag("unique")?,
    })
}
