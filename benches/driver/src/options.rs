//! What to run, against what.

use std::path::PathBuf;

use reprise_database::{CommitMode, LogMode};

use crate::{BenchError, WORKLOADS, voter};

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
    /// Percent of transactions that touch two partitions; None leaves it to chance.
    pub remote_percent: Option<u8>,
    /// Where NAME.wasm lie; None looks beside the executable.
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
    pub log: LogMode,
    pub commit: CommitMode,
    pub group_commit_us: u64,
    /// None is a temporary directory.
    pub data_dir: Option<PathBuf>,
    /// The procedures compiled into this program in place of wasm.
    pub native: bool,
    /// Calls of one batch and batches on their way; None is chosen by the log.
    pub batch: Option<usize>,
    pub in_flight: Option<usize>,
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

impl Options {
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let usage = |text: String| Err(BenchError::Usage(text));
        if !WORKLOADS.contains(&self.workload.as_str()) {
            return usage(format!(
                "there is no workload {:?}; there are {}",
                self.workload,
                WORKLOADS.join(" and ")
            ));
        }
        if !(self.seconds > 0.0 && self.seconds <= SECONDS_MAX) {
            return usage(format!(
                "--seconds takes a number above 0 and up to {SECONDS_MAX}"
            ));
        }
        if !(self.warmup_s >= 0.0 && self.warmup_s <= SECONDS_MAX) {
            return usage(format!("--warmup takes a number from 0 to {SECONDS_MAX}"));
        }
        if self.rate.is_some_and(|rate| !(rate > 0.0 && rate <= 1e9)) {
            return usage("--rate takes a number above 0 and up to 1000000000".into());
        }
        if self.remote_percent.is_some() && self.workload == voter::NAME {
            return usage(
                "voter has no transactions over several partitions: leave --remote out".into(),
            );
        }
        let batch = match &self.target {
            Target::Process(process) => process.batch,
            Target::Remote(remote) => Some(remote.batch),
        };
        if batch.is_some_and(|batch| batch == 0 || batch > BATCH_MAX) {
            return usage(format!("--batch takes a number from 1 to {BATCH_MAX}"));
        }
        match &self.target {
            Target::Remote(remote)
                if remote.connections == 0 || remote.connections > CONNECTIONS_MAX =>
            {
                usage(format!(
                    "--connections takes a number from 1 to {CONNECTIONS_MAX}"
                ))
            }
            Target::Process(process) if process.in_flight == Some(0) => {
                usage("--in-flight takes a number from 1".into())
            }
            _ => Ok(()),
        }
    }
}
