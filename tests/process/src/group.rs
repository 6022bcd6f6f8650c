//! Control groups with little memory, where this user may make them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A control group with this many bytes of memory. Its drop removes it.
pub struct Group {
    pub path: PathBuf,
    events: &'static str,
}

impl Group {
    /// Makes a group. None: this user can't make one.
    pub fn new(name: &str, bytes: u64) -> Option<Self> {
        let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let (root, limit, events) = match v2 {
            true => ("/sys/fs/cgroup", "memory.max", "memory.events"),
            false => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
        };
        if v2 {
            fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory").ok()?;
        }
        let path = Path::new(root).join(format!("reprise-{name}-{}", std::process::id()));
        let group = Self { path, events };
        fs::create_dir(&group.path).ok()?;
        fs::write(group.path.join(limit), bytes.to_string()).ok()?;
        // Swap would hide the effect under test. A machine without swap has no such file.
        let _ = fs::write(group.path.join("memory.swap.max"), "0");
        Some(group)
    }

    /// Processes that the kernel killed for want of memory.
    pub fn kills(&self) -> u64 {
        let told = fs::read_to_string(self.path.join(self.events)).unwrap_or_default();
        let counts = told.lines().filter_map(|line| line.strip_prefix("oom_kill "));
        counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path); // its processes have ended
    }
}
