//! Common parts of the tests of standbys: clients that open accounts while servers come and go, and waits for standbys in sync.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use reprise_test_crash::{Answer, Connection, Server};
use serde_json::Value;

/// A wait that ends only by a mistake.
pub const PATIENCE: Duration = Duration::from_secs(120);
const CLIENTS: u64 = 4;

/// Sent with each request.
pub type Headers = &'static [(&'static str, &'static str)];

/// Clients that open accounts of their own until they are stopped, or the server is gone. They run on the host on which they were started.
pub struct Openings {
    answered: Arc<Mutex<Vec<u64>>>,
    is_over: Arc<AtomicBool>,
    clients: Vec<thread::JoinHandle<()>>,
}

impl Openings {
    pub fn start(address: &str, headers: Headers) -> Self {
        let (answered, is_over) = (Arc::<Mutex<Vec<u64>>>::default(), Arc::<AtomicBool>::default());
        let clients = (0..CLIENTS).map(|client| {
            let (answered, is_over, address) = (answered.clone(), is_over.clone(), address.to_owned());
            thread::spawn(move || {
                let Ok(mut connection) = Connection::open(&address) else {
                    return;
                };
                for account in (client * 1_000_000..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
                    match connection.request("POST", "/v1/call/bank/open", headers, body.as_bytes()) {
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

    fn count(&self) -> usize {
        self.answered.lock().expect("held for a look").len()
    }

    /// Waits until this many more calls are answered.
    pub fn wait(&self, more: usize) -> Result<()> {
        let (until, wanted) = (Instant::now() + PATIENCE, self.count() + more);
        while self.count() < wanted {
            ensure!(
                Instant::now() < until,
                "{} of {wanted} calls are answered",
                self.count()
            );
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The accounts whose opening was answered.
    pub fn end(self) -> Vec<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            let _ = client.join(); // the list has its answers
        }
        mem::take(&mut *self.answered.lock().expect("all have ended"))
    }
}

/// Returns a server's report on replication.
pub fn replication(server: &Server, headers: Headers) -> Result<Value> {
    Ok(server.request("GET", "/v1/replication", headers, b"")?.json())
}

/// Returns a number that is a string in JSON; 0 if there is none.
pub fn lsn(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// Promotes a standby by force, whatever may be lost.
pub fn promote(standby: &Server) -> Result<Value> {
    let path = "/v1/replication/promote?force=true&accept_loss=true";
    let answer = standby.request("POST", path, &[], b"")?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(answer.json())
}

/// All before it is on the server's disk.
pub fn durable_lsn(server: &Server, headers: Headers) -> Result<u64> {
    let told = replication(server, headers)?;
    Ok(told["durable_lsn"].as_str().unwrap_or_default().parse()?)
}

/// The standby is connected to this server and in sync, so that commits wait for it.
pub fn is_awaited(server: &Server, name: &str) -> Result<bool> {
    Ok(is_awaited_by(&replication(server, &[])?, name))
}

/// By a report of the server, the standby is connected to it and in sync.
pub fn is_awaited_by(told: &Value, name: &str) -> bool {
    let mut standbys = told["standbys"].as_array().into_iter().flatten();
    let is_there = |one: &Value| one["name"] == name && one["state"] == "streaming" && one["in_sync"] == true;
    standbys.any(is_there)
}

/// Opens an account under a key of its own, again while standbys are missing: on a busy machine they may be late.
pub fn open_until_known(server: &Server, account: u64, headers: &[(&str, &str)]) -> Result<Answer> {
    let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
    let key = format!("open-{account}");
    let headers = [headers, &[("idempotency-key", &*key)]].concat();
    server.until_known("POST", "/v1/call/bank/open", &headers, body.as_bytes())
}

/// Waits until the server says that its writes have this level, with these standbys in sync and no others. Each of them must have that
/// status.
pub fn wait_reached(server: &Server, headers: Headers, (level, in_sync): (&str, &[&Server])) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(server, headers)?;
        let standbys = told["standbys"].as_array().cloned().unwrap_or_default();
        let count = standbys.iter().filter(|standby| standby["in_sync"] == true).count();
        if told["reached"] == level && count == in_sync.len() && know_it(in_sync, headers)? {
            return Ok(());
        }
        ensure!(Instant::now() < until, "not {level}: {told}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn know_it(standbys: &[&Server], headers: Headers) -> Result<bool> {
    for standby in standbys {
        if replication(standby, headers)?["standbys"][0]["in_sync"] != true {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes a checkpoint, and waits until it is there.
pub fn take_checkpoint(server: &Server) -> Result<()> {
    let begun = server.request("POST", "/v1/checkpoints", &[], b"")?;
    ensure!(matches!(begun.status, 200 | 202), "{}", begun.text());
    let (of, until) = (begun.json()["lsn"].clone(), Instant::now() + PATIENCE);
    loop {
        let told = server.get("/v1/checkpoints")?.json();
        let all = told["checkpoints"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|checkpoint| checkpoint["lsn"] == of);
        match found.unwrap_or_default()["state"].as_str() {
            Some("published") => return Ok(()),
            Some("running") => {}
            _ => bail!("{told}"),
        }
        ensure!(Instant::now() < until, "{told}");
        thread::sleep(Duration::from_millis(10));
    }
}
