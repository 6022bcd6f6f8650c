//! Linear memories: one mapping each, reserved once, never moved.

use std::{io, ptr};

use wasmtime::{LinearMemory, MemoryCreator, MemoryType};

/// Bytes of a page of the processor's memory protection.
pub(crate) const PAGE_BYTES: usize = 4096;

/// Hands wasmtime memories whose pages the hot set may protect.
pub(crate) struct Creator;

/// A mapping of `accessible` bytes of memory followed by address space that faults.
struct Mapping {
    base: *mut u8,
    mapped: usize,
    accessible: usize,
}

// SAFETY: the mapping has one owner, the store that it was made for; wasmtime asks for both markers because stores move
// between threads.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out only numbers and the base address.
unsafe impl Sync for Mapping {}

// SAFETY: as the trait asks, a memory is zero-filled (anonymous mapping), and its base never moves. It has `reserved + guard` bytes of
// address space, of which all beyond the minimum are inaccessible.
unsafe impl MemoryCreator for Creator {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        maximum: Option<usize>,
        reserved_size_in_bytes: Option<usize>,
        guard_size_in_bytes: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        if maximum != Some(minimum) {
            return Err("memory must be rewritten to a fixed size".to_owned());
        }
        let reserved = reserved_size_in_bytes.unwrap_or(0).max(minimum);
        let mapped = reserved
            .checked_add(guard_size_in_bytes)
            .filter(|bytes| *bytes > 0)
            .ok_or("memory reservation out of range")?;
        Mapping::new(mapped, minimum)
            .map(|mapping| Box::new(mapping) as Box<dyn LinearMemory>)
            .map_err(|error| format!("map guest memory: {error}"))
    }
}

impl Mapping {
    fn new(mapped: usize, accessible: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self {
            base: base.cast(),
            mapped,
            accessible,
        };
        if accessible > 0 {
            protect(mapping.base, accessible, Protection::ReadWrite)?;
            // SAFETY: the range lies in the mapping just made. A refusal of the advice changes nothing but speed: a huge
            // page would make the first write to a cold page clear 2 MiB.
            unsafe { libc::madvise(base, accessible, libc::MADV_NOHUGEPAGE) };
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and wasmtime drops a memory only with its store, when nothing runs in it.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}

// SAFETY: size and base never change after creation; `grow_to` refuses.
unsafe impl LinearMemory for Mapping {
    fn byte_size(&self) -> usize {
        self.accessible
    }

    fn byte_capacity(&self) -> usize {
        self.accessible
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        if new_size == self.accessible {
            return Ok(());
        }
        Err(wasmtime::Error::msg("memory has a fixed size"))
    }

    fn as_ptr(&self) -> *mut u8 {
        self.base
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Protection {
    Read,
    ReadWrite,
}

/// Sets the protection of a range of guest memory. Async-signal-safe (one system call).
pub(crate) fn protect(start: *mut u8, bytes: usize, protection: Protection) -> io::Result<()> {
    #[cfg(test)]
    if tests::is_refused() {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let flags = match protection {
        Protection::Read => libc::PROT_READ,
        Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: callers pass ranges inside a `Mapping`; a wrong range is answered by the kernel with an error.
    match unsafe { libc::mprotect(start.cast(), bytes, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Simulates a machine without mappings left, for tests.
#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    thread_local! {
        static REFUSED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    }

    /// Grants this thread the next `granted` requests, then refuses `refused` of them.
    pub fn refuse(granted: u32, refused: u32) {
        REFUSED.set((granted, refused));
    }

    pub fn is_refused() -> bool {
        let (granted, refused) = REFUSED.get();
        REFUSED.set(match granted {
            0 => (0, refused.saturating_sub(1)),
            _ => (granted - 1, refused),
        });
        granted == 0 && refused > 0
    }
}
