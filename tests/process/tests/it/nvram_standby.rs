//! Standbys with `--device nvram`, and primaries that give their place away with it: kills, switch-overs, and what is told.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Connection, Launch, Server, Spawned, run_verb};
use reprise_test_process::{PATIENCE, switch_over};
use serde_json::Value;

struct Cluster {
    dir: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        Ok(Self { dir })
    }

    /// With a region beside its directory, taken for persistent memory.
    fn launch(&self, name: &str, args: &[&str]) -> Launch {
        let region = self.dir.path().join(format!("{name}.region")).display().to_string();
        let device = ["--device", "nvram", "--nvram", &region, "--nvram-size", "8MiB"];
        let own = ["--nvram-assume-persistent", "true", "--name", name];
        let ships = ["--ship-listen", "127.0.0.1:0"];
        Launch::new(&self.dir.path().join(name)).args(&[&device[..], &own, &ships, args].concat())
    }

    fn primary(&self, name: &str, safety: &str) -> Result<Server> {
        let args = ["--partitions", "2", "--sites", "2", "--safety", safety];
        Server::start(&self.launch(name, &args))
    }

    fn standby(&self, name: &str, of: &Server, safety: &str) -> Result<Server> {
        let url = format!("http://{}", of.address);
        Server::start(&self.launch(name, &["--standby-of", &url, "--safety", safety]))
    }
}

fn replication(server: &Server) -> Result<Value> {
    Ok(server.get("/v1/replication")?.json())
}

fn wait_for(what: &str, server: &Server, holds: impl Fn(&Value) -> bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(server)?;
        if holds(&told) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{what}: {told}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Until the only standby is in sync, and was told so.
fn wait_in_sync(server: &Server, standby: &Server) -> Result<()> {
    for told_by in [server, standby] {
        wait_for("in sync", told_by, |told| {
            let standbys = told["standbys"].as_array().cloned().unwrap_or_default();
            standbys.iter().filter(|standby| standby["in_sync"] == true).count() == 1
        })?;
    }
    Ok(())
}

fn open(server: &Server, account: u64) -> Result<(u16, Value)> {
    let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
    let answer = server.call("bank/open", &body)?;
    Ok((answer.status, answer.json()))
}

fn has_account(server: &Server, account: u64) -> Result<bool> {
    let answer = server.call("bank/balance", &format!(r#"{{"account": {account}}}"#))?;
    Ok(answer.status == 200)
}

fn ensure_has(server: &Server, answered: &[u64]) -> Result<()> {
    for account in answered {
        let count = answered.len();
        ensure!(has_account(server, *account)?, "{account} was answered, of {count}");
    }
    Ok(())
}

/// Clients that open accounts of their own until the server is gone.
struct Load {
    answered: Arc<Mutex<Vec<u64>>>,
    is_over: Arc<AtomicBool>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(address: &str, from: u64) -> Self {
        let (answered, is_over) = (Arc::<Mutex<Vec<u64>>>::default(), Arc::<AtomicBool>::default());
        let clients = (0..3).map(|client| {
            let (answered, is_over, address) = (answered.clone(), is_over.clone(), address.to_owned());
            thread::spawn(move || {
                let Ok(mut connection) = Connection::open(&address) else {
                    return;
                };
                for account in (from + client * 1_000_000..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
                    match connection.request("POST", "/v1/call/bank/open", &[], body.as_bytes()) {
                        Ok(answer) if answer.status == 200 => answered.lock().expect("held for a push").push(account),
                        Ok(_) => {}
                        Err(_) => return,
                    }
                }
            })
        });
        Self {
            clients: clients.collect(),
            answered,
            is_over,
        }
    }

    fn end(self) -> Vec<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            let _ = client.join();
        }
        std::mem::take(&mut *self.answered.lock().expect("all have ended"))
    }
}

/// At 2-safe what is answered is in the standby's region, or its files. It is killed again and again under load; at last the primary is killed,
/// and it takes over with all of it.
#[test]
fn a_standby_that_is_killed_has_what_it_acknowledged() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", "2-safe")?;
    a.deploy("bank")?;
    let mut b = cluster.standby("b", &a, "2-safe")?;
    wait_in_sync(&a, &b)?;
    let mut answered = Vec::new();
    for round in 0..4 {
        let load = Load::start(&a.address, round * 100_000_000);
        thread::sleep(Duration::from_millis(300));
        if round < 3 {
            b.kill()?;
            ensure!(
                cluster.dir.path().join("b/nvram.json").exists(),
                "its region is not named"
            );
            b = cluster.standby("b", &a, "2-safe")?;
            wait_in_sync(&a, &b)?;
            answered.extend(load.end());
        } else {
            // Both, the standby first: its acknowledgements are all that it leaves.
            b.kill()?;
            a.kill()?;
            let in_sync = load.end();
            // What the primary answered alone in between, if anything, only it has.
            answered.extend(in_sync);
        }
    }
    ensure!(answered.len() > 40, "{} answers", answered.len());
    // The primary first: what is nowhere else comes to the standby again.
    let mut a = cluster.primary("a", "2-safe")?;
    let b = cluster.standby("b", &a, "2-safe")?;
    wait_in_sync(&a, &b)?;
    let load = Load::start(&a.address, 900_000_000);
    thread::sleep(Duration::from_millis(300));
    a.kill()?;
    answered.extend(load.end());
    let promoted = b.request("POST", "/v1/replication/promote?force=true", &[], b"")?;
    ensure!(promoted.status == 200, "{}", promoted.text());
    ensure_has(&b, &answered)?;
    // The new primary writes to its region: killed, it has that, too.
    let mut b = b;
    let load = Load::start(&b.address, 950_000_000);
    thread::sleep(Duration::from_millis(300));
    b.kill()?;
    answered.extend(load.end());
    let b = cluster.primary("b", "2-safe")?;
    ensure_has(&b, &answered)?;
    // And the old one follows it, in its own region.
    let a = cluster.standby("a", &b, "2-safe")?;
    wait_in_sync(&b, &a)?;
    let end = replication(&b)?["durable_lsn"]
        .as_str()
        .unwrap_or_default()
        .parse::<u64>()?;
    let fresh = [
        ("reprise-min-lsn", &*(end - 1).to_string()),
        ("reprise-max-wait-ms", "20000"),
    ];
    let total = |server: &Server| -> Result<Value> {
        Ok(server.request("POST", "/v1/call/bank/total", &fresh, b"{}")?.json()["result"].clone())
    };
    ensure!(
        total(&a)? == total(&b)? && total(&a)?["accounts"].is_string(),
        "{}",
        total(&a)?
    );
    Ok(())
}

/// Under load: the old primary gives its place away, and comes back as a standby of the new one; both in NVRAM.
#[test]
fn a_switch_over_in_nvram_loses_nothing() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", "1-safe")?;
    a.deploy("bank")?;
    let b = cluster.standby("b", &a, "1-safe")?;
    wait_in_sync(&a, &b)?;
    let load = Load::start(&a.address, 0);
    thread::sleep(Duration::from_millis(500));
    let url = format!("http://{}", b.address);
    let promoted = switch_over(&url)?;
    let said = String::from_utf8_lossy(&promoted.stdout).into_owned();
    ensure!(
        promoted.status.success() && said.contains("nothing is lost"),
        "{promoted:?}"
    );
    thread::sleep(Duration::from_millis(100));
    let answered = load.end();
    ensure!(answered.len() > 20, "{} answers", answered.len());
    ensure_has(&b, &answered)?;
    let (status, told) = open(&a, 7_000_000)?;
    ensure!(status == 421 && told["primary"] == url.as_str(), "{status}: {told}");
    // Killed behind that, it still is no primary, and follows.
    let mut a = a;
    a.kill()?;
    let mut mistake = Spawned::start(&cluster.launch("a", &["--partitions", "2"]))?;
    ensure!(!mistake.wait()?.success(), "it started");
    ensure!(mistake.errors().contains("stepped down for b"), "{}", mistake.errors());
    let a = cluster.standby("a", &b, "1-safe")?;
    wait_in_sync(&b, &a)?;
    ensure!(open(&b, 7_000_001)?.0 == 200, "it takes writes");
    // And back.
    let url = format!("http://{}", a.address);
    let promoted = switch_over(&url)?;
    ensure!(promoted.status.success(), "{promoted:?}");
    ensure!(open(&a, 7_000_002)?.0 == 200, "it takes writes");
    ensure_has(&a, &[answered, vec![7_000_001, 7_000_002]].concat())
}

#[test]
fn a_standby_tells_its_region_and_what_it_can_not_begin_with() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", "1-safe")?;
    a.deploy("bank")?;
    let mut b = cluster.standby("b", &a, "1-safe")?;
    wait_in_sync(&a, &b)?;
    let status = b.get("/v1/status")?.json();
    ensure!(status["device"] == "nvram" && status["role"] == "standby", "{status}");
    ensure!(status["nvram"]["persistence"] == "assumed", "{status}");
    ensure!(
        status["nvram"]["rings"]
            .as_array()
            .is_some_and(|rings| !rings.is_empty()),
        "{status}"
    );
    let told = run_verb(&["status", "--url", &format!("http://{}", b.address)])?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    ensure!(told.contains("flush commit"), "{told}");
    let metrics = b.get("/metrics")?.text();
    ensure!(metrics.contains("reprise_nvram_ring_bytes_max "), "{metrics}");
    b.kill()?;
    let url = format!("http://{}", a.address);
    let refusal = |name: &str| -> Result<String> {
        let mut process = Spawned::start(&cluster.launch(name, &["--standby-of", &url]))?;
        ensure!(!process.wait()?.success(), "it started");
        Ok(process.errors())
    };
    // Its region is gone; its log is, and the region is not.
    let (region, aside) = (cluster.dir.path().join("b.region"), cluster.dir.path().join("aside"));
    fs::rename(&region, &aside)?;
    let told = refusal("b")?;
    ensure!(told.contains("nvram.json") && told.contains("can't be read"), "{told}");
    fs::rename(&aside, &region)?;
    let log = cluster.dir.path().join("b/log");
    fs::rename(&log, &aside)?;
    let told = refusal("b")?;
    ensure!(told.contains("nvram.json") && !log.exists(), "{told}");
    fs::rename(&aside, &log)?;
    let b = cluster.standby("b", &a, "1-safe")?;
    wait_in_sync(&a, &b)?;
    let (status, errors) = b.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    ensure!(!cluster.dir.path().join("b/nvram.json").exists(), "the files have all");
    Ok(())
}
