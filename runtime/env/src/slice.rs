//! How long a thread runs before others do, where more threads want to run than there are processors.

/// In nanoseconds: the least that Linux gives. A thread of the engine has mostly done what came to it in less.
const SLICE_NS: u64 = 100_000;

/// Has the calling thread run soon after it is woken, and not for long at once, though others on its processor run all the time. A group of the log passes
/// several threads, and each that gives way a moment before it sleeps would wait out a whole slice of theirs, some milliseconds. Linux from 6.12 on; elsewhere
/// it changes nothing.
#[allow(unsafe_code)]
pub fn ask_for_short_slices() {
    let bytes = size_of::<libc::sched_attr>();
    // SAFETY: it has numbers alone.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: it writes so many bytes at most; 0 names the calling thread.
    let told = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes, 0) };
    // Another policy is somebody's choice.
    if told == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: it reads as many bytes as the structure says that it has. Refused, nothing is different.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn a_prompt_thread_keeps_its_priority() {
        // SAFETY: no memory is touched.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS as _, 0) };
        let before = priority();
        let after = std::thread::spawn(move || {
            ask_for_short_slices();
            priority()
        });
        assert_eq!(after.join().expect("no panic"), before);
    }
}
