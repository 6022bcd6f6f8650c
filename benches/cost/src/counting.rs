//! Requests to valgrind: callgrind counts from the first measured call on, and the load before it runs ten times as fast.

/// Begins the counting under `valgrind --tool=callgrind --instr-atstart=no`. Elsewhere it does nothing.
#[cfg(target_arch = "x86_64")]
pub fn begin() {
    /// `CALLGRIND_START_INSTRUMENTATION` of `valgrind/callgrind.h`.
    const START_INSTRUMENTATION: u64 = 0x4354_0004;
    let request = [START_INSTRUMENTATION, 0, 0, 0, 0, 0];
    // SAFETY: valgrind recognises this row of instructions. A processor rotates `rdi` by 128 bits in all and exchanges `rbx` with itself, which
    // changes neither. Valgrind reads the request behind `rax` and writes `rdx` alone.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") 0_u64 => _,
        );
    }
}

/// As above, on a processor for which nobody wrote the request.
#[cfg(not(target_arch = "x86_64"))]
pub fn begin() {}
