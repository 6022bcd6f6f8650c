//! A server in a virtual machine whose commits wait for an emulated NVDIMM, by cache lines: its power goes, and what it answered is there.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use reprise_test_crash::{binary, procedure_wasm, skip};
use reprise_test_hardware::is_available;

const ACCOUNTS: &str = "12";

fn boot(dir: &Path, kill_on: Option<&str>, command: &[&str]) -> Output {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut vm = Command::new(tools.join("boot-vm"));
    vm.args(["--timeout", "400", "--mem", "2G", "--pmem"]);
    vm.arg(format!("{}:256M", dir.join("nvdimm").display()));
    if let Some(text) = kill_on {
        vm.args(["--kill-on", text]);
    }
    vm.arg("--").arg(tools.join("nvram-guest")).args(command);
    vm.stdin(Stdio::null()).output().expect("boot-vm")
}

#[test]
fn what_was_answered_from_an_nvdimm_outlives_a_power_failure() {
    const NAME: &str = "what_was_answered_from_an_nvdimm_outlives_a_power_failure";
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    for (log, flush) in [
        ("command", "commit"),
        ("physiological", "insert"),
        ("physiological", "insert-fence"),
    ] {
        outlives(log, flush);
    }
}

fn outlives(log: &str, flush: &str) {
    let dir = tempfile::tempdir().expect("a directory");
    let reprise = binary().expect("the server");
    let (reprise, wasm) = (reprise.display().to_string(), dir.path().join("bank.wasm"));
    std::fs::write(&wasm, procedure_wasm("bank").expect("a module")).expect("written");
    let wasm = wasm.display().to_string();
    let last = format!("acknowledged {ACCOUNTS}");
    let loaded = boot(
        dir.path(),
        Some(&last),
        &["load", &reprise, log, flush, &wasm, ACCOUNTS],
    );
    let told = String::from_utf8_lossy(&loaded.stdout).into_owned();
    assert!(
        told.contains(&last),
        "{told}{}",
        String::from_utf8_lossy(&loaded.stderr)
    );
    let checked = boot(dir.path(), None, &["check", &reprise, log, flush, ACCOUNTS]);
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        told.contains("whole"),
        "{told}{}",
        String::from_utf8_lossy(&checked.stderr)
    );
}
