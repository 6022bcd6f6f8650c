//! The deterministic part of WASI preview 1, for guests of other languages. The clock is the transaction's time, randomness its stream,
//! standard output its log. There are no arguments, no environment and no files.

use reprise_abi::LogLevel;
use wasmtime::{Caller, FuncType, Linker, Val, ValType};

use crate::{
    calls::{Import, define},
    state::{Answer, GuestStop, HostState, log_fits},
};

const MODULE: &str = "wasi_snapshot_preview1";

const ERRNO_SUCCESS: i32 = 0;
const ERRNO_BADF: i32 = 8;
const ERRNO_INVAL: i32 = 28;
const ERRNO_NOTSUP: i32 = 58;
const ERRNO_SPIPE: i32 = 70;

const NANOS_PER_US: i64 = 1_000;
/// The resolution of the transaction's clock.
const CLOCK_RESOLUTION_NANOS: i64 = NANOS_PER_US;
const STDOUT: u32 = 1;
const STDERR: u32 = 2;
/// Number of buffers of one `fd_write` and of subscriptions of one `poll_oneoff` at most.
const VECTORS_MAX: u32 = 1_024;
const VECTOR_BYTES: usize = 8;
const SUBSCRIPTION_BYTES: u32 = 48;
const EVENT_BYTES: u32 = 32;
const FILETYPE_CHARACTER_DEVICE: u8 = 2;
const RIGHTS_FD_WRITE: u64 = 1 << 6;

const fn import(name: &'static str, signature: &'static str) -> Import {
    Import {
        module: MODULE,
        name,
        signature,
    }
}

pub(crate) const IMPORTS: [Import; 31] = [
    import("args_get", "ii>i"),
    import("args_sizes_get", "ii>i"),
    import("environ_get", "ii>i"),
    import("environ_sizes_get", "ii>i"),
    import("clock_res_get", "ii>i"),
    import("clock_time_get", "iIi>i"),
    import("random_get", "ii>i"),
    import("fd_write", "iiii>i"),
    import("fd_fdstat_get", "ii>i"),
    import("fd_seek", "iIii>i"),
    import("poll_oneoff", "iiii>i"),
    import("sched_yield", ">i"),
    import("proc_exit", "i>"),
    import("fd_close", "i>i"),
    import("fd_datasync", "i>i"),
    import("fd_fdstat_set_flags", "ii>i"),
    import("fd_filestat_get", "ii>i"),
    import("fd_filestat_set_size", "iI>i"),
    import("fd_pread", "iiiIi>i"),
    import("fd_prestat_dir_name", "iii>i"),
    import("fd_prestat_get", "ii>i"),
    import("fd_pwrite", "iiiIi>i"),
    import("fd_read", "iiii>i"),
    import("fd_readdir", "iiiIi>i"),
    import("fd_renumber", "ii>i"),
    import("fd_sync", "i>i"),
    import("fd_tell", "ii>i"),
    import("path_create_directory", "iii>i"),
    import("path_filestat_get", "iiiii>i"),
    import("path_open", "iiiiiIIii>i"),
    import("path_unlink_file", "iii>i"),
];

/// The first of the imports that only answer that there is no such file.
const FIRST_WITHOUT_FILE: usize = 13;

pub(crate) fn link(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    define!(linker, MODULE, "args_get", (_argv: u32, _data: u32) -> i32, |_s| Ok(ERRNO_SUCCESS));
    define!(linker, MODULE, "args_sizes_get", (count: u32, bytes: u32) -> i32, |s| {
        s.write_zeros(count, bytes)
    });
    define!(linker, MODULE, "environ_get", (_env: u32, _data: u32) -> i32, |_s| Ok(ERRNO_SUCCESS));
    define!(linker, MODULE, "environ_sizes_get", (count: u32, bytes: u32) -> i32, |s| {
        s.write_zeros(count, bytes)
    });
    define!(linker, MODULE, "clock_res_get", (_clock: u32, out: u32) -> i32, |s| {
        s.memory.write_at(out, &CLOCK_RESOLUTION_NANOS.to_le_bytes()).map(|()| ERRNO_SUCCESS)
    });
    define!(linker, MODULE, "clock_time_get", (_clock: u32, _precision: u64, out: u32) -> i32, |s| {
        let nanos = s.now_us().wrapping_mul(NANOS_PER_US);
        s.memory.write_at(out, &nanos.to_le_bytes()).map(|()| ERRNO_SUCCESS)
    });
    define!(linker, MODULE, "random_get", (out: u32, bytes: u32) -> i32, |s| s.random_get(out, bytes));
    define!(linker, MODULE, "fd_write", (fd: u32, vectors: u32, count: u32, written: u32) -> i32, |s| {
        s.fd_write(fd, vectors, count, written)
    });
    define!(linker, MODULE, "fd_fdstat_get", (fd: u32, out: u32) -> i32, |s| s.fd_fdstat_get(fd, out));
    define!(linker, MODULE, "fd_seek", (fd: u32, _offset: u64, _whence: u32, _out: u32) -> i32, |_s| {
        Ok(if fd <= STDERR { ERRNO_SPIPE } else { ERRNO_BADF })
    });
    define!(linker, MODULE, "poll_oneoff", (subs: u32, events: u32, count: u32, out: u32) -> i32, |s| {
        s.poll_oneoff(subs, events, count, out)
    });
    define!(linker, MODULE, "sched_yield", () -> i32, |_s| Ok(ERRNO_SUCCESS));
    define!(linker, MODULE, "proc_exit", (code: u32) -> (), |_s| Err(GuestStop::Exit { code }));
    for import in &IMPORTS[FIRST_WITHOUT_FILE..] {
        link_without_file(linker, import)?;
    }
    Ok(())
}

/// Links a call on a file, which never exists.
fn link_without_file(linker: &mut Linker<HostState>, import: &Import) -> wasmtime::Result<()> {
    let (params, results) = import.signature.split_once('>').unwrap_or((import.signature, ""));
    let types = |text: &str| -> Vec<ValType> {
        text.chars()
            .map(|c| if c == 'I' { ValType::I64 } else { ValType::I32 })
            .collect()
    };
    let ty = FuncType::new(linker.engine(), types(params), types(results));
    linker.func_new(MODULE, import.name, ty, |_: Caller<'_, HostState>, _, results| {
        results[0] = Val::I32(ERRNO_BADF);
        Ok(())
    })?;
    Ok(())
}

impl HostState {
    fn write_zeros(&mut self, first: u32, second: u32) -> Answer<i32> {
        self.memory.write_at(first, &[0; 4])?;
        self.memory.write_at(second, &[0; 4])?;
        Ok(ERRNO_SUCCESS)
    }

    fn random_get(&mut self, out: u32, bytes: u32) -> Answer<i32> {
        self.charge(bytes as usize)?;
        let (mut at, mut left) = (out, bytes);
        self.memory.check(at, left)?;
        while left > 0 {
            let word = self.random_u64().to_le_bytes();
            let take = left.min(8);
            self.memory.write_at(at, &word[..take as usize])?;
            at += take;
            left -= take;
        }
        Ok(ERRNO_SUCCESS)
    }

    fn fd_write(&mut self, fd: u32, vectors: u32, count: u32, written: u32) -> Answer<i32> {
        let level = match fd {
            STDOUT => LogLevel::Info,
            STDERR => LogLevel::Warn,
            _ => return Ok(ERRNO_BADF),
        };
        if count > VECTORS_MAX {
            return Ok(ERRNO_INVAL);
        }
        self.charge(count as usize * VECTOR_BYTES)?;
        let mut text = Vec::new();
        for index in 0..count {
            let at = vectors.saturating_add(index * VECTOR_BYTES as u32);
            // SAFETY: nothing is written before the text was copied.
            let vector = unsafe { self.memory.read_at(at, VECTOR_BYTES as u32) }?;
            let (low, high) = vector.split_at(4);
            let pointer = u32::from_le_bytes(low.try_into().expect("4 bytes"));
            let length = u32::from_le_bytes(high.try_into().expect("4 bytes"));
            // SAFETY: as above.
            let bytes = unsafe { self.memory.read_at(pointer, length) }?;
            self.charge(bytes.len())?;
            log_fits(text.len() + bytes.len())?;
            text.extend_from_slice(bytes);
        }
        let total = text.len() as u32;
        let line = text.strip_suffix(b"\n").unwrap_or(&text);
        if !line.is_empty() {
            self.log_bytes(level, line)?;
        }
        self.memory.write_at(written, &total.to_le_bytes())?;
        Ok(ERRNO_SUCCESS)
    }

    fn fd_fdstat_get(&mut self, fd: u32, out: u32) -> Answer<i32> {
        if fd > STDERR {
            return Ok(ERRNO_BADF);
        }
        let mut stat = [0; 24];
        stat[0] = FILETYPE_CHARACTER_DEVICE;
        stat[8..16].copy_from_slice(&RIGHTS_FD_WRITE.to_le_bytes());
        self.memory.write_at(out, &stat)?;
        Ok(ERRNO_SUCCESS)
    }

    /// Ends a wait for the clock at once, because time stands still in a transaction. A wait for anything else is refused.
    fn poll_oneoff(&mut self, subs: u32, events: u32, count: u32, out: u32) -> Answer<i32> {
        if count == 0 || count > VECTORS_MAX {
            return Ok(ERRNO_INVAL);
        }
        self.charge((count * (SUBSCRIPTION_BYTES + EVENT_BYTES)) as usize)?;
        // SAFETY: copied at once.
        let subscriptions = unsafe { self.memory.read_at(subs, count * SUBSCRIPTION_BYTES) }?.to_vec();
        let chunks = subscriptions.chunks_exact(SUBSCRIPTION_BYTES as usize);
        if chunks.clone().any(|subscription| subscription[8] != 0) {
            return Ok(ERRNO_NOTSUP);
        }
        for (index, subscription) in chunks.enumerate() {
            let mut event = [0; EVENT_BYTES as usize];
            event[..8].copy_from_slice(&subscription[..8]);
            let at = events.saturating_add(index as u32 * EVENT_BYTES);
            self.memory.write_at(at, &event)?;
        }
        self.memory.write_at(out, &count.to_le_bytes())?;
        Ok(ERRNO_SUCCESS)
    }
}
