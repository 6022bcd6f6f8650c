//! Finished batches on their way from the engine's threads to the generator.
//!
//! Waking a thread costs the engine more than running several calls, so the generator names how many batches it waits
//! for, and is woken once for all of them.

use std::{
    sync::{Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

#[derive(Debug)]
struct State<T> {
    done: Vec<T>,
    /// Wake the generator once so many are there; 0 while it does not wait.
    wake_at: usize,
}

#[derive(Debug)]
pub(crate) struct Handover<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

impl<T> Handover<T> {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                done: Vec::new(),
                wake_at: 0,
            }),
            arrived: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state
            .lock()
            .expect("nothing panics while this is held")
    }

    /// Called on an engine or log thread.
    pub(crate) fn give(&self, done: T) {
        let mut state = self.state();
        state.done.push(done);
        if state.wake_at == 0 || state.done.len() < state.wake_at {
            return;
        }
        state.wake_at = 0;
        drop(state);
        self.arrived.notify_one();
    }

    /// Moves what is there to `out`, which is empty.
    pub(crate) fn take(&self, out: &mut Vec<T>) {
        std::mem::swap(&mut self.state().done, out);
    }

    /// As `take`, once `count` are there or `until` has come.
    pub(crate) fn take_many(&self, count: usize, until: Option<Instant>, out: &mut Vec<T>) {
        let mut state = self.state();
        while state.done.len() < count {
            state.wake_at = count;
            let Some(until) = until else {
                state = self
                    .arrived
                    .wait(state)
                    .expect("nothing panics while this is held");
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                break;
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.expect("nothing panics while this is held").0;
        }
        state.wake_at = 0;
        std::mem::swap(&mut state.done, out);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn everything_given_is_taken_whatever_is_waited_for() {
        const COUNT: usize = 10_000;
        let handover = Arc::new(Handover::new());
        let giver = handover.clone();
        let thread = std::thread::spawn(move || (0..COUNT).for_each(|item| giver.give(item)));
        let (mut taken, mut out) = (Vec::new(), Vec::new());
        while taken.len() < COUNT {
            let count = 1 + taken.len() % 7;
            handover.take_many(count.min(COUNT - taken.len()), None, &mut out);
            taken.append(&mut out);
        }
        thread.join().expect("gives all");
        assert!(taken.iter().copied().eq(0..COUNT));
        handover.take_many(1, Some(Instant::now() + Duration::from_millis(5)), &mut out);
        assert!(out.is_empty());
    }
}
