//! SQLite in this process: the system's library, loaded at run time, so that a machine without it runs everything else.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::Path,
    ptr::null_mut,
    rc::Rc,
};

use anyhow::{Context, Result, bail, ensure};
use libloading::Library;

/// The library's name on Linux; its number is that of its interface.
const LIBRARY: &str = "libsqlite3.so.0";
const OK: c_int = 0;
const ROW: c_int = 100;
const DONE: c_int = 101;
/// The library copies a bound text (`SQLITE_TRANSIENT`).
const COPIED: isize = -1;

type Handle = *mut c_void;
type Exec = unsafe extern "C" fn(Handle, *const c_char, *const c_void, Handle, *mut *mut c_char) -> c_int;
type Prepare = unsafe extern "C" fn(Handle, *const c_char, c_int, *mut Handle, *mut *const c_char) -> c_int;

/// The functions of the library that we use.
struct SqliteFunctions {
    version: unsafe extern "C" fn() -> *const c_char,
    open: unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int,
    close: unsafe extern "C" fn(Handle) -> c_int,
    message: unsafe extern "C" fn(Handle) -> *const c_char,
    exec: Exec,
    changes: unsafe extern "C" fn(Handle) -> c_int,
    prepare: Prepare,
    bind_int64: unsafe extern "C" fn(Handle, c_int, i64) -> c_int,
    bind_text: unsafe extern "C" fn(Handle, c_int, *const c_char, c_int, isize) -> c_int,
    step: unsafe extern "C" fn(Handle) -> c_int,
    column_int64: unsafe extern "C" fn(Handle, c_int) -> i64,
    reset: unsafe extern "C" fn(Handle) -> c_int,
    finalize: unsafe extern "C" fn(Handle) -> c_int,
    /// The loaded library. While it lives, the functions stay loaded.
    _library: Library,
}

/// The library, with its version.
#[derive(Clone)]
pub struct Sqlite {
    functions: Rc<SqliteFunctions>,
    pub version: String,
}

/// A value of a statement.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Integer(i64),
    Text(&'a str),
}

/// An open database. This thread alone uses it.
pub struct Database {
    functions: Rc<SqliteFunctions>,
    handle: Handle,
}

/// A prepared statement.
pub struct Statement {
    database: Rc<Database>,
    handle: Handle,
}

impl Sqlite {
    /// Loads the system's library.
    ///
    /// # Errors
    /// There is none, or one without these functions.
    pub fn load() -> Result<Self> {
        // SAFETY: the library's initialisation touches nothing of ours.
        let library = unsafe { Library::new(LIBRARY) }?;
        // SAFETY: the types are those of sqlite3.h, which never change; the library is kept beside the functions.
        let functions = unsafe {
            SqliteFunctions {
                version: *library.get(b"sqlite3_libversion\0")?,
                open: *library.get(b"sqlite3_open\0")?,
                close: *library.get(b"sqlite3_close\0")?,
                message: *library.get(b"sqlite3_errmsg\0")?,
                exec: *library.get(b"sqlite3_exec\0")?,
                changes: *library.get(b"sqlite3_changes\0")?,
                prepare: *library.get(b"sqlite3_prepare_v2\0")?,
                bind_int64: *library.get(b"sqlite3_bind_int64\0")?,
                bind_text: *library.get(b"sqlite3_bind_text\0")?,
                step: *library.get(b"sqlite3_step\0")?,
                column_int64: *library.get(b"sqlite3_column_int64\0")?,
                reset: *library.get(b"sqlite3_reset\0")?,
                finalize: *library.get(b"sqlite3_finalize\0")?,
                _library: library,
            }
        };
        // SAFETY: it returns a constant text of the library.
        let version = text(unsafe { (functions.version)() });
        Ok(Self {
            functions: Rc::new(functions),
            version: format!("SQLite {version}"),
        })
    }

    /// Opens a file, which is made where there is none.
    ///
    /// # Errors
    /// The file can't be opened.
    pub fn open(&self, path: &Path) -> Result<Rc<Database>> {
        let path_text = CString::new(path.to_str().context("a path that is no text")?)?;
        let mut handle = null_mut();
        // SAFETY: the path ends with a zero, and the handle is ours.
        let code = unsafe { (self.functions.open)(path_text.as_ptr(), &mut handle) };
        let database = Database {
            functions: self.functions.clone(),
            handle,
        };
        database.check(code, &path.display().to_string())?;
        Ok(Rc::new(database))
    }
}

/// A text of the library.
fn text(chars: *const c_char) -> String {
    if chars.is_null() {
        return String::new();
    }
    // SAFETY: texts of the library end with a zero, and live until the next call on their handle.
    unsafe { CStr::from_ptr(chars) }.to_string_lossy().into_owned()
}

impl Database {
    fn check(&self, code: c_int, what: &str) -> Result<()> {
        if matches!(code, OK | ROW | DONE) {
            return Ok(());
        }
        // SAFETY: the handle is open, or null, which the function takes.
        let message = text(unsafe { (self.functions.message)(self.handle) });
        bail!("SQLite: {what}: {message} ({code})");
    }

    /// Runs statements whose rows are of no interest.
    ///
    /// # Errors
    /// A statement failed.
    pub fn exec(&self, sql: &str) -> Result<()> {
        let sql_text = CString::new(sql)?;
        // SAFETY: the handle is open, the text ends with a zero, and no callback is given.
        let code = unsafe { (self.functions.exec)(self.handle, sql_text.as_ptr(), null_mut(), null_mut(), null_mut()) };
        self.check(code, sql)
    }

    /// Prepares one statement.
    ///
    /// # Errors
    /// It is none.
    pub fn prepare(self: &Rc<Self>, sql: &str) -> Result<Statement> {
        let (sql_text, mut handle) = (CString::new(sql)?, null_mut());
        // SAFETY: the database is open, the text ends with a zero, and the statement's handle is ours.
        let code = unsafe { (self.functions.prepare)(self.handle, sql_text.as_ptr(), -1, &mut handle, null_mut()) };
        self.check(code, sql)?;
        ensure!(!handle.is_null(), "{sql:?} is no statement");
        Ok(Statement {
            database: self.clone(),
            handle,
        })
    }

    /// Rows that the last statement changed.
    pub fn changes(&self) -> i32 {
        // SAFETY: the handle is open.
        unsafe { (self.functions.changes)(self.handle) }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: no statement is left, as each holds the database. A null handle is taken as well.
        let _ = unsafe { (self.functions.close)(self.handle) };
    }
}

impl Statement {
    /// Runs the statement; the first column of its first row, if there is one.
    ///
    /// # Errors
    /// It failed.
    pub fn run(&self, values: &[Value<'_>]) -> Result<Option<i64>> {
        Ok(self.row::<1>(values)?.map(|[first]| first))
    }

    /// Runs the statement; the first columns of its first row, if there is one. It has as many at least.
    ///
    /// # Errors
    /// It failed.
    pub fn row<const N: usize>(&self, values: &[Value<'_>]) -> Result<Option<[i64; N]>> {
        let functions = &self.database.functions;
        for (at, value) in (1..).zip(values) {
            let code = match value {
                // SAFETY: the statement is prepared; a wrong position is an error that the library returns.
                Value::Integer(value) => unsafe { (functions.bind_int64)(self.handle, at, *value) },
                // SAFETY: as above; the library copies the bytes, whose number it is given.
                Value::Text(text) => unsafe {
                    (functions.bind_text)(self.handle, at, text.as_ptr().cast(), text.len() as c_int, COPIED)
                },
            };
            self.database.check(code, "bind a value")?;
        }
        // SAFETY: the statement is prepared.
        let code = unsafe { (functions.step)(self.handle) };
        let first = (code == ROW).then(|| {
            // SAFETY: the statement is at a row; a column that it lacks is a null, which is 0.
            std::array::from_fn(|at| unsafe { (functions.column_int64)(self.handle, at as c_int) })
        });
        // SAFETY: the statement is prepared. The code is that of the step again.
        let _ = unsafe { (functions.reset)(self.handle) };
        self.database.check(code, "run a statement")?;
        Ok(first)
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: the statement is prepared, and nothing uses it after this.
        let _ = unsafe { (self.database.functions.finalize)(self.handle) };
    }
}
