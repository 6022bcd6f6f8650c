//! Declarations of a module, as constants that the macros write; its description; the entry of one procedure.

use std::borrow::Cow;

use reprise_abi::{
    ABI_VERSION, AbortSchema, ColumnSchema, IndexKind, IndexSchema, ModuleSchema, Parameter, Partitioning, PrefetchKey,
    ProcedureSchema, RowLayout, ScalarType, TablePlacement, TableSchema, Type,
    schema::DOCS_BYTES_MAX,
    value::{ValueError, ValueReader},
};
pub use reprise_abi::{LogDeclaration, PrefetchPart};

use crate::{
    scratch::Scratch,
    txn::Txn,
    value::{Decode, Encode},
};

/// Ends a procedure and rolls its transaction back. The caller gets `code` and `message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Code for programs. At most 128 bytes reach the caller.
    pub code: Cow<'static, str>,
    /// Message for people. At most 4 KiB reach the caller.
    pub message: Cow<'static, str>,
}

impl Abort {
    /// `code` is for programs (`insufficient_funds`), `message` for people.
    pub fn new(code: impl Into<Cow<'static, str>>, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code: code.into(),
            message: message.into(),
        }
    }
}

/// Ends the procedure that it stands in, and rolls its transaction back: `abort!("sold_out", "no seat of {event} is free")`.
///
/// The code is for programs, the message for people; it is put together as by `format!`, and may be left out.
#[macro_export]
macro_rules! abort {
    ($code:expr $(,)?) => {
        return ::core::result::Result::Err($crate::module::Abort::new($code, ""))
    };
    ($code:expr, $($message:tt)+) => {
        return ::core::result::Result::Err($crate::module::Abort::new($code, ::std::format!($($message)+)))
    };
}

impl std::fmt::Display for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Abort {}

/// A column as declared.
#[derive(Debug)]
pub struct ColumnInfo {
    /// Its name.
    pub name: &'static str,
    /// Name that it had before.
    pub was: Option<&'static str>,
    /// How it is stored.
    pub ty: ScalarType,
    /// Names of its values, of an enum.
    pub variants: &'static [&'static str],
    /// Whether it may hold null.
    pub nullable: bool,
    /// Writes the default; false when it is null.
    pub default: Option<fn(&mut Scratch) -> bool>,
}

/// A secondary index as declared.
#[derive(Debug)]
pub struct IndexInfo {
    /// Its name.
    pub name: &'static str,
    /// Positions of its columns in the table.
    pub columns: &'static [u16],
    /// Whether no two rows may have the same key.
    pub unique: bool,
}

/// A table as declared.
#[derive(Debug)]
pub struct TableInfo {
    /// `module.table` of another module's.
    pub name: &'static str,
    /// Its doc comment.
    pub docs: &'static str,
    /// Whether other modules may use the table.
    pub shared: bool,
    /// Name that it had before.
    pub was: Option<&'static str>,
    /// Columns in the order of their declaration.
    pub columns: &'static [ColumnInfo],
    /// Positions of its columns. Empty if rows are found by their numbers alone.
    pub primary_key: &'static [u16],
    /// How rows are found by it.
    pub primary_kind: IndexKind,
    /// The secondary indexes.
    pub indexes: &'static [IndexInfo],
    /// Placement of rows.
    pub placement: TablePlacement,
}

impl TableInfo {
    /// The layout of the table's rows.
    pub fn layout(&self) -> RowLayout {
        RowLayout::from_types(self.columns.iter().map(|column| (column.ty, column.nullable)))
    }

    /// The table as it is described to the host.
    pub fn schema(&self) -> TableSchema {
        let (owner, name) = self.name.split_once('.').unwrap_or(("", self.name));
        TableSchema {
            owner: owner.into(),
            name: name.into(),
            shared: self.shared,
            was: self.was.map(Into::into),
            columns: self.columns.iter().map(ColumnInfo::schema).collect(),
            primary_key: self.primary_key.to_vec(),
            primary_kind: self.primary_kind,
            indexes: self.indexes.iter().map(IndexInfo::schema).collect(),
            placement: self.placement.clone(),
        }
    }

    /// The name of index `index` of this table (0 = primary key).
    pub fn index_name(&self, index: u16) -> &'static str {
        match (index as usize).checked_sub(1) {
            None => "primary_key",
            Some(secondary) => self.indexes.get(secondary).map_or("", |index| index.name),
        }
    }
}

impl ColumnInfo {
    fn schema(&self) -> ColumnSchema {
        let default = self.default.and_then(|write| {
            let mut value = Scratch::new();
            write(&mut value).then(|| value.as_slice().to_vec())
        });
        ColumnSchema {
            variants: self.variants.iter().map(|name| (*name).into()).collect(),
            name: self.name.into(),
            was: self.was.map(Into::into),
            ty: self.ty,
            nullable: self.nullable,
            default,
        }
    }
}

impl IndexInfo {
    fn schema(&self) -> IndexSchema {
        IndexSchema {
            name: self.name.into(),
            columns: self.columns.to_vec(),
            unique: self.unique,
        }
    }
}

/// A parameter as declared: its name and its type.
pub type ParamInfo = (&'static str, fn() -> Type);

/// A procedure as declared.
#[derive(Debug)]
pub struct ProcedureInfo {
    /// Its name.
    pub name: &'static str,
    /// Its doc comment.
    pub docs: &'static str,
    /// Parameters in the order of their declaration.
    pub params: &'static [ParamInfo],
    /// Type of its result.
    pub returns: fn() -> Type,
    /// Whether it writes nothing.
    pub read_only: bool,
    /// Which partitions a call takes.
    pub partitioning: PartitioningInfo,
    /// Form of its calls in the log.
    pub log: LogDeclaration,
    /// Milliseconds that a call may run; the server's limit unless given.
    pub time_max_ms: Option<u32>,
    /// Fuel that a call may burn; what every transaction may unless given.
    pub fuel_max: Option<u64>,
    /// Codes with which it aborts.
    pub aborts: &'static [AbortInfo],
    /// Rows that are brought into the processor's cache before a call begins.
    pub prefetch: &'static [PrefetchInfo],
}

/// A code with which a procedure aborts.
#[derive(Debug)]
pub struct AbortInfo {
    /// Code that callers get.
    pub code: &'static str,
    /// When it aborts so; may be empty.
    pub docs: &'static str,
}

/// A row that a call will read: its table's name and its primary key.
#[derive(Debug)]
pub struct PrefetchInfo {
    /// Name of the table.
    pub table: &'static str,
    /// Parts of its key.
    pub key: &'static [PrefetchPart],
}

/// Which partitions a procedure touches.
#[derive(Debug)]
pub enum PartitioningInfo {
    /// Positions of the parameters that name them.
    By(&'static [u16]),
    /// All of them.
    All,
    /// One of them, whichever.
    Any,
}

impl ProcedureInfo {
    /// `tables`: the module's, in its order.
    pub fn schema(&self, tables: &[TableSchema]) -> ProcedureSchema {
        let param = |(name, ty): &ParamInfo| Parameter {
            name: (*name).into(),
            ty: ty(),
        };
        ProcedureSchema {
            docs: beginning_of(self.docs).into(),
            name: self.name.into(),
            params: self.params.iter().map(param).collect(),
            returns: (self.returns)(),
            read_only: self.read_only,
            partitioning: match self.partitioning {
                PartitioningInfo::By(params) => Partitioning::By(params.to_vec()),
                PartitioningInfo::All => Partitioning::All,
                PartitioningInfo::Any => Partitioning::Any,
            },
            log: self.log,
            time_max_ms: self.time_max_ms,
            fuel_max: self.fuel_max,
            aborts: self.aborts.iter().map(AbortInfo::schema).collect(),
            prefetch: self.prefetch.iter().map(|prefetch| prefetch.key(tables)).collect(),
        }
    }
}

impl AbortInfo {
    fn schema(&self) -> AbortSchema {
        AbortSchema {
            code: self.code.into(),
            docs: beginning_of(self.docs).into(),
        }
    }
}

impl PrefetchInfo {
    fn key(&self, tables: &[TableSchema]) -> PrefetchKey {
        let found = tables.iter().position(|table| table.full_name() == self.table);
        PrefetchKey {
            // A table that the module does not list has no name in the description, which the host refuses.
            table: found.map_or(u16::MAX, |table| table as u16),
            key: self.key.to_vec(),
        }
    }
}

/// Implemented by `#[procedure]` for a type with the function's own name.
pub trait Procedure {
    /// The procedure as declared.
    const INFO: &'static ProcedureInfo;
    /// Decodes the arguments, runs the function and hands its result to the host.
    fn run(tx: &Txn<'_>, args: &[u8]) -> Result<(), Abort>;
}

/// Implemented by `#[on_deploy]` for a type with the function's own name.
pub trait OnDeploy {
    /// Name of the migration in the tables' history.
    const NAME: &'static str;
    /// Decodes the number of the version before, and runs the function.
    fn run(tx: &Txn<'_>, args: &[u8]) -> Result<(), Abort>;
}

/// The part of a doc comment that a description holds.
fn beginning_of(docs: &str) -> &str {
    docs.get(..docs.floor_char_boundary(DOCS_BYTES_MAX)).unwrap_or(docs)
}

/// The description of a module with these tables and procedures; `on_deploy`: the name of what runs when it is deployed, and
/// reads `retiring`.
pub fn schema<'a>(
    tables: &[&'static TableInfo],
    procedures: impl Iterator<Item = &'a ProcedureInfo>,
    on_deploy: Option<&str>,
    retiring: &[&'static TableInfo],
) -> ModuleSchema {
    let table_docs = tables.iter().map(|table| beginning_of(table.docs).into()).collect();
    let tables: Vec<_> = tables.iter().map(|table| table.schema()).collect();
    ModuleSchema {
        table_docs,
        abi: ABI_VERSION,
        procedures: procedures.map(|procedure| procedure.schema(&tables)).collect(),
        on_deploy: on_deploy.map(Into::into),
        retiring: retiring.iter().map(|table| table.schema()).collect(),
        tables,
    }
}

/// Takes the arguments of a call one by one.
pub struct ArgReader<'a>(ValueReader<'a>);

impl<'a> ArgReader<'a> {
    /// Reads the arguments of a call from their first byte.
    #[inline(always)]
    pub fn new(args: &'a [u8]) -> Self {
        Self(ValueReader::new(args))
    }

    /// The next argument.
    #[inline(always)]
    pub fn take<T: Decode<'a>>(&mut self) -> T {
        T::decode(&mut self.0).unwrap_or_else(|error| malformed(error))
    }

    /// Ends the call where bytes are left over.
    #[inline(always)]
    pub fn finish(&self) {
        self.0.finish().unwrap_or_else(|error| malformed(error));
    }
}

/// The host checks arguments against the description before it calls, so this is a broken host or a forged description.
#[cold]
#[inline(never)]
fn malformed(_: ValueError) -> ! {
    panic!("the arguments are not those that the procedure declares")
}

/// Hands a procedure's result to the host.
#[inline(always)]
pub fn finish<T: Encode>(tx: &Txn<'_>, result: Result<T, Abort>) -> Result<(), Abort> {
    result?.hand_over(tx);
    Ok(())
}
