//! Every verb and its flags, with the text of `--help`. The flags of `serve` are in `config`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use reprise_wire::RecordKind;

use crate::{
    advise::{self, AdviseArgs},
    backup::BackupCommand,
    calls::CallsCommand,
    config::{self, ServeArgs},
    directory::{NodeCommand, StandbyCommand},
    doctor::{self, DoctorArgs},
    inspect::{self, ShowArgs},
    plan::{ConsentArgs, PlanArgs},
    recover::{self, RecoverArgs},
    restore::{self, RestoreArgs},
    rows::{self, GroupsArgs, RowsArgs},
    token::TokenCommand,
};

/// An in-memory transactional database. Its stored procedures are WebAssembly modules.
#[derive(Parser)]
#[command(
    name = "reprise",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    after_help = "Example:\n  reprise serve &\n  reprise module deploy voter.wasm\n  \
                  reprise call voter.initialize '{\"contestants\": [\"Ada\", \"Bruno\"]}'\n\n\
                  Exit status: 0 success, 1 an error or a negative answer, 2 bad usage."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Output format of results
    #[arg(long, global = true, value_enum, value_name = "FORM", default_value_t = Output::Text)]
    pub output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Lines and tables for people
    Text,
    /// JSON for programs
    Json,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the server
    #[command(after_help = config::EXAMPLE)]
    Serve(ServeArgs),
    /// Create, list and revoke the tokens in the server's configuration file
    #[command(
        subcommand,
        after_help = "Example:\n  reprise token new app --role write\n  reprise token list"
    )]
    Token(TokenCommand),
    /// Create a procedure crate that builds and passes its own test
    #[command(after_help = "Example:\n  reprise new orders && cd orders && cargo test")]
    New(NewArgs),
    /// Compile a procedure crate to a wasm module, with the first toolchain that works on this machine
    #[command(
        after_help = "Examples:\n  reprise build\n  reprise build orders && reprise module deploy orders/target/procedures/orders.wasm"
    )]
    Build(BuildArgs),
    /// Deploy, roll back, show and remove modules
    #[command(
        subcommand,
        after_help = "Example:\n  reprise module deploy target/procedures/voter.wasm\n  reprise module show voter"
    )]
    Module(ModuleCommand),
    /// Call a procedure once, or once for each line of a file. Each call is one transaction
    #[command(after_help = CALL_EXAMPLE)]
    Call(CallArgs),
    /// Show the outcome of a call that had an idempotency key
    #[command(subcommand, after_help = "Example:\n  reprise idempotency show order-17")]
    Idempotency(IdempotencyCommand),
    /// List, show and drop tables, and read their rows
    #[command(
        subcommand,
        after_help = "Example:\n  reprise table list\n  reprise table rows tickets.seats --index state --prefix 1,held"
    )]
    Table(TableCommand),
    /// Read and check the log, on a server or in its files
    #[command(
        subcommand,
        after_help = "Example:\n  reprise log tail --limit 5\n  reprise log verify ./reprise-data"
    )]
    Log(LogCommand),
    /// List the calls that run or wait now, and cancel one
    #[command(
        subcommand,
        after_help = "Example:\n  reprise calls list\n  reprise calls cancel 4711"
    )]
    Calls(CallsCommand),
    /// Say which log suits which procedure, by the costs that the server measured in its own calls
    #[command(after_help = advise::EXAMPLE)]
    Advise(AdviseArgs),
    /// Take, list and read checkpoints
    #[command(
        subcommand,
        after_help = "Example:\n  reprise checkpoint take\n  reprise checkpoint show ./reprise-data"
    )]
    Checkpoint(CheckpointCommand),
    /// Show the standbys and their lag, forget one, or make one the primary
    #[command(
        subcommand,
        after_help = "Example:\n  reprise replication status\n  reprise replication promote --url http://127.0.0.1:8081"
    )]
    Replication(ReplicationCommand),
    /// Look at the part of a data directory in its cluster, and change it while no server runs there
    #[command(
        subcommand,
        after_help = "Example:\n  reprise node show ./reprise-data\n  reprise node lead ./reprise-data --accept-loss"
    )]
    Node(NodeCommand),
    /// Have a standby begin again from its primary
    #[command(subcommand, after_help = "Example:\n  reprise standby reset ./standby-data")]
    Standby(StandbyCommand),
    /// Create, verify and restore backups
    #[command(
        subcommand,
        after_help = "Example:\n  reprise backup create --to ./backup\n  reprise backup verify ./backup\n  \
                      reprise backup restore ./backup --to ./reprise-data"
    )]
    Backup(BackupCommand),
    /// Restore a database as it was at a point in time, into a new data directory
    #[command(after_help = restore::EXAMPLE)]
    Restore(RestoreArgs),
    /// Recover a data directory without serving it, or show what a recovery would do
    #[command(after_help = recover::EXAMPLE)]
    Recover(RecoverArgs),
    /// Show the server's state: role, durability, log, memory
    #[command(after_help = "Example:\n  reprise status --output json")]
    Status(ServerArgs),
    /// Check this machine for problems that would harm a server, and print the remedies
    #[command(after_help = doctor::EXAMPLE)]
    Doctor(DoctorArgs),
}

const CALL_EXAMPLE: &str = "Examples:
  reprise call voter.vote '{\"phone_number\": 2125550123, \"contestant_number\": 1, \"max_votes_per_phone\": 2}'
  reprise call voter.vote --file votes.ndjson      each line has the arguments of one call
  reprise call --file calls.ndjson                 each line has {\"module\", \"procedure\", \"args\"}";

/// The server to ask, and the token to send.
#[derive(Args, Clone)]
pub struct ServerArgs {
    /// URL of the server
    #[arg(long, env = "REPRISE_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Bearer token to send
    #[arg(long, env = "REPRISE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// PEM file with CA certificates to trust besides the system's, if the URL begins with https://
    #[arg(long, env = "REPRISE_CA_CERT", value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
}

#[derive(Args)]
pub struct NewArgs {
    /// Name of the crate and of its module: a to z, 0 to 9 and _
    pub name: String,
    /// Folder in which to create the crate's folder
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Depend on the SDK in this folder `sdk/procedure`, instead of copying this program's SDK into the crate
    #[arg(long, value_name = "PATH")]
    pub sdk: Option<PathBuf>,
}

#[derive(Args)]
pub struct BuildArgs {
    /// Folder of the crate
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Folder for the built module [default: target/procedures in the crate's folder]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Build with this toolchain, instead of the first one that works
    #[arg(long, value_enum)]
    pub toolchain: Option<reprise_build::ToolchainChoice>,
    /// First replace the crate's copy of the SDK with this program's SDK
    #[arg(long)]
    pub update_sdk: bool,
}

#[derive(Subcommand)]
pub enum ModuleCommand {
    /// Install a module, or a new version of it, on all partitions in one step
    #[command(
        after_help = "Examples:\n  reprise module deploy target/procedures/voter.wasm --name voter\n  \
                      reprise module deploy target/procedures/voter.wasm --dry-run\n  \
                      reprise module deploy ledger.wasm --allow drop-column:ledger.payouts.bank_reference"
    )]
    Deploy {
        /// The wasm binary
        file: PathBuf,
        /// Name of the module [default: the file's name without .wasm]
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        ask: PlanArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Deploy an earlier version again. The server checks it like any other deployment
    #[command(
        after_help = "Examples:\n  reprise module rollback voter --dry-run\n  reprise module rollback voter --version 2"
    )]
    Rollback {
        /// Name of the module
        module: String,
        /// Version to deploy again [default: the newest earlier version with other bytes]
        #[arg(long, value_name = "N")]
        version: Option<u32>,
        #[command(flatten)]
        ask: PlanArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List the modules in service
    #[command(after_help = "Example:\n  reprise module list")]
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one module: versions, procedures, tables
    #[command(after_help = "Example:\n  reprise module show voter")]
    Show {
        /// Name of the module
        module: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Take a module out of service. Its tables stay
    #[command(
        after_help = "Example:\n  reprise module remove voter --allow drop-procedure:voter.vote --allow abandon-table:voter.votes"
    )]
    Remove {
        /// Name of the module
        module: String,
        #[command(flatten)]
        consents: ConsentArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Args)]
pub struct CallArgs {
    /// Procedure to call, as MODULE.PROCEDURE
    #[arg(required_unless_present = "file")]
    pub procedure: Option<String>,
    /// Arguments by name, as a JSON object; - reads them from standard input [default: {}]
    #[arg(conflicts_with = "file")]
    pub args: Option<String>,
    /// Key of this call. If a call with this key has committed, the server returns its outcome and runs nothing
    #[arg(long, value_name = "KEY", conflicts_with = "file")]
    pub idempotency_key: Option<String>,
    /// Safety level that a write must reach: 1-safe, 2-safe, quorum or very-safe. If it can't, the call is refused
    #[arg(long, value_name = "LEVEL", conflicts_with = "file")]
    pub safety: Option<String>,
    /// File with one call on each line, each an own transaction; - reads standard input
    #[arg(long, value_name = "NDJSON")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub server: ServerArgs,
}

#[derive(Subcommand)]
pub enum IdempotencyCommand {
    /// Show the outcome that the server keeps under a key
    #[command(after_help = "Example:\n  reprise idempotency show order-17")]
    Show {
        /// The idempotency key of the call
        key: String,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Subcommand)]
pub enum TableCommand {
    /// List all tables with their rows and bytes
    #[command(after_help = "Example:\n  reprise table list")]
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one table: columns, keys, indexes
    #[command(after_help = "Example:\n  reprise table show votes")]
    Show {
        /// Name of the table
        table: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Drop a table and its rows. No module in service may declare it
    #[command(after_help = "Example:\n  reprise table drop voter.votes")]
    Drop {
        /// Full name of the table, MODULE.TABLE
        table: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Print committed rows in the order of an index
    #[command(after_help = rows::ROWS_EXAMPLE)]
    Rows(RowsArgs),
    /// Print counts and sums of rows, grouped by the leading columns of an index
    #[command(after_help = rows::GROUPS_EXAMPLE)]
    Groups(GroupsArgs),
}

/// Conditions on the records. A record is printed if it meets all of them.
#[derive(Args)]
pub struct LogFilterArgs {
    /// Only calls of this module, and its deployments
    #[arg(long)]
    pub module: Option<String>,
    /// Only calls of procedures with this name
    #[arg(long)]
    pub procedure: Option<String>,
    /// Only records of this transaction
    #[arg(long, value_name = "ID")]
    pub transaction: Option<u64>,
    /// Only records that have this idempotency key, or changed the row with this primary key (values separated by commas)
    #[arg(long)]
    pub key: Option<String>,
    /// Only calls whose argument NAME has this VALUE. You may give it more than once
    #[arg(long = "argument", value_name = "NAME:VALUE")]
    pub arguments: Vec<String>,
    /// Only transactions at or after this time, for example 2026-11-27T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only transactions before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
}

#[derive(Subcommand)]
pub enum LogCommand {
    /// Print the newest records
    #[command(
        after_help = "Examples:\n  reprise log tail --limit 5 --kind command\n  reprise log tail --procedure hold --argument customer:4711 --follow"
    )]
    Tail {
        /// Largest number of records to print
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        limit: u64,
        /// Only records that touch this partition
        #[arg(long)]
        partition: Option<u16>,
        #[arg(long, help = format!("Only records of this kind: {}", RecordKind::ALL.map(RecordKind::name).join(", ")))]
        kind: Option<String>,
        #[command(flatten)]
        filter: LogFilterArgs,
        /// Keep running, and print new records once they are durable
        #[arg(long)]
        follow: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Print the newest lines that procedures wrote with `log`
    #[command(
        after_help = "Examples:\n  reprise log output --level warn\n  reprise log output --procedure checkout --follow"
    )]
    Output {
        /// Largest number of lines to print
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Only lines of this module's procedures
        #[arg(long)]
        module: Option<String>,
        /// Only lines of procedures with this name
        #[arg(long)]
        procedure: Option<String>,
        /// Only lines of this level or a more severe one: debug, info, warn, error
        #[arg(long)]
        level: Option<String>,
        /// Only lines of this transaction
        #[arg(long, value_name = "ID")]
        transaction: Option<u64>,
        /// Keep running, and print new lines when they come
        #[arg(long)]
        follow: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show one record
    #[command(after_help = "Examples:\n  reprise log show 584\n  reprise log show 584 /mnt/pmem0/reprise")]
    Show {
        /// LSN of the record
        lsn: u64,
        /// Read these files instead of asking a server: a data directory, a log directory, or an NVRAM region. No server may run on them
        dir: Option<PathBuf>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Check the files of a log. No server may run on them
    #[command(after_help = "Example:\n  reprise log verify ./reprise-data")]
    Verify {
        /// A data directory, a log directory, or an NVRAM region
        dir: PathBuf,
    },
    /// Print the records in the files of a log. No server may run on them
    #[command(after_help = "Example:\n  reprise log dump ./reprise-data --output json | jq .args")]
    Dump {
        /// A data directory, a log directory, or an NVRAM region
        dir: PathBuf,
        /// LSN of the first record to print
        #[arg(long, value_name = "LSN")]
        from: Option<u64>,
        /// Largest number of records to print
        #[arg(long)]
        limit: Option<u64>,
    },
}

#[derive(Subcommand)]
pub enum ReplicationCommand {
    /// Show the primary, and the state and lag of each standby
    #[command(after_help = "Example:\n  reprise replication status --output json")]
    Status {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a lost standby that will not come back from the primary's list
    #[command(after_help = "Example:\n  reprise replication forget east")]
    Forget {
        /// Name of the standby
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Make the standby at --url the primary. The old primary steps down first
    #[command(
        after_help = "Example:\n  reprise replication promote --url http://127.0.0.1:8081\n  \
                      reprise replication promote --force --url http://127.0.0.1:8081\n  \
                      reprise replication promote --force --accept-loss --url http://127.0.0.1:8081"
    )]
    Promote {
        /// Do not ask the old primary to step down. You have stopped it by other means
        #[arg(long)]
        force: bool,
        /// With --force: promote even if acknowledged writes are or may be lost. The answer names their LSNs
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// Take a checkpoint and wait until it is published
    #[command(after_help = "Example:\n  reprise checkpoint take --output json")]
    Take {
        /// Return when the checkpoint has begun, and do not wait for its end
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show the content of a checkpoint file. No server is needed
    #[command(after_help = inspect::EXAMPLE)]
    Show(ShowArgs),
    /// List the checkpoints, newest first
    #[command(after_help = "Example:\n  reprise checkpoint list")]
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
}

#[cfg(test)]
mod tests;
