//! Safety levels between processes: what was answered outlives the primary, and what can't be had is refused.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Server, run_verb};
use reprise_test_process::{
    Cluster, Openings, PATIENCE, durable_lsn, is_awaited, open_until_known, promote, replication_status, switch_over,
};
use serde_json::Value;

fn replication(server: &Server) -> Result<Value> {
    reprise_test_process::replication(server, &[])
}

fn wait_reached(server: &Server, level: &str, in_sync: &[&Server]) -> Result<()> {
    reprise_test_process::wait_reached(server, &[], (level, in_sync))
}

/// Waits until this many standbys get each group when it is sealed.
fn wait_streaming(server: &Server, count: usize) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(server)?;
        let standbys = told["standbys"].as_array().cloned().unwrap_or_default();
        if standbys
            .iter()
            .filter(|standby| standby["state"] == "streaming")
            .count()
            == count
        {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{told}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn open(server: &Server, account: u64, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
    let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
    let answer = server.request("POST", "/v1/call/bank/open", headers, body.as_bytes())?;
    Ok((answer.status, answer.json()))
}

/// Opens an account for a client that waits for 300 ms. Asks again if the call did not begin by then, because the server then kept nothing of
/// it.
fn open_hurried(server: &Server, account: u64, headers: &[(&str, &str)]) -> Result<(u16, Value)> {
    let (begun, headers) = (Instant::now(), [headers, &[("reprise-timeout-ms", "300")]].concat());
    loop {
        let sent = Instant::now();
        let (status, told) = open(server, account, &headers)?;
        // The call would have waited for 5 s without the client's limit.
        ensure!(sent.elapsed() < Duration::from_millis(4_800), "{:?}", sent.elapsed());
        if status != 504 || begun.elapsed() > PATIENCE {
            return Ok((status, told));
        }
    }
}

/// Under a key, again while standbys are missing.
fn is_opened(server: &Server, account: u64) -> Result<bool> {
    Ok(open_until_known(server, account, &[])?.status == 200)
}

fn has_account(server: &Server, account: u64) -> Result<bool> {
    let answer = server.call("bank/balance", &format!(r#"{{"account": {account}}}"#))?;
    Ok(answer.status == 200)
}

fn signal(server: &mut Server, signal: i32) -> Result<()> {
    server.process().signal(signal)
}

/// Returns the sum of all accounts once the view has the primary's durable records.
fn fresh_total(server: &Server, primary: &Server) -> Result<Value> {
    let least = (durable_lsn(primary, &[])? - 1).to_string();
    let fresh = [("reprise-min-lsn", &*least), ("reprise-max-wait-ms", "20000")];
    let read = server.request("POST", "/v1/call/bank/total", &fresh, b"{}")?;
    Ok(read.json()["result"].clone())
}

/// A primary with the bank, and a standby in sync, both at this level.
fn pair(level: &str) -> Result<(Cluster, Server, Server)> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", level])?;
    a.deploy("bank")?;
    let b = cluster.standby("b", &a, &["--safety", level])?;
    wait_reached(&a, level, &[&b])?;
    Ok((cluster, a, b))
}

/// A primary with the bank, and two standbys in sync, all at this level.
fn trio(level: &str) -> Result<(Cluster, Server, Server, Server)> {
    let (cluster, a, b) = pair(level)?;
    let c = cluster.standby("c", &a, &["--safety", level])?;
    wait_reached(&a, level, &[&b, &c])?;
    Ok((cluster, a, b, c))
}

/// The module may come with the records for which the read waits.
#[test]
fn a_read_that_waits_for_a_deployment_finds_its_module() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", "1-safe"])?;
    let mut b = cluster.standby("b", &a, &["--safety", "1-safe"])?;
    wait_streaming(&a, 1)?;
    signal(&mut b, libc::SIGSTOP)?;
    a.deploy("bank")?;
    let fresh = [
        ("reprise-min-lsn", &*(durable_lsn(&a, &[])? - 1).to_string()),
        ("reprise-max-wait-ms", "20000"),
    ];
    // One of them at least is there before the deployment.
    for (path, body) in [
        ("/v1/call/bank/total", "{}"),
        (
            "/v1/batch",
            "{\"module\":\"bank\",\"procedure\":\"total\",\"args\":{}}\n",
        ),
    ] {
        signal(&mut b, libc::SIGSTOP)?;
        a.deploy("bank")?;
        let mut connection = b.connect()?;
        connection.send("POST", path, &fresh, body.as_bytes())?;
        signal(&mut b, libc::SIGCONT)?;
        let answer = connection.receive().map_err(|cut| cut.error)?;
        ensure!(
            answer.status == 200 && !answer.text().contains("problem"),
            "{path}: {}",
            answer.text()
        );
    }
    Ok(())
}

/// A primary at 2-safe answers with one of two standbys. The other one, which lacks the write, is promoted by force. The write that is cut
/// off the old primary was answered, and is marked so.
#[test]
fn writes_acknowledged_by_one_standby_are_marked_if_another_is_promoted() -> Result<()> {
    let (cluster, mut a, b, mut c) = trio("2-safe")?;
    ensure!(is_opened(&a, 1)?, "with both");
    c.kill()?;
    let asked = open_until_known(&a, 2, &[("reprise-safety", "2-safe")])?;
    ensure!(asked.status == 200, "with one: {}", asked.text());
    a.kill()?;
    let c = cluster.standby("c", &a, &["--safety", "2-safe"])?;
    let path = "/v1/replication/promote?force=true&accept_loss=true";
    let promoted = c.request("POST", path, &[], b"")?;
    ensure!(promoted.status == 200, "{}", promoted.text());
    ensure!(!has_account(&c, 2)?, "it lacks what was answered last");
    let a = cluster.standby("a", &c, &["--safety", "2-safe"])?;
    wait_streaming(&c, 1)?;
    let told = replication(&a)?;
    let cuts = told["cuts"].as_array().cloned().unwrap_or_default();
    ensure!(cuts.len() == 1 && cuts[0]["acknowledged"] == true, "{told}");
    drop(b);
    Ok(())
}

/// Killed under load; its standby takes over by force; it comes back, and what only it has is kept aside.
#[test]
fn a_killed_primary_comes_back_as_a_standby_and_keeps_what_only_it_has_aside() -> Result<()> {
    let (cluster, mut a, mut b) = pair("1-safe")?;
    let load = Openings::start(&a.address, &[]);
    load.wait(100)?;
    // The standby gets nothing more, and the primary answers on.
    signal(&mut b, libc::SIGSTOP)?;
    load.wait(100)?;
    a.kill()?;
    let answered = load.end();
    signal(&mut b, libc::SIGCONT)?;
    promote(&b)?;
    ensure!(open(&b, 7_000_000, &[])?.0 == 200, "it takes writes");
    let a = cluster.standby("a", &b, &["--safety", "1-safe"])?;
    wait_streaming(&b, 1)?;
    // An acknowledged write is on the new primary, or kept aside and marked.
    let told = replication(&a)?;
    let cut = &told["cuts"][0];
    ensure!(told["cuts"].as_array().is_some_and(|cuts| cuts.len() == 1), "{told}");
    ensure!(cut["acknowledged"] == true && cut["epoch"] == 1, "{cut}");
    let name = cut["name"].as_str().unwrap_or_default();
    let dir = cluster.path("a/cuts").join(name);
    let dump = run_verb(&["log", "dump", &dir.display().to_string(), "--output", "json"])?;
    ensure!(dump.status.success(), "{dump:?}");
    let kept = String::from_utf8_lossy(&dump.stdout).into_owned();
    let mut lost = 0;
    for account in &answered {
        if !has_account(&b, *account)? {
            lost += 1;
            ensure!(kept.contains(&format!("{account}")), "{account} is nowhere");
        }
    }
    ensure!(
        lost > 0,
        "of {} answers none was lost: nothing was tested",
        answered.len()
    );
    let shown = replication_status(&a)?;
    ensure!(shown.contains(name) && shown.contains("some of it, perhaps"), "{shown}");
    // Both show the same.
    let (own, theirs) = (fresh_total(&a, &b)?, fresh_total(&b, &b)?);
    ensure!(own == theirs && own["accounts"].is_string(), "{own}");
    Ok(())
}

/// A copy of a standby's files has no status of the sync set. The standby itself knows which standby is not in sync.
#[test]
fn one_out_of_sync_takes_over_where_the_loss_is_accepted_and_the_others_know_of_it() -> Result<()> {
    let (cluster, mut a, b, mut c) = trio("2-safe")?;
    c.kill()?;
    if open(&a, 1, &[("idempotency-key", "open-1")])?.0 != 200 {
        // b was late: it comes back, and gets the status.
        ensure!(is_opened(&a, 1)?, "it goes on");
        wait_reached(&a, "2-safe", &[&b])?;
        let begun = Instant::now();
        while replication(&b)?["out_of_sync"][0]["name"] != "c" && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
    }
    // Answered: that c is out of sync is on b's disk by now.
    let told = replication(&b)?;
    ensure!(told["out_of_sync"][0]["name"] == "c", "{told}");
    a.kill()?;
    let shown = replication_status(&b)?;
    ensure!(
        shown.contains("out of sync") && shown.contains("c, from LSN"),
        "{shown}"
    );
    ensure!(b.terminate()?.0.code() == Some(0), "it ends");
    let path = cluster.path("b/node.json");
    let mut document: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    document.as_object_mut().and_then(|document| document.remove("status"));
    std::fs::write(&path, document.to_string())?;
    let b = cluster.standby("b", &a, &["--safety", "2-safe"])?;
    ensure!(
        replication(&b)?["standbys"][0]["in_sync"].is_null(),
        "it was told nothing"
    );
    let url = format!("http://{}", b.address);
    let refused = run_verb(&["replication", "promote", "--force", "--url", &url])?;
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1) && told.contains("out-of-sync") && told.contains("--accept-loss"),
        "{told}"
    );
    let promoted = run_verb(&["replication", "promote", "--force", "--accept-loss", "--url", &url])?;
    let told = String::from_utf8_lossy(&promoted.stdout).into_owned();
    ensure!(
        promoted.status.success() && told.contains("may be lost"),
        "{promoted:?}"
    );
    ensure!(has_account(&b, 1)? && open(&b, 2, &[])?.0 == 200, "it takes writes");
    Ok(())
}

/// Under load, with the command line: the old primary gives its place away, and comes back as a standby of the new one.
#[test]
fn a_switch_over_under_load_loses_nothing() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", "1-safe"])?;
    a.deploy("bank")?;
    let b = cluster.standby("b", &a, &["--safety", "1-safe"])?;
    let c = cluster.standby("c", &a, &["--safety", "1-safe"])?;
    wait_streaming(&a, 2)?;
    let load = Openings::start(&a.address, &[]);
    load.wait(100)?;
    let url = format!("http://{}", b.address);
    let promoted = switch_over(&url)?;
    let said = String::from_utf8_lossy(&promoted.stdout).into_owned();
    ensure!(
        promoted.status.success() && said.contains("nothing is lost"),
        "{promoted:?}"
    );
    thread::sleep(Duration::from_millis(200));
    let answered = load.end();
    ensure!(answered.len() > 20, "{} answers", answered.len());
    for account in &answered {
        ensure!(
            has_account(&b, *account)?,
            "{account} was answered, of {}",
            answered.len()
        );
    }
    let (status, told) = open(&a, 7_000_000, &[])?;
    ensure!(status == 421 && told["primary"] == url.as_str(), "{status}: {told}");
    ensure!(replication(&a)?["role"] == "standby", "the old one");
    // A fresh read is not to be had there.
    let stale = [("reprise-max-lag-ms", "1"), ("reprise-max-wait-ms", "100")];
    let read = a.request("POST", "/v1/call/bank/total", &stale, b"{}")?;
    ensure!(read.status == 503, "{}", read.text());
    // The old primary is no primary when it is started by mistake. It follows the new one as its standby.
    let (status, errors) = a.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    let mistake = Server::start(&cluster.launch("a", &[]));
    let told = mistake.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(told.contains("stepped down for b"), "{told}");
    let a = cluster.standby("a", &b, &["--safety", "1-safe"])?;
    ensure!(open(&b, 7_000_000, &[])?.0 == 200, "it takes writes");
    // The other standby goes to the new primary by itself.
    wait_streaming(&b, 2)?;
    for server in [&a, &c] {
        let count = (answered.len() + 1).to_string();
        let read = fresh_total(server, &b)?;
        ensure!(read["accounts"].as_str() == Some(&*count), "{read}");
    }
    Ok(())
}

#[test]
fn a_2_safe_primary_whose_standby_is_lost_leaves_open_what_waited_and_goes_on_alone() -> Result<()> {
    let (cluster, a, mut b) = pair("2-safe")?;
    signal(&mut b, libc::SIGSTOP)?;
    let (mut first, mut second) = (a.connect()?, a.connect()?);
    let (waiting, read) = thread::scope(|scope| -> Result<_> {
        let call = scope.spawn(move || {
            let key = [("idempotency-key", "k1")];
            first.request("POST", "/v1/call/bank/open", &key, br#"{"account": 1, "balance": 1}"#)
        });
        thread::sleep(Duration::from_millis(300));
        ensure!(!call.is_finished(), "it waits for the standby");
        // No reader sees it either.
        let read = scope.spawn(move || second.request("POST", "/v1/call/bank/balance", &[], br#"{"account": 1}"#));
        thread::sleep(Duration::from_millis(200));
        b.kill()?;
        let answers = (call.join().expect("no panic"), read.join().expect("no panic"));
        Ok((answers.0.map_err(|cut| cut.error)?, answers.1.map_err(|cut| cut.error)?))
    })?;
    let (status, told) = (waiting.status, waiting.json());
    ensure!(status == 503 && told["type"] == "/problems/outcome-unknown", "{told}");
    ensure!(
        told["reached"] == "1-safe" && told["txn_id"].is_string() && told["lsn"].is_string(),
        "{told}"
    );
    ensure!(read.status == 422, "a read sees what is acknowledged: {}", read.text());
    // Alone, and it says so. What was left open is answered under its key.
    wait_reached(&a, "1-safe", &[])?;
    ensure!(open(&a, 2, &[])?.0 == 200, "it goes on alone");
    ensure!(open(&a, 1, &[("idempotency-key", "k1")])?.0 == 200, "the key tells");
    let shown = replication_status(&a)?;
    ensure!(shown.contains("2-safe (now 1-safe: standbys are missing)"), "{shown}");
    // The standby comes back, and the primary waits for it again.
    let b = cluster.standby("b", &a, &["--safety", "2-safe"])?;
    wait_reached(&a, "2-safe", &[&b])?;
    ensure!(is_opened(&a, 3)?, "with it");
    Ok(())
}

/// A lost standby is released only once that is on disk.
#[test]
fn two_safe_primary_that_cannot_record_a_lost_standby_does_not_continue_alone() -> Result<()> {
    let (cluster, a, mut b) = pair("2-safe")?;
    // A directory has the place of the file that is to be written.
    let in_the_way = cluster.path("a/node.json.tmp");
    let begun = Instant::now();
    // The file itself may lie there for a moment.
    while let Err(error) = std::fs::create_dir_all(in_the_way.join("x")) {
        ensure!(begun.elapsed() < PATIENCE, "{error}");
    }
    b.kill()?;
    for account in 1..3 {
        let (status, told) = open(&a, account, &[])?;
        let slug = told["type"].as_str().unwrap_or_default();
        ensure!(status == 503 && slug.ends_with("outcome-unknown"), "{status}: {told}");
    }
    std::fs::remove_dir_all(&in_the_way)?;
    // The outcome of a call that waits at that moment is left open, too.
    let begun = Instant::now();
    for account in 3.. {
        let (status, told) = open(&a, account, &[])?;
        if status == 200 {
            break;
        }
        ensure!(begun.elapsed() < PATIENCE, "{status}: {told}");
    }
    Ok(())
}

#[test]
fn a_client_that_waits_no_longer_is_told_that_its_write_is_open() -> Result<()> {
    let (_cluster, a, mut b) = pair("2-safe")?;
    signal(&mut b, libc::SIGSTOP)?;
    let (status, told) = open_hurried(&a, 1, &[])?;
    ensure!(status == 503 && told["type"] == "/problems/outcome-unknown", "{told}");
    signal(&mut b, libc::SIGCONT)?;
    wait_reached(&a, "2-safe", &[&b])?;
    ensure!(has_account(&a, 1)?, "it was kept");
    Ok(())
}

#[test]
fn a_very_safe_primary_writes_nothing_without_its_standbys() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", "very-safe"])?;
    let refused = a.request(
        "PUT",
        "/v1/modules/bank",
        &[],
        &reprise_test_crash::procedure_wasm("bank")?,
    )?;
    ensure!(
        refused.status == 503 && refused.json()["type"] == "/problems/standby-unavailable",
        "{}",
        refused.text()
    );
    let mut b = cluster.standby("b", &a, &["--safety", "very-safe"])?;
    wait_reached(&a, "very-safe", &[&b])?;
    a.deploy_until_known("bank")?;
    ensure!(is_opened(&a, 1)?, "with its standby");
    b.kill()?;
    wait_reached(&a, "1-safe", &[])?;
    let (status, told) = open(&a, 2, &[])?;
    ensure!(
        status == 503 && told["type"] == "/problems/standby-unavailable",
        "{told}"
    );
    ensure!(
        told["detail"].as_str().is_some_and(|text| text.contains("very-safe")),
        "{told}"
    );
    ensure!(
        has_account(&a, 1)? && !has_account(&a, 2)?,
        "reads go on, and nothing was left"
    );
    let b = cluster.standby("b", &a, &["--safety", "very-safe"])?;
    wait_reached(&a, "very-safe", &[&b])?;
    ensure!(is_opened(&a, 2)?, "it is back");
    Ok(())
}

#[test]
fn levels_that_can_not_be_had_are_refused_at_the_start() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let at = dir.path().to_string_lossy().into_owned();
    for (args, status, part) in [
        (
            &["--safety", "3-safe", "--ship-listen", "127.0.0.1:0"][..],
            2,
            "1-safe, 2-safe, quorum or very-safe",
        ),
        (&["--safety", "local-sync"][..], 2, "is not a safety level"),
        (&["--safety", "2-safe"][..], 2, "ship-listen"),
        (&["--safety", "1-safe", "--commit", "async"][..], 1, "--commit sync"),
    ] {
        let own = ["serve", "--data-dir", &at, "--listen", "127.0.0.1:0"];
        let ended = run_verb(&[&own[..], args].concat())?;
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        ensure!(
            ended.status.code() == Some(status) && said.contains(part),
            "{args:?}: {ended:?}"
        );
    }
    Ok(())
}

#[test]
fn a_call_asks_for_more_than_its_server_gives_to_all() -> Result<()> {
    let cluster = Cluster::new()?;
    let a = cluster.primary("a", &["--safety", "1-safe"])?;
    a.deploy("bank")?;
    let asked = |account, level| open(&a, account, &[("reprise-safety", level)]);
    // The server judges the level before the call runs, so a refused call leaves nothing.
    for level in ["2-safe", "quorum", "very-safe"] {
        let (status, told) = asked(1, level)?;
        ensure!(
            status == 503 && told["type"] == "/problems/standby-unavailable",
            "{level}: {told}"
        );
    }
    let (status, told) = asked(1, "3-safe")?;
    ensure!(status == 400 && told["type"] == "/problems/malformed-request", "{told}");
    ensure!(!has_account(&a, 1)?, "nothing was left");
    ensure!(
        asked(1, "1-safe")?.0 == 200 && asked(2, "local-sync")?.0 == 200,
        "what all get"
    );
    let mut b = cluster.standby("b", &a, &["--safety", "1-safe"])?;
    let c = cluster.standby("c", &a, &["--safety", "1-safe"])?;
    wait_reached(&a, "1-safe", &[&b, &c])?;
    for (account, level) in [(10, "2-safe"), (11, "quorum"), (12, "very-safe")] {
        let answer = open_until_known(&a, account, &[("reprise-safety", level)])?;
        ensure!(
            answer.status == 200 && answer.header("reprise-safety") == Some(level),
            "{}",
            answer.text()
        );
    }
    // One of two standbys does not answer: a majority has it, not all.
    signal(&mut b, libc::SIGSTOP)?;
    ensure!(open(&a, 21, &[])?.0 == 200, "who asks for nothing waits for nobody");
    let (status, told) = open_hurried(&a, 22, &[("reprise-safety", "very-safe")])?;
    ensure!(status == 503 && told["type"] == "/problems/outcome-unknown", "{told}");
    ensure!(told["reached"] == "1-safe" && told["lsn"].is_string(), "{told}");
    let lines = r#"{"module":"bank","procedure":"open","args":{"account":23,"balance":1}}"#;
    let line = [
        ("reprise-safety", "very-safe"),
        ("reprise-timeout-ms", "300"),
        ("content-type", "application/x-ndjson"),
    ];
    let begun = Instant::now();
    let batch = loop {
        let batch = a.request("POST", "/v1/batch", &line, lines.as_bytes())?;
        // The call did not begin within its 300 ms.
        if !batch.text().contains("deadline-exceeded") || begun.elapsed() > PATIENCE {
            break batch;
        }
    };
    ensure!(batch.text().contains("outcome-unknown"), "{}", batch.text());
    // Reads are seen all the same: the server answers at 1-safe.
    ensure!(has_account(&a, 22)? && has_account(&a, 23)?, "they were kept");
    // The standby is in sync until the primary lets it go, and it may be promoted. So the primary waits for it. It stands still anew, so
    // that the primary does not let it go before.
    signal(&mut b, libc::SIGCONT)?;
    wait_reached(&a, "1-safe", &[&b, &c])?;
    signal(&mut b, libc::SIGSTOP)?;
    let (status, told) = open_hurried(&a, 35, &[("reprise-safety", "quorum")])?;
    ensure!(status == 503 && told["type"] == "/problems/outcome-unknown", "{told}");
    let of_most = open_until_known(&a, 20, &[("reprise-safety", "quorum")])?;
    ensure!(of_most.status == 200, "two of three: {}", of_most.text());
    wait_reached(&a, "1-safe", &[&c])?;
    b.kill()?;
    let (status, told) = asked(24, "very-safe")?;
    ensure!(
        status == 503 && told["type"] == "/problems/standby-unavailable",
        "{told}"
    );
    let url = format!("http://{}", a.address);
    let begun = Instant::now();
    let called = loop {
        let args = r#"{"account": 25, "balance": 1}"#;
        let words = ["call", "bank.open", args, "--safety", "quorum", "--output", "json"];
        let called = run_verb(&[&words[..], &["--idempotency-key", "open-25", "--url", &url]].concat())?;
        if called.status.success() || begun.elapsed() > PATIENCE {
            break called;
        }
        thread::sleep(Duration::from_millis(50));
    };
    let said = String::from_utf8_lossy(&called.stdout).into_owned();
    ensure!(
        called.status.success() && said.contains(r#""safety": "quorum""#),
        "{called:?}"
    );
    // A standby says where to go, whatever is asked for.
    ensure!(open(&c, 26, &[("reprise-safety", "2-safe")])?.0 == 421, "not here");
    Ok(())
}

/// Opens an account while c, which it needs, stands still, and kills c: it is left open. False: c was let go before that was seen.
fn is_left_open(a: &Server, c: &mut Server, account: u64) -> Result<bool> {
    let before = durable_lsn(a, &[])?;
    let mut connection = a.connect()?;
    signal(c, libc::SIGSTOP)?;
    let waiting = thread::spawn(move || {
        let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
        connection.request("POST", "/v1/call/bank/open", &[], body.as_bytes())
    });
    let begun = Instant::now();
    while durable_lsn(a, &[])? == before && !waiting.is_finished() {
        ensure!(begun.elapsed() < PATIENCE, "nothing is written");
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(300));
    let is_waiting = !waiting.is_finished();
    let was_awaited = is_awaited(a, "c")?;
    c.kill()?;
    let answer = waiting.join().expect("no panic").map_err(|cut| cut.error)?;
    if was_awaited {
        ensure!(is_waiting, "one of three");
        ensure!(
            answer.status == 503 && answer.json()["type"] == "/problems/outcome-unknown",
            "{}",
            answer.text()
        );
    }
    Ok(was_awaited)
}

/// A deployment while c, which it needs, stands still. False: c was let go before, and nothing was run.
fn deployment_is_left_open(a: &Server, c: &mut Server, wasm: &[u8]) -> Result<bool> {
    let timed = Instant::now();
    signal(c, libc::SIGSTOP)?;
    let deployed = a.request("PUT", "/v1/modules/voter", &[], wasm)?;
    if deployed.json()["type"] == "/problems/standby-unavailable" {
        return Ok(false);
    }
    ensure!(
        deployed.status == 503 && deployed.json()["type"] == "/problems/outcome-unknown",
        "a deployment waits as calls do: {}",
        deployed.text()
    );
    ensure!(timed.elapsed() > Duration::from_secs(1), "{:?}", timed.elapsed());
    Ok(true)
}

#[test]
fn a_quorum_of_three_goes_on_with_one_standby_and_not_with_none() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", &["--safety", "quorum"])?;
    let mut b = cluster.standby("b", &a, &["--safety", "quorum"])?;
    wait_reached(&a, "quorum", &[&b])?;
    a.deploy_until_known("bank")?;
    let mut c = cluster.standby("c", &a, &["--safety", "quorum"])?;
    wait_reached(&a, "quorum", &[&b, &c])?;
    b.kill()?;
    wait_reached(&a, "quorum", &[&c])?;
    ensure!(is_opened(&a, 1)?, "two of three");
    // The module is compiled already, so the deployment fits into the time in which c may stand still.
    let wasm = reprise_test_crash::procedure_wasm("voter")?;
    let planned = a.request("PUT", "/v1/modules/voter?dry_run=true", &[], &wasm)?;
    ensure!(planned.status == 200, "{}", planned.text());
    let begun = Instant::now();
    while !deployment_is_left_open(&a, &mut c, &wasm)? {
        ensure!(begun.elapsed() < PATIENCE, "c is always let go before");
        signal(&mut c, libc::SIGCONT)?;
        wait_reached(&a, "quorum", &[&c])?;
    }
    c.kill()?;
    let mut account = 10;
    loop {
        c = cluster.standby("c", &a, &["--safety", "quorum"])?;
        wait_reached(&a, "quorum", &[&c])?;
        if is_left_open(&a, &mut c, account)? {
            break;
        }
        ensure!(begun.elapsed() < 2 * PATIENCE, "c is always let go before");
        account += 1;
    }
    wait_reached(&a, "1-safe", &[])?;
    ensure!(open(&a, 3, &[])?.0 == 503, "no majority");
    ensure!(has_account(&a, 1)?, "reads go on");
    // After a kill, it knows at its start which standbys count. A write that no other server had is confirmed once a standby has it.
    a.kill()?;
    let a = cluster.primary("a", &["--safety", "quorum"])?;
    ensure!(open(&a, 3, &[])?.0 == 503, "no majority yet");
    let c = cluster.standby("c", &a, &["--safety", "quorum"])?;
    wait_reached(&a, "quorum", &[&c])?;
    ensure!(is_opened(&a, 3)? && has_account(&a, account)?, "two of three");
    Ok(())
}

/// Returns the standby's report about itself.
fn own(standby: &Server) -> Result<Value> {
    Ok(standby.get("/v1/replication")?.json()["standbys"][0].clone())
}

fn wait_has_account(server: &Server, account: u64) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !has_account(server, account)? {
        ensure!(Instant::now() < until, "it stays hidden");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Opens an account while c stands still: b does not show it. False: c was let go before that was seen, or did not come to itself in time.
fn is_hidden(a: &Server, b: &Server, c: &mut Server, account: u64) -> Result<bool> {
    let mut connection = a.connect()?;
    signal(c, libc::SIGSTOP)?;
    thread::scope(|scope| -> Result<bool> {
        let call = scope.spawn(move || {
            let body = format!(r#"{{"account": {account}, "balance": 1}}"#);
            connection.request("POST", "/v1/call/bank/open", &[], body.as_bytes())
        });
        // The record is on this standby's disk. The standby waits with the primary for the other one.
        let begun = Instant::now();
        let lsn = |told: &Value, name: &str| told[name].as_str().and_then(|text| text.parse::<u64>().ok());
        while !call.is_finished() {
            let told = own(b)?;
            if lsn(&told, "persisted_lsn") > lsn(&told, "view_lsn") {
                break;
            }
            ensure!(begun.elapsed() < PATIENCE, "it does not get there: {told}");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(Duration::from_millis(200));
        let is_unseen = !call.is_finished() && !has_account(b, account)?;
        ensure!(has_account(b, 1)?, "what was answered is to be seen");
        let was_awaited = is_awaited(a, "c")?;
        signal(c, libc::SIGCONT)?;
        let answer = call.join().expect("no panic").map_err(|cut| cut.error)?;
        ensure!(is_unseen || !was_awaited, "it is to be seen already");
        ensure!(matches!(answer.status, 200 | 503), "{}", answer.text());
        Ok(was_awaited && answer.status == 200)
    })
}

#[test]
fn a_standby_shows_nothing_that_another_one_may_still_lack() -> Result<()> {
    let (_cluster, a, b, mut c) = trio("2-safe")?;
    ensure!(is_opened(&a, 1)?, "all have it");
    wait_has_account(&b, 1)?;
    let (mut account, begun) = (2, Instant::now());
    while !is_hidden(&a, &b, &mut c, account)? {
        ensure!(begun.elapsed() < PATIENCE, "c is always let go before");
        wait_reached(&a, "2-safe", &[&b, &c])?;
        account += 1;
    }
    wait_has_account(&b, account)
}
