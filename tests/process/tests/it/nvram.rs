//! `--device nvram`: what a server in NVRAM tells, refuses, and keeps when it is killed.

use std::fs;

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, run_verb};
use reprise_test_process::{check, check_by_promtool, open_accounts, refusal, verify, wait_reached};

const SIZE: &str = "8MiB";

fn on_nvram<'a>(region: &'a str, size: &'a str) -> [&'a str; 6] {
    ["--device", "nvram", "--nvram", region, "--nvram-size", size]
}

#[test]
fn acknowledged_writes_survive_a_kill_and_the_region_is_reported() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let region = dir.path().join("region");
    let region = region.to_str().expect("text");
    let on_nvram = [&on_nvram(region, SIZE)[..], &["--partitions", "3"]].concat();
    // An ordinary file: msync, and a warning. The same, taken for persistent memory.
    let ways = [
        ("false", "msync", "command", "commit"),
        ("true", "assumed", "command", "commit"),
        ("true", "assumed", "physiological", "insert"),
        ("true", "assumed", "both", "insert-fence"),
    ];
    for (assume, persistence, log, flush) in ways {
        let data = dir.path().join(flush).join(persistence);
        let further = [
            "--nvram-assume-persistent",
            assume,
            "--sites",
            "2",
            "--log",
            log,
            "--nvram-flush",
            flush,
        ];
        let args = [&on_nvram[..], &further].concat();
        let mut server = Server::start(&Launch::new(&data).args(&args))?;
        let tally = open_accounts(&server, 40)?;
        let status = server.get("/v1/status")?.json();
        let nvram = &status["nvram"];
        ensure!(
            status["device"] == "nvram" && nvram["persistence"] == persistence,
            "{status}"
        );
        ensure!(nvram["path"] == region && nvram["bytes"] == 8 << 20, "{status}");
        ensure!(nvram["flush"] == flush, "{status}");
        let told = run_verb(&["status", "--url", &format!("http://{}", server.address)])?;
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        ensure!(told.contains(&format!("flush {flush}")), "{told}");
        ensure!(nvram["rings"].as_array().map(Vec::len) == Some(2), "{status}");
        ensure!(
            nvram["warning"]
                .as_str()
                .is_some_and(|text| text.contains("A power failure")),
            "{status}"
        );
        let metrics = server.get("/metrics")?.text();
        check_by_promtool(&metrics)?;
        for gauge in ["reprise_nvram_ring_bytes_max ", "reprise_nvram_ring_entries_max "] {
            let line = metrics.lines().find_map(|line| line.strip_prefix(gauge));
            ensure!(line.is_some_and(|value| value != "0"), "{gauge}: {metrics}");
        }
        // The log is read as it is with files.
        let end = status["durable_lsn"].as_str().unwrap_or_default().to_owned();
        let log = server.get("/v1/log?limit=1000")?.json();
        ensure!(log["end"] == end.as_str(), "{log}, not to {end}");
        server.kill()?;
        ensure!(
            server.process().errors().contains("A power failure"),
            "no warning at the start"
        );
        ensure!(data.join("nvram.json").exists(), "nothing names the region");
        // Records in the region alone appear behind those of the files.
        let dumped = run_verb(&["log", "dump", data.to_str().expect("text"), "--output", "json"])?;
        let dumped = String::from_utf8_lossy(&dumped.stdout).into_owned();
        ensure!(dumped.lines().count().to_string() == end, "{dumped}, not to {end}");
        // The region alone shows its records behind those of the files, too.
        let alone = run_verb(&["log", "verify", region, "--output", "json"])?;
        ensure!(alone.status.success(), "{alone:?}");
        let alone: serde_json::Value = serde_json::from_slice(&alone.stdout)?;
        let number = |name: &str| alone[name].as_u64().unwrap_or_default();
        ensure!(
            alone["whole"] == true && number("end").to_string() == end && alone["void"] == 0,
            "{alone}, not to {end}"
        );
        let dumped = run_verb(&["log", "dump", region, "--output", "json"])?;
        let lines = String::from_utf8_lossy(&dumped.stdout).lines().count() as u64;
        ensure!(
            lines == number("end") - number("copied"),
            "{lines} of {alone}: {dumped:?}"
        );
        // One record of it, and one that it does not have.
        let last = (number("end") - 1).to_string();
        let shown = run_verb(&["log", "show", &last, region, "--output", "json"])?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let dumped = String::from_utf8_lossy(&dumped.stdout).into_owned();
        // The region has none if all records were copied to the files meanwhile.
        ensure!(
            shown.trim_end() == dumped.lines().last().unwrap_or_default(),
            "{shown} of {dumped}"
        );
        let shown = run_verb(&["log", "show", &end, region])?;
        ensure!(
            shown.status.code() == Some(1) && String::from_utf8_lossy(&shown.stderr).contains("has no record with LSN"),
            "{shown:?}"
        );
        let shown = run_verb(&["log", "show", &last, data.to_str().expect("text"), "--output", "json"])?;
        ensure!(shown.status.success() && !shown.stdout.is_empty(), "{shown:?}");
        let verified = verify(&data)?;
        ensure!(verified["nvram"]["records"].as_u64().is_some(), "{verified}");
        let (from, to) = (data.to_str().expect("text"), dir.path().join("backup"));
        let made = run_verb(&[
            "backup",
            "create",
            "--data-dir",
            from,
            "--to",
            to.to_str().expect("text"),
        ])?;
        ensure!(
            String::from_utf8_lossy(&made.stderr).contains("NVRAM region") && !to.exists(),
            "{made:?}"
        );
        // The records of the region first go to the files when the server starts with files alone.
        let server = Server::start(&Launch::new(&data))?;
        check(&server, std::slice::from_ref(&tally))?;
        let status = server.get("/v1/status")?.json();
        ensure!(status["device"] == "file" && status["nvram"].is_null(), "{status}");
        ensure!(!data.join("nvram.json").exists(), "the region has nothing any more");
        let (status, errors) = server.terminate()?;
        ensure!(status.code() == Some(0), "{status}: {errors}");
    }
    Ok(())
}

#[test]
fn invalid_nvram_settings_are_refused_in_one_line() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (data, region) = (dir.path().join("data"), dir.path().join("region"));
    let region = region.to_str().expect("text");
    let folder = dir.path().to_str().expect("text");
    let words = |args: &'static str| {
        let words = args.split(' ').map(|word| match word {
            "REGION" => region,
            "FOLDER" => folder,
            "SIZE" => SIZE,
            word => word,
        });
        words.collect::<Vec<_>>()
    };
    const SIZED: &str = "--device nvram --nvram REGION --nvram-size SIZE";
    for (first, more, part) in [
        ("--nvram REGION", "", "nvram and nvram-size need device nvram"),
        ("--device nvram --nvram-size SIZE", "", "needs --nvram PATH"),
        ("--device nvram --nvram REGION", "", "needs --nvram-size BYTES to make"),
        ("--device nvram --nvram REGION", "--nvram-size 4096", "too small"),
        (
            "--device nvram --nvram FOLDER",
            "--nvram-size SIZE",
            "neither a file nor a DAX device",
        ),
        (SIZED, "--commit async", "asynchronous commit"),
        ("--nvram-flush insert", "", "nvram-flush needs device nvram"),
        (SIZED, "--nvram-flush later", "take commit, insert or insert-fence"),
        (SIZED, "--nvram-flush insert", "log command has none"),
        (
            SIZED,
            "--log auto --nvram-flush insert-fence --log-differential false",
            "take log-differential true",
        ),
        (SIZED, "--log none", "nothing to be written to NVRAM"),
    ] {
        let mut args = words(first);
        args.extend(words(more).into_iter().filter(|word| !word.is_empty()));
        let told = refusal(&Launch::new(&data).args(&args))?;
        ensure!(told.contains(part), "{args:?}: {told}");
        let _ = std::fs::remove_file(region);
    }
    // Two servers on one region.
    let on_nvram = words(SIZED);
    let first = Server::start(&Launch::new(&data).args(&on_nvram))?;
    let told = refusal(&Launch::new(&dir.path().join("other")).args(&on_nvram))?;
    ensure!(told.contains("another process uses"), "{told}");
    let (status, errors) = first.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    Ok(())
}

#[test]
fn a_file_that_is_no_whole_region_is_judged() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("file");
    let path = file.to_str().expect("text");
    for (byte, status, said) in [(1, 1, "does not begin as a region"), (0, 0, "blank")] {
        std::fs::write(&file, vec![byte; 1 << 20])?;
        let verified = run_verb(&["log", "verify", path])?;
        let told = String::from_utf8_lossy(&verified.stdout).into_owned();
        ensure!(
            verified.status.code() == Some(status) && told.contains(said),
            "{verified:?}"
        );
        let dumped = run_verb(&["log", "dump", path])?;
        ensure!(dumped.status.code() == Some(status), "{dumped:?}");
        ensure!(std::fs::read(&file)? == vec![byte; 1 << 20], "it was changed");
    }
    Ok(())
}

/// A server takes an existing region with its length and its records.
#[test]
fn a_region_that_is_there_needs_no_size() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let region = dir.path().join("region");
    let on_nvram = ["--device", "nvram", "--nvram", region.to_str().expect("text")];
    let launch = |size: &[&str]| Launch::new(&dir.path().join("data")).args(&[&on_nvram[..], size].concat());
    let mut server = Server::start(&launch(&["--nvram-size", "3MiB"]))?;
    open_accounts(&server, 20)?;
    let before = server.call("bank/total", "{}")?.json();
    server.kill()?;
    let mut server = Server::start(&launch(&[]))?;
    let status = server.get("/v1/status")?.json();
    ensure!(status["nvram"]["bytes"] == 3 << 20, "{status}");
    let total = server.call("bank/total", "{}")?.json();
    ensure!(total["result"] == before["result"], "{total}, not {before}");
    server.kill()?;
    // One that says another size is refused.
    let told = refusal(&launch(&["--nvram-size", "4MiB"]))?;
    ensure!(told.contains("the server does not resize it"), "{told}");
    // An existing file that is no region is refused.
    let empty = dir.path().join("empty");
    std::fs::write(&empty, b"")?;
    let on_empty = ["--device", "nvram", "--nvram", empty.to_str().expect("text")];
    let told = refusal(&Launch::new(&dir.path().join("other")).args(&on_empty))?;
    ensure!(told.contains("empty"), "{told}");
    Ok(())
}

#[test]
fn a_call_whose_record_no_ring_takes_is_refused_before_it_runs() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let region = dir.path().join("region");
    let region = region.to_str().expect("text");
    let on_nvram = [&on_nvram(region, "2MiB")[..], &["--partitions", "2"]].concat();
    let server = Server::start(&Launch::new(&dir.path().join("data")).args(&on_nvram))?;
    server.deploy("voter")?;
    let contestants = |count: usize| {
        format!(
            r#"{{"contestants": ["{}"]}}"#,
            vec!["x".repeat(1_000); count].join("\", \"")
        )
    };
    let answer = server.call("voter/initialize", &contestants(600))?;
    let told = answer.json();
    ensure!(
        answer.status == 422 && told["limit"] == "log-record-bytes",
        "{}",
        answer.text()
    );
    ensure!(
        told["detail"]
            .as_str()
            .is_some_and(|text| text.contains("--nvram-size")),
        "{told}"
    );
    let results = || -> Result<usize> {
        let told = server.call("voter/results", "{}")?.json();
        Ok(told["result"].as_array().map_or(0, Vec::len))
    };
    ensure!(results()? == 0, "it left something");
    let answer = server.call("voter/initialize", &contestants(20))?;
    ensure!(answer.status == 200, "{}", answer.text());
    ensure!(results()? == 20, "{}", results()?);
    let (status, errors) = server.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    Ok(())
}

#[test]
fn a_standby_tells_its_region_and_what_it_can_not_begin_with() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    let launch = |name: &str, args: &[&str]| {
        let region = path(&format!("{name}.region")).display().to_string();
        let device = on_nvram(&region, SIZE);
        let own = ["--nvram-assume-persistent", "true", "--name", name];
        let ships = ["--ship-listen", "127.0.0.1:0"];
        Launch::new(&path(name)).args(&[&device[..], &own, &ships, args].concat())
    };
    let level = ["--safety", "1-safe"];
    let a = Server::start(&launch("a", &["--partitions", "2", "--sites", "2"]).args(&level))?;
    a.deploy("bank")?;
    let url = format!("http://{}", a.address);
    let follow = launch("b", &["--standby-of", &url]).args(&level);
    let mut b = Server::start(&follow)?;
    wait_reached(&a, &[], ("1-safe", &[&b]))?;
    let status = b.get("/v1/status")?.json();
    ensure!(status["device"] == "nvram" && status["role"] == "standby", "{status}");
    ensure!(status["nvram"]["persistence"] == "assumed", "{status}");
    ensure!(
        status["nvram"]["rings"]
            .as_array()
            .is_some_and(|rings| !rings.is_empty()),
        "{status}"
    );
    let told = run_verb(&["status", "--url", &format!("http://{}", b.address)])?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    ensure!(told.contains("flush commit"), "{told}");
    let metrics = b.get("/metrics")?.text();
    ensure!(metrics.contains("reprise_nvram_ring_bytes_max "), "{metrics}");
    b.kill()?;
    // Its region is gone; its log is, and the region is not.
    let (region, aside) = (path("b.region"), path("aside"));
    fs::rename(&region, &aside)?;
    let told = refusal(&follow)?;
    ensure!(told.contains("nvram.json") && told.contains("can't be read"), "{told}");
    fs::rename(&aside, &region)?;
    let log = path("b/log");
    fs::rename(&log, &aside)?;
    let told = refusal(&follow)?;
    ensure!(told.contains("nvram.json") && !log.exists(), "{told}");
    fs::rename(&aside, &log)?;
    let b = Server::start(&follow)?;
    wait_reached(&a, &[], ("1-safe", &[&b]))?;
    let (status, errors) = b.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    ensure!(!path("b/nvram.json").exists(), "the files have all");
    // Its log is taken away on purpose, by hand and by the command: the records in its region are of no use.
    for is_by_hand in [true, false] {
        let mut b = Server::start(&follow)?;
        wait_reached(&a, &[], ("1-safe", &[&b]))?;
        b.kill()?;
        match is_by_hand {
            true => {
                fs::remove_dir_all(path("b/log"))?;
                fs::remove_dir_all(path("b/checkpoints"))?;
                fs::remove_file(path("b/nvram.json"))?;
            }
            false => {
                let dir = path("b").display().to_string();
                let reset = run_verb(&["standby", "reset", &dir])?;
                ensure!(reset.status.success() && !path("b/nvram.json").exists(), "{reset:?}");
            }
        }
        let b = Server::start(&follow)?;
        wait_reached(&a, &[], ("1-safe", &[&b]))?;
        drop(b);
    }
    Ok(())
}
