//! Each figure is drawn: a short run with every log, whose workload checks what it left.

use std::{fs, path::Path, process::Command};

/// Runs the program; what it printed, or told.
fn figures(args: &[&str]) -> Result<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise-bench-command-logging"));
    command.arg("--modules").arg(root.join("target/procedures")).args(args);
    let output = command.output().expect("it starts");
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(told(&output.stdout)),
        false => Err(told(&output.stderr)),
    }
}

/// Draws figures shortly, and looks for these files and their series.
fn check_drawn(asked: &[&str], expected: &[(&str, &[&str])]) {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, place) = (dir.path().join("figures"), dir.path().join("place"));
    fs::create_dir(&place).expect("a directory");
    let (out_text, place_text) = (out.to_str().expect("text"), place.to_str().expect("text"));
    let mut args = vec!["--short", "--build", "a test", "--out", out_text, "--dir", place_text];
    asked.iter().for_each(|figure| args.extend(["--figure", *figure]));
    let printed = figures(&args).expect("drawn");
    assert_eq!(printed.lines().count(), 2 * expected.len(), "{printed}");
    for (name, series) in expected {
        let read = |ending: &str| {
            let path = out.join(format!("command-logging-{name}.{ending}"));
            fs::read_to_string(path).expect("a file")
        };
        let (csv, svg) = (read("csv"), read("svg"));
        assert!(
            csv.contains("a short run: no figure") && csv.contains("; a test;"),
            "{csv}"
        );
        assert!(svg.contains("paper ") && !svg.contains("NaN"), "{svg}");
        for series in *series {
            let line = csv.lines().find_map(|line| line.strip_prefix(&format!("{series},")));
            let median = line.and_then(|line| line.split(',').nth(1)?.parse::<f64>().ok());
            assert!(median.is_some_and(|median| median > 0.0), "{series}: {csv}");
        }
    }
    assert_eq!(fs::read_dir(&place).expect("a folder").count(), 0, "something is left");
}

const LOGS: [&str; 3] = ["none", "command", "physiological"];

#[test]
fn throughput_latency_and_replay_of_voter_are_drawn() {
    let replay = ["command", "physiological"];
    check_drawn(&["3", "4", "5"], &[("3", &LOGS), ("4", &LOGS), ("5", &replay)]);
}

#[test]
#[ignore = "loads TPC-C for each log; the same code draws Voter in the test beside it"]
fn bytes_of_both_workloads_are_drawn() {
    check_drawn(&["bytes"], &[("bytes", &LOGS[1..])]);
}

#[test]
#[ignore = "takes a minute; the same code draws Voter in the test beside it"]
fn figures_of_tpcc_are_drawn() {
    check_drawn(&["6", "8"], &[("6", &LOGS), ("8", &LOGS[1..])]);
}

#[test]
#[ignore = "takes a minute; the same code draws Voter in the test beside it"]
fn distributed_transactions_are_drawn() {
    check_drawn(&["9", "11"], &[("9", &LOGS), ("11", &["run", "replay"])]);
}

#[test]
fn figure_is_refused_when_there_is_none() {
    let told = figures(&["--figure", "10"]).expect_err("no such figure");
    assert!(told.contains("there is no figure 10 here"), "{told}");
}
