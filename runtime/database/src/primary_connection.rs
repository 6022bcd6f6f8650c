//! Keeps a standby connected to its primary. It asks for a ticket, connects, appends the groups that arrive, and begins again when the
//! connection breaks.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use reprise_base::{Lsn, WatermarkWaiter};
use reprise_env::{Clock, DiskError, DiskErrorKind, Net, Step, ThreadHandle, Work};
use reprise_log::{AppendError, AppendOutcome, Group, Log, LogError, Position, UnavailableKind};
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{CallBatch, Shared};
use reprise_router::{HandOverPoint, Router, StandbyInfo, StandbyPhase, StandbyTicket, ViewAge};
use reprise_ship::{
    BeatSeen, Compares, FreshnessPoint, FreshnessSummary, Link, LinkConfig, LogReceiver, OnTheWay, OwnFreshness,
    PersistedHook, StandbyProgress, SyncReport, Taker, WelcomeSeen,
};

use crate::{
    database::Database,
    link_failure::LinkFailure,
    promising::{AskPeers, Promises},
    standby::ReadGate,
    standby_comparer::StandbyComparer,
    sync_status::SyncStatusStore,
};

/// Bytes of log behind its primary beyond which a standby is catching up.
const BEHIND_BYTES_MAX: u64 = 16 << 20;
/// Longest time in which a connection must be made.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Rest between two attempts: first the shortest, then up to the longest.
const REST_MIN: Duration = Duration::from_millis(50);
const REST_MAX: Duration = Duration::from_secs(2);
/// Interval at which a resting thread checks whether it must stop.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why a primary gives no ticket.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct TicketError {
    pub reason: Arc<str>,
    /// True if the primary would give the same answer again.
    pub is_final: bool,
}

/// Asks the primary to let this standby connect. It may block, within bounds.
pub type AskTicket = Box<dyn FnMut() -> Result<StandbyTicket, TicketError> + Send>;

/// Asks the primary to hand over to this standby. It may block, within bounds. Err: why it does not, or that it can't be reached.
pub type AskStepDown = Arc<dyn Fn() -> Result<HandOverPoint, Arc<str>> + Send + Sync>;

/// The settings with which a standby follows its primary.
pub struct FollowPrimary {
    pub net: Arc<dyn Net>,
    /// Name of this standby at its primary.
    pub name: String,
    /// URL of the primary for clients, until the primary sends its own.
    pub primary: Option<Arc<str>>,
    pub ticket: AskTicket,
    pub step_down: AskStepDown,
    pub ask_peers: AskPeers,
}

/// Advice to the operator of a standby that followed a primary and has parted from it.
const START_AGAIN: &str = ". If the right server was promoted, start this one again with --standby-of it: what only this one has is kept aside, then cut off";

/// The state of the connection, for all threads that read it.
pub(crate) struct PrimaryConnection {
    pub name: String,
    net: Arc<dyn Net>,
    clock: Arc<dyn Clock>,
    step_down: AskStepDown,
    is_stopping: AtomicBool,
    /// True when the server stops. It then tells its primary so.
    is_leaving: AtomicBool,
    state: Mutex<ConnectionState>,
    freshness: OwnFreshness,
    thread: Mutex<Option<Box<dyn ThreadHandle>>>,
}

#[derive(Default)]
struct ConnectionState {
    is_connected: bool,
    /// True once the standby had all records of its primary on this connection.
    has_caught_up: bool,
    is_encrypted: bool,
    beat: Option<BeatSeen>,
    error: Option<Arc<str>>,
    /// True if a primary took this standby since the process began.
    was_welcome: bool,
    /// Why the standby has parted: it followed a primary, and has records that the primary does not hold.
    parted: Option<Arc<str>>,
}

impl PrimaryConnection {
    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().expect("held for a read or a store")
    }

    /// Returns the last beat of the primary, if there was one.
    pub fn beat(&self) -> Option<BeatSeen> {
        self.lock().beat
    }

    /// Returns why a standby that followed a primary can't continue: the primary does not hold its records.
    pub fn parted(&self) -> Option<Arc<str>> {
        self.lock().parted.clone()
    }

    /// Has the primary hand over. Err: why it does not.
    pub fn ask_step_down(&self) -> Result<HandOverPoint, Arc<str>> {
        (self.step_down)()
    }

    /// Asks the thread to end soon. A pending request for a ticket is not waited for.
    pub fn end(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    pub fn stop(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.end();
        if let Some(thread) = self.thread.lock().expect("held to take").take() {
            thread.join();
        }
    }

    /// Returns the state of this standby as it knows it.
    pub fn info(&self, (received, persisted, view): (Lsn, Lsn, Lsn)) -> StandbyInfo {
        let state = self.lock();
        let durable = state.beat.map_or(view, |beat| beat.durable);
        let age = self.view_age(view);
        StandbyInfo {
            name: self.name.clone(),
            state: match (state.is_connected, state.has_caught_up) {
                (false, _) => StandbyPhase::Lost,
                (true, false) => StandbyPhase::CatchingUp,
                (true, true) => StandbyPhase::Streaming,
            },
            transport: self.net.transport(),
            path: self.net.path(),
            is_encrypted: state.is_encrypted,
            shipped: received,
            persisted,
            replayed: view,
            view,
            in_sync: None, // the file with the primary's status has the answer
            freshness: age.freshness,
            lag_us: age.lag_us,
            is_lag_known: age.is_lag_known,
            lag_bytes: match view < durable {
                true => state.beat.map_or(0, |beat| beat.behind_bytes),
                false => 0,
            },
            lag_records: durable.0.saturating_sub(view.0),
            compared: None,
            error: state.error.clone(),
        }
    }

    /// Returns the age of the data before `view`, which this standby shows.
    pub fn view_age(&self, view: Lsn) -> ViewAge {
        let (freshness, lag) = self.freshness.now(self.clock.boot_ns(), view);
        ViewAge {
            view,
            lag_us: lag.us,
            is_lag_known: lag.is_known,
            freshness,
        }
    }

    /// Returns one point a second for the last hour, and a summary of the last minute.
    pub fn freshness(&self) -> (Vec<FreshnessPoint>, Option<FreshnessSummary>) {
        self.freshness.history()
    }

    fn record_heartbeat(&self, beat: &BeatSeen, (received, view): (Lsn, Lsn)) {
        let now = (self.clock.boot_ns(), self.clock.now_us());
        self.freshness.record_heartbeat(beat, now, view);
        let mut state = self.lock();
        let has_all = state.has_caught_up || received >= beat.durable;
        state.has_caught_up = has_all && beat.behind_bytes <= BEHIND_BYTES_MAX;
        state.beat = Some(*beat);
    }
}

/// Appends received groups to the database.
struct DatabaseTaker {
    database: Weak<Database>,
    log: Arc<Log<Box<CallBatch>>>,
    router: Router,
    linked: Arc<PrimaryConnection>,
    synced: Arc<SyncStatusStore>,
    promises: Arc<Promises>,
    comparison: Option<Arc<StandbyComparer>>,
    hiding: Arc<ReadGate>,
    on_the_way: Mutex<OnTheWay>,
}

/// Returns the error of a document that can't be saved. A full disk passes, as it does for the log.
fn unsaved(error: DiskError) -> LogError {
    if error.kind != DiskErrorKind::Full {
        return LogError::from(error);
    }
    let (kind, reason) = (UnavailableKind::Full, error.to_string().into());
    LogError::Unavailable { kind, reason }
}

impl Taker for DatabaseTaker {
    fn position(&self) -> Position {
        // A node that is the primary by now has no position as a standby.
        self.log.received().unwrap_or_default()
    }

    fn place(&self, group: &Group<'_>) -> Result<AppendOutcome, AppendError> {
        let Some(database) = self.database.upgrade() else {
            let (kind, reason) = (UnavailableKind::Closed, "the server stops".into());
            return Err(LogError::Unavailable { kind, reason }.into());
        };
        self.synced.end_reign().map_err(unsaved)?;
        let placed = database.place(group)?;
        if placed == AppendOutcome::New {
            let bytes = group.records.len() as u64;
            let mut on_the_way = self.on_the_way.lock().expect("held to count");
            on_the_way.record_group(group.end.lsn, bytes);
        }
        Ok(placed)
    }

    fn progress(&self) -> StandbyProgress {
        let (view, persisted) = (self.router.view(), self.log.durable());
        let mut on_the_way = self.on_the_way.lock().expect("held to count");
        StandbyProgress {
            persisted,
            replayed: view,
            view,
            room_bytes: on_the_way.room_bytes(persisted, self.log.receive_room()),
        }
    }

    fn on_welcome(&self, _: &WelcomeSeen) {
        self.linked.freshness.begin(self.router.view());
    }

    fn on_heartbeat(&self, beat: &BeatSeen) {
        if let Some(database) = self.database.upgrade() {
            database.record_committed(beat.committed, beat.came_ns);
        }
        self.synced.record_heartbeat(beat);
        self.linked
            .record_heartbeat(beat, (self.position().lsn, self.router.view()));
    }

    fn save_sync_report(&self, standing: &SyncReport) -> bool {
        match self.synced.keep(standing, self.log.durable()) {
            Ok(()) => true,
            Err(error) => {
                self.linked.lock().error = Some(format!("who is in sync can't be kept here: {error}").into());
                false
            }
        }
    }

    fn check_primary(&self, primary: &WelcomeSeen) -> Result<(), String> {
        let epoch = primary.epoch;
        if self.promises.check(epoch).is_err() {
            if let Some(database) = self.database.upgrade() {
                database.end_void_promise();
            }
            self.promises.check(epoch)?;
        }
        let database = self.database.upgrade();
        match database.and_then(|database| database.later_leased(epoch)) {
            None => Ok(()),
            Some((later, name)) => Err(format!(
                "that primary is of epoch {epoch}. By the lease, {name} has been the primary in epoch {later} since. Follow {name}, or promote this \
                 server"
            )),
        }
    }

    fn knows_since(&self, since_ns: u64) -> bool {
        let database = self.database.upgrade();
        database.is_none_or(|database| database.knows_lease_since(since_ns))
    }

    fn compares(&self) -> Option<&dyn Compares> {
        let comparison = self.comparison.as_deref();
        comparison.map(|comparison| comparison as &dyn Compares)
    }

    fn when_persisted(&self, lsn: Lsn, hook: PersistedHook) -> Option<WatermarkWaiter> {
        self.log.when_durable(lsn, hook)
    }
}

/// The work of the thread that follows.
struct FollowLoop {
    taker: Arc<DatabaseTaker>,
    shared: Arc<Shared>,
    config: FollowPrimary,
    database_id: [u8; 16],
    streaming: Option<LogReceiver>,
    /// The position at which this connection began. None once it made progress.
    begun: Option<Lsn>,
    rest: Duration,
    rests_until_ns: u64,
}

/// Begins to follow; `PrimaryConnection::stop` ends it.
pub(crate) fn follow(
    database: &Arc<Database>,
    (log, router): (&Arc<Log<Box<CallBatch>>>, &Router),
    (shared, (synced, promises)): (&Arc<Shared>, (&Arc<SyncStatusStore>, &Arc<Promises>)),
    config: FollowPrimary,
) -> std::io::Result<Arc<PrimaryConnection>> {
    let linked = Arc::new(PrimaryConnection {
        name: config.name.clone(),
        net: config.net.clone(),
        clock: shared.clock.clone(),
        step_down: config.step_down.clone(),
        is_stopping: AtomicBool::new(false),
        is_leaving: AtomicBool::new(false),
        state: Mutex::default(),
        freshness: OwnFreshness::new(shared.clock.boot_ns()),
        thread: Mutex::default(),
    });
    router.set_primary_url(config.primary.clone());
    let following = FollowLoop {
        taker: Arc::new(DatabaseTaker {
            database: Arc::downgrade(database),
            log: log.clone(),
            router: router.clone(),
            linked: linked.clone(),
            synced: synced.clone(),
            promises: promises.clone(),
            comparison: database.comparison(),
            hiding: database.hiding().unwrap_or_default(),
            on_the_way: Mutex::default(),
        }),
        shared: shared.clone(),
        config,
        database_id: log.database_id(),
        streaming: None,
        begun: None,
        rest: REST_MIN,
        rests_until_ns: 0,
    };
    let make = Box::new(move || Box::new(following) as Box<dyn Work>);
    *linked.thread.lock().expect("held for a store") = Some(shared.threads.start_prompt("standby-link", make)?);
    Ok(linked)
}

impl FollowLoop {
    fn linked(&self) -> &PrimaryConnection {
        &self.taker.linked
    }

    fn report(&self, what: String) {
        let name = self.config.name.clone();
        self.shared
            .notices
            .publish(NoticeKind::Standby, || Notice::Standby { name, what });
    }

    fn connect(&mut self) -> Result<LogReceiver, LinkFailure> {
        let ticket = (self.config.ticket)()?;
        self.linked().lock().is_encrypted = ticket.certificate.is_some();
        let link = LinkConfig {
            net: self.config.net.clone(),
            clock: self.shared.clock.clone(),
            address: ticket.ship_address,
            certificate: ticket.certificate,
            ticket: ticket.ticket,
            name: self.config.name.clone(),
            connect_time: CONNECT_TIME,
        };
        let partitions = self.shared.partitions_count;
        Ok(Link::stream(&link, self.database_id, partitions, self.taker.clone())?)
    }

    /// Appends the groups that have arrived. The primary's first answer is reported.
    fn go_on(&mut self, mut streaming: LogReceiver) -> Result<Step, LinkFailure> {
        let was_welcome = streaming.is_welcome();
        let step = streaming.step()?;
        if streaming.is_welcome() && !was_welcome {
            if let Some(url) = streaming.primary() {
                self.taker.router.set_primary_url(Some(url.into()));
            }
            let mut state = self.linked().lock();
            (state.is_connected, state.has_caught_up) = (true, false);
            state.was_welcome = true;
            drop(state);
            self.begun = Some(self.taker.position().lsn);
        }
        self.streaming = Some(streaming);
        self.record_success();
        Ok(step)
    }

    /// Ends the error of an earlier connection. It needs a new record on this connection, or the primary's word that there is none.
    fn record_success(&mut self) {
        let Some(begun) = self.begun else {
            return;
        };
        let mut state = self.linked().lock();
        if state.has_caught_up || self.taker.position().lsn > begun {
            state.error = None;
            drop(state);
            (self.begun, self.rest) = (None, REST_MIN);
            self.report(format!("follows its primary from LSN {begun}"));
        }
    }

    /// Records that the connection has ended, or was never made.
    fn record_failure(&mut self, failure: &LinkFailure) -> Step {
        let reason: Arc<str> = failure.to_string().into();
        let is_other = failure.is_of_another_history();
        let has_parted = is_other && self.linked().lock().was_welcome;
        let what_next = if has_parted { START_AGAIN } else { "" };
        if is_other {
            // The tables here may never have been the primary's.
            let report = format!("this standby shows nothing, since it can't follow: {reason}{what_next}");
            self.taker.hiding.hide(&self.taker.router, report);
        }
        let is_connected = self.linked().lock().is_connected;
        if failure.is_refusal(is_connected) {
            // If the loss can't be saved, it holds while this process runs. The next process gets the same refusal.
            let _ = self.taker.synced.lose();
        }
        let mut state = self.linked().lock();
        state.is_connected = false;
        let is_new = state.error.as_ref() != Some(&reason);
        state.error = Some(reason.clone());
        if has_parted {
            state.parted = Some(reason.clone());
        }
        drop(state);
        if is_new {
            self.report(match failure.is_final() {
                true => format!("follows no longer: {reason}{what_next}"),
                false => format!("its connection is over, and is tried again: {reason}"),
            });
        }
        if failure.is_final() {
            return Step::Over;
        }
        let now_ns = self.shared.clock.monotonic_ns();
        self.rests_until_ns = now_ns + self.rest.as_nanos() as u64;
        self.rest = (2 * self.rest).min(REST_MAX);
        Step::Done
    }
}

impl Work for FollowLoop {
    fn run(mut self: Box<Self>) {
        loop {
            match self.step() {
                Step::Done => {}
                Step::Over => return,
                Step::Idle => match &self.streaming {
                    Some(streaming) => streaming.wait(),
                    None => self.shared.threads.sleep(POLL_INTERVAL),
                },
            }
        }
    }

    fn step(&mut self) -> Step {
        if self.linked().is_stopping.load(Ordering::Acquire) {
            if let (Some(streaming), true) = (
                &mut self.streaming,
                self.taker.linked.is_leaving.load(Ordering::Acquire),
            ) {
                streaming.leave();
            }
            return Step::Over;
        }
        if let Some(database) = self.taker.database.upgrade() {
            database.compare();
        }
        let done = match self.streaming.take() {
            Some(streaming) => self.go_on(streaming),
            None if self.shared.clock.monotonic_ns() < self.rests_until_ns => return Step::Idle,
            None => self.connect().map(|streaming| {
                self.streaming = Some(streaming);
                Step::Done
            }),
        };
        done.unwrap_or_else(|failure| self.record_failure(&failure))
    }
}

#[cfg(test)]
mod tests {
    use reprise_ship::LinkError;

    use super::*;

    #[test]
    fn full_disk_ends_no_following_for_good() {
        for (kind, is_final) in [(DiskErrorKind::Full, false), (DiskErrorKind::Io, true)] {
            let error = DiskError::new("write", "node.json", kind, "refused");
            assert_eq!(LinkError::Place(unsaved(error).into()).is_final(), is_final);
        }
    }
}
