//! Checks of this machine for faults that would hurt a server, with the remedies.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use clap::Args;
use reprise_codec::hex;
use reprise_env::entropy;
use reprise_http::ConnectionLimits;
use serde::Serialize;

use crate::{
    cli::Output,
    config::place::nearest_directory,
    descriptors,
    output::{VerbFailure, VerbResult, bytes, print_json, print_text, wrapped},
};

mod rdma;

pub const EXAMPLE: &str = "Examples:
  reprise doctor
  reprise doctor --data-dir /var/lib/reprise --output json

Exit status 1 if a finding would lose data or keep a server from running.";

#[derive(Args)]
pub struct DoctorArgs {
    /// Data directory of the server, which need not exist yet. The check writes and syncs a small file there, and removes it
    #[arg(long, value_name = "DIR", default_value = "./reprise-data")]
    pub data_dir: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Good,
    /// It costs speed, or will do harm under more load.
    Warning,
    /// Data would be lost, or a server would not run.
    Bad,
}

#[derive(Debug, Serialize)]
struct Finding {
    subject: &'static str,
    state: State,
    found: String,
    /// The remedy. None if nothing needs one.
    mend: Option<String>,
}

impl Finding {
    fn good(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            state: State::Good,
            found: found.into(),
            mend: None,
        }
    }

    fn warning(subject: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            state: State::Warning,
            mend: Some(mend.into()),
            ..Self::good(subject, found)
        }
    }

    fn bad(subject: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            state: State::Bad,
            ..Self::warning(subject, found, mend)
        }
    }
}

/// The limit of Linux if it was not changed.
const MAPPINGS_USUAL: u64 = 65_530;
const MEMORY_FEW_BYTES: u64 = 1 << 30;
const DISK_FEW_BYTES: u64 = 10 << 30;
/// Time of a durable write beyond which every single call is slow, because a commit waits for one write.
const SYNC_SLOW: Duration = Duration::from_millis(5);
const SYNC_TRIES: usize = 15;

pub fn run(args: &DoctorArgs, output: Output) -> VerbResult {
    let machine = Machine {
        root: PathBuf::from("/"),
    };
    let findings = machine.examine(&args.data_dir);
    match output {
        Output::Json => print_json(&serde_json::json!({ "findings": findings }))?,
        Output::Text => print_text(&text(&findings))?,
    }
    match findings.iter().any(|finding| finding.state == State::Bad) {
        false => Ok(()),
        true => Err(VerbFailure::No),
    }
}

fn text(findings: &[Finding]) -> String {
    let mut lines = Vec::new();
    for finding in findings {
        let state = match finding.state {
            State::Good => "good",
            State::Warning => "WARNING",
            State::Bad => "BAD",
        };
        lines.push(format!("{:<12} {state:<8} {}", finding.subject, finding.found));
        lines.extend(finding.mend.iter().map(|mend| wrapped(mend, 4)));
    }
    lines.join("\n")
}

/// The root of the kernel's files: `/`, except in tests.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn examine(&self, data_dir: &Path) -> Vec<Finding> {
        let mut findings = vec![
            self.open_files(),
            self.mappings(),
            self.overcommit(),
            memory(),
            self.swap(),
            self.huge_pages(),
            self.file_system(data_dir),
        ];
        findings.extend(disk_room(data_dir));
        findings.extend(sync_time(data_dir));
        findings.extend([self.clock(), self.governor(), self.nvram()]);
        findings.extend(rdma::examine(self));
        findings
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let listed = fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> = listed
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn open_files(&self) -> Finding {
        let subject = "open files";
        let limits = self.read("proc/self/limits").unwrap_or_default();
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
        // A server raises its limit to the second figure, the hard one.
        let hard = line.and_then(|line| line.split_whitespace().nth(1));
        let connections = ConnectionLimits::default().connections_max;
        let wanted = u64::from(connections) + descriptors::OWN;
        match hard.map(|hard| (hard, hard.parse::<u64>())) {
            Some((_, Ok(count))) if count < wanted => Finding::warning(
                subject,
                format!("a process may open {count}: too few for {connections} connections and the server's own files"),
                "run `ulimit -Hn 65536` before the server starts, or set LimitNOFILE=65536 in its systemd unit",
            ),
            Some((limit, _)) => Finding::good(subject, format!("a process may open {limit}")),
            None => Finding::good(subject, "unknown: the machine does not report the limit"),
        }
    }

    fn mappings(&self) -> Finding {
        let subject = "mappings";
        match self.number("proc/sys/vm/max_map_count") {
            Some(count) if count < MAPPINGS_USUAL => Finding::warning(
                subject,
                format!("{count} for each process: large tables and many module instances need more"),
                format!("run `sysctl -w vm.max_map_count={MAPPINGS_USUAL}`"),
            ),
            Some(count) => Finding::good(subject, format!("{count} for each process")),
            None => Finding::good(subject, "unknown: the machine does not report the limit"),
        }
    }

    fn overcommit(&self) -> Finding {
        let subject = "overcommit";
        match self.number("proc/sys/vm/overcommit_memory") {
            Some(2) => Finding::warning(
                subject,
                "the kernel counts address space as memory, and the server reserves far more for modules than it uses",
                "run `sysctl -w vm.overcommit_memory=0`",
            ),
            _ => Finding::good(subject, "the kernel does not count address space as memory"),
        }
    }

    fn swap(&self) -> Finding {
        let subject = "swap";
        let swaps = self.read("proc/swaps").unwrap_or_default();
        match swaps.lines().count() > 1 {
            true => Finding::warning(
                subject,
                "swap is on: a call waits milliseconds for each row that the kernel swapped out",
                "run `swapoff -a`, or `sysctl -w vm.swappiness=1`",
            ),
            false => Finding::good(subject, "none"),
        }
    }

    fn huge_pages(&self) -> Finding {
        let subject = "huge pages";
        let mode = self
            .read("sys/kernel/mm/transparent_hugepage/enabled")
            .unwrap_or_default();
        match mode.contains("[never]") {
            true => Finding::warning(
                subject,
                "off (never): look-ups in large tables miss the TLB",
                "run `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
            ),
            false => Finding::good(subject, "available on request"),
        }
    }

    /// Returns the file system of a path, by the mount with the longest matching prefix.
    fn file_system_of(&self, path: &Path) -> Option<String> {
        let mounts = self.read("proc/self/mountinfo")?;
        let place_and_kind = |line: &str| {
            let place = line.split(' ').nth(4)?.to_owned();
            let kind = line.split(" - ").nth(1)?.split(' ').next()?.to_owned();
            Some((place, kind))
        };
        let found = mounts.lines().filter_map(place_and_kind);
        let found = found.filter(|(place, _)| path.starts_with(place));
        // The later of two mounts at one place hides the earlier one.
        found.max_by_key(|(place, _)| place.len()).map(|(_, kind)| kind)
    }

    fn file_system(&self, data_dir: &Path) -> Finding {
        let subject = "data";
        let place = fs::canonicalize(nearest_directory(data_dir)).unwrap_or_else(|_| data_dir.to_owned());
        let shown = place.display();
        match self.file_system_of(&place).as_deref() {
            Some(kind @ ("tmpfs" | "ramfs")) => Finding::bad(
                subject,
                format!("{shown} is in memory ({kind}): its files are lost when the machine restarts"),
                "choose a --data-dir on a disk",
            ),
            Some(kind @ ("nfs" | "nfs4" | "cifs" | "smb3" | "fuse")) => Finding::warning(
                subject,
                format!("{shown} is on another machine ({kind}): each commit waits for the network"),
                "choose a --data-dir on a disk of this machine",
            ),
            Some(kind @ "overlay") => Finding::warning(
                subject,
                format!("{shown} is inside a container ({kind}): its files are lost with the container"),
                "choose a --data-dir on a volume",
            ),
            Some(kind) => Finding::good(subject, format!("{shown} on {kind}")),
            None => Finding::good(subject, format!("{shown} on an unknown file system")),
        }
    }

    fn clock(&self) -> Finding {
        let subject = "clock";
        let source = self.read("sys/devices/system/clocksource/clocksource0/current_clocksource");
        let source = source.unwrap_or_default();
        let keeps = [
            "run/systemd/timesync/synchronized",
            "run/chrony",
            "run/ntpd.pid",
            "run/openntpd",
        ];
        match (source.trim(), keeps.iter().any(|path| self.root.join(path).exists())) {
            (slow @ ("hpet" | "acpi_pm" | "jiffies"), _) => Finding::warning(
                subject,
                format!("the kernel reads it from {slow}, which takes about 1 µs each time"),
                "if the processor has a steady TSC, add clocksource=tsc to the kernel's command line",
            ),
            (_, false) => Finding::warning(
                subject,
                "no time service found: the clock sets the times of transactions, and so the points of time that you can restore",
                "install chrony or systemd-timesyncd",
            ),
            (source, true) => Finding::good(subject, format!("{source}, with a time service")),
        }
    }

    fn governor(&self) -> Finding {
        let subject = "processor";
        let setting = self
            .read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
            .unwrap_or_default();
        match setting.trim() {
            "powersave" => Finding::warning(
                subject,
                "the frequency governor is powersave, which keeps the processor slow",
                "run `cpupower frequency-set -g performance`",
            ),
            "" => Finding::good(subject, "this machine has no frequency governor"),
            other => Finding::good(subject, format!("the frequency governor is {other}")),
        }
    }

    fn nvram(&self) -> Finding {
        let subject = "nvram";
        let devices = self
            .names("dev")
            .into_iter()
            .filter(|name| name.starts_with("dax") || name.starts_with("pmem"));
        let devices: Vec<_> = devices.collect();
        match (devices.is_empty(), reprise_nvram::library()) {
            (true, Ok(())) => Finding::good(subject, "no device; libpmem is installed"),
            (true, Err(_)) => Finding::good(subject, "no device and no libpmem: --device nvram can't run here"),
            (false, Ok(())) => Finding::good(subject, devices.join(", ")),
            (false, Err(error)) => Finding::warning(subject, devices.join(", "), error.to_string()),
        }
    }
}

fn memory() -> Finding {
    let max = reprise_database::memory_max_default();
    let found = format!("{} by default (--memory-max)", bytes(max));
    match max < MEMORY_FEW_BYTES {
        true => Finding::warning(
            "memory",
            found,
            "use a machine or control group with more than 1.25 GiB",
        ),
        false => Finding::good("memory", found),
    }
}

fn disk_room(data_dir: &Path) -> Option<Finding> {
    let stats = rustix::fs::statvfs(nearest_directory(data_dir)).ok()?;
    let free = stats.f_bavail.saturating_mul(stats.f_frsize);
    let found = format!("{} free for log, checkpoints and backups", bytes(free));
    Some(match free < DISK_FEW_BYTES {
        true => Finding::warning(
            "disk",
            found,
            "provide 10 GiB or more: the server refuses writes when the disk is full",
        ),
        false => Finding::good("disk", found),
    })
}

/// Times durable writes to a file in the folder, and removes the file. Its name is random, because a run that was killed leaves its file.
/// A file without a name would leave nothing, but some file systems sync such a file in another way.
fn time_writes(folder: &Path) -> io::Result<Vec<Duration>> {
    let path = folder.join(format!(".reprise-doctor-{}", hex(&entropy::<8>()?)));
    let mut file = File::create_new(&path)?;
    let mut times = Vec::new();
    let mut write = || -> io::Result<()> {
        file.write_all(&[0; 4096])?;
        let begun = Instant::now();
        file.sync_data()?;
        times.push(begun.elapsed());
        Ok(())
    };
    let written = (0..SYNC_TRIES).try_for_each(|_| write());
    let _ = fs::remove_file(&path); // the file is small, and no later run needs its name
    written.map(|()| times)
}

fn remedy_of_write(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "give the server's user write permission there",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space there, raise the quota, or choose a --data-dir on a larger disk"
        }
        io::ErrorKind::ReadOnlyFilesystem => "mount the file system for writing, or choose another --data-dir",
        _ => "read the kernel's messages about this disk (`dmesg`), or choose a --data-dir on another one",
    }
}

/// Measures how long a write takes until it is durable: the median of some. None if nothing can be written there yet.
fn sync_time(data_dir: &Path) -> Option<Finding> {
    let folder = nearest_directory(data_dir);
    let mut times = match time_writes(&folder) {
        Ok(times) => times,
        Err(error) => {
            let found = format!("{}: {error}", folder.display());
            return Some(Finding::bad("writes", found, remedy_of_write(&error)));
        }
    };
    times.sort();
    let median = *times.get(SYNC_TRIES / 2)?;
    let found = format!(
        "durable after {:.2} ms (median of {SYNC_TRIES})",
        median.as_secs_f64() * 1e3
    );
    Some(match median > SYNC_SLOW {
        true => Finding::warning(
            "writes",
            found,
            "use a disk whose write cache survives power loss, or --commit async",
        ),
        false => Finding::good("writes", found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let dir = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        let root = dir.path().to_owned();
        (dir, Machine { root })
    }

    #[test]
    fn problems_are_reported_with_their_remedy() {
        let (_dir, sick) = machine(&[
            (
                "proc/self/limits",
                "Limit   Soft   Hard\nMax open files            1024                 4096                 files\n",
            ),
            ("proc/sys/vm/max_map_count", "1000\n"),
            ("proc/sys/vm/overcommit_memory", "2\n"),
            ("proc/swaps", "Filename Type\n/swapfile file\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource",
                "hpet\n",
            ),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
        ]);
        let found = [
            sick.open_files(),
            sick.mappings(),
            sick.overcommit(),
            sick.swap(),
            sick.huge_pages(),
            sick.clock(),
            sick.governor(),
        ];
        for finding in &found {
            assert_eq!(finding.state, State::Warning, "{finding:?}");
            assert!(finding.mend.is_some());
        }
        let shown = text(&found);
        assert!(
            shown.contains("WARNING") && shown.contains("LimitNOFILE") && shown.contains("vm.max_map_count"),
            "{shown}"
        );
    }

    #[test]
    fn unknown_values_are_no_problem() {
        let (_dir, silent) = machine(&[("run/chrony", "")]);
        for finding in [
            silent.open_files(),
            silent.mappings(),
            silent.overcommit(),
            silent.swap(),
            silent.huge_pages(),
            silent.clock(),
            silent.governor(),
            silent.file_system(Path::new("/")),
        ] {
            assert_eq!(finding.state, State::Good, "{finding:?}");
        }
    }

    #[test]
    fn data_in_memory_is_bad() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:26 / /dev/shm rw - tmpfs tmpfs rw\n31 22 0:30 / /mnt rw - nfs4 host:/x rw\n";
        let (_dir, machine) = machine(&[("proc/self/mountinfo", mounts)]);
        let of = |path: &str| machine.file_system_of(Path::new(path));
        assert_eq!(of("/dev/shm/data").as_deref(), Some("tmpfs"));
        assert_eq!(of("/dev/shmem").as_deref(), Some("ext4"));
        assert_eq!(of("/mnt/a/b").as_deref(), Some("nfs4"));
        if Path::new("/dev/shm").is_dir() {
            assert_eq!(machine.file_system(Path::new("/dev/shm/none-yet")).state, State::Bad);
        }
    }

    #[test]
    fn writes_are_timed_where_the_data_will_lie_and_leave_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let finding = sync_time(&dir.path().join("a/b")).expect("written");
        assert!(finding.found.contains("durable after"), "{finding:?}");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
        assert!(disk_room(dir.path()).is_some());
        // A killed run of an earlier version left its file.
        fs::write(dir.path().join(".reprise-doctor"), "left").expect("written");
        for _ in 0..2 {
            let finding = sync_time(dir.path()).expect("written");
            assert!(finding.found.contains("durable after"), "{finding:?}");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
        let nowhere = sync_time(Path::new("/proc/none")).expect("told");
        assert_eq!(nowhere.state, State::Bad, "{nowhere:?}");
    }

    #[test]
    fn a_failed_write_gets_the_remedy_of_its_error() {
        for (kind, remedy) in [
            (io::ErrorKind::PermissionDenied, "write permission"),
            (io::ErrorKind::StorageFull, "free space"),
            (io::ErrorKind::QuotaExceeded, "raise the quota"),
            (io::ErrorKind::ReadOnlyFilesystem, "mount the file system"),
            (io::ErrorKind::Other, "dmesg"),
        ] {
            let said = remedy_of_write(&io::Error::from(kind));
            assert!(said.contains(remedy), "{kind}: {said}");
            assert_eq!(
                said.contains("permission"),
                kind == io::ErrorKind::PermissionDenied,
                "{kind}"
            );
        }
    }
}
