//! `reprise-bench --url`: by every way to a server, the tables hold what the workload's own checks ask for, TPC-C's twelve
//! conditions among them.

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::{Launch, Server, run_bench, run_verb};
use serde_json::Value;

/// A machine may stand still for as long as a short run takes: then a longer one tells.
const SECONDS: [&str; 3] = ["1", "5", "25"];

const COMMITTED: &str = "/committed";

/// A run in which this figure of the report is not 0.
fn bench(server: &Server, args: &[&str], figure: &str) -> Result<Value> {
    let mut report = Value::Null;
    for seconds in SECONDS {
        report = bench_for(server, args, seconds)?;
        if report.pointer(figure).and_then(Value::as_f64) > Some(0.0) {
            return Ok(report);
        }
    }
    bail!("{args:?}: no {figure}: {report}")
}

fn bench_for(server: &Server, args: &[&str], seconds: &str) -> Result<Value> {
    let url = format!("http://{}", server.address);
    let further = [
        "--seconds",
        seconds,
        "--warmup",
        "0.3",
        "--output",
        "json",
        "--url",
        &url,
    ];
    let output = run_bench(&[args, &further].concat())?;
    ensure!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report: Value = serde_json::from_slice(&output.stdout).context("the report")?;
    ensure!(report["checks"] == "passed", "{args:?}: {report}");
    Ok(report)
}

fn server(partitions: &str) -> Result<(tempfile::TempDir, Server)> {
    let dir = tempfile::tempdir().context("temporary directory")?;
    let launch = Launch::new(dir.path()).args(&["--partitions", partitions]);
    let mut server = Server::start(&launch)?;
    server.wait_ready()?;
    Ok((dir, server))
}

#[test]
fn votes_come_in_alone_ahead_and_in_batches() -> Result<()> {
    let (_dir, server) = server("2")?;
    for way in [
        &["--via", "single", "--connections", "40"][..],
        &["--via", "single", "--connections", "4", "--pipeline", "16"],
        &["--via", "batch"],
    ] {
        bench(&server, &[&["voter"][..], way].concat(), COMMITTED)?;
    }
    check_advice(&server)
}

/// The costs of a vote in either form of the log are measured, whichever form the log has.
fn check_advice(server: &Server) -> Result<()> {
    let url = format!("http://{}", server.address);
    let output = run_verb(&["advise", "voter", "--output", "json", "--url", &url])?;
    let found: Value = serde_json::from_slice(&output.stdout).context("the advice")?;
    let advice = found.as_array().context("a list")?;
    let vote = advice.iter().find(|advice| advice["procedure"] == "voter.vote");
    let vote = vote.context("advice for votes")?;
    let cost = |name: &str| vote["costs"][name].as_f64();
    let is_cost = |name: &str| cost(name) > Some(0.0);
    ensure!(
        ["run_us", "redo_us", "command_us", "changes_us"]
            .into_iter()
            .all(is_cost),
        "{vote}"
    );
    ensure!(cost("command_bytes") < cost("changes_bytes"), "{vote}");
    ensure!(vote["log"] == "command" && vote["better"].is_string(), "{vote}");
    let is_read_only = |advice: &Value| advice["procedure"] == "voter.results";
    ensure!(!advice.iter().any(is_read_only), "a read leaves no record: {found}");
    let text = run_verb(&["advise", "--url", &url])?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    ensure!(
        text.contains("voter.vote") && text.contains("COST US: COMMAND"),
        "{text}"
    );
    let missing = run_verb(&["advise", "none", "--url", &url])?;
    ensure!(
        missing.status.code() == Some(1),
        "{}",
        String::from_utf8_lossy(&missing.stderr)
    );
    Ok(())
}

#[test]
fn tpcc_holds_its_conditions_over_http() -> Result<()> {
    let (_dir, server) = server("2")?;
    for way in [
        &["--via", "batch"][..],
        &["--via", "single", "--connections", "20"],
        &["--via", "single", "--connections", "4", "--pipeline", "8"],
    ] {
        let report = bench(
            &server,
            &[&["tpcc"][..], way].concat(),
            "/figures/new_orders_per_minute",
        )?;
        ensure!(report["committed"].as_u64() > Some(0), "{report}");
        let liberties = report["liberties"].to_string();
        ensure!(liberties.contains("no keying and think times"), "{report}");
    }
    Ok(())
}

/// The check sums without a run, and fails if something is missing: here, a branch without accounts.
#[test]
fn a_database_is_checked_by_itself() -> Result<()> {
    let (_dir, server) = server("1")?;
    let report = bench(&server, &["tpcb", "--scale", "1", "--via", "batch"], COMMITTED)?;
    let checked = report["checked"].to_string();
    ensure!(checked.contains("its history adds up to"), "{report}");
    let url = format!("http://{}", server.address);
    let check = || run_bench(&["tpcb", "--check-only", "--url", &url]);
    let output = check()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = server.call("tpcb/load_branch", r#"{"branch_id": 2}"#)?;
    ensure!(answer.status == 200, "{}", answer.text());
    let output = check()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    ensure!(said.contains("branch 2 has (10, 0) tellers and accounts"), "{said}");
    Ok(())
}
