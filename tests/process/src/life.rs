//! Ordinary life at speed. A primary takes calls while operators deploy and roll back, rotate tokens, take checkpoints and backups, and have it read
//! its configuration again. A standby leaves and comes. The memory, the descriptors and the threads of the primary stay flat, and its output has no
//! warning of anything else.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::{Connection, Launch, Server, procedure_wasm};
use serde_json::Value;

use crate::{
    openings::{PATIENCE, is_awaited_by},
    verbs::json_of,
};

/// Accounts that the clients move money between: the tables do not grow.
const ACCOUNTS: u64 = 1_000;
const CLIENTS: u64 = 3;
/// One call of so many has an idempotency key of its own.
const KEYED_EVERY: u64 = 50;
const JSON: (&str, &str) = ("content-type", "application/json");
/// Parts of the warnings that a round causes: its standby goes away, and a withdrawn token is tried.
const EXPECTED: [&str; 2] = ["standby", "refused as unauthorized"];

/// The processes' use of the machine at the end of a round.
#[derive(Clone, Copy, Debug)]
struct Usage {
    resident_mib: u64,
    descriptors: u64,
    threads: u64,
}

/// The use of the machine by a life, and what its primary warned of.
#[derive(Clone, Debug, Default)]
pub struct LifeReport {
    calls: u64,
    usages: Vec<Usage>,
    /// Warnings of the primary that no act of a round explains.
    pub unexpected: Vec<String>,
}

impl LifeReport {
    /// Returns the largest use in a quarter of the rounds, the first of which is 0.
    fn most_in(&self, quarter: usize) -> Option<Usage> {
        let rounds = self.usages.len() / 4;
        let own = self.usages.get(quarter * rounds..(quarter + 1) * rounds)?.iter();
        own.copied().reduce(|most, other| Usage {
            resident_mib: most.resident_mib.max(other.resident_mib),
            descriptors: most.descriptors.max(other.descriptors),
            threads: most.threads.max(other.threads),
        })
    }

    /// Whether the last quarter used no more than the second one: a twentieth and 8 MiB of memory, two descriptors and two threads apart.
    pub fn is_flat(&self) -> bool {
        let (Some(second), Some(last)) = (self.most_in(1), self.most_in(3)) else {
            return true;
        };
        last.resident_mib <= second.resident_mib + second.resident_mib / 20 + 8
            && last.descriptors <= second.descriptors + 2
            && last.threads <= second.threads + 2
    }
}

impl fmt::Display for LifeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rounds        {}, {} calls", self.usages.len(), self.calls)?;
        for (quarter, usage) in (0..4).filter_map(|quarter| Some((quarter, self.most_in(quarter)?))) {
            let Usage {
                resident_mib,
                descriptors,
                threads,
            } = usage;
            writeln!(
                f,
                "quarter {}     {resident_mib} MiB, {descriptors} descriptors, {threads} threads",
                quarter + 1
            )?;
        }
        writeln!(f, "flat          {}", self.is_flat())?;
        self.unexpected
            .iter()
            .try_for_each(|line| writeln!(f, "unexpected    {line}"))
    }
}

/// Clients that move money until they are stopped.
struct Movers {
    is_over: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    clients: Vec<thread::JoinHandle<Result<()>>>,
}

impl Movers {
    fn start(address: &str, bearer: &str) -> Self {
        let (is_over, calls) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let client = |number: u64| {
            let (is_over, calls) = (is_over.clone(), calls.clone());
            let (address, bearer) = (address.to_owned(), bearer.to_owned());
            thread::spawn(move || {
                let mut connection = Connection::open(&address).context("connect")?;
                for at in (number..).step_by(CLIENTS as usize) {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let (from, to) = (at % ACCOUNTS, (at * 7 + 1) % ACCOUNTS);
                    let body = format!(r#"{{"from": {from}, "to": {to}, "amount": 1}}"#);
                    let key = format!("move-{at}");
                    let headers = [JSON, ("authorization", &*bearer), ("idempotency-key", &*key)];
                    let count = if at % KEYED_EVERY == 0 { 3 } else { 2 };
                    let answer =
                        connection.request("POST", "/v1/call/bank/transfer", &headers[..count], body.as_bytes());
                    let answer = answer.map_err(|cut| cut.error)?;
                    // The standby that this waited for was killed.
                    let is_open = answer.status == 503 && answer.json()["type"] == "/problems/outcome-unknown";
                    ensure!(answer.status == 200 || is_open, "{from} to {to}: {}", answer.text());
                    calls.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        Self {
            clients: (0..CLIENTS).map(client).collect(),
            is_over: is_over.clone(),
            calls: calls.clone(),
        }
    }

    fn end(self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.join().expect("a client does not panic")?;
        }
        Ok(self.calls.load(Ordering::Relaxed))
    }
}

/// A primary, its standby, and the tokens of its operators.
struct Household {
    dir: PathBuf,
    a: Server,
    b: Option<Server>,
    /// `Bearer TOKEN` of the role `admin`.
    ops: String,
    /// That of an application, and the digest of it.
    app: (String, String),
}

impl Household {
    fn begin(dir: &Path) -> Result<Self> {
        let data = dir.join("a");
        let (ops, _) = new_token(&data, "ops", "admin")?;
        let app = new_token(&data, "app", "write")?;
        let said = fs::File::create(dir.join("a.err")).context("the primary's output")?;
        let launch = Launch::new(&data).errors_to(said);
        let args = [
            "--name",
            "a",
            "--ship-listen",
            "127.0.0.1:0",
            "--partitions",
            "2",
            "--safety",
            "2-safe",
            "--idempotency-keep-s",
            "30",
        ];
        let a = Server::start(&launch.args(&args))?;
        let mut own = Self {
            dir: dir.to_owned(),
            a,
            b: None,
            ops,
            app,
        };
        own.ask("PUT", "/v1/modules/bank", &procedure_wasm("bank")?, 201)?;
        own.ask("PUT", "/v1/modules/contacts", &procedure_wasm("contacts1")?, 201)?;
        for account in 0..ACCOUNTS {
            let body = format!(r#"{{"account": {account}, "balance": 1000000000}}"#);
            own.ask("POST", "/v1/call/bank/open", body.as_bytes(), 200)?;
        }
        own.bring_standby()?;
        Ok(own)
    }

    /// Sends a request of an operator, and again with consent to what it would destroy.
    fn ask(&self, method: &str, path: &str, body: &[u8], status: u16) -> Result<Value> {
        let headers = [("authorization", &*self.ops)];
        let mut answer = self.a.request(method, path, &headers, body)?;
        if answer.status == 409 {
            let consenting = format!("{path}{}", answer.consents());
            answer = self.a.request(method, &consenting, &headers, body)?;
        }
        ensure!(
            answer.status == status,
            "{method} {path}: {} {}",
            answer.status,
            answer.text()
        );
        Ok(serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    fn wait(&self, path: &str, is_there: impl Fn(&Value) -> bool) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            let told = self.ask("GET", path, b"", 200)?;
            if is_there(&told) {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{path}: {told}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn bring_standby(&mut self) -> Result<()> {
        let url = format!("http://{}", self.a.address);
        let token = self.ops.trim_start_matches("Bearer ").to_owned();
        let launch = Launch::new(&self.dir.join("b")).args(&["--name", "b", "--ship-listen", "127.0.0.1:0"]);
        let args = ["--safety", "2-safe", "--standby-of", &url, "--standby-token", &token];
        self.b = Some(Server::start(&launch.args(&args))?);
        self.wait("/v1/replication", |told| is_awaited_by(told, "b"))
    }

    /// Every act of an operator once.
    fn live(&mut self, round: u64) -> Result<()> {
        let deployed = self.ask(
            "PUT",
            "/v1/modules/contacts?dry_run=true",
            &procedure_wasm("contacts2")?,
            200,
        )?;
        ensure!(
            deployed["plan"].is_array() || deployed["plan"].is_object(),
            "{deployed}"
        );
        self.ask("PUT", "/v1/modules/contacts", &procedure_wasm("contacts2")?, 200)?;
        self.ask("POST", "/v1/modules/contacts/rollback", b"", 200)?;
        let begun = self.ask("POST", "/v1/checkpoints", b"", 202)?;
        let path = format!("/v1/checkpoints/{}", begun["id"].as_str().unwrap_or_default());
        self.wait(&path, |told| told["state"] == "published")?;
        let begun = self.ask("POST", "/v1/backups", b"", 202)?;
        let path = format!("/v1/backups/{}", begun["id"].as_str().unwrap_or_default());
        self.wait(&path, |told| told["state"] == "published")?;
        self.ask("DELETE", &path, b"", 204)?;
        self.rotate()?;
        for path in [
            "/v1/log?limit=100&order=newest",
            "/v1/audit?limit=100",
            "/metrics",
            "/openapi.json",
            "/v1/tables",
        ] {
            self.ask("GET", path, b"", 200)?;
        }
        self.ask("GET", "/v1/tables/bank.accounts/rows?limit=1000", b"", 200)?;
        let leaving = self.b.take().context("the standby is there")?;
        match round % 2 {
            0 => drop(leaving), // kill -9
            _ => _ = leaving.terminate()?,
        }
        self.bring_standby()
    }

    /// Gives the application another token and withdraws the one that it had.
    fn rotate(&mut self) -> Result<()> {
        let data = self.dir.join("a");
        let (next, digest) = new_token(&data, "app", "write")?;
        self.a.process().signal(libc::SIGHUP)?;
        self.wait_admitted(&next, 200)?;
        let (former, former_digest) = std::mem::replace(&mut self.app, (next, digest));
        let data = data.display().to_string();
        json_of(&[
            "token",
            "revoke",
            "app",
            "--sha256",
            &former_digest,
            "--data-dir",
            &data,
        ])?;
        self.a.process().signal(libc::SIGHUP)?;
        self.wait_admitted(&former, 401)
    }

    fn wait_admitted(&self, bearer: &str, status: u16) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self
            .a
            .request("GET", "/v1/status", &[("authorization", bearer)], b"")?
            .status
            != status
        {
            ensure!(Instant::now() < until, "the reload changes nothing");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn usage(&mut self) -> Result<Usage> {
        let process = PathBuf::from(format!("/proc/{}", self.a.process().id()));
        let count = |folder: &str| anyhow::Ok(fs::read_dir(process.join(folder))?.count() as u64);
        let status = fs::read_to_string(process.join("status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(Usage {
            resident_mib: kib.context("the resident size")? >> 10,
            descriptors: count("fd")?,
            threads: count("task")?,
        })
    }
}

/// Makes a token; its header's value, and its digest.
fn new_token(data: &Path, name: &str, role: &str) -> Result<(String, String)> {
    let data = data.display().to_string();
    let made = json_of(&["token", "new", name, "--role", role, "--data-dir", &data])?;
    let (Some(token), Some(digest)) = (made["token"].as_str(), made["sha256"].as_str()) else {
        bail!("{made}");
    };
    Ok((format!("Bearer {token}"), digest.to_owned()))
}

/// Lives in `dir` for this long, or for one round. `tell` gets a line for each round.
pub fn run_life(time: Duration, dir: &Path, tell: &mut dyn FnMut(String)) -> Result<LifeReport> {
    let until = Instant::now() + time;
    let mut household = Household::begin(dir)?;
    let movers = Movers::start(&household.a.address, &household.ops);
    let mut report = LifeReport::default();
    loop {
        household.live(report.usages.len() as u64)?;
        let usage = household.usage()?;
        tell(format!("round {}: {usage:?}", report.usages.len() + 1));
        report.usages.push(usage);
        if Instant::now() >= until {
            break;
        }
    }
    report.calls = movers.end()?;
    let (status, _) = household.a.terminate()?;
    ensure!(status.success(), "the primary ended with {status}");
    let said = fs::read_to_string(dir.join("a.err"))?;
    let is_danger = |line: &&str| line.contains(" warning: ") || line.contains(" error: ");
    let is_explained = |line: &&str| EXPECTED.iter().any(|part| line.contains(part));
    let unexpected = said.lines().filter(is_danger).filter(|line| !is_explained(line));
    report.unexpected = unexpected.map(str::to_owned).collect();
    Ok(report)
}
