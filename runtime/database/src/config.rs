//! What a database is opened with.

use std::path::PathBuf;

use reprise_base::limits::{PARTITIONS_MAX, SITES_MAX};
use reprise_partition::LogPolicy;
use reprise_replay::RecoverFrom;
use reprise_storage::AfterImage;
use reprise_upkeep::CheckpointConfig;

use crate::{
    device::{self, DeviceConfig},
    error::OpenError,
};

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
    /// What the log is written to first.
    pub device: DeviceConfig,
    pub commit: CommitMode,
    /// Time for which a group of commits may grow before it is written.
    pub group_commit_us: u64,
    pub segment_bytes: u64,
    pub checkpoints: CheckpointConfig,
    /// Memory that there may be, of everything that is counted; `u64::MAX`: no limit.
    pub memory_max_bytes: u64,
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
    device::judge(config).map_err(OpenError::Config)
}
