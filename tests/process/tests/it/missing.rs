//! Reads of a primary whose standbys are missing: they wait for nobody.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Answer, Server};
use reprise_test_process::{Cluster, PATIENCE, durable_lsn, open_until_known};

fn wait_reached(server: &Server, level: &str, in_sync: &[&Server]) -> Result<()> {
    reprise_test_process::wait_reached(server, &[], (level, in_sync))
}

fn balance(a: &Server, account: u64, headers: &[(&str, &str)]) -> Result<Answer> {
    let body = format!(r#"{{"account": {account}}}"#);
    a.request("POST", "/v1/call/bank/balance", headers, body.as_bytes())
}

/// Returns the accounts of a page of rows.
fn accounts(a: &Server) -> Result<Vec<u64>> {
    let page = a.get("/v1/tables/bank.accounts/rows?limit=1000")?;
    ensure!(page.status == 200, "{}", page.text());
    let told = page.json();
    let rows = told["rows"].as_array().into_iter().flatten();
    Ok(rows.filter_map(|row| row["account"].as_str()?.parse().ok()).collect())
}

/// Standbys are lost while a write waits for them: all rows are read on as they are acknowledged, with their age.
fn reads_go_on_without_standbys(level: &str) -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", level])?;
    let mut b = cluster.standby("b", &a, &["--safety", level])?;
    let mut c = cluster.standby("c", &a, &["--safety", level])?;
    wait_reached(&a, level, &[&b, &c])?;
    a.deploy_until_known("bank")?;
    for account in 1..=20 {
        ensure!(open_until_known(&a, account, &[])?.status == 200, "{account}");
    }
    let shown = balance(&a, 1, &[])?;
    ensure!(
        shown.status == 200 && shown.header("reprise-lag-ms").is_none(),
        "it leads"
    );
    let mut sum = a.call("bank/total", "{}")?.json();
    let begun = Instant::now();
    // A write that is not refused before it runs, and whose standbys are lost.
    let mut account = 100;
    loop {
        let before = durable_lsn(&a, &[])?;
        b.process().signal(libc::SIGSTOP)?;
        c.process().signal(libc::SIGSTOP)?;
        let mut connection = a.connect()?;
        let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
        let waiting = thread::spawn(move || connection.request("POST", "/v1/call/bank/open", &[], body.as_bytes()));
        while durable_lsn(&a, &[])? == before && !waiting.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
        let is_awaited = durable_lsn(&a, &[])? > before;
        b.kill()?;
        c.kill()?;
        waiting.join().expect("no panic").map_err(|cut| cut.error)?;
        if is_awaited {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "the standbys are always let go before");
        account += 1;
        b = cluster.standby("b", &a, &["--safety", level])?;
        c = cluster.standby("c", &a, &["--safety", level])?;
        wait_reached(&a, level, &[&b, &c])?;
        sum = a.call("bank/total", "{}")?.json();
    }
    wait_reached(&a, "1-safe", &[])?;
    for known in 1..=20 {
        let answer = balance(&a, known, &[])?;
        ensure!(answer.status == 200, "{known}: {}", answer.text());
        let lag_ms: f64 = answer.header("reprise-lag-ms").unwrap_or_default().parse()?;
        ensure!(
            lag_ms > 0.0 && answer.header("reprise-lag-known") == Some("true"),
            "{lag_ms}"
        );
    }
    // The write that waits is shown to nobody: neither by a procedure, of one partition and of several, nor as a page.
    let met = balance(&a, account, &[])?;
    ensure!(met.status == 422, "{}", met.text());
    let total = a.call("bank/total", "{}")?.json();
    ensure!(total["result"] == sum["result"], "{total}, before {sum}");
    let shown = accounts(&a)?;
    ensure!(!shown.contains(&account) && shown.len() >= 20, "{shown:?}");
    let is_refused = |answer: &Answer| answer.status == 503 && answer.json()["type"] == "/problems/standby-unavailable";
    let write = a.call("bank/open", r#"{"account": 300, "balance": 1}"#)?;
    ensure!(is_refused(&write), "{}", write.text());
    let young = [("reprise-max-lag-ms", "0"), ("reprise-max-wait-ms", "1")];
    let stale = balance(&a, 1, &young)?;
    ensure!(stale.json()["type"] == "/problems/too-stale", "{}", stale.text());
    // With them all is shown, and it is not old.
    let b = cluster.standby("b", &a, &["--safety", level])?;
    let c = cluster.standby("c", &a, &["--safety", level])?;
    wait_reached(&a, level, &[&b, &c])?;
    let answer = balance(&a, account, &[])?;
    ensure!(answer.status == 200, "{}", answer.text());
    ensure!(accounts(&a)?.contains(&account), "it is acknowledged by now");
    Ok(())
}

#[test]
fn reads_are_answered_when_a_quorum_is_missing() -> Result<()> {
    reads_go_on_without_standbys("quorum")
}

#[test]
fn reads_are_answered_when_a_very_safe_standby_is_missing() -> Result<()> {
    reads_go_on_without_standbys("very-safe")
}
