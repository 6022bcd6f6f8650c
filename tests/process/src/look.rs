//! Checks of the rows on the server, and of the files on the disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::{Server, run_verb, skip};
use serde_json::{Value, json};

use crate::load::{FIRST_BALANCE, Tally};

/// A server that is too busy for longer stands still for another reason than its disk.
const BUSY_MAX: Duration = Duration::from_secs(60);

fn number(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// None: there is no such account.
pub fn balance(server: &Server, account: i64) -> Result<Option<i64>> {
    let answer = server.call("bank/balance", &json!({"account": account}).to_string())?;
    match answer.status {
        200 => Ok(number(&answer.json()["result"]["balance"])),
        422 if answer.json()["code"] == "unknown_account" => Ok(None),
        _ => bail!("balance: {} {}", answer.status, answer.text()),
    }
}

/// Every acknowledged call is there once, no refused one, and of the unknown ones each at most once.
pub fn check(server: &Server, tallies: &[Tally]) -> Result<()> {
    let mut there = accounts(server)?;
    for tally in tallies {
        let [from, to] = tally.pair();
        let paid = FIRST_BALANCE - balance(server, from)?.context("the payer is gone")?;
        let got = balance(server, to)?.context("the payee is gone")? - FIRST_BALANCE;
        ensure!(paid == got, "half a transfer: {paid} paid, {got} received");
        let possible = tally.moved..=tally.moved + tally.moves_unknown;
        ensure!(
            possible.contains(&paid),
            "client {}: {paid} transfers are there, acknowledged and possible {possible:?}",
            tally.client
        );
        there.remove(&from);
        there.remove(&to);
        let lost: Vec<_> = tally
            .acknowledged
            .iter()
            .filter(|account| !there.remove(account))
            .collect();
        ensure!(
            lost.is_empty(),
            "lost: {} of {} accounts",
            lost.len(),
            tally.acknowledged.len()
        );
        let seen: Vec<_> = tally.refused.iter().filter(|account| there.contains(account)).collect();
        ensure!(
            seen.is_empty(),
            "{} of {} refused openings are there",
            seen.len(),
            tally.refused.len()
        );
        for account in &tally.unknown {
            there.remove(account);
        }
    }
    ensure!(there.is_empty(), "accounts that nobody opened: {there:?}");
    let answer = server.call("bank/total", "{}")?;
    let sum = number(&answer.json()["result"]["sum"]);
    ensure!(
        sum == Some(tallies.len() as i64 * 2 * FIRST_BALANCE),
        "the sum is not conserved: {}",
        answer.text()
    );
    Ok(())
}

fn accounts(server: &Server) -> Result<BTreeSet<i64>> {
    let mut accounts = BTreeSet::new();
    let mut cursor = String::new();
    loop {
        let page = accounts_page(server, &cursor)?;
        for row in page["rows"].as_array().with_context(|| page.to_string())? {
            let account = number(&row["account"]).with_context(|| format!("a row without its account: {row}"))?;
            ensure!(accounts.insert(account), "account {account} is listed twice");
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(accounts),
        }
    }
}

/// Asks again after the advised time while the server is too busy. A page waits 10 s at most for the disk, which may stand still for
/// longer.
fn accounts_page(server: &Server, cursor: &str) -> Result<Value> {
    let begun = Instant::now();
    loop {
        let page = server
            .get(&format!("/v1/tables/accounts/rows?limit=1000{cursor}"))?
            .json();
        let Some(ms) = page["retry_after_ms"].as_u64().filter(|_| begun.elapsed() < BUSY_MAX) else {
            return Ok(page);
        };
        thread::sleep(Duration::from_millis(ms));
    }
}

/// Every file under a directory, with its bytes.
pub fn snapshot(dir: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.context("list directory")?.path();
        match path.is_dir() {
            true => files.extend(snapshot(&path)?),
            false => drop(files.insert(path.clone(), fs::read(&path).context("read file")?)),
        }
    }
    Ok(files)
}

/// `reprise log verify`.
pub fn verify(data_dir: &Path) -> Result<Value> {
    let dir = data_dir.to_str().context("a path in UTF-8")?;
    let output = run_verb(&["log", "verify", dir, "--output", "json"])?;
    serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Hands metrics to Prometheus's own tool. Any word from it is a failure.
pub fn check_by_promtool(metrics: &str) -> Result<()> {
    let started = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut promtool = match started {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            skip(
                "metrics as Prometheus reads them",
                "there is no promtool (Debian: prometheus)",
            );
            return Ok(());
        }
        started => started.context("start promtool")?,
    };
    let mut input = promtool.stdin.take().context("its input")?;
    input
        .write_all(metrics.as_bytes())
        .context("hand promtool the metrics")?;
    drop(input);
    let output = promtool.wait_with_output().context("wait for promtool")?;
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    ensure!(
        output.status.success() && told.is_empty(),
        "promtool: {}: {told}",
        output.status
    );
    Ok(())
}
