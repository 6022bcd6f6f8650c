//! The primary's side: takes connections of standbys, and knows how far each is.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use crossbeam_channel::RecvTimeoutError;
use reprise_base::{Joiner, Lsn, Safety, Watermark, check_node_name};
use reprise_env::{Clock, Connection, FrameBuffer, Listener, Net, NetError, Step, ThreadHandle, Threads, Work};
use reprise_wire::FILE_CHUNK_BYTES_MAX;

use crate::{
    comparisons::Comparisons,
    connection::SHIP_LIMITS,
    freshness::{FreshnessPoint, FreshnessSummary},
    member::{Member, StandbyStatus, are_alike},
    name_check::check_writer,
    ring::{OnStreaming, Ring},
    safety::{Commits, SafetyHook},
    session::Session,
    source::{CheckpointSource, ShippedLog},
    table::StandbyTable,
    tickets::Tickets,
    views::SAMPLE_NS,
};

/// Limit of connections. At the limit, the oldest one that has not greeted gives way to a new one. If all have greeted, the shipper closes the new
/// one at once.
const CONNECTIONS_MAX: usize = 32;
/// How often the shipper saves the list of expected standbys, in nanoseconds.
const KEEP_EVERY_NS: u64 = 10_000_000_000;

/// Events that an operator may want to know as they happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShipEvent {
    Connected {
        name: Arc<str>,
        peer: String,
        /// None: it gets its first files.
        position: Option<Lsn>,
    },
    Ended {
        name: Arc<str>,
        reason: String,
    },
    /// A peer without a valid ticket.
    TurnedAway {
        peer: String,
        reason: String,
    },
    /// The log released records that the standby lacks.
    HoldLetGo {
        name: Arc<str>,
    },
}

/// Saves a list of standbys. True once it is durable. False if it can't be saved: no commit then stops waiting for a standby.
pub type Keep = Box<dyn Fn(&[Member]) -> bool + Send + Sync>;

pub struct ShipperConfig {
    pub net: Arc<dyn Net>,
    pub clock: Arc<dyn Clock>,
    pub threads: Arc<dyn Threads>,
    pub log: Arc<dyn ShippedLog>,
    pub checkpoints: Arc<dyn CheckpointSource>,
    /// `host:port`; port 0: any that is free.
    pub listen: String,
    /// URL of this server for clients; empty: not known.
    pub primary: String,
    pub partitions: u16,
    /// Bytes of groups that the ring keeps for standbys that are not far behind.
    pub ring_bytes: usize,
    /// Size of the parts in which a standby gets its first files, at most `FILE_CHUNK_BYTES_MAX`. The shipper sends newly logged groups between two
    /// parts.
    pub file_part_bytes: usize,
    /// Called with whether any standby gets groups.
    pub following: OnStreaming,
    /// The server's level.
    pub safety: Safety,
    /// The gate that keeps callers until standbys have their records.
    pub commits: Arc<dyn Commits>,
    /// Standbys of an earlier run.
    pub expected: Vec<Member>,
    /// Saves that list for the next run. This happens every 10 s if it changed, at once if another standby is in sync, and at the end.
    pub keep: Keep,
    /// For tickets.
    pub entropy: Box<dyn Fn() -> io::Result<[u8; 16]> + Send + Sync>,
    /// Must not wait.
    pub report: Box<dyn Fn(ShipEvent) + Send + Sync>,
}

#[derive(Debug, thiserror::Error)]
pub enum ShipError {
    #[error("listen for standbys at {address}: {error}")]
    Listen { address: String, error: NetError },
    #[error("memory for groups on their way to standbys: {0}")]
    Memory(NetError),
    #[error("start a thread: {0}")]
    Thread(io::Error),
    #[error("{0}")]
    Name(String),
    /// Another server has the name, or the writer of its epochs.
    #[error("{0}")]
    NameTaken(String),
    #[error("no ticket can be drawn: {0}")]
    Entropy(io::Error),
}

pub(crate) struct ShipperInner {
    pub clock: Arc<dyn Clock>,
    threads: Arc<dyn Threads>,
    pub log: Arc<dyn ShippedLog>,
    pub checkpoints: Arc<dyn CheckpointSource>,
    pub primary: String,
    pub safety: Safety,
    pub partitions: u16,
    /// Size of the parts of a standby's first files.
    pub file_part_bytes: usize,
    pub report: Box<dyn Fn(ShipEvent) + Send + Sync>,
    pub ring: Arc<Ring>,
    pub tickets: Tickets,
    pub table: StandbyTable,
    pub comparisons: Arc<Comparisons>,
    is_stopping: AtomicBool,
    is_dismissed: AtomicBool,
    commits: Arc<dyn Commits>,
    sessions: Mutex<BTreeMap<u64, Box<dyn ThreadHandle>>>,
    /// Sessions that have not greeted yet.
    silent: Mutex<BTreeSet<u64>>,
    /// The silent sessions up to this number give way to others.
    gives_way: AtomicU64,
    next_number: AtomicU64,
}

impl ShipperInner {
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Records that the session has greeted.
    pub fn record_greeting(&self, number: u64) {
        self.silent.lock().expect("held to count").remove(&number);
    }

    /// A session that has not greeted gives way to another one.
    pub fn gives_way(&self, number: u64) -> bool {
        number <= self.gives_way.load(Ordering::Acquire)
    }

    /// True if another server is the primary.
    pub fn is_dismissed(&self) -> bool {
        self.is_dismissed.load(Ordering::Acquire)
    }

    /// Returns the committed LSN that the primary may tell its standbys.
    pub fn committed(&self, durable: Lsn) -> Lsn {
        self.comparisons.limit(self.commits.committed(durable))
    }
}

/// Sends the log of a primary to its standbys.
pub struct Shipper {
    inner: Arc<ShipperInner>,
    address: String,
    entropy: Box<dyn Fn() -> io::Result<[u8; 16]> + Send + Sync>,
    thread: Mutex<Option<Box<dyn ThreadHandle>>>,
}

impl Shipper {
    /// Listens, and takes standbys from now on.
    pub fn start(config: ShipperConfig) -> Result<Self, ShipError> {
        let listener = config.net.listen(&config.listen, SHIP_LIMITS);
        let listener = listener.map_err(|error| ShipError::Listen {
            address: config.listen.clone(),
            error,
        })?;
        let memory = config.net.frame_memory(frame_memory_bytes(config.ring_bytes));
        let buffer = memory.map_err(ShipError::Memory)?.map(FrameBuffer::new);
        let inner = Arc::new(ShipperInner {
            clock: config.clock,
            threads: config.threads,
            log: config.log,
            checkpoints: config.checkpoints,
            primary: config.primary,
            safety: config.safety,
            partitions: config.partitions,
            file_part_bytes: config.file_part_bytes.min(FILE_CHUNK_BYTES_MAX),
            report: config.report,
            ring: Arc::new(Ring::new(config.ring_bytes, buffer.map(Arc::new), config.following)),
            tickets: Tickets::default(),
            table: StandbyTable::new(config.safety, config.commits.clone()),
            comparisons: Arc::default(),
            is_stopping: AtomicBool::new(false),
            is_dismissed: AtomicBool::new(false),
            commits: config.commits,
            sessions: Mutex::default(),
            silent: Mutex::default(),
            gives_way: AtomicU64::new(0),
            // 0 means no connection.
            next_number: AtomicU64::new(1),
        });
        let now_ns = inner.clock.monotonic_ns();
        for expected in &config.expected {
            // A slot can't hold log that is gone. The standby learns that when it comes.
            let hold = inner.log.hold(&expected.name, expected.from).ok();
            let hold = hold.map(|hold| (Arc::new(hold), expected.from));
            inner.table.expect(expected, hold, now_ns);
        }
        inner.table.begin_commits();
        let address = listener.address.clone();
        // The ring alone: the log lives no longer for it.
        inner.log.add_sink(inner.ring.clone());
        let accepting = Acceptor {
            inner: Arc::clone(&inner),
            listener,
            sampled_ns: 0,
            keep: config.keep,
            kept: config.expected,
            is_certain: true,
            kept_ns: 0,
            boot_ahead_ns: u64::MAX,
            came: None,
        };
        let make = Box::new(move || Box::new(accepting) as Box<dyn Work>);
        let thread = inner
            .threads
            .start_prompt("ship-accept", make)
            .map_err(ShipError::Thread)?;
        Ok(Self {
            inner,
            address,
            entropy: config.entropy,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns the address to which standbys connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Lets a standby connect with the ticket that it returns, once, within a minute.
    pub fn join(&self, joiner: &Joiner) -> Result<[u8; 16], ShipError> {
        check_node_name(&joiner.name).map_err(ShipError::Name)?;
        let (inner, now_ns) = (&self.inner, self.inner.clock.monotonic_ns());
        inner.table.check_name(joiner, now_ns).map_err(ShipError::NameTaken)?;
        check_writer(joiner, inner.log.epoch()).map_err(ShipError::NameTaken)?;
        let ticket = (self.entropy)().map_err(ShipError::Entropy)?;
        inner.tickets.issue(ticket, joiner.clone(), now_ns);
        Ok(ticket)
    }

    /// Returns the standbys by name.
    pub fn standbys(&self) -> Vec<StandbyStatus> {
        self.inner.table.statuses(&*self.inner.log)
    }

    /// Returns the other standbys that are out of sync. Each has everything before its LSN.
    pub fn laggards(&self, name: &str) -> Vec<(Arc<str>, Lsn)> {
        self.inner.table.laggards(name)
    }

    /// Returns one point a second for the last hour, the oldest first, and the last minute in one. None: no such standby.
    pub fn freshness(&self, name: &str) -> Option<(Vec<FreshnessPoint>, Option<FreshnessSummary>)> {
        self.inner.table.history(name)
    }

    /// True for a lost standby that can be forgotten.
    pub fn is_lost(&self, name: &str) -> bool {
        self.inner.table.is_lost(name)
    }

    /// Forgets a lost standby, and releases its slot. False: there is none of that name.
    pub fn forget(&self, name: &str) -> bool {
        self.inner.table.forget(name)
    }

    /// Returns the watermark before which everything is durable on at least `count` standbys. None: there can't be that number of standbys.
    pub fn acked(&self, count: usize) -> Option<Arc<Watermark>> {
        self.inner.table.acked(count)
    }

    /// Whether calls can have a level now. Err: why not.
    pub fn check_safety(&self, level: Safety) -> Result<(), Arc<str>> {
        self.inner.table.check_level(level)
    }

    /// Calls `hook` once the records before `end`, which are durable here, have a level. Calls it with the reason if the wait for that ends first.
    /// Either happens within about 5 s.
    pub fn when_safe(&self, level: Safety, end: Lsn, hook: SafetyHook) {
        let inner = &self.inner;
        inner.table.when_safe(level, end, inner.clock.monotonic_ns(), hook);
    }

    /// Returns the level that an answered write has now.
    pub fn reached(&self) -> Safety {
        self.inner.table.reached()
    }

    /// Everything before it is on the number of standbys that the server's level asks for. None: the level asks for none.
    pub fn acked_limit(&self) -> Option<Lsn> {
        self.inner.table.limit()
    }

    /// LSNs at which tables are compared.
    pub fn comparisons(&self) -> &Arc<Comparisons> {
        &self.inner.comparisons
    }

    /// True if a standby streams. It then also compares.
    pub fn is_followed(&self) -> bool {
        self.inner.table.is_followed()
    }

    /// Returns the committed LSN, as standbys learn it.
    pub fn committed(&self) -> Lsn {
        self.inner.committed(self.inner.log.durable())
    }

    /// Sends its standbys away, since another server is the primary; or takes them again.
    pub fn dismiss(&self, is_dismissed: bool) {
        self.inner.is_dismissed.store(is_dismissed, Ordering::Release);
        self.inner.ring.wake_all();
    }

    /// Ends all connections. Before the log is closed.
    pub fn stop(&self) {
        self.inner.is_stopping.store(true, Ordering::Release);
        self.inner.ring.wake_all();
        if let Some(thread) = self.thread.lock().expect("held to take").take() {
            thread.join();
        }
        let sessions = std::mem::take(&mut *self.inner.sessions.lock().expect("held to take"));
        for session in sessions.into_values() {
            session.join();
        }
    }
}

impl Drop for Shipper {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// Returns the bytes for groups with `ring_bytes` bytes of records, and their heads. It adds as much as the longest group may leave unused where it
/// wraps.
fn frame_memory_bytes(ring_bytes: usize) -> usize {
    ring_bytes + ring_bytes / 4
}

/// The thread that takes connections, and samples.
struct Acceptor {
    inner: Arc<ShipperInner>,
    listener: Listener,
    sampled_ns: u64,
    keep: Keep,
    /// The list that `keep` last said it had saved.
    kept: Vec<Member>,
    /// The shipper asked to save no other list since.
    is_certain: bool,
    kept_ns: u64,
    /// The lead of the clock that counts suspended time over the monotonic one.
    boot_ahead_ns: u64,
    came: Option<Connection>,
}

impl Acceptor {
    fn begin(&self, connection: Connection) {
        let inner = &self.inner;
        let mut sessions = inner.sessions.lock().expect("held to count");
        sessions.retain(|_, session| !session.is_over());
        let mut silent = inner.silent.lock().expect("held to count");
        silent.retain(|number| sessions.contains_key(number));
        if sessions.len() >= CONNECTIONS_MAX {
            let Some(oldest) = silent.pop_first() else {
                return; // the drop ends the connection
            };
            inner.gives_way.store(oldest, Ordering::Release);
        }
        let number = inner.next_number.fetch_add(1, Ordering::Relaxed);
        silent.insert(number);
        drop(silent);
        let shipper = Arc::clone(inner);
        let make = Box::new(move || Box::new(Session::new(shipper, number, connection)) as Box<dyn Work>);
        // Without a thread it ends, too.
        if let Ok(started) = inner.threads.start_prompt(&format!("ship-{number}"), make) {
            sessions.insert(number, started);
        }
    }

    /// Saves the list if it changed. False: it can't be saved, and the shipper will try again.
    fn keep_if_changed(&mut self, now_ns: u64) -> bool {
        self.kept_ns = now_ns;
        // A server that is dismissed no longer says whether a standby left for which it waited as the primary.
        if self.inner.is_dismissed() && self.inner.table.is_any_leaving() {
            return false;
        }
        let expected = self.inner.table.expected();
        if self.is_certain && expected == self.kept {
            return true;
        }
        // A list that `keep` does not confirm may be saved all the same, or be saved later.
        self.is_certain = (self.keep)(&expected);
        if self.is_certain {
            self.inner.table.record_saved(&expected);
            self.kept = expected;
        }
        self.is_certain
    }

    /// Saves a change of the sync set at once, and before a commit continues without a standby that was in it.
    fn tick(&mut self, now_ns: u64) {
        let inner = Arc::clone(&self.inner);
        inner.table.expire(now_ns);
        // A standby that it sent away has what it had then.
        if inner.is_dismissed() {
            return;
        }
        self.confirm(now_ns);
        let is_leaving = inner.table.tick(now_ns, &*inner.log);
        let mut is_kept = true;
        if is_leaving || !self.is_certain || !are_alike(&inner.table.expected(), &self.kept) {
            is_kept = self.keep_if_changed(now_ns);
        }
        if is_leaving && is_kept {
            inner.table.end_leaving(&self.kept, now_ns);
        }
    }

    /// Tells the gate when standbys had last been heard. A suspension since the last tick counts as before it: the age is never too small.
    fn confirm(&mut self, now_ns: u64) {
        let ahead_ns = self.inner.clock.boot_ns().saturating_sub(now_ns);
        let before_ns = std::mem::replace(&mut self.boot_ahead_ns, ahead_ns);
        if let Some(heard_ns) = self.inner.table.confirmed_ns() {
            self.inner.commits.confirm(heard_ns + before_ns.min(ahead_ns));
        }
    }

    fn sample_if_due(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.sampled_ns) < SAMPLE_NS {
            return;
        }
        self.sampled_ns = now_ns;
        self.inner.table.record_view(now_ns, &*self.inner.log);
        self.tick(now_ns);
        let inner = &self.inner;
        inner.table.sample((now_ns, inner.clock.now_us()), &*inner.log);
        for name in inner.table.take_released() {
            (inner.report)(ShipEvent::HoldLetGo { name });
        }
    }
}

impl Work for Acceptor {
    fn run(mut self: Box<Self>) {
        let interval = Duration::from_nanos(SAMPLE_NS);
        while self.step() != Step::Over {
            match self.listener.accepted.recv_timeout(interval) {
                Ok(connection) => self.came = Some(connection),
                Err(RecvTimeoutError::Timeout) => {}
                // No standby comes any more, but the samples continue.
                Err(RecvTimeoutError::Disconnected) => self.inner.threads.sleep(interval),
            }
        }
    }

    fn step(&mut self) -> Step {
        if self.inner.is_stopping() {
            self.keep_if_changed(0);
            return Step::Over;
        }
        let came = self.came.take().or_else(|| self.listener.accepted.try_recv().ok());
        let is_new = came.is_some();
        if let Some(connection) = came {
            self.begin(connection);
        }
        let now_ns = self.inner.clock.monotonic_ns();
        self.sample_if_due(now_ns);
        if now_ns.saturating_sub(self.kept_ns) >= KEEP_EVERY_NS {
            self.keep_if_changed(now_ns);
        }
        if is_new { Step::Done } else { Step::Idle }
    }
}
