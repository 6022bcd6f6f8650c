//! The closed loop without a load generator beside the engine: calls are made while nothing runs, then only run.
//!
//! A pass makes its calls, grouped by the partition that they go to, and sends the first few batches of each. The thread that ends a batch sends the
//! partition's next one. It is the engine thread, or the log's thread if commits wait for the log. Once a partition has no batch left, the pass is
//! over, and it does not send the batches that the others have left. All partitions are busy to its end. The pass checks answers afterwards. They lie
//! in memory made before it, because no client holds that number. The time of making and checking counts nowhere: a clock stands still meanwhile.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
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
/// Calls of the first pass, which shows how long answers are.
const FIRST_PASS_CALLS: usize = 10_000;

type Queue<C> = Mutex<std::vec::IntoIter<(BatchBuilder, Vec<C>)>>;

/// The batches of a pass that are not sent yet.
struct Pass<C> {
    router: Router,
    /// By partition.
    queues: Vec<Queue<C>>,
    done: Handover<Done<C>>,
    /// Batches on their way, and one more until the first ones are sent.
    on_their_way: AtomicUsize,
    /// A partition has none left to send.
    is_over: AtomicBool,
}

impl<C: Send + Sync + 'static> Pass<C> {
    /// Returns the partitions with calls: one without any ends no pass.
    fn partitions(&self) -> Vec<usize> {
        let has_some = |queue: &Queue<C>| queue.lock().is_ok_and(|queue| queue.len() > 0);
        let all = 0..self.queues.len();
        all.filter(|at| has_some(&self.queues[*at])).collect()
    }

    /// Sends the next batch of a partition, if there is one. Its end sends the one after it.
    fn send_next(self: &Arc<Self>, partition: usize) {
        if self.is_over.load(Ordering::Relaxed) {
            return;
        }
        let mut queue = self.queues[partition].lock().expect("held for a short time");
        let Some((builder, calls)) = queue.next() else {
            return self.is_over.store(true, Ordering::Relaxed);
        };
        drop(queue);
        self.on_their_way.fetch_add(1, Ordering::Relaxed);
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
                served_before: u64::MAX, // answers are read after the pass
            });
            pass.end_one();
        });
        self.router.submit(builder, done);
    }

    /// The last one to end wakes the generator.
    fn end_one(&self) {
        if self.on_their_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.close();
        }
    }
}

impl<W: Workload> Load<'_, W> {
    pub(crate) fn run_prepared(&mut self, partitions: u16, on_progress: OnProgress<'_>) -> Result<(), BenchError> {
        let mut stood_still = Duration::ZERO;
        let mut now = Instant::now();
        while now < self.meter.closes {
            let begun = Instant::now();
            let pass = self.prepare(partitions as usize);
            stood_still += begun.elapsed();
            let each = self.in_flight_max.div_ceil(partitions as usize);
            for partition in pass.partitions() {
                (0..each).for_each(|_| pass.send_next(partition));
            }
            pass.end_one();
            let mut arrived = Vec::new();
            pass.done.take_all(&mut arrived);
            let ended = arrived.iter().map(|done| done.ended).max();
            let begun = ended.unwrap_or_else(Instant::now);
            now = begun - stood_still;
            self.in_flight += arrived.len();
            self.record_result_sizes(&arrived);
            for mut done in arrived {
                done.due -= stood_still;
                done.ended -= stood_still;
                self.complete(done)?;
            }
            self.report_progress(now, on_progress);
            stood_still += begun.elapsed();
        }
        self.finish()
    }

    /// Takes what the answers were long into what the next pass makes room for.
    fn record_result_sizes(&mut self, arrived: &[Done<W::Call>]) {
        let longest = arrived.iter().map(|done| done.reply.result_bytes()).max();
        self.results_bytes = self.results_bytes.max(longest.unwrap_or(0));
    }

    fn prepare(&mut self, partitions: usize) -> Arc<Pass<W::Call>> {
        let mut queues: Vec<Vec<_>> = (0..partitions).map(|_| Vec::new()).collect();
        let mut open: Vec<_> = (0..partitions).map(|_| (self.new_batch(), Vec::new())).collect();
        let mut args = Vec::new();
        let pass_calls = match self.meter.whole.answered() {
            0 => FIRST_PASS_CALLS,
            _ => PASS_CALLS,
        };
        for _ in 0..pass_calls * partitions {
            let (call, partition) = self.next_call(&mut args);
            let (builder, calls) = &mut open[partition.index()];
            self.push(builder, &call);
            calls.push(call);
            if calls.len() == self.batch {
                let full = std::mem::replace(&mut open[partition.index()], (self.new_batch(), Vec::new()));
                queues[partition.index()].push(full);
            }
        }
        for (queue, rest) in queues.iter_mut().zip(open) {
            if !rest.1.is_empty() {
                queue.push(rest);
            }
        }
        for (builder, _) in queues.iter_mut().flatten() {
            builder.make_room_for_results(self.results_bytes);
        }
        let pass = Pass {
            router: self.router.clone(),
            queues: queues.into_iter().map(|queue| Mutex::new(queue.into_iter())).collect(),
            done: Handover::new(false),
            on_their_way: AtomicUsize::new(1),
            is_over: AtomicBool::new(false),
        };
        Arc::new(pass)
    }
}
