//! The integration tests of `reprise-test-hardware`, in one binary.

// The tests run in the order of these names. The tests that need all processors come last, so no processor is idle before.
mod loss;
mod nvram;
mod power;
mod rdma;

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use reprise_test_crash::{binary, procedure_wasm};

/// The scripts of this package.
fn tools() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The module `bank`, in a file of this directory.
fn bank_in(dir: &Path) -> PathBuf {
    let wasm = dir.join("bank.wasm");
    std::fs::write(&wasm, procedure_wasm("bank").expect("a module")).expect("written");
    wasm
}

/// Runs a script in a virtual machine that has two cards, with the server and a module.
fn run_guest(script: &str, timeout_s: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut vm = Command::new(tools().join("boot-vm"));
    vm.args(["--timeout", timeout_s, "--mem", "2G", "--rdma", "--"]);
    vm.arg(tools().join(script))
        .arg(binary().expect("the server is built"))
        .arg(bank_in(dir.path()));
    check_whole(&vm.stdin(Stdio::null()).output().expect("boot-vm"));
}

fn check_whole(output: &Output) {
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{told}");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("whole"), "{told}{errors}");
}
