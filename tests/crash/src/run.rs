//! The cycles: start, check, load, kill.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    client,
    http::Connection,
    log::{check_digests, check_log},
    model::{Counts, FIRST_BALANCE, Model, number},
    rng::Rng,
    server::{Launch, Server, Spawned, procedure_wasm},
    verify,
};

#[derive(Clone, Debug)]
pub struct Config {
    pub cycles: u32,
    pub seed: u64,
    pub clients: usize,
    /// Cycles after which a new database is begun: a restart replays everything.
    pub cycles_per_database: u32,
    /// Number of cycles between two lines on standard error; 0: none.
    pub tell_every: u32,
    /// Form of the servers' log: a kind as `serve --log` takes it, or `mixed`, which is another one at each start.
    pub log: String,
    /// The device that a commit waits for: `file`, `nvram` (a region in an ordinary file), or `mixed`, which is either at each start.
    pub device: String,
    /// Further arguments of `serve`.
    pub server_args: Vec<String>,
    /// Keep the directory of a failure.
    pub keeps: bool,
}

/// A check that takes longer hangs.
const CHECK_WAIT_MAX: Duration = Duration::from_secs(600);

/// Another kind of log at each start.
pub const MIXED: &str = "mixed";
pub(crate) const FILE: &str = "file";
pub(crate) const NVRAM: &str = "nvram";
/// Bytes of the region: rings that go around many times in a run.
pub(crate) const NVRAM_BYTES: &str = "2097152";
const LOG_KINDS: [&str; 4] = ["command", "physiological", "both", "auto"];

impl Config {
    pub fn new(cycles: u32, seed: u64) -> Self {
        Self {
            cycles,
            seed,
            clients: 4,
            cycles_per_database: 25,
            tell_every: 0,
            log: MIXED.into(),
            device: FILE.into(),
            server_args: Vec::new(),
            keeps: true,
        }
    }

    /// The command that repeats the first cycles. `cargo xtask crash` knows the usual numbers only.
    fn command(&self, cycles: u32) -> String {
        let usual = Self::new(cycles, self.seed);
        let log = match self.log == usual.log {
            true => String::new(),
            false => format!(" --log {}", self.log),
        };
        let device = match self.device == usual.device {
            true => String::new(),
            false => format!(" --device {}", self.device),
        };
        if (self.clients, self.cycles_per_database) == (usual.clients, usual.cycles_per_database) {
            return format!("cargo xtask crash --cycles {cycles} --seed {}{log}{device}", self.seed);
        }
        format!(
            "cargo run --release -p reprise-test-crash --bin crash -- --cycles {cycles} --seed {} --clients {} --cycles-per-database {}{log}{device}",
            self.seed, self.clients, self.cycles_per_database
        )
    }
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub cycles: u32,
    pub kills: Kills,
    pub counts: Counts,
    pub deploys: u64,
    pub checkpoints: u64,
    pub databases: u32,
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Kills {
    pub starting: u32,
    pub recovering: u32,
    pub just_ready: u32,
    pub loaded: u32,
    pub deploying: u32,
    /// SIGTERM instead of a kill.
    pub stopped: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kills, counts) = (&self.kills, &self.counts);
        writeln!(
            f,
            "cycles        {} on {} databases in {:.1} s",
            self.cycles, self.databases, self.seconds
        )?;
        writeln!(
            f,
            "killed        {} under load, {} in a deployment, {} just ready, {} recovering, {} starting; {} stopped in order",
            kills.loaded, kills.deploying, kills.just_ready, kills.recovering, kills.starting, kills.stopped
        )?;
        writeln!(f, "acknowledged  {} (each there exactly once)", counts.acknowledged)?;
        writeln!(
            f,
            "unknown       {} of which {} had taken place, each once and whole",
            counts.unknown, counts.found
        )?;
        write!(
            f,
            "refused       {}; {} keys sent again; {} deployments in service at the end of their databases; {} checkpoints",
            counts.refused, counts.repeated, self.deploys, self.checkpoints
        )
    }
}

/// Runs all cycles. The error says how to repeat the run, and names the directory.
pub fn run(config: &Config) -> Result<Report> {
    let mut rng = Rng::new(config.seed);
    let mut report = Report::default();
    let begun = Instant::now();
    while report.cycles < config.cycles {
        let cycles = config.cycles_per_database.min(config.cycles - report.cycles);
        let mut database = Database::new(config, rng.fork())?;
        let outcome = database.cycles(cycles, config, &mut report);
        if let Err(error) = outcome {
            let cycle = report.cycles + 1;
            let kept = match config.keeps {
                true => format!("; the directory is kept: {}", database.keep().display()),
                false => String::new(),
            };
            return Err(error.context(format!(
                "cycle {cycle} of seed {}{kept}\nreproduce: {}",
                config.seed,
                config.command(cycle)
            )));
        }
        report.databases += 1;
    }
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// When a cycle ends.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Starting,
    Recovering,
    JustReady,
    Loaded,
    Deploying,
    Stopped,
}

fn choose(rng: &mut Rng) -> (Moment, Duration) {
    let (moment, micros_max) = match rng.below(100) {
        0..10 => (Moment::Starting, 60_000),
        10..20 => (Moment::Recovering, 30_000),
        20..30 => (Moment::JustReady, 20_000),
        30..45 => (Moment::Deploying, 300_000),
        45..95 => (Moment::Loaded, 700_000),
        _ => (Moment::Stopped, 200_000),
    };
    (moment, Duration::from_micros(rng.below(micros_max)))
}

/// A database and everything that is known of it.
pub(crate) struct Database {
    pub(crate) dir: TempDir,
    /// Chooses the moments: drawn from once a cycle, whatever the cycle meets.
    pub(crate) plan: Rng,
    /// The cycle's own.
    pub(crate) rng: Rng,
    pub(crate) models: Vec<Model>,
    pub(crate) partitions: u64,
    /// Highest transaction id and position that were acknowledged.
    floor: (u64, u64),
    modules: [Versions; 2],
    /// The counts that a reader saw: accounts, and votes.
    seen: (i64, i64),
    is_made: bool,
    /// Published checkpoints that were seen.
    checkpoints: u64,
    log: String,
    device: String,
    server_args: Vec<String>,
}

/// Versions of a module in service: those acknowledged, and those of which it is unknown.
#[derive(Default)]
struct Versions {
    acknowledged: u64,
    unknown: u64,
}

const MODULES: [&str; 2] = ["bank", "voter"];

/// Makes a call until its outcome is known. Standbys on a busy machine may be late, and an unknown outcome is asked for again under its
/// key.
fn call_until_known(server: &Server, procedure: &str, key: &str, args: &Value) -> Result<()> {
    let (path, args) = (format!("/v1/call/{procedure}"), args.to_string());
    let answer = server.until_known("POST", &path, &[("idempotency-key", key)], args.as_bytes())?;
    ensure!(answer.status == 200, "{procedure}: {} {}", answer.status, answer.text());
    Ok(())
}

impl Database {
    pub(crate) fn new(config: &Config, mut rng: Rng) -> Result<Self> {
        Ok(Self {
            dir: tempfile::tempdir().context("create a temporary directory")?,
            partitions: 1 + rng.below(4),
            rng: rng.fork(),
            plan: rng,
            models: (0..config.clients).map(Model::new).collect(),
            floor: (0, 0),
            modules: Default::default(),
            seen: (0, 0),
            is_made: false,
            checkpoints: 0,
            log: config.log.clone(),
            device: config.device.clone(),
            server_args: config.server_args.clone(),
        })
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn keep(self) -> PathBuf {
        self.dir.keep()
    }

    fn cycles(&mut self, cycles: u32, config: &Config, report: &mut Report) -> Result<()> {
        for _ in 0..cycles {
            self.rng = self.plan.fork();
            let (moment, after) = choose(&mut self.rng);
            self.cycle(moment, after, report)
                .with_context(|| format!("{moment:?} after {after:?}"))?;
            report.cycles += 1;
            if config.tell_every > 0 && report.cycles.is_multiple_of(config.tell_every) {
                let counts = self.counts();
                eprintln!(
                    "cycle {}: {} acknowledged, {} unknown so far",
                    report.cycles,
                    report.counts.acknowledged + counts.acknowledged,
                    report.counts.unknown + counts.unknown
                );
            }
        }
        self.finish().context("the last look at a database")?;
        report.counts.add(&self.counts());
        report.deploys += self.modules.iter().map(|versions| versions.acknowledged).sum::<u64>();
        report.checkpoints += self.checkpoints;
        Ok(())
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.models.iter().for_each(|model| counts.add(&model.counts));
        counts
    }

    fn launch(&mut self) -> Launch {
        let device = match self.device.as_str() {
            MIXED => [FILE, NVRAM][self.rng.below(2) as usize].to_owned(),
            fixed => fixed.to_owned(),
        };
        self.launch_on(&device)
    }

    fn launch_on(&mut self, device: &str) -> Launch {
        let partitions = self.partitions.to_string();
        let sites = (1 + self.rng.below(self.partitions.min(3))).to_string();
        let delay = ["0", "0", "200", "1000"][self.rng.below(4) as usize];
        let every = ["0", "0", "1"][self.rng.below(3) as usize];
        let kind = LOG_KINDS[self.rng.below(LOG_KINDS.len() as u64) as usize];
        let log = match self.log.as_str() {
            MIXED => kind,
            fixed => fixed,
        };
        let region = self.dir.path().join("region").display().to_string();
        // The flush policies are as frequent as the log's kind allows.
        let flush = match log {
            "command" => "commit",
            _ => ["commit", "insert", "insert-fence"][self.rng.below(3) as usize],
        };
        let nvram = [
            ("--nvram", region.as_str()),
            ("--nvram-flush", flush),
            ("--nvram-size", NVRAM_BYTES),
            ("--nvram-assume-persistent", "true"),
        ];
        let nvram = nvram.into_iter().filter(|_| device == NVRAM);
        let own = [
            ("--log", log),
            ("--partitions", &partitions),
            ("--sites", &sites),
            ("--group-commit-us", delay),
            ("--checkpoint-every", every),
        ];
        // The run's own flags take precedence over ours.
        let is_given = |flag: &str| self.server_args.iter().any(|arg| arg == flag);
        let own = own
            .into_iter()
            .chain([("--device", device)])
            .chain(nvram)
            .filter(|(flag, _)| !is_given(flag));
        let further = self.server_args.iter().map(String::as_str);
        let args: Vec<_> = own.flat_map(|(flag, value)| [flag, value]).chain(further).collect();
        Launch::new(&self.data_dir()).args(&args)
    }

    fn cycle(&mut self, moment: Moment, after: Duration, report: &mut Report) -> Result<()> {
        let mut process = Spawned::start(&self.launch())?;
        if let Moment::Starting = moment {
            thread::sleep(after);
            process.kill()?;
            report.kills.starting += 1;
            return check_errors(&process.errors());
        }
        let mut server = process.listen()?;
        if let Moment::Recovering = moment {
            thread::sleep(after);
            server.kill()?;
            report.kills.recovering += 1;
            return check_errors(&server.process().errors());
        }
        server.wait_ready()?;
        self.check(&server)?;
        let address = server.address.clone();
        self.load(&address, matches!(moment, Moment::Deploying), || {
            thread::sleep(after);
            end(&mut server, moment)
        })?;
        let errors = match moment {
            Moment::Stopped => {
                report.kills.stopped += 1;
                String::new()
            }
            Moment::JustReady => {
                report.kills.just_ready += 1;
                server.process().errors()
            }
            Moment::Deploying => {
                report.kills.deploying += 1;
                server.process().errors()
            }
            _ => {
                report.kills.loaded += 1;
                server.process().errors()
            }
        };
        check_errors(&errors)
    }

    /// Makes the rows of a new database, or checks those of an old one.
    pub(crate) fn check(&mut self, server: &Server) -> Result<()> {
        if !self.is_made {
            return self.make(server);
        }
        let begun = Instant::now();
        self.check_modules(server)?;
        let floor = self.floor;
        for model in &mut self.models {
            let settled = verify::settle(model, server, &mut self.rng, floor);
            settled.with_context(|| format!("client {}", model.id))?;
        }
        verify::check_sums(&self.models, server)?;
        let seen = look(&mut server.connect()?, self.models.len())?.context("the server is gone")?;
        ensure!(
            seen.0 >= self.seen.0 && seen.1 >= self.seen.1,
            "a reader had seen {:?} accounts and votes, now there are {seen:?}",
            self.seen
        );
        self.raise_floor();
        ensure!(begun.elapsed() < CHECK_WAIT_MAX, "the check took {:?}", begun.elapsed());
        Ok(())
    }

    fn make(&mut self, server: &Server) -> Result<()> {
        for (name, versions) in MODULES.iter().zip(&mut self.modules) {
            server.deploy_until_known(name)?;
            *versions = Versions {
                acknowledged: version(server, name)?,
                unknown: 0,
            };
        }
        let names: Vec<_> = (0..self.models.len()).map(|id| format!("candidate {id}")).collect();
        call_until_known(server, "voter/initialize", "make-voter", &json!({"contestants": names}))?;
        for account in self
            .models
            .iter()
            .flat_map(|model| &model.pairs)
            .flat_map(|pair| pair.accounts)
        {
            let args = json!({"account": account, "balance": FIRST_BALANCE.to_string()});
            call_until_known(server, "bank/open", &format!("make-{account}"), &args)?;
        }
        self.is_made = true;
        Ok(())
    }

    fn check_modules(&mut self, server: &Server) -> Result<()> {
        for (name, versions) in MODULES.iter().zip(&mut self.modules) {
            let found = version(server, name)?;
            let most = versions.acknowledged + versions.unknown;
            ensure!(
                (versions.acknowledged..=most).contains(&found),
                "{name} has version {found}, acknowledged is {} and {} are unknown",
                versions.acknowledged,
                versions.unknown
            );
            *versions = Versions {
                acknowledged: found,
                unknown: 0,
            };
        }
        Ok(())
    }

    /// Lets the clients loose on the server at `address`, until `end` has ended it.
    pub(crate) fn load(&mut self, address: &str, deploys_too: bool, end: impl FnOnce() -> Result<()>) -> Result<()> {
        let (seen, is_over) = (Mutex::new(self.seen), AtomicBool::new(false));
        let clients = self.models.len();
        let mut plans: Vec<_> = self.models.iter_mut().map(|model| (model, self.rng.fork())).collect();
        let module = self.rng.below(2) as usize;
        let mut deploys = Deploys {
            versions: &mut self.modules[module],
            name: MODULES[module],
            salt: self.rng.draw(),
        };
        let takes_checkpoints = self.rng.below(2) == 0;
        let mut checkpoints = Checkpoints {
            rng: self.rng.fork(),
            published: 0,
        };
        let outcomes = thread::scope(|scope| {
            let mut threads: Vec<_> = plans
                .iter_mut()
                .map(|(model, rng)| scope.spawn(move || client::run(model, address, rng)))
                .collect();
            threads.push(scope.spawn(|| watch(address, clients, &seen, &is_over)));
            if deploys_too {
                threads.push(scope.spawn(|| deploys.run(address)));
            }
            if takes_checkpoints {
                threads.push(scope.spawn(|| checkpoints.run(address, &is_over)));
            }
            let ended = end();
            is_over.store(true, Ordering::Release);
            let outcomes = threads
                .into_iter()
                .map(|thread| thread.join().expect("a client panicked"));
            ended.and(outcomes.collect::<Result<Vec<_>>>())
        });
        outcomes?;
        self.checkpoints += checkpoints.published;
        self.seen = *seen.lock().expect("the watcher is done");
        self.raise_floor();
        Ok(())
    }

    fn raise_floor(&mut self) {
        for (txn_id, lsn) in self.models.iter().flat_map(|model| &model.txns) {
            self.floor = (self.floor.0.max(*txn_id), self.floor.1.max(*lsn));
        }
    }

    /// Every row, the log record of every acknowledged transaction, and the same digest on any number of sites.
    fn finish(&mut self) -> Result<()> {
        if !self.is_made {
            return Ok(()); // so few cycles that none came to be ready
        }
        // On files alone, so that they have all.
        let mut server = Server::start(&self.launch_on(FILE))?;
        self.check(&server)?;
        verify::check_rows(&self.models, &server)?;
        server.kill()?;
        check_errors(&server.process().errors())?;
        let is_whole = check_log(&self.data_dir(), &self.models)?;
        check_digests(
            &self.data_dir(),
            &self.dir.path().join("copy"),
            self.partitions,
            is_whole,
        )
    }
}

fn end(server: &mut Server, moment: Moment) -> Result<()> {
    if !matches!(moment, Moment::Stopped) {
        return server.kill();
    }
    server.process().signal(libc::SIGTERM)?;
    let status = server.process().wait()?;
    ensure!(
        status.code() == Some(0),
        "SIGTERM ended with {status}: {}",
        server.process().errors()
    );
    Ok(())
}

/// Nothing of a broken invariant may be on standard error.
pub(crate) fn check_errors(errors: &str) -> Result<()> {
    let bad = errors
        .lines()
        .find(|line| line.contains("panicked") || line.contains(" error: reprise_"));
    ensure!(bad.is_none(), "the server said: {errors}");
    Ok(())
}

fn version(server: &Server, name: &str) -> Result<u64> {
    let answer = server.get(&format!("/v1/modules/{name}"))?;
    let version = answer.json()["version"].as_u64();
    version.with_context(|| format!("lost: module {name}: {} {}", answer.status, answer.text()))
}

/// New versions of a module, one after the other.
struct Deploys<'a> {
    versions: &'a mut Versions,
    name: &'static str,
    salt: u64,
}

impl Deploys<'_> {
    fn run(&mut self, address: &str) -> Result<()> {
        let Ok(mut connection) = Connection::open(address) else {
            return Ok(());
        };
        let wasm = procedure_wasm(self.name)?;
        loop {
            self.salt += 1;
            let mut wasm = wasm.clone();
            // A custom section that no reader uses: other bytes, the same module.
            wasm.extend_from_slice(&[0, 13, 4]);
            wasm.extend_from_slice(b"salt");
            wasm.extend_from_slice(&self.salt.to_le_bytes());
            let path = format!("/v1/modules/{}", self.name);
            match connection.request("PUT", &path, &[], &wasm) {
                Ok(answer) if answer.status == 200 => self.versions.acknowledged += 1,
                Ok(answer) if client::is_open(&answer.json()) => {
                    self.versions.unknown += 1;
                    return Ok(());
                }
                Ok(answer) if answer.status == 421 => return Ok(()),
                Ok(answer) => ensure!(answer.status == 503, "deploy: {} {}", answer.status, answer.text()),
                Err(_) => {
                    self.versions.unknown += 1;
                    return Ok(());
                }
            }
        }
    }
}

/// Checkpoints at random moments, one after the other.
struct Checkpoints {
    rng: Rng,
    published: u64,
}

impl Checkpoints {
    fn run(&mut self, address: &str, is_over: &AtomicBool) -> Result<()> {
        let Ok(mut connection) = Connection::open(address) else {
            return Ok(());
        };
        while !is_over.load(Ordering::Acquire) {
            thread::sleep(Duration::from_micros(self.rng.below(100_000)));
            let begun = match connection.request("POST", "/v1/checkpoints", &[], b"") {
                Ok(answer) if answer.status == 202 => answer.json(),
                Ok(answer) => {
                    ensure!(answer.status == 503, "checkpoint: {} {}", answer.status, answer.text());
                    continue;
                }
                Err(_) => return Ok(()),
            };
            let path = format!("/v1/checkpoints/{}", begun["id"].as_str().unwrap_or_default());
            while !is_over.load(Ordering::Acquire) {
                let Ok(answer) = connection.request("GET", &path, &[], b"") else {
                    return Ok(());
                };
                // Newer ones may have retired it since.
                if answer.status == 404 || answer.json()["state"] == "published" {
                    self.published += 1;
                    break;
                }
                // A server that stops in order gives up the one under way.
                let is_running = answer.json()["state"] == "running";
                let stops = answer.text().contains("stops") || answer.text().contains("stopped");
                ensure!(is_running || stops, "checkpoint: {}", answer.text());
                thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(())
    }
}

/// Accounts and votes, read while others write: money is conserved at every point in time. None: the server is gone.
fn look(connection: &mut Connection, clients: usize) -> Result<Option<(i64, i64)>> {
    let mut read = |path: &str| match connection.request("POST", path, &[], b"{}") {
        Ok(answer) if answer.status == 200 => Ok(Some(answer.json()["result"].clone())),
        Ok(answer) if answer.status == 503 || client::is_out_of_time(&answer.json()) => Ok(None),
        Ok(answer) => anyhow::bail!("{path}: {} {}", answer.status, answer.text()),
        Err(_) => Ok(None),
    };
    let (Some(total), Some(results)) = (read("/v1/call/bank/total")?, read("/v1/call/voter/results")?) else {
        return Ok(None);
    };
    let sum = clients as i64 * 2 * crate::model::PAIRS_COUNT as i64 * FIRST_BALANCE;
    ensure!(
        number(&total["sum"]) == Some(sum),
        "half a transfer was seen: {total}, the sum must be {sum}"
    );
    let rows = results.as_array().map(Vec::as_slice).unwrap_or_default();
    let votes = rows.iter().filter_map(|row: &Value| number(&row["votes"])).sum();
    Ok(number(&total["accounts"]).map(|accounts| (accounts, votes)))
}

/// A reader beside the writers. The rows that it saw were durable.
fn watch(address: &str, clients: usize, seen: &Mutex<(i64, i64)>, is_over: &AtomicBool) -> Result<()> {
    let Ok(mut connection) = Connection::open(address) else {
        return Ok(());
    };
    while !is_over.load(Ordering::Acquire) {
        let Some(now) = look(&mut connection, clients)? else {
            return Ok(());
        };
        let mut seen = seen.lock().expect("held to compare");
        ensure!(
            now.0 >= seen.0 && now.1 >= seen.1,
            "a reader saw {seen:?} accounts and votes, and then {now:?}"
        );
        *seen = now;
        drop(seen);
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
