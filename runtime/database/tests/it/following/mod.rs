//! Primaries and standbys over TCP on this machine.
#![allow(dead_code)] // each test uses a part

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use reprise_backup::{DirHandle, DirTree, RealTree};
use reprise_base::Joiner;
use reprise_database::{
    ClosedDirectory, CutBack, CutError, Database, DatabaseConfig, DeviceConfig, FlushPolicy, FollowPrimary, NODE_NAME,
    NodeFile, NvramConfig, ServeStandbys, ShipForm, TicketError, cut_back, keep_committed,
};
use reprise_env::{RealClock, RealDisk, RealNet, RealThreads};
use reprise_router::{HandOverPoint, PromoteOptions, ReplicationService, StandbyPhase};
use reprise_ship::{Link, LinkConfig, LogBeside, StandbyFiles};

pub use crate::common::wait_until;
use crate::common::{config, fill_bank, recovered};

/// No server is asked to step down.
pub const FORCED: PromoteOptions = PromoteOptions {
    is_forced: true,
    accepts_loss: false,
};

/// A forced promotion that accepts any loss: a primary that waits for no standby may have acknowledged records that no standby has.
pub const ACCEPTING: PromoteOptions = PromoteOptions {
    accepts_loss: true,
    ..FORCED
};

pub fn serving(url: &str) -> ServeStandbys {
    ServeStandbys {
        name: "s".into(),
        net: Arc::new(RealNet),
        listen: "127.0.0.1:0".into(),
        ship_address: None,
        url: Some(url.into()),
        hold_bytes_max: 1 << 30,
        compare_every: Duration::ZERO,
        ship: ShipForm::AsLogged,
        has_lease: false,
    }
}

pub fn service(database: &Database) -> Arc<dyn ReplicationService> {
    database.router().replication().expect("it is served")
}

pub fn link(database: &Database, name: &str) -> LinkConfig {
    let ticket = service(database).join(&name.into()).expect("a ticket");
    LinkConfig {
        net: Arc::new(RealNet),
        clock: Arc::new(RealClock::new()),
        address: ticket.ship_address,
        certificate: None,
        ticket: ticket.ticket,
        name: name.into(),
        connect_time: Duration::from_secs(5),
    }
}

pub fn beside() -> LogBeside {
    LogBeside {
        threads: Arc::new(RealThreads),
        keep_committed,
    }
}

pub fn bootstrap(primary: &Database, name: &str, dir: &Path) {
    let place = DirHandle::beside(dir).expect("a name");
    let coming = Link::bootstrap(&link(primary, name), &place, beside()).expect("connect");
    let whole = coming.run(&|| true).expect("no error").expect("whole");
    assert_eq!(whole.files, 2);
}

/// The present primary, which gives out tickets.
pub type Primary = Arc<Mutex<Option<Arc<Database>>>>;

pub fn follow_primary(primary: &Primary, name: &str) -> FollowPrimary {
    let (primary, asked) = (primary.clone(), name.to_owned());
    let (giving, asks) = (primary.clone(), asked.clone());
    FollowPrimary {
        net: Arc::new(RealNet),
        name: name.into(),
        primary: Some("http://p:1".into()),
        ticket: Box::new(move || {
            // Final for who starts; who follows asks again.
            let refused = |reason: String| TicketError {
                reason: reason.into(),
                is_final: true,
            };
            let primary = primary.lock().expect("test").clone();
            let primary = primary.ok_or_else(|| refused("there is none now".into()))?;
            let joiner = Joiner {
                url: Some(format!("http://{asked}:1").into()),
                ..asked.as_str().into()
            };
            service(&primary)
                .join(&joiner)
                .map_err(|error| refused(error.to_string()))
        }),
        step_down: Arc::new(move || ask_step_down(&giving, &asks)),
        ask_peers: Arc::new(|_, _| Vec::new()),
    }
}

fn ask_step_down(primary: &Primary, name: &str) -> Result<HandOverPoint, Arc<str>> {
    let primary = primary.lock().expect("test").clone();
    let primary = primary.ok_or("nobody answers")?;
    let told = service(&primary).step_down(name, Some(format!("http://{name}:1").into()));
    told.map_err(|error| error.to_string().into())
}

pub fn start_primary(dir: &Path, url: &str) -> Arc<Database> {
    start_primary_with(config(dir, 2), url)
}

pub fn start_primary_with(config: DatabaseConfig, url: &str) -> Arc<Database> {
    let database = recovered(config);
    let database = Arc::new(database);
    database.serve_standbys(serving(url)).expect("served");
    database
}

/// A standby on another number of sites.
pub fn start_standby(dir: &Path, primary: &Primary, name: &str) -> Arc<Database> {
    start_standby_with(config(dir, 3), primary, name)
}

pub fn start_standby_with(config: DatabaseConfig, primary: &Primary, name: &str) -> Arc<Database> {
    let standby = Arc::new(Database::open_standby(config).expect("open"));
    standby
        .follow_primary(follow_primary(primary, name))
        .expect("it follows");
    standby.recover().expect("recover");
    standby
}

/// Waits until the standby's readers see everything that the primary has.
pub fn wait_seen(primary: &Database, standby: &Database) {
    let end = primary.router().view();
    wait_until("the standby sees it", || standby.router().view() >= end);
}

/// Waits until the primary sends the standby each group as it is sealed.
pub fn wait_streaming(primary: &Database, name: &str) {
    wait_until("it streams", || {
        let all = service(primary).info().standbys;
        all.iter()
            .any(|standby| standby.name == name && standby.state == StandbyPhase::Streaming)
    });
}

/// Waits until the standby knows from its primary that it has everything that was answered.
pub fn wait_in_sync(standby: &Database) {
    wait_until("it is in sync", || {
        service(standby).own().is_some_and(|own| own.in_sync == Some(true))
    });
}

/// Directories, and the primary of the moment.
pub struct Cluster {
    dirs: tempfile::TempDir,
    pub primary: Primary,
    /// Nodes whose logs are written to regions first.
    on_nvram: Vec<String>,
}

/// A file that is taken for persistent memory.
pub fn nvram(path: PathBuf) -> DeviceConfig {
    DeviceConfig::Nvram(NvramConfig {
        path,
        bytes: Some(8 << 20),
        copy_at_entries: 80_000,
        flush: FlushPolicy::OnCommit,
        assume_persistent: true,
    })
}

impl Cluster {
    pub fn new() -> Self {
        Self::on_nvram(&[])
    }

    /// A primary with accounts.
    pub fn with_bank(count: i64) -> (Self, Arc<Database>) {
        let cluster = Self::new();
        let primary = cluster.start("p");
        fill_bank(&primary, count);
        (cluster, primary)
    }

    /// These have regions beside their directories.
    pub fn on_nvram(names: &[&str]) -> Self {
        Self {
            dirs: tempfile::tempdir().expect("a directory"),
            primary: Primary::default(),
            on_nvram: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    pub fn region(&self, name: &str) -> PathBuf {
        self.dirs.path().join(format!("{name}.region"))
    }

    pub fn config(&self, name: &str, sites: u16) -> DatabaseConfig {
        let config = config(&self.place(name), sites);
        match self.on_nvram.iter().any(|on_nvram| on_nvram == name) {
            true => DatabaseConfig {
                device: nvram(self.region(name)),
                ..config
            },
            false => config,
        }
    }

    pub fn place(&self, name: &str) -> PathBuf {
        self.dirs.path().join(name)
    }

    pub fn serving(&self, url: &str) -> ServeStandbys {
        serving(url)
    }

    pub fn set_primary(&self, primary: &Arc<Database>) {
        *self.primary.lock().expect("test") = Some(primary.clone());
    }

    pub fn no_primary(&self) {
        *self.primary.lock().expect("test") = None;
    }

    /// The primary, from here on.
    pub fn start(&self, name: &str) -> Arc<Database> {
        self.no_primary();
        let primary = start_primary_with(self.config(name, 2), &format!("http://{name}:1"));
        self.set_primary(&primary);
        primary
    }

    /// A new standby of the primary.
    pub fn standby_of(&self, primary: &Database, name: &str) -> Arc<Database> {
        bootstrap(primary, name, &self.place(name));
        let standby = self.open_standby(name);
        wait_streaming(primary, name);
        wait_in_sync(&standby);
        standby
    }

    /// The document of a directory that is not open.
    pub fn node(&self, name: &str) -> Arc<NodeFile> {
        NodeFile::open(Arc::new(RealDisk::create(self.place(name)).expect("its directory"))).expect("read")
    }

    pub fn document(&self, name: &str) -> serde_json::Value {
        document(&self.place(name))
    }

    pub fn set_document(&self, name: &str, document: &serde_json::Value) {
        set_document(&self.place(name), document);
    }

    /// Cuts off the records that the primary does not have. A server does so before it opens a directory as a standby's.
    pub fn cut_back(&self, name: &str) -> Result<CutBack, CutError> {
        let dir = self.place(name);
        let disk = |folder: &str| Arc::new(RealDisk::create(dir.join(folder)).expect("a folder"));
        let directory = ClosedDirectory {
            root: disk(""),
            node: self.node(name),
            log: disk("log"),
            checkpoints: disk("checkpoints"),
            cuts: self.cuts(name),
        };
        let known = StandbyFiles {
            database_id: reprise_log::database_id(&*directory.log).expect("read").expect("a log"),
            partitions: config(&dir, 1).partitions,
        };
        let primary = self.primary.lock().expect("test").clone().expect("a primary");
        let mut ask =
            |position| Link::fork(&link(&primary, name), &known, position).map_err(|error| error.to_string().into());
        cut_back(&directory, &mut ask, 77)
    }

    /// The records that were cut off a directory.
    pub fn cuts(&self, name: &str) -> Arc<dyn DirTree> {
        Arc::new(RealTree(self.place(name).join("cuts")))
    }

    /// Opens a standby of the present primary.
    pub fn open_standby(&self, name: &str) -> Arc<Database> {
        start_standby_with(self.config(name, 3), &self.primary, name)
    }
}

/// The document in a data directory.
pub fn document(dir: &Path) -> serde_json::Value {
    let text = std::fs::read(dir.join(NODE_NAME)).expect("it is saved");
    serde_json::from_slice(&text).expect("a document")
}

pub fn set_document(dir: &Path, document: &serde_json::Value) {
    std::fs::write(dir.join(NODE_NAME), document.to_string()).expect("written");
}
