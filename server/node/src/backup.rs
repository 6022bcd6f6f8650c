//! `reprise backup`: make, check and restore backups.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Subcommand;
use reprise_api::{Backup, BackupState, U64};
use reprise_backup::{BackupManifest, ManifestFile, VerifiedBackup, create_backup, receive_backup, verify_backup};
use reprise_client::Client;
use reprise_codec::rfc3339;
use serde::Serialize;

use crate::{
    cli::{Output, ServerArgs},
    output::{
        ProgressLine, VerbFailure, VerbResult, bytes, grouped, print_json, print_pairs, print_table, print_text, table,
    },
    region,
    remote::{connect, failure},
    restore::{PointArgs, restore_from},
};

#[derive(Subcommand)]
pub enum BackupCommand {
    /// Create a backup of a running server, or of a data directory on which no server runs
    #[command(after_help = CREATE_EXAMPLE)]
    Create {
        /// Local directory for the backup. It must be empty, or not exist yet [default: the backup stays on the server]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
        /// Back up this data directory, without a server
        #[arg(long, value_name = "DIR", requires = "to", conflicts_with = "keep")]
        data_dir: Option<PathBuf>,
        /// Also keep a copy on the server
        #[arg(long)]
        keep: bool,
        /// Also include the older checkpoint and the log since then. You can then restore points before the backup was made
        #[arg(long, conflicts_with = "data_dir")]
        earlier: bool,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// List the backups on a server, newest first
    #[command(after_help = "Example:\n  reprise backup list")]
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Download a backup from a server
    #[command(after_help = "Example:\n  reprise backup fetch 1772388000000000 --to ./backup")]
    Fetch {
        /// Id of the backup, from `reprise backup list`
        id: String,
        /// Directory for the backup. It must be empty, or not exist yet
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Remove a backup from a server's disk
    #[command(after_help = "Example:\n  reprise backup remove 1772388000000000")]
    Remove {
        /// Id of the backup, from `reprise backup list`
        id: String,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Check every checksum of a backup, and decode its whole content
    #[command(after_help = "Example:\n  reprise backup verify ./backup")]
    Verify {
        /// Directory of the backup
        dir: PathBuf,
    },
    /// Restore a backup into a new data directory, completely or up to a point
    #[command(after_help = "Examples:\n  reprise backup restore ./backup --to ./reprise-data\n  \
                      reprise backup restore ./backup --to ./before --lsn 48213")]
    Restore {
        /// Directory of the backup
        dir: PathBuf,
        /// New data directory. It must be empty, or not exist yet
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        #[command(flatten)]
        point: PointArgs,
    },
}

const CREATE_EXAMPLE: &str = "Examples:
  reprise backup create --to ./backup                               back up the running server, and download the backup
  reprise backup create                                             back up the running server, and leave the backup on its disk
  reprise backup create --data-dir ./reprise-data --to ./backup     back up a data directory, without a server

The server keeps working during a backup. If the server has tokens, you need one with the role admin.";
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn run(command: &BackupCommand, output: Output) -> VerbResult {
    match command {
        BackupCommand::Create {
            to,
            data_dir,
            keep,
            earlier,
            server,
        } => match (data_dir, to) {
            (Some(data_dir), Some(to)) => create_offline(data_dir, to, output),
            _ => create_online(&connect(server)?, to.as_deref(), (*keep, *earlier), output),
        },
        BackupCommand::List { server } => list(&connect(server)?, output),
        BackupCommand::Fetch { id, to, server } => {
            let client = connect(server)?;
            let backup = client.backup(id).map_err(failure)?;
            fetch(&client, &backup, to)?;
            print_manifest(to, &BackupManifest::read(to).context("read the backup")?, output)
        }
        BackupCommand::Remove { id, server } => {
            connect(server)?.remove_backup(id).map_err(failure)?;
            match output {
                Output::Json => print_json(&serde_json::json!({ "id": id, "removed": true }))?,
                Output::Text => print_text(&format!("removed backup {id}"))?,
            }
            Ok(())
        }
        BackupCommand::Verify { dir } => verify(dir, output),
        BackupCommand::Restore { dir, to, point } => {
            // A data directory would be taken, too: here it is one that can be checked.
            BackupManifest::read(dir).with_context(|| format!("restore {}", dir.display()))?;
            restore_from(dir, None, to, point, output)
        }
    }
}

/// The printed facts about a backup.
#[derive(Serialize)]
pub struct BackupFacts {
    pub directory: PathBuf,
    pub database_id: String,
    pub partitions: u16,
    pub created_at: String,
    pub program_version: String,
    pub settings_hash: String,
    pub checkpoint_lsn: Option<U64>,
    pub end_lsn: U64,
    /// Records behind the checkpoint.
    pub records: u64,
    pub files: usize,
    pub bytes: u64,
}

impl BackupFacts {
    pub fn of(dir: &Path, manifest: &BackupManifest) -> Self {
        Self {
            directory: dir.to_owned(),
            database_id: manifest.database_id.clone(),
            partitions: manifest.partitions,
            created_at: rfc3339(manifest.created_us),
            program_version: manifest.program_version.clone(),
            settings_hash: manifest.settings_hash.clone(),
            checkpoint_lsn: manifest.checkpoint_lsn.map(U64),
            end_lsn: U64(manifest.log_end),
            records: manifest.records,
            files: manifest.files.len(),
            bytes: manifest.bytes(),
        }
    }

    fn pairs(&self) -> Vec<(&'static str, String)> {
        let begins = self
            .checkpoint_lsn
            .map_or("the log's beginning".to_owned(), |lsn| format!("checkpoint {lsn}"));
        vec![
            ("backup", self.directory.display().to_string()),
            (
                "database",
                format!("{}, {} partitions", self.database_id, self.partitions),
            ),
            (
                "made",
                format!("{} by version {}", self.created_at, self.program_version),
            ),
            (
                "content",
                format!(
                    "{begins} and {} records, up to LSN {}",
                    grouped(self.records),
                    self.end_lsn
                ),
            ),
            ("size", format!("{} in {} files", bytes(self.bytes), self.files)),
        ]
    }
}

pub fn print_manifest(dir: &Path, manifest: &BackupManifest, output: Output) -> VerbResult {
    let facts = BackupFacts::of(dir, manifest);
    match output {
        Output::Json => print_json(&facts)?,
        Output::Text => print_pairs(&facts.pairs())?,
    }
    Ok(())
}

fn create_offline(data_dir: &Path, to: &Path, output: Output) -> VerbResult {
    region::check_region(data_dir)?;
    let made = create_backup(data_dir, to);
    let manifest = made.with_context(|| format!("back up {}", data_dir.display()))?;
    print_manifest(to, &manifest, output)
}

/// Has the server make a backup, waits for it, and copies it if a place is named.
fn create_online(client: &Client, to: Option<&Path>, (keep, earlier): (bool, bool), output: Output) -> VerbResult {
    let line = ProgressLine::new();
    let mut backup = client.create_backup(earlier).map_err(failure)?;
    while backup.state == BackupState::Running {
        line.show(format!("backup: {} copied", bytes(backup.bytes)));
        thread::sleep(POLL_INTERVAL);
        backup = client.backup(&backup.id).map_err(failure)?;
    }
    line.clear();
    if backup.state == BackupState::Failed {
        let reason = backup.error.unwrap_or_default();
        return Err(VerbFailure::Other(anyhow::anyhow!("the backup failed: {reason}")));
    }
    let Some(to) = to else {
        return print_backup(&backup, output);
    };
    fetch(client, &backup, to)?;
    if !keep {
        client.remove_backup(&backup.id).map_err(failure)?;
    }
    print_manifest(to, &BackupManifest::read(to).context("read the backup")?, output)
}

/// Downloads a backup's files, checks each, and gives the directory its name when all are durable.
fn fetch(client: &Client, backup: &Backup, to: &Path) -> VerbResult {
    let files = backup.files.iter().map(|file| ManifestFile {
        path: file.path.clone(),
        bytes: file.bytes,
        sha256: file.sha256.clone(),
    });
    let files: Vec<_> = files.collect();
    let line = ProgressLine::new();
    let (mut done, total) = (0, files.iter().map(|file| file.bytes).sum());
    let received = receive_backup(to, &files, &mut |name| {
        done += files
            .iter()
            .find(|file| file.name() == name)
            .map_or(0, |file| file.bytes);
        line.show(format!("backup: downloading, {} of {}", bytes(done), bytes(total)));
        let read = client.backup_file(&backup.id, name);
        read.map(|read| Box::new(read) as Box<dyn Read>)
            .map_err(io::Error::other)
    });
    line.clear();
    received.with_context(|| format!("download backup {}", backup.id))?;
    Ok(())
}

fn print_backup(backup: &Backup, output: Output) -> VerbResult {
    match output {
        Output::Json => print_json(backup)?,
        Output::Text => {
            print_pairs(&[
                ("backup", backup.id.clone()),
                ("on the server", backup.directory.clone()),
                (
                    "size",
                    format!("{} in {} files", bytes(backup.bytes), backup.files.len()),
                ),
            ])?;
        }
    }
    Ok(())
}

fn list(client: &Client, output: Output) -> VerbResult {
    let list = client.backups().map_err(failure)?;
    if output == Output::Json {
        return Ok(print_json(&list)?);
    }
    let mut table = table(&["backup", "began", "state", "size", "end LSN", "directory"]);
    for backup in list.backups {
        let state = match backup.state {
            BackupState::Running => "running".to_owned(),
            BackupState::Published => "published".to_owned(),
            BackupState::Failed => format!("failed: {}", backup.error.unwrap_or_default()),
        };
        table.add_row([
            backup.id,
            backup.began_at,
            state,
            bytes(backup.bytes),
            backup.end_lsn.map_or("-".into(), |lsn| lsn.to_string()),
            backup.directory,
        ]);
    }
    Ok(print_table(&table)?)
}

#[derive(Serialize)]
struct BackupCheck {
    #[serde(flatten)]
    facts: BackupFacts,
    whole: bool,
    log_records: u64,
    rows: u64,
    tables: usize,
    modules: usize,
    idempotency_keys: u64,
}

fn verify(dir: &Path, output: Output) -> VerbResult {
    let line = ProgressLine::new();
    let mut done = 0;
    let verified = verify_backup(dir, &mut |read| {
        done += read;
        line.show(format!("checked {}", bytes(done)));
        true
    });
    line.clear();
    let found: VerifiedBackup = verified.with_context(|| format!("verify {}", dir.display()))?;
    let verified = BackupCheck {
        facts: BackupFacts::of(dir, &found.manifest),
        whole: true,
        log_records: found.log.records,
        rows: found.rows,
        tables: found.tables,
        modules: found.modules,
        idempotency_keys: found.idempotency_keys,
    };
    match output {
        Output::Json => print_json(&verified)?,
        Output::Text => {
            let mut pairs = verified.facts.pairs();
            pairs.push((
                "whole",
                format!(
                    "{} rows of {} tables, {} modules, {} keys; {} records of log",
                    grouped(verified.rows),
                    verified.tables,
                    verified.modules,
                    grouped(verified.idempotency_keys),
                    grouped(verified.log_records)
                ),
            ));
            print_pairs(&pairs)?;
        }
    }
    Ok(())
}
