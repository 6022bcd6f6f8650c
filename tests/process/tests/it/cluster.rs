//! `make cluster`: the script starts three servers, and prints what to try.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{self, Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use reprise_test_crash::{Connection, binary};

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

/// Starts the script, and waits until it prints its URL. None: a port is taken.
fn start(dir: &Path, attempt: u32) -> Option<(Script, String)> {
    let picked = process::id().wrapping_add(attempt).wrapping_mul(APART) % PORTS.len() as u32;
    let port = (PORTS.start + picked).to_string();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new("sh");
    command.arg("xtask/cluster.sh").current_dir(root);
    command
        .env("PORT", &port)
        .env("DATA_DIR", dir)
        .env("REPRISE", binary().expect("the server"));
    let child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
    let mut script = Script(child.expect("sh"));
    let (sender, lines) = mpsc::channel();
    let stdout = BufReader::new(script.0.stdout.take().expect("piped"));
    thread::spawn(move || {
        stdout
            .lines()
            .map_while(Result::ok)
            .try_for_each(|line| sender.send(line))
    });
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
