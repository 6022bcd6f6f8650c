//! Ends threads whose disk may hang. A stop does not wait for such a disk: it still has to close the log.

use std::time::Duration;

use reprise_env::ThreadHandle;
use reprise_partition::Shared;

/// Longest time for which a stop waits for threads whose disk may hang.
const STOP_MAX: Duration = Duration::from_secs(5);
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Waits until the threads are over, but no longer than `STOP_MAX`. Threads that hang are left behind.
pub(crate) fn join_bounded(shared: &Shared, handles: Vec<Box<dyn ThreadHandle>>) {
    let until_ns = shared.clock.monotonic_ns() + STOP_MAX.as_nanos() as u64;
    while shared.clock.monotonic_ns() < until_ns {
        if handles.iter().all(|handle| handle.is_over()) {
            return handles.into_iter().for_each(|handle| handle.join());
        }
        shared.threads.sleep(STOP_POLL_INTERVAL);
    }
}
