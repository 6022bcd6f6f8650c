//! `reprise log tail --follow`: records as they come, through the filters, until Ctrl-C or the server's end.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::{Launch, Server, binary};

const PATIENCE: Duration = Duration::from_secs(20);
/// Time between two polls of a follower.
const FOLLOW_POLL: Duration = Duration::from_millis(500);

/// A verb that follows, and its lines as they come.
struct Follower {
    child: Child,
    lines: Receiver<String>,
    /// The text on standard error, and the thread that reads it until its end.
    errors: Arc<Mutex<String>>,
    reader: Option<thread::JoinHandle<()>>,
}

impl Follower {
    fn start(server: &Server, args: &[&str]) -> Result<Self> {
        let url = format!("http://{}", server.address);
        let mut command = Command::new(binary()?);
        command.args(["log", "tail", "--follow", "--url", &url]).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("its output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let read = BufReader::new(output).lines().map_while(Result::ok);
            read.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        let said = BufReader::new(child.stderr.take().context("its errors")?);
        let errors = Arc::<Mutex<String>>::default();
        let kept = errors.clone();
        let reader = thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                let mut errors = kept.lock().expect("held for a push");
                errors.push_str(&line);
                errors.push('\n');
            }
        });
        Ok(Self {
            child,
            lines,
            errors,
            reader: Some(reader),
        })
    }

    fn errors(&self) -> String {
        self.errors.lock().expect("held to copy").clone()
    }

    /// Waits until standard error has this text.
    fn wait_error(&self, text: &str) -> Result<()> {
        let start = Instant::now();
        while !self.errors().contains(text) {
            ensure!(start.elapsed() < PATIENCE, "no {text:?}: {}", self.errors());
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn next(&self) -> Result<String> {
        self.lines.recv_timeout(PATIENCE).context("a line in time")
    }

    /// Waits for the end. Returns the exit status, and the text on standard error.
    fn end(mut self) -> Result<(Option<i32>, String)> {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => bail!("it goes on"),
                None => thread::sleep(Duration::from_millis(20)),
            }
        };
        if let Some(reader) = self.reader.take() {
            let _ = reader.join(); // it only reads
        }
        ensure!(self.lines.try_recv().is_err(), "a line too many");
        Ok((status.code(), self.errors()))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The child still runs if a check failed first.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn call(server: &Server, procedure: &str, args: &str) -> Result<()> {
    let answer = server.call(procedure, args)?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(())
}

#[test]
fn records_come_through_the_filters_until_ctrl_c_or_the_servers_end() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut server = Server::start(&Launch::new(dir.path()))?;
    server.wait_ready()?;
    server.deploy("bank")?;
    call(&server, "bank/open", r#"{"account": 1, "balance": 10}"#)?;
    let of_one = Follower::start(&server, &["--procedure", "open", "--argument", "account:3"])?;
    let all = Follower::start(&server, &["--module", "bank", "--output", "json"])?;
    ensure!(all.next()?.contains("deploy") && all.next()?.contains("open"));

    call(&server, "bank/open", r#"{"account": 2, "balance": 20}"#)?;
    call(&server, "bank/transfer", r#"{"from": 1, "to": 2, "amount": 3}"#)?;
    call(&server, "bank/open", r#"{"account": 3, "balance": 30}"#)?;
    ensure!(of_one.next()?.contains(r#""balance":"30""#));
    for procedure in ["open", "transfer", "open"] {
        let record: serde_json::Value = serde_json::from_str(&all.next()?)?;
        ensure!(record["procedure"] == procedure, "{record}");
    }

    // SAFETY: a signal to our own child, which has not been waited for.
    ensure!(unsafe { libc::kill(all.child.id() as i32, libc::SIGINT) } == 0);
    ensure!(all.end()? == (Some(0), String::new()));
    server.kill()?;
    let (status, errors) = of_one.end()?;
    ensure!(
        status == Some(1) && errors.starts_with("error: "),
        "{status:?}: {errors}"
    );
    Ok(())
}

/// The log has one form of each transaction, and the search is for what only the other form has.
#[test]
fn follower_says_what_it_cannot_search_when_the_log_has_the_other_form() -> Result<()> {
    for (log, search, gap) in [
        ("command", ["--key", "2"], "calls and not their changed rows"),
        (
            "physiological",
            ["--argument", "account:2"],
            "changed rows and not their calls",
        ),
    ] {
        let dir = tempfile::tempdir()?;
        let mut server = Server::start(&Launch::new(dir.path()).args(&["--log", log]))?;
        server.wait_ready()?;
        server.deploy("bank")?;
        // The log has no transaction of a call yet, so the followers wait for the first ones.
        let of_new = Follower::start(&server, &search)?;
        let json = Follower::start(&server, &[&search[..], &["--output", "json"]].concat())?;
        let all = Follower::start(&server, &["--procedure", "open"])?;
        thread::sleep(2 * FOLLOW_POLL);
        call(&server, "bank/open", r#"{"account": 1, "balance": 10}"#)?;
        ensure!(all.next()?.contains("open"));
        let of_old = Follower::start(&server, &search)?;
        for follower in [of_new, json, of_old] {
            let (status, errors) = follower.end()?;
            ensure!(
                status == Some(1) && errors.contains(gap) && errors.contains("--log both"),
                "{log}: {status:?}: {errors}"
            );
        }
    }
    Ok(())
}

/// A note, and once: the follower found what it can decide about.
#[test]
fn follower_notes_a_gap_once_when_it_has_found_records() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut server = Server::start(&Launch::new(dir.path()).args(&["--log", "command"]))?;
    server.wait_ready()?;
    server.deploy("bank")?;
    let (keyed, body) = ([("idempotency-key", "order-1")], br#"{"account": 1, "balance": 10}"#);
    let answer = server.request("POST", "/v1/call/bank/open", &keyed, body)?;
    ensure!(answer.status == 200, "{}", answer.text());
    let follower = Follower::start(&server, &["--key", "order-1"])?;
    ensure!(follower.next()?.contains("open"));
    call(&server, "bank/open", r#"{"account": 2, "balance": 10}"#)?;
    follower.wait_error("note: ")?;
    call(&server, "bank/open", r#"{"account": 3, "balance": 10}"#)?;
    thread::sleep(2 * FOLLOW_POLL);
    // SAFETY: a signal to our own child, which has not been waited for.
    ensure!(unsafe { libc::kill(follower.child.id() as i32, libc::SIGINT) } == 0);
    let (status, errors) = follower.end()?;
    ensure!(
        status == Some(0) && errors.matches("note: ").count() == 1,
        "{status:?}: {errors}"
    );
    Ok(())
}
