//! How long a thread runs before others do, where more threads want to run than there are processors.

/// Nanoseconds of a slice: the least that Linux gives. A thread of the engine has mostly finished its work in less.
const SLICE_NS: u64 = 100_000;

/// Has the calling thread run soon after it is woken, and not for long at once. This holds although other threads on its processor run all
/// the time. A group of the log passes several threads. A thread that yields a moment before it sleeps would otherwise wait for a whole
/// slice of the others, some milliseconds. It works with Linux 6.12 and later, and changes nothing elsewhere.
#[allow(unsafe_code)]
pub fn ask_for_short_slices() {
    let bytes = size_of::<libc::sched_attr>();
    // SAFETY: it has numbers alone.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: it writes `bytes` bytes at most; 0 names the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes, 0) };
    // Another policy was set on purpose.
    if result == 0 && attributes.sched_policy == libc::SCHED_OTHER as u32 {
        attributes.sched_runtime = SLICE_NS;
        // SAFETY: it reads as many bytes as the structure says that it has. Refused, nothing is different.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scheduling attributes of the calling thread.
    #[allow(unsafe_code)]
    fn attributes() -> libc::sched_attr {
        // SAFETY: as above.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let bytes = size_of::<libc::sched_attr>();
        // SAFETY: as above.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, bytes, 0) };
        assert_eq!(result, 0);
        attributes
    }

    fn gives_slices() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0_u32));
        (numbers.next(), numbers.next()) >= (Some(6), Some(12))
    }

    #[test]
    fn a_prompt_thread_has_short_slices_and_keeps_its_priority() {
        let before = attributes();
        let after = std::thread::spawn(|| {
            ask_for_short_slices();
            attributes()
        });
        let after = after.join().expect("no panic");
        assert_eq!(
            (after.sched_policy, after.sched_nice),
            (before.sched_policy, before.sched_nice)
        );
        if gives_slices() {
            assert_eq!(after.sched_runtime, SLICE_NS);
        }
    }
}
