//! A primary at 2-safe and a standby in a virtual machine, over TCP on a wire that is late, loses, repeats and swaps packets.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use reprise_test_crash::{binary, procedure_wasm, skip};
use reprise_test_hardware::{alone, is_available};

#[test]
fn nothing_acknowledged_at_2_safe_is_lost_on_a_wire_that_loses_packets() {
    const NAME: &str = "nothing_acknowledged_at_2_safe_is_lost_on_a_wire_that_loses_packets";
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    let _alone = alone();
    let reprise = binary().expect("the server is built");
    let dir = tempfile::tempdir().expect("a directory");
    let wasm = dir.path().join("bank.wasm");
    std::fs::write(&wasm, procedure_wasm("bank").expect("a module")).expect("written");
    let tools = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut vm = Command::new(tools.join("boot-vm"));
    vm.args(["--timeout", "900", "--mem", "2G", "--rdma", "--"]);
    vm.arg(tools.join("loss-guest")).arg(reprise).arg(&wasm);
    let output = vm.stdin(Stdio::null()).output().expect("boot-vm");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    println!("{told}");
    assert!(
        output.status.success() && told.contains("whole"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
