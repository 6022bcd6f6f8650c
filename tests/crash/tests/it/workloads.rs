//! Short runs of `cargo xtask crash --workload`: a kill under each kind of log, each recovery on another number of sites.

use crate::tell;
use reprise_test_crash::{SCHEMAS, WorkloadConfig, run_schemas, run_workload};

fn config(workload: &str, cycles: u32) -> WorkloadConfig {
    WorkloadConfig {
        workload: workload.into(),
        cycles,
        seed: 7,
        log: None,
        server_args: Vec::new(),
        keeps: true,
    }
}

fn check(workload: &str) {
    tell(run_workload(&config(workload, 3)));
}

#[test]
fn tpcc_keeps_its_conditions() {
    check("tpcc");
}

#[test]
fn tpcb_keeps_its_sums() {
    check("tpcb");
}

#[test]
fn tatp_keeps_its_rows() {
    check("tatp");
}

#[test]
fn tables_that_change_keep_their_rows() {
    let report = tell(run_schemas(&config(SCHEMAS, 9)));
    assert!(report.kills_in_deployment > 0 && report.deployments > 0, "{report}");
}

/// A write acknowledged before it is durable is lost by kill -9, and the counters show it.
#[test]
fn a_loss_is_noticed() {
    let early = ["--commit", "async", "--group-commit-us", "100000"];
    let config = WorkloadConfig {
        server_args: early.map(String::from).into(),
        keeps: false,
        ..config("tpcb", 10)
    };
    let error = match run_workload(&config) {
        Ok(report) => panic!("a server that acknowledges too early passed: {report}"),
        Err(error) => format!("{error:#}"),
    };
    assert!(error.contains("lost: counter"), "it failed for another reason: {error}");
    assert!(
        error.contains("reproduce: cargo xtask crash --workload tpcb"),
        "{error}"
    );
}
