//! The half that runs on this machine. It runs the load in a virtual one, then opens and checks every disk that a power failure may have
//! left.

use std::{collections::BTreeMap, env, fmt, fs, path::Path, time::Instant};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Rng, Server, binary};

use crate::{
    disk::{SafeDisk, take_out},
    guest::{CLIENTS, DISK_BYTES, READY},
    model, vm,
    writes::{Entry, Record},
};

const VM_SECONDS_MAX: u64 = 600;
/// One of the kinds by the seed.
const LOG_KINDS: [&str; 3] = ["command", "physiological", "both"];

#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    /// How long the server is loaded in the virtual machine.
    pub seconds: u64,
    /// Disks that are opened; 0: behind every flush and mark, and as many between the flushes.
    pub points: usize,
    /// `command`, `physiological`, `both`; none: by the seed.
    pub log: Option<String>,
    /// `sync`, or `async`, with which the server answers before anything is durable: it must be found out.
    pub commit: String,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub log: String,
    pub entries: usize,
    pub flushes: usize,
    pub marks: usize,
    pub acknowledged: u64,
    pub opened: usize,
    pub seconds: f64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "log           {}", self.log)?;
        writeln!(
            f,
            "recorded      {} writes and marks, {} flushes and forced writes, {} marks",
            self.entries, self.flushes, self.marks
        )?;
        writeln!(f, "acknowledged  {}", self.acknowledged)?;
        write!(
            f,
            "opened        {} disks in {:.1} s: nothing acknowledged lost, nothing half",
            self.opened, self.seconds
        )
    }
}

/// Loads a server in a virtual machine and opens what power failures may have left of its disk. The error says how to repeat it.
pub fn run(config: &Config) -> Result<Report> {
    let shared = tempfile::tempdir().context("create a temporary directory")?;
    let begun = Instant::now();
    let log = config
        .log
        .clone()
        .unwrap_or_else(|| LOG_KINDS[config.seed as usize % LOG_KINDS.len()].to_owned());
    record(config, shared.path(), &log)?;
    let record = Record::open(&shared.path().join("record"))?;
    let mut report = judge(config, &record, shared.path(), log)?;
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Has the virtual machine leave its record in `shared`.
fn record(config: &Config, shared: &Path, log: &str) -> Result<()> {
    let program = program()?;
    let procedures = binary()?
        .ancestors()
        .nth(2)
        .map(|target| target.join("procedures"))
        .context("the server lies in target/release")?;
    let environment = [
        ("REPRISE_BIN", binary()?.display().to_string()),
        (
            "REPRISE_PROCEDURES",
            env::var("REPRISE_PROCEDURES").unwrap_or(procedures.display().to_string()),
        ),
    ];
    let command = [
        program,
        "guest".to_owned(),
        shared.display().to_string(),
        config.seconds.to_string(),
        log.to_owned(),
        config.commit.clone(),
    ];
    let output = vm::run(shared, VM_SECONDS_MAX, &environment, &command)?;
    ensure!(
        output.status.success(),
        "the virtual machine ended with {}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The binary `power`, beside the test that runs or the running program itself.
fn program() -> Result<String> {
    let own = env::current_exe().context("find this program")?;
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("power"))
        .find(|path| path.is_file());
    Ok(found
        .context("build it first: cargo build --release -p reprise-test-hardware")?
        .display()
        .to_string())
}

fn judge(config: &Config, record: &Record, work: &Path, log: String) -> Result<Report> {
    let mut rng = Rng::new(config.seed);
    let points = choose(config, record, &mut rng)?;
    let mut safe = SafeDisk::new(record, work.join("safe"), DISK_BYTES)?;
    let mut report = Report {
        log,
        entries: record.entries.len(),
        ..Report::default()
    };
    for entry in &record.entries {
        match entry {
            Entry::Mark(_) => report.marks += 1,
            Entry::Write(write) => report.flushes += usize::from(write.is_flush || write.is_forced),
            Entry::Discard => {}
        }
    }
    for point in points {
        let acknowledged = acknowledged_at(record, point);
        report.acknowledged = acknowledged.iter().sum();
        let opened = open(&mut safe, point, work, &acknowledged, &mut rng.fork());
        opened.with_context(|| {
            let (seed, seconds, log) = (config.seed, config.seconds, &report.log);
            format!("power failure behind write {point} of {}\nreproduce (writes differ from run to run): cargo xtask power --seed {seed} --seconds {seconds} --log {log} --points {}", report.entries, config.points)
        })?;
        report.opened += 1;
    }
    Ok(report)
}

/// Behind which entries power fails: flushes, marks and any others; growing, none before the database is there.
fn choose(config: &Config, record: &Record, rng: &mut Rng) -> Result<Vec<usize>> {
    let is_ready = |entry: &Entry| matches!(entry, Entry::Mark(text) if text == READY);
    let first = 1 + record
        .entries
        .iter()
        .position(is_ready)
        .context("the record has no mark")?;
    let behind = |is_meant: fn(&Entry) -> bool| {
        let all = first..=record.entries.len();
        all.filter(|at| is_meant(&record.entries[at - 1])).collect::<Vec<_>>()
    };
    let flushes = behind(|entry| matches!(entry, Entry::Write(write) if write.is_flush || write.is_forced));
    let marks = behind(|entry| matches!(entry, Entry::Mark(_)));
    let any: Vec<_> = (first..=record.entries.len()).collect();
    let mut points = match config.points {
        0 => [flushes.clone(), marks].concat(),
        count => {
            let kinds = [&flushes, &marks, &any];
            (0..count).map(|at| pick(kinds[at % 3], rng)).collect()
        }
    };
    if config.points == 0 {
        points.extend(flushes.iter().map(|_| pick(&any, rng)));
    }
    points.sort_unstable();
    Ok(points)
}

fn pick(from: &[usize], rng: &mut Rng) -> usize {
    from[rng.below(from.len() as u64) as usize]
}

/// Calls of each client that the last mark before the point tells as acknowledged.
fn acknowledged_at(record: &Record, point: usize) -> [u64; CLIENTS] {
    let mut acknowledged = [0; CLIENTS];
    let marks = record.entries[..point].iter().rev();
    let newest = marks.filter_map(|entry| match entry {
        // The kernel sets marks of its own, at the end of the record.
        Entry::Mark(text) if text.starts_with(|first: char| first.is_ascii_digit()) => Some(text),
        _ => None,
    });
    for text in newest.take(1) {
        for (count, word) in acknowledged.iter_mut().zip(text.split(',')) {
            *count = word.parse().expect("marks hold numbers");
        }
    }
    acknowledged
}

fn open(safe: &mut SafeDisk, point: usize, work: &Path, acknowledged: &[u64], rng: &mut Rng) -> Result<()> {
    let (image, found) = (work.join("failed"), work.join("found"));
    safe.fail_at(point, &image, rng)?;
    take_out(&image, &found)?;
    let sites = (1 + rng.below(2)).to_string();
    let launch = Launch::new(&found.join("data")).args(&["--sites", &sites, "--checkpoint-every", "0"]);
    let mut server = Server::start(&launch)?;
    check(&server, acknowledged)?;
    server.kill()?;
    fs::remove_dir_all(&found).context("remove what was taken out")
}

/// Every client's accounts are those after some number of its calls, and after all that were acknowledged.
fn check(server: &Server, acknowledged: &[u64]) -> Result<()> {
    let accounts = accounts(server)?;
    for (client, acknowledged) in acknowledged.iter().enumerate() {
        let client = client as u64;
        let range = client as i64 * 1_000_000_000..(client as i64 + 1) * 1_000_000_000;
        let own: BTreeMap<_, _> = accounts
            .range(range)
            .map(|(account, balance)| (*account, *balance))
            .collect();
        let count = model::count_of(client, &own).with_context(|| {
            format!(
                "client {client}: no number of its calls leaves {} accounts with these balances",
                own.len()
            )
        })?;
        ensure!(
            count >= *acknowledged,
            "lost: client {client} had {acknowledged} calls acknowledged, {count} are there"
        );
    }
    Ok(())
}

fn accounts(server: &Server) -> Result<BTreeMap<i64, i64>> {
    let mut accounts = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let answer = server.get(&format!("/v1/tables/accounts/rows?limit=1000{cursor}"))?;
        ensure!(answer.status == 200, "rows: {} {}", answer.status, answer.text());
        let page = answer.json();
        for row in page["rows"].as_array().context("rows")? {
            let number = |name: &str| row[name].as_str().and_then(|text| text.parse::<i64>().ok());
            accounts.insert(
                number("account").context("account")?,
                number("balance").context("balance")?,
            );
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(accounts),
        }
    }
}
