//! The closed loop without a load generator beside the engine: calls are made while nothing runs, then only run.
//!
//! A pass makes its calls, grouped by the partition that they go to, and sends the first few batches of each; whoever ends a
//! batch (the engine thread, or the log's thread where commits wait for it) sends the partition's next one. Answers are
//! looked at after the pass. The time of making and looking counts nowhere: a clock that stands still meanwhile.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reprise_router::{BatchBuilder, Router};

use crate::{
    BenchError, OnProgress,
    handover::Handover,
    process::{Done, Load},
    workload::Workload,
};

/// Calls of a pass: enough that its beginning and its end, when queues are short, hardly count.
const PASS_CALLS: usize = 200_000;

type Queue<C> = Mutex<std::vec::IntoIter<(BatchBuilder, Vec<C>)>>;

/// The batches of a pass that are not sent yet.
struct Pass<C> {
    router: Router,
    /// By partition.
    queues: Vec<Queue<C>>,
    done: Handover<Done<C>>,
}

impl<C: Send + 'static> Pass<C> {
    /// Sends the next batch of a partition, if there is one. Its end sends the one after it.
    fn send_next(self: &Arc<Self>, partition: usize) {
        let next = self.queues[partition]
            .lock()
            .expect("held for a look")
            .next();
        let Some((builder, calls)) = next else {
            return;
        };
        let (pass, due) = (self.clone(), Instant::now());
        let done = Box::new(move |reply| {
            let ended = Instant::now();
            pass.send_next(partition);
            pass.done.give(Done {
                reply,
                calls,
                due,
                spacing: Duration::ZERO,
                ended,
            });
        });
        self.router.submit(builder, done);
    }
}

impl<W: Workload> Load<'_, W> {
    pub(crate) fn run_prepared(
        &mut self,
        partitions: u16,
        on_progress: OnProgress<'_>,
    ) -> Result<(), BenchError> {
        let mut stood_still = Duration::ZERO;
        let mut now = Instant::now();
        while now < self.meter.closes {
            let begun = Instant::now();
            let (pass, batches) = self.prepare(partitions as usize);
            stood_still += begun.elapsed();
            let each = self.in_flight_max.div_ceil(partitions as usize);
            for partition in 0..partitions as usize {
                (0..each).for_each(|_| pass.send_next(partition));
            }
            let mut arrived = Vec::new();
            pass.done.take_many(batches, None, &mut arrived);
            let ended = arrived.iter().map(|done| done.ended).max();
            let begun = ended.unwrap_or_else(Instant::now);
            now = begun - stood_still;
            self.in_flight += batches;
            for mut done in arrived {
                done.due -= stood_still;
                done.ended -= stood_still;
                self.settle(done)?;
            }
            self.note(now, on_progress);
            stood_still += begun.elapsed();
        }
        self.finish()
    }

    /// A pass and the number of its batches.
    fn prepare(&mut self, partitions: usize) -> (Arc<Pass<W::Call>>, usize) {
        let mut queues: Vec<Vec<_>> = (0..partitions).map(|_| Vec::new()).collect();
        let mut open: Vec<_> = (0..partitions)
            .map(|_| (self.new_batch(), Vec::new()))
            .collect();
        let mut args = Vec::new();
        for _ in 0..PASS_CALLS * partitions {
            let (call, partition) = self.next_call(&mut args);
            let (builder, calls) = &mut open[partition.index()];
            self.push(builder, &call);
            calls.push(call);
            if calls.len() == self.batch {
                let full =
                    std::mem::replace(&mut open[partition.index()], (self.new_batch(), Vec::new()));
                queues[partition.index()].push(full);
            }
        }
        for (queue, rest) in queues.iter_mut().zip(open) {
            if !rest.1.is_empty() {
                queue.push(rest);
            }
        }
        let batches = queues.iter().map(Vec::len).sum();
        let pass = Pass {
            router: self.router.clone(),
            queues: queues
                .into_iter()
                .map(|queue| Mutex::new(queue.into_iter()))
                .collect(),
            done: Handover::new(false),
        };
        (Arc::new(pass), batches)
    }
}
