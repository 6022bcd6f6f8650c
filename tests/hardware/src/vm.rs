//! Runs a command of this machine in a virtual one: same files, another kernel.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};

pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("boot-vm")
}

/// One test of a program at a time: machines beside each other are too slow, and each takes gigabytes.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Err: why no virtual machine can be started here.
pub fn is_available() -> Result<(), String> {
    let fetched = Command::new(script()).arg("--fetch").stdin(Stdio::null()).output();
    match fetched {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("start {}: {error}", script().display())),
    }
}

/// Runs `command` in a virtual machine that may write `shared`.
pub fn run(shared: &Path, seconds_max: u64, environment: &[(&str, String)], command: &[String]) -> Result<Output> {
    let mut vm = Command::new(script());
    vm.args(["--mem", "3G", "--timeout", &seconds_max.to_string()]);
    vm.arg("--rw").arg(shared);
    for (name, value) in environment {
        vm.args(["--env", &format!("{name}={value}")]);
    }
    vm.arg("--").args(command).stdin(Stdio::null());
    vm.output().with_context(|| format!("run {}", script().display()))
}
