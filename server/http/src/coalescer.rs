//! Single calls of many connections that arrive together travel together: one message to the engine, one place in the log, one
//! wake-up, for all whose requests are read in the same turn of the HTTP threads.
//!
//! A coalescer leaves when everything that has arrived was looked at, or when it is full, so nobody waits for the next request.
//! Its answers come back together; those of one partition ran together anyway, so at most a call waits for as many others
//! as a coalescer takes. There is one coalescer for a partition, since partitions differ in how much waits for them.

use std::sync::{Arc, Mutex, MutexGuard};

use reprise_base::PartitionId;
use reprise_router::{BatchBuilder, Caller, Deployed};

use crate::{
    limits::COALESCED_CALLS_MAX,
    reply::{Held, PendingReply, ReplySlot},
    state::AppState,
    target::Target,
};

/// The coalescer that each partition's calls may still join.
pub struct Coalescers(Vec<Mutex<Option<Coalescer>>>);

struct Coalescer {
    batch: BatchBuilder,
    /// Of all calls: each looks at its own answer.
    reply: Arc<ReplySlot>,
}

impl Coalescers {
    pub fn new(partitions: u16) -> Self {
        Self((0..partitions).map(|_| Mutex::default()).collect())
    }

    fn of(&self, partition: PartitionId) -> MutexGuard<'_, Option<Coalescer>> {
        let coalescer = self.0[partition.index()].lock();
        coalescer.expect("no code panics under this lock")
    }

    /// Adds a call of this one partition with its encoded arguments; its index in the reply.
    pub fn join(
        state: &AppState,
        deployed: &Arc<Deployed>,
        partition: PartitionId,
        target: &Target,
        args: &[u8],
        caller: Option<Caller>,
    ) -> (usize, PendingReply) {
        let mut place = state.coalescers.of(partition);
        let is_other = |coalescer: &mut Coalescer| coalescer.batch.deployed().generation != deployed.generation;
        if let Some(coalescer) = place.take_if(is_other) {
            coalescer.leave(state);
        }
        let is_first = place.is_none();
        let coalescer = place.get_or_insert_with(|| Coalescer {
            batch: BatchBuilder::new(deployed.clone(), &state.router),
            reply: ReplySlot::holding(Held::default()),
        });
        let batch = &mut coalescer.batch;
        batch.set_caller(caller);
        let index = batch.push_routed(&target.module, target.procedure, partition, args);
        let pending = coalescer.reply.wait(index);
        if let Some(coalescer) = place.take_if(|coalescer| coalescer.batch.len() >= COALESCED_CALLS_MAX) {
            coalescer.leave(state);
        }
        drop(place);
        if is_first {
            let state = state.clone();
            tokio::spawn(async move {
                // Runs on once every connection that has something to read was looked at.
                tokio::task::yield_now().await;
                let mut place = state.coalescers.of(partition);
                if let Some(coalescer) = place.take() {
                    coalescer.leave(&state);
                }
            });
        }
        (index, pending)
    }
}

impl Coalescer {
    /// Submits the calls. Under the lock of their place: those of one partition leave in the order in which they came.
    fn leave(self, state: &AppState) {
        self.reply.submit(&state.router, self.batch);
    }
}
