//! The contract between a guest module and its host: types, layouts, keys, values, calls, error codes.
//! Owns: every byte that crosses the sandbox wall (rows, keys, arguments, results) and the import table.
//! Does not: run anything, store anything, depend on anything; `no_std` so that guests compile it too.
//! Invariants: all integers are little-endian except in keys; every encoding has exactly one valid form.
//! Called by: `procedure` (guest side); `host`, `wire`, `storage`, `txn`, `partition`, `recovery`, `router`, `database`,
//! `codec`, `http`, `node` (host side), `fuel`.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;

pub mod calls;
pub mod columns;
pub mod copy;
pub mod describe;
pub mod key;
pub mod plan;
pub mod random;
pub mod room;
pub mod row;
pub mod schema;
pub mod text;
pub mod types;
pub mod value;

pub use calls::{
    EndReason, Handles, HostOps, IndexTarget, LogLevel, OpError, RowHandle, RowTaker, RowVisitor, ScanBatch, ScanFlags,
    ScanRequest,
};
pub use columns::{ColumnSet, ColumnsMalformed};
pub use plan::{ColumnPlan, Plans, ReadSpan};
pub use room::{FixedSlots, OutBuffer};
pub use row::{Field, RowError, RowLayout};
pub use schema::{
    AbortSchema, ColumnSchema, IndexKind, IndexSchema, LogDeclaration, ModuleSchema, NEAR_KEYS_MAX, Parameter,
    Partitioning, PrefetchKey, PrefetchPart, ProcedureSchema, TablePlacement, TableSchema,
};
pub use types::{ScalarType, StructField, StructType, Type};

/// Version of this contract. A module names it in its description; the host refuses any other.
pub const ABI_VERSION: u32 = 1;
/// Number of everything that a guest can observe of the host beside its arguments and rows. This includes orders, errors that it may catch,
/// and the growth of memory and tables. Each change of it takes a new number. Commands that ran under one number are not replayed under
/// another.
pub const SEMANTICS: u32 = 3;
/// Low bits of a transaction's id that name its partition.
pub const TXN_ORIGIN_BITS: u32 = 10;
/// Origin of a transaction of several partitions.
pub const TXN_ORIGIN_SEVERAL: u64 = (1 << TXN_ORIGIN_BITS) - 1;
/// Wasm import module under which all host calls live.
pub const IMPORT_MODULE: &str = "reprise1";
/// Custom section that may hold the module's description as JSON.
pub const DESCRIBE_SECTION: &str = "reprise.describe";
/// Export that returns `(length << 32) | pointer` of the description, for modules without the section.
pub const DESCRIBE_EXPORT: &str = "reprise_describe";
/// A procedure NAME is exported as `reprise_call_NAME: (args_bytes: i32) -> i32`.
pub const CALL_EXPORT_PREFIX: &str = "reprise_call_";
/// Export that a module runs when it is deployed, if it declares so: `(args_bytes: i32) -> i32`, its argument a `u32`.
pub const ON_DEPLOY_EXPORT: &str = "reprise_on_deploy";
/// Exports `() -> i64`, both optional, which return `pointer | length << 32` of a buffer (`calls`).
pub const ARGS_BUFFER_EXPORT: &str = "reprise_args_buffer";
/// Export of a buffer for results, like `ARGS_BUFFER_EXPORT`.
pub const RESULT_BUFFER_EXPORT: &str = "reprise_result_buffer";
