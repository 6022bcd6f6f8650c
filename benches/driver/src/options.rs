//! The workload to run, and its target.

use std::path::PathBuf;

use reprise_database::{BatchLimits, CommitMode, DeviceConfig, LogPolicy, RedoConfig};

use crate::{BenchError, WORKLOADS};

#[derive(Clone, Debug)]
pub struct Options {
    pub workload: String,
    /// Length of the measured window.
    pub seconds: f64,
    /// Run before the window; not counted.
    pub warmup_s: f64,
    /// Transactions per second of the open loop; None is the closed loop.
    pub rate: Option<f64>,
    pub seed: u64,
    /// Percent of what the workload calls remote; None is its default.
    pub remote_percent: Option<u8>,
    /// Size of the data in the workload's own unit; None is its default.
    pub scale: Option<u32>,
    /// Warehouses of TPC-C; None is one per partition.
    pub warehouses: Option<u32>,
    /// The folder of NAME.wasm; None searches beside the executable.
    pub modules: Option<PathBuf>,
    pub target: Target,
}

#[derive(Clone, Debug)]
pub enum Target {
    Process(ProcessOptions),
    Remote(RemoteOptions),
}

/// A database in this process.
#[derive(Clone, Debug)]
pub struct ProcessOptions {
    pub partitions: u16,
    pub sites: u16,
    pub log: LogPolicy,
    pub redo: RedoConfig,
    /// The device that the log is written to first.
    pub device: DeviceConfig,
    /// Extra nanoseconds for each line of the cache that is written to NVRAM.
    pub nvram_delay_ns: u64,
    pub commit: CommitMode,
    pub batch_limits: BatchLimits,
    /// None is a temporary directory.
    pub data_dir: Option<PathBuf>,
    /// The procedures compiled into this program in place of wasm.
    pub native: bool,
    /// The driver takes a checkpoint in the middle of the window, and reports its effect on the calls.
    pub checkpoint_during: bool,
    /// A checkpoint is taken before the run; behind it the database is opened again, and that is timed.
    pub restart: bool,
    /// Calls of one batch and batches on their way; None is chosen by the log.
    pub batch: Option<usize>,
    pub in_flight: Option<usize>,
    /// Calls are made before they are timed, and each batch's end sends the next: no load generator beside the engine.
    pub prepared: bool,
    /// Bytes of memory that are kept ready for what the tables grow by.
    pub memory_ready: u64,
}

impl ProcessOptions {
    /// A partition for each site, procedures in wasm, and a log in files of a temporary directory.
    pub fn new(sites: u16, log: LogPolicy) -> Self {
        Self {
            partitions: sites,
            sites,
            log,
            redo: RedoConfig::default(),
            device: DeviceConfig::File,
            nvram_delay_ns: 0,
            commit: CommitMode::Sync,
            batch_limits: BatchLimits::default(),
            data_dir: None,
            native: false,
            checkpoint_during: false,
            restart: false,
            batch: None,
            in_flight: None,
            prepared: false,
            memory_ready: 0,
        }
    }
}

/// A server.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// `http://HOST:PORT`
    pub url: String,
    pub token: Option<String>,
    pub via: Via,
    pub connections: usize,
    /// Calls of one request via `Via::Batch`.
    pub batch: usize,
    /// Requests that a connection sends before it reads the first answer, via `Via::Single`.
    pub pipeline: usize,
    /// Each call has an idempotency key of its own, via `Via::Single`.
    pub keyed: bool,
    /// Time limit of each call, via `Via::Single`; None: none.
    pub timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Single,
    Batch,
}

impl Via {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Batch => "batch",
        }
    }
}

const SECONDS_MAX: f64 = 86_400.0;
const BATCH_MAX: usize = 10_000;
const CONNECTIONS_MAX: usize = 10_000;
/// The buffers of a connection hold the answers to this number of requests, so that neither side waits for the other to read.
const PIPELINE_MAX: usize = 256;

impl Options {
    /// Refuses sizes that the caller gave and the workload does not take.
    pub(crate) fn check_sizes(&self, takes: &[&str]) -> Result<(), BenchError> {
        let given = [
            ("--remote", self.remote_percent.is_some()),
            ("--scale", self.scale.is_some()),
            ("--warehouses", self.warehouses.is_some()),
        ];
        let useless = given.iter().find(|(flag, given)| *given && !takes.contains(flag));
        match useless {
            None => Ok(()),
            Some((flag, _)) => Err(BenchError::Usage(format!(
                "{} has no {flag}: leave it out",
                self.workload
            ))),
        }
    }

    /// A closed loop of one second on a database in this process, with the workload's own sizes.
    pub fn new(workload: &str, process: ProcessOptions) -> Self {
        Self {
            workload: workload.into(),
            seconds: 1.0,
            warmup_s: 0.0,
            rate: None,
            seed: 1,
            remote_percent: None,
            scale: None,
            warehouses: None,
            modules: None,
            target: Target::Process(process),
        }
    }

    /// Returns the options that tests of a workload begin with.
    #[cfg(test)]
    pub(crate) fn in_process(workload: &str) -> Self {
        Self::new(workload, ProcessOptions::new(1, LogPolicy::None))
    }

    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let usage = |text: String| Err(BenchError::Usage(text));
        if !WORKLOADS.contains(&self.workload.as_str()) {
            return usage(format!(
                "there is no workload {:?}; there are {}",
                self.workload,
                WORKLOADS.join(", ")
            ));
        }
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            return usage(format!("--seconds takes a number above 0 and up to {SECONDS_MAX}"));
        }
        if !(self.warmup_s >= 0.0 && self.warmup_s <= SECONDS_MAX) {
            return usage(format!("--warmup takes a number from 0 to {SECONDS_MAX}"));
        }
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e9)) {
            return usage("--rate takes a number above 0 and up to 1000000000".into());
        }
        let batch = match &self.target {
            Target::Process(process) => process.batch,
            Target::Remote(remote) => Some(remote.batch),
        };
        if batch.is_some_and(|batch| batch == 0 || batch > BATCH_MAX) {
            return usage(format!("--batch takes a number from 1 to {BATCH_MAX}"));
        }
        match &self.target {
            Target::Remote(remote) if remote.connections == 0 || remote.connections > CONNECTIONS_MAX => {
                usage(format!("--connections takes a number from 1 to {CONNECTIONS_MAX}"))
            }
            Target::Remote(remote) if remote.pipeline == 0 || remote.pipeline > PIPELINE_MAX => {
                usage(format!("--pipeline takes a number from 1 to {PIPELINE_MAX}"))
            }
            Target::Remote(remote) if remote.pipeline > 1 && remote.via == Via::Batch => {
                usage("--pipeline is for --via single: a batch is one request".into())
            }
            Target::Remote(remote) if (remote.keyed || remote.timeout_ms.is_some()) && remote.via == Via::Batch => {
                usage("--keyed and --timeout-ms are for --via single".into())
            }
            Target::Process(process) if process.prepared && self.rate.is_some() => {
                usage("--prepared is a closed loop: leave --rate out".into())
            }
            Target::Process(process)
                if (process.checkpoint_during || process.restart) && matches!(process.log, LogPolicy::None) =>
            {
                usage("--checkpoint-during and --restart need a log: leave --log none out".into())
            }
            Target::Process(process) if process.in_flight == Some(0) => {
                usage("--in-flight takes a number from 1".into())
            }
            _ => Ok(()),
        }
    }
}
