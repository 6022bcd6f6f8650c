//! Reads of a standby as a stranger would make them: without an end, by hundreds at once, during a deployment and during a kill.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use reprise_test_crash::{Launch, Server};
use reprise_test_http::probe;
use reprise_test_process::{PATIENCE, replication};

/// Turns of a loop that take longer than any test.
const ENDLESS: &str = r#"{"id": 1, "turns": "9000000000000000000"}"#;

/// Deployed one after the other.
const MODULES: [&str; 3] = ["bank", "registers", "voter"];

struct Pair {
    dir: tempfile::TempDir,
    primary: Server,
    next: AtomicU64,
}

impl Pair {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let own = ["--name", "a", "--ship-listen", "127.0.0.1:0", "--partitions", "3"];
        let primary = Server::start(&Launch::new(&dir.path().join("a")).args(&own))?;
        deploy(&primary, &probe())?;
        Ok(Self {
            dir,
            primary,
            next: AtomicU64::new(0),
        })
    }

    fn standby(&self, args: &[&str]) -> Result<Server> {
        let url = format!("http://{}", self.primary.address);
        let own = ["--name", "b", "--standby-of", &url];
        Server::start(&Launch::new(&self.dir.path().join("b")).args(&[&own[..], args].concat()))
    }

    /// A row more; its LSN.
    fn write(&self) -> Result<u64> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let answer = self
            .primary
            .call("probe/put", &format!(r#"{{"id": "{id}", "amount": "{id}"}}"#))?;
        ensure!(answer.status == 200, "{}", answer.text());
        let lsn = answer.header("reprise-lsn").and_then(|text| text.parse().ok());
        lsn.context("an LSN")
    }
}

fn deploy(server: &Server, wasm: &[u8]) -> Result<()> {
    let answer = server.request("PUT", "/v1/modules/probe", &[], wasm)?;
    ensure!(matches!(answer.status, 200 | 201), "{}", answer.text());
    Ok(())
}

/// Everything up to this LSN is shown, without any read of rows.
fn wait_shown(standby: &Server, lsn: u64) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(standby, &[])?;
        let view = told["standbys"][0]["view_lsn"].as_str().unwrap_or_default();
        if view.parse().is_ok_and(|view: u64| view > lsn) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{lsn} is not shown: {told}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn rows(standby: &Server, seen: u64) -> Result<usize> {
    let path = "/v1/tables/probe.items/rows?limit=1000";
    let fresh = [
        ("reprise-min-lsn", &*seen.to_string()),
        ("reprise-max-wait-ms", "20000"),
    ];
    let page = standby.request("GET", path, &fresh, b"")?;
    ensure!(page.status == 200, "{}", page.text());
    Ok(page.json()["rows"].as_array().map_or(0, Vec::len))
}

#[test]
fn reads_without_an_end_end_with_their_view_or_their_fuel_and_the_replay_goes_on() -> Result<()> {
    let pair = Pair::new()?;
    // No machine goes through a call's fuel in so short a time.
    for (args, status, why) in [
        (&["--view-time-max-ms", "20"][..], 503, "for 20 ms at most"),
        (&[][..], 422, "fuel"),
    ] {
        let standby = pair.standby(args)?;
        wait_shown(&standby, pair.write()?)?;
        thread::scope(|scope| {
            let endless: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        (0..3)
                            .map(|_| standby.call("probe/sleepy", ENDLESS))
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            let shown = (0..20).try_for_each(|_| wait_shown(&standby, pair.write()?));
            for client in endless {
                for answer in client.join().map_err(|_| anyhow!("a client panicked"))? {
                    let answer = answer?;
                    ensure!(
                        answer.status == status && answer.text().contains(why),
                        "{}: {}",
                        answer.status,
                        answer.text()
                    );
                }
            }
            shown
        })?;
        let until = Instant::now() + PATIENCE;
        let mut page = rows(&standby, pair.write()?);
        while page.is_err() && Instant::now() < until {
            page = rows(&standby, pair.write()?); // the time of its view may be over on a machine that is busy
        }
        ensure!(page? as u64 == pair.next.load(Ordering::Relaxed), "rows are missing");
        let (status, errors) = standby.terminate()?;
        ensure!(status.code() == Some(0), "{status}: {errors}");
    }
    Ok(())
}

#[test]
fn hundreds_read_at_once_while_the_primary_writes_deploys_and_the_standby_is_killed() -> Result<()> {
    let pair = Pair::new()?;
    let mut standby = pair.standby(&[])?;
    wait_shown(&standby, pair.write()?)?;
    for (round, module) in MODULES.into_iter().enumerate() {
        let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
        let address = standby.address.clone();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..100)
                .map(|client| {
                    let (address, is_over, answered) = (&address, &is_over, &answered);
                    scope.spawn(move || read_until(address, client, is_over, answered))
                })
                .collect();
            let written = write_among(&pair, module, &answered);
            let shown = written.and_then(|last| wait_shown(&standby, last));
            let killed = if round > 0 { standby.kill() } else { Ok(()) };
            is_over.store(true, Ordering::Relaxed);
            shown?;
            killed?;
            for client in clients {
                let left = client.join().map_err(|_| anyhow!("a client panicked"))?;
                ensure!(round > 0 || left.is_ok(), "{left:?}");
            }
            Ok(())
        })?;
        if round > 0 {
            standby = pair.standby(&[])?;
        }
        let lsn = pair.write()?;
        ensure!(
            rows(&standby, lsn)? == 1000.min(pair.next.load(Ordering::Relaxed) as usize),
            "all rows"
        );
    }
    let told = replication(&standby, &[])?;
    ensure!(told["standbys"][0]["error"].is_null(), "{told}");
    Ok(())
}

/// Writes while reads are answered, with a deployment between; the last one's LSN.
fn write_among(pair: &Pair, module: &str, answered: &AtomicU64) -> Result<u64> {
    let until = Instant::now() + PATIENCE;
    let mut last = 0;
    for more in [2_000, 500] {
        let wanted = answered.load(Ordering::Relaxed) + more;
        while answered.load(Ordering::Relaxed) < wanted {
            last = pair.write()?;
            ensure!(Instant::now() < until, "reads are not answered");
        }
        // The deployment waits for the present reads, and new reads wait for it.
        if more == 2_000 {
            pair.primary.deploy(module)?;
        }
    }
    Ok(last)
}

/// Calls and pages on one connection; each sees no less than the one before it. Err: the connection was cut.
fn read_until(address: &str, client: usize, is_over: &AtomicBool, answered: &AtomicU64) -> Result<()> {
    let mut connection = reprise_test_crash::Connection::open(address)?;
    let mut seen = 0;
    while !is_over.load(Ordering::Relaxed) {
        let answer = match client % 3 {
            0 => connection.get("/v1/tables/probe.items/rows?limit=20&reverse=true"),
            1 => connection.request("POST", "/v1/call/probe/everywhere", &[], br#"{"id": 1}"#),
            _ => connection.request("POST", "/v1/call/probe/echo", &[], br#"{"id": 1}"#),
        };
        let answer = answer.map_err(|cut| cut.error)?;
        ensure!(
            answer.status == 200
                || answer.status == 429
                || answer.status == 503 && answer.text().contains("overloaded"),
            "{}: {}",
            answer.status,
            answer.text()
        );
        if client.is_multiple_of(3) && answer.status == 200 {
            let told = answer.json();
            let lsn: u64 = told["lsn"].as_str().unwrap_or_default().parse()?;
            ensure!(lsn >= seen, "{lsn} behind {seen}");
            seen = lsn;
        }
        answered.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
