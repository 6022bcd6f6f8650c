//! A standby's report of its age, under faults: it is never younger than the truth.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Answer, Connection, Server};
use reprise_test_process::{Cluster, lsn, wait_reached};

/// Time that a read may take on a busy machine, beside the lag that it reports.
const SLACK: Duration = Duration::from_millis(300);

/// A client that opens one account after the other, and knows when each was answered.
struct Writer {
    answered: Arc<Mutex<Vec<Instant>>>,
    is_over: Arc<AtomicBool>,
    thread: thread::JoinHandle<()>,
}

impl Writer {
    fn start(server: &Server) -> Result<Self> {
        let (answered, is_over) = (Arc::<Mutex<Vec<Instant>>>::default(), Arc::<AtomicBool>::default());
        let mut connection = Connection::open(&server.address)?;
        let (told, ends) = (answered.clone(), is_over.clone());
        let thread = thread::spawn(move || {
            for account in (0..).take_while(|_: &u64| !ends.load(Ordering::Relaxed)) {
                let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
                match connection.request("POST", "/v1/call/bank/open", &[], body.as_bytes()) {
                    Ok(answer) if answer.status == 200 => told.lock().expect("held for a push").push(Instant::now()),
                    _ => return,
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(Self {
            answered,
            is_over,
            thread,
        })
    }

    /// Returns the time at `at` since the answer of the first account that is not among `count`.
    fn age(&self, count: u64, at: Instant) -> Duration {
        let answered = self.answered.lock().expect("held for a look");
        let missing = answered.get(count as usize).copied();
        missing.map_or(Duration::ZERO, |missing| at.saturating_duration_since(missing))
    }

    fn end(self) -> Result<usize> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the writer panics"))?;
        let answered = self.answered.lock().expect("it has ended");
        Ok(answered.len())
    }
}

fn read(standby: &Server, headers: &[(&str, &str)]) -> Result<Answer> {
    standby.request("POST", "/v1/call/bank/total", headers, b"{}")
}

/// Checks the age that an answer tells, if it tells one. It must be no older than that, and may call itself fresh only if it is. Returns
/// its true age.
fn check_age(writer: &Writer, answer: &Answer, asked: Instant) -> Result<Duration> {
    let age = writer.age(lsn(&answer.json()["result"]["accounts"]), asked);
    let number = |name: &str| -> Result<Option<f64>> { Ok(answer.header(name).map(str::parse).transpose()?) };
    let lag_ms = number("reprise-lag-ms")?.context("a lag")?;
    let freshness = number("reprise-freshness")?;
    let told = format!("{age:?} old, says {lag_ms} ms, freshness {freshness:?}");
    match answer.header("reprise-lag-known") {
        Some("true") => ensure!(age <= Duration::from_secs_f64(lag_ms / 1e3) + SLACK, "{told}"),
        Some("false") => ensure!(freshness.is_none(), "{told}"),
        other => anyhow::bail!("{other:?}"),
    }
    let is_old = age > SLACK;
    ensure!(!is_old || freshness.is_none_or(|freshness| freshness < 1.0), "{told}");
    // The newest record that the answer holds is the last one of its view.
    let view = answer.header("reprise-view-lsn").context("a view")?;
    let newest = answer.header("reprise-lsn").context("an LSN")?;
    ensure!(
        view.parse::<u64>()? == newest.parse::<u64>()? + 1,
        "{view} and {newest}"
    );
    Ok(age)
}

/// Reads for a while. Under `Reprise-Max-Lag-Ms: 100` no answer may be older. Returns the greatest age of an answer without that header.
fn read_for(standby: &Server, writer: &Writer, time: Duration) -> Result<Duration> {
    let (begun, mut oldest) = (Instant::now(), Duration::ZERO);
    let fresh = [("reprise-max-lag-ms", "100"), ("reprise-max-wait-ms", "0")];
    while begun.elapsed() < time {
        let asked = Instant::now();
        let answer = read(standby, &fresh)?;
        match answer.status {
            200 => {
                let age = check_age(writer, &answer, asked)?;
                ensure!(age <= Duration::from_millis(100) + SLACK, "{age:?} old");
            }
            503 => ensure!(answer.json()["type"] == "/problems/too-stale", "{}", answer.text()),
            _ => anyhow::bail!("{}", answer.text()),
        }
        let asked = Instant::now();
        let answer = read(standby, &[])?;
        ensure!(answer.status == 200, "{}", answer.text());
        oldest = oldest.max(check_age(writer, &answer, asked)?);
    }
    Ok(oldest)
}

/// A primary that is written to, and its standby.
fn written_pair() -> Result<(Cluster, Server, Server, Writer)> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &[])?;
    a.deploy("bank")?;
    let b = cluster.standby("b", &a, &[])?;
    wait_reached(&a, &[], ("local-sync", &[&b]))?;
    let writer = Writer::start(&a)?;
    Ok((cluster, a, b, writer))
}

/// A standby that was away replays the records that it lacks. The heartbeats meanwhile say nothing about the records that it shows.
#[test]
fn standby_that_is_started_again_tells_no_lag_before_it_shows_what_it_missed() -> Result<()> {
    let (cluster, a, mut b, writer) = written_pair()?;
    thread::sleep(Duration::from_millis(500));
    b.kill()?;
    thread::sleep(Duration::from_secs(4));
    let b = cluster.standby("b", &a, &[])?;
    read_for(&b, &writer, Duration::from_secs(3))?;
    ensure!(writer.end()? > 100, "nothing was written");
    Ok(())
}

/// Messages that waited in the socket of a stopped standby are no news.
#[test]
fn standby_that_stood_still_tells_how_old_it_is() -> Result<()> {
    let (_cluster, _a, mut b, writer) = written_pair()?;
    thread::sleep(Duration::from_millis(1_500));
    for _ in 0..3 {
        b.process().signal(libc::SIGSTOP)?;
        thread::sleep(Duration::from_millis(2_000));
        b.process().signal(libc::SIGCONT)?;
        read_for(&b, &writer, Duration::from_millis(500))?;
    }
    ensure!(writer.end()? > 100, "nothing was written");
    Ok(())
}
