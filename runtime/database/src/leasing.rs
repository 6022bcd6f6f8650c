//! The choice of the primary by a lease in a store that all nodes reach. A primary acknowledges writes only while its lease lasts. A
//! standby in sync takes over when the lease is free.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, TryLockError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reprise_base::{Epoch, Role};
use reprise_env::{Step, ThreadHandle, Work, entropy};
use reprise_log::LogError;
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{LeaseClock, Shared};
use reprise_router::{LeaseInfo, LeaseStatus, LostRecords, ReplicationError};

use crate::{
    cutting,
    database::Database,
    lease_rules::{ByHand, free_count, keep_record, may_begin, may_take_again, may_take_over},
    lease_store::{Holder, LeaseContents, LeaseStore, StoreError, SyncRecord},
    membership,
    node_file::epoch_of,
    promotion::Takeover,
    standby_service::NodeReplication,
};

/// Interval at which the thread checks its orders.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time between two attempts that the store refused.
const REST: Duration = Duration::from_millis(200);
/// Longest time in which a hand-over tries to record the successor. The successor waits for the answer meanwhile.
const HAND_OVER_RECORD_MAX: Duration = Duration::from_secs(3);

/// The settings with which a server takes part in the lease.
pub struct LeaseConfig {
    pub store: Box<dyn LeaseStore>,
    /// Name of this server, which no other server has.
    pub name: String,
    pub url: Option<Arc<str>>,
    /// Time for which the lease lasts. The store may give more.
    pub ttl: Duration,
}

/// Reason for which a server does not start with a lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("a server without a log has no part in a lease")]
    NoLog,
    #[error("a server has one lease")]
    Again,
    #[error("{} is the primary{}: start this server with --standby-of its URL", .0.name, .0.url.as_deref().map(|url| format!(" at {url}")).unwrap_or_default())]
    Held(Holder),
    #[error(
        "{primary} was the primary last, and this server is not known to be in sync with it: start it with --standby-of. Where the other servers \
         are lost for good, start it so and promote it (--force --accept-loss)"
    )]
    Behind { primary: String },
    #[error(
        "this server was the primary last. Its data directory is another one, or an old copy, or was cut back or begun anew since: {0}. Start it \
         with --standby-of. Where the other servers are lost for good, promote it then (--force --accept-loss)"
    )]
    Older(String),
    #[error(
        "the lease has no record of this database, and this directory is a standby's: start it with --standby-of. If no other server of this \
         database leads, run `reprise node lead DIR --accept-loss`, then start it again"
    )]
    NoRecord,
    #[error("the server stops")]
    Stops,
    #[error(transparent)]
    Log(LogError),
    #[error("no number can be drawn: {0}")]
    Entropy(std::io::Error),
    #[error("start a thread: {0}")]
    Thread(std::io::Error),
}

/// Returns the time until which a primary may acknowledge writes. It must stop before the store gives the lease to another server. It
/// therefore gives up a fifth of the lease. Clocks run at different speeds, and an answer leaves a little after the clock is read.
fn until_ns(asked_ns: u64, ttl: Duration) -> u64 {
    asked_ns + ttl.as_nanos() as u64 / 5 * 4
}

/// Says why a request to the store failed.
fn away(kind: &str, error: &StoreError) -> String {
    format!("{kind} does not tell who is the primary: {error}")
}

#[derive(Default)]
struct LeaseManagerState {
    /// True since this server took the lease, until it reads that another server has it.
    holds: bool,
    seen: Option<LeaseContents>,
    /// Standbys that this server wants recorded as in sync. `recorded` has those that the store certainly has.
    wanted: Vec<String>,
    recorded: Option<Vec<String>>,
    /// LSN of the record that the store certainly has.
    recorded_lsn: u64,
    next_ns: u64,
    /// Time at which `seen` was requested.
    read_ns: u64,
    /// True while a thread waits until the store is read again.
    is_asked: bool,
    error: Option<Arc<str>>,
    /// Epoch of the record that this server last asked for. As the primary, it leads in that epoch or a later one. No other server has that
    /// epoch.
    epoch: u32,
    /// Epoch of the record with which this server last tried to take over.
    tried: Option<u32>,
    /// Reason for which the last try failed.
    failed: Option<Box<str>>,
    /// The record before the promotion of this server began, until the server leads or the store has it again.
    before: Option<SyncRecord>,
    /// The loss that an operator accepted. Since then the record names this server, whether or not it became the primary.
    accepted: Option<LostRecords>,
}

/// This server's part in the lease: it takes and prolongs the lease as the primary, and reads it as a standby.
pub(crate) struct LeaseManager {
    own: Holder,
    kind: &'static str,
    ttl: Duration,
    shared: Arc<Shared>,
    replication: Weak<NodeReplication>,
    clock: Arc<LeaseClock>,
    store: Mutex<Box<dyn LeaseStore>>,
    /// Locked while this server is promoted.
    promoting: Mutex<()>,
    state: Mutex<LeaseManagerState>,
    is_stopping: AtomicBool,
    thread: Mutex<Option<Box<dyn ThreadHandle>>>,
}

/// The lease manager, once `keep_lease` was called.
pub(crate) type LeasingCell = Arc<OnceLock<Arc<LeaseManager>>>;

impl Database {
    /// Lets a lease decide the role of this server from now on. The caller calls it once, after `set_safety`. On a primary it comes before
    /// `recover`, and blocks until the primary has the lease. On a standby it comes before `follow_primary`, and reads the last primary. The
    /// standby takes over by itself once it is recovered.
    pub fn keep_lease(self: &Arc<Self>, config: LeaseConfig) -> Result<(), LeaseError> {
        let replication = self.replication().map_err(|_| LeaseError::NoLog)?;
        let shared = &replication.shared;
        let drawn = entropy().map_err(LeaseError::Entropy)?;
        let clock = Arc::new(LeaseClock::new(shared.clock.clone()));
        let leasing = Arc::new(LeaseManager {
            own: Holder {
                name: config.name,
                url: config.url.as_deref().map(str::to_owned),
                instance: u64::from_le_bytes(drawn),
            },
            kind: config.store.kind(),
            ttl: config.ttl,
            shared: shared.clone(),
            replication: Arc::downgrade(replication),
            clock: clock.clone(),
            store: Mutex::new(config.store),
            promoting: Mutex::default(),
            state: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            thread: Mutex::default(),
        });
        if !shared.gate.set_lease(clock) || replication.leasing.set(leasing.clone()).is_err() {
            return Err(LeaseError::Again);
        }
        if self.router.role() == Role::Primary {
            self.keep_commits();
            leasing.begin(replication)?;
        } else if let Err(error) = leasing.read_store() {
            leasing.record_error(&error);
        }
        let keeping = LeaseThread(leasing.clone());
        let make = Box::new(move || Box::new(keeping) as Box<dyn Work>);
        let thread = shared.threads.start_prompt("lease", make).map_err(LeaseError::Thread)?;
        *leasing.thread.lock().expect("held for a store") = Some(thread);
        Ok(())
    }
}

impl LeaseManager {
    fn lock(&self) -> MutexGuard<'_, LeaseManagerState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    fn store(&self) -> MutexGuard<'_, Box<dyn LeaseStore>> {
        self.store.lock().expect("a store does not panic")
    }

    /// Returns the time by the clock that counts suspended time: the store's clock goes on while this machine is suspended.
    fn now_ns(&self) -> u64 {
        self.shared.clock.boot_ns()
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn report(&self, what: String) {
        let name = String::new();
        self.shared
            .notices
            .publish(NoticeKind::Standby, || Notice::Standby { name, what });
    }

    /// Returns the interval at which a holder prolongs the lease, or another server reads it.
    fn every_ns(&self) -> u64 {
        self.ttl.as_nanos() as u64 / 4
    }

    /// Records that the store refused a request, or did not answer.
    fn record_error(&self, error: &StoreError) {
        let kind = self.kind;
        let mut state = self.lock();
        let is_new = state.error.is_none();
        state.error = Some(error.0.clone());
        state.next_ns = self.now_ns() + REST.as_nanos() as u64;
        drop(state);
        if is_new {
            self.report(away(kind, error));
        }
    }

    fn record_success(&self) {
        let was_away = self.lock().error.take().is_some();
        if was_away {
            self.report(format!("{} answers again", self.kind));
        }
    }

    fn read_store(&self) -> Result<LeaseContents, StoreError> {
        let asked_ns = self.shared.clock.monotonic_ns();
        let seen = self.store().read()?;
        let mut state = self.lock();
        (state.seen, state.read_ns) = (Some(seen.clone()), asked_ns);
        Ok(seen)
    }

    /// True if this server has read the store since `since_ns`, or the store does not answer. Otherwise it asks the thread to read the
    /// store at once.
    pub fn has_read_since(&self, since_ns: u64) -> bool {
        let mut state = self.lock();
        let has_read = state.read_ns >= since_ns || state.error.is_some();
        state.is_asked = !has_read;
        has_read
    }

    /// Takes the lease. True: this server has it, in an epoch of at least `at_least`, and the store records these standbys as in sync.
    fn take(&self, seen: &LeaseContents, (at_least, in_sync): (u32, Vec<String>)) -> Result<bool, StoreError> {
        let record = SyncRecord {
            epoch: at_least.max(free_count(seen, &self.own.name)),
            ..self.record_of(in_sync)
        };
        let asked_ns = self.now_ns();
        // The store may write the record without confirming it.
        self.lock().epoch = record.epoch;
        let Some(ttl) = self.store().take(&self.own, &record, seen, self.ttl)? else {
            return Ok(false);
        };
        let mut state = self.lock();
        (state.holds, state.next_ns) = (true, asked_ns + self.every_ns());
        state.wanted = record.in_sync.clone();
        (state.recorded, state.recorded_lsn) = (Some(record.in_sync.clone()), record.lsn);
        state.seen = Some(LeaseContents {
            holder: Some(self.own.clone()),
            record: Some(record),
            versions: (0, 0),
        });
        drop(state);
        self.clock.set_until(until_ns(asked_ns, ttl));
        self.shared.gate.release();
        Ok(true)
    }

    /// Takes the lease for a primary that starts.
    fn begin(&self, replication: &NodeReplication) -> Result<(), LeaseError> {
        loop {
            if self.is_stopping() {
                return Err(LeaseError::Stops);
            }
            match self.try_begin(replication) {
                Ok(begun) => {
                    if begun? {
                        self.record_success();
                        return Ok(());
                    }
                }
                Err(error) => self.record_error(&error),
            }
            self.shared.threads.sleep(REST);
        }
    }

    fn open_epoch(&self, seen: &LeaseContents, replication: &NodeReplication) -> Result<(), LeaseError> {
        let own = match self.lock().epoch {
            0 => replication.opening_epoch(),
            _ => replication.log.epoch(), // an earlier try saved it
        };
        may_begin(seen, &replication.candidate(&self.own.name))?;
        let free = replication.node.own_epoch(free_count(seen, &self.own.name));
        replication.open_epoch(own.later(free)).map_err(LeaseError::Log)
    }

    fn try_begin(&self, replication: &NodeReplication) -> Result<Result<bool, LeaseError>, StoreError> {
        let seen = self.read_store()?;
        match &seen.holder {
            Some(holder) if holder.name != self.own.name => return Ok(Err(LeaseError::Held(holder.clone()))),
            // An earlier process of this server seems to hold the lease, which ends by itself.
            Some(_) => return Ok(Ok(false)),
            None => {}
        }
        if let Err(error) = self.open_epoch(&seen, replication) {
            return Ok(Err(error));
        }
        let expected = membership::load(&replication.node);
        let in_sync = expected.iter().filter(|standby| standby.is_in_sync);
        let names = in_sync.map(|standby| standby.name.to_string()).collect();
        let is_taken = self.take(&seen, (replication.log.epoch().count(), names))?;
        let opened = match is_taken {
            true => replication.open_reign(),
            false => Ok(()),
        };
        Ok(opened.map(|()| is_taken).map_err(LeaseError::Log))
    }

    /// Saves a standby's claim before it asks for the lease, and returns its epoch. `loses`: an operator accepts a loss.
    fn claim(&self, seen: &LeaseContents, loses: bool) -> Result<u32, Arc<str>> {
        let replication = self.replication.upgrade().ok_or("the server stops")?;
        // The epoch in which the promotion begins. No other server may take it.
        let highest = replication.log.epoch().later(replication.promises.bound());
        let free = highest.count().saturating_add(1).max(free_count(seen, &self.own.name));
        let kept = replication
            .node
            .change(|document| cutting::claim_lease(document, free, loses));
        let error = |error| format!("that this server asks for the lease can't be kept here: {error}");
        kept.map_err(|failed| error(failed).into())
    }

    /// Returns whether the store records exactly these standbys as in sync. If not, the thread writes the record when it can.
    pub fn record(&self, in_sync: Vec<String>) -> bool {
        let mut state = self.lock();
        state.wanted = in_sync;
        state.holds && state.recorded.as_ref() == Some(&state.wanted)
    }

    /// Prolongs the lease of its holder, and records the standbys in sync.
    fn hold(&self) -> Step {
        let now_ns = self.now_ns();
        let state = self.lock();
        let is_due = now_ns >= state.next_ns;
        let is_wanted = state.recorded.as_ref() != Some(&state.wanted) && state.error.is_none();
        drop(state);
        if !is_due && !is_wanted {
            return Step::Idle;
        }
        let held = match is_due {
            true => self.prolong(now_ns),
            false => Ok(true),
        };
        let held = held.and_then(|held| Ok(held && self.record_if_wanted(is_due)?));
        match held {
            Ok(true) => self.record_success(),
            Ok(false) => match self.read_again() {
                Ok(()) => {}
                Err(error) => self.record_error(&error),
            },
            Err(error) => self.record_error(&error),
        }
        Step::Done
    }

    fn prolong(&self, asked_ns: u64) -> Result<bool, StoreError> {
        let Some(ttl) = self.store().renew()? else {
            return Ok(false);
        };
        let mut state = self.lock();
        if state.holds {
            self.clock.set_until(until_ns(asked_ns, ttl));
            state.next_ns = asked_ns + self.every_ns();
        }
        drop(state);
        self.shared.gate.release();
        Ok(true)
    }

    /// Writes the record if it names other standbys than this server wants. `is_due`: also if the log has grown since.
    fn record_if_wanted(&self, is_due: bool) -> Result<bool, StoreError> {
        let mut state = self.lock();
        let own = self.record_of(state.wanted.clone());
        // While this server takes over, its log is still in the epoch of the primary before.
        let record = SyncRecord {
            epoch: own.epoch.max(state.epoch),
            ..own
        };
        let has_names = state.recorded.as_ref() == Some(&record.in_sync);
        if has_names && !(is_due && record.lsn > state.recorded_lsn) {
            return Ok(true);
        }
        if !has_names {
            // The contents of the record are unknown until the request is answered.
            state.recorded = None;
        }
        drop(state);
        let is_done = self.store().record(&record)?;
        if is_done {
            let mut state = self.lock();
            (state.recorded, state.recorded_lsn) = (Some(record.in_sync.clone()), record.lsn);
            if let Some(seen) = &mut state.seen {
                seen.record = Some(record);
            }
        }
        Ok(is_done)
    }

    /// Returns the record of this server as the primary, in the epoch of its log.
    fn record_of(&self, in_sync: Vec<String>) -> SyncRecord {
        let replication = self.replication.upgrade();
        let place = replication.map(|replication| {
            (
                replication.log.epoch(),
                replication.own_node(),
                replication.log.durable(),
            )
        });
        let (epoch, node, lsn) = place.unwrap_or_default();
        SyncRecord {
            primary: self.own.name.clone(),
            epoch: epoch.count(),
            in_sync,
            node,
            lsn: lsn.0,
        }
    }

    fn role(&self) -> Option<Role> {
        self.replication.upgrade().map(|replication| replication.router.role())
    }

    fn epoch(&self) -> u32 {
        self.replication
            .upgrade()
            .map_or(0, |replication| replication.log.epoch().count())
    }

    /// Reads the holder of the lease, after it ended or the record changed. A server that lost the lease while it took over leads without it. It
    /// takes the lease again, or is deposed.
    fn read_again(&self) -> Result<(), StoreError> {
        let seen = self.read_store()?;
        if !self.lock().holds && self.role() != Some(Role::Primary) {
            return Ok(()); // this server gave the lease away
        }
        if may_take_again(&seen, &self.own) {
            // A leaving standby stays in the record until the store has the new record. Callers wait for it until then.
            let in_sync = self.lock().wanted.clone();
            self.take(&seen, (self.epoch(), in_sync))?;
            return Ok(());
        }
        self.end_holding();
        if let Some(replication) = self.replication.upgrade() {
            replication.depose(seen.holder.as_ref());
        }
        Ok(())
    }

    /// Has a standby take over when the lease is free.
    fn watch(self: &Arc<Self>) -> Step {
        let mut state = self.lock();
        let is_due = self.now_ns() >= state.next_ns;
        if !(std::mem::take(&mut state.is_asked) || is_due) {
            return Step::Idle;
        }
        if is_due {
            state.next_ns = self.now_ns() + self.every_ns();
        }
        drop(state);
        match self.read_store() {
            Ok(seen) => {
                self.record_success();
                if is_due && let Err(error) = self.take_over(&seen) {
                    self.record_error(&error);
                }
            }
            Err(error) if is_due => self.record_error(&error),
            Err(_) => {} // the next due read reports it
        }
        Step::Done
    }

    fn take_over(self: &Arc<Self>, seen: &LeaseContents) -> Result<(), StoreError> {
        let (tried, replication) = (self.lock().tried, self.replication.upgrade());
        let may = |own: &Arc<NodeReplication>| may_take_over(seen, &self.own, &own.candidate(&self.own.name), tried);
        let Some(replication) = replication.filter(may) else {
            return Ok(());
        };
        // Another thread promotes this server now, or this server can't be the primary.
        let promoting = match self.promoting.try_lock() {
            Ok(promoting) => promoting,
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Poisoned(_)) => panic!("a promotion never panics"),
        };
        if replication.check_takeover().is_err() {
            return Ok(());
        }
        let loses = self.lock().accepted.is_some();
        let taken = self.claim(seen, loses).map_err(StoreError);
        let taken = taken.and_then(|epoch| self.take(seen, (epoch, replication.candidates(seen))));
        let mut state = self.lock();
        state.tried = Some(state.epoch);
        keep_record(&mut state.before, seen, &self.own.name);
        drop(state);
        drop(promoting);
        let is_taken = taken?;
        if is_taken {
            if self.lock().failed.is_none() {
                self.report("this standby has the lease, and takes over".into());
            }
            self.start_takeover(&replication);
        }
        Ok(())
    }

    /// Promotes the server on a thread of its own, so that this thread can prolong the lease meanwhile.
    fn start_takeover(self: &Arc<Self>, replication: &Arc<NodeReplication>) {
        let work = Takeover {
            leasing: self.clone(),
            replication: replication.clone(),
        };
        let make = Box::new(move || Box::new(work) as Box<dyn Work>);
        if let Err(error) = self.shared.threads.start("takeover", make) {
            self.abandon_takeover(&format!("start a thread: {error}"));
        }
    }

    /// Abandons a takeover in whose epoch this server wrote nothing. It restores the record, so that the same standbys may take over as
    /// before.
    pub fn abandon_takeover(&self, reason: &str) {
        let mut state = self.lock();
        // This server tries again and again, and reports each reason once.
        let is_new = state.failed.as_deref() != Some(reason);
        state.failed = Some(reason.into());
        let before = state.before.clone().filter(|_| state.holds);
        drop(state);
        if is_new {
            self.report(format!("this standby did not take over: {reason}"));
        }
        // If the store refuses, the record names this server, which may try again.
        let is_restored = before.is_some_and(|before| self.store().record(&before).unwrap_or(false));
        if is_restored {
            self.lock().before = None;
        }
        if let (true, Some(replication)) = (is_restored, self.replication.upgrade()) {
            let _ = replication.node.change(cutting::drop_claim); // if it stays, later promises wait for this server
        }
        self.release_lease();
        // Other standbys try first.
        self.lock().next_ns = self.now_ns() + self.ttl.as_nanos() as u64;
    }

    /// Has the store record a later epoch than the one for which this server took the lease. The call comes before this server leads in
    /// that epoch.
    pub fn raise_epoch(&self, epoch: Epoch) -> Result<(), ReplicationError> {
        let mut state = self.lock();
        if state.epoch >= epoch.count() {
            return Ok(());
        }
        state.epoch = epoch.count();
        let record = SyncRecord {
            epoch: epoch.count(),
            ..self.record_of(state.wanted.clone())
        };
        drop(state);
        match self.store().record(&record).map_err(|error| self.unavailable(&error))? {
            true => Ok(()),
            false => Err(ReplicationError::Unavailable("this server lost the lease".into())),
        }
    }

    /// Marks the lease as over. From now on this server acknowledges no writes. It takes the lease again by itself only if it leads.
    fn end_holding(&self) {
        let mut state = self.lock();
        state.holds = false;
        self.clock.set_until(0);
    }

    fn release_lease(&self) {
        self.end_holding();
        let _ = self.store().release(); // if the store can't be reached, the lease ends by itself
    }

    /// Gives the lease, and the right to it, to a standby that has everything. If the store refuses the record, this server tries again while
    /// it could have answered writes. After that it leaves the lease to end by itself.
    pub fn hand_over(&self, successor: &str) {
        let record = self.record_of(vec![successor.to_owned()]);
        let until_ns = self.now_ns() + self.clock.left_ns().min(HAND_OVER_RECORD_MAX.as_nanos() as u64);
        self.end_holding();
        while let Err(error) = self.try_hand_over(&record) {
            self.shared.threads.sleep(REST);
            if self.now_ns() >= until_ns {
                self.end_holding(); // the thread may have taken it again meanwhile
                self.report(format!(
                    "{} does not record that {successor} may take over: {error}. This server does not give its lease back, and it ends by itself",
                    self.kind
                ));
                return;
            }
        }
        self.end_holding();
    }

    /// Records the successor, and gives the lease back. Without the record no other server could tell that the successor has everything.
    fn try_hand_over(&self, record: &SyncRecord) -> Result<(), StoreError> {
        let mut store = self.store();
        if !matches!(store.record(record), Ok(true)) {
            // The store may have the record although the request failed.
            let seen = store.read()?;
            if !may_take_again(&seen, &self.own) {
                return Ok(()); // the lease was over, and another server has led since
            }
            if seen.record.as_ref() != Some(record) && store.take(&self.own, record, &seen, self.ttl)?.is_none() {
                return Err(StoreError("another server changed it at the same time".into()));
            }
        }
        let _ = store.release(); // if the store can't be reached, the lease ends by itself
        Ok(())
    }

    fn unavailable(&self, error: &StoreError) -> ReplicationError {
        ReplicationError::Unavailable(away(self.kind, error).into())
    }

    /// Checks that the store answers, before this standby asks the primary to step down.
    pub fn check_store(&self) -> Result<(), ReplicationError> {
        self.read_store().map(drop).map_err(|error| self.unavailable(&error))
    }

    /// Checks that this server, as the primary, can give the lease away.
    pub fn check_hand_over(&self) -> Result<(), ReplicationError> {
        match self.clock.is_valid() {
            true => Ok(()),
            false => Err(ReplicationError::Unavailable(
                "the lease of this server is over, so it can't be given away".into(),
            )),
        }
    }

    /// Returns the count of the lowest epoch in which this server can be the primary after it took the lease.
    pub fn granted_count(&self) -> u32 {
        self.lock().epoch
    }

    /// Keeps this server from taking over by itself while the guard lives.
    pub fn begin_promotion(&self) -> MutexGuard<'_, ()> {
        self.promoting.lock().expect("a promotion never panics")
    }

    /// Records that this server is the primary. The answer of the promotion reports the accepted loss from here on.
    pub fn record_promotion(&self) {
        let mut state = self.lock();
        (state.accepted, state.failed, state.before) = (None, None, None);
    }

    /// Takes the lease for a promotion by an operator. Some: the loss that the operator accepted.
    pub fn take_by_hand(&self, by: ByHand, lost: LostRecords) -> Result<Option<LostRecords>, ReplicationError> {
        let unavailable = |error: StoreError| self.unavailable(&error);
        let until_ns = self.now_ns() + 2 * self.ttl.as_nanos() as u64;
        loop {
            let seen = self.read_store().map_err(unavailable)?;
            if let Some(holder) = seen.holder.as_ref().filter(|holder| **holder != self.own) {
                if self.now_ns() >= until_ns {
                    let reason = format!("{} has the lease: stop it, and promote again", holder.name);
                    return Err(ReplicationError::PrimaryNotStopped(reason.into()));
                }
                self.shared.threads.sleep(REST);
                continue;
            }
            let stops = || ReplicationError::Unavailable("the server stops".into());
            let replication = self.replication.upgrade().ok_or_else(stops)?;
            // An earlier attempt may have written the record without an answer. This server then reports the loss that it accepted, once it is
            // the primary. After a restart the operator has to accept it again.
            let is_own = |record: &SyncRecord| record.primary == self.own.name;
            let before = self.lock().accepted.clone();
            let before = before.filter(|_| seen.record.as_ref().is_some_and(is_own));
            let is_sure = by.is_checked_later
                || by.is_given(&seen, &self.own.name)
                || may_begin(&seen, &replication.candidate(&self.own.name)).is_ok();
            if !is_sure && before.is_none() && !by.accepts_loss {
                return Err(ReplicationError::OutOfSync(lost));
            }
            let accepted = match is_sure || before.is_some() {
                true => before,
                false => Some(lost.clone()),
            };
            let mut state = self.lock();
            state.accepted.clone_from(&accepted);
            keep_record(&mut state.before, &seen, &self.own.name);
            drop(state);
            let claimed = self.claim(&seen, accepted.is_some());
            let epoch = claimed.map_err(ReplicationError::Unavailable)?;
            let candidates = replication.candidates(&seen);
            if self.take(&seen, (epoch, candidates)).map_err(unavailable)? {
                return Ok(accepted);
            }
        }
    }

    /// Returns the URL of the primary, if another server holds the lease.
    pub fn primary_url(&self) -> Option<String> {
        let state = self.lock();
        let holder = state.seen.as_ref()?.holder.as_ref()?;
        holder.url.clone().filter(|_| *holder != self.own)
    }

    /// Returns the epoch and the name of the primary by the record before the promotion of this server began.
    pub fn primary_before(&self) -> Option<(Epoch, String)> {
        let state = self.lock();
        let record = state.before.as_ref()?;
        Some((epoch_of(&record.node, record.epoch), record.primary.clone()))
    }

    /// Returns the last primary that this server saw in the record, and the count of its epoch, if that is later than `epoch`.
    pub fn later_primary(&self, epoch: Epoch) -> Option<(u32, String)> {
        let state = self.lock();
        let record = state.seen.as_ref()?.record.as_ref()?;
        (record.epoch > epoch.count()).then(|| (record.epoch, record.primary.clone()))
    }

    pub fn info(&self) -> LeaseInfo {
        let left_ns = self.clock.left_ns();
        let state = self.lock();
        let seen = state.seen.as_ref();
        let holder = seen.and_then(|seen| seen.holder.clone());
        LeaseInfo {
            kind: self.kind,
            state: match (state.holds, left_ns > 0) {
                (true, true) => LeaseStatus::Held,
                (true, false) => LeaseStatus::Over,
                (false, _) if state.error.is_some() || seen.is_none() => LeaseStatus::Unknown,
                (false, _) if holder.is_some() => LeaseStatus::Elsewhere,
                (false, _) => LeaseStatus::Free,
            },
            holder: holder.as_ref().map(|holder| holder.name.clone()),
            holder_url: holder.and_then(|holder| holder.url),
            in_sync: seen
                .and_then(|seen| seen.record.as_ref())
                .map_or_else(Vec::new, |record| record.in_sync.clone()),
            ttl_us: self.ttl.as_micros() as u64,
            left_us: left_ns / 1000,
            error: state.error.clone(),
        }
    }

    /// Stops the thread and gives the lease back. The caller does so after its last answer.
    pub fn stop(&self) {
        if self.is_stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(thread) = self.thread.lock().expect("held to take").take() {
            thread.join();
        }
        if self.lock().holds {
            let _ = self.record_if_wanted(true); // else an older LSN stays recorded
            self.release_lease();
        }
    }
}

/// The thread of a lease.
struct LeaseThread(Arc<LeaseManager>);

impl Work for LeaseThread {
    fn run(mut self: Box<Self>) {
        loop {
            match self.step() {
                Step::Done => {}
                Step::Idle => self.0.shared.threads.sleep(POLL_INTERVAL),
                Step::Over => return,
            }
        }
    }

    fn step(&mut self) -> Step {
        let leasing = &self.0;
        if leasing.is_stopping() {
            return Step::Over;
        }
        let holds = leasing.lock().holds;
        match holds || leasing.role() == Some(Role::Primary) {
            true => leasing.hold(),
            false => leasing.watch(),
        }
    }
}
