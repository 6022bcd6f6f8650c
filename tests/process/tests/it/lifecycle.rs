//! Signals, restarts, two servers that want one directory, and what of the machine would hurt them.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned, run_verb};
use reprise_test_process::{Load, balance, check, open_accounts, prepare, verify};
use serde_json::json;

/// Transactions that ran and committed, durable or not yet.
fn committed(server: &Server) -> Result<u64> {
    let metrics = server.get("/metrics")?.text();
    let name = "reprise_transactions_committed_total ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    let number = line.with_context(|| format!("no {name}: {metrics}"))?;
    Ok(number.parse::<f64>().context("a number")? as u64)
}

#[test]
fn sigterm_answers_the_calls_in_flight_and_ends_with_0() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    // A group of commits that waits keeps its calls in flight for this time.
    let mut server = Server::start(&Launch::new(&data).args(&["--group-commit-us", "1000000"]))?;
    prepare(&server, 0)?;
    let before = committed(&server)?;
    let call = |account: i64| {
        let mut connection = server.connect()?;
        let body = json!({"account": account, "balance": 5}).to_string();
        connection.send("POST", "/v1/call/bank/open", &[], body.as_bytes())?;
        anyhow::Ok(connection)
    };
    let connections: Vec<_> = (1..=8).map(call).collect::<Result<_>>()?;
    let mut batch = server.connect()?;
    let lines = (100..2100).map(|account| {
        let args = json!({"account": account, "balance": 5});
        format!("{}\n", json!({"module": "bank", "procedure": "open", "args": args}))
    });
    batch.send("POST", "/v1/batch", &[], lines.collect::<String>().as_bytes())?;
    // All have run, and wait for the log.
    let until = Instant::now() + Duration::from_secs(180);
    while committed(&server)? < before + 2008 {
        ensure!(Instant::now() < until, "not all calls run");
        thread::sleep(Duration::from_millis(5));
    }
    server.process().signal(libc::SIGTERM)?;
    for mut connection in connections {
        let answer = connection
            .receive()
            .map_err(|cut| cut.error)
            .context("a call in flight was not answered")?;
        ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
    }
    let answer = batch
        .receive()
        .map_err(|cut| cut.error)
        .context("a batch in flight was cut")?;
    let text = answer.text();
    ensure!(
        text.lines().count() == 2000,
        "{} answers to 2000 calls",
        text.lines().count()
    );
    ensure!(
        !text.contains("problem"),
        "a call of a batch in flight was refused: {text}"
    );
    let status = server.process().wait()?;
    ensure!(status.code() == Some(0), "{status}: {}", server.process().errors());
    ensure!(verify(&data)?["closed"] == true, "the log was not closed in order");

    let server = Server::start(&Launch::new(&data))?;
    for account in (1..=8).chain(100..2100) {
        ensure!(balance(&server, account)? == Some(5), "account {account} is lost");
    }
    Ok(())
}

#[test]
fn sigterm_under_load_loses_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "3", "--sites", "2"]);
    let server = Server::start(&launch)?;
    prepare(&server, 3)?;
    let load = Load::start(&server, 3, 20);
    thread::sleep(Duration::from_millis(500));
    let (status, errors) = server.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    check(&Server::start(&launch)?, &load.wait()?)
}

#[test]
fn a_second_server_on_the_directory_is_refused_and_the_first_serves_on() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data"));
    let server = Server::start(&launch)?;
    let tally = open_accounts(&server, 2)?;
    let mut second = Spawned::start(&launch)?;
    let status = second.wait()?;
    let errors = second.errors();
    ensure!(status.code() == Some(1), "{status}: {errors}");
    let last = errors.lines().last().unwrap_or_default();
    ensure!(last.contains("another process"), "the reason is not told: {errors}");
    check(&server, &[tally])
}

#[test]
fn memory_that_is_not_there_is_refused_before_anything_is_made() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let mut process = Spawned::start(&Launch::new(&data).args(&["--memory-ready", "65536TiB"]))?;
    let status = process.wait()?;
    let errors = process.errors();
    ensure!(status.code() == Some(1), "{status}: {errors}");
    let last = errors.lines().last().unwrap_or_default();
    ensure!(
        last.contains("memory-ready") && last.contains("left"),
        "the reason is not told: {errors}"
    );
    ensure!(!data.exists(), "a directory is left behind");
    Ok(())
}

#[test]
fn sigstop_and_sigcont_lose_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    let mut server = Server::start(&launch)?;
    prepare(&server, 3)?;
    let load = Load::start(&server, 3, 20);
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(150));
        server.process().signal(libc::SIGSTOP)?;
        thread::sleep(Duration::from_millis(700));
        server.process().signal(libc::SIGCONT)?;
    }
    thread::sleep(Duration::from_millis(150));
    let tallies = load.stop()?;
    for tally in &tallies {
        ensure!(
            tally.unknown.is_empty() && tally.refused.is_empty(),
            "a call was lost to a pause: {:?}",
            tally.problems
        );
    }
    check(&server, &tallies)?;
    server.kill()?;
    check(&Server::start(&launch)?, &tallies)
}

/// `reprise doctor` says no where data would be lost with the machine's next start, and what to do about it.
#[test]
fn the_doctor_says_what_would_hurt() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let examined = |data: &str| run_verb(&["doctor", "--data-dir", data, "--output", "json"]);
    let output = examined(&dir.path().join("data").to_string_lossy())?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let findings = told["findings"].as_array().context("findings")?;
    for subject in ["open files", "memory", "disk", "writes", "clock", "nvram", "rdma"] {
        ensure!(findings.iter().any(|found| found["subject"] == subject), "{told}");
    }
    let is_bad = findings.iter().any(|found| found["state"] == "bad");
    ensure!(output.status.code() == Some(i32::from(is_bad)), "{told}");
    ensure!(!dir.path().join("data").exists(), "it makes nothing");
    let output = examined("/proc/nowhere")?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    ensure!(run_verb(&["doctor", "--nonsense"])?.status.code() == Some(2));
    Ok(())
}
