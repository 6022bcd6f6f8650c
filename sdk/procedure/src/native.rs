//! The host calls over a `HostOps` in the same process: the very same procedures, compiled natively.
//!
//! A fault leaves the procedure by unwinding, as a trap leaves wasm: no destructor of the guest's may touch the transaction.

mod out_buffer;

use std::{
    any::Any,
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use reprise_abi::{
    ColumnPlan, FixedSlots, Handles, HostOps, IndexTarget, LogLevel, ModuleSchema, OpError, RowHandle, ScanBatch,
    ScanRequest,
    calls::{EqualKeys, PackedItems},
};

use crate::{
    column::Columns,
    found_row::FoundRow,
    many::KeyBytes,
    module::{Abort, ProcedureInfo, TableInfo, schema},
    scratch::{INLINE_BYTES, Scratch},
    txn::Txn,
};

pub use out_buffer::OutBuffer;

/// A module compiled into the program; `module!` makes one as `MODULE`.
pub struct NativeModule {
    /// Its tables, in the order of their declaration.
    pub tables: &'static [&'static TableInfo],
    /// Its procedures, in the order of their declaration.
    pub procedures: &'static [NativeProcedure],
    /// Code that runs when the module is deployed.
    pub on_deploy: Option<NativeMigration>,
    /// Tables as they were before the deployment, which `on_deploy` alone reads.
    pub retiring: &'static [&'static TableInfo],
}

/// The entry of a procedure, or of what runs at a deployment: decodes the arguments and runs it.
pub type Run = fn(&Txn<'_>, &[u8]) -> Result<(), Abort>;

/// A procedure compiled into the program.
pub struct NativeProcedure {
    /// Declaration of the procedure.
    pub info: &'static ProcedureInfo,
    /// Runs it with encoded arguments; the result goes to the host.
    pub run: Run,
}

/// The migration of a native module, compiled into the program.
pub struct NativeMigration {
    /// Name of the migration in the tables' history.
    pub name: &'static str,
    /// Runs it with the encoded number of the version before.
    pub run: Run,
}

/// How a call ended that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeExit {
    /// The result, if any, is with the host.
    Done,
    /// The host was told code and message.
    Aborted,
}

/// The reason why a call did not run to its end. It is natively the same as a trap in wasm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NativeFault {
    /// A host call refused its work.
    Host(OpError),
    /// The procedure panicked, with this message.
    Panic(String),
}

impl NativeModule {
    /// The description, equal to that of the module's wasm build.
    pub fn schema(&self) -> ModuleSchema {
        let procedures = self.procedures.iter().map(|procedure| procedure.info);
        let on_deploy = self.on_deploy.as_ref().map(|found| found.name);
        schema(self.tables, procedures, on_deploy, self.retiring)
    }

    /// Position of the procedure of this name.
    pub fn procedure_index(&self, name: &str) -> Option<usize> {
        self.procedures.iter().position(|procedure| procedure.info.name == name)
    }

    /// Runs the procedure at `index` with the arguments that `host` holds; behind all procedures, what runs at a deployment.
    /// After a fault the host must undo the transaction.
    pub fn call(&self, index: usize, host: &mut dyn HostOps) -> Result<NativeExit, NativeFault> {
        let mut args = Scratch::new();
        args.push_text(host.args());
        let procedure = self.procedures.get(index).map(|procedure| procedure.run);
        let Some(run) = procedure.or(self.on_deploy.as_ref().map(|found| found.run)) else {
            return Err(NativeFault::Host(OpError::Guest(format!(
                "there is no procedure {index}"
            ))));
        };
        let ended = with_txn(host, |tx| match run(tx, args.as_slice()) {
            Ok(()) => NativeExit::Done,
            Err(abort) => {
                tx.ops.abort(&abort.code, &abort.message);
                NativeExit::Aborted
            }
        })?;
        Ok(ended)
    }
}

/// Runs `body` in a transaction over `host`; faults and panics come back as errors.
pub fn with_txn<R>(host: &mut dyn HostOps, body: impl FnOnce(&Txn<'_>) -> R) -> Result<R, NativeFault> {
    let tx = Txn::new(Ops {
        host: RefCell::new(host),
    });
    catch_unwind(AssertUnwindSafe(|| body(&tx))).map_err(fault_of)
}

fn fault_of(payload: Box<dyn Any + Send>) -> NativeFault {
    let payload = match payload.downcast::<OpError>() {
        Ok(error) => return NativeFault::Host(*error),
        Err(payload) => payload,
    };
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    NativeFault::Panic(text.unwrap_or_else(|| "(no message)".to_owned()))
}

/// Leaves the procedure. No panic hook runs: a fault is an outcome, not a bug of this program.
#[cold]
fn fault(error: OpError) -> ! {
    resume_unwind(Box::new(error))
}

trait OrFault<T> {
    fn or_fault(self) -> T;
}

impl<T> OrFault<T> for Result<T, OpError> {
    #[inline(always)]
    fn or_fault(self) -> T {
        self.unwrap_or_else(|error| fault(error))
    }
}

/// Splits a duplicate key from the errors that end the transaction.
fn or_duplicate<T>(result: Result<T, OpError>) -> Result<T, u16> {
    match result {
        Ok(value) => Ok(value),
        Err(OpError::DuplicateKey { index }) => Err(index),
        Err(error) => fault(error),
    }
}

/// Room on the stack for a row that the host writes.
pub struct Answer<B> {
    room: B,
    filled: usize,
}

impl<B> Answer<B> {
    #[inline(always)]
    pub fn new(room: B) -> Self {
        Self { room, filled: 0 }
    }
}

impl<B: AsRef<[u8]>> Answer<B> {
    /// Returns all of the room that a call of `Ops` was given: the bytes that the call wrote, and zeros behind them.
    #[inline(always)]
    pub(crate) fn room(&self) -> &[u8] {
        self.room.as_ref()
    }

    /// The bytes that a call of `Ops` wrote.
    #[inline(always)]
    pub fn filled(&self) -> &[u8] {
        self.room.as_ref().get(..self.filled).unwrap_or(&[])
    }
}

/// The host's calls.
pub struct Ops<'h> {
    host: RefCell<&'h mut dyn HostOps>,
}

impl Ops<'_> {
    pub fn set_result(&self, bytes: &[u8]) {
        self.host.borrow_mut().set_result(bytes).or_fault();
    }

    /// Writes a result of about `usual` bytes. `write` returns the bytes written, or else needed.
    #[inline(always)]
    pub fn put_result(&self, usual: usize, mut write: impl FnMut(&mut [u8]) -> Result<usize, usize>) {
        let mut inline = [0; INLINE_BYTES];
        let mut room = OutBuffer::new();
        if usual > INLINE_BYTES {
            room.grow(usual);
        }
        loop {
            let free = match room.is_empty() {
                true => &mut inline,
                false => &mut *room,
            };
            match write(free) {
                Ok(0) => return,
                Ok(length) => return self.set_result(free.get(..length).unwrap_or(&[])),
                Err(needed) => room.grow(needed),
            }
        }
    }

    #[inline]
    pub fn get(&self, target: u32, key: &[u8], out: &mut [u8]) -> Option<FoundRow> {
        let mut host = self.host.borrow_mut();
        let (handle, row) = host.get(IndexTarget::unpack(target), key).or_fault()?;
        Some(FoundRow {
            handle,
            bytes: copy_if_fits(row, out),
        })
    }

    /// The bytes written, or else the bytes needed.
    pub fn multi_get(&self, target: u32, keys: &[u8], count: u32, out: &mut [u8]) -> Result<usize, usize> {
        let mut host = self.host.borrow_mut();
        let mut found = Vec::new();
        let keys = packed("multi_get", keys, count);
        host.multi_get(IndexTarget::unpack(target), keys, &mut |handle, row| {
            push_row(&mut found, handle, row);
        })
        .or_fault();
        let room = out.get_mut(..found.len()).ok_or(found.len())?;
        room.copy_from_slice(&found);
        Ok(found.len())
    }

    /// Gets a row like `get`, only with some columns if they are given. A row that does not fit is not written.
    #[inline]
    pub fn get_into<B: AsMut<[u8]>>(
        &self,
        target: u32,
        key: &[u8],
        columns: Option<Columns>,
        answer: &mut Answer<B>,
    ) -> Option<FoundRow> {
        let Some(columns) = columns else {
            let found = self.get(target, key, answer.room.as_mut())?;
            answer.filled = found.bytes;
            return Some(found);
        };
        let mut host = self.host.borrow_mut();
        let (handle, row) = host.get(IndexTarget::unpack(target), key).or_fault()?;
        let bytes = read_if_fits((columns.plan)(), row, answer.room.as_mut());
        answer.filled = bytes;
        Some(FoundRow { handle, bytes })
    }

    /// Reads a row like `row_read`, only with some columns if they are given.
    #[inline]
    pub fn row_read_into<B: AsMut<[u8]>>(
        &self,
        handle: RowHandle,
        columns: Option<Columns>,
        answer: &mut Answer<B>,
    ) -> usize {
        answer.filled = match columns {
            None => self.row_read(handle, answer.room.as_mut()),
            Some(columns) => self.row_read_columns(handle, columns, answer.room.as_mut()),
        };
        answer.filled
    }

    /// Scans like `scan`, only some columns if they are given. Returns the cursor.
    #[inline]
    pub fn scan_into<B: AsMut<[u8]>>(
        &self,
        request: &ScanRequest<'_>,
        columns: Option<Columns>,
        answer: &mut Answer<B>,
    ) -> u32 {
        let (cursor, filled) = match columns {
            None => self.scan(request, answer.room.as_mut()),
            Some(columns) => self.scan_columns(request, columns, answer.room.as_mut()),
        };
        answer.filled = filled;
        cursor
    }

    /// Gets rows like `multi_get`, only some columns.
    pub fn multi_get_columns(
        &self,
        target: u32,
        keys: &[u8],
        columns: Columns,
        out: &mut [u8],
    ) -> Result<usize, usize> {
        let Some(keys) = PackedItems::to_end(keys) else {
            fault(OpError::Guest("multi_get with a key that is cut off".into()));
        };
        let mut host = self.host.borrow_mut();
        let needed = host.multi_get_columns(IndexTarget::unpack(target), keys, (columns.plan)(), out);
        match needed.or_fault() {
            needed if needed <= out.len() => Ok(needed),
            needed => Err(needed),
        }
    }

    /// Looks up keys of one length and fills as many slots of one length; how many rows did not fit theirs.
    pub fn multi_get_slots(&self, target: u32, keys: KeyBytes<'_>, columns: Columns, out: &mut [u8]) -> usize {
        let (keys, count) = (keys.bytes, keys.count);
        if count == 0 {
            return 0;
        }
        let slots = FixedSlots::new((columns.plan)(), out, count as usize);
        let (Some(keys), Some(slots)) = (EqualKeys::new(keys, count as usize), slots) else {
            fault(OpError::Guest("keys or slots that are not of one length".into()));
        };
        let mut host = self.host.borrow_mut();
        host.multi_get_slots(IndexTarget::unpack(target), keys, slots)
            .or_fault()
    }

    pub fn row_read_columns(&self, handle: RowHandle, columns: Columns, out: &mut [u8]) -> usize {
        let mut host = self.host.borrow_mut();
        read_if_fits((columns.plan)(), host.row(handle).or_fault(), out)
    }

    pub fn scan_columns(&self, request: &ScanRequest<'_>, columns: Columns, out: &mut [u8]) -> (u32, usize) {
        let mut host = self.host.borrow_mut();
        let scanned = host.scan_columns(request, (columns.plan)(), out);
        let (batch, filled) = scanned.or_fault();
        (batch.cursor, filled)
    }

    pub fn scan_next_columns(&self, cursor: u32, columns: Columns, out: &mut [u8]) -> (u32, usize) {
        let mut host = self.host.borrow_mut();
        let scanned = host.scan_next_columns(cursor, (columns.plan)(), out);
        let (batch, filled) = scanned.or_fault();
        (batch.cursor, filled)
    }

    /// Writes the columns of each row, whose values lie one after the other.
    pub fn patch(&self, handles: &[RowHandle], columns: Columns, values: &[u8]) -> Result<(), u16> {
        let (plan, table) = ((columns.plan)(), columns.table);
        let mut host = self.host.borrow_mut();
        if plan.is_fixed() {
            let (handles, each) = (Handles::Numbers(handles), plan.fixed_bytes());
            if values.len() != each * handles.len() {
                fault(OpError::Guest("the values do not fit the columns".into()));
            }
            return or_duplicate(host.multi_patch(table, handles, plan.set(), each, values));
        }
        let mut rest = values;
        for handle in handles {
            let Ok(bytes) = plan.values_len(rest) else {
                fault(OpError::Guest("the values do not fit the columns".into()));
            };
            let (own, after) = rest.split_at(bytes);
            rest = after;
            or_duplicate(host.patch(table, *handle, plan.set(), own))?;
        }
        Ok(())
    }

    pub fn row_read(&self, handle: RowHandle, out: &mut [u8]) -> usize {
        copy_if_fits(self.host.borrow_mut().row(handle).or_fault(), out)
    }

    /// The handle, or else the index in which the key is taken.
    #[inline]
    pub fn insert(&self, table: u16, row: &[u8]) -> Result<RowHandle, u16> {
        or_duplicate(self.host.borrow_mut().insert(table, row))
    }

    /// Inserts rows. Err: the index with the duplicate key; the rows before that one are inserted.
    pub fn multi_insert(&self, table: u16, rows: &[u8], count: u32) -> Result<(), u16> {
        let rows = packed("multi_insert", rows, count);
        or_duplicate(self.host.borrow_mut().multi_insert(table, rows).map(drop))
    }

    #[inline]
    pub fn update(&self, handle: RowHandle, row: &[u8]) -> Result<(), u16> {
        or_duplicate(self.host.borrow_mut().update(handle, row))
    }

    pub fn delete(&self, handle: RowHandle) {
        self.host.borrow_mut().delete(handle).or_fault();
    }

    #[inline]
    pub fn add(&self, handle: RowHandle, column: u16, delta: i64) -> i64 {
        self.host.borrow_mut().add(handle, column, delta).or_fault()
    }

    #[inline]
    pub fn exists(&self, target: u32, key: &[u8]) -> bool {
        let found = self.host.borrow_mut().exists(IndexTarget::unpack(target), key);
        found.or_fault()
    }

    /// The new value, if there is such a row.
    #[inline]
    pub fn add_by_key(&self, target: u32, column: u16, key: &[u8], delta: i64) -> Option<i64> {
        let mut host = self.host.borrow_mut();
        host.add_by_key(IndexTarget::unpack(target), key, column, delta)
            .or_fault()
    }

    /// The cursor and the bytes filled.
    pub fn scan(&self, request: &ScanRequest<'_>, out: &mut [u8]) -> (u32, usize) {
        fill(out, |visit| self.host.borrow_mut().scan(request, visit))
    }

    pub fn scan_next(&self, cursor: u32, out: &mut [u8]) -> (u32, usize) {
        fill(out, |visit| self.host.borrow_mut().scan_next(cursor, visit))
    }

    /// Nothing is called while a fault leaves the procedure.
    pub fn scan_close(&self, cursor: u32) {
        if !std::thread::panicking() {
            self.host.borrow_mut().scan_close(cursor).or_fault();
        }
    }

    pub fn count(&self, request: &ScanRequest<'_>) -> u64 {
        self.host.borrow_mut().count(request).or_fault()
    }

    pub fn savepoint(&self) -> u32 {
        self.host.borrow_mut().savepoint().or_fault()
    }

    pub fn rollback_to(&self, savepoint: u32) {
        self.host.borrow_mut().rollback_to(savepoint).or_fault();
    }

    pub fn now_us(&self) -> i64 {
        self.host.borrow().now_us()
    }

    pub fn random_u64(&self) -> u64 {
        self.host.borrow_mut().random_u64()
    }

    pub fn txn_id(&self) -> u64 {
        self.host.borrow().txn_id()
    }

    /// Returns the bytes of the caller's name, and 0 without a name. The name is in `out` if it fits.
    pub fn caller(&self, out: &mut [u8]) -> usize {
        let host = self.host.borrow();
        let name = host.caller().unwrap_or_default().as_bytes();
        if let Some(room) = out.get_mut(..name.len()) {
            room.copy_from_slice(name);
        }
        name.len()
    }

    pub fn log(&self, level: LogLevel, text: &str) {
        self.host.borrow_mut().log(level, text).or_fault();
    }

    pub fn abort(&self, code: &str, message: &str) {
        self.host.borrow_mut().abort(code, message);
    }
}

fn packed<'a>(call: &str, bytes: &'a [u8], count: u32) -> PackedItems<'a> {
    let items = PackedItems::new(bytes, count);
    items.unwrap_or_else(|| fault(OpError::Guest(format!("{call} with fewer items than its count"))))
}

#[inline]
fn copy_if_fits(row: &[u8], out: &mut [u8]) -> usize {
    if let Some(room) = out.get_mut(..row.len()) {
        room.copy_from_slice(row);
    }
    row.len()
}

fn push_row(out: &mut Vec<u8>, handle: RowHandle, row: &[u8]) {
    out.extend_from_slice(&handle.to_le_bytes());
    out.extend_from_slice(&(row.len() as u32).to_le_bytes());
    out.extend_from_slice(row);
}

type ScanVisitor<'v> = &'v mut dyn FnMut(RowHandle, &[u8]) -> bool;

/// Runs a scan that fills `out` with `[handle u32][len u32][row]`, as many as fit.
fn fill(out: &mut [u8], run: impl FnOnce(ScanVisitor<'_>) -> Result<ScanBatch, OpError>) -> (u32, usize) {
    let mut filled = 0;
    let batch = run(&mut |handle, row| {
        let Some(room) = out.get_mut(filled..filled + 8 + row.len()) else {
            return false;
        };
        room[..4].copy_from_slice(&handle.to_le_bytes());
        room[4..8].copy_from_slice(&(row.len() as u32).to_le_bytes());
        room[8..].copy_from_slice(row);
        filled += room.len();
        true
    });
    (batch.or_fault().cursor, filled)
}

#[inline]
fn read_if_fits(plan: &ColumnPlan, row: &[u8], out: &mut [u8]) -> usize {
    let bytes = plan.bytes(row);
    if let Some(room) = out.get_mut(..bytes) {
        plan.read(row, room);
    }
    bytes
}
