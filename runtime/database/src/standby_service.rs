//! A database that ships its log to standbys, and that answers questions about them.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use reprise_base::{Epoch, Joiner, Lsn, NodeProcess, Role, Safety};
use reprise_env::{Disk, DiskError, Net, entropy};
use reprise_log::{Log, LogError};
use reprise_observe::{Notice, NoticeKind};
use reprise_partition::{CallBatch, LogPolicy, Shared, ShipForm};
use reprise_router::{
    ComparedInfo, CutRecords, FreshnessSeries, HandOverPoint, NodePhase, PromiseAnswer, PromiseQuestion,
    PromoteOptions, PromotionResult, ReplicationError, ReplicationInfo, ReplicationService, Router, StandbyInfo,
    StandbyPhase, StandbyTicket, ViewAge,
};
use reprise_ship::{Member, SafetyHook, ShipError, ShipEvent, Shipper, ShipperConfig, StandbyStatus};
use reprise_upkeep::{Checkpointer, FirstCheckpoints};

use crate::{
    compare_scheduler::Comparer,
    cutting::{self, CutInfo},
    database::Database,
    gate_commits::GateCommits,
    hand_over::HandOverRecord,
    leasing::LeasingCell,
    membership::{self, Membership},
    node_file::NodeFile,
    primary_connection::{self, FollowPrimary, PrimaryConnection},
    promising::{AskPeers, PromisedPrimary, Promises},
    reachable::reachable,
    sync_status::SyncStatusStore,
};

/// Sealed groups that are kept for standbys that are a little behind, in bytes.
const RING_BYTES: usize = 16 << 20;

/// How a primary takes standbys.
#[derive(Clone)]
pub struct ServeStandbys {
    /// The name of this server.
    pub name: String,
    pub net: Arc<dyn Net>,
    /// `host:port` to listen at; port 0: any that is free.
    pub listen: String,
    /// `host:port` at which standbys find it. None: the address at which it listens; at all addresses, the host of `url`.
    pub ship_address: Option<String>,
    /// URL of this server for its clients, which standbys tell theirs.
    pub url: Option<Arc<str>>,
    /// Bytes of log that are kept at most for a standby that lags or is lost.
    pub hold_bytes_max: u64,
    /// Interval at which standbys compare all tables with this server's; zero: never.
    pub compare_every: Duration,
    /// The form in which standbys get each transaction while they are connected.
    pub ship: ShipForm,
    /// `keep_lease` follows, and decides whether this server is the primary.
    pub has_lease: bool,
}

/// Why a database takes no standbys, or follows no primary.
#[derive(Debug, thiserror::Error)]
pub enum ServeStandbysError {
    #[error("a server without a log has nothing to send to standbys")]
    NoLog,
    #[error("standbys are served already")]
    Served,
    #[error("{0}")]
    Form(&'static str),
    #[error("this server follows a primary already, or is none's standby")]
    NoStandby,
    #[error(transparent)]
    Ship(#[from] ShipError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("start a thread: {0}")]
    Thread(io::Error),
    #[error("keep what this standby shows: {0}")]
    View(DiskError),
}

/// This node's part in replication, as the router's callers see it.
pub(crate) struct NodeReplication {
    /// The database, for a promotion.
    pub(crate) database: Weak<Database>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) log: Arc<Log<Box<CallBatch>>>,
    pub(crate) router: Router,
    checkpointer: Arc<Checkpointer>,
    checkpoints: Arc<dyn Disk>,
    /// The database directory itself.
    pub(crate) root: Arc<dyn Disk>,
    pub(crate) node: Arc<NodeFile>,
    /// Held while this primary gives its place away, or takes it again.
    pub(crate) stepping: Mutex<()>,
    /// The hand-over, once it gave its place away.
    pub(crate) stepped: Mutex<Option<HandOverRecord>>,
    state: Mutex<ServiceState>,
    pub(crate) linked: OnceLock<Arc<PrimaryConnection>>,
    /// The name of this server, once it follows a primary.
    pub(crate) name: OnceLock<String>,
    /// The way to other standbys, once it follows a primary.
    pub(crate) peers: OnceLock<AskPeers>,
    pub(crate) promises: Arc<Promises>,
    /// Held for a whole promotion by hand.
    pub(crate) promotion: Mutex<()>,
    /// Epoch for which this server has asked the others, until it leads or does not; 0: none.
    pub(crate) claimed: AtomicU32,
    pub(crate) leasing: LeasingCell,
    /// The sync status that a primary sent to this server as its standby.
    pub(crate) synced: Arc<SyncStatusStore>,
    /// See `Environment`.
    file_part_bytes: usize,
}

#[derive(Default)]
enum ServiceState {
    #[default]
    NotServed,
    /// The server takes standbys once it is the primary.
    Waiting(ServeStandbys),
    /// The server is the primary, and can't take standbys. It tries again with each that asks.
    Failing(ServeStandbys),
    Serving(StandbyService),
}

#[derive(Clone)]
pub(crate) struct StandbyService {
    pub shipper: Arc<Shipper>,
    /// None: standbys compare no tables.
    comparer: Option<Arc<Comparer>>,
    ship: ShipForm,
    ship_address: String,
    net: Arc<dyn Net>,
    name: String,
    url: Option<Arc<str>>,
}

impl Database {
    /// Returns the URL at which clients reach the primary, as the lease names it. None if there is no lease, no server has it, or this server has it.
    pub fn leased_primary(&self) -> Option<String> {
        self.upkeep.replication.get()?.leasing.get()?.primary_url()
    }

    /// Takes a void promise back: asks the server to which this standby gave it whether it leads, or is to lead.
    pub(crate) fn end_void_promise(&self) {
        if let Some(replication) = self.upkeep.replication.get() {
            replication.end_void_promise();
        }
    }

    /// Returns the server to which this standby gave its last promise, and which may lead by now.
    pub fn promised_primary(&self) -> Option<PromisedPrimary> {
        self.upkeep.replication.get()?.promised_primary()
    }

    /// Returns the last primary that the lease names, with the count of its epoch, if that is later than `epoch`.
    pub(crate) fn later_leased(&self, epoch: Epoch) -> Option<(u32, String)> {
        self.upkeep.replication.get()?.leasing.get()?.later_primary(epoch)
    }

    /// Answers `Taker::knows_since` for the lease.
    pub(crate) fn knows_lease_since(&self, since_ns: u64) -> bool {
        let leasing = self.upkeep.replication.get().and_then(|own| own.leasing.get());
        leasing.is_none_or(|leasing| leasing.has_read_since(since_ns))
    }

    /// Returns why this standby can't follow the present primary, which lacks records that are here. Reads then show nothing. If the primary's epoch
    /// is not an earlier one, a start as a standby cuts the records off (`cut_back`). None: no such reason.
    pub fn parted(&self) -> Option<Arc<str>> {
        self.upkeep.replication.get()?.linked.get()?.parted()
    }

    pub(crate) fn replication(self: &Arc<Self>) -> Result<&Arc<NodeReplication>, ServeStandbysError> {
        let (Some(log), Some(checkpointer), Some(folders), Some(node)) =
            (&self.log, &self.checkpointer, &self.upkeep.folders, self.node())
        else {
            return Err(ServeStandbysError::NoLog);
        };
        Ok(self.upkeep.replication.get_or_init(|| {
            let replication = Arc::new(NodeReplication {
                database: Arc::downgrade(self),
                shared: self.shared.clone(),
                log: log.clone(),
                router: self.router.clone(),
                checkpointer: checkpointer.clone(),
                checkpoints: folders.checkpoints.clone(),
                root: folders.root.clone(),
                node: node.clone(),
                stepping: Mutex::default(),
                stepped: Mutex::default(),
                state: Mutex::default(),
                linked: OnceLock::new(),
                name: OnceLock::new(),
                peers: OnceLock::new(),
                promises: Arc::new(Promises::open(node.clone())),
                promotion: Mutex::default(),
                claimed: AtomicU32::new(0),
                leasing: LeasingCell::default(),
                synced: Arc::new(SyncStatusStore::open(node.clone(), log.received())),
                file_part_bytes: self.file_part_bytes,
            });
            let service: Arc<dyn ReplicationService> = replication.clone();
            self.router.set_replication(Arc::downgrade(&service));
            replication
        }))
    }

    /// Begins this process's part in replication, as [`NodeFile::begin_process`].
    pub fn begin_process(self: &Arc<Self>) -> Result<NodeProcess, ServeStandbysError> {
        let begun = self.replication()?.node.begin_process();
        begun.map_err(ServeStandbysError::View)
    }

    /// Takes standbys from now on; a standby does once it is promoted. The call comes once.
    pub fn serve_standbys(self: &Arc<Self>, config: ServeStandbys) -> Result<(), ServeStandbysError> {
        let replication = self.replication()?;
        self.check_form(config.ship)?;
        let mut state = replication.lock();
        if !matches!(*state, ServiceState::NotServed) {
            return Err(ServeStandbysError::Served);
        }
        *state = match self.router.role() {
            Role::Standby => ServiceState::Waiting(config),
            Role::Primary | Role::ReadOnly => ServiceState::Serving(replication.serve(config, false)?),
        };
        Ok(())
    }

    fn check_form(&self, form: ShipForm) -> Result<(), ServeStandbysError> {
        let has_front = self.log.as_ref().is_some_and(|log| log.receive_room().is_some());
        match (form, self.shared.logging.rule) {
            (ShipForm::AsLogged, _) => Ok(()),
            (_, LogPolicy::Both) => Err(ServeStandbysError::Form(
                "a log of both forms is shipped as it is: standbys get both",
            )),
            _ if has_front => Err(ServeStandbysError::Form(
                "a log in NVRAM is shipped as it is: what standbys are to get, let the log hold",
            )),
            _ => Ok(()),
        }
    }

    /// Has the groups for a sink of this database hold transactions in this form from now on. With `serve_standbys`, that call decides the form.
    pub fn ship_as(&self, form: ShipForm) -> Result<(), ServeStandbysError> {
        self.check_form(form)?;
        self.shared.logging.set_shipped(form);
        Ok(())
    }

    /// Follows a primary from now on, as its standby, until this one is promoted. The call comes once, best before `recover`. The standby then takes
    /// the primary's log while it replays its own, and replays the new records behind that.
    pub fn follow_primary(self: &Arc<Self>, config: FollowPrimary) -> Result<(), ServeStandbysError> {
        let replication = self.replication()?;
        if self.router.role() != Role::Standby || replication.linked.get().is_some() {
            return Err(ServeStandbysError::NoStandby);
        }
        self.begin_following().map_err(ServeStandbysError::View)?;
        let log = (&replication.log, &self.router);
        let (_, _) = (
            replication.name.set(config.name.clone()),
            replication.peers.set(config.ask_peers.clone()),
        );
        let kept = (&replication.synced, &replication.promises);
        let linked = primary_connection::follow(self, log, (&self.shared, kept), config);
        let linked = linked.map_err(ServeStandbysError::Thread)?;
        assert!(replication.linked.set(linked).is_ok(), "checked above");
        Ok(())
    }
}

/// Returns a notice about no standby in particular.
fn general_notice(what: String) -> Notice {
    let name = String::new();
    Notice::Standby { name, what }
}

fn notice(event: ShipEvent) -> Notice {
    let (name, what) = match event {
        ShipEvent::Connected { name, peer, position } => {
            let at = position.map_or("gets its first files".into(), |lsn| format!("is at LSN {lsn}"));
            (name.to_string(), format!("connected from {peer}, {at}"))
        }
        ShipEvent::Ended { name, reason } => (name.to_string(), format!("its connection is over: {reason}")),
        ShipEvent::TurnedAway { peer, reason } => (String::new(), format!("{peer} is turned away: {reason}")),
        ShipEvent::HoldLetGo { name } => {
            let what = "the log that it lacks is kept no longer, since it would be too much: it begins anew";
            (name.to_string(), what.into())
        }
    };
    Notice::Standby { name, what }
}

impl NodeReplication {
    fn lock(&self) -> MutexGuard<'_, ServiceState> {
        self.state.lock().expect("nothing panics under this lock")
    }

    pub(crate) fn serving(&self) -> Option<StandbyService> {
        match &*self.lock() {
            ServiceState::Serving(serving) => Some(serving.clone()),
            ServiceState::NotServed | ServiceState::Waiting(_) | ServiceState::Failing(_) => None,
        }
    }

    /// Checks whether standbys may connect once this server leads.
    pub(crate) fn takes_standbys(&self) -> bool {
        !matches!(*self.lock(), ServiceState::NotServed)
    }

    fn ship_form(&self) -> ShipForm {
        match &*self.lock() {
            ServiceState::Serving(serving) => serving.ship,
            ServiceState::Waiting(config) | ServiceState::Failing(config) => config.ship,
            ServiceState::NotServed => ShipForm::AsLogged,
        }
    }

    /// Returns the same as `serving`, for a standby that asks to join. If this server could not take standbys before, it tries again.
    pub(crate) fn served(&self) -> Result<StandbyService, ReplicationError> {
        let mut state = self.lock();
        let unavailable = |error: &ServeStandbysError| {
            let reason = format!("this server can't take standbys: {error}");
            ReplicationError::Unavailable(reason.into())
        };
        if let ServiceState::Failing(config) = &*state {
            let serving = self.serve(config.clone(), true).map_err(|error| unavailable(&error))?;
            *state = ServiceState::Serving(serving);
        }
        match &*state {
            ServiceState::Serving(serving) => Ok(serving.clone()),
            ServiceState::NotServed | ServiceState::Failing(_) => Err(ReplicationError::NotServed),
            // The server is the primary already, and begins to take standbys within the same promotion.
            ServiceState::Waiting(_) => Err(ReplicationError::Unavailable(
                "this server becomes the primary, and takes standbys in a moment".into(),
            )),
        }
    }

    /// Returns the standbys that this server knew last. Once it is promoted, none of them is in sync: they were in sync when it led last.
    fn expected(&self, is_promoted: bool) -> Vec<Member> {
        let mut expected = membership::load(&self.node);
        let durable = self.log.durable();
        let is_other_level = cutting::led_at_other_level(&self.node, self.safety());
        for standby in &mut expected {
            // The standby may have records that are not durable here. Other records now get those LSNs.
            standby.persisted = standby.persisted.min(durable);
            standby.is_in_sync &= !is_promoted && !is_other_level;
        }
        expected
    }

    fn serve(&self, config: ServeStandbys, is_promoted: bool) -> Result<StandbyService, ServeStandbysError> {
        self.log.set_slot_bytes_max(config.hold_bytes_max)?;
        self.begin_serving(is_promoted, config.has_lease)?;
        let checkpoints = FirstCheckpoints::new(&self.checkpointer, &self.checkpoints);
        let shared = self.shared.clone();
        let expected = self.expected(is_promoted);
        let (telling, leasing) = (self.shared.clone(), self.leasing.clone());
        let keeping = Membership::new(self.node.clone(), expected.clone());
        let is_reported = AtomicBool::new(false);
        let keep = move |standbys: &[Member]| {
            let in_sync = standbys.iter().filter(|standby| standby.is_in_sync);
            let names = in_sync.map(|standby| standby.name.to_string()).collect();
            // The lease's store comes first: standbys that may take over read it.
            let is_recorded = leasing.get().is_none_or(|leasing| leasing.record(names));
            let saved = keeping.save(standbys, is_recorded);
            // The save is tried again and again: one line for all attempts.
            if let (Err(error), false) = (&saved, is_reported.swap(saved.is_err(), Ordering::Relaxed)) {
                let what = format!("who is expected can't be kept, so nobody is let go: {error}");
                telling.notices.publish(NoticeKind::Standby, || general_notice(what));
            }
            saved.is_ok() && is_recorded
        };
        let (net, every) = (config.net.clone(), config.compare_every);
        let capturing = shared.clone();
        let shipper = Shipper::start(ShipperConfig {
            net: config.net,
            clock: shared.clock.clone(),
            threads: shared.threads.clone(),
            log: self.log.clone(),
            checkpoints: Arc::new(checkpoints),
            listen: config.listen,
            primary: config.url.as_deref().unwrap_or_default().to_owned(),
            partitions: shared.partitions_count,
            ring_bytes: RING_BYTES,
            file_part_bytes: self.file_part_bytes,
            following: Box::new(move |is_followed| {
                let form = if is_followed { config.ship } else { ShipForm::AsLogged };
                capturing.logging.set_shipped(form);
            }),
            safety: self.safety(),
            commits: Arc::new(GateCommits(self.shared.gate.clone())),
            expected,
            keep: Box::new(keep),
            entropy: Box::new(entropy),
            report: Box::new(move |event| shared.notices.publish(NoticeKind::Standby, || notice(event))),
        })?;
        let shipper = Arc::new(shipper);
        let comparer = (!every.is_zero()).then(|| Comparer::start(&shipper, &self.router, &self.shared, every));
        Ok(StandbyService {
            comparer: comparer.transpose().map_err(ServeStandbysError::Thread)?,
            ship: config.ship,
            ship_address: config
                .ship_address
                .unwrap_or_else(|| reachable(shipper.address(), config.url.as_deref())),
            shipper,
            net,
            name: config.name,
            url: config.url,
        })
    }

    pub(crate) fn own_url(&self) -> Option<Arc<str>> {
        match &*self.lock() {
            ServiceState::Waiting(config) | ServiceState::Failing(config) => config.url.clone(),
            ServiceState::Serving(serving) => serving.url.clone(),
            ServiceState::NotServed => None,
        }
    }

    /// Takes the standbys that waited for a primary: this server is one now.
    pub(crate) fn serve_if_waiting(&self) {
        let mut state = self.lock();
        let ServiceState::Waiting(config) = &*state else {
            return;
        };
        let served = self.serve(config.clone(), true);
        if let Err(error) = &served {
            self.report(format!(
                "this server is the primary now, and takes no standbys yet: {error}. It is tried again with each that asks"
            ));
        }
        *state = match (served, std::mem::take(&mut *state)) {
            (Ok(serving), _) => ServiceState::Serving(serving),
            (Err(_), ServiceState::Waiting(config)) => ServiceState::Failing(config),
            (Err(_), other) => other,
        };
    }

    pub(crate) fn report(&self, what: String) {
        self.shared
            .notices
            .publish(NoticeKind::Standby, || general_notice(what));
    }

    /// Ends all connections.
    pub fn stop(&self) {
        if let Some(linked) = self.linked.get() {
            linked.stop();
        }
        if let Some(serving) = self.serving() {
            if let Some(comparer) = &serving.comparer {
                comparer.stop();
            }
            serving.shipper.stop();
        }
        if let Some(leasing) = self.leasing.get() {
            leasing.stop();
        }
    }

    fn cuts(&self) -> Vec<CutRecords> {
        let database = self.database.upgrade();
        let cuts = database.as_ref().and_then(|database| database.upkeep.cuts.get());
        cuts.into_iter().flatten().map(CutInfo::to_records).collect()
    }

    /// Returns the state of a server that stepped down: its view gets older, and no primary sends to it.
    fn stepped_info(&self) -> Option<StandbyInfo> {
        let view = self.router.view();
        let age = self.stepped_age(view)?;
        Some(StandbyInfo {
            name: self.serving().map(|serving| serving.name).unwrap_or_default(),
            state: StandbyPhase::Lost,
            transport: "",
            path: None,
            is_encrypted: false,
            shipped: view,
            persisted: view,
            replayed: view,
            view,
            in_sync: None, // the successor may have taken over
            freshness: None,
            lag_us: age.lag_us,
            is_lag_known: age.is_lag_known,
            lag_bytes: 0,
            lag_records: 0,
            compared: None,
            error: Some("it stepped down".into()),
        })
    }

    fn stepped_age(&self, view: Lsn) -> Option<ViewAge> {
        let since_ns = self.stepped()?.since_ns;
        Some(ViewAge {
            view,
            lag_us: self.shared.clock.boot_ns().saturating_sub(since_ns) / 1000,
            is_lag_known: true,
            freshness: None,
        })
    }

    fn following(&self) -> Option<&Arc<PrimaryConnection>> {
        self.linked.get().filter(|_| self.router.role() == Role::Standby)
    }

    /// Returns the state of this server's log, if it is a standby.
    fn standby_info(&self) -> Option<StandbyInfo> {
        let linked = self.following()?;
        // Read in this order, each position is at most the one before.
        let (view, persisted) = (self.router.view(), self.log.durable());
        let received = self.log.received()?.lsn;
        let mut own = linked.info((received, persisted, view));
        own.in_sync = self.synced.in_sync(self.shared.clock.boot_ns());
        let database = self.database.upgrade();
        own.compared = database.and_then(|database| database.comparison()?.info());
        if let (None, NodePhase::Failed { report }) = (&own.error, self.router.phase()) {
            own.error = Some(report.into());
        }
        Some(own)
    }
}

impl ReplicationService for NodeReplication {
    fn info(&self) -> ReplicationInfo {
        let (role, durable) = (self.router.role(), self.log.durable());
        let serving = self.serving();
        let own_url = serving.as_ref().and_then(|serving| serving.url.clone());
        let standbys = match (&serving, self.own()) {
            (_, Some(own)) => vec![own],
            (Some(serving), None) => serving
                .shipper
                .standbys()
                .into_iter()
                .map(|status| info_of(status, &*serving.net))
                .collect(),
            (None, None) => Vec::new(),
        };
        // A standby knows the committed LSN from its primary's heartbeat. A primary has it from its gate.
        let beat = self.following().and_then(|linked| linked.beat());
        let committed = match beat {
            Some(beat) => beat.committed.min(durable),
            None => self.shared.gate.committed(durable),
        };
        let shipper = serving.as_ref().map(|serving| &serving.shipper);
        let acked = match (beat, shipper.and_then(|shipper| shipper.acked_limit())) {
            (None, Some(limit)) => limit,
            (None, None) => durable,
            (Some(_), _) => committed,
        };
        ReplicationInfo {
            role,
            epoch: match (self.log.received(), role) {
                (Some(received), _) => received.epoch,
                // A server that stepped down: an epoch in which it wrote nothing does not make it the one with most records.
                (None, Role::Standby) => self.log.written_epoch(),
                (None, Role::Primary | Role::ReadOnly) => self.log.epoch(),
            },
            safety: self.safety(),
            reached: self.router.safety().1,
            primary: match role {
                Role::Standby => self.router.primary_url(),
                Role::Primary | Role::ReadOnly => own_url,
            },
            ship_address: serving.as_ref().map(|serving| serving.ship_address.clone()),
            ship: self.ship_form().name(),
            durable,
            acked,
            committed,
            standbys,
            out_of_sync: match role {
                Role::Standby => match self.stepped() {
                    Some(stepped) => stepped.laggards,
                    None => self.synced.laggards(),
                },
                Role::Primary | Role::ReadOnly => Vec::new(),
            },
            cuts: self.cuts(),
            lease: self.leasing.get().map(|leasing| leasing.info()),
        }
    }

    fn own(&self) -> Option<StandbyInfo> {
        self.standby_info().or_else(|| self.stepped_info())
    }

    fn view_age(&self, view: Lsn) -> Option<ViewAge> {
        match self.following() {
            Some(linked) => Some(linked.view_age(view)),
            None => self.stepped_age(view).or_else(|| self.doubtful_age(view)),
        }
    }

    fn freshness(&self, name: &str) -> Option<FreshnessSeries> {
        let (points, last_minute) = match self.following() {
            Some(linked) if linked.name == name => linked.freshness(),
            Some(_) => return None,
            None => self.serving()?.shipper.freshness(name)?,
        };
        Some(FreshnessSeries { points, last_minute })
    }

    fn join(&self, joiner: &Joiner) -> Result<StandbyTicket, ReplicationError> {
        if self.router.role() == Role::Standby {
            return Err(ReplicationError::NotPrimary(self.router.primary_url()));
        }
        let serving = self.served()?;
        let ticket = serving.shipper.join(joiner).map_err(|error| match error {
            ShipError::Name(reason) => ReplicationError::Name(reason.into()),
            other => ReplicationError::Unavailable(other.to_string().into()),
        })?;
        Ok(StandbyTicket {
            ticket,
            ship_address: serving.ship_address,
            transport: serving.net.transport(),
            certificate: serving.net.certificate(),
            database_id: self.log.database_id(),
            partitions: self.router.partitions_count(),
        })
    }

    fn check_safety(&self, level: Safety) -> Result<(), Arc<str>> {
        match self.serving() {
            Some(serving) => serving.shipper.check_safety(level),
            None => Err(NOT_SERVED.into()),
        }
    }

    fn when_safe(&self, level: Safety, end: Lsn, hook: SafetyHook) {
        match self.serving() {
            Some(serving) => serving.shipper.when_safe(level, end, hook),
            None => hook(Err(NOT_SERVED.into())),
        }
    }

    fn forget(&self, name: &str) -> Result<(), ReplicationError> {
        if self.router.role() == Role::Standby {
            return Err(ReplicationError::NotPrimary(self.router.primary_url()));
        }
        let serving = self.served()?;
        let missing = || ReplicationError::Name("no standby of that name is lost".into());
        if !serving.shipper.is_lost(name) {
            return Err(missing());
        }
        let kept = cutting::keep_forgetting(&self.node, self.log.filled());
        kept.map_err(|error| ReplicationError::Unavailable(error.to_string().into()))?;
        serving.shipper.forget(name).then_some(()).ok_or_else(missing)
    }

    fn promote(&self, options: PromoteOptions) -> Result<PromotionResult, ReplicationError> {
        self.promote_by_hand(options)
    }

    fn step_down(&self, name: &str, url: Option<Arc<str>>) -> Result<HandOverPoint, ReplicationError> {
        self.give_place(name, url)
    }

    fn promise(&self, asked: &PromiseQuestion) -> Result<PromiseAnswer, ReplicationError> {
        self.give_promise(asked)
    }
}

/// Why no level is to be had that asks for standbys.
const NOT_SERVED: &str = "this server takes no standbys (--ship-listen)";

fn info_of(status: StandbyStatus, net: &dyn Net) -> StandbyInfo {
    StandbyInfo {
        name: status.name.to_string(),
        state: match status.state {
            reprise_ship::StandbyStage::Joining => StandbyPhase::Joining,
            reprise_ship::StandbyStage::CatchingUp => StandbyPhase::CatchingUp,
            reprise_ship::StandbyStage::Streaming => StandbyPhase::Streaming,
            reprise_ship::StandbyStage::Lost => StandbyPhase::Lost,
        },
        transport: net.transport(),
        path: net.path(),
        is_encrypted: net.certificate().is_some(),
        shipped: status.shipped,
        persisted: status.persisted,
        replayed: status.replayed,
        view: status.view,
        in_sync: Some(status.is_in_sync),
        freshness: status.freshness,
        lag_us: status.lag.us,
        is_lag_known: status.lag.is_known,
        lag_bytes: status.lag_bytes,
        lag_records: status.lag_records,
        compared: status.compared.map(|compared| ComparedInfo {
            lsn: compared.lsn,
            at_us: compared.at_us,
            difference: compared.difference,
        }),
        error: status.error,
    }
}
