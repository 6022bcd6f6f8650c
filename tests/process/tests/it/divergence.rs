//! A log whose replay does not do what it says, and every way on from there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned, copy_dir, procedure_wasm, run_verb};
use reprise_test_process::{Cluster, balance, forge_args, json_of, open_until_known, refused, wait_reached};
use serde_json::{Value, json};

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// Makes accounts 1 to 10 with 100 each, then ten transfers of 1 from account 1 to 2. The log says of the sixth that it was to move 3.
/// Returns the LSN of the sixth.
fn diverging(launch: &Launch) -> Result<u64> {
    let server = Server::start(launch)?;
    server.deploy("bank")?;
    for account in 1..=10 {
        let args = json!({"account": account, "balance": 100}).to_string();
        let answer = server.call("bank/open", &args)?;
        ensure!(answer.status == 200, "{}", answer.text());
    }
    let mut lsns = Vec::new();
    for number in 0..10 {
        let answer = match number {
            9 => keyed_transfer(&server)?,
            _ => transfer(&server)?,
        };
        ensure!(answer.0 == 200, "{}", answer.1);
        lsns.push(answer.1["lsn"].as_str().context("a string")?.to_owned());
    }
    server.terminate()?;
    let mut left = 16;
    let lsn = forge_args(
        &launch.data_dir,
        |_| {
            left -= 1;
            left == 0
        },
        |args| args[16] = 3,
    )?;
    ensure!(lsns[5] == lsn.to_string(), "another record was forged");
    Ok(lsn)
}

fn transfer(server: &Server) -> Result<(u16, Value)> {
    let args = json!({"from": 1, "to": 2, "amount": 1}).to_string();
    let answer = server.call("bank/transfer", &args)?;
    Ok((answer.status, answer.json()))
}

/// The last of the ten, and its repeats.
fn keyed_transfer(server: &Server) -> Result<(u16, Value)> {
    let args = json!({"from": 1, "to": 2, "amount": 1}).to_string();
    let key = [("idempotency-key", "last")];
    let answer = server.request("POST", "/v1/call/bank/transfer", &key, args.as_bytes())?;
    Ok((answer.status, answer.json()))
}

fn report(launch: &Launch, lsn: u64) -> Result<(PathBuf, Value)> {
    let path = launch.data_dir.join(format!("divergence-{lsn}.json"));
    let report = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    Ok((path, serde_json::from_slice(&report)?))
}

#[test]
fn a_divergence_stops_the_opening_with_a_report() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    let lsn = diverging(&launch)?;
    let log = launch.data_dir.join("log/log-0000000000000000.seg");
    let before = fs::read(&log)?;
    let mut process = Spawned::start(&launch)?;
    let status = process.wait()?;
    let errors = process.errors();
    ensure!(status.code() == Some(1), "{status}: {errors}");
    for words in [
        "replay diverges",
        &format!("LSN {lsn}"),
        "bank",
        "transfer",
        "--read-only",
        "reprise restore",
    ] {
        ensure!(errors.contains(words), "{words:?} is not told: {errors}");
    }
    let (_, report) = report(&launch, lsn)?;
    ensure!(
        report["lsn"].as_str() == Some(&*lsn.to_string()) && report["procedure"] == "transfer",
        "{report}"
    );
    ensure!(report["record"]["args"]["amount"] == "3", "{report}");
    ensure!(report["first_difference"].is_null() && report["logged_changes"].is_null());
    ensure!(report["settings_hash"].as_str().map(str::len) == Some(16), "{report}");
    ensure!(
        report["ways_on"].as_array().is_some_and(|ways| ways.len() >= 3),
        "{report}"
    );
    ensure!(fs::read(&log)? == before, "the log was changed");
    Ok(())
}

#[test]
fn a_divergence_on_a_standby_names_its_own_ways_on() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", "2-safe"])?;
    let b = cluster.standby("b", &a, &[])?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    a.deploy_until_known("bank")?;
    for account in 1..=2 {
        let opened = open_until_known(&a, account, &[])?;
        ensure!(opened.status == 200, "{}", opened.text());
    }
    let (key, args) = (("idempotency-key", "moved"), br#"{"from": 1, "to": 2, "amount": 1}"#);
    let moved = a.until_known("POST", "/v1/call/bank/transfer", &[key], args)?;
    ensure!(moved.status == 200, "{}", moved.text());
    b.terminate()?;
    a.terminate()?;
    let launch = Launch::new(&cluster.path("b"));
    // A transfer has three numbers, an opening has two.
    let lsn = forge_args(&launch.data_dir, |command| command.args.len() > 16, |args| args[16] = 3)?;
    Server::start(&launch.clone().args(&["--read-only"]))?.terminate()?;
    let (_, report) = report(&launch, lsn)?;
    let ways = report["ways_on"].to_string();
    for words in [
        "reprise standby reset ",
        "reprise node lead ",
        "--accept-loss",
        "--read-only",
    ] {
        ensure!(ways.contains(words), "{words}: {ways}");
    }
    ensure!(!ways.contains("reprise recover"), "the verb refuses a standby: {ways}");
    Ok(())
}

#[test]
fn a_read_only_server_has_the_tables_as_they_were_before_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    let lsn = diverging(&launch)?;
    let server = Server::start(&launch.clone().args(&["--read-only"]))?;
    ensure!(balance(&server, 1)? == Some(95) && balance(&server, 2)? == Some(105));
    let (status, problem) = transfer(&server)?;
    ensure!(status == 503 && problem["type"] == "/problems/read-only", "{problem}");
    let detail = problem["detail"].as_str().unwrap_or_default();
    ensure!(
        detail.contains("read-only") && detail.contains(&lsn.to_string()),
        "{problem}"
    );
    let deployed = server.deploy("voter");
    ensure!(deployed.is_err_and(|error| error.to_string().contains("read-only")));
    ensure!(server.get("/v1/tables/accounts/rows")?.status == 200);
    ensure!(server.get(&format!("/v1/log/{lsn}"))?.status == 200);
    report(&launch, lsn)?;
    let (status, errors) = server.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    // One that does not diverge can be opened so, too.
    let other = Launch::new(&dir.path().join("other"));
    Server::start(&other)?.terminate()?;
    let server = Server::start(&other.args(&["--read-only"]))?;
    ensure!(server.deploy("bank").is_err());
    let (status, _) = server.terminate()?;
    ensure!(status.code() == Some(0), "{status}");
    Ok(())
}

#[test]
fn state_before_the_divergence_is_restored_and_continues() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    let lsn = diverging(&launch)?;
    let target = dir.path().join("before");
    let (data, to) = (path(&launch.data_dir)?, path(&target)?);
    let point = (lsn - 1).to_string();
    json_of(&["restore", "--data-dir", data, "--to", to, "--lsn", &point])?;
    let server = Server::start(&Launch {
        data_dir: target,
        ..launch
    })?;
    ensure!(balance(&server, 1)? == Some(95));
    ensure!(transfer(&server)?.0 == 200);
    Ok(())
}

#[test]
fn a_log_of_both_kinds_says_which_row_differs_and_takes_it_from_there() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2", "--log", "both"]);
    let lsn = diverging(&launch)?;
    let data = path(&launch.data_dir)?;
    let kept = dir.path().join("kept");
    copy_dir(&launch.data_dir, &kept)?;
    // The default reaction to a divergence.
    let mut process = Spawned::start(&launch)?;
    let status = process.wait()?;
    ensure!(status.code() == Some(1), "{status}: {}", process.errors());
    ensure!(
        process.errors().contains("--quarantine bank.transfer"),
        "{}",
        process.errors()
    );
    let (_, report) = report(&launch, lsn)?;
    let difference = report["first_difference"].as_str().context("a difference")?;
    // Either account: which partition comes first is not for us to say.
    let has_both = [["94", "92"], ["106", "108"]]
        .iter()
        .any(|values| values.iter().all(|value| difference.contains(value)));
    ensure!(has_both, "not both values: {difference}");
    ensure!(
        report["logged_changes"]["rows"]
            .as_array()
            .is_some_and(|rows| rows.len() == 2),
        "{report}"
    );
    // All from the changed rows.
    let told = json_of(&["recover", "--data-dir", path(&kept)?, "--recover-from", "physiological"])?;
    ensure!(told["transactions"] == 20 && told["quarantined"] == json!([]), "{told}");
    let server = Server::start(&Launch {
        data_dir: kept,
        ..launch.clone()
    })?;
    ensure!(balance(&server, 1)? == Some(90) && balance(&server, 2)? == Some(110));
    ensure!(transfer(&server)?.0 == 200);
    // This procedure alone, which then takes no calls.
    refused(
        &["recover", "--data-dir", data, "--quarantine", "bank.open"],
        1,
        "replay diverges",
    )?;
    refused(
        &["recover", "--data-dir", data, "--quarantine", "bank"],
        2,
        "MODULE.PROCEDURE",
    )?;
    let told = json_of(&["recover", "--data-dir", data, "--quarantine", "bank.transfer"])?;
    ensure!(told["quarantined"][0]["procedure"] == "transfer", "{told}");
    for _ in 0..2 {
        let server = Server::start(&launch)?;
        ensure!(balance(&server, 1)? == Some(90) && balance(&server, 2)? == Some(110));
        let (status, problem) = transfer(&server)?;
        ensure!(status == 503 && problem["type"] == "/problems/quarantined", "{problem}");
        ensure!(
            problem["detail"].as_str().is_some_and(|why| why.contains("quarantine")),
            "{problem}"
        );
        // A repeat learns that the transfer was made, and makes no other one.
        ensure!(keyed_transfer(&server)?.0 == 200);
        let args = json!({"account": 77, "balance": 1}).to_string();
        let answer = server.call("bank/open", &args)?;
        ensure!(answer.status == 200 || answer.status == 422, "{}", answer.text());
        server.terminate()?;
    }
    let dumped = run_verb(&["log", "dump", data, "--output", "json"])?;
    let dumped = String::from_utf8(dumped.stdout)?;
    let line = dumped.lines().find(|line| line.contains(r#""kind":"quarantine""#));
    let told: Value = serde_json::from_str(line.context("no record of it")?)?;
    ensure!(
        told["module"] == "bank"
            && told["procedure"] == "transfer"
            && told["diverged"].as_str() == Some(&*lsn.to_string()),
        "{told}"
    );
    // The log is replayed without the checkpoint, and the quarantine holds there, too.
    for entry in fs::read_dir(launch.data_dir.join("checkpoints"))? {
        fs::remove_file(entry?.path())?;
    }
    let server = Server::start(&launch)?;
    let listed = server.get("/v1/log?kind=quarantine")?.json();
    let procedures: Vec<_> = listed["records"]
        .as_array()
        .context("records")?
        .iter()
        .map(|told| &told["procedure"])
        .collect();
    ensure!(procedures.len() == 1 && procedures[0] == "transfer", "{listed}");
    ensure!(balance(&server, 1)? == Some(90) && balance(&server, 2)? == Some(110));
    // A new version takes calls again.
    let wasm = [&procedure_wasm("bank")?[..], &[0, 2, 1, b'x']].concat();
    let answer = server.request("PUT", "/v1/modules/bank", &[], &wasm)?;
    ensure!(answer.status == 200, "{}", answer.text());
    ensure!(keyed_transfer(&server)?.0 == 200);
    ensure!(balance(&server, 1)? == Some(90), "it was made once");
    ensure!(transfer(&server)?.0 == 200);
    Ok(())
}

#[test]
fn without_the_changes_in_the_log_there_is_nothing_to_take_them_from() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    diverging(&launch)?;
    let data = path(&launch.data_dir)?;
    let log = launch.data_dir.join("log/log-0000000000000000.seg");
    let before = fs::read(&log)?;
    refused(
        &["recover", "--data-dir", data, "--quarantine", "bank.transfer"],
        1,
        "replay diverges",
    )?;
    refused(
        &["recover", "--data-dir", data, "--recover-from", "physiological"],
        1,
        "replay diverges",
    )?;
    ensure!(fs::read(&log)? == before, "the log was changed");
    refused(
        &["recover", "--data-dir", path(&dir.path().join("none"))?],
        1,
        "there is no database",
    )?;
    // One that does not diverge is recovered, and begins with a checkpoint from then on.
    let whole = Launch::new(&dir.path().join("whole"));
    let server = Server::start(&whole)?;
    server.deploy("bank")?;
    ensure!(server.call("bank/open", r#"{"account": 1, "balance": 5}"#)?.status == 200);
    server.terminate()?;
    let told = json_of(&["recover", "--data-dir", path(&whole.data_dir)?])?;
    ensure!(
        told["transactions"] == 1 && told["checkpoint_lsn"].is_string(),
        "{told}"
    );
    let told = json_of(&["recover", "--data-dir", path(&whole.data_dir)?])?;
    ensure!(told["transactions"] == 0, "{told}");
    let server = Server::start(&whole)?;
    ensure!(balance(&server, 1)? == Some(5));
    Ok(())
}
