//! `--ship`: standbys as processes that get each transaction in another form than the log of their primary has. Killed, slow, full; the tables of
//! all are the same in the end.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Launch, Rng, Server, Spawned, free_address, procedure_wasm};
use reprise_test_process::{
    Load, Mount, PATIENCE, Tally, check, fill, forge_stand_in, json_of, lsn, prepare, replication, replication_status,
    take_checkpoint,
};
use serde_json::{Value, json};

const CLIENTS: i64 = 2;
/// A form of the log, and the form of its shipped records.
const FORMS: [[&str; 2]; 6] = [
    ["command", "changes"],
    ["physiological", "command"],
    ["auto", "changes"],
    ["auto", "command"],
    ["both", "as-logged"],
    ["command", "as-logged"],
];

/// A primary at addresses that stay, and its standbys.
struct Cluster {
    dir: tempfile::TempDir,
    listen: String,
    ship: String,
}

impl Cluster {
    fn new() -> Result<Self> {
        Ok(Self {
            dir: tempfile::tempdir()?,
            listen: free_address()?,
            ship: free_address()?,
        })
    }

    fn primary(&self, [log, ship]: [&str; 2], args: &[&str]) -> Launch {
        let own = ["--name", "a", "--ship-listen", &self.ship, "--partitions", "3"];
        let forms = ["--log", log, "--ship", ship, "--compare-every", "1"];
        Launch::new(&self.dir.path().join("a"))
            .listen(&self.listen)
            .args(&own)
            .args(&forms)
            .args(args)
    }

    fn standby(&self, name: &str, args: &[&str]) -> Launch {
        let url = format!("http://{}", self.listen);
        let own = ["--name", name, "--standby-of", &url];
        Launch::new(&self.dir.path().join(name)).args(&own).args(args)
    }

    /// On a region in an ordinary file.
    fn in_nvram(&self, name: &str) -> Launch {
        let region = self.dir.path().join(format!("{name}.region"));
        let region = region.to_string_lossy().into_owned();
        let device = ["--device", "nvram", "--nvram", &region, "--nvram-size", "2MiB"];
        self.standby(name, &device).args(&["--nvram-assume-persistent", "true"])
    }
}

fn seen(primary: &Server, name: &str) -> Result<Value> {
    let told = replication(primary, &[])?;
    let standbys = told["standbys"].as_array().cloned().unwrap_or_default();
    let found = standbys.into_iter().find(|standby| standby["name"] == name);
    Ok(found.unwrap_or_default())
}

/// Waits until all tables were compared behind the primary's durable end, and nothing differs.
fn wait_equal(primary: &Server, name: &str) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let durable = lsn(&replication(primary, &[])?["durable_lsn"]);
    loop {
        let told = seen(primary, name)?;
        let compared = &told["compared"];
        ensure!(compared["equal"] != false, "{told}");
        if lsn(&compared["lsn"]) >= durable && told["state"] == "streaming" {
            return Ok(());
        }
        ensure!(
            Instant::now() < until,
            "{name} is not compared behind {durable}: {told}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// A deployment that changes rows and tables, in the middle of the load.
fn deploy_contacts(primary: &Server, version: u64) -> Result<()> {
    let wasm = procedure_wasm(["contacts1", "contacts2"][version as usize])?;
    let answer = primary.consenting("PUT", "/v1/modules/contacts", &wasm)?;
    ensure!(matches!(answer.status, 200 | 201), "{}", answer.text());
    for id in (0..50).filter(|_| version == 0) {
        let args = json!({"id": id, "name": format!("Ada {id}"), "emails": "ada@a.org,ada@b.org"});
        let added = primary.call("contacts/add", &args.to_string())?;
        ensure!(added.status == 200, "{}", added.text());
    }
    Ok(())
}

/// The primary and its standbys, one in files and one in NVRAM, are killed in turn under load. They come back with another log, other forms
/// and other numbers of sites. No acknowledged write is lost, and the tables are the same.
fn kill_in_turn(seed: u64) -> Result<()> {
    let (cluster, mut rng) = (Cluster::new()?, Rng::new(seed));
    let mut primary = Server::start(&cluster.primary(FORMS[seed as usize % FORMS.len()], &[]))?;
    prepare(&primary, CLIENTS)?;
    let mut standbys = [
        Server::start(&cluster.standby("b", &[]))?,
        Server::start(&cluster.in_nvram("c"))?,
    ];
    let mut tallies: Vec<_> = (1..=CLIENTS).map(Tally::new).collect();
    for round in 0..5 {
        let load = Load::resume(&primary, tallies, 50);
        thread::sleep(Duration::from_millis(100 + rng.below(300)));
        match round {
            0 | 2 => deploy_contacts(&primary, round / 2)?,
            1 => take_checkpoint(&standbys[0])?,
            _ => {}
        }
        let sites = (1 + rng.below(3)).to_string();
        let node = rng.below(3);
        if node == 0 {
            primary.kill()?;
            let forms = FORMS[rng.below(FORMS.len() as u64) as usize];
            primary = Server::start(&cluster.primary(forms, &["--sites", &sites]))?;
        }
        // A restarted standby cuts off records that the primary sent and did not write.
        for (number, standby) in standbys.iter_mut().enumerate() {
            if node == 0 || node == number as u64 + 1 {
                standby.kill()?;
                let launch = match (number, rng.below(2)) {
                    (0, _) => cluster.standby("b", &[]),
                    (_, 0) => cluster.standby("c", &[]),
                    (_, _) => cluster.in_nvram("c"),
                };
                *standby = Server::start(&launch.args(&["--sites", &sites]))?;
            }
        }
        tallies = load.stop()?;
        for (name, standby) in ["b", "c"].iter().zip(&standbys) {
            wait_equal(&primary, name)?;
            check(standby, &tallies).context(*name)?;
        }
        check(&primary, &tallies).context("the primary")?;
    }
    let moved = standbys[1].call("contacts/addresses", r#"{"id": 7}"#)?;
    ensure!(moved.json()["result"] == "2", "{}", moved.text());
    Ok(())
}

#[test]
fn servers_are_killed_in_turn_and_come_back_with_other_forms() -> Result<()> {
    (0..2).try_for_each(|seed| kill_in_turn(seed).with_context(|| format!("reproduce: kill_in_turn({seed})")))
}

/// Bytes of memory of its own that the process has.
fn resident_bytes(server: &mut Server) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.process().id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("it is told")?.trim().parse::<u64>()? << 10)
}

/// Contacts of 8 KiB each, in batches of 100.
fn add_contacts(server: &Server, batches: std::ops::Range<u64>) -> Result<()> {
    let (mut connection, emails) = (server.connect()?, "a".repeat(8 << 10));
    for batch in batches {
        let line = |id| {
            let args = json!({"id": id, "name": "Ada Lovelace", "emails": emails});
            format!("{}\n", json!({"module": "contacts", "procedure": "add", "args": args}))
        };
        let lines: String = (batch * 100..(batch + 1) * 100).map(line).collect();
        let answer = connection.request("POST", "/v1/batch", &[], lines.as_bytes());
        let answer = answer.map_err(|cut| cut.error)?;
        ensure!(
            answer.status == 200 && !answer.text().contains("problem"),
            "{}",
            answer.text()
        );
    }
    Ok(())
}

/// The standby runs for a moment and stands still for nearly a second, so its primary hears it all the time. Groups that find no room wait
/// in the primary's files, and not in its memory.
#[test]
fn a_standby_that_is_too_slow_costs_its_primary_no_memory() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut primary = Server::start(&cluster.primary(["command", "changes"], &[]))?;
    deploy_contacts(&primary, 0)?;
    let mut standby = Server::start(&cluster.standby("b", &[]))?;
    add_contacts(&primary, 10..20)?;
    wait_equal(&primary, "b")?;
    let used = |server: &Server| -> Result<u64> {
        let told = server.get("/v1/status")?.json()["memory"]["used_bytes"].as_u64();
        told.context("it is told")
    };
    let before = (resident_bytes(&mut primary)?, used(&primary)?);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let slow = scope.spawn(|| -> Result<()> {
            while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                standby.process().signal(libc::SIGSTOP)?;
                thread::sleep(Duration::from_millis(800));
                standby.process().signal(libc::SIGCONT)?;
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        });
        // 160 MiB of commands, and as much of changes.
        let added = add_contacts(&primary, 20..220);
        is_over.store(true, std::sync::atomic::Ordering::Release);
        slow.join().expect("a test's thread")?;
        added
    })?;
    let grown = resident_bytes(&mut primary)?.saturating_sub(before.0);
    let rows = used(&primary)?.saturating_sub(before.1);
    ensure!(rows > 160 << 20, "{rows} bytes of rows");
    ensure!(grown < rows + (120 << 20), "{grown} bytes of memory for {rows} of rows");
    wait_equal(&primary, "b")
}

/// Calls refused for lack of room were shipped to no standby. Both servers go on once there is room, in whichever form the log has the
/// missed records.
#[test]
fn a_full_disk_on_either_side_leaves_both_with_the_same() -> Result<()> {
    for full in ["a", "b"] {
        let cluster = Cluster::new()?;
        let Some(mount) = Mount::tmpfs(&cluster.dir.path().join(full), 48 << 20)? else {
            return Ok(());
        };
        let mut primary = Server::start(&cluster.primary(["command", "changes"], &[]))?;
        prepare(&primary, CLIENTS)?;
        let standby = Server::start(&cluster.standby("b", &[]))?;
        wait_equal(&primary, "b")?;
        let filler = mount.path.join("filler");
        fill(&filler)?;
        let load = Load::start(&primary, CLIENTS, 200);
        match full {
            "a" => load.wait_refused(PATIENCE)?,
            _ => {
                wait_full(&standby)?;
                check_rests(&mut primary, &standby)?;
            }
        }
        let mut tallies = load.stop()?;
        check(&primary, &tallies)?;
        fs::remove_file(&filler)?;
        mount.resize(512 << 20)?;
        if full == "a" {
            primary.kill()?;
            primary = Server::start(&cluster.primary(["command", "changes"], &[]))?;
        }
        let load = Load::resume(&primary, tallies, 50);
        thread::sleep(Duration::from_millis(200));
        tallies = load.stop()?;
        wait_equal(&primary, "b").context(full)?;
        check(&primary, &tallies)?;
        check(&standby, &tallies)?;
    }
    Ok(())
}

fn wait_full(standby: &Server) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = replication(standby, &[])?["standbys"][0].clone();
        let error = told["error"].as_str().unwrap_or_default();
        if error.contains("No space left") {
            return Ok(());
        }
        ensure!(Instant::now() < until, "its disk is never full: {told}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A standby whose disk is full seldom tries again, and reads go on.
fn check_rests(primary: &mut Server, standby: &Server) -> Result<()> {
    let mut tries = || primary.process().errors().matches("admit-standby").count();
    let before = tries();
    thread::sleep(Duration::from_secs(3));
    ensure!(tries() - before < 20, "{} tries in 3 s", tries() - before);
    let read = standby.call("bank/total", "{}")?;
    ensure!(read.status == 200, "{}", read.text());
    Ok(())
}

/// The primary has no room for the rows of its calls. A refused call leaves nothing on its standby, which has as much memory. Either that
/// is enough, or the standby says so, and continues with more.
#[test]
fn a_full_memory_on_either_side_leaves_both_with_the_same() -> Result<()> {
    let cluster = Cluster::new()?;
    // The smallest limit that a server takes, and time for the sum of all accounts.
    let little = ["--memory-max", "64MiB", "--call-time-max-ms", "60000"];
    let launch = cluster.primary(["physiological", "command"], &little);
    let mut primary = Server::start(&launch)?;
    prepare(&primary, CLIENTS)?;
    let mut standby = Server::start(&cluster.standby("b", &little))?;
    wait_equal(&primary, "b")?;
    let load = Load::start(&primary, CLIENTS, 2_000);
    load.wait_refused(PATIENCE)?;
    let tallies = load.stop()?;
    check(&primary, &tallies)?;
    let (durable, until) = (
        lsn(&replication(&primary, &[])?["durable_lsn"]),
        Instant::now() + PATIENCE,
    );
    loop {
        let ready = standby.get("/readyz")?;
        if ready.text().contains("--memory-max") {
            standby.kill()?;
            standby = Server::start(&cluster.standby("b", &["--memory-max", "512MiB", "--call-time-max-ms", "60000"]))?;
        }
        if lsn(&seen(&primary, "b")?["view_lsn"]) >= durable {
            break;
        }
        ensure!(
            Instant::now() < until,
            "it does not come to {durable}: {}",
            seen(&primary, "b")?
        );
        thread::sleep(Duration::from_millis(20));
    }
    check(&standby, &tallies)?;
    // The primary's next life has no more room, and the other form.
    primary.kill()?;
    let primary = Server::start(&cluster.primary(["command", "changes"], &little))?;
    wait_equal(&primary, "b")?;
    check(&primary, &tallies)
}

/// A record that the primary can't write was on its way to its standby already. Its callers get an unknown outcome. The standby never shows
/// it, and drops it when it is started again.
#[test]
fn a_write_that_fails_behind_what_was_shipped_is_shown_nowhere() -> Result<()> {
    let cluster = Cluster::new()?;
    let launch = cluster.primary(["physiological", "command"], &[]);
    let mut primary = Server::start(&launch.clone().survives_file_limit())?;
    prepare(&primary, CLIENTS)?;
    let mut standby = Server::start(&cluster.standby("b", &[]))?;
    wait_equal(&primary, "b")?;
    let load = Load::start(&primary, CLIENTS, 50);
    thread::sleep(Duration::from_millis(200));
    primary.refuse_file_writes()?;
    load.wait_refused(PATIENCE)?;
    let tallies = load.stop()?;
    check(&primary, &tallies).context("the primary that can't write")?;
    primary.kill()?;
    let primary = Server::start(&launch)?;
    check(&primary, &tallies).context("the primary, started again")?;
    standby.kill()?;
    let standby = Server::start(&cluster.standby("b", &[]))?;
    wait_equal(&primary, "b")?;
    check(&standby, &tallies)
}

/// `/metrics` tells whether the standby's tables differ.
fn check_differs(server: &Server, value: &str) -> Result<()> {
    let metrics = server.get("/metrics")?.text();
    let mut lines = metrics.lines();
    let line = lines.find(|line| line.starts_with("reprise_standby_differs{"));
    ensure!(
        line.is_some_and(|line| line.ends_with(&format!(" {value}"))),
        "{line:?}"
    );
    Ok(())
}

/// A row of a standby differs from its primary's, under valid checksums. The test covers the report of the table, the search for the row,
/// and the way back.
#[test]
fn a_table_that_differs_is_named_everywhere_and_its_rows_are_read_only() -> Result<()> {
    let cluster = Cluster::new()?;
    let primary = Server::start(&cluster.primary(["command", "changes"], &[]))?;
    prepare(&primary, CLIENTS)?;
    let follow = cluster.standby("b", &[]);
    let mut standby = Server::start(&follow)?;
    wait_equal(&primary, "b")?;
    for account in 0..300 {
        let opened = primary.call("bank/open", &json!({"account": account, "balance": 10}).to_string())?;
        ensure!(opened.status == 200, "{}", opened.text());
    }
    wait_equal(&primary, "b")?;
    for server in [&primary, &standby] {
        let compared = seen(server, "b")?["compared"].clone();
        ensure!(compared["equal"] == true && compared["at"].is_string(), "{compared}");
        check_differs(server, "0")?;
        let told = replication_status(server)?;
        let is_told = told.contains("b compared") && told.contains("all tables are equal");
        ensure!(is_told, "{told}");
    }
    standby.kill()?;
    let forged = forge_stand_in(
        &cluster.dir.path().join("b"),
        |changes| {
            changes
                .changes
                .ends_with(&[123_i64.to_le_bytes(), 10_i64.to_le_bytes()].concat())
        },
        |bytes| {
            let at = bytes.len() - 8;
            bytes[at] ^= 1;
        },
    )?;
    let mut standby = Spawned::start(&follow)?.listen()?;
    let named = "table bank.accounts on partition ";
    let until = Instant::now() + PATIENCE;
    let what = loop {
        let told = replication(&standby, &[])?["standbys"][0]["compared"].clone();
        let what = told["difference"].as_str().unwrap_or_default().to_owned();
        if what.contains(named) {
            ensure!(told["equal"] == false && lsn(&told["lsn"]) > forged, "{told}");
            break what;
        }
        ensure!(Instant::now() < until, "the table is not named: {told}");
        thread::sleep(Duration::from_millis(20));
    };
    // Its readiness, its output, its metrics, the command line on either side, and its primary.
    let ready = standby.get("/readyz")?;
    ensure!(ready.status == 503 && ready.text().contains(named), "{}", ready.text());
    standby.wait_said(named)?;
    check_differs(&standby, "1")?;
    while !seen(&primary, "b")?["compared"]["difference"]
        .as_str()
        .is_some_and(|what| what.contains(named))
    {
        ensure!(
            Instant::now() < until,
            "its primary does not know: {}",
            seen(&primary, "b")?
        );
        thread::sleep(Duration::from_millis(20));
    }
    for server in [&primary, &standby] {
        let told = replication_status(server)?;
        ensure!(told.contains(named), "{told}");
    }
    // The standby serves no reads, is not promoted, and keeps receiving.
    let read = standby.call("bank/balance", r#"{"account": 1}"#)?;
    let says_where = read.text().contains("serves no tables; /readyz has the report");
    ensure!(read.status == 503 && says_where, "{}", read.text());
    let promoted = standby.request("POST", "/v1/replication/promote?force=true", &[], b"")?;
    ensure!(
        promoted.status >= 400 && promoted.text().contains(named),
        "{}",
        promoted.text()
    );
    ensure!(seen(&primary, "b")?["state"] == "streaming", "{}", seen(&primary, "b")?);
    // A start is refused with instructions, and the standby begins anew according to them.
    standby.kill()?;
    let mut refused = Spawned::start(&follow)?;
    ensure!(!refused.wait()?.success(), "it started");
    let said = refused.errors();
    for part in [&*what, "reprise standby reset", "--read-only"] {
        ensure!(said.contains(part), "{part} is not told: {said}");
    }
    // Read alone, it shows the row beside the primary's.
    let alone = Launch::new(&cluster.dir.path().join("b")).args(&["--read-only"]);
    let mut alone = Server::start(&alone)?;
    alone.wait_said(&format!(
        "read-only: writes are refused. These tables, a standby's, were not as its primary's: {what}"
    ))?;
    let told = alone.get("/v1/status")?.json();
    let reason = told["log_error"].as_str().unwrap_or_default();
    ensure!(told["role"] == "read-only" && reason.contains(&*what), "{told}");
    let rows = |server: &Server| {
        let url = format!("http://{}", server.address);
        let page = json_of(&["table", "rows", "bank.accounts", "--limit", "1000", "--url", &url])?;
        let rows = page["rows"].as_array().cloned().unwrap_or_default().into_iter();
        let mut rows: Vec<String> = rows.map(|row| row.to_string()).collect();
        rows.sort_unstable();
        Ok::<_, anyhow::Error>(rows)
    };
    let (own, theirs) = (rows(&alone)?, rows(&primary)?);
    ensure!(own.len() == theirs.len() && own.len() >= 300, "{} rows", own.len());
    let differ: Vec<_> = own.iter().zip(&theirs).filter(|(own, theirs)| own != theirs).collect();
    let [(own, theirs)] = differ[..] else {
        anyhow::bail!("{differ:?}");
    };
    ensure!(own.contains("123") && own.contains("11"), "{own}");
    ensure!(theirs.contains("123") && theirs.contains("10"), "{theirs}");
    alone.terminate()?;
    let dir = cluster.dir.path().join("b").display().to_string();
    let shown = json_of(&["node", "show", &dir])?;
    ensure!(shown["health"].to_string().contains(&*what), "{shown}");
    let reset = json_of(&["standby", "reset", &dir])?;
    ensure!(reset["reset"] == true, "{reset}");
    let standby = Server::start(&follow)?;
    wait_equal(&primary, "b")?;
    let read = standby.call("bank/balance", r#"{"account": 123}"#)?;
    ensure!(read.json()["result"]["balance"] == "10", "{}", read.text());
    Ok(())
}
