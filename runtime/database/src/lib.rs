//! A database in this process: the engine's parts put together over one directory.
//! Owns: the order of opening and closing, the engine threads, the choice of log kind and commit mode.
//! Does not: know HTTP or flags; hold any state of its own beyond the parts.
//! Invariants: no call is taken before the log is replayed; after `close` everything acknowledged is durable and sealed.
//! Called by: the binary, the benchmarks' driver.
#![forbid(unsafe_code)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use crossbeam_channel::Sender;
use reprise_base::{
    Lsn, SiteId,
    limits::{PARTITIONS_MAX, SITES_MAX},
};
use reprise_env::{Clock, Disk, DiskError, RealClock, RealDisk, entropy};
use reprise_host::{Engine, Limits};
use reprise_log::{Log, LogConfig, LogError, OpenReport};
use reprise_observe::{RecentLines, Registry};
use reprise_partition::{
    AsyncSink, CallBatch, NoLog, Shared, Sink, Site, SiteMessage, SyncSink, Tools, complete,
};
use reprise_recovery::{Recovery, RecoveryError};
use reprise_replay::Replayed;
use reprise_router::{Fingerprint, Phase, Remembered, Router, RouterConfig};
use reprise_txn::ModuleId;
use reprise_wire::{Genesis, RecordRef};

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogMode {
    /// The command of each transaction.
    Command,
    /// Nothing: a restart begins empty.
    None,
}

/// When a transaction is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitMode {
    /// Once its record is durable.
    Sync,
    /// Once it has run; a crash may take back the last ones.
    Async,
}

#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    /// The log lies in its folder `log`. None with `LogMode::None` alone.
    pub dir: Option<PathBuf>,
    /// Fixed when the database is made.
    pub partitions: u16,
    /// Engine threads.
    pub sites: u16,
    pub log: LogMode,
    pub commit: CommitMode,
    /// Time for which a group of commits may grow before it is written.
    pub group_commit_us: u64,
    pub segment_bytes: u64,
}

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{0}")]
    Config(String),
    #[error("{0}")]
    Disk(#[from] DiskError),
    #[error("{0}")]
    Log(#[from] LogError),
    #[error("{0}")]
    Recovery(#[from] RecoveryError),
    #[error("the database was made with {stored} partitions, and that number is fixed; {asked} were asked for")]
    Partitions { stored: u16, asked: u16 },
    #[error("the log begins at LSN {lsn} with a record of kind {kind}, not with its genesis")]
    NoGenesis { lsn: Lsn, kind: &'static str },
    #[error("start an engine thread: {0}")]
    Thread(std::io::Error),
    #[error("read the system's source of randomness: {0}")]
    Entropy(std::io::Error),
}

/// What recovery did.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Transactions replayed.
    pub commands: u64,
    pub seconds: f64,
    pub log_bytes: u64,
    /// Remains of a write that a crash cut off, which were cut away; nothing of them had been acknowledged.
    pub torn_bytes: u64,
    /// Idempotency keys found.
    pub keys: usize,
    /// Settings hash of the log's newest part where it is not this program's: outcomes were compared all the same.
    pub other_settings_hash: Option<u64>,
    /// Where each module version's bytes lie in the log.
    pub modules: Vec<(ModuleId, Lsn)>,
}

/// See the crate's header.
pub struct Database {
    router: Router,
    shared: Arc<Shared>,
    inboxes: Vec<Sender<SiteMessage>>,
    engine: Engine,
    log: Option<Arc<Log<Box<CallBatch>>>>,
    opened: Option<OpenReport>,
    sites: Mutex<Vec<JoinHandle<()>>>,
}

/// Longest wait for the first record of a new log.
const GENESIS_WAIT: Duration = Duration::from_secs(60);

impl Database {
    /// Opens the directory's log (a new one begins with its genesis) and starts the engine threads. No call is taken
    /// before `recover`.
    pub fn open(config: DatabaseConfig) -> Result<Self, OpenError> {
        check(&config)?;
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let engine = Engine::new(Limits::default());
        let opened = match config.log {
            LogMode::None => None,
            LogMode::Command => Some(open_log(&config, &clock, engine.settings_hash())?),
        };
        let (genesis, log, report) = match opened {
            Some((genesis, log, report)) => (genesis, Some(log), Some(report)),
            None => (new_genesis(&config, &clock)?, None, None),
        };
        let registry = Arc::new(Registry::new());
        if let Some(log) = &log {
            registry.attach_flush(log.stats());
        }
        let shared = Arc::new(Shared {
            deployed: ArcSwap::default(),
            generation: AtomicU64::new(0),
            clock,
            secret: genesis.secret,
            partitions_count: config.partitions,
            sites_count: config.sites,
            waiting: (0..config.partitions).map(|_| AtomicUsize::new(0)).collect(),
            multi_tick: AtomicU64::new(0),
            lines: Arc::new(RecentLines::new()),
        });
        let (inboxes, sites) = start_sites(&config, &shared, &registry, log.as_deref())?;
        let router = Router::new(RouterConfig {
            shared: shared.clone(),
            inboxes: inboxes.clone(),
            log: log.clone(),
            engine: engine.clone(),
            registry,
            commit: match config.commit {
                CommitMode::Sync => "sync",
                CommitMode::Async => "async",
            },
            database_id: genesis.database_id,
            settings_hash: engine.settings_hash(),
        });
        Ok(Self {
            router,
            shared,
            inboxes,
            engine,
            log,
            opened: report,
            sites: Mutex::new(sites),
        })
    }

    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Replays the log, then lets calls in. On an error the phase says so, and no call is ever taken.
    pub fn recover(&self) -> Result<RecoveryReport, OpenError> {
        match self.replay() {
            Ok(report) => {
                for inbox in &self.inboxes {
                    let begin = SiteMessage::Job(Box::new(Site::retain_undo));
                    inbox.send(begin).map_err(|_| RecoveryError::Stopped)?;
                }
                self.router.set_phase(Phase::Ready);
                Ok(report)
            }
            Err(error) => {
                self.router.set_phase(Phase::Failed {
                    report: error.to_string(),
                });
                Err(error)
            }
        }
    }

    fn replay(&self) -> Result<RecoveryReport, OpenError> {
        let begun = Instant::now();
        let mut report = RecoveryReport::default();
        let (Some(log), Some(opened)) = (&self.log, &self.opened) else {
            return Ok(report);
        };
        let (start, end) = (log.start(), log.durable());
        report.log_bytes = end.0 - start.0;
        report.torn_bytes = opened.found.torn.as_ref().map_or(0, |torn| torn.bytes);
        report.other_settings_hash = opened.other_settings_hash;
        let mut recovery =
            Recovery::new(self.shared.clone(), self.inboxes.clone(), self.engine.clone());
        let mut reader = log.reader(start)?;
        let mut fed = 0u64;
        while let Some(record) = reader.next_record()? {
            if let RecordRef::Deploy(deploy) = &record.record {
                report.modules.push((ModuleId(deploy.module_id), record.lsn));
            }
            recovery.feed(record.lsn, record.end(), record.record)?;
            fed += 1;
            if fed.is_multiple_of(4096) {
                self.router.set_phase(Phase::Recovering {
                    replayed: recovery.replayed(),
                    bytes_done: record.end().0 - start.0,
                    bytes_total: report.log_bytes,
                });
            }
        }
        let recovered = recovery.finish()?;
        report.commands = recovered.commands;
        report.keys = recovered.remembered.len();
        self.restore_keys(recovered.remembered);
        report.seconds = begun.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Remembers the outcomes of calls with idempotency keys, the oldest first.
    fn restore_keys(&self, mut remembered: Vec<Replayed>) {
        remembered.sort_by_key(|replayed| replayed.command.lsn);
        for replayed in remembered {
            let command = replayed.command;
            let Some(key) = command.idempotency_key.as_deref() else {
                continue;
            };
            let Ok(key) = std::str::from_utf8(key) else {
                continue; // no client could send it again: keys come in as text
            };
            let procedure = command.procedure as usize;
            let name = &replayed.module.schema.procedures[procedure].name;
            let fingerprint = Fingerprint::new(&replayed.module.name, name, &command.args);
            let outcome = Remembered {
                procedure,
                result: replayed.result.into(),
                txn_id: command.txn_id,
                lsn: command.lsn,
                partition: replayed.partition,
                module: replayed.module,
            };
            self.router.idempotency().restore(key, fingerprint, outcome);
        }
    }

    /// The bytes of a module version, by the position of its record.
    pub fn module_bytes(&self, lsn: Lsn) -> Result<Option<Vec<u8>>, LogError> {
        let Some(log) = &self.log else {
            return Ok(None);
        };
        let record = log.record(lsn)?;
        Ok(record.and_then(|record| match record.record() {
            RecordRef::Deploy(deploy) => Some(deploy.wasm.to_vec()),
            _ => None,
        }))
    }

    /// Lets the engine threads finish what they were given, writes it out and seals the log.
    pub fn close(&self) -> Result<(), LogError> {
        self.router.stop();
        let sites = std::mem::take(&mut *self.sites.lock().expect("held to take"));
        for site in sites {
            let _ = site.join(); // a site that panics ends the process before this
        }
        match &self.log {
            Some(log) => log.close(),
            None => Ok(()),
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Whoever wants to know how it went calls `close`.
        let _ = self.close();
    }
}

fn check(config: &DatabaseConfig) -> Result<(), OpenError> {
    let refuse = |message: String| Err(OpenError::Config(message));
    if !(1..=PARTITIONS_MAX).contains(&config.partitions) {
        return refuse(format!("a database has 1 to {PARTITIONS_MAX} partitions"));
    }
    if !(1..=SITES_MAX.min(config.partitions)).contains(&config.sites) {
        return refuse(format!(
            "there are 1 to {SITES_MAX} sites, and at most one a partition ({})",
            config.partitions
        ));
    }
    if config.log == LogMode::Command && config.dir.is_none() {
        return refuse("a log needs a data directory".into());
    }
    Ok(())
}

type OpenedLog = (Genesis, Arc<Log<Box<CallBatch>>>, OpenReport);

fn open_log(
    config: &DatabaseConfig,
    clock: &Arc<dyn Clock>,
    settings_hash: u64,
) -> Result<OpenedLog, OpenError> {
    let dir = config.dir.as_ref().expect("checked").join("log");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::create(dir)?);
    let genesis = new_genesis(config, clock)?;
    let log_config = LogConfig {
        segment_bytes: config.segment_bytes,
        group_commit_delay: Duration::from_micros(config.group_commit_us),
        settings_hash,
        ..LogConfig::new(genesis.database_id)
    };
    let on_durable = Box::new(|outcome: Result<Lsn, &LogError>, batch: Box<CallBatch>| {
        complete(outcome.map_err(|error| error.to_string().into()), batch);
    });
    let (log, report) = Log::open(disk, clock.clone(), log_config, on_durable)?;
    let log = Arc::new(log);
    let genesis = match log.reader(log.start())?.next_record()? {
        Some(first) => match first.record {
            RecordRef::Genesis(stored) => stored,
            other => {
                return Err(OpenError::NoGenesis {
                    lsn: first.lsn,
                    kind: other.kind().name(),
                });
            }
        },
        // A new log, or one whose maker crashed before its first record was durable.
        None => write_genesis(&log, Genesis {
            database_id: log.database_id(),
            ..genesis
        })?,
    };
    if genesis.partitions != config.partitions {
        return Err(OpenError::Partitions {
            stored: genesis.partitions,
            asked: config.partitions,
        });
    }
    Ok((genesis, log, report))
}

fn new_genesis(config: &DatabaseConfig, clock: &Arc<dyn Clock>) -> Result<Genesis, OpenError> {
    let id: [u8; 16] = entropy().map_err(OpenError::Entropy)?;
    let secret: [u8; 16] = entropy().map_err(OpenError::Entropy)?;
    let (low, high) = secret.split_at(8);
    Ok(Genesis {
        database_id: id,
        secret: [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes"))),
        partitions: config.partitions,
        created_us: clock.now_us(),
    })
}

fn write_genesis(log: &Log<Box<CallBatch>>, genesis: Genesis) -> Result<Genesis, OpenError> {
    let mut record = Vec::new();
    RecordRef::Genesis(genesis).encode(&mut record);
    let start = log.appender().append(&record, None).map_err(|(error, _)| error)?;
    let end = Lsn(start.0 + record.len() as u64);
    if log.wait_durable(end, GENESIS_WAIT) {
        return Ok(genesis);
    }
    let reason = log.refusal().unwrap_or_else(|| "its first record did not become durable".into());
    Err(OpenError::Config(format!("the log can't be written: {reason}")))
}

type Started = (Vec<Sender<SiteMessage>>, Vec<JoinHandle<()>>);

fn start_sites(
    config: &DatabaseConfig,
    shared: &Arc<Shared>,
    registry: &Registry,
    log: Option<&Log<Box<CallBatch>>>,
) -> Result<Started, OpenError> {
    let mut inboxes = Vec::new();
    let mut threads = Vec::new();
    for id in 0..config.sites {
        // Bounded by admission: what waits is counted per partition before it is sent.
        let (sender, inbox) = crossbeam_channel::unbounded();
        let sink: Box<dyn Sink> = match (log, config.commit) {
            (None, _) => Box::new(NoLog),
            (Some(log), CommitMode::Sync) => Box::new(SyncSink(log.appender())),
            (Some(log), CommitMode::Async) => Box::new(AsyncSink(log.appender())),
        };
        let (shared, recorder) = (shared.clone(), registry.recorder());
        let run = move || {
            let serve = || {
                let tools = Tools::new(shared, sink, recorder);
                Site::new(SiteId(id), tools, inbox).run();
            };
            if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                // A broken invariant: not one more byte is acknowledged. The panic's message is out already.
                std::process::abort();
            }
        };
        let thread = std::thread::Builder::new().name(format!("site-{id}")).spawn(run);
        inboxes.push(sender);
        threads.push(thread.map_err(OpenError::Thread)?);
    }
    Ok((inboxes, threads))
}
