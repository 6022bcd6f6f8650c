//! Sends single calls of many connections to the engine together: one message, one place in the log and one wake-up. A coalescer takes the
//! calls whose requests the HTTP threads read in the same turn.
//!
//! A coalescer leaves when the threads have read everything that has arrived, or when it is full. So no call waits for the next request.
//! Its answers come back together, so a call waits at most for the other calls of its coalescer. Those ran beside it anyway. Each partition
//! has a coalescer of its own, because partitions differ in how much waits for them.
//!
//! Each call keeps its own key and its own deadline. A repeat of a key goes alone, because it waits for the call that has the key.

use std::sync::{Arc, Mutex, MutexGuard};

use reprise_base::PartitionId;
use reprise_router::{BatchBuilder, CallKey, CallTerms, Deadline, Deployed};

use crate::{
    limits::COALESCED_CALLS_MAX,
    reply::{BatchResources, PendingReply, ReplySlot},
    state::AppState,
    target::Target,
};

/// The coalescer that each partition's calls may still join.
pub struct Coalescers(Vec<Mutex<Option<Coalescer>>>);

struct Coalescer {
    batch: BatchBuilder,
    /// One slot for all calls. Each reads its own answer.
    reply: Arc<ReplySlot>,
}

/// A call of one partition, encoded.
pub struct RoutedCall<'a> {
    pub target: &'a Target,
    pub partition: PartitionId,
    pub args: &'a [u8],
    pub key: Option<CallKey<'a>>,
    pub terms: CallTerms<'a>,
}

/// A call on its way, and the place of its answer.
pub struct JoinedCall {
    /// The position of the call in the reply.
    pub index: usize,
    pub reply: PendingReply,
    /// The deadline of the call, if it has one.
    pub deadlines: Vec<(usize, Arc<Deadline>)>,
}

impl Coalescers {
    pub fn new(partitions: u16) -> Self {
        Self((0..partitions).map(|_| Mutex::default()).collect())
    }

    fn of(&self, partition: PartitionId) -> MutexGuard<'_, Option<Coalescer>> {
        let coalescer = self.0[partition.index()].lock();
        coalescer.expect("no code panics under this lock")
    }

    /// Adds a call. Returns `None` if it can't travel with others: a call with its key came before, or there is no room for the key.
    pub fn join(state: &AppState, deployed: &Arc<Deployed>, call: &RoutedCall<'_>) -> Option<JoinedCall> {
        let partition = call.partition;
        let mut place = state.coalescers.of(partition);
        let is_other = |coalescer: &mut Coalescer| coalescer.batch.deployed().generation != deployed.generation;
        if let Some(coalescer) = place.take_if(is_other) {
            coalescer.leave(state);
        }
        let is_first = place.is_none();
        let coalescer = place.get_or_insert_with(|| Coalescer {
            batch: BatchBuilder::new(deployed.clone(), &state.router),
            reply: ReplySlot::holding(BatchResources::default()),
        });
        let joined = coalescer.add(call);
        if joined.is_none() && is_first {
            *place = None;
            return None;
        }
        if let Some(coalescer) = place.take_if(|coalescer| coalescer.batch.len() >= COALESCED_CALLS_MAX) {
            coalescer.leave(state);
        }
        drop(place);
        if is_first {
            let state = state.clone();
            tokio::spawn(async move {
                // Continues once the runtime has polled every connection that has something to read.
                tokio::task::yield_now().await;
                let mut place = state.coalescers.of(partition);
                if let Some(coalescer) = place.take() {
                    coalescer.leave(&state);
                }
            });
        }
        joined
    }
}

impl Coalescer {
    fn add(&mut self, call: &RoutedCall<'_>) -> Option<JoinedCall> {
        let (batch, target) = (&mut self.batch, call.target);
        batch.set_caller(call.terms.caller.cloned());
        batch.set_deadline(call.terms.deadline_ns);
        let index = batch.push_routed(&target.module, target.procedure, call.key, call.partition, call.args)?;
        Some(JoinedCall {
            index,
            reply: self.reply.wait(index),
            deadlines: batch.take_deadlines(),
        })
    }

    /// Submits the calls. Under the lock of their place: those of one partition leave in the order in which they came.
    fn leave(self, state: &AppState) {
        self.reply.submit(&state.router, self.batch);
    }
}
