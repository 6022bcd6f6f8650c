//! One run of the product with one form of log.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use reprise_database::{AfterImage, Environment, LogPolicy, RecoverFrom, RedoConfig};
use reprise_driver::{Options, ProcessOptions, Report, run, run_in};
use reprise_env::{DiskError, DiskFile, DiskFilter, FilteredDisk};
use reprise_wire::{BlockHeader, block_bytes};

/// The three forms that the paper compares, with the names of their series.
pub const LOGS: [(&str, LogPolicy); 3] = [
    ("none", LogPolicy::None),
    ("command", LogPolicy::Command),
    ("physiological", LogPolicy::Physiological),
];

/// How much longer the next run is.
const LONGER: [f64; 3] = [1.0, 5.0, 25.0];

/// Calls that are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offered {
    /// All that come back: the engine makes each next call itself, so no generator takes part.
    All,
    /// This many a second, by a generator on the other processor.
    PerSecond(f64),
}

/// A run: its workload, its log, its load, its length.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    pub workload: &'static str,
    pub log: LogPolicy,
    pub offered: Offered,
    pub sites: u16,
    /// Percent of New-Orders and Payments that touch two partitions; none: as the specification has it.
    pub remote_percent: Option<u8>,
    pub warehouses: Option<u32>,
    /// The log is replayed afterwards, behind a checkpoint that was taken before the run.
    pub restart: bool,
    pub seconds: f64,
    pub seed: u64,
    /// Bytes of each record that the log's device gets at most, so the log can't be read. None: it gets all.
    pub record_bytes_max: Option<usize>,
    /// The run makes its files in a folder here, and removes them.
    pub dir: &'a Path,
    pub modules: Option<PathBuf>,
}

impl Run<'_> {
    fn options(&self, seconds: f64, data_dir: Option<PathBuf>) -> Options {
        let process = ProcessOptions {
            redo: RedoConfig {
                images: AfterImage::Changed,
                from: RecoverFrom::default(),
            },
            data_dir,
            restart: self.restart,
            prepared: self.offered == Offered::All,
            ..ProcessOptions::new(self.sites, self.log)
        };
        Options {
            seconds,
            warmup_s: seconds / 10.0,
            rate: match self.offered {
                Offered::All => None,
                Offered::PerSecond(rate) => Some(rate),
            },
            seed: self.seed,
            remote_percent: self.remote_percent,
            warehouses: self.warehouses,
            modules: self.modules.clone(),
            ..Options::new(self.workload, process)
        }
    }

    /// Runs it, the workload's checks included. A run in which nothing was committed tells no rate: a longer one takes its place.
    ///
    /// # Errors
    /// The run failed, or its checks did.
    pub fn measure(&self) -> Result<Report> {
        for factor in LONGER {
            let report = self.measure_for(self.seconds * factor)?;
            if report.committed > 0 {
                return Ok(report);
            }
        }
        let longest = self.seconds * LONGER[LONGER.len() - 1];
        bail!(
            "{} with the log {:?}, {:?}: nothing was committed in {longest} s",
            self.workload,
            self.log,
            self.offered
        );
    }

    fn measure_for(&self, seconds: f64) -> Result<Report> {
        let folder = self.dir.join("data");
        let has_files = self.log != LogPolicy::None;
        let options = self.options(seconds, has_files.then(|| folder.clone()));
        let report = match self.record_bytes_max {
            None => run(&options, &|_| {}),
            Some(bytes) => run_in(
                &options,
                &|around: &mut Environment| cut_records(around, bytes),
                &|_| {},
            ),
        };
        if has_files && folder.exists() {
            std::fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
        }
        report.with_context(|| format!("{} with the log {:?}, {:?}", self.workload, self.log, self.offered))
    }
}

fn cut_records(around: &mut Environment, bytes: usize) {
    if let Some(folders) = &mut around.folders {
        folders.log = Arc::new(FilteredDisk::new(folders.log.clone(), Arc::new(CutRecords(bytes))));
    }
}

/// Writes as much of a block as its records would take if none had more bytes than this.
struct CutRecords(usize);

impl DiskFilter for CutRecords {
    fn write_durable_at(&self, file: &dyn DiskFile, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let cut = match BlockHeader::decode(bytes) {
            Ok((header, _)) => block_bytes(header.records_count as usize * self.0).min(bytes.len()),
            Err(_) => bytes.len(),
        };
        file.write_durable_at(offset, &bytes[..cut])
    }
}
