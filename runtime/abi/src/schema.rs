//! The description that a module carries: its tables and procedures.

use alloc::{string::String, vec::Vec};

use crate::types::{ScalarType, Type};

/// A module's description, as found in its custom section or returned by its export (JSON, see `docs/FORMAT.md`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ModuleSchema {
    /// `ABI_VERSION`.
    pub abi: u32,
    /// Its own, and those of others that it uses.
    pub tables: Vec<TableSchema>,
    /// Documentation of each table, for people; empty or missing without one.
    pub table_docs: Vec<String>,
    /// Guests name them by their exports.
    pub procedures: Vec<ProcedureSchema>,
    /// Name of the migration of the module's tables (`ON_DEPLOY_EXPORT`). Empty: it has no name, and runs at each deployment. None: there
    /// is no migration.
    pub on_deploy: Option<String>,
    /// Tables as they were before a deployment, which only the migration sees: the columns of the stored table that have these names.
    /// Guests name them by position behind `tables`.
    pub retiring: Vec<TableSchema>,
}

impl ModuleSchema {
    /// Position of the code that runs at a deployment: behind all procedures.
    pub fn migration(&self) -> usize {
        self.procedures.len()
    }

    /// The name of what runs under this number: a procedure, or what runs at a deployment.
    pub fn entry_name(&self, entry: usize) -> &str {
        self.procedures
            .get(entry)
            .map_or("on_deploy", |procedure| &procedure.name)
    }
}

/// A table as a module declares it. Guests name tables by position in `ModuleSchema::tables`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSchema {
    /// Module whose table it is. Empty in a declaration of the module's own tables; every stored table has one.
    pub owner: String,
    /// Within its owner.
    pub name: String,
    /// Declared so by its owner: other modules may bind to it. By another module: it binds to that module's table.
    pub shared: bool,
    /// Name that the table had before, for a declaration that renames it. Of a declaration only.
    pub was: Option<String>,
    /// The columns in the order of the rows' slots.
    pub columns: Vec<ColumnSchema>,
    /// Column positions; empty for a table without a primary key.
    pub primary_key: Vec<u16>,
    /// How the primary key is found.
    pub primary_kind: IndexKind,
    /// Secondary indexes; guests name them by position + 1, the primary key is index 0.
    pub indexes: Vec<IndexSchema>,
    /// On which partitions its rows lie.
    pub placement: TablePlacement,
}

impl TableSchema {
    /// Returns `module.table`, or the table's name alone if no owner is named.
    pub fn full_name(&self) -> String {
        let mut full = self.owner.clone();
        if !full.is_empty() {
            full.push('.');
        }
        full + &self.name
    }

    /// A table of the module itself, with an ordered primary key of these columns and without other indexes.
    pub fn new(name: impl Into<String>, columns: Vec<ColumnSchema>, primary_key: &[u16]) -> Self {
        Self {
            owner: String::new(),
            name: name.into(),
            shared: false,
            was: None,
            columns,
            primary_key: primary_key.to_vec(),
            primary_kind: IndexKind::Ordered,
            indexes: Vec::new(),
            placement: TablePlacement::Local,
        }
    }

    /// Placeholder of a dropped table: its number is free for the next one.
    pub fn dropped() -> Self {
        Self::new("", Vec::new(), &[])
    }

    /// True for the place of a table that was dropped.
    pub fn is_dropped(&self) -> bool {
        self.name.is_empty()
    }
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnSchema {
    /// Within its table.
    pub name: String,
    /// Name that the column had before, for a declaration that renames it. Of a declaration only.
    pub was: Option<String>,
    /// Type of the values.
    pub ty: ScalarType,
    /// Names of the values from 0 on, of a column of type `U8` that stands for an enum; else empty.
    pub variants: Vec<String>,
    /// True if it may hold null.
    pub nullable: bool,
    /// Value that rows written before the column existed read as: one encoded value (`value` module), or none.
    pub default: Option<Vec<u8>>,
}

impl ColumnSchema {
    /// A column without nulls and without a default.
    pub fn new(name: impl Into<String>, ty: ScalarType) -> Self {
        Self {
            name: name.into(),
            was: None,
            ty,
            variants: Vec::new(),
            nullable: false,
            default: None,
        }
    }
}

/// A secondary index of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSchema {
    /// Within its table.
    pub name: String,
    /// Column positions.
    pub columns: Vec<u16>,
    /// No two rows have the same key.
    pub unique: bool,
}

impl IndexSchema {
    /// An index over these columns.
    pub fn new(name: impl Into<String>, columns: &[u16], unique: bool) -> Self {
        Self {
            name: name.into(),
            columns: columns.to_vec(),
            unique,
        }
    }
}

/// How the primary key is found. Secondary indexes are always ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IndexKind {
    /// B+tree: point and range access.
    #[default]
    Ordered,
    /// Hash table: point access only; a range scan of it is refused.
    Hash,
    /// An array from key to row. It serves integer keys of at most 16 bytes whose last column counts up with few gaps; other keys use
    /// a hash. Point access only.
    Dense,
}

/// On which partitions a table's rows lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TablePlacement {
    /// Each row on the partition that the value of this column names.
    By(u16),
    /// Every row on every partition; written by transactions that touch all partitions.
    Replicated,
    /// Each partition keeps rows of its own, with keys unique per partition; a multi-partition read sees them all.
    Local,
}

/// A procedure as a module declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureSchema {
    /// Within its module.
    pub name: String,
    /// Documentation, for people.
    pub docs: String,
    /// The parameters in the order of their encoding.
    pub params: Vec<Parameter>,
    /// Type of the result.
    pub returns: Type,
    /// True if it may write nothing.
    pub read_only: bool,
    /// Which partitions a call touches.
    pub partitioning: Partitioning,
    /// Rows that a call will read, computed from its arguments. They are prefetched while the calls before it run. A hint alone.
    pub prefetch: Vec<PrefetchKey>,
    /// The form in which the log holds its calls.
    pub log: LogDeclaration,
    /// Time that a call may take, in milliseconds, in place of the server's limit; 0: as long as it likes.
    pub time_max_ms: Option<u32>,
    /// Fuel that a call may burn, in place of the limit of every transaction.
    pub fuel_max: Option<u64>,
    /// The codes with which it aborts, if the module lists them.
    pub aborts: Vec<AbortSchema>,
}

/// A code with which a procedure aborts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortSchema {
    /// The code as callers get it.
    pub code: String,
    /// When the procedure aborts so, for people; may be empty.
    pub docs: String,
}

/// The form in which the log holds a procedure's transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogDeclaration {
    /// The server's setting.
    #[default]
    Server,
    /// The call, to be run again.
    Command,
    /// The changed rows.
    Physiological,
    /// Whichever costs less, by measurement.
    Auto,
}

impl LogDeclaration {
    /// The name in a description; none for `Server`, which is not written there.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Server => None,
            Self::Command => Some("command"),
            Self::Physiological => Some("physiological"),
            Self::Auto => Some("auto"),
        }
    }
}

/// The primary key of a row that a call will read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchKey {
    /// Position among the module's tables.
    pub table: u16,
    /// One part for each column of the primary key.
    pub key: Vec<PrefetchPart>,
}

/// Source of one column of a key to prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchPart {
    /// The parameter at this position, of the column's own integer type.
    Param(u16),
    /// Always this value.
    Int(i64),
}

/// Near keys of one procedure at most.
pub const NEAR_KEYS_MAX: usize = 8;

/// A parameter of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Within its procedure.
    pub name: String,
    /// Type of the values.
    pub ty: Type,
}

/// Which partitions a call touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partitioning {
    /// The partitions that these parameters name (positions; scalars, or lists of scalars of which each item names one).
    By(Vec<u16>),
    /// All partitions.
    All,
    /// Any one: for read-only procedures over replicated tables. The host picks partition 0.
    Any,
}

/// Abort codes at most that one procedure declares.
pub const ABORTS_MAX: usize = 256;
/// Longest text that a module says of a table or a procedure, in bytes.
pub const DOCS_BYTES_MAX: usize = 4 << 10;
/// Variants at most of an enum that is a column: one byte holds their numbers.
pub const COLUMN_VARIANTS_MAX: usize = 256;

/// Longest name of a module, table, column, index, procedure or parameter, in bytes.
pub const NAME_BYTES_MAX: usize = 63;

/// Returns the parts of a table's name as descriptions write it: `module.table`, or `table` alone. None if a part is no name.
pub fn split_table_name(full: &str) -> Option<(&str, &str)> {
    match full.split_once('.') {
        Some((owner, name)) if is_valid_name(owner) && is_valid_name(name) => Some((owner, name)),
        None if is_valid_name(full) => Some(("", full)),
        _ => None,
    }
}

/// True for `[a-z][a-z0-9_-]{0,62}`, the form of a migration's name.
pub fn is_valid_migration_name(name: &str) -> bool {
    is_valid_name(&name.replace('-', "_"))
}

/// True for `[A-Za-z][A-Za-z0-9_]{0,62}`, the form of a struct's name in a description.
pub fn is_valid_type_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.len() <= NAME_BYTES_MAX
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// True for `[a-z][a-z0-9_]{0,62}`, the form of every name in a description.
pub fn is_valid_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= NAME_BYTES_MAX
        && bytes[0].is_ascii_lowercase()
        && bytes
            .iter()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_')
}
