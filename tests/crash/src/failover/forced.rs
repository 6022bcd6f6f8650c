//! Promotions by force after standbys stood still under load. A loss of an acknowledged write has to be named by the promotion that causes it.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{By, FailoverConfig, NAMES, Nodes, PATIENCE};
use crate::{http::Connection, model::number, rng::Rng, server::Server};

const CLIENTS: i64 = 4;
/// Numbers of accounts that each client of a round has for itself.
const ACCOUNTS_PER_CLIENT: i64 = 1_000_000;
/// Rest of a client between two calls, so that a long stall leaves a number of writes that can be checked.
const REST: Duration = Duration::from_millis(2);
/// Time after which a primary at 2-safe goes on without a silent standby, and a while.
const ALONE_MS: u64 = 3_200;

/// A write that was acknowledged.
struct Acknowledged {
    lsn: i64,
    level: String,
}

/// Acknowledged writes by account.
type Written = BTreeMap<i64, Acknowledged>;

#[derive(Clone, Debug, Default)]
pub struct ForcedReport {
    pub promotions: u32,
    /// Promotions that were refused until a loss was accepted.
    pub accepted: u32,
    /// Promotions that named a loss.
    pub named: u32,
    /// Promotions that lost acknowledged writes. Each of them had named the loss.
    pub lossy: u32,
    pub acknowledged: u64,
    pub lost: u64,
    pub seconds: f64,
}

impl fmt::Display for ForcedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "promotions    {} by force in {:.1} s: {} wanted an accepted loss, {} named a loss, {} lost acknowledged writes",
            self.promotions, self.seconds, self.accepted, self.named, self.lossy
        )?;
        write!(
            f,
            "writes        {} acknowledged, {} of them lost, each of these named",
            self.acknowledged, self.lost
        )
    }
}

/// Runs forced promotions at the level of `config`. The error says how to repeat the run.
pub fn run_forced(config: &FailoverConfig) -> Result<ForcedReport> {
    let dir = tempfile::tempdir().context("a directory")?;
    let mut rng = Rng::new(config.seed);
    let nodes = Nodes {
        root: dir.path().to_owned(),
        partitions: 2,
        safety: config.safety.clone(),
        device: config.device.clone(),
        cards: Vec::new(),
        etcd: None,
        rng: rng.fork(),
        servers: Default::default(),
        primary: 0,
        accounts: [0, 0],
    };
    let mut cluster = ForcedCluster {
        nodes,
        rng,
        written: Written::new(),
        report: ForcedReport::default(),
    };
    let begun = Instant::now();
    if let Err(error) = cluster.run(config) {
        let (number, said) = (cluster.report.promotions + 1, cluster.nodes.said());
        let (safety, seed) = (&config.safety, config.seed);
        return Err(error.context(format!(
            "forced promotion {number} of seed {seed}\n{said}reproduce: cargo xtask failover --forced {number} --safety {safety} --seed {seed}"
        )));
    }
    cluster.report.seconds = begun.elapsed().as_secs_f64();
    Ok(cluster.report)
}

struct ForcedCluster {
    nodes: Nodes,
    rng: Rng,
    /// Writes of all rounds that are not lost.
    written: Written,
    report: ForcedReport,
}

/// An answer to a promotion.
struct Promoted {
    may_be_lost: Value,
    is_accepted: bool,
}

impl ForcedCluster {
    fn run(&mut self, config: &FailoverConfig) -> Result<()> {
        self.nodes.start_primary()?;
        for standby in self.nodes.standbys() {
            self.nodes.start_standby(standby)?;
        }
        self.nodes.wait_in_sync()?;
        self.nodes.node(self.nodes.primary)?.deploy_until_known("bank")?;
        for round in 0..config.failovers {
            self.nodes.wait_in_sync()?;
            self.round(round, config.tells)?;
            self.report.promotions += 1;
        }
        self.nodes.wait_in_sync()?;
        let primary = self.nodes.node(self.nodes.primary)?;
        let all: Vec<_> = self.written.keys().copied().collect();
        let missing = missing(primary, &all)?;
        ensure!(missing.is_empty(), "lost after a promotion had kept them: {missing:?}");
        Ok(())
    }

    /// Writes, stalls standbys, kills the primary, promotes a standby by force, and looks for what is gone.
    fn round(&mut self, round: u32, tells: bool) -> Result<()> {
        let (old, stalled) = (self.nodes.primary, self.draw_stalled());
        let before = self.draw_ms(50, 300);
        let long = self.draw_stall();
        let wakes_one = self.rng.percent(25);
        let address = self.nodes.node(old)?.address.clone();
        let is_over = AtomicBool::new(false);
        let written = thread::scope(|scope| -> Result<Written> {
            let first = i64::from(round) * CLIENTS;
            let clients: Vec<_> = (first..first + CLIENTS)
                .map(|client| {
                    scope.spawn({
                        let (address, is_over) = (&address, &is_over);
                        move || write(address, client * ACCOUNTS_PER_CLIENT, is_over)
                    })
                })
                .collect();
            let stalled = self.stall(&stalled, (before, long), wakes_one);
            is_over.store(true, Ordering::Relaxed);
            let mut written = Written::new();
            for client in clients {
                written.extend(client.join().expect("a client never panics"));
            }
            stalled.map(|()| written)
        })?;
        self.nodes.wake_standbys()?;
        thread::sleep(self.draw_ms(0, 4_000));
        let new = self.choose()?;
        let promoted = self.promote(new)?;
        self.nodes.primary = new;
        let count = written.len();
        let oldest = written.values().map(|written| written.lsn).min().unwrap_or(i64::MAX);
        self.report.acknowledged += count as u64;
        self.written.extend(written);
        self.follow(old, new)?;
        self.nodes.wait_in_sync()?;
        let lost = self.check(&promoted.may_be_lost, oldest)?;
        self.report.accepted += u32::from(promoted.is_accepted);
        self.report.named += u32::from(!promoted.may_be_lost.is_null());
        self.report.lossy += u32::from(lost > 0);
        self.report.lost += lost;
        if tells {
            let (old, new) = (NAMES[old], NAMES[new]);
            eprintln!(
                "promotion {}: {stalled:?} stood still for {} ms, {old} killed, {new} promoted; {count} acknowledged, {lost} lost, named {}",
                round + 1,
                long.as_millis(),
                promoted.may_be_lost
            );
        }
        Ok(())
    }

    fn draw_ms(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_millis(least + self.rng.below(most - least))
    }

    /// One or both standbys.
    fn draw_stalled(&mut self) -> Vec<usize> {
        let standbys = self.nodes.standbys();
        match self.rng.below(3) {
            0 => vec![standbys[0]],
            1 => vec![standbys[1]],
            _ => standbys.to_vec(),
        }
    }

    /// A short stall, or one after which a primary at 2-safe is alone.
    fn draw_stall(&mut self) -> Duration {
        match self.rng.percent(50) {
            true => self.draw_ms(50, 1_500),
            false => self.draw_ms(ALONE_MS, 6_000),
        }
    }

    /// Has the standbys stand still under load, then kills the primary.
    fn stall(&mut self, stalled: &[usize], (before, long): (Duration, Duration), wakes_one: bool) -> Result<()> {
        thread::sleep(before);
        for standby in stalled {
            self.nodes.signal(*standby, libc::SIGSTOP)?;
        }
        thread::sleep(long);
        if wakes_one {
            self.nodes.signal(stalled[0], libc::SIGCONT)?;
            thread::sleep(before);
        }
        self.nodes.kill(self.nodes.primary)
    }

    /// The standby with the longest log, or any: an operator may choose wrongly.
    fn choose(&mut self) -> Result<usize> {
        let standbys = self.nodes.standbys();
        match self.rng.percent(50) {
            true => self.nodes.furthest(),
            false => Ok(standbys[self.rng.below(2) as usize]),
        }
    }

    /// Promotes by force, and accepts the loss that a refusal names.
    fn promote(&self, node: usize) -> Result<Promoted> {
        let until = Instant::now() + PATIENCE;
        let mut refused = None;
        loop {
            let accepts = if refused.is_some() { "&accept_loss=true" } else { "" };
            let path = format!("/v1/replication/promote?force=true{accepts}");
            let answer = self.nodes.node(node)?.request("POST", &path, &[], b"")?;
            let told = answer.json();
            if answer.status == 200 {
                return Ok(Promoted {
                    may_be_lost: told["may_be_lost"].clone(),
                    is_accepted: refused.is_some(),
                });
            }
            match (&refused, told["type"].as_str()) {
                (None, Some("/problems/out-of-sync")) => {
                    ensure!(!told["may_be_lost"].is_null(), "a refusal names no loss: {told}");
                    refused = Some(told);
                    continue;
                }
                (_, Some("/problems/unavailable")) if Instant::now() < until => {}
                _ => bail!("promote {}: {} {told}", NAMES[node], answer.status),
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Has the other two follow the new primary, from their own directories.
    fn follow(&mut self, old: usize, new: usize) -> Result<()> {
        let other = 3 - old - new;
        self.nodes.kill(other)?;
        self.nodes.start_standby(other)?;
        self.nodes.start_standby(old)
    }

    /// Checks that the promotion named each write that is gone, from LSN `oldest` on or from what it named. Returns how many these are. Older
    /// writes are checked at the end of the run.
    fn check(&mut self, may_be_lost: &Value, oldest: i64) -> Result<u64> {
        let primary = self.nodes.node(self.nodes.primary)?;
        let from = number(&may_be_lost["from_lsn"]).unwrap_or(i64::MAX).min(oldest);
        let later = self.written.iter().filter(|(_, written)| written.lsn >= from);
        let missing = missing(primary, &later.map(|(account, _)| *account).collect::<Vec<_>>())?;
        for account in &missing {
            let Acknowledged { lsn, level } = &self.written[account];
            let at = format!("account {account}, LSN {lsn}, answered at {level}; the promotion named {may_be_lost}");
            ensure!(!may_be_lost.is_null(), "lost without a word: {at}");
            let from = number(&may_be_lost["from_lsn"]).context("an LSN")?;
            ensure!(*lsn >= from, "lost before what was named: {at}");
        }
        for account in &missing {
            self.written.remove(account);
        }
        Ok(missing.len() as u64)
    }
}

/// Opens accounts from `first` on until the server is gone.
fn write(address: &str, first: i64, is_over: &AtomicBool) -> Written {
    let mut written = Written::new();
    let Ok(mut connection) = Connection::open(address) else {
        return written;
    };
    for account in first.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let body = json!({"account": account, "balance": 0}).to_string();
        let Ok(answer) = connection.request("POST", "/v1/call/bank/open", &[], body.as_bytes()) else {
            break;
        };
        let lsn = answer.header("reprise-lsn").and_then(|lsn| lsn.parse().ok());
        if let (200, Some(lsn)) = (answer.status, lsn) {
            let level = answer.header("reprise-safety").unwrap_or_default().to_owned();
            written.insert(account, Acknowledged { lsn, level });
        }
        thread::sleep(REST);
    }
    written
}

/// Returns the accounts that are not there.
fn missing(server: &Server, accounts: &[i64]) -> Result<Vec<i64>> {
    let mut connection = server.connect()?;
    let mut missing = Vec::new();
    for account in accounts {
        let body = json!({"account": account}).to_string();
        let answer = connection.request("POST", "/v1/call/bank/balance", &[], body.as_bytes());
        let answer = answer.map_err(|cut| cut.error)?;
        match (answer.status, answer.json()["code"].as_str()) {
            (200, _) => {}
            (422, Some("unknown_account")) => missing.push(*account),
            _ => bail!("read account {account}: {} {}", answer.status, answer.text()),
        }
    }
    Ok(missing)
}

impl FailoverConfig {
    /// Returns a run of forced promotions, with the log in files, over TCP.
    pub fn forced(promotions: u32, safety: &str, seed: u64) -> Self {
        Self {
            safety: safety.into(),
            ..Self::new(By::Hand, promotions, seed)
        }
    }
}
