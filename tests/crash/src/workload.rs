//! TPC-C, TPC-B and TATP under kill -9. The server is killed under one kind of log and started under another, on another number of sites.
//! After each start the workload's own conditions hold (`reprise-bench WORKLOAD --check-only`). Counters that only calls raise have at
//! least the value of the acknowledged calls. They exceed it at most by the calls whose end is unknown.

use std::{
    fmt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    calls::{self, Load, Planned},
    client::check_death,
    http::{Answer, Connection},
    log::check_digests,
    rng::Rng,
    run::check_errors,
    server::{Launch, Server, run_bench},
};

/// Each start's kind of log. The next start reads the log of this one.
const LOG_KINDS: [&str; 3] = ["command", "physiological", "both"];
pub(crate) const PARTITIONS: u64 = 2;
const CLIENTS: usize = 4;
/// A load that has not come to this many acknowledged calls is not killed yet: a slow machine kills as meaningfully.
const ACKNOWLEDGED_MIN: u64 = 50;
const LOAD_WAIT_MAX: Duration = Duration::from_secs(120);
const CHECKPOINT_WAIT_MAX: Duration = Duration::from_secs(120);

/// The workloads that there are.
pub const WORKLOADS: [&str; 3] = ["tpcc", "tpcb", "tatp"];

#[derive(Clone, Debug)]
pub struct WorkloadConfig {
    pub workload: String,
    /// Kills.
    pub cycles: u32,
    pub seed: u64,
    /// Form of all servers' log, in place of another kind at each start.
    pub log: Option<String>,
    /// Further arguments of `serve`.
    pub server_args: Vec<String>,
    /// Keep the directory of a failure.
    pub keeps: bool,
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct WorkloadReport {
    pub workload: String,
    pub kills: u32,
    pub acknowledged: u64,
    pub unknown: u64,
    /// Unknown calls that took place, by the counters.
    pub found: u64,
    pub seconds: f64,
}

impl fmt::Display for WorkloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} kills in {:.1} s; {} counted calls acknowledged, each there; {} unknown, of which {} had taken place; conditions held after each recovery",
            self.workload, self.kills, self.seconds, self.acknowledged, self.unknown, self.found
        )
    }
}

/// Runs all cycles. The error says how to repeat the run, and names the directory.
pub fn run_workload(config: &WorkloadConfig) -> Result<WorkloadReport> {
    ensure!(
        WORKLOADS.contains(&config.workload.as_str()),
        "there is no workload {:?}; there are {}",
        config.workload,
        WORKLOADS.join(", ")
    );
    let begun = Instant::now();
    let dir = tempfile::tempdir().context("create a temporary directory")?;
    let mut report = WorkloadReport {
        workload: config.workload.clone(),
        ..WorkloadReport::default()
    };
    match cycles(config, dir.path(), &mut report) {
        Ok(()) => {
            report.seconds = begun.elapsed().as_secs_f64();
            Ok(report)
        }
        Err(error) => {
            let kept = match config.keeps {
                true => format!("; the directory is kept: {}", dir.keep().display()),
                false => String::new(),
            };
            let (cycle, seed, workload) = (report.kills, config.seed, &config.workload);
            Err(error.context(format!(
                "after kill {cycle} of seed {seed}{kept}\nreproduce: cargo xtask crash --workload {workload} --cycles {} --seed {seed}",
                config.cycles
            )))
        }
    }
}

fn cycles(config: &WorkloadConfig, dir: &Path, report: &mut WorkloadReport) -> Result<()> {
    let mut rng = Rng::new(config.seed);
    let data_dir = dir.join("data");
    let mut server = Server::start(&launch(config, &data_dir, 0))?;
    bench(
        config,
        &server,
        &["--seconds", "0.2", "--warmup", "0", "--via", "batch"],
    )?;
    let mut load = Load::new(&config.workload, CLIENTS, &server)?;
    take_checkpoint(&server)?;
    for start in 1..=config.cycles {
        let after = Duration::from_micros(rng.below(700_000));
        kill_under_load(&mut load, &mut server, &mut rng, after)?;
        check_errors(&server.process().errors())?;
        report.kills += 1;
        server = Server::start(&launch(config, &data_dir, start))?;
        load.settle(&server)?;
        bench(config, &server, &["--check-only"])?;
    }
    server.kill()?;
    check_errors(&server.process().errors())?;
    (report.acknowledged, report.unknown, report.found) = load.counts();
    check_digests(&data_dir, &dir.join("copy"), PARTITIONS, false)
}

/// How the `start`th server is started.
pub(crate) fn launch(config: &WorkloadConfig, data_dir: &Path, start: u32) -> Launch {
    let kind = LOG_KINDS[start as usize % LOG_KINDS.len()];
    let log = config.log.as_deref().unwrap_or(kind);
    // Two changes of the number of sites to three of the kind: each kind is killed and read on both.
    let sites = (1 + u64::from(start) % PARTITIONS).to_string();
    let partitions = PARTITIONS.to_string();
    let own = ["--log", log, "--partitions", &partitions, "--sites", &sites];
    let further: Vec<_> = config.server_args.iter().map(String::as_str).collect();
    Launch::new(data_dir).args(&[&own[..], &further].concat())
}

/// Fills the tables, or checks them: whatever it says but success is an error.
fn bench(config: &WorkloadConfig, server: &Server, further: &[&str]) -> Result<()> {
    let url = format!("http://{}", server.address);
    let words = [config.workload.as_str(), "--url", &url, "--output", "json"];
    let output = run_bench(&[&words[..], calls::sizes(&config.workload), further].concat())?;
    ensure!(
        output.status.success(),
        "bench {} {further:?}: {}",
        config.workload,
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).context("the report")?;
    ensure!(report["checks"] == "passed", "{report}");
    Ok(())
}

/// Takes a checkpoint, from which recoveries load the data from now on, and not from the log.
fn take_checkpoint(server: &Server) -> Result<()> {
    let begun = server.request("POST", "/v1/checkpoints", &[], b"")?;
    ensure!(begun.status == 202, "checkpoint: {}", begun.text());
    let path = format!("/v1/checkpoints/{}", begun.json()["id"].as_str().unwrap_or_default());
    let until = Instant::now() + CHECKPOINT_WAIT_MAX;
    while Instant::now() < until {
        let answer = server.get(&path)?;
        if answer.json()["state"] == "published" {
            return Ok(());
        }
        ensure!(answer.json()["state"] == "running", "checkpoint: {}", answer.text());
        thread::sleep(Duration::from_millis(5));
    }
    bail!("the checkpoint does not end")
}

fn kill_under_load(load: &mut Load, server: &mut Server, rng: &mut Rng, after: Duration) -> Result<()> {
    let address = server.address.clone();
    let goal = load.counts().0 + ACKNOWLEDGED_MIN;
    let acknowledged = load.acknowledged.clone();
    let plans: Vec<_> = load.clients.iter_mut().map(|client| (client, rng.fork())).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = plans
            .into_iter()
            .map(|(client, rng)| scope.spawn(|| run_client(client, &address, rng)))
            .collect();
        thread::sleep(after);
        let until = Instant::now() + LOAD_WAIT_MAX;
        while acknowledged.load(std::sync::atomic::Ordering::Relaxed) < goal
            && Instant::now() < until
            && threads.iter().any(|thread| !thread.is_finished())
        {
            thread::sleep(Duration::from_millis(1));
        }
        let killed = server.kill();
        let outcomes = threads
            .into_iter()
            .map(|thread| thread.join().expect("a client panicked"));
        let outcomes: Result<Vec<()>> = outcomes.collect();
        killed.and(outcomes.map(drop))
    })?;
    ensure!(
        acknowledged.load(std::sync::atomic::Ordering::Relaxed) >= goal,
        "the server did not answer {ACKNOWLEDGED_MIN} calls in {LOAD_WAIT_MAX:?}"
    );
    Ok(())
}

/// Calls until the server is gone.
fn run_client(client: &mut calls::Client, address: &str, mut rng: Rng) -> Result<()> {
    let Ok(mut connection) = Connection::open(address) else {
        return Ok(()); // killed before
    };
    loop {
        let planned = client.plan(&mut rng);
        match connection.request(
            "POST",
            &planned.path,
            &[("content-type", "application/json")],
            planned.args.to_string().as_bytes(),
        ) {
            Ok(answer) => take_answer(client, &planned, &answer)?,
            Err(cut) => {
                check_death(&cut)?;
                client.unknown(&planned);
                return Ok(());
            }
        }
    }
}

fn take_answer(client: &mut calls::Client, planned: &Planned, answer: &Answer) -> Result<()> {
    let problem = answer.json();
    match answer.status {
        200 => client.acknowledge(planned),
        422 if problem["code"] == "item_not_found" => {}
        503 if problem["type"] == "/problems/outcome-unknown" => client.unknown(planned),
        503 => {} // refused: it left no trace
        status => bail!("{} {}: {status} {problem}", planned.path, planned.args),
    }
    Ok(())
}
