//! Runs a command of this machine in a virtual one: same files, another kernel.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result};

pub fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("boot-vm")
}

/// Number of processors that the tests of this program have taken.
static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// Processors of this machine for the virtual machines of one test. A machine that shares its processor is too slow for its clocks.
pub struct Processors(usize);

impl Processors {
    /// Waits for one of them: an emulated machine is one thread.
    pub fn one() -> Self {
        Self::take(1, all_processors())
    }

    /// Waits for all of them: for several machines, or one with leases.
    pub fn all() -> Self {
        let all = all_processors();
        Self::take(all, all)
    }

    fn take(wanted: usize, all: usize) -> Self {
        let mut taken = lock_taken();
        while *taken + wanted > all {
            taken = GIVEN_BACK.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += wanted;
        Self(wanted)
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        *lock_taken() -= self.0;
        GIVEN_BACK.notify_all();
    }
}

fn lock_taken() -> MutexGuard<'static, usize> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn all_processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Checks whether a virtual machine can be started here. Err: the reason why none can.
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
