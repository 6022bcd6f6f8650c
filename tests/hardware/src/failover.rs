//! Failovers of three servers over soft-RoCE: the whole of `reprise-test-crash`'s run, in a virtual machine with two cards. Outside and inside are halves
//! of one program.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use reprise_test_crash::{By, FailoverConfig, binary, run_failovers};

use crate::vm::script;

/// Addresses of the machine's cards, which `boot-vm --rdma` makes. A connection to one of them goes out at the other.
const CARDS: [&str; 2] = ["10.77.1.1", "10.77.1.2"];
/// Seconds of one failover at most, and of all other work.
const SECONDS_EACH: u32 = 240;
const SECONDS_BESIDE: u32 = 900;

/// The failovers to run, and their loads.
#[derive(Clone, Debug)]
pub struct RdmaFailovers {
    pub by_hand: u32,
    /// Behind those by hand, on a database of their own.
    pub by_lease: u32,
    pub safety: String,
    pub device: String,
    pub seed: u64,
}

/// Boots the machine, and has `program` run its half there. Its output is printed here.
pub fn run(program: &Path, failovers: &RdmaFailovers) -> Result<()> {
    let server = binary()?;
    let procedures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/procedures");
    let count = failovers.by_hand + failovers.by_lease;
    ensure!(count > 0, "say how many: --by-hand N, --by-lease N");
    let seconds = SECONDS_BESIDE + count * SECONDS_EACH;
    let mut vm = Command::new(script());
    vm.args(["--mem", "3G", "--rdma", "--timeout", &seconds.to_string()]);
    for (name, path) in [("REPRISE_BIN", &server), ("REPRISE_PROCEDURES", &procedures)] {
        vm.args(["--env", &format!("{name}={}", path.display())]);
    }
    vm.arg("--").arg(program).arg("--guest");
    vm.args(["--by-hand", &failovers.by_hand.to_string()]);
    vm.args(["--by-lease", &failovers.by_lease.to_string()]);
    vm.args(["--safety", &failovers.safety, "--device", &failovers.device]);
    vm.args(["--seed", &failovers.seed.to_string()]);
    let status = vm.stdin(Stdio::null()).status().context("run boot-vm")?;
    match status.success() {
        true => Ok(()),
        false => bail!("the virtual machine ended with {status}"),
    }
}

/// The half in the machine: all failovers, and nothing of either card is left at the end.
pub fn run_guest(failovers: &RdmaFailovers) -> Result<()> {
    for (by, count) in [(By::Hand, failovers.by_hand), (By::Lease, failovers.by_lease)] {
        if count == 0 {
            continue;
        }
        let config = FailoverConfig {
            safety: failovers.safety.clone(),
            device: failovers.device.clone(),
            cards: CARDS.map(str::to_owned).into(),
            tells: true,
            // The machine's files are gone with it.
            keeps: false,
            ..FailoverConfig::new(by, count, failovers.seed)
        };
        println!("{}", run_failovers(&config)?);
        check_cards()?;
    }
    println!("whole");
    Ok(())
}

/// The kernel counts no queue pair and no region that was not given back: each card has one pair and one queue of its own.
fn check_cards() -> Result<()> {
    let shown = Command::new("rdma").args(["resource", "show"]).output();
    let shown = shown.context("run rdma")?;
    let told = String::from_utf8_lossy(&shown.stdout).into_owned();
    let cards: Vec<&str> = told.lines().filter(|line| line.contains("rxe")).collect();
    let is_free = |line: &&str| {
        ["cq 1 ", "qp 1 ", "mr 0 "]
            .iter()
            .all(|part| format!("{line} ").contains(part))
    };
    ensure!(
        cards.len() == CARDS.len() && cards.iter().all(is_free),
        "not all was given back: {told}"
    );
    Ok(())
}
