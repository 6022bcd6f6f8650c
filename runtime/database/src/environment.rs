//! The environment of a database: its clock, folders and threads, and the compiler of modules.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use crossbeam_channel::Receiver;
use reprise_base::{SiteId, limits::PART_BYTES};
use reprise_env::{
    Clock, Disk, DiskError, MakeWork, OverlayDisk, RealClock, RealDisk, RealThreads, Step, Threads, Work, entropy,
};
use reprise_host::{Engine, Limits};
use reprise_nvram::{MapRegions, OpenMemory};
use reprise_observe::Recorder;
use reprise_partition::{ExecContext, LogPolicy, SampleRate, Shared, Sink, Site, SiteMessage};
use reprise_replay::WINDOW_BYTES;
use reprise_txn::Compiler;
use reprise_wire::FILE_CHUNK_BYTES_MAX;

use crate::{
    config::{DatabaseConfig, DeviceConfig},
    error::OpenError,
};

/// The folders of a database's files.
pub struct Folders {
    /// Folder of the directory itself.
    pub root: Arc<dyn Disk>,
    pub log: Arc<dyn Disk>,
    pub checkpoints: Arc<dyn Disk>,
    /// Folder of compiled code, which only saves time. None: no code is kept.
    pub code: Option<Arc<dyn Disk>>,
}

/// See the module's header.
pub struct Environment {
    pub clock: Arc<dyn Clock>,
    pub threads: Arc<dyn Threads>,
    /// None without a log.
    pub folders: Option<Folders>,
    /// The source of NVRAM.
    pub nvram: Arc<dyn OpenMemory>,
    pub compiler: Arc<dyn Compiler>,
    /// The sampling of `LogMode::Auto`.
    pub sampling: SampleRate,
    /// Changes of a transaction that take more bytes are logged in parts of this many bytes, or of one change.
    pub part_bytes: usize,
    /// Bytes of log that are read and handed to the engine threads at once when it is opened.
    pub redo_window_bytes: usize,
    /// Bytes of a part in which a standby gets its first files.
    pub file_part_bytes: usize,
    /// Source of random bytes for the identity and the secret of a new database.
    pub entropy: Box<dyn Fn() -> std::io::Result<[u8; 16]>>,
}

impl Folders {
    /// Opens the files in a directory, and makes files that are missing.
    fn create(dir: &Path) -> Result<Self, DiskError> {
        Ok(Self {
            root: Arc::new(RealDisk::create(dir)?),
            log: Arc::new(RealDisk::create(dir.join("log"))?),
            checkpoints: Arc::new(RealDisk::create(dir.join("checkpoints"))?),
            // A missing code folder is no reason to fail an opening: without it, no code is kept.
            code: RealDisk::create(dir.join("code"))
                .ok()
                .map(|disk| Arc::new(disk) as Arc<dyn Disk>),
        })
    }

    /// Opens the files in a directory to read them alone: no file changes, even if the file system could be written.
    fn read(dir: &Path) -> Result<Self, DiskError> {
        let open = |folder: PathBuf| -> Result<Arc<dyn Disk>, DiskError> {
            Ok(Arc::new(OverlayDisk::new(Arc::new(RealDisk::open(folder)?))))
        };
        Ok(Self {
            root: open(dir.to_owned())?,
            log: open(dir.join("log"))?,
            checkpoints: open(dir.join("checkpoints"))?,
            code: open(dir.join("code")).ok(),
        })
    }
}

impl Environment {
    /// Makes the environment with the system's clock, folders and threads, and the wasm compiler.
    pub fn real(config: &DatabaseConfig) -> Result<Self, OpenError> {
        Self::over(config, Folders::create)
    }

    /// The `real` variant that writes nothing in the directory.
    pub fn reading(config: &DatabaseConfig) -> Result<Self, OpenError> {
        Self::over(config, Folders::read)
    }

    fn over(
        config: &DatabaseConfig,
        folders_of: impl Fn(&Path) -> Result<Folders, DiskError>,
    ) -> Result<Self, OpenError> {
        let dir = config.dir.as_deref().filter(|_| config.log != LogPolicy::None);
        let folders = dir.map(folders_of).transpose()?;
        let assume_persistent = matches!(&config.device, DeviceConfig::Nvram(nvram) if nvram.assume_persistent);
        Ok(Self {
            clock: Arc::new(RealClock::new()),
            threads: Arc::new(RealThreads),
            folders,
            nvram: Arc::new(MapRegions { assume_persistent }),
            compiler: Arc::new(Engine::new(Limits::default())),
            sampling: SampleRate::default(),
            part_bytes: PART_BYTES,
            redo_window_bytes: WINDOW_BYTES,
            file_part_bytes: FILE_CHUNK_BYTES_MAX,
            entropy: Box::new(entropy),
        })
    }
}

/// An engine thread's work.
pub(crate) struct SiteWork(Site);

impl SiteWork {
    /// Makes a site on its own thread, because code that it instantiated stays there.
    pub fn make(
        id: SiteId,
        shared: Arc<Shared>,
        sink: Box<dyn Sink>,
        recorder: Recorder,
        inbox: Receiver<SiteMessage>,
    ) -> MakeWork {
        Box::new(move || {
            let tools = ExecContext::new(shared, sink, recorder);
            Box::new(Self(Site::new(id, tools, inbox)))
        })
    }
}

impl Work for SiteWork {
    fn run(self: Box<Self>) {
        let serve = AssertUnwindSafe(|| self.0.run());
        if catch_unwind(serve).is_err() {
            // An invariant is broken, so the process must not acknowledge one more byte. The panic has printed its message already.
            std::process::abort();
        }
    }

    fn step(&mut self) -> Step {
        self.0.step_lending()
    }
}
