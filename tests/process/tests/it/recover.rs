//! `reprise recover` beside an archive and in a cluster: the files and the documents that it leaves as they are.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server};
use reprise_test_process::{Cluster, balance, check, json_of, open_accounts, refused, take_checkpoint, wait_reached};

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// Number of the checkpoints in a data directory.
fn checkpoints(dir: &Path) -> Result<usize> {
    Ok(fs::read_dir(dir.join("checkpoints"))?.count())
}

/// The server keeps more checkpoints than by default. The archive gets the log before the oldest one alone.
#[test]
fn recover_leaves_all_checkpoints_to_the_server_and_its_archive() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (data, archive) = (dir.path().join("data"), dir.path().join("archive"));
    let launch = Launch::new(&data).args(&[
        "--archive",
        text(&archive)?,
        "--checkpoints-kept",
        "3",
        "--checkpoint-every",
        "0",
    ]);
    let server = Server::start(&launch)?;
    server.deploy("bank")?;
    for account in 1..=3 {
        let args = format!(r#"{{"account": {account}, "balance": 5}}"#);
        ensure!(server.call("bank/open", &args)?.status == 200, "account {account}");
        take_checkpoint(&server)?;
    }
    server.terminate()?;
    ensure!(checkpoints(&data)? == 3, "{}", checkpoints(&data)?);
    for taken in 1..=2 {
        json_of(&["recover", "--data-dir", text(&data)?])?;
        ensure!(checkpoints(&data)? == 3 + taken, "{}", checkpoints(&data)?);
    }
    let server = Server::start(&launch)?;
    ensure!(balance(&server, 3)? == Some(5), "an account is gone");
    let status = server.get("/v1/status")?.json();
    ensure!(status["archive"]["error"].is_null(), "{status}");
    Ok(())
}

#[test]
fn recover_refuses_a_standby_and_keeps_the_standbys_of_a_primary() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", "2-safe"])?;
    let tally = open_accounts(&a, 10)?;
    let b = cluster.standby("b", &a, &[])?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    b.terminate()?;
    a.terminate()?;
    let (primary, standby) = (cluster.path("a"), cluster.path("b"));
    let read = |name: &str| fs::read(standby.join(name)).with_context(|| format!("read {name}"));
    let before = (read("node.json")?, read("view")?);
    let of_standby = ["recover", "--data-dir", text(&standby)?];
    let by_changes = [&of_standby[..], &["--recover-from", "physiological"]].concat();
    for words in ["`reprise standby reset DIR`", "`reprise node lead DIR --accept-loss`"] {
        refused(&of_standby, 1, words)?;
        refused(&by_changes, 1, words)?;
    }
    ensure!(
        (read("node.json")?, read("view")?) == before,
        "the standby's part changed"
    );
    let would = json_of(&[&of_standby[..], &["--dry-run"]].concat())?;
    ensure!(would["opens"] == true, "{would}");
    ensure!(
        (read("node.json")?, read("view")?) == before,
        "--dry-run changed something"
    );
    let show = ["node", "show", text(&primary)?];
    let known = json_of(&show)?;
    ensure!(known["members"][0]["name"] == "b", "{known}");
    json_of(&["recover", "--data-dir", text(&primary)?])?;
    let mut kept = json_of(&show)?;
    for field in ["version", "led"] {
        kept[field] = known[field].clone();
    }
    ensure!(kept == known, "{known} became {kept}");
    // Both start as before.
    let a = Server::start(&cluster.launch("a", &[]))?;
    let b = cluster.standby("b", &a, &[])?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    check(&a, &[tally])
}
