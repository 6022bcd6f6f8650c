//! The audit: who did what beside calls, from the log.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, run_verb};
use reprise_test_http::probe;
use reprise_test_process::{Cluster, PATIENCE};
use serde_json::Value;

const OPS: (&str, &str) = ("authorization", "Bearer one");
const APP: (&str, &str) = ("authorization", "Bearer two");
const TOKENS: &str = "
[[tokens]]
name = \"ops\"
role = \"admin\"
sha256 = \"7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed\"
[[tokens]]
name = \"app\"
role = \"write\"
sha256 = \"3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3\"
";

fn audit(server: &Server, headers: &[(&str, &str)], query: &str) -> Result<Value> {
    let answer = server.request("GET", &format!("/v1/audit?{query}"), headers, b"")?;
    ensure!(answer.status == 200, "{}", answer.text());
    Ok(answer.json())
}

/// Each record as `PRINCIPAL OPERATION SUBJECT OUTCOME`.
fn lines(page: &Value) -> Vec<String> {
    let records = page["records"].as_array().into_iter().flatten();
    let line = |record: &Value| {
        let word = |name: &str| record[name].as_str().unwrap_or("?").to_owned();
        ["principal", "operation", "subject", "outcome"].map(word).join(" ")
    };
    records.map(line).collect()
}

#[test]
fn operations_and_refusals_are_in_the_log_and_outlive_a_kill() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    fs::create_dir_all(&data)?;
    fs::write(data.join("reprise.toml"), TOKENS)?;
    let mut server = Server::start(&Launch::new(&data))?;
    let ask = |server: &Server, who, method: &str, path: &str, body: &[u8]| {
        server.request(method, path, &[who], body).map(|answer| answer.status)
    };
    ensure!(ask(&server, OPS, "PUT", "/v1/modules/probe", &probe())? == 201);
    ensure!(ask(&server, APP, "DELETE", "/v1/modules/probe", b"")? == 403);
    ensure!(
        ask(&server, APP, "DELETE", "/v1/modules/probe", b"")? == 403,
        "recorded once"
    );
    ensure!(ask(&server, OPS, "DELETE", "/v1/tables/unheard_of", b"")? == 404);
    ensure!(ask(&server, OPS, "POST", "/v1/checkpoints", b"")? == 202);
    ensure!(ask(&server, APP, "GET", "/v1/audit", b"")? == 403);
    ensure!(ask(&server, OPS, "GET", "/v1/audit?principle=ops", b"")? == 400);
    let expected = [
        "ops deploy-module probe done",
        "app request DELETE /v1/modules/probe forbidden",
        "ops drop-table unheard_of not-found",
        "ops take-checkpoint  done",
        "app request GET /v1/audit forbidden",
    ];
    // The record of a request that is refused at the door follows its answer.
    let until = Instant::now() + PATIENCE;
    loop {
        let page = audit(&server, &[OPS], "")?;
        if lines(&page) == expected {
            break;
        }
        ensure!(Instant::now() < until, "{page}");
        thread::sleep(Duration::from_millis(10));
    }
    let of_app = lines(&audit(&server, &[OPS], "principal=app")?);
    ensure!(of_app == [expected[1], expected[4]], "{of_app:?}");
    let first = audit(&server, &[OPS], "limit=1")?;
    let next = first["next"].as_str().unwrap_or_default();
    let rest = audit(&server, &[OPS], &format!("limit=1000&from={next}"))?;
    ensure!(
        lines(&first) == expected[..1] && lines(&rest) == expected[1..],
        "{first} {rest}"
    );
    // A token that may read the log sees that something was done.
    let log = server.request("GET", "/v1/log?kind=control", &[APP], b"")?.json();
    let shown = log["records"].as_array().cloned().unwrap_or_default();
    let is_bare = |record: &Value| record.get("control").is_none() && record.get("principal").is_none();
    ensure!(shown.len() == expected.len() && shown.iter().all(is_bare), "{log}");
    server.kill()?;
    let mut server = Server::start(&Launch::new(&data))?;
    let page = audit(&server, &[OPS], "")?;
    ensure!(lines(&page) == expected, "after a restart: {page}");
    server.kill()?;
    let dumped = run_verb(&["log", "dump", &data.display().to_string()])?;
    let dumped = String::from_utf8_lossy(&dumped.stdout).into_owned();
    ensure!(
        dumped.contains("control: deploy-module \"probe\" by ops: done in "),
        "{dumped}"
    );
    Ok(())
}

#[test]
fn refusals_fill_no_log() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    fs::create_dir_all(&data)?;
    fs::write(data.join("reprise.toml"), TOKENS)?;
    let server = Server::start(&Launch::new(&data))?;
    for at in 0..100 {
        let path = format!("/v1/modules/{at}{}", "x".repeat(8_000));
        ensure!(server.request("DELETE", &path, &[APP], b"")?.status == 403);
    }
    // The record of a request that is refused at the door follows its answer.
    let until = Instant::now() + PATIENCE;
    loop {
        let found = lines(&audit(&server, &[OPS], "limit=1000")?);
        ensure!(
            found.len() < 100 && found.iter().all(|line| line.len() < 200),
            "{found:?}"
        );
        let metrics = server.request("GET", "/metrics", &[OPS], b"")?.text();
        let left_out = format!("reprise_control_refusals_left_out_total {}\n", 100 - found.len());
        if metrics.contains(&left_out) {
            break;
        }
        ensure!(Instant::now() < until, "{left_out}: {metrics}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn standby_has_the_audit_and_goes_on_with_it() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", &[])?;
    let b = cluster.standby("b", &a, &[])?;
    a.deploy("bank")?;
    let until = Instant::now() + PATIENCE;
    let deployed = "anonymous deploy-module bank done";
    while !lines(&audit(&b, &[], "")?).iter().any(|line| line == deployed) {
        ensure!(Instant::now() < until, "the standby never has it");
        thread::sleep(Duration::from_millis(10));
    }
    a.kill()?;
    let promoted = b.request("POST", "/v1/replication/promote?force=true&accept_loss=true", &[], b"")?;
    ensure!(promoted.status == 200, "{}", promoted.text());
    let last = "anonymous promote  done";
    loop {
        let found = lines(&audit(&b, &[], "")?);
        ensure!(found.iter().any(|line| line == deployed), "{found:?}");
        if found.last().is_some_and(|line| line == last) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{found:?}");
        thread::sleep(Duration::from_millis(10));
    }
}
