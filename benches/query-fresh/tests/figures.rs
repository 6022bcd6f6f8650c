//! Each figure is drawn: a short run of every way, whose workload checks what it left, and whose standbys end with their primary's rows.

use std::{fs, path::Path, process::Command};

/// Runs the program; what it printed, or told.
fn figures(args: &[&str]) -> Result<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(env!("CARGO_BIN_EXE_reprise-bench-query-fresh"));
    command.arg("--modules").arg(root.join("target/procedures")).args(args);
    let output = command.output().expect("it starts");
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(told(&output.stdout)),
        false => Err(told(&output.stderr)),
    }
}

/// Draws figures shortly on one engine thread with one standby, and looks for these files and their series.
fn check_drawn(asked: &[&str], expected: &[(&str, &[&str])]) {
    let dir = tempfile::tempdir().expect("a directory");
    let (out, place) = (dir.path().join("figures"), dir.path().join("place"));
    fs::create_dir(&place).expect("a directory");
    let (out_text, place_text) = (out.to_str().expect("text"), place.to_str().expect("text"));
    let mut args = vec!["--short", "--sites", "1", "--standbys", "1", "--build", "a test"];
    args.extend(["--out", out_text, "--dir", place_text, "--disk", place_text]);
    asked.iter().for_each(|figure| args.extend(["--figure", *figure]));
    let printed = figures(&args).expect("drawn");
    assert_eq!(printed.lines().count(), 2 * expected.len(), "{printed}");
    for (name, series) in expected {
        let paper = if name.starts_with("command-logging") {
            ""
        } else {
            "query-fresh-"
        };
        let read = |ending: &str| fs::read_to_string(out.join(format!("{paper}{name}.{ending}"))).expect("a file");
        let (csv, svg) = (read("csv"), read("svg"));
        assert!(
            csv.contains("a short run: no figure") && csv.contains("; a test;"),
            "{csv}"
        );
        assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{svg}");
        for series in *series {
            let line = csv.lines().find_map(|line| line.strip_prefix(&format!("{series},")));
            let median = line.and_then(|line| line.split(',').nth(1)?.parse::<f64>().ok());
            assert!(median.is_some_and(|median| median >= 0.0), "{series}: {csv}");
        }
    }
    assert_eq!(fs::read_dir(&place).expect("a folder").count(), 0, "something is left");
}

const WAYS: [&str; 5] = ["query-fresh", "replay-arrays", "sync", "async", "logical"];

#[test]
fn standbys_without_replay_with_redo_and_with_replay_arrays_are_drawn() {
    check_drawn(
        &["table-1", "10"],
        &[
            ("table-1", &["standalone", "tcp"]),
            ("table-1-log", &["standalone"]),
            ("10", &["replay-arrays", "full-instantiation"]),
        ],
    );
}

#[test]
#[ignore = "takes a minute; the test beside it draws some of these ways"]
fn the_ways_are_drawn() {
    check_drawn(&["6"], &[("6", &WAYS)]);
}

#[test]
#[ignore = "takes a minute; the ways of these figures are drawn by the tests beside it"]
fn freshness_and_processor_time_are_drawn() {
    check_drawn(
        &["7", "processor"],
        &[
            ("7", &[&WAYS[..], &["query-fresh-reads"]].concat()),
            ("processor-primary", &["standalone", "query-fresh", "logical"]),
            ("processor-standby", &WAYS),
        ],
    );
}

#[test]
#[ignore = "takes a minute; the ways of these figures are drawn by the tests beside it"]
fn replay_policies_are_drawn() {
    check_drawn(
        &["8", "9", "11"],
        &[
            ("8", &["no-replay", "pipelined", "synchronous"]),
            ("8-reads", &["pipelined", "synchronous"]),
            ("9", &["pipelined-1", "synchronous-1"]),
            ("11", &["pipelined-1", "synchronous-1"]),
        ],
    );
}

#[test]
#[ignore = "takes a minute; the ways of these figures are drawn by the tests beside it"]
fn the_standbys_log_and_its_beginning_are_drawn() {
    let logs = ["ideal", "file", "file-in-memory", "nvram"];
    check_drawn(
        &["12", "bootstrap"],
        &[
            ("12", &logs),
            ("12-reads", &logs),
            ("bootstrap", &["files", "checkpoint", "log", "catch-up", "whole"]),
        ],
    );
}

#[test]
#[ignore = "takes half a minute; the ways of this figure are drawn by the tests beside it"]
fn commands_and_changes_are_drawn_by_distribution() {
    let series = ["command", "physiological"];
    check_drawn(&["command-logging-10"], &[("command-logging-10", &series)]);
}

/// Redo and replay arrays reach the same rows of every table, otherwise there is no figure.
#[test]
fn replay_arrays_come_to_the_rows_of_redo() {
    let series = [
        "run",
        "redo",
        "replay-arrays",
        "read in place",
        "first read by replay-arrays",
    ];
    check_drawn(&["replay"], &[("replay-tpcc", &series), ("replay-voter", &series)]);
}

#[test]
fn missing_figures_are_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let told = |args: &[&str]| {
        figures(&[args, &["--out", path, "--dir", path, "--disk", path]].concat()).expect_err("refused")
    };
    assert!(told(&["--figure", "5"]).contains("there is no figure 5 here"));
    assert!(told(&["--standbys", "0"]).contains("--standbys takes numbers from 1 to 16"));
    assert!(told(&["--replay-log", path]).contains("read where the run begins"));
    assert_eq!(
        fs::read_dir(dir.path()).expect("a folder").count(),
        0,
        "something is left"
    );
    let told = figures(&["--short", "--out", path, "--dir", "/proc/nowhere"]).expect_err("no such folder");
    assert!(told.contains("create /proc/nowhere"), "{told}");
}
