//! Descriptors of files and sockets: how many this process may have, and opens that wait for one.

use std::{
    io, thread,
    time::{Duration, Instant},
};

/// Longest wait of an open for a descriptor, and the time between two tries.
const WAIT_MAX: Duration = Duration::from_secs(2);
const RETRY_AFTER: Duration = Duration::from_millis(10);

/// Raises the limit of this process to the most that it may have. Returns how many descriptors that are.
#[allow(unsafe_code)]
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is valid for the length of the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let raised = libc::rlimit {
        rlim_cur: limit.rlim_max,
        ..limit
    };
    // SAFETY: the pointer is valid for the length of the call.
    Ok(match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raised) } {
        0 => raised.rlim_cur,
        _ => limit.rlim_cur, // the limit stays as it was
    })
}

/// Ignores two signals that would end this process by default. A write beyond the limit of a file's size then fails, and a hang-up
/// before its handler is set has no effect.
#[allow(unsafe_code)]
pub fn ignore_signals() {
    for signal in [libc::SIGXFSZ, libc::SIGHUP] {
        // SAFETY: no handler is set; an ignored signal calls nothing.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

fn is_lack_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Opens a descriptor. If this process or the machine has none left, it retries for some time. No work has begun yet, and a descriptor
/// becomes free when a connection ends.
pub(crate) fn with_descriptor<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let until = Instant::now() + WAIT_MAX;
    loop {
        match open() {
            Err(error) if is_lack_of_descriptors(&error) && Instant::now() < until => thread::sleep(RETRY_AFTER),
            opened => return opened,
        }
    }
}

/// Opens something that others can be used in place of. Err: only the lack of descriptors; None: it is not to be had.
pub(crate) fn with_descriptor_or_none<T>(open: impl FnMut() -> io::Result<T>) -> io::Result<Option<T>> {
    match with_descriptor(open) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if is_lack_of_descriptors(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_is_tried_again_when_descriptors_are_lacking_and_for_no_other_reason() {
        let opened_after = |failures: u32, code: i32| {
            let mut tries = 0;
            let opened = with_descriptor(|| {
                tries += 1;
                match tries > failures {
                    true => Ok(()),
                    false => Err(io::Error::from_raw_os_error(code)),
                }
            });
            (opened.is_ok(), tries)
        };
        assert_eq!(opened_after(3, libc::EMFILE), (true, 4));
        assert_eq!(opened_after(3, libc::ENFILE), (true, 4));
        assert_eq!(opened_after(3, libc::ENOENT), (false, 1));
        let never = || Err::<(), _>(io::Error::from_raw_os_error(libc::EMFILE));
        assert!(with_descriptor_or_none(never).is_err());
        let refused = || Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL));
        assert!(matches!(with_descriptor_or_none(refused), Ok(None)));
    }
}
