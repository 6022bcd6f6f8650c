//! Requests to callgrind from within the program that it runs. Outside of valgrind a request does nothing.

use std::ffi::CStr;

/// Requests of callgrind (`callgrind.h`).
const TOOL: u64 = (b'C' as u64) << 24 | (b'T' as u64) << 16;
const DUMP_AT: u64 = TOOL + 3;
const START: u64 = TOOL + 4;
const STOP: u64 = TOOL + 5;

/// Begins to count, under `--instr-atstart=no`: what runs before is about ten times as fast.
pub fn start() {
    request(START, 0);
}

/// Ends the count.
pub fn stop() {
    request(STOP, 0);
}

/// Writes a file of the counts since the last dump, under this name.
pub fn dump(name: &CStr) {
    request(DUMP_AT, name.as_ptr() as u64);
}

/// A client request (`valgrind.h`): instructions that change no register, and that valgrind recognises.
#[cfg(target_arch = "x86_64")]
fn request(code: u64, argument: u64) {
    let request = [code, argument, 0, 0, 0, 0];
    // SAFETY: outside of valgrind the instructions change no register and no memory: the four rotations add up to 128 bits.
    // Valgrind reads the array, and the text that it points to, and answers in rdx.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdx") 0_u64 => _,
            in("rax") request.as_ptr(),
            options(nostack)
        );
    }
}

/// Valgrind has no such request here on another processor.
#[cfg(not(target_arch = "x86_64"))]
fn request(_: u64, _: u64) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_do_nothing_outside_of_callgrind() {
        start();
        dump(c"a name");
        stop();
    }
}
