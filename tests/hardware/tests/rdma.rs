//! A primary and a standby in a virtual machine, over RDMA of the kernel's soft-RoCE: the wire is cut, either is killed.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use reprise_test_crash::{procedure_wasm, skip};
use reprise_test_hardware::{is_available, rdma_server};

#[test]
fn a_standby_follows_over_rdma_is_cut_off_killed_and_takes_over() {
    const NAME: &str = "a_standby_follows_over_rdma_is_cut_off_killed_and_takes_over";
    let reprise = match rdma_server() {
        Ok(path) => path,
        Err(why) => return skip(NAME, &why),
    };
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let wasm = dir.path().join("bank.wasm");
    std::fs::write(&wasm, procedure_wasm("bank").expect("a module")).expect("written");
    let tools = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut vm = Command::new(tools.join("boot-vm"));
    vm.args(["--timeout", "400", "--mem", "2G", "--rdma", "--"]);
    vm.arg(tools.join("rdma-guest")).arg(reprise).arg(&wasm);
    let output = vm.stdin(Stdio::null()).output().expect("boot-vm");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{told}");
    assert!(
        output.status.success() && told.contains("whole"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
