//! The parts of an opening: the log with its genesis, the engine threads and what they share.

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use crossbeam_channel::Sender;
use reprise_backup::MANIFEST_NAME;
use reprise_base::{Lsn, MemoryLedger, Role, SiteId, hex};
use reprise_checkpoint::Checkpoints;
use reprise_env::{RealDisk, ThreadHandle};
use reprise_log::{DrainReport, Log, LogConfig, LogError, OpenReport, database_id};
use reprise_nvram::{MapRegions, OpenMemory, Region};
use reprise_observe::{RecentLines, Registry};
use reprise_partition::{
    AsyncSink, CallBatch, CommitGate, Coordinator, KeyClock, LogPolicy, LogRefusal, LogSettings, NoLog, NvramSink,
    PublishedStats, Shared, Sink, SiteMessage, SyncSink,
};
use reprise_upkeep::CheckpointConfig;
use reprise_wire::{Genesis, RecordBatch, RecordRef};

use crate::{
    config::{CommitMode, DatabaseConfig, DeviceConfig, NvramConfig},
    database::Database,
    device::{Device, NOTE_NAME, NvramInUse},
    environment::{Environment, Folders, SiteWork},
    error::OpenError,
    node_file::{DirectoryUse, NodeFile},
};

pub(crate) struct OpenedLog {
    pub genesis: Genesis,
    pub log: Arc<Log<Box<CallBatch>>>,
    pub report: OpenReport,
    /// Seconds of the check of the whole log.
    pub check_seconds: f64,
    pub files: Checkpoints,
    pub nvram: Option<NvramInUse>,
    pub drained: DrainReport,
    pub gate: Arc<CommitGate>,
}

pub(crate) fn open_log(
    config: &DatabaseConfig,
    around: &Environment,
    memory: &Arc<MemoryLedger>,
    role: Role,
    node: Option<&NodeFile>,
) -> Result<OpenedLog, OpenError> {
    let folders = around.folders.as_ref();
    let folders = folders.ok_or_else(|| OpenError::Config("a log needs its folders".into()))?;
    if role == Role::Standby {
        check_standby(folders)?;
    }
    let files = Checkpoints::new(folders.checkpoints.clone());
    let genesis = new_genesis(config, around)?;
    let (log_config, known) = log_config_of((config, around), &files, memory, (role, genesis.database_id))?;
    let log_config = LogConfig {
        writer: node.map_or(0, |node| node.own_epoch(0).writer()),
        ..log_config
    };
    let gate = Arc::new(CommitGate::default());
    let keeping = gate.clone();
    let on_durable = Box::new(move |end: Lsn, outcome: Result<(), &LogError>, batch: Box<CallBatch>| {
        keeping.complete(end, outcome.map_err(LogRefusal::from), batch);
    });
    // A database that is opened for reading alone gets no region. The region in use before stays as it is.
    let on_files = (role == Role::ReadOnly).then(|| DatabaseConfig {
        device: DeviceConfig::File,
        ..config.clone()
    });
    let device_config = on_files.as_ref().unwrap_or(config);
    let device = Device::begin(device_config, around, &folders.root, &*folders.log)?;
    let drained = device.drain(&log_config)?;
    let (disk, clock, threads) = (folders.log.clone(), around.clock.clone(), around.threads.clone());
    let begun = Instant::now();
    let (log, report) = Log::open_on(disk, clock, threads, log_config.clone(), on_durable)?;
    let check_seconds = begun.elapsed().as_secs_f64();
    let log = Arc::new(log);
    let genesis = match (log.start(), known) {
        (Lsn(0), _) => first_record(&log, genesis, role)?,
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
    let nvram = match role {
        Role::ReadOnly => device.check_recorded(log.filled()).map(|()| None)?,
        Role::Primary | Role::Standby => device.put_before(&log, &log_config)?,
    };
    Ok(OpenedLog {
        genesis,
        log,
        report,
        check_seconds,
        files,
        nvram,
        drained,
        gate,
    })
}

/// Returns the settings with which the log is opened, and the facts of the newest checkpoint about the database.
fn log_config_of(
    (config, around): (&DatabaseConfig, &Environment),
    files: &Checkpoints,
    memory: &Arc<MemoryLedger>,
    (role, new_id): (Role, [u8; 16]),
) -> Result<(LogConfig, Option<Genesis>), OpenError> {
    let known = newest_genesis(files)?;
    let key = (around.entropy)().map_err(OpenError::Entropy)?;
    let log_config = LogConfig {
        segment_bytes: config.segment_bytes,
        group_commit_delay: Duration::from_micros(config.batch_limits.group_delay_us),
        group_calls_max: config.batch_limits.group_calls_max,
        settings_hash: around.compiler.settings_hash(),
        new_block_key: u32::from_le_bytes(*key.first_chunk().expect("16 bytes")),
        // The log refuses an empty folder beside checkpoints: it would begin at a position that they have passed.
        expected_database_id: known.as_ref().map(|known| known.database_id),
        memory: memory.clone(),
        role,
        ..LogConfig::new(new_id)
    };
    Ok((log_config, known))
}

/// Copies the records of an NVRAM region to the log's files and releases the region. No process has the directory open. Afterwards all
/// records that a rewind compares with a primary, and cuts off, are in files. None: the directory names no region.
pub fn bring_home(config: &DatabaseConfig) -> Result<Option<DrainReport>, OpenError> {
    let Some(dir) = config.dir.as_deref() else {
        return Ok(None);
    };
    let (is_named, has_log) = (dir.join(NOTE_NAME).exists(), dir.join("log").exists());
    // This check precedes any new folder in the directory.
    if !is_named && (!has_log || config.device == DeviceConfig::File) {
        if let (DeviceConfig::Nvram(nvram), false) = (&config.device, has_log) {
            erase_own_region(dir, nvram)?;
        }
        return Ok(None);
    }
    if !has_log {
        return Err(OpenError::Config(format!(
            "{} says that an NVRAM region may hold records of a log which is not there. Bring the log back; `reprise standby reset {}` gives both \
             up, and the standby begins again",
            dir.join(NOTE_NAME).display(),
            dir.display()
        )));
    }
    let drained = bring_home_in(config, &Environment::real(config)?)?;
    Ok(is_named.then_some(drained))
}

/// Erases the region that this directory used last. Its log was taken away, so the records of the region are of no use.
fn erase_own_region(dir: &Path, nvram: &NvramConfig) -> Result<(), OpenError> {
    if !dir.exists() {
        return Ok(());
    }
    let node = NodeFile::open(Arc::new(RealDisk::open(dir)?))?;
    let Some(region_id) = node.document().region else {
        return Ok(());
    };
    // A later step reports a region that can't be opened.
    let Ok(memory) = MapRegions::default().open(&nvram.path, None) else {
        return Ok(());
    };
    let region = Region::open(memory.clone()).ok().flatten();
    if region.is_some_and(|region| hex(&region.owner().region_id) == region_id) {
        Region::erase(&*memory);
    }
    Ok(())
}

/// The [`bring_home`] variant for a directory in this environment.
pub fn bring_home_in(config: &DatabaseConfig, around: &Environment) -> Result<DrainReport, OpenError> {
    let folders = around.folders.as_ref();
    let folders = folders.ok_or_else(|| OpenError::Config("a log needs its folders".into()))?;
    let on_files = DatabaseConfig {
        device: DeviceConfig::File,
        ..config.clone()
    };
    let (files, memory) = (
        Checkpoints::new(folders.checkpoints.clone()),
        MemoryLedger::new(config.memory_max_bytes),
    );
    let (log_config, _) = log_config_of((config, around), &files, &memory, (Role::Standby, [0; 16]))?;
    let device = Device::begin(&on_files, around, &folders.root, &*folders.log)?;
    let next = match &config.device {
        DeviceConfig::File => None,
        DeviceConfig::Nvram(nvram) => Some(nvram),
    };
    device.bring_home(&folders.log, &log_config, next)
}

/// Refuses a directory that a standby can't begin with. It changes nothing.
fn check_standby(folders: &Folders) -> Result<(), OpenError> {
    match database_id(&*folders.log)? {
        Some(_) => Ok(()),
        None => Err(OpenError::NotBootstrapped(folders.root.describe())),
    }
}

/// Returns the genesis in the newest readable checkpoint. Err: a checkpoint comes from a program with other format numbers.
pub(crate) fn newest_genesis(files: &Checkpoints) -> Result<Option<Genesis>, OpenError> {
    let mut newest = None;
    for lsn in files.list()? {
        match files.open(lsn) {
            Ok(reader) => newest = Some(reader.database().genesis),
            Err(error) if error.is_foreign() => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(newest)
}

fn reasons_against(files: &Checkpoints) -> Result<Vec<String>, OpenError> {
    let stored = files.list()?;
    let errors = stored.iter().filter_map(|lsn| files.open(*lsn).err());
    Ok(errors.map(|error| error.to_string()).collect())
}

fn first_record(log: &Log<Box<CallBatch>>, genesis: Genesis, role: Role) -> Result<Genesis, OpenError> {
    match log.reader(log.start())?.next_record()? {
        Some(first) => first.record.genesis().ok_or_else(|| OpenError::NoGenesis {
            lsn: first.lsn,
            kind: first.record.facts().shown_as,
        }),
        None if role == Role::Standby => Err(OpenError::NotBootstrapped("its folder of the log".into())),
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

/// Keeps compiled code under the database's secret, so that code from another database or an attacker never runs.
pub(crate) fn keep_code(around: &Environment, genesis: &Genesis) {
    let words = genesis.secret.iter().flat_map(|word| word.to_le_bytes());
    let secret: Vec<u8> = words.chain(genesis.database_id).collect();
    if let Some(disk) = around.folders.as_ref().and_then(|folders| folders.code.clone()) {
        // A code folder that can't be read costs the time to compile, and nothing else.
        let _ = around.compiler.keep_code(disk, &secret);
    }
}

pub(crate) fn new_genesis(config: &DatabaseConfig, around: &Environment) -> Result<Genesis, OpenError> {
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
    let record = RecordBatch::of(&RecordRef::Genesis(genesis));
    let start = log.appender().append(&record, None).map_err(|(error, _)| error)?;
    let end = Lsn(start.0 + u64::from(record.count()));
    if log.wait_durable(end, GENESIS_WAIT) {
        return Ok(genesis);
    }
    let reason = log
        .refusal()
        .unwrap_or_else(|| "its first record did not become durable".into());
    Err(OpenError::Config(format!("the log can't be written: {reason}")))
}

/// Longest wait for the first record of a new log.
const GENESIS_WAIT: Duration = Duration::from_secs(60);

pub(crate) type Sites = (Vec<Sender<SiteMessage>>, Vec<Box<dyn ThreadHandle>>);

pub(crate) fn shared(
    config: &DatabaseConfig,
    around: &Environment,
    secret: [u64; 2],
    (memory, gate): (Arc<MemoryLedger>, Arc<CommitGate>),
) -> Arc<Shared> {
    Arc::new(Shared {
        deployed: ArcSwap::default(),
        generation: AtomicU64::new(0),
        memory,
        clock: around.clock.clone(),
        threads: around.threads.clone(),
        secret,
        partitions_count: config.partitions,
        sites_count: config.sites,
        waiting_max: config.batch_limits.waiting_max,
        waiting: (0..config.partitions).map(|_| AtomicUsize::new(0)).collect(),
        multi_tick: AtomicU64::new(0),
        replay_failed: Default::default(),
        copying: AtomicUsize::new(0),
        binaries: Mutex::default(),
        records_max: AtomicUsize::new(usize::MAX),
        lines: Arc::new(RecentLines::new()),
        notices: Default::default(),
        logging: LogSettings::new(config.log, config.redo.images, around.sampling).with_parts_of(around.part_bytes),
        calls: Arc::default(),
        coordinator: Coordinator::new(config.partitions, config.sites),
        gate,
        published: PublishedStats::new(config.partitions, config.sites),
        underway: Default::default(),
        key_clock: KeyClock::new(around.clock.clone()),
        principals: Default::default(),
    })
}

pub(crate) fn start_sites(
    config: &DatabaseConfig,
    shared: &Arc<Shared>,
    registry: &Registry,
    log: Option<&Log<Box<CallBatch>>>,
    role: Role,
) -> Result<Sites, OpenError> {
    let mut inboxes = Vec::new();
    let mut threads = Vec::new();
    for id in 0..config.sites {
        // Admission bounds the inbox: it counts the waiting messages of each partition before they are sent.
        let (sender, inbox) = crossbeam_channel::unbounded();
        // A standby's sites append nothing. They get their appenders when it is promoted.
        let nvram = log
            .filter(|_| role != Role::Standby)
            .and_then(|log| log.nvram_appender(usize::from(id)));
        let sink: Box<dyn Sink> = match (nvram, log, config.commit) {
            (Some(nvram), _, _) => Box::new(NvramSink::new(nvram, shared.gate.clone())),
            (None, None, _) => Box::new(NoLog),
            (None, Some(log), CommitMode::Sync) => Box::new(SyncSink(log.appender())),
            (None, Some(log), CommitMode::Async) => Box::new(AsyncSink(log.appender())),
        };
        let (shared, recorder) = (shared.clone(), registry.recorder());
        let around_threads = shared.threads.clone();
        let make = SiteWork::make(SiteId(id), shared, sink, recorder, inbox);
        let thread = around_threads.start_prompt(&format!("site-{id}"), make);
        inboxes.push(sender);
        threads.push(thread.map_err(OpenError::Thread)?);
    }
    Ok((inboxes, threads))
}

impl Database {
    /// Opens the directory's log (a new one begins with its genesis) and starts the engine threads. No call is taken
    /// before `recover`.
    ///
    /// # Errors
    /// Among others: the directory is a standby's, so another server may lead.
    pub fn open(config: DatabaseConfig) -> Result<Self, OpenError> {
        Self::open_changed(config, |_| {})
    }

    /// The `open` variant that also opens a standby's directory. `keep_lease` decides whether the server may lead. Without it, the server
    /// takes no calls, and the directory keeps its part in its cluster.
    pub fn open_any(config: DatabaseConfig) -> Result<Self, OpenError> {
        Self::open_real(config, DirectoryUse::AnyPrimary, |_| {})
    }

    /// The `open` variant for a recovery without a server: it replays the log, takes a checkpoint, and begins no epoch of a primary. All checkpoints
    /// and the whole log stay, because an archive or a standby may need them. The next server releases them by its own settings, so
    /// `config.checkpoints` has no effect.
    ///
    /// # Errors
    /// Among others: the directory is a standby's.
    pub fn open_to_recover(config: DatabaseConfig) -> Result<Self, OpenError> {
        let checkpoints = CheckpointConfig {
            keep: usize::MAX,
            ..CheckpointConfig::BY_HAND
        };
        let config = DatabaseConfig { checkpoints, ..config };
        Self::open_real(config, DirectoryUse::Recovery, |_| {})
    }

    /// The `open` variant for `recover_read_only`. It also opens the directory of a standby whose tables differed from its primary's.
    pub fn open_read_only(config: DatabaseConfig) -> Result<Self, OpenError> {
        Self::open_real(config, DirectoryUse::ReadOnly, |_| {})
    }

    /// The `open` variant in the system's environment as `change` leaves it.
    pub fn open_changed(config: DatabaseConfig, change: impl FnOnce(&mut Environment)) -> Result<Self, OpenError> {
        Self::open_real(config, DirectoryUse::Primary, change)
    }

    fn open_real(
        config: DatabaseConfig,
        part: DirectoryUse,
        change: impl FnOnce(&mut Environment),
    ) -> Result<Self, OpenError> {
        if config.log != LogPolicy::None && config.dir.is_none() {
            return Err(OpenError::Config("a log needs a data directory".into()));
        }
        Self::check_directory(&config)?;
        let mut environment = match part.role() {
            Role::ReadOnly => Environment::reading(&config)?,
            Role::Primary | Role::Standby => Environment::real(&config)?,
        };
        change(&mut environment);
        Self::open_as(config, environment, part)
    }

    pub(crate) fn check_directory(config: &DatabaseConfig) -> Result<(), OpenError> {
        match config.dir.as_ref().filter(|dir| dir.join(MANIFEST_NAME).exists()) {
            Some(dir) => Err(OpenError::IsBackup(dir.clone())),
            None => Ok(()),
        }
    }

    /// The `open` variant with this clock, these folders, threads and compiler. It does not use `config.dir`.
    pub fn open_in(config: DatabaseConfig, around: Environment) -> Result<Self, OpenError> {
        Self::open_as(config, around, DirectoryUse::Primary)
    }

    /// The `open_any` variant in the environment `around`. It does not use `config.dir`.
    pub fn open_any_in(config: DatabaseConfig, around: Environment) -> Result<Self, OpenError> {
        Self::open_as(config, around, DirectoryUse::AnyPrimary)
    }
}
