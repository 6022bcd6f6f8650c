//! The configuration: where it is read, and read anew; and what the server says of what happens.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned};
use reprise_test_http::probe;
use serde_json::json;

/// Tokens `one` and `two`, by their digests.
pub const ONE: &str = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
pub const TWO: &str = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";

pub fn token(name: &str, role: &str, sha256: &str) -> String {
    format!("[[tokens]]\nname = \"{name}\"\nrole = \"{role}\"\nsha256 = \"{sha256}\"\n")
}

fn write(dir: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("reprise.toml"), text).context("write configuration")
}

const AS_ONE: (&str, &str) = ("authorization", "Bearer one");
const AS_TWO: (&str, &str) = ("authorization", "Bearer two");

#[test]
fn sighup_exchanges_tokens_names_what_needs_a_restart_and_a_broken_file_changes_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    write(
        &data,
        &format!("standby_token = \"one\"\n{}", token("first", "admin", ONE)),
    )?;
    let mut server = Server::start(&Launch::new(&data))?;
    let put = server.request("PUT", "/v1/modules/probe", &[AS_ONE], &probe())?;
    ensure!(put.status == 201, "{}", put.text());
    server.wait_said("control: deploy-module \"probe\" by \"first\": done in ")?;
    let mut pipeline = server.connect()?;
    let mut plain = server.connect()?;
    let mut call = |who: (&str, &str)| {
        let (call, json) = ("/v1/call/probe/echo", ("content-type", "application/json"));
        let on_lane = pipeline
            .request("POST", call, &[who, json], br#"{"id": 7}"#)
            .map_err(|cut| cut.error)?;
        let read = plain
            .request("GET", "/v1/tables", &[who], b"")
            .map_err(|cut| cut.error)?;
        anyhow::Ok((on_lane.status, read.status))
    };
    ensure!(call(AS_ONE)? == (200, 200) && call(AS_ONE)? == (200, 200));

    write(&data, "tokens = 7")?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("nothing changed")?;
    ensure!(call(AS_ONE)? == (200, 200));

    let settings = "partitions = 7\ncall_time_max_ms = 77\nstandby_token = \"two\"\n";
    write(&data, &format!("{settings}{}", token("second", "read", TWO)))?;
    server.process().signal(libc::SIGHUP)?;
    for told in [
        "token first (admin) is no longer valid",
        "token second (read) is now valid",
        "standby-token stays (kept secret): (kept secret) needs a restart",
        "call-time-max-ms is 77 (it was 1000)",
        "partitions stays",
        "7 needs a restart",
    ] {
        server.wait_said(told)?;
    }
    // The connections and the bytes of a request are those from before.
    ensure!(call(AS_ONE)? == (401, 401));
    ensure!(call(AS_TWO)? == (200, 200));

    // A reload that would open the server to everybody is none.
    for (is_missing, told) in [(false, "the file has no tokens"), (true, "reprise.toml is missing")] {
        write(&data, settings)?;
        if is_missing {
            fs::remove_file(data.join("reprise.toml"))?;
        }
        server.process().signal(libc::SIGHUP)?;
        server.wait_said(told)?;
        ensure!(
            call(("x-nobody", "nobody"))? == (401, 401) && call(AS_TWO)? == (200, 200),
            "{told}"
        );
    }
    let (status, said) = server.terminate()?;
    ensure!(status.success() && said.contains("stopping"), "{said}");
    Ok(())
}

#[test]
fn sighup_names_a_changed_scope_of_idempotency_keys() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    write(&data, &token("first", "admin", ONE))?;
    let mut server = Server::start(&Launch::new(&data))?;
    write(&data, &format!("{}scope = \"shop\"\n", token("first", "admin", ONE)))?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("token first: its idempotency keys count in scope shop (it was first), so a retry")?;
    ensure!(!server.process().errors().contains("no setting differs"));
    Ok(())
}

#[test]
fn a_configuration_that_is_a_link_to_a_missing_file_refuses_the_start() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    fs::create_dir_all(&data)?;
    std::os::unix::fs::symlink(dir.path().join("gone.toml"), data.join("reprise.toml"))?;
    let mut process = Spawned::start(&Launch::new(&data))?;
    let status = process.wait()?;
    let errors = process.errors();
    ensure!(
        status.code() == Some(2) && errors.contains("gone.toml, which is missing"),
        "{status}: {errors}"
    );
    Ok(())
}

#[test]
fn a_batch_of_a_withdrawn_token_runs_nothing_more() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    write(
        &data,
        &format!("{}{}", token("first", "admin", ONE), token("second", "read", TWO)),
    )?;
    let mut server = Server::start(&Launch::new(&data))?;
    let put = server.request("PUT", "/v1/modules/probe", &[AS_ONE], &probe())?;
    ensure!(put.status == 201, "{}", put.text());
    let line = |id: u32| {
        let call = json!({"module": "probe", "procedure": "put", "args": {"id": id, "amount": 1}});
        format!("{call}\n")
    };
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let mut stream = std::net::TcpStream::connect(&server.address)?;
    use std::io::{Read, Write};
    let head = "POST /v1/batch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n\
                authorization: Bearer one\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{head}{}", chunk(&line(1))).as_bytes())?;
    let mut answered = String::new();
    let mut buffer = [0; 4096];
    while !answered.contains("txn_id") {
        let read = stream.read(&mut buffer)?;
        ensure!(read > 0, "{answered}");
        answered.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
    write(&data, &token("second", "read", TWO))?;
    server.process().signal(libc::SIGHUP)?;
    server.wait_said("token first (admin) is no longer valid")?;
    stream.write_all(format!("{}0\r\n\r\n", chunk(&line(2))).as_bytes())?;
    let mut rest = String::new();
    stream.read_to_string(&mut rest).or_else(|error| match error.kind() {
        std::io::ErrorKind::ConnectionReset => Ok(0),
        _ => Err(error),
    })?;
    ensure!(
        rest.contains("/problems/unauthorized") && !rest.contains("txn_id"),
        "{rest}"
    );
    let rows = server.request("GET", "/v1/tables/items/rows", &[AS_TWO], b"")?;
    ensure!(
        rows.json()["rows"].as_array().is_some_and(|rows| rows.len() == 1),
        "{}",
        rows.text()
    );
    Ok(())
}

#[test]
fn the_configuration_is_the_data_directorys_or_named_and_not_the_working_directorys() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (data, here) = (dir.path().join("data"), dir.path().join("here"));
    write(&here, "partitions = 5\n")?;
    write(&data, "partitions = 3\n")?;
    let launch = Launch::new(&data).standing_in(&here);
    let mut server = Server::start(&launch)?;
    ensure!(server.get("/v1/status")?.json()["partitions"] == 3);
    let moved = format!(
        "warning: the server does not read ./reprise.toml: move it to {}",
        data.join("reprise.toml").display()
    );
    server.wait_said(&moved)?;
    server.kill()?;
    let named = Launch::new(&dir.path().join("other"))
        .standing_in(&here)
        .args(&["--config", "reprise.toml"]);
    let mut server = Server::start(&named)?;
    ensure!(server.get("/v1/status")?.json()["partitions"] == 5);
    ensure!(!server.process().errors().contains("does not read ./reprise.toml"));
    // A file that is found in the data directory can't lead elsewhere.
    write(&data, "data_dir = \"elsewhere\"\n")?;
    let refused = Server::start(&launch).err().context("it started")?;
    ensure!(format!("{refused:#}").contains("--data-dir"), "{refused:#}");
    Ok(())
}

#[test]
fn each_event_is_one_line_and_frequent_traps_are_counted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let launch = Launch::new(&data).args(&[
        "--slow-call-ms",
        "20",
        "--call-time-max-ms",
        "60",
        "--checkpoint-every",
        "0",
    ]);
    let mut server = Server::start(&launch)?;
    let put = server.request("PUT", "/v1/modules/probe", &[], &probe())?;
    ensure!(put.status == 201, "{}", put.text());
    server.wait_said("deployed probe version 1, transaction ")?;
    let begun = Instant::now();
    for id in 0..200 {
        let answer = server.call("probe/trap", &json!({"id": id}).to_string())?;
        ensure!(answer.status == 500, "{}", answer.text());
    }
    let seconds = begun.elapsed().as_secs() as usize;
    server.wait_said("trap in probe.trap, transaction ")?;
    server.wait_said(" more traps in the last second")?;
    let slow = server.call("probe/spin", r#"{"id": 1}"#)?;
    ensure!(slow.status == 422, "{}", slow.text());
    server.wait_said("slow call of probe.spin, transaction ")?;
    let taken = server.request("POST", "/v1/checkpoints", &[], b"")?;
    ensure!(taken.status == 202, "{}", taken.text());
    server.wait_said("checkpoint at LSN ")?;
    let removed = server.consenting("DELETE", "/v1/modules/probe", b"")?;
    ensure!(removed.status == 204, "{}", removed.text());
    server.wait_said("removed probe")?;
    server.wait_said("control: take-checkpoint by \"anonymous\": done in ")?;
    server.wait_said("control: remove-module \"probe\" by \"anonymous\": done in ")?;
    thread::sleep(Duration::from_millis(10));
    let said = server.process().errors();
    let traps = said.lines().filter(|line| line.contains("trap in probe.trap")).count();
    // Five lines a second, and those of the two seconds that began or ended outside.
    ensure!(traps <= 5 * (seconds + 2), "{traps} lines of 200 traps in {seconds} s");
    Ok(())
}
