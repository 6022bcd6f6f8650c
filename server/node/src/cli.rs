//! Every verb and flag, in the words of `--help`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use reprise_base::limits::MEMORY_MAX_BYTES_MIN;
use reprise_database::{AfterImage, CommitMode, LogPolicy, RecoverFrom};

use crate::{
    backup::BackupCommand,
    inspect::{self, ShowArgs},
    recover::{self, RecoverArgs},
    restore::{self, RestoreArgs},
    rows::{self, GroupsArgs, RowsArgs},
};

/// An in-memory transactional database whose stored procedures are WebAssembly.
#[derive(Parser)]
#[command(
    name = "reprise",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = "Example:\n  reprise serve &\n  reprise module deploy voter.wasm\n  \
                  reprise call voter.initialize '{\"contestants\": [\"Ada\", \"Bruno\"]}'\n\n\
                  Exit status: 0 done, 1 the answer is no or an error, 2 bad usage."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// How results are printed
    #[arg(long, global = true, value_enum, value_name = "FORM", default_value_t = Output::Text)]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the server
    #[command(after_help = SERVE_EXAMPLE)]
    Serve(ServeArgs),
    /// Make a procedure crate that builds and passes its own test
    #[command(after_help = "Example:\n  reprise new orders && cd orders && cargo test")]
    New(NewArgs),
    /// Build a procedure crate to wasm, with whichever toolchain is here
    #[command(
        after_help = "Examples:\n  reprise build\n  reprise build orders && reprise module deploy orders/target/procedures/orders.wasm"
    )]
    Build(BuildArgs),
    /// Install, look at and remove modules
    #[command(
        subcommand,
        after_help = "Example:\n  reprise module deploy target/procedures/voter.wasm\n  reprise module show voter"
    )]
    Module(ModuleCommand),
    /// Run one transaction, or a file of them
    #[command(after_help = CALL_EXAMPLE)]
    Call(CallArgs),
    /// Look up what a call with an idempotency key came to
    #[command(subcommand, after_help = "Example:\n  reprise idempotency show order-17")]
    Idempotency(IdempotencyCommand),
    /// Look at tables and their rows
    #[command(
        subcommand,
        after_help = "Example:\n  reprise table list\n  reprise table rows votes --prefix 2125550123"
    )]
    Table(TableCommand),
    /// Look at the log, on a server or on files
    #[command(
        subcommand,
        after_help = "Example:\n  reprise log tail --limit 5\n  reprise log verify ./reprise-data"
    )]
    Log(LogCommand),
    /// See what runs and waits now, and end it
    #[command(
        subcommand,
        after_help = "Example:\n  reprise calls list\n  reprise calls cancel 4711"
    )]
    Calls(CallsCommand),
    /// Take, list and look into checkpoints
    #[command(
        subcommand,
        after_help = "Example:\n  reprise checkpoint take\n  reprise checkpoint show ./reprise-data"
    )]
    Checkpoint(CheckpointCommand),
    /// Make, check and restore backups
    #[command(
        subcommand,
        after_help = "Example:\n  reprise backup create --to ./backup\n  reprise backup verify ./backup\n  \
                      reprise backup restore ./backup --to ./reprise-data"
    )]
    Backup(BackupCommand),
    /// Make a data directory that holds a database as it was at a point
    #[command(after_help = restore::EXAMPLE)]
    Restore(RestoreArgs),
    /// Recover a data directory without serving it, or say what that would do
    #[command(after_help = recover::EXAMPLE)]
    Recover(RecoverArgs),
    /// What the server says of itself
    #[command(after_help = "Example:\n  reprise status --output json")]
    Status(ServerArgs),
    /// Measure a workload in this process, or on a server
    #[command(after_help = BENCH_EXAMPLE)]
    Bench(BenchArgs),
}

const SERVE_EXAMPLE: &str = "Example:
  reprise serve --data-dir ./reprise-data --listen 127.0.0.1:8080

Every flag can also come from the environment (REPRISE_DATA_DIR, …) or from reprise.toml in the data directory:
  listen = \"127.0.0.1:8080\"   # for others: behind a proxy with TLS (docs/security.md)

  [[tokens]]
  name = \"deploy\"
  role = \"admin\"        # admin, write or read
  sha256 = \"…\"          # printf %s \"$TOKEN\" | sha256sum

  [http]                 # what one client may take; these are the defaults
  connections_max = 4096
  header_wait_s = 75
  body_wait_s = 30
  batch_idle_s = 300
  write_wait_s = 60
  connections_per_peer_max = 2048   # of one address; half of all
  origins = []           # pages of other sites that may ask: [\"https://db.example\"] behind a proxy with TLS

A flag goes over the environment, the environment over the file. SIGHUP reads the file anew: tokens, origins,
call_time_max_ms, deploy_time_max_s, slow_call_ms and idempotency_keep_s change at once, and what needs a restart is named.";

const CALL_EXAMPLE: &str = "Examples:
  reprise call voter.vote '{\"phone_number\": 2125550123, \"contestant_number\": 1, \"max_votes_per_phone\": 2}'
  reprise call voter.vote --file votes.ndjson      each line the arguments of one call
  reprise call --file calls.ndjson                 each line {\"module\", \"procedure\", \"args\"}";

const BENCH_EXAMPLE: &str = "Examples:
  reprise bench voter --seconds 10
  reprise bench bank --partitions 2 --remote 10 --data-dir ./run
  reprise bench voter --url http://127.0.0.1:8080 --via batch --connections 8
  reprise bench tpcc --warehouses 4 --partitions 2
  reprise bench tpcc --check-only --url http://127.0.0.1:8080
  reprise bench replay --data-dir ./run --sites 2";

/// Which server to ask, and as whom.
#[derive(Args, Clone)]
pub struct ServerArgs {
    /// Where the server is
    #[arg(long, env = "REPRISE_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Bearer token
    #[arg(long, env = "REPRISE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
}

#[derive(Args, Clone)]
pub struct ServeArgs {
    /// Where the log and the catalog lie [default: ./reprise-data]
    #[arg(long, env = "REPRISE_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Address and port; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, env = "REPRISE_LISTEN", value_name = "ADDR")]
    pub listen: Option<String>,
    /// Slices of the data, fixed when the database is made [default: number of cores]
    #[arg(long, env = "REPRISE_PARTITIONS", value_name = "N", value_parser = partitions)]
    pub partitions: Option<u16>,
    /// Engine threads; may differ from run to run [default: cores, at most one a partition]
    #[arg(long, env = "REPRISE_SITES", value_name = "N", value_parser = sites)]
    pub sites: Option<u16>,
    /// What the log holds of a transaction: command, physiological (changed rows), auto (what costs less, by procedure), both (to
    /// compare them), or none (nothing survives a stop). A procedure's own declaration goes before [default: command]
    #[arg(long, env = "REPRISE_LOG", value_name = "KIND", value_parser = log_mode)]
    pub log: Option<LogPolicy>,
    /// Log the changed columns of an updated row (true), or all of it (false) [default: true]
    #[arg(long, env = "REPRISE_LOG_DIFFERENTIAL", value_name = "BOOL", value_parser = log_differential)]
    pub log_differential: Option<AfterImage>,
    /// Of transactions that were logged both ways, apply the command or the changed rows (physiological) [default: command]
    #[arg(long, env = "REPRISE_RECOVER_FROM", value_name = "KIND", value_parser = recover_from)]
    pub recover_from: Option<RecoverFrom>,
    /// Answer a write when it is durable (sync), or before (async) [default: sync]
    #[arg(long, env = "REPRISE_COMMIT", value_name = "MODE", value_parser = commit_mode)]
    pub commit: Option<CommitMode>,
    /// Microseconds to wait for more commits before a write to the log [default: 0]
    #[arg(long, env = "REPRISE_GROUP_COMMIT_US", value_name = "N", value_parser = group_commit_us)]
    pub group_commit_us: Option<u64>,
    /// Milliseconds that a call may run, where its procedure declares no time of its own; 0: no limit [default: 1000]
    #[arg(long, env = "REPRISE_CALL_TIME_MAX_MS", value_name = "N")]
    pub call_time_max_ms: Option<u32>,
    /// Seconds that a deployment may take to change tables and to run what it runs, while
    /// calls wait; 0: no limit [default: 60]
    #[arg(long, env = "REPRISE_DEPLOY_TIME_MAX_S", value_name = "N")]
    pub deploy_time_max_s: Option<u32>,
    /// Milliseconds from which on a call that ran and held its partitions so long gets a line in the server's output; 0: none
    /// does [default: 100]
    #[arg(long, env = "REPRISE_SLOW_CALL_MS", value_name = "N")]
    pub slow_call_ms: Option<u32>,
    /// OpenTelemetry collector that takes a span of every call, http://HOST:4318 [default: none]
    #[arg(long, env = "REPRISE_OTLP_ENDPOINT", value_name = "URL", value_parser = otlp_endpoint)]
    pub otlp_endpoint: Option<String>,
    /// Seconds from one checkpoint to the next, where the log has grown; 0: only when asked for [default: 180]
    #[arg(long, env = "REPRISE_CHECKPOINT_EVERY", value_name = "SECONDS", value_parser = checkpoint_every)]
    pub checkpoint_every: Option<u64>,
    /// MiB of log after which a checkpoint is taken whatever the time; 0: only by time [default: 1024]
    #[arg(long, env = "REPRISE_CHECKPOINT_LOG_MIB", value_name = "MIB", value_parser = checkpoint_log_mib)]
    pub checkpoint_log_mib: Option<u64>,
    /// Seconds that a restart may take: a checkpoint is begun when it would take longer; 0: whatever it takes [default: 0]
    #[arg(long, env = "REPRISE_RECOVERY_TARGET_S", value_name = "SECONDS", value_parser = recovery_target_s)]
    pub recovery_target_s: Option<u64>,
    /// Checkpoints kept, with the log from the oldest of them on [default: 2]
    #[arg(long, env = "REPRISE_CHECKPOINTS_KEPT", value_name = "N", value_parser = checkpoints_kept)]
    pub checkpoints_kept: Option<u64>,
    /// Serve reads alone: where the log does not replay, the tables as they were before
    #[arg(long, env = "REPRISE_READ_ONLY")]
    pub read_only: bool,
    /// Memory that is made ready for what the tables grow by before calls are taken, and kept so: bytes, or a number with KiB, MiB or
    /// GiB [default: 0]
    #[arg(long, env = "REPRISE_MEMORY_READY", value_name = "SIZE", value_parser = size)]
    pub memory_ready: Option<u64>,
    /// Seconds for which the outcome of a call with an idempotency key is kept, and its repeats are answered with it
    /// [default: 86400]
    #[arg(long, env = "REPRISE_IDEMPOTENCY_KEEP_S", value_name = "SECONDS", value_parser = idempotency_keep_s)]
    pub idempotency_keep_s: Option<u64>,
    /// Memory that data, undo, remembered results, answers and modules may take together: bytes, or a number with KiB, MiB or GiB. Beyond
    /// it what would grow the data is refused; reads and deletes go on [default: 80 % of the machine's, or of the control group's]
    #[arg(long, env = "REPRISE_MEMORY_MAX", value_name = "SIZE", value_parser = memory_max)]
    pub memory_max: Option<u64>,
    /// Where checkpoints and log go that the data directory lets go of, so that the database can be restored to any point of the last
    /// days [default: nowhere]
    #[arg(long, env = "REPRISE_ARCHIVE", value_name = "DIR")]
    pub archive: Option<PathBuf>,
    /// Days that can be gone back from now; what the archive holds beyond them is removed [default: for ever]
    #[arg(long, env = "REPRISE_ARCHIVE_KEEP", value_name = "DAYS", value_parser = archive_keep)]
    pub archive_keep: Option<u32>,
    /// Where backups of the running server are made [default: backups in the data directory]
    #[arg(long, env = "REPRISE_BACKUP_DIR", value_name = "DIR")]
    pub backup_dir: Option<PathBuf>,
    /// Configuration file [default: reprise.toml in the data directory, if there is one]
    #[arg(long, env = "REPRISE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Days for which an archive is kept.
pub fn archive_keep(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(days @ 1..=36_500) => Ok(days),
        _ => Err(format!(
            "an archive is kept for 1 to 36500 days; {text:?} is no such number"
        )),
    }
}

/// A size that leaves room for anything.
pub fn memory_max(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < MEMORY_MAX_BYTES_MIN => Err(format!(
            "the limit of memory is {} MiB at least",
            MEMORY_MAX_BYTES_MIN >> 20
        )),
        bytes => Ok(bytes),
    }
}

pub fn otlp_endpoint(text: &str) -> Result<String, String> {
    crate::spans::endpoint(text).map_err(|error| error.to_string())
}

#[derive(Args)]
pub struct NewArgs {
    /// Name of the crate and of its module: a to z, 0 to 9 and _
    pub name: String,
    /// Folder in which the crate's own folder is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Take the SDK from this folder `sdk/procedure` instead of putting this program's own into the crate
    #[arg(long, value_name = "PATH")]
    pub sdk: Option<PathBuf>,
}

#[derive(Args)]
pub struct BuildArgs {
    /// The crate's folder
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Where the module goes [default: target/procedures in the crate's folder]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Use this way of building instead of the first that works
    #[arg(long, value_enum)]
    pub toolchain: Option<reprise_build::Choice>,
    /// Put this program's SDK into the crate first, in place of another version's
    #[arg(long)]
    pub update_sdk: bool,
}

#[derive(Subcommand)]
pub enum ModuleCommand {
    /// Install a module, or a new version of it, on all partitions at once
    #[command(
        after_help = "Examples:\n  reprise module deploy target/procedures/voter.wasm --name voter\n  \
                      reprise module deploy target/procedures/voter.wasm --dry-run"
    )]
    Deploy {
        /// The wasm binary
        file: PathBuf,
        /// Name of the module [default: the file's name]
        #[arg(long)]
        name: Option<String>,
        /// Say what it would do to the tables, and how long that would take; nothing is installed. Exit status 1 where it would be
        /// refused
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// The modules in service
    #[command(after_help = "Example:\n  reprise module list")]
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// One module: versions, procedures, tables
    #[command(after_help = "Example:\n  reprise module show voter")]
    Show {
        module: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take a module out of service; its tables stay
    #[command(after_help = "Example:\n  reprise module remove voter")]
    Remove {
        module: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Args)]
pub struct CallArgs {
    /// MODULE.PROCEDURE
    #[arg(required_unless_present = "file")]
    pub procedure: Option<String>,
    /// Arguments by name, a JSON object; - reads it from standard input [default: {}]
    #[arg(conflicts_with = "file")]
    pub args: Option<String>,
    /// The first committed outcome for this key answers every repeat
    #[arg(long, value_name = "KEY", conflicts_with = "file")]
    pub idempotency_key: Option<String>,
    /// One call a line, each an own transaction; - is standard input
    #[arg(long, value_name = "NDJSON")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Subcommand)]
pub enum IdempotencyCommand {
    /// The outcome kept under a key
    #[command(after_help = "Example:\n  reprise idempotency show order-17")]
    Show {
        key: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Subcommand)]
pub enum TableCommand {
    /// All tables with rows and bytes
    #[command(after_help = "Example:\n  reprise table list")]
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// One table: columns, keys, indexes
    #[command(after_help = "Example:\n  reprise table show votes")]
    Show {
        table: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Drop a table, with its rows, that no module in service declares
    #[command(after_help = "Example:\n  reprise table drop voter.votes")]
    Drop {
        table: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Committed rows in the order of an index
    #[command(after_help = rows::ROWS_EXAMPLE)]
    Rows(RowsArgs),
    /// Counts and sums of rows by the leading columns of an index
    #[command(after_help = rows::GROUPS_EXAMPLE)]
    Groups(GroupsArgs),
}

/// Which records; all of what is given must be so.
#[derive(Args)]
pub struct LogFilterArgs {
    /// Only calls of this module, and its deployments
    #[arg(long)]
    pub module: Option<String>,
    /// Only calls of procedures of this name
    #[arg(long)]
    pub procedure: Option<String>,
    /// Only this transaction's records
    #[arg(long, value_name = "ID")]
    pub transaction: Option<u64>,
    /// Only records with this idempotency key, and those that changed the row with this primary key (values separated by commas)
    #[arg(long)]
    pub key: Option<String>,
    /// Only calls with an argument of this value
    #[arg(long, value_name = "NAME:VALUE")]
    pub argument: Option<String>,
}

#[derive(Subcommand)]
pub enum LogCommand {
    /// The newest records
    #[command(
        after_help = "Examples:\n  reprise log tail --limit 5 --kind command\n  reprise log tail --procedure hold --argument customer:4711 --follow"
    )]
    Tail {
        /// Records at most
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
        /// Only records that touch this partition
        #[arg(long)]
        partition: Option<u16>,
        /// Only records of this kind: genesis, deploy, remove, command, changes, checkpoint, drop_table
        #[arg(long)]
        kind: Option<String>,
        #[command(flatten)]
        filter: LogFilterArgs,
        /// Go on with records as they become durable, until it is stopped
        #[arg(long)]
        follow: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// The newest lines that procedures wrote with `log`
    #[command(
        after_help = "Examples:\n  reprise log output --level warn\n  reprise log output --procedure checkout --follow"
    )]
    Output {
        /// How many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Only lines of this module's procedures
        #[arg(long)]
        module: Option<String>,
        /// Only lines of procedures of this name
        #[arg(long)]
        procedure: Option<String>,
        /// Only lines of this level and above: debug, info, warn, error
        #[arg(long)]
        level: Option<String>,
        /// Only this transaction's lines
        #[arg(long, value_name = "ID")]
        transaction: Option<u64>,
        /// Go on with lines as they come, until it is stopped
        #[arg(long)]
        follow: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// One record
    #[command(after_help = "Example:\n  reprise log show 584")]
    Show {
        lsn: u64,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Check a log's files; no server runs on them
    #[command(after_help = "Example:\n  reprise log verify ./reprise-data")]
    Verify {
        /// A data directory, or the log's own
        dir: PathBuf,
    },
    /// Print a log's records from its files; no server runs on them
    #[command(after_help = "Example:\n  reprise log dump ./reprise-data --output json | jq .args")]
    Dump {
        /// A data directory, or the log's own
        dir: PathBuf,
        /// Begin at this LSN
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// Records at most
        #[arg(long)]
        limit: Option<u64>,
    },
}

#[derive(Subcommand)]
pub enum CallsCommand {
    /// The calls that run or wait, the oldest first
    #[command(after_help = "Example:\n  reprise calls list")]
    List {
        /// Calls at most
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
        limit: u16,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// End a call that runs or waits: it is answered as cancelled, and leaves nothing
    #[command(after_help = "Example:\n  reprise calls cancel 4711")]
    Cancel {
        /// Its id, or its transaction's
        id: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// Take a checkpoint and wait until it is published
    #[command(after_help = "Example:\n  reprise checkpoint take --output json")]
    Take {
        /// Return once it has begun
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// What a checkpoint's file holds; no server is needed
    #[command(after_help = inspect::EXAMPLE)]
    Show(ShowArgs),
    /// The checkpoints, newest first
    #[command(after_help = "Example:\n  reprise checkpoint list")]
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Args)]
pub struct BenchArgs {
    /// What to run; replay replays what an earlier run left in --data-dir
    #[arg(value_parser = bench_workloads())]
    pub workload: String,
    /// Length of the measured window
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Run before the window, not counted
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub warmup: f64,
    /// Slices of the data [default: 1, or what --data-dir has]
    #[arg(long, value_name = "N", value_parser = partitions, conflicts_with = "url")]
    pub partitions: Option<u16>,
    /// Engine threads [default: cores, at most one a partition]
    #[arg(long, value_name = "N", value_parser = sites, conflicts_with = "url")]
    pub sites: Option<u16>,
    /// Percent of remote transactions (bank: transfers between partitions; tpcb: accounts of another branch;
    /// tpcc: New-Orders and Payments between partitions) [default: bank as chance has it, tpcb 15, tpcc as the
    /// specification has it: 1 of an order's lines, 15 of payments]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    pub remote: Option<u8>,
    /// Size of the data: branches (tpcb), 100,000 subscribers each (tatp) [default: 10 and 1 a partition]
    #[arg(long, value_name = "N")]
    pub scale: Option<u32>,
    /// Warehouses (tpcc) [default: one a partition, two at least]
    #[arg(long, value_name = "N")]
    pub warehouses: Option<u32>,
    /// What the log holds: command, physiological, auto, both or none [default: command]
    #[arg(long, value_name = "KIND", value_parser = log_mode, conflicts_with = "url")]
    pub log: Option<LogPolicy>,
    /// Log the changed columns of an updated row (true), or all of it (false) [default: true]
    #[arg(long, value_name = "BOOL", value_parser = log_differential, conflicts_with = "url")]
    pub log_differential: Option<AfterImage>,
    /// replay: of transactions that were logged both ways, apply the command or the changed rows (physiological) [default: command]
    #[arg(long, value_name = "KIND", value_parser = recover_from, conflicts_with = "url")]
    pub recover_from: Option<RecoverFrom>,
    /// sync or async [default: sync]
    #[arg(long, value_name = "MODE", value_parser = commit_mode, conflicts_with = "url")]
    pub commit: Option<CommitMode>,
    /// Microseconds to wait for more commits before a write to the log [default: 0]
    #[arg(long, value_name = "N", value_parser = group_commit_us, conflicts_with = "url")]
    pub group_commit_us: Option<u64>,
    /// Where the database lies [default: a temporary directory]
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub data_dir: Option<PathBuf>,
    /// Transactions per second to offer, whether or not they come back (open loop) [default: as fast as they come back]
    #[arg(long, value_name = "TXN_PER_S")]
    pub rate: Option<f64>,
    /// The procedures compiled into this program in place of wasm
    #[arg(long, conflicts_with = "url")]
    pub native: bool,
    /// The same seed makes the same calls [default: 1; over HTTP, where tables stay from run to run, a new one]
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
    /// Where NAME.wasm lie [default: procedures/ beside this program's folder]
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,
    /// A server to load, in place of a database in this process
    #[arg(long)]
    pub url: Option<String>,
    /// Bearer token for that server
    #[arg(long, env = "REPRISE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// One call a request, or many [default: single]
    #[arg(long, value_enum, requires = "url")]
    pub via: Option<ViaArg>,
    /// Connections to the server [default: 64 single, 4 batch]
    #[arg(long, value_name = "N", requires = "url")]
    pub connections: Option<usize>,
    /// Run wasm, native procedures, wasm with the command log and the typed kernel in turn, N rounds; print the medians
    #[arg(long, value_name = "N", value_parser = rounds, conflicts_with_all = ["url", "rate", "native", "log", "data_dir"])]
    pub compare: Option<usize>,
    /// Measure what the database can take, then offer so many times that (open loop)
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
    /// Memory that is made ready behind the load, for what the tables grow by, and kept so: bytes, or a number with KiB, MiB or GiB
    /// [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "url")]
    pub memory_ready: Option<u64>,
    /// Requests that a connection sends before it reads the first answer, with --via single [default: 1]
    #[arg(long, value_name = "N", requires = "url")]
    pub pipeline: Option<usize>,
}

fn rounds(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rounds @ 1..=1_000) => Ok(rounds),
        _ => Err("the number of rounds is from 1 to 1000".into()),
    }
}

fn overload(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1.0..=100.0).contains(&factor) => Ok(factor),
        _ => Err("the load is from 1 to 100 times what the database can take".into()),
    }
}

fn bench_workloads() -> Vec<&'static str> {
    let mut names = reprise_driver::WORKLOADS.to_vec();
    names.push("replay");
    names
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ViaArg {
    Single,
    Batch,
}

fn count(text: &str, what: &str, max: u16) -> Result<u16, String> {
    match text.parse() {
        Ok(number) if (1..=max).contains(&number) => Ok(number),
        _ => Err(format!("the number of {what} is from 1 to {max}")),
    }
}

pub fn partitions(text: &str) -> Result<u16, String> {
    count(text, "partitions", reprise_base::limits::PARTITIONS_MAX)
}

pub fn sites(text: &str) -> Result<u16, String> {
    count(text, "sites", reprise_base::limits::SITES_MAX)
}

pub fn log_mode(text: &str) -> Result<LogPolicy, String> {
    match text {
        "command" => Ok(LogPolicy::Command),
        "none" => Ok(LogPolicy::None),
        "physiological" => Ok(LogPolicy::Physiological),
        "auto" => Ok(LogPolicy::Auto),
        "both" => Ok(LogPolicy::Both),
        _ => Err("the log is command, physiological, auto, both or none".into()),
    }
}

pub fn log_differential(text: &str) -> Result<AfterImage, String> {
    match text {
        "true" => Ok(AfterImage::Changed),
        "false" => Ok(AfterImage::Whole),
        _ => Err("the differential log is true (changed columns) or false (whole rows)".into()),
    }
}

pub fn recover_from(text: &str) -> Result<RecoverFrom, String> {
    match text {
        "command" => Ok(RecoverFrom::Command),
        "physiological" => Ok(RecoverFrom::Changes),
        _ => Err("recover from command or physiological".into()),
    }
}

pub fn commit_mode(text: &str) -> Result<CommitMode, String> {
    match text {
        "sync" => Ok(CommitMode::Sync),
        "async" => Ok(CommitMode::Async),
        _ => Err("a commit is sync or async".into()),
    }
}

/// Longest wait for more commits.
const GROUP_COMMIT_US_MAX: u64 = 1_000_000;

pub fn group_commit_us(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(us) if us <= GROUP_COMMIT_US_MAX => Ok(us),
        _ => Err(format!("the wait is from 0 to {GROUP_COMMIT_US_MAX} microseconds")),
    }
}

fn bounded(text: &str, what: &str, min: u64, max: u64) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("{what} is from {min} to {max}")),
    }
}

pub fn checkpoint_every(text: &str) -> Result<u64, String> {
    bounded(text, "the time between checkpoints", 0, 365 * 24 * 3600)
}

pub fn checkpoint_log_mib(text: &str) -> Result<u64, String> {
    bounded(text, "the log between checkpoints", 0, 1 << 30)
}

pub fn recovery_target_s(text: &str) -> Result<u64, String> {
    bounded(text, "the time that a restart may take", 0, 24 * 3600)
}

pub fn checkpoints_kept(text: &str) -> Result<u64, String> {
    bounded(text, "the number of checkpoints kept", 1, 1000)
}

pub fn idempotency_keep_s(text: &str) -> Result<u64, String> {
    bounded(text, "the time for which outcomes are kept", 1, 365 * 24 * 3600)
}

/// Bytes, or a number of KiB, MiB, GiB or TiB.
pub fn size(text: &str) -> Result<u64, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let with_unit = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = with_unit.unwrap_or((text, 0));
    let number: Option<u64> = number.trim_end().parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| {
        format!("{text:?} is no size: write bytes, or a whole number with KiB, MiB, GiB or TiB behind it")
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together_and_every_verb_has_an_example() {
        Cli::command().debug_assert();
        fn check(command: &clap::Command) {
            let help = command
                .get_after_help()
                .map(|help| help.to_string())
                .unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", command.get_name());
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("512 MiB"), Ok(512 << 20));
        for text in ["", "GiB", "1.5GiB", "-1", "2GB", "99999999TiB"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn later_modes_are_refused_with_a_reason() {
        assert_eq!(log_mode("both"), Ok(LogPolicy::Both));
        assert!(log_mode("physical").is_err());
        assert!(Cli::try_parse_from(["reprise", "serve", "--recover-from", "none"]).is_err());
        assert!(Cli::try_parse_from(["reprise", "serve", "--device", "nvram"]).is_err());
        assert!(Cli::try_parse_from(["reprise", "serve", "--partitions", "0"]).is_err());
        assert!(Cli::try_parse_from(["reprise", "bench", "voter", "--url", "http://x", "--native"]).is_err());
        assert!(Cli::try_parse_from(["reprise", "bench", "voter", "--via", "batch"]).is_err());
    }
}
