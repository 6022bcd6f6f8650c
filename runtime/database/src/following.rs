//! The thread that replays what a standby receives: it reads what is durable in the log, and hands it to the engine threads, cut by cut.

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
use reprise_recovery::{RecoveryError, make_ready, read_window};
use reprise_replay::Replayer;
use reprise_router::{Phase, Router};

use crate::standby::Hiding;

/// Bytes of log that are replayed between two cuts at most: a read waits for some of these, and not longer.
pub(crate) const FOLLOW_WINDOW_BYTES: usize = 256 << 10;
/// How often a thread that is woken by whatever it waits for looks by itself.
const LOOK: Duration = Duration::from_millis(500);
/// The period of looks while it waits for views to be closed.
const LOOK_FOR_VIEWS: Duration = Duration::from_millis(2);
/// `Orders::until` while nobody wants the replay to end, and `Orders::committed` while there is no primary that tells it.
const NEVER: u64 = u64::MAX;

/// Orders of other threads to this one.
pub(crate) struct Orders {
    is_stopping: AtomicBool,
    /// It ends once everything before this is replayed.
    until: AtomicU64,
    /// Everything before this is committed by the primary: what may not outlive it is not replayed, so nobody sees it.
    committed: AtomicU64,
    wake: Sender<()>,
}

impl Orders {
    /// With where the thread is woken.
    pub fn new() -> (Arc<Self>, Receiver<()>) {
        // One is as good as many.
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
        let _ = self.wake.try_send(()); // it is awake, or gone
    }

    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// From now on nothing is replayed that the primary does not say to be committed, or said since this was called first; everything before `shown`
    /// was replayed.
    pub fn begin_commits(&self, shown: Lsn) {
        let began = self
            .committed
            .compare_exchange(NEVER, shown.0, Ordering::AcqRel, Ordering::Acquire);
        if began.is_err() {
            self.committed.fetch_max(shown.0, Ordering::AcqRel);
        }
    }

    /// The primary says so.
    pub fn note_committed(&self, committed: Lsn) {
        if self.committed.fetch_max(committed.0, Ordering::AcqRel) < committed.0 {
            self.wake();
        }
    }

    /// Returns the committed LSN that the primary last reported. None: no primary reports it.
    pub fn told_committed(&self) -> Option<Lsn> {
        let committed = self.committed.load(Ordering::Acquire);
        (committed != NEVER).then_some(Lsn(committed))
    }

    /// Everything before it may be replayed. Whoever is promoted decides on what it has itself.
    fn limit(&self) -> Lsn {
        match self.until.load(Ordering::Acquire) {
            NEVER => Lsn(self.committed.load(Ordering::Acquire)),
            _ => Lsn(NEVER),
        }
    }

    /// Replays what is durable before `end`, and ends.
    pub fn finish(&self, end: Lsn) {
        self.until.store(end.0, Ordering::Release);
        self.wake();
    }
}

/// How the replay ended: everything before an LSN is in the tables, or why not.
pub(crate) type Ended = Result<Lsn, Arc<str>>;

pub(crate) struct Follower {
    pub router: Router,
    pub shared: Arc<Shared>,
    pub log: Arc<Log<Box<CallBatch>>>,
    pub replayer: Replayer,
    pub reader: LogReader,
    /// With NVRAM: as long as it lives, what was received comes at once to the files, where it is read.
    pub _copying: Option<DestageDemand>,
    pub window_bytes: usize,
    pub orders: Arc<Orders>,
    pub woken: Receiver<()>,
    /// Told once, when the replay ends.
    pub ended: Sender<Ended>,
    /// Generation of the modules whose code is ready.
    pub generation: u64,
    /// Its place among those who wait for the log.
    pub waiter: Option<WatermarkWaiter>,
    /// True while fed records are not sent yet, because the thread waits until no view is open.
    pub is_cut_due: bool,
    /// The tables hold what is before it, and not all of that is known to be committed: nobody sees them. None: calls were let in.
    pub hidden_until: Option<Lsn>,
    pub hiding: Arc<Hiding>,
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
            self.hiding.let_in(&self.router);
        }
        let has_more = read_window(&mut self.reader, self.window_bytes, limit, &mut window)?;
        let is_empty = window.is_empty();
        self.replayer.feed(window, None)?;
        if !is_empty {
            self.is_cut_due = true;
            return self.cut();
        }
        let until = self.orders.until.load(Ordering::Acquire);
        if self.reader.position().0 >= until {
            self.replayer.drain()?;
            let _ = self.ended.send(Ok(self.reader.position())); // whoever asked may have gone
            return Ok(Step::Over);
        }
        match has_more {
            true => Ok(Step::Done), // what is there holds no records
            false => Ok(Step::Idle),
        }
    }

    /// Feeds a deployment. What lies before it was sent, and is shown while its module is compiled, here.
    fn deploy(&mut self) -> Result<Step, RecoveryError> {
        if let Some(next) = self.replayer.next_deployment() {
            let what = format!("waits for the compilation of {} version {}", next.name, next.version);
            self.router.set_replay_waits_for(Some(what.as_str().into()));
            let told = format!(
                "the replay {what}; what lies before LSN {} is shown meanwhile",
                next.lsn
            );
            self.tell(told);
        }
        let fed = self.replayer.feed_rest();
        self.router.set_replay_waits_for(None);
        fed?;
        self.is_cut_due = true;
        self.cut()
    }

    fn tell(&self, what: String) {
        let name = String::new();
        self.shared
            .notices
            .tell(NoticeKind::Standby, || Notice::Standby { name, what });
    }

    /// Sends what was fed. A deployment waits until no view is open that began before; new ones wait for it, so that is soon.
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

    /// No read waits for a compiler longer than it must: what was deployed is made ready here.
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
        self.router.set_phase(Phase::Failed { report: report.clone() });
        self.tell(report.clone());
        let _ = self.ended.send(Err(report.into())); // whoever asks finds it
    }

    /// Sleeps until there may be more to do.
    fn wait(&mut self) {
        if self.is_cut_due {
            let _ = self.woken.recv_timeout(LOOK_FOR_VIEWS);
            return;
        }
        let orders = self.orders.clone();
        let next = Lsn(self.reader.position().0 + 1);
        let is_committed = next <= orders.limit();
        self.waiter = match is_committed {
            true => self.log.when_durable(next, Box::new(move || orders.wake())),
            false => None, // whoever says that it is wakes this thread
        };
        if self.waiter.is_some() || !is_committed {
            let _ = self.woken.recv_timeout(LOOK);
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
            // A broken invariant: not one more byte is acknowledged. The panic's message is out already.
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
