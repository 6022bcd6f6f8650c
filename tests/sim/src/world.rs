//! One life of the process: a database on a simulated disk, clock and threads.

use std::sync::{Arc, Mutex, atomic::AtomicU64};

use reprise_base::Role;
use reprise_database::{
    AfterImage, BatchLimits, CheckpointConfig, CommitMode, Database, DatabaseConfig, DeviceConfig, Environment,
    FlushPolicy, LogPolicy, NvramConfig, OpenError, RecoverFrom, RecoveryReport, RedoConfig, SampleRate, bring_home_in,
};
use reprise_env::{SimClock, SimDisk, Stepper, Threads};
use reprise_router::{BatchBuilder, BatchReply, CallKey, Router, call_hash};
use reprise_upkeep::Checkpointer;

use crate::{
    module::{NAME, NativeCompiler, Way},
    region::{REGION_BYTES, SimRegions, region_path},
    tree::{SimTree, entropy, folders},
};

/// The settings that every life of one database shares.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub partitions: u16,
    pub segment_bytes: u64,
    pub keep: usize,
    /// Bytes of log after which the database takes a checkpoint by itself; 0: it takes none.
    pub checkpoint_bytes: u64,
    pub commit: CommitMode,
    /// NVRAM before the log's files, in a region of this number; each life may have others.
    pub nvram: Option<u64>,
    pub flush: FlushPolicy,
    /// How its procedures run.
    pub way: Way,
    /// Each life may have others.
    pub log: LogPolicy,
    pub redo: RedoConfig,
    pub sampling: SampleRate,
    /// Changes of a transaction that take more bytes are logged in parts.
    pub part_bytes: usize,
    /// True if a procedure goes into quarantine when its replay diverges.
    pub quarantines: bool,
}

impl Settings {
    fn device(&self) -> DeviceConfig {
        match self.nvram {
            None => DeviceConfig::File,
            Some(number) => DeviceConfig::Nvram(NvramConfig {
                path: region_path(number),
                bytes: Some(REGION_BYTES),
                copy_at_entries: 40,
                flush: self.flush,
                assume_persistent: false,
            }),
        }
    }
}

/// One of the redo settings, by a source of numbers below a bound.
pub fn any_redo(mut below: impl FnMut(u64) -> u64) -> RedoConfig {
    RedoConfig {
        images: match below(2) {
            0 => AfterImage::Changed,
            _ => AfterImage::Whole,
        },
        from: match below(2) {
            0 => RecoverFrom::Command,
            _ => RecoverFrom::Changes,
        },
    }
}

/// A reply, for these attempts, with the operations that the disk had done when it came.
pub struct Arrived<A> {
    pub attempts: Vec<A>,
    pub reply: BatchReply,
    pub ops: usize,
}

pub struct World<A> {
    pub disk: SimDisk,
    pub clock: Arc<SimClock>,
    pub stepper: Stepper,
    /// Microseconds that each call takes.
    pub pace_us: Arc<AtomicU64>,
    database: Option<Database>,
    arrived: Arc<Mutex<Vec<Arrived<A>>>>,
}

/// Opening ended otherwise than with a database that serves.
pub enum Refused {
    Open(OpenError),
    Recover(OpenError),
}

impl Refused {
    pub fn text(&self) -> String {
        match self {
            Self::Open(error) => format!("open: {error}"),
            Self::Recover(error) => format!("recover: {error}"),
        }
    }
}

impl<A: Send + Sync + 'static> World<A> {
    /// Opens the database of `disk` in this role, and replays its log.
    pub fn open(
        disk: &SimDisk,
        (settings, role): (Settings, Role),
        sites: u16,
        now_us: i64,
        seed: u64,
    ) -> Result<(Self, RecoveryReport), Refused> {
        let clock = Arc::new(SimClock::at_us(now_us));
        let stepper = Stepper::new(seed, clock.clone());
        let pace_us = Arc::new(AtomicU64::new(0));
        let opened = open(disk, (settings, role), sites, (&clock, &pace_us), &stepper, seed);
        let (database, report) = match opened {
            Ok(opened) => opened,
            Err(refused) => {
                stepper.kill();
                stepper.forget();
                return Err(refused);
            }
        };
        let world = Self {
            disk: disk.clone(),
            clock,
            stepper,
            pace_us,
            database: Some(database),
            arrived: Arc::default(),
        };
        Ok((world, report))
    }

    pub fn database(&self) -> &Database {
        self.database.as_ref().expect("taken at the end")
    }

    pub fn router(&self) -> &Router {
        self.database().router()
    }

    pub fn checkpointer(&self) -> &Checkpointer {
        self.database().checkpointer().expect("each life has a log")
    }

    /// Sends calls of the module in service: (procedure, key, encoded arguments).
    pub fn submit(&self, calls: &[(&str, Option<&str>, Vec<u8>)], attempts: Vec<A>) {
        let deployed = self.router().deployed();
        let module = &deployed.current[NAME];
        let mut batch = BatchBuilder::new(deployed.clone(), self.router());
        for (procedure, key, args) in calls {
            let (number, _) = module.procedure(procedure).expect("one of the module's");
            let encode = |out: &mut Vec<u8>| {
                out.extend_from_slice(args);
                Ok::<(), ()>(())
            };
            let key = key.map(|key| CallKey {
                key,
                fingerprint: call_hash(NAME, procedure, args),
            });
            batch.push(module, number, key, encode).expect("encoded");
        }
        let (arrived, disk) = (self.arrived.clone(), self.disk.clone());
        let done = Box::new(move |reply| {
            let ops = disk.ops_count();
            arrived
                .lock()
                .expect("one thread")
                .push(Arrived { attempts, reply, ops });
        });
        self.router().submit(batch, done);
    }

    pub fn take_arrived(&self) -> Vec<Arrived<A>> {
        std::mem::take(&mut *self.arrived.lock().expect("one thread"))
    }

    pub fn is_log_stopped(&self) -> bool {
        self.router().status().log_error.is_some()
    }

    /// Ends this life in order; what became of the log.
    pub fn close(&mut self) -> Result<(), String> {
        let closed = self.database().close().map_err(|error| error.to_string());
        self.end();
        closed
    }

    fn end(&mut self) {
        self.database = None;
        self.stepper.kill();
        self.stepper.forget();
    }
}

impl<A> Drop for World<A> {
    fn drop(&mut self) {
        if self.database.take().is_some() {
            self.stepper.kill();
            self.stepper.forget();
        }
    }
}

fn open(
    disk: &SimDisk,
    (settings, role): (Settings, Role),
    sites: u16,
    (clock, pace_us): (&Arc<SimClock>, &Arc<AtomicU64>),
    stepper: &Stepper,
    seed: u64,
) -> Result<(Database, RecoveryReport), Refused> {
    let (config, around) = surroundings(disk, settings, sites, (clock, pace_us), stepper, seed);
    let opened = match role {
        Role::Standby => Database::open_standby_in(config, around),
        Role::Primary | Role::ReadOnly => Database::open_in(config, around),
    };
    let database = opened.map_err(Refused::Open)?;
    database.serve_backups(Arc::new(SimTree::new(disk)), u64::MAX);
    let recovered = match settings.quarantines {
        false => database.recover(),
        true => database
            .recover_with_quarantine(&[format!("{NAME}.add")])
            .map(|(report, _)| report),
    };
    Ok((database, recovered.map_err(Refused::Recover)?))
}

/// Brings the records of a region on this disk to the log's files, before those are compared with a primary's.
pub fn bring_home(disk: &SimDisk, settings: Settings, now_us: i64, seed: u64) -> Result<(), String> {
    let clock = Arc::new(SimClock::at_us(now_us));
    let stepper = Stepper::new(seed, clock.clone());
    let (config, around) = surroundings(disk, settings, 1, (&clock, &Arc::default()), &stepper, seed);
    let home = bring_home_in(&config, &around);
    stepper.kill();
    stepper.forget();
    home.map(drop).map_err(|error| format!("bring home: {error}"))
}

/// Returns the environment that a database is opened with.
fn surroundings(
    disk: &SimDisk,
    settings: Settings,
    sites: u16,
    (clock, pace_us): (&Arc<SimClock>, &Arc<AtomicU64>),
    stepper: &Stepper,
    seed: u64,
) -> (DatabaseConfig, Environment) {
    let threads: Arc<dyn Threads> = Arc::new(stepper.clone());
    let around = Environment {
        clock: clock.clone(),
        threads,
        folders: Some(folders(disk)),
        nvram: Arc::new(SimRegions(disk.clone())),
        compiler: Arc::new(NativeCompiler {
            way: settings.way,
            clock: clock.clone(),
            pace_us: pace_us.clone(),
        }),
        sampling: settings.sampling,
        part_bytes: settings.part_bytes,
        redo_window_bytes: 1 << 10,
        file_part_bytes: 1 << 10,
        entropy: entropy(seed ^ 0x1d),
    };
    let config = DatabaseConfig {
        dir: None,
        partitions: settings.partitions,
        sites,
        log: settings.log,
        redo: settings.redo,
        device: settings.device(),
        commit: settings.commit,
        batch_limits: BatchLimits::default(),
        segment_bytes: settings.segment_bytes,
        checkpoints: CheckpointConfig {
            keep: settings.keep,
            log_bytes: settings.checkpoint_bytes,
            ..CheckpointConfig::BY_HAND
        },
        memory_max_bytes: u64::MAX,
    };
    (config, around)
}
