//! The device that the log is written to first: its files, or the rings of an NVRAM region before them. A file in the data directory names
//! the region that may hold records which the log's files lack. Each opening copies them to the files, whatever its own device is.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use reprise_abi::SEMANTICS;
use reprise_base::{Lsn, Role, hex};
use reprise_env::{Disk, DiskError, DiskErrorKind};
use reprise_log::{
    DrainReport, EpochStart, Log, LogConfig, LogError, LogOutline, NvramBufferConfig, NvramBufferStatus, database_id,
};
use reprise_nvram::{
    ENTRIES_MAX, ENTRIES_MIN, Geometry, Memory, Owner, PmemError, RecoveredRecord, Region, RegionContents, RegionError,
};
use reprise_partition::CallBatch;
use reprise_router::NvramDevice;
use reprise_wire::FORMAT_VERSION;
use serde::{Deserialize, Serialize};

use crate::{
    config::{DatabaseConfig, DeviceConfig, NvramConfig},
    environment::Environment,
    error::{DeviceError, OpenError},
    small_file,
};

/// The file that names the region in use.
pub(crate) const NOTE_NAME: &str = "nvram.json";
/// Divisor of a ring's bytes that its entries take at most.
const ENTRIES_PART: u64 = 8;

/// Names the region that may hold records which the files do not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionNote {
    pub path: PathBuf,
    /// Id of the region that was made for this database: 32 hexadecimal digits.
    pub region_id: String,
}

impl RegionNote {
    /// Reads the note of the data directory. None: its files have all records.
    pub fn load(root: &dyn Disk) -> Result<Option<Self>, DiskError> {
        let Some(bytes) = small_file::read(root, NOTE_NAME)? else {
            return Ok(None);
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            let reason = format!("{error}. It names the NVRAM region in use: restore the file from a copy");
            let path = format!("{}/{NOTE_NAME}", root.describe());
            DiskError::new("read", &path, DiskErrorKind::Io, &reason)
        })
    }

    fn save(&self, root: &dyn Disk) -> Result<(), DiskError> {
        let unfit =
            |error: serde_json::Error| DiskError::new("write", NOTE_NAME, DiskErrorKind::Io, &error.to_string());
        small_file::replace(root, NOTE_NAME, &serde_json::to_vec(self).map_err(unfit)?)
    }

    /// True if the note names this region.
    pub fn is_of(&self, owner: &Owner) -> bool {
        self.region_id == hex(&owner.region_id)
    }

    /// Removes the note. The region's records are in the files, or are given up.
    pub fn remove(root: &dyn Disk) -> Result<(), DiskError> {
        small_file::remove(root, NOTE_NAME)?;
        root.sync_dir()
    }
}

/// A mapped region.
struct MappedRegion {
    path: PathBuf,
    memory: Arc<dyn Memory>,
    region: Option<Region>,
}

impl MappedRegion {
    fn open(around: &Environment, path: &Path, bytes: Option<u64>) -> Result<Self, DeviceError> {
        let memory = around.nvram.open(path, bytes)?;
        let region = Region::open(memory.clone()).map_err(|error| DeviceError::Region {
            path: path.to_owned(),
            error,
        })?;
        Ok(Self {
            path: path.to_owned(),
            memory,
            region,
        })
    }

    fn recover(&self) -> Result<RegionContents, DeviceError> {
        let recovered = self
            .region
            .as_ref()
            .map_or_else(|| Ok(RegionContents::default()), Region::recover);
        recovered.map_err(|error| DeviceError::Region {
            path: self.path.clone(),
            error,
        })
    }
}

/// The regions of an opening.
pub(crate) struct Device<'a> {
    around: &'a Environment,
    root: Arc<dyn Disk>,
    config: Option<&'a NvramConfig>,
    sites: u32,
    /// The region that the data directory names. It may hold records that the files do not have.
    recorded: Option<MappedRegion>,
    /// The region that this opening will use, if it is another one.
    other: Option<MappedRegion>,
}

/// The region in use, from an opening to the end.
pub(crate) struct NvramInUse {
    root: Arc<dyn Disk>,
    config: NvramConfig,
    memory: Arc<dyn Memory>,
    /// True once the database was closed. Another opening may use the region from then on.
    is_over: AtomicBool,
}

impl NvramInUse {
    /// Returns the id of the region.
    pub fn region_id(&self) -> Result<Option<String>, DiskError> {
        Ok(RegionNote::load(&*self.root)?.map(|note| note.region_id))
    }
}

impl<'a> Device<'a> {
    /// Maps the regions and checks them. It changes nothing.
    pub fn begin(
        config: &'a DatabaseConfig,
        around: &'a Environment,
        root: &Arc<dyn Disk>,
        log: &dyn Disk,
    ) -> Result<Self, OpenError> {
        let nvram = match &config.device {
            DeviceConfig::File => None,
            DeviceConfig::Nvram(nvram) => Some(nvram),
        };
        let mut device = Self {
            around,
            root: root.clone(),
            config: nvram,
            sites: u32::from(config.sites),
            recorded: None,
            other: None,
        };
        if let Some(note) = RegionNote::load(&**root)? {
            device.recorded = Some(device.open_recorded(&note)?);
        }
        if let Some(nvram) = nvram {
            if device.recorded.as_ref().is_none_or(|noted| noted.path != nvram.path) {
                device.other = Some(device.open_other(nvram, database_id(log)?)?);
            }
            let memory = &device.chosen().expect("opened above").memory;
            geometry(memory.bytes() as u64, device.sites, nvram.copy_at_entries).map_err(|error| {
                DeviceError::Region {
                    path: nvram.path.clone(),
                    error,
                }
            })?;
        }
        Ok(device)
    }

    fn open_recorded(&self, note: &RegionNote) -> Result<MappedRegion, DeviceError> {
        let chosen = self.config.filter(|nvram| nvram.path == note.path);
        let lost = |reason: String| DeviceError::Lost {
            path: note.path.clone(),
            reason,
            note: format!("{}/{NOTE_NAME}", self.root.describe()),
        };
        let mapped = match MappedRegion::open(self.around, &note.path, chosen.and_then(|nvram| nvram.bytes)) {
            Ok(mapped) => mapped,
            Err(error @ DeviceError::Memory(PmemError::Size { .. } | PmemError::Used { .. })) => return Err(error),
            Err(error) => return Err(lost(error.to_string())),
        };
        let found = mapped.region.as_ref().map(|region| hex(&region.owner().region_id));
        match found {
            Some(id) if id == note.region_id => Ok(mapped),
            Some(_) => Err(lost(
                "it is not the region that was in use, or an older copy of it".into(),
            )),
            None => Err(lost("it is blank".into())),
        }
    }

    fn open_other(&self, nvram: &NvramConfig, known: Option<[u8; 16]>) -> Result<MappedRegion, DeviceError> {
        let mapped = MappedRegion::open(self.around, &nvram.path, nvram.bytes)?;
        let owner = mapped.region.as_ref().map(|region| region.owner().database_id);
        match owner {
            Some(found) if Some(found) != known => Err(DeviceError::OtherDatabase {
                path: nvram.path.clone(),
                found: hex(&found),
            }),
            _ => Ok(mapped),
        }
    }

    fn chosen(&self) -> Option<&MappedRegion> {
        self.config.and(self.other.as_ref().or(self.recorded.as_ref()))
    }

    /// Copies the records of the region in use to the log's files. `log_config` says how they are opened. The files keep the program and
    /// the epoch of each record: those of a primary, or of the records that a standby received. After a crash in the middle, the next
    /// opening copies the rest.
    pub fn drain(&self, log_config: &LogConfig) -> Result<DrainReport, OpenError> {
        let Some(noted) = &self.recorded else {
            return Ok(DrainReport::default());
        };
        let recovered = noted.recover()?;
        let Some(region) = &noted.region else {
            return Ok(DrainReport::default());
        };
        let owner = region.owner();
        let numbers = [
            ("format version", owner.format, FORMAT_VERSION),
            ("semantics number", owner.semantics, SEMANTICS),
        ];
        if let Some((what, found, expected)) = numbers.into_iter().find(|(_, found, expected)| found != expected) {
            let path = noted.path.clone();
            return Err(DeviceError::Foreign {
                path,
                what,
                found,
                expected,
            }
            .into());
        }
        if recovered.records.is_empty() {
            return Ok(DrainReport::default());
        }
        let log_config = LogConfig {
            settings_hash: owner.settings_hash,
            expected_database_id: Some(owner.database_id),
            role: Role::Standby,
            ..log_config.clone()
        };
        let folders = self.around.folders.as_ref().expect("a log has its folders");
        let (disk, clock, threads) = (&folders.log, &self.around.clock, &self.around.threads);
        let no_callback = Box::new(|_, _: Result<(), &LogError>, _: Box<CallBatch>| {});
        let (log, _) = Log::open_on(disk.clone(), clock.clone(), threads.clone(), log_config, no_callback)?;
        let drained = log.drain(&recovered)?;
        log.close()?;
        Ok(drained)
    }

    /// Releases the region that the data directory names, before anything is opened. The files have all its records by then.
    ///
    /// `next` is the region that comes next. If the note does not name it and the files have all its records, this function makes it blank
    /// too. A process that died during the release left such a region. Records that are cut off the files must not stay there.
    pub fn bring_home(
        self,
        log: &Arc<dyn Disk>,
        log_config: &LogConfig,
        next: Option<&NvramConfig>,
    ) -> Result<DrainReport, OpenError> {
        let drained = self.drain(log_config)?;
        let outline = LogOutline::of(log)?;
        let (end, epochs) = outline.map_or_else(Default::default, |outline| (outline.end.lsn, outline.epochs()));
        self.check_recorded(end)?;
        self.release_region()?;
        let is_named = |next: &&NvramConfig| self.recorded.as_ref().is_some_and(|noted| noted.path == next.path);
        if let Some(next) = next.filter(|next| !is_named(next)) {
            self.blank(next, database_id(&**log)?, (end, &epochs));
        }
        Ok(drained)
    }

    /// Erases a region of this database if the files, which end at `end`, have all of its records. The opening checks a region that this
    /// function can't read.
    fn blank(&self, next: &NvramConfig, known: Option<[u8; 16]>, (end, epochs): (Lsn, &[EpochStart])) {
        // This call makes no region: it only opens one that exists.
        let Ok(mapped) = MappedRegion::open(self.around, &next.path, None) else {
            return;
        };
        let is_ours = mapped
            .region
            .as_ref()
            .is_some_and(|region| Some(region.owner().database_id) == known);
        let has_all = |recovered: RegionContents| records_beside(&recovered, end, epochs) == 0;
        if is_ours && mapped.recover().is_ok_and(has_all) {
            Region::erase(&*mapped.memory);
        }
    }

    /// Formats the chosen region and puts it before the files of a log that has all records. It releases any other region.
    pub fn put_before(self, log: &Log<Box<CallBatch>>, config: &LogConfig) -> Result<Option<NvramInUse>, OpenError> {
        self.check_recorded(log.filled())?;
        self.check_other(log)?;
        self.release_region()?;
        let (Some(nvram), Some(chosen)) = (self.config, self.chosen()) else {
            return Ok(None);
        };
        let memory = chosen.memory.clone();
        let region_id = (self.around.entropy)().map_err(OpenError::Entropy)?;
        let owner = Owner {
            database_id: log.database_id(),
            region_id,
            settings_hash: config.settings_hash,
            semantics: SEMANTICS,
            format: FORMAT_VERSION,
        };
        let unfit = |error| DeviceError::Region {
            path: nvram.path.clone(),
            error,
        };
        let geometry = geometry(memory.bytes() as u64, self.sites, nvram.copy_at_entries).map_err(unfit)?;
        let begins = (log.epoch(), log.filled());
        let region = Region::format(memory.clone(), owner, geometry.rings, geometry.entries, begins).map_err(unfit)?;
        let note = RegionNote {
            path: nvram.path.clone(),
            region_id: hex(&region_id),
        };
        note.save(&*self.root)?;
        let front = NvramBufferConfig {
            copy_at_entries: nvram.copy_at_entries,
            flush: nvram.flush,
        };
        log.attach_nvram(region, front)?;
        Ok(Some(NvramInUse {
            root: self.root,
            config: nvram.clone(),
            memory,
            is_over: AtomicBool::new(false),
        }))
    }

    /// Releases the region that the data directory names, once the files have all its records. After that, no note is there, and none comes
    /// back after a power failure. Any process may then overwrite the region.
    fn release_region(&self) -> Result<(), DiskError> {
        match &self.recorded {
            // The note goes first, so an erased region never has records that the files lack.
            Some(noted) => {
                RegionNote::remove(&*self.root)?;
                Region::erase(&*noted.memory);
                Ok(())
            }
            // A process may have died between the removal of the note and the sync of the directory.
            None => self.root.sync_dir(),
        }
    }

    /// Checks that the files, which end at `end`, have all records that were copied to them.
    pub fn check_recorded(&self, end: Lsn) -> Result<(), DeviceError> {
        let Some(noted) = &self.recorded else {
            return Ok(());
        };
        let copied = noted.recover()?.copied;
        match end < copied {
            false => Ok(()),
            true => Err(DeviceError::LogLost {
                path: noted.path.clone(),
                copied,
                end,
            }),
        }
    }

    /// Checks that a region which the data directory does not name holds no new records.
    fn check_other(&self, log: &Log<Box<CallBatch>>) -> Result<(), DeviceError> {
        let Some(other) = &self.other else {
            return Ok(());
        };
        let recovered = other.recover()?;
        match records_beside(&recovered, log.filled(), &log.epochs()) {
            0 => Ok(()),
            records => Err(DeviceError::NotOurs {
                path: other.path.clone(),
                records,
            }),
        }
    }
}

impl NvramInUse {
    pub fn describe(&self) -> NvramDevice {
        let persistence = self.memory.persistence();
        NvramDevice {
            path: self.config.path.clone(),
            bytes: self.memory.bytes() as u64,
            persistence: persistence.name(),
            warning: persistence.warning(),
            flush: self.config.flush.name(),
            copy_at_entries: self.config.copy_at_entries,
        }
    }

    /// Releases the region when the log is closed, in order (`is_closed`) or not. If the files have all its records, it makes the region
    /// blank. Further calls do nothing.
    pub fn release(&self, status: &NvramBufferStatus, is_closed: bool) -> Result<(), DiskError> {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let has_all = is_closed && status.records_waiting == 0;
        let forgotten = match has_all {
            true => RegionNote::remove(&*self.root),
            false => Ok(()),
        };
        if has_all && forgotten.is_ok() {
            Region::erase(&*self.memory);
        }
        self.memory.release();
        forgotten
    }
}

/// Returns the number of a region's records that the files, which end at `end`, do not have. Such a record lies behind that end, or the
/// files have a record of another epoch at its LSN. If the files no longer name the epoch at an LSN, the numbers alone count.
fn records_beside(recovered: &RegionContents, end: Lsn, epochs: &[EpochStart]) -> u64 {
    let is_other = |lsn: Lsn| {
        let epoch = epochs.iter().rfind(|epoch| epoch.start <= lsn);
        epoch.is_some_and(|found| found.epoch != recovered.epoch)
    };
    let is_beside = |record: &&RecoveredRecord| record.end() > end || is_other(record.lsn);
    let beside = recovered.records.iter().filter(is_beside);
    beside.map(|record| u64::from(record.count)).sum()
}

/// Returns how a region is divided among the sites.
fn geometry(bytes: u64, sites: u32, copy_at_entries: u64) -> Result<Geometry, RegionError> {
    let wanted = 2 * copy_at_entries / u64::from(sites);
    let there_is = bytes / u64::from(sites) / ENTRIES_PART / size_of::<u64>() as u64;
    let entries = wanted.min(there_is).clamp(ENTRIES_MIN.into(), ENTRIES_MAX.into()) as u32;
    Geometry::new(bytes, sites, entries).ok_or(RegionError::TooSmall {
        found: bytes,
        rings: sites,
        entries,
    })
}
