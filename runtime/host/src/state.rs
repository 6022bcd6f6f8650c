//! The state of a store: the guest's memory, the transaction of the running call, and the host calls over both.

use std::{ptr::NonNull, slice, sync::Arc};

use reprise_abi::{
    HostOps, IndexTarget, LogLevel, OpError, Plans, RowLayout, ScanFlags, ScanRequest, calls::PackedItems,
    key::KEY_BYTES_MAX, random::TxnRandom, value::RESULT_BYTES_MAX,
};
use reprise_base::limits::{
    ABORT_CODE_BYTES_MAX, ABORT_MESSAGE_BYTES_MAX, FUEL_SLICE, GUEST_LOG_BYTES_MAX, HOST_CALL_BYTES_MAX,
    MIGRATION_LIMITS_FACTOR, PANIC_TEXT_BYTES_MAX,
};

use crate::{
    outcome::{Fault, PANIC_TRAP},
    rewrite::Allowance,
    start::{StartFor, Starter},
};

/// The clock of a module that starts: 2024-01-01, because some guests refuse a clock at zero.
const START_TIME_US: i64 = 1_704_067_200_000_000;
/// Seed of the random stream of a module that starts. It is the same for all, so that every instance starts alike.
const START_SEED: [u64; 2] = [0x7265_7072_6973_6531, 0x7374_6172_742d_7570];
/// Bytes of a scan request in guest memory.
const SCAN_REQUEST_BYTES: u32 = 32;
/// Bytes before each row in the output of `scan` and `multi_get`: handle and length.
pub(crate) const ROW_HEADER_BYTES: usize = 8;

/// The guest's memory, by its address.
#[derive(Clone, Copy)]
pub(crate) struct GuestMemory {
    base: *mut u8,
    bytes: usize,
}

impl GuestMemory {
    /// A memory of no bytes: every pointer is out of range.
    pub const EMPTY: Self = Self {
        base: NonNull::dangling().as_ptr(),
        bytes: 0,
    };

    /// # Safety
    /// `base..base + bytes` is mapped, readable, and writable or under a `HotSet`, as long as the store lives.
    pub unsafe fn new(base: *mut u8, bytes: usize) -> Self {
        Self { base, bytes }
    }

    #[inline]
    fn span(self, pointer: u32, length: u32) -> Result<*mut u8, GuestStop> {
        if pointer as usize + length as usize > self.bytes {
            return Err(GuestStop::Range { pointer, length });
        }
        Ok(self.base.wrapping_add(pointer as usize))
    }

    /// Returns the bytes that a packed slice names.
    ///
    /// # Safety
    /// The slice borrows from nothing. The caller must not read it after any code writes to these bytes. That code may be an answer of a
    /// host call, the guest, or another instance in this memory.
    #[inline]
    pub unsafe fn read<'a>(self, packed: u64) -> Result<&'a [u8], GuestStop> {
        let (pointer, length) = unpack(packed);
        // SAFETY: passed on.
        unsafe { self.read_at(pointer, length) }
    }

    /// Reads a slice, as `read` does.
    ///
    /// # Safety
    /// The contract of `read` holds.
    #[inline]
    pub unsafe fn read_at<'a>(self, pointer: u32, length: u32) -> Result<&'a [u8], GuestStop> {
        let start = self.span(pointer, length)?;
        // SAFETY: the span is in range of the mapping (contract of `new`); no code writes to it while the slice is read (contract).
        Ok(unsafe { slice::from_raw_parts(start, length as usize) })
    }

    /// Checks that the bytes lie in the memory.
    #[inline]
    pub fn check(self, pointer: u32, length: u32) -> Result<(), GuestStop> {
        self.span(pointer, length).map(drop)
    }

    #[inline]
    pub fn read_u32(self, pointer: u32) -> Result<u32, GuestStop> {
        // SAFETY: the bytes are copied at once.
        let bytes = unsafe { self.read_at(pointer, 4) }?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    #[inline]
    pub fn write_at(self, pointer: u32, bytes: &[u8]) -> Result<(), GuestStop> {
        let length = u32::try_from(bytes.len()).map_err(|_| GuestStop::Range {
            pointer,
            length: u32::MAX,
        })?;
        let start = self.span(pointer, length)?;
        // SAFETY: the span is in range; a protected page is made writable by the signal handler in mid-copy. `copy`
        // allows for a source that lies in the guest's memory too.
        unsafe { std::ptr::copy(bytes.as_ptr(), start, bytes.len()) };
        Ok(())
    }
}

#[inline]
pub(crate) fn unpack(packed: u64) -> (u32, u32) {
    (packed as u32, (packed >> 32) as u32)
}

/// A buffer of the guest to which the host appends.
pub(crate) struct GuestOutput {
    start: *mut u8,
    capacity: usize,
    filled: usize,
}

impl GuestOutput {
    #[inline]
    pub fn new(memory: GuestMemory, packed: u64) -> Result<Self, GuestStop> {
        let (pointer, capacity) = unpack(packed);
        Ok(Self {
            start: memory.span(pointer, capacity)?,
            capacity: capacity as usize,
            filled: 0,
        })
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the next `bytes` bytes, which the caller writes. None if they do not fit.
    #[inline]
    pub fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.capacity - self.filled {
            return None;
        }
        // SAFETY: `start..start + capacity` was checked against the memory; only this thread runs the guest, and the
        // borrow of `self` keeps other writers of this buffer away. A protected page is made writable by the signal handler.
        let room = unsafe { slice::from_raw_parts_mut(self.start.add(self.filled), bytes) };
        self.filled += bytes;
        Some(room)
    }

    #[inline]
    pub fn try_push_row(&mut self, handle: u32, row: &[u8]) -> bool {
        if self.capacity - self.filled < ROW_HEADER_BYTES + row.len() {
            return false;
        }
        let header = u64::from(handle) | (row.len() as u64) << 32;
        self.push(&header.to_le_bytes());
        self.push(row);
        true
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.capacity - self.filled);
        // SAFETY: `start..start + capacity` was checked against the memory; rows come from the engine, never from the
        // guest's memory, so source and target do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(self.filled), bytes.len());
        }
        self.filled += bytes.len();
    }
}

/// Why a host call stops the guest.
#[derive(Debug)]
pub(crate) enum GuestStop {
    Range {
        pointer: u32,
        length: u32,
    },
    Op(OpError),
    Limit {
        limit: &'static str,
        max: u64,
    },
    Fuel {
        max: u64,
    },
    Guest(String),
    Exit {
        code: u32,
    },
    /// The guest's program gave up, with its message.
    Panic(String),
    /// There is no transaction, because the module is being started or described.
    NoTransaction,
}

impl From<OpError> for GuestStop {
    fn from(error: OpError) -> Self {
        Self::Op(error)
    }
}

/// Bytes of memory for keys that are kept from one call to the next.
const KEYS_KEPT_BYTES: usize = 32 << 10;

/// Marks a guest that was stopped by the host; the reason is in `HostState::fault`.
#[derive(Debug, thiserror::Error)]
#[error("stopped by the host")]
pub(crate) struct StoppedByHost;

pub(crate) struct HostState {
    pub memory: GuestMemory,
    pub fault: Option<Box<Fault>>,
    pub aborted: bool,
    /// Set for the time of a call only; the pointer is the caller's exclusive borrow with its lifetime erased.
    pub ops: Option<NonNull<dyn HostOps>>,
    /// The owner of the time in which a module starts or describes itself. It only decides whether to continue.
    starter: Option<Starter>,
    /// Bytes that host calls may still move before they ask for more, and the bytes that this call was given.
    bytes_left: u64,
    bytes_given: u64,
    /// Fuel that this call was given, and its maximum.
    pub fuel_given: u64,
    allowance: Allowance,
    start_random: TxnRandom,
    /// Layouts of the module's tables, retiring ones behind the others.
    pub layouts: Arc<[RowLayout]>,
    /// Plans of the same tables.
    pub plans: Vec<Plans>,
    /// The place at which an entry may leave its result; a slice of no bytes if there is none.
    pub result_buffer: u64,
    /// Bounds of a running scan: its visitor writes to guest memory, so they can't be borrowed from there.
    pub lower: Vec<u8>,
    pub upper: Vec<u8>,
    /// Keys of a running `multi_get`, for the same reason.
    pub keys: Vec<u8>,
}

/// Result of a host call.
pub(crate) type Answer<T> = Result<T, GuestStop>;

/// Bytes that host calls move between two checks whether the call may continue.
const BYTES_SLICE: u64 = 256 << 10;

impl HostState {
    pub fn new(allowance: Allowance) -> Self {
        Self {
            memory: GuestMemory::EMPTY,
            fault: None,
            aborted: false,
            ops: None,
            starter: None,
            bytes_left: BYTES_SLICE,
            bytes_given: BYTES_SLICE,
            fuel_given: allowance.first_fuel(),
            allowance,
            start_random: TxnRandom::new(START_SEED, 0),
            layouts: Arc::default(),
            plans: Vec::new(),
            result_buffer: 0,
            lower: Vec::new(),
            upper: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// Lends a transaction to the guest.
    ///
    /// # Safety
    /// The caller keeps `ops` borrowed, and untouched, until `end_call`, also when the call unwinds.
    #[inline]
    pub unsafe fn begin_call(&mut self, ops: &mut (dyn HostOps + '_)) {
        // SAFETY: the contract of `outlive` is this function's.
        self.ops = Some(unsafe { outlive(ops) });
        self.aborted = false;
        self.begin_spending();
    }

    /// Begins a start. The transaction decides whether it may continue, and the guest sees nothing of it.
    ///
    /// # Safety
    /// That of `begin_call`.
    pub unsafe fn begin_start(&mut self, time: StartFor<'_>) {
        self.starter = Some(match time {
            // SAFETY: passed on.
            StartFor::Call(ops) => Starter::Call(unsafe { outlive(ops) }),
            StartFor::Deployment(deadline) => Starter::Deployment(deadline.clone()),
        });
        self.begin_spending();
    }

    #[inline]
    fn begin_spending(&mut self) {
        self.fault = None;
        self.bytes_left = BYTES_SLICE;
        self.bytes_given = BYTES_SLICE;
        self.fuel_given = self.allowance.first_fuel();
    }

    #[inline]
    pub fn end_call(&mut self) {
        self.ops = None;
        self.starter = None;
        if self.keys.capacity() > KEYS_KEPT_BYTES {
            self.keys = Vec::new();
        }
    }

    /// Checks whether the guest may continue, and returns the factor for its limits. Guest code outside of a call and a start is stopped.
    fn ask(&mut self) -> Answer<u64> {
        match (&mut self.starter, &mut self.ops) {
            (Some(starter), None) => starter.ask(),
            (_, ops) => {
                let ops = transaction_of(ops)?;
                ops.go_on()?;
                Ok(ops.limits_times())
            }
        }
    }

    /// Grants more fuel to a guest that has used up its own, to less than nothing.
    pub fn refuel(&mut self, left: i64) -> Answer<i64> {
        let used = self.fuel_given.saturating_add_signed(left.saturating_neg());
        // A start has the fuel of every module, whichever procedure's call it is for. Otherwise a module would start for some of them
        // alone.
        let own_max = self.transaction().and_then(|ops| ops.fuel_max());
        let fuel_max = own_max.unwrap_or(self.allowance.fuel_max);
        // This check comes first, so that a call with two reasons to end always reports the same one.
        if used > fuel_max.saturating_mul(MIGRATION_LIMITS_FACTOR) {
            return Err(GuestStop::Fuel { max: fuel_max });
        }
        let times = self.ask()?;
        let more = (fuel_max.saturating_mul(times).checked_sub(used)).ok_or(GuestStop::Fuel { max: fuel_max })?;
        let more = more.min(FUEL_SLICE);
        self.fuel_given = used + more;
        Ok(more as i64)
    }

    /// Records why the guest is stopped.
    #[cold]
    pub fn stop(&mut self, call: &str, refusal: GuestStop) -> StoppedByHost {
        let fault = match refusal {
            GuestStop::Range { pointer, length } => Fault::trap(
                "out_of_bounds",
                format!("{call}: {length} bytes at {pointer} lie outside of the guest's memory"),
            ),
            GuestStop::Limit { limit, max } | GuestStop::Op(OpError::Limit { limit, max }) => Fault::limit(limit, max),
            GuestStop::Fuel { max } => Fault::fuel(max),
            GuestStop::Op(OpError::KeyTooLong { key }) => Fault::key_too_long(&key),
            GuestStop::Op(OpError::Ended(ended)) => Fault::ended(ended),
            GuestStop::Guest(message) | GuestStop::Op(OpError::Guest(message)) => {
                Fault::guest(format!("{call}: {message}"))
            }
            GuestStop::Op(OpError::DuplicateKey { index }) => {
                Fault::guest(format!("{call}: duplicate key in index {index}"))
            }
            GuestStop::Exit { code } => Fault::trap("exit", format!("{call}: the guest exited with code {code}")),
            GuestStop::Panic(text) => Fault::trap(PANIC_TRAP, text),
            GuestStop::NoTransaction => Fault::guest(format!(
                "{call}: not available while the module starts or describes itself"
            )),
        };
        self.fault = Some(fault);
        StoppedByHost
    }

    #[inline]
    fn transaction(&mut self) -> Option<&mut dyn HostOps> {
        transaction_of(&mut self.ops).ok()
    }

    #[inline]
    pub fn ops(&mut self) -> Answer<&mut dyn HostOps> {
        transaction_of(&mut self.ops)
    }

    /// Counts bytes that a host call reads or moves, so that fuel spent on calls bounds the time of a transaction.
    #[inline]
    pub fn charge(&mut self, bytes: usize) -> Answer<()> {
        match self.bytes_left.checked_sub(bytes as u64) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => self.charge_more(bytes as u64),
        }
    }

    #[cold]
    fn charge_more(&mut self, bytes: u64) -> Answer<()> {
        let used = self.bytes_given - self.bytes_left + bytes;
        if used > HOST_CALL_BYTES_MAX.saturating_mul(self.ask()?) {
            return Err(GuestStop::Limit {
                limit: "host_call_bytes",
                max: HOST_CALL_BYTES_MAX,
            });
        }
        self.bytes_left = BYTES_SLICE;
        self.bytes_given = used + BYTES_SLICE;
        Ok(())
    }

    #[inline]
    pub fn args_read(&mut self, pointer: u32) -> Answer<()> {
        let memory = self.memory;
        let args = self.ops()?.args();
        let bytes = args.len();
        memory.write_at(pointer, args)?;
        self.charge(bytes)
    }

    #[inline]
    pub fn result_write(&mut self, slice: u64) -> Answer<()> {
        // SAFETY: last used before this call writes to guest memory.
        let bytes = unsafe { self.memory.read(slice) }?;
        if bytes.len() > RESULT_BYTES_MAX {
            return Err(GuestStop::Limit {
                limit: "result_bytes",
                max: RESULT_BYTES_MAX as u64,
            });
        }
        self.charge(bytes.len())?;
        Ok(self.ops()?.set_result(bytes)?)
    }

    /// Takes the result of an entry that left `length` bytes of it in its buffer.
    #[inline]
    pub fn result_from_buffer(&mut self, length: u32) -> Answer<()> {
        let (pointer, room) = unpack(self.result_buffer);
        if length > room {
            return Err(GuestStop::Range { pointer, length });
        }
        self.result_write(u64::from(pointer) | u64::from(length) << 32)
    }

    #[inline]
    pub fn get(&mut self, target: u32, key: u64, out: u64) -> Answer<i64> {
        // SAFETY: last used before this call writes to guest memory.
        let key = unsafe { self.memory.read(key) }?;
        self.charge(key.len())?;
        let mut out = GuestOutput::new(self.memory, out)?;
        let Some((handle, row)) = self.ops()?.get(IndexTarget::unpack(target), key)? else {
            return Ok(-1);
        };
        let length = row.len();
        if length <= out.capacity {
            out.push(row);
        }
        self.charge(length)?;
        Ok((u64::from(handle) << 32 | length as u64) as i64)
    }

    #[inline]
    pub fn exists(&mut self, target: u32, key: u64) -> Answer<i32> {
        // SAFETY: last used before this call writes to guest memory.
        let key = unsafe { self.memory.read(key) }?;
        self.charge(key.len())?;
        Ok(self.ops()?.exists(IndexTarget::unpack(target), key)? as i32)
    }

    pub fn multi_get(&mut self, target: u32, slice: u64, count: u32, out: u64) -> Answer<i64> {
        // SAFETY: last used before this call writes to guest memory.
        let keys = unsafe { self.memory.read(slice) }?;
        self.charge(keys.len())?;
        let mut out = GuestOutput::new(self.memory, out)?;
        // The rows are written to guest memory while the keys are still read, so the keys can't be borrowed from there.
        let mut copy = std::mem::take(&mut self.keys);
        copy.clear();
        copy.extend_from_slice(keys);
        let (mut needed, mut fits) = (0, true);
        let items = PackedItems::new(&copy, count);
        let items = items.ok_or_else(|| run_past_end(self.memory, slice, "keys"));
        let result = items.and_then(|keys| {
            let visit = &mut |handle, row: &[u8]| {
                needed += ROW_HEADER_BYTES + row.len();
                fits = fits && out.try_push_row(handle, row);
            };
            Ok(self.ops()?.multi_get(IndexTarget::unpack(target), keys, visit)?)
        });
        self.keys = copy;
        result?;
        self.charge(needed)?;
        Ok(if fits { needed as i64 } else { -(needed as i64) })
    }

    #[inline]
    pub fn row_read(&mut self, handle: u32, out: u64) -> Answer<i32> {
        let mut out = GuestOutput::new(self.memory, out)?;
        let row = self.ops()?.row(handle)?;
        let length = row.len();
        if length <= out.capacity {
            out.push(row);
        }
        self.charge(length)?;
        Ok(length as i32)
    }

    #[inline]
    pub fn insert(&mut self, table: u32, row: u64) -> Answer<i64> {
        // SAFETY: last used before this call writes to guest memory.
        let row = unsafe { self.memory.read(row) }?;
        let table = narrow(table, "table")?;
        self.charge(row.len())?;
        let result = self.ops()?.insert(table, row);
        or_duplicate(result.map(i64::from))
    }

    pub fn multi_insert(&mut self, table: u32, slice: u64, count: u32) -> Answer<i64> {
        // SAFETY: last used before this call writes to guest memory.
        let rows = unsafe { self.memory.read(slice) }?;
        let table = narrow(table, "table")?;
        self.charge(rows.len())?;
        let items = PackedItems::new(rows, count);
        let rows = items.ok_or_else(|| run_past_end(self.memory, slice, "rows"))?;
        let result = self.ops()?.multi_insert(table, rows);
        or_duplicate(result.map(i64::from))
    }

    #[inline]
    pub fn update(&mut self, handle: u32, row: u64) -> Answer<i64> {
        // SAFETY: last used before this call writes to guest memory.
        let row = unsafe { self.memory.read(row) }?;
        self.charge(row.len())?;
        let result = self.ops()?.update(handle, row);
        or_duplicate(result.map(|()| 0))
    }

    #[inline]
    pub fn delete(&mut self, handle: u32) -> Answer<()> {
        Ok(self.ops()?.delete(handle)?)
    }

    #[inline]
    pub fn add(&mut self, handle: u32, column: u32, delta: i64) -> Answer<i64> {
        let column = narrow(column, "column")?;
        Ok(self.ops()?.add(handle, column, delta)?)
    }

    #[inline]
    pub fn add_by_key(&mut self, what: u64, key: u64, delta: i64, out: u64) -> Answer<i32> {
        // SAFETY: last used before this call writes to guest memory.
        let key = unsafe { self.memory.read(key) }?;
        self.charge(key.len())?;
        let mut out = GuestOutput::new(self.memory, out)?;
        let (target, column) = unpack(what);
        let (target, column) = (IndexTarget::unpack(target), narrow(column, "column")?);
        let Some(value) = self.ops()?.add_by_key(target, key, column, delta)? else {
            return Ok(0);
        };
        if let Some(room) = out.room(size_of::<i64>()) {
            room.copy_from_slice(&value.to_le_bytes());
        }
        Ok(1)
    }

    pub fn scan(&mut self, request: u32, out: u64) -> Answer<i64> {
        let mut out = GuestOutput::new(self.memory, out)?;
        let request = request_of(self.memory, request, &mut self.lower, &mut self.upper)?;
        let visit = &mut |handle, row: &[u8]| out.try_push_row(handle, row);
        let batch = transaction_of(&mut self.ops)?.scan(&request, visit)?;
        self.scanned(batch.cursor, out.filled)
    }

    pub fn scan_next(&mut self, cursor: u32, out: u64) -> Answer<i64> {
        let mut out = GuestOutput::new(self.memory, out)?;
        let batch = self
            .ops()?
            .scan_next(cursor, &mut |handle, row| out.try_push_row(handle, row))?;
        self.scanned(batch.cursor, out.filled)
    }

    pub fn scan_close(&mut self, cursor: u32) -> Answer<()> {
        Ok(self.ops()?.scan_close(cursor)?)
    }

    pub fn scanned(&mut self, cursor: u32, filled: usize) -> Answer<i64> {
        self.charge(filled)?;
        Ok((u64::from(cursor) << 32 | filled as u64) as i64)
    }

    pub fn count(&mut self, request: u32) -> Answer<i64> {
        let request = request_of(self.memory, request, &mut self.lower, &mut self.upper)?;
        let rows = transaction_of(&mut self.ops)?.count(&request)?;
        i64::try_from(rows).map_err(|_| GuestStop::Guest("count out of range".to_owned()))
    }

    pub fn savepoint(&mut self) -> Answer<i32> {
        Ok(self.ops()?.savepoint()? as i32)
    }

    pub fn rollback_to(&mut self, savepoint: u32) -> Answer<()> {
        Ok(self.ops()?.rollback_to(savepoint)?)
    }

    /// Returns the transaction's time, or a constant while the module starts.
    #[inline]
    pub fn now_us(&mut self) -> i64 {
        self.transaction().map_or(START_TIME_US, |ops| ops.now_us())
    }

    /// Returns a number of the transaction's stream, or of a constant one while the module starts.
    #[inline]
    pub fn random_u64(&mut self) -> u64 {
        if let Some(ops) = self.transaction() {
            return ops.random_u64();
        }
        self.start_random.next_u64()
    }

    pub fn txn_id(&mut self) -> Answer<i64> {
        Ok(self.ops()?.txn_id() as i64)
    }

    pub fn caller(&mut self, out: u64) -> Answer<i32> {
        let mut out = GuestOutput::new(self.memory, out)?;
        let name = self.ops()?.caller().unwrap_or_default();
        let length = name.len();
        if length <= out.capacity {
            out.push(name.as_bytes());
        }
        self.charge(length)?;
        Ok(length as i32)
    }

    pub fn log(&mut self, level: u32, text: u64) -> Answer<()> {
        // SAFETY: last used before this call writes to guest memory.
        let text = unsafe { self.memory.read(text) }?;
        let level = LogLevel::from_bits(level).ok_or_else(|| GuestStop::Guest(format!("unknown log level {level}")))?;
        self.log_bytes(level, text)
    }

    /// Logs text of a guest; while the module starts it is dropped.
    pub fn log_bytes(&mut self, level: LogLevel, text: &[u8]) -> Answer<()> {
        log_fits(text.len())?;
        self.charge(text.len())?;
        match self.ops() {
            Ok(ops) => Ok(ops.log(level, &String::from_utf8_lossy(text))?),
            Err(_) => Ok(()),
        }
    }

    /// Ends the guest with its own message, of which the beginning is kept. The procedure's log gets it, too, if it has room.
    pub fn panic(&mut self, text: u64) -> Answer<()> {
        // SAFETY: last used before this call writes to guest memory.
        let text = unsafe { self.memory.read(text) }?;
        let text = beginning_of(text, PANIC_TEXT_BYTES_MAX);
        self.charge(text.len())?;
        if let Ok(ops) = self.ops() {
            _ = ops.log(LogLevel::Error, &text);
        }
        Err(GuestStop::Panic(text))
    }

    pub fn abort(&mut self, code: u64, message: u64) -> Answer<()> {
        // SAFETY: this call writes nothing to guest memory.
        let (code, message) = unsafe { (self.memory.read(code)?, self.memory.read(message)?) };
        let code = text_within(code, "abort_code_bytes", ABORT_CODE_BYTES_MAX)?;
        let message = text_within(message, "abort_message_bytes", ABORT_MESSAGE_BYTES_MAX)?;
        self.ops()?.abort(code, message);
        self.aborted = true;
        Ok(())
    }
}

/// Decodes a scan request; its bounds are copied out of guest memory.
#[inline]
pub(crate) fn request_of<'a>(
    memory: GuestMemory,
    pointer: u32,
    lower: &'a mut Vec<u8>,
    upper: &'a mut Vec<u8>,
) -> Answer<ScanRequest<'a>> {
    // SAFETY: nothing is written before the request and its bounds are copied.
    let bytes = unsafe { memory.read_at(pointer, SCAN_REQUEST_BYTES) }?;
    let word = |index: usize| u32::from_le_bytes(bytes[index * 4..][..4].try_into().expect("4 bytes"));
    let flags = ScanFlags(word(1));
    if !flags.is_known() || word(7) != 0 {
        return Err(GuestStop::Guest("scan request has unknown flags".to_owned()));
    }
    let (target, limit) = (IndexTarget::unpack(word(0)), word(2));
    // SAFETY: as above.
    let bounds = unsafe { (memory.read_at(word(3), word(4))?, memory.read_at(word(5), word(6))?) };
    if bounds.0.len() > KEY_BYTES_MAX || bounds.1.len() > KEY_BYTES_MAX {
        return Err(GuestStop::Op(OpError::KeyTooLong {
            key: "a bound of a scan".to_owned(),
        }));
    }
    for (copy, bound) in [(&mut *lower, bounds.0), (&mut *upper, bounds.1)] {
        copy.clear();
        copy.extend_from_slice(bound);
    }
    Ok(ScanRequest {
        target,
        flags,
        limit,
        lower,
        upper,
    })
}

/// Returns a transaction whose lifetime is erased.
///
/// # Safety
/// The caller drops the result before the borrow of `ops` ends.
#[inline]
unsafe fn outlive(ops: &mut (dyn HostOps + '_)) -> NonNull<dyn HostOps> {
    let ops: NonNull<dyn HostOps + '_> = NonNull::from(ops);
    // SAFETY: only the lifetime changes; the contract keeps the referent alive and exclusive as long as it is used.
    unsafe { std::mem::transmute::<NonNull<dyn HostOps + '_>, NonNull<dyn HostOps + 'static>>(ops) }
}

/// The transaction behind `HostState::ops`, borrowed apart from the rest of the state.
#[inline]
pub(crate) fn transaction_of(ops: &mut Option<NonNull<dyn HostOps>>) -> Answer<&mut dyn HostOps> {
    // SAFETY: set by `begin_call`, whose caller keeps the borrow exclusive until `end_call`; the result borrows the field,
    // so two of them never live at once.
    let ops = ops.as_mut().map(|ops| unsafe { ops.as_mut() as &mut dyn HostOps });
    ops.ok_or(GuestStop::NoTransaction)
}

/// Refuses a text that alone passes the limit of a transaction's log, before it is copied.
pub(crate) fn log_fits(bytes: usize) -> Answer<()> {
    if bytes > GUEST_LOG_BYTES_MAX {
        return Err(GuestStop::Limit {
            limit: "log_bytes",
            max: GUEST_LOG_BYTES_MAX as u64,
        });
    }
    Ok(())
}

/// Returns the beginning of a text: at most `bytes_max` bytes, of whole characters.
fn beginning_of(text: &[u8], bytes_max: usize) -> String {
    let cut = &text[..text.len().min(bytes_max)];
    let whole = match std::str::from_utf8(cut) {
        // The text was cut within a character, which is no mistake of the guest.
        Err(error) if cut.len() < text.len() && error.error_len().is_none() => &cut[..error.valid_up_to()],
        _ => cut,
    };
    String::from_utf8_lossy(whole).into_owned()
}

fn text_within<'a>(bytes: &'a [u8], limit: &'static str, max: usize) -> Answer<&'a str> {
    if bytes.len() > max {
        return Err(GuestStop::Limit { limit, max: max as u64 });
    }
    std::str::from_utf8(bytes).map_err(|_| GuestStop::Guest("text is not UTF-8".to_owned()))
}

/// Returns the refusal for items that do not lie in their slice: outside of the memory, or miscounted by the guest.
#[cold]
pub(crate) fn run_past_end(memory: GuestMemory, slice: u64, what: &str) -> GuestStop {
    let (mut at, length) = unpack(slice);
    let end = u64::from(at) + u64::from(length);
    while u64::from(at) <= end {
        let item = memory.read_u32(at).and_then(|bytes| {
            memory.check(at.saturating_add(4), bytes)?;
            Ok(bytes)
        });
        match item {
            Ok(bytes) => at = at.saturating_add(4).saturating_add(bytes),
            Err(refusal) => return refusal,
        }
    }
    GuestStop::Guest(format!("{what} run past the end of their slice"))
}

#[inline]
pub(crate) fn narrow(number: u32, what: &str) -> Answer<u16> {
    u16::try_from(number).map_err(|_| GuestStop::Guest(format!("no {what} {number}")))
}

/// Turns a duplicate key into the return code that the guest may handle.
#[inline]
pub(crate) fn or_duplicate(result: Result<i64, OpError>) -> Answer<i64> {
    match result {
        Err(OpError::DuplicateKey { index }) => Ok(-2 - i64::from(index)),
        other => Ok(other?),
    }
}
