//! `reprise backup`: make, check and restore backups.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Subcommand;
use reprise_api::{Backup, BackupState, U64};
use reprise_backup::{
    BackupManifest, ManifestFile, StagingDir, VerifiedBackup, create_backup, receive_backup, stage_backup,
    verify_backup,
};
use reprise_client::Client;
use reprise_codec::rfc3339;
use serde::Serialize;
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
};

use crate::{
    cli::{Output, ServerArgs},
    output::{
        ProgressLine, VerbFailure, VerbResult, bytes, grouped, print_json, print_note, print_pairs, print_table,
        print_text, table,
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
/// Exit status after a second Ctrl-C, as shells have it.
const INTERRUPTED_STATUS: i32 = 130;

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
            (_, Some(to)) => {
                let client = connect(server)?;
                create_online(&client, to, (*keep, *earlier), &Interrupt::listen()?, output)
            }
            (_, None) => {
                let client = connect(server)?;
                let begun = client.create_backup(*earlier).map_err(failure)?;
                let made = wait_made(&client, begun, &Interrupt::default())?;
                print_backup(&check_made(made)?, output)
            }
        },
        BackupCommand::List { server } => list(&connect(server)?, output),
        BackupCommand::Fetch { id, to, server } => {
            let client = connect(server)?;
            let staging = stage(to)?;
            let backup = client.backup(id).map_err(failure)?;
            let manifest = fetch(&client, &backup, staging, &Interrupt::default())?;
            print_manifest(to, &manifest, output)
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

/// Ctrl-C. The first one ends a command in order, and the second one at once.
#[derive(Clone, Debug, Default)]
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens for Ctrl-C from now on, until the process ends.
    fn listen() -> Result<Self, VerbFailure> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start the listener for Ctrl-C")?;
        let mut presses = runtime
            .block_on(async { signal(SignalKind::interrupt()) })
            .context("listen for Ctrl-C")?;
        let interrupt = Self::default();
        let heard = interrupt.clone();
        thread::spawn(move || {
            runtime.block_on(presses.recv());
            heard.0.store(true, Ordering::Release);
            runtime.block_on(presses.recv());
            process::exit(INTERRUPTED_STATUS);
        });
        Ok(interrupt)
    }

    /// Fails once Ctrl-C was pressed.
    fn check(&self) -> io::Result<()> {
        match self.0.load(Ordering::Acquire) {
            true => Err(io::Error::other("Ctrl-C ended the command")),
            false => Ok(()),
        }
    }
}

/// A download that Ctrl-C ends.
struct InterruptibleRead<R> {
    read: R,
    interrupt: Interrupt,
}

impl<R: Read> Read for InterruptibleRead<R> {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        self.interrupt.check()?;
        self.read.read(piece)
    }
}

/// Begins the directory of a download, before a server works for it.
fn stage(to: &Path) -> Result<StagingDir, VerbFailure> {
    let staging = stage_backup(to);
    Ok(staging.with_context(|| format!("download a backup to {}", to.display()))?)
}

/// Has the server make a backup, and downloads it. The server's copy is then removed, also after a failure, unless `keep`.
fn create_online(
    client: &Client,
    to: &Path,
    (keep, earlier): (bool, bool),
    interrupt: &Interrupt,
    output: Output,
) -> VerbResult {
    let staging = stage(to)?;
    let begun = client.create_backup(earlier).map_err(failure)?;
    let id = begun.id.clone();
    // The server answers with a backup that runs already, if there is one. Its copy belongs to the client that began it.
    let was_running = begun.seconds.is_some_and(|seconds| seconds > 0.0);
    let received = match wait_made(client, begun, interrupt) {
        // The server keeps nothing of a backup that failed.
        Ok(made) if made.state == BackupState::Failed => return check_made(made).map(drop),
        made => made.and_then(|made| fetch(client, &made, staging, interrupt)),
    };
    let received = match (keep, was_running) {
        (false, false) => remove_copy(client, &id, received),
        (false, true) => {
            print_note(&format!(
                "backup {id} ran before this command began: it stays on the server"
            ));
            received
        }
        (true, _) => received,
    };
    print_manifest(to, &received?, output)
}

/// Waits until the server has made a backup, or failed to.
fn wait_made(client: &Client, mut backup: Backup, interrupt: &Interrupt) -> Result<Backup, VerbFailure> {
    let line = ProgressLine::new();
    let mut asked: VerbResult = Ok(());
    while asked.is_ok() && backup.state == BackupState::Running {
        line.show(format!("backup: {} copied", bytes(backup.bytes)));
        thread::sleep(POLL_INTERVAL);
        asked = interrupt.check().map_err(VerbFailure::from).and_then(|()| {
            backup = client.backup(&backup.id).map_err(failure)?;
            Ok(())
        });
    }
    line.clear();
    asked.map(|()| backup)
}

/// Returns a backup that the server made, and an error for one that failed.
fn check_made(backup: Backup) -> Result<Backup, VerbFailure> {
    match backup.state {
        BackupState::Failed => {
            let reason = backup.error.unwrap_or_default();
            Err(VerbFailure::Other(anyhow::anyhow!("the backup failed: {reason}")))
        }
        _ => Ok(backup),
    }
}

/// Removes the server's copy after a download, or after a download that failed. If it may stay there, a message names it.
fn remove_copy(
    client: &Client,
    id: &str,
    received: Result<BackupManifest, VerbFailure>,
) -> Result<BackupManifest, VerbFailure> {
    // The server can't remove a backup that it still makes. A second Ctrl-C ends this wait.
    while received.is_err()
        && client
            .backup(id)
            .is_ok_and(|backup| backup.state == BackupState::Running)
    {
        thread::sleep(POLL_INTERVAL);
    }
    let Err(error) = client.remove_backup(id) else {
        return received;
    };
    let stays = format!("the server may keep its copy: {error}. Remove it with `reprise backup remove {id}`");
    match received {
        Ok(_) => Err(VerbFailure::Other(anyhow::anyhow!(
            "the backup is downloaded, but {stays}"
        ))),
        Err(failed) => {
            print_note(&stays);
            Err(failed)
        }
    }
}

/// Downloads a backup's files, checks each, and gives the directory its name when all are durable.
fn fetch(
    client: &Client,
    backup: &Backup,
    staging: StagingDir,
    interrupt: &Interrupt,
) -> Result<BackupManifest, VerbFailure> {
    let files = backup.files.iter().map(|file| ManifestFile {
        path: file.path.clone(),
        bytes: file.bytes,
        sha256: file.sha256.clone(),
    });
    let files: Vec<_> = files.collect();
    let line = ProgressLine::new();
    let (mut done, total) = (0, files.iter().map(|file| file.bytes).sum());
    let received = receive_backup(staging, &files, &mut |name| {
        done += files
            .iter()
            .find(|file| file.name() == name)
            .map_or(0, |file| file.bytes);
        line.show(format!("backup: downloading, {} of {}", bytes(done), bytes(total)));
        let read = client.backup_file(&backup.id, name).map_err(io::Error::other)?;
        let interrupt = interrupt.clone();
        Ok(Box::new(InterruptibleRead { read, interrupt }) as Box<dyn Read>)
    });
    line.clear();
    Ok(received.with_context(|| format!("download backup {}", backup.id))?)
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

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, net::TcpListener, sync::Mutex};

    use reprise_api::BackupFile;

    use super::*;

    const ID: &str = "17";
    const CREATE: &str = "POST /v1/backups";
    const SHOW: &str = "GET /v1/backups/17";
    const DOWNLOAD: &str = "GET /v1/backups/17/files/manifest.json";
    const REMOVE: &str = "DELETE /v1/backups/17";

    /// A server that records the requests.
    struct TestServer {
        client: Client,
        requests: Arc<Mutex<Vec<String>>>,
    }

    impl TestServer {
        /// Starts a server with these answers, each for a method and path. Those of one request follow each other, and the last one stays. Every
        /// other request gets an error.
        fn start(mut answers: Vec<(&'static str, String)>) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
            let url = format!("http://{}", listener.local_addr().expect("address"));
            let requests = Arc::<Mutex<Vec<String>>>::default();
            let received = requests.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut stream = stream.expect("accept");
                    let mut head = [0; 4096];
                    let length = stream.read(&mut head).expect("read");
                    let head = String::from_utf8_lossy(&head[..length]).into_owned();
                    let request = head.split(" HTTP/").next().unwrap_or_default().to_owned();
                    let is_known = |(known, _): &&(&str, String)| *known == request;
                    let left = answers.iter().filter(is_known).count();
                    let at = answers.iter().position(|(known, _)| *known == request);
                    let found = at.map(|at| match left {
                        1 => answers[at].1.clone(),
                        _ => answers.remove(at).1,
                    });
                    let (status, body) = found.map_or(("500 Error", String::new()), |body| ("200 OK", body));
                    received.lock().expect("no panic").push(request);
                    let length = body.len();
                    let answer =
                        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
                    stream.write_all(answer.as_bytes()).expect("write");
                }
            });
            let client = Client::new(&url, None).expect("client");
            Self { client, requests }
        }

        fn was_asked(&self, request: &str) -> bool {
            self.requests
                .lock()
                .expect("no panic")
                .iter()
                .any(|known| known == request)
        }
    }

    fn backup(state: BackupState, seconds: f64) -> String {
        let manifest = BackupFile {
            path: "manifest.json".into(),
            bytes: 4,
            sha256: String::new(),
        };
        let backup = Backup {
            id: ID.into(),
            state,
            began_at: String::new(),
            seconds: Some(seconds),
            bytes: 4,
            checkpoint_lsn: None,
            end_lsn: None,
            directory: String::new(),
            files: vec![manifest],
            error: None,
        };
        serde_json::to_string(&backup).expect("JSON")
    }

    #[test]
    fn target_that_holds_files_is_refused_before_the_server_works() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("file"), b"x").expect("written");
        let server = TestServer::start(vec![(CREATE, backup(BackupState::Running, 0.0))]);
        let refused = create_online(
            &server.client,
            dir.path(),
            (false, false),
            &Interrupt::default(),
            Output::Json,
        );
        assert!(refused.is_err() && !server.was_asked(CREATE));
    }

    #[test]
    fn copy_on_the_server_is_removed_after_a_failed_download_unless_it_is_to_stay() {
        for (seconds, keep, is_removed) in [(0.0, false, true), (0.0, true, false), (2.5, false, false)] {
            let dir = tempfile::tempdir().expect("a directory");
            let server = TestServer::start(vec![
                (CREATE, backup(BackupState::Running, seconds)),
                (SHOW, backup(BackupState::Published, 3.0)),
                (REMOVE, String::new()),
            ]);
            let to = dir.path().join("to");
            let outcome = create_online(&server.client, &to, (keep, false), &Interrupt::default(), Output::Json);
            assert!(outcome.is_err() && server.was_asked(DOWNLOAD));
            assert_eq!(server.was_asked(REMOVE), is_removed, "{seconds} s, keep: {keep}");
            assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
        }
    }

    #[test]
    fn interrupted_command_removes_the_copy_on_the_server() {
        let dir = tempfile::tempdir().expect("a directory");
        let server = TestServer::start(vec![
            (CREATE, backup(BackupState::Running, 0.0)),
            (SHOW, backup(BackupState::Running, 1.0)),
            (SHOW, backup(BackupState::Published, 1.0)),
            (REMOVE, String::new()),
        ]);
        let interrupt = Interrupt::default();
        interrupt.0.store(true, Ordering::Release);
        let to = dir.path().join("to");
        let outcome = create_online(&server.client, &to, (false, false), &interrupt, Output::Json);
        let text = outcome.expect_err("interrupted").to_string();
        assert!(text.contains("Ctrl-C"), "{text}");
        let requests = server.requests.lock().expect("no panic").clone();
        assert_eq!(requests, [CREATE, SHOW, SHOW, REMOVE], "it is removed once it is made");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
        let mut download = InterruptibleRead {
            read: &b"bytes"[..],
            interrupt,
        };
        assert!(download.read(&mut [0]).is_err());
    }

    #[test]
    fn copy_that_the_server_can_not_remove_is_named() {
        let server = TestServer::start(Vec::new());
        let manifest = BackupManifest {
            format: 1,
            program_version: String::new(),
            database_id: String::new(),
            partitions: 1,
            settings_hash: String::new(),
            created_us: 0,
            checkpoint_lsn: None,
            log_start: 0,
            log_end: 0,
            records: 0,
            files: Vec::new(),
        };
        let text = remove_copy(&server.client, ID, Ok(manifest))
            .expect_err("it stays")
            .to_string();
        assert!(text.contains("reprise backup remove 17"), "{text}");
    }
}
