//! The same work under each kind of log, killed, and recovered in every way: the tables are the same.

use std::path::Path;

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, copy_dir, run_bench, run_verb};
use serde_json::{Value, json};

const KINDS: [&str; 4] = ["command", "physiological", "auto", "both"];

/// Votes and transfers, some of which are refused by their procedures.
fn work(server: &Server) -> Result<()> {
    server.deploy("voter")?;
    server.deploy("bank")?;
    let answer = server.call("voter/initialize", r#"{"contestants": ["a", "b", "c"]}"#)?;
    ensure!(answer.status == 200, "{}", answer.text());
    let table = server.get("/v1/tables/contestants")?.json();
    ensure!(
        table["rows"] == 3,
        "copies on three partitions are rows of one table: {table}"
    );
    let mut connection = server.connect()?;
    for round in 0..12i64 {
        let mut body = String::new();
        let mut push = |module: &str, procedure: &str, args: Value| {
            let call = json!({"module": module, "procedure": procedure, "args": args});
            body += &format!("{call}\n");
        };
        for i in 0..150i64 {
            let phone = 2_125_550_000i64 + (round * 31 + i * 7) % 400;
            let vote = json!({"phone_number": phone, "contestant_number": 1 + i % 4, "max_votes_per_phone": 4});
            push("voter", "vote", vote);
            if i < 40 {
                let account = round * 40 + i;
                push("bank", "open", json!({"account": account, "balance": 1_000_000}));
            }
            if round > 0 {
                let (from, to) = ((i * 11) % (round * 40), (i * 17 + 3) % (round * 40));
                push("bank", "transfer", json!({"from": from, "to": to, "amount": i}));
            }
        }
        let answer = connection.request("POST", "/v1/batch", &[], body.as_bytes());
        let answer = answer.map_err(|cut| cut.error)?;
        ensure!(answer.status == 200, "{}", answer.text());
    }
    Ok(())
}

fn replay(data: &Path, copy: &Path, sites: &str, from: &str) -> Result<Value> {
    copy_dir(data, copy)?;
    let dir = copy.to_str().expect("a path in UTF-8");
    let words = ["replay", "--output", "json", "--data-dir", dir];
    let output = run_bench(&[&words[..], &["--sites", sites, "--recover-from", from]].concat())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "replay from {from}: {errors}");
    std::fs::remove_dir_all(copy)?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn kinds_of(data: &Path) -> Result<Vec<String>> {
    let dir = data.to_str().expect("a path in UTF-8");
    let output = run_verb(&["log", "dump", dir, "--output", "json"])?;
    let lines = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty());
    let kinds = lines.map(|line| {
        let record: Value = serde_json::from_slice(line)?;
        if record["kind"] == "changes" {
            let rows = record["rows"].as_array().map_or(&[][..], Vec::as_slice);
            let is_told = |row: &Value| row["columns"].is_object() || row["change"] == "delete";
            ensure!(rows.iter().all(is_told), "rows that are not decoded: {record}");
        }
        Ok(record["kind"].as_str().unwrap_or_default().to_owned())
    });
    kinds.collect()
}

#[test]
fn every_kind_of_log_recovers_to_the_same_tables() -> Result<()> {
    let mut digests = Vec::new();
    for kind in KINDS {
        let dir = tempfile::tempdir()?;
        let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
        let launch = Launch::new(&data).args(&["--partitions", "3", "--log", kind]);
        let mut server = Server::start(&launch)?;
        work(&server)?;
        let status = server.get("/v1/status")?.json();
        ensure!(status["log"] == kind, "{status}");
        server.kill()?;
        let kinds = kinds_of(&data)?;
        let count = |wanted: &str| kinds.iter().filter(|kind| *kind == wanted).count();
        let (commands, changes) = (count("command"), count("changes"));
        match kind {
            "command" => ensure!(changes == 0 && commands > 2_000, "{commands}, {changes}"),
            "physiological" => ensure!(commands == 0 && changes > 2_000, "{commands}, {changes}"),
            "both" => ensure!(commands == changes && changes > 2_000, "{commands}, {changes}"),
            _ => {}
        }
        let transactions = if kind == "both" { commands } else { commands + changes };
        for sites in ["1", "2", "3"] {
            for from in ["command", "physiological"] {
                let report = replay(&data, &copy, sites, from)?;
                let replayed = report["replayed"].as_u64().unwrap_or(0) as usize;
                ensure!(replayed == transactions, "{transactions} logged, {report}");
                digests.push((kind, sites, from, report["digest"].clone()));
            }
        }
    }
    let first = &digests[0].3;
    ensure!(digests.iter().all(|digest| digest.3 == *first), "{digests:#?}");
    Ok(())
}

/// What was recovered from one kind goes on under another, and its server answers.
#[test]
fn a_server_goes_on_under_another_kind() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let mut votes = 0;
    for (round, kind) in ["both", "physiological", "command", "auto"].into_iter().enumerate() {
        let args = ["--partitions", "2", "--log", kind];
        let mut server = Server::start(&Launch::new(&data).args(&args))?;
        if round == 0 {
            work(&server)?;
        } else {
            let vote = r#"{"phone_number": 2025550100, "contestant_number": 2, "max_votes_per_phone": 9}"#;
            let answer = server.call("voter/vote", vote)?;
            ensure!(answer.json()["result"]["outcome"] == "accepted", "{}", answer.text());
        }
        let results = server.call("voter/results", "{}")?.json();
        let rows = results["result"].as_array().cloned().unwrap_or_default();
        let number = |row: &Value| row["votes"].as_str().map_or(row["votes"].as_i64(), |v| v.parse().ok());
        let sum: i64 = rows.iter().filter_map(number).sum();
        ensure!(round == 0 || sum == votes + 1, "{sum} votes after {votes}");
        votes = sum;
        server.kill()?;
    }
    Ok(())
}
