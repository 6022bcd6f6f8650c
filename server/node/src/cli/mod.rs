//! Every verb and its flags, in the words of `--help`; the flags of `serve` are those of `config`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use reprise_wire::RecordKind;

use crate::{
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
    #[command(after_help = config::EXAMPLE)]
    Serve(ServeArgs),
    /// Make, list and revoke the tokens in the server's configuration file
    #[command(
        subcommand,
        after_help = "Example:\n  reprise token new app --role write\n  reprise token list"
    )]
    Token(TokenCommand),
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
    /// See how far the standbys are, and make one of them the primary
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
    /// Say what of this machine would hurt a server, and how to mend it
    #[command(after_help = doctor::EXAMPLE)]
    Doctor(DoctorArgs),
}

const CALL_EXAMPLE: &str = "Examples:
  reprise call voter.vote '{\"phone_number\": 2125550123, \"contestant_number\": 1, \"max_votes_per_phone\": 2}'
  reprise call voter.vote --file votes.ndjson      each line the arguments of one call
  reprise call --file calls.ndjson                 each line {\"module\", \"procedure\", \"args\"}";

/// Which server to ask, and as whom.
#[derive(Args, Clone)]
pub struct ServerArgs {
    /// Where the server is
    #[arg(long, env = "REPRISE_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// Bearer token
    #[arg(long, env = "REPRISE_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Certificates, as PEM, that sign the server's where its URL is https://, beside the system's
    #[arg(long, env = "REPRISE_CA_CERT", value_name = "FILE")]
    pub ca_cert: Option<PathBuf>,
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
                      reprise module deploy target/procedures/voter.wasm --dry-run\n  \
                      reprise module deploy ledger.wasm --allow drop-column:ledger.payouts.bank_reference"
    )]
    Deploy {
        /// The wasm binary
        file: PathBuf,
        /// Name of the module [default: the file's name]
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        ask: PlanArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Deploy the bytes of a former version again, judged like any other deployment
    #[command(
        after_help = "Examples:\n  reprise module rollback voter --dry-run\n  reprise module rollback voter --version 2"
    )]
    Rollback {
        module: String,
        /// The version whose bytes are deployed [default: the newest one before that in service with other bytes]
        #[arg(long, value_name = "N")]
        version: Option<u32>,
        #[command(flatten)]
        ask: PlanArgs,
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
    #[command(
        after_help = "Example:\n  reprise module remove voter --allow drop-procedure:voter.vote --allow abandon-table:voter.votes"
    )]
    Remove {
        module: String,
        #[command(flatten)]
        consents: ConsentArgs,
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
    /// A write has at least this level (1-safe, 2-safe, quorum, very-safe), or the call is refused
    #[arg(long, value_name = "LEVEL", conflicts_with = "file")]
    pub safety: Option<String>,
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
    /// Only calls with an argument of this value; may be given more than once
    #[arg(long = "argument", value_name = "NAME:VALUE")]
    pub arguments: Vec<String>,
    /// Only transactions at this time or later, as 2026-11-27T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only transactions before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
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
        #[arg(long, help = format!("Only records of this kind: {}", RecordKind::ALL.map(RecordKind::name).join(", ")))]
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
    #[command(after_help = "Examples:\n  reprise log show 584\n  reprise log show 584 /mnt/pmem0/reprise")]
    Show {
        lsn: u64,
        /// Of these files, on which no server runs, in place of a server's: a data directory, the log's own, or an NVRAM region
        dir: Option<PathBuf>,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Check a log's files; no server runs on them
    #[command(after_help = "Example:\n  reprise log verify ./reprise-data")]
    Verify {
        /// A data directory, the log's own, or an NVRAM region
        dir: PathBuf,
    },
    /// Print a log's records from its files; no server runs on them
    #[command(after_help = "Example:\n  reprise log dump ./reprise-data --output json | jq .args")]
    Dump {
        /// A data directory, the log's own, or an NVRAM region
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
pub enum ReplicationCommand {
    /// Who is the primary, and how far each standby is
    #[command(after_help = "Example:\n  reprise replication status --output json")]
    Status {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Have the primary forget a standby that is lost and will not come back
    #[command(after_help = "Example:\n  reprise replication forget east")]
    Forget {
        /// The standby's name
        name: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Make the standby at --url the primary; the old primary steps down for it
    #[command(
        after_help = "Example:\n  reprise replication promote --url http://127.0.0.1:8081\n  \
                      reprise replication promote --force --url http://127.0.0.1:8081\n  \
                      reprise replication promote --force --accept-loss --url http://127.0.0.1:8081"
    )]
    Promote {
        /// Do not ask the old primary to step down: it was stopped by other means
        #[arg(long)]
        force: bool,
        /// With --force: also where the standby can't exclude that what the old primary answered is lost; the answer names the LSNs
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
    fn later_modes_are_refused_with_a_reason() {
        assert!(Cli::try_parse_from(["reprise", "serve", "--log", "both"]).is_ok());
        assert!(Cli::try_parse_from(["reprise", "serve", "--log", "physical"]).is_err());
        assert!(Cli::try_parse_from(["reprise", "recover", "--data-dir", "x", "--recover-from", "none"]).is_err());
        assert!(Cli::try_parse_from(["reprise", "serve", "--device", "tape"]).is_err());
        assert!(Cli::try_parse_from(["reprise", "serve", "--partitions", "0"]).is_err());
    }
}
