//! Work beside the engine, on one thread of low priority at a time, so that no engine thread waits for it.

use std::{panic::resume_unwind, sync::Mutex, thread};

/// Its priority, in the numbers of `nice`. Beside a thread of number 0 it gets about a tenth of a core.
const NICENESS: libc::c_int = 10;

/// Runs pieces of work in order.
#[derive(Default)]
pub(crate) struct Quiet {
    place: Mutex<()>,
}

impl Quiet {
    /// Runs `work` on a thread of its own, after all earlier work. A panic in it passes to the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        // A panic can leave nothing half done, because the lock protects no state.
        let _place = self.place.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let work = Mutex::new(Some(work));
        let once = || {
            let work = work.lock().map(|mut work| work.take()).ok().flatten();
            work.expect("taken once")()
        };
        let done = thread::scope(|scope| {
            let quietly = || {
                lower_priority();
                once()
            };
            let thread = thread::Builder::new()
                .name("compile".into())
                .spawn_scoped(scope, quietly);
            thread.ok().map(|thread| thread.join())
        });
        match done {
            Some(Ok(value)) => value,
            Some(Err(panic)) => resume_unwind(panic),
            // If the machine has no spare thread, the caller runs the work itself.
            None => once(),
        }
    }
}

/// Lowers the priority of the calling thread, for good.
fn lower_priority() {
    // SAFETY: no memory is touched; on Linux the number 0 names the calling thread. That it may fail changes nothing but speed.
    unsafe { libc::setpriority(libc::PRIO_PROCESS as _, 0, NICENESS) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn priority() -> libc::c_int {
        // SAFETY: no memory is touched.
        unsafe { libc::getpriority(libc::PRIO_PROCESS as _, 0) }
    }

    #[test]
    fn work_runs_one_at_a_time_with_low_priority_and_the_caller_keeps_its_own() {
        let (quiet, running) = (Quiet::default(), AtomicUsize::new(0));
        let before = priority();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let lowered = quiet.run(|| {
                        assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        running.fetch_sub(1, Ordering::SeqCst);
                        priority()
                    });
                    assert_eq!(lowered, before.max(NICENESS));
                    assert_eq!(priority(), before);
                });
            }
        });
        let panicked = std::panic::catch_unwind(|| quiet.run(|| panic!("as it should")));
        assert!(panicked.is_err());
        assert_eq!(quiet.run(|| 7), 7, "a panic leaves the place free");
    }
}
