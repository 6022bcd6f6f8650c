//! Memory that is made ready before the database takes calls, so that the kernel need not clear pages while tables grow. The request is
//! limited by the memory that the machine, and the process's control group, still have.

use std::{fs, path::Path, thread};

use reprise_pages::{NotReady, keep_ready};

/// Why memory could not be made ready.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error(
        "{} MiB of memory can't be kept ready: {bound} has {} MiB left. Ask for less, or give it more",
        .asked.div_ceil(MIB), .left / MIB
    )]
    TooMuch { asked: u64, left: u64, bound: MemoryBound },
    #[error("of {} MiB of memory the system gave {} to be kept ready, and then none. Ask for less", .asked.div_ceil(MIB), .made / MIB)]
    Refused { asked: u64, made: u64 },
    #[error("the system gave no thread to make memory ready")]
    Thread,
}

const MIB: u64 = 1 << 20;

/// The limit that decides how much memory is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryBound {
    Machine,
    ControlGroup,
}

impl std::fmt::Display for MemoryBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Machine => "the machine",
            Self::ControlGroup => "the control group of this process",
        })
    }
}

/// Refuses more bytes than there are. Memory that is ready already counts as part of the request.
pub fn check_memory(bytes: u64) -> Result<(), MemoryError> {
    let missing = bytes.saturating_sub(reprise_pages::ready_bytes() as u64);
    check_against(missing, left_under(Path::new("/")))
}

/// Returns four fifths of the memory that the machine has, or the process's control group if that is less. No limit if neither number is
/// known.
pub fn memory_max_default() -> u64 {
    total_under(Path::new("/")).map_or(u64::MAX, |bytes| bytes / 5 * 4)
}

fn check_against(asked: u64, left: Option<(u64, MemoryBound)>) -> Result<(), MemoryError> {
    match left {
        Some((left, bound)) if asked > left => Err(MemoryError::TooMuch { asked, left, bound }),
        _ => Ok(()),
    }
}

/// Makes `bytes` of memory ready on all cores, and keeps them ready in this process; 0: none.
pub fn keep_memory_ready(bytes: u64) -> Result<(), MemoryError> {
    if bytes == 0 {
        return Ok(());
    }
    check_memory(bytes)?;
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get());
    keep_ready(bytes as usize, threads).map_err(|error| match error {
        NotReady::Thread => MemoryError::Thread,
        NotReady::Memory(made) => MemoryError::Refused {
            asked: bytes,
            made: made as u64,
        },
    })
}

/// Returns the bytes that are left, and which limit says so. None: the system does not say. `root` is the folder of the system's files.
fn left_under(root: &Path) -> Option<(u64, MemoryBound)> {
    let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let of_machine = number_behind(&info, "MemAvailable:").map(|kib| (kib << 10, MemoryBound::Machine));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| left_in_group(root, line));
    let of_groups = of_groups.map(|left| (left, MemoryBound::ControlGroup));
    of_machine.into_iter().chain(of_groups).min_by_key(|(left, _)| *left)
}

/// Returns the memory of the machine, or that of the smallest control group around this process.
fn total_under(root: &Path) -> Option<u64> {
    let info = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let of_machine = number_behind(&info, "MemTotal:").map(|kib| kib << 10);
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| least_in_groups(root, line, limit_of));
    of_machine.into_iter().chain(of_groups).min()
}

fn left_in_group(root: &Path, line: &str) -> Option<u64> {
    least_in_groups(root, line, left_of)
}

/// Returns the least number on the path of a group; `line` is `ID:CONTROLLERS:PATH`. A group has no more memory than the groups above it.
fn least_in_groups(root: &Path, line: &str, bytes_of: fn(&Path, [&str; 3]) -> Option<u64>) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (mount, names) = match controllers {
        "" => ("sys/fs/cgroup", ["memory.max", "memory.current", "inactive_file"]),
        _ if controllers.split(',').any(|name| name == "memory") => (
            "sys/fs/cgroup/memory",
            ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
        ),
        _ => return None,
    };
    let mount = root.join(mount);
    let group = mount.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(&mount));
    groups.filter_map(|group| bytes_of(group, names)).min()
}

/// Returns the limit of a group. The word `max` means none.
fn limit_of(group: &Path, [limit, ..]: [&str; 3]) -> Option<u64> {
    fs::read_to_string(group.join(limit)).ok()?.trim().parse().ok()
}

/// Returns the memory left in one group. The system drops the group's unused file pages before it refuses memory.
fn left_of(group: &Path, names: [&str; 3]) -> Option<u64> {
    let [_, used, idle] = names;
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let limit = limit_of(group, names)?;
    let used: u64 = read(used)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let idle = number_behind(&stat, idle).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(idle)))
}

/// Returns the number behind `name` at the beginning of a line.
fn number_behind(text: &str, name: &str) -> Option<u64> {
    let of_line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    };
    text.lines().find_map(of_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn free_memory_is_the_least_of_machine_and_groups() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        assert_eq!(left_under(root), None);
        write(root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        assert_eq!(left_under(root), Some((8000 << 10, MemoryBound::Machine)));

        write(root, "proc/self/cgroup", "1:cpu,memory:/a\n0::/apps/db\nnonsense\n");
        write(root, "sys/fs/cgroup/apps/db/memory.max", "max\n");
        write(root, "sys/fs/cgroup/apps/db/memory.current", "5\n");
        assert_eq!(left_under(root), Some((8000 << 10, MemoryBound::Machine)));
        write(root, "sys/fs/cgroup/apps/memory.max", "5000000\n");
        write(root, "sys/fs/cgroup/apps/memory.current", "3000000\n");
        assert_eq!(left_under(root), Some((2_000_000, MemoryBound::ControlGroup)));
        write(root, "sys/fs/cgroup/apps/memory.stat", "anon 7\ninactive_file 500000\n");
        assert_eq!(left_under(root), Some((2_500_000, MemoryBound::ControlGroup)));

        write(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n");
        write(root, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2000\n");
        assert_eq!(left_under(root), Some((0, MemoryBound::ControlGroup)));
    }

    #[test]
    fn total_memory_is_the_least_of_machine_and_groups() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        assert_eq!(total_under(root), None);
        write(root, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        write(root, "proc/self/cgroup", "1:cpu,memory:/a\n0::/apps/db\n");
        assert_eq!(total_under(root), Some(9000 << 10));
        write(root, "sys/fs/cgroup/apps/db/memory.max", "max\n");
        write(root, "sys/fs/cgroup/apps/memory.max", "5000000\n");
        assert_eq!(total_under(root), Some(5_000_000));
        write(root, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4000000\n");
        assert_eq!(total_under(root), Some(4_000_000));
        assert!(memory_max_default() > 0);
    }

    #[test]
    fn too_much_is_refused_and_said_of_whom() {
        let left = Some((64 * MIB, MemoryBound::ControlGroup));
        assert_eq!(check_against(64 * MIB, left), Ok(()));
        let refused = check_against(64 * MIB + 1, left).expect_err("more than there is");
        assert_eq!(
            refused.to_string(),
            "65 MiB of memory can't be kept ready: the control group of this process has 64 MiB left. Ask for less, or give it more"
        );
        assert_eq!(check_against(u64::MAX, None), Ok(()));
        assert!(keep_memory_ready(1 << 60).is_err());
    }
}
