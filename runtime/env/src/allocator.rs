//! The allocator of the C library: how many arenas it makes.

/// Bounds the arenas by the number of processors, at least two. The library would make eight for each processor. Each arena keeps memory that
/// its threads freed, tens of megabytes in all, which no ledger can count. The caller does so before threads start. A bound in the
/// environment (`MALLOC_ARENA_MAX`) stays.
#[allow(unsafe_code)]
pub fn bound_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let arenas = libc::c_int::try_from(processors.max(2)).unwrap_or(libc::c_int::MAX);
        // SAFETY: it sets a number of the allocator, under the allocator's lock.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}
