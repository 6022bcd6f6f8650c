//! A primary and its standbys as processes: joining, following, reading, losing each other, taking over.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned, run_verb};
use reprise_test_process::{Cluster, PATIENCE, check_by_promtool, lsn, promote, wait_reached};
use serde_json::Value;

fn replication(server: &Server) -> Result<Value> {
    Ok(server.get("/v1/replication")?.json())
}

/// Opens accounts from `first` on, each with 10.
fn open_accounts(server: &Server, first: u32, count: u32) -> Result<()> {
    for account in first..first + count {
        let answer = server.call("bank/open", &format!(r#"{{"account": {account}, "balance": 10}}"#))?;
        ensure!(answer.status == 200, "{}", answer.text());
    }
    Ok(())
}

/// Waits until readers of `standby` see all that is durable on `primary`, and it knows that it is in sync.
fn wait_caught_up(primary: &Server, standby: &Server) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let durable = lsn(&replication(primary)?["durable_lsn"]);
    loop {
        let told = replication(standby)?;
        let own = &told["standbys"][0];
        if lsn(&own["view_lsn"]) >= durable && own["in_sync"] == true {
            return Ok(());
        }
        ensure!(Instant::now() < until, "it does not come to {durable}: {told}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the primary says so of the standby.
fn wait_state(primary: &Server, name: &str, state: &str) -> Result<Value> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(primary)?;
        let list = told["standbys"].as_array().cloned().unwrap_or_default();
        if let Some(found) = list.iter().find(|standby| standby["name"] == name)
            && found["state"] == state
        {
            return Ok(found.clone());
        }
        ensure!(Instant::now() < until, "{name} does not become {state}: {told}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn total(server: &Server) -> Result<(u64, u64)> {
    let answer = server.call("bank/total", "{}")?;
    ensure!(answer.status == 200, "{}", answer.text());
    let result = &answer.json()["result"];
    Ok((lsn(&result["accounts"]), lsn(&result["sum"])))
}

#[test]
fn standbys_follow_serve_reads_and_one_takes_over_when_the_primary_is_killed() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut primary = cluster.primary("a", &["--log", "command"])?;
    primary.deploy("bank")?;
    open_accounts(&primary, 0, 50)?;
    // Other numbers of sites, and one that begins while calls are made.
    let b = cluster.standby("b", &primary, &["--sites", "2"])?;
    open_accounts(&primary, 50, 50)?;
    let c = cluster.standby("c", &primary, &["--sites", "1"])?;
    open_accounts(&primary, 100, 50)?;
    for standby in [&b, &c] {
        wait_caught_up(&primary, standby)?;
        ensure!(total(standby)? == (150, 1500), "{:?}", total(standby)?);
        let told = replication(standby)?;
        ensure!(
            told["role"] == "standby" && told["standbys"][0]["state"] == "streaming",
            "{told}"
        );
        ensure!(standby.get("/v1/status")?.json()["role"] == "standby", "status");
    }
    check_freshness(&primary, &["b", "c"])?;
    check_freshness(&b, &["b"])?;
    let told = wait_state(&primary, "b", "streaming")?;
    ensure!(told["error"].is_null() && told["transport"] == "tcp", "{told}");
    // Reads say how old they are; writes say where to go, and leave nothing.
    let read = b.call("bank/balance", r#"{"account": 7}"#)?;
    ensure!(
        read.status == 200 && read.header("reprise-view-lsn").is_some(),
        "{}",
        read.text()
    );
    ensure!(read.header("reprise-lag-ms").is_some(), "no lag is told");
    let rows = b.get("/v1/tables/bank.accounts/rows?limit=3")?;
    ensure!(
        rows.status == 200 && rows.header("reprise-view-lsn").is_some(),
        "{}",
        rows.text()
    );
    let write = b.call("bank/open", r#"{"account": 900, "balance": 1}"#)?;
    let url = format!("http://{}", primary.address);
    ensure!(
        write.status == 421 && write.json()["primary"] == url.as_str(),
        "{}",
        write.text()
    );
    // The command line follows it.
    let standby_url = format!("http://{}", b.address);
    let args = [
        "call",
        "bank.open",
        r#"{"account": 150, "balance": 10}"#,
        "--url",
        &standby_url,
    ];
    let called = run_verb(&args)?;
    ensure!(called.status.success(), "{called:?}");
    let lsn_of_call = lsn(&serde_json::from_slice::<Value>(
        &run_verb(&[
            "call",
            "bank.open",
            r#"{"account": 151, "balance": 10}"#,
            "--url",
            &standby_url,
            "--output",
            "json",
        ])?
        .stdout,
    )?["lsn"]);
    let seen = b.request(
        "POST",
        "/v1/call/bank/total",
        &[
            ("reprise-min-lsn", &lsn_of_call.to_string()),
            ("reprise-max-wait-ms", "20000"),
        ],
        b"{}",
    )?;
    ensure!(
        lsn(&seen.json()["result"]["accounts"]) == 152,
        "its own write: {}",
        seen.text()
    );
    check_fresh_pages(&b, lsn_of_call)?;
    // The primary is gone. Its shipped records are there, and the standby continues.
    wait_caught_up(&primary, &b)?;
    primary.kill()?;
    check_stale_pages(&b)?;
    let unasked = b.request("POST", "/v1/replication/promote", &[], b"")?;
    let told = unasked.json();
    ensure!(
        unasked.status == 409 && told["type"] == "/problems/primary-not-stopped",
        "{told}"
    );
    let promoted = promote(&b)?;
    ensure!(promoted["epoch"] == 2, "{promoted}");
    ensure!(total(&b)? == (152, 1520), "{:?}", total(&b)?);
    open_accounts(&b, 152, 10)?;
    ensure!(
        b.request("POST", "/v1/replication/promote", &[], b"")?.status == 409,
        "twice"
    );
    ensure!(replication(&b)?["role"] == "primary", "its role");
    // A new standby follows the new primary, and a restart keeps the role.
    let d = cluster.standby("d", &b, &[])?;
    wait_caught_up(&b, &d)?;
    ensure!(total(&d)? == (162, 1620), "{:?}", total(&d)?);
    let (status, errors) = b.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    let b = Server::start(&Launch::new(&cluster.path("b")))?;
    ensure!(
        replication(&b)?["epoch"] == 3 && total(&b)? == (162, 1620),
        "after its restart"
    );
    Ok(())
}

/// Its history has seconds, each with all of its figures, and the last ones are fresh.
const PAGES: [&str; 2] = [
    "/v1/tables/bank.accounts/rows?limit=1000",
    "/v1/tables/bank.accounts/groups?by=0",
];

/// Checks that pages show the rows that their client saw before, and say up to which LSN they show all. They must be refused if that can't
/// be had.
fn check_fresh_pages(standby: &Server, seen: u64) -> Result<()> {
    for path in PAGES {
        let own = [
            ("reprise-min-lsn", &*seen.to_string()),
            ("reprise-max-wait-ms", "20000"),
        ];
        let page = standby.request("GET", path, &own, b"")?;
        let told = page.json();
        let shows = match &told["rows"] {
            Value::Array(rows) => rows.len() as u64,
            _ => lsn(&told["groups"][0]["count"]),
        };
        ensure!(page.status == 200 && shows == 152, "its own write: {}", page.text());
        let header = |name| page.header(name).and_then(|text| text.parse::<f64>().ok());
        ensure!(header("reprise-view-lsn") > Some(seen as f64), "the view of {path}");
        ensure!(header("reprise-lag-ms").is_some(), "no lag is told");
        for (bad, status, what) in [
            (
                [("reprise-min-lsn", "900000000"), ("reprise-max-wait-ms", "50")],
                503,
                "too-stale",
            ),
            (
                [("reprise-min-lsn", "soon"), ("reprise-max-wait-ms", "50")],
                400,
                "malformed-request",
            ),
            (
                [("reprise-max-lag-ms", "-1"), ("reprise-max-wait-ms", "50")],
                400,
                "malformed-request",
            ),
        ] {
            let page = standby.request("GET", path, &bad, b"")?;
            ensure!(
                page.status == status && page.text().contains(what),
                "{bad:?}: {}",
                page.text()
            );
        }
    }
    Ok(())
}

/// Checks that the lag is unknown once the primary is not heard any more.
fn check_stale_pages(standby: &Server) -> Result<()> {
    for path in PAGES {
        let (stale, until) = ([("reprise-max-lag-ms", "1")], Instant::now() + PATIENCE);
        loop {
            let page = standby.request("GET", path, &stale, b"")?;
            if page.status == 503 && page.text().contains("too-stale") {
                break;
            }
            ensure!(page.status == 200, "{path}: {}", page.text());
            ensure!(Instant::now() < until, "{path} is told to be fresh");
        }
    }
    Ok(())
}

fn check_freshness(server: &Server, names: &[&str]) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    for bad in ["step=0", "step=3601", "step=x", "from=5&to=4", "since=1"] {
        let refused = server.get(&format!("/v1/replication/freshness?{bad}"))?;
        ensure!(refused.status == 400, "{bad}: {}", refused.text());
    }
    loop {
        let told = server.get("/v1/replication/freshness?step=2")?.json();
        let list = told["standbys"].as_array().cloned().unwrap_or_default();
        let known: Vec<_> = list.iter().filter_map(|standby| standby["name"].as_str()).collect();
        ensure!(known == names && told["step_s"] == 2, "{told}");
        let is_fresh = |standby: &Value| {
            let last = standby["steps"].as_array().and_then(|steps| steps.last());
            last.is_some_and(|step| step["freshness_median"] == 1.0 && step["samples"].as_u64() > Some(10))
        };
        if list.iter().all(is_fresh) {
            check_metrics(server, names)?;
            return check_events(server, names);
        }
        ensure!(Instant::now() < until, "it does not get fresh: {told}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Checks that the stream of events tells the positions of these servers.
fn check_events(server: &Server, names: &[&str]) -> Result<()> {
    let mut stream = TcpStream::connect(&server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let (mut seen, mut piece) = (String::new(), [0; 4096]);
    let told: Value = loop {
        let length = stream.read(&mut piece)?;
        ensure!(length > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..length]));
        let event = seen.split_once("event: replication\ndata: ").map(|(_, event)| event);
        if let Some((data, _)) = event.and_then(|event| event.split_once('\n')) {
            break serde_json::from_str(data)?;
        }
    };
    let list = told["standbys"].as_array().cloned().unwrap_or_default();
    let known: Vec<_> = list.iter().filter_map(|standby| standby["name"].as_str()).collect();
    ensure!(
        known == names && list.iter().all(|one| one["freshness"].is_number()),
        "{told}"
    );
    Ok(())
}

/// `/metrics` has a line for each of them.
fn check_metrics(server: &Server, names: &[&str]) -> Result<()> {
    let metrics = server.get("/metrics")?.text();
    check_by_promtool(&metrics)?;
    for name in names {
        for metric in ["freshness", "lag_seconds", "lag_bytes", "view_lsn", "streaming"] {
            let line = format!("reprise_standby_{metric}{{standby=\"{name}\"}} ");
            ensure!(metrics.contains(&line), "{line}: {metrics}");
        }
    }
    check_missing(server, 0)
}

/// Checks how many standbys the server misses, as `/metrics` has it.
fn check_missing(server: &Server, count: usize) -> Result<()> {
    let metrics = server.get("/metrics")?.text();
    let line = format!("reprise_standbys_missing {count}");
    ensure!(metrics.lines().any(|own| own == line), "{line}: {metrics}");
    Ok(())
}

#[test]
fn a_standby_is_forgotten_once_it_is_lost() -> Result<()> {
    let cluster = Cluster::new()?;
    let primary = cluster.primary("a", &[])?;
    let standby = cluster.standby("b", &primary, &[])?;
    wait_state(&primary, "b", "streaming")?;
    let forget = || primary.request("DELETE", "/v1/replication/standbys/b", &[], b"");
    ensure!(forget()?.status == 404, "{}", forget()?.text());
    let (status, errors) = standby.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    wait_state(&primary, "b", "lost")?;
    check_missing(&primary, 1)?;
    ensure!(forget()?.status == 204 && forget()?.status == 404, "forgotten once");
    let told = replication(&primary)?;
    ensure!(told["standbys"] == serde_json::json!([]), "{told}");
    check_missing(&primary, 0)
}

/// Has a directory lead, by an operator's word.
fn lead(dir: &Path) -> Result<()> {
    let led = run_verb(&["node", "lead", &dir.display().to_string(), "--accept-loss"])?;
    ensure!(led.status.success(), "{}", String::from_utf8_lossy(&led.stderr));
    Ok(())
}

/// The new primary first sends the records that its former standby lacks, even if none follow.
#[test]
fn former_primary_that_begins_anew_has_no_standby_in_sync() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "2-safe"];
    let mut a = cluster.primary("a", &level)?;
    a.deploy("bank")?;
    open_accounts(&a, 0, 20)?;
    let mut b = cluster.standby("b", &a, &level)?;
    let mut c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("2-safe", &[&b, &c]))?;
    // A standby that is away gives no promise, so it follows the old primary again.
    c.kill()?;
    promote(&b)?;
    let forgotten = b.request("DELETE", "/v1/replication/standbys/c", &[], b"")?;
    ensure!(forgotten.status == 204, "{}", forgotten.text());
    let mut c = cluster.standby("c", &a, &level)?;
    wait_reached(&a, &[], ("2-safe", &[&c]))?;
    let document = cluster.path("a/node.json");
    let kept = || -> Result<Vec<Value>> {
        let document: Value = serde_json::from_str(&std::fs::read_to_string(&document)?)?;
        Ok(document["members"].as_array().cloned().unwrap_or_default())
    };
    let in_sync = |kept: &[Value]| kept.iter().filter(|standby| standby["in_sync"] == true).count();
    // The document may still count b, until the primary has saved that b is gone.
    let until = Instant::now() + PATIENCE;
    while in_sync(&kept()?) != 1 {
        ensure!(Instant::now() < until, "{:?}", kept()?);
        thread::sleep(Duration::from_millis(10));
    }
    c.kill()?;
    a.kill()?;
    // This is what c lacks.
    open_accounts(&b, 5_000, 1)?;
    for folder in ["a/log", "a/checkpoints"] {
        std::fs::remove_dir_all(cluster.path(folder))?;
    }
    let mut a = cluster.standby("a", &b, &level)?;
    wait_caught_up(&b, &a)?;
    b.kill()?;
    let told = replication(&a)?;
    a.kill()?;
    ensure!(in_sync(&kept()?) == 0, "{:?}", kept()?);
    let called_out = told["out_of_sync"].as_array().cloned().unwrap_or_default();
    ensure!(
        called_out.iter().all(|one| one["name"] != "c"),
        "b knows nothing of it: {told}"
    );
    let refused = cluster.primary("a", &level).err().map(|error| error.to_string());
    ensure!(
        refused
            .as_ref()
            .is_some_and(|error| error.contains("reprise node lead")),
        "{refused:?}"
    );
    lead(&cluster.path("a"))?;
    let mut a = cluster.primary("a", &level)?;
    a.wait_ready()?;
    ensure!(a.call("bank/balance", r#"{"account": 5000}"#)?.status == 200);
    ensure!(replication(&a)?["reached"] == "1-safe", "{}", replication(&a)?);
    Ok(())
}

#[test]
fn new_standby_says_at_once_that_its_primary_is_away_and_a_hang_up_does_not_end_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("s")).args(&["--standby-of", "http://127.0.0.1:1", "--name", "s"]);
    let mut process = Spawned::start(&launch)?;
    let until = Instant::now() + PATIENCE;
    while !process
        .errors()
        .contains("warning: waiting for the primary at http://127.0.0.1:1: ")
    {
        ensure!(Instant::now() < until && process.is_running(), "{}", process.errors());
        thread::sleep(Duration::from_millis(5));
    }
    process.signal(libc::SIGHUP)?;
    thread::sleep(Duration::from_millis(300));
    ensure!(process.is_running(), "{}", process.errors());
    Ok(())
}

#[test]
fn server_that_cannot_follow_is_refused_in_one_line() -> Result<()> {
    let cluster = Cluster::new()?;
    let primary = cluster.primary("a", &[])?;
    let plain = Server::start(&Launch::new(&cluster.path("plain")).args(&["--partitions", "2"]))?;
    let refusal = |launch: &Launch| -> Result<String> {
        let mut process = Spawned::start(launch)?;
        let status = process.wait()?;
        ensure!(!status.success(), "it started");
        Ok(process.errors())
    };
    let expect = |launch: &Launch, part: &str| -> Result<()> {
        let said = refusal(launch)?;
        ensure!(said.contains(part), "{part:?} is not in: {said}");
        Ok(())
    };
    // A primary that takes none; no URL; settings that do not go together.
    expect(&cluster.standby_launch("b", &plain, &[]), "--ship-listen")?;
    let launch = |args: &[&str]| Launch::new(&cluster.path("c")).args(args);
    expect(&launch(&["--standby-of", "db.example"]), "http://HOST:PORT")?;
    expect(&launch(&["--standby-token", "x"]), "needs standby-of or ship-listen")?;
    expect(&launch(&["--ship-listen", "nowhere"]), "ADDR:PORT")?;
    expect(&launch(&["--name", "a b"]), "letters, digits")?;
    let both = ["--read-only", "--standby-of", "http://127.0.0.1:1"];
    expect(&launch(&both), "a read-only server changes no table")?;
    let both = ["--read-only", "--ship-listen", "127.0.0.1:0"];
    expect(&launch(&both), "a read-only server changes no table")?;
    expect(
        &launch(&["--log", "none", "--ship-listen", "127.0.0.1:0"]),
        "standbys need a log",
    )?;
    // A server or machine without RDMA refuses it, and takes no TCP in its place.
    expect(&launch(&["--transport", "pigeon"]), "tcp or rdma")?;
    expect(&launch(&["--rdma-device", "mlx5_0"]), "needs transport rdma")?;
    let rdma = ["--transport", "rdma", "--rdma-device", "none"];
    let ships = ["--ship-listen", "127.0.0.1:0"];
    let follows = ["--standby-of", "http://127.0.0.1:1"];
    for side in [ships, follows] {
        expect(&launch(&[&rdma[..], &side[..]].concat()), "transport rdma: ")?;
    }
    for refused in ["b", "c"] {
        let left = cluster.path(refused);
        ensure!(!left.join("log").exists(), "{refused} was begun");
    }
    // Another database's directory; one that went its own way.
    let (status, _) = plain.terminate()?;
    ensure!(status.code() == Some(0), "{status}");
    refused_later(
        &cluster.standby_launch("plain", &primary, &["--partitions", "2"]),
        "another database's",
    )?;
    let mut standby = cluster.standby("d", &primary, &[])?;
    primary.deploy("bank")?;
    wait_caught_up(&primary, &standby)?;
    standby.kill()?;
    // A standby's directory leads by an operator's word alone.
    let own = Launch::new(&cluster.path("d"));
    expect(&own, "reprise node lead DIR --accept-loss")?;
    lead(&cluster.path("d"))?;
    let own = Server::start(&own)?;
    open_accounts(&own, 0, 3)?;
    drop(own);
    refused_later(&cluster.standby_launch("d", &primary, &[]), "deposed")?;
    Ok(())
}

/// Two machines have one host name. The second one gets an error, and does not disconnect the first.
#[test]
fn second_server_of_a_name_is_turned_away_while_the_first_one_is_there() -> Result<()> {
    let cluster = Cluster::new()?;
    let level = ["--safety", "2-safe"];
    let primary = cluster.primary("a", &level)?;
    primary.deploy("bank")?;
    let mut first = cluster.standby("b", &primary, &level)?;
    wait_reached(&primary, &[], ("2-safe", &[&first]))?;
    let url = format!("http://{}", primary.address);
    let other = ["--name", "b", "--standby-of", &*url];
    let second = Launch::new(&cluster.path("b2")).args(&other);
    let mut refused = Spawned::start(&second)?;
    let until = Instant::now() + PATIENCE;
    while !refused.errors().contains("has this name") {
        ensure!(Instant::now() < until && refused.is_running(), "{}", refused.errors());
        thread::sleep(Duration::from_millis(20));
    }
    open_accounts(&primary, 0, 20)?;
    let told = replication(&primary)?;
    let standbys = told["standbys"].as_array().cloned().unwrap_or_default();
    ensure!(standbys.len() == 1 && standbys[0]["in_sync"] == true, "{told}");
    refused.kill()?;
    // The first one comes back as before. A server that takes its place does so once the name is free.
    first.kill()?;
    let mut first = cluster.standby("b", &primary, &level)?;
    wait_reached(&primary, &[], ("2-safe", &[&first]))?;
    first.kill()?;
    std::fs::remove_dir_all(cluster.path("b"))?;
    let anew = cluster.standby("b", &primary, &level)?;
    wait_caught_up(&primary, &anew)?;
    Ok(())
}

/// A server that gave its place away is refused as the primary, until an operator accepts a loss by a command.
#[test]
fn directory_that_gave_its_place_away_leads_by_an_operators_word_alone() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut a = cluster.primary("a", &[])?;
    a.deploy("bank")?;
    let mut b = cluster.standby("b", &a, &[])?;
    wait_caught_up(&a, &b)?;
    let answer = b.request("POST", "/v1/replication/promote", &[], b"")?;
    ensure!(answer.status == 200, "{}", answer.text());
    let epoch = answer.json()["epoch"].as_u64().unwrap_or_default();
    a.kill()?;
    b.kill()?;
    let dir = cluster.path("a").display().to_string();
    let show = || -> Result<Value> {
        let shown = run_verb(&["node", "show", &dir, "--output", "json"])?;
        Ok(serde_json::from_slice(&shown.stdout)?)
    };
    let told = show()?;
    ensure!(told["as_primary"] == "is refused: it gave its place to b", "{told}");
    let mut refused = Spawned::start(&cluster.launch("a", &[]))?;
    ensure!(!refused.wait()?.success(), "it started");
    ensure!(refused.errors().contains("stepped down for b"), "{}", refused.errors());
    let refused = run_verb(&["node", "lead", &dir])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(
        refused.status.code() == Some(1) && said.contains("--accept-loss"),
        "{said}"
    );
    ensure!(show()? == told, "nothing has changed");
    let leads = run_verb(&["node", "lead", &dir, "--accept-loss"])?;
    ensure!(leads.status.success(), "{leads:?}");
    let a = Server::start(&cluster.launch("a", &[]))?;
    let info = replication(&a)?;
    ensure!(
        info["role"] == "primary" && info["epoch"].as_u64() > Some(epoch),
        "{info}, behind epoch {epoch}"
    );
    open_accounts(&a, 0, 3)?;
    // No command changes a directory on which a server runs.
    let locked = run_verb(&["node", "lead", &dir, "--accept-loss"])?;
    let said = String::from_utf8_lossy(&locked.stderr).into_owned();
    ensure!(
        locked.status.code() == Some(1) && said.contains("does a server run on it"),
        "{said}"
    );
    Ok(())
}

/// The server finds out once it has opened its own files. Then it serves nothing, and says why.
fn refused_later(launch: &Launch, part: &str) -> Result<()> {
    let server = Spawned::start(launch)?.listen()?;
    let until = Instant::now() + PATIENCE;
    loop {
        let told = server.get("/v1/replication")?.text();
        if told.contains("\"lost\"") && told.contains(part) {
            break;
        }
        ensure!(Instant::now() < until, "{part:?} is not told: {told}");
        thread::sleep(Duration::from_millis(20));
    }
    let ready = server.get("/readyz")?;
    ensure!(
        ready.status == 503 && ready.text().contains("shows nothing"),
        "{}",
        ready.text()
    );
    let read = server.call("bank/total", "{}")?;
    ensure!(matches!(read.status, 404 | 503), "{}", read.text());
    Ok(())
}
