//! Kills among deployments that change tables. Clients insert rows meanwhile, checkpoints are taken, and columns, indexes and tables are
//! added, dropped and renamed. Half of the kills come while a deployment is on its way. Each time the server opens again under another kind
//! of log and on another number of sites. The stored tables are those of the last deployment, or of the one on its way. Each acknowledged
//! row exists, whole, under the present names.

use std::{
    collections::BTreeSet,
    fmt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{
    client::check_death,
    http::Connection,
    log::check_digests,
    model::number,
    rng::Rng,
    run::check_errors,
    server::Server,
    shifting::{MODULE, NOTES, Shape, Step, amount_of},
    workload::{PARTITIONS, WorkloadConfig, launch},
};

/// The name of this workload.
pub const SCHEMAS: &str = "schemas";

const CLIENTS: u64 = 3;
/// A database's cycles: its rows are read after each.
const CYCLES_PER_DATABASE: u32 = 25;
/// A load that has not come to so much is not killed yet.
const ACKNOWLEDGED_MIN: u64 = 20;
const LOAD_WAIT_MAX: Duration = Duration::from_secs(120);
/// Ids of one client.
const IDS_PER_CLIENT: u64 = 1 << 40;

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct SchemasReport {
    pub kills: u32,
    /// While a deployment had been sent and was not answered.
    pub kills_in_deployment: u32,
    pub deployments: u64,
    /// Unknown deployments that had taken place.
    pub deployments_found: u64,
    pub checkpoints: u64,
    pub acknowledged: u64,
    pub unknown: u64,
    pub found: u64,
    pub lost: u64,
    pub databases: u32,
    pub seconds: f64,
}

impl fmt::Display for SchemasReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "schemas: {} kills on {} databases in {:.1} s, {} of them in a deployment; {} deployments acknowledged, and {} more had taken \
             place; {} checkpoints; {} calls acknowledged, {} of them lost; {} unknown, of which {} had taken place; always opened again",
            self.kills,
            self.databases,
            self.seconds,
            self.kills_in_deployment,
            self.deployments,
            self.deployments_found,
            self.checkpoints,
            self.acknowledged,
            self.lost,
            self.unknown,
            self.found
        )
    }
}

/// Runs all cycles. The error says how to repeat the run, and names the directory.
pub fn run_schemas(config: &WorkloadConfig) -> Result<SchemasReport> {
    let begun = Instant::now();
    let mut report = SchemasReport::default();
    let mut rng = Rng::new(config.seed);
    while report.kills < config.cycles {
        let dir = tempfile::tempdir().context("create a temporary directory")?;
        let cycles = CYCLES_PER_DATABASE.min(config.cycles - report.kills);
        if let Err(error) = run_database(config, dir.path(), cycles, rng.fork(), &mut report) {
            let kept = match config.keeps {
                true => format!("; the directory is kept: {}", dir.keep().display()),
                false => String::new(),
            };
            let (kill, cycles, seed) = (report.kills, config.cycles, config.seed);
            return Err(error.context(format!(
                "after kill {kill} of seed {seed}{kept}\nreproduce: cargo xtask crash --workload schemas --cycles {cycles} --seed {seed}"
            )));
        }
        report.databases += 1;
    }
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// The known state of a database.
struct Known {
    shape: Shape,
    /// On its way when the server was killed.
    unknown_step: Option<Step>,
    acknowledged: BTreeSet<u64>,
    unknown: BTreeSet<u64>,
    /// The next id of each client.
    next: Vec<u64>,
}

fn run_database(
    config: &WorkloadConfig,
    dir: &Path,
    cycles: u32,
    mut rng: Rng,
    report: &mut SchemasReport,
) -> Result<()> {
    let data_dir = dir.join("data");
    let mut server = Server::start(&launch(config, &data_dir, 0))?;
    let mut known = Known {
        shape: Shape::default(),
        unknown_step: None,
        acknowledged: BTreeSet::new(),
        unknown: BTreeSet::new(),
        next: (0..CLIENTS).map(|client| client * IDS_PER_CLIENT).collect(),
    };
    let first = server.request("PUT", &module_path(), &[], &known.shape.wasm(rng.draw())?)?;
    ensure!(first.status == 201, "deploy: {} {}", first.status, first.text());
    for start in 1..=cycles {
        kill_under_load(&mut known, &mut server, &mut rng, report)?;
        check_errors(&server.process().errors())?;
        report.kills += 1;
        server = Server::start(&launch(config, &data_dir, start))?;
        known.settle(&server, report)?;
    }
    server.kill()?;
    check_errors(&server.process().errors())?;
    check_digests(&data_dir, &dir.join("copy"), PARTITIONS, false)
}

fn module_path() -> String {
    format!("/v1/modules/{MODULE}")
}

/// A client's writes until the server was gone.
#[derive(Default)]
struct Put {
    acknowledged: Vec<u64>,
    unknown: Option<u64>,
}

/// The outcome of the deployments until the server was gone.
struct Deployed {
    shape: Shape,
    done: u64,
    unknown: Option<Step>,
}

/// The state that the threads of one load share.
#[derive(Default)]
struct Load {
    acknowledged: AtomicU64,
    deployed: AtomicU64,
    is_deploying: AtomicBool,
    checkpoints: AtomicU64,
}

fn kill_under_load(known: &mut Known, server: &mut Server, rng: &mut Rng, report: &mut SchemasReport) -> Result<()> {
    let (address, load) = (server.address.clone(), Load::default());
    let in_deployment = rng.below(2) == 0;
    let after = Duration::from_micros(rng.below(if in_deployment { 2_000 } else { 150_000 }));
    let (shape, deploy_rng, takes_checkpoints) = (known.shape, rng.fork(), rng.below(2) == 0);
    let (puts, deployed, is_in_deployment) = thread::scope(|scope| {
        let clients = known.next.iter_mut();
        let clients: Vec<_> = clients
            .map(|next| scope.spawn(|| put_rows(&address, next, &load)))
            .collect();
        let deployer = scope.spawn(|| deploy_on(&address, shape, deploy_rng, &load));
        let checkpoints = takes_checkpoints.then(|| scope.spawn(|| take_checkpoints(&address, &load)));
        let killed = wait_for_load(&load, in_deployment).and_then(|()| {
            thread::sleep(after);
            let is_deploying = load.is_deploying.load(Relaxed);
            server.kill().map(|()| is_deploying)
        });
        if killed.is_err() {
            let _ = server.kill(); // the threads end with it
        }
        let puts = clients
            .into_iter()
            .map(|client| client.join().expect("a client panicked"));
        let puts: Result<Vec<Put>> = puts.collect();
        let deployed = deployer.join().expect("the deployer panicked");
        let taken = checkpoints.map_or(Ok(()), |thread| thread.join().expect("no panic"));
        taken?;
        anyhow::Ok((puts?, deployed?, killed?))
    })?;
    for put in puts {
        report.acknowledged += put.acknowledged.len() as u64;
        known.acknowledged.extend(put.acknowledged);
        known.unknown.extend(put.unknown);
    }
    report.kills_in_deployment += u32::from(is_in_deployment);
    report.deployments += deployed.done;
    report.checkpoints += load.checkpoints.load(Relaxed);
    (known.shape, known.unknown_step) = (deployed.shape, deployed.unknown);
    Ok(())
}

/// Waits until some calls and a deployment are acknowledged. With `in_deployment`, it waits until another deployment is on its way, too.
fn wait_for_load(load: &Load, in_deployment: bool) -> Result<()> {
    let begun = Instant::now();
    loop {
        let is_loaded = load.acknowledged.load(Relaxed) >= ACKNOWLEDGED_MIN && load.deployed.load(Relaxed) > 0;
        if is_loaded && (!in_deployment || load.is_deploying.load(Relaxed)) {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < LOAD_WAIT_MAX,
            "the server did not answer {ACKNOWLEDGED_MIN} calls and a deployment in {LOAD_WAIT_MAX:?}"
        );
        thread::sleep(Duration::from_micros(100));
    }
}

fn put_rows(address: &str, next: &mut u64, load: &Load) -> Result<Put> {
    let mut put = Put::default();
    let Ok(mut connection) = Connection::open(address) else {
        return Ok(put); // killed before
    };
    let path = format!("/v1/call/{MODULE}/put");
    loop {
        let id = *next;
        *next += 1;
        let body = json!({"id": id, "amount": amount_of(id)}).to_string();
        match connection.request("POST", &path, &[("content-type", "application/json")], body.as_bytes()) {
            Ok(answer) if answer.status == 200 => {
                put.acknowledged.push(id);
                load.acknowledged.fetch_add(1, Relaxed);
            }
            Ok(answer) if answer.status == 503 && answer.json()["type"] != "/problems/outcome-unknown" => {}
            Ok(answer) => bail!("put {id}: {} {}", answer.status, answer.text()),
            Err(cut) => {
                check_death(&cut)?;
                put.unknown = Some(id);
                return Ok(put);
            }
        }
    }
}

/// Changes the stored tables, step by step, until the server is gone.
fn deploy_on(address: &str, shape: Shape, mut rng: Rng, load: &Load) -> Result<Deployed> {
    let mut deployed = Deployed {
        shape,
        done: 0,
        unknown: None,
    };
    let Ok(mut connection) = Connection::open(address) else {
        return Ok(deployed);
    };
    loop {
        thread::sleep(Duration::from_micros(rng.below(20_000)));
        let step = deployed.shape.step(&mut rng);
        let (method, path, body) = match step {
            Step::Deploy(shape) => ("PUT", module_path(), shape.wasm(rng.draw())?),
            Step::Drop(_) => ("DELETE", format!("/v1/tables/{}", Shape::second()), Vec::new()),
        };
        load.is_deploying.store(true, Relaxed);
        let answer = match connection.request(method, &path, &[], &body) {
            Ok(refused) if refused.status == 409 => {
                let path = format!("{path}{}", refused.consents());
                connection.request(method, &path, &[], &body)
            }
            other => other,
        };
        load.is_deploying.store(false, Relaxed);
        match answer {
            Ok(answer) if matches!(answer.status, 200 | 204) => {
                deployed.shape = step.shape();
                deployed.done += 1;
                load.deployed.fetch_add(1, Relaxed);
            }
            Ok(answer) if answer.status == 503 => {}
            Ok(answer) => bail!("{step:?} on {:?}: {} {}", deployed.shape, answer.status, answer.text()),
            Err(cut) => {
                check_death(&cut)?;
                deployed.unknown = Some(step);
                return Ok(deployed);
            }
        }
    }
}

fn take_checkpoints(address: &str, load: &Load) -> Result<()> {
    let Ok(mut connection) = Connection::open(address) else {
        return Ok(());
    };
    loop {
        match connection.request("POST", "/v1/checkpoints", &[], b"") {
            Ok(answer) if answer.status == 202 => _ = load.checkpoints.fetch_add(1, Relaxed),
            Ok(answer) => ensure!(answer.status == 503, "checkpoint: {} {}", answer.status, answer.text()),
            Err(_) => return Ok(()),
        }
        thread::sleep(Duration::from_millis(30));
    }
}

impl Known {
    /// Compares the stored rows with the acknowledged ones, and continues from there.
    fn settle(&mut self, server: &Server, report: &mut SchemasReport) -> Result<()> {
        let found = Shape::of_tables(&server.get("/v1/tables")?.json())?;
        let is_later = self.unknown_step.take().is_some_and(|step| step.shape() == found);
        ensure!(
            found == self.shape || is_later,
            "lost: a deployment: {found:?} is stored, {:?} was acknowledged",
            self.shape
        );
        report.deployments_found += u64::from(found != self.shape);
        self.shape = found;
        let rows = self.read_rows(server)?;
        let lost: Vec<_> = self.acknowledged.difference(&rows).collect();
        report.lost += lost.len() as u64;
        ensure!(
            lost.is_empty(),
            "lost: {} acknowledged rows, {:?} among them",
            lost.len(),
            lost[0]
        );
        for id in &rows {
            if !self.acknowledged.contains(id) {
                ensure!(self.unknown.contains(id), "row {id} is there, and was refused");
                report.found += 1;
            }
        }
        report.unknown += self.unknown.len() as u64;
        self.unknown.clear();
        self.acknowledged = rows;
        Ok(())
    }

    /// The ids of all rows, each of which has its values under the names of the day.
    fn read_rows(&self, server: &Server) -> Result<BTreeSet<u64>> {
        let (mut rows, mut cursor) = (BTreeSet::new(), String::new());
        loop {
            let path = format!("/v1/tables/{MODULE}.{}/rows?limit=1000{cursor}", self.shape.table());
            let answer = server.get(&path)?;
            ensure!(answer.status == 200, "{path}: {} {}", answer.status, answer.text());
            let page = answer.json();
            for row in page["rows"].as_array().context("no rows")? {
                let id = self.check_row(row)?;
                ensure!(rows.insert(id), "row {id} is there twice");
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(rows),
            }
        }
    }

    fn check_row(&self, row: &Value) -> Result<u64> {
        let id = number(&row["id"]).with_context(|| format!("a row without an id: {row}"))? as u64;
        let has_amount = number(&row[self.shape.column()]) == Some(amount_of(id));
        let note = number(&row["note"]);
        let has_note = match self.shape.has_note() {
            true => note.is_some_and(|note| NOTES.contains(&note)),
            false => note.is_none(),
        };
        ensure!(has_amount && has_note, "row {id} has not its values: {row}");
        Ok(id)
    }
}
