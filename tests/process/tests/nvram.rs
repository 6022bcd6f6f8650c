//! `--device nvram`: what a server in NVRAM tells, refuses, and keeps when it is killed.

use anyhow::{Result, ensure};
use reprise_test_crash::{Launch, Server, Spawned, run_verb};
use reprise_test_process::{check, open_accounts, verify};

const SIZE: &str = "8MiB";

fn refusal(launch: &Launch) -> Result<String> {
    let mut process = Spawned::start(launch)?;
    let status = process.wait()?;
    ensure!(!status.success(), "it started");
    Ok(process.errors())
}

#[test]
fn what_was_answered_outlives_a_kill_and_the_region_is_told() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let region = dir.path().join("region");
    let region = region.to_str().expect("text");
    let on_nvram = [
        "--device",
        "nvram",
        "--nvram",
        region,
        "--nvram-size",
        SIZE,
        "--partitions",
        "3",
    ];
    // An ordinary file: msync, and a warning. The same, taken for persistent memory.
    for (assume, persistence) in [("false", "msync"), ("true", "assumed")] {
        let data = dir.path().join(persistence);
        let args = [&on_nvram[..], &["--nvram-assume-persistent", assume, "--sites", "2"]].concat();
        let mut server = Server::start(&Launch::new(&data).args(&args))?;
        let tally = open_accounts(&server, 40)?;
        let status = server.get("/v1/status")?.json();
        let nvram = &status["nvram"];
        ensure!(
            status["device"] == "nvram" && nvram["persistence"] == persistence,
            "{status}"
        );
        ensure!(nvram["path"] == region && nvram["bytes"] == 8 << 20, "{status}");
        ensure!(nvram["rings"].as_array().map(Vec::len) == Some(2), "{status}");
        ensure!(
            nvram["warning"]
                .as_str()
                .is_some_and(|text| text.contains("loses power")),
            "{status}"
        );
        let metrics = server.get("/metrics")?.text();
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
            server.process().errors().contains("loses power"),
            "no warning at the start"
        );
        ensure!(data.join("nvram.json").exists(), "nothing names the region");
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
        // Files alone: what the region has comes to them first.
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
fn what_can_not_be_is_refused_in_a_line() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (data, region) = (dir.path().join("data"), dir.path().join("region"));
    let region = region.to_str().expect("text");
    let folder = dir.path().to_str().expect("text");
    let nvram = ["--device", "nvram"];
    for (args, part) in [
        (vec!["--nvram", region], "nvram and nvram-size go with device nvram"),
        ([&nvram[..], &["--nvram-size", SIZE]].concat(), "needs --nvram PATH"),
        ([&nvram[..], &["--nvram", region]].concat(), "needs --nvram-size BYTES"),
        (
            [&nvram[..], &["--nvram", region, "--nvram-size", "4096"]].concat(),
            "too small",
        ),
        (
            [&nvram[..], &["--nvram", folder, "--nvram-size", SIZE]].concat(),
            "neither a file nor a DAX device",
        ),
        (
            [
                &nvram[..],
                &["--nvram", region, "--nvram-size", SIZE, "--commit", "async"],
            ]
            .concat(),
            "asynchronous commit",
        ),
        (
            [&nvram[..], &["--nvram", region, "--nvram-size", SIZE, "--log", "none"]].concat(),
            "nothing to be written to NVRAM",
        ),
    ] {
        let told = refusal(&Launch::new(&data).args(&args))?;
        ensure!(told.contains(part), "{args:?}: {told}");
        let _ = std::fs::remove_file(region);
    }
    // Two servers on one region.
    let on_nvram = [&nvram[..], &["--nvram", region, "--nvram-size", SIZE]].concat();
    let first = Server::start(&Launch::new(&data).args(&on_nvram))?;
    let told = refusal(&Launch::new(&dir.path().join("other")).args(&on_nvram))?;
    ensure!(told.contains("another process uses"), "{told}");
    let (status, errors) = first.terminate()?;
    ensure!(status.code() == Some(0), "{status}: {errors}");
    Ok(())
}
