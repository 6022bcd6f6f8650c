//! Plans of a deployment beside load. A client asks for 20 dry runs in a row of a version with new columns, over many rows. Single calls run on the same
//! partitions meanwhile. A plan sends no barrier. Rounds with and without plans take turns.

use std::{fmt, path::Path, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, procedure_wasm, run_bench};
use serde_json::{Value, json};

const PLANS: usize = 20;
/// Contacts of one batch.
const BATCH_ROWS: u64 = 5_000;
/// Time of the load before the first plan.
const LEAD: Duration = Duration::from_millis(500);

/// How long and over how much plans are measured.
#[derive(Clone, Copy, Debug)]
pub struct PlansConfig {
    pub rows: u64,
    pub rounds: u32,
    pub seconds: u32,
}

/// The load of one round: calls a second, and microseconds.
#[derive(Clone, Copy, Debug)]
struct Tail {
    txn_per_s: f64,
    p99_us: f64,
    p999_us: f64,
}

/// The measured rounds, each without plans and with them.
#[derive(Clone, Debug, Default)]
pub struct PlansReport {
    rows: u64,
    rounds: Vec<[Tail; 2]>,
    /// Mean time of a plan.
    plan_ms: f64,
    pub barriers: u64,
}

impl fmt::Display for PlansReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "plans         {PLANS} in a row over {} rows, {:.1} ms each; barriers: {}",
            self.rows, self.plan_ms, self.barriers
        )?;
        for [without, with] in &self.rounds {
            writeln!(
                f,
                "calls         {:.0}/s, with plans {:.0}/s; p99 {:.0} us, {:.2} x with plans; p99.9 {:.0} us, {:.2} x",
                without.txn_per_s,
                with.txn_per_s,
                without.p99_us,
                with.p99_us / without.p99_us,
                without.p999_us,
                with.p999_us / without.p999_us
            )?;
        }
        Ok(())
    }
}

/// Fills a database in `dir`, and measures its calls beside plans.
pub fn run_plans(config: PlansConfig, dir: &Path) -> Result<PlansReport> {
    let mut server = Server::start(&Launch::new(&dir.join("data")).args(&["--partitions", "2"]))?;
    server.wait_ready()?;
    let deployed = server.request("PUT", "/v1/modules/contacts", &[], &procedure_wasm("contacts1")?)?;
    ensure!(deployed.status == 201, "{}", deployed.text());
    fill(&server, config.rows)?;
    let mut report = PlansReport {
        rows: config.rows,
        ..PlansReport::default()
    };
    load(&server, 1).context("the voters of the first run")?;
    let before = barriers(&server)?;
    let next = procedure_wasm("contacts2")?;
    for _ in 0..config.rounds {
        let without = load(&server, config.seconds)?;
        let with = thread::scope(|scope| {
            let planning = scope.spawn(|| plan(&server, &next, config.rows));
            let with = load(&server, config.seconds);
            report.plan_ms += planning.join().expect("nothing panics there")?.as_secs_f64() * 1e3 / PLANS as f64;
            with
        })?;
        report.rounds.push([without, with]);
    }
    report.plan_ms /= f64::from(config.rounds);
    report.barriers = barriers(&server)? - before;
    Ok(report)
}

fn fill(server: &Server, rows: u64) -> Result<()> {
    for first in (0..rows).step_by(BATCH_ROWS as usize) {
        let line = |id: u64| {
            let args = json!({"id": id, "name": format!("Ada {id}"), "emails": "ada@a.org"});
            format!("{}\n", json!({"module": "contacts", "procedure": "add", "args": args}))
        };
        let body: String = (first..rows.min(first + BATCH_ROWS)).map(line).collect();
        let answer = server.request("POST", "/v1/batch", &[], body.as_bytes())?;
        let text = answer.text();
        let refused = text.lines().find(|line| line.contains("problem"));
        ensure!(answer.status == 200 && refused.is_none(), "{refused:?}");
    }
    Ok(())
}

/// Votes one by one on 50 connections.
fn load(server: &Server, seconds: u32) -> Result<Tail> {
    let (url, seconds) = (format!("http://{}", server.address), seconds.to_string());
    let flags = [
        "voter",
        "--via",
        "single",
        "--connections",
        "50",
        "--warmup",
        "0.3",
        "--output",
        "json",
    ];
    let output = run_bench(&[&flags[..], &["--seconds", &seconds, "--url", &url]].concat())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    let report: Value = serde_json::from_slice(&output.stdout).context("the load's report")?;
    let number = |path: &str| {
        report
            .pointer(path)
            .and_then(Value::as_f64)
            .with_context(|| path.to_owned())
    };
    Ok(Tail {
        txn_per_s: number("/txn_per_s")?,
        p99_us: number("/latency_us/p99")?,
        p999_us: number("/latency_us/p999")?,
    })
}

/// Asks for the plans, one behind the other. Returns their time.
fn plan(server: &Server, wasm: &[u8], rows: u64) -> Result<Duration> {
    thread::sleep(LEAD);
    let begun = std::time::Instant::now();
    for _ in 0..PLANS {
        let answer = server.request("PUT", "/v1/modules/contacts?dry_run=true", &[], wasm)?;
        ensure!(answer.status == 200, "{}", answer.text());
        let told = answer.json()["plan"].to_string();
        ensure!(told.contains(&rows.to_string()), "the plan counts the rows: {told}");
    }
    Ok(begun.elapsed())
}

/// Returns how many barriers held all partitions since the server's start.
fn barriers(server: &Server) -> Result<u64> {
    let metrics = server.get("/metrics")?.text();
    let line = metrics.lines().find(|line| line.starts_with("reprise_barriers_total "));
    let count = line
        .and_then(|line| line.rsplit(' ').next())
        .context("the metric of barriers")?;
    Ok(count.parse::<f64>()? as u64)
}
