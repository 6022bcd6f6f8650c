//! Back to points of days ago: the server is killed, and its archive and what is left of its directory are gone back in.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, run_verb};
use reprise_test_process::{PATIENCE, balance, prepare};
use serde_json::{Value, json};

/// Writes more than the first file of the log holds, in calls whose answers have their LSNs.
fn fill(server: &Server, from: i64) -> Result<()> {
    const CALLS: i64 = 60_000;
    let line = |account: i64| {
        let args = json!({"account": account, "balance": 1});
        format!("{}\n", json!({"module": "bank", "procedure": "open", "args": args}))
    };
    let lines: String = (from..from + CALLS).map(line).collect();
    let answer = server.request(
        "POST",
        "/v1/batch",
        &[("content-type", "application/x-ndjson")],
        lines.as_bytes(),
    )?;
    ensure!(
        answer.status == 200 && !answer.text().contains("problem"),
        "{}",
        answer.status
    );
    Ok(())
}

fn checkpoint(server: &Server) -> Result<()> {
    let begun = server.request("POST", "/v1/checkpoints", &[], b"")?.json();
    let path = format!("/v1/checkpoints/{}", begun["id"].as_str().context("an id")?);
    while server.get(&path)?.json()["state"] == "running" {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn status(server: &Server) -> Result<Value> {
    Ok(server.get("/v1/status")?.json()["archive"].clone())
}

fn restore(data: &Path, archive: &Path, to: &Path, lsn: &str) -> Result<()> {
    let text = |path: &Path| path.to_str().map(str::to_owned).context("UTF-8");
    let (data, archive, to) = (text(data)?, text(archive)?, text(to)?);
    let args = [
        "restore",
        "--data-dir",
        &data,
        "--archive",
        &archive,
        "--to",
        &to,
        "--lsn",
        lsn,
    ];
    let output = run_verb(&args)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

#[test]
fn a_killed_servers_archive_leads_back_to_before_what_its_directory_still_has() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (data, archive) = (dir.path().join("data"), dir.path().join("archive"));
    let place = archive.to_str().context("UTF-8")?;
    let launch = Launch::new(&data).args(&["--archive", place, "--checkpoints-kept", "1", "--checkpoint-every", "0"]);
    let mut server = Server::start(&launch)?;
    prepare(&server, 1)?;
    let mut points = Vec::new();
    for round in 1..=4 {
        let answer = server.call(
            "bank/open",
            &json!({"account": 7_000_000 + round, "balance": 5}).to_string(),
        )?;
        points.push(answer.header("reprise-lsn").context("an LSN")?.to_owned());
        fill(&server, round * 100_000)?;
        checkpoint(&server)?;
        if round == 2 {
            // While the archive may be at it.
            server.kill()?;
            server = Server::start(&launch)?;
        }
    }
    // Both may come a little behind the last checkpoint.
    let until = Instant::now() + PATIENCE;
    loop {
        let (told, gone) = (status(&server)?, server.get("/v1/log?from=0")?);
        ensure!(told["error"].is_null(), "{told}");
        if told["files"].as_u64() > Some(1) && gone.status == 410 {
            break;
        }
        ensure!(Instant::now() < until, "{told}, and {}", gone.text());
        thread::sleep(Duration::from_millis(20));
    }
    // While it runs, and after it was killed.
    for (at, is_alive) in [(1, true), (2, true), (3, false)] {
        if !is_alive {
            server.kill()?;
        }
        let to = dir.path().join(at.to_string());
        restore(&data, &archive, &to, &points[at])?;
        let mut restored = Server::start(&Launch::new(&to))?;
        restored.wait_said("the catalog is made from the log: 1 module versions")?;
        ensure!(!restored.process().errors().contains("is missing"));
        ensure!(balance(&restored, 7_000_000 + at as i64 + 1)? == Some(5));
        ensure!(
            balance(&restored, (at as i64 + 1) * 100_000)?.is_none(),
            "what lies behind the point is there"
        );
    }
    Ok(())
}
