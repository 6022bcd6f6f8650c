//! Waiting for what another thread sends.

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
