//! The thread that replays the log of a standby. It reads durable records and hands them to the engine threads, one window at a time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender};
use reprise_base::{Lsn, WatermarkWaiter};
use reprise_env::{Step, Work};
use reprise_log::{DestageDemand, Log, LogReader};
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{CallBatch, Shared};
use reprise_recovery::{RecoveryError, WindowEnd, make_ready, read_window};
use reprise_replay::Replayer;
use reprise_router::{NodePhase, Router};

use crate::standby::ReadGate;

/// Bytes of log that are replayed between two cuts at most. A read waits for a few such windows at most.
pub(crate) const FOLLOW_WINDOW_BYTES: usize = 256 << 10;
/// Interval at which the thread checks its state, even if no other thread wakes it.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of these checks while the thread waits for views to be closed.
const VIEWS_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Value of `Orders::until` while the replay has no end, and of `Orders::committed` while no primary reports it.
const NEVER: u64 = u64::MAX;

/// Orders of other threads to this one.
pub(crate) struct Orders {
    is_stopping: AtomicBool,
    /// LSN up to which the thread replays before it ends.
    until: AtomicU64,
    /// LSN before which the primary has committed everything. Later records are not replayed, because a failover may lose them after a
    /// reader saw them.
    committed: AtomicU64,
    wake: Sender<()>,
}

impl Orders {
    /// Makes the orders, and the receiver on which the thread is woken.
    pub fn new() -> (Arc<Self>, Receiver<()>) {
        // Several wake-ups count as one.
        let (wake, woken) = crossbeam_channel::bounded(1);
        let orders = Self {
            is_stopping: AtomicBool::new(false),
            until: AtomicU64::new(NEVER),
            committed: AtomicU64::new(NEVER),
            wake,
        };
        (Arc::new(orders), woken)
    }

    pub fn wake(&self) {
        let _ = self.wake.try_send(()); // an error means that the thread is awake or gone
    }

    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// Limits the replay from now on to records that the primary reports as committed. Reports since the first such call count. Everything
    /// before `shown` was replayed.
    pub fn begin_commits(&self, shown: Lsn) {
        let began = self
            .committed
            .compare_exchange(NEVER, shown.0, Ordering::AcqRel, Ordering::Acquire);
        if began.is_err() {
            self.committed.fetch_max(shown.0, Ordering::AcqRel);
        }
    }

    /// Takes the primary's report of its committed LSN.
    pub fn record_committed(&self, committed: Lsn) {
        if self.committed.fetch_max(committed.0, Ordering::AcqRel) < committed.0 {
            self.wake();
        }
    }

    /// Returns the committed LSN that the primary last reported. None: no primary reports it.
    pub fn reported_committed(&self) -> Option<Lsn> {
        let committed = self.committed.load(Ordering::Acquire);
        (committed != NEVER).then_some(Lsn(committed))
    }

    /// Returns the LSN before which everything may be replayed. A promoted standby replays all records that it has.
    fn limit(&self) -> Lsn {
        match self.until.load(Ordering::Acquire) {
            NEVER => Lsn(self.committed.load(Ordering::Acquire)),
            _ => Lsn(NEVER),
        }
    }

    /// Replays the durable records before `end`, and ends.
    pub fn finish(&self, end: Lsn) {
        self.until.store(end.0, Ordering::Release);
        self.wake();
    }
}

/// The end of a replay: the LSN before which the tables have everything, or the reason of a failure.
pub(crate) type ReplayEnd = Result<Lsn, Arc<str>>;

pub(crate) struct Follower {
    pub router: Router,
    pub shared: Arc<Shared>,
    pub log: Arc<Log<Box<CallBatch>>>,
    pub replayer: Replayer,
    pub reader: LogReader,
    /// With NVRAM: as long as this lives, received records go to the files at once, where the thread reads them.
    pub _copying: Option<DestageDemand>,
    pub window_bytes: usize,
    pub orders: Arc<Orders>,
    pub woken: Receiver<()>,
    /// Gets one message, when the replay ends.
    pub ended: Sender<ReplayEnd>,
    /// Generation of the modules whose code is ready.
    pub generation: u64,
    /// Its entry in the list of threads that wait for the log.
    pub waiter: Option<WatermarkWaiter>,
    /// True while fed records are not sent yet, because the thread waits until no view is open.
    pub is_cut_due: bool,
    /// True if the next block ends beyond what the primary reports as committed. The block is durable, so only a report or an order changes that.
    pub is_at_limit: bool,
    /// LSN before which the tables have records that may not be committed, so no reader sees them. None: readers see the tables.
    pub hidden_until: Option<Lsn>,
    pub hiding: Arc<ReadGate>,
}

impl Follower {
    fn follow(&mut self) -> Result<Step, RecoveryError> {
        self.replayer.check()?;
        if self.is_cut_due {
            return self.cut();
        }
        if self.replayer.next_deployment().is_some() {
            return self.deploy();
        }
        self.make_code_ready();
        let mut window = self.replayer.window()?;
        let limit = self.orders.limit();
        if let Some(end) = self.hidden_until.filter(|end| *end <= limit) {
            self.hidden_until = None;
            self.router.raise_view(end);
            self.hiding.open_reads(&self.router);
        }
        let window_end = read_window(&mut self.reader, self.window_bytes, limit, &mut window)?;
        self.is_at_limit = window_end == WindowEnd::Limit;
        let is_empty = window.is_empty();
        self.replayer.feed(window, None)?;
        if !is_empty {
            self.is_cut_due = true;
            return self.cut();
        }
        let until = self.orders.until.load(Ordering::Acquire);
        if self.reader.position().0 >= until {
            self.replayer.drain()?;
            let _ = self.ended.send(Ok(self.reader.position())); // the caller may have gone
            return Ok(Step::Over);
        }
        match window_end {
            WindowEnd::Full => Ok(Step::Done), // the window read log without records
            WindowEnd::LogEnd | WindowEnd::Limit => Ok(Step::Idle),
        }
    }

    /// Feeds a deployment. The records before it were sent. Readers see them while this thread compiles the module.
    fn deploy(&mut self) -> Result<Step, RecoveryError> {
        if let Some(next) = self.replayer.next_deployment() {
            let what = format!("waits for the compilation of {} version {}", next.name, next.version);
            self.router.set_replay_waits_for(Some(what.as_str().into()));
            let text = format!(
                "the replay {what}; what lies before LSN {} is shown meanwhile",
                next.lsn
            );
            self.report(text);
        }
        let fed = self.replayer.feed_rest();
        self.router.set_replay_waits_for(None);
        fed?;
        self.is_cut_due = true;
        self.cut()
    }

    fn report(&self, what: String) {
        let name = String::new();
        self.shared
            .notices
            .publish(NoticeKind::Standby, || Notice::Standby { name, what });
    }

    /// Sends the records that were fed. A deployment waits until all views that began before it are closed. New views wait for it, so that
    /// takes little time.
    fn cut(&mut self) -> Result<Step, RecoveryError> {
        let router = &self.router;
        if self.replayer.has_barrier() && !router.shut_views() {
            return Ok(Step::Idle);
        }
        self.is_cut_due = false;
        let sent = self.replayer.snapshot_point(|end, send| router.send_window(end, send));
        router.reopen_views();
        sent?;
        Ok(Step::Done)
    }

    /// Compiles the deployed modules on this thread, so that no read waits longer than it must.
    fn make_code_ready(&mut self) {
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation == self.generation {
            return;
        }
        let deployed = self.shared.deployed.load_full();
        let codes: Vec<_> = deployed.current.values().map(|module| &*module.code).collect();
        // A call of a module that can't be compiled gets the error.
        let _ = make_ready(&codes, &*self.shared.threads);
        self.shared.count_binaries();
        self.generation = generation;
    }

    fn fail(&mut self, error: &RecoveryError) {
        let report = format!(
            "the replay of the primary's log stopped behind LSN {}: {error}. The tables are not served; what is received is kept in the log",
            self.router.view()
        );
        self.router.set_phase(NodePhase::Failed { report: report.clone() });
        self.router.reopen_views(); // waiting reads then get the failure
        self.report(report.clone());
        let _ = self.ended.send(Err(report.into())); // a promotion or a status reads the error
    }

    /// Sleeps until there may be more to do.
    fn wait(&mut self) {
        if self.is_cut_due {
            let _ = self.woken.recv_timeout(VIEWS_POLL_INTERVAL);
            return;
        }
        let orders = self.orders.clone();
        let next = Lsn(self.reader.position().0 + 1);
        let is_committed = !self.is_at_limit && next <= orders.limit();
        self.waiter = match is_committed {
            true => self.log.when_durable(next, Box::new(move || orders.wake())),
            false => None, // the primary's next report wakes this thread
        };
        if self.waiter.is_some() || !is_committed {
            let _ = self.woken.recv_timeout(POLL_INTERVAL);
        }
    }
}

impl Work for Follower {
    fn run(mut self: Box<Self>) {
        let follow = AssertUnwindSafe(|| {
            loop {
                match self.step() {
                    Step::Done => {}
                    Step::Idle => self.wait(),
                    Step::Over => return,
                }
            }
        });
        if catch_unwind(follow).is_err() {
            // An invariant is broken, so the process must not acknowledge one more byte. The panic has printed its message already.
            std::process::abort();
        }
    }

    fn step(&mut self) -> Step {
        if self.orders.is_stopping.load(Ordering::Acquire) {
            return Step::Over;
        }
        self.follow().unwrap_or_else(|error| {
            self.fail(&error);
            Step::Over
        })
    }
}
