//! Restores to a point, backups, and what a dry run of an opening says, by the binary's verbs.

use std::{fs, path::Path, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server};
use reprise_test_process::{Mount, Tally, balance, check, json_of, open_accounts, refused, snapshot, status_of};
use serde_json::{Value, json};

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// A database that was killed: accounts 1 to `count` were opened one by one, a checkpoint lies in the middle. What each
/// opening was answered.
fn accounts(launch: &Launch, count: i64) -> Result<Vec<Value>> {
    let mut server = Server::start(launch)?;
    server.deploy("bank")?;
    let mut answers = Vec::new();
    for account in 1..=count {
        let args = json!({"account": account, "balance": account});
        let answer = server.call("bank/open", &args.to_string())?;
        ensure!(answer.status == 200, "{}", answer.text());
        answers.push(answer.json());
        if account == count / 2 {
            let url = format!("http://{}", server.address);
            json_of(&["checkpoint", "take", "--url", &url])?;
        }
    }
    server.kill()?;
    Ok(answers)
}

fn holds_accounts(dir: &Path, launch: &Launch, first: i64, count: i64) -> Result<()> {
    let launch = Launch {
        data_dir: dir.to_owned(),
        ..launch.clone()
    };
    let server = Server::start(&launch)?;
    for account in 1..=count {
        let expected = (account <= first).then_some(account);
        let found = balance(&server, account)?;
        ensure!(found == expected, "account {account} of {first}: {found:?}");
    }
    // The restored database is one like any other.
    let answer = server.call("bank/open", &json!({"account": 1 << 30, "balance": 1}).to_string())?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(())
}

#[test]
fn a_killed_database_is_restored_to_every_kind_of_point() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    let answers = accounts(&launch, 20)?;
    let before = snapshot(&launch.data_dir)?;
    let source = path(&launch.data_dir)?;
    let points = [(5, "lsn"), (5, "txn_id"), (15, "lsn"), (15, "txn_id"), (20, "lsn")];
    for (account, field) in points {
        let target = dir.path().join(format!("{account}-{field}"));
        let point = answers[account - 1][field].as_str().context("a string")?;
        let flag = if field == "lsn" { "--lsn" } else { "--txn" };
        let told = json_of(&["restore", "--data-dir", source, "--to", path(&target)?, flag, point])?;
        ensure!(told["last_txn_id"] == answers[account - 1]["txn_id"], "{told}");
        ensure!(told["checkpoint_lsn"].is_null() == (account == 5), "{told}");
        holds_accounts(&target, &launch, account as i64, 20)?;
    }
    // A restore has told the time of a transaction.
    let told = json_of(&[
        "restore",
        "--data-dir",
        source,
        "--to",
        path(&dir.path().join("by-lsn"))?,
        "--lsn",
        answers[11]["lsn"].as_str().context("a string")?,
    ])?;
    let target = dir.path().join("by-time");
    let time = told["last_time"].as_str().context("a time")?;
    json_of(&["restore", "--data-dir", source, "--to", path(&target)?, "--time", time])?;
    holds_accounts(&target, &launch, 12, 20)?;
    ensure!(snapshot(&launch.data_dir)? == before, "a restore changed its source");
    Ok(())
}

#[test]
fn impossible_restore_is_reported_and_leaves_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data"));
    let server = Server::start(&launch)?;
    open_accounts(&server, 1)?;
    let (data, target) = (path(&launch.data_dir)?, dir.path().join("new"));
    let to = path(&target)?;
    let restore = |from, more: &[&'static str]| [&["restore", "--data-dir", from, "--to", to][..], more].concat();
    refused(
        &["backup", "create", "--data-dir", data, "--to", to],
        1,
        "a server runs on",
    )?;
    server.terminate()?;
    refused(&restore(data, &["--lsn", "5", "--txn", "7"]), 2, "cannot be used with")?;
    refused(&restore(data, &["--lsn", "x"]), 2, "--lsn")?;
    refused(&restore(data, &["--time", "yesterday"]), 2, "2026-03-01T18:00:00Z")?;
    refused(&restore(data, &["--lsn", "99999999"]), 1, "is after the end")?;
    refused(
        &restore(data, &["--txn", "18446744073709551615"]),
        1,
        "is after the end",
    )?;
    refused(
        &restore(data, &["--time", "2999-01-01T00:00:00Z"]),
        1,
        "has not come yet",
    )?;
    refused(
        &restore(data, &["--time", "2024-01-01T00:00:00Z"]),
        1,
        "before the oldest point",
    )?;
    refused(&restore(path(dir.path())?, &[]), 1, "there is no database")?;
    refused(&["restore", "--data-dir", data, "--to", data], 1, "is not empty")?;
    let left: Vec<_> = fs::read_dir(dir.path())?.collect();
    ensure!(left.len() == 1, "something was left: {left:?}");
    Ok(())
}

#[test]
fn a_full_disk_leaves_nothing_behind() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data"));
    let server = Server::start(&launch)?;
    let tally = open_accounts(&server, 40)?;
    server.terminate()?;
    let Some(mount) = Mount::tmpfs(&dir.path().join("small"), 64 << 10)? else {
        return Ok(());
    };
    let (data, target) = (path(&launch.data_dir)?, mount.path.join("new"));
    refused(
        &["restore", "--data-dir", data, "--to", path(&target)?],
        1,
        "No space left",
    )?;
    refused(
        &["backup", "create", "--data-dir", data, "--to", path(&target)?],
        1,
        "No space left",
    )?;
    ensure!(fs::read_dir(&mount.path)?.count() == 0, "something was left");
    drop(mount);
    check(&Server::start(&launch)?, &[tally])
}

fn backed_up(dir: &Path) -> Result<(Launch, Tally, std::path::PathBuf)> {
    let launch = Launch::new(&dir.join("data")).args(&["--partitions", "2"]);
    let server = Server::start(&launch)?;
    let tally = open_accounts(&server, 4)?;
    let url = format!("http://{}", server.address);
    json_of(&["checkpoint", "take", "--url", &url])?;
    server.terminate()?;
    let backup = dir.join("backup");
    json_of(&[
        "backup",
        "create",
        "--data-dir",
        path(&launch.data_dir)?,
        "--to",
        path(&backup)?,
    ])?;
    Ok((launch, tally, backup))
}

#[test]
fn a_backup_of_a_directory_is_verified_restored_and_never_served() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (launch, tally, backup) = backed_up(dir.path())?;
    let told = json_of(&["backup", "verify", path(&backup)?])?;
    ensure!(told["whole"] == true && told["rows"].as_u64() > Some(100), "{told}");
    let restored = dir.path().join("restored");
    json_of(&["backup", "restore", path(&backup)?, "--to", path(&restored)?])?;
    let on = |data_dir: &Path| Launch {
        data_dir: data_dir.to_owned(),
        ..launch.clone()
    };
    check(&Server::start(&on(&restored))?, &[tally])?;
    refused(
        &["serve", "--data-dir", path(&backup)?, "--listen", "127.0.0.1:0"],
        1,
        "is a backup",
    )?;
    refused(
        &[
            "backup",
            "restore",
            path(&restored)?,
            "--to",
            path(&dir.path().join("x"))?,
        ],
        1,
        "is not a backup",
    )?;
    refused(&["backup", "verify", path(dir.path())?], 1, "is not a backup")?;
    let manifest = backup.join("manifest.json");
    let whole = fs::read(&manifest)?;
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 4;
    fs::write(&manifest, &changed)?;
    refused(&["backup", "verify", path(&backup)?], 1, "another copy")?;
    fs::write(&manifest, &whole)?;
    json_of(&["backup", "verify", path(&backup)?])?;
    Ok(())
}

#[test]
fn a_checkpoint_shows_what_it_holds() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (launch, tally, backup) = backed_up(dir.path())?;
    for place in [&launch.data_dir, &backup] {
        let told = json_of(&["checkpoint", "show", path(place)?])?;
        let accounts = &told["tables"][0];
        ensure!(accounts["table"] == "bank.accounts", "{told}");
        ensure!(accounts["rows"] == tally.acknowledged.len() + 2, "{told}");
        ensure!(told["modules"][0]["module"] == "bank", "{told}");
        let file = place.join("checkpoints").join(told["file"].as_str().context("a name")?);
        let again = json_of(&["checkpoint", "show", path(&file)?])?;
        ensure!(again == told, "{again}");
        let (status, output) = status_of(&["checkpoint", "show", path(&file)?, "--rows", "accounts"])?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(
            status == 0 && text.lines().count() == tally.acknowledged.len() + 2,
            "{text}"
        );
        let row: Value = serde_json::from_str(text.lines().next().context("a row")?)?;
        ensure!(row["row"]["account"].is_string() && row["partition"].is_u64(), "{row}");
        refused(
            &["checkpoint", "show", path(&file)?, "--rows", "nothing"],
            1,
            "it has bank.accounts",
        )?;
        refused(
            &["checkpoint", "show", path(place)?, "--lsn", "7"],
            1,
            "no checkpoint at LSN 7",
        )?;
    }
    refused(
        &["checkpoint", "show", path(&dir.path().join("none"))?],
        1,
        "look for checkpoints",
    )
}

#[test]
fn a_dry_run_says_what_an_opening_would_do_and_changes_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (launch, _, backup) = backed_up(dir.path())?;
    let data = path(&launch.data_dir)?;
    let dry_run = ["recover", "--dry-run", "--data-dir", data];
    let look = |status: i32| {
        let before = snapshot(&launch.data_dir)?;
        let (found, output) = status_of(&dry_run)?;
        ensure!(found == status, "{found}: {}", String::from_utf8_lossy(&output.stderr));
        ensure!(snapshot(&launch.data_dir)? == before, "a dry run changed files");
        Ok(serde_json::from_slice::<Value>(&output.stdout)?)
    };
    let told = look(0)?;
    ensure!(
        told["checkpoints"][0]["verdict"] == "taken" && told["closed"] == true,
        "{told}"
    );
    ensure!(told["replay"]["transactions"] == 0 && told["torn"].is_null(), "{told}");
    // A damaged checkpoint is passed over: the log is replayed from its beginning.
    let file = told["checkpoints"][0]["file"].as_str().context("a name")?;
    let file = launch.data_dir.join("checkpoints").join(file);
    let whole = fs::read(&file)?;
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&file, &damaged)?;
    let told = look(0)?;
    ensure!(told["checkpoints"][0]["verdict"] == "passed over", "{told}");
    ensure!(told["replay"]["transactions"].as_u64() > Some(100), "{told}");
    ensure!(told["replay"]["records"]["deploy"] == 1, "{told}");
    fs::write(&file, &whole)?;
    // A torn tail would be cut.
    let log = launch.data_dir.join("log/log-0000000000000000.seg");
    let whole = fs::read(&log)?;
    let end = whole.iter().rposition(|byte| *byte != 0).context("blocks")?;
    let mut torn = whole.clone();
    let at = (end / 512 + 1) * 512;
    torn[at..at + 700].fill(7);
    fs::write(&log, &torn)?;
    let told = look(0)?;
    ensure!(told["torn"]["bytes"].as_u64() >= Some(700), "{told}");
    // Damage stops it.
    let mut damaged = whole.clone();
    damaged[end / 2] ^= 1;
    fs::write(&log, &damaged)?;
    let told = look(1)?;
    ensure!(told["opens"] == false, "{told}");
    ensure!(
        told["refused"][0].as_str().is_some_and(|why| why.contains("damaged")),
        "{told}"
    );
    fs::write(&log, &whole)?;
    // A running server, a backup, and an absent directory are refused too.
    let server = Server::start(&launch)?;
    let (status, output) = status_of(&dry_run)?;
    ensure!(status == 1 && String::from_utf8_lossy(&output.stdout).contains("a server runs on"));
    server.terminate()?;
    let (status, _) = status_of(&["recover", "--dry-run", "--data-dir", path(&backup)?])?;
    ensure!(status == 1, "a backup is no data directory");
    refused(
        &["recover", "--dry-run", "--data-dir", path(dir.path())?],
        1,
        "there is no database",
    )?;
    refused(
        &[
            "recover",
            "--dry-run",
            "--data-dir",
            data,
            "--recover-from",
            "physiological",
        ],
        2,
        "cannot be used with",
    )
}

#[test]
fn a_backup_of_a_running_server_holds_all_that_was_answered_before_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&[
        "--partitions",
        "2",
        "--checkpoint-every",
        "1",
        "--checkpoints-kept",
        "1",
    ]);
    let server = Server::start(&launch)?;
    let url = format!("http://{}", server.address);
    reprise_test_process::prepare(&server, 3)?;
    let load = reprise_test_process::Load::start(&server, 3, 20);
    let mut backups = Vec::new();
    for round in 0..4 {
        thread::sleep(Duration::from_millis(400));
        let mark = json!({"account": -1 - round, "balance": 0});
        let answer = server.call("bank/open", &mark.to_string())?;
        ensure!(answer.status == 200, "{}", answer.text());
        let to = dir.path().join(format!("backup-{round}"));
        let told = json_of(&["backup", "create", "--to", path(&to)?, "--url", &url])?;
        let lsn: u64 = answer.json()["lsn"].as_str().context("a string")?.parse()?;
        let end: u64 = told["end_lsn"].as_str().context("a string")?.parse()?;
        ensure!(end > lsn, "it ends at {end}, the call before it lies at {lsn}");
        backups.push((to, -1 - round));
    }
    let tallies = load.stop()?;
    // None was left on the server, and one that is to stay can be fetched.
    ensure!(json_of(&["backup", "list", "--url", &url])?["backups"] == json!([]));
    let kept = json_of(&["backup", "create", "--url", &url])?;
    let id = kept["id"].as_str().context("an id")?;
    let last = dir.path().join("fetched");
    json_of(&["backup", "fetch", id, "--to", path(&last)?, "--url", &url])?;
    json_of(&["backup", "remove", id, "--url", &url])?;
    refused(
        &[
            "backup",
            "fetch",
            id,
            "--to",
            path(&dir.path().join("x"))?,
            "--url",
            &url,
        ],
        1,
        "not-found",
    )?;
    server.terminate()?;
    for (backup, mark) in &backups {
        json_of(&["backup", "verify", path(backup)?])?;
        let restored = backup.with_extension("restored");
        json_of(&["backup", "restore", path(backup)?, "--to", path(&restored)?])?;
        let server = Server::start(&Launch {
            data_dir: restored,
            ..launch.clone()
        })?;
        ensure!(
            balance(&server, *mark)? == Some(0),
            "a call answered before the backup is gone"
        );
        // Half a transfer would show in the sum.
        let answer = server.call("bank/total", "{}")?;
        let sum = answer.json()["result"]["sum"].clone();
        ensure!(sum.as_str() == Some(&*(6i64 << 40).to_string()), "{}", answer.text());
    }
    let restored = dir.path().join("all");
    json_of(&["backup", "restore", path(&last)?, "--to", path(&restored)?])?;
    let server = Server::start(&Launch {
        data_dir: restored,
        ..launch
    })?;
    for (_, mark) in &backups {
        ensure!(balance(&server, *mark)? == Some(0));
    }
    for tally in &tallies {
        for account in tally.acknowledged.iter().rev().take(20) {
            ensure!(balance(&server, *account)? == Some(0), "account {account} is gone");
        }
    }
    Ok(())
}

#[test]
fn a_server_writes_backups_where_its_operator_said_and_nowhere_else() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("elsewhere");
    let launch =
        Launch::new(&dir.path().join("data")).args(&["--backup-dir", path(&place)?, "--checkpoint-every", "0"]);
    let server = Server::start(&launch)?;
    open_accounts(&server, 1)?;
    let answer = server.request("POST", "/v1/backups", &[], br#"{"path": "/tmp/x"}"#)?;
    ensure!(answer.status == 202, "{}", answer.text());
    let id = answer.json()["id"].as_str().context("an id")?.to_owned();
    let shown = loop {
        let shown = server.get(&format!("/v1/backups/{id}"))?.json();
        match shown["state"].as_str() {
            Some("running") => thread::sleep(Duration::from_millis(10)),
            _ => break shown,
        }
    };
    ensure!(shown["state"] == "published", "{shown}");
    ensure!(
        shown["directory"]
            .as_str()
            .is_some_and(|at| at.starts_with(path(&place).unwrap_or("-")))
    );
    ensure!(shown["files"][0]["path"] == "manifest.json", "{shown}");
    for (way, status) in [
        (format!("/v1/backups/{id}/files/manifest.json"), 200),
        (format!("/v1/backups/{id}/files/..%2Fmanifest.json"), 404),
        (
            format!("/v1/backups/{id}/files/..%2F..%2F..%2Fdata%2Fcatalog%2Fdb"),
            404,
        ),
        (format!("/v1/backups/{id}/files/none"), 404),
        ("/v1/backups/..%2F..%2Fdata/files/manifest.json".into(), 404),
        ("/v1/backups/x".into(), 404),
        ("/v1/backups/99999999999999999999999".into(), 404),
    ] {
        let answer = server.get(&way)?;
        ensure!(answer.status == status, "{way}: {} {}", answer.status, answer.text());
    }
    // If the directory can't be written, the error is reported, and the server continues.
    let answer = server.request("DELETE", &format!("/v1/backups/{id}"), &[], b"")?;
    ensure!(answer.status == 204, "{}", answer.text());
    fs::remove_dir_all(&place)?;
    fs::write(&place, b"a file")?;
    let url = format!("http://{}", server.address);
    refused(&["backup", "create", "--url", &url], 1, "the backup failed")?;
    let answer = server.call("bank/total", "{}")?;
    ensure!(answer.status == 200, "{}", answer.text());
    server.terminate()?;
    // A server without a log has nothing to back up.
    let server = Server::start(&Launch::new(&dir.path().join("none")).args(&["--log", "none"]))?;
    ensure!(server.request("POST", "/v1/backups", &[], b"")?.status == 404);
    Ok(())
}

#[test]
fn a_checkpoint_that_decayed_is_not_backed_up() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (launch, tally, _) = backed_up(dir.path())?;
    let checkpoint = fs::read_dir(launch.data_dir.join("checkpoints"))?.next();
    let checkpoint = checkpoint.context("a checkpoint")??.path();
    let mut bytes = fs::read(&checkpoint)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&checkpoint, bytes)?;
    let server = Server::start(&launch)?;
    let url = format!("http://{}", server.address);
    let backup = dir.path().join("of-running");
    json_of(&["backup", "create", "--to", path(&backup)?, "--url", &url])?;
    server.terminate()?;
    json_of(&["backup", "verify", path(&backup)?])?;
    let restored = dir.path().join("restored");
    json_of(&["backup", "restore", path(&backup)?, "--to", path(&restored)?])?;
    let server = Server::start(&Launch {
        data_dir: restored,
        ..launch
    })?;
    check(&server, &[tally])
}
