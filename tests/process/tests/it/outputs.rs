//! The server's output: it does no harm if no reader takes it, each line has its time, and lines are in order.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::fd::OwnedFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Server};
use reprise_test_http::probe;
use reprise_test_process::{Mount, PATIENCE, fill};
use serde_json::{Value, json};

/// Tokens `one` and `two`, by their digests.
const ONE: &str = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
const TWO: &str = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";

fn write_tokens(data: &Path, digests: &[&str]) -> Result<()> {
    fs::create_dir_all(data)?;
    let tokens = digests
        .iter()
        .enumerate()
        .map(|(number, digest)| format!("[[tokens]]\nname = \"t{number}\"\nrole = \"admin\"\nsha256 = \"{digest}\"\n"));
    Ok(fs::write(data.join("reprise.toml"), tokens.collect::<String>())?)
}

fn status(server: &Server, token: &str) -> Result<u16> {
    let bearer = format!("Bearer {token}");
    let answer = server.request("GET", "/v1/status", &[("authorization", bearer.as_str())], b"")?;
    Ok(answer.status)
}

/// Starts a server, reads its configuration anew, and stops it in order, while `errors` takes nothing.
fn run_with(data: &Path, what: &str, errors: impl Into<OwnedFd>, spoil: impl FnOnce() -> Result<()>) -> Result<()> {
    write_tokens(data, &[ONE])?;
    let launch = Launch::new(data).args(&["--partitions", "2"]).errors_to(errors);
    let mut server = Server::start(&launch).with_context(|| format!("{what}: start"))?;
    // The server alone has it.
    drop(launch);
    spoil()?;
    ensure!(
        status(&server, "one")? == 200 && status(&server, "two")? == 401,
        "{what}"
    );
    for round in 0..3 {
        let tokens = if round % 2 == 0 { [ONE, TWO] } else { [ONE, ONE] };
        write_tokens(data, &tokens[..2 - round % 2])?;
        server.process().signal(libc::SIGHUP)?;
        let expected = if round % 2 == 0 { 200 } else { 401 };
        let until = Instant::now() + PATIENCE;
        while status(&server, "two")? != expected {
            ensure!(Instant::now() < until, "{what}: SIGHUP {round} is not done");
            thread::sleep(Duration::from_millis(5));
        }
    }
    let bearer = ("authorization", "Bearer one");
    let put = server.request("PUT", "/v1/modules/probe", &[bearer], &probe())?;
    ensure!(put.status == 201, "{what}: {}", put.text());
    let (ended, _) = server.terminate()?;
    ensure!(ended.code() == Some(0), "{what}: SIGTERM ended it with {ended}");
    Ok(())
}

#[test]
fn server_goes_on_and_stops_in_order_when_standard_error_takes_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = |name: &str| dir.path().join(name);
    let (reader, writer) = io::pipe()?;
    drop(reader);
    run_with(&data("closed"), "closed from the start", writer, || Ok(()))?;
    let (reader, writer) = io::pipe()?;
    run_with(&data("gone"), "reader gone", writer, move || {
        drop(reader);
        Ok(())
    })?;
    let (reader, writer) = io::pipe()?;
    let mut fills = writer.try_clone()?;
    let filling = thread::spawn(move || fills.write_all(&[b'x'; 1 << 20]));
    run_with(&data("unread"), "pipe that is full and not read", writer, || Ok(()))?;
    drop(reader);
    ensure!(filling.join().is_ok_and(|filled| filled.is_err()), "somebody read it");
    let full = File::options().write(true).open("/dev/full")?;
    run_with(&data("full"), "a full device", full, || Ok(()))?;
    let Some(mount) = Mount::tmpfs(&dir.path().join("small"), 1 << 20)? else {
        return Ok(()); // said by the mount
    };
    let file = File::create(mount.path.join("errors"))?;
    let filler = mount.path.join("filler");
    run_with(&data("disk"), "a file on a full disk", file, || fill(&filler))
}

/// The lines of standard error, each as an object.
fn objects(said: &str) -> Result<Vec<Value>> {
    let read = |line: &str| serde_json::from_str(line).with_context(|| format!("no JSON: {line}"));
    said.lines().map(read).collect()
}

#[test]
fn each_line_has_its_time_and_they_are_in_its_order_as_text_and_as_json() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for form in ["text", "json"] {
        let launch = Launch::new(&dir.path().join(form)).args(&["--log-format", form]);
        let mut server = Server::start(&launch)?;
        // The server reports its recovery a little after it is ready.
        server.wait_said("ready: ")?;
        let put = server.request("PUT", "/v1/modules/probe", &[], &probe())?;
        ensure!(put.status == 201, "{}", put.text());
        server.process().signal(libc::SIGHUP)?;
        server.wait_said("no setting differs")?;
        for id in 0..40 {
            server.call("probe/trap", &json!({ "id": id }).to_string())?;
        }
        let (ended, said) = server.terminate()?;
        ensure!(ended.success(), "{ended}: {said}");
        let lines: Vec<(String, String)> = match form {
            "json" => objects(&said)?
                .iter()
                .map(|line| (line["time"].to_string(), line["event"].to_string()))
                .collect(),
            _ => said
                .lines()
                .filter_map(|line| line.split_once(' '))
                .map(|(time, words)| (time.to_owned(), words.to_owned()))
                .collect(),
        };
        ensure!(lines.len() == said.lines().count(), "{said}");
        ensure!(
            lines.iter().all(|(time, _)| time.trim_matches('"').ends_with('Z'))
                && lines.is_sorted_by_key(|line| &line.0),
            "{said}"
        );
        let place = |part: &str| lines.iter().rposition(|(_, words)| words.contains(part));
        let trap = if form == "json" { "\"trap\"" } else { "trap in " };
        ensure!(place(trap).is_some() && place(trap) < place("stopping"), "{said}");
        ensure!(
            place("ready") < place("deployed") && place("deployed") < place(trap),
            "{said}"
        );
    }
    Ok(())
}

#[test]
fn json_lines_have_the_fields_of_what_happened() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).args(&["--log-format", "json"]);
    let server = Server::start(&launch)?;
    let put = server.request("PUT", "/v1/modules/probe", &[], &probe())?;
    ensure!(put.status == 201, "{}", put.text());
    server.call("probe/trap", r#"{"id": 1}"#)?;
    let (_, said) = server.terminate()?;
    let lines = objects(&said)?;
    let found = |event: &str| {
        lines
            .iter()
            .find(|line| line["event"] == event)
            .context("said")
            .cloned()
    };
    let configuration = found("configuration")?;
    ensure!(
        configuration["lines"].as_array().is_some_and(|lines| lines.len() > 5),
        "{said}"
    );
    let trap = found("trap")?;
    ensure!(
        trap["level"] == "warning" && trap["procedure"] == "probe.trap",
        "{trap}"
    );
    ensure!(trap["txn_id"].is_string() && trap["message"].as_str().is_some_and(|text| text.contains("trap in")));
    let deployed = found("deployed")?;
    ensure!(deployed["module"] == "probe" && deployed["version"] == 1, "{deployed}");
    // The reason that keeps it from starting is an object, too.
    let refused = Server::start(&launch.args(&["--partitions", "77"]))
        .err()
        .context("it started")?;
    ensure!(
        format!("{refused:#}").contains(r#""level":"error","event":"failed""#),
        "{refused:#}"
    );
    Ok(())
}
