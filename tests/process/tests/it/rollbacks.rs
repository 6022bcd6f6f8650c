//! Rollbacks where the former version was not deployed: on a promoted standby, after a restore, behind a released log; and killed.

use std::{thread, time::Duration};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server};
use reprise_test_http::probe;
use reprise_test_process::{Cluster, json_of, promote, wait_reached};
use serde_json::{Value, json};

const MODULE: &str = "/v1/modules/probe";

/// A version of `probe` with bytes of its own.
fn numbered(number: u8) -> Vec<u8> {
    let mut wasm = probe();
    wasm.extend([0, 3, 1, b'n', number]); // a custom section
    wasm
}

fn deploy(server: &Server, number: u8) -> Result<()> {
    let answer = server.request("PUT", MODULE, &[], &numbered(number))?;
    ensure!(
        matches!(answer.status, 200 | 201),
        "{} {}",
        answer.status,
        answer.text()
    );
    Ok(())
}

fn roll_back(server: &Server, query: &str) -> Result<Value> {
    let answer = server.request("POST", &format!("{MODULE}/rollback?{query}"), &[], b"")?;
    ensure!(answer.status == 200, "{} {}", answer.status, answer.text());
    Ok(answer.json())
}

/// Version in service, and which of the versions have their bytes.
fn versions(server: &Server) -> Result<(u64, Vec<bool>)> {
    let module = server.get(MODULE)?.json();
    let version = module["version"].as_u64().context("a version")?;
    let kept = module["versions"].as_array().context("versions")?.iter();
    Ok((version, kept.map(|version| version["kept"] == true).collect()))
}

fn put(server: &Server, id: i64) -> Result<()> {
    let answer = server.call("probe/put", &json!({"id": id, "amount": id}).to_string())?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(())
}

fn rows(server: &Server) -> Result<usize> {
    let page = server.get("/v1/tables/items/rows?limit=1000")?.json();
    Ok(page["rows"].as_array().context("rows")?.len())
}

#[test]
fn a_promoted_standby_rolls_back_to_what_came_with_its_first_files_and_with_deployments() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", &["--safety", "2-safe"])?;
    deploy(&a, 1)?;
    deploy(&a, 2)?;
    put(&a, 1)?;
    let url = format!("http://{}", a.address);
    json_of(&["checkpoint", "take", "--url", &url])?;
    let b = cluster.standby("b", &a, &["--safety", "2-safe"])?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    deploy(&a, 3)?;
    put(&a, 2)?;
    a.kill()?;
    promote(&b)?;
    ensure!(versions(&b)? == (3, vec![true; 3]), "{:?}", versions(&b)?);
    ensure!(roll_back(&b, "dry_run=true")?["rolled_back_to"] == 2);
    ensure!(roll_back(&b, "")?["rolled_back_to"] == 2);
    ensure!(roll_back(&b, "version=1")?["rolled_back_to"] == 1);
    ensure!(rows(&b)? == 2);
    b.terminate()?;
    Ok(())
}

#[test]
fn a_restored_backup_rolls_back() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let text = |name: &str| Ok::<_, anyhow::Error>(dir.path().join(name).to_str().context("UTF-8")?.to_owned());
    let (backup, restored) = (text("backup")?, text("restored")?);
    let server = Server::start(&Launch::new(&dir.path().join("data")))?;
    for number in 1..=3 {
        deploy(&server, number)?;
    }
    put(&server, 1)?;
    let url = format!("http://{}", server.address);
    json_of(&["backup", "create", "--to", &backup, "--url", &url])?;
    json_of(&["backup", "verify", &backup])?;
    server.terminate()?;
    json_of(&["backup", "restore", &backup, "--to", &restored])?;
    let server = Server::start(&Launch::new(dir.path().join("restored").as_path()))?;
    ensure!(roll_back(&server, "")?["rolled_back_to"] == 2);
    ensure!(roll_back(&server, "version=1")?["rolled_back_to"] == 1);
    ensure!(rows(&server)? == 1);
    server.terminate()?;
    Ok(())
}

/// Asks for a rollback and waits for `pause`, not for the answer.
fn begin_rollback(server: &Server, pause: Duration) -> Result<()> {
    let mut connection = server.connect()?;
    connection.send("POST", &format!("{MODULE}/rollback"), &[], b"")?;
    thread::sleep(pause);
    Ok(())
}

#[test]
fn a_primary_killed_in_a_rollback_serves_one_of_both_versions() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "3"]);
    let mut server = Server::start(&launch)?;
    deploy(&server, 1)?;
    deploy(&server, 2)?;
    let (mut version, mut done) = (2, 0);
    for round in 0..20 {
        put(&server, round)?;
        begin_rollback(&server, Duration::from_micros(400 * round as u64))?;
        server.kill()?;
        server = Server::start(&launch)?;
        let (found, kept) = versions(&server)?;
        ensure!(found == version || found == version + 1, "{found} behind {version}");
        ensure!(kept.iter().all(|kept| *kept), "{kept:?}");
        done += found - version;
        version = found;
        ensure!(rows(&server)? == round as usize + 1);
    }
    println!("{done} of 20 rollbacks had taken place");
    server.terminate()?;
    Ok(())
}

#[test]
fn a_standby_killed_in_a_rollback_follows_with_one_of_both_versions() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", "2-safe"])?;
    deploy(&a, 1)?;
    deploy(&a, 2)?;
    let mut b = cluster.standby("b", &a, &["--safety", "2-safe"])?;
    let again = cluster.standby_launch("b", &a, &["--safety", "2-safe"]);
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    for round in 0..8 {
        put(&a, round)?;
        begin_rollback(&a, Duration::from_micros(700 * round as u64))?;
        b.kill()?;
        b = Server::start(&again)?;
        wait_reached(&a, &[], ("2-safe", &[&b]))?;
    }
    let expected = versions(&a)?;
    a.terminate()?;
    promote(&b)?;
    ensure!(versions(&b)? == expected, "{:?}, {expected:?}", versions(&b)?);
    ensure!(rows(&b)? == 8);
    ensure!(roll_back(&b, "version=1")?["module"] == "probe");
    b.terminate()?;
    Ok(())
}
