//! What tests of standbys have in common: clients that open accounts while servers come and go, and waits for who is in sync.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Connection, Server};
use serde_json::Value;

/// A wait that ends only by a mistake.
pub const PATIENCE: Duration = Duration::from_secs(120);
const CLIENTS: u64 = 4;

/// Sent with each request.
pub type Headers = &'static [(&'static str, &'static str)];

/// Clients that open accounts of their own until they are told to end, or the server is gone, from the host on which they were started.
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

    /// Waits until so many more calls are answered.
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
            let _ = client.join(); // what it was answered is there
        }
        mem::take(&mut *self.answered.lock().expect("all have ended"))
    }
}

/// What a server tells of replication.
pub fn replication(server: &Server, headers: Headers) -> Result<Value> {
    Ok(server.request("GET", "/v1/replication", headers, b"")?.json())
}

/// Waits until the server says that its writes have this level, with so many standbys in sync.
pub fn wait_reached(server: &Server, headers: Headers, (level, in_sync): (&str, usize)) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(server, headers)?;
        let standbys = told["standbys"].as_array().cloned().unwrap_or_default();
        let count = standbys.iter().filter(|standby| standby["in_sync"] == true).count();
        if told["reached"] == level && count == in_sync {
            return Ok(());
        }
        ensure!(Instant::now() < until, "not {level}: {told}");
        thread::sleep(Duration::from_millis(10));
    }
}
