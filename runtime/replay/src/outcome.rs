//! Results of the sites' replay.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use reprise_base::Lsn;
use reprise_partition::Shared;

use crate::{
    command::{Divergence, KeyedOutcome},
    error::ReplayError,
};

/// Takes the outcomes of replayed calls that carried idempotency keys, as they are replayed: those of several partitions in no
/// particular order.
pub type Remember = Arc<dyn Fn(KeyedOutcome) + Send + Sync>;

/// `ReplayOutcome::failed_at` as long as nothing has failed.
const NOTHING: u64 = u64::MAX;

pub(crate) struct ReplayOutcome {
    shared: Arc<Shared>,
    remember: Remember,
    /// The earliest record that could not be replayed.
    failed_at: AtomicU64,
    error: Mutex<Option<ReplayError>>,
    replayed: AtomicU64,
}

impl ReplayOutcome {
    pub fn new(shared: Arc<Shared>, remember: Remember) -> Self {
        Self {
            shared,
            remember,
            failed_at: AtomicU64::new(NOTHING),
            error: Mutex::default(),
            replayed: AtomicU64::new(0),
        }
    }

    /// Keeps the error of the earliest position: later ones may follow from it.
    pub fn fail(&self, error: ReplayError) {
        let mut kept = self.error.lock().expect("held for a store");
        // This comes first: a thread that skips a work because of the error has seen this flag, too.
        self.shared.replay_failed.store(true, Ordering::Release);
        self.failed_at.fetch_min(error.lsn().0, Ordering::AcqRel);
        if kept.as_ref().is_none_or(|kept| error.lsn() < kept.lsn()) {
            *kept = Some(error);
        }
    }

    pub fn record(&self, result: Result<Option<KeyedOutcome>, Box<Divergence>>) {
        match result {
            Ok(None) => {}
            Ok(Some(replayed)) => self.remember(replayed),
            Err(divergence) => self.fail(ReplayError::Diverged(divergence)),
        }
    }

    pub fn remember(&self, replayed: KeyedOutcome) {
        (self.remember)(replayed);
    }

    /// Counts `replayed` more transactions.
    pub fn count(&self, replayed: u64) {
        self.replayed.fetch_add(replayed, Ordering::Relaxed);
    }

    pub fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
    }

    /// Also where more memory is held than there may be: the process would be killed for it.
    pub fn has_failed(&self) -> bool {
        self.failed_at() != NOTHING
    }

    /// True if a record before `end` failed: later records are not replayed. Earlier ones are, because the earliest failure is
    /// reported.
    pub fn has_failed_before(&self, end: Lsn) -> bool {
        self.failed_at() < end.0
    }

    fn failed_at(&self) -> u64 {
        if self.shared.memory.is_over() {
            let max = self.shared.memory.max_bytes();
            self.fail(ReplayError::Memory { max });
        }
        self.failed_at.load(Ordering::Acquire)
    }

    pub fn take_error(&self) -> ReplayError {
        let mut error = self.error.lock().expect("held for a short time");
        error.take().unwrap_or(ReplayError::Stopped)
    }
}
