//! A primary names LSNs at regular intervals. At each, its standbys compare their tables with its own.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Receiver, unbounded};
use reprise_env::{Step, ThreadHandle, Work};
use reprise_partition::{PartitionDigest, Shared};
use reprise_router::Router;
use reprise_ship::{Comparisons, Shipper};

use crate::standby_comparer::{gather, tables_of};

/// Interval at which the thread checks its work.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The work that names LSNs until it is stopped.
pub(crate) struct Comparer {
    is_stopping: Arc<AtomicBool>,
    thread: Mutex<Option<Box<dyn ThreadHandle>>>,
}

impl Comparer {
    /// Starts the work. It names an LSN at each interval while a standby streams.
    pub fn start(
        shipper: &Arc<Shipper>,
        router: &Router,
        shared: &Arc<Shared>,
        every: Duration,
    ) -> io::Result<Arc<Self>> {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let naming = CompareScheduler {
            comparisons: shipper.comparisons().clone(),
            shipper: shipper.clone(),
            router: router.clone(),
            shared: shared.clone(),
            is_stopping: is_stopping.clone(),
            every_ns: every.as_nanos().min(u128::from(u64::MAX)) as u64,
            last_ns: shared.clock.monotonic_ns(),
            running: None,
        };
        let make = Box::new(move || Box::new(naming) as Box<dyn Work>);
        let thread = shared.threads.start("compare", make)?;
        Ok(Arc::new(Self {
            is_stopping,
            thread: Mutex::new(Some(thread)),
        }))
    }

    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.lock().expect("held to take").take() {
            thread.join();
        }
    }
}

struct CompareScheduler {
    shipper: Arc<Shipper>,
    comparisons: Arc<Comparisons>,
    router: Router,
    shared: Arc<Shared>,
    is_stopping: Arc<AtomicBool>,
    every_ns: u64,
    /// Time at which all tables were last compared, or at which this work began.
    last_ns: u64,
    running: Option<RunningDigests>,
}

/// Digests that are being made.
struct RunningDigests {
    number: u64,
    from: Receiver<PartitionDigest>,
    found: Vec<PartitionDigest>,
}

impl CompareScheduler {
    /// Marks an LSN. If that fails, the next interval tries again.
    fn begin(&mut self) {
        let (to, from) = unbounded();
        let begun = self.router.begin_comparison(to, self.comparisons.clone());
        self.running = begun.ok().map(|number| RunningDigests {
            number,
            from,
            found: Vec::new(),
        });
    }

    fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_ns) >= self.every_ns && self.shipper.is_followed()
    }
}

impl Work for CompareScheduler {
    fn run(mut self: Box<Self>) {
        while self.step() != Step::Over {
            self.shared.threads.sleep(POLL_INTERVAL);
        }
    }

    fn step(&mut self) -> Step {
        if self.is_stopping.load(Ordering::Acquire) {
            return Step::Over;
        }
        let now_ns = self.shared.clock.monotonic_ns();
        if let Some(running) = &mut self.running {
            let Some(all) = gather(&running.from, &mut running.found, self.shared.partitions_count) else {
                return Step::Idle;
            };
            if let Ok(found) = all {
                self.comparisons.add_digests(running.number, tables_of(&found));
            }
            self.running = None;
            return Step::Done;
        }
        if !self.is_due(now_ns) {
            return Step::Idle;
        }
        self.last_ns = now_ns;
        self.begin();
        Step::Done
    }
}
