//! The macros of `reprise-procedure`: tables, procedures, argument types, the module's exports.
//! Owns: turning declarations into the SDK's traits and constants, and errors that point at the declaration.
//! Does not: contain logic that runs; what it writes calls generic functions of the SDK.
//! Invariants: names fit `[a-z][a-z0-9_]{0,62}`; a mistake in a declaration is a compile error at its place.
//! Called by: `procedure`, which hands them on to guest crates.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod columns;
mod module;
mod names;
mod on_deploy;
mod procedure;
mod table;
mod table_options;
mod value;

use proc_macro::TokenStream;

fn finish(result: syn::Result<proc_macro2::TokenStream>) -> TokenStream {
    result.unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a struct a table.
///
/// Options: `name = "text"` (else the struct's name in snake case), `primary_key(a, b)`, `hash` (a primary key found by
/// hash: no ranges) or `dense` (the same, found in an array: for integers of at most 16 bytes in all, of which the last
/// one counts up with few gaps), `index(name, a, b)`, `unique(name, a, b)`, and where rows lie: `partition_by = column`,
/// `replicated` or `local`. A column may carry `#[column(default = …)]`: the value of rows written before it existed.
///
/// `was = "old"`, of the table or in `#[column(was = "old")]`, renames what is stored under the old name; it may stay when that is
/// done. `shared` lets other modules bind to the table; they declare it under `name = "module.table"`, `shared`, too, and may leave
/// trailing columns out.
#[proc_macro_attribute]
pub fn table(options: TokenStream, item: TokenStream) -> TokenStream {
    finish(table::expand(options.into(), item.into()))
}

/// Makes a struct some columns of a table: `#[columns(Stock)] struct Quantity { s_quantity: i16 }`.
///
/// Its fields are columns of the table, by name, in the table's order and of their types. It is read as rows are (`get`,
/// `multi_get`, `scan().columns::<Quantity>()`), and `update` writes back these columns alone. Only they cross the sandbox's wall.
///
/// With a lifetime (`struct Label<'r> { name: TextRef<'r, 24> }`) texts stay where the host put them, so that none is copied: rows are
/// read by `multi_read(…)` and its `iter`, or by `get_in` into a `RowRoom` of the caller's. A result of such texts is handed over
/// as a `Reply`.
#[proc_macro_attribute]
pub fn columns(options: TokenStream, item: TokenStream) -> TokenStream {
    finish(columns::expand(options.into(), item.into()))
}

/// Makes a function a procedure.
///
/// Options: which partitions it touches — `partition_by(parameter, …)`, `all_partitions` or `any_partition` —, `read_only`,
/// `log = "command"` (the log holds the call), `"physiological"` (the changed rows: for procedures that compute long and write
/// little) or `"auto"` (what costs less, by measurement); without, what the server is set to.
/// `time_max_ms = N`: the time that a call may take, in place of the server's limit; 0: as long as it likes. `fuel_max = N`: the fuel
/// that a call may burn, in place of the limit of every transaction. `aborts(code = "when", …)`: codes with which it aborts, for the
/// description; codes that stand as text in an `abort!` of its body are listed without. And
/// `prefetch(Table(key, …), …)`: rows that a call will look at, by primary key, each part a parameter of the column's own integer type
/// or an integer. The engine prefetches them while earlier calls run; it changes no outcome.
/// A parameter that names partitions is a scalar, or a list of scalars of which every item names one.
///
/// A list is a `Vec`, or of numbers a `ListRef`, whose items are read where the arguments lie, when they are asked for.
#[proc_macro_attribute]
pub fn procedure(options: TokenStream, item: TokenStream) -> TokenStream {
    finish(procedure::expand(options.into(), item.into()))
}

/// Makes a function what runs when the module is deployed: `#[on_deploy(name = "split-name")] fn migrate(tx: &Txn, from_version: u32)`,
/// listed in `module! { …, on_deploy: migrate }`.
///
/// The server keeps the names that a module's tables have had. One that they have had does not run again, so it may stay in the source;
/// another migration takes another name. A rollback takes off the names that the former version does not list.
///
/// It runs once on each partition, in a transaction of that partition, over the tables as the new version declares them, before the
/// version goes into service: it reads all of the module's tables and writes its own. `from_version` is the number of the version whose
/// rows the tables hold, 0 where there was none. An abort, a panic or a limit leaves the version before in service, with its rows
/// as they were.
#[proc_macro_attribute]
pub fn on_deploy(options: TokenStream, item: TokenStream) -> TokenStream {
    finish(on_deploy::expand(options.into(), item.into()))
}

/// Makes a struct an argument or a result: an object in JSON.
#[proc_macro_derive(ProcedureStruct)]
pub fn procedure_struct(item: TokenStream) -> TokenStream {
    finish(value::expand_struct(item.into()))
}

/// Makes a struct a result: an object in JSON. As `ProcedureStruct`, but its fields may be such that no argument can be, as
/// `SmallText`.
#[proc_macro_derive(ProcedureResult)]
pub fn procedure_result(item: TokenStream) -> TokenStream {
    finish(value::expand_result(item.into()))
}

/// Makes an enum without data an argument or a result: its variant in snake case in JSON.
#[proc_macro_derive(ProcedureEnum)]
pub fn procedure_enum(item: TokenStream) -> TokenStream {
    finish(value::expand_enum(item.into()))
}

/// Makes an enum without data a column, and part of keys: one byte, the variant's number. Rows, console and log show its name in snake
/// case. Variants may be added at the end (at most 256 in all); what is there keeps its place and its name.
#[proc_macro_derive(ColumnEnum)]
pub fn column_enum(item: TokenStream) -> TokenStream {
    finish(value::expand_column_enum(item.into()))
}

/// Lists the module's tables and procedures, what runs at a deployment (`on_deploy: name`), and tables as they were before it, which that alone
/// reads (`retiring: […]`); once per crate, at its root.
#[proc_macro]
pub fn module(item: TokenStream) -> TokenStream {
    finish(module::expand(item.into()))
}
