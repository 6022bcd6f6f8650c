//! Waiting for what another thread sends.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvError, TryRecvError};
use reprise_env::Threads;

/// Waits for the next of `receiver`. Err: nobody is left who could send.
pub fn receive<T>(threads: &dyn Threads, receiver: &Receiver<T>) -> Result<T, RecvError> {
    if !threads.is_stepped() {
        return receiver.recv();
    }
    loop {
        match receiver.try_recv() {
            Ok(received) => return Ok(received),
            Err(TryRecvError::Disconnected) => return Err(RecvError),
            Err(TryRecvError::Empty) => threads.help(),
        }
    }
}

/// How long a thread looks for what will soon be there before it sleeps: a few times what waking it takes.
pub(crate) const LOOK: Duration = Duration::from_micros(50);
/// The same while a partition is at a meeting, which is over when as many jobs as it runs are.
pub(crate) const LOOK_AWAY: Duration = Duration::from_micros(500);

/// Looks for a while; true as soon as `is_there` is. Other threads that want the processor come first.
pub fn is_soon(look: Duration, is_there: impl Fn() -> bool) -> bool {
    let until = Instant::now() + look;
    loop {
        for _ in 0..32 {
            if is_there() {
                return true;
            }
            std::hint::spin_loop();
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::yield_now();
    }
}
