//! The import table: every function that a guest may import, its signature, and its binding to `HostState`.

use reprise_abi::IMPORT_MODULE;
use wasmtime::{Caller, Linker};

use crate::{
    state::{GuestStop, HostState, StoppedByHost},
    wasi,
};

/// A function that guests may import. Signature text: parameters, `>`, results; `i` = i32, `I` = i64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Import {
    pub module: &'static str,
    pub name: &'static str,
    pub signature: &'static str,
}

const fn import(name: &'static str, signature: &'static str) -> Import {
    Import {
        module: IMPORT_MODULE,
        name,
        signature,
    }
}

const IMPORTS: [Import; 32] = [
    import("args_read", "i>"),
    import("result_write", "I>"),
    import("get", "iII>I"),
    import("multi_get", "iIiI>I"),
    import("exists", "iI>i"),
    import("row_read", "iI>i"),
    import("get_columns", "iIII>I"),
    import("multi_get_columns", "iIII>I"),
    import("multi_get_slots", "IIII>I"),
    import("row_read_columns", "iiII>i"),
    import("scan_columns", "iII>I"),
    import("scan_next_columns", "iiII>I"),
    import("patch", "iIII>I"),
    import("insert", "iI>I"),
    import("multi_insert", "iIi>I"),
    import("update", "iI>I"),
    import("delete", "i>"),
    import("add", "iiI>I"),
    import("add_by_key", "IIII>i"),
    import("scan", "iI>I"),
    import("scan_next", "iI>I"),
    import("scan_close", "i>"),
    import("count", "i>I"),
    import("savepoint", ">i"),
    import("rollback_to", "i>"),
    import("now", ">I"),
    import("random", ">I"),
    import("txn_id", ">I"),
    import("caller", "I>i"),
    import("log", "iI>"),
    import("abort", "II>"),
    import("panic", "I>"),
];

/// All functions that guests may import.
pub(crate) fn imports() -> impl Iterator<Item = Import> {
    IMPORTS.into_iter().chain(wasi::IMPORTS)
}

/// Finds an import by its two names.
pub(crate) fn find_import(module: &str, name: &str) -> Option<Import> {
    imports().find(|import| import.module == module && import.name == name)
}

/// Defines one function: `define!(linker, "name", (param: type, ..) -> type, |state| answer)`.
macro_rules! define {
    ($linker:ident, $module:expr, $name:literal, ($($param:ident: $ty:ty),*) -> $ret:ty, |$state:ident| $answer:expr) => {
        $linker.func_wrap(
            $module,
            $name,
            |mut caller: Caller<'_, HostState>, $($param: $ty),*| -> wasmtime::Result<$ret> {
                let $state = caller.data_mut();
                let answer: Result<$ret, GuestStop> = $answer;
                match answer {
                    Ok(value) => Ok(value),
                    Err(refusal) => Err($crate::calls::stop($state, $name, refusal)),
                }
            },
        )?
    };
}
pub(crate) use define;

#[cold]
pub(crate) fn stop(state: &mut HostState, call: &str, refusal: GuestStop) -> wasmtime::Error {
    let stopped: StoppedByHost = state.stop(call, refusal);
    wasmtime::Error::new(stopped)
}

/// Binds every import.
pub(crate) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    link_transaction(linker)?;
    link_rows(linker)?;
    link_columns(linker)?;
    wasi::link(linker)
}

fn link_transaction(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    const M: &str = IMPORT_MODULE;
    define!(linker, M, "args_read", (pointer: u32) -> (), |s| s.args_read(pointer));
    define!(linker, M, "result_write", (slice: u64) -> (), |s| s.result_write(slice));
    define!(linker, M, "savepoint", () -> i32, |s| s.savepoint());
    define!(linker, M, "rollback_to", (savepoint: u32) -> (), |s| s.rollback_to(savepoint));
    define!(linker, M, "now", () -> i64, |s| Ok(s.now_us()));
    define!(linker, M, "random", () -> i64, |s| Ok(s.random_u64() as i64));
    define!(linker, M, "txn_id", () -> i64, |s| s.txn_id());
    define!(linker, M, "caller", (out: u64) -> i32, |s| s.caller(out));
    define!(linker, M, "log", (level: u32, text: u64) -> (), |s| s.log(level, text));
    define!(linker, M, "abort", (code: u64, message: u64) -> (), |s| s.abort(code, message));
    define!(linker, M, "panic", (text: u64) -> (), |s| s.panic(text));
    Ok(())
}

fn link_rows(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    const M: &str = IMPORT_MODULE;
    define!(linker, M, "get", (target: u32, key: u64, out: u64) -> i64, |s| s.get(target, key, out));
    define!(linker, M, "multi_get", (target: u32, keys: u64, count: u32, out: u64) -> i64, |s| {
        s.multi_get(target, keys, count, out)
    });
    define!(linker, M, "exists", (target: u32, key: u64) -> i32, |s| s.exists(target, key));
    define!(linker, M, "row_read", (handle: u32, out: u64) -> i32, |s| s.row_read(handle, out));
    define!(linker, M, "insert", (table: u32, row: u64) -> i64, |s| s.insert(table, row));
    define!(linker, M, "multi_insert", (table: u32, rows: u64, count: u32) -> i64, |s| {
        s.multi_insert(table, rows, count)
    });
    define!(linker, M, "update", (handle: u32, row: u64) -> i64, |s| s.update(handle, row));
    define!(linker, M, "delete", (handle: u32) -> (), |s| s.delete(handle));
    define!(linker, M, "add", (handle: u32, column: u32, delta: i64) -> i64, |s| {
        s.add(handle, column, delta)
    });
    define!(linker, M, "add_by_key", (what: u64, key: u64, delta: i64, out: u64) -> i32, |s| {
        s.add_by_key(what, key, delta, out)
    });
    define!(linker, M, "scan", (request: u32, out: u64) -> i64, |s| s.scan(request, out));
    define!(linker, M, "scan_next", (cursor: u32, out: u64) -> i64, |s| s.scan_next(cursor, out));
    define!(linker, M, "scan_close", (cursor: u32) -> (), |s| s.scan_close(cursor));
    define!(linker, M, "count", (request: u32) -> i64, |s| s.count(request));
    Ok(())
}

fn link_columns(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    const M: &str = IMPORT_MODULE;
    define!(linker, M, "get_columns", (target: u32, key: u64, columns: u64, out: u64) -> i64, |s| {
        s.get_columns(target, key, columns, out)
    });
    define!(linker, M, "multi_get_columns", (target: u32, keys: u64, columns: u64, out: u64) -> i64, |s| {
        s.multi_get_columns(target, keys, columns, out)
    });
    define!(linker, M, "multi_get_slots", (request: u64, keys: u64, columns: u64, out: u64) -> i64, |s| {
        s.multi_get_slots(request, keys, columns, out)
    });
    define!(linker, M, "row_read_columns", (handle: u32, table: u32, columns: u64, out: u64) -> i32, |s| {
        s.row_read_columns(handle, table, columns, out)
    });
    define!(linker, M, "scan_columns", (request: u32, columns: u64, out: u64) -> i64, |s| {
        s.scan_columns(request, columns, out)
    });
    define!(linker, M, "scan_next_columns", (cursor: u32, table: u32, columns: u64, out: u64) -> i64, |s| {
        s.scan_next_columns(cursor, table, columns, out)
    });
    define!(linker, M, "patch", (table: u32, handles: u64, columns: u64, values: u64) -> i64, |s| {
        s.patch(table, handles, columns, values)
    });
    Ok(())
}
