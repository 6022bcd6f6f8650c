//! Each figure is drawn: a short run of every way, whose workload checks what it left, and whose standbys end with their primary's rows.

use reprise_bench_figures::check::FigureProgram;

const PROGRAM: FigureProgram = FigureProgram {
    executable: env!("CARGO_BIN_EXE_reprise-bench-query-fresh"),
    flags: &["--sites", "1", "--standbys", "1"],
    folder_flags: &["--dir", "--disk"],
    prefix: "query-fresh-",
    drawn: "<svg",
    may_be_zero: true,
};

const WAYS: [&str; 5] = ["query-fresh", "replay-arrays", "sync", "async", "logical"];

#[test]
fn standbys_without_replay_with_redo_and_with_replay_arrays_are_drawn() {
    PROGRAM.check_drawn(
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
    PROGRAM.check_drawn(&["6"], &[("6", &WAYS)]);
}

#[test]
#[ignore = "takes a minute; the ways of these figures are drawn by the tests beside it"]
fn freshness_and_processor_time_are_drawn() {
    PROGRAM.check_drawn(
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
    PROGRAM.check_drawn(
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
    PROGRAM.check_drawn(
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
    let program = FigureProgram { prefix: "", ..PROGRAM };
    program.check_drawn(&["command-logging-10"], &[("command-logging-10", &series)]);
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
    PROGRAM.check_drawn(&["replay"], &[("replay-tpcc", &series), ("replay-voter", &series)]);
}

#[test]
fn missing_figures_are_reported() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let told = |args: &[&str]| {
        PROGRAM
            .run(&[args, &["--out", path, "--dir", path, "--disk", path]].concat())
            .expect_err("refused")
    };
    assert!(told(&["--figure", "5"]).contains("there is no figure 5 here"));
    assert!(told(&["--standbys", "0"]).contains("--standbys takes numbers from 1 to 16"));
    assert!(told(&["--replay-log", path]).contains("read where the run begins"));
    assert_eq!(
        std::fs::read_dir(dir.path()).expect("a folder").count(),
        0,
        "something is left"
    );
    let told = PROGRAM
        .run(&["--short", "--out", path, "--dir", "/proc/nowhere"])
        .expect_err("no such folder");
    assert!(told.contains("create /proc/nowhere"), "{told}");
}
