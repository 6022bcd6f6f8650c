//! Three servers, whose primary is lost again and again under load. A standby takes over by hand or by lease, and the others follow it.

mod forced;
mod report;
mod waits;

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    etcd::Etcd,
    log::{check_digests, check_log},
    model::number,
    rng::Rng,
    run::{Config, Database, FILE, MIXED, NVRAM, NVRAM_BYTES, check_errors},
    server::{Launch, Server, run_verb},
    verify,
};

pub use forced::{ForcedReport, run_forced};
pub use report::FailoverReport;

/// Waits that end only by a mistake.
const PATIENCE: Duration = Duration::from_secs(120);
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Failovers after which a new database is begun: each check looks at everything that was written.
const FAILOVERS_PER_DATABASE: u32 = 10;
/// Exit status of a standby by lease that has more than the new primary.
const ENDS_AHEAD: i32 = 75;
/// Times of a lease, in ms: the shortest one, and one for servers that an emulated processor runs.
const LEASE_MS: &str = "2000";
const RDMA_LEASE_MS: &str = "6000";
const LOG_KINDS: [&str; 4] = ["command", "physiological", "both", "auto"];
const QUORUM: &str = "quorum";
const AS_LOGGED: &str = "as-logged";
/// The forms in which a primary ships transactions. A log of both forms, and one in NVRAM, are shipped as they are.
const SHIPPED: [&str; 3] = [AS_LOGGED, "changes", "command"];

/// The decider that a standby takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// An operator, who promotes it.
    Hand,
    /// A lease in etcd, which is itself killed and restarted now and then.
    Lease,
}

#[derive(Clone, Debug)]
pub struct FailoverConfig {
    pub by: By,
    pub failovers: u32,
    pub seed: u64,
    /// `1-safe`, `2-safe` or `quorum`. At 1-safe both standbys are paused before the primary is lost.
    pub safety: String,
    /// The device that a commit waits for: `file`, `nvram` (regions in ordinary files), or `mixed`, which is either at each start.
    pub device: String,
    /// The log travels over RDMA, between the cards of this machine that have these addresses; a server has one of them.
    pub cards: Vec<String>,
    /// A line about each failover on standard error.
    pub tells: bool,
    /// Keep the directory of a failure.
    pub keeps: bool,
}

/// Clients of another test, beside the load.
pub trait Witness {
    /// A new database, and its primary, with standbys in sync.
    fn begin(&mut self, primary: &Server) -> Result<()>;
    /// Looks on from here, at servers under these addresses, until `failover` has one of them lose its place to another one, and a while longer.
    fn watch(&mut self, addresses: &[String], failover: &mut dyn FnMut() -> Result<()>) -> Result<()>;
}

/// Runs all failovers. The error says how to repeat the run, and names the directory.
pub fn run_failovers(config: &FailoverConfig) -> Result<FailoverReport> {
    run_failovers_before(config, &mut NoWitness)
}

struct NoWitness;

impl Witness for NoWitness {
    fn begin(&mut self, _: &Server) -> Result<()> {
        Ok(())
    }

    fn watch(&mut self, _: &[String], failover: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        failover()
    }
}

/// The `run_failovers` variant with a witness.
pub fn run_failovers_before(config: &FailoverConfig, witness: &mut dyn Witness) -> Result<FailoverReport> {
    let mut rng = Rng::new(config.seed);
    let mut report = FailoverReport::default();
    let begun = Instant::now();
    while report.failovers < config.failovers {
        let count = FAILOVERS_PER_DATABASE.min(config.failovers - report.failovers);
        let mut cluster = Cluster::new(config, rng.fork())?;
        if let Err(error) = cluster.failovers(count, config, (&mut *witness, &mut report)) {
            let said = cluster.nodes.said();
            let kept = match config.keeps {
                true => format!("; the directory is kept: {}", cluster.keep().display()),
                false => String::new(),
            };
            let number = report.failovers + 1;
            return Err(error.context(format!(
                "failover {number} of seed {}{kept}\n{said}reproduce: {}",
                config.seed,
                config.command(number)
            )));
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

impl FailoverConfig {
    /// Returns a run at 2-safe, with the log in files, over TCP.
    pub fn new(by: By, failovers: u32, seed: u64) -> Self {
        Self {
            by,
            failovers,
            seed,
            safety: "2-safe".into(),
            device: FILE.into(),
            cards: Vec::new(),
            tells: false,
            keeps: true,
        }
    }

    /// The command that repeats the first failovers.
    fn command(&self, failovers: u32) -> String {
        let way = match self.cards.is_empty() {
            true => "",
            false => " --rdma",
        };
        let device = match self.device == FILE {
            true => String::new(),
            false => format!(" --device {}", self.device),
        };
        let (by, safety, seed) = (self.by.name(), &self.safety, self.seed);
        format!("cargo xtask failover{way} --by-{by} {failovers} --safety {safety}{device} --seed {seed}")
    }
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Hand => "hand",
            Self::Lease => "lease",
        }
    }
}

/// How the primary is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Killed,
    /// The primary stands still, and continues once another server is the primary.
    Paused,
    Stopped,
    SwitchedOver,
}

/// The trouble of a standby while the primary is under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    Paused,
    Killed,
}

/// The expected contents, and the servers that must have them.
struct Cluster {
    database: Database,
    nodes: Nodes,
}

struct Nodes {
    root: PathBuf,
    partitions: u64,
    safety: String,
    device: String,
    cards: Vec<String>,
    /// The store of the lease, if a lease decides which server is the primary.
    etcd: Option<Etcd>,
    rng: Rng,
    servers: [Option<Server>; 3],
    primary: usize,
    /// Two that are there.
    accounts: [i64; 2],
}

fn choose_loss(rng: &mut Rng, safety: &str, by: By) -> Loss {
    if by == By::Lease {
        return match rng.below(100) {
            0..10 => Loss::SwitchedOver,
            10..20 => Loss::Stopped,
            20..55 => Loss::Paused,
            _ => Loss::Killed,
        };
    }
    match rng.below(100) {
        0..20 => Loss::SwitchedOver,
        20..25 => Loss::Stopped,
        // A paused primary at 2-safe may acknowledge writes alone while another server takes over. They are lost with it, and reported.
        25..45 if safety == QUORUM => Loss::Paused,
        _ => Loss::Killed,
    }
}

fn choose_trouble(rng: &mut Rng) -> Trouble {
    match rng.below(4) {
        0 => Trouble::Paused,
        1 => Trouble::Killed,
        _ => Trouble::None,
    }
}

fn replication(server: &Server) -> Result<Value> {
    let answer = server.get("/v1/replication")?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(answer.json())
}

/// A small region in an ordinary file, whose rings go around often.
fn nvram_args(region: &Path) -> [&str; 8] {
    let region = region.to_str().expect("a temporary directory has a plain name");
    [
        "--device",
        NVRAM,
        "--nvram",
        region,
        "--nvram-size",
        NVRAM_BYTES,
        "--nvram-assume-persistent",
        "true",
    ]
}

fn url(server: &Server) -> String {
    format!("http://{}", server.address)
}

impl Cluster {
    fn new(config: &FailoverConfig, mut rng: Rng) -> Result<Self> {
        let own = rng.fork();
        let database = Database::new(&Config::new(0, 0), rng)?;
        let etcd = match config.by {
            By::Hand => None,
            By::Lease => Some(Etcd::start(&database.dir.path().join("etcd"))?),
        };
        let nodes = Nodes {
            root: database.dir.path().to_owned(),
            partitions: database.partitions,
            safety: config.safety.clone(),
            device: config.device.clone(),
            cards: config.cards.clone(),
            etcd,
            rng: own,
            servers: Default::default(),
            primary: 0,
            accounts: database.models[0].pairs[0].accounts,
        };
        Ok(Self { database, nodes })
    }

    fn keep(self) -> PathBuf {
        drop(self.nodes);
        self.database.keep()
    }

    fn failovers(
        &mut self,
        count: u32,
        config: &FailoverConfig,
        (witness, report): (&mut dyn Witness, &mut FailoverReport),
    ) -> Result<()> {
        self.nodes.start_primary()?;
        for standby in self.nodes.standbys() {
            self.nodes.start_standby(standby)?;
        }
        self.nodes.wait_in_sync()?;
        witness.begin(self.nodes.node(self.nodes.primary)?)?;
        for _ in 0..count {
            self.database.rng = self.database.plan.fork();
            self.nodes.wait_in_sync()?;
            self.check()?;
            let loss = choose_loss(&mut self.database.rng, &config.safety, config.by);
            let trouble = choose_trouble(&mut self.database.rng);
            let old = NAMES[self.nodes.primary];
            self.failover((loss, trouble), witness, report)
                .with_context(|| format!("{old} is {loss:?}, a standby has {trouble:?}"))?;
            report.failovers += 1;
            if config.tells {
                let (new, counts) = (NAMES[self.nodes.primary], self.database.counts());
                eprintln!(
                    "failover {}: {loss:?} {old}, a standby {trouble:?}, {new} took over; {} acknowledged, {} unknown so far",
                    report.failovers, counts.acknowledged, counts.unknown
                );
            }
        }
        self.finish(report).context("the last look at a database")
    }

    /// Checks the primary's contents, and that each standby shows the same.
    fn check(&mut self) -> Result<()> {
        self.database.check(self.nodes.node(self.nodes.primary)?)?;
        self.nodes.check_alike()
    }

    fn failover(
        &mut self,
        (loss, trouble): (Loss, Trouble),
        witness: &mut dyn Witness,
        report: &mut FailoverReport,
    ) -> Result<()> {
        let rng = &mut self.database.rng;
        let before = Duration::from_micros(rng.below(500_000));
        let after = Duration::from_micros(rng.below(400_000));
        let deploys_too = rng.below(4) == 0;
        let loses_etcd = rng.below(4) == 0;
        let (nodes, database) = (&mut self.nodes, &mut self.database);
        let troubled = nodes.standbys()[database.rng.below(2) as usize];
        let address = nodes.node(nodes.primary)?.address.clone();
        let servers = nodes.servers.iter().flatten();
        let addresses: Vec<_> = servers.map(|server| server.address.clone()).collect();
        witness.watch(&addresses, &mut || {
            database.load(&address, deploys_too, || {
                thread::sleep(before);
                nodes.trouble(trouble, troubled, report)?;
                thread::sleep(after);
                if loses_etcd {
                    nodes.restart_etcd(report)?;
                }
                nodes.wait_backed(troubled)?;
                nodes.lose(loss, report)
            })
        })?;
        // A standby that does not follow the new primary yet is started again.
        let nodes = &mut self.nodes;
        for node in nodes.standbys() {
            if nodes.servers[node].is_some() {
                report.ended_ahead += u64::from(nodes.ended_ahead(node)?);
                nodes.kill(node)?;
            }
            nodes.start_standby(node)?;
        }
        Ok(())
    }

    /// Every row, the log record of every acknowledged transaction, and the same digest on any number of sites.
    fn finish(&mut self, report: &mut FailoverReport) -> Result<()> {
        self.database.rng = self.database.plan.fork();
        self.nodes.wait_in_sync()?;
        self.check()?;
        verify::check_rows(&self.database.models, self.nodes.node(self.nodes.primary)?)?;
        for node in 0..NAMES.len() {
            let told = replication(self.nodes.node(node)?)?;
            report.cuts += told["cuts"].as_array().map_or(0, |cuts| cuts.len() as u64);
            // A server with NVRAM stops in order, so that the files have the records of the region.
            match self.nodes.device == FILE {
                true => self.nodes.kill(node)?,
                false => self.nodes.stop(node)?,
            }
        }
        let dir = self.nodes.data_dir(self.nodes.primary);
        let is_whole = check_log(&dir, &self.database.models)?;
        let copy = self.nodes.root.join("copy");
        check_digests(&dir, &copy, self.nodes.partitions, is_whole)?;
        report.counts.add(&self.database.counts());
        Ok(())
    }
}

impl Nodes {
    /// The last lines of each server that lives.
    fn said(&mut self) -> String {
        let mut text = String::new();
        for (name, node) in NAMES.iter().zip(&mut self.servers) {
            let errors = node.as_mut().map(|node| node.process().errors()).unwrap_or_default();
            let lines: Vec<&str> = errors.lines().collect();
            for line in &lines[lines.len().saturating_sub(4)..] {
                text += &format!("{name}: {line}\n");
            }
        }
        text
    }

    fn data_dir(&self, node: usize) -> PathBuf {
        self.root.join(NAMES[node])
    }

    fn launch(&mut self, node: usize, args: &[&str]) -> Launch {
        let partitions = self.partitions;
        let is_in_nvram = self.is_in_nvram();
        let rng = &mut self.rng;
        let sites = (1 + rng.below(partitions.min(3))).to_string();
        let delay = ["0", "200"][rng.below(2) as usize];
        let kind = LOG_KINDS[rng.below(LOG_KINDS.len() as u64) as usize];
        let form = match is_in_nvram || kind == "both" {
            true => AS_LOGGED,
            false => SHIPPED[rng.below(SHIPPED.len() as u64) as usize],
        };
        let ships = match self.cards.get(node % self.cards.len().max(1)) {
            Some(card) => format!("{card}:0"),
            None => "127.0.0.1:0".into(),
        };
        let own = [
            ("--name", NAMES[node]),
            ("--ship-listen", &*ships),
            ("--safety", &self.safety),
            ("--sites", &sites),
            ("--log", kind),
            ("--ship", form),
            ("--group-commit-us", delay),
        ];
        let own: Vec<_> = own.iter().flat_map(|(flag, value)| [*flag, *value]).collect();
        let launch = Launch::new(&self.data_dir(node)).args(&own).args(args);
        let launch = match is_in_nvram {
            true => launch.args(&nvram_args(&self.root.join(format!("{}.region", NAMES[node])))),
            false => launch,
        };
        let (launch, lease_ms) = match self.cards.is_empty() {
            true => (launch, LEASE_MS),
            false => (launch.args(&["--transport", "rdma"]), RDMA_LEASE_MS),
        };
        match &self.etcd {
            None => launch,
            Some(etcd) => launch.args(&["--lease-etcd", &etcd.url(), "--lease-ttl-ms", lease_ms]),
        }
    }

    /// Whether the next start is one in NVRAM.
    fn is_in_nvram(&mut self) -> bool {
        match self.device.as_str() {
            MIXED => self.rng.below(2) == 0,
            fixed => fixed == NVRAM,
        }
    }

    fn start_primary(&mut self) -> Result<()> {
        let partitions = self.partitions.to_string();
        let launch = self.launch(self.primary, &["--partitions", &partitions]);
        self.servers[self.primary] = Some(Server::start(&launch)?);
        Ok(())
    }

    /// Starts a standby in its present directory, in whatever role that was before.
    fn start_standby(&mut self, node: usize) -> Result<()> {
        let of = url(self.node(self.primary)?);
        let launch = self.launch(node, &["--standby-of", &of]);
        let started = Server::start(&launch).with_context(|| format!("start {} as a standby", NAMES[node]))?;
        self.servers[node] = Some(started);
        Ok(())
    }

    fn node(&self, node: usize) -> Result<&Server> {
        self.servers[node].as_ref().context("it was lost")
    }

    fn standbys(&self) -> [usize; 2] {
        [(self.primary + 1) % 3, (self.primary + 2) % 3]
    }

    /// Returns whether a standby ended by itself, to be started again, because its log was ahead of the new primary's.
    fn ended_ahead(&mut self, node: usize) -> Result<bool> {
        let process = self.servers[node].as_mut().context("it was lost")?.process();
        if process.is_running() {
            return Ok(false);
        }
        let status = process.wait()?;
        ensure!(
            status.code() == Some(ENDS_AHEAD) && self.etcd.is_some(),
            "{} ended with {status}: {}",
            NAMES[node],
            process.errors()
        );
        Ok(true)
    }

    /// Ends without a word.
    fn kill(&mut self, node: usize) -> Result<()> {
        let mut server = self.servers[node].take().context("it was lost")?;
        server.kill()?;
        check_errors(&server.process().errors())
    }

    /// Ends in order.
    fn stop(&mut self, node: usize) -> Result<()> {
        let server = self.servers[node].take().context("it was lost")?;
        let (status, errors) = server.terminate()?;
        ensure!(status.code() == Some(0), "SIGTERM ended with {status}: {errors}");
        check_errors(&errors)
    }

    fn signal(&mut self, node: usize, signal: i32) -> Result<()> {
        let server = self.servers[node].as_mut().context("it was lost")?;
        server.process().signal(signal)
    }

    fn trouble(&mut self, trouble: Trouble, standby: usize, report: &mut FailoverReport) -> Result<()> {
        if self.safety == "1-safe" {
            return self
                .standbys()
                .into_iter()
                .try_for_each(|each| self.signal(each, libc::SIGSTOP));
        }
        match trouble {
            Trouble::None => {}
            Trouble::Paused => {
                self.signal(standby, libc::SIGSTOP)?;
                report.standbys_paused += 1;
            }
            Trouble::Killed => {
                self.kill(standby)?;
                report.standbys_killed += 1;
                // A quorum is two of the three, and no operator accepts a loss here.
                if self.safety == QUORUM && self.etcd.is_some() {
                    self.start_standby(standby)?;
                }
            }
        }
        Ok(())
    }

    /// Another one is the primary behind this, and the old one does not answer.
    fn lose(&mut self, loss: Loss, report: &mut FailoverReport) -> Result<()> {
        let old = self.primary;
        match loss {
            Loss::Killed => {
                self.kill(old)?;
                report.killed += 1;
            }
            Loss::Paused => {
                self.signal(old, libc::SIGSTOP)?;
                report.paused += 1;
            }
            Loss::Stopped => {
                // The primary waits only for the connections of its clients, and for standbys that stand still.
                self.wake_standbys()?;
                self.stop(old)?;
                report.stopped += 1;
            }
            Loss::SwitchedOver => report.switched += 1,
        }
        self.wake_standbys()?;
        if self.etcd.is_some() && loss != Loss::SwitchedOver {
            return self.lose_by_lease(loss);
        }
        if loss == Loss::Paused {
            self.wait_arrived()?;
        }
        let new = self.furthest()?;
        if loss == Loss::Paused {
            self.leave(new)?;
        }
        let promoting = self.promote(new, loss != Loss::SwitchedOver)?;
        let promotion_s = self.first_write(new, promoting)?.as_secs_f64();
        report.promotions_s.push(promotion_s);
        if loss == Loss::Paused {
            self.signal(old, libc::SIGCONT)?;
            thread::sleep(Duration::from_millis(300));
        }
        if self.servers[old].is_some() {
            self.kill(old)?;
        }
        self.primary = new;
        Ok(())
    }

    /// Waits until a standby has taken over by itself. An old primary that continues finds that out.
    fn lose_by_lease(&mut self, loss: Loss) -> Result<()> {
        let (old, until) = (self.primary, Instant::now() + PATIENCE);
        let new = loop {
            if let Some(new) = self.taken_over()? {
                break new;
            }
            ensure!(Instant::now() < until, "no standby has taken over");
            thread::sleep(Duration::from_millis(20));
        };
        if loss == Loss::Paused {
            self.signal(old, libc::SIGCONT)?;
            while replication(self.node(old)?)?["role"] != "standby" {
                ensure!(
                    Instant::now() < until,
                    "the old primary does not hear that it was deposed"
                );
                thread::sleep(Duration::from_millis(20));
            }
        }
        if self.servers[old].is_some() {
            self.kill(old)?;
        }
        self.primary = new;
        Ok(())
    }

    fn taken_over(&self) -> Result<Option<usize>> {
        for standby in self.standbys() {
            // One whose log is ahead of the new primary's may have ended.
            if let Some(server) = &self.servers[standby]
                && replication(server).is_ok_and(|told| told["role"] == "primary")
            {
                return Ok(Some(standby));
            }
        }
        Ok(None)
    }

    fn restart_etcd(&mut self, report: &mut FailoverReport) -> Result<()> {
        let Some(etcd) = &mut self.etcd else { return Ok(()) };
        let away = Duration::from_millis(self.rng.below(3_000));
        etcd.kill()?;
        thread::sleep(away);
        etcd.go_on()?;
        report.etcd_restarted += 1;
        Ok(())
    }

    /// Leaves an old primary that may go on, as the runbook says: no other server follows it, and none has more records.
    fn leave(&mut self, new: usize) -> Result<()> {
        for other in self.standbys() {
            if other == new || self.servers[other].is_none() {
                continue;
            }
            self.kill(other)?;
            let dir = self.data_dir(other);
            let verified = run_verb(&["log", "verify", &dir.display().to_string(), "--output", "json"])?;
            let told: Value = serde_json::from_slice(&verified.stdout).context("the answer of log verify")?;
            let end = number(&told["end"]).with_context(|| format!("an LSN: {told}"))?;
            self.wait_durable(new, end)
                .with_context(|| format!("{} has {end}", NAMES[other]))?;
        }
        Ok(())
    }

    fn wake_standbys(&mut self) -> Result<()> {
        for standby in self.standbys() {
            if self.servers[standby].is_some() {
                self.signal(standby, libc::SIGCONT)?;
            }
        }
        Ok(())
    }

    /// Returns the remaining standby that has persisted most, as the runbook says. If commits wait for all standbys, one that knows that it
    /// is out of sync is the last choice, behind one that does not know. Its extra records were not acknowledged.
    fn furthest(&self) -> Result<usize> {
        let mut best = None;
        for standby in self.standbys() {
            let Some(server) = &self.servers[standby] else { continue };
            let told = replication(server)?;
            let persisted = number(&told["durable_lsn"]).context("an LSN")?;
            let preferred = match &told["standbys"][0]["in_sync"] {
                _ if self.safety == QUORUM => 0,
                Value::Bool(is_in_sync) => 2 * i32::from(*is_in_sync),
                _ => 1,
            };
            let reached = (preferred, persisted);
            if best.is_none_or(|(most, _)| reached > most) {
                best = Some((reached, standby));
            }
        }
        best.map(|(_, standby)| standby).context("no standby is left")
    }

    /// Since when it was promoted.
    fn promote(&self, node: usize, is_forced: bool) -> Result<Instant> {
        let mut path = match is_forced {
            false => "/v1/replication/promote",
            true => "/v1/replication/promote?force=true",
        };
        let until = Instant::now() + PATIENCE;
        loop {
            let asked = Instant::now();
            let answer = self.node(node)?.request("POST", path, &[], b"")?;
            if answer.status == 200 {
                return Ok(asked);
            }
            // The node has the most records of the candidates that were checked, and may not know that.
            if is_forced && answer.json()["type"] == "/problems/out-of-sync" && !path.contains("accept_loss") {
                path = "/v1/replication/promote?force=true&accept_loss=true";
                continue;
            }
            // A standby that was paused may have to connect again before its primary can give its place to it.
            ensure!(
                !is_forced && Instant::now() < until,
                "promote {}: {} {}",
                NAMES[node],
                answer.status,
                answer.text()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// A transfer of nothing, which changes no sum, however often it takes place. How long after `promoting` it was answered; a quorum answers none
    /// before others follow, so there it is the promotion alone.
    fn first_write(&self, node: usize, promoting: Instant) -> Result<Duration> {
        if self.safety == QUORUM {
            return Ok(promoting.elapsed());
        }
        let [from, to] = self.accounts;
        let args = serde_json::json!({"from": from, "to": to, "amount": 0}).to_string();
        let answer = self
            .node(node)?
            .until_known("POST", "/v1/call/bank/transfer", &[], args.as_bytes())?;
        ensure!(
            answer.status == 200,
            "a first write: {} {}",
            answer.status,
            answer.text()
        );
        Ok(promoting.elapsed())
    }

    /// Checks that each standby shows the same as the primary.
    fn check_alike(&self) -> Result<()> {
        let total = |node: usize, lsn: &str| -> Result<Value> {
            let headers = [("reprise-min-lsn", lsn), ("reprise-max-wait-ms", "60000")];
            let answer = self
                .node(node)?
                .request("POST", "/v1/call/bank/total", &headers, b"{}")?;
            ensure!(answer.status == 200, "{}: {}", NAMES[node], answer.text());
            Ok(answer.json()["result"].clone())
        };
        let durable = number(&replication(self.node(self.primary)?)?["durable_lsn"]).context("an LSN")?;
        let last = (durable - 1).max(0).to_string();
        let expected = total(self.primary, "0")?;
        for standby in self.standbys() {
            let found = total(standby, &last)?;
            ensure!(
                found == expected,
                "{} shows {found}, the primary {expected}",
                NAMES[standby]
            );
        }
        Ok(())
    }
}
