//! The host calls as a wasm guest makes them, its memory, and its entry. The only unsafe code of the SDK.

use std::{
    alloc::{GlobalAlloc, Layout},
    arch::wasm32::{memory_grow, memory_size},
    cell::{Cell, UnsafeCell},
    marker::PhantomData,
    mem::MaybeUninit,
    panic::PanicHookInfo,
};

use reprise_abi::{LogLevel, RowHandle, ScanRequest, calls::RETURNED_IN_BUFFER, describe};

use crate::{
    column::Columns,
    found_row::FoundRow,
    heap::{Heap, HeapMemory},
    many::KeyBytes,
    module::{Abort, ProcedureInfo, TableInfo, schema},
    txn::Txn,
};

#[path = "guest_room.rs"]
mod room;

pub use room::{OutBuffer, args_buffer_slice, result_buffer_slice};
use room::{args_buffer, result_buffer};

/// The imports of `reprise_abi::calls`. Each takes pointers into this module's own memory, which the host checks.
mod import {
    #[link(wasm_import_module = "reprise1")]
    unsafe extern "C" {
        pub fn args_read(pointer: *mut u8);
        pub fn result_write(slice: u64);
        pub fn get(target: u32, key: u64, out: u64) -> i64;
        pub fn multi_get(target: u32, keys: u64, count: u32, out: u64) -> i64;
        pub fn exists(target: u32, key: u64) -> u32;
        pub fn row_read(handle: u32, out: u64) -> u32;
        pub fn get_columns(target: u32, key: u64, columns: u64, out: u64) -> i64;
        pub fn multi_get_columns(target: u32, keys: u64, columns: u64, out: u64) -> i64;
        pub fn multi_get_slots(request: u64, keys: u64, columns: u64, out: u64) -> i64;
        pub fn row_read_columns(handle: u32, table: u32, columns: u64, out: u64) -> u32;
        pub fn scan_columns(request: *const u32, columns: u64, out: u64) -> u64;
        pub fn scan_next_columns(cursor: u32, table: u32, columns: u64, out: u64) -> u64;
        pub fn patch(table: u32, handles: u64, columns: u64, values: u64) -> i64;
        pub fn insert(table: u32, row: u64) -> i64;
        pub fn multi_insert(table: u32, rows: u64, count: u32) -> i64;
        pub fn update(handle: u32, row: u64) -> i64;
        pub fn delete(handle: u32);
        pub fn add(handle: u32, column: u32, delta: i64) -> i64;
        pub fn add_by_key(what: u64, key: u64, delta: i64, out: u64) -> u32;
        pub fn scan(request: *const u32, out: u64) -> u64;
        pub fn scan_next(cursor: u32, out: u64) -> u64;
        pub fn scan_close(cursor: u32);
        pub fn count(request: *const u32) -> u64;
        pub fn savepoint() -> u32;
        pub fn rollback_to(savepoint: u32);
        pub fn now() -> i64;
        pub fn random() -> u64;
        pub fn txn_id() -> u64;
        pub fn caller(out: u64) -> u32;
        pub fn log(level: u32, text: u64);
        pub fn abort(code: u64, message: u64);
        pub fn panic(text: u64);
    }
}

#[inline(always)]
fn slice(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as u32 as u64 | (bytes.len() as u64) << 32
}

#[inline(always)]
fn out_slice(bytes: &mut [u8]) -> u64 {
    bytes.as_mut_ptr() as u32 as u64 | (bytes.len() as u64) << 32
}

/// Room on the stack for a row that the host writes. Nothing clears it: no more is ever read than the host wrote.
pub struct Answer<B> {
    room: MaybeUninit<B>,
    filled: usize,
}

impl<B> Answer<B> {
    #[inline(always)]
    pub fn new(_: B) -> Self {
        Self {
            room: MaybeUninit::uninit(),
            filled: 0,
        }
    }

    #[inline(always)]
    fn out(&mut self) -> u64 {
        self.room.as_mut_ptr() as u32 as u64 | (size_of::<B>() as u64) << 32
    }

    /// Returns all of the room of a call of `Ops`, after the call: the written bytes, and undefined bytes behind them.
    #[inline(always)]
    pub(crate) fn room(&self) -> &[u8] {
        // SAFETY: the host was given all of the room. To this program it has written all of it, each byte behind the row's
        // end as it was, for nothing here can tell.
        unsafe { std::slice::from_raw_parts(self.room.as_ptr().cast(), size_of::<B>()) }
    }

    /// The bytes that a call of `Ops` wrote.
    #[inline(always)]
    pub fn filled(&self) -> &[u8] {
        // SAFETY: `filled` is set by `Ops` alone, to what the host wrote from the start of the room on.
        unsafe { std::slice::from_raw_parts(self.room.as_ptr().cast(), self.filled) }
    }
}

/// The host's calls.
pub struct Ops<'h> {
    call: PhantomData<&'h ()>,
    /// Return value of the entry: 0, or a result in its buffer.
    returned: Cell<i32>,
}

// SAFETY of every call below: the host reads only `slice`s and writes only `out`s, within the lengths given, during the call. Both borrow
// live memory for that long.
impl Ops<'_> {
    #[inline(always)]
    pub fn set_result(&self, bytes: &[u8]) {
        let buffer = result_buffer();
        if bytes.len() <= buffer.length {
            let target = buffer.start as *mut u8;
            if bytes.as_ptr() != target {
                // SAFETY: the buffer lies between stack and data (`buffers`). If it holds an earlier result, that one is not read any
                // more, or contains `bytes`.
                unsafe { std::ptr::copy(bytes.as_ptr(), target, bytes.len()) }
            }
            self.returned.set(RETURNED_IN_BUFFER + bytes.len() as i32);
        } else {
            self.returned.set(0);
            // SAFETY: as above.
            unsafe { import::result_write(slice(bytes)) }
        }
    }

    /// Writes a result into the host's buffer. If it is too long, or if a `Reply` lies there, it is written on the heap. `write` returns
    /// the bytes written, or else the bytes needed.
    #[inline(always)]
    pub fn put_result(&self, _usual: usize, mut write: impl FnMut(&mut [u8]) -> Result<usize, usize>) {
        let mut room = OutBuffer::at_end();
        loop {
            match write(&mut room) {
                Ok(0) => return,
                Ok(length) => return self.set_result(room.get(..length).unwrap_or(&[])),
                Err(needed) => room.grow(needed),
            }
        }
    }

    #[inline(always)]
    pub fn get(&self, target: u32, key: &[u8], out: &mut [u8]) -> Option<FoundRow> {
        // SAFETY: as above.
        let found = unsafe { import::get(target, slice(key), out_slice(out)) };
        (found >= 0).then_some(FoundRow {
            handle: (found >> 32) as u32,
            bytes: found as u32 as usize,
        })
    }

    /// The bytes written, or else the bytes needed.
    pub fn multi_get(&self, target: u32, keys: &[u8], count: u32, out: &mut [u8]) -> Result<usize, usize> {
        // SAFETY: as above.
        let written = unsafe { import::multi_get(target, slice(keys), count, out_slice(out)) };
        if written < 0 {
            Err(written.unsigned_abs() as usize)
        } else {
            Ok(written as usize)
        }
    }

    /// Gets a row like `get`, only with some columns if they are given. A row that does not fit is not written.
    #[inline(always)]
    pub fn get_into<B>(
        &self,
        target: u32,
        key: &[u8],
        columns: Option<Columns>,
        answer: &mut Answer<B>,
    ) -> Option<FoundRow> {
        let (key, out) = (slice(key), answer.out());
        // SAFETY: as above.
        let found = match columns {
            None => unsafe { import::get(target, key, out) },
            Some(columns) => unsafe { import::get_columns(target, key, columns.set, out) },
        };
        if found < 0 {
            return None;
        }
        let bytes = found as u32 as usize;
        answer.filled = if bytes <= size_of::<B>() { bytes } else { 0 };
        Some(FoundRow {
            handle: (found >> 32) as u32,
            bytes,
        })
    }

    /// Reads a row like `row_read`, only with some columns if they are given.
    #[inline(always)]
    pub fn row_read_into<B>(&self, handle: RowHandle, columns: Option<Columns>, answer: &mut Answer<B>) -> usize {
        let out = answer.out();
        // SAFETY: as above.
        let bytes = match columns {
            None => unsafe { import::row_read(handle, out) },
            Some(columns) => unsafe { import::row_read_columns(handle, columns.table as u32, columns.set, out) },
        } as usize;
        answer.filled = if bytes <= size_of::<B>() { bytes } else { 0 };
        bytes
    }

    /// Scans like `scan`, only some columns if they are given. Returns the cursor.
    #[inline(always)]
    pub fn scan_into<B>(&self, request: &ScanRequest<'_>, columns: Option<Columns>, answer: &mut Answer<B>) -> u32 {
        let (request, out) = (request_words(request), answer.out());
        // SAFETY: as above; the request is eight words long.
        let batch = match columns {
            None => unsafe { import::scan(request.as_ptr(), out) },
            Some(columns) => unsafe { import::scan_columns(request.as_ptr(), columns.set, out) },
        };
        answer.filled = batch as u32 as usize;
        (batch >> 32) as u32
    }

    /// Gets rows like `multi_get`, only some columns.
    #[inline(always)]
    pub fn multi_get_columns(
        &self,
        target: u32,
        keys: &[u8],
        columns: Columns,
        out: &mut [u8],
    ) -> Result<usize, usize> {
        let (keys, set) = (slice(keys), columns.set);
        // SAFETY: as above.
        let written = unsafe { import::multi_get_columns(target, keys, set, out_slice(out)) };
        if written < 0 {
            Err(written.unsigned_abs() as usize)
        } else {
            Ok(written as usize)
        }
    }

    /// Looks up keys of one length and fills as many slots of one length; how many rows did not fit theirs.
    #[inline(always)]
    pub fn multi_get_slots(&self, target: u32, keys: KeyBytes<'_>, columns: Columns, out: &mut [u8]) -> usize {
        let (request, keys) = (target as u64 | (keys.count as u64) << 32, slice(keys.bytes));
        // SAFETY: as above.
        unsafe { import::multi_get_slots(request, keys, columns.set, out_slice(out)) as usize }
    }

    pub fn row_read_columns(&self, handle: RowHandle, columns: Columns, out: &mut [u8]) -> usize {
        let (table, set) = (columns.table as u32, columns.set);
        // SAFETY: as above.
        unsafe { import::row_read_columns(handle, table, set, out_slice(out)) as usize }
    }

    #[inline(always)]
    pub fn scan_columns(&self, request: &ScanRequest<'_>, columns: Columns, out: &mut [u8]) -> (u32, usize) {
        let request = request_words(request);
        // SAFETY: as above; the request is eight words long.
        let batch = unsafe { import::scan_columns(request.as_ptr(), columns.set, out_slice(out)) };
        ((batch >> 32) as u32, batch as u32 as usize)
    }

    pub fn scan_next_columns(&self, cursor: u32, columns: Columns, out: &mut [u8]) -> (u32, usize) {
        let (table, set) = (columns.table as u32, columns.set);
        // SAFETY: as above.
        let batch = unsafe { import::scan_next_columns(cursor, table, set, out_slice(out)) };
        ((batch >> 32) as u32, batch as u32 as usize)
    }

    /// Writes the columns of each row, whose values lie one after the other.
    #[inline(always)]
    pub fn patch(&self, handles: &[RowHandle], columns: Columns, values: &[u8]) -> Result<(), u16> {
        let handles = handles.as_ptr() as u32 as u64 | (size_of_val(handles) as u64) << 32;
        let (table, set) = (columns.table as u32, columns.set);
        // SAFETY: as above; handles lie in memory as the host reads them, little-endian.
        let done = unsafe { import::patch(table, handles, set, slice(values)) };
        if done < 0 { Err((-2 - done) as u16) } else { Ok(()) }
    }

    pub fn row_read(&self, handle: RowHandle, out: &mut [u8]) -> usize {
        // SAFETY: as above.
        unsafe { import::row_read(handle, out_slice(out)) as usize }
    }

    /// The handle, or else the index in which the key is taken.
    #[inline(always)]
    pub fn insert(&self, table: u16, row: &[u8]) -> Result<RowHandle, u16> {
        // SAFETY: as above.
        let handle = unsafe { import::insert(table as u32, slice(row)) };
        if handle < 0 {
            Err((-2 - handle) as u16)
        } else {
            Ok(handle as u32)
        }
    }

    /// Inserts rows. Err: the index with the duplicate key; the rows before that one are inserted.
    pub fn multi_insert(&self, table: u16, rows: &[u8], count: u32) -> Result<(), u16> {
        // SAFETY: as above.
        let handle = unsafe { import::multi_insert(table as u32, slice(rows), count) };
        if handle < 0 { Err((-2 - handle) as u16) } else { Ok(()) }
    }

    #[inline(always)]
    pub fn update(&self, handle: RowHandle, row: &[u8]) -> Result<(), u16> {
        // SAFETY: as above.
        let done = unsafe { import::update(handle, slice(row)) };
        if done < 0 { Err((-2 - done) as u16) } else { Ok(()) }
    }

    pub fn delete(&self, handle: RowHandle) {
        // SAFETY: as above.
        unsafe { import::delete(handle) }
    }

    #[inline(always)]
    pub fn add(&self, handle: RowHandle, column: u16, delta: i64) -> i64 {
        // SAFETY: as above.
        unsafe { import::add(handle, column as u32, delta) }
    }

    #[inline(always)]
    pub fn exists(&self, target: u32, key: &[u8]) -> bool {
        // SAFETY: as above.
        unsafe { import::exists(target, slice(key)) != 0 }
    }

    /// The new value, if there is such a row.
    #[inline(always)]
    pub fn add_by_key(&self, target: u32, column: u16, key: &[u8], delta: i64) -> Option<i64> {
        let mut value = MaybeUninit::<i64>::uninit();
        let out = value.as_mut_ptr() as u32 as u64 | (size_of::<i64>() as u64) << 32;
        let what = target as u64 | (column as u64) << 32;
        // SAFETY: as above; where there is such a row, the host writes all of its new value.
        unsafe {
            let is_found = import::add_by_key(what, slice(key), delta, out) != 0;
            is_found.then(|| value.assume_init())
        }
    }

    /// The cursor and the bytes filled.
    #[inline(always)]
    pub fn scan(&self, request: &ScanRequest<'_>, out: &mut [u8]) -> (u32, usize) {
        let request = request_words(request);
        // SAFETY: as above; the request is eight words long.
        let batch = unsafe { import::scan(request.as_ptr(), out_slice(out)) };
        ((batch >> 32) as u32, batch as u32 as usize)
    }

    pub fn scan_next(&self, cursor: u32, out: &mut [u8]) -> (u32, usize) {
        // SAFETY: as above.
        let batch = unsafe { import::scan_next(cursor, out_slice(out)) };
        ((batch >> 32) as u32, batch as u32 as usize)
    }

    pub fn scan_close(&self, cursor: u32) {
        // SAFETY: no memory is passed.
        unsafe { import::scan_close(cursor) }
    }

    pub fn count(&self, request: &ScanRequest<'_>) -> u64 {
        let request = request_words(request);
        // SAFETY: as above; the request is eight words long.
        unsafe { import::count(request.as_ptr()) }
    }

    pub fn savepoint(&self) -> u32 {
        // SAFETY: no memory is passed.
        unsafe { import::savepoint() }
    }

    pub fn rollback_to(&self, savepoint: u32) {
        // SAFETY: no memory is passed.
        unsafe { import::rollback_to(savepoint) }
    }

    pub fn now_us(&self) -> i64 {
        // SAFETY: no memory is passed.
        unsafe { import::now() }
    }

    pub fn random_u64(&self) -> u64 {
        // SAFETY: no memory is passed.
        unsafe { import::random() }
    }

    pub fn txn_id(&self) -> u64 {
        // SAFETY: no memory is passed.
        unsafe { import::txn_id() }
    }

    /// Returns the bytes of the caller's name, which are in `out` if they fit; 0 without a name.
    pub fn caller(&self, out: &mut [u8]) -> usize {
        // SAFETY: as above.
        unsafe { import::caller(out_slice(out)) as usize }
    }

    pub fn log(&self, level: LogLevel, text: &str) {
        // SAFETY: as above.
        unsafe { import::log(level as u32, slice(text.as_bytes())) }
    }

    pub fn abort(&self, code: &str, message: &str) {
        // SAFETY: as above.
        unsafe { import::abort(slice(code.as_bytes()), slice(message.as_bytes())) }
    }
}

#[inline(always)]
fn request_words(request: &ScanRequest<'_>) -> [u32; 8] {
    [
        request.target.pack(),
        request.flags.0,
        request.limit,
        request.lower.as_ptr() as u32,
        request.lower.len() as u32,
        request.upper.as_ptr() as u32,
        request.upper.len() as u32,
        0,
    ]
}

const PAGE_BYTES: usize = 65_536;

unsafe extern "C" {
    /// Its address is the end of the linker's own data.
    static __heap_base: u8;
}

/// The memory of this instance from the linker's data upwards. Nothing else grows it.
struct LinearMemory;
impl HeapMemory for LinearMemory {
    #[inline]
    fn grow_to(&mut self, end: usize) -> bool {
        let missing = end.saturating_sub(memory_size(0) * PAGE_BYTES);
        missing == 0 || memory_grow(0, missing.div_ceil(PAGE_BYTES)) != usize::MAX
    }

    fn base(&self) -> usize {
        &raw const __heap_base as usize
    }

    #[inline]
    fn load(&self, address: usize) -> usize {
        // SAFETY: the heap loads only from free blocks: memory that exists, aligned to 16, without an owner.
        unsafe { *(address as *const usize) }
    }

    #[inline]
    fn store(&mut self, address: usize, value: usize) {
        // SAFETY: as for `load`.
        unsafe { *(address as *mut usize) = value }
    }
}

struct Allocator(UnsafeCell<Heap<LinearMemory>>);
// SAFETY: a guest has one thread: modules with shared memory are refused.
unsafe impl Sync for Allocator {}

// SAFETY: `Heap` gives out blocks that do not overlap, large and aligned as asked; its test holds it to that.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: one thread, and the heap calls nothing that allocates.
        unsafe { (*self.0.get()).allocate(layout.size(), layout.align()) as *mut u8 }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`; the block has room for the bytes that are cleared.
        unsafe {
            let heap = &mut *self.0.get();
            let (block, is_used) = heap.allocate_for_zeros(layout.size(), layout.align());
            let block = block as *mut u8;
            if is_used && !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { (*self.0.get()).free(block as usize, layout.size()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as in `alloc`; the new block is another one and has room for the smaller of both sizes.
        unsafe {
            if (*self.0.get()).resize_in_place(block as usize, layout.size(), bytes) {
                return block;
            }
            let new = (*self.0.get()).allocate(bytes, layout.align()) as *mut u8;
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(block, new, bytes.min(layout.size()));
                (*self.0.get()).free(block as usize, layout.size());
            }
            new
        }
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator(UnsafeCell::new(Heap::new(LinearMemory)));

/// Runs one procedure: what every `reprise_call_NAME` export does. 0 = done, 1 = aborted, more = done with a result in its
/// buffer.
#[inline(always)]
pub fn enter(args_bytes: u32, run: impl FnOnce(&Txn<'_>, &[u8]) -> Result<(), Abort>) -> i32 {
    let length = args_bytes as usize;
    let buffer = args_buffer();
    let heap;
    let pointer = if length <= buffer.length {
        buffer.start as *const u8
    } else {
        heap = read_args(length);
        heap.as_ptr()
    };
    // SAFETY: the host put the arguments into the buffer if they fit; otherwise they are in `heap`. Neither is written.
    let args = unsafe { std::slice::from_raw_parts(pointer, length) };
    let tx = Txn::new(Ops {
        call: PhantomData,
        returned: Cell::new(0),
    });
    match run(&tx, args) {
        Ok(()) => tx.ops.returned.get(),
        Err(abort) => {
            tx.ops.abort(&abort.code, &abort.message);
            1
        }
    }
}

#[inline(never)]
fn read_args(length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length);
    // SAFETY: there is room for `length` bytes, and the host fills exactly that many.
    unsafe {
        import::args_read(bytes.as_mut_ptr());
        bytes.set_len(length);
    }
    bytes
}

/// The module's description for `reprise_describe`: `length << 32 | pointer`.
pub fn describe(
    tables: &[&'static TableInfo],
    procedures: &[&'static ProcedureInfo],
    on_deploy: Option<&'static str>,
    retiring: &[&'static TableInfo],
) -> u64 {
    let text = describe::write_json(&schema(tables, procedures.iter().copied(), on_deploy, retiring));
    slice(text.leak().as_bytes())
}

/// Sets the instance up in `_initialize`: a panic tells the host its message and place, which ends the call.
pub fn initialize() {
    std::panic::set_hook(Box::new(report_panic));
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let mut text = String::from("panicked");
    if let Some(location) = info.location() {
        put(&mut text, " at ");
        put(&mut text, location.file());
        put(&mut text, " line ");
        let line = location.line();
        let mut divisor = 1_000_000;
        while divisor > 0 {
            if line >= divisor || divisor == 1 {
                text.push((b'0' + (line / divisor % 10) as u8) as char);
            }
            divisor /= 10;
        }
    }
    put(&mut text, ": ");
    put(&mut text, info.payload_as_str().unwrap_or("(no message)"));
    // SAFETY: as for every call of `Ops`. It does not return.
    unsafe { import::panic(slice(text.as_bytes())) }
}

/// Out of line, for size.
#[inline(never)]
fn put(text: &mut String, more: &str) {
    text.push_str(more);
}
