//! The allocator of the C library: how many arenas it makes.

/// Bounds the arenas by the number of processors, at least two. The library would make eight for each, and keeps in each of them what any of
/// its threads freed: the resident size would grow by tens of megabytes that no ledger can count. Call it before threads start. A bound in
/// the environment (`MALLOC_ARENA_MAX`) stays.
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
