//! `reprise standby reset`: the files that it removes and keeps, and the directories that it refuses.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Server, Spawned, run_verb};
use reprise_test_process::{
    Cluster, PATIENCE, check, json_of, open_accounts, refusal, refused, take_checkpoint, wait_reached,
};

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Names of the files and folders in a directory.
fn names(dir: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir)? {
        names.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

fn reset(dir: &Path) -> Result<String> {
    let done = run_verb(&["standby", "reset", &text(dir)])?;
    ensure!(done.status.success(), "{done:?}");
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[test]
fn reset_standby_keeps_its_identity_and_fetches_its_first_files_again() -> Result<()> {
    let cluster = Cluster::new()?;
    let (dir, region) = (cluster.path("b"), cluster.path("region"));
    let in_region = text(&region);
    let on_nvram = ["--device", "nvram", "--nvram", &in_region, "--nvram-size", "8MiB"];
    let a = cluster.primary("a", &["--safety", "2-safe"])?;
    let tally = open_accounts(&a, 40)?;
    let mut b = cluster.standby("b", &a, &on_nvram)?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    take_checkpoint(&b)?;
    // A server runs on it.
    let before = names(&dir)?;
    for gone in ["checkpoints", "log", "node.json", "nvram.json", "view"] {
        ensure!(
            before.contains(gone),
            "{gone} is missing: nothing would be tested: {before:?}"
        );
    }
    refused(&["standby", "reset", &text(&dir)], 1, "does a server run on it?")?;
    ensure!(names(&dir)? == before, "{:?}", names(&dir)?);
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    b.kill()?;
    fs::create_dir_all(dir.join("cuts/epoch-1"))?;
    let own = json_of(&["node", "show", &text(&dir)])?;
    let alone = json_of(&["log", "verify", &in_region])?;
    ensure!(alone["blank"] == false && alone["whole"] == true, "{alone}");
    // The second run finds nothing to do, and says the same.
    for _ in 0..2 {
        let said = reset(&dir)?;
        let expected = "holds no log any more: start it with --standby-of, and it fetches its first files";
        ensure!(said.contains(expected), "{said}");
        let left = names(&dir)?;
        ensure!(left.iter().eq(["catalog", "code", "cuts", "node.json"]), "{left:?}");
        ensure!(dir.join("cuts/epoch-1").exists(), "the records that were kept are gone");
    }
    ensure!(
        json_of(&["standby", "reset", &text(&dir)])? == serde_json::json!({ "reset": true }),
        "the third run"
    );
    let alone = json_of(&["log", "verify", &in_region])?;
    ensure!(alone["blank"] == true, "{alone}");
    let shown = json_of(&["node", "show", &text(&dir)])?;
    ensure!(shown["node"] == own["node"] && shown["health"] == "good", "{shown}");
    ensure!(shown["starts"] == own["starts"], "{shown}, {own}");
    ensure!(shown["as_standby"] == "fetches the first files", "{shown}");
    // A start without its primary is refused. It leaves nothing that keeps the standby from its first files.
    let as_primary = shown["as_primary"].as_str().unwrap_or_default();
    ensure!(as_primary.contains("it is a standby's directory"), "{shown}");
    let said = refusal(&cluster.launch("b", &["--partitions", "2"]))?;
    ensure!(said.contains("this directory is a standby's"), "{said}");
    let b = cluster.standby("b", &a, &on_nvram)?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    check(&b, &[tally])?;
    ensure!(
        json_of(&["node", "show", &text(&dir)])?["node"] == own["node"],
        "another identity"
    );
    Ok(())
}

/// An operator may name a wrong directory. `log` is a folder that other programs have, too.
#[test]
fn directory_that_is_no_standby_s_is_left_as_it_is() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", &[])?;
    let tally = open_accounts(&a, 40)?;
    a.kill()?;
    let other = cluster.path("var");
    for folder in ["log", "checkpoints", "bootstrap"] {
        fs::create_dir_all(other.join(folder))?;
        fs::write(other.join(folder).join("syslog"), "text")?;
    }
    let nowhere = cluster.path("nowhere");
    let document = cluster.path("a").join("node.json");
    for (dir, words) in [
        (&cluster.path("a"), "is a primary's directory: it led in epoch 1"),
        (&other, "is no standby's directory"),
        (&nowhere, "nowhere"),
        (&document, "node.json"),
    ] {
        refused(&["standby", "reset", &text(dir)], 1, words)?;
    }
    ensure!(!nowhere.exists(), "it was made");
    ensure!(
        names(&other)?.iter().eq(["bootstrap", "checkpoints", "log"]),
        "{:?}",
        names(&other)?
    );
    // RealDisk leaves its lock at most.
    for folder in ["log", "checkpoints", "bootstrap"] {
        ensure!(
            names(&other.join(folder))?.iter().eq(["syslog"]),
            "{folder} has changed"
        );
    }
    let a = Server::start(&cluster.launch("a", &[]))?;
    check(&a, &[tally])
}

/// A standby that has no files yet holds no log, which would keep a reset away.
#[test]
fn reset_is_refused_while_a_standby_fetches_its_first_files() -> Result<()> {
    let cluster = Cluster::new()?;
    let dir = cluster.path("b");
    // No server listens there.
    let mut b = Spawned::start(&cluster.launch("b", &["--standby-of", "http://127.0.0.1:9"]))?;
    let until = Instant::now() + PATIENCE;
    while !b.errors().contains("waiting for the primary") {
        ensure!(Instant::now() < until && b.is_running(), "{}", b.errors());
        thread::sleep(Duration::from_millis(20));
    }
    let words = "does a standby begin on it?";
    refused(&["standby", "reset", &text(&dir)], 1, words)?;
    let second = refusal(&cluster.launch("b", &["--standby-of", "http://127.0.0.1:9"]))?;
    ensure!(second.contains(words), "{second}");
    b.kill()?;
    reset(&dir)?;
    Ok(())
}
