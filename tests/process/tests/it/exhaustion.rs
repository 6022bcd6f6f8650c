//! A disk that fails or is read-only, and file descriptors that run out.

use std::{
    fs,
    net::TcpStream,
    os::unix::fs::symlink,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Connection, Launch, Server, Spawned};
use reprise_test_process::{Load, Mount, check, fill, open_accounts, prepare};

/// A wait that ends only by a mistake.
const LONG: Duration = Duration::from_secs(180);
const DISK_BYTES: usize = 48 << 20;
/// Bytes of a disk that has room for two segments of the log.
const ROOMY_BYTES: usize = 192 << 20;
/// Bytes of a disk for the catalog alone.
const CATALOG_BYTES: usize = 4 << 20;
const LOG_UNAVAILABLE: &str = "/problems/log-unavailable";
const OUTCOME_UNKNOWN: &str = "/problems/outcome-unknown";

/// Transactions run before their records are written. When the write fails, their changes must go from the tables.
#[test]
fn a_write_error_under_load_leaves_nothing_of_what_was_refused() -> Result<()> {
    for round in 0..5 {
        let dir = tempfile::tempdir()?;
        let args = [
            "--partitions",
            "3",
            "--sites",
            "2",
            "--group-commit-us",
            ["0", "2000"][round % 2],
        ];
        let launch = Launch::new(&dir.path().join("data")).args(&args);
        let mut server = Server::start(&launch.clone().survives_file_limit())?;
        prepare(&server, 4)?;
        let load = Load::start(&server, 4, 1 + round * 10);
        thread::sleep(Duration::from_millis(200));
        server.refuse_file_writes()?;
        load.wait_refused(LONG).with_context(|| format!("round {round}"))?;
        let tallies = load.stop()?;
        for tally in &tallies {
            ensure!(tally.unknown.is_empty(), "a call was not answered");
            ensure!(!tally.refused.is_empty(), "round {round}: nothing was refused");
            // A failed disk could not take back the write in progress, so its outcome is unknown.
            let is_known = |problem: &String| [LOG_UNAVAILABLE, OUTCOME_UNKNOWN].contains(&problem.as_str());
            ensure!(tally.problems.iter().all(is_known), "refused for {:?}", tally.problems);
        }
        check(&server, &tallies).with_context(|| format!("round {round}, before the restart"))?;
        server.kill()?;
        let restarted = Server::start(&launch)?;
        check(&restarted, &tallies).with_context(|| format!("round {round}, after the restart"))?;
    }
    Ok(())
}

#[test]
fn a_read_only_directory_is_refused_with_its_reason() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(mount) = Mount::tmpfs(&dir.path().join("disk"), DISK_BYTES)? else {
        return Ok(());
    };
    let launch = Launch::new(&mount.path.join("data"));
    let server = Server::start(&launch)?;
    let tally = open_accounts(&server, 2)?;
    server.terminate()?;
    mount.make_read_only(DISK_BYTES)?;
    let data_dir = [mount.path.join("data"), mount.path.join("another")];
    for path in &data_dir {
        let mut process = Spawned::start(&Launch::new(path))?;
        let status = process.wait()?;
        let errors = process.errors();
        ensure!(status.code() == Some(1), "{status}: {errors}");
        let last = errors.lines().last().unwrap_or_default();
        ensure!(
            last.contains("Read-only file system"),
            "the reason is not told: {errors}"
        );
        ensure!(!errors.contains("panicked"), "{errors}");
    }
    // A read-only server opens the directory on this disk.
    let tallies = [tally];
    let alone = Server::start(&Launch::new(&data_dir[0]).args(&["--read-only"]))?;
    check(&alone, &tallies)?;
    // It makes no catalog: there may be no room for one anywhere.
    let (_, errors) = alone.terminate()?;
    ensure!(!errors.contains("catalog"), "{errors}");
    // A copy on a writable disk is whole.
    let copy = dir.path().join("copy");
    reprise_test_crash::copy_dir(&data_dir[0], &copy)?;
    check(&Server::start(&Launch::new(&copy))?, &tallies)
}

/// Waits until a condition holds, or fails after too long a time.
fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !holds()? {
        ensure!(begun.elapsed() < LONG, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[test]
fn a_full_disk_is_told_and_writes_come_back_without_a_restart() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(mount) = Mount::tmpfs(&dir.path().join("disk"), ROOMY_BYTES)? else {
        return Ok(());
    };
    let launch = Launch::new(&mount.path.join("data")).args(&["--backup-max", "1MiB"]);
    let mut server = Server::start(&launch)?;
    let mut tally = open_accounts(&server, 2)?;
    let filler = mount.path.join("filler");
    fill(&filler)?;
    let mut connection = server.connect()?;
    wait_for("a write is refused", || {
        tally.batch(&mut connection, 1000)?;
        Ok(!tally.refused.is_empty())
    })?;
    let status = server.request("GET", "/v1/status", &[], b"")?.json();
    ensure!(status["log_error"].is_string(), "{status}");
    let metrics = server.request("GET", "/metrics", &[], b"")?.text();
    ensure!(metrics.contains("reprise_log_failed 1"), "{metrics}");
    server.wait_said("No space left")?;
    server.wait_said("refused as log-unavailable")?;
    fs::remove_file(&filler)?;
    wait_for("writes come back", || {
        let refused = tally.refused.len();
        tally.batch(&mut connection, 50)?;
        Ok(tally.refused.len() == refused)
    })?;
    server.wait_said("stores all writes again")?;
    let tallies = [tally];
    check(&server, &tallies)?;
    server.kill()?;
    check(&Server::start(&launch)?, &tallies)
}

/// Returns the names of catalogs that a start set aside.
fn broken_catalogs(data_dir: &Path) -> Result<Vec<String>> {
    let names = fs::read_dir(data_dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let names: Vec<String> = names.collect::<Result<_>>()?;
    Ok(names
        .into_iter()
        .filter(|name| name.starts_with("catalog.broken"))
        .collect())
}

#[test]
fn server_starts_and_answers_reads_when_its_disk_is_full() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(mount) = Mount::tmpfs(&dir.path().join("disk"), ROOMY_BYTES)? else {
        return Ok(());
    };
    let launch = Launch::new(&mount.path.join("data")).args(&["--backup-max", "1MiB"]);
    let server = Server::start(&launch)?;
    let tallies = [open_accounts(&server, 2)?];
    server.terminate()?;
    fill(&mount.path.join("filler"))?;
    for round in 0..3 {
        let server = Server::start(&launch).with_context(|| format!("start {round}"))?;
        check(&server, &tallies)?;
        let (status, errors) = server.terminate()?;
        ensure!(status.code() == Some(0), "{status}: {errors}");
        let broken = broken_catalogs(&launch.data_dir)?;
        ensure!(broken.is_empty(), "start {round}: {broken:?}");
    }
    Ok(())
}

/// No request reads the catalog. A catalog that finds no room stays as it is.
#[test]
fn catalog_without_room_is_filled_by_the_next_start_that_has_room() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(mount) = Mount::tmpfs(&dir.path().join("small"), CATALOG_BYTES)? else {
        return Ok(());
    };
    let launch = Launch::new(&dir.path().join("data"));
    // The catalog lies on the small disk, and everything else on another one.
    let place = mount.path.join("catalog");
    fs::create_dir(&place)?;
    fs::create_dir(&launch.data_dir)?;
    symlink(&place, launch.data_dir.join("catalog"))?;
    let server = Server::start(&launch)?;
    let tallies = [open_accounts(&server, 2)?];
    server.terminate()?;
    let filler = mount.path.join("filler");
    fill(&filler)?;
    for _ in 0..2 {
        let mut server = Server::start(&launch)?;
        server.wait_said("warning: the server runs without its catalog")?;
        check(&server, &tallies)?;
        server.deploy("voter")?;
        let (status, errors) = server.terminate()?;
        ensure!(status.code() == Some(0), "{status}: {errors}");
        ensure!(errors.matches("without its catalog").count() == 1, "{errors}");
        let broken = broken_catalogs(&launch.data_dir)?;
        ensure!(broken.is_empty(), "{broken:?}");
    }
    fs::remove_file(&filler)?;
    let mut server = Server::start(&launch)?;
    server.wait_said("voter version 1 (module 1) is new")?;
    server.terminate()?;
    // It is whole: the next start has nothing to say.
    let mut server = Server::start(&launch)?;
    server.wait_said("ready: ")?;
    check(&server, &tallies)?;
    let (_, errors) = server.terminate()?;
    ensure!(!errors.contains("catalog"), "{errors}");
    Ok(())
}

#[test]
fn file_descriptors_run_out_and_the_server_serves_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).files_max(64);
    let mut server = Server::start(&launch)?;
    let mut tally = open_accounts(&server, 2)?;
    let mut kept = server.connect()?;
    ensure!(
        kept.get("/healthz").is_ok_and(|answer| answer.status == 200),
        "the kept connection"
    );
    // The test opens more connections than the server has descriptors for. The others wait in the kernel's queue.
    let idle: Vec<_> = (0..120)
        .map(|_| TcpStream::connect(&server.address))
        .collect::<Result<_, _>>()?;
    thread::sleep(Duration::from_millis(300));
    ensure!(
        server.process().is_running(),
        "the server ended: {}",
        server.process().errors()
    );
    // A client with a connection is served, even when the log needs its next file meanwhile.
    for _ in 0..40 {
        ensure!(tally.batch(&mut kept, 1000)?, "the kept connection was cut");
    }
    drop(idle);
    let begun = Instant::now();
    loop {
        let mut again = Connection::open(&server.address)?;
        again.set_wait(Duration::from_secs(5))?;
        let refused = tally.refused.len();
        if again.get("/readyz").is_ok_and(|answer| answer.status == 200)
            && tally.batch(&mut again, 50)?
            && tally.refused.len() == refused
        {
            break;
        }
        ensure!(begun.elapsed() < LONG, "it does not serve again: {:?}", tally.problems);
        thread::sleep(Duration::from_millis(50));
    }
    let tallies = [tally];
    check(&server, &tallies)?;
    server.kill()?;
    check(&Server::start(&launch)?, &tallies)
}

/// The two figures of the kernel for a process: what may be open now, and at most.
fn open_files_limits(process: u32) -> Result<Vec<String>> {
    let limits = std::fs::read_to_string(format!("/proc/{process}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let figures = line.context("the limit of open files")?.split_whitespace();
    Ok(figures.take(2).map(str::to_owned).collect())
}

#[test]
fn idle_connections_leave_the_log_its_descriptors_and_the_limit_is_raised_and_said() -> Result<()> {
    const FILES_MAX: u64 = 400;
    let dir = tempfile::tempdir()?;
    let launch = Launch::new(&dir.path().join("data")).files_max(FILES_MAX);
    let mut server = Server::start(&launch)?;
    server.wait_said("warning: the process may open 400 files, so the server takes 144 connections at once instead of the 4096 configured, and 72 \
     of one address")?;
    let mut tally = open_accounts(&server, 2)?;
    let mut kept = server.connect()?;
    ensure!(kept.get("/healthz").is_ok_and(|answer| answer.status == 200));
    let idle: Vec<_> = (0..2 * FILES_MAX)
        .map(|_| TcpStream::connect(&server.address))
        .collect::<Result<_, _>>()?;
    // The log makes its next files meanwhile.
    for _ in 0..40 {
        ensure!(tally.batch(&mut kept, 1000)?, "the kept connection was cut");
    }
    ensure!(tally.refused.is_empty(), "{:?}", tally.problems);
    let taken = kept.request("POST", "/v1/checkpoints", &[], b"");
    ensure!(taken.is_ok_and(|answer| answer.status == 202), "a checkpoint");
    drop(idle);
    server.kill()?;
    check(&Server::start(&launch)?, &[tally])?;

    // If only the soft limit is low, the server raises it.
    let mut server = Server::start(&Launch::new(&dir.path().join("other")))?;
    let limits = open_files_limits(server.process().id())?;
    ensure!(limits[0] == limits[1], "{limits:?}");
    Ok(())
}
