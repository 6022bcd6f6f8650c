//! The macros of `reprise-procedure`: tables, procedures, argument types, the module's exports.
//! Owns: turning declarations into the SDK's traits and constants, and errors that point at the declaration.
//! Does not: contain logic that runs; the generated code calls generic functions of the SDK.
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
/// Options: `name = "text"` (by default the struct's name in snake case), `primary_key(a, b)`, `index(name, a, b)` and `unique(name, a,
/// b)`. `hash` has the primary key in a hash index, without ranges. `dense` has it in an array, for integers of at most 16 bytes in all, of
/// which the last one counts up with few gaps. The place of rows is `partition_by = column`, `replicated` or `local`. A column may carry
/// `#[column(default = …)]`: the value of rows written before it existed.
///
/// `was = "old"`, of the table or in `#[column(was = "old")]`, renames the stored table or column of the old name. It may stay in the
/// source afterwards. `shared` lets other modules bind to the table. They declare it under `name = "module.table"`, `shared`, too, and may
/// leave out trailing columns.
#[proc_macro_attribute]
pub fn table(options: TokenStream, item: TokenStream) -> TokenStream {
    finish(table::expand(options.into(), item.into()))
}

/// Makes a struct some columns of a table: `#[columns(Stock)] struct Quantity { s_quantity: i16 }`.
///
/// Its fields are columns of the table, by name, in the table's order and of their types. A procedure reads it like rows (`get`,
/// `multi_get`, `scan().columns::<Quantity>()`), and `update` writes back these columns alone. Only they cross the sandbox's wall.
///
/// With a lifetime (`struct Label<'r> { name: TextRef<'r, 24> }`) texts stay where the host put them, so that none is copied. Such rows are
/// read by `multi_read(…)` and its `iter`, or by `get_in` into a `RowRoom` of the caller's. A result of such texts is returned as a
/// `Reply`.
#[proc_macro_attribute]
pub fn columns(options: TokenStream, item: TokenStream) -> TokenStream {
    finish(columns::expand(options.into(), item.into()))
}

/// Makes a function a procedure.
///
/// The partitions that it touches are `partition_by(parameter, …)`, `all_partitions` or `any_partition`. A parameter that names partitions
/// is a scalar, or a list of scalars of which every item names one. `read_only` is for procedures that write nothing.
///
/// `log = "command"` has the log hold the call. `"physiological"` has it hold the changed rows, for procedures that compute long and write
/// little. `"auto"` is the cheaper form by measurement. Without it, the server's setting decides.
///
/// `time_max_ms = N` is the time that a call may take, in place of the server's limit; 0: no limit. `fuel_max = N` is the fuel that a call
/// may burn, in place of the limit of every transaction. `aborts(code = "when", …)` lists codes with which it aborts, for the description.
/// Codes in the text of an `abort!` of its body are listed without it.
///
/// `prefetch(Table(key, …), …)` names rows that a call will read, by primary key. Each part is a parameter of the column's own integer type
/// or an integer. The engine prefetches the rows while earlier calls run; it changes no outcome.
///
/// A list is a `Vec`. A list of numbers may be a `ListRef`, whose items are read in place when they are asked for.
#[proc_macro_attribute]
pub fn procedure(options: TokenStream, item: TokenStream) -> TokenStream {
    finish(procedure::expand(options.into(), item.into()))
}

/// Makes a function the module's migration, which runs when the module is deployed: `#[on_deploy(name = "split-name")] fn migrate(tx: &Txn,
/// from_version: u32)`. It is listed in `module! { …, on_deploy: migrate }`.
///
/// The server keeps the names of the migrations that a module's tables have had. A migration with such a name does not run again, so it may
/// stay in the source. Another migration takes another name. A rollback takes off the names that came after the former version.
///
/// It runs once on each partition, in a transaction of that partition, before the version goes into service. It sees the tables as the new
/// version declares them, reads all of the module's tables and writes its own. `from_version` is the number of the version whose rows the
/// tables hold, 0 if there was none. After an abort, a panic or a limit, the version before stays in service, with its rows unchanged.
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
/// case. Variants may be added at the end, at most 256 in all. Existing ones keep their place and their name.
#[proc_macro_derive(ColumnEnum)]
pub fn column_enum(item: TokenStream) -> TokenStream {
    finish(value::expand_column_enum(item.into()))
}

/// Lists the module's tables and procedures, its migration (`on_deploy: name`), and tables as they were before it, which only the migration
/// reads (`retiring: […]`). It stands once in a crate, at its root.
#[proc_macro]
pub fn module(item: TokenStream) -> TokenStream {
    finish(module::expand(item.into()))
}
