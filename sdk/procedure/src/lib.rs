//! The SDK for stored procedures: tables, scans, typed arguments and results, a test kit.
//! Owns: the guest's half of the contract in `reprise-abi`, for wasm and natively over a `HostOps`.
//! Does not: store, log, route or meter anything; that is the host's half.
//! Invariants: a procedure behaves the same in wasm and natively; a point read or write allocates nothing.
//! Called by: guest crates (`procedures/*`), `fuel`, the driver's native mode, tests.
//!
//! ```
//! use reprise_procedure::prelude::*;
//!
//! #[table(name = "counters", primary_key(id), partition_by = id)]
//! pub struct Counter {
//!     pub id: i64,
//!     pub hits: i64,
//! }
//!
//! #[procedure(partition_by(id))]
//! pub fn hit(tx: &Txn, id: i64) -> Result<i64, Abort> {
//!     if let Some(hits) = Counter::add_hits(tx, id, 1) {
//!         return Ok(hits);
//!     }
//!     Counter::insert(tx, &Counter { id, hits: 1 })?;
//!     Ok(1)
//! }
//!
//! reprise_procedure::module! { tables: [Counter], procedures: [hit] }
//!
//! # fn main() {
//! let mut db = reprise_procedure::testkit::TestDb::new(&MODULE);
//! assert_eq!(db.call::<i64>("hit", (7_i64,)), Ok(1));
//! assert_eq!(db.call::<i64>("hit", (7_i64,)), Ok(2));
//! # }
//! ```
#![deny(missing_docs)]
#![deny(unsafe_code)]

pub mod column;
mod decimal;
mod duplicate;
mod find;
mod found_row;
#[cfg(any(target_arch = "wasm32", test))]
mod heap;
pub mod key;
mod many;
pub mod module;
pub mod result_writer;
pub mod scan;
pub mod scratch;
pub mod sequence;
pub mod table;
mod time;
pub mod txn;
pub mod types;
pub mod value;

#[cfg(target_arch = "wasm32")]
#[path = "guest.rs"]
#[doc(hidden)]
#[allow(unsafe_code)]
pub mod ops;
#[cfg(not(target_arch = "wasm32"))]
#[path = "native.rs"]
#[doc(hidden)]
pub mod ops;

#[cfg(not(target_arch = "wasm32"))]
pub use ops as native;
#[cfg(not(target_arch = "wasm32"))]
pub mod testkit;

pub use reprise_abi as abi;
pub use reprise_procedure_macros::{
    ColumnEnum, ProcedureEnum, ProcedureResult, ProcedureStruct, columns, module, on_deploy, procedure, table,
};

/// The guide's examples, compiled and run as tests of this crate.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/first-module.md")]
    pub struct FirstModule;
    #[doc = include_str!("../../../docs/guide/partitions.md")]
    pub struct Partitions;
    #[doc = include_str!("../../../docs/guide/types.md")]
    pub struct Types;
    #[doc = include_str!("../../../docs/guide/tables.md")]
    pub struct Tables;
    #[doc = include_str!("../../../docs/guide/scanning.md")]
    pub struct Scanning;
    #[doc = include_str!("../../../docs/guide/aborts.md")]
    pub struct Aborts;
    #[doc = include_str!("../../../docs/guide/evolving.md")]
    pub struct Evolving;
    #[doc = include_str!("../../../docs/guide/testing.md")]
    pub struct Testing;
    #[doc = include_str!("../../../docs/guide/performance.md")]
    pub struct Performance;
}

/// Imports of a procedure's source file.
pub mod prelude {
    pub use crate::{
        ColumnEnum, ProcedureEnum, ProcedureStruct, abort,
        module::Abort,
        on_deploy, procedure, sequence, table,
        table::{DuplicateKey, Row},
        txn::{Savepoint, Txn},
        types::{Bytes, Decimal, Duration, Rounding, SmallText, Timestamp, Uuid},
    };
}

/// Tools to tune procedures: some columns of a row, texts in place, many rows in one host call.
pub mod advanced {
    pub use crate::{
        ProcedureResult,
        abi::RowHandle,
        columns,
        find::distinct,
        result_writer::ResultWriter,
        scan::{Rows, Scan},
        table::{FoundRows, Inserts, RowRef, RowRoom, SameLayout, Table, Updates},
        types::TextRef,
        value::{ListRef, Reply},
    };
}
