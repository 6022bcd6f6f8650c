//! The migration of a deployment: killed in the middle, and diverging at a replay.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned, procedure_wasm, run_verb};
use reprise_test_http::{probe, probe_grown};
use reprise_test_process::{PATIENCE, forge_migration};
use serde_json::json;

const CONTACTS: &str = "/v1/modules/contacts";

/// The first version, with ten people.
fn fill(server: &Server) -> Result<()> {
    deploy(server, &procedure_wasm("contacts1")?, 201)?;
    for id in 0..10 {
        let args = json!({"id": id, "name": "Ada Lovelace", "emails": "a@a.org,b@b.org"}).to_string();
        let answer = server.call("contacts/add", &args)?;
        ensure!(answer.status == 200, "{}", answer.text());
    }
    Ok(())
}

fn deploy(server: &Server, wasm: &[u8], status: u16) -> Result<String> {
    let answer = server.consenting("PUT", CONTACTS, wasm)?;
    ensure!(answer.status == status, "{} {}", answer.status, answer.text());
    Ok(answer.text())
}

fn answers(server: &Server, call: &str, expected: serde_json::Value) -> Result<()> {
    let answer = server.call(call, r#"{"id": 7}"#)?;
    ensure!(answer.json()["result"] == expected, "{}", answer.text());
    Ok(())
}

/// Never ends by itself.
fn endless() -> Result<Vec<u8>> {
    let description = r#"{\"abi\":1,\"tables\":[],\"procedures\":[],\"on_deploy\":true}"#;
    Ok(wat::parse_str(format!(
        r#"(module (memory (export "memory") 1)
            (func (export "reprise_on_deploy") (param i32) (result i32) (loop br 0) unreachable)
            (@custom "reprise.describe" "{description}"))"#
    ))?)
}

#[test]
fn killed_in_the_middle_the_version_before_serves_and_the_next_one_goes_through() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "3", "--deploy-time-max-s", "0"]);
    let mut server = Server::start(&launch)?;
    fill(&server)?;
    let mut connection = server.connect()?;
    let refused = connection
        .request("PUT", CONTACTS, &[], &endless()?)
        .map_err(|cut| cut.error)?;
    ensure!(
        refused.status == 409,
        "it drops procedures and leaves a table: {}",
        refused.text()
    );
    let allowed = format!("{CONTACTS}{}", refused.consents());
    connection.send("PUT", &allowed, &[], &endless()?)?;
    // A look at the status does not wait, and sees the deployment for which the others wait.
    let until = Instant::now() + PATIENCE;
    let status = loop {
        let status = server.get("/v1/status")?.json();
        if !status["deployment"].is_null() || Instant::now() > until {
            break status;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let deployment = &status["deployment"];
    ensure!(
        deployment["module"] == "contacts" && deployment["seconds_max"] == 0,
        "{status}"
    );
    // The server is in the middle of the migration, which never ends.
    thread::sleep(Duration::from_millis(100));
    server.kill()?;
    let server = Server::start(&launch)?;
    answers(&server, "contacts/name", json!("Ada Lovelace"))?;
    deploy(&server, &procedure_wasm("contacts2")?, 200)?;
    answers(&server, "contacts/last", json!("Lovelace"))?;
    answers(&server, "contacts/addresses", json!("2"))?;
    server.terminate()?;
    Ok(())
}

#[test]
fn migration_that_takes_too_long_is_reported_and_changes_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--deploy-time-max-s", "1"]);
    let server = Server::start(&launch)?;
    fill(&server)?;
    let told = deploy(&server, &endless()?, 422)?;
    ensure!(server.get("/v1/status")?.json()["deployment"].is_null());
    ensure!(
        told.contains("migration-failed") && told.contains("within 1 s"),
        "{told}"
    );
    answers(&server, "contacts/name", json!("Ada Lovelace"))?;
    server.terminate()?;
    Ok(())
}

#[test]
fn another_digest_at_the_replay_stops_the_opening() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    let server = Server::start(&launch)?;
    fill(&server)?;
    deploy(&server, &procedure_wasm("contacts2")?, 200)?;
    server.terminate()?;
    let lsn = forge_migration(&launch.data_dir)?;
    let mut process = Spawned::start(&launch)?;
    let (status, errors) = (process.wait()?, process.errors());
    ensure!(status.code() == Some(1), "{status}: {errors}");
    for words in [
        "replay diverges",
        &format!("LSN {lsn}"),
        "contacts",
        "on_deploy",
        "wrote something else",
    ] {
        ensure!(errors.contains(words), "{words:?} is not told: {errors}");
    }
    // Nothing logged beside it could take its place.
    ensure!(!errors.contains("quarantine"), "{errors}");
    Ok(())
}

/// Runs `reprise module rollback` with these words behind it. Returns its exit status and its text.
fn roll_back(server: &Server, words: &[&str]) -> Result<(Option<i32>, String)> {
    let url = format!("http://{}", server.address);
    let output = run_verb(&[&["module", "rollback", "--url", &url], words].concat())?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn the_command_line_rolls_back_and_says_why_it_does_not() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--partitions", "2"]);
    let server = Server::start(&launch)?;
    let says = |words: &[&str], expected: i32, part: &str| -> Result<()> {
        let (status, said) = roll_back(&server, words)?;
        ensure!(
            status == Some(expected) && said.contains(part),
            "{words:?}: {status:?} {said}"
        );
        Ok(())
    };
    fill(&server)?;
    says(&["contacts"], 1, "no version before 1")?;
    deploy(&server, &procedure_wasm("contacts2")?, 200)?;
    // A name that is gone has no default: with rows there is no way back.
    says(&["contacts", "--dry-run"], 1, "the server would refuse contacts")?;
    says(&["contacts", "--version", "1"], 1, "contacts.contacts")?;
    answers(&server, "contacts/last", json!("Lovelace"))?;
    says(&["contacts", "--version", "many"], 2, "many")?;
    for wasm in [probe(), probe_grown()] {
        let answer = server.request("PUT", "/v1/modules/probe", &[], &wasm)?;
        ensure!(matches!(answer.status, 200 | 201), "{}", answer.text());
    }
    let refused = "add --allow drop-procedure:probe.extra";
    says(&["probe", "--dry-run"], 1, refused)?;
    says(&["probe"], 1, refused)?;
    let allow = ["--allow", "drop-procedure:probe.extra"];
    says(
        &["probe", allow[0], allow[1], "--dry-run"],
        0,
        "with the bytes of version 1",
    )?;
    says(
        &["probe", allow[0], allow[1]],
        0,
        "version 3 is in service in place of version 2, with the bytes of version 1",
    )?;
    says(
        &["probe", "--version", "2", "--output", "json"],
        0,
        "\"rolled_back_to\": 2",
    )?;
    server.terminate()?;
    Ok(())
}

/// The server and `log dump` decode with the schema of the record's place.
#[test]
fn rows_in_the_log_are_shown_as_they_were_before_a_deployment() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--log", "physiological"]);
    let server = Server::start(&launch)?;
    fill(&server)?;
    deploy(&server, &procedure_wasm("contacts2")?, 200)?;
    let shown = |server: &Server| -> Result<Vec<serde_json::Value>> {
        let page = server.get("/v1/log?kind=changes&limit=1000")?.json();
        Ok(page["records"].as_array().cloned().unwrap_or_default())
    };
    let before = shown(&server)?;
    ensure!(before.len() == 10, "{before:?}");
    for record in &before {
        let row = &record["rows"][0];
        ensure!(row["columns"]["name"] == "Ada Lovelace", "{record}");
        ensure!(
            row["table"] == "contacts.contacts" && row["schema_unknown"].is_null(),
            "{record}"
        );
    }
    server.terminate()?;
    let server = Server::start(&launch)?;
    ensure!(shown(&server)? == before, "a restart shows something else");
    server.terminate()?;
    let data = launch.data_dir.display().to_string();
    let dumped = String::from_utf8(run_verb(&["log", "dump", &data, "--output", "json"])?.stdout)?;
    let dumped = dumped
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<serde_json::Value>, _>>()?;
    let dumped: Vec<_> = dumped
        .into_iter()
        .filter(|record| record["kind"] == "changes")
        .collect();
    ensure!(dumped == before, "{dumped:?}");
    Ok(())
}
