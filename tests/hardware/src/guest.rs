//! The half that runs in the virtual machine: a recorded disk, the server on it, clients, and marks of what was acknowledged.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use reprise_test_crash::{Connection, Launch, Server};
use serde_json::json;

use crate::model::{Step, step};

pub const CLIENTS: usize = 4;
/// The disk under the server: small, so that its images are quickly copied.
pub const DISK_BYTES: u64 = 192 << 20;
const RECORD_BYTES: u64 = 1800 << 20;
/// Name of the device over the disk.
const DEVICE: &str = "power";
/// The first mark: from here on the database is there.
pub const READY: &str = "ready";

pub struct GuestConfig {
    /// The directory of the record, which is the file `record`.
    pub shared: PathBuf,
    pub seconds: u64,
    pub log: String,
    pub commit: String,
}

/// Loads a server on a recorded disk for a while; leaves the record of all writes in the shared directory.
pub fn run(config: &GuestConfig) -> Result<()> {
    let work = Path::new("/tmp/power");
    fs::create_dir_all(work).context("create the work directory")?;
    shell("mount -t tmpfs -o size=90% tmpfs /tmp/power")?;
    shell("modprobe -a loop ext4 dm_log_writes")?;
    let disk = Disk::make(work)?;
    let answered = load(config, &disk.mounted);
    disk.remove()?;
    answered?;
    let record = work.join("record");
    shell(&format!(
        "cp --sparse=always {} {}/record",
        record.display(),
        config.shared.display()
    ))
}

/// ext4 over a device that records its writes.
struct Disk {
    mounted: PathBuf,
}

impl Disk {
    fn make(work: &Path) -> Result<Self> {
        let mut devices = Vec::new();
        for (name, bytes) in [("disk", DISK_BYTES), ("record", RECORD_BYTES)] {
            let path = work.join(name);
            let file = File::create(&path).context("create a device's file")?;
            file.set_len(bytes).context("size a device's file")?;
            devices.push(output(&format!("losetup -f --show {}", path.display()))?);
        }
        let sectors = DISK_BYTES / 512;
        let table = format!("0 {sectors} log-writes {} {}", devices[0], devices[1]);
        shell(&format!("dmsetup create {DEVICE} --table '{table}' && dmsetup mknodes"))?;
        let mounted = work.join("mounted");
        fs::create_dir_all(&mounted).context("create the mount point")?;
        shell(&format!("mkfs.ext4 -q -E nodiscard /dev/mapper/{DEVICE}"))?;
        shell(&format!("mount /dev/mapper/{DEVICE} {}", mounted.display()))?;
        Ok(Self { mounted })
    }

    /// Unmounts and removes the device. Even without that nothing of the record would be missing, because it has all writes in order.
    fn remove(self) -> Result<()> {
        shell(&format!("umount {} && dmsetup remove {DEVICE}", self.mounted.display()))
    }
}

fn mark(text: &str) -> Result<()> {
    shell(&format!("dmsetup message {DEVICE} 0 mark '{text}'"))
}

fn load(config: &GuestConfig, mounted: &Path) -> Result<()> {
    let args = [
        "--partitions",
        "2",
        "--sites",
        "2",
        "--checkpoint-every",
        "1",
        "--log",
        &config.log,
    ];
    let mut launch = Launch::new(&mounted.join("data")).args(&args);
    if config.commit == "async" {
        launch = launch.args(&["--commit", "async", "--group-commit-us", "1000000"]);
    }
    let mut server = Server::start(&launch)?;
    server.deploy("bank")?;
    mark(READY)?;
    let acknowledged: [AtomicU64; CLIENTS] = Default::default();
    let is_over = AtomicBool::new(false);
    let until = Instant::now() + Duration::from_secs(config.seconds);
    let outcome = thread::scope(|scope| {
        let mut clients = Vec::new();
        for (client, acknowledged) in acknowledged.iter().enumerate() {
            let (address, is_over) = (&server.address, &is_over);
            clients.push(scope.spawn(move || calls(client as u64, address, acknowledged, is_over)));
        }
        let marked = mark_until(until, &acknowledged);
        is_over.store(true, Ordering::Release);
        let called = clients
            .into_iter()
            .map(|client| client.join().expect("a client panicked"));
        marked.and(called.collect::<Result<Vec<_>>>())
    });
    server.kill()?;
    outcome.map(drop)
}

/// Writes marks. A mark has the number of calls that were acknowledged before it was written, never more.
fn mark_until(until: Instant, acknowledged: &[AtomicU64]) -> Result<()> {
    while Instant::now() < until {
        let counts: Vec<_> = acknowledged
            .iter()
            .map(|count| count.load(Ordering::Acquire).to_string())
            .collect();
        mark(&counts.join(","))?;
    }
    Ok(())
}

fn calls(client: u64, address: &str, acknowledged: &AtomicU64, is_over: &AtomicBool) -> Result<()> {
    let mut connection = Connection::open(address).context("connect")?;
    for number in 0.. {
        if is_over.load(Ordering::Acquire) {
            break;
        }
        let (path, args) = match step(client, number) {
            Step::Open { account, balance } => ("open", json!({"account": account, "balance": balance})),
            Step::Transfer { from, to, amount } => ("transfer", json!({"from": from, "to": to, "amount": amount})),
        };
        let headers = [("content-type", "application/json")];
        let path = format!("/v1/call/bank/{path}");
        let answer = connection.request("POST", &path, &headers, args.to_string().as_bytes());
        let answer = answer.map_err(|cut| cut.error).context("call")?;
        ensure!(
            answer.status == 200,
            "call {number} of client {client}: {} {}",
            answer.status,
            answer.text()
        );
        acknowledged.store(number + 1, Ordering::Release);
    }
    Ok(())
}

fn shell(command: &str) -> Result<()> {
    output(command).map(drop)
}

fn output(command: &str) -> Result<String> {
    let output = Command::new("sh").args(["-c", command]).output().context("start sh")?;
    ensure!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
