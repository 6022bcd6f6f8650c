//! The configuration that a database is opened with.

use std::path::PathBuf;

use reprise_base::{
    limits::{PARTITIONS_MAX, SITES_MAX, WAITING_TXNS_MAX},
    named_enum,
};
use reprise_nvram::{FlushPolicy, RINGS_MAX};
use reprise_partition::LogPolicy;
use reprise_replay::RecoverFrom;
use reprise_storage::AfterImage;
use reprise_upkeep::CheckpointConfig;

use crate::error::OpenError;

/// Entries in all rings together at which the copy to the files begins (NV-Logging, section 4.4).
pub const COPY_AT_ENTRIES_DEFAULT: u64 = 80_000;

/// The form in which changes are logged, and the record that recovery uses if there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RedoConfig {
    /// The part of an updated row that the log keeps.
    pub images: AfterImage,
    pub from: RecoverFrom,
}

named_enum! {
    /// When a transaction is acknowledged.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CommitMode {
        /// A transaction is acknowledged once its record is durable.
        Sync => "sync",
        /// A transaction is acknowledged once it has run. A crash may take back the last transactions.
        Async => "async",
    }
}

#[derive(Clone, Debug)]
pub struct DatabaseConfig {
    /// The data directory, with the log in its folder `log`. None with `LogMode::None` alone.
    pub dir: Option<PathBuf>,
    /// Number of partitions, fixed when the database is made.
    pub partitions: u16,
    /// Engine threads.
    pub sites: u16,
    /// The rule for procedures that declare no form. A declared form overrides it, unless it is `Both` or `None`.
    pub log: LogPolicy,
    pub redo: RedoConfig,
    /// The device that the log is written to first.
    pub device: DeviceConfig,
    pub commit: CommitMode,
    pub batch_limits: BatchLimits,
    pub segment_bytes: u64,
    pub checkpoints: CheckpointConfig,
    /// Limit of all memory that the server counts; `u64::MAX`: no limit.
    pub memory_max_bytes: u64,
}

/// Bounds of the calls that wait: for their partition, and for other calls of their group of commits (command logging, section V).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Time for which a group of commits may grow before it is written, in microseconds. 0: the log decides, whatever `group_calls_max` is.
    pub group_delay_us: u64,
    /// Calls at which a group is written before that time is over.
    pub group_calls_max: usize,
    /// Calls that may wait for one partition. Others are refused.
    pub waiting_max: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            group_delay_us: 0,
            group_calls_max: usize::MAX,
            waiting_max: WAITING_TXNS_MAX,
        }
    }
}

/// The device that the log is written to first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum DeviceConfig {
    #[default]
    File,
    Nvram(NvramConfig),
}

/// A region and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvramConfig {
    /// A file, or a DAX device. A fast file is on a DAX file system.
    pub path: PathBuf,
    /// Bytes of the region; a device is taken as a whole. None: the bytes of a region that must exist already.
    pub bytes: Option<u64>,
    /// See [`COPY_AT_ENTRIES_DEFAULT`].
    pub copy_at_entries: u64,
    /// When changes go to the region.
    pub flush: FlushPolicy,
    /// True if an ordinary file counts as persistent memory: for tests and measurements.
    pub assume_persistent: bool,
}

pub(crate) fn check(config: &DatabaseConfig) -> Result<(), OpenError> {
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
    check_nvram(config).map_err(OpenError::Config)
}

/// Checks the settings that depend on NVRAM.
fn check_nvram(config: &DatabaseConfig) -> Result<(), String> {
    let DeviceConfig::Nvram(nvram) = &config.device else {
        return Ok(());
    };
    if usize::from(config.sites) > RINGS_MAX {
        return Err(format!(
            "an NVRAM region has {RINGS_MAX} rings at most, one for each site"
        ));
    }
    if nvram.flush.is_on_insert() {
        check_on_insert(config, nvram.flush.name())?;
    }
    match (config.log, config.commit, nvram.copy_at_entries) {
        (LogPolicy::None, _, _) => Err("without a log there is nothing to be written to NVRAM".into()),
        (_, CommitMode::Async, _) => {
            Err("a commit in NVRAM is durable when it ends: asynchronous commit goes with files alone".into())
        }
        (_, _, 0) => Err("the copy of NVRAM to files begins at 1 entry or more".into()),
        _ => Ok(()),
    }
}

/// Checks that a log which sends changes to the region as they are made logs changes, by their columns.
fn check_on_insert(config: &DatabaseConfig, flush: &str) -> Result<(), String> {
    if config.log == LogPolicy::Command {
        return Err(format!(
            "NVRAM flush {flush} is about a transaction's changes, and log command has none: take log physiological, auto or both"
        ));
    }
    match config.redo.images {
        AfterImage::Changed => Ok(()),
        AfterImage::Whole => Err(format!(
            "NVRAM flush {flush} writes changes as they are made, and what a row is as a whole is known at the commit: take log-differential true"
        )),
    }
}
