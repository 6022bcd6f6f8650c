//! Shares of the processors for a primary and its standbys: control groups in which their threads begin.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// Time after which a group has its share anew. A group that used it up waits for at most this time.
const PERIOD: Duration = Duration::from_millis(5);
/// Least share, in thousandths of a core: the system takes no less than a millisecond of a period.
const MILLICORES_MIN: u32 = 200;

/// Thousandths of a core.
#[derive(Clone, Copy, Debug)]
pub struct Quotas {
    /// For the primary, its log and its shipping.
    pub primary: u32,
    /// For each standby, its readers included.
    pub standby: u32,
}

/// `0.8,0.2`: cores for the primary, and for a standby.
pub fn parse(text: &str) -> Result<Quotas, String> {
    let wrong = || {
        format!(
            "takes two numbers of cores from {} on, as 0.8,0.2",
            f64::from(MILLICORES_MIN) / 1e3
        )
    };
    let (primary, standby) = text.split_once(',').ok_or_else(wrong)?;
    let millicores = |cores: &str| {
        let cores: f64 = cores.trim().parse().map_err(|_| wrong())?;
        let millicores = (cores * 1e3).round();
        match millicores >= f64::from(MILLICORES_MIN) && millicores <= 1e6 {
            true => Ok(millicores as u32),
            false => Err(wrong()),
        }
    };
    Ok(Quotas {
        primary: millicores(primary)?,
        standby: millicores(standby)?,
    })
}

/// A control group, which goes with this.
pub struct Group {
    path: PathBuf,
    /// The file that takes a thread's number.
    threads: &'static str,
}

impl Group {
    /// Makes a group with such a share. Err: the system gives none; the user has to be root.
    pub fn new(name: &str, millicores: u32) -> Result<Self> {
        let name = format!("reprise-{}-{name}", std::process::id());
        let (period_us, quota_us) = (PERIOD.as_micros(), PERIOD.as_micros() * u128::from(millicores) / 1000);
        let (first, second) = (Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup"));
        if first.join("tasks").exists() {
            let path = first.join(name);
            make(&path)?;
            let group = Self { path, threads: "tasks" };
            group.write("cpu.cfs_period_us", &period_us.to_string())?;
            group.write("cpu.cfs_quota_us", &quota_us.to_string())?;
            return Ok(group);
        }
        if !second.join("cgroup.controllers").exists() {
            bail!("this system has no control groups for processor time");
        }
        let path = own_group(second)?.join(name);
        make(&path)?;
        let group = Self {
            path,
            threads: "cgroup.threads",
        };
        group.write("cgroup.type", "threaded")?;
        let allow = group.above()?.join("cgroup.subtree_control");
        fs::write(&allow, "+cpu").with_context(|| format!("write to {}", allow.display()))?;
        group.write("cpu.max", &format!("{quota_us} {period_us}"))?;
        Ok(group)
    }

    /// Puts the calling thread into the group. From now on, the threads that it starts are in the group too, and also the threads that these start.
    pub fn enter(&self) -> Result<()> {
        self.write(self.threads, "0")
    }

    /// The calling thread is where the process was.
    pub fn leave(&self) -> Result<()> {
        self.release("0")
    }

    fn release(&self, thread: &str) -> Result<()> {
        let above = self.above()?.join(self.threads);
        fs::write(&above, thread).with_context(|| format!("write to {}", above.display()))
    }

    fn above(&self) -> Result<&Path> {
        self.path.parent().context("a group lies in another one")
    }

    fn write(&self, name: &str, what: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::write(&path, what).with_context(|| format!("write {what} to {}", path.display()))
    }
}

fn make(path: &Path) -> Result<()> {
    fs::create_dir(path).with_context(|| format!("make the control group {}", path.display()))
}

/// In which this process is, of version 2.
fn own_group(root: &Path) -> Result<PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup").context("read the process's control group")?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
    Ok(root.join(own.context("the process has no control group of version 2")?))
}

impl Drop for Group {
    fn drop(&mut self) {
        // The remaining threads are about to end.
        let left = fs::read_to_string(self.path.join(self.threads)).unwrap_or_default();
        for thread in left.lines() {
            let _ = self.release(thread);
        }
        if let Err(error) = fs::remove_dir(&self.path) {
            eprintln!("the control group {} is left behind: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_two_numbers_of_cores() {
        let quotas = parse("0.8, 0.2").expect("two numbers");
        assert_eq!((quotas.primary, quotas.standby), (800, 200));
        for wrong in ["", "1", "0.8;0.2", "0.8,0.1", "0.8,-1", "nan,1", "1e9,1"] {
            let error = parse(wrong).expect_err("refused");
            assert!(error.contains("two numbers of cores"), "{error}");
        }
    }
}
