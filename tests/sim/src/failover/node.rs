//! A node: its disk while no process runs there, and the process, opened as the primary's or as a standby's.

use std::{
    sync::{Arc, Mutex, OnceLock, Weak},
    time::Duration,
};

use reprise_base::{Joiner, NodeProcess, Role, Safety};
use reprise_database::{
    BatchLimits, CheckpointConfig, ClosedDirectory, CommitMode, CutBack, CutError, Database, DatabaseConfig,
    DeviceConfig, DirHealth, Environment, FollowPrimary, LeaseConfig, LogPolicy, NODE_NAME, NodeFile, Position,
    RedoConfig, SampleRate, ServeStandbys, ShipForm, TicketError, VIEW_NAME, cut_back, forget_earlier_log,
    keep_committed,
};
use reprise_env::{Disk, DiskError, SimDisk, Threads};
use reprise_router::{ReplicationError, ReplicationService, StandbyTicket};
use reprise_ship::{ForkAnswer, Link, LinkConfig, LogBeside, StandbyFiles};

use super::{
    around::{Around, Life, NAMES, NodeThreads, Refused, node_of, url_of},
    forge::{ask_promise, step_down},
    history::{Tape, lock},
    mutant::FailoverMutant,
};
use crate::{
    module::{NativeCompiler, Way},
    region::SimRegions,
    tree::{CHECKPOINTS, LOG, ROOT, SimTree, entropy, folders},
};

/// The directory in which a standby's first files arrive.
const ARRIVED: &str = "arrived";
/// Bytes of one part of a file: so few that a standby's first files take long, and records logged meanwhile arrive beside them.
const FILE_PART_BYTES: usize = 64;
pub const LEASE_TTL: Duration = Duration::from_secs(4);

/// The settings that all processes of a seed share.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub partitions: u16,
    pub segment_bytes: u64,
    pub safety: Safety,
    /// True if a lease decides which node is the primary.
    pub is_leased: bool,
    pub hold_bytes_max: u64,
    /// True if the operator now and then promotes by force without a look at the other nodes.
    pub is_blind: bool,
    /// True if an operator who promotes a standby by the promises of the others does not end the old primary first.
    pub keeps_old: bool,
    /// True if the records of standbys wait for their disks.
    pub has_slow_disks: bool,
    /// Zero: tables are not compared.
    pub compare_every: Duration,
}

/// The settings of one process.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    pub sites: u16,
    pub log: LogPolicy,
    pub redo: RedoConfig,
    pub part_bytes: usize,
    pub seed: u64,
}

pub struct Process {
    pub life: Arc<Life>,
    pub database: Arc<Database>,
    pub disk: SimDisk,
    pub tape: Arc<Tape>,
    /// True once it is known that the process is the primary.
    pub is_counted_primary: bool,
    pub opened_us: i64,
}

pub struct Node {
    /// While no process runs.
    pub disk: Option<SimDisk>,
    pub process: Option<Process>,
    /// Whom it is started to follow.
    pub of: usize,
    /// True if the node lost its disk, and has not been in sync since.
    pub is_wiped: bool,
    pub restarts: u32,
    /// An earlier state of the disk, as a backup has it.
    pub copy: Option<SimDisk>,
}

impl Node {
    /// Makes a node whose directory is empty, and has this identity.
    pub fn new(identity: u64) -> Self {
        let disk = SimDisk::new();
        identify(&disk, identity).expect("the disk has no fault");
        Self {
            disk: Some(disk),
            process: None,
            of: 0,
            is_wiped: true,
            restarts: 0,
            copy: None,
        }
    }
}

impl Process {
    pub fn service(&self) -> Arc<dyn ReplicationService> {
        self.database.router().replication().expect("it serves standbys")
    }
}

/// Returns the environment of a process.
fn environment(
    (around, life): (&Arc<Around>, &Arc<Life>),
    disk: &SimDisk,
    (own, has_slow_disk): (&Own, bool),
) -> Environment {
    let threads: Arc<dyn Threads> = Arc::new(NodeThreads {
        around: around.clone(),
        life: life.clone(),
        has_slow_disk,
    });
    Environment {
        clock: around.clock.clone(),
        threads,
        folders: Some(folders(disk)),
        nvram: Arc::new(SimRegions(disk.clone())),
        compiler: Arc::new(NativeCompiler {
            way: Way::Sound,
            clock: around.clock.clone(),
            pace_us: Arc::default(),
        }),
        sampling: SampleRate::default(),
        part_bytes: own.part_bytes,
        redo_window_bytes: 1 << 10,
        file_part_bytes: FILE_PART_BYTES,
        entropy: entropy(own.seed),
    }
}

/// Opens the database of a disk, up to the point at which it can be told its role.
pub fn open(
    (around, life): (&Arc<Around>, &Arc<Life>),
    disk: &SimDisk,
    (settings, own): (&Settings, &Own),
    is_standby: bool,
) -> Result<Arc<Database>, String> {
    let environment = environment((around, life), disk, (own, settings.has_slow_disks && is_standby));
    let config = DatabaseConfig {
        dir: None,
        partitions: settings.partitions,
        sites: own.sites,
        log: own.log,
        redo: own.redo,
        device: DeviceConfig::File,
        commit: CommitMode::Sync,
        batch_limits: BatchLimits::default(),
        segment_bytes: settings.segment_bytes,
        checkpoints: CheckpointConfig {
            keep: 2,
            ..CheckpointConfig::BY_HAND
        },
        memory_max_bytes: u64::MAX,
    };
    let opened = match (is_standby, settings.is_leased) {
        (true, _) => Database::open_standby_in(config, environment),
        (false, true) => Database::open_any_in(config, environment),
        (false, false) => Database::open_in(config, environment),
    };
    let database = Arc::new(opened.map_err(|error| format!("open: {error}"))?);
    let name = NAMES[life.node];
    database
        .set_safety(settings.safety)
        .map_err(|error| error.to_string())?;
    let serving = ServeStandbys {
        name: name.into(),
        net: Arc::new(around.net.host(name)),
        listen: format!("{name}:7000"),
        ship_address: None,
        url: Some(url_of(name).into()),
        hold_bytes_max: settings.hold_bytes_max,
        compare_every: settings.compare_every,
        ship: ShipForm::AsLogged,
        has_lease: settings.is_leased,
    };
    database.serve_standbys(serving).map_err(|error| error.to_string())?;
    Ok(database)
}

pub fn lease(around: &Around, life: &Life) -> LeaseConfig {
    let name = NAMES[life.node];
    LeaseConfig {
        store: around.store(life),
        name: name.into(),
        url: Some(url_of(name).into()),
        ttl: LEASE_TTL,
    }
}

/// The search of a standby for its primary, as the server does it: by the lease, by its configuration, by that primary's answer.
struct Asking {
    around: Arc<Around>,
    life: Arc<Life>,
    of: usize,
    successor: Mutex<Option<usize>>,
    /// The database, once it is open.
    database: OnceLock<Weak<Database>>,
    process: NodeProcess,
}

impl Asking {
    fn ask<T>(&self, question: &dyn Fn(&dyn ReplicationService) -> Result<T, ReplicationError>) -> Result<T, Refused> {
        let own = self.life.node;
        if self.life.is_dead() {
            return Err(Refused::Away("the process has ended".into()));
        }
        let ask = |node: usize| self.around.ask((own, node), question);
        let database = self.database.get().and_then(Weak::upgrade);
        let leased = database.as_ref().and_then(|database| database.leased_primary());
        if let Some(promised) = database.and_then(|database| database.promised_primary())
            && let Some(node) = node_of(&promised.url).filter(|node| *node != own)
        {
            let named = self.around.ask((own, self.of), |service| Ok(service.info()));
            let named = named.ok().filter(|named| named.role == Role::Primary);
            let is_later = named.as_ref().is_some_and(|named| named.epoch.is_after(promised.epoch));
            let told = (!is_later).then(|| ask(node));
            let waits = promised.is_followed && named.is_some() && leased.is_none();
            if let Some(told) = told.filter(|told| told.is_ok() || waits) {
                return told;
            }
        }
        if let Some(node) = leased.and_then(|url| node_of(&url)).filter(|node| *node != own) {
            return ask(node);
        }
        let told = ask(self.of);
        if let Err(Refused::Says(ReplicationError::NotPrimary(Some(url)))) = &told {
            let successor = node_of(url).filter(|node| *node != own && *node != self.of);
            let mut known = lock(&self.successor);
            *known = successor.or(*known);
        }
        let successor = *lock(&self.successor);
        match (&told, successor) {
            (Err(_), Some(node)) => ask(node),
            _ => told,
        }
    }

    fn ticket(&self) -> Result<StandbyTicket, Refused> {
        let joiner = Joiner {
            process: Some(self.process),
            url: Some(url_of(NAMES[self.life.node]).into()),
            ..Joiner::from(NAMES[self.life.node])
        };
        self.ask(&|service| service.join(&joiner))
    }
}

/// Has an opened standby follow a node.
pub fn follow((around, life): (&Arc<Around>, &Arc<Life>), database: &Arc<Database>, of: usize) -> Result<(), String> {
    let asking = Arc::new(Asking {
        around: around.clone(),
        life: life.clone(),
        of,
        successor: Mutex::default(),
        database: OnceLock::new(),
        process: database.begin_process().map_err(|error| error.to_string())?,
    });
    let _ = asking.database.set(Arc::downgrade(database));
    let (tickets, peers, own) = (asking.clone(), asking.clone(), NAMES[life.node]);
    let config = FollowPrimary {
        net: Arc::new(around.net.host(own)),
        name: own.into(),
        primary: Some(url_of(NAMES[of]).into()),
        ticket: Box::new(move || {
            tickets.ticket().map_err(|refused| TicketError {
                reason: refused.text().into(),
                is_final: false,
            })
        }),
        step_down: Arc::new(move || {
            let mutant = asking.around.mutant;
            let told = asking.ask(&|service| step_down(service, mutant, (own, url_of(own))));
            told.map_err(|refused| refused.text().into())
        }),
        ask_peers: Arc::new(move |urls, question| {
            let database = peers.database.get().and_then(Weak::upgrade);
            let own_epoch = database.and_then(|database| database.router().status().epoch);
            let asker = (peers.life.node, own_epoch.unwrap_or_default());
            let ask = |url: &String| {
                let node = node_of(url).ok_or("no node of the cluster")?;
                ask_promise(&peers.around, asker, node, question)
            };
            urls.iter().map(ask).collect()
        }),
    };
    database.follow_primary(config).map_err(|error| error.to_string())
}

/// Gives a directory that no process has opened yet this identity. Each identity of a seed has a writer of its own. Otherwise a primary would turn a
/// node away.
pub fn identify(disk: &SimDisk, identity: u64) -> Result<(), String> {
    let document = format!(r#"{{"format":6,"version":1,"node":"{identity:016x}","starts":0,"health":"good"}}"#);
    let root = disk.folder(ROOT);
    let written = copy_file(&root, NODE_NAME, document.as_bytes()).and_then(|()| root.sync_dir());
    written.map_err(|error| error.to_string())
}

/// A disk of a node that no process has open, and whom it is to follow.
pub struct Closed<'a> {
    pub around: &'a Arc<Around>,
    pub node: usize,
    pub of: usize,
    pub disk: &'a SimDisk,
    pub partitions: u16,
}

impl Closed<'_> {
    fn link(&self) -> Result<LinkConfig, String> {
        let name = NAMES[self.node];
        let process = self.node()?.begin_process().map_err(|error| error.to_string())?;
        let joiner = Joiner {
            process: Some(process),
            ..Joiner::from(name)
        };
        let ticket = self.around.ask((self.node, self.of), |service| service.join(&joiner));
        let ticket = ticket.map_err(|refused| refused.text())?;
        Ok(LinkConfig {
            net: Arc::new(self.around.net.host(name)),
            clock: self.around.clock.clone(),
            address: ticket.ship_address,
            certificate: None,
            ticket: ticket.ticket,
            name: name.into(),
            connect_time: Duration::from_secs(3),
        })
    }

    fn ask_fork(&self, known: &StandbyFiles, position: Position) -> Result<ForkAnswer, String> {
        let mut last = String::new();
        for _ in 0..3 {
            let asked = Link::ask_fork(&self.link()?, known, position);
            let mut asking = match asked {
                Ok(asking) => asking,
                Err(error) => {
                    last = error.to_string();
                    continue;
                }
            };
            let told = loop {
                match asking.step() {
                    Ok(None) => self.around.stepper.help(),
                    told => break told,
                }
            };
            match told {
                Ok(told) => return told.ok_or_else(|| "no answer".into()),
                Err(error) if error.is_final() => return Err(error.to_string()),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }

    /// Cuts off the records that the primary does not have. None: the primary could not be asked.
    pub fn cut_back(&self) -> Result<Option<CutBack>, String> {
        let log: Arc<dyn Disk> = Arc::new(self.disk.folder(LOG));
        let id = reprise_log::database_id(&*log).map_err(|error| error.to_string())?;
        let Some(database_id) = id else {
            return Ok(Some(CutBack::Nothing));
        };
        let known = StandbyFiles {
            database_id,
            partitions: self.partitions,
        };
        let directory = ClosedDirectory {
            root: Arc::new(self.disk.folder(ROOT)),
            node: self.node()?,
            log,
            checkpoints: Arc::new(self.disk.folder(CHECKPOINTS)),
            cuts: Arc::new(SimTree::new(self.disk)),
        };
        let mut ask = |position| self.ask_fork(&known, position).map_err(Arc::from);
        match cut_back(&directory, &mut ask, 1) {
            Ok(cut) => Ok(Some(cut)),
            Err(CutError::Ask(_)) => Ok(None),
            Err(error) => Err(format!("cut back: {error}")),
        }
    }

    /// Removes the log and the checkpoints.
    pub fn clear(&self) -> Result<(), String> {
        for folder in [LOG, CHECKPOINTS] {
            clear(&self.disk.folder(folder)).map_err(|error| error.to_string())?;
        }
        let cleared = self.node()?.set_health(DirHealth::Good);
        cleared.map_err(|error| error.to_string())
    }

    fn node(&self) -> Result<Arc<NodeFile>, String> {
        NodeFile::open(Arc::new(self.disk.folder(ROOT))).map_err(|error| error.to_string())
    }

    /// Gets the first files of the primary; the records that came beside them. The inner error: they did not come, and why.
    pub fn bootstrap(&self, meanwhile: &mut dyn FnMut()) -> Result<Result<u64, String>, String> {
        let link = match self.link() {
            Ok(link) => link,
            Err(reason) => return Ok(Err(reason)),
        };
        let arrival = SimDisk::new();
        let tree = SimTree::new(&arrival);
        let place = reprise_backup::DirHandle::new(Arc::new(SimTree::new(&arrival)), ARRIVED);
        let beside = LogBeside {
            threads: Arc::new(self.around.stepper.clone()),
            keep_committed,
        };
        let mut coming = match Link::bootstrap(&link, &place, beside) {
            Ok(coming) => coming,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let whole = loop {
            if let Some(whole) = coming.whole() {
                break whole;
            }
            match coming.step() {
                Ok(reprise_env::Step::Idle) => {
                    meanwhile();
                    self.around.stepper.help();
                }
                Ok(_) => {}
                Err(error) => return Ok(Err(error.to_string())),
            }
        };
        let come = tree.extract(ARRIVED).map_err(|error| error.to_string())?;
        let root = self.disk.folder(ROOT);
        forget_earlier_log(&*self.node()?).map_err(|error| error.to_string())?;
        for folder in [LOG, CHECKPOINTS] {
            copy(&come.folder(folder), &self.disk.folder(folder)).map_err(|error| error.to_string())?;
        }
        let view = come
            .folder(ROOT)
            .bytes(VIEW_NAME)
            .ok_or("what is committed is not kept")?;
        if root.bytes(VIEW_NAME).is_some() {
            root.remove(VIEW_NAME).map_err(|error| error.to_string())?;
        }
        copy_file(&root, VIEW_NAME, &view).map_err(|error| error.to_string())?;
        root.sync_dir().map_err(|error| error.to_string())?;
        Ok(Ok(whole.live))
    }
}

fn clear(folder: &SimDisk) -> Result<(), DiskError> {
    for file in folder.list()? {
        folder.remove(&file)?;
    }
    folder.sync_dir()
}

fn copy(from: &SimDisk, to: &SimDisk) -> Result<(), DiskError> {
    for file in from.list()? {
        copy_file(to, &file, &from.bytes(&file).unwrap_or_default())?;
    }
    to.sync_dir()
}

fn copy_file(to: &SimDisk, name: &str, bytes: &[u8]) -> Result<(), DiskError> {
    let copied = to.create(name)?;
    copied.write_at(0, bytes)?;
    copied.sync()
}

/// Whether a standby's disk does no sync.
pub fn lies(mutant: Option<FailoverMutant>) -> bool {
    mutant == Some(FailoverMutant::LyingStandby)
}
