//! A primary and a standby in a virtual machine, over RDMA of the kernel's soft-RoCE: the wire is cut, either is killed.

use std::process::{Child, Command, Stdio};

use crate::{bank_in, check_whole, run_guest, tools};
use reprise_test_crash::{binary, has_etcd, skip};
use reprise_test_hardware::{Processors, is_available};

#[test]
fn a_standby_follows_over_rdma_is_cut_off_killed_and_takes_over() {
    const NAME: &str = "a_standby_follows_over_rdma_is_cut_off_killed_and_takes_over";
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    let _processor = Processors::one();
    run_guest("rdma-guest", "1800");
}

/// Ends with the test.
struct Machine(Option<Child>);

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(vm) = &mut self.0 {
            // The script ends the machine that it started.
            let _ = Command::new("kill").arg(vm.id().to_string()).status();
            let _ = vm.wait();
        }
    }
}

/// The standby's machine loses its power and comes back, then the primary's does. All writes acknowledged at 2-safe are there.
#[test]
fn two_machines_lose_their_power_one_after_the_other() {
    const NAME: &str = "two_machines_lose_their_power_one_after_the_other";
    if let Err(why) = is_available() {
        return skip(NAME, &why);
    }
    let reprise = binary().expect("the server");
    let _processors = Processors::all();
    // A socket's path is short.
    let dir = tempfile::Builder::new()
        .prefix("rdma")
        .tempdir_in("/tmp")
        .expect("a directory");
    let wasm = bank_in(dir.path());
    let start = |side: &str, kill_on: Option<&str>, role: &str, last: &str| {
        let mut vm = Command::new(tools().join("boot-vm"));
        vm.args(["--timeout", "1800", "--mem", "1G", "--cpus", "1", "--rdma"]);
        let path = |name: String| dir.path().join(name).display().to_string();
        vm.args(["--link", &path(format!("link:{side}"))]);
        vm.args(["--pmem", &path(format!("{side}.img:256M"))]);
        vm.args(kill_on.map(|text| ["--kill-on", text]).into_iter().flatten());
        vm.arg("--")
            .arg(tools().join("rdma-pair"))
            .arg(role)
            .arg(&reprise)
            .arg(last);
        let vm = vm.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Machine(Some(vm.spawn().expect("boot-vm")))
    };
    let ended = |mut machine: Machine, code: i32, text: &str| {
        let vm = machine.0.take().expect("it was started");
        let output = vm.wait_with_output().expect("it ends");
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        println!("{told}");
        let is_so = output.status.code() == Some(code) && told.contains(text);
        assert!(
            is_so,
            "{:?} {told}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    };
    std::fs::create_dir(dir.path().join("link")).expect("made");
    let primary = start("a", Some("acknowledged 24"), "primary", &wasm.to_string_lossy());
    let standby = start("b", Some("it holds account 8"), "standby", "8");
    ended(standby, 137, "it holds account 8");
    let standby = start("b", None, "takeover", "24");
    ended(primary, 137, "acknowledged 24");
    ended(standby, 0, "whole");
}

/// A standby is killed, then the primary stands still beyond its lease, while its card continues.
const FAILOVER_SEED: &str = "2";

/// A short run of what `cargo xtask failover --rdma` does for long, by lease and under load: each acknowledged call is there once.
#[test]
fn nothing_answered_is_lost_by_failovers_over_rdma() {
    const NAME: &str = "nothing_answered_is_lost_by_failovers_over_rdma";
    if let Err(why) = has_etcd().and_then(|()| is_available()) {
        return skip(NAME, &why);
    }
    let _processors = Processors::all();
    let mut failovers = Command::new(env!("CARGO_BIN_EXE_rdma-failover"));
    failovers.args(["--by-lease", "1", "--seed", FAILOVER_SEED]);
    check_whole(&failovers.stdin(Stdio::null()).output().expect("rdma-failover"));
}
