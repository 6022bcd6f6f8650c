//! Flags, in the words of `--help`.

use std::path::PathBuf;

use clap::{
    Parser, ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use reprise_base::limits::{PARTITIONS_MAX, SITES_MAX};
use reprise_database::{AfterImage, CommitMode, FlushPolicy, LogPolicy, RecoverFrom};
use reprise_driver::{Via, WORKLOADS};

const EXAMPLE: &str = "Examples:
  reprise-bench voter --seconds 10
  reprise-bench bank --partitions 2 --remote 10 --data-dir ./run
  reprise-bench voter --url http://127.0.0.1:8080 --via batch --connections 8
  reprise-bench tpcc --warehouses 4 --partitions 2
  reprise-bench tpcc --check-only --url http://127.0.0.1:8080
  reprise-bench replay --data-dir ./run --sites 2

Exit status: 0 done, 1 an error or a failed check, 2 bad usage.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Longest wait for more commits.
const GROUP_COMMIT_US_MAX: u64 = 1_000_000;

const DEVICES: [(&str, DeviceKind); 2] = [("file", DeviceKind::File), ("nvram", DeviceKind::Nvram)];
const LOGS: [(&str, LogPolicy); 5] = [
    ("command", LogPolicy::Command),
    ("physiological", LogPolicy::Physiological),
    ("auto", LogPolicy::Auto),
    ("both", LogPolicy::Both),
    ("none", LogPolicy::None),
];
const IMAGES: [(&str, AfterImage); 2] = [("true", AfterImage::Changed), ("false", AfterImage::Whole)];
const SOURCES: [(&str, RecoverFrom); 2] = [
    ("command", RecoverFrom::Command),
    ("physiological", RecoverFrom::Changes),
];
const FLUSHES: [(&str, FlushPolicy); 3] = [
    ("commit", FlushPolicy::OnCommit),
    ("insert", FlushPolicy::OnInsert),
    ("insert-fence", FlushPolicy::OnInsertFence),
];
const COMMITS: [(&str, CommitMode); 2] = [("sync", CommitMode::Sync), ("async", CommitMode::Async)];
const WAYS: [(&str, Via); 2] = [("single", Via::Single), ("batch", Via::Batch)];

/// Device that the log is written to first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    File,
    Nvram,
}

/// Parser of one of these names.
fn one_of<T: Copy + Send + Sync + 'static>(known: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(known.iter().map(|(name, _)| *name));
    names.map(|text| {
        let found = known.iter().find(|(name, _)| *name == text);
        found.expect("the parser takes these names alone").1
    })
}

/// Measures a workload on a database in this process, or on a server.
#[derive(Parser)]
#[command(name = "reprise-bench", version, after_help = EXAMPLE)]
pub struct BenchArgs {
    /// The workload to run; replay replays the log that an earlier run left in --data-dir
    #[arg(value_parser = WORKLOADS.into_iter().chain(["replay"]).collect::<Vec<_>>())]
    pub workload: String,
    /// Length of the measured window
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Run before the window, not counted
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub warmup: f64,
    /// Slices of the data [default: 1, or what --data-dir has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(PARTITIONS_MAX)), conflicts_with = "url")]
    pub partitions: Option<u16>,
    /// Engine threads [default: cores, at most one a partition]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(SITES_MAX)), conflicts_with = "url")]
    pub sites: Option<u16>,
    /// Percent of remote transactions. bank: transfers between partitions; tpcb: accounts of another branch; tpcc: New-Orders and Payments between
    /// partitions [default: bank at random, tpcb 15, tpcc 1 of an order's lines and 15 of payments, by the specification]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub remote: Option<u8>,
    /// Size of the data: branches (tpcb), 100,000 subscribers each (tatp) [default: 10 and 1 a partition]
    #[arg(long, value_name = "N")]
    pub scale: Option<u32>,
    /// Warehouses (tpcc) [default: one a partition, two at least]
    #[arg(long, value_name = "N")]
    pub warehouses: Option<u32>,
    /// Contents of the log: command, physiological, auto, both or none [default: command]
    #[arg(long, value_name = "KIND", value_parser = one_of(&LOGS), conflicts_with = "url")]
    pub log: Option<LogPolicy>,
    /// Log the changed columns of an updated row (true), or all of it (false) [default: true]
    #[arg(long, value_name = "BOOL", value_parser = one_of(&IMAGES), conflicts_with = "url")]
    pub log_differential: Option<AfterImage>,
    /// replay: of transactions that were logged both ways, apply the command or the changed rows (physiological) [default: command]
    #[arg(long, value_name = "KIND", value_parser = one_of(&SOURCES), conflicts_with = "url")]
    pub recover_from: Option<RecoverFrom>,
    /// Device that a commit waits for: file, or nvram, a region of persistent memory before the files [default: file]
    #[arg(long, value_name = "KIND", value_parser = one_of(&DEVICES), conflicts_with_all = ["url", "compare"])]
    pub device: Option<DeviceKind>,
    /// The region: a file on a DAX file system, or a DAX device; a file that is not there is made
    #[arg(long, value_name = "PATH", conflicts_with = "url")]
    pub nvram: Option<PathBuf>,
    /// Bytes of the region, or a number with KiB, MiB or GiB [default: 256 MiB]
    #[arg(long, value_name = "BYTES", value_parser = size, requires = "nvram")]
    pub nvram_size: Option<u64>,
    /// When changes go to the region. All at the commit (commit); or each when it is made, and the commit waits for all (insert); or each when it is
    /// made, and the transaction waits for it (insert-fence) [default: commit]
    #[arg(long, value_name = "POLICY", value_parser = one_of(&FLUSHES), requires = "nvram")]
    pub nvram_flush: Option<FlushPolicy>,
    /// Take an ordinary file for persistent memory
    #[arg(long, requires = "nvram")]
    pub nvram_assume_persistent: bool,
    /// Nanoseconds that each line of the cache takes longer to be written to the region: slower memory than this machine has [default: 0]
    #[arg(long, value_name = "NS", value_parser = delay_ns, requires = "nvram")]
    pub nvram_delay_ns: Option<u64>,
    /// sync or async [default: sync]
    #[arg(long, value_name = "MODE", value_parser = one_of(&COMMITS), conflicts_with = "url")]
    pub commit: Option<CommitMode>,
    /// Microseconds to wait for more commits before a write to the log [default: 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=GROUP_COMMIT_US_MAX), conflicts_with = "url")]
    pub group_commit_us: Option<u64>,
    /// Calls at which a group of commits is written before its wait is over [default: none]
    #[arg(long, value_name = "N", value_parser = count_max, requires = "group_commit_us")]
    pub group_commit_calls: Option<usize>,
    /// Calls that may wait for one partition; others are refused [default: 5000]
    #[arg(long, value_name = "N", value_parser = count_max, conflicts_with = "url")]
    pub waiting_max: Option<usize>,
    /// Directory of the database [default: a temporary directory]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub data_dir: Option<PathBuf>,
    /// Transactions per second to offer, whether or not they come back (open loop) [default: as fast as they come back]
    #[arg(long, value_name = "TXN_PER_S")]
    pub rate: Option<f64>,
    /// The procedures compiled into this program in place of wasm
    #[arg(long, conflicts_with = "url")]
    pub native: bool,
    /// Seed of the calls: equal seeds make equal calls [default: 1; over HTTP, where tables stay from run to run, a new one]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Calls of one batch [default: 128 where commits wait for the device, else 64; 256 over HTTP]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Batches on their way at once [default: as many as keep the engine busy]
    #[arg(long, value_name = "N", conflicts_with = "url")]
    pub in_flight: Option<usize>,
    /// Make the calls before they are timed, and let each batch's end send the next: the engine without a load generator
    /// beside it (closed loop)
    #[arg(long, conflicts_with_all = ["url", "rate"])]
    pub prepared: bool,
    /// Folder of NAME.wasm [default: procedures/ beside this program's folder]
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,
    /// A server to load, in place of a database in this process
    #[arg(long)]
    pub url: Option<String>,
    /// Bearer token for that server
    #[arg(long, env = "REPRISE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// One call a request, or many [default: single]
    #[arg(long, value_parser = one_of(&WAYS), requires = "url")]
    pub via: Option<Via>,
    /// Connections to the server [default: 64 single, 4 batch]
    #[arg(long, value_name = "N", requires = "url")]
    pub connections: Option<usize>,
    /// Run wasm, native procedures, wasm with the command log and the typed kernel in turn, N rounds; print the medians
    #[arg(long, value_name = "N", value_parser = rounds, conflicts_with_all = ["url", "rate", "native", "log", "data_dir"])]
    pub compare: Option<usize>,
    /// Measure what the database can take, then offer this multiple of it (open loop)
    #[arg(long, value_name = "FACTOR", value_parser = overload, conflicts_with_all = ["rate", "compare", "data_dir"])]
    pub overload: Option<f64>,
    /// Run nothing: check what holds of any database that the workload filled, in --data-dir or at --url
    #[arg(long, conflicts_with_all = ["compare", "overload", "rate", "prepared", "native"])]
    pub check_only: bool,
    /// Take a checkpoint in the middle of the window; tell throughput and latency before, during and after it
    #[arg(long, conflicts_with_all = ["url", "compare", "overload"])]
    pub checkpoint_during: bool,
    /// Take a checkpoint before the run, open the database again after it, and tell how long that took
    #[arg(long, conflicts_with_all = ["url", "compare", "overload", "native"])]
    pub restart: bool,
    /// Memory that is made ready behind the load, for the growth of the tables, and kept so. Bytes, or a number with KiB, MiB or GiB [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "url")]
    pub memory_ready: Option<u64>,
    /// Requests that a connection sends before it reads the first answer, with --via single [default: 1]
    #[arg(long, value_name = "N", requires = "url")]
    pub pipeline: Option<usize>,
    /// Give each call an idempotency key of its own, with --via single
    #[arg(long, requires = "url")]
    pub keyed: bool,
    /// Time limit of each call (Reprise-Timeout-Ms), with --via single
    #[arg(long, value_name = "N", requires = "url")]
    pub timeout_ms: Option<u64>,
    /// How results are printed
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Output::Text)]
    pub output: Output,
}

fn count_max(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..) => Ok(count),
        _ => Err(format!("{text:?} is no number from 1 on")),
    }
}

fn size(text: &str) -> Result<u64, String> {
    reprise_base::memory::parse_size(text)
}

fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds @ 1..=1_000) => Ok(rounds),
        _ => Err("the number of rounds is from 1 to 1000".into()),
    }
}

fn delay_ns(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(ns @ 0..=1_000_000) => Ok(ns),
        _ => Err("a line takes 0 to 1000000 ns longer".into()),
    }
}

fn overload(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1.0..=100.0).contains(&factor) => Ok(factor),
        _ => Err("the load is from 1 to 100 times what the database can take".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_that_exclude_each_other_are_refused() {
        BenchArgs::command().debug_assert();
        assert!(BenchArgs::try_parse_from(["reprise-bench", "voter", "--url", "http://x", "--native"]).is_err());
        assert!(BenchArgs::try_parse_from(["reprise-bench", "voter", "--via", "batch"]).is_err());
    }
}
