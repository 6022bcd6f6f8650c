//! Memory for arguments and results in a guest: the two buffers that host and guest share, and the heap.

use std::{cell::Cell, mem::ManuallyDrop};

/// Bytes on the heap, or those of the result's buffer.
pub struct OutBuffer {
    start: *mut u8,
    length: usize,
    /// Capacity of the block on the heap; 0 for the result's buffer, and for no bytes at all.
    capacity: usize,
}

/// The result's buffer has an owner. The host puts this back, as all memory, after each call.
struct IsLent(Cell<bool>);

// SAFETY: a guest has one thread: modules with shared memory are refused.
unsafe impl Sync for IsLent {}

static IS_RESULT_LENT: IsLent = IsLent(Cell::new(false));

impl OutBuffer {
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            start: std::ptr::dangling_mut(),
            length: 0,
            capacity: 0,
        }
    }

    #[inline(always)]
    pub fn zeroed(bytes: usize) -> Self {
        Self::from_heap(vec![0; bytes])
    }

    /// Memory for a result: the buffer from which the host takes it, for the first caller.
    #[inline(always)]
    pub fn for_result(bytes: usize) -> Self {
        match result_buffer().length == 0 || IS_RESULT_LENT.0.replace(true) {
            true => Self::zeroed(bytes),
            false => Self::of_result(),
        }
    }

    /// The result's buffer at the procedure's end, when no caller asks any more; nothing if it has an owner.
    #[inline(always)]
    pub(super) fn at_end() -> Self {
        match IS_RESULT_LENT.0.get() {
            true => Self::new(),
            false => Self::of_result(),
        }
    }

    /// The result's buffer, if it has no owner.
    #[inline(always)]
    fn of_result() -> Self {
        let buffer = result_buffer();
        Self {
            start: buffer.start as *mut u8,
            length: buffer.length,
            capacity: 0,
        }
    }

    #[inline(always)]
    fn from_heap(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        Self {
            start: bytes.as_mut_ptr(),
            length: bytes.len(),
            capacity: bytes.capacity(),
        }
    }

    /// Takes the bytes on the heap, and leaves none.
    #[inline(always)]
    fn take_heap(&mut self) -> Vec<u8> {
        let old = std::mem::take(self);
        let old = ManuallyDrop::new(old);
        match old.capacity {
            0 => Vec::new(),
            // SAFETY: start, length and capacity are those of the `Vec` in `from_heap`, and no longer the room's.
            capacity => unsafe { Vec::from_raw_parts(old.start, old.length, capacity) },
        }
    }

    /// Makes it longer, on the heap.
    #[cold]
    #[inline(never)]
    pub fn grow(&mut self, bytes: usize) {
        let heap = match self.capacity {
            0 => {
                let mut heap = Vec::with_capacity(bytes);
                heap.extend_from_slice(self);
                heap
            }
            _ => self.take_heap(),
        };
        let mut heap = heap;
        heap.resize(bytes, 0);
        *self = Self::from_heap(heap);
    }
}

impl Default for OutBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl std::ops::Deref for OutBuffer {
    type Target = [u8];
    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: these are `length` bytes of the room's own block, or of the buffer. Only one room has the buffer at a time (`for_result`,
        // `put_result`), and `set_result` writes to it only at the procedure's end.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }
}

impl std::ops::DerefMut for OutBuffer {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for OutBuffer {
    #[inline(always)]
    fn drop(&mut self) {
        if self.capacity > 0 {
            drop(self.take_heap());
        }
    }
}

unsafe extern "C" {
    /// Symbol whose address is the beginning of the stack, which grows downwards from there.
    static __stack_high: u8;
    /// Symbol whose address is the beginning of the linker's own data.
    static __global_base: u8;
}

/// Bytes that only host and entry use.
#[derive(Clone, Copy)]
pub(super) struct SharedBuffer {
    pub start: usize,
    pub length: usize,
}

const ARGS_BUFFER_BYTES: usize = 320;
const RESULT_BUFFER_BYTES: usize = 704;

/// The room that the linker leaves between the stack and the data. It is on the page that the stack dirties anyway, so a call costs no
/// further page. Without such room there are no buffers. The linker knows all of this, so the host's compiler makes constants of it.
#[inline(always)]
fn buffers() -> (SharedBuffer, SharedBuffer) {
    let start = &raw const __stack_high as usize;
    let room = (&raw const __global_base as usize).saturating_sub(start);
    let fits = room >= ARGS_BUFFER_BYTES + RESULT_BUFFER_BYTES;
    let buffer = |start, length| SharedBuffer {
        start,
        length: if fits { length } else { 0 },
    };
    (
        buffer(start, ARGS_BUFFER_BYTES),
        buffer(start.wrapping_add(ARGS_BUFFER_BYTES), RESULT_BUFFER_BYTES),
    )
}

#[inline(always)]
pub(super) fn args_buffer() -> SharedBuffer {
    buffers().0
}

#[inline(always)]
pub(super) fn result_buffer() -> SharedBuffer {
    buffers().1
}

/// Return value of `reprise_args_buffer`.
pub fn args_buffer_slice() -> u64 {
    args_buffer().packed()
}

/// Return value of `reprise_result_buffer`.
pub fn result_buffer_slice() -> u64 {
    result_buffer().packed()
}

impl SharedBuffer {
    fn packed(self) -> u64 {
        match self.length {
            0 => 0,
            length => self.start as u64 | (length as u64) << 32,
        }
    }
}
