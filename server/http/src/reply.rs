//! The slot for the reply to a batch: the engine fills it once, and each caller in the batch reads it by index.
//!
//! The engine wakes one of the waiting tasks, and that one wakes the others. Waking is work for the HTTP threads, not for the log's.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    task::{Context, Poll, Waker},
};

use reprise_base::Grant;
use reprise_router::{BatchBuilder, BatchReply, Router};
use tokio::sync::OwnedSemaphorePermit;

/// The resources of a batch until its last answer was written or dropped. While it runs, it keeps them even without a waiting client.
#[derive(Default)]
pub struct BatchResources {
    _places: Option<OwnedSemaphorePermit>,
    _request: Option<Grant>,
}

impl BatchResources {
    /// Takes places for calls of batches, and bytes among the requests of all connections.
    pub fn new(places: OwnedSemaphorePermit, request: Option<Grant>) -> Self {
        Self {
            _places: Some(places),
            _request: request,
        }
    }
}

#[derive(Default)]
pub struct ReplySlot {
    /// None: the engine stopped before it answered.
    reply: OnceLock<Option<BatchReply>>,
    /// The waiting tasks, by the number of their [`PendingReply`].
    waiting: Mutex<Vec<(usize, Waker)>>,
    _held: BatchResources,
}

/// One of those who wait for a reply.
pub struct PendingReply {
    slot: Arc<ReplySlot>,
    number: usize,
}

/// Fills the slot, also when it is dropped.
struct Filler(Arc<ReplySlot>);

impl ReplySlot {
    pub fn holding(held: BatchResources) -> Arc<Self> {
        Arc::new(Self {
            _held: held,
            ..Self::default()
        })
    }

    /// `number` is another one for each who waits.
    pub fn wait(self: &Arc<Self>, number: usize) -> PendingReply {
        PendingReply {
            slot: self.clone(),
            number,
        }
    }

    /// Hands a batch to the engine, whose reply comes here.
    pub fn submit(self: &Arc<Self>, router: &Router, batch: BatchBuilder) {
        let filler = Filler(self.clone());
        router.submit(batch.bounded(), Box::new(move |reply| filler.0.fill(Some(reply))));
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<(usize, Waker)>> {
        self.waiting.lock().expect("no code panics under this lock")
    }

    fn fill(&self, reply: Option<BatchReply>) {
        if self.reply.set(reply).is_err() {
            return;
        }
        let first = self.waiting().pop();
        if let Some((_, waker)) = first {
            waker.wake();
        }
    }

    /// Wakes all tasks that still wait. The task that was woken for all of them calls this, or drops.
    fn wake_others(&self) {
        for (_, waker) in std::mem::take(&mut *self.waiting()) {
            waker.wake();
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.0.fill(None);
    }
}

impl PendingReply {
    /// Ready(None): the engine stopped before it answered.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Option<&BatchReply>> {
        if self.slot.reply.get().is_none() {
            let mut waiting = self.slot.waiting();
            // Checked once more under the lock: the thread that fills it takes a waker from the list afterwards.
            if self.slot.reply.get().is_none() {
                match waiting.iter_mut().find(|(number, _)| *number == self.number) {
                    Some((_, waker)) => waker.clone_from(cx.waker()),
                    None => waiting.push((self.number, cx.waker().clone())),
                }
                return Poll::Pending;
            }
        }
        self.slot.wake_others();
        Poll::Ready(self.reply())
    }

    /// Returns the reply. None also if it is not here yet.
    pub fn reply(&self) -> Option<&BatchReply> {
        self.slot.reply.get()?.as_ref()
    }

    /// Waits no longer, unless it is polled again: the engine wakes another one for all.
    pub fn leave(&self) {
        if self.slot.reply.get().is_none() {
            self.slot.waiting().retain(|(number, _)| *number != self.number);
        }
        // Filled meanwhile, perhaps, and this one was woken for all.
        if self.slot.reply.get().is_some() {
            self.slot.wake_others();
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Some who wait, each with its counter of wake-ups.
    fn waiting(slot: &Arc<ReplySlot>, count: usize) -> Vec<(PendingReply, Arc<Counter>)> {
        let begin = |number| {
            let (pending, counter) = (slot.wait(number), Arc::new(Counter::default()));
            let waker = Waker::from(counter.clone());
            let mut cx = Context::from_waker(&waker);
            assert!(pending.poll(&mut cx).is_pending());
            assert!(pending.poll(&mut cx).is_pending(), "waits once, however often it looks");
            (pending, counter)
        };
        (0..count).map(begin).collect()
    }

    fn woken(all: &[(PendingReply, Arc<Counter>)]) -> Vec<usize> {
        all.iter()
            .map(|(_, counter)| counter.0.load(Ordering::SeqCst))
            .collect()
    }

    #[test]
    fn one_is_woken_and_wakes_the_others() {
        let slot = ReplySlot::holding(BatchResources::default());
        let all = waiting(&slot, 3);
        drop(Filler(slot.clone()));
        assert_eq!(woken(&all), [0, 0, 1]);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(all[2].0.poll(&mut cx), Poll::Ready(None)));
        assert_eq!(woken(&all), [1, 1, 1]);
        assert!(matches!(all[0].0.poll(&mut cx), Poll::Ready(None)));
        assert_eq!(woken(&all), [1, 1, 1]);
    }

    #[test]
    fn request_that_ends_does_not_stop_other_wakes() {
        let slot = ReplySlot::holding(BatchResources::default());
        let mut all = waiting(&slot, 4);
        drop(all.pop()); // the drop before the reply wakes another waiter
        drop(Filler(slot.clone()));
        assert_eq!(woken(&all), [0, 0, 1]);
        drop(all.pop()); // after it was woken
        assert_eq!(woken(&all), [1, 1]);
    }

    #[test]
    fn waiter_that_leaves_is_not_woken_and_stops_no_other_wake() {
        let slot = ReplySlot::holding(BatchResources::default());
        let all = waiting(&slot, 3);
        all[2].0.leave(); // its deadline passed, and its answer is not written yet
        drop(Filler(slot.clone()));
        assert_eq!(woken(&all), [0, 1, 0]);
        all[1].0.leave();
        assert_eq!(woken(&all), [1, 1, 0]);
    }

    #[test]
    fn held_value_lives_until_the_last_holder_has_gone() {
        let places = Arc::new(tokio::sync::Semaphore::new(3));
        let permit = places.clone().try_acquire_many_owned(3).expect("all are free");
        let slot = ReplySlot::holding(BatchResources::new(permit, None));
        let (pending, filler) = (slot.wait(0), Filler(slot));
        drop(pending); // a client that went away: its calls run on
        assert_eq!(places.available_permits(), 0);
        drop(filler);
        assert_eq!(places.available_permits(), 3);
    }
}
