//! Promotions by force say what may be lost, and ask for it.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned, run_verb};
use reprise_test_process::{Cluster, Openings, PATIENCE, lsn, replication, wait_reached};
use serde_json::{Value, json};

fn promote(server: &Server, accepts_loss: bool) -> Result<(u16, Value)> {
    let path = format!("/v1/replication/promote?force=true&accept_loss={accepts_loss}");
    let answer = server.request("POST", &path, &[], b"")?;
    Ok((answer.status, answer.json()))
}

/// Promotes by force without an accepted loss, and again while the standby `other` gave no answer. A busy standby may need more than the
/// second that it has, and a refused promotion promotes nothing.
fn promote_heard(server: &Server, other: &str) -> Result<(u16, Value)> {
    let until = Instant::now() + PATIENCE;
    let silent = format!("too few standbys can be asked: {other} gave no answer");
    loop {
        let (status, told) = promote(server, false)?;
        let detail = told["detail"].as_str().unwrap_or_default();
        if !detail.contains(&silent) || Instant::now() >= until {
            return Ok((status, told));
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a server that must end by itself, and returns its output. Starts it again while the server at `url` does not answer: a busy one may
/// need more than the two seconds that it has.
fn refusal_by(launch: &Launch, url: &str) -> Result<String> {
    let until = Instant::now() + PATIENCE;
    let is_silent = |errors: &str| {
        let mut lines = errors.lines();
        lines.any(|line| line.contains(url) && line.contains("does not answer"))
    };
    loop {
        let mut process = Spawned::start(launch)?;
        while process.is_running() && !is_silent(&process.errors()) {
            ensure!(Instant::now() < until, "it goes on: {}", process.errors());
            thread::sleep(Duration::from_millis(5));
        }
        if !process.is_running() {
            let status = process.wait()?;
            let errors = process.errors();
            if !is_silent(&errors) {
                ensure!(!status.success(), "it started");
                return Ok(errors);
            }
        }
        ensure!(Instant::now() < until, "{url} never answers: {}", process.errors());
    }
}

fn missing(server: &Server, answered: &[u64]) -> Result<usize> {
    let mut count = 0;
    for account in answered {
        let answer = server.call("bank/balance", &format!(r#"{{"account": {account}}}"#))?;
        count += usize::from(answer.status != 200);
    }
    Ok(count)
}

/// Checks that the server refuses a promotion for this reason, and is promoted if the loss is accepted. The answer names the loss.
fn accept(server: &Server, why: &str) -> Result<Value> {
    let (status, refused) = promote(server, false)?;
    ensure!(status == 409 && refused["type"] == "/problems/out-of-sync", "{refused}");
    let detail = refused["detail"].as_str().unwrap_or_default();
    ensure!(detail.contains(why) && detail.contains("--accept-loss"), "{detail}");
    ensure!(refused["may_be_lost"]["from_lsn"].is_string(), "{refused}");
    let url = format!("http://{}", server.address);
    let said = run_verb(&["replication", "promote", "--force", "--url", &url])?;
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    ensure!(said.status.code() == Some(1) && errors.contains(why), "{errors}");
    let (status, promoted) = promote(server, true)?;
    ensure!(status == 200, "{promoted}");
    ensure!(
        promoted["may_be_lost"] == refused["may_be_lost"],
        "{promoted}, {refused}"
    );
    Ok(promoted)
}

/// Waits until the primary continues without this standby.
fn wait_out(primary: &Server, name: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let is_out = |told: &Value| {
        let standbys = told["standbys"].as_array().cloned().unwrap_or_default();
        standbys
            .iter()
            .any(|standby| standby["name"] == name && standby["in_sync"] == false)
    };
    while !is_out(&replication(primary, &[])?) {
        ensure!(Instant::now() < until, "it waits for {name} for ever");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A standby at 2-safe stands still while its primary continues with another one. By its last status it was in sync, and it is not by now.
#[test]
fn standby_that_was_not_heard_is_promoted_if_the_loss_is_accepted() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "2-safe"];
    let mut a = cluster.primary("a", &level)?;
    a.deploy("bank")?;
    let mut b = cluster.standby("b", &a, &level)?;
    let mut c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("2-safe", &[&b, &c]))?;
    b.process().signal(libc::SIGSTOP)?;
    wait_out(&a, "b")?;
    let load = Openings::start(&a.address, &[]);
    load.wait(50)?;
    a.kill()?;
    let answered = load.end();
    b.process().signal(libc::SIGCONT)?;
    let told = replication(&b, &[])?;
    ensure!(told["standbys"][0]["in_sync"].is_null(), "{told}");
    let (status, refused) = promote_heard(&b, "c")?;
    let detail = refused["detail"].as_str().unwrap_or_default();
    ensure!(
        status == 409 && detail.contains("another standby has more: c"),
        "{refused}"
    );
    ensure!(refused["may_be_lost"]["proven"] == true, "{refused}");
    c.kill()?;
    let promoted = accept(&b, "too few standbys can be asked: c")?;
    let lost = &promoted["may_be_lost"];
    ensure!(lost["proven"] == false && lost["class"] == "acknowledged", "{promoted}");
    ensure!(missing(&b, &answered)? > 0, "nothing was tested");
    Ok(())
}

/// The primary continues with a standby that came after this one stood still. No server is left that knows of it.
#[test]
fn standby_that_stood_still_names_answers_of_a_standby_that_it_never_heard_of() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "2-safe"];
    let mut a = cluster.primary("a", &level)?;
    a.deploy("bank")?;
    let mut b = cluster.standby("b", &a, &level)?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    b.process().signal(libc::SIGSTOP)?;
    wait_out(&a, "b")?;
    let mut c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("2-safe", &[&c]))?;
    let load = Openings::start(&a.address, &[]);
    load.wait(50)?;
    a.kill()?;
    let answered = load.end();
    c.kill()?;
    b.process().signal(libc::SIGCONT)?;
    let until = Instant::now() + PATIENCE;
    // It takes the frames that came while it stood still.
    while replication(&b, &[])?["standbys"][0]["state"] != "lost" {
        ensure!(Instant::now() < until, "it does not miss a");
        thread::sleep(Duration::from_millis(10));
    }
    let promoted = accept(&b, "for the last time")?;
    ensure!(promoted["may_be_lost"]["class"] == "acknowledged", "{promoted}");
    ensure!(missing(&b, &answered)? > 0, "nothing was tested");
    Ok(())
}

/// A standby with no record missing, right behind the end of its primary, needs no accepted loss.
#[test]
fn standby_that_was_heard_lately_loses_nothing_and_says_so() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "2-safe"];
    for _ in 0..5 {
        let mut a = cluster.primary("a", &level)?;
        a.deploy("bank")?;
        let b = cluster.standby("b", &a, &level)?;
        wait_reached(&a, &[], ("2-safe", &[&b]))?;
        let load = Openings::start(&a.address, &[]);
        load.wait(100)?;
        a.kill()?;
        let (status, promoted) = promote(&b, false)?;
        let answered = load.end();
        if status == 200 {
            ensure!(promoted["may_be_lost"].is_null(), "{promoted}");
            ensure!(missing(&b, &answered)? == 0, "silent loss");
            return Ok(());
        }
        // On a busy machine it was asked too late, and says that.
        let detail = promoted["detail"].as_str().unwrap_or_default();
        ensure!(detail.contains("for the last time"), "{promoted}");
        drop((a, b));
        for name in ["a", "b"] {
            std::fs::remove_dir_all(cluster.path(name))?;
        }
    }
    anyhow::bail!("it is never asked in time")
}

/// A restarted standby does not know what its primary did meanwhile.
#[test]
fn standby_that_was_started_again_alone_does_not_know_whether_it_is_in_sync() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "2-safe"];
    let mut a = cluster.primary("a", &level)?;
    a.deploy("bank")?;
    let mut b = cluster.standby("b", &a, &level)?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    a.kill()?;
    b.kill()?;
    let b = cluster.standby("b", &a, &level)?;
    let told = replication(&b, &[])?;
    ensure!(told["standbys"][0]["in_sync"].is_null(), "{told}");
    let promoted = accept(&b, "has not heard its primary since it was started")?;
    ensure!(promoted["may_be_lost"]["class"] == "acknowledged", "{promoted}");
    Ok(())
}

/// The primary alone knows at 1-safe which writes it acknowledged.
#[test]
fn standby_of_a_1_safe_primary_is_promoted_if_the_loss_is_accepted() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "1-safe"];
    let mut a = cluster.primary("a", &level)?;
    a.deploy("bank")?;
    let b = cluster.standby("b", &a, &level)?;
    wait_reached(&a, &[], ("1-safe", &[&b]))?;
    a.kill()?;
    let promoted = accept(&b, "at 1-safe the primary alone answers")?;
    let lost = &promoted["may_be_lost"];
    ensure!(lsn(&lost["known_to_lsn"]) >= lsn(&lost["from_lsn"]), "{promoted}");
    Ok(())
}

/// A standby at quorum asks the others. If enough of them answer and none has more, no write is lost, and the operator need not accept a
/// loss.
#[test]
fn quorum_standby_that_others_answer_is_promoted_by_force_without_a_loss() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "quorum"];
    let mut a = cluster.primary("a", &level)?;
    let b = cluster.standby("b", &a, &level)?;
    let mut c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("quorum", &[&b, &c]))?;
    a.deploy_until_known("bank")?;
    let load = Openings::start(&a.address, &[]);
    load.wait(100)?;
    a.kill()?;
    let answered = load.end();
    // Either of both may have an answer alone: b is not enough.
    c.process().signal(libc::SIGSTOP)?;
    let (status, refused) = promote(&b, false)?;
    let detail = refused["detail"].as_str().unwrap_or_default();
    ensure!(
        status == 409 && detail.contains("too few standbys can be asked: c"),
        "{refused}"
    );
    c.process().signal(libc::SIGCONT)?;
    let end = |server: &Server| -> Result<u64> { Ok(lsn(&replication(server, &[])?["durable_lsn"])) };
    let is_b_first = end(&b)? >= end(&c)?;
    let (first, second) = if is_b_first { (&b, &c) } else { (&c, &b) };
    let (first_name, second_name) = if is_b_first { ("b", "c") } else { ("c", "b") };
    if end(first)? > end(second)? {
        let (status, refused) = promote_heard(second, first_name)?;
        let detail = refused["detail"].as_str().unwrap_or_default();
        ensure!(
            status == 409 && detail.contains("another standby has more"),
            "{refused}"
        );
        ensure!(refused["may_be_lost"]["proven"] == true, "{refused}");
    }
    let (status, promoted) = promote_heard(first, second_name)?;
    ensure!(status == 200 && promoted["may_be_lost"].is_null(), "{promoted}");
    ensure!(missing(first, &answered)? == 0, "silent loss");
    // The other one gave a promise to it, and follows it by itself.
    wait_reached(first, &[], ("quorum", &[second]))?;
    Ok(())
}

/// A standby that promised a later epoch to another server does not know whether that one led and answered.
#[test]
fn standby_that_promised_a_later_epoch_is_promoted_if_the_loss_is_accepted() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "2-safe"];
    let mut a = cluster.primary("a", &level)?;
    a.deploy("bank")?;
    let b = cluster.standby("b", &a, &level)?;
    wait_reached(&a, &[], ("2-safe", &[&b]))?;
    let answer = b
        .request(
            "POST",
            "/v1/replication/promise",
            &[],
            br#"{"epoch": 9, "epoch_writer": 7, "name": "x"}"#,
        )?
        .json();
    let promise = json!([{"epoch": 9, "epoch_writer": 7, "name": "x"}]);
    ensure!(answer["promises"] == promise, "{answer}");
    a.kill()?;
    let promoted = accept(&b, "a standby promised a later epoch to x")?;
    ensure!(promoted["may_be_lost"]["class"] == "acknowledged", "{promoted}");
    ensure!(promoted["epoch"] == 12, "it asked for 10 and 11 before: {promoted}");
    Ok(())
}

/// The lost primary is started as before, by a service manager or by mistake, while another server leads.
#[test]
fn primary_asks_its_standbys_at_a_start_and_does_not_lead_beside_a_promoted_one() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "quorum"];
    let mut a = cluster.primary("a", &level)?;
    let mut b = cluster.standby("b", &a, &level)?;
    let mut c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("quorum", &[&b, &c]))?;
    // A start while none leads asks, and goes on.
    a.kill()?;
    let again = cluster.launch("a", &level).listen(&a.address);
    let mut a = Server::start(&again)?;
    let url = |server: &Server| format!("http://{}", server.address);
    wait_reached(&a, &[], ("quorum", &[&b, &c]))?;
    a.kill()?;
    let (status, promoted) = promote_heard(&b, "c")?;
    ensure!(status == 200, "{promoted}");
    // It is 3, or a later one if c gave no answer at first.
    let epoch = promoted["epoch"].as_u64().unwrap_or_default();
    ensure!(epoch >= 3, "{promoted}");
    let told = refusal_by(&again, &url(&b))?;
    let says = format!("b at {} leads in epoch {epoch}", url(&b));
    ensure!(told.contains(&says) && told.contains("--standby-of"), "{told}");
    // A standby of the new primary says so in its place, and names it.
    let address = c.address.clone();
    c.kill()?;
    let c = Server::start(&cluster.standby_launch("c", &b, &level).listen(&address))?;
    wait_reached(&b, &[], ("quorum", &[&c]))?;
    b.deploy("bank")?;
    b.process().signal(libc::SIGSTOP)?;
    let told = refusal_by(&again, &url(&c));
    b.process().signal(libc::SIGCONT)?;
    let told = told?;
    ensure!(
        told.contains("whether b at") && told.contains("it does not answer"),
        "{told}"
    );
    ensure!(
        told.contains("c at") && told.contains(&format!("--standby-of {}", url(&b))),
        "{told}"
    );
    // The operator decides. The next start asks nobody.
    let dir = cluster.path("a");
    let lead = run_verb(&["node", "lead", &dir.display().to_string(), "--accept-loss"])?;
    ensure!(lead.status.success(), "{lead:?}");
    let a = Server::start(&again)?;
    ensure!(replication(&a, &[])?["epoch"] == epoch + 1, "{}", replication(&a, &[])?);
    Ok(())
}

/// The address of a lost standby may be another server's by now.
#[test]
fn primary_starts_when_an_address_has_another_database_or_none() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "1-safe"];
    let mut a = cluster.primary("a", &level)?;
    let mut b = cluster.standby("b", &a, &level)?;
    wait_reached(&a, &[], ("1-safe", &[&b]))?;
    a.kill()?;
    let address = b.address.clone();
    b.kill()?;
    let other = cluster.launch("other", &["--partitions", "2"]).listen(&address);
    let mut other = Server::start(&other)?;
    // Its epoch is later than that of `a`.
    other.kill()?;
    let mut other = Server::start(&cluster.launch("other", &[]).listen(&address))?;
    ensure!(replication(&other, &[])?["epoch"] == 2, "it began again");
    let mut a = Server::start(&cluster.launch("a", &level))?;
    a.kill()?;
    other.kill()?;
    Server::start(&cluster.launch("a", &level))?;
    Ok(())
}

/// At quorum a primary without standbys answers no write.
#[test]
fn standby_that_takes_no_standbys_is_not_promoted_at_quorum() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "quorum"];
    let mut a = cluster.primary("a", &level)?;
    let url = format!("http://{}", a.address);
    let lone = Launch::new(&cluster.path("b")).args(&["--name", "b", "--standby-of", &url]);
    let b = Server::start(&lone)?;
    wait_reached(&a, &[], ("quorum", &[&b]))?;
    for path in [
        "/v1/replication/promote",
        "/v1/replication/promote?force=true&accept_loss=true",
    ] {
        let answer = b.request("POST", path, &[], b"")?;
        let detail = answer.json()["detail"].as_str().unwrap_or_default().to_owned();
        ensure!(
            answer.status == 503 && detail.contains("--ship-listen"),
            "{} {detail}",
            answer.status
        );
    }
    ensure!(replication(&a, &[])?["role"] == "primary", "it stepped down");
    a.kill()?;
    Ok(())
}

fn wait_other(server: &Server, expected: Option<&str>) -> Result<Value> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(server, &[])?["other_primary"].clone();
        if told["url"].as_str() == expected {
            return Ok(told);
        }
        ensure!(Instant::now() < until, "not {expected:?}: {told}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// An operator promotes a standby, and its primary stood still and goes on.
#[test]
fn two_primaries_of_one_database_say_so_until_one_of_them_follows() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "1-safe"];
    let mut a = cluster.primary("a", &level)?;
    let b = cluster.standby("b", &a, &level)?;
    wait_reached(&a, &[], ("1-safe", &[&b]))?;
    let metric = |server: &Server| -> Result<bool> {
        let text = server.get("/metrics")?.text();
        Ok(text.contains("\nreprise_other_primary 1\n"))
    };
    wait_other(&a, None)?;
    ensure!(!metric(&a)?, "b follows");
    a.process().signal(libc::SIGSTOP)?;
    let (status, promoted) = promote(&b, true)?;
    ensure!(status == 200, "{promoted}");
    a.process().signal(libc::SIGCONT)?;
    let url = |server: &Server| format!("http://{}", server.address);
    let told = wait_other(&a, Some(&url(&b)))?;
    ensure!(told["name"] == "b" && told["epoch"] == 2, "{told}");
    wait_other(&b, Some(&url(&a)))?;
    ensure!(metric(&a)? && metric(&b)?, "there are two");
    let shown = run_verb(&["replication", "status", "--url", &url(&a)])?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    ensure!(shown.contains(&format!("b at {}, in epoch 2", url(&b))), "{shown}");
    let until = Instant::now() + PATIENCE;
    while !a
        .process()
        .errors()
        .contains("error: another server leads this database")
    {
        ensure!(Instant::now() < until, "it has no line");
        thread::sleep(Duration::from_millis(20));
    }
    let address = a.address.clone();
    a.terminate()?;
    let _a = Server::start(&cluster.standby_launch("a", &b, &level).listen(&address))?;
    wait_other(&b, None)?;
    ensure!(!metric(&b)?, "a follows");
    Ok(())
}

/// After an accepted loss both primaries lead. The one that was deposed would refuse a standby of the other one for good.
#[test]
fn standby_waits_for_the_primary_that_it_promised_and_follows_while_the_old_one_leads_too() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "1-safe"];
    let a = cluster.primary("a", &level)?;
    a.deploy("bank")?;
    let mut b = cluster.standby("b", &a, &level)?;
    let c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("1-safe", &[&b, &c]))?;
    let (status, promoted) = promote(&b, true)?;
    ensure!(status == 200, "{promoted}");
    wait_reached(&b, &[], ("1-safe", &[&c]))?;
    let answer = b.call("bank/open", r#"{"account": 1, "balance": 7}"#)?;
    ensure!(answer.status == 200, "{}", answer.text());
    wait_shown(&c, 1)?;
    let address = b.address.clone();
    b.kill()?;
    let until = Instant::now() + PATIENCE;
    while !replication(&c, &[])?["standbys"][0]["error"]
        .as_str()
        .is_some_and(|error| error.contains("ticket"))
    {
        ensure!(Instant::now() < until, "c does not miss b: {}", replication(&c, &[])?);
        thread::sleep(Duration::from_millis(20));
    }
    ensure!(replication(&a, &[])?["role"] == "primary", "a leads no more");
    // Several attempts of c.
    thread::sleep(Duration::from_secs(3));
    wait_shown(&c, 1)?;
    let b = Server::start(&cluster.launch("b", &level).listen(&address))?;
    wait_reached(&b, &[], ("1-safe", &[&c]))?;
    Ok(())
}

/// The operator keeps the old primary, and starts it until its epoch is later than the promised one. The other one still leads.
#[test]
fn standby_follows_the_primary_that_the_operator_names_once_its_epoch_is_later_than_the_promised_one() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "1-safe"];
    let mut a = cluster.primary("a", &level)?;
    let address = a.address.clone();
    let b = cluster.standby("b", &a, &level)?;
    wait_reached(&a, &[], ("1-safe", &[&b]))?;
    let (status, promoted) = promote(&b, true)?;
    ensure!(status == 200 && promoted["epoch"] == 2, "{promoted}");
    // This record is not on b, which leads in an epoch before the promised one: b would refuse c for good.
    a.deploy("bank")?;
    let c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("1-safe", &[&c]))?;
    let asked = json!({"epoch": 3, "name": "b", "url": format!("http://{}", b.address)}).to_string();
    let answer = c.request("POST", "/v1/replication/promise", &[], asked.as_bytes())?;
    ensure!(answer.status == 200, "{}", answer.text());
    let dir = cluster.path("a").display().to_string();
    for _ in 0..4 {
        a.kill()?;
        let lead = run_verb(&["node", "lead", &dir, "--accept-loss"])?;
        ensure!(lead.status.success(), "{lead:?}");
        a = Server::start(&cluster.launch("a", &level).listen(&address))?;
        if replication(&a, &[])?["epoch"].as_u64() > Some(3) {
            break;
        }
    }
    wait_reached(&a, &[], ("1-safe", &[&c]))?;
    ensure!(replication(&b, &[])?["role"] == "primary", "b leads no more");
    Ok(())
}

/// Waits until a standby shows the row of an account.
fn wait_shown(standby: &Server, account: u64) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = standby.call("bank/balance", &format!(r#"{{"account": {account}}}"#))?;
        if answer.status == 200 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{}", answer.text());
        thread::sleep(Duration::from_millis(20));
    }
}

/// Each of the two was stopped when the other one was promoted, so neither heard of the other. They draw the same count.
#[test]
fn two_standbys_that_are_promoted_by_force_say_so_and_differ_in_the_writer_of_their_epoch() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "1-safe"];
    let mut a = cluster.primary("a", &level)?;
    let mut standbys = [cluster.standby("b", &a, &level)?, cluster.standby("c", &a, &level)?];
    wait_reached(&a, &[], ("1-safe", &[&standbys[0], &standbys[1]]))?;
    a.kill()?;
    for (own, other) in [(0, 1), (1, 0)] {
        standbys[other].process().signal(libc::SIGSTOP)?;
        let (status, promoted) = promote(&standbys[own], true)?;
        ensure!(status == 200 && promoted["epoch"] == 2, "{promoted}");
        standbys[own].process().signal(libc::SIGSTOP)?;
        standbys[other].process().signal(libc::SIGCONT)?;
    }
    standbys[1].process().signal(libc::SIGCONT)?;
    let [b, c] = &standbys;
    for (own, other) in [(b, c), (c, b)] {
        wait_other(own, Some(&format!("http://{}", other.address)))?;
    }
    let writer = |server: &Server| anyhow::Ok(server.get("/v1/status")?.json()["epoch_writer"].clone());
    ensure!(writer(b)? != writer(c)?, "{}", writer(b)?);
    Ok(())
}
