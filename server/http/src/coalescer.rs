//! Single calls of many connections that arrive together travel together: one message to the engine, one place in the log, one
//! wake-up, for all whose requests are read in the same turn of the HTTP threads.
//!
//! A coalescer leaves when everything that has arrived was looked at, or when it is full, so nobody waits for the next request.
//! Its answers come back together; those of one partition ran together anyway, so at most a call waits for as many others
//! as a coalescer takes. There is one coalescer for a partition, since partitions differ in how much waits for them.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
};

use reprise_base::PartitionId;
use reprise_router::{BatchBuilder, BatchReply, Deployed};
use tokio::sync::oneshot;

use crate::{
    limits::COALESCED_CALLS_MAX,
    state::AppState,
    submit::{Target, submit},
};

/// The coalescer that each partition's calls may still join.
pub struct Coalescers(Vec<Mutex<Option<Coalescer>>>);

struct Coalescer {
    batch: BatchBuilder,
    pending_calls: Vec<oneshot::Sender<SharedReply>>,
}

/// The reply to the whole coalescer. Each rider looks at its own call for a moment.
pub type SharedReply = Arc<Mutex<BatchReply>>;
pub type PendingCall = oneshot::Receiver<SharedReply>;

impl Coalescers {
    pub fn new(partitions: u16) -> Self {
        Self((0..partitions).map(|_| Mutex::default()).collect())
    }

    fn of(&self, partition: PartitionId) -> MutexGuard<'_, Option<Coalescer>> {
        let coalescer = self.0[partition.index()].lock();
        coalescer.expect("no code panics under this lock")
    }

    /// Adds a call of one partition with its encoded arguments; its index in the reply.
    pub fn join(
        state: &AppState,
        deployed: &Arc<Deployed>,
        partition: PartitionId,
        target: &Target,
        args: &[u8],
    ) -> (usize, PendingCall) {
        let (sender, pending_call) = oneshot::channel();
        let mut place = state.coalescers.of(partition);
        let is_other = |coalescer: &mut Coalescer| coalescer.batch.deployed().generation != deployed.generation;
        if let Some(coalescer) = place.take_if(is_other) {
            coalescer.leave(state);
        }
        let is_first = place.is_none();
        let coalescer = place.get_or_insert_with(|| Coalescer {
            batch: BatchBuilder::new(deployed.clone(), &state.router),
            pending_calls: Vec::new(),
        });
        let copy = |out: &mut Vec<u8>| -> Result<(), Infallible> {
            out.extend_from_slice(args);
            Ok(())
        };
        let pushed = coalescer.batch.push(&target.module, target.procedure, None, copy);
        let Ok(index) = pushed;
        coalescer.pending_calls.push(sender);
        if let Some(coalescer) = place.take_if(|coalescer| coalescer.pending_calls.len() >= COALESCED_CALLS_MAX) {
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
        (index, pending_call)
    }
}

impl Coalescer {
    /// Submits the calls. Under the lock of their place: those of one partition leave in the order in which they came.
    fn leave(self, state: &AppState) {
        let reply = submit(&state.router, self.batch, None);
        let pending_calls = self.pending_calls;
        tokio::spawn(async move {
            // Without a reply the riders hear that the engine has stopped.
            let Ok(reply) = reply.await else {
                return;
            };
            let reply = Arc::new(Mutex::new(reply));
            for rider in pending_calls {
                let _ = rider.send(reply.clone()); // a client that is gone needs no answer
            }
        });
    }
}
