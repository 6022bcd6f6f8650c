//! A server whose commits wait for an emulated NVDIMM alone. The virtual machine loses its power under load again and again, and each start
//! finds the earlier acknowledged calls. Outside and inside are halves of one program.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::{Connection, Launch, Rng, Server};

use crate::vm::script;

const CLIENTS: u64 = 3;
/// The accounts of a client begin at its number times this.
const OWN: u64 = 1_000_000;
/// Answers after which the power goes, at most.
const ANSWERS_MAX: u64 = 150;
const SECONDS_MAX: &str = "600";

/// Forms of the log, and the times at which changes go to the region.
const WAYS: [(&str, &str); 5] = [
    ("command", "commit"),
    ("physiological", "insert"),
    ("both", "insert-fence"),
    ("physiological", "commit"),
    ("both", "insert"),
];

/// The region in the machine: a file with DAX, a DAX device.
const REGIONS: [&str; 2] = ["/mnt/pmem0/region", "/dev/dax1.0"];

pub struct NvdimmConfig {
    pub kills: u64,
    pub seed: u64,
}

/// The results of a run.
#[derive(Debug, Default)]
pub struct NvdimmReport {
    pub kills: u64,
    pub answered: u64,
    /// Starts by region.
    pub starts: BTreeMap<&'static str, u64>,
}

impl std::fmt::Display for NvdimmReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kills, answered, .. } = self;
        write!(
            f,
            "{kills} power failures, {answered} answered calls, none lost; starts"
        )?;
        self.starts
            .iter()
            .try_for_each(|(region, count)| write!(f, ", {count} on {region}"))
    }
}

/// Kills the machine as often as configured, and looks for the answered accounts after each start. It looks once more at the end, and the
/// server ends in order. `program` runs [`run_guest`] with `guest` as its first argument.
pub fn run(program: &Path, config: &NvdimmConfig) -> Result<NvdimmReport> {
    let dir = tempfile::tempdir().context("make a directory")?;
    let mut rng = Rng::new(config.seed);
    let mut report = NvdimmReport::default();
    let mut answered = [0; CLIENTS as usize];
    for start in 0..=config.kills {
        let (log, flush) = WAYS[start as usize % WAYS.len()];
        // Twice on each, so that a region is found again, and moved.
        let region = REGIONS[start as usize / 2 % REGIONS.len()];
        let kill_behind = (start < config.kills).then(|| 1 + rng.below(ANSWERS_MAX));
        let told = boot(program, dir.path(), (log, flush, region), &answered, kill_behind).with_context(|| {
            format!(
                "start {start}, log {log}, flush {flush}, on {region}, seed {}",
                config.seed
            )
        })?;
        for line in told.lines() {
            // Calls that a start found stay, even if the power fails again before an answer mentions them.
            if let Some((client, count)) = read_count(line, "found ") {
                answered[client as usize] = count;
            }
            if let Some((client, count)) = read_count(line, "answer ") {
                answered[client as usize] = count;
                report.answered += 1;
            }
        }
        *report.starts.entry(region).or_default() += 1;
        report.kills += u64::from(kill_behind.is_some());
    }
    Ok(report)
}

/// `answer N: client C has A accounts`, or `found` in place of `answer`.
fn read_count(line: &str, kind: &str) -> Option<(u64, u64)> {
    let rest = line.strip_prefix(kind)?.split_once(": client ")?.1;
    let (client, rest) = rest.split_once(" has ")?;
    Some((client.parse().ok()?, rest.strip_suffix(" accounts")?.parse().ok()?))
}

/// Runs one life of the machine, and returns the text that it printed.
fn boot(
    program: &Path,
    dir: &Path,
    (log, flush, region): (&str, &str, &str),
    answered: &[u64],
    kill_behind: Option<u64>,
) -> Result<String> {
    let mut vm = Command::new(script());
    vm.args(["--timeout", SECONDS_MAX, "--mem", "2G", "--pmem"]);
    vm.arg(format!("{}:256M", dir.join("files").display()));
    vm.args(["--pmem", &format!("{}:64M:devdax", dir.join("device").display())]);
    if let Some(behind) = kill_behind {
        vm.args(["--kill-on", &format!("answer {behind}:")]);
    }
    vm.arg("--").arg(program).args(["guest", log, flush, region]);
    vm.arg(if kill_behind.is_some() { "load" } else { "check" });
    vm.args(answered.iter().map(u64::to_string)).stdin(Stdio::null());
    let output = vm.output().context("start boot-vm")?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_right = match kill_behind {
        Some(behind) => output.status.code() == Some(137) && told.contains(&format!("answer {behind}:")),
        None => output.status.success() && told.contains("whole"),
    };
    if !is_right {
        bail!("{}: {told}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    ensure!(told.contains("all are there"), "nothing was looked at: {told}");
    Ok(told)
}

pub struct NvdimmGuestConfig {
    pub log: String,
    pub flush: String,
    pub region: String,
    /// Else the server ends in order once all was looked at.
    pub loads: bool,
    /// Numbers of answered accounts by client.
    pub answered: Vec<u64>,
}

/// The half in the machine.
pub fn run_guest(config: &NvdimmGuestConfig) -> Result<()> {
    let data = PathBuf::from(std::env::var("PMEM0").context("there is no NVDIMM")?).join("data");
    let launch = Launch::new(&data).args(&[
        "--device",
        "nvram",
        "--nvram",
        &config.region,
        "--partitions",
        "2",
        "--sites",
        "2",
        "--log",
        &config.log,
        "--nvram-flush",
        &config.flush,
    ]);
    // A device says itself how long it is.
    let launch = match config.region.starts_with("/dev/") {
        true => launch,
        false => launch.args(&["--nvram-size", "16MiB"]),
    };
    let server = Server::start(&launch)?;
    let status = server.get("/v1/status")?.json();
    ensure!(
        status["nvram"]["persistence"] == "fence" && status["nvram"]["warning"].is_null(),
        "{status}"
    );
    if config.answered.iter().all(|count| *count == 0) {
        server.deploy("bank")?;
    }
    let mut counts = Vec::new();
    for (client, known) in (0..).zip(&config.answered) {
        let count = count_accounts(&server, client, *known)?;
        println!("found {client}: client {client} has {count} accounts");
        counts.push(count);
    }
    println!("all are there");
    if !config.loads {
        let (status, errors) = server.terminate()?;
        ensure!(status.success(), "{status}: {errors}");
        println!("whole");
        return Ok(());
    }
    let lines = Mutex::new(0);
    thread::scope(|scope| {
        let clients = (0..).zip(&counts).map(|(client, count)| {
            let (lines, address) = (&lines, &server.address);
            scope.spawn(move || open_accounts((client, *count), address, lines))
        });
        let clients: Vec<_> = clients.collect();
        clients
            .into_iter()
            .try_for_each(|client| client.join().expect("a client panicked"))
    })
}

/// Returns the number of the client's accounts. They are those that the machine printed as answered, and perhaps more. The last lines may
/// be lost with its power, and one call was on its way.
fn count_accounts(server: &Server, client: u64, known: u64) -> Result<u64> {
    let mut connection = server.connect()?;
    let mut count = 0;
    loop {
        let body = format!(r#"{{"account": {}}}"#, client * OWN + count);
        let answer = connection.request("POST", "/v1/call/bank/balance", &[], body.as_bytes());
        let answer = answer.map_err(|cut| cut.error).context("ask for a balance")?;
        if answer.status != 200 {
            ensure!(
                count >= known,
                "client {client} has {count} accounts, and {known} were answered"
            );
            return Ok(count);
        }
        let balance = answer.json()["result"]["balance"].clone();
        let expected = balance_of(count).to_string();
        ensure!(
            balance.as_str() == Some(&expected),
            "account {count} of client {client}: {balance}, not {expected}"
        );
        count += 1;
    }
}

fn balance_of(number: u64) -> u64 {
    number * 7 + 1
}

fn open_accounts((client, from): (u64, u64), address: &str, lines: &Mutex<u64>) -> Result<()> {
    let mut connection = Connection::open(address).context("connect")?;
    for number in from.. {
        let (account, balance) = (client * OWN + number, balance_of(number));
        let body = format!(r#"{{"account": {account}, "balance": {balance}}}"#);
        let answer = connection.request("POST", "/v1/call/bank/open", &[], body.as_bytes());
        let answer = answer.map_err(|cut| cut.error).context("open an account")?;
        ensure!(answer.status == 200, "account {account}: {}", answer.text());
        let mut line = lines.lock().unwrap_or_else(PoisonError::into_inner);
        *line += 1;
        println!("answer {line}: client {client} has {} accounts", number + 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::read_count;

    #[test]
    fn lines_of_answers_are_read() {
        assert_eq!(
            read_count("answer 12: client 2 has 7 accounts", "answer "),
            Some((2, 7))
        );
        assert_eq!(read_count("found 1: client 1 has 9 accounts", "found "), Some((1, 9)));
        for line in [
            "all are there",
            "answer 12: client 2 has",
            "answer : client x has 7 accounts",
        ] {
            assert_eq!(read_count(line, "answer "), None, "{line}");
        }
    }
}
