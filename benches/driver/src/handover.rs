//! Finished batches on their way from the engine's threads to the generator.
//!
//! Waking a thread costs the engine more than running several calls. The generator therefore names the number of batches that it waits for, and the
//! engine wakes it once for all of them. If a core is free for it, it first polls for a while without sleeping. An engine that is fast enough then
//! wakes no thread.

use std::{
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Longest time of polls without sleep: a few batches' time.
const SPIN_MAX: Duration = Duration::from_micros(200);
/// Polls between two readings of the clock.
const SPINS: u32 = 64;

#[derive(Debug)]
struct State<T> {
    done: Vec<T>,
    /// Wake the generator once this number of batches is there; 0 while it does not wait.
    wake_at: usize,
    /// No more will come.
    is_closed: bool,
}

#[derive(Debug)]
pub(crate) struct Handover<T> {
    state: Mutex<State<T>>,
    /// How many are in `state.done`: a hint that is read without the lock.
    count: AtomicUsize,
    arrived: Condvar,
    may_spin: bool,
}

impl<T> Handover<T> {
    /// `may_spin`: a core is free for the generator.
    pub(crate) fn new(may_spin: bool) -> Self {
        Self {
            may_spin,
            count: AtomicUsize::new(0),
            state: Mutex::new(State {
                done: Vec::new(),
                wake_at: 0,
                is_closed: false,
            }),
            arrived: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("nothing panics while this is held")
    }

    /// Called on an engine or log thread.
    pub(crate) fn give(&self, done: T) {
        let mut state = self.state();
        state.done.push(done);
        self.count.store(state.done.len(), Ordering::Relaxed);
        if state.wake_at == 0 || state.done.len() < state.wake_at {
            return;
        }
        state.wake_at = 0;
        drop(state);
        self.arrived.notify_one();
    }

    /// Nothing more will be given.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.arrived.notify_one();
    }

    /// Waits until nothing more will be given, and moves all of it to `out`, which is empty.
    pub(crate) fn take_all(&self, out: &mut Vec<T>) {
        let is_open = |state: &mut State<T>| !state.is_closed;
        let waited = self.arrived.wait_while(self.state(), is_open);
        self.move_to(&mut waited.expect("nothing panics while this is held"), out);
    }

    /// Moves the finished batches to `out`, which is empty.
    pub(crate) fn take(&self, out: &mut Vec<T>) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.move_to(&mut self.state(), out);
        }
    }

    fn move_to(&self, state: &mut State<T>, out: &mut Vec<T>) {
        std::mem::swap(&mut state.done, out);
        self.count.store(0, Ordering::Relaxed);
    }

    /// Polls for a while whether `count` are there.
    fn spin(&self, count: usize) {
        let begun = Instant::now();
        while begun.elapsed() < SPIN_MAX {
            for _ in 0..SPINS {
                if self.count.load(Ordering::Relaxed) >= count {
                    return;
                }
                std::hint::spin_loop();
            }
        }
    }

    /// The `take` variant that waits for `count` items, or until `until`.
    pub(crate) fn take_many(&self, count: usize, until: Option<Instant>, out: &mut Vec<T>) {
        if self.may_spin {
            self.spin(count);
        }
        let mut state = self.state();
        while state.done.len() < count {
            state.wake_at = count;
            let Some(until) = until else {
                state = self.arrived.wait(state).expect("nothing panics while this is held");
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
        self.move_to(&mut state, out);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn everything_given_is_taken_whatever_is_waited_for() {
        check_all_arrives(false);
        check_all_arrives(true);
    }

    fn check_all_arrives(may_spin: bool) {
        const COUNT: usize = 10_000;
        let handover = Arc::new(Handover::new(may_spin));
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
        handover.give(COUNT);
        handover.close();
        handover.take_all(&mut out);
        assert_eq!(out, [COUNT]);
    }
}
