//! Readers of a standby read tables that a site replays into: the site lends the stores of its partitions. Between two messages, and
//! between two works of a long message, it hands a store over if a reader waits for it. It takes the store back after a slice of about 50
//! us. While the site has nothing to do, it lends all of its stores. So the replay waits for a slice now and then, and never for a reader.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use reprise_base::PartitionId;
use reprise_env::Step;
use reprise_storage::{Store, StoreAtView, ViewError, ViewId};

use crate::site::Site;

/// Longest time that a site waits for the first read of a reader that it woke.
const FIRST_READ_WAIT_MAX: Duration = Duration::from_micros(200);
/// A slice, from the first read on. It has room for any number of reads.
const SLICE: Duration = Duration::from_micros(50);
/// Time that a site works between two slices, at least.
const BETWEEN_SLICES_NS: u64 = 400_000;
/// Interval at which a waiting reader checks whether it must end.
const READER_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The stores of a standby's partitions while they are lent.
pub struct StoreCheckout {
    /// The slot of each partition.
    slots: Vec<CheckoutSlot>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct CheckoutSlot {
    lent: Mutex<LentStore>,
    /// Number of readers that wait for a store and could read at once.
    wanted: AtomicUsize,
    /// Number of readers that sleep.
    sleeping: AtomicUsize,
    /// True while the site wants a store back. Then no reader begins a slice.
    is_recalled: AtomicBool,
    given: Condvar,
    has_read: Condvar,
}

#[derive(Default)]
struct LentStore {
    store: Option<Store>,
    reads: u64,
}

/// Why a reader reads nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReadFailure<E> {
    /// The reader ended its read, because the site asked for the store meanwhile.
    Ended(E),
    View(ViewError),
}

impl CheckoutSlot {
    fn lock(&self) -> MutexGuard<'_, LentStore> {
        self.lent.lock().expect("what panics under this lock ends the process")
    }

    /// Gives the store to readers. Returns how many reads there were before.
    fn give(&self, store: Store) -> u64 {
        let mut lent = self.lock();
        lent.store = Some(store);
        let reads = lent.reads;
        drop(lent);
        self.is_recalled.store(false, Ordering::Release);
        if self.sleeping.load(Ordering::Acquire) > 0 {
            self.given.notify_all();
        }
        reads
    }

    fn take_back(&self) -> Store {
        self.is_recalled.store(true, Ordering::Release);
        let mut lent = self.lock();
        lent.store.take().expect("it was given and nobody else takes it")
    }

    /// Lends the store for a slice of a reader that waits for it.
    fn slice(&self, store: Store) -> Store {
        let before = self.give(store);
        let lent = self.lock();
        let waits = |lent: &mut LentStore| lent.reads == before && self.wanted.load(Ordering::Acquire) > 0;
        let waited = self.has_read.wait_timeout_while(lent, FIRST_READ_WAIT_MAX, waits);
        let (lent, _) = waited.expect("what panics under this lock ends the process");
        if lent.reads > before {
            let waited = self.has_read.wait_timeout_while(lent, SLICE, |_| true);
            drop(waited.expect("what panics under this lock ends the process"));
        } else {
            drop(lent);
        }
        self.take_back()
    }
}

impl StoreCheckout {
    /// Makes the slots of all partitions, with no store lent.
    pub fn new(partitions_count: u16) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..partitions_count).map(|_| CheckoutSlot::default()).collect(),
            is_over: AtomicBool::new(false),
        })
    }

    /// Ends the lending. Readers that wait notice it within a few milliseconds.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// True if a read at these partitions at the view waits for no store.
    pub(crate) fn shows(&self, partitions: &[PartitionId], view: ViewId) -> bool {
        let shows = |id: &PartitionId| {
            let lent = self.slots[id.index()].lock();
            let store = lent.store.as_ref();
            store.is_some_and(|store| store.has_view(view) != Err(ViewError::NotOpen))
        };
        self.is_over() || partitions.iter().all(shows)
    }

    /// Runs `read` on a partition at a view, once the view is open there and the store is lent. `was_open`: the caller saw the view open.
    /// `ask` is called now and then and says whether the wait continues.
    pub(crate) fn with_view<E>(
        &self,
        (id, view, was_open): (PartitionId, ViewId, &mut bool),
        mut ask: impl FnMut() -> Result<(), E>,
        read: &mut dyn FnMut(StoreAtView<'_>),
    ) -> Result<(), ReadFailure<E>> {
        let slot = &self.slots[id.index()];
        let mut lent = slot.lock();
        let mut wants = false;
        let found = loop {
            let LentStore { store, reads } = &mut *lent;
            if let (false, Some(store)) = (slot.is_recalled.load(Ordering::Acquire), store) {
                match store.at_view(view) {
                    Ok(at) => {
                        *was_open = true;
                        read(at);
                        *reads += 1;
                        break Ok(());
                    }
                    Err(ViewError::NotOpen) if !*was_open => {} // the site opens the view later
                    Err(error) => break Err(ReadFailure::View(error)),
                }
            }
            if *was_open && !wants {
                slot.wanted.fetch_add(1, Ordering::AcqRel);
                wants = true;
            }
            slot.sleeping.fetch_add(1, Ordering::AcqRel);
            let slept = slot.given.wait_timeout(lent, READER_POLL_INTERVAL);
            lent = slept.expect("what panics under this lock ends the process").0;
            slot.sleeping.fetch_sub(1, Ordering::AcqRel);
            if let Err(ended) = ask() {
                break Err(ReadFailure::Ended(ended));
            }
        };
        if wants {
            slot.wanted.fetch_sub(1, Ordering::AcqRel);
        }
        drop(lent);
        if wants {
            slot.has_read.notify_all();
        }
        found
    }
}

/// A site's part in lending.
pub(crate) struct Lender {
    lending: Arc<StoreCheckout>,
    /// Time of the node's clock at which readers had their last slices.
    sliced_ns: u64,
}

impl Site {
    /// Has the site lend its stores until `StoreCheckout::end`. A message asks for it, so that the lending costs a batch nothing.
    pub fn begin_lending(&mut self, lending: Arc<StoreCheckout>) {
        self.lender = Some(Lender { lending, sliced_ns: 0 });
    }

    /// True if the site lends its stores since the last message, and did not before.
    pub(crate) fn is_lending(&self) -> bool {
        self.lender.is_some()
    }

    /// Lends each store that a reader waits for, for one slice, unless readers had slices just before. A replay calls it between two works.
    pub fn serve_readers(&mut self) {
        let Some(lender) = &mut self.lender else { return };
        let slots = &lender.lending.slots;
        let is_wanted = |id: PartitionId| slots[id.index()].wanted.load(Ordering::Acquire) > 0;
        if !self.table.iter_mut().any(|partition| is_wanted(partition.id)) {
            return;
        }
        let clock = &self.tools.shared.clock;
        if clock.monotonic_ns().saturating_sub(lender.sliced_ns) < BETWEEN_SLICES_NS {
            return;
        }
        for partition in self.table.iter_mut().filter(|partition| is_wanted(partition.id)) {
            let store = std::mem::take(&mut partition.store);
            partition.store = slots[partition.id.index()].slice(store);
        }
        lender.sliced_ns = clock.monotonic_ns();
    }

    /// Lends all stores at home while there is nothing to do.
    pub(crate) fn lend(&mut self) {
        let Some(lender) = &self.lender else { return };
        for partition in self.table.iter_mut() {
            let store = std::mem::take(&mut partition.store);
            lender.lending.slots[partition.id.index()].give(store);
        }
    }

    /// Takes back all stores that `lend` gave.
    pub(crate) fn take_back(&mut self) {
        let Some(lender) = &self.lender else { return };
        for partition in self.table.iter_mut() {
            partition.store = lender.lending.slots[partition.id.index()].take_back();
        }
    }

    /// The `step` variant for work that shares one thread. All partitions at home are lent between two steps.
    pub fn step_lending(&mut self) -> Step {
        let was_lending = self.is_lending();
        self.take_back();
        let step = match self.step() {
            // The message began the lending and ended the old kind of step. The site itself continues, even if the lending has ended by
            // now.
            Step::Over if !was_lending && self.is_lending() => Step::Done,
            step => step,
        };
        self.end_lending_if_over();
        if step != Step::Over {
            self.lend();
        }
        step
    }

    /// Stops lending if `StoreCheckout::end` was called.
    pub(crate) fn end_lending_if_over(&mut self) {
        self.lender.take_if(|lender| lender.lending.is_over());
    }
}
