//! A number that only grows, and the threads and hooks that wait for it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// A growing position. Alone on its cache lines: readers poll it while the writer works.
#[derive(Default)]
#[repr(align(64))]
pub struct Watermark {
    value: AtomicU64,
    /// Count of hooks in `waiting`. The writer reads this alone while the list is empty.
    waiting_count: AtomicUsize,
    waiting: Mutex<WaitingHooks>,
}

/// A hook that runs once a mark is reached, on the thread that raises it: it must only hand over.
pub type OnReached = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct WaitingHooks {
    /// The hooks by the awaited value, and a number of its own.
    hooks: BTreeMap<(u64, u64), OnReached>,
    next: u64,
}

/// A registered hook. Dropping it cancels the hook.
#[must_use = "dropped, nobody waits any more"]
pub struct WatermarkWaiter {
    mark: Arc<Watermark>,
    key: (u64, u64),
}

impl Watermark {
    /// A mark that stands at `value`.
    pub fn new(value: u64) -> Self {
        Self {
            value: AtomicU64::new(value),
            ..Self::default()
        }
    }

    /// The current value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    /// Raises the mark, which has one writer at a time. Panics if the value falls: readers may already have acted on the higher value.
    pub fn advance(&self, value: u64) {
        // The order with `when` is one: either it sees the new value, or this sees that it waits.
        let before = self.value.swap(value, Ordering::SeqCst);
        assert!(before <= value, "watermark falls from {before} to {value}");
        if self.waiting_count.load(Ordering::SeqCst) > 0 {
            self.run_reached(value);
        }
    }

    /// Raises the mark, unless another writer has raised it further.
    pub fn raise(&self, value: u64) {
        // The order with `when` is one, as in `advance`.
        self.value.fetch_max(value, Ordering::SeqCst);
        if self.waiting_count.load(Ordering::SeqCst) > 0 {
            self.run_reached(value);
        }
    }

    /// Runs `hook` once the mark is at `value`. None: it is there already, and the hook was dropped.
    pub fn when(self: &Arc<Self>, value: u64, hook: OnReached) -> Option<WatermarkWaiter> {
        if self.get() >= value {
            return None;
        }
        let mut waiting = self.lock();
        let key = (value, waiting.next);
        waiting.next += 1;
        waiting.hooks.insert(key, hook);
        self.waiting_count.fetch_add(1, Ordering::SeqCst);
        if self.value.load(Ordering::SeqCst) >= value {
            self.take(&mut waiting, key);
            return None;
        }
        drop(waiting);
        let mark = Arc::clone(self);
        Some(WatermarkWaiter { mark, key })
    }

    fn lock(&self) -> MutexGuard<'_, WaitingHooks> {
        self.waiting.lock().expect("no code panics under this lock")
    }

    fn take(&self, waiting: &mut WaitingHooks, key: (u64, u64)) -> Option<OnReached> {
        let hook = waiting.hooks.remove(&key)?;
        self.waiting_count.fetch_sub(1, Ordering::SeqCst);
        Some(hook)
    }

    #[cold]
    fn run_reached(&self, value: u64) {
        let mut waiting = self.lock();
        let later = waiting.hooks.split_off(&(value.saturating_add(1), 0));
        let reached = std::mem::replace(&mut waiting.hooks, later);
        self.waiting_count.fetch_sub(reached.len(), Ordering::SeqCst);
        drop(waiting);
        reached.into_values().for_each(|hook| hook());
    }
}

impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watermark").field(&self.get()).finish()
    }
}

impl Drop for WatermarkWaiter {
    fn drop(&mut self) {
        let hook = self.mark.take(&mut self.mark.lock(), self.key);
        drop(hook); // the drop may call this again, so it runs outside of the lock
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    /// Returns the waiters for the values, and the order in which they were called.
    fn waits(mark: &Arc<Watermark>, values: &[u64]) -> (Vec<Option<WatermarkWaiter>>, mpsc::Receiver<u64>) {
        let (sender, reached) = mpsc::channel();
        let waiters = values.iter().map(|&value| {
            let sender = sender.clone();
            mark.when(value, Box::new(move || sender.send(value).expect("the test waits")))
        });
        (waiters.collect(), reached)
    }

    #[test]
    fn waiter_is_notified_once_the_mark_is_reached() {
        let mark = Arc::new(Watermark::new(3));
        let (mut waiters, reached) = waits(&mark, &[3, 9, 5, 4, 5]);
        let waits: Vec<_> = waiters.iter().map(Option::is_some).collect();
        assert_eq!(waits, [false, true, true, true, true]);
        mark.advance(5);
        assert_eq!(reached.try_iter().collect::<Vec<_>>(), [4, 5, 5]);
        waiters.remove(1); // no waiter for 9 is left
        mark.advance(20);
        assert_eq!(reached.try_iter().count(), 0);
        drop(waiters);
        assert_eq!(mark.waiting_count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn waiter_that_arrives_while_the_mark_rises_is_not_missed() {
        let mark = Arc::new(Watermark::new(0));
        let writer = {
            let mark = mark.clone();
            thread::spawn(move || (1..=20_000).for_each(|value| mark.advance(value)))
        };
        for _ in 0..2_000 {
            let (waiters, reached) = waits(&mark, &[(mark.get() + 1).min(20_000)]);
            if waiters[0].is_some() {
                reached.recv_timeout(Duration::from_secs(60)).expect("told");
            }
        }
        writer.join().expect("the writer");
        assert_eq!(mark.waiting_count.load(Ordering::SeqCst), 0);
    }

    #[test]
    #[should_panic(expected = "watermark falls from 7 to 6")]
    fn it_does_not_fall() {
        Watermark::new(7).advance(6);
    }
}
