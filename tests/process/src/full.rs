//! Voter until memory is full, in a control group in which the kernel kills processes. The kernel kills nothing, writes that grow the data
//! are refused at once, and reads stay fast. After a kill by hand, the server opens again in the same group, on one site and on two.

use std::{
    fmt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Connection, Launch, Server};
use serde_json::{Value, json};

use crate::group::Group;

const CONTESTANTS: i64 = 6;
/// Votes of one batch.
const BATCH_VOTES: i64 = 2_000;
/// Reads that are measured, before and at full.
const READS: usize = 2_000;
const FULL_WAIT_MAX: Duration = Duration::from_secs(600);
const MEMORY_EXHAUSTED: &str = "/problems/memory-exhausted";

/// The measured figures.
#[derive(Clone, Debug, Default)]
pub struct FullReport {
    pub group_bytes: u64,
    pub votes: i64,
    pub full_seconds: f64,
    pub refusal_p99: Duration,
    pub reads_before_p99: Duration,
    pub reads_full_p99: Duration,
    pub kernel_kills: u64,
    /// Sites, and seconds until it served.
    pub opened: Vec<(u64, f64)>,
}

impl fmt::Display for FullReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        writeln!(
            f,
            "group         {} MiB; killed by the kernel: {}",
            self.group_bytes >> 20,
            self.kernel_kills
        )?;
        writeln!(
            f,
            "full          after {} votes in {:.1} s",
            self.votes, self.full_seconds
        )?;
        writeln!(f, "refusals      p99 {:.1} ms", ms(self.refusal_p99))?;
        let times = ms(self.reads_full_p99) / ms(self.reads_before_p99).max(1e-6);
        let (before, full) = (ms(self.reads_before_p99), ms(self.reads_full_p99));
        write!(
            f,
            "reads         p99 {before:.2} ms before, {full:.2} ms at full: {times:.2} times as long"
        )?;
        for (sites, seconds) in &self.opened {
            write!(
                f,
                "\nopened        again after kill -9 on {sites} sites in {seconds:.1} s, all votes there, refusals and reads go on"
            )?;
        }
        Ok(())
    }
}

/// Fills a group of `group_bytes`. None if no group can be made.
pub fn run_full(group_bytes: u64, dir: &Path) -> Result<Option<FullReport>> {
    let Some(group) = Group::new("full", group_bytes) else {
        return Ok(None);
    };
    let mut report = FullReport {
        group_bytes,
        ..FullReport::default()
    };
    let launch = Launch::new(&dir.join("data"))
        .args(&["--partitions", "2", "--log", "command"])
        .in_group(&group.path);
    let mut server = Server::start(&launch)?;
    server.deploy("voter")?;
    let names: Vec<_> = (0..CONTESTANTS).map(|number| format!("candidate {number}")).collect();
    let made = server.call("voter/initialize", &json!({"contestants": names}).to_string())?;
    ensure!(made.status == 200, "initialize: {} {}", made.status, made.text());
    let mut voter = Voter {
        connection: server.connect()?,
        next: 0,
        accepted: 0,
        refusals: Vec::new(),
    };
    while voter.next < 20 * BATCH_VOTES {
        voter.batch()?;
    }
    report.reads_before_p99 = reads_beside(&server, &mut voter)?;
    let begun = Instant::now();
    while voter.refusals.is_empty() {
        voter.batch()?;
        ensure!(
            begun.elapsed() < FULL_WAIT_MAX,
            "memory does not get full: {} votes",
            voter.accepted
        );
    }
    report.full_seconds = begun.elapsed().as_secs_f64();
    report.reads_full_p99 = reads_beside(&server, &mut voter)?;
    report.refusal_p99 = voter.refuse_singly(&server)?;
    report.votes = voter.accepted;
    check_votes(&server, voter.accepted)?;
    server.kill()?;
    for sites in [1, 2] {
        let begun = Instant::now();
        let mut server = Server::start(&launch.clone().args(&["--sites", &sites.to_string()]))?;
        report.opened.push((sites, begun.elapsed().as_secs_f64()));
        check_votes(&server, voter.accepted).with_context(|| format!("opened on {sites} sites"))?;
        voter.connection = server.connect()?;
        voter
            .refuse_singly(&server)
            .with_context(|| format!("opened on {sites} sites"))?;
        server.kill()?;
    }
    report.kernel_kills = group.kills();
    ensure!(report.kernel_kills == 0, "the kernel killed: {report}");
    Ok(Some(report))
}

/// A client that votes in batches, each time from another phone.
struct Voter {
    connection: Connection,
    next: i64,
    accepted: i64,
    /// Votes that were refused, by their numbers.
    refusals: Vec<i64>,
}

fn vote(number: i64) -> Value {
    // Phone numbers of one area code after the other, all of ten digits.
    json!({"phone_number": 2_010_000_000_i64 + number, "contestant_number": 1 + number % CONTESTANTS, "max_votes_per_phone": 1})
}

impl Voter {
    fn batch(&mut self) -> Result<()> {
        let numbers: Vec<i64> = (self.next..self.next + BATCH_VOTES).collect();
        self.next += BATCH_VOTES;
        let line = |number: &i64| {
            format!(
                "{}\n",
                json!({"module": "voter", "procedure": "vote", "args": vote(*number)})
            )
        };
        let body: String = numbers.iter().map(line).collect();
        let answer = self.connection.request("POST", "/v1/batch", &[], body.as_bytes());
        let answer = answer.map_err(|cut| cut.error).context("the server is gone")?;
        let text = answer.text();
        for (number, line) in numbers.iter().zip(text.lines()) {
            let told: Value = serde_json::from_str(line).context("a line of a batch")?;
            self.take(*number, &told)?;
        }
        Ok(())
    }

    fn take(&mut self, number: i64, told: &Value) -> Result<()> {
        match &told["problem"] {
            Value::Null => {
                ensure!(told["result"]["outcome"] == "accepted", "{told}");
                self.accepted += 1;
            }
            problem if problem["type"] == MEMORY_EXHAUSTED => self.refusals.push(number),
            problem if problem["type"] == "/problems/overloaded" => {}
            problem => anyhow::bail!("vote {number}: {problem}"),
        }
        Ok(())
    }

    /// Votes one by one until enough were refused. Returns the time that a refusal takes. One partition may have room when the other has
    /// none.
    fn refuse_singly(&mut self, server: &Server) -> Result<Duration> {
        let (mut times, begun) = (Vec::new(), Instant::now());
        while times.len() < READS / 10 {
            ensure!(begun.elapsed() < FULL_WAIT_MAX, "nothing is refused any more");
            let number = self.next;
            self.next += 1;
            let sent = Instant::now();
            let answer = server.call("voter/vote", &vote(number).to_string())?;
            let told = answer.json();
            match answer.status {
                200 => self.accepted += 1,
                507 => {
                    ensure!(
                        told["type"] == MEMORY_EXHAUSTED && told["limit"] == "memory_max",
                        "{told}"
                    );
                    times.push(sent.elapsed());
                }
                status => anyhow::bail!("vote {number}: {status} {told}"),
            }
        }
        Ok(p99(times))
    }
}

/// Measures how long reads take while a client votes, or tries to.
fn reads_beside(server: &Server, voter: &mut Voter) -> Result<Duration> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let voting = scope.spawn(|| {
            while !is_over.load(Relaxed) {
                voter.batch()?;
            }
            anyhow::Ok(())
        });
        let read = || -> Result<Vec<Duration>> {
            let mut connection = server.connect()?;
            let mut times = Vec::new();
            for _ in 0..READS {
                let begun = Instant::now();
                let answer = connection
                    .request("POST", "/v1/call/voter/results", &[], b"{}")
                    .map_err(|cut| cut.error)?;
                ensure!(answer.status == 200, "results: {} {}", answer.status, answer.text());
                times.push(begun.elapsed());
            }
            Ok(times)
        };
        let times = read();
        is_over.store(true, Relaxed);
        voting.join().expect("the voter panicked")?;
        times.map(p99)
    })
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[(times.len() * 99).div_ceil(100) - 1]
}

fn check_votes(server: &Server, accepted: i64) -> Result<()> {
    let answer = server.call("voter/results", "{}")?;
    let rows = answer.json()["result"].as_array().cloned().context("results")?;
    let votes = |row: &Value| row["votes"].as_str().and_then(|votes| votes.parse::<i64>().ok());
    let sum: Option<i64> = rows.iter().map(votes).sum();
    ensure!(
        sum == Some(accepted),
        "{accepted} votes were accepted, and {sum:?} are there"
    );
    Ok(())
}
