//! The compared schemes: the place of a log, and the way to it (NV-Logging, table 3).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use reprise_database::{
    AfterImage, COPY_AT_ENTRIES_DEFAULT, DeviceConfig, Environment, FlushPolicy, LogPolicy, NvramConfig, RecoverFrom,
    RedoConfig,
};
use reprise_driver::{Around, Options, ProcessOptions, Report, SlowRegions, run_in};
use reprise_env::FilteredDisk;
use reprise_nvram::OpenMemory;

use crate::{
    disk::SlowLines,
    distributed::DistributedRegions,
    files::FileRegions,
    timed::{TimeShares, TimedScheme},
};

/// How much longer the next run is.
const LONGER: [f64; 4] = [1.0, 5.0, 25.0, 100.0];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// The log's files on the file system of the NVRAM, synced at each commit; one buffer for all sites.
    NvDisk,
    /// A buffer and a place in the file for each site.
    NvDiskDecentralised,
    /// A log in NVRAM for each site, without an order but by clocks.
    Distributed,
    /// The product.
    NvLogging(FlushPolicy),
}

impl Scheme {
    pub const ALL: [Self; 6] = [
        Self::NvDisk,
        Self::NvDiskDecentralised,
        Self::Distributed,
        Self::NvLogging(FlushPolicy::OnInsertFence),
        Self::NvLogging(FlushPolicy::OnInsert),
        Self::NvLogging(FlushPolicy::OnCommit),
    ];

    pub fn name(self) -> String {
        match self {
            Self::NvDisk => "nv-disk".into(),
            Self::NvDiskDecentralised => "nv-disk-decentralised".into(),
            Self::Distributed => "distributed".into(),
            Self::NvLogging(flush) => format!("nv-logging-{}", flush.name()),
        }
    }

    fn flush(self) -> FlushPolicy {
        match self {
            Self::NvLogging(flush) => flush,
            // Each record of a transaction by itself.
            Self::Distributed => FlushPolicy::OnInsert,
            Self::NvDisk | Self::NvDiskDecentralised => FlushPolicy::OnCommit,
        }
    }

    /// Puts the scheme in the place of the device that the product would have.
    pub fn change(self, around: &mut Environment, line: Duration) {
        let slow = |regions: Arc<dyn OpenMemory>| Arc::new(SlowRegions { regions, line });
        match self {
            Self::NvDisk => {
                if let Some(folders) = &mut around.folders {
                    let disk = folders.log.clone();
                    folders.log = Arc::new(FilteredDisk::new(disk, Arc::new(SlowLines(line))));
                }
            }
            Self::NvDiskDecentralised => around.nvram = slow(Arc::new(FileRegions)),
            Self::Distributed => around.nvram = Arc::new(DistributedRegions(slow(around.nvram.clone()))),
            Self::NvLogging(_) => around.nvram = slow(around.nvram.clone()),
        }
    }
}

/// The run that each scheme gets.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    pub workload: &'a str,
    pub sites: u16,
    /// Extra time for a line of the cache.
    pub line: Duration,
    pub seconds: f64,
    pub warmup_s: f64,
    pub seed: u64,
    /// On the NVRAM's file system.
    pub nvram: &'a Path,
    pub region_bytes: u64,
    /// In the workload's unit; none: what the driver takes.
    pub scale: Option<u32>,
    pub modules: Option<PathBuf>,
}

impl Run<'_> {
    /// Changes are logged, each call is a batch of its own, and one is on its way for each site: no group commit.
    fn options(&self, scheme: Scheme) -> Options {
        let (device, data_dir) = match scheme {
            Scheme::NvDisk => (DeviceConfig::File, Some(self.nvram.join("data"))),
            _ => {
                let config = NvramConfig {
                    path: self.nvram.join("region"),
                    bytes: Some(self.region_bytes),
                    copy_at_entries: COPY_AT_ENTRIES_DEFAULT,
                    flush: scheme.flush(),
                    assume_persistent: true,
                };
                (DeviceConfig::Nvram(config), None)
            }
        };
        // The schemes bring their own delay.
        let process = ProcessOptions {
            redo: RedoConfig {
                images: AfterImage::Changed,
                from: RecoverFrom::default(),
            },
            device,
            data_dir,
            batch: Some(1),
            in_flight: Some(self.sites.into()),
            prepared: true,
            ..ProcessOptions::new(self.sites, LogPolicy::Physiological)
        };
        Options {
            seconds: self.seconds,
            warmup_s: self.warmup_s,
            seed: self.seed,
            scale: self.scale,
            modules: self.modules.clone(),
            ..Options::new(self.workload, process)
        }
    }

    /// Runs it. A run in which the disk took nothing tells no rate: a longer one takes its place.
    pub fn measure(&self, scheme: Scheme) -> Result<Report> {
        let line = self.line;
        self.measure_in(scheme, &|around: &mut Environment| scheme.change(around, line))
    }

    /// Runs it, and returns where the engine threads' time went, too.
    pub fn measure_shares(&self, scheme: Scheme) -> Result<(Report, TimeShares)> {
        let timed = TimedScheme::new(scheme, self.line);
        let report = self.measure_in(scheme, &timed)?;
        let shares = timed.shares(self.sites).context("the run was not timed")?;
        Ok((report, shares))
    }

    fn measure_in(&self, scheme: Scheme, around: &dyn Around) -> Result<Report> {
        for factor in LONGER {
            let report = self.measure_for(scheme, self.seconds * factor, around)?;
            if report.txn_per_s > 0.0 {
                return Ok(report);
            }
        }
        let longest = self.seconds * LONGER[LONGER.len() - 1];
        bail!(
            "{} with {}: nothing was committed in {longest} s",
            self.workload,
            scheme.name()
        );
    }

    /// Runs it on a place that is emptied before and after.
    fn measure_for(&self, scheme: Scheme, seconds: f64, around: &dyn Around) -> Result<Report> {
        self.clear()?;
        let mut options = self.options(scheme);
        options.seconds = seconds;
        let report = run_in(&options, around, &|_| {});
        self.clear()?;
        report.with_context(|| format!("{} with {} on {} sites", self.workload, scheme.name(), self.sites))
    }

    fn clear(&self) -> Result<()> {
        for name in ["region", "data"] {
            let path = self.nvram.join(name);
            let removed = match path.is_dir() {
                true => std::fs::remove_dir_all(&path),
                false => match std::fs::remove_file(&path) {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    removed => removed,
                },
            };
            removed.with_context(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }
}
