//! `make cluster` and `make run`: each script starts its servers, and prints what to try.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{self, Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Connection, Launch, Server, binary};

use crate::reload::{ONE, token};

const WAIT_MAX: Duration = Duration::from_secs(60);
/// The script takes six ports from its first one on. Another process may have one of them.
const TRIES: u32 = 5;
/// First ports of the script. No other test picks one of these, and no connection gets one.
const PORTS: std::ops::Range<u32> = 12_000..19_000;
/// Between the first picks of processes with neighbouring numbers.
const APART: u32 = 211;

/// Ends with the test, and ends its servers.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// The command that runs a script of `xtask` in a shell, and ends it if it takes too long.
fn command(script: &str, dir: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new("timeout");
    command
        .arg((2 * WAIT_MAX.as_secs()).to_string())
        .args(["sh", &format!("xtask/{script}")])
        .current_dir(root);
    command
        .env("DATA_DIR", dir)
        .env("REPRISE", binary().expect("the server"));
    for name in ["REPRISE_TOKEN", "REPRISE_CA_CERT", "REPRISE_CONFIG"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Starts the script, and sends the lines that it prints.
fn spawn(mut command: Command) -> (Script, mpsc::Receiver<String>) {
    let child = command.stdout(Stdio::piped()).spawn();
    let mut script = Script(child.expect("sh"));
    let (sender, lines) = mpsc::channel();
    let stdout = BufReader::new(script.0.stdout.take().expect("piped"));
    thread::spawn(move || {
        stdout
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| sender.send(line))
    });
    (script, lines)
}

/// Runs `run.sh` where it must end by itself, and returns its standard error.
fn refusal_of_run(listen: &str, dir: &Path) -> Result<String> {
    let output = command("run.sh", dir).env("LISTEN", listen).output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{}: {errors}", output.status);
    ensure!(!String::from_utf8_lossy(&output.stdout).contains("Reprise serves"));
    Ok(errors)
}

#[test]
fn script_of_a_server_deploys_nothing_into_another_server_on_its_port() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let other = Server::start(&Launch::new(&dir.path().join("other")))?;
    let errors = refusal_of_run(&other.address, &dir.path().join("own"))?;
    ensure!(
        errors.contains(&format!("{} is in use", other.address)) && errors.contains("LISTEN=ADDR:PORT"),
        "{errors}"
    );
    ensure!(
        other.get("/v1/modules/voter")?.status == 404,
        "the other server has the modules"
    );
    ensure!(!dir.path().join("own").exists(), "a server was started");
    Ok(())
}

#[test]
fn script_of_a_server_names_the_token_that_it_needs_and_ends() -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::write(dir.path().join("reprise.toml"), token("ops", "admin", ONE))?;
    let errors = refusal_of_run("127.0.0.1:0", dir.path())?;
    ensure!(
        errors.contains("unauthorized") && errors.contains("REPRISE_TOKEN"),
        "{errors}"
    );
    Ok(())
}

#[test]
fn script_of_a_server_names_the_url_of_its_own_server_with_the_modules() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut command = command("run.sh", dir.path());
    command.env("LISTEN", "127.0.0.1:0");
    let (_script, lines) = spawn(command);
    let until = Instant::now() + WAIT_MAX;
    let address = loop {
        let line = lines.recv_timeout(until.saturating_duration_since(Instant::now()))?;
        if let Some(rest) = line.strip_prefix("Reprise serves http://") {
            break rest.split(' ').next().context("an address")?.to_owned();
        }
    };
    let body = br#"{"account": 1, "balance": 100}"#;
    let answer = Connection::open(&address)?.request("POST", "/v1/call/bank/open", &[], body);
    let answer = answer.map_err(|cut| cut.error)?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(())
}

/// Starts the script, and waits until it prints its URL. None: a port is taken.
fn start(dir: &Path, attempt: u32) -> Option<(Script, String)> {
    let picked = process::id().wrapping_add(attempt).wrapping_mul(APART) % PORTS.len() as u32;
    let port = (PORTS.start + picked).to_string();
    let mut command = command("cluster.sh", dir);
    command.env("PORT", &port);
    let (script, lines) = spawn(command);
    let until = Instant::now() + WAIT_MAX;
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) if line.starts_with("A primary serves http://") => {
                return Some((script, format!("127.0.0.1:{port}")));
            }
            Ok(_) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the standbys do not come in sync"),
        }
    }
}

#[test]
fn script_of_a_cluster_has_standbys_in_sync_and_modules_when_it_says_so() {
    let started = (0..TRIES).find_map(|attempt| {
        let dir = tempfile::tempdir().expect("a directory");
        let (script, address) = start(dir.path(), attempt)?;
        Some((script, address, dir))
    });
    let (_script, address, _dir) = started.expect("no port was free five times");
    let mut connection = Connection::open(&address).expect("it listens");
    let body = br#"{"account": 1, "balance": 100}"#;
    let answer = connection.request("POST", "/v1/call/bank/open", &[], body);
    let answer = answer.map_err(|cut| cut.error).expect("answered");
    assert_eq!(
        (answer.status, answer.header("reprise-safety")),
        (200, Some("quorum")),
        "{}",
        answer.text()
    );
}
