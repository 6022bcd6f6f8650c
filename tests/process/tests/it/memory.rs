//! Memory that is used up: by the limit of its own, and in a control group that the kernel kills from.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::{Launch, Server, skip};
use reprise_test_process::{Group, Tally, balance, check, prepare};

/// A wait that ends only by a mistake.
const LONG: Duration = Duration::from_secs(300);
const GROUP_BYTES: u64 = 220 << 20;
/// The smallest limit that a server takes: what fills it is written, read and checked several times.
const LITTLE: &str = "64MiB";
/// The sum of all accounts is one call.
const CALL_TIME_MAX: [&str; 2] = ["--call-time-max-ms", "60000"];
const MEMORY_EXHAUSTED: &str = "/problems/memory-exhausted";

/// A client opens accounts until some more are refused.
fn fill_up(server: &Server, tally: &mut Tally) -> Result<()> {
    let begun = Instant::now();
    let (mut connection, refused) = (server.connect()?, tally.refused.len());
    while tally.refused.len() == refused {
        ensure!(tally.batch(&mut connection, 5_000)?, "the server is gone");
        ensure!(begun.elapsed() < LONG, "memory does not get full");
    }
    let only: Vec<_> = tally.problems.iter().collect();
    ensure!(only == [MEMORY_EXHAUSTED], "refused for {only:?}");
    Ok(())
}

/// A single call that is refused: one partition may have room where another has none.
fn check_refusal(server: &Server, tally: &mut Tally) -> Result<()> {
    while let Some(account) = tally.refused.pop() {
        let answer = server.call("bank/open", &format!(r#"{{"account": {account}, "balance": 0}}"#))?;
        if answer.status == 200 {
            tally.acknowledged.push(account);
            continue;
        }
        tally.refused.push(account);
        let told = answer.json();
        ensure!(
            answer.status == 507 && told["type"] == MEMORY_EXHAUSTED,
            "{} {}",
            answer.status,
            answer.text()
        );
        ensure!(told["limit"] == "memory_max", "{told}");
        ensure!(balance(server, account)?.is_none(), "a refused write is there");
        return Ok(());
    }
    bail!("nothing is refused any more")
}

fn check_goes_on(server: &Server, tally: &mut Tally) -> Result<()> {
    check(server, std::slice::from_ref(tally))?;
    fill_up(server, tally)?;
    check_refusal(server, tally)?;
    check(server, std::slice::from_ref(tally))?;
    let memory = server.get("/v1/status")?.json()["memory"].clone();
    let used = memory["used_bytes"].as_u64().context("what is used")?;
    ensure!(Some(used) <= memory["max_bytes"].as_u64(), "{memory}");
    let metrics = server.get("/metrics")?;
    ensure!(
        metrics.text().contains("reprise_memory_bytes{kind=\"rows\"}"),
        "{}",
        metrics.text()
    );
    Ok(())
}

#[test]
fn a_full_memory_refuses_what_grows_and_opens_again_after_a_kill() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let limits = ["--partitions", "2", "--memory-max", LITTLE];
    let launch = Launch::new(&data).args(&limits).args(&CALL_TIME_MAX);
    let mut server = Server::start(&launch)?;
    prepare(&server, 1)?;
    let mut tally = Tally::new(1);
    fill_up(&server, &mut tally)?;
    check_goes_on(&server, &mut tally)?;
    server.kill()?;
    for sites in ["1", "2"] {
        let mut server = Server::start(&launch.clone().args(&["--sites", sites]))?;
        check_goes_on(&server, &mut tally).with_context(|| format!("opened again on {sites} sites"))?;
        server.kill()?;
    }
    let server = Server::start(&launch)?;
    check(&server, &[tally])
}

/// The server takes four fifths of the group's memory by default.
#[test]
fn a_control_group_that_gets_full_does_not_kill_the_server() -> Result<()> {
    let Some(group) = Group::new("test", GROUP_BYTES) else {
        skip("memory of a control group", "a control group can't be made here");
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data"))
        .args(&["--partitions", "2"])
        .args(&CALL_TIME_MAX)
        .in_group(&group.path);
    let mut server = Server::start(&launch)?;
    let max = server.get("/v1/status")?.json()["memory"]["max_bytes"].as_u64();
    ensure!(
        max.is_some_and(|max| max <= GROUP_BYTES / 5 * 4 && max > GROUP_BYTES / 2),
        "{max:?}"
    );
    prepare(&server, 1)?;
    let mut tally = Tally::new(1);
    fill_up(&server, &mut tally)?;
    check_goes_on(&server, &mut tally)?;
    server.kill()?;
    let server = Server::start(&launch.args(&["--sites", "2"]))?;
    check_goes_on(&server, &mut tally).context("opened again")
}
