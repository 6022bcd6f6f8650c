//! A database in this process: the engine's parts put together over one directory.
//! Owns: the order of opening and closing, the engine threads, the choice of log kind and commit mode.
//! Does not: know HTTP or flags; hold any state of its own beyond the parts.
//! Invariants: no call is taken before the log is replayed; after `close` everything acknowledged is durable and sealed.
//! Called by: the binary, the benchmarks' driver.
#![forbid(unsafe_code)]

mod archive;
mod backup;
mod backups;
mod checkpoint;
mod environment;
mod estimate;
mod inspect;
mod manifest;
mod memory;
mod quarantine;
mod recover;
mod restore;
mod staging;
mod tree;
mod union;
mod writing;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use crossbeam_channel::Sender;
use reprise_abi::SEMANTICS;
use reprise_base::{
    Lsn, MemoryKind, MemoryLedger, SiteId,
    limits::{PARTITIONS_MAX, SITES_MAX},
};
use reprise_checkpoint::{CheckpointError, Checkpoints};
use reprise_env::{DiskError, Started};
use reprise_log::{Log, LogConfig, LogError, OpenReport};
use reprise_observe::{RecentLines, Registry};
pub use reprise_partition::Sampling;
use reprise_partition::{
    AsyncSink, CallBatch, Desk, Logging, NoLog, Shared, Sink, Site, SiteMessage, SyncSink, Told, Unlogged, complete,
};
use reprise_recovery::make_ready;
pub use reprise_replay::RecoverFrom;
use reprise_router::{BackupService, CheckpointService, Phase, Router, RouterConfig};
pub use reprise_storage::AfterImage;
use reprise_txn::{Compiler, ModuleId};
use reprise_wire::{Genesis, RecordRef};

use crate::{backups::Backups, checkpoint::Checkpointer, environment::SiteWork, tree::RealTree};

pub use archive::ArchiveError;
pub use backup::{
    VerifiedBackup, create_backup, create_backup_in, decode_all, receive_backup, verify_backup, verify_backup_in,
};
pub use environment::{Environment, Folders};
pub use inspect::{FoundCheckpoint, Inspection, Verdict, inspect};
pub use manifest::{BackupFile, BackupManifest, MANIFEST_NAME, ManifestError};
pub use memory::{Bound, MemoryError, judge_memory, keep_memory_ready, memory_max_default};
pub use quarantine::Quarantined;
pub use reprise_partition::LogPolicy;
pub use reprise_recovery::RecoveryError;
pub use reprise_replay::{Divergence, ReplayError};
pub use restore::{Point, RestoreError, RestoreReport, restore, restore_archived, restore_in};
pub use staging::StagingError;
pub use tree::{Place, Tree};

/// How changes are logged, and which record counts at recovery where there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RedoConfig {
    /// What is kept of an updated row.
    pub images: AfterImage,
    pub from: RecoverFrom,
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
    /// For procedures that declare nothing; those that do go by their declaration, unless this is `Both` or `None`.
    pub log: LogPolicy,
    pub redo: RedoConfig,
    pub commit: CommitMode,
    /// Time for which a group of commits may grow before it is written.
    pub group_commit_us: u64,
    pub segment_bytes: u64,
    pub checkpoints: CheckpointConfig,
    /// Memory that there may be, of everything that is counted; `u64::MAX`: no limit.
    pub memory_max_bytes: u64,
}

/// When checkpoints are taken, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Zero: not by time.
    pub every: Duration,
    /// Taken when the log has grown by so many bytes since the last; 0: not by length.
    pub log_bytes: u64,
    /// Taken when a restart would take longer; zero: not by that.
    pub recovery_target: Duration,
    /// The newest so many are kept, with the log from the oldest of them on.
    pub keep: usize,
}

impl CheckpointConfig {
    /// Only when asked for.
    pub const BY_HAND: Self = Self {
        every: Duration::ZERO,
        log_bytes: 0,
        recovery_target: Duration::ZERO,
        keep: 2,
    };
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
    #[error(
        "{} is a backup, and stays as it is: make a data directory of it with `reprise backup restore {} --to DIR`",
        .0.display(), .0.display()
    )]
    IsBackup(PathBuf),
    #[error("the log begins at LSN {lsn} with a record of kind {kind}, not with its genesis")]
    NoGenesis { lsn: Lsn, kind: &'static str },
    #[error(
        "the log begins at LSN {start}, and no checkpoint from there on can be loaded ({}). Nothing was changed. Restore the \
         folder from a copy", if reasons.is_empty() { "there is none".into() } else { reasons.join("; ") }
    )]
    NoCheckpoint { start: Lsn, reasons: Vec<String> },
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("the module {name:?} can't be compiled: {reason}")]
    Module { name: String, reason: String },
    #[error("start an engine thread: {0}")]
    Thread(std::io::Error),
    #[error("read the system's source of randomness: {0}")]
    Entropy(std::io::Error),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// What recovery did.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Transactions replayed.
    pub commands: u64,
    pub seconds: f64,
    /// Of the log that was replayed.
    pub log_bytes: u64,
    /// Of these, changes alone that all cores applied together, and how long that took.
    pub redo_bytes: u64,
    pub redo_seconds: f64,
    /// The checkpoint that was loaded, and how long that took.
    pub checkpoint: Option<LoadedCheckpoint>,
    /// Newer checkpoints that could not be used, and why.
    pub passed_over: Vec<String>,
    /// Remains of a write that a crash cut off, which were cut away; nothing of them had been acknowledged.
    pub torn_bytes: u64,
    /// Idempotency keys found.
    pub keys: usize,
    /// Settings hash of the log's newest part where it is not this program's: outcomes were compared all the same.
    pub other_settings_hash: Option<u64>,
    /// Of all modules.
    pub module_versions: usize,
}

/// A checkpoint that recovery began with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadedCheckpoint {
    pub lsn: Lsn,
    pub rows: u64,
    /// Of rows, before compression.
    pub row_bytes: u64,
    pub file_bytes: u64,
    pub seconds: f64,
    /// Of these, what compiling its modules took.
    pub compile_seconds: f64,
}

/// What an opening for reading alone found.
#[derive(Debug)]
pub struct ReadOnly {
    pub report: RecoveryReport,
    /// The record before which it stopped.
    pub divergence: Option<Box<Divergence>>,
}

/// What is kept beside the engine.
#[derive(Default)]
struct Upkeep {
    backups: OnceLock<Arc<Backups>>,
    is_read_only: AtomicBool,
    /// None without a log.
    folders: Option<Folders>,
    quarantine: Mutex<Vec<Quarantined>>,
    /// Memory that is made ready before calls are taken.
    memory_ready: AtomicU64,
}

/// See the crate's header.
pub struct Database {
    router: Router,
    shared: Arc<Shared>,
    inboxes: Vec<Sender<SiteMessage>>,
    compiler: Arc<dyn Compiler>,
    log: Option<Arc<Log<Box<CallBatch>>>>,
    opened: Option<OpenReport>,
    /// None without a log.
    checkpointer: Option<Arc<Checkpointer>>,
    files: Option<Checkpoints>,
    recover_from: RecoverFrom,
    /// See `Environment`.
    redo_window_bytes: usize,
    upkeep: Upkeep,
    sites: Mutex<Vec<Box<dyn Started>>>,
}

/// Longest wait for the first record of a new log.
const GENESIS_WAIT: Duration = Duration::from_secs(60);

impl Database {
    /// Opens the directory's log (a new one begins with its genesis) and starts the engine threads. No call is taken
    /// before `recover`.
    pub fn open(config: DatabaseConfig) -> Result<Self, OpenError> {
        if config.log != LogPolicy::None && config.dir.is_none() {
            return Err(OpenError::Config("a log needs a data directory".into()));
        }
        if let Some(dir) = config.dir.as_ref().filter(|dir| dir.join(MANIFEST_NAME).exists()) {
            return Err(OpenError::IsBackup(dir.clone()));
        }
        let environment = Environment::real(&config)?;
        Self::open_in(config, environment)
    }

    /// As `open`, with this clock, these folders, threads and compiler. `config.dir` is not looked at.
    pub fn open_in(config: DatabaseConfig, around: Environment) -> Result<Self, OpenError> {
        check(&config)?;
        let root = around.folders.as_ref().map(|folders| folders.root.clone());
        let quarantine = root.as_deref().map_or_else(|| Ok(Vec::new()), quarantine::load)?;
        let memory = MemoryLedger::new(config.memory_max_bytes);
        let opened = match config.log {
            LogPolicy::None => None,
            _ => Some(open_log(&config, &around, &memory)?),
        };
        let (genesis, log, report, files) = match opened {
            Some(opened) => {
                let OpenedLog {
                    genesis,
                    log,
                    report,
                    files,
                } = opened;
                (genesis, Some(log), Some(report), Some(files))
            }
            None => (new_genesis(&config, &around)?, None, None, None),
        };
        let settings_hash = around.compiler.settings_hash();
        keep_code(&around, &genesis);
        let registry = Arc::new(Registry::new());
        if let Some(log) = &log {
            registry.attach_flush(log.stats());
        }
        let shared = shared(&config, &around, genesis.secret, memory);
        let (inboxes, sites) = start_sites(&config, &shared, &registry, log.as_deref())?;
        let router = Router::new(RouterConfig {
            shared: shared.clone(),
            inboxes: inboxes.clone(),
            log: log.clone(),
            compiler: around.compiler.clone(),
            registry,
            commit: match config.commit {
                CommitMode::Sync => "sync",
                CommitMode::Async => "async",
            },
            database_id: genesis.database_id,
            settings_hash,
            idempotency: shared.memory.kind(MemoryKind::Idempotency).clone(),
        });
        let checkpointer = log.clone().zip(files.clone()).map(|(log, files)| {
            let (router, config) = (router.clone(), config.checkpoints);
            let shared = shared.clone();
            Checkpointer::new(router, log, files, shared, genesis, settings_hash, config)
        });
        if let Some(checkpointer) = &checkpointer {
            let service: Arc<dyn CheckpointService> = checkpointer.clone();
            router.set_checkpoints(Arc::downgrade(&service));
        }
        Ok(Self {
            router,
            shared,
            inboxes,
            compiler: around.compiler,
            log,
            opened: report,
            checkpointer,
            files,
            recover_from: config.redo.from,
            redo_window_bytes: around.redo_window_bytes,
            upkeep: Upkeep {
                folders: around.folders,
                quarantine: Mutex::new(quarantine),
                ..Upkeep::default()
            },
            sites: Mutex::new(sites),
        })
    }

    /// Has `bytes` of memory ready for what the tables will grow by, from before calls are taken; 0: none. Refused where they are not
    /// there.
    pub fn set_memory_ready(&self, bytes: u64) -> Result<(), OpenError> {
        judge_memory(bytes)?;
        self.upkeep.memory_ready.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// For how long the outcomes of calls with idempotency keys are kept. Before `recover`.
    pub fn set_idempotency_keep(&self, keep: Duration) {
        self.router.idempotency().set_keep(keep);
    }

    /// Lets backups be made, and found, below `dir`. Once.
    pub fn serve_backups(&self, dir: PathBuf) {
        self.serve_backups_in(Arc::new(RealTree(dir)));
    }

    /// The same in any tree.
    pub fn serve_backups_in(&self, tree: Arc<dyn Tree>) {
        let (Some(log), Some(checkpointer)) = (&self.log, &self.checkpointer) else {
            return;
        };
        let Some(folders) = &self.upkeep.folders else {
            return;
        };
        let (checkpoints, clock) = (folders.checkpoints.clone(), self.shared.clock.clone());
        let backups = Backups::new(tree, checkpoints, log.clone(), checkpointer.clone(), clock);
        let service: Arc<dyn BackupService> = backups.clone();
        self.router.set_backups(Arc::downgrade(&service));
        assert!(self.upkeep.backups.set(backups).is_ok(), "backups are served once");
    }

    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Replays the log, then lets calls in. On an error the phase says so, and no call is ever taken.
    pub fn recover(&self) -> Result<RecoveryReport, OpenError> {
        match self.replay(None) {
            Ok(report) => {
                self.let_calls_in()?;
                if let Some(checkpointer) = &self.checkpointer {
                    checkpointer.start_schedule();
                }
                Ok(report)
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// As `recover`, for reading alone: where a record does not replay, what was before it is served. The log takes no
    /// writes, and no checkpoint is taken.
    pub fn recover_read_only(&self) -> Result<ReadOnly, OpenError> {
        let mut divergence: Option<Box<Divergence>> = None;
        let report = loop {
            let until = divergence.as_ref().map(|found| found.lsn);
            match self.replay(until) {
                Ok(report) => break report,
                // Another partition may have got beyond an earlier one before that was met.
                Err(OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found))))
                    if until.is_none_or(|until| found.lsn < until) =>
                {
                    divergence = Some(found);
                    self.start_over()?;
                }
                Err(error) => return Err(self.fail(error)),
            }
        };
        let reason = match &divergence {
            None => "the server was started to be read alone".to_owned(),
            Some(found) => format!(
                "the server is read-only, with the tables as of before LSN {}: the replay of {}.{} diverged there",
                found.lsn, found.module, found.procedure
            ),
        };
        if let Some(log) = &self.log {
            log.refuse(&reason);
        }
        self.upkeep.is_read_only.store(true, Ordering::Release);
        self.let_calls_in()?;
        Ok(ReadOnly { report, divergence })
    }

    /// As `recover`; where the replay of one of these procedures (`MODULE.PROCEDURE`) diverges, the procedure is taken out of
    /// service, for good, and what it changed is taken from the log, if that holds it. Returns what was taken out.
    pub fn recover_with_quarantine(&self, names: &[String]) -> Result<(RecoveryReport, Vec<Quarantined>), OpenError> {
        let mut taken: Vec<Quarantined> = Vec::new();
        loop {
            let found = match self.recover() {
                Ok(report) => return Ok((report, taken)),
                Err(OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found)))) => found,
                Err(error) => return Err(error),
            };
            let new = Quarantined::of(&found);
            let is_known = self
                .upkeep
                .quarantine
                .lock()
                .expect("held for a look")
                .iter()
                .any(|known| (known.module_id, known.procedure_number) == (new.module_id, new.procedure_number));
            // Known, and it diverges all the same: the log does not hold what it changed.
            if is_known || !names.contains(&new.name()) {
                return Err(OpenError::Recovery(RecoveryError::Replay(ReplayError::Diverged(found))));
            }
            let mut list = self.upkeep.quarantine.lock().expect("held for a push");
            list.push(new.clone());
            taken.push(new);
            drop(list);
            self.start_over()?;
        }
    }

    /// Makes the quarantine outlast this process. After a recovery that went through.
    pub fn keep_quarantine(&self) -> Result<(), OpenError> {
        let list = self.upkeep.quarantine.lock().expect("held for a look").clone();
        match &self.upkeep.folders {
            Some(folders) => Ok(quarantine::save(&*folders.root, &list)?),
            None => Ok(()),
        }
    }

    pub fn quarantine(&self) -> Vec<Quarantined> {
        self.upkeep.quarantine.lock().expect("held for a look").clone()
    }

    /// Settings hash of the newest part of the log as it was found, where it is not this program's.
    pub fn other_settings_hash(&self) -> Option<u64> {
        self.opened.as_ref().and_then(|opened| opened.other_settings_hash)
    }

    fn fail(&self, error: OpenError) -> OpenError {
        self.router.set_phase(Phase::Failed {
            report: error.to_string(),
        });
        error
    }

    fn let_calls_in(&self) -> Result<(), OpenError> {
        self.make_code_ready().map_err(|error| self.fail(error))?;
        let ready_bytes = self.upkeep.memory_ready.load(Ordering::Relaxed);
        let made = keep_memory_ready(ready_bytes);
        made.map_err(|error| self.fail(error.into()))?;
        self.shared.memory.tell(MemoryKind::Ready, ready_bytes);
        self.shared.count_binaries();
        // What was acknowledged is there: from now on the data grows as far as the limit lets it.
        self.shared.memory.enforce();
        for inbox in &self.inboxes {
            let begin = SiteMessage::Job(Box::new(Site::retain_undo));
            inbox
                .send(begin)
                .map_err(|_| RecoveryError::from(ReplayError::Stopped))?;
        }
        let quarantine = self.upkeep.quarantine.lock().expect("held for a look");
        let refused = quarantine.iter().map(|found| {
            let place = (ModuleId(found.module_id), found.procedure_number);
            (place, found.reason().into())
        });
        self.router.set_quarantine(refused.collect());
        drop(quarantine);
        self.router.set_phase(Phase::Ready);
        Ok(())
    }

    /// No call waits for a compiler: what is in service is ready, and what the log did not need either is not kept.
    fn make_code_ready(&self) -> Result<(), OpenError> {
        let deployed = self.shared.deployed.load();
        let modules: Vec<_> = deployed.current.values().collect();
        let codes: Vec<_> = modules.iter().map(|module| &*module.code).collect();
        make_ready(&codes, &*self.shared.threads).map_err(|(number, reason)| OpenError::Module {
            name: modules[number].name.clone(),
            reason,
        })?;
        self.compiler.let_go_unused_code();
        Ok(())
    }

    /// The bytes of a module version; none where it is out of service.
    pub fn module_bytes(&self, id: ModuleId) -> Option<Arc<[u8]>> {
        let binaries = self.shared.binaries.lock().expect("held for a look");
        binaries.get(id.0 as usize).cloned()
    }

    /// Lets the engine threads finish what they were given, writes it out and seals the log.
    pub fn close(&self) -> Result<(), LogError> {
        if let Some(backups) = self.upkeep.backups.get() {
            backups.stop();
        }
        self.router.stop();
        let sites = std::mem::take(&mut *self.sites.lock().expect("held to take"));
        for site in sites {
            site.join(); // a site that panics ends the process before this
        }
        if let Some(checkpointer) = &self.checkpointer {
            checkpointer.stop();
        }
        match &self.log {
            Some(log) => match log.close() {
                // It was told to take no writes, and took none.
                Err(LogError::Unavailable { .. }) if self.upkeep.is_read_only.load(Ordering::Acquire) => Ok(()),
                closed => closed,
            },
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
    Ok(())
}

struct OpenedLog {
    genesis: Genesis,
    log: Arc<Log<Box<CallBatch>>>,
    report: OpenReport,
    files: Checkpoints,
}

fn open_log(config: &DatabaseConfig, around: &Environment, memory: &Arc<MemoryLedger>) -> Result<OpenedLog, OpenError> {
    let folders = around.folders.as_ref();
    let folders = folders.ok_or_else(|| OpenError::Config("a log needs its folders".into()))?;
    let files = Checkpoints::new(folders.checkpoints.clone());
    let readable = readable(&files)?;
    let known = readable.last().map(|(_, genesis)| *genesis);
    let genesis = new_genesis(config, around)?;
    let key = (around.entropy)().map_err(OpenError::Entropy)?;
    let log_config = LogConfig {
        segment_bytes: config.segment_bytes,
        group_commit_delay: Duration::from_micros(config.group_commit_us),
        settings_hash: around.compiler.settings_hash(),
        semantics: SEMANTICS,
        replay_from: readable.iter().map(|(lsn, _)| *lsn).collect(),
        new_block_key: u32::from_le_bytes(*key.first_chunk().expect("16 bytes")),
        // Beside checkpoints an empty log would begin at a position that they have passed.
        expected_database_id: known.as_ref().map(|known| known.database_id),
        memory: memory.clone(),
        ..LogConfig::new(genesis.database_id)
    };
    let on_durable = Box::new(|end: Lsn, outcome: Result<(), &LogError>, batch: Box<CallBatch>| {
        complete(end, outcome.map_err(Unlogged::from), batch);
    });
    let (disk, clock) = (folders.log.clone(), around.clock.clone());
    let (log, report) = Log::open_on(disk, clock, around.threads.clone(), log_config, on_durable)?;
    let log = Arc::new(log);
    let genesis = match (log.start(), known) {
        (Lsn(0), _) => first_record(&log, genesis)?,
        (_, Some(known)) => known,
        (start, None) => {
            let reasons = reasons_against(&files)?;
            return Err(OpenError::NoCheckpoint { start, reasons });
        }
    };
    if genesis.partitions != config.partitions {
        return Err(OpenError::Partitions {
            stored: genesis.partitions,
            asked: config.partitions,
        });
    }
    files.clean()?;
    Ok(OpenedLog {
        genesis,
        log,
        report,
        files,
    })
}

/// The checkpoints whose descriptions can be read, the oldest first, with what each says of the database.
fn readable(files: &Checkpoints) -> Result<Vec<(Lsn, Genesis)>, OpenError> {
    let stored = files.list()?;
    let readable = stored.iter().filter_map(|lsn| files.open(*lsn).ok());
    Ok(readable
        .map(|reader| (reader.lsn(), reader.database().genesis))
        .collect())
}

fn reasons_against(files: &Checkpoints) -> Result<Vec<String>, OpenError> {
    let stored = files.list()?;
    let errors = stored.iter().filter_map(|lsn| files.open(*lsn).err());
    Ok(errors.map(|error| error.to_string()).collect())
}

fn first_record(log: &Log<Box<CallBatch>>, genesis: Genesis) -> Result<Genesis, OpenError> {
    match log.reader(log.start())?.next_record()? {
        Some(first) => match first.record {
            RecordRef::Genesis(stored) => Ok(stored),
            other => Err(OpenError::NoGenesis {
                lsn: first.lsn,
                kind: other.kind().name(),
            }),
        },
        // A new log, or one whose maker crashed before its first record was durable.
        None => write_genesis(
            log,
            Genesis {
                database_id: log.database_id(),
                ..genesis
            },
        ),
    }
}

/// Compiled code is kept under the database's secret: what another one, or nobody we know, has put there is never run.
fn keep_code(around: &Environment, genesis: &Genesis) {
    let words = genesis.secret.iter().flat_map(|word| word.to_le_bytes());
    let secret: Vec<u8> = words.chain(genesis.database_id).collect();
    if let Some(disk) = around.folders.as_ref().and_then(|folders| folders.code.clone()) {
        // A folder that can't be read costs the time to compile, and nothing else.
        let _ = around.compiler.keep_code(disk, &secret);
    }
}

fn new_genesis(config: &DatabaseConfig, around: &Environment) -> Result<Genesis, OpenError> {
    let id = (around.entropy)().map_err(OpenError::Entropy)?;
    let secret = (around.entropy)().map_err(OpenError::Entropy)?;
    let (low, high) = secret.split_at(8);
    Ok(Genesis {
        database_id: id,
        secret: [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("8 bytes"))),
        partitions: config.partitions,
        created_us: around.clock.now_us(),
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
    let reason = log
        .refusal()
        .unwrap_or_else(|| "its first record did not become durable".into());
    Err(OpenError::Config(format!("the log can't be written: {reason}")))
}

type Sites = (Vec<Sender<SiteMessage>>, Vec<Box<dyn Started>>);

fn shared(config: &DatabaseConfig, around: &Environment, secret: [u64; 2], memory: Arc<MemoryLedger>) -> Arc<Shared> {
    Arc::new(Shared {
        deployed: ArcSwap::default(),
        generation: AtomicU64::new(0),
        memory,
        clock: around.clock.clone(),
        threads: around.threads.clone(),
        secret,
        partitions_count: config.partitions,
        sites_count: config.sites,
        waiting: (0..config.partitions).map(|_| AtomicUsize::new(0)).collect(),
        multi_tick: AtomicU64::new(0),
        copying: AtomicUsize::new(0),
        binaries: Mutex::default(),
        lines: Arc::new(RecentLines::new()),
        notices: Default::default(),
        logging: Logging::new(config.log, config.redo.images, around.sampling),
        calls: Arc::default(),
        desk: Desk::new(config.partitions, config.sites),
        told: Told::new(config.partitions, config.sites),
    })
}

fn start_sites(
    config: &DatabaseConfig,
    shared: &Arc<Shared>,
    registry: &Registry,
    log: Option<&Log<Box<CallBatch>>>,
) -> Result<Sites, OpenError> {
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
        let around_threads = shared.threads.clone();
        let make = SiteWork::make(SiteId(id), shared, sink, recorder, inbox);
        let thread = around_threads.start(&format!("site-{id}"), make);
        inboxes.push(sender);
        threads.push(thread.map_err(OpenError::Thread)?);
    }
    Ok((inboxes, threads))
}
