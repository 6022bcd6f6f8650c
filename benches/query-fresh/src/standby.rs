//! Standbys in this process: their directories, their threads under names of their own, and their end.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use crossbeam_channel::{Receiver, RecvTimeoutError};
use reprise_backup::DirHandle;
use reprise_base::{Lsn, limits::SEGMENT_BYTES};
use reprise_database::{
    BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, Environment, FollowPrimary,
    LogPolicy, ReadersConfig, RedoConfig, TicketError,
};
use reprise_env::{MakeWork, RealClock, RealNet, RealThreads, ThreadHandle, Threads, Work};
use reprise_router::{ReplicationService, StandbyPhase};
use reprise_ship::{BootstrapSummary, Link, LinkConfig, LogBeside};

use crate::taker::{Acknowledges, Replays, Taking, WayTaker};

const CONNECT_TIME: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Nothing that is waited for here takes longer, unless it never comes.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

/// Threads whose names begin with `sb`, so that their processor time can be separated.
struct StandbyThreads;

impl Threads for StandbyThreads {
    fn start(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>> {
        RealThreads.start(&format!("{PREFIX}{name}"), make)
    }

    fn start_prompt(&self, name: &str, make: MakeWork) -> io::Result<Box<dyn ThreadHandle>> {
        RealThreads.start_prompt(&format!("{PREFIX}{name}"), make)
    }

    fn cores(&self) -> usize {
        RealThreads.cores()
    }

    fn give_way(&self, let_go: &mut dyn FnMut()) -> bool {
        RealThreads.give_way(let_go)
    }

    fn poll(&self, time: Duration, is_there: &dyn Fn() -> bool) -> bool {
        RealThreads.poll(time, is_there)
    }

    fn beside(&self, every: Duration, show: &(dyn Fn() + Sync), work: &mut dyn FnMut()) {
        RealThreads.beside(every, show, work)
    }
}

/// Names of standbys' threads begin so.
pub const PREFIX: &str = "sb";

/// The configuration of a standby.
#[derive(Clone, Debug)]
pub struct StandbyConfig {
    pub dir: PathBuf,
    pub partitions: u16,
    /// Threads that replay.
    pub sites: u16,
    pub device: DeviceConfig,
    pub replays: Replays,
    pub acknowledges: Acknowledges,
    /// Threads that run read-only calls; 0: no reader.
    pub readers: u16,
}

impl StandbyConfig {
    fn is_product(&self) -> bool {
        self.replays == Replays::Tables && self.acknowledges == Acknowledges::Persisted
    }
}

pub struct Standby {
    pub name: String,
    pub database: Arc<Database>,
    pub replays: Replays,
    /// None of the product's own.
    taker: Option<Arc<WayTaker>>,
    is_over: Arc<AtomicBool>,
    threads: Mutex<Vec<Box<dyn ThreadHandle>>>,
}

/// How long a new standby took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Began {
    pub files_s: f64,
    pub file_bytes: u64,
    /// Loading the checkpoint, and replaying the log behind it.
    pub checkpoint_s: f64,
    pub checkpoint_bytes: u64,
    pub log_s: f64,
    pub log_bytes: u64,
    /// From then until it had all that its primary had.
    pub catch_up_s: f64,
}

fn service(database: &Database) -> Result<Arc<dyn ReplicationService>> {
    database.router().replication().context("standbys are not served")
}

/// Waits, within bounds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + WAIT_MAX;
    while !holds()? {
        if Instant::now() > until {
            bail!("waited in vain: {what}");
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn link(primary: &Database, name: &str) -> Result<LinkConfig> {
    let ticket = service(primary)?
        .join(&name.into())
        .map_err(|error| anyhow!("{error}"))?;
    Ok(LinkConfig {
        net: Arc::new(RealNet),
        clock: Arc::new(RealClock::new()),
        address: ticket.ship_address,
        certificate: None,
        ticket: ticket.ticket,
        name: name.into(),
        connect_time: CONNECT_TIME,
    })
}

fn bootstrap(primary: &Database, name: &str, dir: &Path) -> Result<BootstrapSummary> {
    let place = DirHandle::beside(dir).context("a place for the standby's files")?;
    let beside = LogBeside {
        threads: Arc::new(RealThreads),
        // A way of its own replays the durable records: no primary tells it which are committed.
        keep_committed: |_, _| Ok(()),
    };
    let coming = Link::bootstrap(&link(primary, name)?, &place, beside)?;
    coming.run(&|| true)?.context("the first files did not come")
}

fn follow_primary(primary: &Arc<Database>, name: &str) -> FollowPrimary {
    let (primary, asked): (Weak<Database>, _) = (Arc::downgrade(primary), name.to_owned());
    let refused = |reason: &str| TicketError {
        reason: reason.into(),
        is_final: true,
    };
    FollowPrimary {
        net: Arc::new(RealNet),
        name: name.into(),
        primary: None,
        ticket: Box::new(move || {
            let primary = primary.upgrade().ok_or_else(|| refused("the run is over"))?;
            let service = service(&primary).map_err(|error| refused(&error.to_string()))?;
            service
                .join(&asked.as_str().into())
                .map_err(|error| refused(&error.to_string()))
        }),
        step_down: Arc::new(|| Err("nobody is promoted in a run".into())),
        ask_peers: Arc::new(|_, _| Vec::new()),
    }
}

fn open(config: &StandbyConfig) -> Result<Database> {
    let database_config = DatabaseConfig {
        dir: Some(config.dir.clone()),
        partitions: config.partitions,
        sites: config.sites,
        log: LogPolicy::Command,
        redo: RedoConfig::default(),
        device: config.device.clone(),
        commit: CommitMode::Sync,
        batch_limits: BatchLimits::default(),
        segment_bytes: SEGMENT_BYTES,
        checkpoints: CheckpointConfig::BY_HAND,
        memory_max_bytes: u64::MAX,
    };
    let mut around = Environment::real(&database_config)?;
    around.threads = Arc::new(StandbyThreads);
    Ok(Database::open_standby_in(database_config, around)?)
}

impl Standby {
    /// Begins a standby of a primary, with its first files, and waits until it has all that its primary has.
    pub fn begin(primary: &Arc<Database>, name: &str, config: &StandbyConfig) -> Result<(Self, Began)> {
        let mut began = Began::default();
        let begun = Instant::now();
        let files = bootstrap(primary, name, &config.dir)?;
        began.files_s = begun.elapsed().as_secs_f64();
        began.file_bytes = files.bytes;
        let database = Arc::new(open(config)?);
        database.set_readers(ReadersConfig {
            threads: config.readers.max(1),
            view_time_max: Duration::from_secs(60),
            view_fuel_max: 100_000_000,
            view_bytes_max: 1 << 30,
        });
        if config.replays == Replays::Tables {
            let begun = Instant::now();
            let report = database.recover()?;
            let loaded = report.checkpoint;
            began.checkpoint_s = loaded.map_or(0.0, |loaded| loaded.seconds);
            began.checkpoint_bytes = loaded.map_or(0, |loaded| loaded.row_bytes);
            began.log_s = begun.elapsed().as_secs_f64() - began.checkpoint_s;
            began.log_bytes = report.log_bytes;
        }
        let mut standby = Self {
            name: name.to_owned(),
            database,
            replays: config.replays,
            taker: None,
            is_over: Arc::default(),
            threads: Mutex::default(),
        };
        let begun = Instant::now();
        match config.is_product() {
            true => standby.database.follow_primary(follow_primary(primary, name))?,
            false => standby.take(primary, config)?,
        }
        standby.wait_streaming(primary)?;
        began.catch_up_s = begun.elapsed().as_secs_f64();
        Ok((standby, began))
    }

    /// Takes what comes by a taker of its own.
    fn take(&mut self, primary: &Arc<Database>, config: &StandbyConfig) -> Result<()> {
        let (taker, noting) = WayTaker::new(self.database.clone(), config.replays, config.acknowledges);
        let id = self.database.database_id().context("a standby without a log")?;
        let streaming = Link::stream(&link(primary, &self.name)?, id, config.partitions, taker.clone())?;
        let taking = Taking {
            streaming,
            is_over: self.is_over.clone(),
        };
        let mut threads = self.threads.lock().expect("held to start and to end");
        if let Some(noting) = noting {
            let make: MakeWork = Box::new(move || noting as Box<dyn Work>);
            threads.push(StandbyThreads.start("arrays", make)?);
        }
        let make: MakeWork = Box::new(move || Box::new(taking) as Box<dyn Work>);
        threads.push(StandbyThreads.start("link", make)?);
        drop(threads);
        self.taker = Some(taker);
        Ok(())
    }

    fn wait_streaming(&self, primary: &Arc<Database>) -> Result<()> {
        let service = service(primary)?;
        let asks_standbys = service.info().safety.asks_standbys();
        wait_until("a standby streams", || {
            let all = service.info().standbys;
            Ok(all.iter().any(|standby| {
                standby.name == self.name
                    && standby.state == StandbyPhase::Streaming
                    && (standby.in_sync == Some(true) || !asks_standbys)
            }))
        })?;
        if self.taker.is_some() || !asks_standbys {
            return Ok(());
        }
        // If that takes long to save, the standby is cut off.
        let own = self::service(&self.database)?;
        wait_until("it keeps that it is in sync", || {
            Ok(own.own().is_some_and(|own| own.in_sync == Some(true)))
        })
    }

    /// Readers see everything before it.
    pub fn view(&self) -> Lsn {
        match &self.taker {
            Some(taker) => taker.view(),
            None => self.database.router().view(),
        }
    }

    /// Waits until it has replayed all that its primary has.
    pub fn catch_up(&self, primary: &Database) -> Result<()> {
        let end = primary.router().durable();
        wait_until("a standby catches up", || {
            ensure!(
                !self.taker.as_ref().is_some_and(|taker| taker.has_failed()),
                "a change could not be noted"
            );
            Ok(self.view() >= end)
        })
    }

    /// Its tables are its primary's, where it has tables.
    pub fn compare(&self, primary: &Database) -> Result<()> {
        if self.replays == Replays::Tables {
            let digests = (primary.router().digest(), self.database.router().digest());
            let (primary, standby) = (
                digests.0.map_err(|e| anyhow!("{e}"))?,
                digests.1.map_err(|e| anyhow!("{e}"))?,
            );
            ensure!(primary == standby, "{} has other rows than its primary", self.name);
        }
        Ok(())
    }

    /// Ends its threads, once no other owner has it.
    pub fn end(standby: Arc<Self>) -> Result<()> {
        let standby = Arc::into_inner(standby).context("another thread still holds a standby")?;
        standby.is_over.store(true, Ordering::Release);
        drop(standby.taker);
        let threads = standby.threads.into_inner().expect("nothing panics while it is held");
        threads.into_iter().rev().for_each(|thread| thread.join());
        standby.database.close().context("close a standby")
    }
}

/// Sleeps until something comes or the time is over. True: it is over, or all senders are gone.
pub fn rest(over: &Receiver<()>, time: Duration) -> bool {
    !matches!(over.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}
