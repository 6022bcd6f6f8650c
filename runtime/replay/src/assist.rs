//! Work that a waiting thread does for the sites. The feeding thread does so while it waits for a free window, and a site while it waits
//! for its own tables. Such a thread sorts batches that their sites have not begun, and applies changes to tables that sites lent. Without
//! help a site does both itself.

use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender};
use reprise_env::Threads;
use reprise_storage::{LastWrites, LentTable, RedoSchema, Store};

use crate::{outcome::ReplayOutcome, redo::BatchRedo, window::Window};

/// Parts from which on a batch is worth being demultiplexed ahead.
pub(crate) const AHEAD_MIN: usize = 512;

/// Tables that sites lent, and what batches are demultiplexed by.
pub(crate) struct Assist {
    threads: Arc<dyn Threads>,
    lent: (Sender<LentTableJob>, Receiver<LentTableJob>),
    /// The schema, with the number of earlier jobs over several sites: each may be a deployment.
    schema: Mutex<(u64, Arc<RedoSchema>)>,
    spare_writes: Mutex<Vec<LastWrites>>,
}

/// A table on its way from a site and back.
pub(crate) struct LentTableJob {
    table: LentTable,
    window: Arc<Window>,
    back: Sender<LentTable>,
}

impl LentTableJob {
    pub fn apply(mut self) {
        self.table.apply(self.window.bytes());
        // The site has the window last, and so returns it.
        drop(self.window);
        let _ = self.back.send(self.table); // an error means that the site has ended
    }
}

impl Assist {
    pub fn new(threads: Arc<dyn Threads>) -> Self {
        Self {
            threads,
            lent: crossbeam_channel::unbounded(),
            schema: Mutex::new((u64::MAX, Arc::default())),
            spare_writes: Mutex::default(),
        }
    }

    /// The schema that demultiplexes a batch behind `jobs` jobs over several sites; none if no site has reached one yet.
    pub fn known_schema(&self, jobs: u64) -> Option<Arc<RedoSchema>> {
        let known = self.schema.lock().expect("held for a short time");
        (known.0 == jobs).then(|| known.1.clone())
    }

    /// The schema like `known_schema`, for a site that has reached such a batch: `store` has its tables.
    pub fn schema(&self, jobs: u64, store: &Store) -> Arc<RedoSchema> {
        self.known_schema(jobs).unwrap_or_else(|| {
            let schema = Arc::new(store.redo_schema());
            *self.schema.lock().expect("held for a store") = (jobs, schema.clone());
            schema
        })
    }

    /// Waits for the next item of `receiver`, and meanwhile applies changes to lent tables. None: all senders are gone.
    pub fn receive<T>(&self, receiver: &Receiver<T>) -> Option<T> {
        let received = self.threads.receive_beside(receiver, &self.lent.1, LentTableJob::apply);
        received.ok()
    }

    /// Applies the changes of the caller's own tables, and those of the others together with waiting threads.
    pub fn apply(&self, window: &Arc<Window>, own: Vec<LentTable>, others: Vec<LentTable>) -> Vec<LentTable> {
        let count = own.len() + others.len();
        let (back, came_back) = crossbeam_channel::unbounded();
        for table in others {
            let lent = LentTableJob {
                table,
                window: window.clone(),
                back: back.clone(),
            };
            let _ = self.lent.0.send(lent); // cannot fail: this thread holds a receiver
        }
        drop(back);
        let mut applied = own;
        applied.iter_mut().for_each(|table| table.apply(window.bytes()));
        while applied.len() < count {
            let Some(table) = self.receive(&came_back) else {
                break; // `apply_lent` counts them
            };
            applied.push(table);
        }
        applied
    }

    /// Returns memory for sorting a batch: the last used one, because it is in the caches.
    pub fn last_writes(&self) -> LastWrites {
        let spare = self.spare_writes.lock().expect("held for a short time").pop();
        spare.unwrap_or_default()
    }

    pub fn give_back(&self, last: LastWrites) {
        self.spare_writes.lock().expect("held for a store").push(last);
    }
}

/// The changes of a batch that holds nothing else, until its site takes them.
pub(crate) struct EarlyRedo {
    redo: Mutex<Option<BatchRedo>>,
    jobs: u64,
}

impl EarlyRedo {
    /// Changes of a batch behind `jobs` jobs over several sites.
    pub fn new(redo: BatchRedo, jobs: u64) -> Self {
        Self {
            redo: Mutex::new(Some(redo)),
            jobs,
        }
    }

    /// Demultiplexes them, unless they are taken, or it is not known by what.
    pub fn demultiplex(&self, assist: &Assist, outcome: &ReplayOutcome) {
        let Some(schema) = assist.known_schema(self.jobs) else {
            return;
        };
        if let Ok(mut redo) = self.redo.try_lock()
            && let Some(redo) = &mut *redo
        {
            redo.demultiplex(redo.parts().len(), &schema, assist, outcome);
        }
    }

    /// Takes the changes, once no other thread works on them.
    pub fn take(&self) -> BatchRedo {
        let mut redo = self.redo.lock().expect("demultiplexing panics nowhere");
        redo.take().unwrap_or_default()
    }
}
